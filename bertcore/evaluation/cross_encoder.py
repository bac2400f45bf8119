"""Evaluators of cross-encoders: classes and scores of pairs, and rankings of documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import check_count, check_list
from bertcore.evaluation.evaluator import Evaluator, Metrics, checked_numbers, correlations, of_rankings, of_thresholds
from bertcore.kernels import checks
from bertcore.tasks.texts import checked_text, listed_texts

if TYPE_CHECKING:
    from bertcore.tasks.cross_encoder import CrossEncoder


class PairsEvaluator(Evaluator):
    """The base of evaluators of pairs: texts (first, second), and the name of a prompt before the first ones."""

    methods = ("predict",)
    _column = staticmethod(str.title)

    def __init__(
        self,
        sentence_pairs: Iterable[Sequence[str]],
        name: str = "",
        prompt_name: str | None = None,
        batch_size: int = 32,
        **options: Any,
    ):
        super().__init__(name, batch_size, **options)
        self.prompt_name = prompt_name
        self.sentence_pairs: list[tuple[str, ...]] = []
        for number, pair in enumerate(check_list("sentence_pairs", sentence_pairs, "pairs of texts")):
            texts = tuple(listed_texts(pair, f"sentence_pairs[{number}]"))
            if isinstance(pair, str) or len(texts) != 2:
                raise ValueError(f"sentence_pairs[{number}] is {pair!r:.60}, expected two texts")
            self.sentence_pairs.append(texts)
        if not self.sentence_pairs:
            raise ValueError("sentence_pairs is empty, expected at least one pair")

    def predictions(self, model: CrossEncoder, pairs: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the scores of pairs: (pairs,), or (pairs, labels)."""
        options = {"batch_size": self.batch_size, "show_progress_bar": self.show_progress_bar}
        return np.asarray(model.predict(pairs, prompt_name=self.prompt_name, **options))

    def _scores(self, model: CrossEncoder) -> np.ndarray:
        """Return the scores of the pairs, (pairs,) in float64. Raises ValueError for a model of several labels."""
        scores = self.predictions(model, self.sentence_pairs)
        if scores.ndim != 1:
            raise ValueError(f"the model has {scores.shape[1]} labels, expected one")
        return scores.astype(np.float64)


class CrossEncoderClassificationEvaluator(PairsEvaluator):
    """Measure the classes of pairs.

    One label: accuracy and F1, each at its best threshold of the scores, with precision, recall and average_precision.
    Several: f1_macro, f1_micro and f1_weighted, over the classes that occur or are predicted.

    Args:
        sentence_pairs: the pairs of texts.
        labels: the class of each; with one label, 1 for similar pairs and 0 for others.
        name, prompt_name, batch_size, options: see `PairsEvaluator` and `Evaluator`.
    """

    table = "CrossEncoderClassificationEvaluator{}_results.csv"
    _column = staticmethod(lambda name: re.sub("^f1_(macro|micro|weighted)$", r"\1_f1", name).title())  # Macro_F1

    def __init__(self, sentence_pairs: Iterable[Sequence[str]], labels: Sequence[int], **options: Any):
        super().__init__(sentence_pairs, **options)
        numbers = checked_numbers("labels", labels, len(self.sentence_pairs))
        if (numbers != numbers.astype(np.int64)).any() or numbers.min() < 0:
            raise ValueError("labels has negative numbers or fractions, expected the number of a class for each pair")
        self.labels = numbers.astype(np.int64)

    def metrics(self, model: CrossEncoder) -> tuple[Metrics, str]:
        scores = self.predictions(model, self.sentence_pairs)
        if scores.ndim == 1:
            if self.labels.max() > 1:
                raise ValueError("labels has numbers above 1, expected 0 and 1: the model has one label")
            of_scores = of_thresholds(scores, self.labels == 1)
            names = ("accuracy", "accuracy_threshold", "f1", "f1_threshold", "precision", "recall")
            found = {name: of_scores[name] for name in names} | {"average_precision": of_scores["ap"]}
            return found, "average_precision"
        predicted = scores.argmax(-1)
        classes = np.union1d(self.labels, predicted)[:, None]
        are, guessed = self.labels == classes, predicted == classes
        f1 = 2 * (are & guessed).sum(1) / (are.sum(1) + guessed.sum(1))
        weighted = float(f1 @ are.sum(1) / len(predicted))
        micro = float((predicted == self.labels).mean())
        return {"f1_macro": float(f1.mean()), "f1_micro": micro, "f1_weighted": weighted}, "f1_macro"


