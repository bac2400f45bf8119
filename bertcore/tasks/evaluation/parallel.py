"""Evaluators of texts beside their translations or labels, and of several evaluators in turn."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.tasks.evaluation.evaluator import Evaluator, Metrics, of_dense
from bertcore.tasks.evaluation.pairs import parallel_texts
from bertcore.tasks.similarity import cos_sim
from bertcore.tasks.texts import checked_texts


class MSEEvaluator(Evaluator):
    """Compare a student's embeddings of texts with a teacher's: `negative_mse`, minus 100 times the mean square error.

    Args:
        source_sentences: the texts that the teacher embeds, once.
        target_sentences: the texts that the student embeds: the same ones, or their translations.
        teacher_model: the teacher, an encoder.
        options: see `Evaluator`.
    """

    def __init__(
        self, source_sentences: Sequence[str], target_sentences: Sequence[str], teacher_model: Any, **options: Any
    ):
        super().__init__(**options)
        source, self.target_sentences = parallel_texts(
            source_sentences=source_sentences, target_sentences=target_sentences
        )
        self.table = "mse_evaluation{}_results.csv" if self.name else "mse_evaluation__results.csv"
        self.source_embeddings = self._embedded(teacher_model.encode, source)

    def columns(self, found: Metrics) -> Metrics:
        """Return the error as MSE."""
        return {"MSE": -found["negative_mse"]}

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metric of a student."""
        error = _square_error(self.source_embeddings, self._embedded(model.encode, self.target_sentences))
        return {"negative_mse": -error}, "negative_mse"


class MSEEvaluatorFromDataFrame(Evaluator):
    """Compare embeddings of translations with a teacher's of their sources: `negative_mse`, a mean over the languages.

    Args:
        dataframe: rows by language; pairs with an empty text are left out.
        teacher_model: the teacher, an encoder.
        combinations: pairs of languages (source, target): the teacher embeds the sources, the student the targets.
        options: see `Evaluator`.
    """

    table = "mse_evaluation{}_results.csv"

    def __init__(
        self,
        dataframe: Iterable[Mapping[str, str]],
        teacher_model: Any,
        combinations: Iterable[tuple[str, str]],
        batch_size: int = 8,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        rows = list(dataframe)
        self.data: dict[str, tuple[Any, list[str]]] = {}
        for source, target in combinations:
            pairs = [(row[source], row[target]) for row in rows if row[source].strip() and row[target].strip()]
            if not pairs:
                raise ValueError(f"dataframe has no row with texts in {source!r} and {target!r}, expected at least one")
            sources, targets = (list(checked_texts(texts, "dataframe")) for texts in zip(*pairs, strict=True))
            self.data[f"{source}-{target}"] = self._embedded(teacher_model.encode, sources), targets
        if not self.data:
            raise ValueError("combinations is empty, expected at least one pair of languages")
        self.errors: Metrics = {}

    def columns(self, found: Metrics) -> Metrics:
        """Return the error of each pair of languages."""
        return self.errors

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the metric of a student."""
        for name, (wanted, texts) in self.data.items():
            self.errors[name] = _square_error(wanted, self._embedded(model.encode, texts))
        return {"negative_mse": -float(np.mean(list(self.errors.values())))}, "negative_mse"


class TranslationEvaluator(Evaluator):
    """Find each text's translation by cosine similarity: `src2trg_accuracy`, `trg2src_accuracy`, `mean_accuracy`.

    Args:
        source_sentences, target_sentences: texts and their translations.
        print_wrong_matches: print the sources whose nearest target is another text.
        options: see `Evaluator`.
    """

    table = "translation_evaluation{}_results.csv"

    def __init__(
        self,
        source_sentences: Sequence[str],
        target_sentences: Sequence[str],
        *,
        batch_size: int = 16,
        print_wrong_matches: bool = False,
        **options: Any,
    ):
        super().__init__(batch_size=batch_size, **options)
        columns = parallel_texts(source_sentences=source_sentences, target_sentences=target_sentences)
        self.source_sentences, self.target_sentences = columns
        self.print_wrong_matches = print_wrong_matches

    def columns(self, found: Metrics) -> Metrics:
        """Return the accuracies as src2trg and trg2src."""
        return {name: found[f"{name}_accuracy"] for name in ("src2trg", "trg2src")}

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the accuracies of an encoder."""
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
    """Measure the `accuracy` of the classifier of pairs that the objective `Softmax` trained beside an encoder.

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
            raise TypeError(f"softmax_model is {type(softmax_model).__name__}, expected the objective Softmax")
        if hasattr(dataloader, "collate_fn"):  # PyTorch's DataLoader
            dataloader.collate_fn = list
        self.dataloader, self.softmax_model = dataloader, softmax_model

    def metrics(self, model: Any) -> tuple[Metrics, str]:
        """Return the accuracy of an encoder and its classifier."""
        is_right: list[bool] = []
        for batch in self.dataloader:
            vectors = self._embedded(model.encode, [text for example in batch for text in example.texts])
            predicted = self.softmax_model.predictions(vectors).argmax(-1)
            is_right += [label == example.label for label, example in zip(predicted, batch, strict=True)]
        return {"accuracy": float(np.mean(is_right))}, "accuracy"


class SequentialEvaluator(Evaluator):
    """Call several evaluators; the metrics are theirs and `sequential_score`.

    Args:
        evaluators: the evaluators.
        main_score_function: maps the list of their primary metrics to `sequential_score`; by default the last of them.
    """

    def __init__(
        self,
        evaluators: Iterable[Callable[..., Any]],
        main_score_function: Callable[[list[float]], float] = lambda scores: scores[-1],
    ):
        super().__init__()
        self.evaluators, self.main_score_function = list(evaluators), main_score_function

    def __call__(
        self, model: Any, output_path: str | os.PathLike | None = None, epoch: int = -1, steps: int = -1
    ) -> Metrics:
        """Return the metrics of all evaluators, each called with these arguments."""
        results, scores = {}, []
        for place, evaluator in enumerate(self.evaluators):
            found = evaluator(model, output_path, epoch, steps)
            found = found if isinstance(found, dict) else {f"evaluator_{place}": found}
            scores.append(found[getattr(evaluator, "primary_metric", None) or next(iter(found))])
            results |= found
        self.primary_metric = "sequential_score"
        return results | {"sequential_score": self.main_score_function(scores) if scores else 0.0}


def _square_error(wanted: Any, vectors: Any) -> float:
    return 100 * float(((wanted - vectors) ** 2).mean())
