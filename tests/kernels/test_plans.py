"""kernels/_cuda/plans.py: a call that comes again launches what it launched before, on its own arrays."""

from contextlib import contextmanager
from unittest import mock

import cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ops import calls
from bench.ops.cases import OPS, cases
from bertcore import kernels
from bertcore.kernels._cuda import cublaslt, plans
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.kernels.arrays import DTYPES
from tests.kernels.cuda_support import batch_invariance

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))


@contextmanager
def counting_gpu():
    """Kernels compute nothing, and no memory comes again; `given` are cuBLASLt's products, `replays` plans that ran."""
    replays, given, alive = [], [], []
    run = plans.Plan.run

    def noted_run(plan, *args):
        replays.append(plan)
        return run(plan, *args)

    def noted_product(plan, *args):
        given.append((plan, *args))
        return multiply(plan, *args)

    with mock.patch.object(plans.Plan, "run", noted_run), driverless(emulated=False) as gpu:
        multiply = cublaslt.Plan.run  # what stands for it
        with mock.patch.object(cublaslt.Plan, "run", noted_product):
            gpu.replays, gpu.given = replays, given
            cupy.cuda.set_allocator(lambda size: alive.append(gpu.allocate(size)) or alive[-1])
            yield gpu


@pytest.fixture
def gpu():
    with counting_gpu() as gpu:
        yield gpu


def arrays(*shapes, dtype=np.float32):
    return [cupy.zeros(shape, dtype) for shape in shapes]


def done(gpu, call):
    """All that `call` gives to the GPU and returns, with addresses as such."""
    gpu.launches.clear()
    gpu.given.clear()
    result = call()
    parts = result if isinstance(result, tuple | list) else (result,)
    launched = [(it.kernel, it.grid, it.block, it.shared_bytes, *map(_argument, it.args)) for it in gpu.launches]
    products = [
        (id(plan), *addresses, bias, beta.value, stream) for plan, addresses, bias, beta, _, stream in gpu.given
    ]
    returned = [None if it is None else (_argument(it), it.shape, it.strides, it.dtype) for it in parts]
    return launched + products + returned


def _argument(arg):
    return ("at", arg.data.ptr) if isinstance(arg, cupy.ndarray) else np.asarray(arg).tobytes()


def same(one, other):
    """Whether two runs of a call did the same: memory that only one of them has is the same by its order."""

    def addresses(run):
        return [it for it in _leaves(run) if isinstance(it, int)]

    shared = set(addresses(one)) & set(addresses(other))
    return _numbered(one, shared) == _numbered(other, shared)


def _leaves(run):
    for item in run:
        yield from _leaves(item) if isinstance(item, tuple | list) else [item]


def _numbered(run, shared):
    known = {}
    return [it if not isinstance(it, int) or it in shared else known.setdefault(it, len(known)) for it in _leaves(run)]


