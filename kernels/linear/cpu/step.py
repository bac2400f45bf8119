"""Linear as a step of a program."""

import numpy as np
from numba import types

from ..._numba import by_types, inline_helper, num_threads
from ..._numba.compile.isa import WORD_BYTES
from ..._numba.low_precision import QUANTIZED, ROUNDED, rows_of_bfloat16, rows_of_bytes
from ..._numba.products import WEIGHT_PANEL_VECTORS
from ..._numba.rows import share
from ..._numba.simd import lanes
from ..._numba.steps import ADDRESS, BFLOAT16, FLOAT, INT8, INT32, UINT8, array_at, record
from ...activation_names import activation_code
from ...deferred import are_plain
from . import PackedWeight, run_floats
from .low_precision import GROUP_ROWS, PANEL_WORDS, code_of_rounded, quantize_rows, round_rows, run_bfloat16, run_int8

STEP = record(
    ("input", ADDRESS),
    ("rows", np.intp),
    ("in_features", np.intp),
    ("input_scale", ADDRESS),  # of an int8 weight, or 0
    ("panels", ADDRESS),
    ("scale", ADDRESS),  # of an int8 weight
    ("column_sums", ADDRESS),
    ("panel_count", np.intp),
    ("depth", np.intp),  # in words
    ("out_features", np.intp),
    ("bias", ADDRESS),  # 0 if absent, like the residual
    ("residual", ADDRESS),
    ("activation", np.intp),
    ("output", ADDRESS),
    ("rounded", ADDRESS),  # rows of the input in low precision: ROUNDED or QUANTIZED
    ("zero", ADDRESS),  # of each row in int8, like its step
    ("step_size", ADDRESS),
)
IS_ROUNDED = ROUNDED is not np.float32  # the input, with weights in bfloat16
_ROUNDED, _QUANTIZED = ROUNDED(0), QUANTIZED(0)
_HALVES = WORD_BYTES // 2  # bfloat16 in a word
# Functions that allocate memory for the rounded rows of an input, by the storage of the weight.
_MAKE_ROUNDED = {np.int8: rows_of_bytes} | ({np.uint16: rows_of_bfloat16} if IS_ROUNDED else {})
STORAGE = {"float32": FLOAT, "uint16": BFLOAT16, "int8": INT8, "uint8": UINT8}  # by the dtype of a weight's panels


def deferred_linear(program, input, weight, bias, activation, residual):
    """Record a step of `linear` with a packed weight of float32 or less; return None if that is impossible."""
    if not isinstance(weight, PackedWeight) or not input.size or not are_plain(input, bias, residual):
        return None
    storage = STORAGE.get(weight.panels.dtype.name)
    if storage is None or not program.takes(storage):
        return None
    rows, depth = input.shape[0], weight.panels.shape[1]
    output, make_rounded = program.empty((rows, weight.out_features), np.float32), _MAKE_ROUNDED.get(type(storage))
    rounded = (None, None, None) if make_rounded is None else make_rounded(program.empty, *input.shape)
    arrays = {
        "input": input, "input_scale": weight.input_scale, "panels": weight.panels,
        "scale": weight.column_scales, "column_sums": weight.column_sums, "bias": bias, "residual": residual,
        "output": output, "rounded": rounded[0], "zero": rounded[1], "step_size": rounded[2],
    }  # fmt: skip
    program.record(
        STEP,
        num_threads(),
        rows=rows,
        in_features=weight.in_features,
        panel_count=len(weight.panels),
        depth=depth,
        out_features=weight.out_features,
        activation=activation_code(activation) if make_rounded is None else code_of_rounded(activation),
        **{name: 0 if array is None else program.address(array) for name, array in arrays.items()},
    )
    return output


@by_types
def has_two_phases(storage):
    """Return whether the rows of an input are rounded before the product."""
    is_rounded = storage == types.int8 or (storage == types.uint16 and IS_ROUNDED)
    return lambda storage: is_rounded


