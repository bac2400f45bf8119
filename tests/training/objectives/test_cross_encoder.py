"""Losses of cross-encoders: sentence-transformers' values and gradients, slopes, lists, batches in chunks."""

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification
from bertcore.training.objectives import cross_encoder as ours
from bertcore.training.objectives.text_examples import PairCollator
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.training.objectives.students import assert_gradients

pytestmark = pytest.mark.usefixtures("on_numpy")

SHAPES = {"one": [1], "a list": [4], "ragged": [3, 1, 5, 2], "seven": [1, 2, 3, 4, 5, 6, 7], "even": [3, 3]}
GRADES = [2, 0, 1, 1, 3, 0, 2]


def grades(sizes):
    return [GRADES[:size] for size in sizes]


def shares(sizes):
    return [[0.2 * grade for grade in GRADES[:size]] for size in sizes]


LISTS = {  # class and what is special: (labels of the sizes of lists, arguments)
    "ADRMSELoss": (grades, {}),
    "ADRMSELoss of steep ranks": (shares, {"alpha": 3.0, "activation_fn": "Tanh"}),
    "ListNetLoss": (shares, {}),
    "ListNetLoss of sigmoids": (shares, {"activation_fn": "Sigmoid"}),
    "ListMLELoss": (grades, {}),
    "ListMLELoss of labels": (lambda sizes: [list(range(n)) for n in sizes], {"respect_input_order": False}),
    "PListMLELoss": (grades, {}),
    "PListMLELoss of tanh": (grades, {"activation_fn": "Tanh"}),
    "RankNetLoss": (grades, {}),
    "RankNetLoss of the best": (grades, {"k": 2, "reduction_log": "natural"}),
    "LambdaLoss": (grades, {"sigma": 0.5}),
    "LambdaLoss of no relevance": (lambda sizes: [[0] * size for size in sizes], {}),
    **{
        f"LambdaLoss {scheme} {k}": (grades, {"weighting_scheme": scheme, "k": k})
        for scheme in ours.WEIGHTING_SCHEMES
        for k in (None, 3)
    },
}
PAIRS = {
    "BinaryCrossEntropyLoss": (shares, {}),
    "BinaryCrossEntropyLoss of a weight": (shares, {"pos_weight": 3.0}),
    "MSELoss": (shares, {}),
    "MSELoss of sigmoids": (shares, {"activation_fn": "Sigmoid"}),
    "MSELoss of relu": (shares, {"activation_fn": "ReLU"}),
}
CASES = LISTS | PAIRS


def objective_of(name):
    ways = {"activation_fn": str.lower, "pos_weight": np.array}
    given = {key: ways[key](value) if key in ways else value for key, value in CASES[name][1].items()}
    return getattr(ours, name.split()[0])(**given)


def scores_of(count, tied=False):
    scores = 3 * np.random.default_rng(2).normal(size=count)
    return np.round(scores) if tied else scores


def batch_of(sizes, labels):
    lists = np.repeat(np.arange(len(sizes)), sizes)
    return {"input_ids": np.zeros((len(lists), 3), int), "labels": np.concatenate(labels), "lists": lists}


def value_and_gradient(objective, scores, batch):
    value, grad = objective.prepared(batch)[1](scores.reshape(len(scores), -1))
    return value, grad.reshape(scores.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_slope_of_the_value(name, shape):
    objective, (labels, _) = objective_of(name), CASES[name]
    scores, batch = scores_of(sum(SHAPES[shape])), batch_of(SHAPES[shape], labels(SHAPES[shape]))
    _, grad = value_and_gradient(objective, scores, batch)
    for way in np.random.default_rng(5).normal(size=(2, len(scores))):
        ends = [value_and_gradient(objective, scores + step * way, batch)[0] for step in (1e-6, -1e-6)]
        assert (grad * way).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-7)


def peer(table):
    """Return sentence-transformers' losses, and a model that looks up the score of (query, document)."""
    torch, losses = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.cross_encoder.losses")
    from sentence_transformers import CrossEncoder

    class Model(CrossEncoder):
        num_labels, device = 1 if table.dim() == 1 else table.shape[1], torch.device("cpu")

        def __init__(self):
            torch.nn.Module.__init__(self)

        def preprocess(self, pairs, **options):
            return {"places": torch.tensor([document for _, document in pairs])}

        def forward(self, features):
            found = table[features["places"]]
            return {"scores": found[:, None] if found.dim() == 1 else found}

    return torch, losses, Model()


