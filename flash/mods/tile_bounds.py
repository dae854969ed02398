"""The bounds of keys of `flash/mods/reach.py` in the two kinds of calls: of a CTA, and on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flash.mods.emit import AuxElements, loaded
from flash.mods.operations import LEAST, MOST
from flash.mods.reach import Interval
from flash.mods.trace import AuxArray
from ptxgen import dsl
from ptxgen.records import dataclass
from ptxgen.types import s32, s64, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value


@dataclass(frozen=True)
class OfCta:
    """The call of `flash/mods/reach.py` in a kernel, as a CTA knows it: `indices` are the intervals of the
    batch, the head and the queries.
    """

    k: KernelBuilder
    indices: Mapping[str, Interval]
    arrays: Mapping[str, AuxElements]

    def index(self, name: str) -> Interval | None:
        """See `Calls.index`."""
        return self.indices[name]

    def element(self, array: AuxArray, indices: Sequence[Interval]) -> Interval | None:
        """See `Calls.element`: known if all indices are."""
        if array.kind is not s32 or any(index.low is not index.high for index in indices):
            return None
        element = self._first(array, indices)
        return Interval(element, element)

    def flag(self, array: AuxArray, indices: Sequence[Interval]) -> Value:
        """Whether one of the flags with these indices may be True; exact if there is only one."""
        may_be_set = self._first(array, indices)
        for index in indices:
            if index.low is not index.high:
                may_be_set = may_be_set | (index.low != index.high)
        return may_be_set

    def _first(self, array: AuxArray, indices: Sequence[Interval]) -> Value:
        """The element of `array` at the least index of each interval."""
        k, of = self.k, self.arrays[array.name]
        at = of.first
        for index, step, last in zip(indices, of.steps, of.last, strict=True):
            value = index.low if isinstance(index.low, dsl.Value) else k.mov(index.low, type=s32)
            inside = k.min(k.max(value, 0).as_(u32), last).as_(s32)
            at = at + (k.cvt(inside, dtype=s64) * step).as_(u64)
        return loaded(k, array, at)

    def minimum(self, a: Any, b: Any) -> Any:
        """See `Calls.minimum`."""
        return self._chosen("min", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """See `Calls.maximum`."""
        return self._chosen("max", a, b)

    def _chosen(self, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, dsl.Value):
            return getattr(self.k, op)(a, b)
        if isinstance(b, dsl.Value):
            return getattr(self.k, op)(b, a)
        return min(a, b) if op == "min" else max(a, b)

    def floor_divided(self, a: Any, by: int) -> Any:
        """See `Calls.floor_divided`."""
        if not isinstance(a, dsl.Value):
            return a // by
        if by & (by - 1) == 0:
            return a >> (by.bit_length() - 1)
        quotient = a // by  # rounded towards zero
        return quotient - self.k.selp(1, 0, a - quotient * by < 0, type=s32)


@dataclass(frozen=True)
class OnHost:
    """The call of `flash/mods/reach.py` on the host: intervals of the indices, and the arrays."""

    indices: Mapping[str, Interval]
    arrays: Mapping[str, NDArray[Any]]

    def index(self, name: str) -> Interval | None:
        """See `Calls.index`."""
        return self.indices[name]

    def element(self, array: AuxArray, indices: Sequence[Interval]) -> Interval | None:
        """See `Calls.element`: between the least and the largest element that the indices may select."""
        if array.kind is not s32:
            return None
        table = self.arrays[array.name]
        ends = [np.clip(index, 0, n - 1) for index, n in zip(indices, table.shape, strict=True)]
        part = table[tuple(slice(int(low), int(high) + 1) for low, high in ends)]
        return Interval(*(min(max(int(end), LEAST), MOST) for end in (part.min(), part.max())))

    def minimum(self, a: int, b: int) -> int:
        """See `Calls.minimum`."""
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        """See `Calls.maximum`."""
        return max(a, b)

    def floor_divided(self, a: int, by: int) -> int:
        """See `Calls.floor_divided`."""
        return a // by
