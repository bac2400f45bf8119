"""Contracts of all operations: shapes, dtypes, kinds of arguments, and their errors."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels import dispatch, use_backend
from bertcore.kernels.arguments import Axis, Choice, Integer, Number, Probability, Seed
from bertcore.kernels.operation import OPERATIONS
from tests.kernels.arrays import backward, f32
from tests.kernels.attention_forms import DENSE, OFFSETS, PACKED
from tests.kernels.conformance.cases import CASES
from tests.kernels.strategies import normal
from tests.refusals import refuses
from tests.tolerances import assert_close, assert_same_arrays

pytestmark = pytest.mark.usefixtures("on_numpy")


def test_defaults():
    x = f32(3, 7)
    ones, zeros = np.ones(7, np.float32), np.zeros(7, np.float32)
    np.testing.assert_array_equal(kernels.softmax(x), kernels.softmax(x, 1))
    np.testing.assert_array_equal(kernels.layer_norm(x), kernels.layer_norm(x, ones, zeros, 1e-5))
    np.testing.assert_array_equal(kernels.gelu(x), kernels.gelu(x, "none", bias=zeros))
    np.testing.assert_array_equal(kernels.linear(x, x), kernels.linear(x, x, np.zeros(3, np.float32)))
    np.testing.assert_array_equal(kernels.attention(*DENSE), kernels.attention(*DENSE, scale=8**-0.5))
    packed = kernels.attention(*PACKED, cu_seqlens=OFFSETS)
    np.testing.assert_array_equal(packed, kernels.attention(*PACKED, cu_seqlens=OFFSETS, cu_seqlens_k=OFFSETS))
    target = np.array([1, -100, 2])
    mean = kernels.cross_entropy(x, target)
    assert mean.shape == () and mean.dtype == np.float32
    losses = kernels.cross_entropy(x, target, ignore_index=-100, reduction="none")
    np.testing.assert_allclose(mean, losses.sum() / 2, rtol=1e-6)


def test_attention_returns_what_is_asked_for():
    output = kernels.attention(*DENSE)
    assert isinstance(output, np.ndarray)
    both = kernels.attention(*DENSE, return_lse=True, return_probs=True)
    assert [array.shape for array in both] == [(2, 4, 5, 8), (2, 4, 5, 2), (2, 4, 5, 5)]
    assert [array.shape for array in kernels.attention(*DENSE, return_probs=True)] == [(2, 4, 5, 8), (2, 4, 5, 5)]
    packed = kernels.attention(*PACKED, cu_seqlens=OFFSETS, return_lse=True, return_probs=True)
    assert [array.shape for array in packed] == [(7, 4, 8), (4, 7, 2), (2, 4, 4, 4)]


@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("shape, keys, offsets", [
    ((7, 4, 8), (7, 8), OFFSETS),
    ((0, 4, 8), (0, 8), [0, 0]),
    ((2, 4, 5, 8), (2, 5, 8), None),
    ((2, 4, 5, 8), (2, 0, 8), None),
])  # fmt: skip
def test_attention_writes_gradients_where_out_says(place, heads_k, shape, keys, offsets):
    """The targets are views of larger arrays; the rest of these stays."""
    backend, to, back = place
    shapes = [shape, *[(keys[0], heads_k, *keys[1:])] * 2]
    whole = [to(np.full((first, heads + 1, *others), 7, np.float32)) for first, heads, *others in shapes]
    relative = kernels.RelativePositions(to(np.arange(5)), *(to(f32(5, 4, 8)) for _ in range(2)))
    options = {"cu_seqlens": None if offsets is None else to(np.array(offsets)), "relative": relative}
    output, saved = kernels.attention(*(to(f32(*it)) for it in shapes), save=True, backend=backend, **options)
    expected, found = (
        kernels.attention_backward(output, saved, out=out, backend=backend)
        for out in (None, tuple(array[:, 1:] for array in whole))
    )
    for own, wanted, array in zip(found[:3], expected[:3], map(back, whole), strict=True):
        assert (array[:, 0] == 7).all()
        for gradient in (array[:, 1:], back(own)):
            np.testing.assert_array_equal(gradient, back(wanted))
    np.testing.assert_array_equal(*(back(it.relative.position_key) for it in (found, expected)))


def test_a_bias_in_a_broadcast_view_gets_a_gradient_for_every_entry():
    full = np.zeros((2, 4, 5, 5), np.float32)
    view = np.broadcast_to(np.float32(0), full.shape)
    expected, found = (backward("attention", DENSE[0], *DENSE, bias=bias).bias for bias in (full, view))
    np.testing.assert_array_equal(found, expected)


def test_the_mean_over_no_row_is_nan_and_its_gradient_zero():
    x, target = f32(2, 3), np.array([-100, -100])
    assert np.isnan(kernels.cross_entropy(x, target))
    assert not backward("cross_entropy", np.ones((), np.float32), x, target).any()


def test_attention_hands_over_rows_of_unit_stride(monkeypatch):
    seen, find = [], dispatch.implementation

    def spy(package, backend):
        def noted(computed, *arrays):
            seen.extend(array for array in arrays if getattr(array, "ndim", 0) == 4)
            return computed(*arrays)

        names = "attention", "attention_backward"
        return SimpleNamespace(**{name: partial(noted, getattr(find(package, backend), name)) for name in names})

    monkeypatch.setattr(dispatch, "implementation", spy)
    across = normal(2, (2, 4, 8, 5), np.float32).swapaxes(2, 3)
    output, saved = kernels.attention(across, across, across, save=True)
    kernels.attention_backward(across, saved)
    assert len(seen) == 3 + 6 and all(array.strides[-1] == 4 for array in seen)
    np.testing.assert_array_equal(output, kernels.attention(*(across.copy(order="C"),) * 3))


class TestPreparedWeight:
    weight = f32(4, 3)
    x = f32(2, 3)

    def test_says_what_it_is(self):
        prepared = kernels.prepare_weight(self.weight)
        assert (prepared.backend, prepared.shape, prepared.dtype) == ("numpy", (4, 3), np.float32)
        assert (prepared.out_features, prepared.in_features) == (4, 3)
        assert "numpy" in repr(prepared) and "float32" in repr(prepared)
        np.testing.assert_array_equal(prepared.to_array(), self.weight)

    def test_belongs_to_its_backend(self):
        for_numba = kernels.prepare_weight(self.weight, backend="numba")
        for_numpy = kernels.prepare_weight(self.weight, backend="numpy")
        for weight, other in ((for_numba, "numpy"), (for_numpy, "numba")):
            with pytest.raises(ValueError, match=rf"weight was prepared for backend '{weight.backend}'.*'{other}'"):
                kernels.linear(self.x, weight, backend=other)
            with use_backend(other), pytest.raises(ValueError, match="weight was prepared for"):
                kernels.linear(self.x, weight)
            with use_backend("auto"):
                assert_close(kernels.linear(self.x, weight), self.x @ self.weight.T)
                backward("linear", f32(2, 4), self.x, weight)

    @pytest.mark.parametrize("backend", ["numpy", "numba"])
    def test_its_scale_is_read_only(self, backend):
        prepared = kernels.prepare_weight(self.weight, dtype="int8", backend=backend)
        assert prepared.scale.shape == (4,)
        with pytest.raises(ValueError, match="read-only"):
            prepared.scale[0] = 0


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("dtype, large", [(np.float32, 3e38), pytest.param(np.float64, 1e300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("eps", [1e-5, 1e10])
def test_layer_norm_of_equal_numbers_however_large(backend, dtype, large, eps):
    """Their deviation is sqrt(eps), though eps is nothing beside the squares."""
    x, grad = np.full((2, 7), [[large], [-large]], dtype), normal(1, (2, 7), dtype)
    np.testing.assert_array_equal(kernels.layer_norm(x, eps=eps, backend=backend), np.zeros_like(x))
    found, *_ = backward("layer_norm", grad, x, eps=eps, backend=backend)
    assert_close(found, (grad - grad.astype(np.float64).mean(1, keepdims=True)) / np.sqrt(eps))


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


def richest_calls():
    """Yield (operation, arguments by name in float32) of the case of each operation with the most arguments."""
    for operation, cases in CASES.items():
        given = max(
            ({name: narrow(it) for name, it in case.arguments.items() if it is not None} for case in cases.values()),
            key=richness,
        )
        yield operation, given


def richness(given):
    """The number of arguments, then whether all arrays have several elements."""
    return len(given), min(np.size(it) > 1 for it in given.values() if isinstance(it, np.ndarray))


def narrow(value):
    return value.astype(np.float32) if getattr(value, "dtype", None) == np.float64 else value


def calls():
    """Yield each argument of each operation with a record: (operation, right arguments, the argument's name)."""
    for operation, cases in CASES.items():
        seen = set()
        for case in sorted(cases.values(), key=lambda case: -sum(it is not None for it in case.arguments.values())):
            arguments = {name: narrow(it) for name, it in case.arguments.items()}
            given = {name: it for name, it in public_arguments(arguments).items() if it is not None}
            for name in given.keys() - seen:
                yield pytest.param(operation, given, name, id=f"{operation}-{name}")
            seen |= given.keys()


def check_kinds(call, name, right=()):
    """`call` refuses every value of WRONG but `right` as a wrong kind of the argument `name`."""
    for kind, value in WRONG.items():
        if kind not in right:
            refuses(TypeError, rf"^{name}\b", call, value)


OF_FLOAT32 = (np.nan, np.inf, 10**400, 1e-60, 1e-39, 1e39)
# Values of a right kind that are refused.
OUT_OF_RANGE = {
    "eps": (-1e-5, *OF_FLOAT32),
    "scale": OF_FLOAT32,
    **dict.fromkeys(("p", "dropout_p"), (1.0, -0.1, np.nan)),
    **dict.fromkeys(("seed", "dropout_seed"), (-1, 2**64)),
    "dim": (9, -9),
    "ignore_index": (2**63,),
    "skipped": (-1,),
    "window": (-1, (1,), (1, -2)),
    **dict.fromkeys(("activation", "approximate", "gate", "mode", "reduction"), ("no such name",)),
}


@pytest.mark.parametrize("operation, given, name", sorted(calls(), key=lambda param: param.id))
def test_arguments_of_operations(operation, given, name):
    def call(value):
        return getattr(kernels, operation)(**given | {name: value})

    right = right_kinds(operation, name)
    if name in ("cu_seqlens", "cu_seqlens_k", "cu_seqlens_q", "attn_mask", "bias", "relative"):
        right = right | {"None"}  # attention's and maxsim's constraints on several arguments
    check_kinds(call, name, right)
    for value in OUT_OF_RANGE.get(name, ()):
        refuses(ValueError, rf"^{name}\b", call, value)
    assert name in OUT_OF_RANGE or isinstance(given[name], np.ndarray | bool | kernels.RelativePositions)


WRONG_DTYPES = {"f": (">f4", "c8", "i8"), "i": ("f4", "c8", "?"), "b": ("i8", "c8")}  # by the right one's kind


def wrong_dtypes(array):
    return [np.zeros(array.shape, dtype) for dtype in WRONG_DTYPES[array.dtype.kind]]


def longer(array):
    """The array with one more element along each of its axes in turn, and with one more axis."""
    yield array[None]
    for axis in range(array.ndim):
        yield np.concatenate(
            [array, np.zeros_like(array, shape=[*array.shape[:axis], 1, *array.shape[axis + 1 :]])], axis
        )


@pytest.mark.parametrize("operation, given", list(richest_calls()))
def test_dtypes_and_shapes_of_arrays(operation, given):
    """Arrays are of their kind, floats all of one dtype, and each but the first shares an axis with another."""

    def call(name, value):
        right = public_arguments(given)
        changed = right | {name: value} if name in right else public_arguments(given | {name: value})
        return getattr(kernels, operation)(**changed)

    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    floats = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    if operation not in WITHOUT_AXES:
        refuses(ValueError, rf"^{next(iter(arrays))} has shape \(\), expected", call, next(iter(arrays)), f32())
    for name, array in arrays.items():
        for wrong in wrong_dtypes(array):
            refuses(TypeError, rf"^{name}\b", call, name, wrong)
        if name in floats[1:]:
            refuses(TypeError, f"^{name} has dtype float64, expected float32", call, name, array.astype(np.float64))
        if name != next(iter(arrays)):
            check_sizes(operation, name, array, partial(call, name))


WITHOUT_AXES = {"activation", "dropout", "embedding", "gelu"}
# Arrays with an axis that no other shares, and a bias that may have one more.
FREE = {("embedding", "weight"), ("cross_entropy", "input"), ("gated_activation", "input"), ("attention", "bias")}


def check_sizes(operation, name, array, call):
    refused = [is_refused(partial(call, wrong)) for wrong in longer(array)]
    assert any(refused) if (operation, name) in FREE else all(refused), name


def is_refused(call):
    try:
        call()
    except ValueError as error:
        return "expected" in str(error)  # NumPy's own errors do not say that
    return False


@pytest.mark.parametrize("operation, given", list(richest_calls()))
def test_arguments_of_backwards(operation, given):
    output, saved = getattr(kernels, operation)(**public_arguments(given), save=True)
    backward, grad = getattr(kernels, f"{operation}_backward"), np.ones_like(output)
    is_any = operation == "embedding"  # its gradient is of any floating dtype and any width
    for wrong in wrong_dtypes(grad) + [grad.astype(np.float64)] * (not is_any):
        refuses(TypeError, "^grad_output has dtype .*(as the output has|floating dtype)", backward, wrong, saved)
    for wrong in [*longer(grad)][: -1 if is_any else None]:
        refuses(ValueError, "^(grad_output has shape|saved.cu_seqlens runs)", backward, wrong, saved)
    refuses(TypeError, f"^saved is tuple, expected {type(saved).__name__}", backward, grad, tuple(saved))

    def call(field, value):
        return backward(grad, saved._replace(**{field: value}))

    for field, value in zip(OPERATIONS[operation].fields, saved, strict=True):
        for wrong in OUT_OF_RANGE.get(field, ()):
            refuses(ValueError, rf"^(saved\.)?{field}\b", call, field, wrong)
        if isinstance(value, np.ndarray):
            for wrong in ([1.0], *wrong_dtypes(value)):
                refuses(TypeError, rf"^(saved\.)?{field}\b", call, field, wrong)
            check_sizes(operation, field, value, partial(call, field))


CODES = np.zeros((1, 3), np.int8)
# Operations without conformance cases: arrays, lists of arrays, and numbers by name.
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
    "nearest_codes": {"query": CODES, "corpus": CODES, "top_k": 1},
}
LISTS = [(operation, name) for operation, given in OTHERS.items() for name in given if isinstance(given[name], list)]
PASSING = {("cast", "arrays"), ("joint_norm", "arrays"), ("adam_update", "grad"), ("muon_update", "grad")}  # only read
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
    given = {other: [*it, *it] for other, it in OTHERS[operation].items() if isinstance(it, list)}

    def refuses_second(error, message, array):
        """In the place of the second array; nothing is changed."""
        lists = {other: [array.copy() for array in arrays] for other, arrays in given.items()}
        refuses(error, message, called, operation, **lists | {name: [lists[name][0], array]})
        for other, arrays in lists.items():
            assert_same_arrays(arrays, given[other])

    array = given[name][1]
    for dtype in ("f8", "i8"):
        refuses_second(TypeError, rf"^{name}\[1\] has dtype {np.dtype(dtype)}, expected", array.astype(dtype))
    if len(given) > 1:  # of one length and of the same shapes
        for wrong in ([], OTHERS[operation][name] * 2):
            refuses(ValueError, "arrays, expected a list of", called, operation, **{name: wrong})
        refuses_second(ValueError, r"\[1\] has shape", np.ones((5, 2), array.dtype))
    if (operation, name) in PASSING:
        return
    read_only = array.copy()
    read_only.flags.writeable = False
    refuses_second(ValueError, rf"^{name}\[1\] is read-only", read_only)
    for other in given.keys() - {name}:
        refuses_second(ValueError, rf"^{name}\[1\] is not C-contiguous", np.repeat(array, 2, axis=-1)[..., ::2])
        beside = given[other][1].view(array.dtype).reshape(-1)[: array.size].reshape(array.shape)
        refuses(ValueError, r"\[1\] share memory", called, operation, **given | {name: [array, beside]})


