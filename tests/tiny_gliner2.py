"""Small GLiNER2 models with random weights."""

import json
from pathlib import Path

from bertcore.models.gliner2 import GLiNER2Model
from bertcore.tasks.gliner2 import GLiNER2
from bertcore.tasks.gliner2_schema import TOKENS
from bertcore.tokenization import AutoTokenizer
from tests.tiny_families import drawn_anew, tiny_config
from tests.tiny_gliner import BACKBONES, PIECES, WORDS

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "entities", ":", "|", *WORDS, *PIECES]


def tiny_gliner2(folder, counting="count_lstm", backbone="deberta", seed=0, **changed):
    """Save a model and its tokenizer into `folder`, and return it."""
    size = len(VOCABULARY) + len(TOKENS)
    encoder = tiny_config(BACKBONES[backbone]) | {"vocab_size": size, "pad_token_id": 0}
    config = {"model_type": "extractor", "model_name": "tiny", "max_width": 4, "counting_layer": counting}
    model = drawn_anew(GLiNER2Model.from_config(config | {"encoder_config": encoder} | changed), seed)
    Path(folder, "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, "do_lower_case": True}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(TOKENS), special_tokens=True)
    GLiNER2(model, tokenizer).save_pretrained(folder)
    Path(folder, "vocab.txt").unlink()
    return folder
