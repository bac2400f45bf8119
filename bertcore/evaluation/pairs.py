"""Evaluators of pairs and triplets of texts, and of texts beside their translations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bertcore.arguments import check_list, check_numbers, check_strings
from bertcore.evaluation.evaluator import (
    Evaluator,
    Metrics,
    Score,
    checked_numbers,
    correlations,
    given,
    of_dense,
    of_thresholds,
)
from bertcore.kernels import checks
from bertcore.tasks.similarity import SIMILARITIES, cos_sim
from bertcore.tasks.texts import checked_text, checked_texts

if TYPE_CHECKING:
    from bertcore.tasks.reading import PromptedReader


def _turned(name: str) -> str:
    """Return A_B as B_A; "" for the maximum over similarities."""
    first, last = name.split("_")
    return "" if "max" in (first, last) else f"{last}_{first}"


class EmbeddingSimilarityEvaluator(Evaluator):
    """Compare the similarity of pairs of texts with human scores, by Pearson's and Spearman's correlation.

    The metrics are `pearson_SIMILARITY` and `spearman_SIMILARITY`, and with several similarities their maximum, `_max`.

    Args:
        sentences1, sentences2: the pairs.
        scores: a number for each pair.
        main_similarity: the similarity whose Spearman correlation is the primary metric.
        similarity_fn_names: "cosine", "dot", "euclidean", "manhattan"; by default the main one, or the encoder's own.
        precision: compare normalised embeddings in this precision of `encode`.
        options: see `Evaluator`.

    Raises ValueError for lists of different lengths and unknown names.
    """

    table = "similarity_evaluation{}_results.csv"
    _column = staticmethod(_turned)

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
        self.scores = checked_numbers("scores", scores, len(self.sentences1))
        self.main_similarity = main_similarity
        self.similarity_fn_names = _similarities(similarity_fn_names, "main_similarity", main_similarity)
        self.precision = precision
        if precision is not None:
            self.table = f"similarity_evaluation{{}}_{precision}_results.csv"

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        """Return the correlations of similarities, NaN for constant ones. Raises ImportError without SciPy."""
        options: dict[str, Any] = given(precision=self.precision)
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
            found[name] = correlations(np.asarray(score(*pairs), np.float64), self.scores)
        return _named(found, self.main_similarity, "spearman", "{metric}_{name}")


class TripletEvaluator(Evaluator):
    """Measure how often a text is closer to its positive than to its negative: `SIMILARITY_accuracy`.

    Args:
        anchors, positives, negatives: the texts of the triplets; anchors are encoded as queries, others as documents.
        main_similarity_function: the similarity of the primary metric.
        margin: how much closer the positive must be: a number, or a mapping with one per similarity.
        similarity_fn_names: as for `EmbeddingSimilarityEvaluator`.
        options: see `Evaluator`.
    """

    table = "triplet_evaluation{}_results.csv"
    _column = staticmethod(_turned)

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
        self.similarity_fn_names = _similarities(
            similarity_fn_names, "main_similarity_function", main_similarity_function
        )
        margins = margin if isinstance(margin, Mapping) else dict.fromkeys(SIMILARITIES, margin or 0.0)
        if unknown := set(margins) - set(SIMILARITIES):
            raise ValueError(f"margin has {', '.join(sorted(unknown))}, expected names of {', '.join(SIMILARITIES)}")
        names = list(margins)
        numbers = checked_numbers("margin", [margins[name] for name in names], len(names))
        own = dict(zip(names, numbers.tolist(), strict=True))
        self.margin: dict[str, float] = dict.fromkeys(SIMILARITIES, 0.0) | own

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        anchors, positives, negatives = self.triplets
        asked = self._embedded(model.encode_query, anchors)
        right, wrong = (self._embedded(model.encode_document, texts) for texts in (positives, negatives))
        found: dict[str, Metrics] = {}
        for name, score in _pair_scores(model, self.similarity_fn_names).items():
            is_nearer = score(asked, right) > score(asked, wrong) + self.margin.get(name, 0.0)
            found[name] = {"accuracy": float(is_nearer.mean(dtype=np.float64))}
        return _named(found, self.main_similarity_function, "accuracy")


class BinaryClassificationEvaluator(Evaluator):
    """Distinguish similar pairs of texts from dissimilar ones by a threshold of their similarity.

    The metrics, with the prefix `SIMILARITY_`, are accuracy at its best threshold, accuracy_threshold; f1, precision,
    recall and mcc at the best threshold for F1, f1_threshold; and ap, the average precision. The thresholds of
    "euclidean" and "manhattan" are distances.

    Args:
        sentences1, sentences2: the pairs.
        labels: 1 for similar pairs, 0 for others.
        similarity_fn_names: as for `EmbeddingSimilarityEvaluator`.
        options: see `Evaluator`.
    """

    table = "binary_classification_evaluation{}_results.csv"
    _column = staticmethod(lambda name: "" if name.startswith("max_") else name)

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
        numbers = checked_numbers("labels", labels, len(self.sentences1))
        if not np.isin(numbers, (0, 1)).all():
            raise ValueError("labels has numbers other than 0 and 1, expected 1 for similar pairs and 0 for others")
        self.labels = numbers.astype(bool)
        self.similarity_fn_names = _similarities(similarity_fn_names)

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        texts = list(dict.fromkeys([*self.sentences1, *self.sentences2]))
        rows = self._embedded(model.encode, texts)
        place = {text: index for index, text in enumerate(texts)}
        first, second = ([place[text] for text in column] for column in (self.sentences1, self.sentences2))
        found: dict[str, Metrics] = {}
        for name, score in _pair_scores(model, self.similarity_fn_names).items():
            sign = -1.0 if name in ("euclidean", "manhattan") else 1.0  # a distance's threshold
            metrics = of_thresholds(score(_rows(rows, first), _rows(rows, second)), self.labels)
            found[name] = metrics | {key: sign * metrics[key] for key in ("accuracy_threshold", "f1_threshold")}
        return _named(found, None, "ap")


class Teacher(Protocol):
    """An encoder of texts, such as a `SentenceEncoder`."""

    def encode(self, *args: Any, **options: Any) -> Any: ...


class MSEEvaluator(Evaluator):
    """Compare a student's embeddings of texts with a teacher's: `negative_mse`, minus 100 times the mean square error.

    Args:
        source_sentences: the texts that the teacher embeds, once.
        target_sentences: the texts that the student embeds: the same ones, or their translations.
        teacher_model: the teacher, an encoder.
        options: see `Evaluator`.
    """

    def __init__(
        self, source_sentences: Sequence[str], target_sentences: Sequence[str], teacher_model: Teacher,
        **options: Any,
    ):  # fmt: skip
        super().__init__(**options)
        source, targets = _columns(source_sentences=source_sentences, target_sentences=target_sentences)
        self.table = "mse_evaluation{}_results.csv" if self.name else "mse_evaluation__results.csv"
        self.data = {"MSE": (self._embedded(_encode_of(teacher_model), source), targets)}
        self.errors: Metrics = {}

    def columns(self, found: Metrics) -> Metrics:
        """Return the error as MSE, or the error of each pair of languages."""
        return self.errors

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        for name, (wanted, texts) in self.data.items():
            wanted = check_numbers("the teacher's embeddings", wanted)
            vectors = check_numbers("the student's embeddings", self._embedded(model.encode, texts))
            if wanted.shape != vectors.shape:
                raise ValueError(f"the student's embeddings have shape {vectors.shape}, the teacher's {wanted.shape}")
            self.errors[name] = 100 * float(((wanted - vectors) ** 2).mean())
        return {"negative_mse": -float(np.mean(list(self.errors.values())))}, "negative_mse"


class MSEEvaluatorFromDataFrame(MSEEvaluator):
    """Compare embeddings of translations with a teacher's of their sources: `negative_mse`, a mean over the languages.

    Args:
        dataframe: mappings of languages to texts, or a DataFrame of pandas; pairs with an empty or missing text are
            left out.
        teacher_model: the teacher, an encoder.
        combinations: pairs of languages (source, target): the teacher embeds the sources, the student the targets.
        options: see `Evaluator`.
    """

    table = "mse_evaluation{}_results.csv"

    def __init__(
        self, dataframe: Iterable[Mapping[str, str | None]], teacher_model: Teacher,
        combinations: Iterable[tuple[str, str]], batch_size: int = 8, **options: Any,
    ):  # fmt: skip
        Evaluator.__init__(self, batch_size=batch_size, **options)
        rows, encode = _records(dataframe), _encode_of(teacher_model)
        self.data: dict[str, tuple[Any, list[str]]] = {}
        is_list = isinstance(combinations, Iterable) and not isinstance(combinations, str)
        for pair in combinations if is_list else [combinations]:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"combinations has {pair!r:.60}, expected pairs of languages, (source, target)")
            source, target = pair
            given = ([_text_in(row, number, name) for name in (source, target)] for number, row in enumerate(rows))
            pairs = [pair for pair in given if all(text.strip() for text in pair)]
            if not pairs:
                raise ValueError(f"dataframe has no row with texts in {source!r} and {target!r}, expected at least one")
            sources, targets = map(list, zip(*pairs, strict=True))
            self.data[f"{source}-{target}"] = self._embedded(encode, sources), targets
        if not self.data:
            raise ValueError("combinations is empty, expected at least one pair of languages")
        self.errors = {}


class TranslationEvaluator(Evaluator):
    """Find each text's translation by cosine similarity: `src2trg_accuracy`, `trg2src_accuracy`, `mean_accuracy`.

    Args:
        source_sentences, target_sentences: texts and their translations.
        print_wrong_matches: print the sources whose nearest target is another text.
        options: see `Evaluator`.
    """

    table = "translation_evaluation{}_results.csv"
    _column = staticmethod(lambda name: "" if name == "mean_accuracy" else name.removesuffix("_accuracy"))

    def __init__(
        self, source_sentences: Sequence[str], target_sentences: Sequence[str], *, batch_size: int = 16,
        print_wrong_matches: bool = False, **options: Any,
    ):  # fmt: skip
        super().__init__(batch_size=batch_size, **options)
        columns = _columns(source_sentences=source_sentences, target_sentences=target_sentences)
        self.source_sentences, self.target_sentences = columns
        self.print_wrong_matches = checks.boolean("print_wrong_matches", print_wrong_matches)

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        columns = self.source_sentences, self.target_sentences
        scores = np.asarray(of_dense(cos_sim)(*(self._embedded(model.encode, texts) for texts in columns)))
        accuracies = []
        for texts, best in zip(columns[::-1], (scores.argmax(1), scores.argmax(0)), strict=True):
            accuracies.append(float(np.mean([text == texts[place] for text, place in zip(texts, best, strict=True)])))
        for place, best in enumerate(scores.argmax(1) if self.print_wrong_matches else ()):
            if self.target_sentences[place] != self.target_sentences[best]:
                print(f"{self.source_sentences[place]!r}, expected {self.target_sentences[place]!r}, found:")
                for near in np.argsort(-scores[place], kind="stable")[:5]:
                    print(f"  {scores[place, near]:.4f} {self.target_sentences[near]!r}")
        names = "src2trg_accuracy", "trg2src_accuracy", "mean_accuracy"
        return dict(zip(names, (*accuracies, float(np.mean(accuracies))), strict=True)), "mean_accuracy"


class LabelAccuracyEvaluator(Evaluator):
    """Measure the `accuracy` of the classifier of pairs that the objective `SoftmaxLoss` trained beside an encoder.

    Args:
        dataloader: batches of examples with the attributes texts and label (sentence-transformers' InputExample).
        name: see `Evaluator`.
        softmax_model: the objective.
        options: see `Evaluator`.
    """

    table = "accuracy_evaluation{}_results.csv"

    def __init__(self, dataloader: Iterable[Sequence[Any]], name: str = "", softmax_model: Any = None, **options: Any):
        super().__init__(name, **options)
        if not hasattr(softmax_model, "predictions"):
            raise TypeError(f"softmax_model is {type(softmax_model).__name__}, expected the objective SoftmaxLoss")
        if hasattr(dataloader, "collate_fn"):  # PyTorch's DataLoader
            dataloader = copy.copy(dataloader)
            dataloader.collate_fn = list
        self.dataloader, self.softmax_model = dataloader, softmax_model

    def metrics(self, model: PromptedReader) -> tuple[Metrics, str]:
        is_right: list[bool] = []
        for batch in self.dataloader:
            vectors = self._embedded(model.encode, [text for example in batch for text in example.texts])
            predicted = self.softmax_model.predictions(vectors).argmax(-1)
            is_right += [label == example.label for label, example in zip(predicted, batch, strict=True)]
        if not is_right:
            raise ValueError("dataloader has no examples, expected at least one")
        return {"accuracy": float(np.mean(is_right))}, "accuracy"


def _encode_of(teacher: Teacher) -> Callable[..., Any]:
    if isinstance(teacher, str) or not callable(getattr(teacher, "encode", None)):
        raise TypeError(f"teacher_model is {type(teacher).__name__}, expected an encoder")
    return teacher.encode


def _records(dataframe: Any) -> list[Any]:
    """Return the rows of a DataFrame, or of a list of mappings."""
    if hasattr(dataframe, "to_dict"):
        return dataframe.astype(object).where(dataframe.notna(), None).to_dict("records")
    return check_list("dataframe", dataframe, "mappings of languages to texts")


def _text_in(row: object, number: int, language: str) -> str:
    if not isinstance(row, Mapping) or language not in row:
        known = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
        raise ValueError(f"dataframe[{number}] has {known}, expected a text in {language!r}")
    return "" if row[language] is None else checked_text(f"dataframe[{number}][{language!r}]", row[language])


def _columns(**columns: Sequence[str]) -> list[list[str]]:
    """Return the texts of each column. Raises ValueError unless all have the same number, at least one."""
    checked = {name: list(checked_texts(texts, name)) for name, texts in columns.items()}
    counts = {name: len(texts) for name, texts in checked.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        found = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise ValueError(f"{found}, expected the same number of texts in each, at least one")
    return list(checked.values())


def _similarities(names: Sequence[str] | None, argument: str = "", main: str | None = None) -> list[str]:
    """Return the names of the similarities to compare, with the `main` one; empty for the encoder's own."""
    chosen = check_strings("similarity_fn_names", names or [])
    for place, name in enumerate(chosen):
        checks.choice(f"similarity_fn_names[{place}]", name, SIMILARITIES)
    if main is not None:
        checks.choice(argument, main, chosen or SIMILARITIES)
    return chosen or ([] if main is None else [main])


def _pair_scores(model: PromptedReader, names: Sequence[str]) -> dict[str, Score]:
    if not names:
        return {model.similarity_fn_name: model.similarity_pairwise}
    return {name: of_dense(SIMILARITIES[name].of_pairs) for name in names}


def _named(
    found: dict[str, Metrics], main: str | None, primary: str, form: str = "{name}_{metric}"
) -> tuple[Metrics, str]:
    """Return the metrics by name, with the maximum of several similarities as "max", and the primary metric's name."""
    if len(found) > 1:
        first = next(iter(found.values()))
        found["max"] = {metric: max(each[metric] for each in found.values()) for metric in first}
    metrics = {form.format(name=name, metric=key): value for name, each in found.items() for key, value in each.items()}
    return metrics, form.format(name=main or list(found)[-1], metric=primary)


def _rows(rows: Any, places: Sequence[int]) -> Any:
    return [rows[place] for place in places] if isinstance(rows, list) else rows[places]
