"""Instructions on registers alone: mma, movmatrix, approximations, conversions, roundings."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
from vectors.cases import Array, Case, register_case

from ptxgen.isa import table
from ptxgen.isa.spec import Op

MMA_LANES: Final = 256  # 8 warps, of which two, or the last ones one, have numbers of one kind
KINDS: Final = ("random", "random", "cancelling", "cancelling", "wide", "wide", "small", "special")

# An element's dtype, and the exponents that products and sums of many bear.
FLOATS: Final[dict[str, tuple[Any, int, int]]] = {
    "f16": (np.float16, -10, 4),
    "bf16": (ml_dtypes.bfloat16, -20, 20),
    "tf32": (np.float32, -20, 20),
    "f32": (np.float32, -24, 40),
    "f64": (np.float64, -60, 60),
    "e4m3": (ml_dtypes.float8_e4m3fn, -8, 4),
    "e5m2": (ml_dtypes.float8_e5m2, -12, 4),
}
INTEGERS: Final = frozenset(("s32", "s8", "u8", "s4", "u4", "b1"))
SIGNS: Final = {
    "f16": 0x7FFF7FFF,
    "bf16": 0x7FFF7FFF,
    "tf32": 0x7FFFFFFF,
    "f32": 0x7FFFFFFF,
    "f64": (1 << 63) - 1,
    "e4m3": 0x7F7F7F7F,
    "e5m2": 0x7F7F7F7F,
}
MMA_ROWS: Final = (
    *("mma_f32_f16", "mma_f16_f16", "mma_quad_f32", "mma_quad_f32_f16", "mma_quad_f16", "mma_f32_bf16"),
    *("mma_f32_tf32", "mma_f32_fp8", "mma_f16_fp8", "mma_f64", "mma_int8", "mma_int4", "mma_bits"),
)


def seeded(name: str) -> np.random.Generator:
    """The same numbers for a case whatever else is recorded."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def ops_named(*names: str) -> Iterator[Op]:
    for name in names:
        for row in table.rows_named(name):
            yield from row.all_ops()


# ---- numbers ----------------------------------------------------------------------------------


def values(type: str, kind: str, n: int, rng: np.random.Generator) -> Array:
    """Finite numbers of a kind, and for `special` a few that are not, as the bits of the type."""
    dtype, low, high = FLOATS[type]
    built = rng.normal(size=n)
    if kind == "cancelling":
        large, small = 1.5 * 2.0 ** (high // 2), 2.0 ** (low // 2)
        built = np.where(rng.random(n) < 0.75, np.sign(built) * large, built * small)
    elif kind == "wide":
        built = np.sign(built) * rng.uniform(1, 2, n) * 2.0 ** rng.integers(low, high, n)
    elif kind == "small":
        built = rng.integers(-4, 5, n).astype(np.float64)
    elif kind == "special":
        tiny = float(np.ones(1, f"u{np.dtype(dtype).itemsize}").view(dtype)[0])  # subnormal
        rare = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -3 * tiny])
        built = np.where(rng.random(n) < 0.04, rng.choice(rare, n), built)
    bits: Array = built.astype(dtype).view(f"u{np.dtype(dtype).itemsize}")
    if type == "tf32" and kind == "random":
        bits |= rng.integers(0, 1 << 13, n, dtype=np.uint32)  # which are said to be ignored
    return bits


def registers(type: str, count: int, nbytes: int, rng: np.random.Generator) -> Array:
    """`[count, lanes]` registers of `nbytes` that hold elements of a type, by warps of KINDS."""
    width = f"u{nbytes}"
    if type in INTEGERS:
        top = 1 << 8 * nbytes
        return rng.integers(0, top, (count, MMA_LANES), dtype=np.dtype(width).type)
    warps = []
    for kind in KINDS:
        per = nbytes // np.dtype(FLOATS[type][0]).itemsize
        bits = values(type, kind, count * 32 * per, rng)
        warps.append(np.ascontiguousarray(bits).view(width).reshape(count, 32))
    return np.concatenate(warps, axis=1)


def mma() -> Iterator[Case]:
    """Every dense `mma.sync`."""
    for op in ops_named(*MMA_ROWS):
        words = op.opcode.split(".")
        types = dict(zip("dabc", [w for w in words if w in FLOATS or w in INTEGERS], strict=True))
        rng, inputs = seeded(op.opcode), []
        for source in op.sources:
            assert source.type is not None
            count, nbytes = max(source.count, 1), source.type.nbytes
            inputs.append(registers(types[source.name], count, nbytes, rng))
        integers = types["d"] == "s32"
        yield register_case(
            op,
            inputs,
            "exact" if integers else "sum",
            element=types["d"],
            signs=() if integers else tuple(SIGNS[types[s.name]] for s in op.sources),
        )


def movmatrix() -> Iterator[Case]:
    """The transpose of a fragment."""
    for op in ops_named("movmatrix"):
        rng = seeded(op.opcode)
        yield register_case(op, [rng.integers(0, 1 << 32, (1, 64), dtype=np.uint32)], "exact")


