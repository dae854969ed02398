"""Device memory of a host program: allocations in an arena, and copies from and to them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter import DeviceArena
from ptxgen.interpreter.machine.arena import FIRST_ADDRESS, RED_ZONE, Buffer
from ptxgen.interpreter.machine.heap import HeapBytes

if TYPE_CHECKING:
    from ptxgen.interpreter.reports import Report

CAPACITY: Final = 16 << 30  # bytes that may be allocated
_FREED_BY: Final = "the program"
# Kinds of memory, as cudaMemoryType of driver_types.h numbers them.
NO_MEMORY, PINNED, ON_DEVICE, MANAGED = 0, 1, 2, 3
_KINDS: Final = {PINNED: "pinned memory", ON_DEVICE: "device memory", MANAGED: "managed memory"}


class DeviceMemory:
    """Memory by device addresses. `scratch` is a folder for files of memory that is shared with the
    program. Addresses are not reused, so that accesses to freed memory are reported.
    """

    def __init__(self, scratch: Path) -> None:
        self.arena = DeviceArena()
        self.used = 0
        self._scratch = scratch
        self._count = 0
        self._kinds: dict[int, int] = {}  # by the address of an allocation
        self._end = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> int | None:
        """The address of new memory, which counts as not written; None if there is not enough."""
        if nbytes > CAPACITY - self.used:
            return None
        data = np.zeros(max(nbytes, 1), np.uint8)
        address = self._mapped(data, ON_DEVICE, None)
        self.arena.heap[address] = HeapBytes(len(data))
        return address

    def map(self, nbytes: int, kind: int) -> tuple[int, Path] | None:
        """The address of new memory that is a file, at the start of a page; None if there is not enough."""
        if nbytes > CAPACITY - self.used:
            return None
        path = self._scratch / f"memory-{self._count}"
        data = np.memmap(path, np.uint8, "w+", shape=(nbytes,))
        page = mmap.PAGESIZE
        address = self._mapped(data, kind, -(-(self._end + RED_ZONE) // page) * page)
        self.arena.heap[address] = HeapBytes(nbytes, defined=True)  # the program writes it unseen
        return address, path

    def _mapped(self, data: Any, kind: int, at: int | None) -> int:
        self._count += 1
        address = self.arena.place(data, at=at, name=f"allocation {self._count} ({_KINDS[kind]})")
        self._kinds[address] = kind
        self._end = max(self._end, address + len(data))
        self.used += len(data)
        return address

    def free(self, address: int) -> bool:
        """Free memory; false if the address is not the beginning of an allocation."""
        held = self.arena.heap.get(address)
        if held is None:
            return False
        self.used -= len(held.defined)
        self._kinds.pop(address, None)
        return not self.arena.free(address, _FREED_BY)

    def kind_at(self, address: int) -> tuple[int, int, int]:
        """The kind of the memory at an address, or 0; the first address of its allocation, and its bytes."""
        buffer: Buffer | None = self.arena.find(address, address + 1)
        if buffer is None:
            return NO_MEMORY, 0, 0
        return (
            self._kinds.get(buffer.base, ON_DEVICE),
            buffer.base,
            buffer.nbytes,
        )  # a module's variables, too

    def bytes_at(self, address: int, nbytes: int, writes: bool = False) -> Any:
        """The bytes at an address, uint8 [nbytes], not copied; None if they are not in an allocation. With
        `writes`, they count as written.
        """
        buffer: Buffer | None = self.arena.find(address, address + nbytes)
        if buffer is None:
            return None
        start = address - buffer.base
        memory = self.arena.heap_bytes(address, nbytes) if writes else None
        if memory is not None:
            memory[0].define(start, nbytes)
        return buffer.window.data[start : start + nbytes]

    def copy(self, to: int, source: int, nbytes: int) -> bool:
        """Copy between device addresses; false if either is not in an allocation."""
        data, state = self.bytes_at(source, nbytes), self._state(source, nbytes)
        target = self.bytes_at(to, nbytes, writes=True)
        if data is None or target is None:
            return False
        target[:] = data.copy()
        into = self.arena.heap_bytes(to, nbytes)
        if state is not None and into is not None:
            held, start = into
            held.paste(start, state)
        return True

    def reports(self, address: int, nbytes: int) -> list[Report]:
        """The sanitizers' reports on a read of these bytes by the host: of undefined values that kernels
        stored there.
        """
        memory = self.arena.heap_bytes(address, nbytes)
        return [] if memory is None else memory[0].reports(memory[1], nbytes)

    def _state(self, address: int, nbytes: int) -> HeapBytes | None:
        """A mask of the defined bytes; None if they are in no allocation, where all are defined."""
        memory = self.arena.heap_bytes(address, nbytes)
        return None if memory is None else memory[0].copied(memory[1], nbytes)
