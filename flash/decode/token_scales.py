"""The checks of scales that each token of a cache has of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flash.launch.arguments import Argument
from flash.operands.dtypes import F32
from ptxgen.arrays.views import HOST, ArrayView, host_array

SCALES: Final = ("k_scale", "v_scale")


def of_tokens(views: Mapping[str, ArrayView], name: str) -> bool:
    """Whether `name` is "k_scale" or "v_scale", and given with the dimensions of the cache without the last
    one: a scale for each row.
    """
    return name in SCALES and name in views and len(views[name].shape) == len(views["k_cache"].shape) - 1


def token_arguments(views: Mapping[str, ArrayView], axes: tuple[str, ...]) -> tuple[Argument, ...]:
    """The declarations of the scales of tokens that are given; `axes` are those of the rows of the cache."""
    return tuple(Argument(name, axes, (F32,), has_rows=False) for name in SCALES if of_tokens(views, name))


def problems_of_tokens(
    views: Mapping[str, ArrayView], numbers: Mapping[str, NDArray[np.int64]] | None
) -> Iterator[str]:
    """Say what is wrong with the scales of tokens: that only one of both is of tokens, or that the scale of a
    key is none. `numbers` has lengths and indices of the items, if they are on the host and of the right
    types and shapes.
    """
    which = [of_tokens(views, name) for name in SCALES]
    if any(which) and not all(which):
        shapes = " and ".join(str(list(views[name].shape)) for name in SCALES if name in views)
        yield f"k_scale and v_scale must both be of heads or both of tokens, got shapes {shapes}"
    if numbers is None:
        return
    for name, per_token in zip(SCALES, which, strict=True):
        array = views.get(name)
        if per_token and array is not None and array.device == HOST and array.dtype == F32.array_name:
            wrong = _wrong_of(host_array(array), views, numbers)
            if wrong is not None:
                yield f"{name} must hold finite numbers of at least 0 for the keys of a sequence, got {wrong}"


def _wrong_of(
    scales: NDArray[np.float32], views: Mapping[str, ArrayView], numbers: Mapping[str, NDArray[np.int64]]
) -> float | None:
    """A scale of a key that is none; None if there is no such, or if indices leave the cache, which others
    say.
    """
    new = views["k"].shape[2] if "k" in views else 0
    table = None
    if "block_table" in views:
        if views["block_table"].device != HOST:
            return None
        table = host_array(views["block_table"])
    rows = scales.shape[2]
    items = zip(numbers["cache_batch_idx"], numbers["leftpad_k"], numbers["seqused_k"], strict=True)
    for sequence, first, used in items:
        keys = np.arange(max(first, 0), used - new)
        if table is None:
            places, within = np.full(keys.size, sequence), keys
        else:
            if not 0 <= sequence < len(table) or (keys.size and keys[-1] // rows >= table.shape[1]):
                return None
            places, within = table[sequence, keys // rows], keys % rows
        if keys.size and not (places.min() >= 0 and places.max() < len(scales) and within.max() < rows):
            return None
        found = scales[places, :, within]
        wrong = found[~(np.isfinite(found) & (found >= 0))]
        if wrong.size:
            return float(wrong[0])
    return None
