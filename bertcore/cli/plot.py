"""The commands explain, plot and preview: attribution, pictures, and the examples of pretraining."""

import importlib
import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import bertcore
from bertcore import AutoTokenizer
from bertcore.arguments import printable
from bertcore.checkpoint import naming_config, read_config
from bertcore.cli.inputs import (
    PairsCommand,
    TextsCommand,
    aligned,
    check_matplotlib,
    check_one_source,
    check_picture,
    model_folder,
    some_texts,
    write_picture,
)
from bertcore.cli.options import ABOVE_0, REQUIRED, Command, CommandError, File, Kind, Positive, Seed, opt
from bertcore.models.architectures import class_for
from bertcore.models.model import Model, NewlyInitialisedWarning
from bertcore.tasks.sentence_encoder import SentenceEncoder
from bertcore.training.objectives import preview

STEPS = 50
WIDEST = 24  # characters of a bar


class Explain(PairsCommand):
    """Attribute the class that a classifier gives a text to the tokens of the text.

      gradients  the amount that a token adds to the score of a class, by integrated gradients (Sundararajan et al.
                 2017): the amounts sum to what the text adds to the class's score over a text of padding alone, up to
                 the error that is printed, which shrinks with more --steps
      rollout    the share of a token in the state that is classified, through the attention of all layers (Abnar and
                 Zuidema 2020); it does not depend on a class, and the shares sum to 1

    The model computes in float32, whatever the dtype of its file.

    Examples:
        bertcore explain sentiment/ --text "What a film."
        bertcore explain mnli/ --text "A cat sleeps." --text-pair "An animal is awake." --label contradiction
        bertcore explain sentiment/ reviews.txt --method rollout --json
    """

    only_for = ("label method gradients", "steps method gradients")

    model: File = opt("folder or id of a model with a classifier of texts", REQUIRED)
    method: Annotated[str, ("gradients", "rollout")] = opt("method of attribution", "gradients")
    label: str | None = opt("the class, for gradients (default: the predicted class)")
    steps: Positive | None = opt("steps of the integral, for gradients (default: 50)")
    max_length: Positive | None = opt("tokens that are read (default: the model's)")
    truncation: Annotated[str, ("error", "cut")] = opt("treatment of a longer text", "error")
    json: bool = opt("print a JSON object for each text", False)

    def run(self) -> None:
        from bertcore.tasks.pipelines import pipeline

        folder = model_folder(self.model)
        options = {"max_length": self.max_length, "truncation": True if self.truncation == "cut" else "error"}
        with self.inputs() as texts, self.chosen_backend():
            classifier = pipeline("text-classification", folder, dtype="float32", **options)
            for number, text in enumerate(texts):
                found = self.explained(classifier, text)
                lines = json.dumps(found, ensure_ascii=False) if self.json else explanation(found)
                print(lines if self.json or not number else f"\n{lines}")

    def explained(self, classifier: Any, text: Any) -> dict[str, Any]:
        from bertcore.tasks.attribution import attention_rollout, integrated_gradients

        classes = classifier(text, top_k=None)
        if self.method == "rollout":
            found = attention_rollout(classifier, text)
        else:
            found = integrated_gradients(classifier, text, label=self.label, steps=self.steps or STEPS)
        rows = zip(found.tokens, found.offsets, found.scores.tolist(), strict=True)
        tokens = [{"token": token, "start": start, "end": end, "score": score} for token, (start, end), score in rows]
        about = {"label": found.label, "gap": found.gap} if found.label is not None else {}
        return {"method": self.method, "classes": classes, **about, "tokens": tokens}


def explanation(found: dict[str, Any]) -> str:
    classes = "  ".join(f"{printable(each['label'])} {each['score']:.4f}" for each in found["classes"])
    scores = [each["score"] for each in found["tokens"]]
    widest = max(map(abs, scores)) or 1.0
    bars = [("+" if score > 0 else "-") * round(WIDEST * abs(score) / widest) for score in scores]
    rows = [[each["token"], f"{each['score']:.4f}", bar] for each, bar in zip(found["tokens"], bars, strict=True)]
    parts = [classes, aligned(rows, ["token", "score", ""], right=[False, True, False])]
    if "label" in found:
        total, label = f"together {sum(scores):.4f}", printable(found["label"])
        parts.append(f"{total}, what the text adds to the score of {label}; error {found['gap']:.4f}")
    return "\n\n".join(parts)


