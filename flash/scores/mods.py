"""Functions that a user writes (`flash/mods`): `score_mod` changes scores, `mask_mod` says which
keys a query sees, and both index the arrays of `aux`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self, TypedDict

import numpy as np

from flash.mods.emit import Elements, Emitted
from flash.mods.evaluate import Evaluation
from flash.mods.reach import (
    NO_BOUNDS,
    Interval,
    KeyBounds,
    bounds_keys,
    hiding_bounds,
    key_bounds,
    shows_tiles,
)
from flash.mods.record import MASK_MOD, SCORE_MOD, traced
from flash.mods.rounding import rounding
from flash.mods.slopes import derivative
from flash.mods.tile_bounds import OfCta, OnHost
from flash.mods.trace import AUX, SCORE, AuxArray, Trace
from flash.operands.declared import MAX_ELEMENTS, Number, Operand
from flash.operands.dtypes import AUX_DTYPES, DType
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
)
from flash.scores.options import arrays, function
from flash.scores.places import ScorePlaces
from ptxgen.arrays.views import view
from ptxgen.dsl import Fragment, Value, marked
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.types import u32

_MOST_AXES: Final = 4
# Registers that a kernel may need for a function, by what the assembler was seen to take.
_REGISTERS: Final = 4
_REGISTERS_OF_CALLS: Final = 8
_REGISTERS_OF_LOADS: Final = 32
Mod = Callable[..., Any] | Trace | None
Aux = Mapping[str, Any] | tuple[AuxArray, ...] | None


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


class AuxArguments(TypedDict, total=False):
    """aux: arrays by name, which score_mod and mask_mod index: float32, float16, bfloat16, int32,
    uint8 or bool, of 1 to 4 axes.
    """

    aux: Mapping[str, object] | None


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


@dataclass(frozen=True, kw_only=True)
class AuxSettings:
    """aux: the arrays that score_mod and mask_mod index, by name: {"slopes": ("f32", 1)} is an array
    of float32 with one axis. Launches give `aux`.
    """

    aux: Aux = None


# ------------------------------------------------------------------------------------------ arrays


def aux_arrays(given: object) -> tuple[AuxArray, ...]:
    """The arrays of a config's `aux`, by name. Raises `ConfigError` for anything else."""
    if given is None:
        return ()
    if isinstance(given, tuple) and all(isinstance(array, AuxArray) for array in given):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(
            "AttentionConfig: aux must be a mapping of names to (type, axes), such as "
            f'{{"slopes": ("f32", 1)}}, got {shown(given)}'
        )
    return tuple(_declared(name, given[name]) for name in sorted(map(_name, given)))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"AttentionConfig: a name in aux must be that of a parameter, got {shown(name)}")
    return name


def _declared(name: str, value: Any) -> AuxArray:
    kind, axes = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, 0)
    dtype = _dtype(kind)
    if dtype is None or isinstance(axes, bool) or axes not in range(1, _MOST_AXES + 1):
        names = ", ".join(t.name for t in AUX_DTYPES)
        raise ConfigError(
            f"AttentionConfig: aux[{name!r}] must be (type, axes), with a type of {names} and 1 to "
            f"{_MOST_AXES} axes, got {shown(value)}"
        )
    return AuxArray(name, dtype, int(axes))


def _dtype(kind: object) -> DType | None:
    """The type of a name, as this project or array libraries write it, or of a library's type."""
    name = kind if isinstance(kind, str) else str(kind)
    if isinstance(kind, (type, np.dtype)):
        try:
            name = np.dtype(kind).name
        except TypeError:
            return None
    short = name.removeprefix("torch.")
    return next((t for t in AUX_DTYPES if short in (t.name, t.array_name)), None)


def _given_arrays(arguments: Mapping[str, Any]) -> Mapping[str, object]:
    """The arrays of a call's `aux`, by name. Raises `LaunchError` for anything else."""
    given = arguments.get(AUX)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise LaunchError(
            'aux must be a mapping of names to arrays, such as {"slopes": slopes}, where slopes is a '
            f"parameter of score_mod or mask_mod; got {shown(given)}"
        )
    return given


