"""The results of an ARM CPU beside the definition: one process for all, because Numba takes a minute to start there.

python -m tests.kernels.arm_run LEVEL FOLDER CPU [compile]: run the kernels of a level and write FOLDER/found.json and
FOLDER/found.npz; with `compile`, on any machine, only compile them into the cache that the run will use. CPU is what
LLVM is to take for the CPU's name.
"""

import json
import sys
import time
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

SIZES = [(1, 39, 13), (2, 64, 24), (5, 7, 3), (39, 160, 97), (131, 776, 50), (8, 0, 5)]
KINDS = ("float32", "bfloat16", "int8", "int8_weight_only")


def of_conformance():
    """(name, check) of the cases of an operation, in float32."""
    from tests.kernels.conformance.cases import CASES
    from tests.kernels.conformance.checks import assert_conforms

    for operation in ("softmax", "layer_norm", "gelu", "linear", "attention"):
        for case in list(CASES[operation].values()):
            yield (
                f"{operation}, {case.name}",
                lambda case=case, operation=operation: assert_conforms(
                    case, operation, "numba", np.dtype(np.float32), ["contiguous"]
                ),
            )


def linear(kind, rows, in_features, out_features):
    """Return what a product with a prepared weight gives on Numba and by definition."""
    from bertcore import kernels
    from bertcore.kernels._numba import LEVEL
    from tests.kernels.arrays import normal

    x, residual = (normal(seed, (rows, width), np.float32) for seed, width in ((1, in_features), (4, out_features)))
    weight = normal(2, (out_features, in_features), np.float32, scale=max(in_features, 1) ** -0.5)
    bias = normal(3, (out_features,), np.float32)
    dtype = None if kind == "float32" else kind
    weights = [kernels.prepare_weight(weight, dtype=dtype, backend=backend) for backend in ("numba", "numpy")]
    if kind == "bfloat16" and not LEVEL.bfloat16_dot:  # the weight is widened, the rows are not rounded
        weights[1] = weights[0].to_array().astype(np.float32)
    return [
        kernels.linear(x, given, bias, activation="relu", residual=residual, backend=backend)
        for given, backend in zip(weights, ("numba", "numpy"), strict=True)
    ]


def check_linear(found, kind, *size):
    """Compare a product with its definition; one in int8 goes to `found`, to be compared with another machine's."""
    from bertcore.kernels._numba import LEVEL
    from tests.tolerances import assert_close

    result, expected = linear(kind, *size)
    if kind == "int8":
        found[f"int8 {size}"] = result
    # Sums of bfloat16 are rounded in the middle where instructions add several products.
    factor = 4 if kind == "bfloat16" and LEVEL.bfloat16_dot else 2
    assert_close(result, expected, name=f"linear {kind} {size}", factor=factor)


def check_rows_alone(kind):
    """Rows have the same bits alone and beside others."""
    from bertcore import kernels
    from tests.kernels.arrays import normal

    x, weight = normal(1, (131, 100), np.float32), normal(2, (29, 100), np.float32)
    prepared = kernels.prepare_weight(weight, dtype=None if kind == "float32" else kind, backend="numba")
    together = kernels.linear(x, prepared, backend="numba")
    for rows in ((0, 1), (130, 131), (3, 5), (64, 71)):
        np.testing.assert_array_equal(
            kernels.linear(x[slice(*rows)], prepared, backend="numba"), together[slice(*rows)]
        )


def check_attention():
    """Attention in bfloat16 against its definition."""
    from bertcore.kernels._numba import LEVEL
    from tests.kernels.attention_forms import arguments, attend
    from tests.tolerances import assert_close

    for head_dim in (39, 64):
        problem = arguments("plain", [1, 2, 39, 0, 145], dtype=np.float32, head_dim=head_dim)
        found = attend(problem, compute_dtype="bfloat16", backend="numba")
        compute_dtype = "bfloat16" if LEVEL.bfloat16_dot else None
        expected = attend(problem, compute_dtype=compute_dtype, backend="numpy")
        assert_close(found, expected, name="attention", factor=1000 if compute_dtype else 1, at_least=1)


