"""The rows of one sequence among the rows of all sequences, in kernels for packed sequences
(varlen).
"""

from __future__ import annotations

from ptxgen.dsl import KernelBuilder, Value
from ptxgen.records import dataclass
from ptxgen.types import s32, u32


@dataclass(frozen=True)
class Span:
    """The rows of one sequence: `length` of them from `begin` on, s32."""

    begin: Value
    length: Value

    @classmethod
    def clamped(cls, k: KernelBuilder, begin: Value, end: Value, used: Value | None, total: Value) -> Span:
        """The rows from `begin` to `end` - 1, of which the first `used` count (None: all).

        Whatever the three hold, all of the span's rows are among the `total` that there are, so
        that no access depends on the contents of a caller's array. As u32, a negative value is more
        than `total`.
        """
        first, last = (k.min(row.as_(u32), total.as_(u32)) for row in (begin, end))
        stop = k.max(last, first)
        if used is not None:
            stop = k.min(stop, first + k.min(used.as_(u32), total.as_(u32)))
        return cls(first.as_(s32), (stop - first).as_(s32))
