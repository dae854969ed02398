"""The features of scores, in the order in which kernels apply them and have their operands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, get_type_hints

import numpy as np

from flash.mods.elements import differentiable
from flash.mods.trace import AuxArray, Trace
from flash.operands.declared import PER_HEAD, PER_SCORE
from flash.operands.dtype_names import Causal
from flash.scores.alibi import Alibi, AlibiArguments, AlibiSettings
from flash.scores.aux_arrays import AuxArguments, AuxArrays, AuxSettings, aux_arrays
from flash.scores.bias import Bias, BiasArguments, BiasSettings
from flash.scores.dropout import Dropout, DropoutArguments, DropoutSeed, DropoutSettings
from flash.scores.feature import Scored, ScoreFeature, TypeOf
from flash.scores.key_bias import KeyBias, KeyBiasArguments, KeyBiasSettings
from flash.scores.mask import BoolMask, MaskArguments, MaskSettings
from flash.scores.mods import (
    MaskMod,
    MaskModArguments,
    MaskModSettings,
    ScoreMod,
    ScoreModArguments,
    ScoreModSettings,
)
from flash.scores.sink import Sink, SinkArguments, SinkSettings
from flash.scores.softcap import Softcap, SoftcapArguments, SoftcapSettings
from flash.scores.window import Window, WindowArguments, WindowSettings, position_offset
from ptxgen.errors import did_you_mean
from ptxgen.records import dataclass

_Function = TypeVar("_Function", bound=Callable[..., Any])

SCORES: Final[tuple[type[ScoreFeature], ...]] = (
    Window,
    Softcap,
    ScoreMod,
    Alibi,
    Bias,
    KeyBias,
    BoolMask,
    MaskMod,
    AuxArrays,
    Sink,
    Dropout,
)


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(
    DropoutSettings,
    SinkSettings,
    AuxSettings,
    MaskModSettings,
    MaskSettings,
    KeyBiasSettings,
    BiasSettings,
    AlibiSettings,
    ScoreModSettings,
    SoftcapSettings,
    WindowSettings,
):
    """The settings of all features."""

    def _normalize(self) -> None:
        """Check the settings and keep them as kernels need them. Raises `ConfigError`."""
        for feature in SCORES:
            value = feature.normalized(getattr(self, feature.setting), self)
            object.__setattr__(self, feature.setting, value)

    @property
    def scores(self) -> tuple[ScoreFeature, ...]:
        """The features that the settings ask for."""
        return tuple(result for feature in SCORES if (result := feature.of(self)) is not None)

    @property
    def aux_arrays(self) -> tuple[AuxArray, ...]:
        """The arrays that functions of scores index."""
        return aux_arrays(self.aux)

    @property
    def aux_operands(self) -> tuple[str, ...]:
        """The names of the operands of the arrays that functions of scores index."""
        return tuple(array.operand for array in self.aux_arrays)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The names of the arrays of scores that have gradients: arguments, and operands of arrays in
        `aux`.
        """
        arguments = [feature.argument for feature in self.scores if feature.gradient_of]
        trace = cast(Trace | None, self.score_mod)
        return (*arguments, *[array.operand for array in differentiable(trace)])

    @property
    def score_arguments(self) -> ScoreArguments:
        """The settings that are arguments of a call, too, by name."""
        result: Any = {f.argument: getattr(self, f.setting) for f in SCORES if not (f.axes or f.gives_arrays)}
        return cast(ScoreArguments, result)

    @property
    def numbers(self) -> dict[str, int | float]:
        """The scalars of the launch that the settings determine, by name."""
        return {name: n for feature in SCORES for name, n in feature.values(self).items()}


class HeadArguments(AlibiArguments, AuxArguments, SinkArguments, total=False):
    """The arrays of the features that all calls may have: with no element for a key."""


class ScoreArrays(HeadArguments, BiasArguments, KeyBiasArguments, MaskArguments, total=False):
    """The arrays of all features."""


class LaunchScores(ScoreArrays, DropoutSeed, total=False):
    """The arguments of all features in a launch, whose config has their settings."""


class ValueArguments(WindowArguments, SoftcapArguments, ScoreModArguments, MaskModArguments, total=False):
    """The arguments of the features that all calls may have, beside arrays."""


class WeightArguments(ValueArguments, ScoreArrays, total=False):
    """The arguments of all features but dropout in a call without a config."""


class ScoreArguments(WeightArguments, DropoutArguments, total=False):
    """The arguments of all features in a call without a config."""


class VarlenArguments(ValueArguments, HeadArguments, DropoutArguments, total=False):
    """The arguments of the features that packed sequences may have, in a call without a config."""


class CacheLaunchArguments(HeadArguments, MaskArguments, total=False):
    """The arguments of the features that kernels over a KV cache have, in a launch."""


class CacheArguments(ValueArguments, CacheLaunchArguments, total=False):
    """The arguments of the features that kernels over a KV cache have, in a call."""


class ShardedCacheArguments(ValueArguments, HeadArguments, total=False):
    """The arguments of the features that attention to a KV cache on several ranks has."""


ARRAYS: Final = tuple(feature.argument for feature in SCORES if feature.axes)
NO_ARRAYS: Final = dict.fromkeys(ARRAYS)
DIFFERENTIABLE: Final = tuple(f.argument for f in SCORES if f.axes and f.gradient_of)
CACHE_ARRAYS: Final = tuple(f.argument for f in SCORES if f.axes and f.in_cache)


