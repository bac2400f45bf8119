"""Evaluators: how well an encoder retrieves, orders and separates texts, by sentence-transformers' names.

An evaluator is made with its data and called with encoders: `evaluator(encoder)`, or `encoder.evaluate(evaluator)`. It
asks an encoder for `encode_query`, `encode_document`, `encode`, `similarity` and `similarity_pairwise` alone.
"""

import csv
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import check_count, check_strings, required
from bertcore.tasks.search import BestRows, paraphrase_mining
from bertcore.tasks.similarity import SIMILARITIES, cos_sim
from bertcore.tasks.texts import checked_text, checked_texts, listed_texts

QUERIES = 128  # compared with the corpus at once
Metrics = dict[str, float]
Score = Callable[[Any, Any], np.ndarray]


class Evaluator:
    """The base of all evaluators: the name of the data, and the file of results.

    Args:
        name: name of the data; the metrics' names begin with it.
        batch_size: texts that are computed at once.
        show_progress_bar: show progress while texts are embedded.
        write_csv: append the metrics to a table, NAME_results.csv, where a call is given an `output_path`.
        truncate_dim: compare the first dimensions of embeddings alone.

    Attributes:
        primary_metric: the name of the metric that ranks models, known after a call.
        greater_is_better: True.
    """

    greater_is_better = True

    def __init__(
        self,
        name: str = "",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        write_csv: bool = True,
        truncate_dim: int | None = None,
    ):
        self.name, self.write_csv = name, write_csv
        self.batch_size = check_count("batch_size", batch_size)
        self.show_progress_bar = show_progress_bar
        self.truncate_dim = truncate_dim if truncate_dim is None else check_count("truncate_dim", truncate_dim)
        self.primary_metric: str | None = None

    def __call__(
        self, model: Any, output_path: str | os.PathLike | None = None, epoch: int = -1, steps: int = -1
    ) -> Metrics:
        """Return the metrics of an encoder by their names.

        Args:
            model: the encoder.
            output_path: folder of the table of results; a row is appended.
            epoch, steps: where a training stands, for the table.
        """
        found, primary = self.metrics(model)
        start = f"{self.name}_" if self.name else ""
        self.primary_metric = start + primary
        metrics = {start + name: float(value) for name, value in found.items()}
        if output_path is not None and self.write_csv:
            kind = type(self).__name__.removesuffix("Evaluator")
            file = Path(output_path, f"{kind}{'_' if self.name else ''}{self.name}_results.csv")
            file.parent.mkdir(parents=True, exist_ok=True)
            row = {"epoch": epoch, "steps": steps, **metrics}
            with open(file, "a", newline="", encoding="utf-8") as stream:
                table = csv.DictWriter(stream, row)
                if not stream.tell():
                    table.writeheader()
                table.writerow(row)
        if (card := getattr(model, "model_card_data", None)) is not None:
            card.set_evaluation_metrics(self, metrics, epoch, steps)
        return metrics

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metrics without the data's name, and the primary one of them."""
        raise NotImplementedError

    def _embedded(self, encode: Callable[..., Any], texts: Sequence[str], **options: Any) -> Any:
        options |= {"batch_size": self.batch_size, "show_progress_bar": self.show_progress_bar}
        if self.truncate_dim is not None:
            options["truncate_dim"] = self.truncate_dim
        return encode(list(texts), **options)


