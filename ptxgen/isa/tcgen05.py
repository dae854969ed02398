"""Tensor memory and the tensor cores that work on it (PTX ISA, "TensorCore 5th Generation Family
Instructions").

Every form of the manual is a row, so that texts with them are read, verified and printed. No row has a
meaning: the interpreter has no tensor memory, and refuses a kernel with any of them by name.

Of the forms of a product, A is in shared memory, behind a descriptor, or in tensor memory; a sparse product
(`.sp`) has the address of its metadata before the instruction descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptxgen.isa.declare import Table, each, inst, times
from ptxgen.isa.spec import Effect, gate

TCGEN05: Final = "TensorCore 5th Generation Family Instructions"
_UNMODELLED: Final = "tensor memory is not modelled"

# Targets, as ptxas 13.0 accepts them: the families with tensor memory, and what some of their targets have.
_ALL: Final = ("sm_100f", "sm_110f")
_OF_ONE_GPU: Final = ("sm_100a", "sm_103a", "sm_110a")
_INTEGERS: Final = gate(only=("sm_100a", "sm_110a"))
_SCALED_INPUT: Final = ("sm_100f",)
_REDUCTIONS: Final = ("sm_103f", "sm_110f")

_ASYNC: Final[dict[str, Any]] = {"sm": 100, "effect": Effect.ASYNC, "unmodelled": _UNMODELLED}
_TENSOR: Final[dict[str, Any]] = {"ptx": (8, 6), "only": _ALL, **_ASYNC}
_GROUPS: Final = ("cta_group::1", "cta_group::2")

# ---------------------------------------- allocation


@inst(
    "tcgen05.alloc.group.sync.aligned{.space}.b32 [dst:u64], n:u32",
    name="tcgen05_alloc",
    group=_GROUPS,
    space=("shared::cta",),
    section=f"{TCGEN05}: tcgen05.alloc",
    **_TENSOR,
)
def tcgen05_alloc() -> None:
    """Allocate n columns of tensor memory, once there is room, and write their address to shared memory."""


@inst(
    "tcgen05.dealloc.group.sync.aligned.b32 a:u32, n:u32",
    name="tcgen05_dealloc",
    group=_GROUPS,
    section=f"{TCGEN05}: tcgen05.dealloc",
    **_TENSOR,
)
def tcgen05_dealloc() -> None:
    """Free the n columns of tensor memory that were allocated at the address a."""


@inst(
    "tcgen05.relinquish_alloc_permit.group.sync.aligned",
    name="tcgen05_relinquish_alloc_permit",
    group=_GROUPS,
    section=f"{TCGEN05}: tcgen05.relinquish_alloc_permit",
    **_TENSOR,
)
def tcgen05_relinquish_alloc_permit() -> None:
    """Promise that this CTA allocates no more tensor memory."""


# ---------------------------------------- registers


def _registers(m: Mapping[str, Any]) -> int:
    """The registers of each thread: of 32 threads with 32 bits, for 16 or 32 lanes of tensor memory."""
    per = {"16x128b": 2, "16x256b": 4}.get(m["shape"], 1)
    return per * int(m["num"].removeprefix("x"))


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
    section=f"{TCGEN05}: tcgen05.ld",
    **_TENSOR,
)
def tcgen05_ld() -> None:
    """d = the cells of tensor memory at the address a that the shape gives this thread; the second 16 lanes
    of a shape of two halves are split columns further on.
    """


@inst(
    "tcgen05.st.sync.aligned.shape.num{.unpack}.b32 [a:u32]<split>, b:b32*nb",
    _WHOLE + _HALVES,
    name="tcgen05_st<half>",
    unpack=("unpack::16b",),
    counts={"nb": _registers},
    section=f"{TCGEN05}: tcgen05.st",
    **_TENSOR,
)
def tcgen05_st() -> None:
    """The cells of tensor memory at the address a that the shape gives this thread = b; the second 16 lanes
    of a shape of two halves are split columns further on.
    """


@inst(
    "tcgen05.ld.red.sync.aligned.shape.num.op<flags>.<of> d:<of>*nd, q:<of>, [a:u32]<split>",
    _EXTREMES,
    each("of flags", ("f32", "{.abs}{.NaN}"), ("u32", ""), ("s32", "")),
    name="tcgen05_ld_red_<of><half>",
    op=("min", "max"),
    counts={"nd": _registers},
    ptx=(8, 8),
    only=_REDUCTIONS,
    section=f"{TCGEN05}: tcgen05.ld",
    **_ASYNC,
)
def tcgen05_ld_red() -> None:
    """d = the cells of tensor memory at the address a that the shape gives this thread, and q = the least or
    the greatest of them.
    """


# ---------------------------------------- products

_COLLECTED: Final = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
_COLLECTED_B: Final = tuple(
    f"collector::b{n}::{use}" for n in range(4) for use in ("fill", "use", "lastuse", "discard")
)
_BEHIND: Final = ("", "a:u64", "in shared memory, as the descriptor a says")
_HELD: Final = ("_tmem", "[a:u32]", "in tensor memory")
_A: Final = each("held a_is where", _BEHIND, _HELD)
# With .ashift the rows of A move down by one, and A is in tensor memory and not kept for later products.
_A_SHIFTED: Final = each(
    "held a_is where shift coll",
    (*_BEHIND, "", _COLLECTED),
    (*_HELD, "", _COLLECTED),
    ("_tmem_ashift", "[a:u32]", "in tensor memory, its rows moved down by one", ".ashift", _COLLECTED[2:]),
)
_SPARSITY: Final = each(
    "sp sparse metadata which", ("", "", "", ""), (".sp", "_sp", " [metadata:u32],", ", which is sparse,")
)
_LANES: Final = each("mask", "", " mask:b32*nm,")
_KINDS: Final = {"kind::f16": None, "kind::tf32": None, "kind::f8f6f4": None, "kind::i8": _INTEGERS}
_PRODUCTS: Final = each(
    "kind only scale times_d",
    (_KINDS, _ALL, "", "D"),
    (("kind::f16", "kind::tf32"), _SCALED_INPUT, ", scale:imm", "D * 2**-scale"),
)


@inst(
    "tcgen05.mma<sp>.group.kind<shift>{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32,<mask> use:pred<scale>",
    _A_SHIFTED,
    _SPARSITY,
    _LANES,
    _PRODUCTS,
    name="tcgen05_mma<sparse><held>",
    ptx=(8, 6),
    group=_GROUPS,
    counts={"nm": lambda m: 4 * int(m["group"][-1])},
    section=f"{TCGEN05}: tcgen05.mma<sp>",
    **_ASYNC,
)
def tcgen05_mma() -> None:
    """D = A * B + <times_d> if use, else A * B, of the types and shape in idesc; D is in tensor memory at d,
    A<which> <where>, B in shared memory, as the descriptor b says. Lanes of D whose bit in a mask is set are
    not written.
    """


# By kind: the vector sizes with their gates, and the targets of sparse products. The sizes by their number
# of factors are of one GPU; PTX 8.8 names them by the number of elements and has a default.
_NAMED: Final = gate(only=_OF_ONE_GPU)
_COUNTED: Final = gate(ptx=(8, 8))
_SIZES: Final = each(
    "kind ptx size vec sparse_only",
    ("mxf8f6f4", (8, 6), ".vec", {"scale_vec::1X": _NAMED, "block32": _COUNTED}, _ALL),
    ("mxf8f6f4", (8, 8), "", None, _ALL),
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
_SCALED: Final[Table] = [
    {
        **{k: v for k, v in line.items() if k != "sparse_only"},
        "only": line["sparse_only"] if line["sp"] else _ALL,
    }
    for line in times(_SIZES, _SPARSITY, _A)
]


@inst(
    "tcgen05.mma<sp>.group.kind::<kind>.block_scale<size>{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32, [scales_a:u32], [scales_b:u32], use:pred",
    _SCALED,
    name="tcgen05_mma_block_scale<sparse><held>",
    group=_GROUPS,
    coll=_COLLECTED,
    section=f"{TCGEN05}: tcgen05.mma<sp>",
    **_ASYNC,
)
def tcgen05_mma_block_scale() -> None:
    """D = A * B + D if use, else A * B, of the types and shape in idesc, where the factors in tensor memory
    at scales_a and scales_b scale blocks of A and B along K; D is in tensor memory at d, A<which> <where>, B
    in shared memory, as the descriptor b says.
    """


@inst(
    "tcgen05.mma.ws<sp>.cta_group::1.kind{.coll} "
    "[d:u32], <a_is>, b:u64,<metadata> idesc:u32, use:pred{, zero_columns:u64}",
    _A,
    _SPARSITY,
    name="tcgen05_mma_ws<sparse><held>",
    kind=_KINDS,
    coll=_COLLECTED_B,
    section=f"{TCGEN05}: tcgen05.mma.ws<sp>",
    **_TENSOR,
)
def tcgen05_mma_ws() -> None:
    """D = A * B + D if use, else A * B, of the types and shape in idesc, with B kept in the tensor cores; D
    is in tensor memory at d, A<which> <where>, B in shared memory, as the descriptor b says. Columns of B
    that zero_columns describes are zero.
    """


# ---------------------------------------- copies


@inst(
    "tcgen05.cp.group.shape<to_warps><format> [d:u32], b:u64",
    each(
        "shape to_warps warps",
        (("128x256b", "4x256b", "128x128b"), "", None),
        (("64x128b",), ".warps", ("warpx2::02_13", "warpx2::01_23")),
        (("32x128b",), ".warps", ("warpx4",)),
    ),
    each(
        "unpacked format source unpacking",
        ("", "", None, ""),
        (
            "_unpacked",
            ".b8x16.source",
            ("b6x16_p32", "b4x16_p64"),
            ", its 4- or 6-bit elements each in 8 bits",
        ),
    ),
    name="tcgen05_cp<unpacked>",
    group=_GROUPS,
    section=f"{TCGEN05}: tcgen05.cp",
    **_TENSOR,
)
def tcgen05_cp() -> None:
    """Copy the matrix in shared memory that the descriptor b describes to tensor memory at d<unpacking>."""


@inst(
    "tcgen05.shift.group.down [a:u32]",
    name="tcgen05_shift",
    group=_GROUPS,
    ptx=(8, 6),
    only=_OF_ONE_GPU,
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
        ("_multicast", ".multicast::cluster", ", ctas:u16", ", at this offset in each CTA of the mask ctas,"),
    ),
    name="tcgen05_commit<multicast>",
    group=_GROUPS,
    space=("shared::cluster",),
    section=f"{TCGEN05}: tcgen05.commit",
    **_TENSOR,
)
def tcgen05_commit() -> None:
    """Arrive at the mbarrier<where> once all products, copies and shifts that this thread has started are
    complete.
    """


@inst(
    "tcgen05.fence::<side>_thread_sync",
    each(
        "side what",
        ("before", "all earlier asynchronous operations on tensor memory before later synchronisation"),
        ("after", "all later asynchronous operations on tensor memory behind earlier synchronisation"),
    ),
    name="tcgen05_fence_<side>",
    section=f"{TCGEN05}: tcgen05.fence",
    **{**_TENSOR, "effect": Effect.FENCE},
)
def tcgen05_fence() -> None:
    """Order <what> of threads."""


@inst(
    "tcgen05.wait::<way>.sync.aligned",
    each("way what", ("ld", "loads from"), ("st", "stores to")),
    name="tcgen05_wait_<way>",
    section=f"{TCGEN05}: tcgen05.wait",
    **_TENSOR,
)
def tcgen05_wait() -> None:
    """Wait until all <what> tensor memory that this thread has started are complete."""
