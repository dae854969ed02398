"""The accesses that race detectors check, and the conflicts that they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

Values = Callable[[], "tuple[Lanes, Lanes]"]


@dataclass(frozen=True, slots=True)
class Access:
    """The units that lanes access: each lane's number in the batch, its first unit, and the number
    of units; all in units `low` to `high` - 1 of a CTA. If one lane accesses units one after another, `span`
    has them all.
    """

    ids: Lanes
    first: Lanes
    width: int
    low: int
    high: int
    span: slice | None = None

    def units(self) -> Lanes:
        """The units of each lane, `[lanes, width]`."""
        return self.first[:, None] + np.arange(self.width)


def rows_of(shadow: Lanes, access: Access) -> Lanes:
    """The part of a shadow for the units of each lane, `[lanes, width]`: a view if the access has a span."""
    if access.span is not None:
        return shadow[access.span].reshape(-1, access.width)
    rows: Lanes = rows_from(shadow, access.width)[access.first]
    return rows


def rows_from(shadow: Lanes, width: int) -> Lanes:
    """The rows of `width` units from each unit of a shadow on, as a view."""
    shape, step = (len(shadow) - width + 1, width), shadow.strides[0]
    return np.ndarray(shape, shadow.dtype, shadow, strides=(step, step))


@dataclass(frozen=True, slots=True)
class Conflict:
    """The first problem of an access: the `position` of the lane in the access, the unit, and the
    other instruction and thread of the batch.

    `other_thread` is -1 if it may be one of several, `other` is -1 if there is no other instruction; `twin`
    is the stamp of the asynchronous operation, if the other is one. `others_arrived` says that the lane
    comes after arrivals at mbarriers by the other thread's warp, but by other lanes only.
    """

    kind: str
    position: int
    unit: int
    other: int
    other_thread: int
    what: str
    twin: int = 0
    others_arrived: bool = False


def differing(access: Access, twice: Lanes, values: Values | None) -> Lanes:
    """Which of the units that several lanes write get different values from them."""
    if values is None:
        return twice
    new_values, _ = values()
    units = access.units()
    met = np.isin(units, units[twice])
    order = np.argsort(units[met], kind="stable")
    sorted_units, sorted_values = units[met][order], new_values[met][order]
    differs = (sorted_units[1:] == sorted_units[:-1]) & (sorted_values[1:] != sorted_values[:-1])
    wrong: Lanes = twice & np.isin(units, sorted_units[1:][differs])
    return wrong
