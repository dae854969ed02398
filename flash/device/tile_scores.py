"""From the products of a tile of keys to its scores: what features and the mask do to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """Where the scores of a lane of a tensor-core kernel lie, and what is done to them. `first_key` gives the
    first key of the tile that has -n - 1 tiles before it.
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
    tops: RowTops | None = None  # follow the largest scores, if these are wanted

    def finish(
        self, S: Fragment, n: Value, masking: Masking, scoring: Scoring | None
    ) -> ScoreCoordinates | None:
        """Apply features and the mask to the products of the tile with -n - 1 tiles before it. Returns where
        its scores lie; None if no feature asks for that, and products are scores but for the scale.
        """
        places = self._finish(S, n, masking, scoring)
        if self.tops is not None:
            self.tops.take(S)
        return places

    def _finish(
        self, S: Fragment, n: Value, masking: Masking, scoring: Scoring | None
    ) -> ScoreCoordinates | None:
        cta = self.cta
        if not (masking.hides or scoring is not None or cta.after_softmax):
            return None
        begins_block = self.tile % KEYS_PER_BLOCK == 0
        places = ScoreCoordinates(
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
            scoring.apply(S, places)
        if masking.hides:
            self.mask().apply(self.k, S, places, in_front=masking is Masking.LEFT)
        return places

    def drop(self, P: Fragment, places: ScoreCoordinates | None) -> None:
        """Apply the features that change weights."""
        if places is not None:
            for feature in self.cta.after_softmax:
                feature.drop(P, places)