def _of_call(arguments: Mapping[str, Any]) -> tuple[AuxArray, ...]:
    """The declarations of the arrays of a call."""
    given = _given_arrays(arguments)
    declared = {}
    for name in map(_name, given):
        array = view(given[name], f"{AUX}[{name!r}]")
        declared[name] = (array.dtype, len(array.shape))
    return aux_arrays(declared)


def flattened(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch with the arrays of `aux` by the names of their operands."""
    found = {name: value for name, value in arguments.items() if name != AUX}
    return found | {f"{AUX}_{name}": array for name, array in _given_arrays(arguments).items()}


def gathered(operands: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call on the host, from arrays by the names of their operands."""
    prefix = f"{AUX}_"
    found = {name: array for name, array in operands.items() if not name.startswith(prefix)}
    of_mods = {n.removeprefix(prefix): array for n, array in operands.items() if n.startswith(prefix)}
    return found | ({AUX: of_mods} if of_mods else {})


@dataclass(frozen=True)
class AuxArrays(ScoreFeature):
    """The arrays that the functions of a kernel index."""

    arrays: tuple[AuxArray, ...]

    setting: ClassVar = AUX
    argument: ClassVar = AUX
    example: ClassVar = 'aux={"slopes": ("f32", 1)}'
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--aux": {
            "type": arrays,
            "metavar": "NAME:TYPE:AXES,...",
            "help": "the arrays that --score-mod and --mask-mod index, such as slopes:f32:1",
        }
    }
    gives_arrays: ClassVar = True

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> tuple[AuxArray, ...]:
        """See `ScoreFeature.normalized`."""
        found = aux_arrays(value)
        mods = [mod for mod in (of_config.score_mod, of_config.mask_mod) if mod is not None]
        indexed = {array.name for mod in mods for array in mod.arrays}
        for array in found:
            if array.name not in indexed:
                raise ConfigError(
                    f"AttentionConfig: aux has {array.name!r}, which neither score_mod nor mask_mod indexes; "
                    "leave it out"
                )
        return found

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        return cls(config.aux) if config.aux else None

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> tuple[AuxArray, ...]:
        """The declarations of the arrays that are given."""
        return _of_call(arguments)

    @classmethod
    def is_asked(cls, arguments: Mapping[str, Any]) -> bool:
        """False: what is done to scores is in the functions."""
        return False

    @property
    def word(self) -> str:
        """The word for the arrays in the kernel's name."""
        return f"{AUX}{len(self.arrays)}"

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The arrays."""
        return tuple(
            Operand(
                array.operand,
                array.dtype,
                array.sizes,
                "indexed by score_mod or mask_mod; an index outside is that of the nearest element",
                steps=tuple(f"axis_{axis}" for axis in range(array.rank)),
                is_whole=True,
            )
            for array in self.arrays
        )

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """The lengths of the axes."""
        return tuple(
            Number(size, u32, f"elements of {array.operand} along axis {axis}", (1, MAX_ELEMENTS))
            for array in self.arrays
            for axis, size in enumerate(array.sizes)
        )


# --------------------------------------------------------------------------------------- functions


@dataclass(frozen=True)
class _OfFunction(ScoreFeature):
    """A function of a kernel, as its trace."""

    trace: Trace

    is_function: ClassVar = True
    uses_query: ClassVar = True
    counts_from_keys: ClassVar = True

    @classmethod
    def normalized(cls, value: Any, of_config: Any) -> Trace | None:
        """The trace of the function."""
        return None if value is None else traced(cls.setting, value, aux_arrays(of_config.aux))

    @classmethod
    def of(cls, config: Any) -> Self | None:
        """See `ScoreFeature.of`."""
        trace = getattr(config, cls.setting)
        return None if trace is None else cls(trace)

    @classmethod
    def setting_of_call(cls, arguments: Mapping[str, Any], type_of: TypeOf) -> Trace | None:
        """The trace of the function that is given."""
        given = arguments.get(cls.argument)
        return None if given is None else traced(cls.argument, given, _of_call(arguments))

    @property
    def word(self) -> str:
        """The word for it in the kernel's name: with the digest of the trace."""
        return f"{self.setting.replace('_', '')}_{self.trace.digest}"

    @property
    def needed_registers(self) -> int:
        """See `ScoreFeature.needed_registers`."""
        if self.trace.loads_by_key:
            return _REGISTERS_OF_LOADS
        return _REGISTERS_OF_CALLS if self.trace.calls else _REGISTERS

    def emitted(self, inputs: Inputs) -> Emitted:
        """The function in a kernel."""
        of_cta = {"batch": inputs.batch}
        if inputs.packing is None:
            of_cta["head"] = inputs.first_head
        arrays = {array.name: inputs.elements(array) for array in self.trace.arrays}
        return Emitted(inputs.k, self.trace, of_cta, arrays, rounds_once=inputs.rounds_once)

    @classmethod
    def _evaluated(cls, trace: Trace, scores: Array | None, of: Scored, block: Block | None) -> Evaluation:
        """The function for all scores, or for a block of the scores of one batch item."""
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
        return Evaluation(trace, inputs, _given_arrays(of.arguments), of.dtype)  # type: ignore[arg-type]


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
        return AppliedScoreMod(inputs, self.emitted(inputs))

    @classmethod
    def change_block(cls, score: Array, block: Block) -> None:
        """See `ScoreFeature.change_block`."""
        score[...] = cls._evaluated(block.of.arguments[SCORE_MOD], score, block.of, block).result

    @classmethod
    def gradient_block(cls, dscore: Array, kept: Array | None, block: Block) -> None:
        """See `ScoreFeature.gradient_block`."""
        slope = derivative(block.of.arguments[SCORE_MOD])
        dscore *= cls._evaluated(slope, kept, block.of, block).result

    @classmethod
    def changed(cls, scores: Array, of: Scored) -> Array:
        """See `ScoreFeature.changed`."""
        found = cls._evaluated(of.arguments[SCORE_MOD], scores, of, None).result
        return np.broadcast_to(found, scores.shape)

    @classmethod
    def gradient(cls, dafter: Array, before: Array, after: Array, of: Scored) -> Array:
        """See `ScoreFeature.gradient`."""
        slope = derivative(of.arguments[SCORE_MOD])
        found: Array = dafter * cls._evaluated(slope, before, of, None).result
        return found

    @classmethod
    def error(cls, before: Array, after: Array, of: Scored) -> StepError:
        """The errors of the function's operations, and of log2(e); softcap before it adds one of
        ln(2).
        """
        trace = of.arguments[SCORE_MOD]
        slope = cls._evaluated(derivative(trace), before, of, None).result
        inputs = cls._evaluated(trace, before, of, None).inputs
        own = rounding(trace, inputs, _given_arrays(of.arguments))  # type: ignore[arg-type]
        capped = np.abs(slope * before) if of.arguments.get("softcap") else 0.0
        rounded = np.abs(after) + own + 2 * capped
        return StepError(np.broadcast_to(rounded, before.shape), UNIT * after, slope, adds=False)


