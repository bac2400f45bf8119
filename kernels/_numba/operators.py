"""Python's operators on vectors; a scalar operand is rounded to the vector's dtype and broadcast."""

import operator

from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, lower_cast

from .codegen import Vec, common_vec, mask_of, splat


@lower_cast(types.Number, Vec)
def _broadcast_cast(context, builder, from_type, to_type, value):
    return splat(builder, context.cast(builder, value, from_type, to_type.dtype), to_type.count)


def _register_operator(functions, emit, result_of):
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            vec = common_vec(*args)
            if vec is not None and (vec.dtype == types.boolean) == (result_of is None):
                return signature(vec if result_of is None else result_of(vec), *[vec] * len(args))
            return None

    def lower(context, builder, sig, args):
        return emit(builder, *args)

    for function, arity in functions:
        infer_global(function)(Template)
        lower_builtin(function, *[Vec] * arity)(lower)


def _same(vec):
    return vec


for _name, _symbol in (("fadd", "add"), ("fsub", "sub"), ("fmul", "mul"), ("fdiv", "truediv")):
    _register_operator(
        [(getattr(operator, _symbol), 2), (getattr(operator, "i" + _symbol), 2)],
        lambda builder, a, b, name=_name: getattr(builder, name)(a, b),
        _same,
    )
_register_operator([(operator.neg, 1)], lambda builder, a: builder.fneg(a), _same)
for _name, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")):
    _register_operator(
        [(getattr(operator, _name), 2)],
        lambda builder, a, b, symbol=_symbol: builder.fcmp_ordered(symbol, a, b),
        mask_of,
    )
_register_operator([(operator.ne, 2)], lambda builder, a, b: builder.fcmp_unordered("!=", a, b), mask_of)
_register_operator([(operator.and_, 2), (operator.iand, 2)], lambda builder, a, b: builder.and_(a, b), None)
_register_operator([(operator.or_, 2), (operator.ior, 2)], lambda builder, a, b: builder.or_(a, b), None)
_register_operator([(operator.invert, 1)], lambda builder, a: builder.not_(a), None)
