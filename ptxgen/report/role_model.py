"""How busy roles of warps that run at once keep a multiprocessor: the model of kernels with `tcgen05`.

One warp copies tiles, one thread starts products, warpgroups compute weights (exponentials) of the scores, a
row each thread, and a warpgroup corrects sums where a maximum has grown, which is seldom: the path that the
model takes round its loop leaves the correction out. Where sums of all tiles are in registers, this warpgroup
adds those of each tile, and where tiles become pairs of f16, it is a warpgroup that copies and splits. Each
role has its loop; an iteration of each is a tile of keys, of all row tiles of the CTA. A unit is busy for the
sum over the roles, and an iteration takes as long as its busiest unit at least. The clocks of a unit of one
scheduler are those of the scheduler that also has the busier one of the warp that copies and the warp that
starts products.

The loop of the weights is also issued by `issue_model`, with its stall counts and scoreboards, by the warps
of all row tiles, which begin at random clocks as resident CTAs do; no other role uses the scheduler, scores
are always there, and barriers are left out. Where that takes longer than every unit it is the bound.

What the model leaves out: waits of roles for each other, which two row tiles hide in part; latencies of
products; and the clocks before and after the loops. Copies are the bytes that are announced at mbarriers, of
a pair of CTAs half of them. That they pass through the shared memory that products read is so on Hopper, and
assumed here. No GPU has been compared with this model.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ptxgen.report.issue_model import modelled
from ptxgen.report.issue_units import (
    SCHEDULERS,
    WAVEFRONT_BYTES,
    Unit,
    clocks_of,
    copied_to_tensor_memory,
    product_in_tensor_memory,
    rows_read,
    unit_of,
)
from ptxgen.runtime.sass import IN_TENSOR_MEMORY, Loop, SassInstr, loops
from ptxgen.runtime.sass_literals import with_literals
from ptxgen.target import WARP_SIZE, Target

ISSUE: Final = "issue slots"
WEIGHTS_ALONE: Final = "loop of weights"
_WARPGROUP: Final = 4  # warps
_OF_SCHEDULER: Final = (Unit.SPECIAL, Unit.F32, Unit.INTEGER, Unit.TENSOR_MEMORY)
_BARRIER: Final = "BAR"
_COMMITS: Final = "UTCBAR"
_COPIES: Final = "UTMALDG"
_ANEW: Final = "!UPT"  # the predicate of a product whose sums begin anew
_FROM_SHARED: Final = "gdesc"  # the first operand of a product whose A is in shared memory
_ADDS: Final = ("FFMA", "FFMA2")  # instructions that add sums times factors
_SPLITS: Final = ("F2F", "F2FP")  # instructions that round to f16


class Role(enum.Enum):
    """What the warps of a role do."""

    COPIES = "copies"
    PRODUCTS = "products"
    WEIGHTS = "weights"
    CORRECTION = "correction"


@dataclass(frozen=True, slots=True)
class RoleLoop:
    """The loop of a role, and the warps of a CTA that go round it."""

    loop: Loop
    warps: int

    @property
    def instructions(self) -> int:
        """Instructions of a warp in an iteration."""
        return len(self.loop.path)


@dataclass(frozen=True, slots=True)
class RoleClocks:
    """The clocks of a multiprocessor for an iteration of all roles, by unit: a name of `Unit`, `ISSUE`, or
    `WEIGHTS_ALONE`, which the issue model says.
    """

    clocks: Mapping[str, float]

    @property
    def bound(self) -> str:
        """The unit that takes the most clocks; of several the first."""
        return max(self.clocks, key=lambda unit: self.clocks[unit])

    @property
    def of_iteration(self) -> float:
        """The clocks that an iteration takes at least."""
        return max(self.clocks.values())

    @property
    def tensor(self) -> float:
        """The share of the clocks of an iteration in which tensor cores are busy, 0 to 1."""
        return self.clocks[Unit.TENSOR.value] / self.of_iteration


def role_loops(instrs: Sequence[SassInstr]) -> dict[Role, RoleLoop]:
    """The loops of a kernel by role, of each the one with the shortest path: of loops over tiles that a mask
    cuts and others the latter. Raises `ValueError` for a kernel without a loop that starts and commits
    products of `tcgen05`.
    """
    every = sorted(loops(with_literals(instrs)), key=lambda loop: len(loop.path))

    def shortest(is_it: Callable[[Loop], bool]) -> Loop | None:
        return next((loop for loop in every if is_it(loop)), None)

    products = shortest(lambda loop: _has(loop.path, *IN_TENSOR_MEMORY) and _has(loop.path, _COMMITS))
    if products is None:
        names = ", ".join(sorted({i.name for i in instrs if i.name in IN_TENSOR_MEMORY}))
        raise ValueError(
            "the model of roles expected a loop that starts and commits products of tcgen05 (UTCHMMA or "
            f"the like, and UTCBAR), got {len(every)} other loops, and {names or 'no products'} in the kernel"
            "; give it a kernel with such a loop"
        )
    result = {Role.PRODUCTS: RoleLoop(products, 1)}
    copies = shortest(lambda loop: _has(loop.path, _COPIES) and any(i.announces for i in loop.path))
    weights = shortest(lambda loop: _has(loop.path, "LDTM") and _exponentials(loop.path) > 0)
    correction = shortest(
        lambda loop: _has(loop.body, "LDTM") and _has(loop.body, "STTM") and loop is not weights
    )
    if correction is None or _exponentials(correction.body):
        correction = shortest(
            lambda loop: _has(loop.path, "LDTM") and _has(loop.path, *_ADDS) and not _exponentials(loop.body)
        )
    if copies is not None:
        splits = _has(copies.path, *_SPLITS)
        result[Role.COPIES] = RoleLoop(copies, _WARPGROUP if splits else 1)
    if weights is not None:
        result[Role.WEIGHTS] = RoleLoop(weights, max(_new_rows(products.path) // WARP_SIZE, _WARPGROUP))
    if correction is not None and not _exponentials(correction.body):
        result[Role.CORRECTION] = RoleLoop(correction, _WARPGROUP)
    return result


def role_clocks(roles: Mapping[Role, RoleLoop], target: Target, copied: float | None = None) -> RoleClocks:
    """The model of the loops of all roles; `copied` are the bytes that tensor copies bring to a CTA in an
    iteration, by default those that the loop of copies announces. Raises `ValueError` for products whose
    shape, and copies whose bytes, are not known, and for targets without known rates of `tcgen05`.
    """
    products = roles[Role.PRODUCTS].loop.path
    clocks = {
        Unit.TENSOR.value: sum(clocks_of(i, target) for i in products if i.name in IN_TENSOR_MEMORY),
        Unit.MEMORY.value: _shared_clocks(roles, target, copied),
    }
    for unit in _OF_SCHEDULER:
        clocks[unit.value] = _of_scheduler(roles, functools.partial(_clocks_on, unit, target))
    clocks[ISSUE] = _of_scheduler(roles, lambda _: 1.0)
    if Role.WEIGHTS in roles:
        weights = roles[Role.WEIGHTS]
        path = tuple(i for i in weights.loop.path if i.name != _BARRIER)
        threads, tiles = _WARPGROUP * WARP_SIZE, weights.warps // _WARPGROUP
        busy = modelled(Loop(path, len(path)), target, threads, tiles, 0)
        clocks[WEIGHTS_ALONE] = busy.clocks_of_ctas(threads, tiles)
    return RoleClocks(clocks)


def announced(path: Sequence[SassInstr]) -> int:
    """The bytes of copies that instructions announce at mbarriers. Raises `ValueError` where they are no
    literal.
    """
    nbytes = 0
    for instr in path:
        if instr.announces and instr.literal is None:
            raise ValueError(
                f"{instr.opcode} {instr.operands}: expected a literal number of bytes that copies bring, got "
                "a register that is computed; pass the bytes of an iteration as `copied`"
            )
        nbytes += instr.literal or 0 if instr.announces else 0
    return nbytes


def _shared_clocks(roles: Mapping[Role, RoleLoop], target: Target, copied: float | None) -> float:
    """The clocks of shared memory: operands of products, copies, and accesses of warps."""
    products = roles[Role.PRODUCTS].loop.path
    nbytes: float = sum(sum(rows_read(i)) + copied_to_tensor_memory(i) for i in products)
    if copied is not None:
        nbytes += copied
    elif Role.COPIES in roles:
        path = roles[Role.COPIES].loop.path
        in_pair = any(i.name == _COPIES and ".2CTA" in i.opcode for i in path)
        nbytes += announced(path) / (2 if in_pair else 1)
    accessed = sum(
        role.warps * clocks_of(i, target) / SCHEDULERS
        for role in roles.values()
        for i in role.loop.path
        if unit_of(i) is Unit.MEMORY
    )
    return nbytes / WAVEFRONT_BYTES + accessed


def _clocks_on(unit: Unit, target: Target, instr: SassInstr) -> float:
    """The clocks for which an instruction keeps this unit of a scheduler busy."""
    return clocks_of(instr, target) if unit_of(instr) is unit else 0.0


def _of_scheduler(roles: Mapping[Role, RoleLoop], of_instr: Callable[[SassInstr], float]) -> float:
    """The sum over the instructions of the busiest scheduler in an iteration."""
    of_warps = [(role.warps, sum(map(of_instr, role.loop.path))) for role in roles.values()]
    shared = sum(warps / SCHEDULERS * of_one for warps, of_one in of_warps if warps >= SCHEDULERS)
    return shared + max((of_one for warps, of_one in of_warps if warps < SCHEDULERS), default=0.0)


def _new_rows(path: Sequence[SassInstr]) -> int:
    """The rows of scores of a CTA in an iteration: of sums that begin anew, whose A is in shared memory."""
    anew = [
        i
        for i in path
        if i.name in IN_TENSOR_MEMORY and i.operands.startswith(_FROM_SHARED) and i.operands.endswith(_ANEW)
    ]
    return sum(of.m // of.group for of in map(product_in_tensor_memory, anew))


def _exponentials(path: Sequence[SassInstr]) -> int:
    return sum(i.opcode.startswith("MUFU.EX2") for i in path)


def _has(path: Sequence[SassInstr], *names: str) -> bool:
    return any(i.name in names for i in path)
