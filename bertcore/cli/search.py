"""Find the texts of a corpus that are nearest to a query, with a sentence encoder.

The corpus and the queries are UTF-8, one text a line. The corpus is embedded as it is read, in bounded memory. For each
query the output has its best lines, the best first: with one QUERY a line is the score, the number of the line in the
corpus from 1 on, and the text, with tabs between them; with --queries the number of the query comes first."""

import argparse
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from bertcore.cli.common import (
    MODEL_HELP,
    CommandError,
    add_reading_arguments,
    chosen_backend,
    model_folder,
    positive,
    reading_options,
)
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream

HELP = "find the lines of a corpus that are nearest to a query"
EXAMPLES = """\
examples:
  bertcore search demo corpus.txt "how do cats sleep" --top-k 3
  bertcore search all-MiniLM-L6-v2/ corpus.txt --queries questions.txt --json > found.jsonl

With --json a line is an object with query, corpus_id (from 0 on), score and text."""

BLOCK_ROWS = 4096  # of the corpus, compared with the queries at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("corpus", metavar="CORPUS", help="file of texts (-: stdin)")
    parser.add_argument("query", metavar="QUERY", nargs="?", help="a text to look for")
    parser.add_argument("--queries", metavar="FILE", help="file of texts to look for (-: stdin)")
    parser.add_argument("--top-k", type=positive, default=10, metavar="N", help="lines for each query (default: 10)")
    add_reading_arguments(parser, length="--max-seq-length")
    parser.add_argument("--json", action="store_true", help="print JSON lines")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    if (args.query is None) == (args.queries is None):
        raise CommandError("give a QUERY, or --queries FILE")
    if args.corpus == args.queries == "-":
        raise CommandError("the corpus and the queries are both stdin, expected one of them in a file")
    folder = model_folder(args.model)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(output_stream("-", seekable=False))
        stack.enter_context(chosen_backend(args))
        encoder = SentenceEncoder(folder, dtype=args.dtype, max_seq_length=args.max_seq_length)
        queries = [args.query]
        if args.queries is not None:
            queries = list(read_lines(*stack.enter_context(input_stream(args.queries))))
        corpus, name = stack.enter_context(input_stream(args.corpus))
        lines = read_lines(corpus, name)
        first = next(lines, None)
        if first is None:
            raise CommandError(f"{name} holds no texts")
        lines, options = itertools.chain([first], lines), reading_options(args)
        for number, found in enumerate(search(encoder, queries, lines, args.top_k, options)):
            for entry in found:
                output.write((_line(queries[number], number, entry, args) + "\n").encode("utf-8"))


def search(
    encoder: Any, queries: list[str], lines: Iterable[str], top_k: int, options: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """For each query its best lines, the best first, {"corpus_id", "score", "text"}; only these are kept."""
    import numpy as np

    from bertcore.tasks.search import BestRows

    asked = encoder.encode_query(queries, **options)
    best, kept, first = BestRows(len(queries), top_k), {}, 0
    waiting: list[str] = []  # lines on their way through the model

    def read() -> Iterator[str]:
        for text in lines:
            waiting.append(text)
            yield text

    rows = encoder.encode_stream(read(), prompt=encoder.document_prompt, **options)
    while block := list(itertools.islice(rows, BLOCK_ROWS)):
        best.add(encoder.similarity(asked, np.stack(block)))
        here = {first + offset: text for offset, text in enumerate(waiting[: len(block)])}
        del waiting[: len(block)]
        first += len(block)
        wanted = set(best.indices.ravel().tolist())
        kept = {index: text for index, text in (kept | here).items() if index in wanted}
    for indices, scores in zip(best.indices.tolist(), best.scores.tolist(), strict=True):
        pairs = zip(indices, scores, strict=True)
        yield [{"corpus_id": index, "score": score, "text": kept[index]} for index, score in pairs]


def _line(query: str, number: int, entry: dict[str, Any], args: argparse.Namespace) -> str:
    if args.json:
        return json.dumps({"query": query, **entry}, ensure_ascii=False)
    start = "" if args.queries is None else f"{number + 1}\t"
    return f"{start}{entry['score']:.4f}\t{entry['corpus_id'] + 1}\t{entry['text']}"