class CrossEncoderCorrelationEvaluator(PairsEvaluator):
    """Correlate a model's scores of pairs with the wanted ones: pearson and spearman, NaN for constant scores.

    Args:
        sentence_pairs: the pairs of texts.
        scores: the wanted score of each.
        name, prompt_name, batch_size, options: see `PairsEvaluator` and `Evaluator`.
    """

    table = "CrossEncoderCorrelationEvaluator{}_results.csv"
    _column = staticmethod(lambda name: f"{name.title()}_Correlation")

    def __init__(self, sentence_pairs: Iterable[Sequence[str]], scores: Sequence[float], *more: Any, **options: Any):
        super().__init__(sentence_pairs, *more, **options)
        self.scores = checked_numbers("scores", scores, len(self.sentence_pairs))

    def metrics(self, model: CrossEncoder) -> tuple[Metrics, str]:
        """Raise ImportError without SciPy."""
        return correlations(self._scores(model), self.scores), "spearman"


class CrossEncoderRerankingEvaluator(PairsEvaluator):
    """Rank the documents of each query by a model: map, mrr@K and ndcg@K over the queries.

    If samples have `documents`, base_map, base_mrr@K and base_ndcg@K are the metrics of their order.

    Args:
        samples: {"query": text, "positive": text or texts} each, with "negative", the other documents, or "documents",
            all documents in the order of a first search. Of a mapping, the values are used. Without a positive or a
            document, the metrics are 0.
        at_k: the number of documents that mrr and ndcg consider.
        always_rerank_positives: rank also the positives that are missing from `documents`.
        name, prompt_name, batch_size, options: see `PairsEvaluator` and `Evaluator`.
    """

    _column = staticmethod(lambda name: "" if name.startswith("base_") else name.upper())

    def __init__(
        self,
        samples: Iterable[Mapping[str, Any]] | Mapping[Any, Mapping[str, Any]],
        at_k: int = 10,
        always_rerank_positives: bool = True,
        name: str = "",
        prompt_name: str | None = None,
        batch_size: int = 64,
        **options: Any,
    ):
        self.at_k = check_count("at_k", at_k)
        checks.boolean("always_rerank_positives", always_rerank_positives)
        self.rankings: list[np.ndarray] = []  # whether each document answers its query
        self.base: list[np.ndarray] = []
        pairs: list[tuple[str, str]] = []
        some = samples.values() if isinstance(samples, Mapping) else samples
        for number, sample in enumerate(check_list("samples", some, "mappings")):
            where = f"samples[{number}]"
            kinds = {"negative", "documents"} & set(sample) if isinstance(sample, Mapping) else ()
            if len(kinds) != 1 or not {"query", "positive"} <= set(sample):
                raise ValueError(f"{where} is {sample!r:.100}, expected query, positive, and negative or documents")
            query, (kind,) = checked_text(f"{where}['query']", sample["query"]), kinds
            positive, others = (listed_texts(sample[key], f"{where}[{key!r}]") for key in ("positive", kind))
            if kind == "documents":
                are = [text in positive for text in others]
                missing = len(positive) - sum(are) if any(are) else 0
                self.base.append(np.array([*are, *[True] * missing], bool))
            if kind == "negative" or always_rerank_positives:
                others = [text for text in others if kind == "negative" or text not in positive]
                are = [*[True] * len(positive), *[False] * len(others)]
                others = [*positive, *others]
            self.rankings.append(np.array(are, bool))
            pairs += [(query, text) for text in others]
        if not pairs:
            raise ValueError("samples has no documents, expected at least one")
        super().__init__(pairs, name, prompt_name, batch_size, **options)
        self.table = f"CrossEncoderRerankingEvaluator{{}}_results_@{at_k}.csv"

    def metrics(self, model: CrossEncoder) -> tuple[Metrics, str]:
        parts = np.split(self._scores(model), np.cumsum([len(each) for each in self.rankings])[:-1])
        found = of_rankings(self.rankings, parts, self.at_k)
        if self.base:
            orders = [-np.arange(len(each), dtype=np.float64) for each in self.base]
            found |= {f"base_{name}": mean for name, mean in of_rankings(self.base, orders, self.at_k).items()}
        return found, f"ndcg@{self.at_k}"
