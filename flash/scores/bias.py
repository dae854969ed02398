"""Bias: an array with an element for each score, which is added to it; -inf hides the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypedDict

import numpy as np

from flash.operands.declared import PER_SCORE, Operand
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
from flash.scores.places import ScorePlaces, ScorePlane
from ptxgen.dsl import Fragment, KernelBuilder, Value


class BiasArguments(TypedDict, total=False):
    """bias: float32, or of the dtype of q, [batch, heads, seq_q, seq_k]: added to scaled scores; a
    bias of -inf hides the key.
    """

    bias: object


@dataclass(frozen=True, kw_only=True)
class BiasSettings:
    """bias: the type of the `bias` that launches give, "f32" or `dtype`; None for no bias."""

    bias: str | None = None


@dataclass(frozen=True)
class Bias(ScoreFeature):
    """The bias of a kernel, and the type of its elements."""

    element: DType

    setting: ClassVar = "bias"
    argument: ClassVar = "bias"
    axes: ClassVar = PER_SCORE
    example: ClassVar = "bias='f32'"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--bias": {"metavar": "TYPE", "help": "added to scores: f32, or the type of --dtype"}
    }
    changes_scores: ClassVar = True
    hides: ClassVar = True
    uses_query: ClassVar = True
    of_each: ClassVar = "score"
    in_cache: ClassVar = False
    registers: ClassVar = 32

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> str | None:
        """See `ScoreFeature.normalized`."""
        return type_of_array("bias", value, of_config.dtype)

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        return None if config.bias is None else cls(DTYPES[config.bias])

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> str | None:
        """The type of the bias that is given."""
        given = arguments.get("bias")
        return None if given is None else type_of(given, "bias")

    @property
    def word(self) -> str:
        """The word for it in the kernel's name, with the type."""
        return f"bias_{self.element.name}"

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.element

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The bias."""
        meaning = "added to the scaled scores; -inf hides the key"
        return (Operand("bias", self.element, self.axes, meaning),)

    def applied(self, inputs: Inputs) -> Applied:
        """The bias in a kernel."""
        return AddedPlane(inputs.k, inputs.plane("bias"))

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score += as_scores(block.take("bias", block.queries, block.keys).astype(block.of.dtype))

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        hidden: Array = np.isneginf(
            block.take("bias", block.queries, block.keys).astype(block.of.dtype)
        )
        return hidden

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        biased: Array = scores + of.as_scores("bias")
        return biased

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        shown: Array = ~np.isneginf(of.arguments["bias"])
        return shown

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The rounding of the sum, and of log2(e)."""
        return StepError(after, UNIT * (after - before))


@dataclass(frozen=True)
class AddedPlane(Applied):
    """A plane of numbers that are added to scores; -inf hides a key."""

    k: KernelBuilder
    plane: ScorePlane

    def change(self, S: Fragment, places: ScorePlaces) -> None:
        """See `Applied.change`."""
        k = self.k

        def add(i: int, j: int, bias: Value) -> None:
            k.fma(bias, LOG2E, S[i, j], into=S[i, j])
            with k.only_if(bias == NEG_INF):  # even if the score is NaN or infinite
                S[i, j].set(NEG_INF)

        self.plane.each(k, places, add)

    def hides(self, row: Value, key: Value) -> Value:
        """See `Applied.hides`."""
        return self.plane.element(self.k, row, key) == NEG_INF
