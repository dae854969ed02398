"""The checks of a call that attends to a KV cache, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from flash.calls.step import aligned
from flash.decode.contents import capacity_of, problems_of_contents
from flash.decode.plan import last_keys
from flash.decode.token_scales import SCALES, of_tokens, problems_of_ranks, token_arguments
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
from flash.mods.trace import AUX
from flash.operands.declared import LAST_KEYS, MAX_WINDOWED_SEQ
from flash.operands.dtypes import E4M3, F32, FP8_ARRAYS, FP8_DTYPES, I32
from flash.problem.config import AttentionConfig
from flash.problem.features import ANGLES, LENGTHS, MAX_PAGE_SIZE
from flash.problem.kernel_config import WIDENED
from flash.problem.limits import MAX_CTAS
from flash.scores.features import CACHE_ARRAYS, every_cached
from ptxgen.arguments import integer
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.settings import WITHOUT_KERNELS

CALLER: Final = "DecodeKernel.launch"
_NARROW: Final = {t.array_name: t for t in FP8_DTYPES.values()}  # by the names that arrays give them
QUERY_AXES: Final = ("batch", "heads", "seq_q", "head_dim")
_NEW: Final = ("batch", "kv_heads", "n")
_COS, _SIN = ANGLES
_WHEN_NEW: Final = " where there are new rows"
_OPERANDS: Final = frozenset((*CACHE_ARRAYS, *LENGTHS, *SCALES))


def problems_of(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the arrays of a call. Contents of arrays on a GPU are not checked."""
    problems = list(_problems_of_arrays(config, views))
    yield from problems
    read = [views[name] for name in (*LENGTHS, *SCALES, "block_table") if name in views]
    if not problems and all(array.device == HOST for array in read):
        yield from problems_of_contents(views)
    elif not problems and _COS in views:
        yield from angle_problems(views, config.head_dim, 1)


def _problems_of_arrays(config: AttentionConfig, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the arrays of a call, whatever they hold."""
    arrays, sizes = _matrices(config, views), {"head_dim": config.head_dim, "head_dim_v": config.value_dim}
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
        matrix_of_config(config, "q", QUERY_AXES),
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
    """Say what is wrong with the types of the caches together, and their scales."""
    k, v = views["k_cache"], views["v_cache"]
    found = [x.dtype for x in (k, v) if x.dtype in _NARROW]
    narrow = found[0] if found else None
    if narrow and k.dtype != v.dtype:
        yield f"k_cache and v_cache must be of one type, got {k.dtype} and {v.dtype}"
    for name in SCALES:
        if (name in views) != (narrow is not None):
            yield (
                f"{name} must be given for a cache of {narrow}: what its numbers are multiplied by"
                if narrow
                else f"{name} is for a cache of {FP8_ARRAYS}, got {k.dtype}; leave it out"
            )
    yield from problems_of_ranks(views)


def problems_of_narrow(
    config: AttentionConfig, views: Mapping[str, ArrayView], backend: str
) -> Iterator[str]:
    """Say what the kernels of a backend do not take of caches of narrow types, which numpy does."""
    narrow = views["k_cache"].dtype
    if backend in WITHOUT_KERNELS or narrow not in _NARROW:
        return
    problems = list(widening_problems(config, narrow, backend))
    yield from problems
    for name in () if problems else ("k_cache", "v_cache"):
        if aligned(views[name], _NARROW[narrow].nbytes) % WIDENED:
            yield (
                f"rows of {name} must begin at multiples of {WIDENED} bytes for backend {backend!r}, got "
                f"address {views[name].pointer:#x} and strides {list(views[name].strides)}; "
                f"{copy_of(name, views[name])}"
            )


def widening_problems(config: AttentionConfig, narrow: str, backend: str) -> Iterator[str]:
    """Say why kernels do not widen the rows of a cache of a `narrow` type, `WIDENED` elements at a time."""
    if config.element is F32:
        yield (
            f"q must be float16 or bfloat16 for a cache of {narrow} with backend {backend!r}, got float32; "
            "convert it, or use backend='cpu'"
        )
    if config.head_dim % WIDENED or config.value_dim % WIDENED:
        yield (
            f"head_dim and head_dim_v of a cache of {narrow} must be multiples of {WIDENED} for backend "
            f"{backend!r}, got {config.head_dim} and {config.value_dim}; use backend='cpu', or a cache of "
            "the queries' type"
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


def longest_of(views: Mapping[str, ArrayView], given: object) -> int:
    """The most keys that a sequence may have: max_seqlen_k if given, at most the capacity."""
    capacity = capacity_of(views)
    if given is None:
        return capacity
    found = integer(given, 0, MAX_WINDOWED_SEQ)
    if found is None:
        raise LaunchError(
            f"{CALLER}: max_seqlen_k must be an integer from 0 to {MAX_WINDOWED_SEQ}, got {shown(given)}"
        )
    return min(found, capacity)
