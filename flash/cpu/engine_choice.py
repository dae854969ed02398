"""The choice of the engine that computes for a backend without kernels."""

from __future__ import annotations

from flash.cpu.engine import NUMPY, Engine
from ptxgen.runtime.settings import COMPILED


def engine_of(backend: str) -> Engine:
    """The engine of the backend "cpu" or "compiled"; `check_backend` has checked that Numba is installed."""
    if backend != COMPILED:
        return NUMPY
    from flash.cpu.compiled import ENGINE  # Numba is an extra, and takes long to import

    return ENGINE
