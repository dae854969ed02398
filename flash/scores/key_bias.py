"""Key bias: an array with an element for each key, which is added to the scores of all queries;
-inf hides the key. A padding mask, or a prior over keys, needs no array of all scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from flash.operands.declared import PER_KEY
from flash.operands.dtype_names import AnyArray, DTypeLike
from flash.scores.bias import AddedArray
from flash.scores.feature import Array, Block, Scored
from ptxgen.records import dataclass


class KeyBiasArguments(TypedDict, total=False):
    """key_bias: float32, or of the dtype of q, [batch, heads, seq_k]: added to scaled scores of the
    key; -inf hides it.
    """

    key_bias: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class KeyBiasSettings:
    """key_bias: the type of the `key_bias` that launches give, "f32" or `dtype`; None for none."""

    key_bias: DTypeLike | None = None


@dataclass(frozen=True)
class KeyBias(AddedArray):
    """The key bias of a kernel."""

    setting: ClassVar = "key_bias"
    argument: ClassVar = "key_bias"
    gradient_of: ClassVar = "keys"
    axes: ClassVar = PER_KEY
    of_each: ClassVar = "key"
    excludes: ClassVar = "bias"  # which hides keys before it, where NaN of this one would show
    registers: ClassVar = 40
    example: ClassVar = "key_bias='f32'"
    meaning: ClassVar = "added to the scaled scores of the key, for all queries; -inf hides the key"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--key-bias": {"metavar": "TYPE", "help": "added to scores, by key: f32, or the type of --dtype"}
    }

    @classmethod
    def array_gradient_block(cls, dscore: Array, block: Block) -> Array:
        """See `ScoreFeature.array_gradient_block`."""
        result: Array = dscore.sum(axis=1)
        return result

    @classmethod
    def array_gradient(cls, dafter: Array, of: Scored) -> Array:
        """See `ScoreFeature.array_gradient`."""
        result: Array = dafter.sum(axis=2)
        return result
