"""transformers' models with our attention: outputs and gradients beside its eager one."""

import pytest

from tests.lazy import lazy

pytestmark = pytest.mark.parity
torch, transformers, plugin = lazy("torch"), lazy("transformers"), lazy("bertcore.plugins.transformers")

SIZES = {"hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 99, "intermediate_size": 53}
MODELS = {
    "bert": lambda: transformers.BertConfig(**SIZES),
    "roberta": lambda: transformers.RobertaConfig(**SIZES),
    "modernbert": lambda: transformers.ModernBertConfig(**SIZES, local_attention=4, pad_token_id=0),
    "gpt2": lambda: transformers.GPT2Config(n_embd=36, n_layer=2, n_head=3, vocab_size=99),
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=1),
    "eurobert": lambda: transformers.EuroBertConfig(**SIZES, num_key_value_heads=1, pad_token_id=0),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    plugin.register_attention()


def pair(name):
    """Two equal models in float64, with eager attention and with ours."""
    config, models = MODELS[name](), []
    for attention in ("eager", "bertcore"):
        torch.manual_seed(0)
        models.append(transformers.AutoModel.from_config(config, attn_implementation=attention).double().eval())
    return models


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name, is_padded):
    ids = torch.randint(5, 99, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    if is_padded:
        mask[1, 7:] = 0
    found = []
    for model in pair(name):
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(each.grad for each in model.parameters() if each.grad is not None)])
    assert model.config._attn_implementation == "bertcore"
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-8)


def test_generation_with_a_cache():
    eager, ours = (
        transformers.GPT2LMHeadModel._from_config(MODELS["gpt2"](), attn_implementation=name).eval()
        for name in ("eager", "bertcore")
    )
    ours.load_state_dict(eager.state_dict())
    ids = torch.tensor([[5, 17, 3]])
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    assert ours.generate(ids, **options).tolist() == eager.generate(ids, **options).tolist()


def test_dropout_follows_pytorchs_generator():
    heads = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    module, found = torch.nn.Module(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(plugin.attention_forward(module, heads, heads, heads, None, dropout=0.5)[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    with pytest.raises(ValueError, match=r"softcap is 3\.0, expected None"):
        plugin.attention_forward(module, heads, heads, heads, None, softcap=3.0)
