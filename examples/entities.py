"""Train a small LUKE on masked words and entities of Python's documentation, whose links are the entities.

    python examples/entities.py [--seconds 900 | --steps 3000] [--seed 0] [--share 1] [--samples 512] [--json FILE]

An entity is the target of a link, as the page names it: "len", "os.path.join", "bytes-like object" (Yamada et al. 2020,
arXiv:2010.01057, took the links of Wikipedia). A tenth of the pages is held out. As in the paper, the words of a masked
entity stay in the text, and most of them reveal it: one baseline is the most frequent entity, the other the entity that
these words most often named in training. Accuracy is also reported with these words masked. Other words are visible
when entities are predicted.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from corpora import documented_mentions
from runs import arguments, count, curve_of, options, report

from bertcore import AutoModelForMaskedLM, AutoTokenizer
from bertcore.presets import preset_config
from bertcore.tokenization import train_tokenizer
from bertcore.training import Trainer
from bertcore.training.objectives import EntityMaskedLM
from bertcore.training.optimizers import AdamW

SHARE_HELD_OUT, MAX_LENGTH, WORDS, LEAST_MENTIONS, IGNORED = 10, 64, 8192, 3, -100
BATCH, RATE, RATE_OF_TABLES = 32, 1e-3, 5e-3
# A row of these hardly changes except when its word or entity occurs, so that it needs a higher rate.
TABLES = ["*.word_embeddings.*", "*.entity_embeddings.entity_embeddings.*"]
SPECIAL_ENTITIES = ("[PAD]", "[UNK]", "[MASK]", "[MASK2]")
CONFIG = {
    **preset_config("mini-bert"), "model_type": "luke", "entity_emb_size": 192, "use_entity_aware_attention": True,
    "max_position_embeddings": MAX_LENGTH + 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "num_hidden_layers": 1, "initializer_range": 0.06,
}  # fmt: skip
Counts = Counter[int]


def make_tokenizer(records: list[dict[str, Any]], folder: Path) -> Any:
    """Train LUKE's tokenizer: byte-level BPE of the texts, and the entities with enough mentions."""
    words = train_tokenizer([record["text"] for record in records], kind="bpe", vocab_size=WORDS)
    words.save_pretrained(folder)
    counts = Counter(entity for record in records for entity in record["entities"])
    names = [*SPECIAL_ENTITIES, *sorted(name for name, count in counts.items() if count >= LEAST_MENTIONS)]
    (folder / "entity_vocab.json").write_text(json.dumps({name: index for index, name in enumerate(names)}))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "LukeTokenizer"}))
    return AutoTokenizer.from_pretrained(folder)


def attend_to_mentions(model: Any, padding: int) -> None:
    """Let every entity begin by attending to the words that mention it.

    Entities get the positions of words, and their queries for words are the words' keys, so that equal positions match;
    both are enlarged to outweigh the other words. From random weights the states of all entities first become nearly
    equal, and entities are learnt much later.
    """
    state = dict(model.state_dict())
    positions = state["luke.embeddings.position_embeddings.weight"] * 2
    state["luke.embeddings.position_embeddings.weight"] = positions
    # Words count their positions from padding + 1, entities from 0.
    state["luke.entity_embeddings.position_embeddings.weight"] = np.roll(positions, -(padding + 1), axis=0)
    for layer in range(CONFIG["num_hidden_layers"]):
        attention = f"luke.encoder.layer.{layer}.attention.self"
        state[f"{attention}.e2w_query.weight"] = state[f"{attention}.key.weight"] * 4
    model.load_state_dict(state)


def entity_counts(examples: list[dict[str, Any]]) -> tuple[Counts, dict[tuple[int, ...], Counts]]:
    """Count the mentions of each known entity, in total and by their tokens."""
    counts: Counts = Counter()
    by_words: dict[tuple[int, ...], Counts] = {}
    for example in examples:
        for entity, places in zip(example["entity_ids"], example["entity_position_ids"], strict=True):
            if entity >= len(SPECIAL_ENTITIES):
                counts[entity] += 1
                by_words.setdefault(tuple(example["input_ids"][place] for place in places), Counter())[entity] += 1
    return counts, by_words


