"""Hard negatives: sentence-transformers' rows for all formats, limits and ranges; samples, prompts, errors."""

import numpy as np
import pytest

from bertcore.tasks.hard_negatives import mine_hard_negatives
from bertcore.tasks.similarity import SIMILARITIES, normalized
from tests.refusals import refuses

RNG = np.random.default_rng(4)
VECTORS = {f"{kind}{number}": RNG.normal(size=8).astype(np.float32) for kind in "qd" for number in range(40)}
ROWS = [{"query": f"q{number % 9}", "answer": f"d{number}"} for number in range(14)]  # some with two answers
ROWS += ROWS[:2]
CORPUS = [f"d{number}" for number in range(30)]


class Model:
    """Random vectors, as both libraries ask for them."""

    device, has_prompts = "cpu", []

    def encode(self, texts, normalize_embeddings=False, prompt=None, **options):
        self.has_prompts = [*self.has_prompts, prompt]
        return normalized(np.stack([VECTORS[text] for text in texts]))

    encode_query = encode_document = encode

    def similarity(self, left, right):
        return SIMILARITIES["cosine"].of_all(left, right)

    def similarity_pairwise(self, left, right):
        return SIMILARITIES["cosine"].of_pairs(left, right)


class Reranker:
    def predict(self, pairs, convert_to_tensor=False, **options):
        scores = np.array([VECTORS[query] @ VECTORS[text] / 4 for query, text in pairs], np.float32)
        if convert_to_tensor:
            import torch

            return torch.from_numpy(scores)
        return scores


CASES = [
    {},
    {"corpus": CORPUS, "num_negatives": 5},
    {"corpus": CORPUS, "range_min": 3, "range_max": 9, "num_negatives": 2},
    {"corpus": CORPUS, "absolute_margin": 0.1},
    {"corpus": CORPUS, "relative_margin": 0.5, "num_negatives": 4},
    {"corpus": CORPUS, "max_score": 0.4, "min_score": 0.1},
    {"corpus": CORPUS, "min_score": 0.2},
    {"corpus": CORPUS, "cross_encoder": Reranker(), "absolute_margin": 0.05, "batch_size": 3},
    {"corpus": CORPUS, "cross_encoder": Reranker(), "min_score": 0.3, "num_negatives": 2},
    {"corpus": CORPUS, "include_positives": True, "output_format": "n-tuple"},
    {"anchor_column_name": "answer", "positive_column_name": "query", "num_negatives": 2},
]


@pytest.mark.parity
@pytest.mark.parametrize("output_scores", [False, True])
@pytest.mark.parametrize("output_format", ["triplet", "n-tuple", "labeled-pair", "labeled-list"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_rows_are_those_of_sentence_transformers(case, output_format, output_scores):
    torch, util = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.util")
    from datasets import Dataset

    class Theirs(Model):
        def similarity(self, left, right):
            return torch.from_numpy(super().similarity(np.asarray(left), np.asarray(right)))

        def similarity_pairwise(self, left, right):
            return torch.from_numpy(super().similarity_pairwise(np.asarray(left), np.asarray(right)))

    options = {"output_format": output_format, "output_scores": output_scores, "verbose": False} | CASES[case]
    expected = util.mine_hard_negatives(Dataset.from_list(ROWS), Theirs(), **options)
    found = mine_hard_negatives(Dataset.from_list(ROWS), Model(), **options)
    assert found.to_list() == mine_hard_negatives(ROWS, Model(), **options)
    assert found.column_names == expected.column_names or not len(expected)
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        for name in other:
            is_score = name in ("score", "scores")
            assert own[name] == (pytest.approx(other[name], abs=1e-6) if is_score else other[name])


def test_random_negatives(capsys):
    given = {"corpus": CORPUS, "sampling_strategy": "random", "range_max": 20, "output_format": "n-tuple"}
    found = [mine_hard_negatives(ROWS, Model(), **given, max_score=0.5, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert "14 positives, 27 negatives; mean scores" in capsys.readouterr().out
    for row in found[0]:
        negatives = [row[f"negative_{rank}"] for rank in (1, 2, 3)]
        assert len({*negatives, row["answer"]}) == 4
        scores = SIMILARITIES["cosine"].of_all(VECTORS[row["query"]], np.stack([VECTORS[text] for text in negatives]))
        assert (np.diff(scores[0]) < 0).all() and (scores <= 0.5).all()


def test_prompts_and_options_without_effect():
    model = Model()
    with pytest.warns(UserWarning, match="use_faiss has no effect: texts are compared exactly"):
        mine_hard_negatives(ROWS, model, query_prompt="query: ", use_faiss=True, verbose=False)
    assert model.has_prompts == ["query: ", None]
    with pytest.warns(UserWarning, match="output_format is 'triplet': include_positives makes 'n-tuple'"):
        found = mine_hard_negatives(ROWS, model, include_positives=True, verbose=False)
    assert [*found[0]] == ["query", "answer", "negative_1", "negative_2", "negative_3"]


@pytest.mark.parametrize("rows, options, message", [
    ([], {}, "dataset is empty"),
    (ROWS, {"output_format": "csv"}, "output_format is 'csv', expected one of 'triplet'"),
    (ROWS, {"sampling_strategy": "best"}, "sampling_strategy is 'best', expected one of 'top', 'random'"),
    (ROWS, {"positive_column_name": "text"}, "positive_column_name is 'text', expected one of query, answer"),
    ([{"query": "q1"}], {}, "positive_column_name is None, expected one of query"),
    (ROWS, {"positive_column_name": "query"}, "positive_column_name is 'query', expected a different column"),
    ([*ROWS, {"text": "q1"}], {}, r"dataset\[\d+\] has the columns text, expected query and answer"),
    (ROWS, {"max_score": np.nan}, "max_score is nan, expected a finite number"),
    (ROWS, {"num_negatives": 0}, "num_negatives is 0, expected a positive integer"),
    (ROWS, {"range_min": 4, "range_max": 6}, "range_max is 6, expected an integer of at least 7"),
])  # fmt: skip
def test_errors(rows, options, message):
    refuses(ValueError, message, mine_hard_negatives, rows, Model(), **options)


@pytest.mark.parametrize("model, options, message", [
    (None, {"cross_encoder": 5}, "cross_encoder is 5, expected a CrossEncoder or None"),
    ("demo", {}, "model is 'demo', expected a SentenceEncoder"),
])  # fmt: skip
def test_models_of_wrong_types(model, options, message):
    refuses(TypeError, message, mine_hard_negatives, ROWS, model or Model(), **options)
    refuses(TypeError, "dataset is NoneType, expected a list", mine_hard_negatives, None, Model())
