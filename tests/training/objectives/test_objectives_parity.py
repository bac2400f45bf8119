"""Losses and gradients of objectives beside those of transformers and PyTorch, in float64."""

import numpy as np
import pytest

import bertcore
from bertcore.training import objectives
from bertcore.training.masking import IGNORED
from tests.models.family_parity import random_model
from tests.models.test_xlnet import exact_sinusoids  # noqa: F401, a fixture
from tests.tiny_bert import CONFIG, save_tiny_bert
from tests.tokenization.corpus import write_json
from tests.tokenization.family_folders import write_family

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tensors(batch):
    import torch

    return {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}


def assert_gradients(grads, peer, loss, others=()):
    """`grads` are PyTorch's of `loss`, of the peer's parameters and of `others`, by name."""
    loss.backward()
    named = dict(peer.named_parameters(remove_duplicate=False)) | dict(others)
    expected = {name: parameter.grad for name, parameter in named.items() if name in grads}
    assert len(expected) == len(grads) > 10
    scale = max(float(grad.abs().max()) for grad in expected.values() if grad is not None)
    for name, grad in expected.items():
        found = grads[name]
        wanted = np.zeros_like(found) if grad is None else grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9 * scale, err_msg=name)


@pytest.mark.parametrize("family, pairs", [("bert", objectives.NextSentence()), ("albert", objectives.SentenceOrder())])
@pytest.mark.parametrize("beside_words", [True, False])
def test_pairs(tmp_path, family, pairs, beside_words):
    import torch
    import transformers

    rng = np.random.default_rng(0)
    sizes = {name: CONFIG[name] for name in CONFIG if name not in ("model_type", "initializer_range")}
    more = {"embedding_size": 17, "classifier_dropout_prob": 0.0} if family == "albert" else {}
    config = transformers.AutoConfig.for_model(family, **sizes | NO_DROPOUT | more)
    kind = "NextSentencePrediction" if family == "bert" and not beside_words else "PreTraining"
    peer = random_model(config, kind, rng).double()
    peer.save_pretrained(tmp_path / "peer")
    model = getattr(bertcore, f"AutoModelFor{kind}").from_pretrained(tmp_path / "peer", dtype="float64")
    mask = (np.arange(19) < np.array([19, 7, 12])[:, None]).astype(np.int64)
    batch = {"input_ids": rng.integers(5, CONFIG["vocab_size"], mask.shape), "attention_mask": mask}
    batch["token_type_ids"] = (np.arange(19) > 4) * mask
    theirs, labels = peer(**tensors(batch)), np.array([1, 0, 1])
    pretrained = "seq_relationship_logits" if family == "bert" else "sop_logits"
    scores = theirs[pretrained if kind == "PreTraining" else "logits"]
    loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
    batch[pairs.label] = labels
    if beside_words:
        words = np.where((rng.random(mask.shape) < 0.3) & (mask == 1), batch["input_ids"], IGNORED)
        known = torch.from_numpy(words != IGNORED)
        loss = loss + torch.nn.functional.cross_entropy(theirs.prediction_logits[known], torch.from_numpy(words)[known])
        batch["labels"] = words
    out, grads = (objectives.MaskedLM() + pairs if beside_words else pairs).value_and_grad(model, batch)
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-10)
    assert_gradients(grads, peer, loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_span_boundary(tmp_path, smoothing):
    import torch
    import transformers

    rng = np.random.default_rng(0)
    config = transformers.BertConfig(**CONFIG | NO_DROPOUT, eos_token_id=None)
    peer = random_model(config, "MaskedLM", rng).double()
    peer.save_pretrained(tmp_path / "peer")
    with pytest.warns(bertcore.models.model.NewlyInitialisedWarning):
        model = bertcore.AutoModelForSpanBoundary.from_pretrained(tmp_path / "peer", dtype="float64")
    state = model.state_dict()
    drawn = {name: rng.normal(0, 0.3, array.shape) for name, array in state.items() if name.startswith("span_boundary")}
    model.load_state_dict(state | drawn)
    head = {name: torch.nn.Parameter(torch.from_numpy(array)) for name, array in drawn.items()}

    ids = rng.integers(5, CONFIG["vocab_size"], (3, 31))
    mask = (np.arange(31) < np.array([31, 7, 18])[:, None]).astype(np.int64)
    labels = np.where((rng.random(ids.shape) < 0.5) & (mask == 1), ids, IGNORED)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    out, grads = objectives.SpanBoundary(label_smoothing=smoothing).value_and_grad(model, batch)

    def cross_entropy(scores, words):
        return torch.nn.functional.cross_entropy(scores, torch.tensor(words), label_smoothing=smoothing)

    theirs = peer(**tensors({"input_ids": ids, "attention_mask": mask}), output_hidden_states=True)
    hidden, scores, words = theirs.hidden_states[-1], [], []
    for row, length in enumerate(mask.sum(axis=1).tolist()):
        for token in range(length):
            left = next((i for i in range(token, -1, -1) if labels[row, i] == IGNORED), None)
            right = next((i for i in range(token, length) if labels[row, i] == IGNORED), None)
            if labels[row, token] == IGNORED or left is None or right is None:
                continue
            place = head["span_boundary.position_embeddings.weight"][token - left - 1]
            features = torch.cat([hidden[row, left], hidden[row, right], place])
            for name in ("span_boundary.layer.0", "span_boundary.layer.1"):
                dense = torch.nn.functional.linear(features, head[f"{name}.dense.weight"], head[f"{name}.dense.bias"])
                norm = head[f"{name}.LayerNorm.weight"], head[f"{name}.LayerNorm.bias"]
                features = torch.nn.functional.layer_norm(
                    torch.nn.functional.gelu(dense), dense.shape, *norm, eps=config.layer_norm_eps
                )
            scores.append(features @ peer.bert.embeddings.word_embeddings.weight.T + head["span_boundary.bias"])
            words.append(labels[row, token])
    mlm = cross_entropy(theirs.logits[torch.from_numpy(labels != IGNORED)], labels[labels != IGNORED])
    loss = mlm + cross_entropy(torch.stack(scores), words)
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-10)
    assert_gradients(grads, peer, loss, head.items())

    model.save_pretrained(tmp_path / "ours")  # transformers leaves the second head
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").double().eval()
    with torch.no_grad():
        found = again(**tensors({"input_ids": ids, "attention_mask": mask})).logits
    kept = mask.astype(bool)
    np.testing.assert_allclose(found.numpy()[kept], theirs.logits.detach().numpy()[kept], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("exact_sinusoids")
def test_permutation(tmp_path):
    import transformers

    rng = np.random.default_rng(0)
    sizes = {"vocab_size": 75, "d_model": 78, "n_head": 2, "d_inner": 53, "n_layer": 2, "dropout": 0}
    peer = random_model(transformers.XLNetConfig(**sizes), "CausalLM", rng).double()
    peer.save_pretrained(tmp_path / "peer")
    model = bertcore.AutoModelForCausalLM.from_pretrained(tmp_path / "peer", dtype="float64")
    tokenizer = bertcore.AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path / "tokenizer"))
    objective = objectives.PermutationLM(0.3)
    examples = [{"input_ids": [2, *rng.integers(5, 69, count).tolist(), 3]} for count in (17, 5, 11)]
    batch = objective.collator(tokenizer, seed=1)(examples)
    batch["token_type_ids"] = rng.integers(0, 2, batch["input_ids"].shape)
    out, grads = objective.value_and_grad(model, batch)
    floats = {"perm_mask": batch["perm_mask"].astype(float), "target_mapping": batch["target_mapping"].astype(float)}
    loss = peer(**tensors(batch | floats)).loss
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-10)
    assert_gradients(grads, peer, loss)


