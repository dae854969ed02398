"""The bits of registers that are undefined, and the interface of what follows them through a run.

A register without undefined bits has no shadow: its shadow is None, so that programs without undefined
values cost next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptxgen.interpreter.machine.lanes import Selection
    from ptxgen.interpreter.machine.memory import Address, Plan, Space
    from ptxgen.isa.tensor_agent import Operation
    from ptxgen.tensormap import TensorMap

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Shadow:
    """The undefined bits of a register in each lane, as unsigned lanes of its width (bool for a predicate),
    and where they come from: the number of an origin, int32, 0 for a register that nothing has written.
    """

    __slots__ = ("bits", "origin")

    def __init__(self, bits: Lanes, origin: Lanes) -> None:
        self.bits = bits
        self.origin = origin

    def copy(self) -> Shadow:
        """A copy of the shadow, which can be changed."""
        return Shadow(self.bits.copy(), self.origin.copy())

    def pick(self, selection: Selection) -> Shadow | None:
        """The shadow of the picked lanes."""
        bits = selection.pick(self.bits)
        return Shadow(bits, selection.pick(self.origin)) if bits.any() else None


def merged(selection: Selection, old: Shadow | None, new: Shadow | None) -> Shadow | None:
    """The shadow of a register after the active lanes of a selection have a new one, which is given for
    the picked lanes.
    """
    if selection.mask is None or (old is None and new is None):
        return new
    lanes = selection.batch.lanes
    some = old or new
    assert some is not None
    if new is None:
        bits = selection.merge(some.bits, np.zeros(selection.count, some.bits.dtype))
        return Shadow(bits, some.origin) if bits.any() else None
    if old is None:
        old = Shadow(np.zeros(lanes, some.bits.dtype), np.zeros(lanes, np.int32))
    bits = selection.merge(old.bits, new.bits)
    return Shadow(bits, selection.merge(old.origin, new.origin)) if bits.any() else None


def merged_at(old: Shadow | None, new: Shadow | None, lanes: Lanes) -> Shadow | None:
    """The shadow `old` with that of `new` in some lanes, by number; both are of all lanes of a batch."""
    some = old or new
    if some is None:
        return None
    merged = Shadow(np.zeros_like(some.bits), np.zeros_like(some.origin)) if old is None else old.copy()
    merged.bits[lanes] = 0 if new is None else new.bits[lanes]
    if new is not None:
        merged.origin[lanes] = new.origin[lanes]
    return merged


class TensorDefinedness(Protocol):
    """Follows undefined bits through tensor memory, whose cells have numbers in the batch."""

    def allocates(self, cta: int, first: int, columns: int) -> None:
        """A CTA of the batch has got columns from `first` on."""

    def loads(self, index: Lanes) -> None:
        """Warps load the cells with these numbers."""

    def stores(self, index: Lanes) -> None:
        """Warps have stored these cells; they count as defined until `flow` says otherwise."""


class Definedness(Protocol):
    """Follows undefined bits through registers and memory. The machine tells it of accesses to memory that
    pass it by, and of lanes that read what is undefined anywhere.
    """

    moved: bool  # whether the instruction has met undefined bits outside of registers

    @property
    def tensor(self) -> TensorDefinedness:
        """Tensor memory."""

    def starts(self, ctas: tuple[int, ...], operation: Operation) -> None:
        """An operation on the tensor memory and the shared memory of CTAs of the batch has started."""

    def unwritten(self, dtype: np.dtype[Any]) -> Shadow:
        """The shadow of a register that no lane of the batch has written."""

    def judge(self, step: Any, shadows: Mapping[str, Shadow | None], guard: Lanes | None) -> None:
        """Report the undefined registers that decide what an instruction does, before it executes. `shadows`
        has the shadows of the registers that it reads, by the registers' names.
        """

    def flow(
        self,
        step: Any,
        shadows: Mapping[str, Shadow | None],
        values: Mapping[str, Any],
        guard: Lanes | None,
        before: tuple[Shadow | None, ...],
    ) -> tuple[Shadow | None, ...]:
        """The shadows of the registers that an instruction has written; `values` are its operands,
        `guard` says which lanes have executed it (None: all), `before` are the old shadows of these
        registers for the others.
        """

    def preserved(self, before: Shadow | None, guard: Lanes) -> Shadow | None:
        """The shadow of a register after a defined value was written to it in the lanes of `guard`."""

    def reads_carry(self) -> None:
        """An instruction reads the carry flag."""

    def writes_carry(self) -> None:
        """An instruction has written the carry flag, which is defined until `flow` says otherwise."""

    # ------------------------------------------------------------------------------------- memory

    def loads(self, plan: Plan, offset: int, total: int) -> None:
        """An instruction reads `total` bytes."""

    def stores(self, plan: Plan, offset: int, total: int) -> None:
        """An instruction has written `total` bytes; they count as defined until `flow` says otherwise."""

    def reads_matrices(self, words: Lanes, rows: Lanes, bases: Lanes, nbytes: int) -> None:
        """Warps read `nbytes` of shared memory at each of these positions."""

    def absent(self) -> None:
        """Lanes read the register of a lane that does not take part."""

    def copies(self, plan: Plan, offset: int, nbytes: int, src: Address, src_nbytes: Lanes | None) -> None:
        """A `cp.async` to shared memory, for which the plan is, has started."""

    def receives(self, position: int, nbytes: int, source: int | None = None) -> None:
        """A copy to `position` in shared memory has started, from address `source` in global memory or, if
        that is None, of values that are defined.
        """

    def sends(self, target: int, source: int, nbytes: int, *, reduces: bool) -> None:
        """A copy between two positions in shared memory has started."""

    def writes_back(self, target: int, source: int, nbytes: int, *, reduces: bool) -> None:
        """A copy from a position in shared memory to an address in global memory has started."""

    def receives_box(self, image: Lanes, of: TensorMap, part: Any) -> None:
        """A load of a box has started, to these units of 16 bytes of shared memory."""

    def writes_box_back(self, image: Lanes, of: TensorMap, part: Any, *, reduces: bool) -> None:
        """A store of a box has started, from these units of 16 bytes of shared memory."""

    def leaves(self, address: int, lane: int, nbytes: int) -> None:
        """A lane passes bytes at a generic address to the outside, for example to print them."""

    # ------------------------------------------------------------------------------------ calls

    def passes(self, number: int, function: str, ids: Lanes, bits: Shadow) -> None:
        """Lanes call a function outside of the program with an undefined argument, `[lanes, bytes]`."""

    def enter(self, number: int, lanes: Lanes, start: Lanes) -> None:
        """Lanes have called routine `number`; its frame begins at `start` of each lane's local memory."""

    def frame_bits(self, lanes: Lanes, start: Lanes, nbytes: int) -> Shadow | None:
        """The undefined bits of the bytes from `start` on, `[lanes, bytes]` uint8."""

    def set_frame_bits(self, lanes: Lanes, start: Lanes, nbytes: int, bits: Shadow | None) -> None:
        """A call has copied bytes to `start` and after, with these undefined bits."""

    def grown(self, old: Space, new: Space) -> None:
        """The local memory of each lane has grown."""
