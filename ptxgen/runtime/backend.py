"""Checks the backend names that a user passes."""

from __future__ import annotations

import functools

from ptxgen.errors import BackendError, ConfigError, did_you_mean, shown
from ptxgen.runtime.settings import AUTO, BACKENDS, COMPILED


def check_backend(name: object, caller: str = "") -> str:
    """`name` if it is `auto` or one of `BACKENDS`; raises `ConfigError` otherwise, and `BackendError` for
    `compiled` without Numba.

    The message begins with `caller`, the name of the function that was called, if not empty.
    """
    known = (AUTO, *BACKENDS)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"{_prefix(caller)}backend must be one of {', '.join(known)}, got {shown(name)}{hint}"
        )
    require_compiler(name, caller)
    return name


def require_compiler(name: str, caller: str = "") -> None:
    """Raise `BackendError` if the backend `name` is `compiled`, and Numba cannot compile."""
    if name == COMPILED and (problem := _why_not_compiled()):
        raise BackendError(f"{_prefix(caller)}backend {name!r} needs {problem}, or use backend='cpu'")


@functools.cache
def _why_not_compiled() -> str:
    """What the backend `compiled` lacks, and how to get it; the empty string if it lacks nothing."""
    try:
        import numba  # an extra, which takes long to import
    except ImportError as error:  # also of a Numba that takes no numpy of this version
        return f"Numba, which cannot be imported ({error}); pip install 'ptxgen[compiled]'"
    if numba.config.DISABLE_JIT:
        return "Numba's compiler, which NUMBA_DISABLE_JIT turns off; unset it"
    return ""


def _prefix(caller: str) -> str:
    return f"{caller}: " if caller else ""
