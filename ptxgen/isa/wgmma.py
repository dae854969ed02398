"""Asynchronous warpgroup matrix multiplication (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions").

Four warps compute D = A * B + D together: A is 64 x K, in registers or in shared memory, B is K x N
in shared memory, D is in registers. Warp `w` of the four has rows 16 * w to 16 * w + 15 of A and D,
in the layout of `mma.m16n8`, so each warp can be computed by itself. The machine decides when
shared memory is read and the sums are computed, between the start of the instruction and the wait
for its group. Sums are those of the target's tensor cores (`ptxgen.isa.tensor_core`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.compiled_sums import multiplied
from ptxgen.isa.declare import each, inst
from ptxgen.isa.descriptors import read_matrix
from ptxgen.isa.fragments import (
    EVERY_LANE,
    WARP,
    ActiveWarps,
    Layout,
    Operands,
    elements_across,
    joined,
    operand_layout,
    scattered,
    sizes,
)
from ptxgen.isa.matrix import ACCURACY
from ptxgen.isa.products import INTEGERS, operands
from ptxgen.isa.spec import BLACKWELL, Effect
from ptxgen.isa.tensor_core import Adder, adder
from ptxgen.isa.undefined_products import PRODUCT

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

WGMMA: Final = "Asynchronous Warpgroup Level Matrix Instructions"
MISCELLANEOUS: Final = "Miscellaneous Instructions"
_ONLY: Final[dict[str, Any]] = {"sm": 90, "only": ("sm_90a",)}
_SM90A: Final[dict[str, Any]] = {"ptx": (8, 0), **_ONLY}

_INT32: Final = np.iinfo(np.int32)


def _in_memory(
    machine: Machine, layout: Layout, at: Lanes, rows: int, transposed: bool, *, parted: bool
) -> Lanes:
    words = read_matrix(machine, at, rows, transposed=transposed, parted=parted)
    elements = words.view(f"u{4 // layout.per}")
    return elements.transpose((1, 2, 0) if transposed else (2, 1, 0))


def _addend(warps: ActiveWarps, layout: Layout, d: Sequence[Lanes], keep: Lanes) -> Lanes:
    """The concatenated registers of D in the active warps; zeros in threads that do not keep them."""
    sums = warps.joined(layout, d)
    if not keep.all():
        dropped = ~warps.picked(keep.reshape(-1, WARP), 0).reshape(-1)
        sums.reshape(len(d), -1)[:, dropped] = 0
    return sums


def _multiplied(
    machine: Machine,
    of: Operands,
    read: tuple[Lanes, Lanes],
    d: Sequence[Lanes],
    keep: Lanes,
    how: Adder,
    negated: bool,
) -> tuple[Lanes, ...]:
    """The registers of D of the warps that are active now; the elements are those of all warps."""
    warps = ActiveWarps.of(machine)
    left, right = (warps.picked(matrix, 2) for matrix in read)
    sums = multiplied(how, of, left, right, _addend(warps, of.c, d, keep), negated=negated)
    return warps.as_registers(of.d, sums)


def _added_s32(
    machine: Machine, of: Operands, read: tuple[Lanes, Lanes], d: Sequence[Lanes], keep: Lanes, finite: bool
) -> tuple[Lanes, ...]:
    warps = ActiveWarps.of(machine)
    product = _product_s32(of, *(warps.picked(x, 2) for x in read))
    exact = _addend(warps, of.d, d, keep) + product.astype(np.int64)
    if finite:
        exact = np.clip(exact, _INT32.min, _INT32.max)
    return warps.as_registers(of.d, exact.astype(np.int32))  # wraps around


def _shapes(k: int, ns: Iterable[int] = range(8, 257, 8)) -> tuple[str, ...]:
    return tuple(f"m64n{n}k{k}" for n in ns)


_FP8: Final = ("e4m3", "e5m2")
_INTEGER_SHAPES: Final = _shapes(32, (8, 16, 24, *range(32, 257, 16)))
# By the type of D: for floats the signs of A and B, for integers saturation.
_D_COLUMNS: Final = "dtype register finite factors sign max_ulp accuracy"
_SIGN: Final = ". ia and ib are 1 or -1, factors of A and B"
_F32: Final = each(_D_COLUMNS, ("f32", "f32", "", ", ia:imm, ib:imm", _SIGN, math.inf, ACCURACY))
_F16: Final = each(_D_COLUMNS, ("f16", "b32", "", ", ia:imm, ib:imm", _SIGN, math.inf, ACCURACY))
_S32: Final = each(_D_COLUMNS, ("s32", "s32", "{.satfinite}", "", "", None, None))
# By the location of A; only matrices of 16-bit elements in shared memory may be M- or N-major.
_A_COLUMNS: Final = "held a_is where turns turned"
_SHARED: Final = "in shared memory, as the descriptor a says"
_K_MAJOR: Final = each(
    _A_COLUMNS, ("", "a:u64", _SHARED, "", ""), ("_registers", "a:b32*4", "in registers", "", "")
)
_TRANSPOSED: Final = ". If ta or tb is 1, the rows of that matrix in memory lie along M or N, not K"
_EITHER: Final = each(
    _A_COLUMNS,
    ("", "a:u64", _SHARED, ", ta:imm, tb:imm", _TRANSPOSED),
    ("_registers", "a:b32*4", "in registers", ", tb:imm", _TRANSPOSED),
)


def _registers_of_d(m: Mapping[str, Any]) -> int:
    _, n, k = sizes(str(m["shape"]))
    return operand_layout("d", f"m16n{n}k{k}", m["dtype"]).registers


@inst(
    "wgmma.mma_async.sync.aligned.shape<finite>.<dtype>.<atype>.<btype> "
    "d:<register>*nd, <a_is>, b:u64, s:pred<factors><turns>",
    each(
        "of shape d atype btype a ptx",
        ("f16", _shapes(16), _F32 + _F16, "f16", "f16", _EITHER, (8, 0)),
        ("bf16", _shapes(16), _F32, "bf16", "bf16", _EITHER, (8, 0)),
        ("tf32", _shapes(8), _F32, "tf32", "tf32", _K_MAJOR, (8, 0)),
        ("fp8", _shapes(32), _F32 + _F16, _FP8, _FP8, _K_MAJOR, (8, 0)),
        ("s8", _INTEGER_SHAPES, _S32, "s8", "s8", _K_MAJOR, (8, 0)),
        ("u8", _INTEGER_SHAPES, _S32, "u8", "u8", _K_MAJOR, (8, 0)),
        ("s8_u8", _INTEGER_SHAPES, _S32, "s8", "u8", _K_MAJOR, (8, 4)),
        ("u8_s8", _INTEGER_SHAPES, _S32, "u8", "s8", _K_MAJOR, (8, 4)),
    ),
    name="wgmma_<dtype>_<of><held>",
    counts={"nd": _registers_of_d},
    effect=Effect.ASYNC,
    undefined=PRODUCT,
    section=f"{WGMMA}: wgmma.mma_async",
    **_ONLY,
)
def wgmma_mma_async(
    machine: Machine,
    d: tuple[Lanes, ...],
    a: Lanes | tuple[Lanes, ...],
    b: Lanes,
    s: Lanes,
    ia: int = 1,
    ib: int = 1,
    ta: int = 0,
    tb: int = 0,
    *,
    shape: str,
    dtype: str,
    atype: str,
    btype: str,
    satfinite: bool = False,
) -> tuple[Lanes, ...]:
    """d = A * B + d if s, else A * B; A is <where>, B in shared memory, as b says<sign><turned>."""
    machine.warp_sync(EVERY_LANE)
    _, n, k = sizes(shape)
    of = operands(f"m16n{n}k{k}", atype, btype, dtype, dtype)
    keep = np.broadcast_to(s, machine.active().size)

    def read() -> tuple[Lanes, Lanes]:
        """The elements of A and B as bits, `[K, rows of A or columns of B, warps]`."""
        if isinstance(a, tuple):
            left = elements_across(of.a, joined(machine.active().size, a), k_first=True)
        else:
            left = _in_memory(machine, of.a, a, 64, bool(ta), parted=True)
        return left, _in_memory(machine, of.b, b, n, bool(tb), parted=False)

    if dtype == "s32":
        return machine.multiply(read, lambda read, d: _added_s32(machine, of, read, d, keep, satfinite), d)
    how = adder(machine.sm, "wgmma", atype)
    return machine.multiply(read, lambda read, d: _multiplied(machine, of, read, d, keep, how, ia != ib), d)


def _product_s32(of: Operands, *read: Lanes) -> Lanes:
    """A * B of all warps in s32, as concatenated registers."""
    left, right = (
        INTEGERS[type](elements.reshape(-1)).reshape(elements.shape)
        for type, elements in zip((of.type_a, of.type_b), read, strict=True)
    )
    product = np.matmul(left.transpose(2, 1, 0), right.transpose(2, 0, 1))
    return scattered(of.d, product.reshape(-1))


@inst(
    "wgmma.fence.sync.aligned",
    name="wgmma_fence",
    effect=Effect.ASYNC,
    section=f"{WGMMA}: wgmma.fence",
    **_SM90A,
)
def wgmma_fence(machine: Machine) -> tuple[()]:
    """Order this warp's accesses to registers before later wgmma.mma_async that read or write them."""
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "wgmma.commit_group.sync.aligned",
    name="wgmma_commit_group",
    effect=Effect.ASYNC,
    section=f"{WGMMA}: wgmma.commit_group",
    **_SM90A,
)
def wgmma_commit_group(machine: Machine) -> tuple[()]:
    """Make one group of all wgmma.mma_async that this warpgroup started since its last commit."""
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "wgmma.wait_group.sync.aligned n:imm",
    name="wgmma_wait_group",
    effect=Effect.BARRIER,
    section=f"{WGMMA}: wgmma.wait_group",
    **_SM90A,
)
def wgmma_wait_group(machine: Machine, n: int) -> tuple[()]:
    """Wait until at most the n newest groups of this warpgroup are still under way."""
    del n  # the machine has counted the groups, and has the literal
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "setmaxnreg.action.sync.aligned.u32 count:imm",
    name="setmaxnreg",
    action=("inc", "dec"),
    ptx=(8, 0),
    sm=90,
    only=("sm_90a", *BLACKWELL),
    effect=Effect.BARRIER,
    section=f"{MISCELLANEOUS}: setmaxnreg",
)
def setmaxnreg(machine: Machine, count: int, *, action: str) -> tuple[()]:
    """Give each thread of this warp count registers: fewer than before, or more, once the block has
    enough free ones.
    """
    machine.warp_sync(EVERY_LANE)
    machine.set_registers(count, more=action == "inc")
    return ()
