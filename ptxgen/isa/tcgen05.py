"""Tensor memory and the tensor cores that work on it (PTX ISA, "TensorCore 5th Generation Family
Instructions").

Every form of the manual is a row, so that texts with them are read, verified and printed. The interpreter
refuses, by name, kernels with forms that no public program shows at work: sparse products (`.sp`), products
with B held in the tensor cores (`.ws`) or with rows of A moved down (`.ashift`), `tcgen05.shift`, and copies
that unpack elements.

Of the forms of a product, A is in shared memory, behind a descriptor, or in tensor memory; a sparse product
has the address of its metadata before the instruction descriptor. What products and copies compute is in
`ptxgen.isa.tcgen05_work`; the machine decides when, between the instruction and the commit that follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.declare import Table, each, inst, times
from ptxgen.isa.fragments import EVERY_LANE
from ptxgen.isa.numeric import canonical, maximum, minimum
from ptxgen.isa.spec import TENSOR_FAMILIES, Effect, Rule, gate
from ptxgen.isa.tcgen05_work import ScaledProduct, TensorProduct, copy
from ptxgen.isa.tensor_agent import RegisterShape
from ptxgen.isa.tensor_memory import REGISTERS
from ptxgen.isa.undefined import Flow, moves

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

TCGEN05: Final = "TensorCore 5th Generation Family Instructions"

# Targets, as ptxas 13.0 accepts them: what some of those with tensor memory have.
_OF_ONE_GPU: Final = ("sm_100a", "sm_103a", "sm_110a")
_INTEGERS: Final = gate(only=("sm_100a", "sm_110a"))
_SCALED_INPUT: Final = ("sm_100f",)
REDUCTIONS: Final = ("sm_103f", "sm_110f")

_ASYNC: Final[dict[str, Any]] = {"sm": 100, "effect": Effect.ASYNC}
_TENSOR: Final[dict[str, Any]] = {"ptx": (8, 6), "only": TENSOR_FAMILIES, **_ASYNC}
_WAITING: Final[dict[str, Any]] = {**_TENSOR, "effect": Effect.BARRIER}
_IN_EACH_CTA: Final = ", at this offset in each CTA of the mask in the register ctas,"
_SINGLE, _PAIR = _GROUPS = ("cta_group::1", "cta_group::2")

# ---------------------------------------- allocation


@inst(
    "tcgen05.alloc.group.sync.aligned{.space}.b32 [dst:u64], n:u32",
    name="tcgen05_alloc",
    group=_GROUPS,
    space=("shared::cta",),
    section=f"{TCGEN05}: tcgen05.alloc",
    **_WAITING,
)
def tcgen05_alloc(machine: Machine, dst: Lanes, n: Lanes, *, group: str, space: str | None) -> tuple[()]:
    """Allocate n columns of tensor memory, once there is room, and write their address to shared memory."""
    machine.warp_sync(EVERY_LANE)
    machine.allocate_tensor("shared" if space else "generic", dst, n, pair=group == _PAIR)
    return ()


@inst(
    "tcgen05.dealloc.group.sync.aligned.b32 a:u32, n:u32",
    name="tcgen05_dealloc",
    group=_GROUPS,
    section=f"{TCGEN05}: tcgen05.dealloc",
    **_WAITING,
)
def tcgen05_dealloc(machine: Machine, a: Lanes, n: Lanes, *, group: str) -> tuple[()]:
    """Free the n columns of tensor memory that were allocated at the address a."""
    machine.warp_sync(EVERY_LANE)
    machine.free_tensor(a, n, pair=group == _PAIR)
    return ()


@inst(
    "tcgen05.relinquish_alloc_permit.group.sync.aligned",
    name="tcgen05_relinquish_alloc_permit",
    group=_GROUPS,
    section=f"{TCGEN05}: tcgen05.relinquish_alloc_permit",
    **_WAITING,
)
def tcgen05_relinquish_alloc_permit(machine: Machine, *, group: str) -> tuple[()]:
    """Promise that this CTA allocates no more tensor memory."""
    machine.warp_sync(EVERY_LANE)
    machine.relinquish_tensor(pair=group == _PAIR)
    return ()


# ---------------------------------------- registers


def _registers(m: Mapping[str, Any]) -> int:
    """The registers of each thread: of 32 threads with 32 bits, for 16 or 32 lanes of tensor memory."""
    return REGISTERS[m["shape"]] * _number(m["num"])


def _number(num: str) -> int:
    return int(num.removeprefix("x"))


_HALF_BITS: Final = np.uint32(16)
_HALF: Final = np.uint32(0xFFFF)
_NUMBERS: Final = tuple(f"x{1 << n}" for n in range(8))
_WHOLE: Final = each(
    "half split shape num",
    ("", "", ("32x32b", "16x64b"), _NUMBERS),
    ("", "", ("16x128b",), _NUMBERS[:7]),
    ("", "", ("16x256b",), _NUMBERS[:6]),
)
_HALVES: Final = each("half split shape num", ("_halves", ", split:imm", ("16x32bx2",), _NUMBERS))
_EXTREMES: Final = each(
    "half split shape num",
    ("", "", ("32x32b",), _NUMBERS[1:]),
    ("_halves", ", split:imm", ("16x32bx2",), _NUMBERS[1:]),
)


@inst(
    "tcgen05.ld.sync.aligned.shape.num{.pack}.b32 d:b32*nd, [a:u32]<split>",
    _WHOLE + _HALVES,
    name="tcgen05_ld<half>",
    pack=("pack::16b",),
    counts={"nd": _registers},
    undefined=moves(),
    section=f"{TCGEN05}: tcgen05.ld",
    **_TENSOR,
)
def tcgen05_ld(
    machine: Machine, a: Lanes, split: int = 0, *, shape: str, num: str, pack: str | None
) -> tuple[Lanes, ...]:
    """d = the cells of tensor memory at the address a that the shape gives this thread; the second 16 lanes
    of a shape of two halves are split columns further on.
    """
    machine.warp_sync(EVERY_LANE)
    got = machine.load_cells(a, RegisterShape(shape, _number(num), split, pack is not None))
    if pack is None:
        return got
    return tuple(low & _HALF | high << _HALF_BITS for low, high in zip(got[::2], got[1::2], strict=True))


@inst(
    "tcgen05.st.sync.aligned.shape.num{.unpack}.b32 [a:u32]<split>, b:b32*nb",
    _WHOLE + _HALVES,
    name="tcgen05_st<half>",
    unpack=("unpack::16b",),
    counts={"nb": _registers},
    undefined=moves("b"),
    section=f"{TCGEN05}: tcgen05.st",
    **_TENSOR,
)
def tcgen05_st(
    machine: Machine,
    a: Lanes,
    b: tuple[Lanes, ...],
    split: int = 0,
    *,
    shape: str,
    num: str,
    unpack: str | None,
) -> tuple[()]:
    """The cells of tensor memory at the address a that the shape gives this thread = b; the second 16 lanes
    of a shape of two halves are split columns further on.
    """
    machine.warp_sync(EVERY_LANE)
    words = tuple(np.asarray(x).view(np.uint32) for x in b)
    if unpack is not None:
        words = tuple(half for x in words for half in (x & _HALF, x >> _HALF_BITS))
    machine.store_cells(a, RegisterShape(shape, _number(num), split, unpack is not None), words)
    return ()


def _reduced(flow: Flow) -> tuple[tuple[Lanes, ...], Lanes]:
    """The undefined bits of cells, and whether the extreme is one of some."""
    m, v = {k: str(x) for k, x in flow.op.modifiers.items()}, flow.values
    cells = flow.machine.load_cells(v["a"], RegisterShape(m["shape"], _number(m["num"]), v.get("split", 0)))
    return cells, np.logical_or.reduce(cells)


@inst(
    "tcgen05.ld.red.sync.aligned.shape.num.op<flags>.<of> d:<of>*nd, q:<of>, [a:u32]<split>",
    _EXTREMES,
    each(
        "of flags dtype", ("f32", "{.abs}{.NaN}", np.float32), ("u32", "", np.uint32), ("s32", "", np.int32)
    ),
    name="tcgen05_ld_red_<of><half>",
    op=("min", "max"),
    counts={"nd": _registers},
    undefined=Rule(_reduced, ()),
    ptx=(8, 8),
    only=REDUCTIONS,
    section=f"{TCGEN05}: tcgen05.ld",
    **_ASYNC,
)
def tcgen05_ld_red(
    machine: Machine,
    a: Lanes,
    split: int = 0,
    *,
    shape: str,
    num: str,
    op: str,
    dtype: type[np.generic],
    abs: bool = False,
    NaN: bool = False,
) -> tuple[tuple[Lanes, ...], Lanes]:
    """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or
    the greatest of them, with .abs of their absolute values; with .NaN it is NaN if one of them is.
    """
    machine.warp_sync(EVERY_LANE)
    cells = machine.load_cells(a, RegisterShape(shape, _number(num), split))
    values = tuple(x.view(dtype) for x in cells)
    compared = tuple(np.abs(x) for x in values) if abs else values
    if dtype is np.float32:
        extreme = canonical(reduce(partial(minimum if op == "min" else maximum, nan=NaN), compared))
    else:
        extreme = reduce(np.minimum if op == "min" else np.maximum, compared)
    return values, extreme


# ---------------------------------------- products

_USES: Final = ("fill", "use", "lastuse", "discard")
_COLLECTED: Final = tuple(f"collector::a::{use}" for use in _USES)
_COLLECTED_B: Final = tuple(f"collector::b{n}::{use}" for n in range(4) for use in _USES)
_A_IN_SHARED: Final = ("", "a:u64", "in shared memory, as the descriptor a says")
_A_IN_TENSOR: Final = ("_tmem", "[a:u32]", "in tensor memory")
_A: Final = each("tmem a_is where", _A_IN_SHARED, _A_IN_TENSOR)
_DENSE: Final = each("sp sparse metadata which", ("", "", "", ""))
_SPARSE: Final = each("sp sparse metadata which", (".sp", "_sp", " [metadata:u32],", ", which is sparse,"))
# With .ashift the rows of A move down by one, and A is in tensor memory and not reused by later products.
_UNSHIFTED: Final = each("shift coll", ("", _COLLECTED))
_SHIFTED: Final = each(
    "tmem a_is where shift coll",
    ("_tmem_ashift", "[a:u32]", "in tensor memory, its rows moved down by one", ".ashift", _COLLECTED[2:]),
)
_LANES: Final = each("mask", "", " mask:b32*nm,")
_KINDS: Final = {"kind::f16": None, "kind::tf32": None, "kind::f8f6f4": None, "kind::i8": _INTEGERS}
_PRODUCTS: Final = each(
    "kind only scale times_d",
    (_KINDS, TENSOR_FAMILIES, "", "D"),
    (("kind::f16", "kind::tf32"), _SCALED_INPUT, ", scale:imm", "D * 2**-scale"),
)
_NO_SPARSE: Final = "sparse matrices are not modelled"
_NO_SHIFT: Final = "rows of tensor memory that move down are not modelled"
_MMA: Final = (
    "tcgen05.mma<sp>.group.kind<shift>{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32,<mask> use:pred<scale>"
)
_MMA_ROW: Final[dict[str, Any]] = {
    "name": "tcgen05_mma<sparse><tmem>",
    "ptx": (8, 6),
    "group": _GROUPS,
    "counts": {"nm": lambda m: 4 * int(m["group"][-1])},
    "section": f"{TCGEN05}: tcgen05.mma<sp>",
    "doc": "D = A * B + <times_d> if use, else A * B, of the types and shape in idesc; D is in tensor memory "
    "at d, A<which> <where>, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is "
    "set are not written.",
    **_ASYNC,
}


@inst(_MMA, _A, _UNSHIFTED, _DENSE, _LANES, _PRODUCTS, ignores=("coll",), **_MMA_ROW)
def tcgen05_mma(
    machine: Machine,
    d: Lanes,
    a: Lanes,
    b: Lanes,
    idesc: Lanes,
    use: Lanes,
    mask: tuple[Lanes, ...] = (),
    scale: int = 0,
    *,
    group: str,
    kind: str,
    tmem: str,
) -> tuple[()]:
    """Start a product."""
    plan = TensorProduct(kind.removeprefix("kind::"), bool(tmem), group == _PAIR, scale)
    machine.start_tensor(plan, (d, a, b, idesc, use, *mask), pair=group == _PAIR)
    return ()


@inst(
    _MMA,
    [
        {**line, "unmodelled": _NO_SHIFT if line["shift"] else _NO_SPARSE}
        for line in [*times(_SHIFTED, _DENSE), *times(_A, _UNSHIFTED, _SPARSE), *times(_SHIFTED, _SPARSE)]
    ],
    _LANES,
    _PRODUCTS,
    **_MMA_ROW,
)
def tcgen05_mma_refused() -> None:
    """A product that is not modelled."""


# By kind: the vector sizes with their gates, and the targets of sparse products. The sizes by their number
# of factors are of one GPU; PTX 8.8 names them by the number of elements and has a default.
_NAMED: Final = gate(only=_OF_ONE_GPU)
_COUNTED: Final = gate(ptx=(8, 8))
_SIZES: Final = each(
    "kind ptx size vec sparse_only",
    ("mxf8f6f4", (8, 6), ".vec", {"scale_vec::1X": _NAMED, "block32": _COUNTED}, TENSOR_FAMILIES),
    ("mxf8f6f4", (8, 8), "", None, TENSOR_FAMILIES),
    ("mxf4", (8, 6), ".vec", {"scale_vec::2X": _NAMED, "block32": _COUNTED}, _OF_ONE_GPU),
    ("mxf4", (8, 8), "", None, _OF_ONE_GPU),
    (
        "mxf4nvf4",
        (8, 7),
        ".vec",
        {"scale_vec::2X": _NAMED, "scale_vec::4X": _NAMED, "block16": _COUNTED, "block32": _COUNTED},
        _OF_ONE_GPU,
    ),
)


def _scaled(sparsity: Table) -> Table:
    """The forms of products with scaled blocks."""
    return [
        {
            **{k: v for k, v in line.items() if k != "sparse_only"},
            "only": line["sparse_only"] if line["sp"] else TENSOR_FAMILIES,
        }
        for line in times(_SIZES, sparsity, _A)
    ]


_BLOCK_SCALE: Final = (
    "tcgen05.mma<sp>.group.kind::<kind>.block_scale<size>{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32, [scales_a:u32], [scales_b:u32], use:pred"
)
_BLOCK_SCALE_ROW: Final[dict[str, Any]] = {
    "name": "tcgen05_mma_block_scale<sparse><tmem>",
    "group": _GROUPS,
    "coll": _COLLECTED,
    "section": f"{TCGEN05}: tcgen05.mma<sp>",
    "doc": "D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor "
    "memory at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A<which> "
    "<where>, B in shared memory, as the descriptor b says.",
    **_ASYNC,
}


@inst(_BLOCK_SCALE, _scaled(_DENSE), ignores=("coll",), **_BLOCK_SCALE_ROW)
def tcgen05_mma_block_scale(
    machine: Machine,
    d: Lanes,
    a: Lanes,
    b: Lanes,
    idesc: Lanes,
    scales_a: Lanes,
    scales_b: Lanes,
    use: Lanes,
    *,
    group: str,
    kind: str,
    tmem: str,
    vec: str = "",
) -> tuple[()]:
    """Start a product of scaled blocks."""
    plan = ScaledProduct(kind, vec, bool(tmem), group == _PAIR)
    machine.start_tensor(plan, (d, a, b, idesc, scales_a, scales_b, use), pair=group == _PAIR)
    return ()


@inst(_BLOCK_SCALE, _scaled(_SPARSE), unmodelled=_NO_SPARSE, **_BLOCK_SCALE_ROW)
def tcgen05_mma_block_scale_refused() -> None:
    """A product of scaled blocks that is not modelled."""


@inst(
    "tcgen05.mma.ws<sp>.cta_group::1.kind{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32, use:pred{, zero_columns:u64}",
    _A,
    _DENSE + _SPARSE,
    name="tcgen05_mma_ws<sparse><tmem>",
    kind=_KINDS,
    coll=_COLLECTED_B,
    unmodelled="products that hold B in the tensor cores are not modelled",
    section=f"{TCGEN05}: tcgen05.mma.ws<sp>",
    **_TENSOR,
)
def tcgen05_mma_ws() -> None:
    """D = A * B + D if use, else A * B, of the types and shape in idesc, with B held in the tensor cores; D
    is in tensor memory at d, A<which> <where>, B in shared memory, as the descriptor b says. Columns of B
    that zero_columns describes are zero.
    """


# ---------------------------------------- copies


_COPIES: Final = each(
    "shape to_warps warps",
    (("128x256b", "4x256b", "128x128b"), "", None),
    (("64x128b",), ".warps", ("warpx2::02_13", "warpx2::01_23")),
    (("32x128b",), ".warps", ("warpx4",)),
)
_CP: Final = "tcgen05.cp.group.shape<to_warps>{} [d:u32], b:u64"
_CP_ROW: Final[dict[str, Any]] = {"group": _GROUPS, "section": f"{TCGEN05}: tcgen05.cp", **_TENSOR}


@inst(_CP.format(""), _COPIES, name="tcgen05_cp", **_CP_ROW)
def tcgen05_cp(machine: Machine, d: Lanes, b: Lanes, *, group: str, shape: str, warps: str = "") -> tuple[()]:
    """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d."""
    machine.start_tensor(partial(copy, shape, warps), (d, b), pair=group == _PAIR)
    return ()


@inst(
    _CP.format(".b8x16.source"),
    _COPIES,
    name="tcgen05_cp_unpacked",
    source=("b6x16_p32", "b4x16_p64"),
    unmodelled="copies that unpack 4- and 6-bit elements are not modelled",
    **_CP_ROW,
)
def tcgen05_cp_unpacked() -> None:
    """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d, its 4- or 6-bit
    elements each in 8 bits.
    """


@inst(
    "tcgen05.shift.group.down [a:u32]",
    name="tcgen05_shift",
    group=_GROUPS,
    ptx=(8, 6),
    only=_OF_ONE_GPU,
    unmodelled=_NO_SHIFT,
    section=f"{TCGEN05}: tcgen05.shift",
    **_ASYNC,
)
def tcgen05_shift() -> None:
    """Move the rows of 32 bytes in tensor memory from the address a on down by one lane, except the last."""


# ---------------------------------------- order


@inst(
    "tcgen05.commit.group.mbarrier::arrive::one{.space}<cast>.b64 [mbar:u64]<mask>",
    each(
        "multicast cast mask where",
        ("", "", "", ""),
        ("_multicast", ".multicast::cluster", ", ctas:u16", _IN_EACH_CTA),
    ),
    name="tcgen05_commit<multicast>",
    group=_GROUPS,
    space=("shared::cluster",),
    section=f"{TCGEN05}: tcgen05.commit",
    **_TENSOR,
)
def tcgen05_commit(
    machine: Machine, mbar: Lanes, ctas: Lanes | None = None, *, group: str, space: str | None
) -> tuple[()]:
    """Arrive at the mbarrier<where> once this thread's earlier products, copies and shifts are complete."""
    del group  # a thread's operations are all of one group
    near = mbar if space else machine.convert_address("shared", np.asarray(mbar), to_space=True)
    machine.commit_tensor(near, ctas)
    return ()


@inst(
    "tcgen05.fence::<side>_thread_sync",
    each(
        "side what",
        ("before", "all earlier asynchronous operations on tensor memory before later synchronisation"),
        ("after", "all later asynchronous operations on tensor memory after earlier synchronisation"),
    ),
    name="tcgen05_fence_<side>",
    section=f"{TCGEN05}: tcgen05.fence",
    **{**_TENSOR, "effect": Effect.FENCE},
)
def tcgen05_fence(machine: Machine, side: str) -> tuple[()]:
    """Order <what> of threads."""
    machine.fence(f"tensor_{side}")
    return ()


@inst(
    "tcgen05.wait::<way>.sync.aligned",
    each("way what", ("ld", "loads from"), ("st", "stores to")),
    name="tcgen05_wait_<way>",
    section=f"{TCGEN05}: tcgen05.wait",
    **_TENSOR,
)
def tcgen05_wait(machine: Machine, way: str) -> tuple[()]:
    """Wait until all <what> tensor memory that this thread has started are complete."""
    machine.warp_sync(EVERY_LANE)
    machine.wait_for_cells(way)
    return ()
