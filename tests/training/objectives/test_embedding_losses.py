"""Further losses of sentence embeddings: sentence-transformers' values and gradients, slopes, guides, classifiers."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertcore import AutoModel
from bertcore.training import objectives
from bertcore.training.objectives import (
    AdaptiveLayerLoss,
    AnglELoss,
    BatchHardTripletLoss,
    ContrastiveLoss,
    CoSENTLoss,
    DistillKLDivLoss,
    GISTEmbedLoss,
    MatryoshkaLoss,
    MSELoss,
    MultipleNegativesRankingLoss,
    OnlineContrastiveLoss,
    SoftmaxLoss,
    TripletLoss,
)
from tests.refusals import refuses
from tests.tiny_bert import CONFIG, save_tiny_bert
from tests.training.objectives.students import assert_gradients

DIM = 6
pytestmark = pytest.mark.usefixtures("on_numpy")


class Guide:
    def encode(self, texts, **options):
        return np.array([[len(text), text.count("a"), 1.0] for text in texts], np.float32)


def classes(count):
    return np.arange(count) % 3


def numbers(*shape):
    return lambda count: np.random.default_rng(3).normal(size=(count, *shape))


def nothing(count):
    return None


def halves(count):
    return np.arange(count) % 2


def tied(count):
    return [0.3, 0.9, 0.3, -0.2, 0.5, 0.9, 0.9, 0.1][:count]


TRIPLETS = ("BatchHardTripletLoss", "BatchSemiHardTripletLoss", "BatchAllTripletLoss")
FORMS = {"": (classes, 5.0), "of a small margin": (classes, 0.3), "of one class": (np.zeros, 5.0)}
FORMS |= {"of all classes": (np.arange, 5.0)}
GUIDED = (
    {"temperature": 0.5},
    {"margin": 0.3, "contrast_anchors": False},
    {"margin": -0.3},
    {"margin_strategy": "relative", "margin": 0.9, "contrast_positives": False},
)
CASES = {  # class and what is special: (columns, labels of so many examples, arguments)
    "MultipleNegativesRankingLoss": (2, nothing, {}),
    "MultipleNegativesRankingLoss of negatives": (4, nothing, {"scale": 3.0}),
    "MultipleNegativesSymmetricRankingLoss": (3, nothing, {}),
    "CoSENTLoss": (2, tied, {"scale": 2.5}),
    "CosineSimilarityLoss": (2, tied, {}),
    **{
        f"TripletLoss by {name}": (3, nothing, {"distance_metric": name, "triplet_margin": 0.7})
        for name in ("euclidean", "cosine", "manhattan")
    },
    "MarginMSELoss": (3, numbers(), {}),
    "MarginMSELoss of negatives": (4, numbers(2), {}),
    "MarginMSELoss of similarities": (4, numbers(3), {}),
    "AnglELoss": (2, numbers(), {}),
    "AnglELoss of triplets": (3, nothing, {"scale": 5.0}),
    "AnglELoss of four texts": (4, numbers(), {}),
    "ContrastiveLoss": (2, halves, {}),
    "ContrastiveLoss summed": (2, halves, {"distance_metric": "euclidean", "margin": 3.0, "size_average": False}),
    "OnlineContrastiveLoss": (2, halves, {"margin": 1.2}),
    "OnlineContrastiveLoss by manhattan": (2, halves, {"distance_metric": "manhattan", "margin": 9.0}),
    "OnlineContrastiveLoss of near pairs": (2, np.ones, {}),
    "OnlineContrastiveLoss of far pairs": (2, np.zeros, {"margin": 2.0}),
    **{f"{kind} {form}": (1, FORMS[form][0], {"margin": FORMS[form][1]}) for kind in TRIPLETS for form in FORMS},
    **{f"{kind} by cosine": (1, classes, {"distance_metric": "cosine", "margin": 0.5}) for kind in TRIPLETS},
    "BatchHardSoftMarginTripletLoss": (1, classes, {}),
    "MSELoss": (1, numbers(DIM), {}),
    "MSELoss of translations": (3, numbers(DIM), {}),
    "MSELoss of columns": (2, numbers(2, DIM), {}),
    "DistillKLDivLoss": (4, numbers(3), {}),
    "DistillKLDivLoss of temperatures": (3, numbers(2), {"temperature": 2.0, "teacher_temperature": 0.5}),
    **{f"GISTEmbedLoss {count} {some}": (count, numbers(count, 4), some) for count in (2, 3) for some in GUIDED},
    "MatryoshkaLoss": (3, nothing, {"matryoshka_dims": [6, 3], "matryoshka_weights": [1.0, 0.5]}),
    "MatryoshkaLoss of a teacher": (2, numbers(DIM), {"matryoshka_dims": [6, 2], "matryoshka_weights": [1, 1]}),
}


def objective_of(name):
    kind, inner = name.split()[0], MSELoss() if "teacher" in name else TripletLoss(triplet_margin=0.5)
    more = {"GISTEmbedLoss": {"guide": Guide()}, "MatryoshkaLoss": {"loss": inner}}.get(kind, {})
    return getattr(objectives, kind)(model=None, **more, **CASES[name][2])


def array_of(labels):
    return None if labels is None else np.asarray(labels)


def vectors_of(columns, count, tied=False):
    vectors = np.random.default_rng(8).normal(size=(count, columns, DIM))
    if tied:
        vectors[1::2] = vectors[: count // 2]  # equal rows
    return vectors


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_gradient_is_the_slope_of_the_value(name, count):
    objective, (columns, labels, _) = objective_of(name), CASES[name]
    vectors, labels = vectors_of(columns, count), array_of(labels(count))
    _, grad = objective.of_embeddings(vectors, labels)
    for direction in np.random.default_rng(5).normal(size=(3, *vectors.shape)):
        ends = [objective.of_embeddings(vectors + step * direction, labels)[0] for step in (1e-6, -1e-6)]
        assert (grad * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count, tied", [(1, False), (2, False), (7, False), (8, True)])
def test_values_and_gradients_are_those_of_sentence_transformers(name, count, tied):
    torch, peer = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.losses")
    objective, (columns, labels, options) = objective_of(name), CASES[name]
    vectors, labels = vectors_of(columns, count, tied), array_of(labels(count))
    given = [torch.from_numpy(vectors[:, column]).requires_grad_() for column in range(columns)]
    targets = None if labels is None else torch.from_numpy(labels)
    loss = THEIRS.get(name.split()[0], of_columns)(peer, name.split()[0], dict(options), given, targets)
    loss.backward()
    value, grad = objective.of_embeddings(vectors, labels)
    assert value == pytest.approx(loss.item(), rel=2e-6, abs=1e-9)  # they add 1e-6 to differences
    expected = np.stack([np.zeros_like(vectors[:, 0]) if it.grad is None else it.grad.numpy() for it in given], axis=1)
    np.testing.assert_allclose(grad, expected, rtol=2e-6, atol=2e-6 * max(np.abs(expected).max(), 1))


def of_columns(peer, name, options, columns, labels):
    if "distance_metric" in options:
        kinds = peer.SiameseDistanceMetric, peer.BatchHardTripletLossDistanceFunction, peer.TripletDistanceMetric
        key = options["distance_metric"]
        key = f"{key}_distance" if name.startswith("Batch") else key.upper()
        options["distance_metric"] = next(getattr(kind, key) for kind in kinds if hasattr(kind, key))
    return getattr(peer, name)(None, **options).compute_loss_from_embeddings(columns, labels)


def of_teachers(peer, name, options, columns, labels):
    """Of labels that are embeddings, of texts or of columns."""
    teachers = [labels] * len(columns) if labels.dim() == 2 else list(labels.unbind(1))
    return peer.MSELoss(None).compute_loss_from_embeddings(columns, teachers)


def of_guide(peer, name, options, columns, labels):
    """By calling a model on features that are its vectors."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

    loss = peer.GISTEmbedLoss.__new__(peer.GISTEmbedLoss)
    torch.nn.Module.__init__(loss)
    loss.model, loss.guide = Model(), lambda features: {"sentence_embedding": features["guide"]}
    defaults = {
        "temperature": 0.01, "margin_strategy": "absolute", "margin": 0.0, "contrast_anchors": True,
        "contrast_positives": True, "gather_across_devices": False, "must_retokenize": False,
        "similarity_fct": torch.nn.CosineSimilarity(dim=-1), "cross_entropy_loss": torch.nn.CrossEntropyLoss(),
    }  # fmt: skip
    for key, value in (defaults | options).items():
        setattr(loss, key, value)
    module = __import__(type(loss).__module__, fromlist=["embed_columns"])
    before, module.embed_columns = (
        module.embed_columns,
        lambda model, rows: [model(row)["sentence_embedding"] for row in rows],
    )
    try:
        return loss([{"vectors": row, "guide": labels[:, at]} for at, row in enumerate(columns)], None)
    finally:
        module.embed_columns = before


