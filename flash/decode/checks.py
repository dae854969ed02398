"""The checks of a call that attends to a KV cache, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flash.decode.plan import last_keys
from flash.decode.token_scales import SCALES, of_tokens, problems_of_tokens, token_arguments
from flash.launch.arguments import (
    Argument,
    copy_of,
    heads_problems,
    problems_of_shapes,
    type_and_row_problems,
)
from flash.launch.checks import out_problems
from flash.launch.operands import operand_problems
from flash.launch.step import aligned
from flash.mods.trace import AUX
from flash.operands.declared import LAST_KEYS, MAX_WINDOWED_SEQ
from flash.operands.dtypes import E4M3, F32, FP8_ARRAYS, FP8_DTYPES, I32, OF_ARRAYS
from flash.pages.numbers import MOST_ITEMS
from flash.problem.config import AttentionConfig
from flash.problem.features import LENGTHS, MAX_PAGE_SIZE
from flash.problem.kernel_config import WIDENED
from flash.problem.limits import MAX_CTAS
from flash.scores.features import CACHE_ARRAYS, every_cached
from ptxgen.arguments import integer
from ptxgen.arrays.overlap import may_overlap_itself, may_share_elements
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.settings import WITHOUT_KERNELS

WHO: Final = "DecodeKernel.launch"
_NARROW: Final = {t.array_name: t for t in FP8_DTYPES.values()}  # by the names that arrays give them
_QUERIES: Final = ("batch", "heads", "seq_q", "head_dim")
_NEW: Final = ("batch", "kv_heads", "n")
_ANGLES: Final = ("positions", "rotary_dim / 2")
_COS: Final = "rotary_cos"
_SIN: Final = "rotary_sin"
_OPERANDS: Final = frozenset((*CACHE_ARRAYS, *LENGTHS, *SCALES))


def problems_of(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the arrays of a call. Contents of arrays on a GPU are not checked."""
    arrays, sizes = _matrices(config, views), _sizes_of(config)
    wrong = list(problems_of_shapes(arrays, views, sizes))
    yield from wrong
    if "seqused_k" not in views:
        yield "seqused_k must be given: how many rows of the cache each sequence has"
    if wrong or "seqused_k" not in views:
        return
    yield from type_and_row_problems(arrays, views)
    yield from _problems_of_cache(views)
    yield from _problems_of_numbers(config, views)
    yield from _problems_of_new(config, views, sizes)
    q, out = views["q"], views.get("out")
    yield from out_problems(out, (*q.shape[:3], config.value_dim))
    if out is not None:
        yield from type_and_row_problems([matrix_of_config(config, "out", _QUERIES)], views)
        yield from (
            f"out must not share memory with {name}; leave out=None, or pass an array of its own"
            for name in _sharing(views, "out")
        )
    devices = {array.device for array in views.values() if array.size}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {array.device_name}" for name, array in views.items())
        yield f"all arrays must be on one device, got {where}; move them to that of the cache"


def _sharing(views: Mapping[str, ArrayView], written: str) -> Iterator[str]:
    """Names of other arrays that share memory with the array `written`. Arrays of a type that
    no kernel takes are left out.
    """
    known = {name: array for name, array in views.items() if array.dtype in OF_ARRAYS}
    if written in known:
        array = known.pop(written)
        yield from (name for name, other in known.items() if may_share_elements(array, other))


def capacity_of(views: Mapping[str, ArrayView]) -> int:
    """The number of rows that a sequence of the cache has room for."""
    pages = views["block_table"].shape[1] if "block_table" in views else 1
    return int(views["k_cache"].shape[2] * pages)


def matrix_of_config(config: AttentionConfig, name: str, axes: tuple[str, ...]) -> Argument:
    """The declaration of an array of rows of the config's element type."""
    return Argument(name, axes, (config.element,), "as the config says")


def _matrices(config: AttentionConfig, views: Mapping[str, ArrayView]) -> tuple[Argument, ...]:
    """The queries, the cache and its block table."""
    cache = ("sequences", "kv_heads", "capacity")
    if "block_table" in views:
        cache = ("pages", "kv_heads", "page_size")
    keys, values = (
        Argument(name, (*cache, columns), (_NARROW[views[name].dtype],))
        if views[name].dtype in _NARROW
        else matrix_of_config(config, name, (*cache, columns))
        for name, columns in (("k_cache", "head_dim"), ("v_cache", "head_dim_v"))
    )
    return (
        matrix_of_config(config, "q", _QUERIES),
        keys,
        values,
        Argument("block_table", ("sequences", "table_columns"), (I32,), has_rows=False),
        *token_arguments(views, cache),
    )


def _new_rows(config: AttentionConfig) -> tuple[Argument, ...]:
    """The new rows and the rotary tables."""
    return (
        matrix_of_config(config, "k", (*_NEW, "head_dim")),
        matrix_of_config(config, "v", (*_NEW, "head_dim_v")),
        Argument(_COS, _ANGLES, (F32,)),
        Argument(_SIN, _ANGLES, (F32,)),
    )


