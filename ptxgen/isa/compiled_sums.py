"""Sums of tensor cores as machine code, where the package llvmlite is installed (it comes with Numba, in the
extra `compiled`); else numpy computes them. `ptxgen.isa.tensor_core` has the model, and both give its bits.

The code of a step is a text of LLVM's, compiled in some 20 ms when a process first needs it. It goes through the
matrices, the last axis of all operands, `LANES` at a time, each in a lane of a vector: factors are unpacked to
f32 with their exponents, and for each output the largest exponent and the sum of the truncated products stay in
registers. Outputs whose largest exponent is out of the range of f32 are left to numpy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric, tensor_core
from ptxgen.isa.fragments import WARP, element_numbers, elements_across, registers_across
from ptxgen.isa.tensor_core import (
    LARGEST_TOP,
    LEAST,
    LEAST_OF,
    PRODUCT_BITS,
    SMALLEST_TOP,
    Adder,
    block_depth,
    factors,
)
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.isa.products import Operands

LANES: Final = 16  # matrices in a vector: one register of AVX-512, two of AVX2, four of NEON
_UNROLLED: Final = 4  # products; the depth of each block is a multiple
_BIAS_F32: Final = 127
_SIGNIFICANT_F64: Final = 52
# The type of accumulators by their number in a register.
ACCUMULATORS: Final[Mapping[int, type[Any]]] = {1: np.float32, 2: np.float16}
_POINTERS, _COUNTS = 7, 16  # arguments of the code

_FUNCTION: Final = Template("""\
define i32 @sums(ptr %a, ptr %b, ptr %c, ptr %out, ptr %at, ptr %floats, ptr %ae, i64 %rows, i64 %columns,
                 i64 %matrices, i64 %depth, i64 %block, i64 %bias64, i64 %kept, i64 %sign64, i64 %a_k, i64 %a_row,
                 i64 %a_m, i64 %b_k, i64 %b_column, i64 %b_m, i64 %registers, i64 %c_m) {
entry:
  %bias = trunc i64 %bias64 to i32
  %sign = trunc i64 %sign64 to i32
  %all_a = mul i64 %rows, %depth
  %packed_a = mul i64 %all_a, $lanes
  %elements_c = mul i64 %registers, %c_m
  %packed_c = mul i64 %elements_c, $lanes
  %along_c = mul i64 %c_m, %matrices
  %av = getelementptr float, ptr %floats, i64 %packed_c
  %bv = getelementptr float, ptr %av, i64 %packed_a
  %be = getelementptr i16, ptr %ae, i64 %packed_a
  %bias0 = insertelement <$lanes x i32> poison, i32 %bias, i32 0
  %biases = shufflevector <$lanes x i32> %bias0, <$lanes x i32> poison, <$lanes x i32> zeroinitializer
  %sign0 = insertelement <$lanes x i32> poison, i32 %sign, i32 0
  %signs = shufflevector <$lanes x i32> %sign0, <$lanes x i32> poison, <$lanes x i32> zeroinitializer
  %last = sub i64 %matrices, 1
${splats}
  %kept0 = insertelement <$lanes x i64> poison, i64 %kept, i32 0
  %mask = shufflevector <$lanes x i64> %kept0, <$lanes x i64> poison, <$lanes x i32> zeroinitializer
  br label %chunk
chunk:
  %m = phi i64 [ 0, %entry ], [ %m1, %next_chunk ]
  %first0 = insertelement <$lanes x i64> poison, i64 %m, i32 0
  %first = shufflevector <$lanes x i64> %first0, <$lanes x i64> poison, <$lanes x i32> zeroinitializer
  %numbers = add <$lanes x i64> %first, <${iota}>
  %clamped = call <$lanes x i64> @llvm.umin.v${lanes}i64(<$lanes x i64> %numbers, <$lanes x i64> %last_all)
  %a_lanes = mul <$lanes x i64> %clamped, %a_m_all
  %b_lanes = mul <$lanes x i64> %clamped, %b_m_all
  %c_lanes = mul <$lanes x i64> %clamped, %c_m_all
${warps}
  br label %c_register
${pack_c}
pack_row:
  %pr = phi i64 [ 0, %c_next ], [ %pr1, %pack_next_row ]
  %pr_at = mul i64 %pr, %a_row
  %pr_to = mul i64 %pr, %depth
  br label %pack_a
pack_a:
  %pk = phi i64 [ 0, %pack_row ], [ %pk1, %pack_a ]
  %pk_from = phi i64 [ %pr_at, %pack_row ], [ %pk_from1, %pack_a ]
  %pa_from = getelementptr ${element_a}, ptr %a, i64 %pk_from
${load_a}
${unpacked_a}
  %pa_signed = xor <$lanes x i32> %pa_bits, %signs
${exponents_a}
  %pk_to = add i64 %pr_to, %pk
  %pk_lane = mul i64 %pk_to, $lanes
  %pav = getelementptr float, ptr %av, i64 %pk_lane
  %pae = getelementptr i16, ptr %ae, i64 %pk_lane
  store <$lanes x i32> %pa_signed, ptr %pav, align 4
  store <$lanes x i16> %pa_exponents, ptr %pae, align 2
  %pk1 = add i64 %pk, 1
  %pk_from1 = add i64 %pk_from, %a_k
  %pk_more = icmp ult i64 %pk1, %depth
  br i1 %pk_more, label %pack_a, label %pack_next_row
pack_next_row:
  %pr1 = add i64 %pr, 1
  %pr_more = icmp ult i64 %pr1, %rows
  br i1 %pr_more, label %pack_row, label %column
column:
  %n = phi i64 [ 0, %pack_next_row ], [ %n1, %next_column ]
  %n_at = mul i64 %n, %b_column
  br label %pack_b
pack_b:
  %qk = phi i64 [ 0, %column ], [ %qk1, %pack_b ]
  %qk_from = phi i64 [ %n_at, %column ], [ %qk_from1, %pack_b ]
  %pb_from = getelementptr ${element_b}, ptr %b, i64 %qk_from
${load_b}
${unpacked_b}
${exponents_b}
  %qk_lane = mul i64 %qk, $lanes
  %pbv = getelementptr float, ptr %bv, i64 %qk_lane
  %pbe = getelementptr i16, ptr %be, i64 %qk_lane
  store <$lanes x i32> %pb_bits, ptr %pbv, align 4
  store <$lanes x i16> %pb_exponents, ptr %pbe, align 2
  %qk1 = add i64 %qk, 1
  %qk_from1 = add i64 %qk_from, %b_k
  %qk_more = icmp ult i64 %qk1, %depth
  br i1 %qk_more, label %pack_b, label %row
row:
  %r = phi i64 [ 0, %pack_b ], [ %r1, %next_row ]
  %r_c = mul i64 %r, %columns
  %rn = add i64 %r_c, %n
  %at_rn = getelementptr i64, ptr %at, i64 %rn
  %element = load i64, ptr %at_rn, align 8
  %element_lane = mul i64 %element, $lanes
  %sum_at = getelementptr float, ptr %floats, i64 %element_lane
  %before = load <$lanes x i32>, ptr %sum_at, align 4
  %r_k = mul i64 %r, %depth
  br label %block_of_k
block_of_k:
  %k_first = phi i64 [ 0, %row ], [ %k_end, %next_block ]
  %pc_bits = phi <$lanes x i32> [ %before, %row ], [ %after, %next_block ]
  %k_end = add i64 %k_first, %block
${exponents_c}
  %old = bitcast <$lanes x i32> %pc_bits to <$lanes x float>
  %r_kb = add i64 %r_k, %k_first
  %r_lane = mul i64 %r_kb, $lanes
  %n_lane = mul i64 %k_first, $lanes
  %arow = getelementptr float, ptr %av, i64 %r_lane
  %aexp = getelementptr i16, ptr %ae, i64 %r_lane
  %bcol = getelementptr float, ptr %bv, i64 %n_lane
  %bexp = getelementptr i16, ptr %be, i64 %n_lane
  br label %tops
tops:
  %k = phi i64 [ 0, %block_of_k ], [ %k1, %tops ]
  %t0 = phi <$lanes x i16> [ %pc_exponents, %block_of_k ], [ %t${last}, %tops ]
${tops}
  %k1 = add i64 %k, ${last}
  %k_more = icmp ult i64 %k1, %block
  br i1 %k_more, label %tops, label %scale
scale:
  %top = sext <$lanes x i16> %t${last} to <$lanes x i32>
  %up = sub <$lanes x i32> %biases, %top
  %scale_bits = shl <$lanes x i32> %up, splat (i32 23)
  %s = bitcast <$lanes x i32> %scale_bits to <$lanes x float>
  br label %sums
sums:
  %j = phi i64 [ 0, %scale ], [ %j1, %sums ]
  %sum0 = phi <$lanes x ${sum}> [ zeroinitializer, %scale ], [ %sum${last}, %sums ]
${sums}
  %j1 = add i64 %j, ${last}
  %j_more = icmp ult i64 %j1, %block
  br i1 %j_more, label %sums, label %total
total:
  %old_scaled = fmul <$lanes x float> %old, %s
  %old_cut = call <$lanes x float> @llvm.trunc.v${lanes}f32(<$lanes x float> %old_scaled)
  %old_wide = fpext <$lanes x float> %old_cut to <$lanes x double>
  %sum_wide = sitofp <$lanes x ${sum}> %sum${last} to <$lanes x double>
  %both = fadd <$lanes x double> %old_wide, %sum_wide
  %s_wide = fpext <$lanes x float> %s to <$lanes x double>
  %exact = fdiv <$lanes x double> %both, %s_wide
${rounded}
  %small = icmp slt <$lanes x i16> %t${last}, splat (i16 ${smallest})
  %large = icmp sgt <$lanes x i16> %t${last}, splat (i16 ${largest})
  %rare = or <$lanes x i1> %small, %large
  %any_rare = call i1 @llvm.vector.reduce.or.v${lanes}i1(<$lanes x i1> %rare)
  br i1 %any_rare, label %factors, label %next_block
factors:
  %f = phi i64 [ 0, %total ], [ %f1, %factors ]
  %some_a = phi <$lanes x i32> [ zeroinitializer, %total ], [ %some_a1, %factors ]
  %some_b = phi <$lanes x i32> [ zeroinitializer, %total ], [ %some_b1, %factors ]
  %f_lane = mul i64 %f, $lanes
  %fa_from = getelementptr float, ptr %arow, i64 %f_lane
  %fb_from = getelementptr float, ptr %bcol, i64 %f_lane
  %fa = load <$lanes x i32>, ptr %fa_from, align 4
  %fb = load <$lanes x i32>, ptr %fb_from, align 4
  %fa_size = shl <$lanes x i32> %fa, splat (i32 1)
  %fb_size = shl <$lanes x i32> %fb, splat (i32 1)
  %some_a1 = or <$lanes x i32> %some_a, %fa_size
  %some_b1 = or <$lanes x i32> %some_b, %fb_size
  %f1 = add i64 %f, 1
  %f_more = icmp ult i64 %f1, %block
  br i1 %f_more, label %factors, label %nothing
nothing:
  %no_a = icmp eq <$lanes x i32> %some_a1, zeroinitializer
  %no_b = icmp eq <$lanes x i32> %some_b1, zeroinitializer
  %no_old = fcmp oeq <$lanes x float> %old, zeroinitializer
  %no_factor = or <$lanes x i1> %no_a, %no_b
  %empty = and <$lanes x i1> %no_factor, %no_old
  %zero = and <$lanes x i1> %empty, %small
  %with_zeros = select <$lanes x i1> %zero, <$lanes x float> zeroinitializer, <$lanes x float> %result
  %not_zero = xor <$lanes x i1> %zero, splat (i1 true)
  %left = and <$lanes x i1> %rare, %not_zero
  %any_left = call i1 @llvm.vector.reduce.or.v${lanes}i1(<$lanes x i1> %left)
  br i1 %any_left, label %give_up, label %next_block
give_up:
  ret i32 1
next_block:
  %new = phi <$lanes x float> [ %result, %total ], [ %with_zeros, %nothing ]
  %after = bitcast <$lanes x float> %new to <$lanes x i32>
  %more_blocks = icmp ult i64 %k_end, %depth
  br i1 %more_blocks, label %block_of_k, label %next_row
next_row:
  store <$lanes x i32> %after, ptr %sum_at, align 4
  %r1 = add i64 %r, 1
  %r_more = icmp ult i64 %r1, %rows
  br i1 %r_more, label %row, label %next_column
next_column:
  %n1 = add i64 %n, 1
  %n_more = icmp ult i64 %n1, %columns
  br i1 %n_more, label %column, label %o_register
${unpack_c}
next_chunk:
  %m1 = add i64 %m, $lanes
  %m_more = icmp ult i64 %m1, %matrices
  br i1 %m_more, label %chunk, label %done
done:
  ret i32 0
}
declare <$lanes x float> @llvm.trunc.v${lanes}f32(<$lanes x float>)
declare <$lanes x i16> @llvm.smax.v${lanes}i16(<$lanes x i16>, <$lanes x i16>)
declare <$lanes x i32> @llvm.smax.v${lanes}i32(<$lanes x i32>, <$lanes x i32>)
declare <$lanes x i64> @llvm.umin.v${lanes}i64(<$lanes x i64>, <$lanes x i64>)
declare <$lanes x double> @llvm.copysign.v${lanes}f64(<$lanes x double>, <$lanes x double>)
declare <$lanes x double> @llvm.maxnum.v${lanes}f64(<$lanes x double>, <$lanes x double>)
${gathers}
declare i1 @llvm.vector.reduce.or.v${lanes}i1(<$lanes x i1>)

