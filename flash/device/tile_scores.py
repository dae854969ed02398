"""From the products of a tile of keys to its scores: what features and the mask do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from flash.device.cta import Cta
from flash.device.mask import Mask
from flash.device.masked_tiles import Masking
from flash.device.max_logit import RowTops
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.score_coordinates import ScoreCoordinates
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.records import dataclass


@dataclass(frozen=True, kw_only=True)
class TileScores:
    """The coordinates of a lane's scores in a tensor-core kernel, and the features and mask that are applied
    to them. `first_key` gives the first key of the tile that has -n - 1 tiles before it.
    """

    k: KernelBuilder
    cta: Cta
    tile: int  # keys
    first_key: Callable[[Value], Value]
    first_row: Value  # of the lane
    rows: Sequence[int]  # counted from that
    first_column: Callable[[], Value]  # of the lane, u32
    keys: Sequence[int]  # counted from that
    query_of: Callable[[int], Value] | None  # see `ScoreCoordinates`
    mask: Callable[[], Mask]
    factors: Sequence[Value] = ()  # what products of each row are multiplied by; empty: 1
    by_warps: bool = False  # whether warps whose rows see a whole tile leave out the mask
    tops: RowTops | None = None  # follow the largest scores, if these are wanted

    def finish(
        self, S: Fragment, n: Value, masking: Masking, scoring: Scoring | None
    ) -> ScoreCoordinates | None:
        """Apply features and the mask to the products of the tile with -n - 1 tiles before it. Returns the
        coordinates of its scores; None if no feature needs them, and products are scores but for the scale.
        """
        coordinates = self._finish(S, n, masking, scoring)
        if self.tops is not None:
            self.tops.take(S)
        return coordinates

    def _finish(
        self, S: Fragment, n: Value, masking: Masking, scoring: Scoring | None
    ) -> ScoreCoordinates | None:
        cta = self.cta
        if not (masking.hides or scoring is not None or cta.after_softmax):
            return None
        begins_block = self.tile % KEYS_PER_BLOCK == 0
        coordinates = ScoreCoordinates(
            self.k,
            self.first_row,
            self.first_key(n),
            self.first_column(),
            self.rows,
            self.keys,
            begins_block,
            cta.packing,
            self.query_of,
            crosses_blocks=not begins_block and self.tile > KEYS_PER_BLOCK,
        )
        for row, factor in zip(S, self.factors, strict=False):
            for score in row:
                self.k.mul(score, factor, into=score)
        if scoring is not None:
            scoring.apply(S, coordinates)
        if masking.hides:
            with self._where_hidden(coordinates, masking):
                self.mask().apply(self.k, S, coordinates, in_front=masking is Masking.LEFT)
        return coordinates

    def _where_hidden(
        self, coordinates: ScoreCoordinates, masking: Masking
    ) -> AbstractContextManager[object]:
        """The context for warps that have a row which does not see the whole tile, of `by_warps`."""
        k, reach = self.k, self.cta.mask.reach
        if not self.by_warps or masking is Masking.LEFT or self.cta.mask.planes:
            return nullcontext()
        first_key, queries = coordinates.first_key, [coordinates.query(i) for i in range(len(self.rows))]
        hidden = reach.last_key(k, queries[0]) - first_key < self.tile - 1
        if reach.left is not None:
            hidden = hidden | (reach.first_key(k, queries[-1]) > first_key)
        return k.when(k.vote(hidden, -1, mode="any"))

    def drop(self, P: Fragment, coordinates: ScoreCoordinates | None) -> None:
        """Apply the features that change softmax weights, such as dropout, to a tile."""
        if coordinates is not None:
            for feature in self.cta.after_softmax:
                feature.drop(P, coordinates)
