"""Replaced tokens beside PyTorch: loss and gradients of the definition in float64, and the folders in transformers."""

import numpy as np
import pytest

from bertcore import ReplacedTokenModel
from bertcore.models.replaced_tokens import EMBEDDINGS
from bertcore.training.masking import IGNORED
from bertcore.training.objectives import ReplacedToken
from tests.tiny_families import drawn_anew, tiny_config

pytestmark = pytest.mark.parity
MASK = 4
NAMES = ("electra-small-discriminator",)


def config_of(name):
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return tiny_config(name) | rates


def batch_of(vocab, rng, lengths=(11, 3, 7)):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    text = np.where(mask, rng.integers(6, vocab, mask.shape), 0)
    has_label = mask & (rng.random(mask.shape) < 0.4)
    has_label[0, 0] = True
    return {
        "input_ids": np.where(has_label, MASK, text),
        "attention_mask": mask.astype(np.int64),
        "labels": np.where(has_label, text, IGNORED),
        "draws": rng.random(mask.shape),
    }


def peers(folder):
    """transformers' models of both folders, in float64."""
    import transformers

    made = (transformers.ElectraForMaskedLM, transformers.ElectraForPreTraining)
    loaded = []
    for kind, part in zip(made, ("generator", "discriminator"), strict=True):
        model, report = kind.from_pretrained(folder / part, output_loading_info=True, attn_implementation="eager")
        assert not (report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
        loaded.append(model.double().eval())
    return loaded


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


@pytest.mark.parametrize("embeddings", EMBEDDINGS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-9), ("float32", 1e-4)])
def test_loss_and_gradients_are_torchs(name, embeddings, dtype, rtol, tmp_path):
    config, rng = config_of(name), np.random.default_rng(3)
    model = drawn_anew(ReplacedTokenModel.from_config(config, embeddings=embeddings, dtype=dtype))
    batch = batch_of(config["vocab_size"], rng)
    model.save_pretrained(tmp_path)
    out, grads = ReplacedToken().value_and_grad(model, batch)
    generator, discriminator = peers(tmp_path)
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
            name, gradient = f"{part}.{key}", parameter.grad.numpy()
            if name in model.expected_tensors():
                found[name] = gradient
            elif f"{name}_delta" in model.expected_tensors():
                found[f"{name}_delta"] = gradient
            else:
                found[f"generator.{key}"] = found[f"generator.{key}"] + gradient
    return found
