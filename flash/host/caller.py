"""Who is called, as messages of its problems say: a kernel, which has a config, or a function,
which takes types and sizes from its arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from flash.host.arrays import ArrayView, unreadable, view
from ptxgen.errors import LaunchError, shown


class Caller(NamedTuple):
    """The name of what was called, and whether its user made a config."""

    name: str
    has_config: bool = True

    def said(self, otherwise: str) -> str:
        """Where what is wanted comes from: the config, or without one from `otherwise`."""
        return "as the config says" if self.has_config else otherwise

    def or_use(self, field: str) -> str:
        """That another config is a cure, too: if there is one."""
        return f", or use AttentionConfig({field}, ...)" if self.has_config else ""


_LOST: Final = (
    "{0} requires gradients, which are not computed: they would be lost without a word; call "
    "inside torch.no_grad(), or pass {0}.detach()"
)
LAUNCH: Final = Caller("launch")


def raise_problems(problems: list[str], who: str = LAUNCH.name) -> None:
    """Raise `LaunchError` with all problems, if there are any, that `who` was called with."""
    if len(problems) == 1:
        raise LaunchError(f"{who}: {problems[0]}")
    if problems:
        raise LaunchError(
            f"{who}: {len(problems)} problems" + "".join(f"\n  {p}" for p in problems)
        )


def views_of(arrays: Mapping[str, object], who: str = LAUNCH.name) -> dict[str, ArrayView]:
    """Views of the arrays that `who` was called with, by name. Raises `LaunchError` with all that
    are no arrays, or whose gradients would be lost.
    """
    found = readable_views(arrays, who)
    require_no_gradients(found, who)
    return found


def readable_views(arrays: Mapping[str, object], who: str) -> dict[str, ArrayView]:
    """Views of arrays by name, without the check of gradients: for a look at one array before all
    are checked together. Raises `LaunchError` with all that are no arrays.
    """
    try:
        return {name: view(array, name) for name, array in arrays.items()}
    except LaunchError:
        raise_problems(unreadable(dict(arrays), None), who)
        raise  # not reached: what has no view once has none again


def require_no_gradients(views: Mapping[str, ArrayView], who: str) -> None:
    """Raise `LaunchError` for inputs whose gradients torch is to track: there is no backward pass,
    and results would be constants to torch. Of `out` the checks of results say so.
    """
    # A tensor is read-only if, and only if, it requires gradients.
    tracked = [n for n, a in views.items() if a.read_only and a.kind == "torch" and n != "out"]
    if not tracked:
        return
    torch: Any = sys.modules["torch"]
    if torch.is_grad_enabled():
        raise_problems([_LOST.format(name) for name in tracked], who)


def flag(who: str, name: str, value: object) -> bool:
    """`value` if it is True or False. Raises `LaunchError` for anything else."""
    if not isinstance(value, bool | np.bool):
        raise LaunchError(f"{who}: {name} must be True or False, got {shown(value)}")
    return bool(value)