@dataclass(frozen=True)
class AppliedScoreMod(Applied):
    """A function of scores in natural units."""

    inputs: Inputs
    emitted: Emitted

    is_natural: ClassVar[bool] = True

    @marked("mods: score")
    def change(self, S: Fragment, places: ScorePlaces) -> None:
        """See `Applied.change`."""
        k, of = self.inputs.k, _OfTile(self.inputs, self.emitted, places)
        for i, j, elements in of.each():
            score = S[i, j]
            found = elements.at(i, j, {**of.indices(i, j), SCORE: lambda score=score: score})
            if isinstance(found, Value):
                k.mul(found, LOG2E, into=score)
            else:
                score.set(found * LOG2E)


@dataclass(frozen=True)
class _OfTile:
    """A function for a thread's scores in a tile."""

    inputs: Inputs
    emitted: Emitted
    places: ScorePlaces

    def indices(self, i: int, j: int) -> dict[str, Callable[[], Value]]:
        """What emits the indices of row i and column j."""
        places = self.places
        return {
            "query": lambda: _query(self.inputs, places.query(i)),
            "head": lambda: self.inputs.first_head + places.head(i, places.query(i)),
            "key": lambda: places.my_first_key + places.keys[j],
            "first_key": lambda: places.my_first_key,
        }

    def each(self) -> Iterator[tuple[int, int, Elements]]:
        """The rows and columns, with the place for what is emitted for them. If elements are loaded
        by key, only for keys that exist.
        """
        places, k = self.places, self.inputs.k
        elements = Elements(self.emitted, places.keys)
        branches = self.emitted.trace.loads_by_key
        if branches:
            for i in range(len(places.rows)):
                elements.prepare(i, self.indices(i, 0))
        for j, apart in enumerate(places.keys):
            # Branched over, so that the assembler does not load for all keys at once, which takes
            # more registers than there are.
            with k.when(places.my_first_key < self.inputs.keys - apart) if branches else nullcontext():
                for i in range(len(places.rows)):
                    yield i, j, elements


