"""Pairs of f16 for f32 with `tcgen05`: tiles that are split in shared memory, the weights of a row tile as
pairs in tensor memory, and O in registers.

Sums in tensor memory are truncated. So the product of the weights of a tile with its values begins at zero,
and the correction adds it to O by an ordinary `fma`.
"""

from __future__ import annotations

from typing import Final, Protocol

from flash.device.cta import Cta
from flash.device.row_softmax import RowSoftmax
from flash.device.row_tiles import Coordinates, RowTiles
from flash.device.split_boxes import columns_of_chunks
from flash.device.split_pipeline import SplitPipeline, mark_of
from flash.device.split_products import (
    QUERIES_MARK,
    ROW_KEYS,
    UNSCALED,
    UNWEIGHTED,
    WEIGHT_SCALE,
    scale_weights,
    unscale_scores,
)
from flash.device.split_tile import split_pair
from flash.device.tensor_correction import Correction
from flash.device.tensor_pipeline import TensorPipeline, TensorRoles
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Role, Value, Var, marked
from ptxgen.dsl.blackwell import TensorMemory, TensorRing, TensorStage
from ptxgen.dsl.hopper import BoxTile, Ring, Stage
from ptxgen.dsl.swizzle import CHUNK_BYTES
from ptxgen.records import dataclass
from ptxgen.types import f16x2, f32, u32

# Weights are at most 1: V of f32 may be so large that P V would not be finite.
_SLACK: Final = 0.0
_WORDS: Final = 4  # of a stage without elements, the fewest that a tile has
_STORED: Final = 32  # weights that are split and stored at once
_PIECE: Final = 32  # sums that a thread has in registers besides O
_PAIR: Final = 2
_ELEMENTS: Final = CHUNK_BYTES // f32.nbytes  # of a chunk


class SplitRoles(TensorRoles, Protocol):
    """See `TensorRoles`."""

    @property
    def softmax(self) -> Role:
        """The role of warps that computes softmax weights."""


@dataclass(frozen=True)
class SplitRings:
    """The matrices in tensor memory on their way between roles, each in a ring: scores `s`, weights as high
    parts `p` and low parts `l`, and sums `o` of the products of a tile; and the factors of rows, by which the
    softmax has the correction multiply O (row 0) and these sums (row 1).
    """

    scores: TensorRing
    weights: TensorRing
    outputs: TensorRing
    factors: Ring


class SplitTensorPipeline(SplitPipeline, TensorPipeline):
    """See `SplitPipeline` and `TensorPipeline`. The threads that load split Q, too. The softmax has a stage
    of `key_factors` when a tile of K has its factors, and of `value_factors` when one of V has.
    """

    key_factors: Ring
    value_factors: Ring

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, roles: SplitRoles, memory: TensorMemory
    ) -> None:
        self.softmax = roles.softmax
        super().__init__(k, config, t, roles, memory)

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        super().declare(t, consumer)
        self.key_factors, self.value_factors = (
            self.k.tma.ring(t.stages, self.producer, self.softmax, written=True, split=((1, _WORDS), u32))
            for _ in range(2)
        )

    @marked("split tensor rings: queries")
    def _change(self, cta: Cta, tile: BoxTile) -> None:
        """Split the f32 queries into high and low parts, after their rotation if there is one."""
        producer = self.producer
        if self.rotates:
            super()._change(cta, tile)
            producer.barrier.sync()  # a thread splits what others have rotated
        self.of_queries.split(tile, (producer.thread, producer.threads), QUERIES_MARK)

    @marked("split tensor rings: factors")
    def _split_keys(self, mark: Value) -> None:
        """See `SplitPipeline`."""
        with self.key_factors.write():
            super()._split_keys(mark)

    @marked("split tensor rings: factors")
    def _split_values(self, mark: Value) -> None:
        """See `SplitPipeline`."""
        with self.value_factors.write():
            super()._split_values(mark)