@by_types
def prepare_step(step, storage, task, tasks):
    """Round a task's share of the input."""

    def round_to_bfloat16(step, storage, task, tasks):
        rows, depth, width = step.rows, step.depth, step.in_features
        x, rounded = (
            array_at(step.input, (rows, width), FLOAT),
            array_at(step.rounded, (rows, _HALVES * depth), _ROUNDED),
        )
        round_rows(x, rounded, share(rows, task, tasks), share(rows, task + 1, tasks))

    def quantize(step, storage, task, tasks):
        rows, depth, width = step.rows, step.depth, step.in_features
        x, levels = (
            array_at(step.input, (rows, width), FLOAT),
            array_at(step.rounded, (rows, WORD_BYTES * depth), _QUANTIZED),
        )
        factors = array_at(step.input_scale, (width if step.input_scale != 0 else 0,), FLOAT)
        zeros, steps = array_at(step.zero, (rows,), INT32), array_at(step.step_size, (rows,), FLOAT)
        quantize_rows(x, factors, (levels, zeros, steps), share(rows, task, tasks), share(rows, task + 1, tasks))

    forms = {types.uint16: round_to_bfloat16, types.int8: quantize} if IS_ROUNDED else {types.int8: quantize}
    return forms.get(storage, lambda step, storage, task, tasks: None)


@inline_helper
def _output_and_epilogue(step):
    """Return the output of a step, and (bias, residual, the activation's code)."""
    rows, columns = step.rows, step.out_features
    bias = array_at(step.bias, (columns if step.bias != 0 else 0,), FLOAT)
    residual = array_at(step.residual, (rows if step.residual != 0 else 0, columns), FLOAT)
    return array_at(step.output, (rows, columns), FLOAT), (bias, residual, step.activation)


@by_types
def run_step(step, counter, scratch, storage):
    """Compute tasks of a step's product until all are done; `scratch` as for `run_product`."""
    elements = max(32 // storage.bitwidth, 1)  # per word

    def floats(step, counter, scratch, storage):
        rows, width = step.rows, step.in_features
        output, epilogue = _output_and_epilogue(step)
        columns = elements * WEIGHT_PANEL_VECTORS * lanes(FLOAT)
        panels = array_at(step.panels, (step.panel_count, step.depth, columns), storage)
        x, strides = array_at(step.input, (rows * width,), FLOAT), (width, 1, width * GROUP_ROWS)
        run_floats(x, strides, panels, output, epilogue, counter, scratch)

    def bfloat16(step, counter, scratch, storage):
        output, epilogue = _output_and_epilogue(step)
        panels = array_at(step.panels, (step.panel_count, step.depth, _HALVES * PANEL_WORDS), BFLOAT16)
        rounded = array_at(step.rounded, (step.rows, _HALVES * step.depth), _ROUNDED)
        run_bfloat16(rounded, panels, output, epilogue, counter, scratch)

    def int8(step, counter, scratch, storage):
        rows, count, depth, width = step.rows, step.panel_count, step.depth, PANEL_WORDS
        output, epilogue = _output_and_epilogue(step)
        panels = array_at(step.panels, (count, depth, WORD_BYTES * width), INT8)
        scales = array_at(step.scale, (count * width,), FLOAT)
        column_sums = array_at(step.column_sums, (count * width,), INT32)
        levels, zeros = (
            array_at(step.rounded, (rows, WORD_BYTES * depth), _QUANTIZED),
            array_at(step.zero, (rows,), INT32),
        )
        steps = array_at(step.step_size, (rows,), FLOAT)
        run_int8((levels, zeros, steps), (panels, scales, column_sums), output, epilogue, counter, scratch)

    bfloat16 = bfloat16 if IS_ROUNDED else floats
    return {types.float32: floats, types.uint16: bfloat16, types.int8: int8, types.uint8: floats}[storage]
