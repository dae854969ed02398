"""Checks the backend names that a user passes."""

from __future__ import annotations

from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.runtime.settings import AUTO, BACKENDS


def check_backend(name: object, who: str = "") -> str:
    """`name` if it is `auto` or one of `BACKENDS`; raises `ConfigError` otherwise.

    The message begins with `who`, the name of the function that was called, if not empty.
    """
    known = (AUTO, *BACKENDS)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(name, known)
        prefix = f"{who}: " if who else ""
        raise ConfigError(f"{prefix}backend must be one of {', '.join(known)}, got {shown(name)}{hint}")
    return name
