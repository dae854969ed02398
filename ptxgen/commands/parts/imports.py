"""Imports of a command, which the garbage collector leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Objects that a command makes before the collector looks among them for cycles: more than a kernel has, whose
# objects are freed without it.
_YOUNG: Final = 100_000


@contextmanager
def uncollected() -> Iterator[None]:
    """A block of imports without garbage collection. Their objects live as long as the process and are hidden
    from the collector, which would take a tenth of the time of emitting a kernel for them, and a third at the
    end of the process; later it begins after more objects, for to traverse those of a kernel takes a
    fifth of the time of emitting it. Where the collector is off already, the block changes nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        _, *older = gc.get_threshold()
        gc.set_threshold(_YOUNG, *older)
        gc.enable()