def arguments_of(torch, losses, options):
    made = dict(options)
    if "activation_fn" in made:
        made["activation_fn"] = getattr(torch.nn, made["activation_fn"])()
    if "pos_weight" in made:
        made["pos_weight"] = torch.tensor(made["pos_weight"])
    if "weighting_scheme" in made:
        made["weighting_scheme"] = getattr(losses, made["weighting_scheme"])()
    return made


def assert_equal(torch, objective, table, loss, batch):
    loss.backward()
    value, grad = value_and_gradient(objective, table.detach().numpy().astype(float), batch)
    assert value == pytest.approx(loss.item(), rel=2e-5, abs=1e-6)
    expected = np.zeros_like(grad) if table.grad is None else table.grad.numpy()
    np.testing.assert_allclose(grad, expected, rtol=1e-4, atol=1e-6 * max(np.abs(expected).max(), 1))


@pytest.mark.parity
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_sentence_transformers(name, shape, tied):
    torch = pytest.importorskip("torch")
    objective, (labels, options) = objective_of(name), CASES[name]
    sizes, labels = SHAPES[shape], labels(SHAPES[shape])
    table = torch.tensor(scores_of(sum(sizes), tied), dtype=torch.float32, requires_grad=True)
    torch, losses, model = peer(table)
    loss = getattr(losses, name.split()[0])(model, **arguments_of(torch, losses, options))
    ends = np.cumsum(sizes)
    lists = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    if name in LISTS:
        found = loss([["query"] * len(sizes), lists], [torch.tensor(some) for some in labels])
    else:
        found = loss([["query"] * len(table), list(range(len(table)))], torch.tensor(np.concatenate(labels)))
    assert_equal(torch, objective, table, found, batch_of(sizes, labels))


@pytest.mark.parity
@pytest.mark.parametrize(
    "labels", [[0.5, -1.0, 2.0], [[0.5, 1], [-1.0, 0], [2.0, 3]], [[3, 1, 0], [0, 1, 2], [1, 1, 1]]]
)
@pytest.mark.parametrize("name", ["MarginMSELoss", "MultipleNegativesRankingLoss"])
def test_columns_of_negatives_are_those_of_sentence_transformers(name, labels):
    torch = pytest.importorskip("torch")
    columns = 2 if name == "MarginMSELoss" and np.ndim(labels) == 1 else 3
    table = torch.tensor(scores_of(3 * columns), dtype=torch.float32, requires_grad=True)
    torch, losses, model = peer(table)
    places = np.arange(3 * columns).reshape(3, columns)
    inputs = [["query"] * 3, *places.T.tolist()]
    batch = batch_of([columns] * 3, np.atleast_2d(labels).tolist())
    if name == "MarginMSELoss":
        loss = losses.MarginMSELoss(model)(inputs, torch.tensor(labels))
        return assert_equal(torch, ours.MarginMSELoss(), table, loss, batch)
    made = losses.MultipleNegativesRankingLoss(model, num_negatives=None)
    objective = ours.MultipleNegativesRankingLoss(num_negatives=None)
    collator = objective.collator(None, seed=1)
    lists = list(collator.lists([list(map(str, row)) for row in places]))
    made(inputs, None).backward()
    order = [int(text) for row in lists for text in row]
    rows = {"input_ids": np.zeros((len(order), 1), int), "lists": np.repeat(np.arange(3), [len(row) for row in lists])}
    _, grad = value_and_gradient(objective, table.detach().numpy().astype(float)[order], rows)
    np.testing.assert_allclose(np.bincount(order, grad), table.grad.numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parity
@pytest.mark.parametrize("labels", [[2, 0, 1, 1, 0], np.eye(3)[[0, 1, 2, 2, 1]] * 0.7 + 0.1])
def test_classes_are_those_of_sentence_transformers(labels):
    torch = pytest.importorskip("torch")
    table = torch.tensor(scores_of(15).reshape(5, 3), requires_grad=True)
    torch, losses, model = peer(table)
    loss = losses.CrossEntropyLoss(model)([["query"] * 5, list(range(5))], torch.tensor(labels))
    assert_equal(torch, ours.CrossEntropyLoss(), table, loss, {"input_ids": np.zeros((5, 2), int), "labels": labels})


def test_documents_of_other_examples_are_negatives():
    documents = [["a", "b"], ["c"], ["d", "e"]]
    collator = ours.MultipleNegativesRankingLoss(num_negatives=None).collator(None, seed=1)
    assert list(collator.lists(documents)) == [
        ["a", "c", "d", "e", "b"],
        ["c", "a", "b", "d", "e"],
        ["d", "a", "b", "c", "e"],
    ]
    collator = ours.MultipleNegativesRankingLoss(num_negatives=2).collator(None, seed=1)
    for lists in (list(collator.lists(documents)) for _ in range(5)):
        assert [row[0] for row in lists] == ["a", "c", "d"]
        assert [len(set(row)) for row in lists] == [4, 3, 4]


EXAMPLES = [
    {"query": "the cat", "docs": ["sat", "on an mat"], "labels": [1, 0]},
    {"query": "paris", "docs": ["is capital of france"], "labels": [3]},
]


def test_pairs_are_collated_in_lists(tokenizer):
    batch = PairCollator(tokenizer)(EXAMPLES)
    queries, documents = ["the cat", "the cat", "paris"], ["sat", "on an mat", "is capital of france"]
    expected = tokenizer(queries, documents, padding=True, return_tensors="np")
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name])
    assert batch["labels"].tolist() == [1, 0, 3]
    assert batch["lists"].tolist() == [0, 0, 1]
    assert ours.ListNetLoss().weight(batch) == 2
    assert ours.MSELoss().weight(batch) == 3


