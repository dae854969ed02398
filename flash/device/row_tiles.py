"""The weights of row tiles whose scores are in tensor memory: a thread has a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mask import if_seen
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.row_outputs import store_row_outputs
from flash.device.row_softmax import RowSoftmax
from flash.device.tile_scores import TileScores
from flash.device.warpgroup_roles import SLACK, has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05 import TCGEN05_ROWS, by_polynomial
from flash.scores.score_coordinates import ScoreCoordinates
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, SharedTile, Value, Var, marked
from ptxgen.dsl.blackwell import TensorRing, TensorStage
from ptxgen.types import f32, u32

_KEYS_OF_PLANES: Final = 16
_STORED: Final = 32  # weights that are stored at once, while others are computed
_STORED_OF_FEATURES: Final = 16  # where features take registers, too
_ROW: Final = (0,)  # a thread's rows, counted from its first
Coordinates = list[tuple[Fragment, ScoreCoordinates | None]]  # of pieces of a tile


class RowTiles:
    """The work of the warpgroups that compute weights, each of its row tile: the scores S of a tile of keys
    come through `rows`, and go back as weights P. The correction gets a factor of each row in `factors`,
    by which it multiplies O; None: a subclass sends them.
    """

    @marked("row tiles: begin")
    def __init__(self, work: WorkTile, rows: TensorRing, factors: SharedTile | None) -> None:
        self.k = k = work.k
        self.work, self.cta, self.rows = work, work.cta, rows
        row = self._row_of_cta()
        self.row = self.cta.first_row + k.signed(row)
        if factors is not None:
            self.factor_at = factors.pointer(row // TCGEN05_ROWS, row % TCGEN05_ROWS)
        self.is_negative = self.cta.scale_log2 < 0.0
        self.scores = self._scores()
        self.softmax = self._softmax()

    @marked("row tiles: tiles")
    def run(self) -> None:
        """Turn the scores of all tiles of keys into softmax weights, and end the softmax."""
        k = self.k
        with k.when(has_tiles(self.cta), uniform=True):
            for end, first, masking in masked_tiles(k, self.cta, self.work.cta_again):
                begin = first if isinstance(first, int) else -first
                with k.loop(-end, begin) as n, if_seen(k, self._sees(n)), self.rows.drain() as stage:
                    self._weigh(stage, n, masking)
        self._end()

    @marked("row tiles: end")
    def _end(self) -> None:
        """Write the outputs of the row besides O, and have O divided by the sum of the weights."""
        inverse = self._finish()
        with self.k.when(has_tiles(self.cta), uniform=True), self.rows.drain() as stage:
            self.k.note("the correction multiplies O by 1 / sum")
            self._send(stage, inverse)

    @marked("row tiles: weights")
    def _weigh(self, stage: TensorStage, n: Value, masking: Masking) -> None:
        """Compute P = exp2(scale * S - shift) of the tile with -n - 1 tiles before it, in S's columns."""
        k = self.k
        plain = self.cta.scoring is None and not masking.hides
        row, top = self._products(stage, n, plain=plain)
        S, top = Fragment.of([row]), None if top is None else k.var(f32, top)
        scoring = self._scoring(S, n, top)
        coordinates: Coordinates = []
        for first, scores in self._pieces():
            if first:
                k.bar_warp_sync(-1)  # the assembler would load elements of masks for all keys at once
            piece = S.part(slice(None), slice(first, first + len(scores.keys)))
            coordinates.append((piece, scores.finish(piece, n, masking, scoring)))
        self.softmax.move_shifts(S, top)
        self._send(stage, self.softmax.factor())
        k.note("P = exp2(scale * S - shift)")
        self._store(stage, S, n, coordinates)
        self.softmax.add()

    def _products(self, stage: TensorStage, n: Value, *, plain: bool) -> tuple[list[Var], Value | None]:  # noqa: ARG002
        """The products of the tile with -n - 1 tiles before it, and if it is `plain` the largest one."""
        return stage.s.load_with_largest() if plain else (stage.s.load(), None)

    def _store(self, stage: TensorStage, S: Fragment, n: Value, coordinates: Coordinates) -> None:  # noqa: ARG002
        """Replace the scores of the tile with -n - 1 tiles before it by weights, and store them for the
        products. `coordinates` are those of pieces of the tile.
        """
        k = self.k
        step = _STORED if self.cta.scoring is None else _STORED_OF_FEATURES
        step = S.columns if self.cta.after_softmax else step
        for first in range(0, S.columns, step):
            if first and self.cta.scoring is not None:
                k.bar_warp_sync(-1)  # the assembler would begin with all pieces, for which registers lack
            P = S.part(slice(None), slice(first, first + step))
            self.softmax.exponentiate(P)
            self._drop(coordinates)
            stage.p.store(P.row(0), first, waits=first + step >= S.columns)

    def _drop(self, coordinates: Coordinates) -> None:
        """Apply the features that change softmax weights, such as dropout, to a tile."""
        for piece, of_piece in coordinates if self.cta.after_softmax else ():
            self.scores.drop(piece, of_piece)

    def _scoring(self, S: Fragment, n: Value, top: Var | None) -> Scoring | None:  # noqa: ARG002
        """The scoring of the products of the tile with -n - 1 tiles before it, of which `top` is the largest
        if it is known; without a scoring, they are negated if the scale is negative.
        """
        if self.cta.scoring is None:
            self._take_sign(S, top)
        return self.cta.scoring

    @marked("row tiles: sign")
    def _take_sign(self, S: Fragment, top: Var | None) -> None:
        """Negate the scores, of which `top` becomes the largest, if the scale is negative: the softmax takes
        a positive one.
        """
        k = self.k
        with k.when(self.is_negative, uniform=True):
            for score in S.all():
                k.neg(score, into=score)
            if top is not None:
                top.set(self.softmax.largest(S))

    @property
    def _has_planes(self) -> bool:
        """Whether there are arrays with an element for each score, which may hide any key."""
        return self.work.config.features.hides_anywhere

    @marked("row tiles: factor")
    def _send(self, stage: TensorStage, factor: Value) -> None:
        """Pass a factor to the correction role, which multiplies this row of O by it."""
        self.k.store(self.factor_at, factor)
        stage.hand_on()

    @marked("row tiles: finish")
    def _finish(self) -> Value:
        """Write the outputs of the row besides O; returns what O is to be multiplied by."""
        k, cta = self.k, self.work.cta_again()
        row, finished = cta.first_row + k.signed(self._row_of_cta()), self.softmax.finish(0)
        if cta.row_outputs:
            with k.when(cta.writes_row(row < cta.O.rows)):
                store_row_outputs(k, cta.row_outputs, row, finished)
        cta.store_tops(k, self.scores.tops, (row, _ROW), [])
        return cta.weighed(finished.inverse)

    def _row_of_cta(self) -> Value:
        """The row of this thread, counted in its CTA."""
        return self.k.thread_id() & self.work.t.block_q - 1

    def _sees(self, n: Value) -> Value | None:
        """Whether some row sees a tile between others; None: yes. The last tile is always there."""
        if not self.cta.mask.has_gaps:
            return None
        seen = self.cta.mask.sees_tile(self.work.pipeline.first_key(n))
        return None if seen is None else seen | (n == -self.cta.tiles)

    def _pieces(self) -> list[tuple[int, TileScores]]:
        """The first key of each piece of a tile, and its scores: where there are arrays with an element for
        each score, a piece has few keys.
        """
        keys, planes = self.scores.keys, self.work.config.features.planes
        step = _KEYS_OF_PLANES // max(planes, 1) if self._has_planes else len(keys)
        return [(n, replace(self.scores, keys=keys[n : n + step])) for n in range(0, len(keys), step)]

    @marked("row tiles: begin")
    def _scores(self) -> TileScores:
        """The coordinates of this thread's scores: one row, and all keys of a tile."""
        k, cta, t = self.k, self.cta, self.work.t
        query_of = None
        if cta.packs_queries:
            query_of = [cta.query(self.row)].__getitem__
        return TileScores(
            k=k,
            cta=cta,
            tile=t.tile,
            first_key=self.work.pipeline.first_key,
            first_row=self.row,
            rows=_ROW,
            first_column=lambda: k.mov(0, type=u32),
            keys=range(t.tile),
            query_of=query_of,
            mask=lambda: cta.mask,
            tops=cta.tops(k, len(_ROW), None if cta.scoring is not None else self._scale()),
        )

    @marked("row tiles: begin")
    def _softmax(self) -> RowSoftmax:
        k, cta = self.k, self.cta
        sinks = cta.sinks(k, k.mov(0, type=u32), _ROW, lambda: self.row)
        scale = None if cta.scoring is not None else self._scale()
        return RowSoftmax(k, scale, SLACK, sinks, by_polynomial=by_polynomial(self.work.config.target))

    def _scale(self) -> Value:
        """The factor of scores, in units of log2, without its sign; scores are negated if it is negative."""
        return self.k.max(self.k.abs(self.cta.scale_log2), LEAST_SCALE)
