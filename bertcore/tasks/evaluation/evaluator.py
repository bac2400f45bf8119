"""The base of all evaluators."""

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.arguments import check_count

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


def given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def of_dense(score: Score) -> Score:
    """Return a similarity that takes sparse matrices, too."""
    return lambda *rows: score(*(each.toarray() if hasattr(each, "toarray") else each for each in rows))