@pytest.mark.parametrize("chunk", [None, 1, 2, 5])
def test_gradients_of_parameters(tokenizer, chunk):
    model = AutoModelForSequenceClassification.from_config(CONFIG | {"num_labels": 1}, dtype="float64")
    objective = ours.LambdaLoss(activation_fn="tanh", mini_batch_size=chunk)
    assert_gradients(objective, model, objective.collator(tokenizer)(EXAMPLES))


def value_of(objective, width=1, **batch):
    """Return the loss of two pairs, of a model with `width` scores."""
    return objective.prepared({"input_ids": np.ones((2, 3))} | batch)[1](np.ones((2, width)))


@pytest.mark.parametrize("call, message", [
    (lambda t: ours.LambdaLoss(None, "best"), "weighting_scheme is 'best', expected one of 'NoWeightingScheme'"),
    (lambda t: ours.MSELoss(activation_fn="gelu"), "activation_fn is 'gelu', expected one of 'identity'"),
    (lambda t: PairCollator(t)([]), "examples is empty"),
    (lambda t: PairCollator(t)([{"query": "a", "docs": []}]), r"examples\[0\] has no document"),
    (lambda t: value_of(ours.MSELoss()), "batch has no labels, expected some for MSE"),
    (lambda t: value_of(ours.MSELoss(), labels=[1, 2], lists=np.ones(3)), r"lists has shape \(3,\), expected \(2,\)"),
    (lambda t: value_of(ours.MSELoss(), 4, labels=[1, 2]), "model has 4 labels, expected 1 for MSE"),
    (lambda t: ours.ADRMSELoss(alpha=0), "alpha is 0, expected a finite number above 0"),
    (lambda t: ours.LambdaLoss().checked([0, -1], 2), r"labels\[1\] is -1.0, expected at least 0"),
    (lambda t: ours.LambdaLoss(eps=0), "eps is 0, expected a finite number above 0"),
    (lambda t: value_of(ours.BinaryCrossEntropyLoss(), labels=[1, 5]), r"labels\[1\] is 5.0, expected 0 to 1"),
    (lambda t: value_of(ours.CrossEntropyLoss(), 2, labels=[0, 2]), r"labels\[1\] is 2.0, expected a class from 0 to"),
    (lambda t: value_of(ours.CrossEntropyLoss(), 2, labels=[0.5, 1]), r"labels\[0\] is 0.5, expected a class from 0"),
    (lambda t: value_of(ours.MultipleNegativesRankingLoss(), labels=[0, 1]), "batch has labels, expected none for Mul"),
    (
        lambda t: ours.MarginMSELoss().of_scores(np.ones(4), np.ones(2), [slice(0, 1), slice(1, 4)]),
        "examples have 1, 3 documents, expected the same number for MarginMSELoss",
    ),
    (
        lambda t: PairCollator(t)([EXAMPLES[0] | {"labels": [1]}, EXAMPLES[1] | {"labels": [1, 0]}]),
        r"examples\[1\] has 2 labels, expected 1, one for each document",
    ),
    (lambda t: ours.MarginMSELoss().of_scores(np.ones(1), np.ones(1), [slice(0, 1)]), "scores has one score per query"),
])  # fmt: skip
def test_errors(tokenizer, call, message):
    refuses(ValueError, message, call, tokenizer)


def test_documents_are_texts(tokenizer):
    for wrong in (None, {"a": "b"}, b"a", [3]):
        refuses(TypeError, "examples.0. has .*, expected texts", PairCollator(tokenizer), [{"q": "a", "d": wrong}])
    refuses(TypeError, "pos_weight is array", ours.BinaryCrossEntropyLoss, pos_weight=np.ones(2))
    refuses(TypeError, "lambda_weight is 'x', expected a function", ours.PListMLELoss, None, "x")