def check_model(found, folder, kind):
    """A BERT with weights of a kind, against float32 on NumPy."""
    from bertcore import AutoModel, use_backend

    ids = np.random.default_rng(0).integers(1, 99, (3, 39))
    with use_backend("numpy"):
        expected = AutoModel.from_pretrained(folder)(ids).last_hidden_state
    result = AutoModel.from_pretrained(folder, dtype=kind)(ids).last_hidden_state
    found[f"model {kind}"] = result
    cosines = (result * expected).sum(-1) / np.sqrt((result**2).sum(-1) * (expected**2).sum(-1))
    assert cosines.min() > {"float32": 1 - 1e-6, "bfloat16": 0.9995}.get(kind, 0.99), cosines.min()


def check_family(name):
    """A small model of a family against NumPy."""
    from bertcore import AutoModel, use_backend
    from tests.tiny_families import drawn_anew, tiny_config
    from tests.tolerances import assert_close

    model = drawn_anew(AutoModel.from_config(tiny_config(name), seed=0))
    ids = np.random.default_rng(0).integers(6, 90, (2, 13))
    with use_backend("numpy"):
        expected = model(ids).last_hidden_state
    assert_close(model(ids).last_hidden_state, expected, name=name, factor=20)


def check_training(folder):
    """A step against NumPy's: loss, gradients and parameters."""
    from bertcore import AutoModelForMaskedLM, use_backend, value_and_grad
    from bertcore.training.optimizers import AdamW

    ids = np.random.default_rng(1).integers(1, 99, (4, 23))
    batch = {"input_ids": ids, "labels": ids}

    def step():
        model = AutoModelForMaskedLM.from_pretrained(folder)
        out, grads = value_and_grad(model)(**batch)
        AdamW(model, lr=1e-3).step(grads)
        return out.loss, grads, model(**batch).loss

    loss, grads, after = step()
    with use_backend("numpy"):
        exact, expected, exact_after = step()
    np.testing.assert_allclose((loss, after), (exact, exact_after), rtol=1e-4)
    assert after < loss
    scale = max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-5 * scale, err_msg=name)


def checks(found, folder):
    """Yield (name, check)."""
    from tests.tiny_families import runnable

    yield from of_conformance()
    folder = folder / "model"
    for kind in KINDS:
        for size in SIZES:
            yield f"linear {kind} {size}", lambda kind=kind, size=size: check_linear(found, kind, *size)
        yield f"rows alone, {kind}", lambda kind=kind: check_rows_alone(kind)
        yield f"model, {kind}", lambda kind=kind: check_model(found, folder, kind)
    yield "attention in bfloat16", check_attention
    for name in runnable():
        yield name, lambda name=name: check_family(name)
    yield "training", lambda: check_training(folder)


def main(level, folder, cpu, mode="run"):
    from tests.kernels import arm_code

    if mode == "compile":
        arm_code.pretend(level, cpu)
        arm_code.compile_only()
    llvm.get_host_cpu_name = lambda: cpu
    from bertcore.kernels._numba import LEVEL
    from bertcore.kernels._numba.compile.cache import compilations

    assert LEVEL.name == level, LEVEL.name
    folder, found, failures, count = Path(folder), {}, [], 0
    start = time.monotonic()
    with compilations() as compiled:
        for name, check in checks(found, folder):
            count += 1
            try:
                check()
            except Exception as error:  # every check is to be tried; those of a run that computes nothing all fail
                failures.append(f"{name}: {type(error).__name__}: {error}")
    seconds = time.monotonic() - start
    report = {"level": level, "checks": count, "failures": failures, "compiled": compiled, "seconds": seconds}
    if mode == "run":
        np.savez(folder / "found.npz", **found)
        (folder / "found.json").write_text(json.dumps(report))
    else:
        print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