""")
# C's registers and the sums: squares of the same elements of $lanes warps, each warp's side by side in memory, turn
# into squares of a warp a lane, and back.
_WARP: Final = Template("""\
  %w${n} = extractelement <$lanes x i64> %c_lanes, i32 ${n}
""")
_SQUARES: Final = Template("""\
${x}_register:
  %${x}_r = phi i64 [ 0, %${before} ], [ %${x}_r1, %${x}_next ]
  %${x}_at = mul i64 %${x}_r, %along_c
  %${x}_to = mul i64 %${x}_r, %c_m
  br label %${x}_square
${x}_square:
  %${x}_e = phi i64 [ 0, %${x}_register ], [ %${x}_e1, %${x}_square ]
  %${x}_from = add i64 %${x}_at, %${x}_e
  %${x}_packed = add i64 %${x}_to, %${x}_e
  %${x}_lane = mul i64 %${x}_packed, $lanes
  %${x}_scratch = getelementptr float, ptr %floats, i64 %${x}_lane
  %${x}_memory = getelementptr float, ptr %${memory}, i64 %${x}_from
${moves}
  %${x}_e1 = add i64 %${x}_e, $lanes
  %${x}_more = icmp ult i64 %${x}_e1, %c_m
  br i1 %${x}_more, label %${x}_square, label %${x}_next
