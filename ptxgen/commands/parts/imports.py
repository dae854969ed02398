"""Imports of a command, which the garbage collector leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A block of imports without garbage collection. Their objects live as long as the process and are hidden
    from the collector, which would take a tenth of the time of emitting a kernel for them. Where the
    collector is off already, the block changes nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