class InformationRetrievalEvaluator(Evaluator):
    """Search a corpus with each query, and compare what is found with the documents known to answer it.

    The metrics, each a mean over the queries, are `SCORE_METRIC@K`: accuracy (whether an answer is among the first K
    documents), precision and recall, mrr (the reciprocal rank of the first answer), ndcg (Järvelin and Kekäläinen,
    2002; an answer counts 1) and map. Documents of equal scores are ordered by their ids.

    Args:
        queries, corpus: id -> text. Queries without an answer are left out.
        relevant_docs: id of a query -> ids of the documents that answer it.
        corpus_chunk_size: documents embedded at once.
        mrr_at_k, ndcg_at_k, accuracy_at_k, precision_recall_at_k, map_at_k: the numbers of documents considered.
        score_functions: name -> function of two sets of embeddings, as `similarity`; by default the encoder's own.
        main_score_function: the name of the one whose ndcg is the primary metric; by default the best.
        query_prompt, query_prompt_name, corpus_prompt, corpus_prompt_name: as for `encode`.
        options: those of `Evaluator`.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevant_docs: Mapping[str, Collection[str]],
        corpus_chunk_size: int = 50_000,
        mrr_at_k: Sequence[int] = (10,),
        ndcg_at_k: Sequence[int] = (10,),
        accuracy_at_k: Sequence[int] = (1, 3, 5, 10),
        precision_recall_at_k: Sequence[int] = (1, 3, 5, 10),
        map_at_k: Sequence[int] = (100,),
        *,
        score_functions: Mapping[str, Score] | None = None,
        main_score_function: str | None = None,
        query_prompt: str | None = None,
        query_prompt_name: str | None = None,
        corpus_prompt: str | None = None,
        corpus_prompt_name: str | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        mappings: dict[str, Any] = {"queries": queries, "corpus": corpus, "relevant_docs": relevant_docs}
        for argument, value in (mappings | {"score_functions": score_functions or {}}).items():
            if not isinstance(value, Mapping):
                raise TypeError(f"{argument} is {type(value).__name__}, expected a mapping by ids or names")
        for name, function in (score_functions or {}).items():
            if not callable(function):
                raise TypeError(f"score_functions[{name!r}] is {type(function).__name__}, expected a function")
        self.relevant_docs = {query: _ids(f"relevant_docs[{query!r}]", found) for query, found in relevant_docs.items()}
        self.queries_ids = [query for query in queries if self.relevant_docs.get(query)]
        if not self.queries_ids or not corpus:
            raise ValueError(
                f"relevant_docs answers {len(self.queries_ids)} of {len(queries)} queries, corpus has {len(corpus)} "
                "documents, expected one of each at least"
            )
        self.queries = list(checked_texts([queries[query] for query in self.queries_ids], "queries"))
        self.corpus_ids = sorted(corpus)  # of equal scores the first is found
        self.corpus = list(checked_texts([corpus[document] for document in self.corpus_ids], "corpus"))
        self.corpus_chunk_size = check_count("corpus_chunk_size", corpus_chunk_size)
        at = {"accuracy": accuracy_at_k, "precision": precision_recall_at_k, "recall": precision_recall_at_k}
        at |= {"ndcg": ndcg_at_k, "mrr": mrr_at_k, "map": map_at_k}
        self.at_k = {metric: [check_count(f"{metric}_at_k", each) for each in depths] for metric, depths in at.items()}
        if not self.at_k["ndcg"]:
            raise ValueError("ndcg_at_k is empty, expected a number at least: the primary metric's")
        self.score_functions, self.main_score_function = score_functions, main_score_function
        self._query_options = _given(prompt=query_prompt, prompt_name=query_prompt_name)
        self._corpus_options = _given(prompt=corpus_prompt, prompt_name=corpus_prompt_name)

    def metrics(self, model: Any, corpus_model: Any = None) -> tuple[Metrics, str]:
        """Return the metrics of an encoder, or of two: one for queries, one for the corpus."""
        functions, best = self.score_functions or {model.similarity_fn_name: model.similarity}, self.main_score_function
        if best is not None and best not in functions:
            raise ValueError(f"main_score_function is {best!r}, expected one of {', '.join(functions)}")
        found = {
            f"{name}_{metric}": value
            for name, hits in self._hits(model, corpus_model or model, functions).items()
            for metric, value in self._of_hits(hits).items()
        }
        ndcg = f"ndcg@{max(self.at_k['ndcg'])}"
        best = best or max(functions, key=lambda name: found[f"{name}_{ndcg}"])
        return found, f"{best}_{ndcg}"

    def _hits(self, model: Any, corpus_model: Any, functions: Mapping[str, Score]) -> dict[str, np.ndarray]:
        """Return by score whether the document at each rank answers the query, (queries, ranks)."""
        depth = max(max(depths, default=1) for depths in self.at_k.values())
        asked = self._embedded(model.encode_query, self.queries, **self._query_options)
        starts = range(0, len(self.queries), QUERIES)
        blocks = [asked[start : start + QUERIES] for start in starts]
        best = {
            name: [BestRows(min(QUERIES, len(self.queries) - start), depth) for start in starts] for name in functions
        }
        for first in range(0, len(self.corpus), self.corpus_chunk_size):
            texts = self.corpus[first : first + self.corpus_chunk_size]
            documents = self._embedded(corpus_model.encode_document, texts, **self._corpus_options)
            for name, score in functions.items():
                for kept, block in zip(best[name], blocks, strict=True):
                    kept.add(np.asarray(score(block, documents)))
        hits = {}
        for name, kept in best.items():
            found = np.concatenate([each.indices for each in kept]).tolist()
            rows = zip(self.queries_ids, found, strict=True)
            right = [[self.corpus_ids[each] in self.relevant_docs[query] for each in row] for query, row in rows]
            hits[name] = np.array(right, bool)
        return hits

    def _of_hits(self, hits: np.ndarray) -> Metrics:
        answers = np.array([len(self.relevant_docs[query]) for query in self.queries_ids])
        ranks = np.arange(1, hits.shape[1] + 1)
        gains = hits / np.log2(ranks + 1)
        precisions = hits * np.cumsum(hits, axis=1) / ranks
        first = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1.0, np.inf)  # the rank of an answer
        of: dict[str, Callable[[int], np.ndarray]] = {
            "accuracy": lambda k: hits[:, :k].any(axis=1),
            "precision": lambda k: hits[:, :k].sum(axis=1) / k,
            "recall": lambda k: hits[:, :k].sum(axis=1) / answers,
            "ndcg": lambda k: gains[:, :k].sum(axis=1) / _ideal_gains(k)[np.minimum(answers, k) - 1],
            "mrr": lambda k: np.where(first <= k, 1 / first, 0.0),
            "map": lambda k: precisions[:, :k].sum(axis=1) / np.minimum(answers, k),
        }
        return {
            f"{metric}@{k}": float(of[metric](k).mean(dtype=np.float64))
            for metric, depths in self.at_k.items()
            for k in depths
        }


class EmbeddingSimilarityEvaluator(Evaluator):
    """Compare the similarity of pairs of texts with scores that people gave: Pearson's and Spearman's correlation.

    The metrics are `pearson_SIMILARITY` and `spearman_SIMILARITY`, of several similarities the largest as `_max`.

    Args:
        sentences1, sentences2: the pairs.
        scores: a number for each pair.
        main_similarity: the similarity whose Spearman correlation is the primary metric.
        similarity_fn_names: "cosine", "dot", "euclidean", "manhattan"; by default the main one, or the encoder's own.
        precision: compare embeddings in this precision, as `encode` gives them, normalised.
        options: those of `Evaluator`.

    Raises ValueError for lists of different lengths and unknown names.
    """

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        scores: Sequence[float],
        batch_size: int = 16,
        main_similarity: str | None = None,
        similarity_fn_names: Sequence[str] | None = None,
        *,
        precision: str | None = None,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        self.sentences1, self.sentences2 = _columns(sentences1=sentences1, sentences2=sentences2)
        self.scores = _numbers("scores", scores, len(self.sentences1))
        self.main_similarity = main_similarity
        self.similarity_fn_names = _similarities(similarity_fn_names, main_similarity)
        self.precision = precision

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the correlations of an encoder's similarities; NaN for constant ones. ImportError without SciPy."""
        stats = required("scipy.stats")
        options: dict[str, Any] = _given(precision=self.precision)
        if self.precision is not None:
            options["normalize_embeddings"] = True
        rows = self._embedded(model.encode, [*self.sentences1, *self.sentences2], **options)
        if self.precision in ("binary", "ubinary"):
            shifted = rows.astype(np.int16) + (128 if self.precision == "binary" else 0)
            rows = np.unpackbits(shifted.astype(np.uint8), axis=1)
        if self.precision not in (None, "float32"):
            rows = rows.astype(np.float32)
        pairs = rows[: len(self.sentences1)], rows[len(self.sentences1) :]
        found: dict[str, Metrics] = {}
        for name, score in _pair_scores(model, self.similarity_fn_names).items():
            compared = np.asarray(score(*pairs), np.float64), self.scores
            constant = any(np.ptp(numbers) == 0 for numbers in compared)
            found[name] = {
                kind: float("nan") if constant else float(getattr(stats, f"{kind}r")(*compared).statistic)
                for kind in ("pearson", "spearman")
            }
        primary = _with_best(found, self.main_similarity)
        metrics = {f"{metric}_{name}": value for name, each in found.items() for metric, value in each.items()}
        return metrics, f"spearman_{primary}"


