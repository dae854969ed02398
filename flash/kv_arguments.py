"""Numbers that a user gives a KV cache: read, or refused."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.placement import MAX_PAGE_SIZE, Contiguous, Paged, Placement
from ptxgen.errors import ConfigError, LaunchError, did_you_mean

INT32_MAX: Final = 2**31 - 1  # what pages, lengths and sequences are counted in


def size(name: str, value: object, most: int) -> int:
    """`value` as an int from 1 to `most`. Raises `ConfigError` for anything else."""
    found = integer(value, 1, most)
    if found is None:
        raise ConfigError(f"KVCache: {name} must be an integer from 1 to {most}, got {value!r}")
    return found


def one_of(name: str, value: object, known: Sequence[str]) -> str:
    """`value` if it is one of `known`. Raises `ConfigError` otherwise."""
    if value not in known:
        raise ConfigError(
            f"KVCache: {name} must be one of {', '.join(known)}, got {value!r}"
            f"{did_you_mean(str(value), known)}"
        )
    return str(value)


def placement_of(batch: int, capacity: int, page_size: object, pages: object) -> Placement:
    """Where rows lie: in pages, or without a page size contiguous. Raises `ConfigError`."""
    if page_size is None:
        if pages is not None:
            raise ConfigError(
                f"KVCache: pages={pages!r} is for paged memory; give page_size, too, or leave out "
                "pages"
            )
        return Contiguous(batch, capacity)
    rows = size("page_size", page_size, MAX_PAGE_SIZE)
    enough = batch * -(-capacity // rows)
    return Paged(
        batch, capacity, rows, size("pages", enough if pages is None else pages, INT32_MAX)
    )


def device(given: object) -> int:
    """The number of a GPU. Raises `ConfigError` for what is none."""
    found = integer(given, 0, INT32_MAX)
    if found is None:
        raise ConfigError(f"KVCache: device must be the number of a GPU, from 0 on, got {given!r}")
    return found


def require_no_device(given: object, backend: str) -> None:
    """Raise `ConfigError` if a cache on the host is given a device."""
    if given is not None:
        raise ConfigError(
            f"KVCache: device={given!r} is for backend='cuda', got backend={backend!r}; leave out "
            "the device"
        )


def integer(value: object, least: int, most: int) -> int | None:
    """`value`, an integer of any kind (numpy's too) but no bool, as an int; None for what is none
    or out of bounds.
    """
    if not isinstance(value, bool | np.bool):
        with suppress(TypeError):
            found = operator.index(value)  # type: ignore[arg-type]  # or TypeError
            if least <= found <= most:
                return found
    return None


def integers(values: object, least: int, most: int, count: int | None = None) -> list[int] | None:
    """`values`, a list or a one-dimensional array of `count` (None: any number of) integers within
    bounds; None for anything else.
    """
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):  # ragged, or on a GPU
        return None
    if found.ndim != 1 or (count is not None and found.size != count):
        return None
    if found.size and (found.dtype.kind not in "iu" or found.min() < least or found.max() > most):
        return None
    return [int(value) for value in found]


def scale(who: str, name: str, given: object, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Positive numbers of a shape that broadcasts to `shape`, as f32 of that shape. Raises
    `LaunchError` for anything else.
    """
    try:
        found: NDArray[Any] = np.asarray(given, np.float64).astype(np.float32)
        wide = np.broadcast_to(found, shape).copy()
    except (TypeError, ValueError):
        raise LaunchError(
            f"{who}: {name} must be numbers of a shape that broadcasts to [layers, kv_heads] = "
            f"{list(shape)}, got {_shown(given)}"
        ) from None
    wrong = np.argwhere(~(np.isfinite(wide) & (wide > 0)))
    if wrong.size:
        layer, head = wrong[0]
        raise LaunchError(
            f"{who}: {name} must be finite and above 0 in float32, got {wide[layer, head]} for "
            f"layer {layer}, head {head}"
        )
    return wide


def _shown(given: object) -> str:
    shape = getattr(given, "shape", None)
    return repr(given) if shape is None else f"shape {list(shape)}"
