"""Work that makes many objects without reference cycles, done without Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Not empty once the process was seen to have frozen objects: to count them takes a walk over all of them.
_FROZEN: Final[list[bool]] = []


@contextmanager
def uncollected() -> Iterator[None]:
    """A context without the garbage collector, which would traverse the growing objects again and again,
    for a third of the time. The collector is as before afterwards, and does not traverse the new objects at
    once, which would take a tenth: they count as old, unless the process has frozen objects of its own.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            _promote()
            gc.enable()


def _promote() -> None:
    """Count all objects as old, in constant time, unless the process has frozen some."""
    if not _FROZEN:
        _FROZEN.extend([True] * bool(gc.get_freeze_count()))
    if not _FROZEN:
        gc.freeze()  # all objects are permanent,
        gc.unfreeze()  # and all permanent objects are of the oldest generation