class SplitRowTiles(RowTiles):
    """See `RowTiles`. Weights go as pairs of f16, and their factors by a ring of their own."""

    @marked("split row tiles: begin")
    def __init__(self, work: WorkTile, rings: SplitRings) -> None:
        super().__init__(work, rings.scores, None)
        self.rings = rings
        assert isinstance(work.pipeline, SplitTensorPipeline)
        self.pipeline = work.pipeline

    @marked("split row tiles: scores")
    def _products(self, stage: TensorStage, n: Value, *, plain: bool) -> tuple[list[Var], Value | None]:
        """See `RowTiles`: without the scales of Q and K."""
        k, pipeline = self.k, self.pipeline
        row, top = super()._products(stage, n, plain=plain)
        for score in row:
            k.mul(score, UNSCALED, into=score)
        largest = None if top is None else k.var(f32, top * UNSCALED)
        with pipeline.key_factors.drain() as split:
            keys, queries = pipeline.of_keys, pipeline.of_queries
            scaled = keys.scales(mark_of(n), split.index) | queries.scales(QUERIES_MARK)
            with k.when(scaled):
                unscale_scores(
                    k,
                    Fragment.of([row]),
                    lambda _: k.load(queries.factors.pointer(0, self._row_of_cta())),
                    lambda: keys.factors.pointer(split.index, 0),
                    ROW_KEYS,
                )
                if largest is not None:
                    largest.set(self.softmax.largest(Fragment.of([row])))
        return row, largest

    def _send(self, stage: TensorStage, factor: Value) -> None:  # noqa: ARG002
        """See `RowTiles`: `_store` sends it."""
        self._factor = factor

    @marked("split row tiles: weights")
    def _store(self, stage: TensorStage, S: Fragment, n: Value, coordinates: Coordinates) -> None:  # noqa: ARG002
        """See `RowTiles`: weights times the factors of V, whose largest one decides how they are scaled."""
        k, pipeline = self.k, self.pipeline
        self.softmax.exponentiate(S)
        self._drop(coordinates)
        scale, undone = k.var(f32, WEIGHT_SCALE), k.var(f32, UNWEIGHTED)
        with pipeline.value_factors.drain() as split:
            values = pipeline.of_values
            with k.when(values.scales(mark_of(n), split.index)):
                factors = values.factors
                scale_weights(k, S, [scale], [undone], lambda: factors.pointer(split.index, 0), ROW_KEYS)
        with self.rings.factors.write() as sent:
            self._send_factors(sent, self._factor, undone)
        row, scales = S.row(0), k.pair(scale, scale)
        with self.rings.weights.write() as weights:
            for first in range(0, len(row), _STORED):
                some = row[first : first + _STORED]
                scaled = [k.pair(*some[i : i + _PAIR]) * scales for i in range(0, len(some), _PAIR)]
                pairs = [split_pair(k, pair.halves()) for pair in scaled]
                for matrix, parts in zip((weights.p, weights.l), zip(*pairs, strict=True), strict=True):
                    is_last = matrix is weights.l and first + _STORED >= len(row)
                    matrix.store_pairs([part.as_(f16x2) for part in parts], first, waits=is_last)

    def _send_factors(self, sent: Stage, *factors: Value) -> None:
        """Store the factors by which this thread's row of O is rescaled."""
        row = self._row_of_cta()
        for i, factor in enumerate(factors):
            self.k.store(sent.factors.pointer(i, row), factor)

    @marked("split row tiles: end")
    def _end(self) -> None:
        """See `RowTiles`."""
        inverse = self._finish()
        with self.k.when(has_tiles(self.cta), uniform=True), self.rings.factors.write() as sent:
            self.k.note("the correction multiplies O by 1 / sum")
            self._send_factors(sent, inverse)

    @marked("split row tiles: begin")
    def _softmax(self) -> RowSoftmax:
        """See `RowTiles`: exponentials are not polynomials, and sinks come after all keys."""
        k, cta = self.k, self.cta
        scale = None if cta.scoring is not None else self._scale()
        sinks = cta.sinks(k, k.mov(0, type=u32), (0,), lambda: self.row)
        return RowSoftmax(k, scale, _SLACK, sinks, sinks_last=True)


class SplitCorrection(Correction):
    """See `Correction`; O is in registers, and each product of a tile is added to it."""

    @marked("split correction: begin")
    def __init__(self, work: WorkTile, rings: SplitRings) -> None:
        super().__init__(work, rings.outputs, None, 1)
        self.rings = rings
        self.O = [self.k.var(f32, 0.0) for _ in range(work.t.output_columns)]

    @marked("split correction: tile")
    def _follow(self) -> None:
        """Add the product P V of each tile of keys to O in registers."""
        k = self.k
        with self.work.pipeline.each_tile(self.cta):
            with self.rings.factors.drain() as sent:
                factor, undone = (k.load(sent.factors.pointer(i, self.row)) for i in range(2))
            with k.when(k.warp.any(factor != 1.0), uniform="warp"):
                for output in self.O:
                    k.mul(output, factor, into=output)
            with self.rows.drain() as stage:
                for first in range(0, len(self.O), _PIECE):
                    some = self.O[first : first + _PIECE]
                    for output, x in zip(some, stage.o.load(first, len(some)), strict=True):
                        k.fma(x, undone, output, into=output)

    @marked("split correction: rows of O")
    def _finish(self, cta: Cta) -> None:
        """See `Correction`."""
        k, out = self.k, self.work.pipeline.out
        with self.rings.factors.drain() as sent:
            inverse = k.load(sent.factors.pointer(0, self.row))
        chunks = [
            [output * inverse for output in self.O[first : first + _ELEMENTS]]
            for first in columns_of_chunks(len(self.O))
        ]
        if out is None:
            values = [value for chunk in chunks for value in chunk]
            self._store_sums(cta, 0, 0, values[: self.work.t.head_dim_v])
            return
        layout = out.layout
        for number, chunk in enumerate(chunks):
            slab, within = divmod(number * _ELEMENTS, layout.slab_columns)
            at = out.pointer(self.row, within).plus_bytes(slab * layout.slab_bytes)
            k.store(Pointer(at.value, "shared", f32, at.offset), chunk)
