"""GLiNER beside the package gliner: python -m bench.gliner [--texts N] [--labels N] [--kind span|token] [--dtype D]

A model of the size of DeBERTa-v3-small with random weights is saved and loaded by both. Their scores are compared, then
one call of `inference` is timed, in turns; --dtype adds bertcore in that precision. F1 compares the entities above the
threshold that 5% of spans exceed; with random weights it says nothing about a trained model.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np

from bench.measure import Variant, measure
from bench.options import positive
from bertcore import GLiNER, kernels
from bertcore.arguments import DTYPES
from bertcore.models.gliner import GLiNERModel
from bertcore.presets import preset_config
from bertcore.tokenization import AutoTokenizer

WORDS = 48  # of a text
NAMES = ("person", "city", "country", "date", "company", "product", "event", "law", "work of art", "disease", "gene",
         "chemical", "language", "price", "vehicle", "animal")  # fmt: skip
MARKS = "[FLERT]", "<<ENT>>", "<<SEP>>"


def saved(folder: str, kind: str) -> list[str]:
    """Save a model and a tokenizer of whole words, and return the words."""
    letters, rng = list("bcdfglmnprst"), np.random.default_rng(0)
    words = sorted({"".join(rng.choice([*letters, *"aeiou"], size=size)) for size in rng.integers(3, 9, 4000)})
    parts = sorted({part for name in NAMES for part in name.split()} - set(words))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *parts]
    Path(folder, "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    settings = '{"tokenizer_class": "BertTokenizer", "model_max_length": 512}'
    Path(folder, "tokenizer_config.json").write_text(settings, encoding="utf-8")
    encoder = preset_config("deberta-v3-small") | {"vocab_size": len(vocabulary) + len(MARKS)}
    mode = "markerV0" if kind == "span" else "token_level"
    config = {"model_name": "random", "encoder_config": encoder, "span_mode": mode, "vocab_size": encoder["vocab_size"]}
    model = GLiNERModel.from_config(config | {"class_token_index": len(vocabulary) + 1}, seed=1)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    Path(folder, "vocab.txt").unlink()
    return words


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.gliner", description=__doc__.partition(":")[0])
    for name, default in (("texts", 8), ("labels", 12), ("rounds", 11), ("threads", kernels.get_num_threads())):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"(default: {default})")
    parser.add_argument("--kind", choices=["span", "token"], default="span")
    parser.add_argument("--dtype", action="append", choices=DTYPES, default=[], help="another one; may be repeated")
    given = parser.parse_args()
    import torch
    from gliner import GLiNER as Peer

    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    kernels.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        words, rng = saved(folder, given.kind), np.random.default_rng(1)
        texts = [" ".join(rng.choice(words, size=WORDS)) for _ in range(given.texts)]
        models = {"gliner": Peer.from_pretrained(folder), "bertcore": GLiNER.from_pretrained(folder)}
        models |= {f"bertcore, {dtype}": GLiNER.from_pretrained(folder, dtype=dtype) for dtype in given.dtype}
        calls = checked(models, texts, list(NAMES[: given.labels]))
        times = measure({name: Variant(call) for name, call in calls.items()}, given.rounds, 30.0)
    print(f"{given.texts} texts of {WORDS} words, {given.labels} labels, {given.kind} kind, {given.threads} threads")
    for name, each in times.items():
        ratio = np.median(times["gliner"].samples / each.samples)
        print(f"{name:24} {1e3 * np.median(each.samples):9.1f} ms {ratio:6.2f} times as fast as gliner")


def checked(models: dict, texts: list[str], labels: list[str]) -> dict:
    """Return a call of each model, after a comparison of their entities; their F1 is printed."""
    everything = models["bertcore"].inference(texts[:2], labels, False, 0.0, True)
    scores = sorted(entity["score"] for entities in everything for entity in entities)
    options = {"threshold": scores[int(0.95 * len(scores))], "multi_label": True, "flat_ner": False}
    calls = {name: lambda model=model: model.inference(texts, labels, **options) for name, model in models.items()}
    found = {name: [{_key(each): each["score"] for each in some} for some in call()] for name, call in calls.items()}
    for name, answers in found.items():
        pairs = list(zip(answers, found["gliner"], strict=True))
        right = sum(len(ours.keys() & theirs.keys()) for ours, theirs in pairs)
        total = sum(len(ours) + len(theirs) for ours, theirs in pairs)
        apart = max((abs(ours[key] - theirs[key]) for ours, theirs in pairs for key in ours.keys() & theirs.keys()))
        print(f"{name:24} F1 {2 * right / total:.4f} of gliner's {total // 2} entities, scores within {apart:.1e}")
        if name == "bertcore" and not (apart < 1e-4 and right > 0.99 * total / 2):
            raise SystemExit("the entities differ, not timed")
    return calls


def _key(entity: dict) -> tuple:
    return entity["start"], entity["end"], entity["label"]


if __name__ == "__main__":
    main()
