"""Drift: a number for each head, times the signed distance from query to key, is added to the score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

import numpy as np

from flash.operands.declared import PER_HEAD, Operand
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import F32
from flash.scores.feature import LOG2E, UNIT, Applied, Array, Block, Inputs, Scored, ScoreFeature, StepError
from flash.scores.heads import PackedNumbers
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.records import dataclass
from ptxgen.types import f32


class DriftArguments(TypedDict, total=False):
    """drift: float32 [batch, heads]; drift * (j - i - offset) is added to the score of query i and key j."""

    drift: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class DriftSettings:
    """drift: whether launches give `drift`."""

    drift: bool = False


@dataclass(frozen=True)
class Drift(ScoreFeature):
    """The drift of a kernel."""

    setting: ClassVar = "drift"
    argument: ClassVar = "drift"
    gradient_of: ClassVar = "rows"
    axes: ClassVar = PER_HEAD
    array_dtype: ClassVar = F32
    in_transformers: ClassVar = "drift"
    example: ClassVar = "drift=True"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--drift": {"action": "store_true", "help": "numbers for signed distances, one for each head"}
    }
    changes_scores: ClassVar = True
    uses_position: ClassVar = True
    uses_query: ClassVar = True
    registers: ClassVar = 4

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The numbers."""
        return (Operand("drift", F32, self.axes, "is multiplied by the key's distance and added to scores"),)

    def applied(self, inputs: Inputs) -> Applied:
        """The numbers in a kernel, loaded."""
        assert inputs.diagonal is not None
        return AppliedDrift(inputs.k, inputs.of_head("drift"), inputs.diagonal)

    @classmethod
    def factor(cls, query: Any, key: Any) -> Any:
        """See `AdapterFace.factor`."""
        return key - query

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        distance = cls.factor(block.positions, block.key_indices).astype(block.of.dtype)
        score += block.take(cls).astype(block.of.dtype)[:, None, None] * distance

    @classmethod
    def array_gradient_block(cls, dscore: Array, block: Block) -> Array:
        """See `ScoreFeature.array_gradient_block`."""
        distance = cls.factor(block.positions, block.key_indices).astype(block.of.dtype)
        result: Array = (dscore * distance).sum(axis=(1, 2))
        return result

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        moved: Array = scores + of.whole(cls).astype(of.dtype)[..., None, None] * _distances(of)
        return moved

    @classmethod
    def array_gradient(cls, dafter: Array, of: Scored) -> Array:
        """See `ScoreFeature.array_gradient`."""
        result: Array = (dafter * _distances(of)).sum(axis=(2, 3))
        return result

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The rounding of the sum, and of numbers."""
        return StepError(after, 2 * UNIT * (after - before))


def _distances(of: Scored) -> Array:
    """The signed distance of each query and key: [seq_q, seq_k]."""
    seq_q, seq_k = of.shape[2:]
    result: Array = (np.arange(seq_k) - np.arange(seq_q)[:, None] - of.offset).astype(of.dtype)
    return result


@dataclass(frozen=True)
class AppliedDrift(Applied):
    """Scores += drift * (key - position)."""

    k: KernelBuilder
    drift: Value | PackedNumbers
    diagonal: Value

    def change(self, S: Fragment, places: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k, drift = self.k, self.drift
        for i, scores in enumerate(S):
            query = places.query(i)
            number = drift.of_head(k, places.head(i, query)) if isinstance(drift, PackedNumbers) else drift
            ahead = k.cvt(query + self.diagonal - places.my_first_key, rnd="rn", dtype=f32)
            for key, score in zip(places.keys, scores, strict=True):
                k.fma(float(key) - ahead, number * LOG2E, score, into=score)

    def row_gradients(self, dS: Fragment, places: ScoreCoordinates) -> list[Value]:
        """See `Applied.row_gradients`."""
        k, result = self.k, []
        for i, gradients in enumerate(dS):
            ahead = k.cvt(places.query(i) + self.diagonal - places.my_first_key, rnd="rn", dtype=f32)
            total: Value | None = None
            for key, gradient in zip(places.keys, gradients, strict=True):
                distance = float(key) - ahead
                total = distance * gradient if total is None else k.fma(distance, gradient, total)
            assert total is not None  # a row has keys
            result.append(total)
        return result