def _query(inputs: Inputs, query: Value) -> Value:
    """The query as functions see it."""
    return query if inputs.first_query is None else query + inputs.first_query


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

    def applied(self, inputs: Inputs) -> Applied:
        """The function in a kernel."""
        return AppliedMaskMod(inputs, self.emitted(inputs))

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        shown_keys = cls._evaluated(block.of.arguments[MASK_MOD], None, block.of, block).result
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
        call = OnHost(indices, _given_arrays(of.arguments))  # type: ignore[arg-type]
        first, last = key_bounds(of.arguments[MASK_MOD], call)
        begin = 0 if first is None else max(int(first), 0)
        end = seq_k if last is None else min(int(last) + 1, seq_k)
        return range(min(begin, seq_k), max(end, min(begin, seq_k)))

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        return cls._evaluated(of.arguments[MASK_MOD], None, of, None).result


@dataclass(frozen=True)
class AppliedMaskMod(Applied):
    """A function that says which keys a query sees. The queries of the CTA see keys within `seen`
    only, and do not see all keys only within one of `hiding`; None if any key may be hidden.
    """

    inputs: Inputs
    emitted: Emitted
    seen: KeyBounds = NO_BOUNDS
    hiding: list[KeyBounds] | None = None

    @marked("mods: mask")
    def hide(self, S: Fragment, places: ScorePlaces) -> None:
        """See `Applied.hide`."""
        if self.hiding is None:
            self._hide(S, places)
            return
        k, end = self.inputs.k, places.first_key + self.inputs.tile
        parts = []
        for first, last in self.hiding:
            meets = [] if first is None else [end > first]
            meets += [] if last is None else [places.first_key <= last]
            parts.append(functools.reduce(operator.and_, meets))
        with k.when(functools.reduce(operator.or_, parts), uniform=True):
            self._hide(S, places)

    def _hide(self, S: Fragment, places: ScorePlaces) -> None:
        k, of = self.inputs.k, _OfTile(self.inputs, self.emitted, places)
        for i, j, elements in of.each():
            seen = elements.at(i, j, of.indices(i, j))
            if isinstance(seen, Value):
                k.selp(S[i, j], NEG_INF, seen, into=S[i, j])
            elif not seen:
                S[i, j].set(NEG_INF)

    @marked("mods: key")
    def hides(self, row: Value, key: Value) -> Value | None:
        """See `Applied.hides`."""
        inputs, packing = self.inputs, self.inputs.packing
        query = row if packing is None else packing.query(row)
        seen = self.emitted.value(
            {
                "query": lambda: _query(inputs, query),
                "head": lambda: (
                    inputs.first_head if packing is None else inputs.first_head + packing.head(row)
                ),
                "key": lambda: key,
            }
        )
        if isinstance(seen, Value):
            return ~seen
        return None if seen else key == key

    @property
    def narrows(self) -> bool:
        """See `Applied.narrows`."""
        return bounds_keys(self.emitted.trace) or shows_tiles(self.emitted.trace)

    @marked("mods: tiles")
    def of_queries(self, first_query: Value, last_query: Value) -> AppliedMaskMod:
        """See `Applied.of_queries`."""
        inputs, trace, head = self.inputs, self.emitted.trace, self.inputs.first_head
        indices = {
            "batch": Interval(inputs.batch, inputs.batch),
            "head": Interval(head, head if inputs.packing is None else head + (inputs.packing.group - 1)),
            "query": Interval(_query(inputs, first_query), _query(inputs, last_query)),
        }
        call = OfCta(inputs.k, indices, self.emitted.arrays)
        seen = key_bounds(trace, call) if bounds_keys(trace) else self.seen
        return replace(self, seen=seen, hiding=hiding_bounds(trace, call) if shows_tiles(trace) else None)

    @property
    def key_bounds(self) -> KeyBounds:
        """See `Applied.key_bounds`."""
        return self.seen
