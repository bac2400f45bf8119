"""The tokenizer in a GGUF file, as a tokenizer.json, both ways.

llama.cpp writes WordPiece's vocabulary with U+2581 before pieces that begin a word, and without the ## before others.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bertcore.models.spec import ConfigReader
from bertcore.tokenization.tokenizer import Tokenizer

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
FILLER = re.compile(r"\[PAD\d+\]")  # stands for an id without a token
MARK = re.compile(r"\[[^\]]+\]")  # "[unused0]": older converters wrote these as they are
KEY = "tokenizer.ggml."
# A special token -> its keys, the first one is written, and its text where a file names no id.
SPECIAL = {
    "cls_token": (("bos_token_id", "cls_token_id"), "[CLS]"),
    "sep_token": (("eos_token_id", "seperator_token_id", "sep_token_id"), "[SEP]"),
    "unk_token": (("unknown_token_id",), "[UNK]"),
    "pad_token": (("padding_token_id",), "[PAD]"),
    "mask_token": (("mask_token_id",), "[MASK]"),
}
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
SPLITS = {
    "gpt-2": {**BYTES, "use_regex": True},
    "llama-bpe": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated", "invert": False},
            {**BYTES, "use_regex": False},
        ],
    },
}
# tokenizer.ggml.pre -> how texts are split.
PRE = {
    **dict.fromkeys(("gpt-2", "default", "roberta-bpe", "modern-bert", "jina-v1-en", "jina-v2-code"), "gpt-2"),
    **dict.fromkeys(("jina-v2-es", "jina-v2-de"), "gpt-2"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), "llama-bpe"),
}
COMPOSED = ("modern-bert",)  # texts are normalized to NFC


class GGUFTokens:
    """The tokens of a file, their types, and the special ones by name."""

    def __init__(self, metadata: Mapping[str, Any], size: int):
        self.read, self.metadata = ConfigReader(metadata), metadata
        tokens = metadata.get(f"{KEY}tokens")
        if not isinstance(tokens, list) or not tokens:
            raise ValueError(f"config: {KEY}tokens is {tokens!r:.60}, expected a list of texts")
        if len(tokens) > size:
            raise ValueError(
                f"config: {KEY}tokens has {len(tokens)} texts, expected at most {size}, the rows of token_embd"
            )
        self.tokens = list(tokens)
        self.types = self.numbers("token_type", "iub", np.full(len(tokens), NORMAL))
        self.special: dict[str, int] = {}
        for name, (keys, text) in SPECIAL.items():
            found = [self.read.index(KEY + key, None, len(tokens)) for key in keys]
            if text in self.tokens[:1000]:
                found.append(self.tokens.index(text))
            number = next((each for each in found if each is not None), None)
            if number is not None:
                self.special[name] = number
        mask = self.special.get("mask_token")
        if mask is not None and FILLER.fullmatch(self.tokens[mask]):  # missing in XLM-R's SentencePiece file
            self.tokens[mask], self.types[mask] = "<mask>", CONTROL
        for number in self.special.values():
            if self.types[number] == NORMAL:
                self.types[number] = CONTROL

    def numbers(self, name: str, kinds: str, default: np.ndarray | None = None) -> np.ndarray:
        """Return an array of a number for each token."""
        values = self.metadata.get(KEY + name, default)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds or len(values) != len(self.tokens):
            raise ValueError(f"config: {KEY}{name} is not a list of {len(self.tokens)} numbers, one for each token")
        return values.copy()

    def by_token(self, pieces: list[str]) -> dict[str, int]:
        """Return piece -> id; an id whose piece is taken, or that only fills a gap, has a name of its own."""
        found: dict[str, int] = {}
        for number, piece in enumerate(pieces):
            if found.setdefault(piece, number) != number:
                name = f"[unused token {number}]"
                if self.types[number] != UNUSED or name in found:
                    raise ValueError(f"config: {KEY}tokens has {piece!r:.60} twice, at {found[piece]} and {number}")
                found[name] = number
        return found


def tokenizer_files(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer.json and tokenizer_config.json of a file's tokenizer, and the id of its padding.

    Raises ValueError, naming the key, for a tokenizer that is broken or not supported.
    """
    vocabulary = GGUFTokens(metadata, config["vocab_size"])
    kind = vocabulary.read.choice(f"{KEY}model", None, *_KINDS)
    built = _KINDS[kind](vocabulary)
    content = {name: vocabulary.tokens[number] for name, number in vocabulary.special.items()}
    read = vocabulary.read
    before, after = read.flag(f"{KEY}add_bos_token", True), read.flag(f"{KEY}add_eos_token", True)
    for name, is_put in (("cls_token", before), ("sep_token", after)):
        if is_put and name not in content:
            raise ValueError(f"config: {KEY}{SPECIAL[name][0][0]} is missing, expected the id of a token")
    added = [
        {"id": number, "content": vocabulary.tokens[number], "special": bool(kind_of != USER_DEFINED)}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, kind_of in enumerate(vocabulary.types.tolist())
        if kind_of in (CONTROL, USER_DEFINED, UNKNOWN) and vocabulary.tokens[number]
    ]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _around(vocabulary, content, before, after),
        **built,
    }
    settings = {
        "tokenizer_class": "BertTokenizer" if kind == "bert" else "PreTrainedTokenizerFast",
        **content,
        "model_max_length": int(config.get("max_position_embeddings") or config.get("n_positions") or 0) or None,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if config["type_vocab_size"] > 1:
        settings["model_input_names"].insert(1, "token_type_ids")
    normalizer = built["normalizer"] or {}
    if kind == "bert":
        settings |= {"do_lower_case": normalizer["lowercase"], "strip_accents": normalizer["strip_accents"]}
    return {
        "tokenizer.json": whole,
        "tokenizer_config.json": {key: value for key, value in settings.items() if value is not None},
        "pad_token_id": vocabulary.special.get("pad_token"),
    }


def _around(vocabulary: GGUFTokens, content: Mapping[str, str], before: bool, after: bool) -> dict[str, Any]:
    """Return the post-processor that puts the special tokens around texts; <s> ones have two between a pair."""
    types = {"A": 0, "B": 1 if content.get("cls_token") == "[CLS]" else 0}

    def part(text: str) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": text, "type_id": types[text]}}]

    def token(name: str, text: str) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": content[name], "type_id": types[text]}}]

    first, last = (token("cls_token", "A") if before else []), (token("sep_token", "A") if after else [])
    between = last if types["B"] or not after else [*last, *last]
    pair = [*first, *part("A"), *between, *part("B"), *(token("sep_token", "B") if after else [])]
    names = {content[name]: vocabulary.special[name] for name in ("cls_token", "sep_token") if name in content}
    tokens = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in names.items()}
    single = [*first, *part("A"), *last]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _word_piece(vocabulary: GGUFTokens) -> dict[str, Any]:
    def piece(token: str, kind: int) -> str:
        if kind in (CONTROL, UNUSED, UNKNOWN) or MARK.fullmatch(token):
            return token
        return token[1:] if token.startswith(SPACE) and len(token) > 1 else f"##{token}"

    pieces = [piece(token, kind) for token, kind in zip(vocabulary.tokens, vocabulary.types.tolist(), strict=True)]
    if "unk_token" not in vocabulary.special:
        raise ValueError(f"config: {KEY}unknown_token_id is missing, expected the id of a token")
    is_cased = any(each != each.lower() for each in pieces if not each.startswith("["))
    lower = vocabulary.read.flag(f"{KEY}normalizer.lowercase", not is_cased)
    accents = vocabulary.metadata.get(f"{KEY}normalizer.strip_accents")
    vocabulary.tokens = pieces
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "lowercase": lower,
            "strip_accents": accents if isinstance(accents, bool) else None,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": pieces[vocabulary.special["unk_token"]],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary.by_token(pieces),
        },
    }


