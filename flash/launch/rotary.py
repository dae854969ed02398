"""The rotation of queries that a call without a config asks for by its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from flash.host.caller import flag, raise_problems, readable_views
from flash.launch.arguments import together_problems
from flash.launch.signature import RotaryArguments, RotaryArrays
from flash.problem.features import ANGLES
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import LaunchError

_INTERLEAVED: Final = "rotary_interleaved"
_BOTH: Final = " and ".join(ANGLES)
_MATRIX: Final = 2  # dimensions of a table
ANGLE_AXES: Final = ("positions", "rotary_dim / 2")
_NO_ANGLES: Final[RotaryArrays] = {}


class RotarySetting(NamedTuple):
    """The settings of a config about the rotation of queries."""

    rotary_dim: int = 0
    interleaved: bool = False


NO_ROTATION: Final = RotarySetting()


def rotary_of_call(
    caller: str, arguments: Any, q: object, page_size: int | None
) -> tuple[RotarySetting, RotaryArrays]:
    """The rotation that a call of `caller` asks for, and the tables that its launch takes; both are empty
    without tables. The arguments about rotation are taken out of the dict `arguments`. `page_size` is None if
    keys are not in pages.

    Raises `LaunchError` for a table alone, for tables without pages, and for shapes that are none of tables.
    """
    rotary = {name: arguments.pop(name, None) for name in RotaryArguments.__annotations__}
    pairs = rotary.pop(_INTERLEAVED)
    interleaved = pairs is not None and flag(caller, _INTERLEAVED, pairs)
    tables = {name: array for name, array in rotary.items() if array is not None}
    if not tables:
        return NO_ROTATION, _NO_ANGLES
    raise_problems(together_problems(tables, ANGLES), caller)
    if page_size is None:
        raise LaunchError(
            f"{caller}: {_BOTH} are given without a block_table, but only queries of keys in pages are "
            "rotated, which hold rotated keys; rotate q and k before the call"
        )
    views = readable_views({"q": q, **tables}, caller)
    head_dim, *_ = *views.pop("q").shape[-1:], 0
    cos, sin = (list(views[name].shape) for name in ANGLES)
    if len(cos) != _MATRIX or cos != sin or not cos[0] or 2 * cos[1] > head_dim:
        raise LaunchError(
            f"{caller}: {_BOTH} must be [positions, rotary_dim / 2] of one shape, with at least one position "
            f"and rotary_dim up to head_dim={head_dim}, got {cos} and {sin}"
        )
    if not cos[1]:
        return NO_ROTATION, _NO_ANGLES
    return RotarySetting(2 * cos[1], interleaved), cast(RotaryArrays, tables)


def angle_problems(views: Mapping[str, ArrayView], head_dim: int, needed: int) -> Iterator[str]:
    """Say that rotary tables, whose shapes are equal, have too many columns for `head_dim`, or fewer than the
    `needed` rows.
    """
    positions, pairs = views[ANGLES[0]].shape
    if pairs > head_dim // 2:
        yield (
            f"{_BOTH} must be [positions, rotary_dim / 2], with rotary_dim up to head_dim={head_dim}, got "
            f"{[positions, pairs]}"
        )
    elif positions < needed:
        yield f"{_BOTH} must have a row for each of {needed} positions, got {positions}"
