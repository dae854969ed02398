"""Moves of registers, and their packing and unpacking (PTX ISA, "Data Movement: mov")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import each, inst
from ptxgen.isa.spec import gate
from ptxgen.isa.undefined import MOVES_A
from ptxgen.types import ScalarType, b16, b32, b64, b128, f32, f64, pred, s16, s32, s64, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

MOV: Final = "Data Movement and Conversion Instructions: mov"


@inst(
    "mov.type d, a",
    type={
        **dict.fromkeys((u32, s32, u64, s64, f32, f64, b32, b64, u16, s16, b16, pred)),
        b128: gate(ptx=(8, 3), sm=70),
    },
    undefined=MOVES_A,
    section=MOV,
)
def mov(a: Lanes) -> Lanes:
    """d = a: a register, a literal, a special register, or the address of a variable."""
    return a


@inst(
    "mov.vec.type d*vec, a*vec",
    each("vec type", (("v2", "v4"), (u32, s32, f32, b32, u16, s16, b16)), (("v2",), (u64, s64, f64, b64))),
    name="mov_vector",
    ignores=("vec",),
    undefined=MOVES_A,
    section=MOV,
)
def mov_vector(a: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
    """d = a: all elements of a vector."""
    return a


@inst(
    "mov.<type> d, a:<part>*<count>",
    each("type part count", (b32, b16, 2), (b64, b32, 2), (b64, b16, 4), (b32, "byte", 4), (b16, "byte", 2))
    + each("type part count ptx sm", (b128, b64, 2, (8, 3), 70)),
    name="pack",
    undefined=MOVES_A,
    section=MOV,
)
def pack(a: tuple[Lanes, ...], *, type: ScalarType) -> Lanes:
    """d = the concatenated elements of a, the first in the lowest bits."""
    if type is b128:
        lanes = max(np.size(part) for part in a)
        return np.stack([np.broadcast_to(part, lanes) for part in a], axis=1).view(type.dtype).reshape(-1)
    step = type.bits // len(a)
    whole = a[0].astype(type.dtype)
    for n, part in enumerate(a[1:], 1):
        whole = np.bitwise_or(whole, np.left_shift(part.astype(type.dtype), whole.dtype.type(n * step)))
    return whole


@inst(
    "mov.<type> d:<part>*<count>, a",
    each(
        "name type part count",
        ("unpack", b32, b16, 2),
        ("unpack", b64, b32, 2),
        ("unpack_b16", b64, b16, 4),
        ("unpack_byte", b32, "byte", 4),
        ("unpack_byte", b16, "byte", 2),
    )
    + each("name type part count ptx sm", ("unpack", b128, b64, 2, (8, 3), 70)),
    undefined=MOVES_A,
    section=MOV,
)
def unpack(a: Lanes, *, count: int) -> tuple[Lanes, ...]:
    """d = the parts of a, the first from the lowest bits."""
    nbytes = a.dtype.itemsize // count
    if a.dtype == b128.dtype:
        return tuple(np.ascontiguousarray(a).view(b64.dtype).reshape(-1, count).T)
    parts = (np.right_shift(a, a.dtype.type(8 * nbytes * n)) for n in range(count))
    return tuple(part.astype(f"u{nbytes}") for part in parts)
