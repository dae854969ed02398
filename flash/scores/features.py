"""The features of scores, in the order in which kernels apply them and have their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flash.scores.alibi import Alibi, AlibiArguments, AlibiSettings
from flash.scores.bias import Bias, BiasArguments, BiasSettings
from flash.scores.dropout import Dropout, DropoutArguments, DropoutSettings
from flash.scores.feature import ScoreFeature
from flash.scores.mask import Mask, MaskArguments, MaskSettings
from flash.scores.sink import Sink, SinkArguments, SinkSettings
from flash.scores.softcap import Softcap, SoftcapArguments, SoftcapSettings
from flash.scores.window import Window, WindowArguments, WindowSettings

SCORES: Final[tuple[type[ScoreFeature], ...]] = (
    Window, Softcap, Alibi, Bias, Mask, Sink, Dropout,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(
    DropoutSettings,
    SinkSettings,
    MaskSettings,
    BiasSettings,
    AlibiSettings,
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
        return tuple(found for feature in SCORES if (found := feature.of(self)) is not None)

    @property
    def numbers(self) -> dict[str, int | float]:
        """The scalars of the launch that the settings determine, by name."""
        return {name: n for feature in SCORES for name, n in feature.values(self).items()}


class ScoreArguments(
    WindowArguments,
    SoftcapArguments,
    AlibiArguments,
    BiasArguments,
    MaskArguments,
    SinkArguments,
    DropoutArguments,
    total=False,
):
    """The arguments of all features in a call."""


def meanings_of_settings() -> Iterator[str]:
    """What each setting means, as text for the docstring of a config."""
    for settings in reversed(ScoreSettings.__bases__):
        yield settings.__doc__ or ""


def asked(arguments: Mapping[str, Any]) -> Iterator[type[ScoreFeature]]:
    """The features that the arguments of a call on the host ask for."""
    return (feature for feature in SCORES if feature.is_asked(arguments))