# ---- approximations ---------------------------------------------------------------------------

F32_SPECIAL: Final = np.array(
    [
        *(0, 1, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x3F000000),
        *(0x40000000, 0x40490FDB, 0x3FC90FDB, 0x7E800000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001),
        *(0x7FC00000, 0x7FFFFFFF, 0x42FC0000, 0x43000000, 0x42FFFFFF, 0x43150000, 0x43160000),
    ],
    np.uint32,
)
SIGN: Final = np.uint32(1 << 31)
LANES: Final = 8192
ROUNDED_LANES: Final = 2048


def f32_spread(rng: np.random.Generator, *, center: bool = True) -> Array:
    """Bits of LANES floats: special ones; random mantissas with every exponent and sign; the rest
    between -320 and 320 (or again with every exponent).
    """
    special = np.concatenate([F32_SPECIAL, F32_SPECIAL | SIGN])
    exponents = np.repeat(np.arange(256, dtype=np.uint32), 16) << np.uint32(23)
    mantissas = rng.integers(0, 1 << 23, len(exponents), dtype=np.uint32)
    mantissas[::16] = 0  # powers of two
    signs = rng.integers(0, 2, len(exponents), dtype=np.uint32) << np.uint32(31)
    rest = LANES - len(special) - len(exponents)
    if center:
        near = rng.uniform(-320, 320, rest) * rng.choice([1, 1 / 50, 1 / 300], rest)
        last = near.astype(np.float32).view(np.uint32)
    else:
        last = rng.integers(0, 1 << 32, rest, dtype=np.uint32)
    return np.concatenate([special, exponents | mantissas | signs, last]).reshape(1, -1)


def f64_spread(rng: np.random.Generator) -> Array:
    """Bits of LANES doubles: special ones, and random ones of all exponents."""
    special = np.array([0.0, 1.0, 2.0, 5e-324, 2.2250738585072014e-308, math.inf, math.nan, 1e308])
    built = rng.integers(0, 1 << 64, LANES, dtype=np.uint64)
    built[:16] = np.concatenate([special, -special]).view(np.uint64)
    return built.reshape(1, -1)


def all_halves(rng: np.random.Generator) -> Array:
    """Bits of pairs of 16-bit numbers; the lower ones are all there are, in order."""
    low = np.arange(1 << 16, dtype=np.uint32)
    return (low | rng.permutation(low) << np.uint32(16)).reshape(1, -1)


def spread(type: str, rng: np.random.Generator, *, center: bool = True) -> Array:
    if type == "f64":
        return f64_spread(rng)
    if type == "f32":
        return f32_spread(rng, center=center)
    if type.endswith("x2"):
        return all_halves(rng)
    return np.arange(1 << 16, dtype=np.uint16).reshape(1, -1)


def approximations() -> Iterator[Case]:
    """`.approx` and `.full` instructions."""
    names = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div_approx")
    for op in ops_named(*names):
        types = [s.type.name for s in op.sources if s.type]
        rng = seeded(" ".join(types))  # so that ops share their inputs in the file
        inputs = [spread(t, rng, center=len(types) == 1) for t in types]
        inputs[1:] = [rng.permutation(x, axis=1) for x in inputs[1:]]
        yield register_case(op, inputs, "approximate")


# ---- exact ones -------------------------------------------------------------------------------


def fp8() -> Iterator[Case]:
    """Conversions to and from fp8."""
    for op in ops_named("cvt_narrow", "cvt_widen"):
        if "e4m3x2" not in op.opcode and "e5m2x2" not in op.opcode:
            continue
        rng, inputs = seeded(f"fp8 of {len(op.sources)}"), []
        for source in op.sources:
            assert source.type is not None
            if source.type.name == "f32":
                x = f32_spread(rng, center=False)
                # Half of them where fp8 has numbers.
                near = rng.normal(size=LANES // 2) * 2.0 ** rng.integers(-18, 17, LANES // 2)
                x[0, LANES // 2 :] = near.astype(np.float32).view(np.uint32)
                inputs.append(x)
            else:
                inputs.append(spread("f16x2" if source.type.nbytes == 4 else "b16", rng))
        yield register_case(op, inputs, "exact")


def roundings() -> Iterator[Case]:
    """Exactly rounded arithmetic in every mode, and conversions to tf32."""
    for op in ops_named("fma", "cvt_tf32", "mul", "add"):
        types = [s.type.name if s.type else "" for s in op.sources]
        if not set(types) <= {"f32", "f16", "bf16", "f16x2", "bf16x2"}:
            continue
        rng = seeded(" ".join(types))
        inputs = [rng.permutation(spread(t, rng, center=False), axis=1) for t in types]
        inputs = [np.ascontiguousarray(x[:, :ROUNDED_LANES]) for x in inputs]
        yield register_case(op, inputs, "exact")
