"""The values of a store and the values that it overwrites, as a race detector compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.memory import Plan
    from ptxgen.interpreter.sanitizers.conflicts import Access

    Lanes = np.ndarray[Any, np.dtype[Any]]


class StoredValues:
    """The stored values and those in memory, in units; computed only if a race is suspected."""

    def __init__(
        self, data: Lanes, shift: int, grain: int, access: Access, plan: Plan, values: tuple[Lanes, ...]
    ) -> None:
        self._parts = data, shift, grain, access, plan, values

    def __call__(self) -> tuple[Lanes, Lanes]:
        """The units that lanes store and those that they overwrite, `[lanes, units]` each."""
        data, shift, grain, access, plan, values = self._parts
        lanes = len(access.ids)
        columns = []
        for value in values:
            value = np.asarray(value)
            if value.ndim and plan.mask is not None:
                value = value[plan.mask]
            columns.append(np.broadcast_to(value, lanes))
        stored = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
        stored = stored.reshape(lanes, access.width, grain)
        byte = access.units()[:, :, None] * grain - shift + np.arange(grain)
        there = data[byte]
        dtype = f"u{grain}"
        return (
            np.ascontiguousarray(stored).view(dtype)[..., 0],
            np.ascontiguousarray(there).view(dtype)[..., 0],
        )
