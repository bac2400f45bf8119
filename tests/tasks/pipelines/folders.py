"""Folders of tiny random models with the heads of tasks."""

import numpy as np

from bertcore.models import auto
from tests.tiny_bert import CONFIG, VOCABULARY, write_json

LABELS = {"0": "CONTRADICTION", "1": "neutral", "2": "Entailment"}
TAGS = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC", "5": "MISC"}
LONGEST = CONFIG["max_position_embeddings"]
TEXTS = [
    "the cat sat on an mat .", "paris is the capital of france . paris is paris .", "Upper catmat unknownword sat",
    "a", "", "the capital of capital is paris , and the mat : sat on !",
]  # fmt: skip


def save_head(folder, kind: str, labels: dict[str, str] | None = None, *, seed: int = 7, **config):
    """A tiny BERT with the head of the class `kind`, all of whose numbers are drawn, and its vocab.txt."""
    config = (
        CONFIG
        | config
        | ({"id2label": labels, "label2id": {name: int(i) for i, name in labels.items()}} if labels else {})
    )
    model = getattr(auto, kind).from_config(config, seed=seed)
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():  # biases are zero and norms one in a new model
        parameter.update(parameter.array() + rng.normal(0, 0.2, parameter.array().shape).astype(np.float32))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": LONGEST}
    write_json(folder / "tokenizer_config.json", settings)
    return folder
