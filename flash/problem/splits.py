"""Checks the argument `splits`: into how many splits a caller asks to divide the keys."""

from __future__ import annotations

from flash.problem.features import MAX_SPLITS
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, LaunchError, shown


def splits_of(
    caller: str, value: object, error: type[ConfigError] | type[LaunchError] = LaunchError
) -> int | None:
    """The number of splits that the argument `splits` of `caller` gives; None for "auto". Raises `error` for
    anything else.
    """
    if isinstance(value, str) and value == "auto":
        return None
    number = integer(value, 1, MAX_SPLITS)
    if number is None:
        raise error(
            f"{caller}: splits must be 'auto' or an integer from 1 to {MAX_SPLITS}, got {shown(value)}"
        )
    return number