def _byte_pairs(vocabulary: GGUFTokens) -> dict[str, Any]:
    pre = vocabulary.read.choice(f"{KEY}pre", "default", *PRE)
    merges, by_token = vocabulary.metadata.get(f"{KEY}merges"), vocabulary.by_token(vocabulary.tokens)
    if not isinstance(merges, list):
        raise ValueError(f"config: {KEY}merges is {merges!r:.60}, expected a list of texts")
    pairs = [merge.partition(" ") for merge in merges]
    for merge, (left, space, right) in zip(merges, pairs, strict=True):
        if not space or not {left, right, left + right} <= by_token.keys():
            raise ValueError(f"config: {KEY}merges has {merge!r:.60}, expected two tokens that make a third")
    return {
        "normalizer": {"type": "NFC"} if pre in COMPOSED else None,
        "pre_tokenizer": SPLITS[PRE[pre]],
        "decoder": {**BYTES, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": PRE[pre] == "llama-bpe",
            "vocab": by_token,
            "merges": [[left, right] for left, _, right in pairs],
        },
    }


def _unigram(vocabulary: GGUFTokens) -> dict[str, Any]:
    scores, unknown = vocabulary.numbers("scores", "f"), vocabulary.special.get("unk_token")
    if unknown is None:
        unknown = next(iter(np.flatnonzero(vocabulary.types == UNKNOWN).tolist()), None)
    if unknown is None or not np.isfinite(scores).all():
        raise ValueError(f"config: {KEY}scores are not finite, or no token is the unknown one")
    vocabulary.by_token(vocabulary.tokens)
    charsmap = vocabulary.metadata.get(f"{KEY}precompiled_charsmap", np.empty(0, np.uint8))
    if not isinstance(charsmap, np.ndarray) or charsmap.dtype.itemsize != 1:
        raise ValueError(f"config: {KEY}precompiled_charsmap is not a list of bytes")
    steps = [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap.tobytes()).decode()}]
    prefix = "always" if vocabulary.read.flag(f"{KEY}add_space_prefix", True) else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prefix, "split": True}
    return {
        "normalizer": steps[0] if charsmap.size else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        "decoder": space,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": [list(pair) for pair in zip(vocabulary.tokens, scores.astype(float).tolist(), strict=True)],
        },
    }


