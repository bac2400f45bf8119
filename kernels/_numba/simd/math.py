"""exp, erf, tanh and the activations over vectors of float32 and float64.

Errors against the exact value, in units in the last place (tests/kernels/test_numba_simd.py measures them): float32
exp and exp2 1.2, erf 1.2, tanh 1.5; float64 exp and exp2 1.2; float64 erf and tanh are the C library's, lane by lane
(float64 serves checks of training, not speed). The float32 polynomials of exp2, erf and tanh are minimax fits (Remez
exchange) made for this file.
"""

import math
from math import factorial

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from ..compile import by_types, inline_helper, isa
from . import absolute, broadcast, copysign, fma, select
from .codegen import INT32, Vec, call_llvm, emit_fma, shuffle, splat


def _polynomial(*coefficients):
    """Make an intrinsic p(x) = c0 + c1 x + c2 x^2 + ... by Horner's rule with fused multiply-adds."""

    @intrinsic
    def evaluate(typingctx, x):
        def codegen(context, builder, sig, args):
            def constant(c):
                return ir.Constant(x.llvm, [c] * x.count)

            value = constant(coefficients[-1])
            for c in reversed(coefficients[:-1]):
                value = emit_fma(builder, x, value, args[0], constant(c))
            return value

        return x(x), codegen

    return evaluate


@intrinsic
def _power_of_two(typingctx, shifted):
    """Return 2^n as a vector, where the lowest bits of `shifted` hold n + the exponent bias."""
    mantissa_bits = 23 if shifted.dtype == types.float32 else 52

    def codegen(context, builder, sig, args):
        integers = ir.VectorType(ir.IntType(shifted.dtype.bitwidth), shifted.count)
        shift = splat(builder, integers.element(mantissa_bits), shifted.count)
        return builder.bitcast(builder.shl(builder.bitcast(args[0], integers), shift), shifted.llvm)

    return shifted(shifted), codegen


def _lane_by_lane(function):
    """Make an intrinsic that calls a scalar function of `math` for every lane."""

    @intrinsic
    def call(typingctx, x):
        def codegen(context, builder, sig, args):
            scalar = context.get_function(function, x.dtype(x.dtype))
            result = args[0]
            for lane in range(x.count):
                at = ir.IntType(32)(lane)
                value = scalar(builder, [builder.extract_element(args[0], at)])
                result = builder.insert_element(result, value, at)
            return result

        return x(x), codegen

    return call


def _require_float_vec(x, name):
    if not isinstance(x, Vec) or x.dtype not in (types.float32, types.float64):
        raise TypingError(f"{name}: expected a vector of float32 or float64, got {x}")


