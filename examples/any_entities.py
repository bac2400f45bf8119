"""Train a GLiNER on all-MiniLM-L6-v2 to find the linked names in Python's documentation; F1 in three precisions.

    python examples/any_entities.py [--seconds 1200] [--seed 0] [--out any-entities]

A tenth of the pages is held out. Labels are the kinds of the links' targets: functions, classes, modules, ... Names
that a page does not link have no label, in training and in the measurement, which lowers every F1. A table of names,
with the usual label of each, is the trivial guess.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from corpora import documented_mentions
from runs import arguments, curve_of, options, report

from bertcore import AutoModel, AutoTokenizer, GLiNER
from bertcore.demo_model import demo_model_folder
from bertcore.models.gliner import ENCODER, GLiNERModel
from bertcore.tokenization.mentions import MARKS, split_words
from bertcore.training import Trainer, objectives
from bertcore.training.metrics import of_counts

LABELS = {"func": "function", "class": "class", "mod": "module", "meth": "method", "exc": "exception",
          "attr": "attribute", "const": "constant", "term": "term"}  # fmt: skip
WORDS, WIDEST = 40, 4  # the most words of a text and of a name


def records(texts: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return records to train on, which are read beside all labels, and records of held-out pages."""
    found, names = ([], []), list(LABELS.values())
    mentions = [record for record in documented_mentions() if len(record["text"].split()) <= WORDS]
    pages = sorted({record["page"] for record in mentions})
    held_out = set(np.random.default_rng(0).permutation(pages)[: len(pages) // 10].tolist())
    for record in mentions:
        links = zip(record["entity_spans"], record["roles"], strict=True)
        spans = [(*span, LABELS[role]) for span, role in links if role in LABELS and span[0] < span[1]]
        found[record["page"] in held_out].append({"text": record["text"], "spans": spans, "negatives": names})
    return found[0][:texts], found[1]


def new_model(seed: int) -> GLiNER:
    """Return a GLiNER of all-MiniLM-L6-v2 with a new recurrent layer and new heads."""
    folder = demo_model_folder()
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    own = {**encoder.config, "vocab_size": len(tokenizer)}
    config = {"model_name": "all-MiniLM-L6-v2", "encoder_config": own, "hidden_size": own["hidden_size"],
              "span_mode": "markerV0", "max_width": WIDEST, "max_len": 2 * WORDS, "dropout": 0.1,
              "vocab_size": len(tokenizer), "class_token_index": tokenizer.convert_tokens_to_ids(MARKS[1])}  # fmt: skip
    model, given = GLiNERModel.from_config(config, seed=seed), encoder.state_dict()
    state = dict(model.state_dict())
    for name in [name for name in state if name.startswith(ENCODER)]:
        table = given[name.removeprefix(ENCODER)]
        state[name] = np.concatenate([table, state[name][len(table) :]])  # and the marks' rows of the vocabulary
    model.load_state_dict(state)
    return GLiNER(model, tokenizer)


def names_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last + 1 character of each run of at most WIDEST words."""
    words = list(split_words(text))
    for number, (first, _) in enumerate(words):
        yield from ((first, last) for _, last in words[number : number + WIDEST])


def by_table(train: list[dict[str, Any]], texts: list[str]) -> list[set]:
    """Return the names of each text that the training texts link more often than not, with their usual label."""
    links: dict[str, Counter] = defaultdict(Counter)
    for record in train:
        for first, last, label in record["spans"]:
            links[record["text"][first:last]][label] += 1
    seen = Counter(name for record in train for span in names_in(record["text"])
                   if (name := record["text"][slice(*span)]) in links)  # fmt: skip
    usual = {name: some.most_common(1)[0][0] for name, some in links.items() if 2 * some.total() > seen[name]}
    return [{(*span, usual[text[slice(*span)]]) for span in names_in(text) if text[slice(*span)] in usual}
            for text in texts]  # fmt: skip


def f1(found: list[set], right: list[set]) -> float:
    """Return the F1 of spans with their labels."""
    hits = sum(len(some & others) for some, others in zip(found, right, strict=True))
    return of_counts(hits, sum(map(len, found)), sum(map(len, right)))["f1"]


def main() -> None:
    given = options(__doc__, seconds=1200, out="any-entities").parse_args()
    train, held_out = records(given.texts)
    model = new_model(given.seed)
    more = {"per_device_train_batch_size": 10, "num_train_epochs": 100}
    trainer = Trainer(
        model.model, arguments(given.out, given.seconds, given.seed, 3e-4, **more), train_dataset=train,
        processing_class=model.tokenizer, objective=objectives.GLiNEREntities(model.model),
    )  # fmt: skip
    trainer.train()
    model.save_pretrained(given.out)
    texts, right = [record["text"] for record in held_out], [set(record["spans"]) for record in held_out]
    answers, figures = {}, {"texts": len(train), "steps": trainer.state.global_step}
    for dtype in ("float32", "bfloat16", "int8"):
        reader = GLiNER.from_pretrained(given.out, dtype=dtype)
        found = reader.inference(texts, list(LABELS.values()), truncation=True)
        answers[dtype] = [{(each["start"], each["end"], each["label"]) for each in some} for some in found]
        figures[f"F1 in {dtype}"] = f1(answers[dtype], right)
        figures[f"{dtype} beside float32"] = f1(answers[dtype], answers["float32"])
    figures["F1 of a table"] = f1(by_table(train, texts), right)
    report(given, "GLiNER", curve=curve_of(trainer), **figures)


if __name__ == "__main__":
    main()