class TripletEvaluator(Evaluator):
    """Measure how often a text is nearer to its positive than to its negative: `SIMILARITY_accuracy`.

    Args:
        anchors, positives, negatives: the texts of the triplets; anchors are encoded as queries, others as documents.
        main_similarity_function: the similarity of the primary metric.
        margin: by how much the positive must be nearer: a number, or one by similarity.
        similarity_fn_names: as for `EmbeddingSimilarityEvaluator`.
        options: those of `Evaluator`.
    """

    def __init__(
        self,
        anchors: Sequence[str],
        positives: Sequence[str],
        negatives: Sequence[str],
        main_similarity_function: str | None = None,
        margin: float | Mapping[str, float] | None = None,
        *,
        batch_size: int = 16,
        similarity_fn_names: Sequence[str] | None = None,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        self.triplets = _columns(anchors=anchors, positives=positives, negatives=negatives)
        self.main_similarity_function = main_similarity_function
        self.similarity_fn_names = _similarities(similarity_fn_names, main_similarity_function)
        margins = margin if isinstance(margin, Mapping) else dict.fromkeys(SIMILARITIES, margin or 0.0)
        if unknown := set(margins) - set(SIMILARITIES):
            raise ValueError(f"margin has {', '.join(sorted(unknown))}, expected names of {', '.join(SIMILARITIES)}")
        names = list(margins)
        numbers = _numbers("margin", [margins[name] for name in names], len(names))
        self.margin: dict[str, float] = dict.fromkeys(SIMILARITIES, 0.0) | dict(
            zip(names, numbers.tolist(), strict=True)
        )

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the accuracies of an encoder."""
        anchors, positives, negatives = self.triplets
        asked = self._embedded(model.encode_query, anchors)
        right, wrong = (self._embedded(model.encode_document, texts) for texts in (positives, negatives))
        found: dict[str, Metrics] = {}
        for name, score in _pair_scores(model, self.similarity_fn_names).items():
            is_nearer = score(asked, right) > score(asked, wrong) + self.margin.get(name, 0.0)
            found[name] = {"accuracy": float(is_nearer.mean(dtype=np.float64))}
        primary = _with_best(found, self.main_similarity_function)
        return {f"{name}_accuracy": each["accuracy"] for name, each in found.items()}, f"{primary}_accuracy"


class BinaryClassificationEvaluator(Evaluator):
    """Tell pairs of alike texts from others by a threshold of their similarity.

    The metrics are `SIMILARITY_` accuracy and its best threshold accuracy_threshold, f1, precision, recall and their
    f1_threshold, mcc at that threshold, and ap, the average precision. The thresholds of "euclidean" and "manhattan"
    are distances.

    Args:
        sentences1, sentences2: the pairs.
        labels: 1 for alike, 0 for others.
        similarity_fn_names: as for `EmbeddingSimilarityEvaluator`.
        options: those of `Evaluator`.
    """

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        labels: Sequence[int],
        *,
        similarity_fn_names: Sequence[str] | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self.sentences1, self.sentences2 = _columns(sentences1=sentences1, sentences2=sentences2)
        numbers = _numbers("labels", labels, len(self.sentences1))
        if not np.isin(numbers, (0, 1)).all():
            raise ValueError("labels has other numbers than 0 and 1, expected 1 for alike pairs and 0 for others")
        self.labels = numbers.astype(bool)
        self.similarity_fn_names = _similarities(similarity_fn_names, None)

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metrics of an encoder."""
        texts = list(dict.fromkeys([*self.sentences1, *self.sentences2]))
        rows = self._embedded(model.encode, texts)
        place = {text: index for index, text in enumerate(texts)}
        first, second = ([place[text] for text in column] for column in (self.sentences1, self.sentences2))
        found: dict[str, Metrics] = {}
        for name, score in _pair_scores(model, self.similarity_fn_names).items():
            sign = -1.0 if name in ("euclidean", "manhattan") else 1.0  # a distance's threshold
            metrics = _of_thresholds(score(_rows(rows, first), _rows(rows, second)), self.labels)
            found[name] = metrics | {key: sign * metrics[key] for key in ("accuracy_threshold", "f1_threshold")}
        primary = _with_best(found, None)
        return {f"{name}_{key}": value for name, each in found.items() for key, value in each.items()}, f"{primary}_ap"


class RerankingEvaluator(Evaluator):
    """Order the documents of each query: map, mrr@K and ndcg@K over the queries.

    Args:
        samples: {"query": text, "positive": text or texts, "negative": text or texts} each; those without a positive or
            a negative are left out. A mapping's values are taken.
        at_k: the number of documents that mrr and ndcg consider.
        similarity_fct: the score of two sets of embeddings; by default cosine, of a `MultiVectorEncoder` its own
            similarity. A `CrossEncoder` scores by itself.
        options: those of `Evaluator`.
    """

    def __init__(
        self,
        samples: Iterable[Mapping[str, Any]] | Mapping[Any, Mapping[str, Any]],
        at_k: int = 10,
        *,
        similarity_fct: Score | None = None,
        batch_size: int = 64,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        self.at_k, self.similarity_fct = check_count("at_k", at_k), similarity_fct
        self.samples: list[tuple[str, list[str], int]] = []  # query, documents, how many of them answer
        for number, sample in enumerate(samples.values() if isinstance(samples, Mapping) else samples):
            if not isinstance(sample, Mapping) or not {"query", "positive", "negative"} <= set(sample):
                raise ValueError(f"samples[{number}] is {sample!r:.100}, expected query, positive and negative by name")
            right, wrong = (
                listed_texts(sample[name], f"samples[{number}][{name!r}]") for name in ("positive", "negative")
            )
            if right and wrong:
                query = checked_text(f"samples[{number}]['query']", sample["query"])
                self.samples.append((query, [*right, *wrong], len(right)))
        if not self.samples:
            raise ValueError("samples has none with a positive and a negative, expected one at least")

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metrics of an encoder or a cross-encoder."""
        found = []
        for (_, documents, right), scores in zip(self.samples, self._scores(model), strict=True):
            is_right = np.arange(len(documents)) < right
            ranks = np.flatnonzero(is_right[np.argsort(-scores, kind="stable")][: self.at_k])
            reciprocal = 1 / (ranks[0] + 1) if len(ranks) else 0.0
            found.append((_average_precision(is_right, scores), reciprocal, _ndcg(is_right, scores, self.at_k)))
        means = np.mean(found, axis=0).tolist()
        return dict(zip(("map", f"mrr@{self.at_k}", f"ndcg@{self.at_k}"), means, strict=True)), f"ndcg@{self.at_k}"

    def _scores(self, model: Any) -> Iterable[np.ndarray]:
        documents = [text for _, texts, _ in self.samples for text in texts]
        ends = np.cumsum([len(texts) for _, texts, _ in self.samples])
        spans = zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        if not hasattr(model, "encode_query"):
            pairs = [(query, text) for query, texts, _ in self.samples for text in texts]
            options = {"batch_size": self.batch_size, "show_progress_bar": self.show_progress_bar}
            scores = np.asarray(model.predict(pairs, **options), np.float64)
            return [scores[start:end] for start, end in spans]
        asked = self._embedded(model.encode_query, [query for query, _, _ in self.samples])
        rows = self._embedded(model.encode_document, documents)
        score = self.similarity_fct or (model.similarity if isinstance(rows, list) else _of_dense(cos_sim))
        return [
            np.asarray(score(asked[number : number + 1], rows[start:end]), np.float64)[0]
            for number, (start, end) in enumerate(spans)
        ]


class ParaphraseMiningEvaluator(Evaluator):
    """Mine the pairs of a list of texts that say the same, and compare them with the pairs known to.

    The metrics are average_precision, and f1, precision and recall at the best threshold.

    Args:
        sentences_map: id -> text.
        duplicates_list: pairs of ids; those with unknown ids are left out.
        duplicates_dict: id -> ids of the same meaning (or id -> whether it has that meaning).
        add_transitive_closure: what is the same as the same is the same.
        query_chunk_size, corpus_chunk_size, max_pairs, top_k: as for `paraphrase_mining`.
        options: those of `Evaluator`.
    """

    def __init__(
        self,
        sentences_map: Mapping[str, str],
        duplicates_list: Iterable[tuple[str, str]] | None = None,
        duplicates_dict: Mapping[str, Any] | None = None,
        add_transitive_closure: bool = False,
        *,
        query_chunk_size: int = 5000,
        corpus_chunk_size: int = 100_000,
        max_pairs: int = 500_000,
        top_k: int = 100,
        batch_size: int = 16,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        if not isinstance(sentences_map, Mapping):
            raise TypeError(f"sentences_map is {type(sentences_map).__name__}, expected a mapping of ids to texts")
        self.ids = list(sentences_map)
        self.sentences = list(checked_texts(sentences_map.values(), "sentences_map"))
        known = set(self.ids)
        if not isinstance(duplicates_dict, Mapping | None):
            raise TypeError(f"duplicates_dict is {duplicates_dict!r:.60}, expected a mapping of ids to others")
        given = list(duplicates_list or ())
        for pair in given:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"duplicates_list has {pair!r:.60}, expected pairs of ids")
        pairs = {(a, b) for a, b in given if a in known and b in known}
        for a, others in (duplicates_dict or {}).items():
            same = [b for b, is_same in others.items() if is_same] if isinstance(others, Mapping) else others
            same = _ids(f"duplicates_dict[{a!r}]", same)
            pairs |= {(a, b) for b in same if a in known and b in known}
        if add_transitive_closure:
            pairs = _closure(pairs)
        self.duplicates = {frozenset(pair) for pair in pairs}
        self._mining = {"query_chunk_size": query_chunk_size, "corpus_chunk_size": corpus_chunk_size}
        self._mining |= {"max_pairs": max_pairs, "top_k": top_k}

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metrics of an encoder."""
        options: dict[str, Any] = _given(truncate_dim=self.truncate_dim)
        options |= {"batch_size": self.batch_size, "show_progress_bar": self.show_progress_bar}
        found = paraphrase_mining(model, self.sentences, **options, **self._mining)
        scores = np.array([score for score, _, _ in found])
        is_right = np.array([frozenset((self.ids[i], self.ids[j])) in self.duplicates for _, i, j in found], bool)
        metrics = dict.fromkeys(("average_precision", "f1", "precision", "recall", "threshold"), 0.0)
        if is_right.any():
            ends, right, precision, f1, average = _by_threshold(scores, is_right, len(self.duplicates))
            best = int(np.argmax(f1))
            following = min(int(ends[best]) + 1, len(scores) - 1)
            metrics |= {
                "average_precision": average,
                "f1": float(f1[best]),
                "precision": float(precision[best]),
                "recall": float(right[best] / len(self.duplicates)),
                "threshold": float((scores[ends[best]] + scores[following]) / 2),
            }
        return metrics, "average_precision"


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _ids(name: str, found: Any) -> frozenset[Any]:
    if isinstance(found, str | bytes) or not isinstance(found, Collection):
        raise TypeError(f"{name} is {type(found).__name__}, expected a set of ids")
    return frozenset(found)


def _columns(**columns: Sequence[str]) -> list[list[str]]:
    """Return the texts of each column; ValueError unless all have the same number, one at least."""
    checked = {name: list(checked_texts(texts, name)) for name, texts in columns.items()}
    counts = {name: len(texts) for name, texts in checked.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        found = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ValueError(f"{found}, expected the same number of texts in each, one at least")
    return list(checked.values())


def _numbers(name: str, values: Any, count: int) -> np.ndarray:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} is {values!r:.60}, expected {count} finite numbers") from error
    if numbers.shape != (count,) or not np.isfinite(numbers).all():
        raise ValueError(f"{name} has shape {numbers.shape}, expected ({count},): a finite number each")
    return numbers


def _similarities(names: Sequence[str] | None, main: str | None) -> list[str]:
    """Return the names of the similarities to compare, none for the encoder's own."""
    chosen = check_strings("similarity_fn_names", names or ([] if main is None else [main]))
    for name in chosen if main is None else [*chosen, main]:
        if name not in SIMILARITIES or (main is not None and main not in chosen):
            raise ValueError(
                f"similarity_fn_names is {chosen}, the main one {main!r}, expected {', '.join(SIMILARITIES)}"
            )
    return chosen


def _pair_scores(model: Any, names: Sequence[str]) -> dict[str, Score]:
    if not names:
        return {model.similarity_fn_name: model.similarity_pairwise}
    return {name: _of_dense(SIMILARITIES[name].of_pairs) for name in names}


def _of_dense(score: Score) -> Score:
    """Return a similarity that takes sparse matrices, too."""
    return lambda *rows: score(*(each.toarray() if hasattr(each, "toarray") else each for each in rows))


def _with_best(found: dict[str, Metrics], main: str | None) -> str:
    """Add the largest of each metric over several similarities as that of "max"; return the primary similarity."""
    if len(found) > 1:
        first = next(iter(found.values()))
        found["max"] = {metric: max(each[metric] for each in found.values()) for metric in first}
    return main or list(found)[-1]


def _rows(rows: Any, places: Sequence[int]) -> Any:
    return [rows[place] for place in places] if isinstance(rows, list) else rows[places]


def _ideal_gains(count: int) -> np.ndarray:
    """Return the discounted gain of 1, 2, ... answers at the first ranks."""
    return np.cumsum(1 / np.log2(np.arange(count) + 2))


def _by_threshold(scores: np.ndarray, is_right: np.ndarray, total: int) -> tuple[Any, ...]:
    """Return for each threshold, from the highest score on: the last place above it, answers, precision, F1.

    The last entry is the average precision. Scores come in descending order; equal ones share a threshold.
    """
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    right = np.cumsum(is_right)[ends]
    precision, recall = right / (ends + 1), right / total
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros(len(ends)), where=right > 0)
    return ends, right, precision, f1, float((precision * np.diff(right, prepend=0)).sum() / total)


def _average_precision(is_right: np.ndarray, scores: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    return _by_threshold(scores[order], is_right[order], int(is_right.sum()))[-1]


def _ndcg(is_right: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Return the normalised discounted gain of the first k; equal scores share the mean of their gains."""
    order = np.argsort(-scores, kind="stable")
    discounts = np.where(np.arange(len(scores)) < k, 1 / np.log2(np.arange(len(scores)) + 2), 0.0)
    starts = np.flatnonzero(np.append(True, np.diff(scores[order]) != 0))
    counts = np.diff(np.append(starts, len(scores)))
    gains = np.add.reduceat(is_right[order].astype(np.float64), starts) / counts * np.add.reduceat(discounts, starts)
    return float(gains.sum() / discounts[: is_right.sum()].sum())


def _of_thresholds(scores: np.ndarray, labels: np.ndarray) -> Metrics:
    """Return the metrics of telling pairs apart by thresholds of their scores, the best one for accuracy and for F1."""
    order = np.argsort(-scores, kind="stable")
    scores, is_right = scores[order], labels[order]
    ends, right, precision, f1, average = _by_threshold(scores, is_right, max(int(labels.sum()), 1))
    accuracy = (right + (~labels).sum() - (ends + 1 - right)) / len(labels)
    found: Metrics = {"accuracy": float((~labels).mean()), "f1": 0.0, "precision": 0.0, "recall": 0.0, "mcc": 0.0}
    found["accuracy_threshold"] = float(np.nextafter(scores[0], scores.dtype.type(np.inf)))  # none is alike
    found["f1_threshold"] = 0.0
    best = int(np.argmax(accuracy))
    if accuracy[best] > found["accuracy"]:
        found |= {"accuracy": float(accuracy[best]), "accuracy_threshold": _between(scores, int(ends[best]))}
    if right[-1]:
        best = int(np.argmax(f1))
        found |= {"f1": float(f1[best]), "precision": float(precision[best])}
        found |= {"recall": float(right[best] / right[-1]), "f1_threshold": _between(scores, int(ends[best]))}
    predicted = scores >= found["f1_threshold"]
    found["mcc"] = float(np.corrcoef(predicted, is_right)[0, 1]) if 0 < predicted.mean() < 1 and right[-1] else 0.0
    found["ap"] = average
    return found


def _between(scores: np.ndarray, end: int) -> float:
    """Return a threshold below the score at `end` and above the next one."""
    if end + 1 == len(scores):
        return float(scores[end])
    middle = (scores[end] + scores[end + 1]) / 2
    return float(scores[end] if middle == scores[end + 1] else middle)


def _closure(pairs: set[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    """Return all pairs within each group of ids that pairs connect, and the pairs of an id with itself."""
    near: dict[Any, set[Any]] = {}
    for a, b in pairs:
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    found = {(a, b) for a, b in pairs if a == b}
    seen: set[Any] = set()
    for start in near:
        group, waiting = set(), [start]
        while start not in seen and waiting:
            one = waiting.pop()
            if one not in group:
                group.add(one)
                waiting.extend(near[one])
        seen |= group
        found.update(itertools.combinations(group, 2))
    return found