NUMBERS = (-1.0, np.nan, 10**400)
WRONG_VALUES = {
    "joint_norm": {"arrays": [[]]},
    "clip_norm": {"max_norm": (0, *NUMBERS)},
    "adam_update": {
        **dict.fromkeys(("lr", "weight_decay"), (*NUMBERS, 1e39)),
        "eps": (*NUMBERS, 1e39, 1e-60),
        "betas": ((0.9,), (0.9, 1.0), (-0.1, 0.9)),
        "step": (0, 10**400),
        "rule": ("adam",),
        "grad_scale": (np.ones(2, np.float32),),
    },
    "muon_update": {
        **dict.fromkeys(("lr", "weight_decay"), (*NUMBERS, 1e39)),
        "beta": (1.0, -0.1),
        "grad_scale": (np.ones(2, np.float32),),
    },
    "prepare_weight": {"weight": (f32(3), f32(2, 3, 4)), "dtype": ("int4",)},
    "quantize_weight": {"weight": (f32(3),)},
    "linear_weight_gradient": {"grad_output": (f32(3, 4),)},
    "nearest_codes": {
        "query": (CODES[0],),
        "corpus": (np.zeros((1, 4), np.int8), np.broadcast_to(np.int8(0), (1 << 32, 3))),
        "top_k": (0,),
    },
}


@pytest.mark.parametrize("operation", WRONG_VALUES)
def test_wrong_values(operation):
    for name, values in WRONG_VALUES[operation].items():
        for value in values:
            refuses(ValueError, rf"^{name}\b", called, operation, **{name: value})
    if operation.endswith("_update"):
        refuses(TypeError, "^grad_scale has dtype float64", called, operation, grad_scale=np.ones(()))
        of_lists = [name for other, name in LISTS if other == operation]
        halves, lines = ({name: [array.copy()] for name in of_lists} for array in (np.ones((3, 3), np.float16), f32(9)))
        refuses(TypeError, r"^parameter(\[0\])? has dtype float16, expected float32", called, operation, **halves)
        if operation == "muon_update":
            refuses(ValueError, r"^parameter\[0\] has shape \(9,\)", called, operation, **lines)
