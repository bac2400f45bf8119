"""Older checkpoints' tokenizer files, made by hand, with readable vocabularies."""

from pathlib import Path

from tests.tokenization.corpus import write_json
from tests.tokenization.sentencepiece_writer import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    bytes_field,
    charsmap,
    integer_field,
    model,
    piece,
)

WORDS = ["\u2581the", "\u2581The", "\u2581value", "\u2581", "s", "t", "h", "e", "v", "fi", "."]
ANGLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BRACKETS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
BYTE_BPE = {
    "RobertaTokenizer": ANGLES,
    "LukeTokenizer": ANGLES,
    "GPT2Tokenizer": ["<|endoftext|>"],
    "DebertaTokenizer": BRACKETS,
}
# class name: (file, control symbols before the words, its unknown piece and where it stands)
SENTENCEPIECE = {
    "AlbertTokenizer": ("spiece.model", ["<pad>", "[CLS]", "[SEP]", "[MASK]"], ("<unk>", 1)),
    "XLNetTokenizer": (
        "spiece.model", ["<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"], ("<unk>", 0)
    ),
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", ["<s>", "</s>"], ("<unk>", 0)),
    "MLukeTokenizer": ("sentencepiece.bpe.model", ["<s>", "</s>"], ("<unk>", 0)),
    "T5Tokenizer": ("spiece.model", ["<pad>", "</s>"], ("<unk>", 2)),
    "CamembertTokenizer": ("sentencepiece.bpe.model", ["<s>", "</s>"], ("<unk>", 0)),
    "DebertaV2Tokenizer": ("spm.model", ["[PAD]", "[CLS]", "[SEP]"], ("[UNK]", 3)),
}  # fmt: skip
WORD_PIECE = {
    **dict.fromkeys(("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "DistilBertTokenizer"), BRACKETS),
    "MPNetTokenizer": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
}


def write_family(folder: Path, name: str) -> None:
    """Write the older files of the class `name`, and the tokenizer_config.json that names it."""
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": name})
    if name in BYTE_BPE:
        write_byte_bpe(folder, BYTE_BPE[name])
    elif name in SENTENCEPIECE:
        file, control, unknown = SENTENCEPIECE[name]
        (folder / file).write_bytes(sentencepiece_model(control, unknown))
    else:
        tokens = [*WORD_PIECE[name], "the", "value", "##s", "."]
        (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")


def write_byte_bpe(folder: Path, special: list[str]) -> None:
    """A byte-level BPE that knows " the" and " value"; a space is written \u0120."""
    merges = ["t h", "th e", "\u0120 the", "v a", "l u", "lu e", "va lue", "\u0120 value"]
    bytes_used = [*"thevalus.", "\u0120"]
    vocabulary = [*special, *bytes_used, *(merge.replace(" ", "") for merge in merges)]
    write_json(folder / "vocab.json", {token: number for number, token in enumerate(vocabulary)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")


def sentencepiece_model(control: list[str], unknown: tuple[str, int], trainer: bytes = b"", words=WORDS) -> bytes:
    """A unigram model: its unknown piece, control symbols, words (the longer the likelier) and the symbol <new>."""
    pieces = [piece(text, kind=CONTROL) for text in control]
    pieces.insert(unknown[1], piece(unknown[0], kind=UNKNOWN))
    pieces += [piece(text, -10.0 / len(text)) for text in words]
    pieces.append(piece("<new>", kind=USER_DEFINED))
    replacements = charsmap({"\ufb01": "fi", "\u00a0": " "})
    return model(pieces, integer_field(3, 1) + trainer, bytes_field(2, replacements))
