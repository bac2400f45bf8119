"""The commands plot and preview: pictures of a model or of its training, and the examples of pretraining."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import bertcore
from bertcore.arguments import printable
from bertcore.cli.inputs import Texts, check_one_source, model_folder, some_texts
from bertcore.cli.options import ABOVE_0, Command, CommandError, File, Kind, Positive, Seed
from bertcore.cli.outputs import check_matplotlib, output_stream

SUFFIXES = (".png", ".svg")
EXPECTED_CHANCES = 'expected {"probabilities": [...], "label": N}'
TEMPERATURES = Kind(
    lambda text: [ABOVE_0.read(part) for part in text.split(",")], "numbers above 0 such as 1,2,4", "T,T"
)


# {figure: (module of bertcore.plots, its function, the option of its own)}
FIGURES = {
    "attention": ("attention", "attention_maps", "layer"),
    "components": ("attention", "attention_components", "layer"),
    "masking": ("masking", "masking", "epochs"),
    "temperature": ("temperature", "distillation_temperature", "temperatures"),
    "calibration": ("calibration", "reliability_diagram", None),
    "curves": ("curves", "training_curves", None),
    "embeddings": ("embeddings", "embeddings_in_two_dimensions", None),
}
WITHOUT_MODEL = ("calibration", "curves")


class Plot(Command):
    """Draw a picture of a model or of its training, as a PNG or SVG file (needs matplotlib).

      attention MODEL [FILE]    the attention of the heads of a layer
      components MODEL [FILE]   the three terms of DeBERTa's attention scores
      masking MODEL [FILE]      the masks of static and dynamic masking in each epoch
      temperature MODEL [FILE]  a teacher's probabilities of a masked word at several temperatures
      embeddings MODEL [FILE]   texts, one a line, in two dimensions
      calibration FILE          accuracy by confidence of a classifier, from lines {"probabilities": [...], "label": N}
      curves FILE               losses and learning rate of a training run, from its log.jsonl

    The first four take one text. FILE is a file of texts, or - for standard input; --text gives a text instead.

    Examples:
        bertcore plot attention bert-base-uncased/ --text "The cat sat on the mat." -o attention.png --layer 3
        bertcore plot temperature bert-base-uncased/ --text "Paris is the [MASK] of France." -o temperature.png
        bertcore plot curves run/log.jsonl -o curves.png
        bertcore plot embeddings demo texts.txt -o embeddings.png

    Attributes:
        figure: the picture; see above.
        inputs: MODEL and FILE; see above.
        text: a literal text in place of FILE; may be repeated.
        output: the file to write, *.png or *.svg.
        layer: the layer, for attention and components (default: 1).
        epochs: number of epochs, for masking (default: 4).
        temperatures: temperatures, with commas between them, for temperature (default: 1,2,4,8).
    """

    positions = ("figure", "inputs")
    spellings = ("-o output",)

    figure: Annotated[str, tuple(FIGURES)]  # type: ignore[misc]
    inputs: tuple[File, ...] = ()
    text: tuple[str, ...] = ()
    output: File
    layer: Positive | None = None
    epochs: Positive | None = None
    temperatures: Annotated[list[float] | None, TEMPERATURES] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.output).suffix.lower() not in SUFFIXES:
            raise CommandError(f"--output is {self.output}, expected a file named *.png or *.svg")
        has_model = self.figure not in WITHOUT_MODEL
        if not has_model and (len(self.inputs) != 1 or self.text):
            raise CommandError(f"{self.figure} has {len(self.inputs)} inputs, expected FILE")
        if has_model and not 1 <= len(self.inputs) <= 2:
            raise CommandError(f"{self.figure} has {len(self.inputs)} inputs, expected MODEL and FILE or --text")
        if has_model:
            check_one_source(self.file, self.text)
        for name in ("layer", "epochs", "temperatures"):
            if getattr(self, name) is not None and name != FIGURES[self.figure][2]:
                raise CommandError(f"--{name} is given with {self.figure}, which has no use for it")

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.inputs[0]

    @property
    def file(self) -> str | None:
        """The file of texts or data; None for standard input or --text."""
        return next(iter(self.inputs[self.figure not in WITHOUT_MODEL :]), None)

    def run(self) -> None:
        check_matplotlib("plot")
        with self.chosen_backend():
            figure = self.draw()
        with output_stream(self.output, seekable=True) as stream:
            figure.savefig(stream, format=Path(self.output).suffix.lower()[1:], dpi=150)

    def lines(self) -> list[str]:
        """Return the texts; CommandError if there are none."""
        return some_texts(self.file, self.text)

    def draw(self) -> Any:
        """Return the figure."""
        draw = getattr(importlib.import_module(f"bertcore.plots.{FIGURES[self.figure][0]}"), FIGURES[self.figure][1])
        if self.figure == "curves":
            return draw(self.file)
        texts = self.lines()
        if self.figure == "calibration":
            return draw(*self._probabilities(texts))
        if self.figure == "embeddings":
            from bertcore.tasks.sentence_encoder import SentenceEncoder

            return draw(texts, SentenceEncoder(model_folder(self.model)).encode(texts))
        if len(texts) != 1:
            raise CommandError(f"{self.figure} has {len(texts)} texts, expected one")
        folder, text = model_folder(self.model), texts[0]
        tokenizer = bertcore.AutoTokenizer.from_pretrained(folder)
        if self.figure == "masking":
            return draw(tokenizer, text, epochs=self.epochs or 4)
        if self.figure == "temperature":
            model = bertcore.AutoModelForMaskedLM.from_pretrained(folder)
            return draw(model, tokenizer, text, temperatures=self.temperatures or (1.0, 2.0, 4.0, 8.0))
        return draw(bertcore.AutoModel.from_pretrained(folder), tokenizer, text, self.layer or 1)

    def _probabilities(self, lines: list[str]) -> tuple[list[list[float]], list[int]]:
        """Return the probabilities and the right classes of lines."""
        rows = [_chances(line, f"{self.file}, line {number}") for number, line in enumerate(lines, 1)]
        if len({len(chances) for chances, _ in rows}) > 1:
            raise CommandError(f"{self.file} has lines of different numbers of probabilities")
        return [chances for chances, _ in rows], [label for _, label in rows]


def _chances(line: str, where: str) -> tuple[list[float], int]:
    """Return the probabilities and the right class of a line; CommandError, naming the line, if it has none."""
    try:
        row = json.loads(line)
        chances, label = [float(chance) for chance in row["probabilities"]], row["label"]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{where}: {line[:60]!r}, {EXPECTED_CHANCES}") from error
    if isinstance(label, bool) or not isinstance(label, int):
        raise CommandError(f"{where}: label is {label!r:.60}, {EXPECTED_CHANCES}")
    return chances, label


class Preview(Texts):
    """Show the examples that the objectives of pretraining make of a text.

    These are static and dynamic masks, whole words, spans, orders and replaced tokens.

    Examples:
        bertcore preview bert-base-uncased/ --text "The cat sat on the mat and looked at the embeddings."
        bertcore preview demo texts.txt --epochs 5

    Attributes:
        model: folder or id of a tokenizer, with or without a model.
        epochs: epochs of each objective.
        seed: seed of the random choices.
    """

    model: File
    epochs: Positive = 3
    seed: Seed = 0

    def run(self) -> None:
        from bertcore import AutoTokenizer
        from bertcore.training.objectives import preview

        tokenizer = AutoTokenizer.from_pretrained(model_folder(self.model, "tokenizer"))
        with self.texts() as (texts, _):
            for text in texts:
                for line in preview(text, tokenizer, epochs=self.epochs, seed=self.seed).splitlines():
                    print(printable(line))
