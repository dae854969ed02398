"""The undefined bits of tensor memory in one batch of CTAs: all of an allocation's until something writes it.

Products carry undefined bits on: a row of A makes a row of D undefined, a column of B a column, and so do the
scale factors of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ptxgen.isa.tensor_agent import Memories
from ptxgen.isa.tensor_memory import COLUMNS, GROUP, GROUPS, LANES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptxgen.interpreter.sanitizers.undefined_memory import UndefinedMemory
    from ptxgen.isa.tensor_agent import Columns, Operation

    Lanes = np.ndarray[Any, np.dtype[Any]]

_CHUNK: Final = 16  # bytes


class OtherMemory(Protocol):
    """The undefined bits of the other memory of the batch: what tensor memory needs of it."""

    moved: bool  # whether the instruction has met undefined bits outside of registers

    def unwritten_shared(self, position: int) -> int:
        """The origin of a byte at a position in shared memory, which nothing has written."""

    def unwritten_tensor(self, address: int) -> int:
        """The origin of a cell of tensor memory that nothing has written."""


class UndefinedTensor:
    """The undefined bits of the cells of all CTAs, which the batch numbers in order of CTAs, lanes and
    columns, and the numbers of their origins, 0 for cells that nothing has written. `other` follows the
    other memory.
    """

    def __init__(self, other: OtherMemory, ctas: int, stride: int) -> None:
        self._other = other
        self._stride = stride
        self.bits: Lanes = np.full((ctas, LANES, COLUMNS), 0xFFFFFFFF, np.uint32)
        self.origins: Lanes = np.zeros((ctas, LANES, COLUMNS), np.int32)

    def allocates(self, cta: int, first: int, columns: int) -> None:
        """Record that a CTA has allocated columns, which are undefined."""
        for array, value in ((self.bits, 0xFFFFFFFF), (self.origins, 0)):
            array[cta, :, first : first + columns] = value

    def loads(self, index: Lanes) -> None:
        """Record whether warps load cells with undefined bits."""
        if not self._other.moved:
            self._other.moved = bool(self.bits.ravel()[index].any())

    def stores(self, index: Lanes) -> None:
        """Record that warps have stored cells; they count as defined until `store` records the
        undefined bits of the registers.
        """
        self.bits.ravel()[index] = 0

    def load(self, index: Lanes) -> tuple[Lanes, Lanes]:
        """The undefined bits of cells, `[registers, lanes]`, and for each lane the origin of one of them."""
        bits = self.bits.ravel()[index]
        origins = np.where(bits != 0, self.origins.ravel()[index], 0).max(axis=0)
        undefined = (bits != 0).any(axis=0)
        unwritten = undefined & (origins == 0)
        if unwritten.any():
            lane = int(unwritten.argmax())
            cell = int(index[int((bits[:, lane] != 0).argmax()), lane])
            origins = np.where(unwritten, self._unwritten(cell), origins)
        return bits, np.where(undefined, origins, 0).astype(np.int32)

    def store(self, index: Lanes, bits: Lanes, origins: Lanes) -> None:
        """Record the undefined bits of stored registers, `[registers, lanes]`, and each lane's origin."""
        self.bits.ravel()[index] = bits
        self.origins.ravel()[index] = np.where(bits != 0, origins, 0)

    def starts(self, ctas: tuple[int, ...], operation: Operation, shared: UndefinedMemory) -> None:
        """Carry undefined bits through an operation on the memories of some CTAs, as it starts."""
        origin = self._undefined_operand(ctas, operation, shared)
        if not origin:
            for bits in self._written(self.bits, ctas, operation):
                bits[...] = 0
            return
        before = self.bits.copy()
        operation.spread(tuple(self._memories(cta, shared) for cta in ctas))
        fresh = (self.bits != 0) & ((before == 0) | (self.origins == 0))
        self.origins[fresh] = origin

    # ------------------------------------------------------------------------------------- helpers

    def _written(self, array: Lanes, ctas: tuple[int, ...], operation: Operation) -> Iterator[Lanes]:
        """The cells that an operation writes, as views of an array of all cells."""
        for columns in operation.columns:
            if columns.writes:
                for cta in ctas:
                    yield from self._views(array, cta, columns)

    def _views(self, array: Lanes, cta: int, of: Columns) -> Iterator[Lanes]:
        groups = array[cta].reshape(GROUPS, GROUP, COLUMNS)
        columns = slice(of.first, of.first + of.number)
        if len(of.groups) == GROUPS:
            yield groups[:, :, columns]
            return
        for group in of.groups:
            yield groups[group, :, columns]

    def _memories(self, cta: int, shared: UndefinedMemory) -> Memories:
        first = cta * self._stride
        return Memories(self.bits[cta], shared.bits[first : first + self._stride])

    def _undefined_operand(self, ctas: tuple[int, ...], operation: Operation, shared: UndefinedMemory) -> int:
        """The origin of undefined bits that an operation reads; 0 if there are none."""
        for cta in ctas:
            for of in operation.columns:
                if of.reads and any(bits.any() for bits in self._views(self.bits, cta, of)):
                    lanes = (np.array(of.groups)[:, None] * GROUP + np.arange(GROUP)).reshape(-1)
                    row, number = np.argwhere(self.bits[cta, lanes, of.first : of.first + of.number])[0]
                    lane, column = int(lanes[row]), of.first + int(number)
                    known = int(self.origins[cta, lane, column])
                    return known or self._unwritten((cta * LANES + lane) * COLUMNS + column)
            for box in operation.boxes if shared.some else ():
                chunks = box.chunks + cta * self._stride // _CHUNK
                bits = shared.bits[: len(shared.bits) // _CHUNK * _CHUNK].reshape(-1, _CHUNK)[chunks]
                if bits.any():
                    row, byte = np.argwhere(bits)[0]
                    position = int(chunks[row]) * _CHUNK + int(byte)
                    return int(shared.origins[position // 4]) or self._other.unwritten_shared(position)
        return 0

    def _unwritten(self, cell: int) -> int:
        lane, column = divmod(cell % (LANES * COLUMNS), COLUMNS)
        return self._other.unwritten_tensor(lane << 16 | column)
