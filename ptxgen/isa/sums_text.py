"""The machine code of sums of tensor cores, as a text of LLVM's. `ptxgen.isa.compiled_sums` compiles it.

The code goes through the matrices `LANES` at a time, each in a lane of a vector. It unpacks A and moves C
into scratch memory, where the lanes are side by side; unpacks a column of B at a time, and adds the products
of each row to C, block by block; and moves the sums to the registers of D.
"""

from __future__ import annotations

from string import Template
from typing import Final

from ptxgen.isa.tensor_core import LARGEST_TOP, LEAST, LEAST_OF, SMALLEST_TOP
from ptxgen.records import dataclass

LANES: Final = 16  # matrices in a vector: one register of AVX-512, two of AVX2, four of NEON
_UNROLLED: Final = 4  # products; the depth of each block is a multiple
_BIAS_F32: Final = 127
# Words of all templates: the vectors.
_WORDS: Final = {
    "lanes": LANES,
    "F": f"<{LANES} x float>",
    "D": f"<{LANES} x double>",
    "B": f"<{LANES} x i1>",
    "H": f"<{LANES} x i16>",
    "W": f"<{LANES} x i32>",
    "L": f"<{LANES} x i64>",
}

_FUNCTION: Final = Template("""\
define i32 @sums(ptr %a, ptr %b, ptr %c, ptr %out, ptr %at, ptr %floats, ptr %ae, i64 %rows, i64 %columns,
                 i64 %matrices, i64 %depth, i64 %block, i64 %bias64, i64 %kept, i64 %sign64, i64 %a_k,
                 i64 %a_row, i64 %a_m, i64 %b_k, i64 %b_column, i64 %b_m, i64 %registers, i64 %c_m) {
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
  %bias0 = insertelement $W poison, i32 %bias, i32 0
  %biases = shufflevector $W %bias0, $W poison, $W zeroinitializer
  %sign0 = insertelement $W poison, i32 %sign, i32 0
  %signs = shufflevector $W %sign0, $W poison, $W zeroinitializer
  %last = sub i64 %matrices, 1
${splats}
  %kept0 = insertelement $L poison, i64 %kept, i32 0
  %mask = shufflevector $L %kept0, $L poison, $W zeroinitializer
  br label %chunk
chunk:
  %m = phi i64 [ 0, %entry ], [ %m1, %next_chunk ]
  %first0 = insertelement $L poison, i64 %m, i32 0
  %first = shufflevector $L %first0, $L poison, $W zeroinitializer
  %numbers = add $L %first, <${iota}>
  %clamped = call $L @llvm.umin.v${lanes}i64($L %numbers, $L %last_all)
  %a_lanes = mul $L %clamped, %a_m_all
  %b_lanes = mul $L %clamped, %b_m_all
  %c_lanes = mul $L %clamped, %c_m_all
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
  %pa_signed = xor $W %pa_bits, %signs
${exponents_a}
  %pk_to = add i64 %pr_to, %pk
  %pk_lane = mul i64 %pk_to, $lanes
  %pav = getelementptr float, ptr %av, i64 %pk_lane
  %pae = getelementptr i16, ptr %ae, i64 %pk_lane
  store $W %pa_signed, ptr %pav, align 4
  store $H %pa_exponents, ptr %pae, align 2
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
  store $W %pb_bits, ptr %pbv, align 4
  store $H %pb_exponents, ptr %pbe, align 2
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
  %before = load $W, ptr %sum_at, align 4
  %r_k = mul i64 %r, %depth
  br label %block_of_k
block_of_k:
  %k_first = phi i64 [ 0, %row ], [ %k_end, %next_block ]
  %pc_bits = phi $W [ %before, %row ], [ %after, %next_block ]
  %k_end = add i64 %k_first, %block
${exponents_c}
  %old = bitcast $W %pc_bits to $F
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
  %t0 = phi $H [ %pc_exponents, %block_of_k ], [ %t${last}, %tops ]
${tops}
  %k1 = add i64 %k, ${last}
  %k_more = icmp ult i64 %k1, %block
  br i1 %k_more, label %tops, label %scale
scale:
  %top = sext $H %t${last} to $W
  %up = sub $W %biases, %top
  %scale_bits = shl $W %up, splat (i32 23)
  %s = bitcast $W %scale_bits to $F
  br label %sums
sums:
  %j = phi i64 [ 0, %scale ], [ %j1, %sums ]
  %sum0 = phi <$lanes x ${sum}> [ zeroinitializer, %scale ], [ %sum${last}, %sums ]
${sums}
  %j1 = add i64 %j, ${last}
  %j_more = icmp ult i64 %j1, %block
  br i1 %j_more, label %sums, label %total
total:
  %old_scaled = fmul $F %old, %s
  %old_cut = call $F @llvm.trunc.v${lanes}f32($F %old_scaled)
  %old_wide = fpext $F %old_cut to $D
  %sum_wide = sitofp <$lanes x ${sum}> %sum${last} to $D
  %both = fadd $D %old_wide, %sum_wide
  %s_wide = fpext $F %s to $D
  %exact = fdiv $D %both, %s_wide
${rounded}
  %small = icmp slt $H %t${last}, splat (i16 ${smallest})
  %large = icmp sgt $H %t${last}, splat (i16 ${largest})
  %rare = or $B %small, %large
  %any_rare = call i1 @llvm.vector.reduce.or.v${lanes}i1($B %rare)
  br i1 %any_rare, label %factors, label %next_block
factors:
  %f = phi i64 [ 0, %total ], [ %f1, %factors ]
  %some_a = phi $W [ zeroinitializer, %total ], [ %some_a1, %factors ]
  %some_b = phi $W [ zeroinitializer, %total ], [ %some_b1, %factors ]
  %f_lane = mul i64 %f, $lanes
  %fa_from = getelementptr float, ptr %arow, i64 %f_lane
  %fb_from = getelementptr float, ptr %bcol, i64 %f_lane
  %fa = load $W, ptr %fa_from, align 4
  %fb = load $W, ptr %fb_from, align 4
  %fa_size = shl $W %fa, splat (i32 1)
  %fb_size = shl $W %fb, splat (i32 1)
  %some_a1 = or $W %some_a, %fa_size
  %some_b1 = or $W %some_b, %fb_size
  %f1 = add i64 %f, 1
  %f_more = icmp ult i64 %f1, %block
  br i1 %f_more, label %factors, label %nothing
nothing:
  %no_a = icmp eq $W %some_a1, zeroinitializer
  %no_b = icmp eq $W %some_b1, zeroinitializer
  %no_old = fcmp oeq $F %old, zeroinitializer
  %no_factor = or $B %no_a, %no_b
  %empty = and $B %no_factor, %no_old
  %zero = and $B %empty, %small
  %with_zeros = select $B %zero, $F zeroinitializer, $F %result
  %not_zero = xor $B %zero, splat (i1 true)
  %left = and $B %rare, %not_zero
  %any_left = call i1 @llvm.vector.reduce.or.v${lanes}i1($B %left)
  br i1 %any_left, label %give_up, label %next_block
give_up:
  ret i32 1
next_block:
  %new = phi $F [ %result, %total ], [ %with_zeros, %nothing ]
  %after = bitcast $F %new to $W
  %more_blocks = icmp ult i64 %k_end, %depth
  br i1 %more_blocks, label %block_of_k, label %next_row
next_row:
  store $W %after, ptr %sum_at, align 4
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
declare $F @llvm.trunc.v${lanes}f32($F)
declare $H @llvm.smax.v${lanes}i16($H, $H)
declare $W @llvm.smax.v${lanes}i32($W, $W)
declare $L @llvm.umin.v${lanes}i64($L, $L)
declare $D @llvm.fabs.v${lanes}f64($D)
declare $D @llvm.copysign.v${lanes}f64($D, $D)
declare $D @llvm.maxnum.v${lanes}f64($D, $D)
${gathers}
declare i1 @llvm.vector.reduce.or.v${lanes}i1($B)

""")
# Moves of C's registers, and of the sums back: squares of elements of the lanes' warps. In memory, the
# elements of a warp are side by side; in scratch memory, the warps of an element.
_WARP: Final = Template("""\
  %w${n} = extractelement $L %c_lanes, i32 ${n}
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
  %${x}_0 = insertelement $L poison, i64 %${x}, i32 0
  %${x}_all = shufflevector $L %${x}_0, $L poison, $W zeroinitializer
""")
_GATHER: Final = Template("""\
declare <$lanes x ${element}> @llvm.masked.gather.v${lanes}${element}.v${lanes}p0(
  <$lanes x ptr>, i32, $B, <$lanes x ${element}>)
""")
# The elements of a factor in `%px`: side by side in memory, or apart.
_LOADS: Final = {
    True: Template("""\
  %p${x}_first = getelementptr ${element}, ptr %p${x}_from, i64 %m
  %p${x} = load <$lanes x ${element}>, ptr %p${x}_first, align 1
"""),
    False: Template("""\
  %p${x}_each = getelementptr ${element}, ptr %p${x}_from, $L %${x}_lanes
  %p${x} = call <$lanes x ${element}> @llvm.masked.gather.v${lanes}${element}.v${lanes}p0(
    <$lanes x ptr> %p${x}_each, i32 1, $B splat (i1 true), <$lanes x ${element}> poison)
"""),
}
_TOP: Final = Template("""\
  %k.${n} = add i64 %k, ${n}
  %k_lane${n} = mul i64 %k.${n}, $lanes
  %xe_from${n} = getelementptr i16, ptr %aexp, i64 %k_lane${n}
  %ye_from${n} = getelementptr i16, ptr %bexp, i64 %k_lane${n}
  %xe${n} = load $H, ptr %xe_from${n}, align 2
  %ye${n} = load $H, ptr %ye_from${n}, align 2
  %e${n} = add $H %xe${n}, %ye${n}
  %t${next} = call $H @llvm.smax.v${lanes}i16($H %t${n}, $H %e${n})
""")
_SUM: Final = Template("""\
  %j.${n} = add i64 %j, ${n}
  %j_lane${n} = mul i64 %j.${n}, $lanes
  %x_from${n} = getelementptr float, ptr %arow, i64 %j_lane${n}
  %y_from${n} = getelementptr float, ptr %bcol, i64 %j_lane${n}
  %x${n} = load $F, ptr %x_from${n}, align 4
  %y${n} = load $F, ptr %y_from${n}, align 4
  %xy${n} = fmul $F %x${n}, %y${n}
  %scaled${n} = fmul $F %xy${n}, %s
  %cut${n} = fptosi $F %scaled${n} to $W
  %added${n} = ${widened}
  %sum${next} = add <$lanes x ${sum}> %sum${n}, %added${n}
""")
# The f32 of elements, as bits. The bits of a small format are moved to those of f32, and an addition brings
# them to its exponents; a subnormal is an integer times the least one, since threads of XLA take subnormal
# operands of f32 for zeros; an infinity and a NaN get all exponent bits.
_SMALL: Final = Template("""\
  %${x}_wide = zext <$lanes x ${element}> %${x} to $W
  %${x}_size = and $W %${x}_wide, splat (i32 ${size})
  %${x}_moved = shl $W %${x}_size, splat (i32 ${moved})
  %${x}_normal = add $W %${x}_moved, splat (i32 ${raised})
  %${x}_count = sitofp $W %${x}_size to $F
  %${x}_unit = bitcast $W splat (i32 ${unit}) to $F
  %${x}_scaled = fmul $F %${x}_count, %${x}_unit
  %${x}_subnormal = bitcast $F %${x}_scaled to $W
  %${x}_is_normal = icmp uge $W %${x}_moved, splat (i32 8388608)
  %${x}_finite = select $B %${x}_is_normal, $W %${x}_normal, $W %${x}_subnormal
  %${x}_special = icmp uge $W %${x}_size, splat (i32 ${special})
  %${x}_number = select $B %${x}_special, $W splat (i32 2139095040), $W %${x}_finite
  %${x}_top = lshr $W %${x}_wide, splat (i32 ${top})
  %${x}_sign = shl $W %${x}_top, splat (i32 31)
  %${x}_bits = or $W %${x}_number, %${x}_sign
""")
_BF16: Final = Template("""\
  %${x}_wide = zext <$lanes x ${element}> %${x} to $W
  %${x}_bits = shl $W %${x}_wide, splat (i32 16)
""")
_TF32: Final = Template("  %${x}_bits = and $W %${x}, splat (i32 -8192)")
_F32: Final = Template("  %${x}_bits = or $W %${x}, zeroinitializer")
_EXPONENTS: Final = Template("""\
  %${x}_down = lshr $W %${x}_bits, splat (i32 23)
  %${x}_field = and $W %${x}_down, splat (i32 255)
  %${x}_unbiased = sub $W %${x}_field, splat (i32 127)
  %${x}_least = call $W @llvm.smax.v${lanes}i32($W %${x}_unbiased, $W splat (i32 ${least}))
  %${x}_is_zero = icmp eq $W %${x}_field, zeroinitializer
  %${x}_or_zero = select $B %${x}_is_zero, $W splat (i32 -126), $W %${x}_least
  %${x}_is_not = icmp eq $W %${x}_field, splat (i32 255)
  %${x}_exponent = select $B %${x}_is_not, $W splat (i32 512), $W %${x}_or_zero
  %${x}_exponents = trunc $W %${x}_exponent to $H
""")
_TO_F32: Final = Template("""\
  %raw = bitcast $D %exact to $L
  %masked = and $L %raw, %mask
  %short = bitcast $L %masked to $D
  %result = fptrunc $D %short to $F
""")
# The nearest f16, as an f32, infinite from 65520 on. Adding and subtracting a number of a larger
# exponent rounds what is below the last bit of the f16.
_TO_F16: Final = Template("""\
  %raw = bitcast $D %exact to $L
  %power_bits = and $L %raw, splat (i64 9218868437227405312)
  %power = bitcast $L %power_bits to $D
  %least_power = call $D @llvm.maxnum.v${lanes}f64($D %power, $D splat (double 0x3F10000000000000))
  %anchor = fmul $D %least_power, splat (double 0x4298000000000000)
  %added = fadd $D %exact, %anchor
  %nearest = fsub $D %added, %anchor
  %size = call $D @llvm.fabs.v${lanes}f64($D %nearest)
  %beyond = fcmp oge $D %size, splat (double 65536.0)
  %bounded = select $B %beyond, $D splat (double 0x7FF0000000000000), $D %nearest
  %signed = call $D @llvm.copysign.v${lanes}f64($D %bounded, $D %exact)
  %result = fptrunc $D %signed to $F
""")

