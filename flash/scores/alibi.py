"""ALiBi: a slope for each head, times the distance of query and key, is subtracted from the score
(arXiv:2108.12409).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

import numpy as np

from flash.operands.declared import PER_HEAD, Operand
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import F32
from flash.scores.feature import (
    LOG2E,
    UNIT,
    Applied,
    Array,
    Block,
    Inputs,
    Scored,
    ScoreFeature,
    StepError,
    as_scores,
)
from flash.scores.heads import PackedNumbers
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.records import dataclass
from ptxgen.types import f32

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value, Var

_SLOPES: Final = "alibi_slopes"
_FACTORS: Final = 2.0  # roundings of the slope and of log2(e)


class AlibiArguments(TypedDict, total=False):
    """alibi_slopes: float32 [batch, heads]; slope * |i + offset - j| is subtracted from the scaled
    score of query i and key j.
    """

    alibi_slopes: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class AlibiSettings:
    """alibi: whether launches give `alibi_slopes`."""

    alibi: bool = False


@dataclass(frozen=True)
class Alibi(ScoreFeature):
    """The slopes of a kernel."""

    setting: ClassVar = "alibi"
    argument: ClassVar = _SLOPES
    gradient_of: ClassVar = "rows"
    axes: ClassVar = PER_HEAD
    array_dtype: ClassVar = F32
    example: ClassVar = "alibi=True"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--alibi": {"action": "store_true", "help": "slopes for distances, one for each head"}
    }
    changes_scores: ClassVar = True
    uses_position: ClassVar = True
    uses_query: ClassVar = True
    registers: ClassVar = 4

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declaration of the array of slopes."""
        return (
            Operand(
                _SLOPES,
                self.array_dtype,
                self.axes,
                "ALiBi: slope * |i + offset - j| is subtracted from the scaled score of query "
                "i and key j; offset is seq_k - seq_q, or 0 with top_left causality",
            ),
        )

    def applied(self, inputs: Inputs) -> Applied:
        """The slopes in a kernel, loaded."""
        assert inputs.diagonal is not None  # as `uses_position` says
        return AppliedAlibi(inputs.k, inputs.of_head(_SLOPES), inputs.diagonal)

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        slopes = as_scores(block.take(cls).astype(block.of.dtype))
        distance = block.positions - block.key_indices
        score -= slopes[:, None, None] * np.abs(distance).astype(block.of.dtype)

    @classmethod
    def array_gradient_block(cls, dscore: Array, block: Block) -> Array:
        """See `ScoreFeature.array_gradient_block`: the distances, summed."""
        distance = np.abs(block.positions - block.key_indices).astype(block.of.dtype)
        result: Array = -(dscore * distance).sum(axis=(1, 2))
        return result

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        slopes = as_scores(of.whole(cls).astype(of.dtype))
        lessened: Array = scores - slopes[..., None, None] * _distances(of)
        return lessened

    @classmethod
    def array_gradient(cls, dafter: Array, of: Scored) -> Array:
        """See `ScoreFeature.array_gradient`."""
        result: Array = -(dafter * _distances(of)).sum(axis=(2, 3))
        return result

    @classmethod
    def factor(cls, query: Any, key: Any) -> Any:
        """See `AdapterFace.factor`."""
        return -abs(query - key)

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The errors of rounding the sum, and the slopes."""
        return StepError(after, _FACTORS * UNIT * (before - after))


def _distances(of: Scored) -> Array:
    """The distance of each query and key: [seq_q, seq_k]."""
    seq_q, seq_k = of.shape[2:]
    position = np.arange(seq_q)[:, None] + of.offset
    distance: Array = np.abs(position - np.arange(seq_k)).astype(of.dtype)
    return distance


@dataclass(frozen=True)
class AppliedAlibi(Applied):
    """Scores -= slope * |position - key|; distances are exact below 2**24."""

    k: KernelBuilder
    slope: Value | PackedNumbers
    diagonal: Value

    def change(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k, slope, diagonal = self.k, self.slope, self.diagonal
        if isinstance(slope, PackedNumbers):
            from_first = diagonal - coordinates.my_first_key
            for i, scores in enumerate(S):
                query = coordinates.query(i)
                minus = slope.of_head(k, coordinates.head(i, query)) * -LOG2E
                self._subtract_from_row(scores, query + from_first, minus, coordinates)
            return
        minus = slope * -LOG2E
        # In this order all but the last term is one register through all tiles, and not two.
        nearest = coordinates.first_row + diagonal - k.signed(coordinates.lane) - coordinates.first_key
        for row, scores in zip(coordinates.rows, S, strict=True):
            self._subtract_from_row(scores, nearest + row, minus, coordinates)

    def row_gradients(self, dS: Fragment, coordinates: ScoreCoordinates) -> list[Value]:
        """See `Applied.row_gradients`: the sum of -|position - key| times the gradient."""
        k, result = self.k, []
        nearest = coordinates.first_row + self.diagonal - k.signed(coordinates.lane) - coordinates.first_key
        for row, gradients in zip(coordinates.rows, dS, strict=True):
            from_first = k.cvt(nearest + row, rnd="rn", dtype=f32)
            total: Value | None = None
            for key, gradient in zip(coordinates.keys, gradients, strict=True):
                minus = -k.abs(from_first - float(key))
                total = minus * gradient if total is None else k.fma(minus, gradient, total)
            assert total is not None  # a row has keys
            result.append(total)
        return result

    def _subtract_from_row(
        self, scores: list[Var], distance: Value, minus: Value, coordinates: ScoreCoordinates
    ) -> None:
        """Add `minus` * |distance - key| to the scores of one row; `distance` is the row's position less the
        key that `coordinates.keys` are counted from, `minus` the negative slope in units of log2.
        """
        k, from_first = self.k, self.k.cvt(distance, rnd="rn", dtype=f32)
        for key, score in zip(coordinates.keys, scores, strict=True):
            k.fma(k.abs(from_first - float(key)), minus, score, into=score)