def _sizes_of(config: AttentionConfig) -> dict[str, int]:
    return {"head_dim": config.head_dim, "head_dim_v": config.value_dim}


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
    """Say what is wrong with the types of the caches together, and their scales."""
    k, v = views["k_cache"], views["v_cache"]
    found = [x.dtype for x in (k, v) if x.dtype in _NARROW]
    narrow = found[0] if found else None
    if narrow and k.dtype != v.dtype:
        yield f"k_cache and v_cache must be of one type, got {k.dtype} and {v.dtype}"
    for name in SCALES:
        array = views.get(name)
        if (array is not None) != (narrow is not None):
            yield (
                f"{name} must be given for a cache of {narrow}: what its numbers are multiplied by"
                if narrow
                else f"{name} is for a cache of {FP8_ARRAYS}, got {k.dtype}; leave it out"
            )
        elif (
            array is not None
            and array.device == HOST
            and array.dtype == F32.array_name
            and not of_tokens(views, name)
        ):
            scales = host_array(array)
            if not (np.isfinite(scales) & (scales > 0)).all():
                yield f"{name} must hold finite numbers above 0, got {scales.tolist()}"
    yield from problems_of_tokens(views, _numbers_on_host(views))


def problems_of_narrow(
    config: AttentionConfig, views: Mapping[str, ArrayView], backend: str
) -> Iterator[str]:
    """Say what the kernels of a backend do not take of caches of narrow types, which numpy does."""
    narrow = views["k_cache"].dtype
    if backend in WITHOUT_KERNELS or narrow not in _NARROW:
        return
    if config.element is F32:
        yield (
            f"q must be float16 or bfloat16 for a cache of {narrow} with backend {backend!r}, got "
            f"{views['q'].dtype}; convert it, or use backend='cpu'"
        )
    if config.head_dim % WIDENED or config.value_dim % WIDENED:
        yield (
            f"head_dim and head_dim_v of a cache of {narrow} must be multiples of {WIDENED} for "
            f"backend {backend!r}, got {config.head_dim} and {config.value_dim}; use backend='cpu', or a "
            "cache of the queries' type"
        )
        return
    for name in ("k_cache", "v_cache"):
        if aligned(views[name], _NARROW[narrow].nbytes) % WIDENED:
            yield (
                f"rows of {name} must begin at multiples of {WIDENED} bytes for backend {backend!r}, got "
                f"address {views[name].pointer:#x} and strides {list(views[name].strides)}; "
                f"{copy_of(name, views[name])}"
            )


def _problems_of_new(
    config: AttentionConfig, views: Mapping[str, ArrayView], sizes: dict[str, int]
) -> Iterator[str]:
    """Say what is wrong with the new rows k and v and their rotary tables."""
    alone = [
        f"{one} is given without {other}; give both, or neither"
        for one, other in (("k", "v"), ("v", "k"), (_COS, _SIN), (_SIN, _COS))
        if one in views and other not in views
    ]
    yield from alone
    if alone or not {"k", _COS} & views.keys():
        return
    declared = _new_rows(config)
    wrong = list(problems_of_shapes(declared, views, sizes))
    yield from (*wrong, *type_and_row_problems(declared, views))
    if wrong:
        return
    q = views["q"]
    has_rows = "k" in views and views["k"].size > 0
    if has_rows and 0 in q.shape:
        yield f"q must have a query where there are new rows, got shape {list(q.shape)}"
    if _COS in views:
        yield from _problems_of_tables(config, views)
        if q.device == HOST:
            yield from _problems_of_positions(views)
    if has_rows:
        yield from _problems_of_written(views)
        if q.device == HOST:
            yield from _problems_of_new_on_host(views)


