"""The scales that each token of a cache has of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from flash.launch.arguments import Argument
from flash.operands.dtypes import F32
from ptxgen.arrays.views import ArrayView

SCALES: Final = ("k_scale", "v_scale")


def of_tokens(views: Mapping[str, ArrayView], name: str) -> bool:
    """Whether `name` is "k_scale" or "v_scale", and given with the dimensions of the cache without the last
    one: a scale for each row.
    """
    return name in SCALES and name in views and len(views[name].shape) == len(views["k_cache"].shape) - 1


def token_arguments(views: Mapping[str, ArrayView], axes: tuple[str, ...]) -> tuple[Argument, ...]:
    """The declarations of the scales of tokens that are given; `axes` are those of the rows of the cache."""
    return tuple(Argument(name, axes, (F32,), has_rows=False) for name in SCALES if of_tokens(views, name))


def problems_of_ranks(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say that only one of both scales is of tokens."""
    which = [of_tokens(views, name) for name in SCALES]
    if any(which) and not all(which):
        shapes = " and ".join(str(list(views[name].shape)) for name in SCALES if name in views)
        yield f"k_scale and v_scale must both be of heads or both of tokens, got shapes {shapes}"
