"""Scales of the rows of K and V, one for each token of a cache of one-byte elements.

They arrive in shared memory with their tile. A score is multiplied by the scale of its key, in f32. A weight
times the scale of its value does not fit f16, in which it meets V: scales may be 2**20 apart in one tile, and
all of them far from 1. So each row of O has a power of two, by which its weights are multiplied before they
are rounded, and O is divided by it at the end. It is the one that brings the largest of the row's weights so
far, each times its scale, to 1 or more, and at most 2**`_SLACK`: weights that f16 then rounds to few bits,
or to 0, are as small compared with that one. When a larger one comes the power is reduced, and O with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flash.device.mma_products import WarpCoordinates
from flash.device.split_tile import power_of_two_scale
from flash.device.tiles import Matrix, copies_are_asynchronous
from flash.families.mma import MMA_KEYS
from flash.operands.dtypes import F32_BYTES
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, SharedTile, TilePointer, Value, Var
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, over_lanes
from ptxgen.records import dataclass
from ptxgen.types import f32, u32

_SLACK: Final = 8.0  # in units of log2: what f16 holds with room to spare
_MOST: Final = 2.0**112  # the largest power, that of rows which have seen no value yet
_LEAST: Final = 2.0**-126  # the smallest power
_RECIPROCALS: Final = 0xFE << 23  # the sum of the bits of a power of two and of its reciprocal, as f32


@dataclass(frozen=True)
class ScaleCopies:
    """Copies the scales of the rows of a tile into shared memory: `tile` has a row of scales for each of the
    stages of the tile of K or V, which are `stage_bytes` apart there.

    Copies are asynchronous, as those of `PanelLoader`; where there are no such copies, the scales wait in
    `held` for `land`. The scale of a row beyond the matrix becomes 0 and is not read.
    """

    k: KernelBuilder
    scales: Matrix
    tile: SharedTile
    stage_bytes: int
    held: tuple[Var, ...] = ()  # a scale of the thread for each round of all threads

    @classmethod
    def of(cls, k: KernelBuilder, scales: Matrix, tile: SharedTile, stage_bytes: int) -> ScaleCopies:
        """The copies of tokens' scales to a tile, through registers where the target needs that."""
        rounds = 0 if copies_are_asynchronous(k) else -(-tile.columns // k.threads)
        return cls(k, scales, tile, stage_bytes, tuple(k.var(f32, 0.0) for _ in range(rounds)))

    def start(self, first_row: Value, stage: Value | None) -> None:
        """Begin copying the scales of tokens from row `first_row` on to shared memory."""
        k = self.k
        for nth, held in self._shares():
            row = first_row + k.signed(nth)
            present = row < self.scales.rows
            at = Pointer(self.scales.row(k, row), "global", f32)
            if held is None:
                k.copy_async(self.at(stage, nth), at, F32_BYTES, k.selp(F32_BYTES, 0, present, type=u32))
                continue
            held.set(0.0)
            with k.only_if(present):
                k.load(at, into=held)

    def land(self, stage: Value | None) -> None:
        """Write the scales that wait in registers into a stage of the tile in shared memory."""
        for nth, held in self._shares():
            if held is not None:
                self.k.store(self.at(stage, nth), held)

    def _shares(self) -> Iterator[tuple[Value, Var | None]]:
        """The rows of this thread, counted in the tile, each with the register in which its scale waits. Code
        emitted between one and the next is only run by the threads that have that row.
        """
        k, keys = self.k, self.tile.columns
        for n, first in enumerate(range(0, keys, k.threads)):
            nth = k.thread_id() + first if first else k.thread_id()
            with k.when(nth < keys):
                yield nth, self.held[n] if self.held else None

    def at(self, stage: Value | None, key: Value) -> TilePointer:
        """The address of the scale of a key of the tile, u32."""
        return self.tile.pointer(0 if stage is None else stage // self.stage_bytes, key)


class TokenScales:
    """Multiplies the scores and weights of a lane's rows by the scales of their keys and values."""

    def __init__(
        self, k: KernelBuilder, me: WarpCoordinates, keys: ScaleCopies, values: ScaleCopies, rows: int
    ) -> None:
        self.k = k
        self.me = me
        self._keys = keys
        self._values = values
        self._powers = [k.var(f32, _MOST) for _ in range(rows)]

    def scale_scores(self, S: Fragment, stage: Value | None) -> None:
        """Multiply the scores of a tile by the scales of its keys."""
        for column, scale in enumerate(self._of_lane(self._keys, stage)):
            for scores in S:
                self.k.mul(scores[column], scale, into=scores[column])

    def rescaled(self, factors: Sequence[Value]) -> list[Value]:
        """The factors of the rows of O where their weights become `factors`, at most 1, of what they were:
        the powers grow as the weights shrink, so that the scaled weights keep their magnitude.
        """
        k, results = self.k, []
        for power, factor in zip(self._powers, factors, strict=True):
            growth, _ = power_of_two_scale(k, factor, 0)
            grown = k.min(power * growth, _MOST)
            results.append(factor * (grown * _reciprocal(power)))
            power.set(grown)
        return results

    def scale_weights(self, P: Fragment, O: Fragment, stage: Value | None) -> None:
        """Multiply the weights of a tile by the scales of its values and by the powers of their rows. Where
        one outgrows f16, the power of its row is reduced before, and the row of O with it.
        """
        k = self.k
        largest: list[Value] = [k.mov(0.0, type=f32) for _ in self._powers]
        for column, scale in enumerate(self._of_lane(self._values, stage)):
            for i, weights in enumerate(P):
                k.mul(weights[column], scale, into=weights[column])
                largest[i] = k.max(largest[i], weights[column])
        outgrown = [top * power > 2.0**_SLACK for top, power in zip(largest, self._powers, strict=True)]
        some = outgrown[0]
        for more in outgrown[1:]:
            some = some | more
        with k.when(k.vote(some, -1, mode="any")):
            for i, power in enumerate(self._powers):
                top = over_lanes(k, largest[i], QUAD, k.max)
                less, _ = power_of_two_scale(k, top, 0)
                reduced = k.selp(k.max(less, _LEAST), power, top * power > 2.0**_SLACK)
                factor = reduced * _reciprocal(power)
                power.set(reduced)
                for output in O.row(i):
                    k.mul(output, factor, into=output)
        for power, weights in zip(self._powers, P, strict=True):
            for weight in weights:
                k.mul(weight, power, into=weight)

    def undone(self) -> list[Value]:
        """The factors by which the rows of O are multiplied in the end."""
        return [_reciprocal(power) for power in self._powers]

    def _of_lane(self, scales: ScaleCopies, stage: Value | None) -> Iterator[Value]:
        """The scales of the columns of this lane's fragments, each loaded when it is asked for."""
        k, first = self.k, scales.at(stage, self.me.in_quad * LANE_COLUMNS)
        for key in range(0, scales.tile.columns, MMA_KEYS):
            yield from k.load(first.step(columns=key), LANE_COLUMNS)


def _reciprocal(power: Value) -> Value:
    """The reciprocal of a power of two, f32, from 2**-126 to 2**126."""
    return (_RECIPROCALS - power.as_(u32)).as_(f32)
