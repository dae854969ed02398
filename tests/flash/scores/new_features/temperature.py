"""Temperature: scaled scores of a head are multiplied by its number, which has no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from flash.operands.declared import PER_HEAD, Operand
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import F32
from flash.scores.feature import UNIT, Applied, Array, Block, Inputs, Scored, ScoreFeature, StepError
from flash.scores.heads import PackedNumbers
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.records import dataclass


class TemperatureArguments(TypedDict, total=False):
    """temperature: float32 [batch, heads], by which scaled scores are multiplied."""

    temperature: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class TemperatureSettings:
    """temperature: whether launches give `temperature`."""

    temperature: bool = False


@dataclass(frozen=True)
class Temperature(ScoreFeature):
    """The temperature of a kernel."""

    setting: ClassVar = "temperature"
    argument: ClassVar = "temperature"
    axes: ClassVar = PER_HEAD
    array_dtype: ClassVar = F32
    example: ClassVar = "temperature=True"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--temperature": {"action": "store_true", "help": "a factor of scores, one for each head"}
    }
    changes_scores: ClassVar = True
    uses_query: ClassVar = True
    registers: ClassVar = 4

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The factors."""
        return (Operand("temperature", F32, self.axes, "scaled scores are multiplied by it"),)

    def applied(self, inputs: Inputs) -> Applied:
        """The factors in a kernel, loaded."""
        return AppliedTemperature(inputs.k, inputs.of_head("temperature"))

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score *= block.take(cls).astype(block.of.dtype)[:, None, None]

    @classmethod
    def gradient_block(cls, dscore: Array, kept: Array | None, block: Block) -> None:
        """See `ScoreFeature.gradient_block`."""
        cls.change_block(dscore, block)

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        result: Array = scores * of.whole(cls).astype(of.dtype)[..., None, None]
        return result

    @classmethod
    def gradient(cls, dafter: Array, before: Array, after: Array, of: Scored) -> Array:
        """See `ScoreFeature.gradient`."""
        return cls.changed(dafter, of)

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The rounding of the product."""
        slope = of.whole(cls).astype(of.dtype)[..., None, None]
        return StepError(after, UNIT * after, slope, adds=False)


@dataclass(frozen=True)
class AppliedTemperature(Applied):
    """Scores *= temperature."""

    k: KernelBuilder
    temperature: Value | PackedNumbers

    bends: ClassVar = True

    def change(self, S: Fragment, places: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k, factor = self.k, self.temperature
        for i, scores in enumerate(S):
            number = factor
            if isinstance(factor, PackedNumbers):
                number = factor.of_head(k, places.head(i, places.query(i)))
            for j, score in enumerate(scores):
                k.mul(score, number, into=score)
                if slopes is not None:
                    k.mul(slopes[i, j], number, into=slopes[i, j])
