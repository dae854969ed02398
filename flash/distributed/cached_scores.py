"""Which of a rank's cached keys queries see, and functions of scores that get the positions of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash.distributed.arrays import BY_POSITION, FEATURES, Arrays, by_items
from flash.distributed.functions import (
    OF_MASK_MOD,
    OF_SCORE_MOD,
    RESERVED,
    array_names,
    with_internal_arrays,
    with_parameters,
)

_KEYS: Final = f"{RESERVED}positions"
_QUERIES: Final = f"{RESERVED}queries"


@dataclass(frozen=True)
class LocalKeys:
    """The keys of the items of a call on this rank. `positions` are those of each item's rows, `first`
    the position of each item's first query, `skipped` how many first rows no query of the item sees;
    `mask` [items, 1, queries, m] says which of the last m rows each query sees, None if all.
    """

    positions: Sequence[NDArray[np.int64]]
    first: NDArray[np.int64]
    queries: int
    skipped: list[int]
    mask: NDArray[np.bool_] | None
    any_seen: bool

    @classmethod
    def of(
        cls,
        positions: Sequence[NDArray[np.int64]],
        lengths: NDArray[np.int64],
        queries: int,
        left: int | None,
        right: int | None,
    ) -> LocalKeys:
        """The keys of items of `lengths` tokens, whose last query is at the last of them."""
        first = lengths - queries
        begins, ends = [], []
        for at, of_item in zip(first, positions, strict=True):
            query_positions = at + np.arange(queries)
            begins.append(
                np.zeros(queries, int) if left is None else np.searchsorted(of_item, query_positions - left)
            )
            ends.append(
                np.full(queries, len(of_item))
                if right is None
                else np.searchsorted(of_item, query_positions + right, side="right")
            )
        skipped = [int(b.min(initial=len(p))) for b, p in zip(begins, positions, strict=True)]
        widths = []
        for begin, end, skip, of_item in zip(begins, ends, skipped, positions, strict=True):
            late = (begin > skip).any()
            widths.append(len(of_item) - skip if late else len(of_item) - int(end.min(initial=len(of_item))))
        width = max(widths, default=0)
        seen = any((e > b).any() for b, e in zip(begins, ends, strict=True))
        mask = None
        if width:
            rows = [np.arange(len(of_item) - width, len(of_item)) for of_item in positions]
            each = [(r >= b[:, None]) & (r < e[:, None]) for r, b, e in zip(rows, begins, ends, strict=True)]
            mask = np.stack(each)[:, None]
        return cls(positions, first, queries, skipped, mask, seen)

    def arrays(self, device: torch.device) -> dict[str, Tensor]:
        """The arrays from which functions read positions: int32 [items, rows] of the keys after the skipped
        ones, and [items], the position of a query less its number in the call on this rank.
        """
        visible = [p[s:] for p, s in zip(self.positions, self.skipped, strict=True)]
        table = np.zeros((len(visible), max(1, *map(len, visible))), np.int32)
        for row, part in zip(table, visible, strict=True):
            row[: len(part)] = part
        shift = [at - (len(part) - self.queries) for at, part in zip(self.first, visible, strict=True)]
        return {
            _KEYS: torch.from_numpy(table).to(device),
            _QUERIES: torch.tensor(shift, dtype=torch.int32, device=device),
        }


def functions_of(
    keys: LocalKeys,
    score_mod: Callable[..., Any] | None,
    mask_mod: Callable[..., Any] | None,
    aux: Mapping[str, Tensor] | None,
    arrays: Arrays,
    device: torch.device,
) -> dict[str, Any]:
    """The arguments score_mod, mask_mod and aux of a call to this rank's keys, with the terms of `arrays`
    that depend on positions.
    """
    counting = [name for name in BY_POSITION if name in arrays]
    if score_mod is None and mask_mod is None and not counting:
        return {}
    internal, functions = keys.arrays(device), {}
    internal |= {f"{RESERVED}{name}": by_items(arrays[name]) for name in counting}
    if score_mod is not None or counting:
        functions["score_mod"] = _score_mod(score_mod, counting)
    if mask_mod is not None:
        functions["mask_mod"] = _mask_mod(mask_mod)
    return with_internal_arrays(functions, internal, aux)


def _score_mod(function: Callable[..., Any] | None, counting: Sequence[str]) -> Callable[..., Any]:
    names = [] if function is None else array_names(function, OF_SCORE_MOD)

    def moved(score: Any, batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        at_key, shift = arrays.pop(_KEYS), arrays.pop(_QUERIES)
        numbers = {name: arrays.pop(f"{RESERVED}{name}") for name in counting}
        query, key = query + shift[batch], at_key[batch, key]
        if function is not None:
            score = function(score, batch, head, query, key, **arrays)
        for name, each in numbers.items():
            score = score + each[batch, head] * FEATURES[name].factor(query, key)
        return score

    reserved = [f"{RESERVED}{name}" for name in counting]
    return with_parameters(moved, [*OF_SCORE_MOD, *names, _KEYS, _QUERIES, *reserved])


def _mask_mod(function: Callable[..., Any]) -> Callable[..., Any]:
    names = array_names(function, OF_MASK_MOD)

    def moved(batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        at_key, shift = arrays.pop(_KEYS), arrays.pop(_QUERIES)
        return function(batch, head, query + shift[batch], at_key[batch, key], **arrays)

    return with_parameters(moved, [*OF_MASK_MOD, *names, _KEYS, _QUERIES])