TOKENS = (24, 4, 8)
OFFSETS = {"cu_seqlens": ((3,), np.int32)}
TABLES = {"cos": ((24, 4), np.float32), "sin": ((24, 4), np.float32)}
# Each: the operation, its arrays as (shape, dtype or None for that of the others), and its options.
CALLS = {
    "softmax": ("softmax", {"input": ((3, 8),)}, {}),
    "softmax_backward": ("softmax_backward", {"grad_output": ((3, 8),), "output": ((3, 8),)}, {}),
    "layer_norm": ("layer_norm", {"input": ((3, 8),), "weight": ((8,),), "bias": ((8,),), "residual": ((3, 8),)}, {}),
    "layer_norm, three axes": ("layer_norm", {"input": ((2, 3, 8),), "weight": ((8,),)}, {"eps": 1e-3}),
    "layer_norm_backward": (
        "layer_norm_backward", {"grad_output": ((3, 8),), "input": ((3, 8),), "weight": ((8,),), "bias": ((8,),)}, {},
    ),
    "rms_norm": ("rms_norm", {"input": ((3, 8),), "weight": ((8,),)}, {}),
    "rms_norm_backward": ("rms_norm_backward", {"grad_output": ((3, 8),), "input": ((3, 8),), "weight": ((8,),)}, {}),
    "gelu": ("gelu", {"input": ((3, 8),), "bias": ((8,),)}, {"approximate": "tanh"}),
    "gelu_backward": ("gelu_backward", {"grad_output": ((3, 8),), "input": ((3, 8),), "bias": ((8,),)}, {}),
    "activation": ("activation", {"input": ((3, 8),)}, {"activation": "tanh"}),
    "activation_backward": (
        "activation_backward", {"grad_output": ((3, 8),), "input": ((3, 8),)}, {"activation": "silu"},
    ),
    "gated_activation": ("gated_activation", {"input": ((3, 16),)}, {"activation": "gelu"}),
    "gated_activation_backward": (
        "gated_activation_backward", {"grad_output": ((3, 8),), "input": ((3, 16),)}, {"activation": "gelu"},
    ),
    "embedding": ("embedding", {"input": ((5,), np.int64), "weight": ((7, 8),)}, {}),
    "linear": ("linear", {"input": ((3, 8),), "weight": ((16, 8),)}, {}),
    "linear, three axes": ("linear", {"input": ((2, 3, 8),), "weight": ((16, 8),), "bias": ((16,),)}, {}),
    "linear, all": (
        "linear", {"input": ((3, 8),), "weight": ((16, 8),), "bias": ((16,),), "residual": ((3, 16),)},
        {"activation": "gelu"},
    ),
    "linear, activation": ("linear", {"input": ((3, 8),), "weight": ((16, 8),)}, {"activation": "gelu"}),
    "linear_backward": (
        "linear_backward", {"grad_output": ((3, 16),), "input": ((3, 8),), "weight": ((16, 8),), "bias": ((16,),)}, {},
    ),
    "linear, rows that lie apart": ("linear", {"input": ((3, 8),), "weight": ((4099, 8),)}, {}),
    "linear_weight_gradient": (
        "linear_weight_gradient", {"grad_output": ((3, 16),), "input": ((3, 8),)}, {"dtype": "float32"},
    ),
    "linear_weight_gradient, added": (
        "linear_weight_gradient", {"grad_output": ((3, 16),), "input": ((3, 8),), "add_to": ((16, 8), np.float32)}, {},
    ),
    "attention": ("attention", dict.fromkeys(("query", "key", "value"), ((2, 4, 5, 8),)), {"return_lse": True}),
    "attention, masked": (
        "attention",
        {"query": ((2, 4, 5, 8),), "key": ((2, 2, 6, 8),), "value": ((2, 2, 6, 8),), "attn_mask": ((2, 1, 1, 6), bool),
         "bias": ((4, 5, 6),)},
        {"scale": 0.5},
    ),
    "attention, packed": (
        "attention", {**dict.fromkeys(("query", "key", "value"), (TOKENS,)), **OFFSETS},
        {"is_causal": True, "window": (3, None)},
    ),
    "rotary": ("rotary", {"input": (TOKENS,), **TABLES, **OFFSETS}, {}),
    "rotary, in place": ("rotary", {"input": (TOKENS,), **TABLES, "positions": ((24,), np.int64)}, {"inplace": True}),
    "rotary_backward": ("rotary_backward", {"grad_output": (TOKENS,), **TABLES}, {"interleaved": True}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_that_come_again(gpu, name, dtype):
    operation, arrays_of, options = CALLS[name]
    function = getattr(kernels, operation)
    for count in (0, 1):
        given = {name: cupy.zeros(shape, *(other or [dtype])) for name, (shape, *other) in arrays_of.items()}
        by_plan = done(gpu, lambda given=given: function(**given, **options))
        assert len(gpu.replays) == count
    gpu.runtime._plans.clear()
    assert by_plan and same(by_plan, done(gpu, lambda: function(**given, **options)))


def test_relative_terms(gpu):
    for count in (0, 1, 2):
        query, table = arrays(TOKENS, (9, 4, 8))
        offsets, rows = cupy.zeros(3, np.int32), cupy.zeros(17, np.int32)
        relative = kernels.RelativePositions(rows, position_key=table)
        gpu.launches.clear()
        output = kernels.attention(query, query, query, cu_seqlens=offsets, relative=relative)
        given = {arg.data.ptr for arg in gpu.launches[0].args if isinstance(arg, cupy.ndarray)}
        assert {array.data.ptr for array in (output, query, table, offsets, rows)} <= given
        assert len(gpu.replays) == count


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("operation", OPS)
def test_a_plan_does_what_the_call_does(gpu, operation, dtype):
    for case in cases("tiny"):
        if case.op != operation:
            continue
        bound = [calls.bind(case, calls.make_inputs(case, DTYPES[dtype]), "cupy") for _ in range(2)]
        bound[0]()
        by_plan = done(gpu, lambda call=bound[1]: [*call().values()])
        gpu.runtime._plans.clear()
        anew = done(gpu, lambda call=bound[1]: [*call().values()])
        assert by_plan and same(by_plan, anew), case.id


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


SEEDS = (3, 3, 2**64 - 1, 5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [768, 7])
def test_each_call_has_a_seed_of_its_own(gpu, width, dtype):
    """Plans of dropout hold for any seed, and what they launch has that of the call: a number, or an array."""
    x, y, weight, grad = arrays((6, width), (6, width), (width,), (6, width), dtype=dtype)
    query, lse = *arrays((12, 2, 8), dtype=dtype), cupy.zeros((2, 12, 2), np.float32)
    offsets, joined = cupy.zeros(3, np.int32), cupy.zeros((12, 6, 8), dtype)
    out = tuple(joined[:, first : first + 2] for first in (0, 2, 4))
    heads, grads = (query, query, query), (query, query, query, query, query, lse)
    calls = {
        "dropout": lambda seed: kernels.dropout(x, 0.25, seed),
        "dropout, residual": lambda seed: kernels.dropout(x, 0.25, seed, residual=y),
        "dropout_backward": lambda seed: kernels.dropout_backward(x, 0.25, seed),
        "dropout_layer_norm": lambda seed: kernels.dropout_layer_norm(x, y, weight, p=0.25, seed=seed),
        "dropout_layer_norm_backward": lambda seed: kernels.dropout_layer_norm_backward(
            grad, x, y, weight, weight, p=0.25, seed=seed
        ),
        "attention": lambda seed: kernels.attention(
            *heads, cu_seqlens=offsets, dropout_p=0.25, dropout_seed=seed, return_lse=True
        ),
        "attention_backward": lambda seed: list(
            kernels.attention_backward(*grads, cu_seqlens=offsets, dropout_p=0.25, dropout_seed=seed)[:3]
        ),
        "attention_backward, out": lambda seed: list(
            kernels.attention_backward(*grads, cu_seqlens=offsets, dropout_p=0.25, dropout_seed=seed, out=out)[:3]
        ),
    }
    for name, call in calls.items():
        gpu.runtime._plans.clear()
        gpu.replays.clear()
        by_plan = [done(gpu, lambda call=call, seed=seed: call(seed)) for seed in SEEDS]
        assert len(gpu.replays) == len(SEEDS) - 1, name
        for seed, one in zip(SEEDS, by_plan, strict=True):
            gpu.runtime._plans.clear()
            assert same(one, done(gpu, lambda call=call, seed=seed: call(seed))), name
        assert same(*by_plan[:2]) and not same(*by_plan[1:3]), name
        gpu.replays.clear()
        for seed, count in zip(arrays(*[(1,)] * 3, dtype=np.uint64), (0, 1, 2), strict=True):
            done(gpu, lambda call=call, seed=seed: call(seed))
            assert any(arg is seed for launch in gpu.launches for arg in launch.args), name
            assert len(gpu.replays) == count, name
        with pytest.raises((TypeError, ValueError), match="seed"):
            call(-1)
        with pytest.raises((TypeError, ValueError), match="seed"):
            call(2.0)


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
    assert not any(isinstance(it, cupy.ndarray) for it in _leaves([plan._steps]))