def _exp_constants(dtype):
    """Return (lowest, highest, shifter, high and low parts of ln 2, polynomial) for `exp`.

    Adding the shifter rounds to an integer n and leaves n - 1 + exponent bias in the lowest bits. The high part of ln 2
    has few bits, so that n * high is exact without FMA as well. The polynomial is the Taylor series of 2 e^r for
    |r| <= ln(2) / 2: twice e^r, so that 2^(n-1) suffices and the largest results do not overflow early; its truncation
    error is 0.1 ulp.
    """
    if dtype == types.float32:
        terms, shifter = 8, 1.5 * 2.0**23 + 126
        bounds, ln2 = (-87.4, 88.8), (0.693359375, -2.1219444005469057e-4)
    else:
        terms, shifter = 14, 1.5 * 2.0**52 + 1022
        bounds, ln2 = (-708.5, 709.9), (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33"))
    return *bounds, shifter, *ln2, _polynomial(*(2.0 / factorial(k) for k in range(terms)))


@by_types(inline=True)
def exp(x):
    """Return e^x, at most 1.2 ulp off: inf for +inf and overflow, NaN for NaN, 0 for -inf and below 1.7e-38 (float32).

    x = n ln 2 + r; e^x = 2^n e^r. Results below 2^-125.5 (float64: 2^-1021.5) are 0, not denormal.
    """
    _require_float_vec(x, "exp")
    lowest, highest, shifter, ln2_high, ln2_low, twice_exp = _exp_constants(x.dtype)
    log2_e = 1 / math.log(2)

    def compiled(x):
        x = select(x < lowest, lowest, x)  # written so that NaN stays
        x = select(x > highest, highest, x)
        shifted = fma(x, log2_e, shifter)
        n = shifted - shifter
        r = fma(n, -ln2_low, fma(n, -ln2_high, x))
        return twice_exp(r) * _power_of_two(shifted)

    return compiled


def _exp2_constants(dtype):
    """Return (lowest, shifter, polynomial of 2 * 2^f for |f| <= 1/2) for `exp2`; see `_exp_constants`."""
    if dtype == types.float32:  # minimax
        terms = (2.00000000111, 1.38629441147, 0.480452937813, 0.111006575539, 0.0192369779143, 0.00267998624382,
                 0.000306916239888)  # fmt: skip
        return -126.0, 1.5 * 2.0**23 + 126, _polynomial(*terms)
    return -1022.0, 1.5 * 2.0**52 + 1022, _polynomial(*(2 * math.log(2) ** k / factorial(k) for k in range(14)))


@by_types(inline=True)
def exp2(x):
    """Return 2^x for x < 128, at most 1.2 ulp off: NaN for NaN, 0 for -inf and below 2^-125.5 (float64: 2^-1021.5)."""
    _require_float_vec(x, "exp2")
    lowest, shifter, twice_exp2 = _exp2_constants(x.dtype)

    def compiled(x):
        x = select(x < lowest, lowest, x)  # written so that NaN stays
        shifted = x + shifter
        return twice_exp2(x - (shifted - shifter)) * _power_of_two(shifted)

    return compiled


# 2^f for 0 <= f < 1, with the least relative error among polynomials that are exactly 1 and 2 at the ends.
_QUARTIC = 1.0, 0.69303244, 0.24137774, 0.0520349, 0.01355492
_LEAST_EXPONENT = -126.0


def _quartic_of_rest(builder, vec, x):
    """Return floor(x) and the polynomial of x - floor(x)."""
    whole = call_llvm(builder, f"llvm.floor.{vec.suffix}", vec.llvm, [x])
    rest = builder.fsub(x, whole)  # vreduceps rounds differently
    value = ir.Constant(vec.llvm, [_QUARTIC[-1]] * vec.count)
    for c in reversed(_QUARTIC[:-1]):
        value = emit_fma(builder, vec, value, rest, ir.Constant(vec.llvm, [c] * vec.count))
    return whole, value


def _rough_exp2_of(builder, vec, x):
    """Evaluate the polynomial and add the exponent to its bits."""
    words = ir.VectorType(INT32, vec.count)
    least, zeros = (ir.Constant(vec.llvm, [value] * vec.count) for value in (_LEAST_EXPONENT, 0.0))
    is_tiny, is_nan = builder.fcmp_ordered("<", x, least), builder.fcmp_unordered("uno", x, x)
    whole, value = _quartic_of_rest(builder, vec, builder.select(is_tiny, least, x))
    exponent = builder.shl(builder.fptosi(whole, words), ir.Constant(words, [23] * vec.count))
    scaled = builder.bitcast(builder.add(builder.bitcast(value, words), exponent), vec.llvm)
    return builder.select(is_tiny, zeros, builder.select(is_nan, x, scaled))


def _rough_exp2_by_avx512(builder, vec, x):
    """Evaluate the same in 8 instructions: vscalefps multiplies by 2^floor(x)."""
    zeros, bits = ir.Constant(vec.llvm, [0.0] * vec.count), ir.IntType(vec.count)
    is_kept = builder.fcmp_unordered(">=", x, ir.Constant(vec.llvm, [_LEAST_EXPONENT] * vec.count))
    _, value = _quartic_of_rest(builder, vec, x)
    operands = [value, x, zeros, builder.bitcast(is_kept, bits), INT32(4)]
    return call_llvm(builder, "llvm.x86.avx512.mask.scalef.ps.512", vec.llvm, operands)


def _make_rough_exp2(emit):
    """Make an intrinsic that applies `emit` to each register of a vector of float32."""

    @intrinsic
    def compute(typingctx, x):
        part = Vec(types.float32, isa.lanes(types.float32))

        def codegen(context, builder, sig, args):
            parts = [
                emit(builder, part, shuffle(builder, args[0], args[0], range(first, first + part.count)))
                for first in range(0, x.count, part.count)
            ]
            while len(parts) > 1:
                count = 2 * parts[0].type.count
                parts = [shuffle(builder, *parts[i : i + 2], range(count)) for i in range(0, len(parts), 2)]
            return parts[0]

        return x(x), codegen

    return compute


portable_rough_exp2 = _make_rough_exp2(_rough_exp2_of)
_native_rough_exp2 = _make_rough_exp2(_rough_exp2_by_avx512)


@by_types(inline=True)
def rough_exp2(x):
    """Return 2^x of float32 x <= 0, to a relative error of 3.5e-6 (2^-18): for results rounded to bfloat16 (2^-9).

    Exact for whole numbers; NaN for NaN, 0 for -inf and below -126. The same bits on all CPUs with FMA. A cubic would
    be faster but exact only to 2^-13, visible in a model's outputs; vreduceps in place of floor changes the last bit.
    """
    _require_float_vec(x, "rough_exp2")
    return (lambda x: _native_rough_exp2(x)) if "avx512dq" in isa.LEVEL.requires else (lambda x: portable_rough_exp2(x))


_erf_near_minus_1 = _polynomial(0.1283791538, -0.376125232767, 0.11282140817, -0.0267789090868, 0.00501196305272,
                                -0.000609036109493)  # fmt: skip
_log_erfc = _polynomial(-0.000166449262953, -1.1277972355, -0.6369760956, -0.104113667538, 0.0223152075158,
                        -0.00306548887154, 0.000198219505524)  # fmt: skip
_erf_libm = _lane_by_lane(math.erf)


@by_types(inline=True)
def erf(x):
    """Return the error function, at most 1.5 ulp off (float32)."""
    _require_float_vec(x, "erf")

    def compiled(x):
        magnitude = absolute(x)
        near = fma(magnitude, _erf_near_minus_1(x * x), magnitude)
        far = 1.0 - exp(_log_erfc(select(magnitude > 4.0, 4.0, magnitude)))  # erf(4) rounds to 1
        return copysign(select(magnitude < 0.9, near, far), x)

    return compiled if x.dtype == types.float32 else lambda x: _erf_libm(x)


_tanh_near_minus_1 = _polynomial(-3.925e-9, -0.333332605284, 0.133311275556, -0.0537210688228, 0.0205909894319,
                                 -0.00565998915876)  # fmt: skip
_tanh_libm = _lane_by_lane(math.tanh)


@by_types(inline=True)
def tanh(x):
    """Return the hyperbolic tangent, at most 1.5 ulp off (float32)."""
    _require_float_vec(x, "tanh")

    def compiled(x):
        magnitude = absolute(x)
        near = fma(magnitude, _tanh_near_minus_1(x * x), magnitude)
        far = 1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0)
        return copysign(select(magnitude < 0.625, near, far), x)

    return compiled if x.dtype == types.float32 else lambda x: _tanh_libm(x)


