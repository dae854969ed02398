"""Bias: an array with an element for each score, which is added to it; -inf hides the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import numpy as np

from flash.operands.declared import PER_SCORE, Operand
from flash.operands.dtype_names import AnyArray, DTypeLike
from flash.operands.dtypes import DTYPES, DType
from flash.scores.feature import (
    LOG2E,
    NEG_INF,
    UNIT,
    Applied,
    Array,
    Block,
    Inputs,
    Scored,
    ScoreFeature,
    StepError,
    TypeOf,
    as_scores,
)
from flash.scores.options import type_of_array
from flash.scores.score_coordinates import ScoreCoordinates, ScorePlane
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value


@dataclass(frozen=True)
class AddedArray(ScoreFeature):
    """An array that is added to scores, and the type of its elements; -inf hides a key. Its axes
    are those of scores, or without that of queries.
    """

    element: DType

    meaning: ClassVar[str]  # of the operand
    changes_scores: ClassVar = True
    hides: ClassVar = True
    uses_query: ClassVar = True  # for its row of the array, or of a packed row for its head
    in_cache: ClassVar = False
    registers: ClassVar = 32

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> str | None:
        """See `ScoreFeature.normalized`."""
        return type_of_array(cls.setting, value, of_config.dtype)

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        name = getattr(config, cls.setting)
        return None if name is None else cls(DTYPES[name])

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> str | None:
        """The type of the array in the arguments of a call; None without one."""
        value = arguments.get(cls.argument)
        return None if value is None else type_of(value, cls.argument)

    @property
    def word(self) -> str:
        """The word for the array in the kernel's name, with its type."""
        return f"{self.setting.replace('_', '')}_{self.element.name}"

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.element

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declaration of the array."""
        return (Operand(self.argument, self.element, self.axes, self.meaning),)

    def applied(self, inputs: Inputs) -> Applied:
        """The array in a kernel."""
        return AddedPlane(inputs.k, inputs.plane(self.argument))

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score += as_scores(block.take(cls).astype(block.of.dtype))

    @classmethod
    def array_gradient_block(cls, dscore: Array, block: Block) -> Array:
        """See `ScoreFeature.array_gradient_block`."""
        return dscore

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        hidden = np.isneginf(block.take(cls).astype(block.of.dtype))
        return np.broadcast_to(hidden, (len(hidden), *block.sizes))

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        biased: Array = scores + as_scores(of.whole(cls).astype(of.dtype))
        return biased

    @classmethod
    def array_gradient(cls, dafter: Array, of: Scored) -> Array:
        """See `ScoreFeature.array_gradient`."""
        return dafter

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        shown: Array = ~np.isneginf(of.whole(cls))
        return shown

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The errors of rounding the sum, and log2(e)."""
        return StepError(after, UNIT * (after - before))


@dataclass(frozen=True)
class AddedPlane(Applied):
    """A plane of numbers that are added to scores; -inf hides a key."""

    k: KernelBuilder
    plane: ScorePlane

    def change(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k = self.k

        def add(i: int, j: int, bias: Value) -> None:
            k.fma(bias, LOG2E, S[i, j], into=S[i, j])
            with k.only_if(bias == NEG_INF):  # even if the score is NaN or infinite
                S[i, j].set(NEG_INF)

        self.plane.each(k, coordinates, add)

    def hides(self, row: Value, key: Value) -> Value:
        """See `Applied.hides`."""
        return self.plane.element(self.k, row, key) == NEG_INF


class BiasArguments(TypedDict, total=False):
    """bias: float32, or of the dtype of q, [batch, heads, seq_q, seq_k]: added to scaled scores; a
    bias of -inf hides the key.
    """

    bias: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class BiasSettings:
    """bias: the type of the `bias` that launches give, "f32" or `dtype`; None for no bias."""

    bias: DTypeLike | None = None


@dataclass(frozen=True)
class Bias(AddedArray):
    """The bias of a kernel."""

    setting: ClassVar = "bias"
    argument: ClassVar = "bias"
    gradient_of: ClassVar = "scores"
    axes: ClassVar = PER_SCORE
    of_each: ClassVar = "score"
    example: ClassVar = "bias='f32'"
    meaning: ClassVar = "added to the scaled scores; -inf hides the key"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--bias": {"metavar": "TYPE", "help": "added to scores: f32, or the type of --dtype"}
    }
