"""kernels/_cuda/plans.py: a call that comes again launches what it launched before, on its own arrays."""

from itertools import islice

import cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ops.operations import public_arguments
from bertcore import kernels
from bertcore.kernels._cuda import plans
from tests.cuda_emulator.driverless import unavailable_reason
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.calls import everything
from tests.kernels.conformance.cases import CASES
from tests.kernels.cuda_support import batch_invariance
from tests.kernels.gpu_work import counting_gpu, done, leaves, same

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

WITHOUT_PLANS = {
    *("affine", "affine_backward", "cross_entropy", "cross_entropy_backward", "embedding_backward"),
    *("pooling", "pooling_backward"),
}


@pytest.fixture
def gpu():
    with counting_gpu() as gpu:
        yield gpu


def arrays(*shapes, dtype=np.float32):
    return [cupy.zeros(shape, dtype) for shape in shapes]


def bound(operation, case, dtype):
    """All calls of a conformance case, each time on the same arrays."""

    def moved(value):
        if not isinstance(value, np.ndarray):
            return value
        with np.errstate(over="ignore"):
            return cupy.asarray(value.astype(dtype) if value.dtype == np.float64 else value)

    def grad(output):
        return grads.setdefault(output.shape, cupy.zeros_like(output))

    arguments, grads = public_arguments({name: moved(it) for name, it in case.arguments.items()}), {}
    made = None if case.forward_only else grad
    return lambda: [array for _, array in everything(operation, arguments, made, "cupy")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operation", CASES)
def test_calls_that_come_again(gpu, operation, dtype):
    """By plans they do on other arrays what they do without any, and every function but those above has plans."""
    planned = set()
    for case in islice(CASES[operation].values(), None, None, 3):
        gpu.runtime._plans.clear()
        first, second = (bound(operation, case, DTYPES[dtype]) for _ in range(2))
        first()
        gpu.replays.clear()
        by_plan = done(gpu, second)
        planned |= {options[0] for _, options, *_ in gpu.runtime._plans}
        assert len(gpu.replays) >= len(gpu.runtime._plans), case.name
        gpu.runtime._plans.clear()
        assert same(by_plan, done(gpu, second)), case.name
    functions = {operation, f"{operation}_backward", f"{operation}_weight_gradient"} & set(kernels.__all__)
    assert planned == functions - WITHOUT_PLANS


MORE = {  # shapes, and a call that no conformance case has
    "rows that lie apart": ([(3, 8), (4099, 8)], kernels.linear),
    "added": ([(3, 16), (3, 8), (16, 8)], lambda grad, x, total: kernels.linear_weight_gradient(grad, x, add_to=total)),
    "in place": ([(24, 4, 8), (24, 4), (24, 4)], lambda x, cos, sin: kernels.rotary(x, cos, sin, inplace=True)),
}


@pytest.mark.parametrize("name", MORE)
def test_other_calls_that_come_again(gpu, name):
    shapes, call = MORE[name]
    first, second = arrays(*shapes), arrays(*shapes)
    call(*first)
    by_plan = done(gpu, lambda: call(*second))
    assert len(gpu.replays) == 1
    gpu.runtime._plans.clear()
    assert same(by_plan, done(gpu, lambda: call(*second)))


def test_what_is_left_out_is_noticed(gpu):
    """`same` sees a wrong argument, array or result."""
    x, y = arrays((2, 3), (2, 3))
    one = done(gpu, lambda: kernels.layer_norm(x, residual=y))
    for other in (
        lambda: kernels.layer_norm(y, residual=x),
        lambda: kernels.layer_norm(x, residual=y, eps=0.5),
        lambda: kernels.layer_norm(x),
    ):
        assert not same(one, done(gpu, other))


def test_arrays_that_are_one_and_the_same(gpu):
    x, y = arrays((4, 8), (4, 8))
    for residual in (x, y, x, y):
        launched = done(gpu, lambda residual=residual: kernels.layer_norm(x, residual=residual))
        assert launched[0][4:6] == (("at", x.data.ptr), ("at", residual.data.ptr))
    for key, value in ((x, x), (x, y), (y, x), (y, y)) * 2:
        heads = [array.reshape(1, 1, 4, 8) for array in (x, key, value)]
        launched = done(gpu, lambda heads=heads: kernels.attention(*heads))
        assert launched[0][6:9] == tuple(("at", array.data.ptr) for array in (x, key, value))
    assert len(gpu.replays) == 6


def test_views_that_begin_elsewhere_have_plans_of_their_own(gpu):
    """Aligned rows are read in whole vectors: on a GPU those of any other address would end the process."""
    (memory,) = arrays((65,))
    for first, kernel in ((0, "softmax_rows"), (1, "softmax_any_rows")) * 2:
        x = memory[first : first + 64].reshape(8, 8)
        launched = done(gpu, lambda x=x: kernels.softmax(x))
        assert launched[0][0].startswith(f"{kernel}<") and launched[0][4] == ("at", x.data.ptr)
    assert len(gpu.replays) == 2


def test_elements_between_their_places_are_refused(gpu):
    """A GPU ends the process that reads them."""
    memory = cupy.zeros(8 * 8 * 4 + 4, np.uint8)
    rows = memory[: 8 * 8 * 4].view(np.float32).reshape(8, 8)
    kernels.softmax(rows)
    apart = cupy.ndarray((8, 4), np.float32, memptr=memory.data, strides=(18, 4))
    for first in (1, 2, 3):
        shifted = memory[first : first + 8 * 8 * 4].view(np.float32).reshape(8, 8)
        with pytest.raises(ValueError, match="input has elements of 4 bytes that do not all stand at multiples of 4"):
            kernels.softmax(shifted)
        with pytest.raises(ValueError, match="weight has elements of 4 bytes"):
            kernels.layer_norm(rows, shifted[0])
        with pytest.raises(ValueError, match="grad_output has elements of 4 bytes"):
            kernels.activation_backward(shifted, rows, activation="gelu")
    with pytest.raises(ValueError, match="input has elements of 4 bytes"):
        kernels.softmax(apart)
    kernels.softmax(memory[4:].view(np.float32).reshape(8, 8))
    kernels.softmax(memory[1:1].view(np.float32).reshape(0, 3))


def test_bad_input_is_refused_after_good_input(gpu):
    x, other, offsets = *arrays((6, 2, 8), (6, 2, 9)), cupy.zeros(3, np.int32)
    good = {"cu_seqlens": offsets, "is_causal": True, "window": (1, 0), "scale": 1.0}
    for _ in range(2):
        kernels.attention(x, x, x, **good)
        kernels.softmax(x, 2)
        kernels.layer_norm(x, eps=0.0)
    assert len(gpu.replays) == 3
    for wrong in (
        {"is_causal": 1}, {"window": (True, 0)}, {"window": (1, False)}, {"scale": True}, {"compute_dtype": "bfloat16"},
        {"window": (1, 0, None)}, {"dropout_p": None}, {"cu_seqlens": offsets.astype(np.float32)},
        {"return_components": True},
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            kernels.attention(x, x, x, **good | wrong)
    for call in (
        lambda: kernels.attention(x, x, other, **good),
        lambda: kernels.softmax(x, 2.0),
        lambda: kernels.layer_norm(x, eps=False),
        lambda: kernels.layer_norm(x, x, eps=0.0),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    kernels.attention(x, x, x, **good | {"window": [1, 0]})  # a list has no hash


def test_a_weight_that_was_padded_is_no_wider_one(gpu):
    input, weight, wider = arrays((4, 7), (5, 7), (5, 8))
    prepared = kernels.prepare_weight(weight, backend="cupy")
    for _ in range(2):
        kernels.linear(input, prepared)
    assert prepared.array.shape == wider.shape and not gpu.replays  # the input is padded, by kernels of CuPy's
    with pytest.raises(ValueError, match=r"weight has shape \(5, 8\), expected \(out_features, 7\)"):
        kernels.linear(input, wider)


def test_batch_invariance_has_plans_of_its_own(gpu):
    input, weight = arrays((4, 8), (8, 8))
    for wanted, products in ((False, 1), (True, 0)) * 2:
        with batch_invariance(wanted):
            done(gpu, lambda: kernels.linear(input, weight))
        assert (len(gpu.given), len(gpu.launches)) == (products, 1 - products)
    assert len(gpu.replays) == 2


def test_each_gpu_has_plans_of_its_own(gpu):
    for index in (0, 1, 0, 1):
        with cupy.cuda.Device(index):
            (x,) = arrays((4, 8))
        gpu.launches.clear()
        assert kernels.softmax(x).device.id == index
        assert [launch.device for launch in gpu.launches] == [index]
    assert len(gpu.replays) == 2


def test_gradients_of_attention_go_where_they_belong(gpu):
    """The kernels write to them where they lie, for the call and for its plan."""
    query, grad = arrays((5, 2, 8), (5, 2, 8))
    lse, offsets = cupy.zeros((2, 5, 2), np.float32), cupy.zeros(2, np.int32)
    for count in range(3):
        joined = cupy.zeros((5, 6, 8), np.float32)
        out = tuple(joined[:, first : first + 2] for first in (0, 2, 4))
        gpu.launches.clear()
        found = kernels.attention_backward(grad, query, query, query, grad, lse, cu_seqlens=offsets, out=out)
        addresses = [part.data.ptr for part in out]
        assert [part.data.ptr for part in found[:3]] == addresses
        *_, of_keys, of_queries = gpu.launches
        written = [of_queries.args[0], *of_keys.args[:2]]
        assert [array.data.ptr for array in written] == addresses and len(gpu.replays) == count


VARIED = st.fixed_dictionaries(
    {
        "operation": st.sampled_from(("layer_norm", "linear", "dropout_layer_norm", "attention", "attention_backward")),
        "dtype": st.sampled_from((np.float32, np.float16)),
        "device": st.sampled_from((0, 1)),
        "rows": st.sampled_from((1, 3, 8)),
        "first": st.sampled_from((0, 1)),  # where arrays begin in their memory
        "beside": st.sampled_from(("none", "other", "same")),  # a residual, or values
        "mask": st.sampled_from((None, bool, np.float16)),
        "is_causal": st.booleans(),
        "dropout_p": st.sampled_from((0.0, 0.25)),
        "seed": st.integers(0, 2),
        "invariant": st.booleans(),
    }
)


def varied_call(operation, dtype, device, rows, first, beside, mask, is_causal, dropout_p, seed, invariant):
    def array(*shape, dtype=dtype):
        return cupy.zeros(int(np.prod(shape)) + first, dtype)[first:].reshape(shape)

    def call():
        with batch_invariance(invariant):
            if "attention" not in operation:
                return getattr(kernels, operation)(*given, **options)
            found = getattr(kernels, operation)(*given, **options)
            return list(found[:3]) if operation == "attention_backward" else found

    with cupy.cuda.Device(device):
        x, vector = array(rows, 8), array(8)
        residual = {"none": None, "other": array(rows, 8), "same": x}[beside]
        if operation == "layer_norm":
            given, options = (x, vector), {"residual": residual}
        elif operation == "linear":
            given, options = (x, array(8, 8), vector), {"residual": residual}
        elif operation == "dropout_layer_norm":
            given, options = (x, array(rows, 8) if residual is None else residual, vector), {"p": 0.25, "seed": seed}
        else:
            query = array(2, 1, rows, 8)
            key = query if beside == "same" else array(2, 1, rows, 8)
            given, options = (query, key, key), {"is_causal": is_causal, "dropout_p": dropout_p, "dropout_seed": seed}
            if mask is not None:
                options["attn_mask"] = cupy.zeros((2, 1, 1, rows), dtype if mask is np.float16 else mask)
            if operation == "attention_backward":
                given += (array(2, 1, rows, 8), query, array(2, 1, rows, 2, dtype=np.float32))
    return call


def test_whatever_changes_between_calls():
    """Layouts, dtypes, devices, masks, what is one and the same, seeds and modes: with the plans of all calls before, a
    call does what it does without any."""
    replayed = []

    @settings(max_examples=25)
    @given(st.lists(VARIED, min_size=2, max_size=12))
    def check(varied):
        with counting_gpu() as gpu:
            for one in varied + varied[::-1]:
                call, kept = varied_call(**one), gpu.runtime._plans
                by_plan = done(gpu, call)
                gpu.runtime._plans = {}
                anew = done(gpu, call)
                gpu.runtime._plans = kept
                assert same(by_plan, anew), one
            replayed.extend(gpu.replays)

    check()
    assert replayed


def test_only_so_many_are_kept(gpu, monkeypatch):
    monkeypatch.setattr(plans, "MOST_KEPT", 2)
    kept = arrays((1, 8), (2, 8), (3, 8))
    for x in kept:
        kernels.softmax(x)
    kernels.softmax(kept[2])
    kernels.softmax(kept[0])
    assert len(gpu.replays) == 1


def test_a_plan_keeps_no_memory(gpu):
    (x,) = arrays((4, 8))
    kernels.layer_norm(x)
    (plan,) = gpu.runtime._plans.values()
    assert not any(isinstance(it, cupy.ndarray) for it in leaves([plan._steps]))
