"""The command export: models in the formats of other runtimes."""

from pathlib import Path
from typing import Annotated

from bertcore.cli.inputs import model_folder
from bertcore.cli.options import Command, CommandError, File

PRECISIONS = ("q8_0", "f16", "f32")  # as bertcore.formats.gguf_export has them, which imports models


class Export(Command):
    """Write a model for another runtime.

      gguf  one file for llama.cpp, with the tokenizer and the pooling: sentence encoders and rerankers of BERT,
            RoBERTa, XLM-R, DistilBERT, NomicBERT, Jina v2 and v3, ModernBERT and EuroBERT
      onnx  a folder for ONNX Runtime, FastEmbed and transformers.js, with pooling in the graph (needs the package onnx)

    Every command reads a .gguf file as it reads a model's folder.

    Examples:
        bertcore export demo all-MiniLM-L6-v2.gguf --format gguf --precision q8_0
        bertcore export demo all-MiniLM-L6-v2-onnx/ --format onnx

    Attributes:
        model: folder of a model, its id on the Hugging Face hub, or demo.
        target: the file or the folder to write.
        format: the format (default: gguf for a file that ends so, else onnx).
        precision: of a GGUF file's weights, as llama.cpp spells it (default: q8_0).
    """

    positions = ("model", "target")

    model: File
    target: File
    format: Annotated[str | None, ("gguf", "onnx")] = None
    precision: Annotated[str | None, PRECISIONS] = None

    def run(self) -> None:
        target = Path(self.target)
        if (self.format or ("gguf" if target.suffix == ".gguf" else "onnx")) == "gguf":
            from bertcore.formats.gguf_export import export_gguf

            export_gguf(model_folder(self.model), target, self.precision or PRECISIONS[0])
            written = [target]
        else:
            if self.precision is not None:
                raise CommandError("--precision and --format onnx are both given, expected one: ONNX has float32")
            from bertcore.formats.onnx_export import export_onnx

            export_onnx(model_folder(self.model), target)
            written = [file for file in target.rglob("*") if file.is_file()]
        print(f"{target}: {sum(file.stat().st_size for file in written) / 1e6:,.1f} MB")
