"""Errors of hidden states against transformers in float64: python -m bench.accuracy [--models N] (extra `parity`)

For random BERT models of awkward sizes (tests/parity_cases.py): the largest error of any hidden state, relative to its
scale, on each CPU backend and for PyTorch in float32. The exit status is 1 above the promised 2e-5.
"""

import argparse

import numpy as np

from bench.options import positive
from bertcore import AutoModel, use_backend
from tests.models.family_parity import OUTPUT, run_torch
from tests.parity_cases import bert_case


def hidden_states(outputs: dict[str, np.ndarray], mask: np.ndarray) -> list[np.ndarray]:
    """Return the hidden states among the outputs of `run_torch`, in order, zero at padding."""
    return [array * mask[..., None] for name, array in outputs.items() if name.startswith("hidden_states")]


def error(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    """Return the largest difference of any pair, relative to the largest magnitude of its exact value."""
    pairs = zip(found, truth, strict=True)
    return max(float(np.abs(ours - exact).max() / np.abs(exact).max()) for ours, exact in pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__.partition(":")[0])
    parser.add_argument("--models", type=positive, default=24, help="random models (default: 24)")
    errors = {"numpy": [], "numba": [], "PyTorch float32": []}
    count = parser.parse_args().models
    for seed in range(count):
        case = bert_case(seed)
        batch = {name: array for name, array in case.inputs.items() if name != "labels"}
        truth, single = (
            hidden_states(run_torch(case.model, batch, {}, double=double)[0], batch["attention_mask"])
            for double in (True, False)
        )
        errors["PyTorch float32"].append(error(single, truth))
        for backend in ("numpy", "numba"):
            with use_backend(backend):
                out = AutoModel.from_pretrained(case.folder)(**batch, output_hidden_states=True)
            errors[backend].append(error(list(out.hidden_states), truth))
    for name, values in errors.items():
        print(f"{name:16} {max(values):.1e} at most, over {count} models")
    raise SystemExit(max(*errors["numpy"], *errors["numba"]) > OUTPUT)


if __name__ == "__main__":
    main()