${x}_next:
  %${x}_r1 = add i64 %${x}_r, 1
  %${x}_more_r = icmp ult i64 %${x}_r1, %registers
  br i1 %${x}_more_r, label %${x}_register, label %${after}
""")
_SPLAT: Final = Template("""\
  %${x}_0 = insertelement <$lanes x i64> poison, i64 %${x}, i32 0
  %${x}_all = shufflevector <$lanes x i64> %${x}_0, <$lanes x i64> poison, <$lanes x i32> zeroinitializer
""")
_GATHER: Final = Template("""\
declare <$lanes x ${element}> @llvm.masked.gather.v${lanes}${element}.v${lanes}p0(
  <$lanes x ptr>, i32, <$lanes x i1>, <$lanes x ${element}>)
""")
# The elements of a factor in `%px`: side by side in memory, or apart.
_LOADS: Final = {
    True: Template("""\
  %p${x}_first = getelementptr ${element}, ptr %p${x}_from, i64 %m
  %p${x} = load <$lanes x ${element}>, ptr %p${x}_first, align 1
"""),
    False: Template("""\
  %p${x}_each = getelementptr ${element}, ptr %p${x}_from, <$lanes x i64> %${x}_lanes
  %p${x} = call <$lanes x ${element}> @llvm.masked.gather.v${lanes}${element}.v${lanes}p0(
    <$lanes x ptr> %p${x}_each, i32 1, <$lanes x i1> splat (i1 true), <$lanes x ${element}> poison)
