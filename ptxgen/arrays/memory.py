"""GPU memory that is freed with its owner."""

from __future__ import annotations

from typing import Protocol


class Allocator(Protocol):
    """The source of GPU memory: the `cuda` backend."""

    def allocate(self, nbytes: int, *, ordinal: int) -> int:
        """The address of new memory on device `ordinal`."""

    def free(self, address: int, *, ordinal: int) -> None:
        """Free the memory at `address`."""

    def copy_to_host(self, host: int, address: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Copy bytes to the host address `host`, in the order of a stream."""

    def synchronize(self, stream: int = 0, *, ordinal: int) -> None:
        """Wait until all work on a stream of device `ordinal` is done."""


class Owned:
    """At most one allocation on a GPU, until it is freed."""

    def __init__(self, memory: Allocator, ordinal: int) -> None:
        self._memory = memory
        self._ordinal = ordinal
        self._address = 0

    def allocate(self, nbytes: int) -> int:
        """Allocate memory and return its address."""
        self._address = self._memory.allocate(nbytes, ordinal=self._ordinal)
        return self._address

    def free(self) -> None:
        """Free the allocation, if there is one."""
        if self._address:
            self._memory.free(self._address, ordinal=self._ordinal)