def of_prefixes(peer, name, options, columns, labels):
    from torch.nn.functional import normalize

    def loss(vectors, teachers):
        if teachers is not None:
            return of_teachers(peer, name, options, vectors, teachers)
        return peer.TripletLoss(None, triplet_margin=0.5).compute_loss_from_embeddings(vectors, None)

    return sum(
        weight * loss([normalize(it[:, :dim]) for it in columns], None if labels is None else labels[:, :dim])
        for dim, weight in zip(options["matryoshka_dims"], options["matryoshka_weights"], strict=True)
    )


THEIRS = {"MSELoss": of_teachers, "GISTEmbedLoss": of_guide, "MatryoshkaLoss": of_prefixes}


def batch_of(columns, labels=None, count=5):
    rng = np.random.default_rng(0)
    real = np.arange(6) < rng.integers(1, 7, (count, columns, 1))
    batch = {"input_ids": np.where(real, rng.integers(5, 40, real.shape), 0), "attention_mask": real.astype(int)}
    return batch if labels is None else batch | {"labels": labels}


SCORES = [0.1, 0.9, 0.3, 0.3, 0.2]
WHOLE = {  # objectives that read more than one vector of each text, with a batch
    "softmax": (SoftmaxLoss(num_labels=3, concatenation_sent_multiplication=True), batch_of(2, [0, 2, 1, 1, 0])),
    "softmax of differences": (
        SoftmaxLoss(num_labels=2, concatenation_sent_rep=False, pooling="cls"),
        batch_of(2, [0, 1, 1, 1, 0]),
    ),
    "one layer": (AdaptiveLayerLoss(None, MultipleNegativesRankingLoss(), kl_temperature=0), batch_of(3)),
    "all layers": (
        AdaptiveLayerLoss(None, CoSENTLoss(pooling="cls"), 0, 0.5, 2.0, kl_temperature=0),
        batch_of(2, SCORES),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_of_parameters(name):
    model = AutoModel.from_config(CONFIG, dtype="float64", add_pooling_layer=False)
    objective, batch = WHOLE[name]
    assert_gradients(objective, model, batch)


def test_a_step_takes_some_layers():
    """Others in the next one; each is drawn from the number of the pass."""
    model = AutoModel.from_config(CONFIG | {"num_hidden_layers": 5}, dtype="float64", add_pooling_layer=False)
    objective, batch = AdaptiveLayerLoss(None, CoSENTLoss()), batch_of(2, SCORES)
    model.train(seed=1)
    found = [objective.value_and_grad(model, batch)[0].loss for _ in range(8)]
    model.train(seed=1)
    assert found == [objective.value_and_grad(model, batch)[0].loss for _ in range(8)]
    assert len({round(float(loss), 9) for loss in found}) > 2


@pytest.mark.parity
@pytest.mark.parametrize("name", ["softmax", "all layers"])
def test_whole_models_are_those_of_sentence_transformers(name, tmp_path):
    torch, peer = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.losses")
    from sentence_transformers import SentenceTransformer, models

    folder = save_tiny_bert(tmp_path)
    model, transformer = AutoModel.from_pretrained(folder), models.Transformer(str(folder))
    theirs = SentenceTransformer(modules=[transformer, models.Pooling(CONFIG["hidden_size"])], device="cpu").eval()
    if name == "softmax":
        objective, batch = (
            SoftmaxLoss(num_labels=3, concatenation_sent_multiplication=True),
            batch_of(2, [0, 2, 1, 1, 0]),
        )
        loss = peer.SoftmaxLoss(theirs, CONFIG["hidden_size"], 3, concatenation_sent_multiplication=True)
        for own, other in zip(objective.parameters(model), loss.classifier.parameters(), strict=True):
            other.data = torch.from_numpy(own.array().copy())
    else:
        objective, batch = AdaptiveLayerLoss(None, CoSENTLoss(), 0, 0.5, 2.0, 0.7), batch_of(2, SCORES)
        loss = peer.AdaptiveLayerLoss(theirs, peer.CoSENTLoss(theirs), 0, 0.5, 2.0, 0.7)
    features = [
        {key: torch.from_numpy(batch[key][:, column]) for key in ("input_ids", "attention_mask")} for column in (0, 1)
    ]
    value = loss(features, torch.tensor(batch["labels"]))
    value.backward()
    out, grads = objective.value_and_grad(model, batch)
    assert out.loss == pytest.approx(value.item(), rel=1e-5)
    for key, parameter in theirs[0].auto_model.named_parameters():
        if parameter.grad is not None:
            expected = parameter.grad.numpy()
            np.testing.assert_allclose(grads[key], expected, rtol=1e-3, atol=1e-5, err_msg=key)


def test_a_guide_reads_the_texts(tokenizer):
    objective = GISTEmbedLoss(None, Guide(), temperature=0.5)
    examples = [{"anchor": "the cat", "positive": "a mat"}, {"anchor": "paris", "positive": "is a capital"}]
    batch = MatryoshkaLoss(None, objective, [39, 5]).collator(tokenizer)(examples)
    assert batch["labels"].tolist() == [[[7, 1, 1], [5, 2, 1]], [[5, 1, 1], [12, 3, 1]]]
    model = AutoModel.from_config(CONFIG, dtype="float64", add_pooling_layer=False)
    assert np.isfinite(objective.value_and_grad(model, batch)[0].loss)
    with pytest.raises(ValueError, match="examples has labels, expected none for GISTEmbedLoss"):
        objective.collator(tokenizer)([example | {"label": 1} for example in examples])
    short = GISTEmbedLoss(None, SimpleNamespace(encode=lambda texts, **options: [[1.0, 2.0]]))
    refuses(ValueError, r"guide returned shape \(1, 2\), expected \(4, dim\)", short.collator(tokenizer), examples)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: AnglELoss().of_embeddings(vectors_of(2, 3), None), "batch has no labels, expected some for AnglELoss"),
        (lambda: ContrastiveLoss(None, "far"), "distance_metric is 'far', expected one of 'euclidean', 'cosine'"),
        (lambda: ContrastiveLoss().of_embeddings(vectors_of(2, 3), np.array([0, 1, 9])), r"^labels\[2\] is 9.0, expec"),
        (lambda: BatchHardTripletLoss(None, "manhattan"), "distance_metric is 'manhattan', expected one of"),
        (lambda: MSELoss().of_embeddings(vectors_of(1, 3), np.ones((3, 5))), r"shape \(3, 5\), expected \(3, 6\)"),
        (lambda: DistillKLDivLoss(teacher_temperature=0), "teacher_temperature is 0, expected a finite number above 0"),
        (lambda: DistillKLDivLoss().of_embeddings(vectors_of(3, 2), np.ones(2)), r"labels has shape \(2,\), expected"),
        (lambda: GISTEmbedLoss(None, Guide(), margin=float("nan")), "margin is nan, expected a finite number"),
        (lambda: GISTEmbedLoss(None, Guide(), margin_strategy="mild"), "margin_strategy is 'mild'"),
        (lambda: GISTEmbedLoss(None, Guide()).of_embeddings(vectors_of(2, 3), np.ones(3)), "expected .3, 2, dim.,"),
        (lambda: SoftmaxLoss(None, 0, 2), "embedding_dimension is 0, expected a positive integer"),
        (lambda: SoftmaxLoss(num_labels=2, mini_batch_size=4), "mini_batch_size is 4, expected None"),
        (lambda: SoftmaxLoss(num_labels=2, concatenation_sent_rep=False, concatenation_sent_difference=False), "one"),
        (lambda: AdaptiveLayerLoss(None, CoSENTLoss(mini_batch_size=2)), "loss has mini_batch_size 2, expected None"),
        (
            lambda: SoftmaxLoss(num_labels=3).loss(AutoModel.from_config(CONFIG), batch_of(2, SCORES)),
            "labels holds fractions, expected classes",
        ),
    ],
)  # fmt: skip
def test_errors(call, message):
    refuses(ValueError, message, call)


def test_pairs_of_other_labels_do_not_count():
    vectors, objective = vectors_of(2, 4), OnlineContrastiveLoss()
    expected = objective.of_embeddings(vectors[:3], np.array([1.0, 0, 1]))
    with pytest.warns(UserWarning, match="labels has numbers other than 0 and 1"):
        value, grad = objective.of_embeddings(vectors, np.array([1.0, 0, 1, 0.5]))
    assert value == expected[0] and not grad[3].any()
    np.testing.assert_array_equal(grad[:3], expected[1])


def test_wrong_types():
    refuses(TypeError, "concatenation_sent_rep is 'no'", SoftmaxLoss, num_labels=2, concatenation_sent_rep="no")
    refuses(TypeError, "guide is int, expected a SentenceEncoder", GISTEmbedLoss, None, 1)
