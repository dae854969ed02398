"""Tensor maps that kernels change: stores into the fields of an encoded map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ptxgen.errors import ConfigError, TrapError
from ptxgen.interpreter.machine.access import MemoryAccess, as_address
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.tensormap_fields import holds_map, part_of
from ptxgen.tensormap import ALIGN, MAGIC, NBYTES
from ptxgen.types import b32, b64

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.memory import Address

    Lanes = np.ndarray[Any, np.dtype[Any]]

_UNIT: Final = 16  # bytes that are copied at a time
_WORD: Final = 4  # bytes of a unit of the sanitizers


class TensormapMachine(MemoryAccess):
    """The operations of instructions on tensor maps in memory."""

    def tensormap_replace(
        self, space: str, address: Lanes | Address, field: str, dimension: int, value: Lanes | int
    ) -> None:
        """Set a field of the map at each address to a value; `dimension` selects the dimension if the
        field has a value for each. 128 bytes of zeros are a map whose fields are all to be set, as
        compilers make maps in the kernel.
        """
        address, space = as_address(address), space.partition("::")[0]
        (head,) = self.load(space, address, b64, 1)
        blank = self.active() & (head == 0)
        if blank.any():
            blank &= self.with_mask(blank, lambda: self._zeros(space, address))
            begin = np.full(self.selection.count, MAGIC, np.uint64)
            self.with_mask(blank, lambda: self.store(space, address, b64, (begin,)))
        wrong = self.active() & ~holds_map(head) & ~blank
        unaligned = self.active() & ((address.signed() + address.offset) % ALIGN != 0)
        if unaligned.any():
            self._stop_at(unaligned, f"a tensor map lies at a multiple of {ALIGN} bytes")
        if wrong.any():
            self._stop_at(wrong, "these bytes are no tensor map; copy one there first")
        values = np.broadcast_to(np.asarray(value), self.selection.count)
        active = values if self.mask is None else values[self.mask]
        try:
            offset, nbytes, stored = part_of(field, dimension, active)
        except ConfigError as error:
            self._stop_at(self.active(), str(error))
        if not len(stored):
            return
        word = address.base.at(address.offset + offset - offset % _WORD)
        data = np.zeros(self.selection.count, np.uint64)
        data[self.active()] = stored
        if nbytes > _WORD:
            self.store(space, word, b64, (data,))
            return
        (old,) = self.load(space, word, b32, 1)
        shift, bits = np.uint64(8 * (offset % _WORD)), np.uint64((1 << 8 * nbytes) - 1)
        new = (old.astype(np.uint64) & ~(bits << shift)) | data << shift
        self.store(space, word, b32, (new.astype(np.uint32),))

    def _zeros(self, space: str, address: Address) -> Lanes:
        """Whether a lane's address is that of 128 bytes of zeros."""
        zeros: Lanes = np.ones(self.selection.count, np.bool_)
        for at in range(0, NBYTES, _UNIT):
            low, high = self.load(space, address.base.at(address.offset + at), b64, 2)
            zeros &= (low == 0) & (high == 0)
        return zeros

    def tensormap_copy(self, dst: Lanes | Address, src: Lanes | Address) -> None:
        """Copy the map at shared `src` to global `dst`, once for each warp, by its first active lane."""
        to, of = as_address(dst), as_address(src)
        by_warp = self.active().reshape(-1, WARP)
        first = by_warp & (np.cumsum(by_warp, axis=1) == 1)

        def copied() -> None:
            for at in range(0, NBYTES, _UNIT):
                data = self.load("shared", of.base.at(of.offset + at), b64, 2)
                self.store("global", to.base.at(to.offset + at), b64, data)

        self.with_mask(first.reshape(-1), copied)

    def _stop_at(self, wrong: Lanes, why: str) -> NoReturn:
        lane = int(self.selection.ids[int(np.argmax(wrong))])
        raise TrapError(f"{self._where(lane)}: {why}")
