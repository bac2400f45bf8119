"""Small GLiNER models with random weights, whose scores are as often above 0.5 as below."""

from itertools import pairwise
from pathlib import Path

from bertcore.models.gliner import GLiNERModel
from bertcore.tokenization import AutoTokenizer
from tests.tiny_families import drawn_anew, tiny_config

WORDS = [*["the", "big", "city", "person", "of", "in"], *".,-<>/()"]
PIECES = [*"abcdefghijklmnopqrstuvwxyz", *("##" + letter for letter in "abcdefghijklmnopqrstuvwxyz")]
MARKS = "[FLERT]", "<<ENT>>", "<<SEP>>"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES, *MARKS]
BACKBONES = {"bert": "bert-base-uncased", "deberta": "deberta-v3-small", "modernbert": "modernbert-base"}


LABELS = ["person", "big city", "city", "of"]
TEXTS = [
    "the person of New-York", "the big city, the big person in a city.", "x", " ", "",
    " ".join(["the person", "a_b of the - city"] * 9), "(the city) in the big, big city of 12 persons",
]  # fmt: skip


def threshold_of(model, share):
    """A threshold above the scores of this share of all spans, in the middle of two scores."""
    found = model.inference(TEXTS, LABELS, flat_ner=False, threshold=0.0, multi_label=True)
    scores = sorted(entity["score"] for entities in found for entity in entities)
    gaps = [(high - low, low) for low, high in pairwise(scores[int(share * len(scores)) :][:9])]
    gap, low = max(gaps)
    return low + gap / 2


def config_of(kind, backbone="bert", **changed):
    """A gliner_config.json; `kind` is "span" or "token"."""
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    encoder = tiny_config(BACKBONES[backbone])
    encoder |= {key: value for key, value in ids.items() if key in encoder}
    encoder["vocab_size"] = len(VOCABULARY)
    config = {
        "model_name": "tiny", "model_type": f"gliner_uni_encoder_{kind}", "encoder_config": encoder, "hidden_size": 24,
        "max_width": 4, "max_len": 20, "span_mode": "markerV0" if kind == "span" else "token_level",
        "class_token_index": VOCABULARY.index("<<ENT>>"), "vocab_size": len(VOCABULARY),
    }  # fmt: skip
    return config | changed


def tiny_gliner(folder, kind="span", backbone="bert", seed=0, **changed):
    """Save a model and its tokenizer into `folder`, and return it."""
    drawn_anew(GLiNERModel.from_config(config_of(kind, backbone, **changed)), seed).save_pretrained(folder)
    words = [word for word in VOCABULARY if word not in MARKS]
    Path(folder, "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    settings = '{"tokenizer_class": "BertTokenizer", "model_max_length": 64, "do_lower_case": true}'
    Path(folder, "tokenizer_config.json").write_text(settings, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    Path(folder, "vocab.txt").unlink()
    return folder
