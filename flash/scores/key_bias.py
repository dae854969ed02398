"""Key bias: an array with an element for each key, which is added to the scores of all queries;
-inf hides the key. A padding mask, or a prior over keys, needs no array of all scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypedDict

import numpy as np

from flash.operands.declared import PER_KEY, Operand
from flash.operands.dtypes import DTYPES, DType
from flash.scores.bias import AddedPlane
from flash.scores.feature import (
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

_NAME: Final = "key_bias"


class KeyBiasArguments(TypedDict, total=False):
    """key_bias: float32, or of the dtype of q, [batch, heads, seq_k]: added to scaled scores of the
    key; -inf hides it.
    """

    key_bias: object


@dataclass(frozen=True, kw_only=True)
class KeyBiasSettings:
    """key_bias: the type of the `key_bias` that launches give, "f32" or `dtype`; None for none."""

    key_bias: str | None = None


@dataclass(frozen=True)
class KeyBias(ScoreFeature):
    """The key bias of a kernel, and the type of its elements."""

    element: DType

    setting: ClassVar = _NAME
    argument: ClassVar = _NAME
    axes: ClassVar = PER_KEY
    example: ClassVar = "key_bias='f32'"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--key-bias": {
            "metavar": "TYPE", "help": "added to scores, by key: f32, or the type of --dtype",
        }
    }  # fmt: skip
    changes_scores: ClassVar = True
    hides: ClassVar = True
    uses_query: ClassVar = True  # of a packed row, for its head
    of_each: ClassVar = "key"
    in_cache: ClassVar = False
    registers: ClassVar = 32

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> str | None:
        """See `ScoreFeature.normalized`."""
        return type_of_array(_NAME, value, of_config.dtype)

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        return None if config.key_bias is None else cls(DTYPES[config.key_bias])

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> str | None:
        """The type of the key bias that is given."""
        given = arguments.get(_NAME)
        return None if given is None else type_of(given, _NAME)

    @property
    def word(self) -> str:
        """The word for it in the kernel's name, with the type."""
        return f"keybias_{self.element.name}"

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.element

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The key bias."""
        meaning = "added to the scaled scores of the key, for all queries; -inf hides the key"
        return (Operand(_NAME, self.element, self.axes, meaning),)

    def applied(self, inputs: Inputs) -> Applied:
        """The key bias in a kernel."""
        return AddedPlane(inputs.k, inputs.plane(_NAME))

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score += as_scores(block.take(_NAME, block.keys).astype(block.of.dtype))[:, None]

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        hidden = np.isneginf(block.take(_NAME, block.keys).astype(block.of.dtype))[:, None]
        queries = block.queries.stop - block.queries.start
        return np.broadcast_to(hidden, (len(hidden), queries, hidden.shape[2]))

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        biased: Array = scores + of.as_scores(_NAME)[:, :, None]
        return biased

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        shown: Array = ~np.isneginf(of.arguments[_NAME])[:, :, None]
        return shown

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The rounding of the sum, and of log2(e)."""
        return StepError(after, UNIT * (after - before))
