"""Each term of distillation beside its definition in PyTorch: losses and gradients of student and learned maps."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoModelForSequenceClassification
from bertcore.training.objectives import (
    AttentionDistributions,
    AttentionScores,
    Distillation,
    HiddenCosine,
    HiddenStates,
    MaskedLM,
    Relations,
    SoftTargets,
    Supervised,
)
from tests.models.family_parity import random_batch, random_model, random_targets

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("on_numpy")]
LENGTHS = [11, 4, 1, 7]
STUDENT = {
    "model_type": "bert",
    "vocab_size": 61,
    "hidden_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 53,
    "max_position_embeddings": 40,
    "num_labels": 5,
}
TEACHERS = {
    "deep": {**STUDENT, "num_hidden_layers": 4},
    "wide": {**STUDENT, "num_hidden_layers": 4, "hidden_size": 48},
}
ALIKE = 1e-4  # of a gradient's scale


class Traced:
    """A transformers model in float64, with the hidden states, queries, keys and values of its last pass."""

    def __init__(self, model):
        self.model, self.parts = model.double().eval(), []
        for layer in self.model.bert.encoder.layer:
            self.parts.append({})
            for name in ("query", "key", "value"):
                getattr(layer.attention.self, name).register_forward_hook(
                    lambda module, given, made, name=name, parts=self.parts[-1]: parts.update({name: made})
                )

    def __call__(self, batch):
        import torch

        given = {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}
        self.out = self.model(**given, output_hidden_states=True)
        return self

    def states(self, layer):
        return real(self.out.hidden_states[layer])

    def scores(self, layer, left, right, heads):
        """Those of each sequence, (heads, tokens, tokens)."""
        parts = self.parts[layer - 1]
        for row, length in enumerate(LENGTHS):
            one, other = (
                parts[name][row, :length].unflatten(-1, (heads, -1)).transpose(0, 1) for name in (left, right)
            )
            yield one @ other.transpose(1, 2) / one.shape[-1] ** 0.5


def real(padded):
    import torch

    return torch.cat([row[:length] for row, length in zip(padded, LENGTHS, strict=True)])


def divergence(wanted, found):
    """The mean over rows of the cross entropy, less the entropy of what is wanted."""
    probabilities = wanted.softmax(-1)
    return -(probabilities * (found.log_softmax(-1) - wanted.log_softmax(-1))).sum(-1).mean()


def of_relations(student, teacher, layers, parts, heads, compare):
    """The mean over heads and tokens of all sequences, each row by itself."""
    total = 0
    for own, other in layers:
        pairs = zip(student.scores(own, *parts, heads), teacher.scores(other, *parts, heads), strict=True)
        total = total + sum(compare(wanted, found) * found.shape[1] for found, wanted in pairs) / sum(LENGTHS)
    return total


def mean_square(wanted, found):
    return ((found - wanted) ** 2).mean()


def soft_targets(student, teacher):
    logits = student.out.logits, teacher.out.logits
    if logits[0].ndim == 3:
        logits = tuple(map(real, logits))
    return 9 * divergence(logits[1] / 3, logits[0] / 3)


def cosine(student, teacher):
    import torch

    pair = student.states(2), teacher.states(4)
    return torch.nn.functional.cosine_embedding_loss(*pair, torch.ones(sum(LENGTHS)))


def states(student, teacher, embeddings=None, layers=None):
    total = 0
    for own in range(3):
        found, which = student.states(own), layers if own else embeddings
        total = total + mean_square(teacher.states(2 * own), found if which is None else found @ which.T)
    return total


EVEN, QUERY_KEY = [(1, 2), (2, 4)], ("query", "key")
TERMS = {
    "soft targets": (SoftTargets(temperature=3), "deep", soft_targets),
    "cosine": (HiddenCosine(), "deep", cosine),
    "hidden states": (HiddenStates(projected=False), "deep", states),
    "hidden states, projected": (HiddenStates(), "wide", states),
    "scores": (AttentionScores(), "wide", lambda s, t: of_relations(s, t, EVEN, QUERY_KEY, 3, mean_square)),
    "attention": (
        AttentionDistributions(),
        "wide",
        lambda s, t: of_relations(s, t, [(2, 4)], QUERY_KEY, 3, divergence),
    ),
    "attention of all layers": (
        AttentionDistributions(layers="even"),
        "deep",
        lambda s, t: of_relations(s, t, EVEN, QUERY_KEY, 3, divergence),
    ),
    "relations of values": (
        Relations(of=("value",)),
        "wide",
        lambda s, t: of_relations(s, t, [(2, 4)], ("value", "value"), 3, divergence),
    ),
    "relations, other heads": (
        Relations(heads=6),
        "wide",
        lambda s, t: sum(
            of_relations(s, t, [(2, 4)], (part, part), 6, divergence) for part in ("query", "key", "value")
        ),
    ),
}


def models(folder, kind, teacher, rng):
    """(PyTorch's, ours) of the student, and of the teacher."""
    import transformers

    ours = {"SequenceClassification": AutoModelForSequenceClassification, "MaskedLM": AutoModelForMaskedLM}[kind]
    for name, config in (("student", STUDENT), ("teacher", TEACHERS[teacher])):
        model = random_model(transformers.AutoConfig.for_model(**config), kind, rng)
        model.save_pretrained(folder / name)
        yield model, lambda dtype, name=name: ours.from_pretrained(folder / name, dtype=dtype)


def assert_alike(found, expected, name):
    scale = max(abs(expected).max(), 1e-6)
    assert abs(found - expected).max() <= ALIKE * scale, f"{name}: {abs(found - expected).max() / scale:.2g}"


@pytest.mark.parametrize("kind", ["SequenceClassification", "MaskedLM"])
@pytest.mark.parametrize("name", TERMS)
def test_losses_and_gradients_are_those_of_torch(tmp_path, kind, name):
    """Of one term beside the student's own loss of labels, of weights 0.7 and 2."""
    import torch

    term, teacher, definition = TERMS[name]
    rng = np.random.default_rng(0)
    (peer, own), (peer_teacher, own_teacher) = models(tmp_path, kind, teacher, rng)
    batch = random_batch(peer.config, LENGTHS, rng)
    targets = random_targets(peer.config, kind, batch, rng)
    objective = Distillation(
        own_teacher("float64"),
        type(term)(**{**vars(term), "weight": 0.7}),
        objective=MaskedLM() if kind == "MaskedLM" else Supervised(),
        objective_weight=2,
    )
    student = own("float64")
    maps = {each.names[0]: torch.from_numpy(each.array().astype(float)) for each in objective.parameters(student)}
    out, grads = objective.value_and_grad(student, batch | targets)
    for each in maps.values():
        each.requires_grad_(True)
    with torch.no_grad():
        traced_teacher = Traced(peer_teacher)(batch)
    traced = Traced(peer)(batch | targets)
    loss = 2 * traced.out.loss + 0.7 * definition(traced, traced_teacher, *maps.values())
    loss.backward()
    assert out.loss == pytest.approx(loss.item(), rel=1e-9)
    expected = {each: parameter.grad for each, parameter in peer.named_parameters() if parameter.grad is not None}
    expected |= {each: value.grad for each, value in maps.items()}
    assert set(expected) <= set(grads) and len(maps) == (2 if "projected" in name else 0)
    for each, gradient in grads.items():
        wanted = expected[each].numpy() if each in expected else np.zeros(gradient.shape)
        if "self.key.bias" in each:  # zero but for rounding, unless keys are compared
            np.testing.assert_allclose(gradient, wanted, atol=1e-4)
            continue
        assert_alike(gradient, wanted, each)
