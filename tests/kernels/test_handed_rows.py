"""Rows handed from step to step in low precision: who writes and who rounds them, and that no bit depends on it."""

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels._numba.low_precision import rounded_rows
from bertcore.kernels.affine import step as affine_step
from bertcore.kernels.gated_activation import step as gated_step
from bertcore.kernels.layer_norm import step as norm_step
from bertcore.kernels.linear.cpu import step as linear_step
from bertcore.kernels.program import Program
from tests.kernels.strategies import normal
from tests.kernels.test_program import Block, packed

WIDTH, TOKENS = 64, 37
# Elsewhere inputs stay float32 beside weights in bfloat16 (see _numba/dot.py).
where_inputs_are_rounded = pytest.mark.skipif(not linear_step.IS_ROUNDED, reason="bfloat16 is widened on this level")
BFLOAT16 = pytest.param("bfloat16", marks=where_inputs_are_rounded)
LOW = pytest.mark.parametrize("dtype", [BFLOAT16, "int8"])


def prepared(seed=1, columns=WIDTH, dtype="bfloat16", width=WIDTH, **options):
    array = normal(seed, (columns, width), np.float32, scale=0.1)
    if dtype == "int8" and options:
        return kernels.prepare_weight(*kernels.quantize_weight(array), backend="numba", **options)
    return kernels.prepare_weight(array, dtype=dtype, backend="numba")


def normed(x):
    return kernels.layer_norm(x, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32))


def hidden():
    return normal(9, (TOKENS, WIDTH), np.float32)


def values(program, kind):
    """The fields of the steps of a kind, in their order."""
    return [dict(zip(kind.names, step.values, strict=True)) for step in program.steps if step.kind is kind]


def roundings(program):
    """Of each product, whether it rounds its input itself."""
    return [step["input"] != 0 for step in values(program, linear_step.STEP)]


def handed(program, kind):
    """Of each step of a kind: None if it hands nothing over, else whether it writes no float32."""
    found = [dict(zip(rounded_rows.HANDED.names, step["handed"], strict=True)) for step in values(program, kind)]
    return [bool(it["is_alone"]) if it["address"] else None for it in found]


def check(compute, rounds, arrays=(hidden,)):
    """What is noted rounds so often, and gives the bits that it gives at once."""
    expected = compute(*(array() for array in arrays))
    program = Program()
    noted = compute(*(program.enter(array()) for array in arrays))
    assert roundings(program) == rounds
    for found, right in zip(*(it if isinstance(it, tuple) else (it,) for it in (noted, expected)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), right)


ONES = np.ones(WIDTH, np.float32)
WHOLE_ROWS = {
    "layer_norm": normed,
    "layer_norm of a sum": lambda x: kernels.layer_norm(x, ONES, residual=x),
    "rms_norm": lambda x: kernels.rms_norm(x, ONES),
    "affine": lambda x: kernels.affine(x, 2 * ONES, ONES),
    "affine of a sum": lambda x: kernels.affine(x, 2 * ONES, ONES, residual=x),
    "gated_activation": lambda x: kernels.gated_activation(x, "gelu"),
}


@LOW
@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_what_computes_rows_writes_what_the_product_reads(name, dtype):
    is_gated = name == "gated_activation"
    up, down = prepared(1, 2 * WIDTH if is_gated else WIDTH, dtype), prepared(2, dtype=dtype)
    check(lambda x: kernels.linear(WHOLE_ROWS[name](kernels.linear(x, up)), down), [True, False])
    program = Program()
    kernels.linear(WHOLE_ROWS[name](kernels.linear(program.enter(hidden()), up)), down)
    kinds = norm_step.STEP, affine_step.STEP, gated_step.STEP
    assert [is_alone for kind in kinds for is_alone in handed(program, kind)] == [True]


@pytest.mark.parametrize(
    ("dtype", "rounds"),
    [pytest.param("bfloat16", False, marks=where_inputs_are_rounded), ("int8", True)],
)
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
def test_an_activation_writes_what_the_product_reads(activation, dtype, rounds):
    """Not in bytes: their scale would have to be known before the row is."""
    up, down = prepared(1, 96, dtype), prepared(2, WIDTH, dtype, width=96)
    check(lambda x: kernels.linear(kernels.linear(x, up, activation=activation), down), [True, rounds])


@LOW
@pytest.mark.parametrize("width", [39, 40, 48, 72])
def test_rows_that_are_filled_up(dtype, width):
    """What does not fill whole words or tiles is rounded by the product, or filled up by the norm."""
    up, down = prepared(1, width, dtype), prepared(2, WIDTH, dtype, width=width)
    ones = np.ones(width, np.float32)
    noted = kernels.linear(kernels.linear(Program().enter(hidden()), up, activation="gelu"), down)
    after = kernels.linear(kernels.layer_norm(kernels.linear(Program().enter(hidden()), up), ones), down)
    at_once = kernels.linear(hidden(), up)
    np.testing.assert_array_equal(noted, kernels.linear(kernels.linear(hidden(), up, activation="gelu"), down))
    np.testing.assert_array_equal(after, kernels.linear(kernels.layer_norm(at_once, ones), down))


