"""The command evaluate: how well an encoder finds the documents that answer queries."""

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from bertcore.cli.inputs import WithModel, aligned, model_folder
from bertcore.cli.options import REQUIRED, CommandError, File, Positive, opt

SHOWN = ("accuracy@1", "accuracy@10", "precision@10", "recall@10", "mrr@10", "ndcg@10", "map@100")


class Evaluate(WithModel):
    """Measure how well an encoder finds the documents that answer queries.

    Queries and documents come from JSON lines with _id (or id) and text, and title for documents that have one, as in
    BEIR; from a table with these columns; or from lines of text, whose ids are their numbers from 1 on. The answers
    come from a table with the columns query-id, corpus-id and score (above 0 for an answer), or from lines without a
    header: a query's id, a document's id, a score, or TREC's form, which has a 0 after the query's id.

    The metrics are means over the queries that have an answer; models are usually compared by ndcg@10. All answers have
    equal weight.

    Examples:
        bertcore evaluate demo --queries queries.jsonl --corpus corpus.jsonl --qrels qrels/test.tsv
        bertcore evaluate splade/ --queries questions.txt --corpus pages.txt --qrels answers.txt --json
    """

    queries: File = opt("file of queries", REQUIRED)
    corpus: File = opt("file or folder of documents", REQUIRED)
    qrels: File = opt("file of the documents that answer each query", REQUIRED)
    max_length: Positive | None = opt("tokens of a text that are read (default: as published)")
    truncate_dim: Positive | None = opt("compare only the first dimensions of embeddings")
    results: File | None = opt("a folder; the metrics are appended to a table in it")
    json: bool = opt("print one JSON object", False)

    def run(self) -> None:
        from bertcore.evaluation import InformationRetrievalEvaluator
        from bertcore.tasks.loading import kind_of, load_encoder

        folder = model_folder(self.model)
        kind = kind_of(folder)
        if kind == "classifier":
            raise CommandError(f"{self.model} scores pairs of texts, expected an encoder of single texts")
        if self.truncate_dim is not None and kind != "dense":
            problem = f"--truncate-dim is {self.truncate_dim}, expected none"
            raise CommandError(f"{problem}: {self.model} is a {kind} encoder")
        queries, corpus = texts_by_id(self.queries, "--queries"), texts_by_id(self.corpus, "--corpus")
        answers = answers_by_query(self.qrels)
        known = {query: documents & corpus.keys() for query, documents in answers.items() if query in queries}
        if not any(known.values()):
            raise CommandError(f"{self.qrels} names no query of --queries with a document of --corpus, expected one")
        answers = {query: answers[query] for query in known}
        evaluator = InformationRetrievalEvaluator(queries, corpus, answers, truncate_dim=self.truncate_dim)
        with self.chosen_backend():
            encoder = load_encoder(folder, dtype=self.dtype, max_seq_length=self.max_length)
            metrics = evaluator(encoder, self.results)
        if self.json:
            print(json.dumps({"queries": len(evaluator.queries), "documents": len(corpus), **metrics}))
            return
        total = sum(map(len, answers.values()))
        missing = total - sum(map(len, known.values()))
        note = f" ({missing:,} of them not in the corpus)" if missing else ""
        similarity = encoder.similarity_fn_name
        print(f"{len(evaluator.queries):,} queries, {len(corpus):,} documents, {total:,} answers{note}, {similarity}\n")
        print(aligned([[name, f"{metrics[f'{similarity}_{name}']:.4f}"] for name in SHOWN]))


def texts_by_id(file: str, option: str) -> dict[str, str]:
    """Return the texts of a file by their ids, with a document's title before its text."""
    from bertcore.training.data.files import Records, text_of

    found: dict[str, str] = {}
    for number, record in enumerate(Records(file)):
        text = text_of(record, number, "text")
        if record.is_line:
            key: object = number + 1
        else:
            key = record.get("_id", record.get("id"))
            if isinstance(title := record.get("title"), str):
                text = f"{title} {text}".strip()
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise CommandError(f"{_place(record)}: _id is {key!r:.100}, expected a string or an integer")
        if str(key) in found:
            raise CommandError(f"{_place(record)}: _id is {key!r:.100} a second time, expected one of its own")
        found[str(key)] = text
    if not found:
        raise CommandError(f"{option} is {file}, which holds no texts")
    return found


def answers_by_query(file: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for record in _answers(file):
        fields = [record.get(name) for name in ("query-id", "corpus-id")]
        if record.is_line:
            fields = record["text"].split("\t" if "\t" in record["text"] else None)
        if record.is_line and len(fields) in (3, 4):
            query, *_, document, score = fields
        elif not record.is_line and None not in fields:
            query, document, score = *fields, record.get("score", 1)
        elif record.is_line and not fields:
            continue
        else:
            expected = "query-id, corpus-id and score, or a line 'query document score'"
            raise CommandError(f"{_place(record)}: {dict(record)!r:.100}, expected {expected}")
        try:
            number = float(score)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isnan(number):
            raise CommandError(f"{_place(record)}: score is {score!r:.100}, expected a number")
        if number > 0:
            found.setdefault(str(query), set()).add(str(document))
    return found


def _answers(file: str) -> Iterator[Any]:
    """Yield the records of a file: those of its format if the first line has the columns' names, else its lines."""
    from bertcore.training.data.files import STDIN, Records

    lines = iter(Records(file, raw=True))
    for first in lines:
        is_named = "query-id" in first["text"] and first.file != STDIN
        yield from Records(file) if is_named else itertools.chain([first], lines)
        return


def _place(record: Any) -> str:
    return f"{record.file}:{record.line}"
