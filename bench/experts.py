"""nomic-embed-text-v2's mixture of experts against computing all experts: python -m bench.experts [--tokens N ...]

A mixture of v2's size (8 experts of 3,072, 2 for a token) computes the experts that the router chooses; "all" is the
two products that compute every expert for every token. Multiplications are counted from the shapes of the products.
"""

import argparse
from unittest import mock

import numpy as np

from bench.measure import Variant, measure
from bench.options import positive
from bertcore import kernels
from bertcore.families.nomic_bert import MixtureOfExperts, MixtureSpec
from bertcore.kernels.linear import LINEAR
from bertcore.nn import functional
from bertcore.nn.spec import LayerSpec
from bertcore.passes import Pass

NAMES = {"router": "router", "experts_expand": "w1", "experts_contract": "w2", "experts_bias": "bias"}
LAYER = LayerSpec(hidden_size=768, intermediate_size=3072, num_heads=12, absent=frozenset({"feed_forward_norm"}))


def multiplications(call) -> int:
    """Return the number of multiplications in the products of a call."""
    counts, forward = [], LINEAR.forward

    def counted(backend, input, weight, *others, **options):
        counts.append(len(input) * weight.shape[0] * weight.shape[1])
        return forward(backend, input, weight, *others, **options)

    with mock.patch.object(LINEAR, "forward", counted):
        call()
    return sum(counts)


def main() -> None:
    """Count, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.experts", description=__doc__.partition(":")[0])
    parser.add_argument("--tokens", type=positive, nargs="+", default=[1, 16, 128, 1024], help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "int8"], default="float32")
    parser.add_argument("--rounds", type=positive, default=15, help="(default: 15)")
    given, rng = parser.parse_args(), np.random.default_rng(0)
    with kernels.use_backend("numba"):
        mixture, run = MixtureOfExperts(NAMES, LAYER, MixtureSpec(2, 8, 2)), Pass.begin()
        for parameter in mixture.parameters():
            parameter.initialise(rng, 0.02, given.dtype)
        weights = mixture.expand.array(), mixture.contract.array().reshape(8, 768, 3072).transpose(1, 0, 2)
        matrices = [np.ascontiguousarray(weight, np.float32).reshape(len(weight), -1) for weight in weights]
        form = {} if given.dtype == "float32" else {"dtype": given.dtype}
        expand, contract = (kernels.prepare_weight(matrix, **form) for matrix in matrices)
        for tokens in given.tokens:
            hidden = rng.normal(size=(tokens, 768)).astype(np.float32)

            def chosen(hidden=hidden):
                return mixture(run, hidden, None)

            def everything(hidden=hidden):
                expanded = functional.linear(run, hidden, expand, None, activation="gelu")
                return functional.linear(run, expanded, contract, None, hidden)

            few, whole = multiplications(chosen), multiplications(everything)
            times = measure({"chosen": Variant(chosen), "all": Variant(everything)}, given.rounds, 10.0)
            ratio = times["all"].ratio(times["chosen"])
            print(
                f"{tokens:6} tokens {given.dtype}: {few / 1e6:9.1f} of {whole / 1e6:9.1f} million multiplications, "
                f"{1e3 * times['chosen'].median:8.2f} of {1e3 * times['all'].median:8.2f} ms, {ratio:.2f} times as fast"
            )


if __name__ == "__main__":
    main()
