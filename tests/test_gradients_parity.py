"""Losses over hidden states, attentions, pooled vectors and logits: the gradients that PyTorch computes."""

import numpy as np
import pytest

import bertcore
from bertcore import use_backend, vjp
from tests.conftest import CPU_BACKENDS
from tests.models.family_parity import _arrays, _check_gradients, _real, random_batch, random_model, run_torch
from tests.models.family_table import FAMILIES
from tests.models.test_luke import small_config as luke_config
from tests.models.test_luke import with_entities
from tests.models.test_xlnet import exact_sinusoids, two_streams  # noqa: F401
from tests.models.test_xlnet import small_config as xlnet_config

pytestmark = pytest.mark.parity
TRACED = {"output_hidden_states": True, "output_attentions": True}
CASES = {  # name: (how its config is made, task)
    "bert": (None, None),
    "bert's masked lm": ("bert", "MaskedLM"),
    "bert's answers": ("bert", "QuestionAnswering"),
    "deberta": (None, None),
    "deberta-v2": (None, "SequenceClassification"),
    "modernbert": (None, "TokenClassification"),
    "gpt2": (None, "CausalLM"),
    "xlnet": (xlnet_config, None),
    "xlnet's predictions": (xlnet_config, "CausalLM"),
    "luke": (luke_config, None),
    "mobilebert": (None, None),
    "albert": (None, "PreTraining"),
}


def made(name, rng):
    """(config, task, batch) of a case."""
    import transformers

    make, task = CASES[name]
    if make in (luke_config, xlnet_config):
        config = make()
        batch = random_batch(config, [7, 3, 5], rng)
        if make is luke_config:
            batch, _ = with_entities(batch, [2, 1, 3], rng)
        return config, task, batch | (two_streams((3, 7), 4, rng) if name == "xlnet's predictions" else {})
    case = FAMILIES[make or name]
    config = transformers.AutoConfig.for_model(**case.with_changes(dict(case.in_task.get(task, {}))))
    return config, task, random_batch(config, [7, 3, 5], rng)


@pytest.mark.usefixtures("exact_sinusoids")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_all_fields(name):
    """Of a random sum over all outputs, in float32 on every backend."""
    import torch

    rng = np.random.default_rng(11)
    config, task, batch = made(name, rng)
    model = random_model(config, task, rng)
    shapes, _ = run_torch(model, batch, {}, double=True)
    kept = [key for key in shapes if not key.startswith("mems") and "past" not in key]
    seeds = {key: _real(rng.normal(size=shapes[key].shape), key, batch, False) for key in kept}
    if "perm_mask" in batch:  # a query that sees nothing has other gradients in transformers
        sees = ((batch["perm_mask"] == 0) & (batch["attention_mask"][:, None] == 1)).any(axis=2)
        for key in seeds:
            if key.startswith("attentions") and key.endswith(" 1"):  # of the query stream
                seeds[key] = seeds[key] * sees[:, None, :, None]

    def loss(out):
        fields = _arrays(out, lambda tensor: tensor)
        return sum((fields[key] * torch.from_numpy(seed).to(fields[key].dtype)).sum() for key, seed in seeds.items())

    (_, truth), (_, single) = (run_torch(model, batch, {}, double=double, loss=loss) for double in (True, False))
    ours = _loaded(model, task)
    for backend in CPU_BACKENDS:
        with use_backend(backend):
            out, pullback = vjp(ours)(**batch, **TRACED)
            grads = pullback({key: _by_field(key, out[key], seeds) for key in out if key != "mems"})
        _check_gradients(grads, truth, single)


def _loaded(model, task):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return getattr(bertcore, f"AutoModelFor{task}" if task else "AutoModel").from_pretrained(folder)


def _by_field(name, field, seeds):
    if isinstance(field, tuple):
        return tuple(_by_field(f"{name} {index}", part, seeds) for index, part in enumerate(field))
    return seeds[name]


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 0.0, 1.25, 3.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cross_entropy_is_torchs(smoothing, weights, dtype):
    import torch

    from bertcore.nn import functional
    from bertcore.tape import Tape

    rng = np.random.default_rng(0)
    logits, labels = (10 * rng.normal(size=(7, 5))).astype(dtype), np.array([0, 4, -100, 2, 2, 3, 1])
    tensor = torch.from_numpy(logits).requires_grad_()
    given = None if weights is None else torch.tensor(weights, dtype=tensor.dtype)
    expected = torch.nn.functional.cross_entropy(
        tensor, torch.from_numpy(labels), weight=given, label_smoothing=smoothing
    )
    expected.backward()
    plain = None if weights is None else np.array(weights, dtype)
    for backend in CPU_BACKENDS:
        with use_backend(backend), Tape() as tape:
            leaf = tape.leaf("x", lambda: logits)
            options = {"label_smoothing": smoothing, "class_weights": plain}
            loss = functional.cross_entropy(leaf, labels=labels, **options)
            grad = tape.gradients(loss, np.ones((), dtype))["x"]
        exact = 1e-12 if dtype == "float64" else 2e-6
        np.testing.assert_allclose(loss.value, expected.detach().numpy(), rtol=exact)
        np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=10 * exact, atol=exact)


def test_a_ranking_of_texts_is_torchs():
    """MultipleNegativesRanking and CoSENT, written in PyTorch as sentence-transformers documents them."""
    import torch

    from bertcore.training.objectives import CoSENT, MultipleNegativesRanking

    vectors, labels = np.random.default_rng(0).normal(size=(6, 3, 8)), np.array([0.1, 0.9, 0.4, 0.4, 1.0, 0.0])
    tensor = torch.from_numpy(vectors).requires_grad_()
    unit = torch.nn.functional.normalize(tensor, dim=-1)
    scores = 20 * unit[:, 0] @ torch.cat([unit[:, 1], unit[:, 2]]).T
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(6))
    expected.backward()
    value, grad = MultipleNegativesRanking().of_embeddings(vectors, None)
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)
    tensor.grad = None
    cosines = 20 * torch.nn.functional.cosine_similarity(tensor[:, 0], tensor[:, 1])
    differences = cosines[:, None] - cosines[None]
    order = torch.from_numpy(labels[:, None] < labels[None])
    expected = torch.logsumexp(torch.cat([torch.zeros(1, dtype=differences.dtype), differences[order]]), 0)
    expected.backward()
    value, grad = CoSENT().of_embeddings(vectors[:, :2], labels)
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(grad, tensor.grad.numpy()[:, :2], rtol=1e-9, atol=1e-12)
