"""The called kernel or function, for the messages of its problems. A kernel has a config; a
function takes types and sizes from its arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from flash.problem.outputs import OUTPUTS, Output
from ptxgen.arrays.views import ArrayView, unreadable, view
from ptxgen.errors import LaunchError, shown


class Caller(NamedTuple):
    """The name of the called function, and whether its user made a config."""

    name: str
    has_config: bool = True

    def source_words(self, otherwise: str) -> str:
        """The words for the source of a required value: the config, or without one `otherwise`."""
        return "as the config says" if self.has_config else otherwise

    def or_use(self, field: str) -> str:
        """The words that name another config as a cure; empty without a config."""
        return f", or use AttentionConfig({field}, ...)" if self.has_config else ""


_LOST: Final = (
    "{0} requires gradients, which are not computed: they would be lost without a word; {1}call "
    "inside torch.no_grad(), or pass {0}.detach()"
)
_SECOND: Final = (
    "{0} requires gradients, but gradients of gradients are not computed: they would be lost without a "
    "word; {1}call inside torch.no_grad(), or pass {0}.detach()"
)
_OF_ADAPTER: Final = "use flash.adapters.torch.{0}, which computes them, "
_IN_ADAPTER: Final = ("attention", "attention_varlen")  # functions with gradients in the adapter of torch
LAUNCH: Final = Caller("launch")


def raise_problems(problems: Iterable[str], caller: str = LAUNCH.name) -> None:
    """Raise `LaunchError` with all problems of a call of `caller`, if there are any."""
    messages = list(problems)
    if len(messages) == 1:
        raise LaunchError(f"{caller}: {messages[0]}")
    if messages:
        raise LaunchError(f"{caller}: {len(messages)} problems" + "".join(f"\n  {p}" for p in messages))


def views_of(arrays: Mapping[str, object], caller: str = LAUNCH.name) -> dict[str, ArrayView]:
    """Views of the arrays that `caller` was called with, by name. Raises `LaunchError` that names all
    arguments that are no arrays, or whose gradients would be lost.
    """
    views = readable_views(arrays, caller)
    require_no_gradients(views, caller)
    return views


def readable_views(
    arrays: Mapping[str, object], caller: str, stream: int | None = None
) -> dict[str, ArrayView]:
    """Views of arrays by name, without the check of gradients, so that one array can be read before
    all arrays are checked together. `stream` is as for `view`. Raises `LaunchError` that names all
    that are no arrays.
    """
    try:
        return {name: view(array, name, stream) for name, array in arrays.items()}
    except LaunchError:
        raise_problems(unreadable(dict(arrays), stream), caller)
        raise  # not reached: `unreadable` finds the same array


def require_no_gradients(
    views: Mapping[str, ArrayView],
    caller: str,
    results: Collection[str] = ("out",),
    *,
    is_second: bool = False,
) -> None:
    """Raise `LaunchError` for inputs whose gradients torch tracks: torch would take results as
    constants. `results` are left to the checks of results. `is_second`: the call itself computes
    gradients.
    """
    # A tensor is read-only if, and only if, it requires gradients.
    tracked = [n for n, a in views.items() if a.read_only and a.kind == "torch" and n not in results]
    if not tracked:
        return
    torch: Any = sys.modules["torch"]
    if torch.is_grad_enabled():
        cure = _OF_ADAPTER.format(caller) if caller in _IN_ADAPTER else ""
        message = _SECOND if is_second else _LOST
        raise_problems([message.format(name, cure) for name in tracked], caller)


def outputs_of(
    caller: str, options: Mapping[str, object], default: Collection[Output] = ()
) -> tuple[Output, ...]:
    """The outputs that `caller` returns in addition to O: those whose options are True, or where an option is
    None those of `default`. Raises `LaunchError` for an option that is none of these.
    """
    outputs = []
    for output in OUTPUTS:
        value = options.get(output.option)
        if output in default if value is None else flag(caller, output.option, value):
            outputs.append(output)
    return tuple(outputs)


def flag(caller: str, name: str, value: object) -> bool:
    """`value` if it is True or False. Raises `LaunchError` for anything else."""
    if not isinstance(value, bool | np.bool):
        raise LaunchError(f"{caller}: {name} must be True or False, got {shown(value)}")
    return bool(value)