def shares_found(model: Any, batches: list[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Return the model's accuracy on masked words and on masked entities."""
    found: tuple[list, list] = [], []
    for batch in batches:
        out = model(**{name: value for name, value in batch.items() if not name.endswith("labels")})
        pairs = (out.logits, batch["labels"]), (out.entity_logits, batch["entity_labels"])
        for some, (logits, labels) in zip(found, pairs, strict=True):
            some.append((logits.argmax(-1) == labels)[labels != IGNORED])
    return float(np.concatenate(found[0]).mean()), float(np.concatenate(found[1]).mean())


def with_all_words(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the batch without masked words."""
    ids, labels = batch["input_ids"], batch["labels"]
    return batch | {"input_ids": np.where(labels == IGNORED, ids, labels)}


def without_mentions(batch: dict[str, np.ndarray], mask: int) -> dict[str, np.ndarray]:
    """Mask the words of the masked entities."""
    ids = batch["input_ids"].copy()
    rows, entities = np.nonzero(batch["entity_labels"] != IGNORED)
    places = batch["entity_position_ids"][rows, entities]
    ids[np.broadcast_to(rows[:, None], places.shape)[places >= 0], places[places >= 0]] = mask
    return batch | {"input_ids": ids}


def masked_mentions(examples: list[dict], batches: list[dict[str, np.ndarray]]) -> list[tuple[int, tuple[int, ...]]]:
    """Return (entity, tokens of its mention) of each masked entity; the batches hold the examples in order."""
    labels = [row for batch in batches for row in batch["entity_labels"]]
    return [
        (example["entity_ids"][index], tuple(example["input_ids"][i] for i in example["entity_position_ids"][index]))
        for example, row in zip(examples, labels, strict=True)
        for index in np.flatnonzero(row != IGNORED)
    ]


def trivial_shares(learnt: list[dict], held_out: list[dict], batches: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Return the accuracy of the most frequent word, the most frequent entity and a mention's usual entity."""
    counts, by_words = entity_counts(learnt)
    words = Counter(word for example in learnt for word in example["input_ids"][1:-1])
    often = counts.most_common(1)[0][0]
    labels = np.concatenate([batch["labels"][batch["labels"] != IGNORED] for batch in batches])
    mentions = masked_mentions(held_out, batches)
    of_words = [by_words.get(tokens, counts).most_common(1)[0][0] == entity for entity, tokens in mentions]
    return {
        "words": float((labels == words.most_common(1)[0][0]).mean()),
        "entities, their words masked": float(np.mean([entity == often for entity, _ in mentions])),
        "entities": float(np.mean(of_words)),
    }


def main() -> None:
    parser = options(__doc__, seconds=900, out="entities")
    parser.add_argument("--steps", type=count, help="of the training run, in place of seconds")
    parser.add_argument("--share", type=float, default=1.0, help="of entities to mask (default: all)")
    parser.add_argument("--samples", type=count, help="entities drawn for each batch's loss (default: all entities)")
    given = parser.parse_args()
    records = documented_mentions()
    records = [records[i] for i in np.random.default_rng(0).permutation(len(records))[: given.texts]]
    kept: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for record in records:
        kept[crc32(record["page"].encode()) % SHARE_HELD_OUT == 0].append(record)
    folder = given.out / str(given.seed)
    objective = EntityMaskedLM(entity_share=given.share, entity_samples=given.samples)
    tokenizer = make_tokenizer(kept[False], folder)
    learnt, held_out = (list(objective.examples(kept[x], tokenizer, max_length=MAX_LENGTH)) for x in (False, True))
    learnt = [example for example in learnt if max(example["entity_ids"], default=0) >= len(SPECIAL_ENTITIES)]
    sizes = {"vocab_size": len(tokenizer), "entity_vocab_size": len(tokenizer.entity_vocab)}
    config = {**CONFIG, **sizes, "pad_token_id": tokenizer.pad_token_id}
    model = AutoModelForMaskedLM.from_config(config, seed=given.seed)
    attend_to_mentions(model, tokenizer.pad_token_id)
    by_steps = {} if given.steps is None else {"max_steps": given.steps, "max_seconds": None}
    args = arguments(folder, given.seconds, given.seed, RATE, per_device_train_batch_size=BATCH, **by_steps)
    optimizer = AdamW(model, lr=RATE, weight_decay=0.0, groups=[{"names": TABLES, "lr": RATE_OF_TABLES}])
    print(f"{len(learnt):,} texts to learn from, {len(held_out):,} held out, {sizes['entity_vocab_size']:,} entities")
    beside = {"processing_class": tokenizer, "objective": objective, "optimizers": (optimizer, None)}
    trainer = Trainer(model, args, train_dataset=learnt, **beside)
    trainer.train()
    trainer.save_model()
    collator = EntityMaskedLM(entity_share=given.share).collator(tokenizer, seed=given.seed + 1)
    batches = [collator(held_out[start : start + 32]) for start in range(0, len(held_out), 32)]
    visible = [with_all_words(batch) for batch in batches]
    words, _ = shares_found(model, batches)
    _, entities = shares_found(model, visible)
    _, by_context = shares_found(model, [without_mentions(batch, tokenizer.mask_token_id) for batch in visible])
    found = {"words": words, "entities": entities, "entities, their words masked": by_context}
    trivial, tokens = trivial_shares(learnt, held_out, batches), trainer.state.num_input_tokens_seen
    for name, figure in found.items():
        curve = curve_of(trainer) if name == "words" else []
        report(given, name, tokens=tokens, figure=figure, trivial=trivial[name], curve=curve)


if __name__ == "__main__":
    main()
