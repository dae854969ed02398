"""Attention sink: a score of every row in addition to those of its keys, with a value of 0, one for each
head (gpt-oss; arXiv:2309.17453).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np

from flash.operands.declared import PER_HEAD, Operand
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import F32
from flash.scores.feature import LOG2E, NEG_INF, Applied, Array, Inputs, Scored, ScoreFeature, as_scores
from flash.scores.heads import PackedNumbers
from ptxgen import dsl
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value


class SinkArguments(TypedDict, total=False):
    """sink: float32 [batch, heads], one more score of every row, with a value of 0."""

    sink: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    """sink: whether launches give `sink`."""

    sink: bool = False


@dataclass(frozen=True)
class Sink(ScoreFeature):
    """The sinks of a kernel."""

    setting: ClassVar = "sink"
    argument: ClassVar = "sink"
    axes: ClassVar = PER_HEAD
    array_dtype: ClassVar = F32
    in_transformers: ClassVar = "s_aux"
    example: ClassVar = "sink=True"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--sink": {"action": "store_true", "help": "a score of every row, with a value of 0, by head"}
    }
    changes_scores: ClassVar = True  # it is compared with scores, unscaled
    begins_softmax: ClassVar = True
    gradient_of: ClassVar = "first"
    registers: ClassVar = 12
    adds_registers: ClassVar = True

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declaration of the array of sinks."""
        meaning = "a score that every row has beside those of its keys, with a value of 0"
        return (Operand("sink", self.array_dtype, self.axes, meaning),)

    def applied(self, inputs: Inputs) -> Applied:
        """The sinks in a kernel, loaded, except those of packed rows."""
        logit = inputs.of_head("sink")
        return AppliedSink(inputs.k, logit * LOG2E if isinstance(logit, dsl.Value) else logit)

    @classmethod
    def sinks(cls, batch: int, heads: slice, of: Scored) -> Array:
        """See `ScoreFeature.sinks`."""
        return as_scores(of.arguments["sink"][batch, heads].astype(of.dtype))

    @classmethod
    def sinks_gradient(cls, lse: Array, delta: Array, batch: int, heads: slice, of: Scored) -> Array:
        """See `ScoreFeature.sinks_gradient`: delta times the weights of the sinks."""
        weight = np.exp(cls.sinks(batch, heads, of)[:, None] - lse)
        weight *= delta
        np.copyto(weight, 0, where=np.isneginf(lse))
        result: Array = -weight.sum(axis=1)
        return result

    @classmethod
    def first_scores(cls, of: Scored) -> Array:
        """See `ScoreFeature.first_scores`."""
        return as_scores(of.whole(cls).astype(of.dtype))

    @classmethod
    def first_gradient(cls, lse: Array, delta: Array, of: Scored) -> Array:
        """See `ScoreFeature.first_gradient`: -exp(sink - LSE) * delta, summed over rows."""
        weight = np.exp(cls.first_scores(of)[..., None] - lse)
        result: Array = -np.where(np.isneginf(lse), 0, weight * delta).sum(axis=2)
        return result


@dataclass(frozen=True)
class AppliedSink(Applied):
    """The sink of the CTA's head, in units of log2; with packed rows, the sinks of its heads as
    the caller gives them.
    """

    k: KernelBuilder
    logit: Value | PackedNumbers

    def first_gradient(self, lse: Value, delta: Value) -> Value:
        """See `Applied.first_gradient`: -exp(sink - LSE) D, 0 of a row without keys."""
        k = self.k
        assert isinstance(self.logit, dsl.Value)  # not packed
        weight = k.ex2(k.fma(lse, -LOG2E, self.logit), ftz=True)
        return k.selp(0.0, -(weight * delta), lse == NEG_INF)

    def first_logits(self, rows: Sequence[Value] | None) -> list[Value]:
        """See `Applied.first_logits`."""
        if isinstance(self.logit, dsl.Value):
            return [self.logit]
        assert rows is not None  # packed
        return [self.logit.of_row(self.k, row) * LOG2E for row in rows]