_KINDS: dict[str, Callable[[GGUFTokens], dict[str, Any]]] = {"bert": _word_piece, "gpt2": _byte_pairs, "t5": _unigram}


def tokenizer_metadata(tokenizer: Tokenizer, size: int, type_vocab_size: int) -> dict[str, Any]:
    """Return the metadata of a `Tokenizer` for a table of `size` words, as llama.cpp's converter writes it.

    Raises ValueError for a tokenizer that llama.cpp does not have.
    """
    whole = json.loads(tokenizer._file_contents()["tokenizer.json"])
    model, kind = whole["model"], whole["model"]["type"]
    if kind not in ("WordPiece", "BPE", "Unigram"):
        raise ValueError(f"the tokenizer is {kind}, expected WordPiece, BPE or Unigram")
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = np.full(size, UNUSED, np.int32)
    scores = np.full(size, -10000, np.float32)
    by_id = dict(enumerate(model["vocab"])) if kind == "Unigram" else {n: (t, 0.0) for t, n in model["vocab"].items()}
    unknown = tokenizer.unk_token_id
    special = {token["id"]: token for token in whole["added_tokens"]}
    for number, (token, score) in (by_id | {n: (each["content"], 0.0) for n, each in special.items()}).items():
        if number >= size:
            raise ValueError(f"the tokenizer has the id {number}, expected less than {size}, the model's words")
        tokens[number], scores[number], types[number] = token, score, NORMAL
        if number in special:
            types[number] = CONTROL if special[number]["special"] else USER_DEFINED
        if kind == "WordPiece" and types[number] != CONTROL:
            tokens[number] = token[2:] if token.startswith("##") else SPACE + token
        if kind == "Unigram" and number == unknown:
            types[number] = UNKNOWN
    found: dict[str, Any] = {
        "model": {"WordPiece": "bert", "BPE": "gpt2", "Unigram": "t5"}[kind],
        "pre": "default" if kind != "BPE" else _written_pre(whole),
        "tokens": tokens,
        "token_type": types,
        "token_type_count": max(type_vocab_size, 1),
    }
    if kind == "BPE":
        found["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if kind == "Unigram":
        found |= {"scores": scores, "add_space_prefix": True, "remove_extra_whitespaces": True}
        charsmap = next((step["precompiled_charsmap"] for step in _steps(whole["normalizer"])
                         if step["type"] == "Precompiled"), "")  # fmt: skip
        if charsmap:
            found["precompiled_charsmap"] = np.frombuffer(base64.b64decode(charsmap), np.uint8)
    if kind == "WordPiece":
        options = next((step for step in _steps(whole["normalizer"]) if step["type"] == "BertNormalizer"), {})
        found["normalizer.lowercase"] = bool(options.get("lowercase"))
        if options.get("strip_accents") is not None:
            found["normalizer.strip_accents"] = options["strip_accents"]
    return {KEY + key: value for key, value in (found | _special_ids(tokenizer)).items()}


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    if part is None:
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [part] if inner is None else [step for each in inner for step in _steps(each)]


def _written_pre(whole: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the way in which a byte-level BPE splits texts."""
    steps = _steps(whole["pre_tokenizer"])
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    if patterns == [LLAMA_3]:
        return "llama-bpe"
    if [step["type"] for step in steps] == ["ByteLevel"] and not steps[0]["add_prefix_space"]:
        return "modern-bert" if [step["type"] for step in _steps(whole["normalizer"])] == ["NFC"] else "roberta-bpe"
    raise ValueError("the tokenizer splits texts in a way that llama.cpp has no name for")


def _special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ids of special tokens, and whether they are put around texts."""
    around = tokenizer("a", return_attention_mask=False)["input_ids"]
    found: dict[str, Any] = {}
    for name, (keys, _) in SPECIAL.items():
        number = getattr(tokenizer, f"{name}_id")
        if number is None and name in ("cls_token", "sep_token"):
            number = tokenizer.bos_token_id if name == "cls_token" else tokenizer.eos_token_id
        if number is not None:
            found |= dict.fromkeys(keys[:2], int(number))
    before, after = (found.get(f"{name}_token_id") for name in ("bos", "eos"))
    found["add_bos_token"] = bool(around) and before is not None and around[0] == before
    found["add_eos_token"] = found["add_sep_token"] = bool(around) and after is not None and around[-1] == after
    return found
