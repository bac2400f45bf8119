"""Tiny models that take marked entities, with their tokenizers, and records that follow a rule."""

import random
from pathlib import Path

from bertcore import AutoModel, AutoTokenizer
from tests.tiny_bert import CONFIG, VOCABULARY, save_tiny_bert, write_json
from tests.tokenization.corpus import train_byte_bpe
from tests.tokenization.family_folders import ANGLES

WORDS = ("cat", "mat", "paris", "france", "capital")
SIZES = {
    name: CONFIG[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}
EASY = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # to train
ENTITIES = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3}
FAMILIES = ("bert", "luke")


def save_family(folder: Path, family: str) -> Path:
    """A BERT whose vocabulary has the marks @ and #, or a LUKE."""
    folder.mkdir(parents=True, exist_ok=True)
    if family == "bert":
        save_tiny_bert(folder)
        AutoModel.from_config(CONFIG | EASY, seed=7).save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join([*VOCABULARY, "@", "#"]) + "\n", encoding="utf-8")
        return folder
    train_byte_bpe(folder, ANGLES)
    write_json(folder / "entity_vocab.json", ENTITIES)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LukeTokenizer", "model_max_length": 64})
    words = len(AutoTokenizer.from_pretrained(folder, task="entity_pair_classification"))
    config = {"model_type": "luke", "vocab_size": words, "entity_vocab_size": 4, "entity_emb_size": 16, **SIZES}
    config |= {"max_position_embeddings": 66}
    AutoModel.from_config(config | EASY, seed=7).save_pretrained(folder)
    return folder


def texts(count: int, seed: int = 0):
    """Yield (words, their spans of characters, the text)."""
    rng = random.Random(seed)
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randint(3, 6))]
        starts = [len(" ".join(words[:place])) + (place > 0) for place in range(len(words))]
        yield (
            rng,
            words,
            [[start, start + len(word)] for start, word in zip(starts, words, strict=True)],
            " ".join(words),
        )


def records(task: str, count: int, seed: int = 0) -> list[dict]:
    """Records that follow a rule: the order of two spans, whether a span is the first, the kinds of words."""
    rows = []
    for rng, words, spans, text in texts(count, seed):
        head, tail = rng.sample(range(len(words)), 2)
        if task == "relation-extraction":
            label = "before" if head < tail else "no_relation"
            rows.append({"text": text, "spans": [spans[head], spans[tail]], "label": label})
        elif task == "entity-classification":
            place = rng.randint(0, 1) * head
            rows.append({"text": text, "spans": [spans[place]], "label": ["later"] if place else ["first", "start"]})
        else:
            kinds = {"paris": "LOC", "france": "LOC", "cat": "ANIMAL"}
            found = [[*span, kinds[word]] for word, span in zip(words, spans, strict=True) if word in kinds]
            rows.append({"text": text, "spans": found})
    return rows