def _problems_of_written(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Why new rows cannot be written to the caches, and the scales of tokens with them."""
    written = ["k_cache", "v_cache", *(name for name in SCALES if of_tokens(views, name))]
    for n, name in enumerate(written):
        array = views[name]
        if array.read_only:
            yield f"{name} must be writable for new rows, got a read-only array"
        if may_overlap_itself(array.shape, array.strides):
            yield (
                f"{name} must have an element of its own for each index where there are new rows, "
                f"got strides {list(array.strides)} for shape {list(array.shape)}; copy it"
            )
        yield from (
            f"{sharer} must not share memory with {name} where there are new rows; pass an array of its own"
            for sharer in _sharing(views, name)
            if sharer not in ("out", *written[:n])  # said once
        )


def _problems_of_tables(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    cos = views[_COS]
    if not cos.shape[0] or cos.shape[1] > config.head_dim // 2:
        yield (
            "rotary_cos and rotary_sin must be [positions, rotary_dim / 2], with rotary_dim up to "
            f"head_dim={config.head_dim}, got {list(cos.shape)}"
        )


def _problems_of_new_on_host(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with lengths and indices for new rows, if they are on the host."""
    numbers = _numbers_on_host(views)
    if numbers is None:
        return
    batch = views["q"].shape[0]
    index, used = numbers["cache_batch_idx"], numbers["seqused_k"]
    if len(np.unique(index)) < batch:
        yield (f"cache_batch_idx must name a sequence once where there are new rows, got {index.tolist()}")
        return
    if "block_table" in views:
        yield from _problems_of_pages(views, index, used)


def _problems_of_positions(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say that rotary tables are too short, if lengths are on the host."""
    numbers = _numbers_on_host(views)
    if numbers is None:
        return
    needed = int(np.max(numbers["seqused_k"] - numbers["leftpad_k"], initial=0))
    if views[_COS].shape[0] < needed:
        yield (
            f"rotary_cos and rotary_sin must have a row for each of {needed} positions, got "
            f"{views[_COS].shape[0]}"
        )


def _problems_of_pages(
    views: Mapping[str, ArrayView], index: NDArray[np.int64], used: NDArray[np.int64]
) -> Iterator[str]:
    """Say what is wrong with the block table: a page to which new rows are written must occur once,
    because the writes and the reads of other sequences are not ordered.
    """
    given, page_size, new = views["block_table"], views["k_cache"].shape[2], views["k"].shape[2]
    if given.device != HOST or given.dtype != I32.array_name or not page_size:
        return
    table = host_array(given)
    if not (index.min() >= 0 and index.max() < len(table)):
        return
    named, written = [], []
    for sequence, rows in zip(index, used, strict=True):
        pages = table[sequence, : -(-max(int(rows), 0) // page_size)]
        named.append(pages)
        written.append(pages[max(int(rows) - new, 0) // page_size :])
    pages, times = np.unique(np.concatenate(named), return_counts=True)
    shared = np.intersect1d(pages[times > 1], np.concatenate(written))
    if shared.size:
        yield (
            "block_table must name a page that new rows are written to once, got page "
            f"{shared[0]} several times"
        )


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
    given = {name for name in views if name.startswith(f"{AUX}_")}
    for name in (*CACHE_ARRAYS, *sorted(given | {*config.aux_operands})):
        said = name in wanted
        if said != (name in views):
            yield (
                f"{name} must be given, because the config says so"
                if said
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
    if q.device == HOST:
        yield from _problems_on_host(views, sequences)


def problems_of_operands(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with types and shapes of the given operands: of scores, and lengths."""
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


def _problems_on_host(views: Mapping[str, ArrayView], sequences: int) -> Iterator[str]:
    """Say what is wrong with the elements of lengths and indices on the host."""
    capacity = capacity_of(views)
    for name, most in (("seqused_k", capacity), ("leftpad_k", capacity), ("cache_batch_idx", sequences - 1)):
        array = views.get(name)
        if array is not None and array.device == HOST and array.dtype == I32.array_name:
            if array.size > MOST_ITEMS:
                continue  # its shape is wrong, which is reported elsewhere
            numbers = host_array(array)
            wrong = numbers[(numbers < 0) | (numbers > most)]
            if wrong.size:
                yield f"{name} must hold numbers from 0 to {most}, got {wrong.flat[0]}"
                return
    yield from _problems_of_used_pages(views)


def _problems_of_used_pages(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say which page that a sequence uses is none of the cache, if lengths and table are on the host."""
    table = views.get("block_table")
    numbers = _numbers_on_host(views)
    if table is None or table.device != HOST or table.dtype != I32.array_name or numbers is None:
        return
    pages, page_size = views["k_cache"].shape[0], views["k_cache"].shape[2]
    if not page_size or table.shape[0] <= np.max(numbers["cache_batch_idx"], initial=-1):
        return
    of_sequences = host_array(table)
    for sequence, first, used in zip(
        numbers["cache_batch_idx"], numbers["leftpad_k"], numbers["seqused_k"], strict=True
    ):
        named = of_sequences[sequence, first // page_size : -(-used // page_size)]
        wrong = named[(named < 0) | (named >= pages)]
        if wrong.size:
            yield (
                f"block_table must hold pages from 0 to {pages - 1} for the {used} rows of sequence "
                f"{sequence}, got {wrong[0]}"
            )
            return


def _numbers_on_host(views: Mapping[str, ArrayView]) -> dict[str, NDArray[np.int64]] | None:
    """Lengths and indices of the items of a call, [batch] each; None if one is not on the host or
    has another type or shape than it should have.
    """
    batch = views["q"].shape[0]
    numbers = {"cache_batch_idx": np.arange(batch), "leftpad_k": np.zeros(batch, np.int64)}
    for name in LENGTHS:
        array = views.get(name)
        if array is None:
            continue
        if array.device != HOST or array.dtype != I32.array_name:
            return None
        if tuple(array.shape) not in ((), (1,), (batch,)):
            return None
        numbers[name] = np.broadcast_to(host_array(array), batch).astype(np.int64)
    return numbers


def longest_of(views: Mapping[str, ArrayView], given: object) -> int:
    """The most keys that a sequence may have: max_seqlen_k if given, at most the capacity."""
    capacity = capacity_of(views)
    if given is None:
        return capacity
    found = integer(given, 0, MAX_WINDOWED_SEQ)
    if found is None:
        raise LaunchError(
            f"{WHO}: max_seqlen_k must be an integer from 0 to {MAX_WINDOWED_SEQ}, got {shown(given)}"
        )
    return min(found, capacity)
