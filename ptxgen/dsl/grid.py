"""The index of a thread in its CTA, and of the CTA in the grid."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ptxgen import ir
from ptxgen.dsl.memory import Memory
from ptxgen.dsl.values import Value
from ptxgen.errors import ModifierError, shown
from ptxgen.isa.special import special
from ptxgen.target import Target

Axis: TypeAlias = Literal["x", "y", "z"]

_AXES: Final = ("x", "y", "z")


class Grid(Memory):
    """The special registers of a thread.

    `threads` is the number of threads of a CTA, all along x. `k.strided`, `k.grid_strided` and `k.block` rely
    on a launch with exactly this number.
    """

    def __init__(self, name: str, target: Target, threads: int) -> None:
        super().__init__(name, target)
        self.threads = threads

    def special(self, name: str) -> Value:
        """The value of a special register, such as `tid.x`, or `%tid.x` as PTX writes it."""
        if not isinstance(name, str):
            raise ModifierError(f"special: the name must be a text such as 'tid.x', got {shown(name)}")
        register = special(f"%{name.removeprefix('%')}")
        return self.emit("mov", (ir.Special(register.name),), {"type": register.type})

    def thread_id(self, axis: Axis = "x") -> Value:
        """The index of this thread in its CTA along an axis (`%tid`), u32."""
        return self._along("thread_id", "tid", axis)

    def block_id(self, axis: Axis = "x") -> Value:
        """The index of this CTA in the grid along an axis (`%ctaid`), u32."""
        return self._along("block_id", "ctaid", axis)

    def blocks(self, axis: Axis = "x") -> Value:
        """The number of CTAs of the grid along an axis (`%nctaid`), u32."""
        return self._along("blocks", "nctaid", axis)

    def _along(self, caller: str, register: str, axis: object) -> Value:
        if not isinstance(axis, str) or axis not in _AXES:
            raise ModifierError(f"{caller}: the axis must be 'x', 'y' or 'z', got {shown(axis)}")
        return self.special(f"{register}.{axis}")
