"""The command embed: lines in, embeddings out; a corpus of files on several workers of Ray."""

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from bertcore.cli.inputs import Reading, Texts, model_folder
from bertcore.cli.options import CommandError, File, Positive
from bertcore.cli.outputs import output_stream, write_jsonl, write_npy

ENDINGS = ("", ".npy", ".jsonl", ".json", ".txt")  # of output files in which a reader expects one of the formats


class Embed(Texts, Reading):
    """Embed texts, one a line, into a NumPy array or JSON lines.

    Every line is a text, an empty line an empty text; line n of the output, or row n, is the embedding of line n of the
    input. Input is UTF-8; a byte order mark and carriage returns before line ends are not part of the texts. It is read
    as it comes, in bounded memory. An output file appears only when it is complete.

    A line of JSON is an array of numbers; they are float32 and read back to the same bits.

    With --ray (pip install "bertcore[ray]") a corpus is embedded by several workers. FILE is a file or a folder of
    files: of text (.txt, .text, .md), of JSON lines (.jsonl, .json), each also with .gz, or Parquet. --output is a
    folder: each part of the corpus becomes a file of it, part-000000.npy and so on, in the order of the corpus, with
    the bits that one process gives. The same command again makes only the missing parts. The workers run on the
    cluster of RAY_ADDRESS, or on this machine; every worker must find the files under the same names.

    Examples:
        bertcore embed demo texts.txt -o embeddings.npy
        bertcore embed demo --text "one text" --text another
        zcat texts.gz | bertcore embed demo --format npy > embeddings.npy
        bertcore embed all-MiniLM-L6-v2/ corpus/ --column body --ray 4 -o vectors/

    Attributes:
        output: the file to write, or - for standard output; with --ray a folder.
        format: format of the output (default: by the ending of --output, else jsonl).
        normalize: scale embeddings to length 1, or do not (default: as the model was published).
        prompt: text to put before every line.
        prompt_name: name of one of the model's own prompts.
        progress: show progress, or do not (default: on a terminal, when it takes long).
        ray: embed a corpus of files on this many workers of Ray.
        column: column of the texts in JSON lines and Parquet, with --ray (default: text).
        part_rows: rows of a part, with --ray (default: 65536).
    """

    spellings = ("-o output",)

    output: File = "-"
    format: Annotated[str | None, ("npy", "jsonl")] = None
    normalize: bool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    progress: bool | None = None
    ray: Positive | None = None
    column: str | None = None
    part_rows: Positive | None = None

    def __post_init__(self) -> None:
        if self.ray and (self.file in (None, "-", "") or self.text):
            raise CommandError("--ray is given without FILE, expected a file or a folder")
        if self.ray and self.output in ("-", ""):
            raise CommandError("--ray is given without --output, expected a folder")
        super().__post_init__()
        if not self.ray and (self.column is not None or self.part_rows is not None):
            raise CommandError(f"--{'part-rows' if self.column is None else 'column'} is given without --ray")
        ending = Path(self.output).suffix.lower()
        if not self.ray and self.format is None and ending not in ENDINGS:
            raise CommandError(f"--output is {self.output}, expected a name that ends in .npy or .jsonl, or --format")

    def run(self) -> None:
        if self.ray:
            self._run_on_ray()
            return
        as_npy = self.format == "npy" or (self.format is None and Path(self.output).suffix.lower() == ".npy")
        to_terminal = self.output == "-" and sys.stdout is not None and sys.stdout.isatty()  # None: it is closed
        if as_npy and to_terminal:
            raise CommandError("standard output is a terminal, which npy is not for: give -o FILE, or --format jsonl")
        progress = False if self.progress is None and to_terminal else self.progress  # not among the results
        folder = model_folder(self.model)
        with contextlib.ExitStack() as stack:
            lines, _ = stack.enter_context(self.texts())
            output = stack.enter_context(output_stream(self.output, seekable=as_npy))
            stack.enter_context(self.chosen_backend())
            self.write(output, self.encoder(folder), lines, as_npy=as_npy, progress=progress)

    def _run_on_ray(self) -> None:
        from bertcore.cli.embed_ray import embed_on_ray
        from bertcore.kernels import get_backend

        with self.chosen_backend():
            self.backend = get_backend()  # the workers compute on the same
        self.format, self.column, self.part_rows = self.format or "npy", self.column or "text", self.part_rows or 65536
        embed_on_ray(model_folder(self.model), self)

    def encoder(self, folder: Path) -> Any:
        """Return the sentence encoder of a folder."""
        from bertcore.tasks.sentence_encoder import SentenceEncoder

        return SentenceEncoder(folder, dtype=self.dtype, max_seq_length=self.max_length)

    def encoding_options(self) -> dict[str, Any]:
        """Return the arguments of `SentenceEncoder.encode`."""
        return {name: getattr(self, name) for name in ("prompt", "prompt_name", "normalize")} | self.reading_options()

    def write(
        self, output: BinaryIO, encoder: Any, texts: Iterable[str], *, as_npy: bool, progress: bool | None = False
    ) -> None:
        """Write the embeddings of texts as they come: a NumPy array, or JSON lines."""
        rows = encoder.encode_stream(texts, show_progress=progress, **self.encoding_options())
        if as_npy:
            write_npy(output, rows, encoder.embedding_dimension)
        else:
            write_jsonl(output, rows)
