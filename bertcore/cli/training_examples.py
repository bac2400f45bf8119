"""Raw texts for the commands that learn from them: examples kept as tokens, a part of them held out."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertcore.cli.common import CommandError
from bertcore.cli.training import records_of, tell_malformed

MOST_HELD_OUT = 1000


def stored_examples(
    args: argparse.Namespace,
    folder: Path,
    corpus: Sequence[str],
    objective: Any,
    tokenizer: Any,
    length: int,
    facts: Mapping[str, Any],
    *,
    language: str | None = None,
    pair_column: str | None = None,
) -> Any:
    """The examples of a corpus, kept in `folder`, or in a run that goes on those that are there.

    `language` and `pair_column` are as for `documents_of`; `facts` are what else the examples depend on.
    """
    from bertcore.training.data import StoredExamples, store_examples

    facts = {"corpus": list(corpus), "column": args.column, "language": language, "max_length": length, **facts}
    facts |= {} if pair_column is None else {"pair_column": pair_column}
    facts |= {"tokenizer": fingerprint(tokenizer), "seed": args.seed}
    if args.resume and folder.exists():
        examples = StoredExamples(folder)
        changed = [name for name, value in facts.items() if examples.facts.get(name) != value]
        if changed:
            raise CommandError(f"{folder} was made with another {changed[0]}: resume with the options of the first run")
        return examples
    if (folder / "examples.json").exists():
        shutil.rmtree(folder)
    records = records_of(corpus, args)
    documents = documents_of(records, args.column, language=language, pair_column=pair_column)
    made = objective.examples(documents, tokenizer, max_length=length, seed=args.seed)
    examples = store_examples(folder, made, facts)
    tell_malformed(records)
    return examples


def documents_of(
    records: Any, column: str, *, language: str | None = None, pair_column: str | None = None
) -> Iterable[list[str]]:
    """The lists of texts of records: sentences of a language, lines where that is None; with `pair_column` the text in
    `column` and its translation in that one."""
    from bertcore.training.data import Documents, TextColumns

    if pair_column is None:
        return Documents(records, column=column, language=language)
    return (list(texts.values()) for texts in TextColumns((column, pair_column)).examples(records))


def examples_of_mentions(
    args: argparse.Namespace, corpus: Sequence[str], objective: Any, tokenizer: Any, length: int
) -> list[dict[str, Any]]:
    """The examples of texts with entities, in memory."""
    from bertcore.training.data import TextMentions

    records = records_of(corpus, args)
    documents = TextMentions(args.column).examples(records)
    made = list(objective.examples(documents, tokenizer, max_length=length, seed=args.seed))
    tell_malformed(records)
    return made


def held_out_parts(examples: Any, held_out: float) -> tuple[Any, Any | None]:
    """All but the last examples, and these: a share, at most 1,000."""
    from bertcore.training.data import Part

    count = min(MOST_HELD_OUT, max(1, round(held_out * len(examples)))) if held_out else 0
    if len(examples) <= count:
        raise CommandError(f"examples in the corpus: {len(examples)}, too few to train on")
    print(f"corpus    {len(examples):,} examples, {count:,} of them held out")
    first = Part(examples, range(len(examples) - count))
    return first, Part(examples, range(len(examples) - count, len(examples))) if count else None


def fingerprint(tokenizer: Any) -> str:
    """What tells tokenizers of other words apart."""
    tokens = "\n".join(str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    return hashlib.sha256(tokens.encode()).hexdigest()[:16]