"""),
}
_TOP: Final = Template("""\
  %k.${n} = add i64 %k, ${n}
  %k_lane${n} = mul i64 %k.${n}, $lanes
  %xe_from${n} = getelementptr i16, ptr %aexp, i64 %k_lane${n}
  %ye_from${n} = getelementptr i16, ptr %bexp, i64 %k_lane${n}
  %xe${n} = load <$lanes x i16>, ptr %xe_from${n}, align 2
  %ye${n} = load <$lanes x i16>, ptr %ye_from${n}, align 2
  %e${n} = add <$lanes x i16> %xe${n}, %ye${n}
  %t${next} = call <$lanes x i16> @llvm.smax.v${lanes}i16(<$lanes x i16> %t${n}, <$lanes x i16> %e${n})
""")
_SUM: Final = Template("""\
  %j.${n} = add i64 %j, ${n}
  %j_lane${n} = mul i64 %j.${n}, $lanes
  %x_from${n} = getelementptr float, ptr %arow, i64 %j_lane${n}
  %y_from${n} = getelementptr float, ptr %bcol, i64 %j_lane${n}
  %x${n} = load <$lanes x float>, ptr %x_from${n}, align 4
  %y${n} = load <$lanes x float>, ptr %y_from${n}, align 4
  %xy${n} = fmul <$lanes x float> %x${n}, %y${n}
  %scaled${n} = fmul <$lanes x float> %xy${n}, %s
  %cut${n} = fptosi <$lanes x float> %scaled${n} to <$lanes x i32>
  %added${n} = ${widened}
  %sum${next} = add <$lanes x ${sum}> %sum${n}, %added${n}