def every_cached() -> tuple[ScoreFeature, ...]:
    """The features with arrays that kernels over a KV cache may have."""
    return tuple(feature() for feature in SCORES if feature.axes and feature.in_cache)


NOTHING_ASKED: Final = tuple([feature.setting_of_call({}, lambda _, name: name) for feature in SCORES])


def settings_of_call(arguments: Mapping[str, Any], type_of: TypeOf) -> tuple[Any, ...]:
    """The setting of each of `SCORES` that the arguments of a call ask for."""
    if not arguments:
        return NOTHING_ASKED
    return tuple([feature.setting_of_call(arguments, type_of) for feature in SCORES])


def of_launch(arguments: ScoreArguments | VarlenArguments) -> LaunchScores:
    """The arguments of a call that its launch takes; the config of the launch has the others."""
    result: Any = {n: a for n, a in arguments.items() if n in LaunchScores.__annotations__}
    return cast(LaunchScores, result)


def named_settings(values: Sequence[Any]) -> dict[str, Any]:
    """The settings by name, from `values`, a result of `settings_of_call`."""
    return {feature.setting: value for feature, value in zip(SCORES, values, strict=True)}


def _meaning(arguments: type) -> tuple[str, str]:
    """An argument and what it means, by the docstring of the class that declares its type."""
    text = inspect.cleandoc(arguments.__doc__ or "")
    return text.partition(":")[0], "    " + text.replace("\n", "\n    ")


_MEANINGS: Final = dict(
    map(
        _meaning,
        (
            WindowArguments,
            SoftcapArguments,
            ScoreModArguments,
            MaskModArguments,
            AuxArguments,
            AlibiArguments,
            BiasArguments,
            KeyBiasArguments,
            MaskArguments,
            SinkArguments,
            DropoutArguments,
            DropoutSeed,
        ),
    )
)


def takes(
    arguments: type, others: Sequence[str] = (), /, **defaults: Any
) -> Callable[[_Function], _Function]:
    """A decorator for a function with `**name: Unpack[arguments]`: its signature, which `help`
    shows, names these arguments, with `defaults` where a default is not None, and its docstring
    ends with what those of scores mean, and then the lines of `others`.
    """
    known = {**{f.argument: f.default for f in SCORES}, **defaults}
    hints = get_type_hints(arguments)
    meanings = [_MEANINGS[name] for name in hints if name in _MEANINGS]
    lines = [*(["Arguments of scores:"] if meanings else []), *meanings, *others]

    def decorate(function: _Function) -> _Function:
        result = inspect.signature(function)
        declared = [p for p in result.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=known.get(name), annotation=kind)
            for name, kind in hints.items()
        ]
        of: Any = function
        of.__doc__ = "\n".join((inspect.cleandoc(of.__doc__ or ""), "", *lines))
        of.__signature__ = result.replace(parameters=[*declared, *more])
        return function

    return decorate


def meanings_of_settings() -> str:
    """The meaning of each setting, as text for the docstring of a config."""
    result = (inspect.cleandoc(settings.__doc__ or "") for settings in reversed(ScoreSettings.__bases__))
    return "\n".join(meaning.replace("\n", "\n    ") for meaning in result)


def asked(arguments: Mapping[str, Any]) -> Iterator[type[ScoreFeature]]:
    """The features that the arguments of a call on the host ask for."""
    return (feature for feature in SCORES if feature.is_asked(arguments))


def scored(
    shape: Sequence[int],
    causal: Causal,
    dtype: Any,
    first_batch: int,
    arguments: Mapping[str, Any],
    first_query: int = 0,
) -> Scored:
    """The scores of a call on the host, of `shape` [batch, heads, seq_q, seq_k]; `arguments` are
    those of `ScoreArguments`, arrays of any shape that broadcasts to the axes of their operands.
    Raises ConfigError if `causal` is no known word.
    """
    batch, heads, seq_q, seq_k = shape
    lengths = dict(zip(PER_SCORE, shape, strict=True))
    wide = {
        feature.argument: np.broadcast_to(value, tuple(lengths[axis] for axis in feature.axes))
        for feature in SCORES
        if feature.axes and (value := arguments.get(feature.argument)) is not None
    }
    traces = {
        feature.argument: feature.setting_of_call(arguments, lambda _, name: name)
        for feature in SCORES
        if feature.is_function
    }
    offset = position_offset(causal, seq_q, seq_k)
    return Scored(
        (batch, heads, seq_q, seq_k),
        causal is not False,
        offset,
        np.dtype(dtype),
        first_batch,
        first_query,
        {"dropout_seed": 0, **arguments, **wide, **traces},
    )


def split_by_axes(
    arguments: Mapping[str, Any], of_heads: tuple[int, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments with an element for each head, broadcast to [batch, heads], and the others."""
    heads = {feature.argument for feature in SCORES if feature.axes == PER_HEAD}
    present = {name for name in heads if arguments.get(name) is not None}
    wide = {name: np.broadcast_to(arguments[name], of_heads) for name in sorted(present)}
    return wide, {name: value for name, value in arguments.items() if name not in heads}


def require_known(
    caller: str, value: Mapping[str, Any], arguments: type, function: Callable[..., Any]
) -> None:
    """Raise TypeError, as Python does, if a keyword argument of `caller` is none of `arguments`. The
    parameters of `function` are those that may be meant.
    """
    known = arguments.__annotations__
    if not value.keys() <= known.keys():
        name = min(value.keys() - known.keys())
        raise TypeError(
            f"{caller}() got an unexpected keyword argument {name!r}"
            f"{did_you_mean(name, inspect.signature(function).parameters)}"
        )
