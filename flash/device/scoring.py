"""From products of queries and keys to scores in units of log2: scale, softcap, ALiBi and bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.device.grouped_heads import PackedNumbers
from flash.device.mask import NEG_INF
from flash.device.score_plane import ScorePlaces, ScorePlane
from flash.device.softmax import LOG2E
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var
from ptxgen.types import f32

# tanh(y) = y + y³ P(y²) where |y| is at most this, fitted by least squares of the relative error;
# beyond, 1 - 2 / (exp(2y) + 1), whose subtraction loses at most a bit. Both are within 3 units in
# the last place.
_SMALL: Final = 0.6
_P: Final = (-0.33333298563957214, 0.13331915438175201, -0.053783293813467026,
             0.020794617012143135, -0.005893945228308439)  # fmt: skip


@dataclass(frozen=True)
class Scoring:
    """The steps from products to scores. `scale` is in natural units; a step whose field is None is
    left out.

    `exact` asks for a reciprocal that is rounded once, like the divisions elsewhere in f32 kernels;
    weights that are rounded to 16 bits do not need it.
    """

    k: KernelBuilder
    scale: Value
    diagonal: Value | None  # a query's position is its index plus this; None if unused
    softcap: Value | None
    slope: Value | PackedNumbers | None
    bias: ScorePlane | None
    exact: bool

    def apply(self, S: Fragment, places: ScorePlaces) -> None:
        """Replace this thread's products by scores."""
        k = self.k
        if self.softcap is None:
            factor = self.scale * LOG2E
            for score in S.all():
                k.mul(score, factor, into=score)
        else:
            self._cap(S, self.softcap)
        if self.slope is not None and self.diagonal is not None:
            self._subtract_distances(S, self.slope, self.diagonal, places)
        if self.bias is not None:

            def add(i: int, j: int, bias: Value) -> None:
                k.fma(bias, LOG2E, S[i, j], into=S[i, j])
                with k.only_if(bias == NEG_INF):  # even if the score is NaN or infinite
                    S[i, j].set(NEG_INF)

            self.bias.each(k, places, add)

    def _cap(self, S: Fragment, cap: Value) -> None:
        """Scores become cap * tanh(score / cap), in units of log2."""
        k = self.k
        factor, top = self.scale * k.rcp_rn(cap), cap * LOG2E
        for score in S.all():
            k.mul(self._tanh(score * factor), top, into=score)

    def _subtract_distances(
        self, S: Fragment, slope: Value | PackedNumbers, diagonal: Value, places: ScorePlaces
    ) -> None:
        """Scores -= slope * |position - key|; distances are exact below 2**24."""
        k = self.k
        if isinstance(slope, PackedNumbers):
            from_first = diagonal - places.my_first_key
            for i, scores in enumerate(S):
                query = places.query(i)
                minus = slope.of_head(k, places.head(i, query)) * -LOG2E
                self._subtract_from_row(scores, query + from_first, minus, places)
            return
        minus = slope * -LOG2E
        # In this order all but the last term is one register through all tiles, and not two.
        nearest = places.first_row + diagonal - k.signed(places.lane) - places.first_key
        for row, scores in zip(places.rows, S, strict=True):
            self._subtract_from_row(scores, nearest + row, minus, places)

    def _subtract_from_row(
        self, scores: list[Var], distance: Value, minus: Value, places: ScorePlaces
    ) -> None:
        """Add `minus` * |distance - key| to the scores of one row; `distance` is the row's position
        less the key that `places.keys` are counted from, `minus` the negative slope in units of
        log2.
        """
        k, from_first = self.k, self.k.cvt(distance, rnd="rn", dtype=f32)
        for key, score in zip(places.keys, scores, strict=True):
            k.fma(k.abs(from_first - float(key)), minus, score, into=score)

    def _tanh(self, y: Value) -> Value:
        k = self.k
        square = y * y
        series: Value | float = _P[-1]
        for coefficient in reversed(_P[:-1]):
            series = k.fma(square, series, coefficient)
        near = k.fma(y * square, series, y)
        power = k.ex2(y * (2 * LOG2E), ftz=True) + 1.0
        inverse = k.rcp_rn(power) if self.exact else k.rcp(power, ftz=True)
        return k.selp(near, k.fma(inverse, -2.0, 1.0), k.abs(y) < _SMALL)