""")
# The f32 of elements X, as bits. Small formats become an f32 with the same bits in front of the same point, which a
# multiplication brings to the exponents of f32; an infinity and a NaN get all exponent bits.
_SMALL: Final = Template("""\
  %${x}_wide = zext <$lanes x ${element}> %${x} to <$lanes x i32>
  %${x}_size = and <$lanes x i32> %${x}_wide, splat (i32 ${size})
  %${x}_moved = shl <$lanes x i32> %${x}_size, splat (i32 ${moved})
  %${x}_float = bitcast <$lanes x i32> %${x}_moved to <$lanes x float>
  %${x}_times = bitcast <$lanes x i32> splat (i32 ${times}) to <$lanes x float>
  %${x}_scaled = fmul <$lanes x float> %${x}_float, %${x}_times
  %${x}_finite = bitcast <$lanes x float> %${x}_scaled to <$lanes x i32>
  %${x}_special = icmp uge <$lanes x i32> %${x}_size, splat (i32 ${special})
  %${x}_number = select <$lanes x i1> %${x}_special, <$lanes x i32> splat (i32 2139095040), <$lanes x i32> %${x}_finite
  %${x}_top = lshr <$lanes x i32> %${x}_wide, splat (i32 ${top})
  %${x}_sign = shl <$lanes x i32> %${x}_top, splat (i32 31)
  %${x}_bits = or <$lanes x i32> %${x}_number, %${x}_sign
""")
_BF16: Final = Template("""\
  %${x}_wide = zext <$lanes x ${element}> %${x} to <$lanes x i32>
  %${x}_bits = shl <$lanes x i32> %${x}_wide, splat (i32 16)
""")
_TF32: Final = Template("  %${x}_bits = and <$lanes x i32> %${x}, splat (i32 -8192)")
_F32: Final = Template("  %${x}_bits = or <$lanes x i32> %${x}, zeroinitializer")
_EXPONENTS: Final = Template("""\
  %${x}_down = lshr <$lanes x i32> %${x}_bits, splat (i32 23)
  %${x}_field = and <$lanes x i32> %${x}_down, splat (i32 255)
  %${x}_unbiased = sub <$lanes x i32> %${x}_field, splat (i32 127)
  %${x}_least = call <$lanes x i32> @llvm.smax.v${lanes}i32(<$lanes x i32> %${x}_unbiased, <$lanes x i32> splat (i32 ${least}))
  %${x}_is_zero = icmp eq <$lanes x i32> %${x}_field, zeroinitializer
  %${x}_or_zero = select <$lanes x i1> %${x}_is_zero, <$lanes x i32> splat (i32 -126), <$lanes x i32> %${x}_least
  %${x}_is_not = icmp eq <$lanes x i32> %${x}_field, splat (i32 255)
  %${x}_exponent = select <$lanes x i1> %${x}_is_not, <$lanes x i32> splat (i32 512), <$lanes x i32> %${x}_or_zero
  %${x}_exponents = trunc <$lanes x i32> %${x}_exponent to <$lanes x i16>
""")
_TO_F32: Final = Template("""\
  %raw = bitcast <$lanes x double> %exact to <$lanes x i64>
  %masked = and <$lanes x i64> %raw, %mask
  %short = bitcast <$lanes x i64> %masked to <$lanes x double>
  %result = fptrunc <$lanes x double> %short to <$lanes x float>
