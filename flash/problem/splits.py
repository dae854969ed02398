"""The number of splits of the keys that a caller asks for."""

from __future__ import annotations

from flash.problem.features import MAX_SPLITS
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, LaunchError, shown


def splits_of(
    caller: str, given: object, error: type[ConfigError] | type[LaunchError] = LaunchError
) -> int | None:
    """The number of splits that the argument `splits` of `caller` gives; None for "auto". Raises `error` for
    anything else.
    """
    if isinstance(given, str) and given == "auto":
        return None
    found = integer(given, 1, MAX_SPLITS)
    if found is None:
        raise error(
            f"{caller}: splits must be 'auto' or an integer from 1 to {MAX_SPLITS}, got {shown(given)}"
        )
    return found
