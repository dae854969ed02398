"""Functions that a user writes (`flash/mods`): `score_mod` changes scores, `mask_mod` says which
keys a query sees, and both index the arrays of `aux`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, TypedDict

import numpy as np

from flash.mods.elements import ElementRead, element_reads
from flash.mods.emit import AuxElements, Emitted
from flash.mods.evaluate import Evaluation
from flash.mods.operations import is_long
from flash.mods.reach import Interval, has_gaps, key_bounds
from flash.mods.record import MASK_MOD, SCORE_MOD, naming, traced
from flash.mods.rounding import rounding
from flash.mods.slopes import derivative
from flash.mods.tile_bounds import OnHost
from flash.mods.trace import SCORE, SUMMED, Trace
from flash.scores.applied_mods import AppliedMaskMod, AppliedScoreMod
from flash.scores.aux_arrays import array_arguments, arrays_of_call, aux_arrays
from flash.scores.feature import UNIT, Applied, Array, Block, Inputs, Scored, ScoreFeature, StepError, TypeOf
from flash.scores.options import function
from ptxgen.records import dataclass

# Registers that a kernel may need for a function, by what the assembler was seen to take.
_REGISTERS: Final = 4
_REGISTERS_OF_CALLS: Final = 8  # of calls, and of a mask_mod with more than comparisons of indices
_REGISTERS_OF_LOADS: Final = 32
Mod = Callable[..., Any] | Trace | None


class ScoreModArguments(TypedDict, total=False):
    """score_mod: a function (score, batch, head, query, key, *names of aux) that gives the new score
    (`docs/score-functions.md`).
    """

    score_mod: Mod


class MaskModArguments(TypedDict, total=False):
    """mask_mod: a function (batch, head, query, key, *names of aux) that gives whether the query sees
    the key (`docs/score-functions.md`).
    """

    mask_mod: Mod


@dataclass(frozen=True, kw_only=True)
class ScoreModSettings:
    """score_mod: a function (score, batch, head, query, key, *names of aux) that gives the new score;
    the config keeps its trace.
    """

    score_mod: Mod = None


@dataclass(frozen=True, kw_only=True)
class MaskModSettings:
    """mask_mod: a function (batch, head, query, key, *names of aux) that gives whether the query sees
    the key; the config keeps its trace.
    """

    mask_mod: Mod = None


@dataclass(frozen=True)
class _OfFunction(ScoreFeature):
    """A feature of a kernel that is a user's function, kept as its trace."""

    trace: Trace

    is_function: ClassVar = True
    uses_query: ClassVar = True
    counts_from_keys: ClassVar = True

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> Trace | None:
        """The trace of the function."""
        if value is None:
            return None
        with naming("AttentionConfig"):
            return traced(cls.setting, value, aux_arrays(of_config.aux))

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        trace = getattr(config, cls.setting)
        return None if trace is None else cls(trace)

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> Trace | None:
        """The trace of the function in the arguments of a call; None without one."""
        value = arguments.get(cls.argument)
        return None if value is None else traced(cls.argument, value, arrays_of_call(arguments))

    @property
    def word(self) -> str:
        """The word for the function in the kernel's name, with the digest of its trace."""
        return f"{self.setting.replace('_', '')}_{self.trace.digest}"

    @property
    def needed_registers(self) -> int:
        """See `ScoreFeature.needed_registers`."""
        if self.trace.loads_by_key:
            return _REGISTERS_OF_LOADS
        return _REGISTERS_OF_CALLS if is_long(self.trace) else _REGISTERS

    def emitted(
        self,
        inputs: Inputs,
        trace: Trace | None = None,
        more: Mapping[str, AuxElements] = MappingProxyType({}),
    ) -> Emitted:
        """The function in a kernel, or another one with the same arguments if `trace` is given. `more` are
        arrays, by name, besides those of the launch.
        """
        trace = self.trace if trace is None else trace
        of_cta = {"batch": inputs.batch}
        if inputs.packing is None:
            of_cta["head"] = inputs.first_head
        arrays = {a.name: more[a.name] if a.name in more else inputs.elements(a) for a in trace.arrays}
        return Emitted(inputs.k, trace, of_cta, arrays, rounds_once=inputs.rounds_once)

    @classmethod
    def evaluated(
        cls,
        trace: Trace,
        scores: Array | None,
        of: Scored,
        block: Block | None = None,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> Evaluation:
        """The function for all scores, or for a block of the scores of one batch item. `more` are arrays, by
        name, besides those of the call.
        """
        batch, heads, seq_q, seq_k = of.shape
        if block is None:
            indices = [np.arange(batch)[:, None, None, None], np.arange(heads)[:, None, None]]
            queries, keys = np.arange(seq_q)[:, None], np.arange(seq_k)
        else:
            indices = [np.array(block.batch), np.arange(block.heads.start, block.heads.stop)[:, None, None]]
            queries, keys = np.arange(block.queries.start, block.queries.stop)[:, None], block.key_indices
        inputs: dict[str, Any] = {
            "batch": indices[0] + of.first_batch,
            "head": indices[1],
            "query": queries + of.first_query,
            "key": keys,
        }
        if scores is not None:
            inputs[SCORE] = scores
        arrays: Any = {**array_arguments(of.arguments), **more}
        return Evaluation(trace, inputs, arrays, of.dtype)


@dataclass(frozen=True)
class ScoreMod(_OfFunction):
    """The function that changes the scores of a kernel."""

    setting: ClassVar = SCORE_MOD
    argument: ClassVar = SCORE_MOD
    example: ClassVar = "score_mod=function"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--score-mod": {
            "type": function,
            "metavar": "MODULE:FUNCTION",
            "help": "a function that changes scores, or FILE.py:FUNCTION (docs/score-functions.md)",
        }
    }
    changes_scores: ClassVar = True
    keeps: ClassVar = "before"

    def applied(self, inputs: Inputs) -> Applied:
        """The function in a kernel."""
        slope = self.emitted(inputs, derivative(self.trace)) if inputs.differentiates else None
        return AppliedScoreMod(inputs, self.emitted(inputs), slope)

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score[...] = cls.evaluated(block.of.arguments[SCORE_MOD], score, block.of, block).result

    @classmethod
    def gradient_block(cls, dscore: Array, saved: Array | None, block: Block) -> None:
        """See `ScoreFeature.gradient_block`."""
        slope = derivative(block.of.arguments[SCORE_MOD])
        dscore *= cls.evaluated(slope, saved, block.of, block).result

    @classmethod
    def add_element_gradients(
        cls, sums: Mapping[str, Array], dscore: Array, before: Array | None, of: Scored, block: Block | None
    ) -> None:
        """Add to the gradients of arrays of `aux` in `sums`, by the names of their operands, the terms of all
        scores, or of a block of them. `dscore` is the gradient of the scores after this step, `before` the
        scores before it.
        """
        for read in element_reads(of.arguments[SCORE_MOD]):
            if read.array.operand in sums:
                of_slope = cls.evaluated(read.slope, before, of, block)
                of_element = cls.of_element(read, before, of, block)
                read.add(sums[read.array.operand], read.terms(dscore, of_slope), of_element)

    @classmethod
    def of_element(
        cls, read: ElementRead, before: Array | None, of: Scored, block: Block | None = None
    ) -> Evaluation:
        """The indices of the elements that one read takes for all scores, or for a block of them."""
        summed = {SUMMED: array_arguments(of.arguments)[read.array.name]}
        return cls.evaluated(read.element, before, of, block, summed)

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        result = cls.evaluated(of.arguments[SCORE_MOD], scores, of, None).result
        return np.broadcast_to(result, scores.shape)

    @classmethod
    def gradient(cls, dafter: Array, before: Array, after: Array, of: Scored) -> Array:
        """See `ScoreFeature.gradient`."""
        slope = derivative(of.arguments[SCORE_MOD])
        result: Array = dafter * cls.evaluated(slope, before, of, None).result
        return result

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The errors of the function's operations, and of log2(e); softcap before it adds one of
        ln(2).
        """
        trace = of.arguments[SCORE_MOD]
        slope = cls.evaluated(derivative(trace), before, of, None).result
        inputs = cls.evaluated(trace, before, of, None).inputs
        error = rounding(trace, inputs, array_arguments(of.arguments))  # type: ignore[arg-type]
        capped = np.abs(slope * before) if of.arguments.get("softcap") else 0.0
        rounded = np.abs(after) + error + 2 * capped
        return StepError(np.broadcast_to(rounded, before.shape), UNIT * after, slope, adds=False)


@dataclass(frozen=True)
class MaskMod(_OfFunction):
    """The function that hides keys in a kernel."""

    setting: ClassVar = MASK_MOD
    argument: ClassVar = MASK_MOD
    example: ClassVar = "mask_mod=function"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--mask-mod": {
            "type": function,
            "metavar": "MODULE:FUNCTION",
            "help": "a function that says which keys a query sees, or FILE.py:FUNCTION",
        }
    }
    hides: ClassVar = True

    @property
    def needed_registers(self) -> int:
        """See `ScoreFeature.needed_registers`."""
        keeps_more = bool(self.trace.arrays) or has_gaps(self.trace)
        return max(super().needed_registers, _REGISTERS_OF_CALLS if keeps_more else 0)

    def applied(self, inputs: Inputs) -> Applied:
        """The function in a kernel."""
        return AppliedMaskMod(inputs, self.emitted(inputs))

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        shown_keys = cls.evaluated(block.of.arguments[MASK_MOD], None, block.of, block).result
        heads = shown_keys.shape[0] if shown_keys.ndim == 3 else 1
        return ~np.broadcast_to(shown_keys, (heads, *block.sizes))

    @classmethod
    def keys_seen(cls, queries: slice, of: Scored) -> range:
        """See `ScoreFeature.keys_seen`."""
        batch, heads, _, seq_k = of.shape
        if not (batch and heads and queries.stop > queries.start):
            return range(seq_k)
        indices = {
            "batch": Interval(of.first_batch, of.first_batch + batch - 1),
            "head": Interval(0, heads - 1),
            "query": Interval(queries.start + of.first_query, queries.stop - 1 + of.first_query),
        }
        call = OnHost(indices, array_arguments(of.arguments))  # type: ignore[arg-type]
        first, last = key_bounds(of.arguments[MASK_MOD], call)
        begin = 0 if first is None else max(int(first), 0)
        end = seq_k if last is None else min(int(last) + 1, seq_k)
        return range(min(begin, seq_k), max(end, min(begin, seq_k)))

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        return cls.evaluated(of.arguments[MASK_MOD], None, of, None).result
