"""Texts that are hard for tokenizers, and small vocabularies trained on part of them."""
# ruff: noqa: RUF001  (the ambiguous characters are the point)

import json
from pathlib import Path

HARD_TEXTS = [
    "",
    " ",
    "\n\t \r\n",
    "A plain sentence, with punctuation!",
    "don't I'll we've it's 'quoted' \"double\" (parens) [brackets] {braces} <angles>",
    "UPPER lower MiXeD ÀÉÎÕÜ àéîõü İstanbul ıspanak ẞ ß ﬁ ﬂ Ǆ",
    "naïve café Zürich Ångström piñata Łódź Dvořák Đà Nẵng",
    "cafe\u0301 a\u030a o\u0308 e\u0301\u0302\u0303 Z\u0351\u036b\u0343\u036a\u0302\u0346a\u0349\u0353l\u0335g\u0322o",
    "日本語のテキスト 漢字かな交じり文。中文分词，没有空格！한국어 문장입니다",
    "𠀀𠀁 㐀㐁 豈更 ｆｕｌｌｗｉｄｔｈ １２３ ﾊﾝｶｸ 〇々〆",
    "emoji 😀😃👍🏽 👨‍👩‍👧‍👦 🇩🇪🇯🇵 ❤️ ☺︎ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "control \x00 \x01 \x07 \x1b[31m \x7f \x80 \x9f end",
    "zero\u200bwidth no\u00adbreak join\u200der non\u200cjoiner bom\ufeffinside word\u2060joiner repl\ufffdaced",
    "spaces\u00a0no-break\u2003em\u2009thin\u3000ideographic\u2028line\u2029paragraph\u0085next\x0btab\x0cfeed\x1cfile",
    "bidi \u202eright to left\u202c \u2066isolate\u2069 \u200elrm\u200f",
    "שלום עולם שָׁלוֹם مرحبا بالعالم مَرْحَبًا العَرَبِيَّة ١٢٣",
    "हिन्दी में पाठ தமிழ் ภาษาไทยไม่มีช่องว่าง ភាសាខ្មែរ မြန်မာ",
    "Ελληνικά ΟΔΥΣΣΕΥΣ ς Русский ЁЖИК Україна Ꭰ Ꙁ",
    "numbers 3.14159 1,000,000 1e-10 0x1F 2024-01-01 12:34:56 +49-170-1234567 50% $9.99 €10 №5 ½ ² ①",
    "http://www.example.com/path?query=1&b=%20#frag me@example.org C:\\dir\\file snake_case kebab-case a/b",
    "math ∑∏√∞≠≤≥±×÷∂∫ arrows →←⇒ quotes “”‘’«»„ dashes –—―‒ dots … · • ‣ § ¶ © ® ™ ° ´ ` ~ ^ | ¦",
    "x" * 99,
    "x" * 100,
    "x" * 101,
    "antidisestablishmentarianism" * 4,
    "é" * 120,
    "ab " * 130,
    "!?" * 60,
    "[CLS] special [SEP] tokens [MASK] in [PAD] the [UNK] text [mask] [ MASK ] [MASK][MASK]",
    "added plain PLAIN plainly Word word [ENT] [ent] [ENT]Word",
    "##word ##s [unused0] ##ing",
    "don\u2019t\u02bct rock\u2018n\u2019roll",
    "\ue000private\uf8ff \U000f0000 \U0010fffd noncharacter \ufdd0 \uffff",
    "trailing space ",
    " leading space",
    "tab\tseparated\tvalues\nnew\nlines",
]


def training_texts() -> list[str]:
    """Return part of Python's documentation, and texts in other scripts (but Japanese)."""
    from pydoc_data.topics import topics

    return [*(topics[key] for key in sorted(topics)[:20]), *(text for text in HARD_TEXTS[:20] if "日" not in text)]


def train_vocabulary(
    file: Path, *, lower_case: bool, size: int = 700, special=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
) -> None:
    """Write a WordPiece vocab.txt learnt from `training_texts`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(training_texts(), trainer)
    ids = tokenizer.get_vocab()
    file.write_text("\n".join(sorted(ids, key=ids.__getitem__)) + "\n", encoding="utf-8")


def train_byte_bpe(folder: Path, special: list[str], size: int = 600) -> None:
    """Write a vocab.json and a merges.txt of byte-level BPE; the special tokens have the first ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.model.save(str(folder))


def train_sentencepiece(file: Path, **options) -> None:
    """Write a unigram model by SentencePiece's own trainer; skip the test without that package."""
    import pytest

    sentencepiece = pytest.importorskip("sentencepiece")
    lines = (line.replace("\0", "") for text in training_texts() for line in text.splitlines())
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=stream, minloglevel=2, **({"vocab_size": 600} | options)
        )


def write_json(file: Path, value) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")
