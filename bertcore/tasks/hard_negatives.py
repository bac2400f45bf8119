"""Hard negatives for training: wrong documents that a model ranks close to a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np

from bertcore.arguments import check_count, naming_nearest, warn_caller
from bertcore.kernels import checks
from bertcore.tasks.search import semantic_search
from bertcore.tasks.texts import checked_texts

FORMATS = ("triplet", "n-tuple", "labeled-pair", "labeled-list")
GONE = -np.inf  # the score of a document that is excluded


class Retriever(Protocol):
    """An encoder of queries and documents, such as a `SentenceEncoder`."""

    def encode_query(self, *args: Any, **options: Any) -> Any: ...
    def encode_document(self, *args: Any, **options: Any) -> Any: ...
    def similarity(self, *args: Any, **options: Any) -> Any: ...
    def similarity_pairwise(self, *args: Any, **options: Any) -> Any: ...


class Reranker(Protocol):
    """A model that scores pairs of texts, such as a `CrossEncoder`."""

    def predict(self, *args: Any, **options: Any) -> Any: ...


@naming_nearest()
def mine_hard_negatives(
    dataset: Any,
    model: Retriever,
    anchor_column_name: str | None = None,
    positive_column_name: str | None = None,
    corpus: Sequence[str] | None = None,
    cross_encoder: Reranker | None = None,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    num_negatives: int = 3,
    sampling_strategy: str = "top",
    query_prompt_name: str | None = None,
    query_prompt: str | None = None,
    corpus_prompt_name: str | None = None,
    corpus_prompt: str | None = None,
    include_positives: bool = False,
    output_format: str = "triplet",
    output_scores: bool = False,
    batch_size: int | None = None,
    faiss_batch_size: int = 16384,
    use_faiss: bool = False,
    *,
    verbose: bool = True,
    seed: int = 0,
) -> Any:
    """Add to (query, answer) pairs documents that are close to the query but not its answers, as sentence-transformers.

    Args:
        dataset: a Hugging Face dataset, or a list of mappings.
        model: a `SentenceEncoder`; its similarity of normalised embeddings ranks the documents.
        anchor_column_name, positive_column_name: the columns of queries and answers; by default the first two.
        corpus: additional documents; the answers of all queries are also candidates.
        cross_encoder: a `CrossEncoder` that rescores candidates and answers before margins and limits are applied;
            without these it has no effect.
        range_min, range_max: the first and last rank of the candidates to consider; the last is by default as many as
            needed, or ten times that if scores are limited.
        max_score, min_score: limits of a negative's score.
        absolute_margin, relative_margin: the least distance of a negative's score below its query's lowest answer: an
            absolute value, or a fraction of the answer's score.
        num_negatives: the number of negatives per query.
        sampling_strategy: "top", the best candidates, or "random" ones, by `seed`.
        query_prompt_name, query_prompt, corpus_prompt_name, corpus_prompt: prompts, as for `encode`; by default as in
            `encode_query` and `encode_document`.
        include_positives: whether answers are also candidates, to evaluate rerankers; the output is n-tuples.
        output_format: "triplet" (query, answer, negative); "n-tuple" (query, answer, negative_1, ...), without queries
            that have fewer negatives; "labeled-pair" (query, document, label 1 or 0); or "labeled-list" (query, list of
            documents, list of labels).
        output_scores: whether to return scores instead of labels.
        batch_size: as for `encode` and `predict`.
        faiss_batch_size: the number of queries compared at once.
        use_faiss: has no effect: the search is exact.
        verbose: whether to print counts and mean scores.
        seed: the seed of random samples.

    Returns:
        A dataset of the same kind as `dataset`.

    Raises:
        TypeError, ValueError: for a wrong argument, which the message names.
    """
    output_format = _checked_format(output_format, sampling_strategy, include_positives, use_faiss)
    _check_models(model, cross_encoder)
    names, pairs = _pairs(dataset, anchor_column_name, positive_column_name)
    limits = _checked_limits(absolute_margin, relative_margin, max_score, min_score)
    rescoring = cross_encoder if any(limit is not None for limit in limits) else None
    is_wide = any(limit is not None for limit in (limits if rescoring is not None else limits[:3]))
    check_count("num_negatives", num_negatives)
    found = _Candidates(pairs, [] if corpus is None else list(checked_texts(corpus, "corpus")))
    range_max = found.last_rank(range_min, range_max, num_negatives, is_wide)

    of_queries = _embeddings(model.encode_query, found.queries, query_prompt_name, query_prompt, batch_size)
    of_documents = _embeddings(model.encode_document, found.documents, corpus_prompt_name, corpus_prompt, batch_size)
    found.search(model, of_queries, of_documents, range_max + found.most, faiss_batch_size)
    if rescoring is not None:
        found.rescore(rescoring, {} if batch_size is None else {"batch_size": batch_size})
    if not include_positives:
        found.remove_positives()
    found.remove_beyond(*limits)
    found.choose(range_min, range_max, num_negatives, seed if sampling_strategy == "random" else None)
    if verbose:
        print(found.summary())
    rows = list(found.rows(output_format, *names, output_scores))
    return type(dataset).from_list(rows) if hasattr(dataset, "column_names") else rows


def _checked_format(output_format: str, sampling_strategy: str, include_positives: bool, use_faiss: bool) -> str:
    """Return the form of the output."""
    checks.choice("sampling_strategy", sampling_strategy, ("top", "random"))
    checks.choice("output_format", output_format, FORMATS)
    if use_faiss:
        warn_caller("use_faiss has no effect: texts are compared exactly without it")
    if include_positives and output_format != "n-tuple":
        warn_caller(f"output_format is {output_format!r}: include_positives makes 'n-tuple'")
        return "n-tuple"
    return output_format


def _checked_limits(*limits: float | None) -> tuple[float | None, ...]:
    for name, limit in zip(("absolute_margin", "relative_margin", "max_score", "min_score"), limits, strict=True):
        if limit is not None:
            checks.finite_number(name, limit)  # NaN would turn the limit off, as no number exceeds it
    return limits


def _check_models(model: object, cross_encoder: object) -> None:
    if cross_encoder is not None and not callable(getattr(cross_encoder, "predict", None)):
        raise TypeError(f"cross_encoder is {cross_encoder!r:.60}, expected a CrossEncoder or None")
    for method in ("encode_query", "encode_document"):
        if not callable(getattr(model, method, None)):
            raise TypeError(f"model is {model!r:.60}, expected a SentenceEncoder")


def _pairs(dataset: Any, *given: str | None) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the names of both columns, and their texts row by row."""
    if isinstance(dataset, str) or not isinstance(dataset, Sized):
        raise TypeError(f"dataset is {type(dataset).__name__}, expected a list of mappings or a Dataset")
    if not len(dataset):
        raise ValueError("dataset is empty, expected queries and their answers")
    is_table = hasattr(dataset, "column_names")
    known, names = list(dataset.column_names if is_table else dataset[0]), []
    for place, (label, name) in enumerate(zip(("anchor_column_name", "positive_column_name"), given, strict=True)):
        names.append(known[place] if name is None and place < len(known) else name)
        if names[-1] not in known:
            raise ValueError(f"{label} is {name!r}, expected one of {', '.join(known)}")
    if names[0] == names[1]:
        raise ValueError(f"positive_column_name is {names[1]!r}, expected a different column than anchor_column_name")
    for index, row in enumerate(() if is_table else dataset):
        if not {*names} <= {*row}:
            raise ValueError(f"dataset[{index}] has the columns {', '.join(row)}, expected {' and '.join(names)}")
    columns = ([*dataset[name]] if is_table else [row[name] for row in dataset] for name in names)
    texts = [list(checked_texts(column, name)) for name, column in zip(names, columns, strict=True)]
    return names, list(zip(*texts, strict=True))


