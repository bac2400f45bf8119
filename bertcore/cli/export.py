"""The command export: models in the formats of other runtimes."""

from pathlib import Path
from typing import Annotated

from bertcore.cli.inputs import model_folder
from bertcore.cli.options import Command, File

PRECISIONS = ("q8_0", "f16", "f32")  # as bertcore.formats.gguf_export has them, which imports models


class Export(Command):
    """Write a model for another runtime.

      gguf  one file for llama.cpp, with the tokenizer and the pooling: sentence encoders and rerankers of BERT,
            RoBERTa, XLM-R, DistilBERT, NomicBERT, Jina v2 and v3, ModernBERT and EuroBERT

    Every command reads a .gguf file as it reads a model's folder.

    Examples:
        bertcore export demo all-MiniLM-L6-v2.gguf --format gguf --precision q8_0

    Attributes:
        model: folder of a model, its id on the Hugging Face hub, or demo.
        target: the file to write.
        format: the format.
        precision: of a GGUF file's weights, as llama.cpp spells it.
    """

    positions = ("model", "target")

    model: File
    target: File
    format: Annotated[str, ("gguf",)] = "gguf"
    precision: Annotated[str, PRECISIONS] = "q8_0"

    def run(self) -> None:
        from bertcore.formats.gguf_export import export_gguf

        target = Path(self.target)
        export_gguf(model_folder(self.model), target, self.precision)
        print(f"{target}: {target.stat().st_size / 1e6:,.1f} MB")
