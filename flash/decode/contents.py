"""The checks of what lengths, indices, block table and scales of a call over a KV cache hold, where they are
on the host. Types and shapes are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.decode.token_scales import SCALES, of_tokens
from flash.launch.rotary import angle_problems
from flash.launch.varlen import wrong_element, wrong_page
from flash.problem.features import ANGLES
from ptxgen.arrays.views import ArrayView, host_array

_TABLE: Final = "block_table"
Numbers = NDArray[np.int64]


def capacity_of(views: Mapping[str, ArrayView]) -> int:
    """The number of rows that a sequence of the cache has room for."""
    pages = views[_TABLE].shape[1] if _TABLE in views else 1
    return int(views["k_cache"].shape[2] * pages)


def problems_of_contents(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the numbers that arrays hold, of the first array with a wrong one."""
    batch, capacity = views["q"].shape[0], capacity_of(views)
    sequences = views[_TABLE if _TABLE in views else "k_cache"].shape[0]
    items: dict[str, Numbers] = {"leftpad_k": np.zeros(batch, np.int64), "cache_batch_idx": np.arange(batch)}
    most = {"seqused_k": capacity, "leftpad_k": capacity, "cache_batch_idx": sequences - 1}
    for name in most.keys() & views.keys():
        items[name] = np.broadcast_to(host_array(views[name]), batch).astype(np.int64)
    problems = [problem for name in most for problem in wrong_element(name, items[name], most[name])]
    if problems:
        yield problems[0]
        return
    used, first, which = items["seqused_k"], items["leftpad_k"], items["cache_batch_idx"]
    new = views["k"].shape[2] if "k" in views and views["k"].size else 0
    if _TABLE in views:
        pages, _, page_size, _ = views["k_cache"].shape
        table = host_array(views[_TABLE])[which]
        problems = [*wrong_page(table, first, used, pages, page_size, "k_cache", which)]
        if problems:
            yield problems[0]
            return
        if new and len(np.unique(which)) == batch:
            yield from _shared_pages(table, used, new, page_size)
    if new and len(np.unique(which)) < batch:
        yield f"cache_batch_idx must name a sequence once where there are new rows, got {which.tolist()}"
    if ANGLES[0] in views:
        needed = int(np.max(used - first, initial=1))
        yield from angle_problems(views, views["q"].shape[3], needed)
    for name in SCALES:
        if name in views:
            yield from _wrong_scale(name, views, first, used - new, which)


def _shared_pages(table: Numbers, used: Numbers, new: int, page_size: int) -> Iterator[str]:
    """Say that a page to which new rows are written occurs several times: the writes, and the reads of other
    sequences, are not ordered.
    """
    nth = np.arange(table.shape[1])
    named = nth < -(-used[:, None] // page_size)
    written = named & (nth >= np.maximum(used[:, None] - new, 0) // page_size)
    pages, times = np.unique(table[named], return_counts=True)
    shared = np.intersect1d(pages[times > 1], table[written])
    if shared.size:
        yield (
            "block_table must name a page that new rows are written to once, got page "
            f"{shared[0]} several times"
        )


def _wrong_scale(
    name: str, views: Mapping[str, ArrayView], first: Numbers, ends: Numbers, which: Numbers
) -> Iterator[str]:
    """Say that a scale of K or V, or of one of the keys `first` to `ends` - 1 of the items, is none."""
    scales: NDArray[Any] = host_array(views[name])
    if not of_tokens(views, name):
        if not (np.isfinite(scales) & (scales > 0)).all():
            yield f"{name} must hold finite numbers above 0, got {scales.tolist()}"
        return
    rows = scales.shape[2]
    table = host_array(views[_TABLE]) if _TABLE in views else np.arange(len(scales))[:, None]
    for item, begin, end in zip(which, first, ends, strict=True):
        keys = np.arange(begin, end)
        found = scales[table[item, keys // rows], :, keys % rows]
        wrong = found[~(np.isfinite(found) & (found >= 0))]
        if wrong.size:
            yield f"{name} must hold finite numbers of at least 0 for the keys of a sequence, got {wrong[0]}"
            return
