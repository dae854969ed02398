"""The checks of a call that attends to a KV cache, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.calls.step import aligned
from flash.decode.plan import SCALES, last_keys
from flash.launch.arguments import (
    Argument,
    copy_of,
    device_problems,
    heads_problems,
    out_problems,
    problems_of_shapes,
    sharing_problems,
    together_problems,
    type_and_row_problems,
    written_problems,
)
from flash.launch.operands import operand_problems
from flash.launch.rotary import ANGLE_AXES, angle_problems
from flash.launch.varlen import wrong_element, wrong_page
from flash.mods.trace import AUX
from flash.operands.blocks import SCALED_ARRAYS, SCALED_DTYPES, BlockType
from flash.operands.declared import LAST_KEYS, MAX_WINDOWED_SEQ
from flash.operands.dtypes import E4M3, F32, I32, U8, DType
from flash.problem.config import AttentionConfig
from flash.problem.features import ANGLES, LENGTHS, MAX_PAGE_SIZE
from flash.problem.limits import MAX_CTAS
from flash.scores.features import CACHE_ARRAYS, every_cached
from ptxgen.arguments import integer
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.settings import WITHOUT_KERNELS

CALLER: Final = "DecodeKernel.launch"
_NARROW: Final = {t.array_name: t for t in SCALED_DTYPES.values()}  # by the names that arrays give them
QUERY_AXES: Final = ("batch", "heads", "seq_q", "head_dim")
_NEW: Final = ("batch", "kv_heads", "n")
_COS, _SIN = ANGLES
_TABLE: Final = "block_table"
Numbers = NDArray[np.int64]
_WHEN_NEW: Final = " where there are new rows"
_OPERANDS: Final = frozenset((*CACHE_ARRAYS, *LENGTHS, *SCALES))


def problems_of(
    config: AttentionConfig, views: Mapping[str, ArrayView], blocks: BlockType | None = None
) -> Iterator[str]:
    """Say what is wrong with the arrays of a call, whose caches may be of `blocks`. Contents of arrays on a
    GPU are not checked.
    """
    problems = list(_problems_of_arrays(config, views, blocks))
    yield from problems
    read = [views[name] for name in (*LENGTHS, *SCALES, "block_table") if name in views]
    if not problems and all(array.device == HOST for array in read):
        yield from problems_of_contents(views)
    elif not problems and _COS in views:
        yield from angle_problems(views, config.head_dim, 1)


def _problems_of_arrays(
    config: AttentionConfig, views: Mapping[str, ArrayView], blocks: BlockType | None
) -> Iterator[str]:
    """Say what is wrong with types, shapes, strides and devices of the arrays of a call."""
    arrays, sizes = (
        _matrices(config, views, blocks),
        {"head_dim": config.head_dim, "head_dim_v": config.value_dim},
    )
    if blocks is not None:
        sizes |= {blocks.length(name): blocks.in_row(columns) for name, columns in sizes.items()}
    wrong = list(problems_of_shapes(arrays, views, sizes))
    yield from wrong
    if "seqused_k" not in views:
        yield "seqused_k must be given: how many rows of the cache each sequence has"
    if wrong or "seqused_k" not in views:
        return
    q = views["q"]
    yield from type_and_row_problems((*arrays, matrix_of_config(config, "out", QUERY_AXES)), views)
    yield from _problems_of_cache(views)
    yield from _problems_of_numbers(config, views)
    yield from _problems_of_new(config, views, sizes)
    yield from out_problems(views.get("out"), (*q.shape[:3], config.value_dim))
    yield from sharing_problems(("out",), views)
    yield from device_problems({name: array for name, array in views.items() if array.size}, "the cache")


def matrix_of_config(config: AttentionConfig, name: str, axes: tuple[str, ...]) -> Argument:
    """The declaration of the argument `name`, an array of rows of the config's element type."""
    return Argument(name, axes, (config.element,), "as the config says")


def _matrices(
    config: AttentionConfig, views: Mapping[str, ArrayView], blocks: BlockType | None
) -> tuple[Argument, ...]:
    """The declarations of the queries, the cache, its block table and the scales of its tokens."""
    cache = ("sequences", "kv_heads", "capacity")
    if "block_table" in views:
        cache = ("pages", "kv_heads", "page_size")
    keys, values = (
        Argument(name, (*cache, blocks.length(columns)), (U8,), f"the bytes of {blocks.name}")
        if blocks is not None
        else Argument(name, (*cache, columns), (_NARROW[views[name].dtype],))
        if views[name].dtype in _NARROW
        else matrix_of_config(config, name, (*cache, columns))
        for name, columns in (("k_cache", "head_dim"), ("v_cache", "head_dim_v"))
    )
    return (
        matrix_of_config(config, "q", QUERY_AXES),
        keys,
        values,
        Argument("block_table", ("sequences", "table_columns"), (I32,), has_rows=False),
        *token_arguments(views, cache),
    )


