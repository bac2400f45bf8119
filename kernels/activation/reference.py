"""Activation functions of input + bias, by name, forward and backward.

    relu       max(x, 0)
    tanh       tanh(x)
    silu       x / (1 + exp(-x))                                          (Elfwing et al. 2017, arXiv:1702.03118)
    gelu       x Phi(x),  Phi the distribution function of the standard normal
                                                                 (Hendrycks and Gimpel 2016, arXiv:1606.08415)
    gelu_tanh  x (1 + tanh(u)) / 2,  u = sqrt(2 / pi) (x + 0.044715 x^3)                                   (the same)

The derivatives of the last two are Phi(x) + x phi(x) and (1 + tanh(u)) / 2 + x (1 - tanh(u)^2) u' / 2.

NumPy has no error function, so Phi is computed here, in float64. Its lower tail Q(a) = Phi(-a), a >= 0, is

    Q(a) = exp(-a^2 / 2) F(t) / (2 + sqrt(8) a),    t = (a - k) / (a + k),

where F is smooth over all of [0, inf] (Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x
in 0 <= x < inf", Mathematics of Computation 36, 1981) and TAIL_POLYNOMIAL is its Chebyshev series, cut at 1e-16 and
written in powers of t. Relative error of Phi against 60-digit arithmetic: at most 3 * 2^-52, far tail included.

At +-inf the formulas are computed in IEEE arithmetic: silu(-inf) and gelu(-inf) = -inf * 0 are NaN, as in PyTorch.
"""

import functools

import numpy as np

from ..arrays import ieee_arithmetic, sum_rows, widen

TAIL_CENTRE = 3.75 * np.sqrt(2)  # k
TAIL_POLYNOMIAL = (  # constant term first
    1.2375126308378275, -0.14024059858554697, 0.0035854154854790257, 0.0822767384901452, -0.10880393014244462,
    0.09230432116037748, -0.05869339857664934, 0.028362277418956406, -0.009746579683265262, 0.0017556258528952954,
    0.000293714378044958, -0.0002901540805408417, 5.164652974177416e-05, 2.238423915508223e-05, -1.1438048033346894e-05,
    -9.73559896736775e-07, 1.7419821586224816e-06, -5.7218230603224086e-08, -2.4857126248016745e-07,
    2.3263508708859124e-08, 3.197926671666804e-08, -3.744210080962018e-09, -2.623107347133476e-09,
    3.1114333809799254e-10,
)  # fmt: skip

TANH_SCALE = np.sqrt(2 / np.pi)
TANH_CUBIC = 0.044715

BLOCK = 4096  # elements: the two dozen passes of the polynomial then stay in cache (6x faster on 12 million elements)


@ieee_arithmetic
def activation(input, activation, bias):
    """Apply the function named `activation` to input + bias; bias is along the last axis or None."""
    return np.asarray(FUNCTIONS[activation](_add_bias(input, bias)), input.dtype)


@ieee_arithmetic
def activation_backward(grad_output, input, activation, bias):
    """Return (grad_input, grad_bias or None); relu's derivative is 0 at 0 and 1 at NaN."""
    grad = widen(grad_output) * DERIVATIVES[activation](_add_bias(input, bias))
    grad_bias = None if bias is None else sum_rows(grad).astype(bias.dtype)
    return np.asarray(grad, input.dtype), grad_bias


def _add_bias(input, bias):
    return widen(input) if bias is None else widen(input) + widen(bias)


def normal_cdf(x):
    """Return Phi(x), the distribution function of the standard normal, for a float64 array."""
    a = np.minimum(np.abs(x), 40)  # Phi(-40) = 0 in float64; inf would give inf - inf below
    t = 1 - 2 * TAIL_CENTRE / (a + TAIL_CENTRE)
    tail = np.full_like(t, TAIL_POLYNOMIAL[-1])
    for coefficient in reversed(TAIL_POLYNOMIAL[:-1]):
        tail *= t
        tail += coefficient
    # a^2 rounds; with h = a to 1/16, h^2 does not, and the rest (a - h)(a + h) is small.
    h = np.round(16 * a) / 16
    tail *= np.exp(-0.5 * h * h) * np.exp(-0.5 * (a - h) * (a + h)) / (2 + np.sqrt(8) * a)
    return np.where(x < 0, tail, 1 - tail)


def _relu(x):
    return np.maximum(x, 0)


def _relu_derivative(x):
    return np.asarray(~(x <= 0), x.dtype)  # 1 at NaN, as in PyTorch


def _tanh_derivative(x):
    return 1 - np.tanh(x) ** 2


def _silu(x):
    return x / (1 + np.exp(-x))


def _silu_derivative(x):
    sigmoid = 1 / (1 + np.exp(-x))
    return sigmoid * (1 + x * (1 - sigmoid))


def _blockwise(function):
    """Make an elementwise function compute in float64, a block of elements at a time; the result has x's dtype."""

    @functools.wraps(function)
    def in_blocks(x):
        flat = x.reshape(-1)
        result = np.empty_like(flat)
        for start in range(0, flat.size, BLOCK):
            block = slice(start, start + BLOCK)
            result[block] = function(flat[block].astype(np.float64))
        return result.reshape(x.shape)

    return in_blocks


@_blockwise
def _gelu(x):
    return x * normal_cdf(x)


@_blockwise
def _gelu_derivative(x):
    return normal_cdf(x) + x * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


@_blockwise
def _gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(TANH_SCALE * (x + TANH_CUBIC * x**3)))


@_blockwise
def _gelu_tanh_derivative(x):
    x = np.clip(x, -40, 40)  # beyond, the derivative is 0 or 1 to the last bit, and x^2 could overflow into 0 * inf
    tanh = np.tanh(TANH_SCALE * (x + TANH_CUBIC * x**3))
    inner_derivative = TANH_SCALE * (1 + 3 * TANH_CUBIC * x**2)
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner_derivative


FUNCTIONS = {"relu": _relu, "tanh": np.tanh, "silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
DERIVATIVES = {
    "relu": _relu_derivative,
    "tanh": _tanh_derivative,
    "silu": _silu_derivative,
    "gelu": _gelu_derivative,
    "gelu_tanh": _gelu_tanh_derivative,
}
