"""The commands precision, quantize and export: models in low precision and in other formats."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from bertcore.arguments import INT8
from bertcore.cli.inputs import Model, TextsCommand, model_folder, some_texts, texts_from
from bertcore.cli.options import REQUIRED, SEVERAL, CommandError, File, opt
from bertcore.tasks.low_precision import Comparison, compare_precision, quantize

LOW = ("bfloat16", *INT8)
SHOWN = 60  # characters of the worst text in the table
ROWS = {
    "megabytes": ("size, MB", ".1f"),
    "speed": ("speed, times that of float32", ".2f"),
    "cosine_mean": ("cosine, mean", ".5f"),
    "cosine_percentile_1": ("cosine, 1st percentile", ".5f"),
    "cosine_worst": ("cosine, worst text", ".5f"),
    "nearest_agreement": ("same nearest text", ".2%"),
    "hidden_error": ("hidden states, relative error", ".2e"),
    "word_agreement": ("same first word (masked LM)", ".2%"),
}


class Precision(TextsCommand):
    """Measure the cost of low precision on your own texts.

    The report has the distance of embeddings and hidden states from float32, the share of nearest texts and predicted
    words that stay the same, and the gain in size and speed. Repeated texts count once. The cosine compares a text's
    embedding in low precision with its embedding in float32. Speed is the median, over groups of texts, of the time in
    float32 over the time in low precision, measured in turns.

    Examples:
        bertcore precision demo < texts.txt
        bertcore precision bert-base-uncased/ texts.txt --dtype int8 --json
    """

    spellings = ("--texts file",)

    dtype: Annotated[tuple[str, ...], LOW, SEVERAL] = opt("the dtypes to compare", LOW[:2])
    json: bool = opt("print one JSON object", False)

    def run(self) -> None:
        folder = model_folder(self.model)
        texts = list(dict.fromkeys(some_texts(self.file, self.text)))
        with self.chosen_backend():
            size, comparisons = compare_precision(folder, texts, list(dict.fromkeys(self.dtype)))
        if self.json:
            found = {"texts": len(texts), "float32": {"megabytes": size}}
            print(json.dumps(found | {each.dtype: asdict(each) for each in comparisons}, ensure_ascii=False))
        else:
            print(f"{len(texts)} different texts\n\n{table(size, comparisons)}")


def table(size: float, comparisons: Sequence[Comparison]) -> str:
    rows = [["", "float32", *(each.dtype for each in comparisons)]]
    for key, (title, form) in ROWS.items():
        values = [getattr(each, key) for each in comparisons]
        if any(value is not None for value in values):
            first = {"megabytes": format(size, form), "speed": "1.00"}.get(key, "")
            rows.append([title, first, *(format(value, form) for value in values)])
    lines = [f"{title:<30}" + "".join(f"{value:>10}" for value in values) for title, *values in rows]
    worst = ((each.dtype, each.worst_text) for each in comparisons)
    shown = ((dtype, text if len(text) <= SHOWN else text[: SHOWN - 3] + "...") for dtype, text in worst)
    return "\n".join([*lines, "", *(f"worst text in {dtype}: {text!r}" for dtype, text in shown)])


class Quantize(Model):
    """Write a model in low precision: smaller and quicker to load; every command loads it as it is.

      int8              8-bit weights of linear layers with a scale for each output channel, embedding tables in
                        bfloat16; a quarter of the size
      int8_weight_only  a scale for each 32 weights, and inputs that are not rounded: a quarter of the size, too, much
                        nearer to float32, and about as fast as that
      bfloat16          weights and tables; half the size; transformers reads it like any other model

    Heads without a class in bertcore are unchanged. The tokenizer and the settings of a sentence encoder are copied.
    With --calibrate or --text the encoder's int8 weights are rounded to fit its inputs on sample texts, which brings
    results closer to float32: use some hundred texts like yours, one per line. They run in float32, which takes
    minutes. `bertcore precision` measures the cost on your texts.

    Examples:
        bertcore quantize demo all-MiniLM-L6-v2-int8/
        bertcore quantize demo all-MiniLM-L6-v2-int8/ --calibrate texts.txt
        bertcore quantize bert-base-uncased/ bert-base-bf16/ --dtype bfloat16
    """

    positions = ("model", "folder")
    apart = ("calibrate text",)

    folder: File = opt("the folder to write: a new or an empty one", REQUIRED)
    dtype: Annotated[str, (*INT8, "bfloat16")] = opt("the dtype to write", "int8")
    calibrate: File | None = opt("file of sample texts, one a line, or - for standard input")
    text: tuple[str, ...] = opt("a literal sample text instead of --calibrate; may be repeated", ())

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.calibrate is not None or self.text) and self.dtype != "int8":
            raise CommandError(f"--dtype is {self.dtype}, expected int8 beside sample texts to calibrate with")

    def run(self) -> None:
        source, target = model_folder(self.model), Path(self.folder)
        if self.calibrate is None and not self.text:
            before, after = quantize(source, target, self.dtype)
        else:
            with texts_from(self.calibrate, self.text, "--calibrate") as (texts, name), self.chosen_backend():
                before, after = quantize(source, target, self.dtype, texts, name)
        print(f"{target}: {after / 1e6:,.1f} MB in {self.dtype}, from {before / 1e6:,.1f} MB")


PRECISIONS = ("q8_0", "f16", "f32")  # as bertcore.formats.export has them, which imports models


class Export(Model):
    """Write a model for another runtime.

      gguf  one file for llama.cpp, with the tokenizer and the pooling: sentence encoders and rerankers of BERT,
            RoBERTa, XLM-R, DistilBERT, NomicBERT, Jina v2 and v3, ModernBERT and EuroBERT
      onnx  a folder for ONNX Runtime, FastEmbed and transformers.js, with pooling in the graph (needs the package onnx)

    Every command reads a .gguf file as it reads a model's folder.

    Examples:
        bertcore export demo all-MiniLM-L6-v2.gguf --format gguf --precision q8_0
        bertcore export demo all-MiniLM-L6-v2-onnx/ --format onnx
    """

    positions = ("model", "target")

    target: File = opt("the file or the folder to write", REQUIRED)
    format: Annotated[str | None, ("gguf", "onnx")] = opt(
        "the format (default: gguf for a file that ends so, else onnx)"
    )
    precision: Annotated[str | None, PRECISIONS] = opt(
        "of a GGUF file's weights, as llama.cpp spells it (default: q8_0)"
    )

    def run(self) -> None:
        target = Path(self.target)
        if (self.format or ("gguf" if target.suffix == ".gguf" else "onnx")) == "gguf":
            from bertcore.formats.export import export_gguf

            export_gguf(model_folder(self.model), target, self.precision or PRECISIONS[0])
            written = [target]
        else:
            if self.precision is not None:
                raise CommandError("--precision and --format onnx are both given, expected one: ONNX has float32")
            from bertcore.formats.export import export_onnx

            export_onnx(model_folder(self.model), target)
            written = [file for file in target.rglob("*") if file.is_file()]
        print(f"{target}: {sum(file.stat().st_size for file in written) / 1e6:,.1f} MB")