def test_entities(tmp_path):
    import transformers

    rng = np.random.default_rng(0)
    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 26, "entity_vocab_size": 37, "entity_emb_size": 13}
    peer = random_model(transformers.LukeConfig(**sizes | NO_DROPOUT), "MaskedLM", rng).double()
    peer.save_pretrained(tmp_path / "peer")
    model = bertcore.AutoModelForMaskedLM.from_pretrained(tmp_path / "peer", dtype="float64")
    write_family(tmp_path, "LukeTokenizer")
    write_json(tmp_path / "entity_vocab.json", {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3})
    tokenizer = bertcore.AutoTokenizer.from_pretrained(tmp_path)
    objective = objectives.EntityMaskedLM(entity_share=0.5)
    examples = [
        {
            "input_ids": [0, *rng.integers(6, 20, count).tolist(), 2],
            "entity_ids": rng.integers(4, 37, entities).tolist(),
            "entity_position_ids": [list(range(1, rng.integers(2, 4))) for _ in range(entities)],
        }
        for count, entities in ((17, 5), (5, 1), (11, 0))
    ]
    batch = objective.collator(tokenizer, seed=1)(examples)
    out, grads = objective.value_and_grad(model, batch)
    loss = peer(**tensors(batch)).loss
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-10)
    assert_gradients(grads, peer, loss)


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_translation(tmp_path, family):
    """Positions start again at the translation's first token, after "<s>" or "[CLS]"; XLM-R's count from 2 on."""
    import transformers

    rng = np.random.default_rng(0)
    sizes = {name: CONFIG[name] for name in CONFIG if name not in ("model_type", "initializer_range")}
    config = transformers.AutoConfig.for_model(family, **sizes | NO_DROPOUT, pad_token_id={"bert": 0}.get(family, 1))
    peer = random_model(config, "MaskedLM", rng).double()
    peer.save_pretrained(tmp_path / "peer")
    model = bertcore.AutoModelForMaskedLM.from_pretrained(tmp_path / "peer", dtype="float64")
    tokenizer = bertcore.AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path / "tokenizer"))
    objective, pairs = objectives.TranslationLM(), [["the cat sat", "paris is of"], ["on", "of france an mat sat on"]]
    batch = objective.collator(tokenizer, seed=1)(list(objective.examples(pairs, tokenizer, max_length=30)))
    if family != "bert":
        del batch["token_type_ids"]
    out, grads = objective.value_and_grad(model, batch)
    ends = [(5, 9), (3, 10)]  # of [CLS], a text and [SEP]; of all
    positions = [[*range(first), *range(1, 1 + end - first), *[0] * (10 - end)] for first, end in ends]
    inputs = {name: array for name, array in batch.items() if name != "restart"}
    theirs = tensors(inputs | {"position_ids": np.array(positions) + (0 if family == "bert" else 2)})
    loss = peer(**theirs).loss
    np.testing.assert_allclose(out.loss, loss.item(), rtol=1e-10)
    assert_gradients(grads, peer, loss)