# A truncated product as an addend.
_WIDENED: Final = {
    "i32": Template("add $W %cut${n}, zeroinitializer"),
    "i64": Template("sext $W %cut${n} to $L"),
}
# 2 ** -`exponents` times a normal element is the f32 of its bits without the sign, moved up by `moved`;
# infinities and NaN are from `special` on.
_SMALL_OF: Final = {
    "f16": {"size": 0x7FFF, "moved": 13, "exponents": 112, "special": 0x7C00, "top": 15},
    "e5m2": {"size": 0x7F, "moved": 21, "exponents": 112, "special": 0x7C, "top": 7},
    "e4m3": {"size": 0x7F, "moved": 20, "exponents": 120, "special": 0x7F, "top": 7},
}
_OTHERS: Final = {"bf16": _BF16, "tf32": _TF32, "f32": _F32}
BITS: Final = {"f16": 16, "e5m2": 8, "e4m3": 8, "bf16": 16, "tf32": 32, "f32": 32}


def _unpacked(name: str, type: str) -> str:
    """The code that makes `%name_bits`, the f32 of elements `%name` of a type."""
    more = {"x": name, "element": f"i{BITS[type]}", **_WORDS}
    if type in _OTHERS:
        return _OTHERS[type].substitute(more)
    of = _SMALL_OF[type]
    unit = of["exponents"] + of["moved"] - 149 + _BIAS_F32  # the exponent field of the least subnormal
    return _SMALL.substitute(of, raised=of["exponents"] << 23, unit=unit << 23, **more)


