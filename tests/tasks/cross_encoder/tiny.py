"""Folders of tiny random classifiers of pairs."""

import json

from bertcore import AutoModelForSequenceClassification
from tests.tiny_bert import CONFIG, VOCABULARY, write_json


def save_tiny_classifier(folder, *, labels=1, config=None):
    """A random classifier with `labels` labels; `config` adds to its config.json as it stands."""
    AutoModelForSequenceClassification.from_config(CONFIG, num_labels=labels, seed=5).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 40})
    stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**stated, **(config or {})})
    return folder