def _embeddings(
    encode: Callable[..., Any], texts: list[str], prompt_name: str | None, prompt: str | None, batch_size: int | None
) -> np.ndarray:
    given = {"prompt_name": prompt_name, "prompt": prompt, "batch_size": batch_size}
    asked = {name: value for name, value in given.items() if value is not None}
    return encode(texts, normalize_embeddings=True, **asked)


class _Candidates:
    """The documents closest to each query, with their scores; `owners` and `positives` are the distinct pairs."""

    def __init__(self, pairs: list[tuple[str, str]], corpus: list[str]):
        counts = Counter(query for query, _ in pairs)
        self.queries, self.most = list(counts), max(counts.values())
        self.documents = list(dict.fromkeys([*corpus, *(answer for _, answer in pairs)]))
        rows, places = ({text: at for at, text in enumerate(texts)} for texts in (self.queries, self.documents))
        distinct = dict.fromkeys((rows[query], places[answer]) for query, answer in pairs)
        self.owners, self.positives = np.array(sorted(distinct, key=lambda pair: pair[0])).T
        self.indices, self.scores, self.of_positives = (np.empty(0) for _ in range(3))

    def last_rank(self, first: int, last: int | None, count: int, is_wide: bool) -> int:
        """Return the last rank to consider, checked: by default as many as needed, or ten times that."""
        last = first + count * (10 if is_wide else 1) + self.most if last is None else last
        return check_count("range_max", last, check_count("range_min", first, 0) + count)

    def search(self, model: Retriever, queries: np.ndarray, documents: np.ndarray, count: int, at_once: int) -> None:
        options: dict[str, Any] = {"top_k": count, "score_function": model.similarity, "query_chunk_size": at_once}
        found = semantic_search(queries, documents, **options)
        self.indices = np.array([[each["corpus_id"] for each in row] for row in found])
        self.scores = np.array([[each["score"] for each in row] for row in found], np.float32)
        self.of_positives = model.similarity_pairwise(queries[self.owners], documents[self.positives])

    def rescore(self, cross_encoder: Reranker, options: dict[str, int]) -> None:
        def scores(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
            pairs = [(self.queries[row], self.documents[place]) for row, place in zip(rows, places, strict=True)]
            return cross_encoder.predict(pairs, **options)

        rows = np.repeat(np.arange(len(self.queries)), self.indices.shape[1])
        self.scores = scores(rows, self.indices.reshape(-1)).reshape(self.indices.shape)
        self.of_positives = scores(self.owners, self.positives)

    def remove_positives(self) -> None:
        for row in range(len(self.queries)):
            self.scores[row, np.isin(self.indices[row], self.positives[self.owners == row])] = GONE

    def remove_beyond(
        self, absolute: float | None, relative: float | None, max_score: float | None, min_score: float | None
    ) -> None:
        """Remove documents that are too close, relative to the query's lowest answer, or too far."""
        firsts = np.searchsorted(self.owners, np.arange(len(self.queries)))
        right, scores = np.minimum.reduceat(self.of_positives, firsts)[:, None], self.scores
        if absolute is not None:
            scores[scores + np.float32(absolute) > right] = GONE
        if relative is not None:
            scores[scores > right - abs(right) * np.float32(relative)] = GONE
        if max_score is not None:
            scores[scores > max_score] = GONE
        if min_score is not None:
            scores[scores < min_score] = GONE

    def choose(self, first: int, last: int, count: int, seed: int | None) -> None:
        """Keep `count` of the candidates of these ranks: the best, or random ones by `seed`."""
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, first:last]
        if seed is not None:
            draws = np.random.default_rng(seed).random(order.shape)
            draws += np.isneginf(np.take_along_axis(self.scores, order, 1))  # removed ones come last
            chosen = np.sort(np.argsort(draws, axis=1)[:, :count], axis=1)
            order = np.take_along_axis(order, chosen, 1)
        order, self.count = order[:, :count], count
        self.indices, self.scores = (np.take_along_axis(array, order, 1) for array in (self.indices, self.scores))

    def summary(self) -> str:
        """Return counts and mean scores."""
        chosen = self.scores[np.isfinite(self.scores)]
        means = f"{self.of_positives.mean():.4f} and {chosen.mean() if len(chosen) else np.nan:.4f}"
        return f"{len(self.of_positives):,} positives, {len(chosen):,} negatives; mean scores {means}"

    def rows(self, kind: str, anchor: str, positive: str, with_scores: bool) -> Iterator[dict[str, Any]]:
        """Yield the rows of the result."""
        pairs = zip(self.owners.tolist(), self.positives.tolist(), self.of_positives.tolist(), strict=True)
        for number, (owner, place, score) in enumerate(pairs):
            kept = np.isfinite(self.scores[owner])
            texts = [self.documents[index] for index in self.indices[owner][kept].tolist()]
            scores, query = self.scores[owner][kept].tolist(), self.queries[owner]
            row, of_all = {anchor: query, positive: self.documents[place]}, {"scores": [score, *scores]}
            if kind == "triplet":
                for text, other in zip(texts, scores, strict=True):
                    yield row | {"negative": text} | ({"scores": [score, other]} if with_scores else {})
            elif kind == "n-tuple":
                if len(texts) == self.count:
                    names = (f"negative_{rank}" for rank in range(1, self.count + 1))
                    yield row | dict(zip(names, texts, strict=True)) | (of_all if with_scores else {})
            elif kind == "labeled-list":
                if texts:
                    labels = of_all if with_scores else {"labels": [1] + [0] * len(texts)}
                    yield {anchor: query, positive: [self.documents[place], *texts]} | labels
            else:
                yield row | ({"score": score} if with_scores else {"label": 1})
                if number + 1 == len(self.owners) or self.owners[number + 1] != owner:  # after the last answer
                    for text, other in zip(texts, scores, strict=True):
                        label = {"score": other} if with_scores else {"label": 0}
                        yield {anchor: query, positive: text} | label
