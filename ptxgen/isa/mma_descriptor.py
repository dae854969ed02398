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

from collections.abc import Container
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
    scale factors, "" without; `scale_bytes` are the bytes of a column of tensor memory at which those of A and
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


def product_of(kind: str, bits: int, *, group: int = 1, ws: bool = False) -> Product:
    """The product that a descriptor describes to an instruction of this kind (a name without "kind::") and
    CTA group; `ws`: to `tcgen05.mma.ws`.

    Raises `DescriptorError` for reserved values, and for shapes and types that the kind and the group lack.
    """

    def field(low: int, width: int = 1) -> int:
        return bits >> low & (1 << width) - 1

    def refused(wanted: str, got: object) -> DescriptorError:
        return DescriptorError(
            f"the instruction descriptor {bits:#010x} of tcgen05.mma{'.ws' if ws else ''}.cta_group::{group}"
            f".kind::{kind}: expected {wanted}, got {got}"
        )

    def chosen(what: str, names: dict[int, str], low: int, width: int) -> str:
        if field(low, width) not in names:
            known = ", ".join(f"{n} ({name})" for n, name in names.items())
            raise refused(f"{what} {known} in bits {low}-{low + width - 1}", field(low, width))
        return names[field(low, width)]

    for low, width in _RESERVED[kind]:
        if field(low, width):
            where = f"bit {low}" if width == 1 else f"bits {low}-{low + width - 1}"
            raise refused(f"0 in {where}, which the kind reserves", field(low, width))
    scaled = kind.startswith("mx")
    sparse = bool(field(2))
    types = _TYPES[kind]
    common: dict[str, Any] = {
        "kind": kind,
        "group": group,
        "n": field(17, 6) << 3,
        "k": _K_OF[kind] << sparse,
        "a": chosen("the type of A", types, 7, 3),
        "b": chosen("the type of B", types, 10, 3),
        "m_major": bool(field(15)),
        "n_major": bool(field(16)),
        "negated_a": bool(field(13)),
        "negated_b": bool(field(14)),
        "sparse": sparse,
    }
    if scaled:
        product = Product(
            **{**common, "k": _LONG_K << sparse if kind != "mxf8f6f4" and field(31) else common["k"]},
            m=field(27, 2) << 7,
            d="f32",
            scale=_SCALES[field(23)],
            scale_bytes=(field(29, 2), field(4, 2)),
        )
        if kind != "mxf4nvf4" and product.scale != "ue8m0":
            raise refused("scale factors of 1 (ue8m0) in bit 23", field(23))
        if kind != "mxf8f6f4" and any(byte % 2 for byte in product.scale_bytes):
            raise refused("scale factors from byte 0 or 2 on in bits 29-30 and 4-5", product.scale_bytes)
    else:
        d = chosen("the type of D", {n: name for n, name in _OF_D.items() if name in _D_OF[kind]}, 4, 2)
        product = Product(
            **common,
            m=field(24, 5) << 4,
            d=d,
            saturating=bool(field(3)),
            selector=field(0, 2),
            shift=_SHIFTS[field(30, 2)],
        )
        if d == "f16" and "bf16" in (product.a, product.b):
            raise refused("the type of D 1 (f32) for products of bf16 in bits 4-5", 0)
        if product.shift and not ws:
            raise refused("0 in bits 30-31, which only tcgen05.mma.ws has", field(30, 2))
    ms, ns = _shapes(product, ws)
    if product.m not in ms:
        raise refused(f"M {_listed(ms)}", product.m)
    if product.n not in ns:
        raise refused(f"N {_listed(ns)}", product.n)
    return product


def _listed(sizes: Container[int]) -> str:
    if isinstance(sizes, range):
        return f"{sizes[0]} to {sizes[-1]} in steps of {sizes.step}"
    return "of " + " or ".join(map(str, sizes)) if isinstance(sizes, tuple) else str(sizes)


def _shapes(of: Product, ws: bool) -> tuple[Container[int], Container[int]]:
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
    return ms, range(16, 257, 16) if of.n_major else (8, 24, *range(16, 257, 16))
