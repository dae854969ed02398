"""A CTA's coordinates in the grid of a forward kernel: its query block and head, its split of the keys,
and its slice of the values.
"""

from __future__ import annotations

import math
from dataclasses import replace

from flash.device.cta_order import last_first
from flash.device.parameters import Array, Parameters
from flash.device.tiles import Matrix
from flash.families.simt import ValueSlices
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.records import dataclass
from ptxgen.types import s64, u32, u64


@dataclass(frozen=True)
class SplitOfKeys:
    """The split of the keys that a CTA takes, where several CTAs share the keys of one block of
    queries (flash-decoding): `number` is its index among `splits` splits, both s32.
    """

    number: Value
    splits: Value

    def tiles(self, k: KernelBuilder, first: Value | None, end: Value) -> tuple[Value, Value]:
        """The tiles of this split, out of the tiles from `first` (None: 0) up to `end`, exclusive;
        the result has the same form. Splits differ by at most one tile; the longer ones come first.
        """
        count = end if first is None else end - first
        size = count // self.splits
        longer = count - size * self.splits
        begin, stop = (n * size + k.min(n, longer) for n in (self.number, self.number + 1))
        return (begin, stop) if first is None else (first + begin, first + stop)

    def partial_output(self, k: KernelBuilder, matrix: Matrix, O: Array) -> Matrix:
        """`matrix`, a block of O, moved to the partial output of this split."""
        elements = k.cvt(self.number, dtype=s64) * O.strides["split"]
        return replace(matrix, first=matrix.first + (elements * O.nbytes).as_(u64))


@dataclass(frozen=True)
class ValueSlice:
    """The columns of V and O that one CTA computes, where several CTAs share them
    (`flash/families/simt.py`).
    """

    number: Value
    first: Value  # column
    written_from: Value | None  # first column to write, in the slice; None if it is column 0

    @classmethod
    def of(cls, k: KernelBuilder, slices: ValueSlices, number: Value) -> ValueSlice:
        """The slice of the columns of V and O that has the index `number`."""
        width, last = slices.width, slices.last
        if not slices.shared:
            return cls(number, number * width, None)
        unit = math.gcd(width, last)  # explicit, so that the bounds proof sees it divide the column
        first = k.min(number * (width // unit), last // unit) * unit
        return cls(number, first, k.max(number * width - last, 0))

    def part(self, k: KernelBuilder, matrix: Matrix, nbytes: int) -> Matrix:
        """The columns of this slice in `matrix`, V or O, whose elements have `nbytes` bytes."""
        first = matrix.first + k.cvt(self.first * nbytes, dtype=u64)
        return replace(matrix, first=first, written_from=self.written_from)


@dataclass(frozen=True)
class CtaCoordinates:
    """A CTA's coordinates in the grid, which is flat. From fastest to slowest: slices of values,
    whose CTAs read the same queries and keys; splits of the keys; query blocks; heads (of K and V
    if rows are packed); batches. Causal kernels order query blocks and heads as
    `flash/device/cta_order.py` says.
    """

    slice: ValueSlice | None
    part: SplitOfKeys | None
    head_of_batch: Value
    nth_block: Value

    @classmethod
    def of(
        cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters, blocks: Value
    ) -> CtaCoordinates:
        """The coordinates of this CTA, where each head has `blocks` query blocks."""
        t, splits = config.tiling, parameters.numbers.get("splits")
        rest, slice, part = k.signed(k.block_id() if parameters.part is None else parameters.part), None, None
        if t.value_slices > 1:
            slice = ValueSlice.of(k, t.slices, rest % t.value_slices)
            rest = rest // t.value_slices
        if splits is not None:
            part = SplitOfKeys(rest % k.signed(splits), k.signed(splits))
            rest = rest // k.signed(splits)
        if not config.ping_pong:
            return cls(slice, part, rest // blocks, rest % blocks)
        ctas = k.blocks() if parameters.part is None else parameters.numbers["parts"]
        if t.value_slices > 1:
            ctas = ctas // t.value_slices
        section = parameters.numbers["section"]
        return cls(slice, part, *last_first(k, rest.as_(u32), blocks.as_(u32), ctas, section))
