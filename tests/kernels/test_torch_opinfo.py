"""`kernels.torch` over the sample inputs of PyTorch's own operator suite, forward and backward, beside PyTorch."""

import pytest

from bertcore.kernels import use_backend
from tests.tolerances import assert_close

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's suite imports
F = pytest.importorskip("bertcore.kernels.torch")


def softmax(input, dim, *, dtype=None):
    return F.softmax(input if dtype is None else input.to(dtype), dim)


def norm(function):
    """The kernels normalize the last axis: axes that PyTorch normalizes together are joined."""

    def normalize(input, normalized_shape, *parameters, **options):
        last = input.ndim - len(normalized_shape)
        parameters = [each.flatten() if isinstance(each, torch.Tensor) else each for each in parameters]
        return function(input.flatten(last), *parameters, **options).reshape(input.shape)

    return normalize


def rms_norm(input, weight=None, eps=None):
    return F.rms_norm(input, weight, torch.finfo(input.dtype).eps if eps is None else eps)


def embedding(weight, ids, **options):
    return F.embedding(ids, weight, **options)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
    """An additive mask that has a gradient is the kernels' bias."""
    arrays = [each if each.ndim == 4 else each[None] for each in (query, key, value)]
    arrays[0] = arrays[0].expand(arrays[1].shape[0], -1, -1, -1)
    output = F.attention(*arrays, bias=attn_mask, is_causal=is_causal, dropout_p=dropout_p)
    return output if key.ndim == 4 else output[0]


def cross_entropy(input, target, **options):
    losses = F.cross_entropy(input.movedim(1, -1).flatten(0, -2), target.flatten(), **options)
    return losses if not losses.ndim else losses.reshape(target.shape)


OPERATIONS = {
    "softmax": softmax,
    "softmax.with_dtype": softmax,
    "nn.functional.layer_norm": norm(F.layer_norm),
    "nn.functional.rms_norm": norm(rms_norm),
    "nn.functional.gelu": F.gelu,
    "nn.functional.silu": lambda input: F.activation(input, "silu"),
    "nn.functional.linear": F.linear,
    "nn.functional.embedding": embedding,
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.cross_entropy": cross_entropy,
}
# What the kernels do not offer: why, and which samples ask for it.
NOT_OFFERED = {
    "softmax without axes": lambda name, sample: name.startswith("softmax") and not sample.input.ndim,
    "eps below 0": lambda name, sample: sample.kwargs.get("eps", 0) < 0,
    "random bits of PyTorch's generator": lambda name, sample: sample.kwargs.get("dropout_p", 0) > 0,
    "probabilities as target": lambda name, sample: "entropy" in name and sample.args[0].is_floating_point(),
    "weights of classes": lambda name, sample: "entropy" in name and "weight" in sample.kwargs,
}
# Samples that are run, and those that are not by reason.
COUNTS = {
    "softmax": (6, {"softmax without axes": 1}),
    "softmax.with_dtype": (6, {"softmax without axes": 1}),
    "nn.functional.layer_norm": (5, {"eps below 0": 1}),
    "nn.functional.rms_norm": (5, {"eps below 0": 1}),
    "nn.functional.gelu": (8, {}),
    "nn.functional.silu": (3, {}),
    "nn.functional.linear": (18, {}),
    "nn.functional.embedding": (3, {}),
    "nn.functional.scaled_dot_product_attention": (13, {"random bits of PyTorch's generator": 12}),
    "nn.functional.cross_entropy": (8, {"probabilities as target": 10, "weights of classes": 3}),
}
ERRORS = {"nn.functional.rms_norm": 1, "nn.functional.gelu": 1, "nn.functional.embedding": 2}  # inputs in the suite
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@pytest.fixture(scope="module")
def infos():
    """The suite's entries by name; loading it takes seconds."""
    found = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    return {".".join(filter(None, (it.name, it.variant_test_name))): it for it in found if it.supports_autograd}


def samples(info, name, dtype):
    """Return the samples that the kernels offer, and the numbers of others by reason."""
    offered, reasons = [], {}
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        reason = next((reason for reason, asks in NOT_OFFERED.items() if asks(name, sample)), None)
        if reason is None:
            offered.append(sample)
        else:
            reasons[reason] = reasons.get(reason, 0) + 1
    return offered, reasons


def differentiable(values):
    return [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]


def output_and_gradients(function, sample):
    output = function(sample.input, *sample.args, **sample.kwargs)
    inputs = differentiable((sample.input, *sample.args, *sample.kwargs.values()))
    grad_output = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).reshape(output.shape)
    gradients = torch.autograd.grad(output, inputs, grad_output, allow_unused=True)
    return [array.detach().numpy() for array in (output, *gradients)]


def in_float64(value):
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().double().requires_grad_(value.requires_grad) if is_floating else value


@every_operation
@pytest.mark.parametrize("backend, dtype", [
    ("numpy", torch.float64),
    ("numba", torch.float32),
    pytest.param("numba", torch.float64, marks=pytest.mark.slow),  # a minute of compilation
])  # fmt: skip
def test_samples(infos, name, backend, dtype, subtests):
    offered, reasons = samples(infos[name], name, dtype)
    assert (len(offered), reasons) == COUNTS[name]
    for sample in offered:
        with subtests.test(str(sample)), use_backend(backend):
            found = output_and_gradients(OPERATIONS[name], sample)
            expected = output_and_gradients(infos[name].op, sample.transform(in_float64))
            for array, wanted in zip(found, expected, strict=True):
                assert_close(array, wanted, at_least=1, factor=3)  # gradients may cancel to nothing


@every_operation
def test_host_bfloat16_is_refused(infos, name):
    """NumPy's arrays, which the kernels read on a CPU, cannot hold it."""
    offered, _ = samples(infos[name], name, torch.bfloat16)
    assert len(offered) == COUNTS[name][0]
    for sample in offered:
        sample.kwargs.pop("dtype", None)  # float64
        with pytest.raises(TypeError, match="is a bfloat16 tensor in host memory"):
            OPERATIONS[name](sample.input, *sample.args, **sample.kwargs)


@every_operation
def test_error_inputs(infos, name):
    """Wrong shapes and values raise ValueError, but for `normalized_shape`, which the kernels do not take."""
    errors = infos[name].error_inputs("cpu") if infos[name].error_inputs_func else ()
    wrong = [error.sample_input for error in errors if error.sample_input.args[1:2] != (None,)]
    assert len(wrong) == ERRORS.get(name, 0)
    for sample in wrong:
        with pytest.raises(ValueError):
            OPERATIONS[name](sample.input, *sample.args, **sample.kwargs)
