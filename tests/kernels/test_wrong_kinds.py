"""The same wrong input is the same class of error in every operation: TypeError for a wrong kind, else ValueError."""

import numpy as np
import pytest

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels.arguments import Axis, Choice, Integer, Number, Probability, Seed
from bertcore.kernels.operation import OPERATIONS
from tests.kernels.arrays import f32
from tests.kernels.conformance.cases import CASES
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("on_numpy")

WRONG = {
    "an integer": 3, "None": None, "a text": "x", "bytes": b"x", "nested lists": [[1.0]], "a tuple": (f32(2),),
    "a scalar": np.float32(1.5), "objects": np.array([None, 1]), "texts": np.array(["a"]), "a mapping": {},
    "a masked array": np.ma.ones(3), "a matrix": np.matrix([[1.0]]), "a complex number": 1j, "an iterator": iter(()),
}  # fmt: skip
A_NUMBER, AN_INTEGER = {"an integer", "a scalar"}, {"an integer"}
# Of a right kind: such a value is right, or raises ValueError.
RIGHT = {Number: A_NUMBER, Probability: A_NUMBER, Axis: AN_INTEGER, Integer: AN_INTEGER, Seed: AN_INTEGER,
         Choice: {"a text", "None"}}  # fmt: skip
OF_ATTENTION = {"scale": {*A_NUMBER, "None"}, "window": {"an integer", "None", "nested lists", "a tuple"}}


def right_kinds(operation, name):
    """Return the entries of WRONG that an argument takes."""
    argument = OPERATIONS[operation].arguments.get(name)
    optional = {"None"} if getattr(argument, "optional", False) else set()
    return optional | RIGHT.get(type(argument), set()) | (OF_ATTENTION.get(name, set()) if argument else set())


def calls():
    """Yield each argument of each operation with a record: (operation, right arguments, the argument's name)."""
    for operation, cases in CASES.items():
        seen = set()
        for case in sorted(cases.values(), key=lambda case: -sum(it is not None for it in case.arguments.values())):
            given = {name: it for name, it in public_arguments(case.arguments).items() if it is not None}
            for name in given.keys() - seen:
                yield pytest.param(operation, given, name, id=f"{operation}-{name}")
            seen |= given.keys()


def check_kinds(call, name, right=()):
    """`call` refuses every value of WRONG but `right` as a wrong kind of the argument `name`."""
    for kind, value in WRONG.items():
        if kind not in right:
            refuses(TypeError, rf"^{name}\b", call, value)


@pytest.mark.parametrize("operation, given, name", sorted(calls(), key=lambda param: param.id))
def test_arguments_of_operations(operation, given, name):
    right = right_kinds(operation, name)
    if name in ("cu_seqlens", "cu_seqlens_k", "cu_seqlens_q", "attn_mask", "bias", "relative"):
        right = right | {"None"}  # attention's and maxsim's constraints on several arguments
    check_kinds(lambda value: getattr(kernels, operation)(**given | {name: value}), name, right)


# Operations without a record: arrays, lists of arrays, and numbers by name.
OTHERS = {
    "clip_norm": {"arrays": [f32(3)], "max_norm": 1.0},
    "joint_norm": {"arrays": [f32(3)]},
    "cast": {"arrays": [f32(3)], "outputs": [f32(3).astype(np.float16)]},
    "adam_update": {
        **{name: [f32(3)] for name in ("parameter", "grad", "first_moment", "second_moment")},
        "lr": 0.1,
        "eps": 0.1,
        "weight_decay": 0.1,
        "step": 1,
        "rule": "lamb",
        "betas": (0.9, 0.9),
    },
    "muon_update": {
        **{name: [f32(3, 3)] for name in ("parameter", "grad", "momentum")},
        "lr": 0.1,
        "beta": 0.9,
        "weight_decay": 0.1,
    },
    "prepare_weight": {"weight": f32(4, 3)},
    "quantize_weight": {"weight": f32(4, 3), "per_group": True},
    "linear_weight_gradient": {"grad_output": f32(2, 4), "input": f32(2, 3)},
}
LISTS = [(operation, name) for operation, given in OTHERS.items() for name in given if isinstance(given[name], list)]
RIGHT_OF_OTHERS = {float: A_NUMBER, int: AN_INTEGER, str: {"a text"}, tuple: {"nested lists", "a tuple"}}


def called(operation, **changed):
    given = {name: [*it] if isinstance(it, list) else it for name, it in OTHERS[operation].items()}
    return getattr(kernels, operation)(**given | changed)


@pytest.mark.parametrize(
    "operation, name", [(operation, name) for operation, given in OTHERS.items() for name in given]
)
def test_arguments_of_other_operations(operation, name):
    value = OTHERS[operation][name]
    right = RIGHT_OF_OTHERS.get(type(value), {"a tuple", "nested lists"} if isinstance(value, list) else set())
    check_kinds(lambda value: called(operation, **{name: value}), name, right)


@pytest.mark.parametrize("operation, name", LISTS)
def test_lists_of_arrays(operation, name):
    check_kinds(lambda value: called(operation, **{name: [value]}), name)
    called(operation, **{name: tuple(OTHERS[operation][name])})
    if sum(operation == other for other, _ in LISTS) > 1:  # of one length and of the same shapes
        for wrong in ([], OTHERS[operation][name] * 2, [f32(5, 2)]):
            refuses(ValueError, None, called, operation, **{name: wrong})


WRONG_VALUES = [
    ("joint_norm", {"arrays": []}),
    ("clip_norm", {"max_norm": -1.0}),
    ("adam_update", {"betas": (0.9,)}),
    ("adam_update", {"betas": (0.9, 1.0)}),
    ("adam_update", {"step": 0}),
    ("adam_update", {"lr": -1.0}),
    ("muon_update", {"beta": 1.0}),
    ("prepare_weight", {"weight": f32(3)}),
    ("prepare_weight", {"weight": f32(4, 3), "dtype": "int4"}),
    ("quantize_weight", {"weight": f32(3)}),
    ("linear_weight_gradient", {"input": f32(3, 3)}),
]


@pytest.mark.parametrize("operation, changed", WRONG_VALUES)
def test_wrong_values(operation, changed):
    refuses(ValueError, None, called, operation, **changed)
