"""Evaluators of rankings: retrieval, reranking and paraphrase mining."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import check_count, check_function, check_list, check_mapping
from bertcore.evaluation.evaluator import Evaluator, Metrics, Score, by_threshold, given, of_dense, of_rankings
from bertcore.tasks.search import BestRows, checked_scores, paraphrase_mining
from bertcore.tasks.similarity import cos_sim
from bertcore.tasks.texts import checked_text, checked_texts, listed_texts

if TYPE_CHECKING:
    from bertcore.tasks.cross_encoder import CrossEncoder
    from bertcore.tasks.reading import PromptedReader

QUERIES = 128  # compared with the corpus at once


class InformationRetrievalEvaluator(Evaluator):
    """Search a corpus with each query, and compare the results with the documents known to answer it.

    The metrics, each a mean over the queries, are `SCORE_METRIC@K`: accuracy (whether an answer is among the first K
    documents), precision and recall, mrr (the reciprocal rank of the first answer), ndcg (Järvelin and Kekäläinen,
    2002; each answer has gain 1) and map. Documents with equal scores are ordered by their ids.

    Args:
        queries, corpus: id -> text. Queries without an answer are ignored.
        relevant_docs: id of a query -> ids of the documents that answer it.
        corpus_chunk_size: number of documents embedded at once.
        mrr_at_k, ndcg_at_k, accuracy_at_k, precision_recall_at_k, map_at_k: the numbers of documents considered.
        score_functions: name -> function of two sets of embeddings, like `similarity`; by default the encoder's own.
        main_score_function: the name of the function whose ndcg is the primary metric; by default the best.
        query_prompt, query_prompt_name, corpus_prompt, corpus_prompt_name: as for `encode`.
        options: see `Evaluator`.
    """

    table = "Information-Retrieval_evaluation{}_results.csv"

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
            check_mapping(argument, value, "ids or names")
        for name, function in (score_functions or {}).items():
            check_function(f"score_functions[{name!r}]", function)
        self.relevant_docs = {query: _ids(f"relevant_docs[{query!r}]", found) for query, found in relevant_docs.items()}
        self.queries_ids = [query for query in queries if self.relevant_docs.get(query)]
        if not self.queries_ids or not corpus:
            raise ValueError(
                f"relevant_docs answers {len(self.queries_ids)} of {len(queries)} queries, corpus has {len(corpus)} "
                "documents, expected at least one of each"
            )
        self.queries = list(checked_texts([queries[query] for query in self.queries_ids], "queries"))
        self.corpus_ids = sorted(corpus)  # ties are ordered by id
        self.corpus = list(checked_texts([corpus[document] for document in self.corpus_ids], "corpus"))
        self.corpus_chunk_size = check_count("corpus_chunk_size", corpus_chunk_size)
        at = {"accuracy": accuracy_at_k, "precision": precision_recall_at_k, "recall": precision_recall_at_k}
        at |= {"ndcg": ndcg_at_k, "mrr": mrr_at_k, "map": map_at_k}
        depths = {metric: check_list(f"{metric}_at_k", some, "positive integers") for metric, some in at.items()}
        self.at_k = {metric: [check_count(f"{metric}_at_k", each) for each in some] for metric, some in depths.items()}
        if not self.at_k["ndcg"]:
            raise ValueError("ndcg_at_k is empty, expected at least one number, for the primary metric")
        self.score_functions, self.main_score_function = score_functions, main_score_function
        self._query_options = given(prompt=query_prompt, prompt_name=query_prompt_name)
        self._corpus_options = given(prompt=corpus_prompt, prompt_name=corpus_prompt_name)

    @staticmethod
    def _column(name: str) -> str:
        """Return SCORE-Accuracy@K, SCORE-MRR@K and so on."""
        score, _, metric = name.rpartition("_")
        return f"{score}-{metric.upper() if metric.startswith(('mrr', 'ndcg', 'map')) else metric.title()}"

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        functions, best = self.score_functions or {model.similarity_fn_name: model.similarity}, self.main_score_function
        if best is not None and best not in functions:
            raise ValueError(f"main_score_function is {best!r}, expected one of {', '.join(functions)}")
        found = {
            f"{name}_{metric}": value
            for name, hits in self._hits(model, functions).items()
            for metric, value in self.of_hits(hits).items()
        }
        ndcg = f"ndcg@{max(self.at_k['ndcg'])}"
        best = best or max(functions, key=lambda name: found[f"{name}_{ndcg}"])
        return found, f"{best}_{ndcg}"

    def _hits(self, model: PromptedReader, functions: Mapping[str, Score]) -> dict[str, np.ndarray]:
        """Return for each score function whether the document at each rank answers the query, (queries, ranks)."""
        depth = max(max(depths, default=1) for depths in self.at_k.values())
        asked = self._embedded(model.encode_query, self.queries, **self._query_options)
        starts = range(0, len(self.queries), QUERIES)
        blocks = [(asked[start : start + QUERIES], min(QUERIES, len(self.queries) - start)) for start in starts]
        best = {name: [BestRows(count, depth) for _, count in blocks] for name in functions}
        for first in range(0, len(self.corpus), self.corpus_chunk_size):
            texts = self.corpus[first : first + self.corpus_chunk_size]
            documents = self._embedded(model.encode_document, texts, **self._corpus_options)
            for name, score in functions.items():
                for kept, (block, count) in zip(best[name], blocks, strict=True):
                    found = score(block, documents)
                    kept.add(checked_scores(f"score_functions[{name!r}]", found, (count, len(texts))))
        hits = {}
        for name, kept in best.items():
            rows = zip(self.queries_ids, np.concatenate([each.indices for each in kept]).tolist(), strict=True)
            right = [[self.corpus_ids[each] in self.relevant_docs[query] for each in row] for query, row in rows]
            hits[name] = np.array(right, bool)
        return hits

    def of_hits(self, hits: np.ndarray) -> Metrics:
        answers = np.array([len(self.relevant_docs[query]) for query in self.queries_ids])
        ranks = np.arange(1, hits.shape[1] + 1)
        gains = hits / np.log2(ranks + 1)
        ideal = np.cumsum(1 / np.log2(np.arange(max(self.at_k["ndcg"])) + 2))  # of 1, 2, ... answers at the first ranks
        precisions = hits * np.cumsum(hits, axis=1) / ranks
        first = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1.0, np.inf)  # the rank of an answer
        of: dict[str, Callable[[int], np.ndarray]] = {
            "accuracy": lambda k: hits[:, :k].any(axis=1),
            "precision": lambda k: hits[:, :k].sum(axis=1) / k,
            "recall": lambda k: hits[:, :k].sum(axis=1) / answers,
            "ndcg": lambda k: gains[:, :k].sum(axis=1) / ideal[np.minimum(answers, k) - 1],
            "mrr": lambda k: np.where(first <= k, 1 / first, 0.0),
            "map": lambda k: precisions[:, :k].sum(axis=1) / np.minimum(answers, k),
        }
        return {
            f"{metric}@{k}": float(of[metric](k).mean(dtype=np.float64))
            for metrics in (("accuracy",), ("precision", "recall"), ("mrr",), ("ndcg",), ("map",))  # as in the table
            for k, metric in itertools.product(self.at_k[metrics[0]], metrics)
        }


class RerankingEvaluator(Evaluator):
    """Rank the documents of each query: map, mrr@K and ndcg@K over the queries.

    In mrr, documents with equal scores count in their order, positives first; map and ndcg do not depend on it.

    Args:
        samples: {"query": text, "positive": text or texts, "negative": text or texts} each; those without a positive or
            a negative are ignored. Of a mapping, the values are used.
        at_k: the number of documents that mrr and ndcg consider.
        similarity_fct: the score of two sets of embeddings; by default the cosine, or a `MultiVectorEncoder`'s own
            similarity. A `CrossEncoder` computes its own scores.
        options: see `Evaluator`.
    """

    methods = ("encode", "encode_query", "predict")
    _column = staticmethod(str.upper)

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
        self.table = f"RerankingEvaluator{{}}_results_@{at_k}.csv"
        self.samples: list[tuple[str, list[str], int]] = []  # query, documents, number of answers
        some = samples.values() if isinstance(samples, Mapping) else samples
        for number, sample in enumerate(check_list("samples", some, "mappings")):
            if not isinstance(sample, Mapping) or not {"query", "positive", "negative"} <= set(sample):
                raise ValueError(f"samples[{number}] is {sample!r:.100}, expected query, positive and negative by name")
            right, wrong = (
                listed_texts(sample[name], f"samples[{number}][{name!r}]") for name in ("positive", "negative")
            )
            if right and wrong:
                query = checked_text(f"samples[{number}]['query']", sample["query"])
                self.samples.append((query, [*right, *wrong], len(right)))
        if not self.samples:
            raise ValueError("samples has no entry with a positive and a negative, expected at least one")

    def metrics(self, model: PromptedReader | CrossEncoder) -> tuple[Metrics, str]:
        rankings = [np.arange(len(documents)) < right for _, documents, right in self.samples]
        return of_rankings(rankings, self._scores(model), self.at_k), f"ndcg@{self.at_k}"

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
        score = self.similarity_fct or (model.similarity if isinstance(rows, list) else of_dense(cos_sim))
        return [
            np.asarray(score(asked[number : number + 1], rows[start:end]), np.float64)[0]
            for number, (start, end) in enumerate(spans)
        ]


class ParaphraseMiningEvaluator(Evaluator):
    """Mine pairs of texts with the same meaning, and compare them with the known pairs.

    The metrics are average_precision, and f1, precision and recall at the best threshold.

    Args:
        sentences_map: id -> text.
        duplicates_list: pairs of ids; those with unknown ids are ignored.
        duplicates_dict: id -> ids with the same meaning (or id -> whether the meaning is the same).
        add_transitive_closure: add pairs that are connected by other pairs.
        query_chunk_size, corpus_chunk_size, max_pairs, top_k: as for `paraphrase_mining`.
        options: see `Evaluator`.
    """

    table = "paraphrase_mining_evaluation{}_results.csv"

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
        check_mapping("sentences_map", sentences_map, "ids")
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

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        options: dict[str, Any] = given(truncate_dim=self.truncate_dim)
        options |= {"batch_size": self.batch_size, "show_progress_bar": self.show_progress_bar}
        found = paraphrase_mining(model, self.sentences, **options, **self._mining)
        scores = np.array([score for score, _, _ in found])
        is_right = np.array([frozenset((self.ids[i], self.ids[j])) in self.duplicates for _, i, j in found], bool)
        metrics = dict.fromkeys(("precision", "recall", "f1", "threshold", "average_precision"), 0.0)
        if is_right.any():
            ends, right, precision, f1, average = by_threshold(scores, is_right, len(self.duplicates))
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


def _ids(name: str, found: object) -> frozenset[Any]:
    if isinstance(found, str | bytes) or not isinstance(found, Collection):
        raise TypeError(f"{name} is {type(found).__name__}, expected a set of ids")
    return frozenset(found)


def _closure(pairs: set[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    """Return all pairs within each group of ids that pairs connect, and the pairs of an id with itself."""
    groups: dict[Any, frozenset[Any]] = {}
    for a, b in pairs:
        if a not in groups.get(b, ()):
            both = groups.get(a, frozenset([a])) | groups.get(b, frozenset([b]))
            groups |= dict.fromkeys(both, both)
    found = {(a, b) for a, b in pairs if a == b}
    return found.union(*(itertools.combinations(group, 2) for group in set(groups.values())))
