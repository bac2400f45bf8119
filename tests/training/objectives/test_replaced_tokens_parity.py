"""Replaced tokens beside PyTorch: loss and gradients of the definition in float64, and the folders in transformers."""

import numpy as np
import pytest

from bertcore import ReplacedTokenModel
from bertcore.models.replaced_tokens import EMBEDDINGS
from bertcore.training.masking import IGNORED
from bertcore.training.objectives import ReplacedToken
from tests.tiny_families import drawn_anew, tiny_config

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]
MASK = 4
NAMES = "electra-small-discriminator", "deberta-v3-small", "codebert"


def config_of(name):
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return tiny_config(name) | rates | {"pad_token_id": 1 if name == "codebert" else 0}


def batch_of(config, rng, lengths=(11, 3, 7)):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    text = np.where(mask, rng.integers(6, config["vocab_size"], mask.shape), config["pad_token_id"])
    has_label = mask & (rng.random(mask.shape) < 0.4)
    has_label[0, 0] = True
    return {
        "input_ids": np.where(has_label, MASK, text),
        "attention_mask": mask.astype(np.int64),
        "labels": np.where(has_label, text, IGNORED),
        "draws": rng.random(mask.shape),
    }


def peers(folder, name):
    """transformers' models of both folders, in float64; of DeBERTa-v3 and CodeBERT the encoder, with heads from their
    definitions (microsoft/DeBERTa's replaced_token_detection_model.py, ELECTRA's head)."""
    import transformers
    from safetensors.torch import load_file

    kinds = {"electra": "Electra", "deberta": "DebertaV2", "codebert": "Roberta"}
    kind = kinds[name.split("-")[0]]
    options = {"attn_implementation": "eager"}
    generator, report = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(
        folder / "generator", output_loading_info=True, **options
    )
    assert not (report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
    if kind == "Electra":
        discriminator = transformers.ElectraForPreTraining.from_pretrained(folder / "discriminator", **options)
    else:
        config = transformers.AutoConfig.from_pretrained(folder / "discriminator", **options)
        discriminator = discriminator_of_definition(kind, config).double()
        discriminator.load_state_dict(load_file(folder / "discriminator" / "model.safetensors"))
    return generator.double().eval(), discriminator.double().eval()


def discriminator_of_definition(kind, config):
    import torch
    import transformers
    from torch import nn

    class Peer(nn.Module):
        def __init__(self):
            super().__init__()
            width = config.hidden_size
            if kind == "DebertaV2":
                self.deberta = transformers.DebertaV2Model(config)
                norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
                parts = {"dense": nn.Linear(width, width), "LayerNorm": norm, "classifier": nn.Linear(width, 1)}
                self.mask_predictions = nn.ModuleDict(parts)
            else:
                self.roberta = transformers.RobertaModel(config, add_pooling_layer=False)
                parts = {"dense": nn.Linear(width, width), "dense_prediction": nn.Linear(width, 1)}
                self.discriminator_predictions = nn.ModuleDict(parts)

        def forward(self, **batch):
            encoder = self.deberta if kind == "DebertaV2" else self.roberta
            hidden = encoder(**batch).last_hidden_state
            if kind == "DebertaV2":
                head = self.mask_predictions
                hidden, output = head["LayerNorm"](hidden + hidden[:, :1]), head["classifier"]
            else:
                head = self.discriminator_predictions
                output = head["dense_prediction"]
            logits = output(torch.nn.functional.gelu(head["dense"](hidden)))[..., 0]
            return transformers.modeling_outputs.MaskedLMOutput(logits=logits)

    return Peer()


def loss_of_definition(generator, discriminator, batch, weight):
    import torch

    ids, mask, labels, draws = (torch.from_numpy(batch[name]) for name in batch)
    logits = generator(input_ids=ids, attention_mask=mask).logits
    known = labels != IGNORED
    generator_loss = torch.nn.functional.cross_entropy(logits[known], labels[known])
    sums = logits[known].detach().softmax(-1).cumsum(-1)
    drawn = torch.searchsorted(sums, draws[known][:, None], right=True)[:, 0]
    given = ids.clone()
    given[known] = drawn
    replaced = (given != torch.where(known, labels, ids)).double()
    found = discriminator(input_ids=given, attention_mask=mask).logits
    of_tokens = torch.nn.functional.binary_cross_entropy_with_logits(found, replaced, reduction="none")
    assert replaced.sum() > 0
    return generator_loss + weight * of_tokens[mask == 1].mean(), given


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("embeddings", EMBEDDINGS)
def test_loss_and_gradients_are_torchs(name, embeddings, tmp_path):
    rtol = 1e-7 if "deberta" in name else 1e-9  # transformers takes DeBERTa's scale in float32
    config, rng = config_of(name), np.random.default_rng(3)
    model = drawn_anew(ReplacedTokenModel.from_config(config, embeddings=embeddings, dtype="float64"))
    batch = batch_of(config, rng)
    model.save_pretrained(tmp_path)
    out, grads = ReplacedToken().value_and_grad(model, batch)
    generator, discriminator = peers(tmp_path, name)
    loss, given = loss_of_definition(generator, discriminator, batch, 50.0)
    loss.backward()
    np.testing.assert_array_equal(out.given_ids, given.numpy())
    assert float(out.loss) == pytest.approx(loss.item(), rel=rtol)
    expected = gradients_by_our_names(model, generator, discriminator)
    assert expected.keys() == grads.keys()
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for key, gradient in expected.items():
        error, scale = np.abs(grads[key] - gradient).max(), max(np.abs(gradient).max(), 1e-3 * largest)
        assert error <= rtol * scale, f"{key}: {error / scale}"


def gradients_by_our_names(model, generator, discriminator):
    """By our names: a tied table has the sum of both, a disentangled one those of its own model."""
    found = {}
    for part, peer in (("generator", generator), ("discriminator", discriminator)):
        for key, parameter in peer.named_parameters():
            name = f"{part}.{key}"
            gradient = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
            if name in model.expected_tensors():
                found[name] = gradient
            elif f"{name}_delta" in model.expected_tensors():
                found[f"{name}_delta"] = gradient
            else:
                found[f"generator.{key}"] = found[f"generator.{key}"] + gradient
    return found
