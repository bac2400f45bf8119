"""GGUF files in bertcore and in llama.cpp: python -m bench.gguf [--models minilm bert-base] [--threads N]

Both open the same Q8_0 file, written by bertcore (MiniLM with published weights, BERT-base with random ones), and both
tokenize, pool and normalise. Vectors are compared, then calls are timed in turns.
"""

import argparse
import importlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Variant, measure
from bench.options import positive
from bench.peers.cases import SHAPES
from bertcore import AutoModel, AutoTokenizer, SentenceEncoder, kernels
from bertcore.demo_model import demo_model_folder
from bertcore.formats.export import export_gguf
from bertcore.presets import preset_config
from bertcore.tasks.sentence_encoder.modules import save_sentence_encoder

CASES = ("1x16", "8x128", "ragged")
LEAST = {"minilm": 0.999, "bert-base": 0.99}  # cosine; llama.cpp's GELU is an approximation, and it rounds activations


def folder_of(name: str, beside: Path) -> Path:
    """Return the folder of a model; the random one is created with MiniLM's tokenizer."""
    if name == "minilm":
        return demo_model_folder()
    config = preset_config("bert-base-uncased")
    model = AutoModel.from_config(config, add_pooling_layer=False, seed=1)
    save_sentence_encoder(beside / name, model, AutoTokenizer.from_pretrained(demo_model_folder()), normalize=True)
    return beside / name


def texts_of(tokenizer: Any, lengths: tuple[int, ...]) -> list[str]:
    """Return texts of these numbers of tokens: words of one token each, and the two special tokens."""
    words = [word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) > 3]
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(sorted(words), size=length - 2)) for length in lengths]


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.gguf", description=__doc__.partition(":")[0])
    for name, default in (("rounds", 15), ("threads", kernels.get_num_threads())):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"(default: {default})")
    parser.add_argument("--models", nargs="+", choices=LEAST, default=list(LEAST), help="default: both")
    given = parser.parse_args()
    llama_cpp = importlib.import_module("llama_cpp")
    warnings.simplefilter("ignore")
    kernels.set_num_threads(given.threads)
    print(
        f"Q8_0, {given.threads} threads, llama-cpp-python {llama_cpp.__version__}; medians of {given.rounds} rounds, ms"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            file = Path(folder) / f"{name}.gguf"
            export_gguf(folder_of(name, Path(folder)), file, "q8_0")
            compare(name, file, llama_cpp, given)


def compare(name: str, file: Path, llama_cpp: Any, given: argparse.Namespace) -> None:
    """Print the times of one model in all cases."""
    options = {"n_threads": given.threads, "n_threads_batch": given.threads, "n_batch": 4096, "n_ubatch": 4096}
    peer = llama_cpp.Llama(str(file), embedding=True, n_ctx=4096, verbose=False, **options)
    models = {dtype or "as stored": SentenceEncoder(file, dtype=dtype) for dtype in (None, "int8")}
    for case in CASES:
        texts = texts_of(next(iter(models.values())).tokenizer, SHAPES[case])
        calls = {"llama.cpp": lambda texts=texts: np.array(peer.embed(texts, normalize=True))}
        calls |= {
            label: lambda model=model, texts=texts: model.encode(texts, show_progress_bar=False)
            for label, model in models.items()
        }
        vectors = {label: call() for label, call in calls.items()}
        cosine = (vectors["llama.cpp"] * vectors["as stored"]).sum(axis=1).min()
        if not cosine > LEAST[name]:
            raise SystemExit(f"{name} {case}: the worst cosine is {cosine:.5f}, not timed")
        times = measure({label: Variant(call) for label, call in calls.items()}, given.rounds, 30.0)
        parts = [f"{name} {case:8} cosine {cosine:.5f}"]
        for label, each in times.items():
            ratio = np.median(times["llama.cpp"].samples / each.samples)
            parts.append(f"{label} {1e3 * np.median(each.samples):.2f} ({ratio:.2f})")
        print("  ".join(parts))


if __name__ == "__main__":
    main()
