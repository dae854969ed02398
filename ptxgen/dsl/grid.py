"""The index of a thread in its CTA, and of the CTA in the grid."""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

from ptxgen import ir
from ptxgen.arguments import integer
from ptxgen.dsl.memory import Memory
from ptxgen.dsl.values import Value
from ptxgen.errors import ModifierError, shown
from ptxgen.isa.special import special
from ptxgen.target import Target

Axis: TypeAlias = Literal["x", "y", "z"]

Extents: TypeAlias = tuple[int, int, int]  # along x, y and z

AXES: Final = ("x", "y", "z")
_MOST_DEEP: Final = 64  # threads along z (CUDA C++ Programming Guide, "Technical Specifications")


def block_extents(threads: object, target: Target) -> Extents | None:
    """The threads of a CTA along x, y and z, of a number or a tuple of up to three; None if the target does
    not allow them.
    """
    most = target.threads_per_block
    sizes = [integer(n, 1, most) for n in (threads if isinstance(threads, tuple | list) else (threads,))]
    if not 1 <= len(sizes) <= len(AXES) or None in sizes:
        return None
    x, y, z = (*(size for size in sizes if size is not None), 1, 1)[: len(AXES)]
    return (x, y, z) if x * y * z <= most and z <= _MOST_DEEP else None


def threads_problem(threads: object, target: Target) -> str:
    """The text of an error for `threads`, which are those of no CTA of the target."""
    most = target.threads_per_block
    if isinstance(threads, tuple | list):
        return (
            f"threads along x, y and z must be up to three numbers from 1 with a product of at most {most} "
            f"on {target.name}, and at most {_MOST_DEEP} along z, got {shown(threads)}"
        )
    return f"threads must be 1..{most} on {target.name}, got {shown(threads)}"


class Grid(Memory):
    """The special registers of a thread.

    `block_shape` is the threads of a CTA along x, y and z, and `threads` their product. `k.strided`,
    `k.grid_strided` and `k.block` rely on a launch with exactly these.
    """

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target)
        self.block_shape = block_shape
        self.threads = math.prod(block_shape)

    def special(self, name: str) -> Value:
        """The value of a special register, such as `tid.x`, or `%tid.x` as PTX writes it."""
        if not isinstance(name, str):
            raise ModifierError(f"special: the name must be a text such as 'tid.x', got {shown(name)}")
        register = special(f"%{name.removeprefix('%')}")
        return self.emit("mov", (ir.Special(register.name),), {"type": register.type})

    def thread_id(self, axis: Axis = "x") -> Value:
        """The index of this thread in its CTA along an axis (`%tid`), u32."""
        return self._along("thread_id", "tid", axis)

    def thread_index(self) -> Value:
        """The number of this thread in its CTA, x + X (y + Y z) in a block of X x Y x Z threads, u32: warps
        are 32 consecutive ones (PTX ISA, "Thread Hierarchy"). In a block along x it is `thread_id()`.
        """
        x, y, z = self.block_shape
        index = self.thread_id()
        if y > 1:
            index = self.emit("mad", (self.thread_id("y"), x, index), {"mode": "lo"})
        return self.emit("mad", (self.thread_id("z"), x * y, index), {"mode": "lo"}) if z > 1 else index

    def block_id(self, axis: Axis = "x") -> Value:
        """The index of this CTA in the grid along an axis (`%ctaid`), u32."""
        return self._along("block_id", "ctaid", axis)

    def blocks(self, axis: Axis = "x") -> Value:
        """The number of CTAs of the grid along an axis (`%nctaid`), u32."""
        return self._along("blocks", "nctaid", axis)

    def _along(self, caller: str, register: str, axis: object) -> Value:
        if not isinstance(axis, str) or axis not in AXES:
            raise ModifierError(f"{caller}: the axis must be 'x', 'y' or 'z', got {shown(axis)}")
        return self.special(f"{register}.{axis}")
