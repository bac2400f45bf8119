"""Train a small sentence encoder from scratch, with in-batch negatives, to find the code of a docstring.

    python examples/code_search.py [--seconds 120] [--mlm-seconds 120] [--seed 0] [--json FILE] [--code FOLDER]

The pairs are functions of the standard library, or of your own folder, and the first paragraphs of their docstrings.
An eighth of the modules is held out: each of their docstrings should find its own function among all of them. The
baseline is TF-IDF of words and parts of names. With --mlm-seconds the encoder first learns masked words of the same
texts (as CodeBERT did: Feng et al. 2020, arXiv:2002.08155).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

from corpora import documented_functions
from retrieval import Found, found
from runs import arguments, curve_of, options, report
from sklearn.feature_extraction.text import TfidfVectorizer

from bertcore import AutoModel, AutoModelForMaskedLM, SentenceEncoder
from bertcore.presets import preset_config
from bertcore.tasks.sentence_encoder import save_sentence_encoder
from bertcore.tokenization import train_tokenizer
from bertcore.training import Trainer
from bertcore.training.objectives import MaskedLM, MultipleNegativesRankingLoss

SHARE_HELD_OUT, MAX_LENGTH, WORDS = 8, 64, 8192
CONFIG = {**preset_config("mini-bert"), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NAMES = r"[^\W_]+"  # parts of names: TF-IDF sees "read" and "line" in read_line


def learn_words(pairs: list[dict[str, str]], tokenizer: Any, seconds: float, seed: int, folder: Path) -> AutoModel:
    """Train an encoder on masked words of docstrings and code, each pair as one text."""
    objective, model = MaskedLM(), AutoModelForMaskedLM.from_config(CONFIG, seed=seed)
    texts = [list(pair.values()) for pair in pairs]
    examples = list(objective.examples(texts, tokenizer, max_length=MAX_LENGTH))
    args = arguments(folder, seconds, seed, 1.5e-3, per_device_train_batch_size=64, logging_steps=10)
    Trainer(model, args, train_dataset=examples, processing_class=tokenizer, objective=objective).train()
    model.save_pretrained(folder)
    return AutoModel.from_pretrained(folder)


def search(folder: Path, pairs: list[dict[str, str]]) -> Found:
    """Search code with docstrings, by the vectors of the encoder in a folder."""
    encoder = SentenceEncoder(folder, max_seq_length=MAX_LENGTH)
    return found(*(encoder.encode([pair[name] for pair in pairs], normalize_embeddings=True) for name in pairs[0]))


def search_by_words(learnt: list[dict[str, str]], pairs: list[dict[str, str]]) -> Found:
    """Search in the same way with TF-IDF."""
    words = TfidfVectorizer(token_pattern=NAMES, sublinear_tf=True).fit(
        text for pair in learnt for text in pair.values()
    )
    return found(*(words.transform([pair[name] for pair in pairs]) for name in pairs[0]))


def main() -> None:
    parser = options(__doc__, seconds=120, out="code-search")
    parser.add_argument("--mlm-seconds", type=float, default=0, help="of training on masked words first (default: 0)")
    parser.add_argument("--code", type=Path, help="a folder of Python files (default: the standard library)")
    given = parser.parse_args()

    functions = sorted(documented_functions(given.code), key=lambda function: crc32(function[2].encode()))
    kept: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for module, doc, code in functions[: given.texts]:
        kept[crc32(module.encode()) % SHARE_HELD_OUT == 0].append({"anchor": doc, "positive": code})
    learnt, held_out = kept[False], kept[True]
    print(f"{len(learnt):,} pairs to learn from; docstrings that find their own code among {len(held_out):,}:")
    texts = [text for pair in learnt for text in pair.values()]
    tokenizer = train_tokenizer(texts, vocab_size=WORDS, model_max_length=MAX_LENGTH)
    model, before, after = AutoModel.from_config(CONFIG, seed=given.seed), "random weights", "in-batch negatives"
    folder = given.out / str(given.seed)
    if given.mlm_seconds:
        model = learn_words(learnt, tokenizer, given.mlm_seconds, given.seed, folder / "masked-words")
        before, after = "masked words", "masked words, then in-batch negatives"
    how = {"pooling": "mean", "normalize": True, "max_seq_length": MAX_LENGTH}
    save_sentence_encoder(folder / "before", model, tokenizer, **how)
    if not given.mlm_seconds:
        report(given, "TF-IDF", **search_by_words(learnt, held_out)._asdict())
    report(given, before, **search(folder / "before", held_out)._asdict())
    objective = MultipleNegativesRankingLoss(max_length=MAX_LENGTH)
    args = arguments(folder, given.seconds, given.seed, 5e-4, per_device_train_batch_size=64, logging_steps=10)
    trainer = Trainer(model, args, train_dataset=learnt, processing_class=tokenizer, objective=objective)
    trainer.train()
    save_sentence_encoder(folder, model, tokenizer, **how)
    learned = {"tokens": trainer.state.num_input_tokens_seen, "steps": trainer.state.global_step}
    report(given, after, **search(folder, held_out)._asdict(), **learned, curve=curve_of(trainer))


if __name__ == "__main__":
    main()