# --- activations ----------------------------------------------------------------------------------

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_GELU_QUARTIC = 0.044715  # Hendrycks and Gimpel, "Gaussian error linear units", section 2

# log2 Phi(-a) for a >= 0, fitted so that 2 to it, times max(a, 1), is within 1.5e-8; it keeps falling beyond the fit.
_log2_upper_tail = _polynomial(-0.9999999587967086, -1.1511069414657982, -0.45919305729971666, -0.05254643518938773,
                               0.007142780810275292, -0.00020247829888974409, -0.00015727900662011258,
                               3.296805691619447e-05, -2.2758748275159027e-06)  # fmt: skip


@by_types(inline=True)
def normal_cdf(x):
    """Return Phi(x), the normal distribution function: float32 within 1e-7; no cancellation for x < 0 (0.6% at -5)."""
    _require_float_vec(x, "normal_cdf")

    def compiled(x):
        tail = exp2(_log2_upper_tail(absolute(x)))  # half the operations of erf
        return select(x < 0.0, tail, 1.0 - tail)

    return compiled if x.dtype == types.float32 else lambda x: fma(erf(x * _SQRT_HALF), 0.5, 0.5)


@inline_helper
def relu(x):
    """Return max(x, 0); NaN stays."""
    return select(x < 0.0, 0.0, x)


