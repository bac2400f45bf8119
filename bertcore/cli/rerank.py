"""Order texts, one a line, by how well they answer a query, with a cross-encoder.

Input is UTF-8, one text a line. Each line of the output has a score, the number of the text's line from 1 on, and the
text, with tabs between them, the best first."""

import argparse
import contextlib
import heapq
import json
from collections import deque

from bertcore.cli.common import (
    CommandError,
    add_reading_arguments,
    chosen_backend,
    model_folder,
    positive,
    reading_options,
)
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream

HELP = "order lines of text by how well they answer a query"
EXAMPLES = """\
examples:
  bertcore rerank ms-marco-MiniLM-L6-v2/ "How many people live in Berlin?" texts.txt --top-k 3
  bertcore rerank reranker/ "what is a cat" --json < texts.txt

With --json a line is an object with corpus_id (from 0 on), score and text. With --top-k the input is read as it comes,
in bounded memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a cross-encoder with one label")
    parser.add_argument("query", metavar="QUERY", help="what the texts are to answer")
    parser.add_argument("input", metavar="INPUT", nargs="?", default="-", help="file of texts (default: -, stdin)")
    parser.add_argument("--top-k", type=positive, metavar="N", help="how many to show (default: all)")
    add_reading_arguments(parser, length="--max-seq-length")
    parser.add_argument("--json", action="store_true", help="print JSON lines")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore.tasks.cross_encoder import CrossEncoder

    folder = model_folder(args.model)
    with contextlib.ExitStack() as stack:
        lines = read_lines(*stack.enter_context(input_stream(args.input)))
        output = stack.enter_context(output_stream("-", seekable=False))
        stack.enter_context(chosen_backend(args))
        encoder = CrossEncoder(folder, dtype=args.dtype, max_seq_length=args.max_seq_length)
        options = reading_options(args)
        for score, index, text in best_lines(encoder, args.query, lines, args.top_k, options):
            if args.json:
                line = json.dumps({"corpus_id": index, "score": score, "text": text}, ensure_ascii=False)
            else:
                line = f"{score:.4f}\t{index + 1}\t{text}"
            output.write((line + "\n").encode("utf-8"))


def best_lines(encoder, query, lines, top_k, options) -> list[tuple[float, int, str]]:
    """(score, index, text) of the best lines, the best first, equal ones in their order; only `top_k` are kept."""
    if encoder.num_labels != 1:
        raise CommandError(f"the model has {encoder.num_labels} labels, and ordering needs one")
    seen: deque[str] = deque()  # texts on their way through the model

    def pairs():
        for text in lines:
            seen.append(text)
            yield query, text

    kept: list[tuple[float, int, str]] = []
    for index, score in enumerate(encoder.predict_stream(pairs(), **options)):
        entry = (float(score), -index, seen.popleft())
        if top_k is None or len(kept) < top_k:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    return [(score, -index, text) for score, index, text in sorted(kept, reverse=True)]
