"""Softcap: scaled scores become softcap * tanh(score / softcap) (Gemma 2, arXiv:2408.00118)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

import numpy as np

from flash.mods.hyperbolic import tanh
from flash.operands.declared import Number
from flash.scores.feature import LOG2E, UNIT, Applied, Array, Block, Inputs, Scored, ScoreFeature, StepError
from flash.scores.options import is_scale, number
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.arguments import in_numbers
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.types import f32

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value

# The limits of softcap: scores are divided by it, and tanh multiplied, in f32 without overflow or
# underflow.
_LEAST: Final = 2.0**-20
_MOST: Final = 2.0**20
_TANH_UNITS: Final = 6.0  # the error of tanh, in `UNIT`
_FACTORS: Final = 2.0  # roundings of the cap and of log2(e)


class SoftcapArguments(TypedDict, total=False):
    """softcap: scaled scores become softcap * tanh(score / softcap); None or 0 for no cap."""

    softcap: float | None


@dataclass(frozen=True, kw_only=True)
class SoftcapSettings:
    """softcap: scaled scores become softcap * tanh(score / softcap); None or 0 for no cap."""

    softcap: float | None = None


@dataclass(frozen=True)
class Softcap(ScoreFeature):
    """The softcap of a kernel; its value is a scalar of the launch."""

    setting: ClassVar = "softcap"
    argument: ClassVar = "softcap"
    example: ClassVar = "softcap=30.0"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--softcap": {"type": number, "metavar": "C", "help": "scores become C * tanh(score / C)"}
    }
    schema: ClassVar = "float?"
    in_transformers: ClassVar = "softcap"
    changes_scores: ClassVar = True
    keeps: ClassVar = "after"
    registers: ClassVar = 8

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> float | None:
        """The cap as a float; None for no cap, also if `value` is 0."""
        value = in_numbers(value)
        if value is None or (is_scale(value) and value == 0):
            return None
        if not (is_scale(value) and _LEAST <= value <= _MOST):
            raise ConfigError(
                f"AttentionConfig: softcap must be a number from {_LEAST:g} to {_MOST:g}, or None "
                f"or 0 for no cap, got {shown(value)}"
            )
        return float(value)

    @classmethod
    def values(cls, config: Any) -> dict[str, int | float]:
        """The value of the cap's parameter."""
        return {} if config.softcap is None else {"softcap": config.softcap}

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The declaration of the cap, a scalar."""
        meaning = "scaled scores become softcap * tanh(score / softcap), before bias and ALiBi"
        return (Number("softcap", f32, meaning),)

    def applied(self, inputs: Inputs) -> Applied:
        """The cap in a kernel."""
        return AppliedSoftcap(inputs.k, inputs.scale, inputs.numbers["softcap"], inputs.rounds_once)

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        cap = block.of.dtype.type(block.of.arguments["softcap"])
        np.divide(score, cap, out=score)
        np.tanh(score, out=score)
        np.multiply(score, cap, out=score)

    @classmethod
    def gradient_block(cls, dscore: Array, saved: Array | None, block: Block) -> None:
        """See `ScoreFeature.gradient_block`; the derivative of tanh is 1 - tanh²."""
        assert saved is not None  # as `keeps` says
        slope = saved / block.of.dtype.type(block.of.arguments["softcap"])
        np.square(slope, out=slope)
        np.subtract(1, slope, out=slope)
        dscore *= slope

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        cap = np.asarray(of.arguments["softcap"], of.dtype)
        capped: Array = cap * np.tanh(scores / cap)
        return capped

    @classmethod
    def gradient(cls, dafter: Array, before: Array, after: Array, of: Scored) -> Array:
        """See `ScoreFeature.gradient`; the derivative of tanh is 1 / cosh²."""
        cap = np.asarray(of.arguments["softcap"], of.dtype)
        lessened: Array = dafter / np.cosh(before / cap) ** 2
        return lessened

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The error of tanh; its derivative reduces errors of earlier steps."""
        slope = 1 - (after / of.arguments["softcap"]) ** 2
        return StepError(_TANH_UNITS * after, _FACTORS * UNIT * after, slope, adds=False)


@dataclass(frozen=True)
class AppliedSoftcap(Applied):
    """cap * tanh(scale * product / cap), in units of log2."""

    k: KernelBuilder
    scale: Value
    cap: Value
    rounds_once: bool

    scales: ClassVar = True
    bends: ClassVar = True

    def times(self, factor: Value) -> AppliedSoftcap:
        """See `Applied.times`."""
        return replace(self, scale=self.scale * factor)

    def change(self, S: Fragment, coordinates: ScoreCoordinates, slopes: Fragment | None = None) -> None:
        """See `Applied.change`."""
        k = self.k
        factor, top = self.scale * k.rcp_rn(self.cap), self.cap * LOG2E
        for i, scores in enumerate(S):
            for j, score in enumerate(scores):
                share = tanh(k, score * factor, rounds_once=self.rounds_once)
                if slopes is not None:
                    k.mul(slopes[i, j], k.fma(-share, share, 1.0), into=slopes[i, j])
                k.mul(share, top, into=score)