@LOW
def test_products_of_one_input_round_it_once(dtype):
    weights = [prepared(seed, dtype=dtype) for seed in range(3)]
    check(lambda x: tuple(kernels.linear(x, weight) for weight in weights), [True, False, False])

    def after_a_norm(x):
        x = normed(kernels.linear(x, weights[0]))
        return tuple(kernels.linear(x, weight) for weight in weights)

    check(after_a_norm, [True, False, False, False])


def test_other_factors_are_another_rounding():
    factors = [np.exp2(normal(seed, (WIDTH,), np.float32)) for seed in (1, 2)]
    one, other = (prepared(3, dtype="int8", input_scale=each) for each in factors)
    plain = prepared(4, dtype="int8")
    check(lambda x: tuple(kernels.linear(x, weight) for weight in (one, plain, other, one)), [True, True, True, False])

    def after_a_norm(x):
        x = normed(kernels.linear(x, plain))
        return tuple(kernels.linear(x, weight) for weight in (one, plain, one))

    check(after_a_norm, [True, False, True, False])


@where_inputs_are_rounded
def test_float32_that_nobody_reads_is_not_written():
    program, (x, cu_seqlens) = Program(), packed([5, 1, 31], WIDTH)
    block = Block(WIDTH, 96, 4, "bfloat16")
    block(block(program.enter(x), cu_seqlens), cu_seqlens)
    assert handed(program, linear_step.STEP) == [None, None, True, None] * 2
    assert handed(program, norm_step.STEP) == [False] * 3 + [None]  # their sums go on as residuals, too
    assert roundings(program) == [True, False, False, False] + [False] * 4


@where_inputs_are_rounded
def test_what_is_read_later_is_written():
    def read_by_a_residual(x):
        inner = kernels.linear(x, prepared(), activation="gelu")
        return kernels.linear(inner, prepared(2), residual=inner)

    def read_by_a_norm(x):
        inner = kernels.linear(x, prepared(), activation="gelu")
        return kernels.linear(inner, prepared(2)), normed(inner)

    def kept(x):
        inner = kernels.linear(x, prepared(), activation="gelu")
        return kernels.linear(inner, prepared(2)), inner

    for compute in (read_by_a_residual, read_by_a_norm, kept):
        check(compute, [True, False])


@LOW
def test_steps_that_have_run_hand_nothing_over(dtype):
    def read_in_between(x):
        inner = normed(kernels.linear(x, prepared(dtype=dtype)))
        assert np.asarray(inner).shape == (TOKENS, WIDTH)
        return kernels.linear(inner, prepared(2, dtype=dtype)), kernels.linear(inner, prepared(3, dtype=dtype))

    check(read_in_between, [True, False])


@where_inputs_are_rounded
def test_a_part_is_not_taken_for_the_whole():
    def halves(x):
        inner = kernels.linear(x, prepared(columns=2 * WIDTH), activation="gelu").reshape(2 * TOKENS, WIDTH)
        return kernels.linear(inner[:TOKENS], prepared(2)), kernels.linear(inner[TOKENS:], prepared(3))

    check(halves, [True, True, True])


@where_inputs_are_rounded
def test_what_changes_in_place_is_rounded_again():
    tables = kernels.rotary_tables(TOKENS, 16)

    def turned(x):
        inner = kernels.linear(x, prepared(), activation="gelu")
        before = kernels.linear(inner, prepared(2))
        heads = kernels.rotary(inner.reshape(TOKENS, 4, 16), *tables, inplace=True)
        return before, kernels.linear(heads.reshape(TOKENS, WIDTH), prepared(3))

    check(turned, [True, False, True])


@LOW
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e-40])
def test_special_values_are_rounded_alike(dtype, special):
    weight = prepared(dtype=dtype)

    def spoiled():
        x = hidden()
        x[3, 5] = special
        return x

    check(lambda x: kernels.linear(normed(kernels.linear(x, weight)), weight), [True, False], [spoiled])


@where_inputs_are_rounded
def test_an_output_alone_is_as_good_as_both():
    """The float32 of a pass is overwritten by nobody: the same bits, kept or not."""
    inner = []

    def keeps(x):
        inner.append(kernels.linear(x, prepared(), activation="gelu"))
        return kernels.linear(inner[-1], prepared(2))

    def lets_go(x):
        return kernels.linear(kernels.linear(x, prepared(), activation="gelu"), prepared(2))

    np.testing.assert_array_equal(keeps(Program().enter(hidden())), lets_go(Program().enter(hidden())))
    np.testing.assert_array_equal(inner[0], kernels.linear(hidden(), prepared(), activation="gelu"))