def _new_rows(config: AttentionConfig) -> tuple[Argument, ...]:
    """The declarations of the new rows and the rotary tables."""
    return (
        matrix_of_config(config, "k", (*_NEW, "head_dim")),
        matrix_of_config(config, "v", (*_NEW, "head_dim_v")),
        Argument(_COS, ANGLE_AXES, (F32,)),
        Argument(_SIN, ANGLE_AXES, (F32,)),
    )


def _problems_of_cache(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the sizes of the queries and of the cache."""
    q, k = views["q"], views["k_cache"]
    if 0 in k.shape:
        yield f"k_cache must have room for a key, got shape {list(k.shape)}"
    else:
        yield from heads_problems(q.shape[1], k.shape[1], "the cache")
    if "block_table" in views and k.shape[2] > MAX_PAGE_SIZE:
        yield f"a page must have at most {MAX_PAGE_SIZE} rows, got {k.shape[2]}"
    yield from problems_of_size(q, capacity_of(views))
    yield from _problems_of_scales(views)


def _problems_of_scales(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say that K and V have different types, or that scales are missing, or present for a type without
    any.
    """
    k, v = views["k_cache"], views["v_cache"]
    narrow = next((x.dtype for x in (k, v) if x.dtype in _NARROW), None)
    if narrow and k.dtype != v.dtype:
        yield f"k_cache and v_cache must be of one type, got {k.dtype} and {v.dtype}"
    for name in SCALES:
        if (name in views) != (narrow is not None):
            yield (
                f"{name} must be given for a cache of {narrow}: what its numbers are multiplied by"
                if narrow
                else f"{name} is for a cache of {SCALED_ARRAYS}, got {k.dtype}; leave it out"
            )
    yield from problems_of_ranks(views)


def of_tokens(views: Mapping[str, ArrayView], name: str) -> bool:
    """Whether `name` is "k_scale" or "v_scale", and its array has the axes of the cache but the last one: a
    scale for each row.
    """
    return name in SCALES and name in views and len(views[name].shape) == len(views["k_cache"].shape) - 1


def token_arguments(views: Mapping[str, ArrayView], axes: tuple[str, ...]) -> tuple[Argument, ...]:
    """The declarations of the scales of tokens in `views`; `axes` are those of the rows of the cache."""
    return tuple(Argument(name, axes, (F32,), has_rows=False) for name in SCALES if of_tokens(views, name))


def problems_of_ranks(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say that one of k_scale and v_scale has a number for each token, and the other one for each head."""
    which = [of_tokens(views, name) for name in SCALES]
    if any(which) and not all(which):
        shapes = " and ".join(str(list(views[name].shape)) for name in SCALES if name in views)
        yield f"k_scale and v_scale must both be of heads or both of tokens, got shapes {shapes}"


def problems_of_narrow(
    config: AttentionConfig, views: Mapping[str, ArrayView], backend: str, blocks: BlockType | None = None
) -> Iterator[str]:
    """Say what the kernels of a backend do not take of caches of narrow types, which numpy does."""
    array = views["k_cache"].dtype
    stored = blocks or _NARROW.get(array)
    if backend in WITHOUT_KERNELS or stored is None:
        return
    problems = list(widening_problems(config, stored, array if blocks is None else blocks.name, backend))
    yield from problems
    for name in () if problems else ("k_cache", "v_cache"):
        if aligned(views[name], stored.nbytes) % stored.row_alignment:
            yield (
                f"rows of {name} must begin at multiples of {stored.row_alignment} bytes for backend "
                f"{backend!r}, got address {views[name].pointer:#x} and strides {list(views[name].strides)}; "
                f"{copy_of(name, views[name])}"
            )


def widening_problems(config: AttentionConfig, stored: DType, narrow: str, backend: str) -> Iterator[str]:
    """Say why kernels do not widen the rows of a cache of a narrow type, called `narrow`."""
    if config.element is F32:
        yield (
            f"q must be float16 or bfloat16 for a cache of {narrow} with backend {backend!r}, got float32; "
            "convert it, or use backend='cpu'"
        )
    if config.head_dim % stored.together or config.value_dim % stored.together:
        yield (
            f"head_dim and head_dim_v of a cache of {narrow} must be multiples of "
            f"{stored.together} for backend {backend!r}, got {config.head_dim} and {config.value_dim}; use "
            "backend='cpu', or a cache of the queries' type"
        )


def _problems_of_new(
    config: AttentionConfig, views: Mapping[str, ArrayView], sizes: dict[str, int]
) -> Iterator[str]:
    """Say what is wrong with the new rows k and v and their rotary tables."""
    declared = _new_rows(config)
    wrong = list(together_problems(views, ("k", "v"), ANGLES)) or list(
        problems_of_shapes(declared, views, sizes)
    )
    yield from (*wrong, *type_and_row_problems(declared, views))
    if wrong or "k" not in views or not views["k"].size:
        return
    q, written = views["q"], ["k_cache", "v_cache", *(name for name in SCALES if of_tokens(views, name))]
    if 0 in q.shape:
        yield f"q must have a query where there are new rows, got shape {list(q.shape)}"
    for name in written:
        yield from written_problems(name, views[name], _WHEN_NEW)
    others = {name: array for name, array in views.items() if name != "out"}  # which is checked for itself
    yield from sharing_problems(written, others, _WHEN_NEW)


def problems_of_size(q: ArrayView, capacity: int) -> Iterator[str]:
    """Say what is wrong with sizes: more rows than a row index counts, or more heads than CTAs."""
    if max(capacity, q.shape[2] * q.shape[1]) > MAX_WINDOWED_SEQ:
        yield f"queries of all heads, and keys, must be at most {MAX_WINDOWED_SEQ} of a sequence"
    if q.shape[0] * q.shape[1] > MAX_CTAS:
        yield (
            f"batch times heads must be at most {MAX_CTAS}, got {q.shape[0]} * {q.shape[1]}; split the batch"
        )


def _problems_of_numbers(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    q, k, table = views["q"], views["k_cache"], views.get("block_table")
    wanted = {feature.argument for feature in config.scores} | {*config.aux_operands}
    captured = {name for name in views if name.startswith(f"{AUX}_")}
    for name in (*CACHE_ARRAYS, *sorted(captured | {*config.aux_operands})):
        is_wanted = name in wanted
        if is_wanted != (name in views):
            yield (
                f"{name} must be given, because the config says so"
                if is_wanted
                else f"{name} is given, but the config does not say so"
            )
    yield from problems_of_operands(config, views)
    sequences = k.shape[0] if table is None else table.shape[0]
    if table is not None and not table.shape[1]:
        yield f"block_table must have room for a page, got shape {list(table.shape)}"
    if "cache_batch_idx" not in views and sequences != q.shape[0]:
        yield (
            f"the cache must have a sequence for each of batch={q.shape[0]}, got {sequences}; give "
            "cache_batch_idx to say which are meant"
        )


def problems_of_operands(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with types and shapes of the operands of a call: arrays of scores, and lengths."""
    if not (_OPERANDS | {*config.aux_operands}) & views.keys():
        return
    batch, heads, seq_q, _ = views["q"].shape
    sizes = {"batch": batch, "heads": heads, "seq_q": seq_q, LAST_KEYS: 0}
    if "k_cache" in views:
        sizes["kv_heads"] = views["k_cache"].shape[1]
    mask = views.get("mask")
    if mask is not None and not mask.shape:
        yield "mask must have a dimension of keys, the last m of a sequence, got none"
    elif mask is not None:
        sizes[LAST_KEYS] = last_keys(views)
        if last_keys(views) > MAX_WINDOWED_SEQ:
            yield f"mask must be of at most {MAX_WINDOWED_SEQ} keys, got shape {list(mask.shape)}"
    scores = (*every_cached(), *(feature for feature in config.scores if feature.gives_arrays))
    features = replace(
        config.features, scores=scores, seqused_k=True, leftpad_k=True, cache_batch_idx=True, kv_dtype=E4M3
    )
    wanted = (o for o in features.operands if o.name in views and not of_tokens(views, o.name))
    yield from operand_problems(wanted, views, sizes)


def longest_of(views: Mapping[str, ArrayView], max_seqlen_k: object) -> int:
    """The most keys that a sequence may have: max_seqlen_k if it is not None, at most the capacity."""
    capacity = capacity_of(views)
    if max_seqlen_k is None:
        return capacity
    longest = integer(max_seqlen_k, 0, MAX_WINDOWED_SEQ)
    if longest is None:
        raise LaunchError(
            f"{CALLER}: max_seqlen_k must be an integer from 0 to {MAX_WINDOWED_SEQ}, got "
            f"{shown(max_seqlen_k)}"
        )
    return min(longest, capacity)


def capacity_of(views: Mapping[str, ArrayView]) -> int:
    """The number of rows (tokens) that a sequence of the cache has room for."""
    pages = views[_TABLE].shape[1] if _TABLE in views else 1
    return int(views["k_cache"].shape[2] * pages)


def problems_of_contents(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say which elements of lengths, indices, block table and scales are invalid, of the first such array."""
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
    """Say that a scale of K or V, or of one of the keys `first` to `ends` - 1 of the items, is invalid."""
    scales: NDArray[Any] = host_array(views[name])
    if not of_tokens(views, name):
        if not (np.isfinite(scales) & (scales > 0)).all():
            yield f"{name} must hold finite numbers above 0, got {scales.tolist()}"
        return
    rows = scales.shape[2]
    table = host_array(views[_TABLE]) if _TABLE in views else np.arange(len(scales))[:, None]
    for item, begin, end in zip(which, first, ends, strict=True):
        keys = np.arange(begin, end)
        of_keys = scales[table[item, keys // rows], :, keys % rows]
        wrong = of_keys[~(np.isfinite(of_keys) & (of_keys >= 0))]
        if wrong.size:
            yield f"{name} must hold finite numbers of at least 0 for the keys of a sequence, got {wrong[0]}"
            return