EXPECTED_CHANCES = 'expected {"probabilities": [...], "label": N}'
TEMPERATURES = Kind(lambda text: list(map(ABOVE_0.read, text.split(","))), "numbers above 0 such as 1,2,4", "T,T")
# {figure: (its module, its function, its own options)}
FIGURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "attention": ("plots.attention", "attention_maps", ("layer", "head", "special_tokens")),
    "components": ("plots.attention", "attention_components", ("layer", "head", "special_tokens")),
    "masking": ("plots.attention", "masking", ("epochs",)),
    "temperature": ("plots.probabilities", "distillation_temperature", ("temperatures",)),
    "calibration": ("plots.probabilities", "reliability_diagram", ("bins",)),
    "curves": ("training.curves", "training_curves", ()),
    "embeddings": ("plots.embeddings", "embeddings_in_two_dimensions", ("labels", "clusters", "method")),
}
OPTIONS = dict.fromkeys(name for *_, names in FIGURES.values() for name in names)
ONLY_FOR = {name: " ".join(figure for figure in FIGURES if name in FIGURES[figure][2]) for name in OPTIONS}
WITHOUT_MODEL = ("calibration", "curves")


class Plot(Command):
    """Draw a picture of a model or of its training, as a PNG or SVG file (needs matplotlib).

      attention MODEL [FILE]    attention probabilities: all heads, or those of --layer, --head or both
      components MODEL [FILE]   the three terms of DeBERTa's attention scores in a layer
      masking MODEL [FILE]      the masks of static and dynamic masking in each epoch
      temperature MODEL [FILE]  a teacher's classes, or words for a mask, at several temperatures
      embeddings MODEL [FILE]   texts, one a line, in two dimensions, coloured by label or cluster
      calibration FILE          accuracy by confidence of a classifier, from lines {"probabilities": [...], "label": N}
      curves FILE               losses and learning rate of a training run, from its log.jsonl

    The first four take one text. FILE is a file of texts, or - for standard input; --text gives a text instead.

    Examples:
        bertcore plot attention bert-base-uncased/ --text "The cat sat on the mat." -o attention.png --layer 3 --head 5
        bertcore plot temperature my-classifier/ --text "What a film." -o temperature.svg
        bertcore plot curves run/log.jsonl -o curves.png
        bertcore plot embeddings demo texts.txt --labels labels.txt -o embeddings.png
        bertcore plot embeddings demo texts.txt --clusters 5 --method umap -o clusters.png
    """

    positions = ("figure", "inputs")
    spellings = ("-o output",)
    only_for = tuple(f"{name} figure {figures}" for name, figures in ONLY_FOR.items())

    figure: Annotated[str, tuple(FIGURES)] = opt("the picture; see above", REQUIRED)  # type: ignore[misc]
    inputs: tuple[File, ...] = opt("MODEL and FILE; see above", ())
    text: tuple[str, ...] = opt("a literal text in place of FILE; may be repeated", ())
    output: File = opt("the file to write, *.png or *.svg", REQUIRED)
    layer: Positive | None = opt("the layer, from 1 (default: all for attention, 1 for components)")
    head: Positive | None = opt("the head, from 1 (default: all)")
    special_tokens: bool | None = opt("show [CLS], [SEP] and the like, for attention and components (default: yes)")
    epochs: Positive | None = opt("number of epochs, for masking (default: 4)")
    temperatures: Annotated[list[float] | None, TEMPERATURES] = opt(
        "temperatures, with commas between them, for temperature (default: 1,2,4,8)"
    )
    bins: Positive | None = opt("number of bins, for calibration (default: 15)")
    labels: File | None = opt("file of labels, one a line as the texts, which colour embeddings")
    clusters: Positive | None = opt("number of clusters made by k-means, which colour embeddings (needs scikit-learn)")
    method: Annotated[str | None, ("pca", "umap", "tsne")] = opt(
        "projection of embeddings; umap needs umap-learn, tsne scikit-learn (default: pca)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_picture("--output", self.output)
        has_model, count = self.figure not in WITHOUT_MODEL, len(self.inputs)
        if not (1 <= count <= 2 if has_model else count == 1 and not self.text):
            expected = "MODEL and FILE or --text" if has_model else "FILE"
            raise CommandError(f"{self.figure} has {count} inputs, expected {expected}")
        if has_model:
            check_one_source(self.file, self.text)

    @property
    def model(self) -> str:
        return self.inputs[0]

    @property
    def file(self) -> str | None:
        """The file of texts or data; None for standard input or --text."""
        return next(iter(self.inputs[self.figure not in WITHOUT_MODEL :]), None)

    def run(self) -> None:
        check_matplotlib("plot")
        with self.chosen_backend():
            write_picture(self.output, self.draw())

    def draw(self) -> Any:
        module, name, names = FIGURES[self.figure]
        draw = getattr(importlib.import_module(f"bertcore.{module}"), name)
        if self.figure == "curves":
            return draw(self.file)
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        texts = some_texts(self.file, self.text)
        if self.figure == "calibration":
            return draw(*self._probabilities(texts), **given)
        if self.figure == "embeddings":
            if self.labels is not None:
                given["labels"] = labels = some_texts(self.labels, argument="--labels")
                if len(labels) != len(texts):
                    expected = f"a label for each of {len(texts)} texts"
                    raise CommandError(f"{self.labels} has {len(labels)} lines, expected {expected}")
            return draw(texts, SentenceEncoder(model_folder(self.model)).encode(texts), **given)
        if len(texts) != 1:
            raise CommandError(f"{self.figure} has {len(texts)} texts, expected one")
        folder = model_folder(self.model)
        tokenizer = bertcore.AutoTokenizer.from_pretrained(folder)
        if self.figure == "masking":
            return draw(tokenizer, texts[0], epochs=self.epochs or 4)
        if self.figure == "temperature":
            return draw(self._with_head(folder), tokenizer, texts[0], **{"temperatures": (1.0, 2.0, 4.0, 8.0)} | given)
        return draw(bertcore.AutoModel.from_pretrained(folder), tokenizer, texts[0], **given)

    def _with_head(self, folder: Path) -> Model[Any]:
        """Return the classifier, or else the masked language model, of a folder; CommandError if it has neither."""
        with naming_config(folder):
            is_classifier = class_for(read_config(folder)) is bertcore.AutoModelForSequenceClassification
        kind = bertcore.AutoModelForSequenceClassification if is_classifier else bertcore.AutoModelForMaskedLM
        with warnings.catch_warnings():  # a missing head is an error here
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            model = kind.from_pretrained(folder)
        if model.newly_initialised:
            raise CommandError(f"{folder} has no trained head, expected a classifier or a masked language model")
        return model

    def _probabilities(self, lines: list[str]) -> tuple[list[list[float]], list[int]]:
        rows = [_chances(line, f"{self.file}, line {number}") for number, line in enumerate(lines, 1)]
        chances, labels = map(list, zip(*rows, strict=True))
        if len({*map(len, chances)}) > 1:
            raise CommandError(f"{self.file} has lines of different numbers of probabilities")
        return chances, labels


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


class Preview(TextsCommand):
    """Show the examples that the objectives of pretraining make of a text.

    These are static and dynamic masks, whole words, spans, orders and replaced tokens.

    Examples:
        bertcore preview bert-base-uncased/ --text "The cat sat on the mat and looked at the embeddings."
        bertcore preview demo texts.txt --epochs 5
    """

    model: File = opt("folder or id of a tokenizer, with or without a model", REQUIRED)
    epochs: Positive = opt("epochs of each objective", 3)
    seed: Seed = opt("seed of the random choices", 0)

    def run(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model_folder(self.model, "tokenizer"))
        with self.texts() as (texts, _):
            for text in texts:
                for line in preview(text, tokenizer, epochs=self.epochs, seed=self.seed).splitlines():
                    print(printable(line))
