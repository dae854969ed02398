"""The arrays of scores of a call on one rank, cut by the axes that their features declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from flash.scores.bias import Bias
from flash.scores.features import SCORES
from flash.scores.key_bias import KeyBias

# By argument. Each broadcasts to the axes of its feature, of which seq_q is the rows of the rank's queries.
Arrays = Mapping[str, Tensor]

FEATURES: Final = {feature.argument: feature for feature in SCORES if feature.axes}
OF_ROWS: Final = tuple(name for name, feature in FEATURES.items() if "seq_q" in feature.axes)
# Numbers of heads that are a score of each row before its keys: ranks merge them once.
BEGINNING: Final = tuple(name for name, feature in FEATURES.items() if feature.begins_softmax)
# Numbers of heads whose term depends on positions: functions of scores count those of the whole sequence.
BY_POSITION: Final = tuple(name for name, feature in FEATURES.items() if feature.uses_position)
# What kernels get of all others is the part of a tile.
OF_TILES: Final = tuple(name for name in FEATURES if name not in (*BEGINNING, *BY_POSITION))
BIAS: Final = Bias.argument  # whose gradient is that of scores
KEY_BIAS: Final = KeyBias.argument


def part_of(array: Tensor, name: str, **parts: slice) -> Tensor:
    """A view of the slices `parts`, by axis, of the array `name`; an axis of one element is not sliced."""
    axes = FEATURES[name].axes
    cut: list[Any] = [
        slice(None) if n == 1 else parts.get(axis, slice(None))
        for axis, n in zip(axes[len(axes) - array.dim() :], array.shape, strict=True)
    ]
    return array[tuple(cut)]


def of_heads(arrays: Arrays, heads: slice) -> dict[str, Tensor]:
    """Views of the arrays' slices of `heads`."""
    return {name: part_of(array, name, heads=heads) for name, array in arrays.items()}


def by_items(array: Tensor) -> Tensor:
    """An array of numbers of heads as [batch or 1, heads or 1], as a view."""
    return array if array.dim() == 2 else array.reshape(1, -1)
