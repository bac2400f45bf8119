"""Compare translation language modelling with plain masked language modelling.

    python examples/translations.py [--seconds 300] [--seed 0] [--only mlm tlm] [--json FILE]

Both objectives train a model of Mini-BERT's size, for the same time, on package descriptions in English and in one or
more of German, French and Italian: "mlm" reads one text at a time, "tlm" (Conneau and Lample 2019, arXiv:1901.07291) a
text followed by its translation. Packages with similar names stay together; held-out ones are in no training text of
any language. Each description should find its translation among 1,000, and vice versa, by the mean of the last hidden
states minus the mean of its language. Names and loan words are the same in all languages, and TF-IDF finds most
translations by them; so the search is repeated without the words that both texts of a pair share.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from corpora import translated_descriptions
from retrieval import found
from runs import arguments, curve_of, options, report
from sklearn.feature_extraction.text import TfidfVectorizer

from bertcore import AutoModelForMaskedLM, SentenceEncoder
from bertcore.presets import preset_config
from bertcore.tokenization import train_tokenizer
from bertcore.training import Trainer
from bertcore.training.metrics import combined, commonest_word, masked_accuracy, predicted_words
from bertcore.training.objectives import MaskedLM, TranslationLM

HELD_OUT, SHARE_HELD_OUT, MAX_LENGTH, WORDS = 1000, 8, 64, 16384
CONFIG = {
    **preset_config("mini-bert"), "vocab_size": WORDS, "max_position_embeddings": 2 * MAX_LENGTH,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
WAYS = {"mlm": (MaskedLM(), MAX_LENGTH), "tlm": (TranslationLM(), 2 * MAX_LENGTH)}
WORD = re.compile(r"\w+")
Pairs = list[list[str]]


def split_pairs(languages: list[str], count: int | None) -> tuple[Pairs, dict[str, Pairs]]:
    """Return training pairs in random order, either language first, and held-out pairs of each language."""
    rng, learnt, held_out = np.random.default_rng(0), [], {}
    for language in languages:
        held_out[language] = []
        for name, *pair in rng.permutation(np.array(translated_descriptions(language), object))[:count]:
            if crc32(name.split("-")[0].encode()) % SHARE_HELD_OUT == 0:
                held_out[language].append(pair)
            else:
                learnt.append(pair if rng.random() < 0.5 else pair[::-1])
    return [learnt[i] for i in rng.permutation(len(learnt))], {name: some[:HELD_OUT] for name, some in held_out.items()}


def train(way: str, learnt: Pairs, held_out: Pairs, tokenizer: Any, seconds: float, seed: int, folder: Path) -> dict:
    """Train, save the encoder in the folder, and return the results."""
    objective, max_length = WAYS[way]
    examples, questions = (
        list(objective.examples(pairs if way == "tlm" else _single(pairs), tokenizer, max_length=max_length))
        for pairs in (learnt, held_out)
    )
    model = AutoModelForMaskedLM.from_config(CONFIG, seed=seed)
    # With a rate of 1e-3, the model predicts only the most frequent word after the first minutes.
    sizes = {"per_device_train_batch_size": 8 * MAX_LENGTH // max_length, "per_device_eval_batch_size": 32}
    args = arguments(folder, seconds, seed, 5e-4, **sizes)
    trainer = Trainer(
        model,
        args,
        train_dataset=examples,
        eval_dataset=questions[:HELD_OUT],
        processing_class=tokenizer,
        compute_metrics=combined(masked_accuracy, commonest_word),
        preprocess_logits_for_metrics=predicted_words,
        objective=objective,
    )
    tokens, metrics = trainer.train().metrics["train_tokens"], trainer.evaluate()
    save(model, tokenizer, folder)
    found = {"figure": metrics["eval_masked_accuracy"], "trivial": metrics["eval_masked_accuracy_trivial"]}
    return {"tokens": tokens, **found, "curve": curve_of(trainer)}


def _single(pairs: Pairs) -> list[list[str]]:
    return [[text] for pair in pairs for text in pair]


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def without_shared_words(pair: list[str]) -> list[str]:
    shared = set.intersection(*(set(WORD.findall(text.lower())) for text in pair))
    return [WORD.sub(lambda word: "" if word[0].lower() in shared else word[0], text) for text in pair]


def search(folder: Path, pairs: Pairs) -> dict[str, float]:
    """Return the shares of texts whose translation is nearest, from English and to it."""
    encoder = SentenceEncoder(folder, max_seq_length=MAX_LENGTH)
    return both_ways(*(centred(encoder.encode(list(texts))) for texts in zip(*pairs, strict=True)))


def centred(vectors: np.ndarray) -> np.ndarray:
    """Subtract the mean, which mostly depends on the language, and normalize."""
    vectors = vectors - vectors.mean(0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def search_by_words(pairs: Pairs) -> dict[str, float]:
    """Search in the same way with TF-IDF."""
    words = TfidfVectorizer(sublinear_tf=True).fit(text for pair in pairs for text in pair)
    return both_ways(*(words.transform(texts) for texts in zip(*pairs, strict=True)))


def both_ways(english: Any, other: Any) -> dict[str, float]:
    return {"from English": found(english, other).first, "to English": found(other, english).first}


def main() -> None:
    parser = options(__doc__, seconds=300, out="translations")
    parser.add_argument("--languages", nargs="+", choices=("de", "fr", "it"), default=["de", "fr", "it"])
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()

    learnt, held_out = split_pairs(given.languages, given.texts)
    texts = [text for pair in learnt for text in pair]
    tokenizer = train_tokenizer(texts, vocab_size=WORDS, model_max_length=2 * MAX_LENGTH)
    folders = {way: given.out / f"{way}-{given.seed}" for way in ("random weights", *given.only)}
    save(AutoModelForMaskedLM.from_config(CONFIG, seed=given.seed), tokenizer, folders["random weights"])
    questions = [pair for pairs in held_out.values() for pair in pairs]
    print(f"{len(learnt):,} pairs to learn from, of {', '.join(given.languages)}")
    for way in given.only:
        report(given, way, **train(way, learnt, questions, tokenizer, given.seconds, given.seed, folders[way]))
    for language, pairs in held_out.items():
        for what, some in (("", pairs), (", no shared words", [without_shared_words(pair) for pair in pairs])):
            asked = f"{language}{what}"
            report(given, f"{asked}: TF-IDF", candidates=len(some), **search_by_words(some))
            for way, folder in folders.items():
                report(given, f"{asked}: {way}", candidates=len(some), **search(folder, some))


if __name__ == "__main__":
    main()
