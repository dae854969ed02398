"""The undefined elements of products of matrices.

An element of D is undefined if one of its row of A, of its column of B, or its element of C is. The
instruction itself finds these: it multiplies matrices that have 1 where an element is undefined and 0
elsewhere with matrices of ones, so that the layouts of fragments are those of its own function. An undefined
scale factor makes the products of its row or column undefined: it is NaN in a product of zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.spec import Rule
from ptxgen.isa.undefined import as_operand

if TYPE_CHECKING:
    from ptxgen.isa.undefined import Flow

    Lanes = np.ndarray[Any, np.dtype[Any]]

# By the type of an element: its width in registers in bits, and the bits of 1.
_ONES: Final = {
    "f16": (16, 0x3C00),
    "bf16": (16, 0x3F80),
    "tf32": (32, 0x3F800000),
    "f32": (32, 0x3F800000),
    "f64": (64, 0x3FF0000000000000),
    "e4m3": (8, 0x38),
    "e5m2": (8, 0x3C),
    "e3m2": (8, 0x0C),
    "e2m3": (8, 0x08),
    "e2m1": (8, 0x08),
    "e2m1x2": (4, 2),  # e2m1 with two elements in a byte
    "s8": (8, 1),
    "u8": (8, 1),
    "s4": (4, 1),
    "u4": (4, 1),
    "s32": (32, 1),
    "b1": (1, 1),
}
# The bits that count, of elements narrower than their width in registers.
_COUNTED: Final = {"e3m2": 0x3F, "e2m3": 0x3F, "e2m1": 0x3C}
_HALVES: Final = "f16"
_PAIRED: Final = ("kind::mxf4", "kind::mxf4nvf4")
_ONE_SCALE: Final = {"ue8m0": 0x7F7F7F7F, "ue4m3": 0x38383838}
_SCALES: Final = ("scales_a", "scales_b")


def _product(flow: Flow) -> Any:
    pieces = flow.op.opcode.split(".")
    words = [w for w in pieces if w in _ONES]
    if not set(pieces).isdisjoint(_PAIRED):
        words = [words[0], "e2m1x2", "e2m1x2", words[-1]]
    if len(words) == 2:  # D and C; A and B are f16
        words = [words[0], _HALVES, _HALVES, words[1]]
    d, a, b, *rest = words
    c = rest[0] if rest else d
    sums = "c" if "c" in flow.values else "d"
    # Bits that differ are counted: with zeros, the ones of the other matrix are.
    other = 0 if "xor" in pieces else 1
    one_scale = _ONE_SCALE.get(pieces[-1], 0)
    scales = [name for name in _SCALES if name in flow.values]
    undefined: list[Any] = []
    for left in (True, False):
        arguments: dict[str, Any] = {}
        for name, type, mine in (("a", a, left), ("b", b, not left)):
            if isinstance(flow.values[name], tuple):
                arguments[name] = _operand(flow, name, type, None if mine else other)
        arguments[sums] = _operand(flow, sums, c, None if left else 0)
        flow.machine.matrices = [
            _reader(type, None if mine else other)
            for name, type, mine in (("a", a, left), ("b", b, not left))
            if name not in arguments
        ]
        positive = {name: 1 for name in ("ia", "ib") if name in flow.values}
        ones = {name: _scales(flow, name, one_scale, marked=False) for name in scales}
        undefined.append(flow.run({**arguments, **positive, **ones}))
    if scales:
        arguments = {name: _operand(flow, name, type, 0) for name, type in (("a", a), ("b", b), ("c", c))}
        marked = {name: _scales(flow, name, one_scale, marked=True) for name in scales}
        undefined.append(flow.run({**arguments, **marked}))
    return tuple(
        np.bitwise_or.reduce([_spread(np.asarray(x).view(f"u{x.itemsize}"), d) for x in same])
        for same in zip(*undefined, strict=True)
    )


def _scales(flow: Flow, name: str, one: int, *, marked: bool) -> Any:
    """A register of scale factors that are 1, or NaN if they are `marked` and have an undefined bit."""
    bits = np.broadcast_to(np.asarray(flow.bits[name], np.uint32), flow.machine.lane_id().size)
    spoilt = np.where(np.ascontiguousarray(bits).view(np.uint8) != 0, np.uint8(0xFF), np.uint8(0))
    new = np.full_like(bits, one) | spoilt.view(np.uint32) if marked else np.full_like(bits, one)
    return as_operand(flow.values[name], new)


def _operand(flow: Flow, name: str, type: str, all_of: int | None) -> tuple[Any, ...]:
    """The registers of a matrix with 1 at its undefined elements; or with `all_of` everywhere."""
    lanes = flow.machine.lane_id().size
    new = []
    for value, bits in zip(flow.values[name], flow.bits[name], strict=True):
        whole = np.broadcast_to(np.asarray(bits), lanes)
        new.append(_marked(whole, type) if all_of is None else _filled(whole, type, all_of))
        new[-1] = as_operand(value, np.ascontiguousarray(new[-1]))
    return tuple(new)


def _reader(type: str, all_of: int | None) -> Any:
    """A reader of the undefined bits of a matrix in memory, in words of any width."""
    if all_of is None:
        return lambda bits: _marked(bits, type)
    return lambda bits: _filled(bits, type, all_of)


def _fields(bits: Lanes, type: str) -> tuple[int, list[Any]]:
    width, _ = _ONES[type]
    mask = bits.dtype.type(_COUNTED.get(type, (1 << width) - 1))
    return width, [mask << bits.dtype.type(n) for n in range(0, 8 * bits.itemsize, width)]


def _marked(bits: Lanes, type: str) -> Lanes:
    """1 in each element that has an undefined bit, 0 in all others."""
    one = _ONES[type][1]
    width, masks = _fields(bits, type)
    marked = np.zeros_like(bits)
    for n, mask in enumerate(masks):
        marked |= np.where(bits & mask, bits.dtype.type(one << n * width), bits.dtype.type(0))
    return marked


def _filled(bits: Lanes, type: str, value: int) -> Lanes:
    """Words whose elements are all 1, or all 0."""
    width, masks = _fields(bits, type)
    one = _ONES[type][1] * value
    return np.full_like(bits, sum(one << n * width for n in range(len(masks))))


def _spread(sums: Lanes, type: str) -> Lanes:
    """All bits of the elements that are not 0."""
    spread = np.zeros_like(sums)
    for mask in _fields(sums, type)[1]:
        spread |= np.where(sums & mask, mask, sums.dtype.type(0))
    return spread


PRODUCT: Final = Rule(_product, ("a", "b", "c", "d"), vectors=True)
SCALED_PRODUCT: Final = Rule(_product, ("a", "b", "c", *_SCALES))
