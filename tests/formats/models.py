"""Folders of small models, with tokenizers, for the tests of formats."""

import json

import numpy as np

from bertcore import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from bertcore.tasks.sentence_encoder.modules import save_sentence_encoder
from tests.tiny_families import drawn_anew, tiny_config
from tests.tokenization.corpus import training_texts

SPECIALS = {
    "WordPiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "BPE": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "Unigram": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
NAMES = {"WordPiece": "BertTokenizer", "BPE": "RobertaTokenizer", "Unigram": "XLMRobertaTokenizer"}
WORDS = 400
TEXTS = [
    "A plain sentence, with punctuation!",
    "numbers 3.14159, naïve café Zürich",
    "",
    "the value of the object " * 4,
]


def write_tokenizer(folder, kind: str) -> None:
    """Train a tokenizer of a kind on `training_texts`, and write its tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = SPECIALS[kind]
    options = {"vocab_size": WORDS, "special_tokens": special, "show_progress": False}
    if kind == "WordPiece":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(**options)
    elif kind == "BPE":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    else:
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    made.train_from_iterator(training_texts(), trainer)
    if kind == "Unigram":  # SentencePiece's scores are float32
        pieces = json.loads(made.to_str())["model"]["vocab"]
        made.model = models.Unigram([(piece, float(np.float32(score))) for piece, score in pieces], unk_id=3)
    first, last = (special[2], special[3]) if kind == "WordPiece" else (special[0], special[2])
    ids = [(token, made.token_to_id(token)) for token in (first, last)]
    if kind == "BPE":
        made.post_processor = processors.RobertaProcessing(ids[1], ids[0], add_prefix_space=False)
    else:
        between = f"{last}:0" if kind == "WordPiece" else f"{last} {last}"
        second = ":1" if kind == "WordPiece" else ""
        pair = f"{first} $A {between} $B{second} {last}{second}"
        made.post_processor = processors.TemplateProcessing(f"{first} $A {last}", pair, ids)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": NAMES[kind], "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_model(folder, preset: str, kind: str = "WordPiece", *, pooling: str = "mean", labels: int = 0, **keys):
    """Write a sentence encoder of a small preset, or a reranker with `labels`; return the folder."""
    own = folder / "tokenizer"
    own.mkdir(parents=True)
    write_tokenizer(own, kind)
    tokenizer = AutoTokenizer.from_pretrained(own)
    config = {**tiny_config(preset), "vocab_size": WORDS, "pad_token_id": tokenizer.pad_token_id, **keys}
    if labels:
        model = drawn_anew(AutoModelForSequenceClassification.from_config(config, num_labels=labels))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    else:
        model = drawn_anew(AutoModel.from_config(config, add_pooling_layer=False))
        save_sentence_encoder(folder, model, tokenizer, pooling=pooling, normalize=True)
    return folder
