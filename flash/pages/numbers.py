"""Reads a user's arguments of a KV cache, and refuses invalid ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from flash.host.caller import views_of
from flash.operands.blocks import STORED_DTYPES, why_no_blocks
from flash.operands.dtypes import DType, config_name
from flash.pages.placement import Contiguous, Paged, Placement
from flash.problem.features import MAX_PAGE_SIZE
from flash.problem.limits import INT32_MAX
from ptxgen.arguments import integer, is_one_of
from ptxgen.arrays.views import is_tensor
from ptxgen.errors import ConfigError, LaunchError, did_you_mean, shown

_Word = TypeVar("_Word", bound=str)

MOST_ITEMS: Final = 2**24  # in a list that is read: a broadcast array can have any size


def size(name: str, value: object, most: int) -> int:
    """`value` as an int from 1 to `most`. Raises `ConfigError` for anything else."""
    number = integer(value, 1, most)
    if number is None:
        raise ConfigError(f"KVCache: {name} must be an integer from 1 to {most}, got {shown(value)}")
    return number


def one_of(name: str, value: object, known: Sequence[_Word]) -> _Word:
    """`value` if it is one of `known`. Raises `ConfigError` otherwise."""
    if not is_one_of(value, known):
        raise ConfigError(
            f"KVCache: {name} must be one of {', '.join(known)}, got {shown(value)}"
            f"{did_you_mean(value, known)}"
        )
    return next(word for word in known if word == value)


def element(value: object, head_dim: int, head_dim_v: int) -> DType:
    """The element type of a cache. Raises `ConfigError` for an unknown type, and for rows that it does not
    store.
    """
    dtype = STORED_DTYPES[one_of("dtype", config_name(value), tuple(STORED_DTYPES))]
    why_not = why_no_blocks(dtype, head_dim, head_dim_v)
    if why_not:
        raise ConfigError(f"KVCache: {why_not}")
    return dtype


def placement_of(batch: int, capacity: int, page_size: object, pages: object) -> Placement:
    """The placement of rows: contiguous if page_size is None, else paged. Raises `ConfigError`."""
    if page_size is None:
        if pages is not None:
            raise ConfigError(
                f"KVCache: pages={shown(pages)} is for paged memory; give page_size, too, or leave out pages"
            )
        return Contiguous(batch, capacity)
    rows = size("page_size", page_size, MAX_PAGE_SIZE)
    enough = batch * -(-capacity // rows)
    return Paged(batch, capacity, rows, size("pages", enough if pages is None else pages, INT32_MAX))


def device(value: object) -> int:
    """The ordinal of a GPU. Raises `ConfigError` for an invalid one."""
    ordinal = integer(value, 0, INT32_MAX)
    if ordinal is None:
        raise ConfigError(f"KVCache: device must be the number of a GPU, from 0 on, got {shown(value)}")
    return ordinal


def require_no_device(value: object, backend: str) -> None:
    """Raise `ConfigError` if the device of a cache on the host is not None."""
    if value is not None:
        raise ConfigError(
            f"KVCache: device={shown(value)} is for backend='cuda', got backend={backend!r}; leave out "
            "the device"
        )


def integers(values: object, least: int, most: int, count: int | None = None) -> list[int] | None:
    """`values`, a list or a one-dimensional array of `count` (None: up to `MOST_ITEMS`) integers
    within bounds; None for anything else.
    """
    try:
        array = np.asarray(values)
    except MemoryError:  # no fault of the values
        raise
    except Exception:  # ragged, on a GPU, or an error of the values' class
        return None
    if array.ndim != 1 or array.size > MOST_ITEMS or (count is not None and array.size != count):
        return None
    if array.size and (array.dtype.kind not in "iu" or array.min() < least or array.max() > most):
        return None
    return [int(value) for value in array]


def scale(caller: str, name: str, value: object, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Positive numbers of a shape that broadcasts to `shape`, as f32 of that shape. Raises
    `LaunchError` for anything else.
    """
    if is_tensor(value):
        views_of({name: value}, caller)
        value = value.detach()  # type: ignore[attr-defined]  # numpy refuses tensors with gradients
    try:
        wide = np.broadcast_to(np.asarray(value), shape).astype(np.float64).astype(np.float32)
    except MemoryError:  # no fault of the numbers
        raise
    except Exception:  # no numbers, a wrong shape, or an error of the class
        raise LaunchError(
            f"{caller}: {name} must be numbers of a shape that broadcasts to [layers, kv_heads] = "
            f"{list(shape)}, got {_shown(value)}"
        ) from None
    wrong = np.argwhere(~(np.isfinite(wide) & (wide > 0)))
    if wrong.size:
        layer, head = wrong[0]
        raise LaunchError(
            f"{caller}: {name} must be finite and above 0 in float32, got {wide[layer, head]} for "
            f"layer {layer}, head {head}"
        )
    return wide


def _shown(value: object) -> str:
    shape = getattr(value, "shape", None)
    return shown(value) if not isinstance(shape, tuple) else f"shape {list(shape)}"
