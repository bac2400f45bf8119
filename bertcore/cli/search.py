"""The commands index, search and rerank: embed a corpus, and order lines of text by how well they answer queries."""

import contextlib
import functools
import heapq
import itertools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import bertcore
from bertcore.cli import inputs
from bertcore.cli.inputs import Reading, TextsCommand, model_folder
from bertcore.cli.options import REQUIRED, CommandError, File, LiteralText, Positive, opt

DIGEST = "model_sha256"  # of the metadata of an index


class Corpus(Reading):
    """A command that embeds a corpus."""

    corpus: File | None = opt("file of texts, one a line, or - for standard input; left out with --text")
    text: tuple[str, ...] = opt("a literal text instead of CORPUS; may be repeated", ())

    def lines(self, stack: contextlib.ExitStack) -> Iterator[str]:
        """Return the texts of the corpus as they come, while `stack` is open; CommandError if there are none."""
        lines, name = stack.enter_context(inputs.texts_from(self.corpus, self.text, "CORPUS"))
        first = next(lines, None)
        if first is None:
            raise CommandError(f"{name} holds no texts")
        return itertools.chain([first], lines)


class Index(Corpus):
    """Embed a corpus with a sentence encoder, and store its vectors and texts in a folder for search --index.

    The corpus is UTF-8, one text a line, and is embedded as it is read, in bounded memory. The folder appears whole or
    not at all. With --add the texts are added to an index made by the same model.

    float32 takes 4 bytes per number, float16 2, int8 1; binary an eighth, plus the form for rescoring the best. The
    page "Search and evaluation" of the documentation has the recall of each.

    Examples:
        bertcore index demo corpus.txt -o notes/
        bertcore search demo --index notes/ "how do cats sleep"
        bertcore index demo more.txt -o notes/ --add
        bertcore index all-MiniLM-L6-v2/ corpus.txt --precision binary --rescore-precision float16 -o small/
    """

    positions = ("model", "corpus")
    spellings = ("-o output",)
    apart = ("add precision rescore_precision",)

    output: File = opt("the folder", REQUIRED)
    precision: Annotated[str | None, ("float32", "float16", "int8", "binary")] = opt(
        "form of the vectors that are searched (default: float32)"
    )
    rescore_precision: Annotated[str | None, ("float32", "float16", "int8", "none")] = opt(
        "form of the vectors that rescore the best (default: int8 for binary, else none)"
    )
    add: bool = opt("add to the index in the folder", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        inputs.check_one_source(self.corpus, self.text, name="CORPUS")

    def run(self) -> None:
        folder = model_folder(self.model)
        with self.chosen_backend(), contextlib.ExitStack() as stack:
            index = opened_index(self.output, folder) if self.add else None
            lines, encoder = self.lines(stack), dense_encoder(folder, self)
            before, started = 0 if index is None else len(index), time.perf_counter()
            rows, texts = in_step(functools.partial(encoder.encode_document_stream, **self.reading_options()), lines)
            if index is not None:
                index.add(rows, texts=texts)
            else:
                options: dict[str, Any] = {"precision": self.precision or "float32"}
                if self.rescore_precision:
                    options["rescore_precision"] = None if self.rescore_precision == "none" else self.rescore_precision
                options["metadata"] = {"model": Path(folder).name, DIGEST: inputs.model_digest(folder)}
                options["similarity"] = encoder.similarity_fn_name
                index = bertcore.VectorIndex.build(self.output, rows, texts=texts, **options)
        speed = f"{(len(index) - before) / (time.perf_counter() - started):,.0f} texts a second"
        said = f"{len(index):,} texts, {index.dimension} dimensions, {index.precision}, {speed}"
        print(f"{self.output}: {said}", file=sys.stderr)


def dense_encoder(folder: Path, command: Reading) -> "bertcore.SentenceEncoder":
    """Return the sentence encoder of a folder; CommandError for other kinds and similarities."""
    from bertcore.tasks.loading import kind_of

    if (kind := kind_of(folder)) != "dense":
        raise CommandError(f"{command.model} is a {kind} encoder, expected a sentence encoder: an index keeps vectors")
    encoder = bertcore.SentenceEncoder(folder, **command.loading_options(False))
    if encoder.similarity_fn_name not in ("cosine", "dot"):
        raise CommandError(f"{command.model} compares by {encoder.similarity_fn_name}, expected cosine or dot")
    return encoder


def opened_index(path: str, model: Path) -> "bertcore.VectorIndex":
    """Return the index in a folder; CommandError if another model has made it."""
    index = bertcore.VectorIndex(path)
    if index.metadata.get(DIGEST) not in (None, inputs.model_digest(model)):
        made_by = index.metadata.get("model", "another")
        raise CommandError(f"{path} was made by the model {made_by}, whose files are different, expected the same")
    return index


def in_step(read_rows: Callable[[Iterator[str]], Iterable[Any]], lines: Iterable[str]) -> tuple[Any, Iterator[str]]:
    """Return what `read_rows` makes of lines, and the lines for a reader that takes as many of each."""
    waiting: deque[str] = deque()  # lines on their way through the model

    def read() -> Iterator[str]:
        for text in lines:
            waiting.append(text)
            yield text

    return read_rows(read()), (waiting.popleft() for _ in iter(lambda: len(waiting), 0))


BLOCK_ROWS = 4096  # of the corpus, compared with the queries at once


class Search(Corpus):
    """Find the texts of a corpus that are nearest to a query, with an encoder: dense, sparse or of late interaction.

    The corpus and the queries are UTF-8, one text a line. The corpus is embedded as it is read, in bounded memory. The
    output has the best lines for each query, the best first: a line is the score, the number of the line in the corpus
    from 1 on, and the text, with tabs between them; with --queries the number of the query comes first. With --json a
    line is an object with query, corpus_id (from 0 on), score and text.

    With --index only the queries are embedded: the corpus is in folders made by `bertcore index`.

    Examples:
        bertcore search demo corpus.txt "how do cats sleep" --top-k 3
        bertcore search all-MiniLM-L6-v2/ corpus.txt --queries questions.txt --json > found.jsonl
        bertcore search demo "how do cats sleep" --text "Cats nap all day." --text "Prices fell."
        bertcore search colbertv2.0/ corpus.txt "how do cats sleep"
        bertcore search splade-v3/ corpus.txt "how do cats sleep"
        bertcore search demo --index notes/ "how do cats sleep"
    """

    positions = ("model", "corpus", "query")
    apart = ("late sparse", "index late sparse")

    query: LiteralText | None = opt("the text to search for; left out with --queries")
    queries: File | None = opt("file of texts to search for, or - for standard input")
    index: tuple[str, ...] = opt(
        "folder of an index instead of CORPUS; may be repeated for the shards of one corpus", ()
    )
    rescore_multiplier: Positive | None = opt(
        "how many times --top-k texts are rescored, with an index of int8 or binary (default: 4, or 64 for binary)"
    )
    top_k: Positive = opt("lines for each query", 10)
    late: bool = opt("score by token vectors, even if the model is primarily a sentence encoder (BGE-M3)", False)
    sparse: bool = opt("score by sparse vectors, even with a plain masked language model (SPLADE)", False)
    json: bool = opt("print JSON lines", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.text or self.index) and self.query is None:  # the first position is the query
            self.corpus, self.query = None, self.corpus
            if self.query == "-":
                raise CommandError("QUERY is '-', expected a text: only files are read from standard input")
        if not self.index:
            inputs.check_one_source(self.corpus, self.text, name="CORPUS")
        elif self.text or self.corpus:
            raise CommandError(f"{'--text' if self.text else 'CORPUS'} and --index are both given, expected one")
        if (self.query is None) == (self.queries is None):
            is_none = self.query is None
            raise CommandError(f"QUERY and --queries are {'both missing' if is_none else 'both given'}, expected one")
        if self.corpus is None and not (self.text or self.index) and self.queries == "-":
            raise CommandError("CORPUS and --queries are both standard input, expected a file for one of them")

    def run(self) -> None:
        from bertcore.tasks.index import merged
        from bertcore.tasks.loading import ENCODERS, kind_of
        from bertcore.tasks.multi_vector.modules import read_late_settings

        folder = model_folder(self.model)
        kind = "late" if self.late else "sparse" if self.sparse else kind_of(folder)
        kind = "dense" if kind == "classifier" else kind
        if kind == "late" and read_late_settings(folder).is_new:
            trained = "bertcore finetune --task late-interaction"
            raise CommandError(f"{self.model} has no map to token vectors, expected a model trained by {trained}")
        stream = inputs.output_stream("-", seekable=False)
        with stream as output, self.chosen_backend(), contextlib.ExitStack() as stack:
            indices = [opened_index(each, folder) for each in self.index]
            loaded = functools.partial(ENCODERS[kind], folder, **self.loading_options(kind == "late"))
            encoder = dense_encoder(folder, self) if indices else loaded()
            queries = [self.query]
            if self.queries is not None:
                queries = list(stack.enter_context(inputs.texts_from(self.queries, argument="--queries"))[0])
            if indices:
                rows = encoder.encode_query(queries, **self.reading_options())
                options: dict[str, Any] = {"top_k": self.top_k, "rescore_multiplier": self.rescore_multiplier}
                answers = iter(merged([each.search(rows, **options) for each in indices], self.top_k))
            else:
                answers = search(encoder, queries, self.lines(stack), self.top_k, self.reading_options())
            for number, found in enumerate(answers):
                for entry in found:
                    output.write((self._line(queries[number], number, entry) + "\n").encode("utf-8"))

    def _line(self, query: str | None, number: int, entry: dict[str, Any]) -> str:
        if self.json:
            return json.dumps({"query": query, **entry}, ensure_ascii=False)
        start = "" if self.queries is None else f"{number + 1}\t"
        return f"{start}{entry['score']:.4f}\t{entry['corpus_id'] + 1}\t{entry.get('text', '')}"


def search(
    encoder: Any, queries: list[Any], lines: Iterable[str], top_k: int, options: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """Return the best lines for each query, the best first: {"corpus_id", "score", "text"}; only these are kept."""
    from bertcore.tasks.search import BestRows

    asked = encoder.encode_query(queries, **options)
    best, kept, first = BestRows(len(queries), top_k), {}, 0
    pairs = zip(*in_step(functools.partial(encoder.encode_document_stream, **options), lines), strict=False)
    while block := list(itertools.islice(pairs, BLOCK_ROWS)):
        best.add(encoder.similarity(asked, [row for row, _ in block]))
        here = {index: text for index, (_, text) in enumerate(block, first)}
        first += len(block)
        wanted = set(best.indices.ravel().tolist())
        kept = {index: text for index, text in (kept | here).items() if index in wanted}
    for indices, scores in zip(best.indices.tolist(), best.scores.tolist(), strict=True):
        pairs = zip(indices, scores, strict=True)
        yield [{"corpus_id": index, "score": score, "text": kept[index]} for index, score in pairs]


class Rerank(TextsCommand, Reading):
    """Order texts, one a line, by how well they answer a query, with a cross-encoder or a late-interaction encoder.

    Input is UTF-8, one text a line. Each line of the output has a score, the number of the text's line from 1 on, and
    the text, with tabs between them, the best first. With --json a line is an object with corpus_id (from 0 on), score
    and text. With --top-k the input is read as it comes, in bounded memory.

    Examples:
        bertcore rerank ms-marco-MiniLM-L6-v2/ "How many people live in Berlin?" texts.txt --top-k 3
        bertcore rerank reranker/ "what is a cat" --json < texts.txt
    """

    positions = ("model", "query", "file")

    query: LiteralText = opt("the text that the others should answer", REQUIRED)
    top_k: Positive | None = opt("number of texts to show (default: all)")
    json: bool = opt("print JSON lines", False)

    def run(self) -> None:
        from bertcore.tasks.loading import kind_of

        folder = model_folder(self.model)
        is_late = (kind := kind_of(folder)) == "late"
        if kind in ("dense", "sparse") and (folder / "modules.json").is_file():
            raise CommandError(f"{self.model} is a {kind} encoder, expected a cross-encoder or a late-interaction one")
        stream = inputs.output_stream("-", seekable=False)
        with self.texts() as (lines, _), stream as output, self.chosen_backend():
            if is_late:
                encoder = bertcore.MultiVectorEncoder(folder, **self.loading_options(is_late))
            else:
                encoder = bertcore.CrossEncoder(folder, dtype=self.dtype, max_length=self.max_length)
            for score, index, text in best_lines(encoder, self.query, lines, self.top_k, self.reading_options()):
                if self.json:
                    line = json.dumps({"corpus_id": index, "score": score, "text": text}, ensure_ascii=False)
                else:
                    line = f"{score:.4f}\t{index + 1}\t{text}"
                output.write((line + "\n").encode("utf-8"))


def best_lines(
    encoder: Any, query: str, lines: Iterable[str], top_k: int | None, options: dict[str, Any]
) -> list[tuple[float, int, str]]:
    """Return (score, index, text) of the best lines, the best first, equal ones in their order; `top_k` are kept."""

    def scored(texts: Iterator[str]) -> Iterable[Any]:
        if hasattr(encoder, "score_stream"):
            return encoder.score_stream(query, texts, **options)
        if encoder.num_labels != 1:
            raise CommandError(f"the model has {encoder.num_labels} labels, expected one, by which to order")
        return encoder.predict_stream(((query, text) for text in texts), **options)

    found = enumerate(zip(*in_step(scored, lines), strict=False))
    entries = ((float(score), -index, text) for index, (score, text) in found)
    best = sorted(entries, reverse=True) if top_k is None else heapq.nlargest(top_k, entries)
    return [(score, -index, text) for score, index, text in best]
