"""The commands search and rerank: order lines of text by how well they answer queries."""

import contextlib
import functools
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import bertcore
from bertcore.cli.index import Corpus, dense_encoder, in_step, opened_index
from bertcore.cli.inputs import Reading, TextsCommand, check_one_source, model_folder, texts_from
from bertcore.cli.options import CommandError, File, Literal, Positive
from bertcore.cli.outputs import output_stream

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

    Attributes:
        query: the text to search for; left out with --queries.
        queries: file of texts to search for, or - for standard input.
        index: folder of an index instead of CORPUS; may be repeated for the shards of one corpus.
        rescore_multiplier: how many times --top-k texts are rescored, with an index of int8 or binary (default: 4, or
            64 for binary).
        top_k: lines for each query.
        late: score by token vectors, even if the model is primarily a sentence encoder (BGE-M3).
        sparse: score by sparse vectors, even with a plain masked language model (SPLADE).
        json: print JSON lines.
    """

    positions = ("model", "corpus", "query")
    apart = ("late sparse", "index late sparse")

    query: Literal | None = None
    queries: File | None = None
    index: tuple[str, ...] = ()
    rescore_multiplier: Positive | None = None
    top_k: Positive = 10
    late: bool = False
    sparse: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.text or self.index) and self.query is None:  # the first position is the query
            self.corpus, self.query = None, self.corpus
            if self.query == "-":
                raise CommandError("QUERY is '-', expected a text: only files are read from standard input")
        if not self.index:
            check_one_source(self.corpus, self.text, name="CORPUS")
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
        from bertcore.tasks.multi_vector.settings import read_late_settings

        folder = model_folder(self.model)
        kind = "late" if self.late else "sparse" if self.sparse else kind_of(folder)
        kind = "dense" if kind == "classifier" else kind
        if kind == "late" and read_late_settings(folder).is_new:
            trained = "bertcore finetune --task late-interaction"
            raise CommandError(f"{self.model} has no map to token vectors, expected a model trained by {trained}")
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(output_stream("-", seekable=False))
            stack.enter_context(self.chosen_backend())
            indices = [opened_index(each, folder) for each in self.index]
            loaded = functools.partial(ENCODERS[kind], folder, **self.loading_options(kind == "late"))
            encoder = dense_encoder(folder, self) if indices else loaded()
            queries = [self.query]
            if self.queries is not None:
                queries = list(stack.enter_context(texts_from(self.queries, argument="--queries"))[0])
            if indices:
                rows = encoder.encode_query(queries, **self.reading_options())
                options = {"top_k": self.top_k, "rescore_multiplier": self.rescore_multiplier}
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

    Attributes:
        query: the text that the others should answer.
        top_k: number of texts to show (default: all).
        json: print JSON lines.
    """

    positions = ("model", "query", "file")

    query: Literal
    top_k: Positive | None = None
    json: bool = False

    def run(self) -> None:
        from bertcore.tasks.loading import kind_of

        folder = model_folder(self.model)
        is_late = (kind := kind_of(folder)) == "late"
        if kind in ("dense", "sparse") and (folder / "modules.json").is_file():
            raise CommandError(f"{self.model} is a {kind} encoder, expected a cross-encoder or a late-interaction one")
        with contextlib.ExitStack() as stack:
            lines, _ = stack.enter_context(self.texts())
            output = stack.enter_context(output_stream("-", seekable=False))
            stack.enter_context(self.chosen_backend())
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

    kept: list[tuple[float, int, str]] = []
    for index, (score, text) in enumerate(zip(*in_step(scored, lines), strict=False)):
        entry = (float(score), -index, text)
        if top_k is None or len(kept) < top_k:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    return [(score, -index, text) for score, index, text in sorted(kept, reverse=True)]