""")
# The nearest f16, an f32; all from 65520 on become 65536. Adding and subtracting a power of two drops what is below
# the last bit of the f16.
_TO_F16: Final = Template("""\
  %raw = bitcast <$lanes x double> %exact to <$lanes x i64>
  %power_bits = and <$lanes x i64> %raw, splat (i64 9218868437227405312)
  %power = bitcast <$lanes x i64> %power_bits to <$lanes x double>
  %least_power = call <$lanes x double> @llvm.maxnum.v${lanes}f64(<$lanes x double> %power, <$lanes x double> splat (double 0x3F10000000000000))
  %anchor = fmul <$lanes x double> %least_power, splat (double 0x4298000000000000)
  %added = fadd <$lanes x double> %exact, %anchor
  %nearest = fsub <$lanes x double> %added, %anchor
  %signed = call <$lanes x double> @llvm.copysign.v${lanes}f64(<$lanes x double> %nearest, <$lanes x double> %exact)
  %result = fptrunc <$lanes x double> %signed to <$lanes x float>
""")

# A truncated product as an addend.
_WIDENED: Final = {
    "i32": Template("add <$lanes x i32> %cut${n}, zeroinitializer"),
    "i64": Template("sext <$lanes x i32> %cut${n} to <$lanes x i64>"),
}
# 2 ** -`exponents` times an element is the f32 of its bits without the sign, moved up by `moved`; infinities and NaN
# are from `special` on.
_SMALL_OF: Final = {
    "f16": {"size": 0x7FFF, "moved": 13, "exponents": 112, "special": 0x7C00, "top": 15},
    "e5m2": {"size": 0x7F, "moved": 21, "exponents": 112, "special": 0x7C, "top": 7},
    "e4m3": {"size": 0x7F, "moved": 20, "exponents": 120, "special": 0x7F, "top": 7},
}
_OTHERS: Final = {"bf16": _BF16, "tf32": _TF32, "f32": _F32}
_BITS: Final = {"f16": 16, "e5m2": 8, "e4m3": 8, "bf16": 16, "tf32": 32, "f32": 32}


def _unpacked(name: str, type: str) -> str:
    """The code that makes `%name_bits`, the f32 of elements `%name` of a type."""
    more = {"x": name, "element": f"i{_BITS[type]}", "lanes": LANES}
    if type in _OTHERS:
        return _OTHERS[type].substitute(more)
    of = _SMALL_OF[type]
    return _SMALL.substitute(of, times=_BIAS_F32 + of["exponents"] << 23, **more)


def _exponents(name: str, type: str) -> str:
    """The code that makes `%name_exponents` of elements of a type, from their f32."""
    return _EXPONENTS.substitute(x=name, least=LEAST_OF.get(type, LEAST), lanes=LANES)


@dataclass(frozen=True, slots=True)
class _Form:
    """What the code of a step is written for: the types of A, B, C and the sums of products, and whether the
    matrices of A and of B are side by side, in whole vectors.
    """

    a: str
    b: str
    c: str
    sums: str
    dense_a: bool
    dense_b: bool


def _text(form: _Form) -> str:
    """The text of a step."""
    counted = [{"n": n, "next": n + 1, "lanes": LANES} for n in range(_UNROLLED)]
    types = {"a": form.a, "b": form.b}
    elements = {x: f"i{_BITS[type]}" for x, type in types.items()}
    return _FUNCTION.substitute(
        lanes=LANES,
        last=_UNROLLED,
        iota=", ".join(f"i64 {n}" for n in range(LANES)),
        splats="".join(_SPLAT.substitute(x=x, lanes=LANES) for x in ("last", "a_m", "b_m", "c_m")),
        warps="".join(_WARP.substitute(n=n, lanes=LANES) for n in range(LANES)),
        pack_c=_squares("c", "c", before="chunk", after="pack_row"),
        unpack_c=_squares("o", "out", before="next_column", after="next_chunk"),
        load_a=_LOADS[form.dense_a].substitute(x="a", element=elements["a"], lanes=LANES),
        load_b=_LOADS[form.dense_b].substitute(x="b", element=elements["b"], lanes=LANES),
        gathers="".join(_GATHER.substitute(element=x, lanes=LANES) for x in sorted({*elements.values()})),
        sum=form.sums,
        rounded=(_TO_F32 if form.c == "f32" else _TO_F16).substitute(lanes=LANES),
        tops="".join(_TOP.substitute(of) for of in counted),
        sums="".join(_SUM.substitute(of, sum=form.sums, widened=_WIDENED[form.sums].substitute(of)) for of in counted),
        smallest=SMALLEST_TOP,
        largest=LARGEST_TOP,
        exponents_c=_exponents("pc", form.c),
        **{f"element_{x}": element for x, element in elements.items()},
        **{f"unpacked_{x}": _unpacked(f"p{x}", type) for x, type in types.items()},
        **{f"exponents_{x}": _exponents(f"p{x}", type) for x, type in types.items()},
    )


def _squares(x: str, memory: str, *, before: str, after: str) -> str:
    """The loops that move squares of C from memory into scratch memory (`x` is "c"), or of the sums back, with
    rows and columns exchanged.
    """
    vector = f"<{LANES} x float>"
    in_memory = [
        f"%{x}_p{n} = getelementptr float, ptr %{x}_memory, i64 %w{n}" for n in range(LANES)
    ]
    in_scratch = [f"%{x}_q{n} = getelementptr float, ptr %{x}_scratch, i64 {n * LANES}" for n in range(LANES)]
    source, to = ("p", "q") if x == "c" else ("q", "p")
    lines = [*in_memory, *in_scratch]
    lines += [f"%{x}_0_{n} = load {vector}, ptr %{x}_{source}{n}, align 4" for n in range(LANES)]
    names = [f"%{x}_0_{n}" for n in range(LANES)]
    for stage in range(LANES.bit_length() - 1):  # each interleaves the first half with the second
        new = []
        for n in range(LANES // 2):
            for high in range(2):
                first = high * LANES // 2
                mask = ", ".join(f"i32 {first + k}, i32 {first + k + LANES}" for k in range(LANES // 2))
                new.append(f"%{x}_{stage + 1}_{2 * n + high}")
                pair = f"{vector} {names[n]}, {vector} {names[n + LANES // 2]}"
                lines.append(f"{new[-1]} = shufflevector {pair}, <{LANES} x i32> <{mask}>")
        names = new
    lines += [f"store {vector} {name}, ptr %{x}_{to}{n}, align 4" for n, name in enumerate(names)]
    moves = "".join(f"  {line}\n" for line in lines)
    return _SQUARES.substitute(x=x, memory=memory, before=before, after=after, moves=moves, lanes=LANES)


@cache
def _llvm() -> Any:
    """LLVM in Python, for the host; None where llvmlite is not installed."""
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _code(form: _Form) -> Callable[..., int]:
    """The code of a form."""
    llvm = _llvm()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_text(form)), machine)
    engine.finalize_object()
    of = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * _POINTERS, *[ctypes.c_int64] * _COUNTS)
    function: Any = of(engine.get_function_address("sums"))
    function.engine = engine  # which owns the code
    return function


@numeric.quiet
def multiplied(how: Adder, of: Operands, a: Lanes, b: Lanes, c: Lanes, *, negated: bool = False) -> Lanes:
    """The concatenated registers of D = A * B + C, or of C - A * B if `negated`. A and B are elements as bits,
    `[K, rows of A or columns of B, matrices]`, C is concatenated registers. A tensor core has one type for C and
    D: if they differ, the sums are in f32, and C is widened or D is rounded.
    """
    compiles = _llvm() is not None and not (how.converted or how.fused) and {of.type_a, of.type_b} <= _BITS.keys()
    if compiles and of.c is of.d and of.c.shape[0] == 1:
        sums = _compiled(how, of, a, b, c.view(ACCUMULATORS[of.c.per]), negated)
        if sums is not None:
            return sums.view(c.dtype)
    old = elements_across(of.c, c, k_first=False).view(ACCUMULATORS[of.c.per])
    if of.d.per == 1:
        old = old.astype(np.float32, copy=False)
    left, right = (factors(type, x, how) for type, x in ((of.type_a, a), (of.type_b, b)))
    sums = tensor_core.multiplied(how, of.type_a, left.negated() if negated else left, right, old)
    return registers_across(of.d, sums.astype(ACCUMULATORS[of.d.per], copy=False))


def _compiled(how: Adder, of: Operands, a: Lanes, b: Lanes, c: Lanes, negated: bool) -> Lanes | None:
    """The registers of the sums by machine code, float32 or float16 as those of C are; None if one of them is out
    of its range.
    """
    depth, rows, matrices = a.shape
    block = tensor_core.block_depth(how, of.type_a, depth)
    strides = [[n // x.itemsize for n in x.strides] for x in (a, b)]
    dense = [along[2] == 1 and matrices % LANES == 0 for along in strides]
    code = _code(
        _Form(
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