def _exponents(name: str, type: str) -> str:
    """The code that makes `%name_exponents` of elements of a type, from their f32."""
    return _EXPONENTS.substitute(x=name, least=LEAST_OF.get(type, LEAST), **_WORDS)


@dataclass(frozen=True, slots=True)
class Form:
    """What the code is written for: the types of A, B, C and the sums of products, and whether the
    matrices of A and of B are side by side, in whole vectors.
    """

    a: str
    b: str
    c: str
    sums: str
    dense_a: bool
    dense_b: bool


def text(form: Form) -> str:
    """The text of `sums`, a function for products of this form; `ptxgen.isa.compiled_sums` calls it."""
    counted = [{"n": n, "next": n + 1, **_WORDS} for n in range(_UNROLLED)]
    types = {"a": form.a, "b": form.b}
    elements = {x: f"i{BITS[type]}" for x, type in types.items()}
    return _FUNCTION.substitute(
        _WORDS,
        last=_UNROLLED,
        iota=", ".join(f"i64 {n}" for n in range(LANES)),
        splats="".join(_SPLAT.substitute(x=x, **_WORDS) for x in ("last", "a_m", "b_m", "c_m")),
        warps="".join(_WARP.substitute(n=n, **_WORDS) for n in range(LANES)),
        pack_c=_squares("c", "c", before="chunk", after="pack_row"),
        unpack_c=_squares("o", "out", before="next_column", after="next_chunk"),
        load_a=_LOADS[form.dense_a].substitute(x="a", element=elements["a"], **_WORDS),
        load_b=_LOADS[form.dense_b].substitute(x="b", element=elements["b"], **_WORDS),
        gathers="".join(_GATHER.substitute(element=x, **_WORDS) for x in sorted({*elements.values()})),
        sum=form.sums,
        rounded=(_TO_F32 if form.c == "f32" else _TO_F16).substitute(_WORDS),
        tops="".join(_TOP.substitute(of) for of in counted),
        sums="".join(
            _SUM.substitute(of, sum=form.sums, widened=_WIDENED[form.sums].substitute(of)) for of in counted
        ),
        smallest=SMALLEST_TOP,
        largest=LARGEST_TOP,
        exponents_c=_exponents("pc", form.c),
        **{f"element_{x}": element for x, element in elements.items()},
        **{f"unpacked_{x}": _unpacked(f"p{x}", type) for x, type in types.items()},
        **{f"exponents_{x}": _exponents(f"p{x}", type) for x, type in types.items()},
    )


def _squares(x: str, memory: str, *, before: str, after: str) -> str:
    """The loops that move squares of C into scratch memory (`x` is "c"), or of the sums back (`x` is "o")."""
    vector = f"<{LANES} x float>"
    in_memory = [f"%{x}_p{n} = getelementptr float, ptr %{x}_memory, i64 %w{n}" for n in range(LANES)]
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
    return _SQUARES.substitute(x=x, memory=memory, before=before, after=after, moves=moves, **_WORDS)
