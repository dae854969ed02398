"""The instruction descriptor of `tcgen05.mma`, 32 bits that say what it multiplies (PTX ISA, "TensorCore 5th
Generation Family Instructions": "Matrix Shape", "Instruction descriptor").

| bits | f16, tf32, f8f6f4, i8 | mxf8f6f4 | mxf4, mxf4nvf4 |
|---|---|---|---|
| 0-1 | selector of the metadata of a sparse A | 0 | 0 |
| 2 | A is sparse | same | same |
| 3 | sums saturate (i8) | 0 | 0 |
| 4-5 | D: 0 f16, 1 f32, 2 s32 | byte of B's scale factors | same, 0 or 2 |
| 7-9, 10-12 | types of A and B | same | 1, 1 (e2m1) |
| 13, 14 | A and B are negated | same | same |
| 15, 16 | A and B are M- and N-major | same | 0 |
| 17-22 | N / 8 | same | same |
| 23 | 0 | scale factors: 1 ue8m0 | 0 ue4m3, 1 ue8m0 |
| 24-28 | M / 16 | 27-28: M / 128 | same |
| 29 | 0 | 29-30: byte of A's scale factors | same, 0 or 2 |
| 30-31 | largest shift of `.ws` | 0 | 31: K is 96 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ptxgen.errors import DescriptorError
from ptxgen.records import dataclass

# By kind: the names of the types of A and B by their number in the descriptor.
_NARROW: Final = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_FP4: Final = {1: "e2m1"}
_TYPES: Final = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _NARROW,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _NARROW,
    "mxf4": _FP4,
    "mxf4nvf4": _FP4,
}
KINDS: Final = tuple(_TYPES)
_OF_D: Final = {0: "f16", 1: "f32", 2: "s32"}
_D_OF: Final = {"f16": ("f16", "f32"), "tf32": ("f32",), "f8f6f4": ("f16", "f32"), "i8": ("s32",)}
_K_OF: Final = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_LONG_K: Final = 96
_SCALES: Final = ("ue4m3", "ue8m0")
_SHIFTS: Final = (0, 8, 16, 32)
_FP8: Final = ("e4m3", "e5m2", "u8", "s8")

# By kind, where it has scale factors or not: fields whose bits are 0, as lowest bit and width.
_RESERVED: Final = {
    "f16": ((3, 1), (6, 1), (23, 1), (29, 1)),
    "tf32": ((3, 1), (6, 1), (23, 1), (29, 1)),
    "f8f6f4": ((3, 1), (6, 1), (23, 1), (29, 1)),
    "i8": ((6, 1), (13, 2), (23, 1), (29, 1)),
    "mxf8f6f4": ((0, 2), (3, 1), (6, 1), (24, 3), (31, 1)),
    "mxf4": ((0, 2), (3, 1), (6, 1), (15, 2), (24, 3)),
    "mxf4nvf4": ((0, 2), (3, 1), (6, 1), (15, 2), (24, 3)),
}


@dataclass(frozen=True, slots=True)
class Product:
    """What one `tcgen05.mma` multiplies: D of M rows and N columns of type `d` is the sum of K products of
    elements of the types `a` and `b`. In a pair of CTAs (`group` 2) M and N are those of both together.

    `m_major` and `n_major`: A's rows in shared memory lie along M, B's along N. `scale` is the type of the
    scale factors, "" without; `scale_bytes` are the bytes of a cell of tensor memory at which those of A and
    of B begin. `selector` is that of the metadata of a sparse A; `shift` is the largest of a `.ws` product.
    """

    kind: str
    group: int
    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    m_major: bool = False
    n_major: bool = False
    negated_a: bool = False
    negated_b: bool = False
    saturating: bool = False
    sparse: bool = False
    selector: int = 0
    scale: str = ""
    scale_bytes: tuple[int, int] = (0, 0)
    shift: int = 0

    @property
    def bits(self) -> int:
        """The descriptor that `product_of` reads as this product, whose kind has its types."""
        numbers = {name: number for number, name in _TYPES[self.kind].items()}
        word = self.sparse << 2 | numbers[self.a] << 7 | numbers[self.b] << 10 | self.n >> 3 << 17
        word |= self.negated_a << 13 | self.negated_b << 14 | self.m_major << 15 | self.n_major << 16
        if self.scale:
            of_a, of_b = self.scale_bytes
            is_long = self.k == _LONG_K << self.sparse
            scale = _SCALES.index(self.scale)
            return word | of_b << 4 | scale << 23 | self.m >> 7 << 27 | of_a << 29 | is_long << 31
        d = next(number for number, name in _OF_D.items() if name == self.d)
        word |= self.selector | self.saturating << 3 | d << 4 | self.m >> 4 << 24
        return word | _SHIFTS.index(self.shift) << 30


@dataclass(frozen=True, slots=True)
class _Word:
    """A descriptor and the instruction that has it."""

    bits: int
    kind: str
    group: int
    ws: bool

    def field(self, low: int, width: int = 1) -> int:
        """The number in some bits."""
        return self.bits >> low & (1 << width) - 1

    def refused(self, wanted: str, got: object) -> DescriptorError:
        """The error for a value that is not allowed."""
        opcode = f"tcgen05.mma{'.ws' if self.ws else ''}.cta_group::{self.group}.kind::{self.kind}"
        return DescriptorError(
            f"{opcode}: expected {wanted} of the instruction descriptor {self.bits:#010x}, got {got}"
        )

    def chosen(self, what: str, names: dict[int, str], low: int, width: int) -> str:
        """The name of the number in some bits."""
        number = self.field(low, width)
        if number not in names:
            known = " or ".join(f"{n} ({name})" for n, name in names.items())
            raise self.refused(f"{what} {known} in bits {low}-{low + width - 1}", number)
        return names[number]


def product_of(kind: str, bits: int, *, group: int = 1, ws: bool = False) -> Product:
    """The product that a descriptor describes to an instruction of this kind (a name without "kind::") and
    CTA group; `ws`: to `tcgen05.mma.ws`.

    Raises `DescriptorError` for reserved values, and for shapes and types that the kind and the group lack.
    """
    word = _Word(bits, kind, group, ws)
    for low, width in _RESERVED[kind]:
        if word.field(low, width):
            where = f"bit {low}" if width == 1 else f"bits {low}-{low + width - 1}"
            raise word.refused(f"0 in {where}, which the kind reserves,", word.field(low, width))
    product = (_scaled if kind.startswith("mx") else _plain)(word)
    ms, ns = _shapes(product, ws)
    if product.m not in ms:
        raise word.refused(f"M {_listed(ms)} in the shape", product.m)
    if product.n not in ns:
        raise word.refused(f"N {_listed(ns)} in the shape", product.n)
    return product


def _common(word: _Word) -> dict[str, Any]:
    """What descriptors of all kinds have."""
    kind, sparse = word.kind, bool(word.field(2))
    return {
        "kind": kind,
        "group": word.group,
        "n": word.field(17, 6) << 3,
        "k": _K_OF[kind] << sparse,
        "a": word.chosen("the type of A", _TYPES[kind], 7, 3),
        "b": word.chosen("the type of B", _TYPES[kind], 10, 3),
        "m_major": bool(word.field(15)),
        "n_major": bool(word.field(16)),
        "negated_a": bool(word.field(13)),
        "negated_b": bool(word.field(14)),
        "sparse": sparse,
    }


def _plain(word: _Word) -> Product:
    """The product of a kind without scale factors."""
    common = _common(word)
    names = {n: name for n, name in _OF_D.items() if name in _D_OF[word.kind]}
    d = word.chosen("the type of D", names, 4, 2)
    if d == "f16" and "bf16" in (common["a"], common["b"]):
        raise word.refused("the type of D 1 (f32) for bf16 in bits 4-5", 0)
    if word.field(30, 2) and not word.ws:
        raise word.refused("0 in bits 30-31, which only tcgen05.mma.ws has,", word.field(30, 2))
    return Product(
        **common,
        m=word.field(24, 5) << 4,
        d=d,
        saturating=bool(word.field(3)),
        selector=word.field(0, 2),
        shift=_SHIFTS[word.field(30, 2)],
    )


def _scaled(word: _Word) -> Product:
    """The product of a kind with scale factors."""
    common = _common(word)
    if word.kind != "mxf8f6f4" and word.field(31):
        common["k"] = _LONG_K << common["sparse"]
    scale_bytes = word.field(29, 2), word.field(4, 2)
    if word.kind != "mxf4nvf4" and not word.field(23):
        raise word.refused("scale factors of type 1 (ue8m0) in bit 23", 0)
    if word.kind != "mxf8f6f4" and any(byte % 2 for byte in scale_bytes):
        raise word.refused("the bytes 0 or 2 of scale factors of A and B in bits 29-30 and 4-5", scale_bytes)
    return Product(
        **common, m=word.field(27, 2) << 7, d="f32", scale=_SCALES[word.field(23)], scale_bytes=scale_bytes
    )


def _listed(sizes: Sequence[int]) -> str:
    if isinstance(sizes, range):
        return f"{sizes[0]} to {sizes[-1]} in steps of {sizes.step}"
    return " or ".join(map(str, sizes))


def _shapes(of: Product, ws: bool) -> tuple[Sequence[int], Sequence[int]]:
    """The sizes of M and of N of a product's kind, group and types."""
    if ws:
        return (32, 64, 128), ((64, 128) if of.sparse else (64, 128, 256))
    scaled = of.kind.startswith("mx")
    ms = ((128,) if scaled else (64, 128)) if of.group == 1 else (128, 256)
    step = 8 * of.group
    if of.n_major and of.b in _FP8:
        step = 16 * of.group
    if of.kind != "i8":
        return ms, range(step, 257, step)
    if of.group == 2:
        return ms, range(32, 257, 32)
    return ms, range(16, 257, 16) if of.n_major else (8, 16, 24, *range(32, 257, 16))
