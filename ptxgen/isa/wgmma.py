"""Asynchronous warpgroup matrix multiplication (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions").

Four warps compute D = A * B + D together: A is 64 x K, in registers or in shared memory, B is K x N
in shared memory, D is in registers. Warp `w` of the four has rows 16 * w to 16 * w + 15 of A and D,
laid out as `mma.m16n8` has them, so each warp can be computed by itself. When shared memory is read
and the sums are made, from the start of the instruction to the wait for its group, is for the
machine to say. Sums are those of the target's tensor cores (`ptxgen.isa.tensor_core`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.declare import inst
from ptxgen.isa.descriptors import read_matrix
from ptxgen.isa.families import member
from ptxgen.isa.fragments import (
    EVERY_LANE,
    Layout,
    as_registers,
    elements_across,
    joined,
    operand_layout,
    registers_across,
    scattered,
    sizes,
)
from ptxgen.isa.matrix import ACCURACY
from ptxgen.isa.products import ACCUMULATORS, INTEGERS, Operands, operands
from ptxgen.isa.spec import Effect, Modifier
from ptxgen.isa.tensor_core import Adder, Factors, adder, factors, multiplied

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

WGMMA: Final = "Asynchronous Warpgroup Level Matrix Instructions"
MISCELLANEOUS: Final = "Miscellaneous Instructions"
_ONLY: Final[dict[str, Any]] = {"sm": 90, "only": ("sm_90a",)}
_SM90A: Final[dict[str, Any]] = {"ptx": (8, 0), **_ONLY}

_ROUNDED: Final[dict[str, Any]] = {"max_ulp": math.inf, "accuracy": ACCURACY}

_NS: Final = tuple(range(8, 257, 8))
_NS_INTEGER: Final = (8, 16, 24, *range(32, 257, 16))
_INT32: Final = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class _Family:
    """Rows that differ by D's type and by where A is. `a` and `b` are the types of the elements,
    the first being the default.
    """

    name: str
    k: int
    accumulators: tuple[str, ...]
    a: tuple[str, ...]
    b: tuple[str, ...]
    ns: tuple[int, ...] = _NS
    scales: bool = True  # whether A and B may be negated
    transposes: bool = False  # whether matrices in shared memory may be M- or N-major
    ptx: tuple[int, int] = (8, 0)

    @property
    def fixed(self) -> bool:
        """Whether there is no choice of types."""
        return len(self.a) == len(self.b) == 1


_FAMILIES: Final = (
    _Family("f16", 16, ("f32", "f16"), ("f16",), ("f16",), transposes=True),
    _Family("bf16", 16, ("f32",), ("bf16",), ("bf16",), transposes=True),
    _Family("tf32", 8, ("f32",), ("tf32",), ("tf32",)),
    _Family("fp8", 32, ("f32", "f16"), ("e4m3", "e5m2"), ("e4m3", "e5m2")),
    _Family("s8", 32, ("s32",), ("s8",), ("s8",), _NS_INTEGER, scales=False),
    _Family("u8", 32, ("s32",), ("u8",), ("u8",), _NS_INTEGER, scales=False),
    _Family("s8_u8", 32, ("s32",), ("s8",), ("u8",), _NS_INTEGER, scales=False, ptx=(8, 4)),
    _Family("u8_s8", 32, ("s32",), ("u8",), ("s8",), _NS_INTEGER, scales=False, ptx=(8, 4)),
)
_REGISTERS: Final = {"f32": "f32", "f16": "b32", "s32": "s32"}


def _multiplication(family: _Family, accumulator: str) -> Callable[..., tuple[Lanes, ...]]:
    """The meaning of all rows of a family with this type of D."""

    def multiply(
        machine: Machine, *, shape: str, atype: str = family.a[0], btype: str = family.b[0],
        satfinite: bool = False, **given: Any,
    ) -> tuple[Lanes, ...]:  # fmt: skip
        machine.warp_sync(EVERY_LANE)
        _, n, k = sizes(shape)
        of = operands(f"m16n{n}k{k}", atype, btype, accumulator, accumulator)
        keep = np.broadcast_to(given["s"], machine.active().size)
        if accumulator == "s32":
            return machine.multiply(
                lambda: _integers(machine, of, n, given),
                lambda sums, d: _added_s32(machine, of, sums, d, keep, satfinite),
                given["d"],
            )
        how = adder(machine.sm, "wgmma", atype)
        return machine.multiply(
            lambda: _factors(machine, of, n, given, how),
            lambda read, d: _multiplied(machine, of, read, d, keep, how),
            given["d"],
        )

    return multiply


def _read(machine: Machine, of: Operands, n: int, given: Mapping[str, Any]) -> tuple[Lanes, Lanes]:
    """The elements of A and B as bits, `[K, rows of A or columns of B, warps]`."""
    a = given["a"]
    if isinstance(a, tuple):
        left = elements_across(machine, of.a, a, k_first=True)
    else:
        left = _in_memory(machine, of.a, a, 64, bool(given.get("ta", 0)), parted=True)
    return left, _in_memory(machine, of.b, given["b"], n, bool(given.get("tb", 0)), parted=False)


def _in_memory(
    machine: Machine, layout: Layout, at: Lanes, rows: int, turned: bool, *, parted: bool
) -> Lanes:
    words = read_matrix(machine, at, rows, transposed=turned, parted=parted)
    elements = words.view(f"u{4 // layout.per}")
    return np.ascontiguousarray(elements.transpose((1, 2, 0) if turned else (2, 1, 0)))


def _factors(
    machine: Machine, of: Operands, n: int, given: Mapping[str, Any], how: Adder
) -> tuple[Factors, Factors]:
    """A, negated as the scales say, and B of all warps."""
    left, right = _read(machine, of, n, given)
    a, b = factors(of.type_a, left, how), factors(of.type_b, right, how)
    return a.negated() if given.get("ia", 1) != given.get("ib", 1) else a, b


def _kept(machine: Machine, d: Sequence[Lanes], keep: Lanes) -> Lanes:
    """The registers of D, `[registers, lanes]`; zeros in threads that do not keep them."""
    sums = joined(machine, d).reshape(len(d), -1)
    if not keep.all():
        sums[:, ~keep] = 0
    return sums


def _multiplied(
    machine: Machine, of: Operands, read: tuple[Factors, Factors], d: Sequence[Lanes],
    keep: Lanes, how: Adder,
) -> tuple[Lanes, ...]:  # fmt: skip
    old = elements_across(machine, of.c, tuple(_kept(machine, d, keep)), k_first=False)
    sums = multiplied(how, of.type_a, *read, old.view(ACCUMULATORS[of.c.per]))
    return as_registers(of.d, registers_across(of.d, sums))


def _integers(machine: Machine, of: Operands, n: int, given: Mapping[str, Any]) -> Lanes:
    """A * B of all warps in s32, the registers laid end to end."""
    left, right = (
        INTEGERS[type](elements.reshape(-1)).reshape(elements.shape)
        for type, elements in zip((of.type_a, of.type_b), _read(machine, of, n, given), strict=True)
    )
    product = np.matmul(left.transpose(2, 1, 0), right.transpose(2, 0, 1))
    return scattered(of.d, product.reshape(-1))


def _added_s32(
    machine: Machine, of: Operands, product: Lanes, d: Sequence[Lanes], keep: Lanes, finite: bool
) -> tuple[Lanes, ...]:
    exact = _kept(machine, d, keep).reshape(-1) + product.astype(np.int64)
    if finite:
        exact = np.clip(exact, _INT32.min, _INT32.max)
    return as_registers(of.d, exact.astype(np.int32))  # wraps around


def _declare(family: _Family, accumulator: str, in_registers: bool) -> None:
    finite = "" if family.scales else "{.satfinite}"
    types = ".".join(family.a + family.b) if family.fixed else "atype.btype"
    opcode = f"wgmma.mma_async.sync.aligned.shape{finite}.{accumulator}.{types}"
    a = "a:b32*4" if in_registers else "a:u64"
    flags = ["ia:imm", "ib:imm"] * family.scales
    if family.transposes:
        flags += ["tb:imm"] if in_registers else ["ta:imm", "tb:imm"]
    syntax = ", ".join([f"{opcode} d:{_REGISTERS[accumulator]}*nd", a, "b:u64", "s:pred", *flags])

    def accumulators(chosen: Mapping[str, Modifier]) -> int:
        _, n, k = sizes(str(chosen["shape"]))
        return operand_layout("d", f"m16n{n}k{k}", accumulator).registers

    shapes = [f"m64n{n}k{family.k}" for n in family.ns]
    slots: dict[str, Any] = {"shape": shapes}
    if not family.fixed:
        slots |= {"atype": family.a, "btype": family.b}
    names = [flag.removesuffix(":imm") for flag in flags]
    declared = inst(
        syntax,
        name=f"wgmma_{accumulator}_{family.name}" + "_registers" * in_registers,
        effect=Effect.ASYNC, counts={"nd": accumulators},
        section=f"{WGMMA}: wgmma.mma_async", ptx=family.ptx, **_ONLY, **slots,
        **({} if accumulator == "s32" else _ROUNDED),
    )  # fmt: skip
    where = "in registers" if in_registers else "in shared memory, as the descriptor a says"
    declared(
        member(
            _multiplication(family, accumulator),
            f"d = A * B + d if s, else A * B; A is {where}, B in shared memory, as b says."
            + " ia and ib are 1 or -1, factors of A and B." * family.scales
            + " Where ta or tb is 1, the matrix is stored with M or N along rows, not K."
            * family.transposes,
            ["d", "a", "b", "s", *names], [*slots, *["satfinite"] * (not family.scales)],
        )
    )  # fmt: skip


for _family in _FAMILIES:
    for _accumulator in _family.accumulators:
        for _in_registers in (False, True):
            _declare(_family, _accumulator, _in_registers)


@inst(
    "wgmma.fence.sync.aligned", name="wgmma_fence", effect=Effect.ASYNC,
    section=f"{WGMMA}: wgmma.fence", **_SM90A,
)  # fmt: skip
def wgmma_fence(machine: Machine) -> tuple[()]:
    """Order this warp's accesses to registers before wgmma.mma_async that read or write them."""
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "wgmma.commit_group.sync.aligned", name="wgmma_commit_group", effect=Effect.ASYNC,
    section=f"{WGMMA}: wgmma.commit_group", **_SM90A,
)  # fmt: skip
def wgmma_commit_group(machine: Machine) -> tuple[()]:
    """Make one group of all wgmma.mma_async that this warpgroup started since the last one."""
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "wgmma.wait_group.sync.aligned n:imm", name="wgmma_wait_group", effect=Effect.BARRIER,
    section=f"{WGMMA}: wgmma.wait_group", **_SM90A,
)  # fmt: skip
def wgmma_wait_group(machine: Machine, n: int) -> tuple[()]:
    """Wait until at most the n newest groups of this warpgroup are still under way."""
    del n  # the machine has counted the groups, and knows the literal
    machine.warp_sync(EVERY_LANE)
    return ()


@inst(
    "setmaxnreg.action.sync.aligned.u32 count:imm", name="setmaxnreg", action=("inc", "dec"),
    effect=Effect.BARRIER, section=f"{MISCELLANEOUS}: setmaxnreg", **_SM90A,
)  # fmt: skip
def setmaxnreg(machine: Machine, count: int, *, action: str) -> tuple[()]:
    """Have so many registers for each thread of this warp: fewer than before, or more, once the
    block has as many to spare.
    """
    machine.warp_sync(EVERY_LANE)
    machine.set_registers(count, more=action == "inc")
    return ()