@inline_helper
def silu(x):
    """Return x * sigmoid(x)."""
    return x / (exp(-x) + 1.0)


@inline_helper
def gelu(x):
    """Return x * Phi(x), Phi the normal distribution function."""
    return x * normal_cdf(x)


# (Phi(x) - 1/2) / x as a polynomial of x^2 up to x = 4.4: the least error of x Phi(x) with 1 at the end.
_rough_slope = _polynomial(0.39876185, -0.0660764309, 0.0096430284, -0.0010549926, 8.42930299e-05, -4.72486934e-06,
                           1.74084785e-07, -3.75405038e-09, 3.56943065e-11)  # fmt: skip
_ROUGH_END = 4.4


@by_types(inline=True)
def rough_gelu(x):
    """Return gelu of float32 in half its operations, for the results of products of rounded rows.

    Within 5e-5 up to |x| = 8 (relative 1.6e-4 for |x| < 1), then within 1e-6 of x, or 0. With it GELU takes 0.53 ms in
    place of 1.15 of 3.7 for 1,024 rows from 768 to 3,072 columns in int8 (2 cores of an Intel Xeon with AMX).
    """
    _require_float_vec(x, "rough_gelu")

    def compiled(x):
        y = select(x > _ROUGH_END, _ROUGH_END, x)  # written so that NaN stays
        y = select(y < -_ROUGH_END, -_ROUGH_END, y)
        phi = fma(y, _rough_slope(y * y), 0.5)
        return x * select(phi < 0.0, 0.0, phi)

    return compiled if x.dtype == types.float32 else lambda x: gelu(x)


@inline_helper
def _exp_minus_2u(x):
    """Return exp(-2u), u the argument of gelu_tanh's tanh: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))."""
    return exp((-2 * _SQRT_2_OVER_PI) * x * fma(x * x, _GELU_QUARTIC, 1.0))


@inline_helper
def gelu_tanh(x):
    """Return GELU with Phi approximated through tanh: x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x / (_exp_minus_2u(x) + 1.0)


@inline_helper
def relu_derivative(x):
    """Return 0 where x <= 0, else 1, also for NaN."""
    return select(x <= 0.0, 0.0, broadcast(x, 1.0))


@inline_helper
def tanh_derivative(x):
    """Return 1 - tanh(x)^2."""
    y = tanh(x)
    return 1.0 - y * y


@inline_helper
def silu_derivative(x):
    """Return s + x s (1 - s) with s = sigmoid(x)."""
    s = 1.0 / (exp(-x) + 1.0)
    return s * fma(x, 1.0 - s, 1.0)


@inline_helper
def gelu_derivative(x):
    """Return Phi(x) + x phi(x), phi the normal density."""
    density = _INV_SQRT_2PI * exp(-0.5 * x * x)
    return fma(x, density, normal_cdf(x))


@inline_helper
def gelu_tanh_derivative(x):
    """Return s + x s (1 - s) 2u', s = 1 / (1 + exp(-2u)) as in `gelu_tanh`."""
    x = select(x < -10.0, -10.0, x)  # beyond 10 it is 0 or 1 to the last bit, and exp could overflow
    x = select(x > 10.0, 10.0, x)
    e = _exp_minus_2u(x)
    s = 1.0 / (e + 1.0)
    slope = 2 * _SQRT_2_OVER_PI * fma(x * x, 3 * _GELU_QUARTIC, 1.0)
    return fma(x * slope, s * (s * e), s)  # s e = 1 - s, without cancellation
