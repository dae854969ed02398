"""Checks of the tensors that calls of a `ShardedKVCache` get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from flash.distributed.agreement import array_words
from ptxgen.errors import LaunchError, shown

AXIS_OF_ROWS: Final = 2


def rows_of(caller: str, name: str, x: object) -> int:
    """The number of rows of each item. Raises `LaunchError` for what is no tensor of four axes."""
    heads = "heads" if name == "q" else "kv_heads"
    if not isinstance(x, Tensor) or x.dim() != 4:
        raise LaunchError(f"{caller}: {name} must be a tensor [items, {heads}, n, head_dim], got {shown(x)}")
    return int(x.shape[2])


def tensor_words(x: object, *, are_shards: bool = False) -> str:
    """A tensor as words that ranks compare: its type, shape and elements; of shards, whose elements are of
    one rank, the type and the shape without rows.
    """
    if not isinstance(x, Tensor):
        return "None"
    return array_words(x, without=AXIS_OF_ROWS - x.dim() if are_shards else None)


def require_of_heads(caller: str, name: str, array: object, q: Tensor) -> None:
    """Raise `LaunchError` unless an array has a number for each head of q, or is None."""
    items, heads = q.shape[:2]
    shapes = ((heads,), (1, heads), (items, heads))
    if array is not None and (not isinstance(array, Tensor) or tuple(array.shape) not in shapes):
        raise LaunchError(
            f"{caller}: {name} must be a tensor [{heads}] or [{items}, {heads}], a number for each head of "
            f"q, got {shown(array)}"
        )


def require_no_gradients(caller: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Raise `LaunchError` for tensors that require gradients where PyTorch records them."""
    tracked = [name for name, x in tensors.items() if x is not None and x.requires_grad]
    if tracked and torch.is_grad_enabled():
        detached = ", ".join(f"{name}.detach()" for name in tracked)
        raise LaunchError(
            f"{caller}: attention over a cache has no gradients, but {', '.join(tracked)} require them; call "
            f"inside torch.no_grad(), or pass {detached}"
        )
