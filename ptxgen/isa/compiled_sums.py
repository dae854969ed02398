"""Sums of tensor cores by machine code, where the package llvmlite is installed (it comes with Numba, in the
extra `compiled`); else by numpy. `ptxgen.isa.tensor_core` has the model, and both give its bits.

A process compiles the code (`ptxgen.isa.sums_text`) for products of a form when it first computes them, in
some 20 ms. The code gives up if the largest exponent of an output is out of the range of f32, and numpy
computes the sums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric, tensor_core
from ptxgen.isa.fragments import WARP, element_numbers, elements_across, registers_across
from ptxgen.isa.sums_text import BITS, LANES, Form, text
from ptxgen.isa.tensor_core import PRODUCT_BITS, Adder, factors

if TYPE_CHECKING:
    from ptxgen.isa.fragments import Operands
    from ptxgen.isa.machine import Lanes

# The type of accumulators by their number in a register.
ACCUMULATORS: Final[Mapping[int, type[Any]]] = {1: np.float32, 2: np.float16}

_BIAS_F32: Final = 127
_SIGNIFICANT_F64: Final = 52
_POINTERS, _COUNTS = 7, 16  # arguments of the code


@cache
def _llvm() -> Any:
    """LLVM in Python, for the host; None where llvmlite is not installed."""
    try:
        import llvmlite.binding as llvm  # which only products need
    except ImportError:
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _code(form: Form) -> Callable[..., int]:
    """The code of a form."""
    llvm = _llvm()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text(form)), machine)
    engine.finalize_object()
    of = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * _POINTERS, *[ctypes.c_int64] * _COUNTS)
    function = of(engine.get_function_address("sums"))
    function.engine = engine  # type: ignore[attr-defined]  # which owns the code
    return function


@numeric.quiet
def multiplied(how: Adder, of: Operands, a: Lanes, b: Lanes, c: Lanes, *, negated: bool = False) -> Lanes:
    """The concatenated registers of D = A * B + C, or of C - A * B if `negated`.

    A and B are elements as bits, `[K, rows of A or columns of B, matrices]`, C is concatenated registers.
    A tensor core has one type for C and D: if they differ, sums are in f32, and C is widened or D rounded.
    """
    compiles = (
        _llvm() is not None and not (how.converted or how.fused) and {of.type_a, of.type_b} <= BITS.keys()
    )
    if compiles and of.c is of.d and of.c.shape[0] == 1:
        sums = _compiled(how, of, a, b, c.view(ACCUMULATORS[of.c.per]), negated)
        if sums is not None:
            return sums if of.c.per == 1 else sums.view(np.uint32)
    old = elements_across(of.c, c, k_first=False).view(ACCUMULATORS[of.c.per])
    if of.d.per == 1:
        old = old.astype(np.float32, copy=False)
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    left, right = (factors(type, x, how) for type, x in ((of.type_a, a), (of.type_b, b)))
    sums = tensor_core.multiplied(how, of.type_a, left.negated() if negated else left, right, old)
    return registers_across(of.d, sums.astype(ACCUMULATORS[of.d.per], copy=False))


def _compiled(how: Adder, of: Operands, a: Lanes, b: Lanes, c: Lanes, negated: bool) -> Lanes | None:
    """The registers of D by machine code, float32 or float16 as those of C are; None if the code gives up."""
    depth, rows, matrices = a.shape
    block = tensor_core.block_depth(how, of.type_a, depth)
    strides = [[n // x.itemsize for n in x.strides] for x in (a, b)]
    dense = [along[2] == 1 and matrices % LANES == 0 for along in strides]
    code = _code(
        Form(
            *(of.type_a, of.type_b, "f32" if c.dtype == np.float32 else "f16"),
            "i64" if block << how.fraction + PRODUCT_BITS > 1 << 31 else "i32",
            *dense,
        )
    )
    factors = depth * (rows + 1) * LANES
    floats = np.empty(factors + of.c.index.size * LANES, np.float32)
    exponents = np.empty(factors, np.int16)
    old = c.astype(np.float32, copy=False)
    out = np.empty_like(old)
    left_out = code(
        *(x.ctypes.data for x in (a, b, old, out, element_numbers(of.c), floats, exponents)),
        *(rows, b.shape[1], matrices, depth, block),
        *(_BIAS_F32 + how.fraction, -1 << _SIGNIFICANT_F64 - how.significant, -(1 << 31) if negated else 0),
        *(*strides[0], *strides[1], of.c.registers, WARP * of.c.per),
    )
    return None if left_out else out.astype(c.dtype, copy=False)
