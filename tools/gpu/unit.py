"""A unit of a part: the least that is measured, journaled and repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.commands.shipped_kernels import Shipped


class MissingError(Exception):
    """The machine lacks what a unit needs; the message says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """`work` returns the unit's entry: rows of `calls` or `counters`, `said`, `texts`, and a `verdict` if it
    is not "passed". A unit that other units are compared with is done `always`, in every process. `kernel` is
    the kernel that it launches, if that is known before.
    """

    name: str
    work: Callable[[], Mapping[str, Any]]
    always: bool = False
    kernel: Shipped | None = None
