"""The instructions that lanes execute together, and what each wants of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, NamedTuple

from ptxgen.check.prove.barriers.sites import WARP, kind_of
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.operands import SHUFFLES, pairs
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr
from ptxgen.isa.spec import Op

WARPGROUP: Final = 128  # threads; PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"
# Instructions that the warps of a warpgroup execute together.
_OF_WARPGROUPS: Final = ("wgmma", "setmaxnreg")


class Site(NamedTuple):
    """An instruction that the lanes of a group of `width` threads execute together.

    `members` is its membermask; None if it is `.aligned`, so that all lanes execute it. A shuffle has the
    operands `lane` and `clamp`. `is_known` says whether the instruction is in the table.
    """

    block: int
    position: int
    instr: Instr
    width: int
    members: Node | None = None
    lane: Node | None = None
    clamp: Node | None = None
    is_known: bool = True

    @property
    def is_aligned(self) -> bool:
        """Whether all lanes of the group must execute the instruction, and none may have ended."""
        return self.is_known and self.members is None

    @property
    def is_shuffle(self) -> bool:
        """Whether each lane reads a register of another one."""
        return self.lane is not None


def is_site(instr: Instr) -> bool:
    """Whether lanes execute an instruction together. Barriers of the CTA are judged elsewhere."""
    shape = shape_of(instr)
    if shape.complaints or shape.op is None:
        is_masked = instr.opcode.split(".")[0] in _MASKED and ".sync" in instr.opcode
    else:
        is_masked = _has_mask(shape.op)
    return (is_masked or "aligned" in instr.opcode.split(".")) and not kind_of(instr)


@functools.cache
def _has_mask(op: Op) -> bool:
    return any(operand.name == _MASK for operand in op.operands)


_MASK: Final = "membermask"
_MASKED: Final = ("shfl", "vote", "match", "redux", "elect")


def sites_of(graph: Graph, values: Values) -> Iterator[Site]:
    """The sites that the kernel's entry reaches, in the order of the text."""
    for block in sorted(graph.order):
        for position, instr in enumerate(graph.blocks[block].instrs):
            if is_site(instr):
                yield _site(values, block, position, instr)


def _site(values: Values, block: int, position: int, instr: Instr) -> Site:
    shape = shape_of(instr)
    width = WARPGROUP if instr.opcode.startswith(_OF_WARPGROUPS) else WARP
    if shape.complaints or shape.op is None:
        return Site(block, position, instr, width, is_known=False)
    names = ("b", "c", _MASK) if shape.op.row.name in SHUFFLES else (_MASK,)
    operands = {
        want.name: values.operand(got, want.type, block, position)
        for want, got in pairs(shape.op, instr)
        if want.name in names and want.type is not None
    }
    return Site(block, position, instr, width, operands.get(_MASK), operands.get("b"), operands.get("c"))
