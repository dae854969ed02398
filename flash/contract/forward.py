"""The launches of an attention kernel: what each parameter means, and what a host promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from flash.contract.launches import (
    HEADS,
    NO_LSE,
    WHOLE_GROUPS,
    Launch,
    constraints_of_arrays,
    mapped_strides,
    meaning_of,
    size,
    sizes_of_heads,
)
from flash.operands.declared import Number
from flash.problem.arrays import arrays_of
from flash.problem.features import PARTS, Features, Rotation
from flash.problem.kernel_config import KernelConfig
from flash.problem.limits import MAX_CTAS, max_seq
from flash.problem.tensor_maps import maps_of
from flash.scores.sink import Sink
from ptxgen.contract.expressions import CEIL_DIV, Expression, product
from ptxgen.types import u32


def cache_room(features: Features, longest: int) -> str:
    """The meaning of `seq_k` for a cache that a kernel attends to or appends to."""
    paged = f", {features.page_size} for each column of block_table" if features.page_size else ""
    return f"rows that a sequence of the cache has room for{paged}, 1 to {longest}"


def _most_rows(config: KernelConfig) -> int:
    """The most query rows of a head, or of packed heads; one query block if the kernel appends."""
    return max_seq(config.features) if config.features.appended is None else config.tiling.block_q


CTAS: Final = "ctas"  # the size of a persistent kernel's grid, which the host chooses
CAUSAL: Final[dict[str, str]] = {
    "": "none: every query sees every key",
    "bottom_right": (
        "query i sees the keys 0 to i + seq_k - seq_q, so the last query sees every key; a row "
        "that sees none gives 0"
    ),
    "top_left": "query i sees the keys 0 to i; keys beyond the last query are seen by none",
}


def launches_of(config: KernelConfig) -> Launch:
    """The launches of the attention kernel of a configuration."""
    t, features = config.tiling, config.features
    arrays, parts = arrays_of(config), _parts(config)
    equal: dict[str, Expression] = {"heads": HEADS}
    if config.packed:
        equal["rows"] = product(features.longest_q, "group")
    if features.page_size:
        equal["seq_k"] = product(features.page_size, "table_columns")
    equal |= features.scale_blocks
    if config.is_persistent:
        equal["parts"] = parts
    turning = rotary_entries(features.rotation) if features.appended or features.rotation else {}
    (lse,) = [meaning_of(array) for array in arrays if array.name == "LSE"] or [NO_LSE]
    return Launch(
        kind="decode" if features.cached and not features.varlen else "forward",
        computes={
            "dtype": config.dtype.name,
            "precision": config.precision,
            "head_dim": t.head_dim,
            "head_dim_v": t.head_dim_v,
            "tile": t.tile,
            "block_q": t.block_q,
            **turning,
        },
        arrays=arrays,
        scalars=(*_scalars(config),),
        ctas=CTAS if config.is_persistent else parts,
        equal=equal,
        constraints=_constraints(config),
        maps=maps_of(config),
        more={
            "alignment": config.alignment,
            "layout": _layout(features),
            "causal": {"mode": config.causal or "none", "meaning": CAUSAL[config.causal]},
            "lse": lse,
        },
    )


def _scalars(config: KernelConfig) -> Iterator[Number]:
    """The sizes of launches, and the other scalars."""
    features, mapped, longest = config.features, bool(maps_of(config)), max_seq(config.features)
    rows_q, rows_k = features.row_counts
    most_q, most_group = _most_rows(config), MAX_CTAS
    if features.appended is not None:
        most_group = most_q if config.packed else 1
    lse = "LSE is the sink" if features.has(Sink) else "LSE is -inf"
    of_q, least_k, of_k = f"queries of each head, 1 to {most_q}", int(features.cached or mapped), ""
    if features.varlen:
        of_q = f"rows of Q and O: those of all sequences, 1 to {longest}"
    if features.packs_keys:
        empty = f"of a sequence without keys the output is 0 and {lse}"
        of_k = f"rows of K and V, {least_k} to {longest}; {empty}"
    elif features.cached:
        of_k = cache_room(features, longest)
    else:
        empty = "" if mapped else f"; with 0 the output is 0 and {lse}"
        of_k = f"keys of each head, {least_k} to {longest}{empty}"
    queries, keys = size(rows_q, most_q, of_q), size(rows_k, longest, of_k, least=least_k)
    yield from sizes_of_heads(queries, keys, "usually 1 / sqrt(head_dim)", most_group)
    yield from config.numbers
    if features.page_size:
        yield size("table_columns", longest // features.page_size)
    if not features.varlen:
        for name, most in features.counts_of_scales({"seq_q": longest, "seq_k": longest}).items():
            yield size(name, most)
    if config.packed:
        yield size("rows", most_q)
    if config.is_persistent:
        yield Number(CTAS, u32, "", PARTS.bounds)


def _parts(config: KernelConfig) -> Expression:
    """The number of parts of the problem, each of which has a CTA along x unless the kernel is persistent.
    With packed heads, rows are those of all heads of a group.
    """
    t, features = config.tiling, config.features
    rows, heads = ("rows", "kv_heads") if config.packed else (features.longest_q, "heads")
    splits = ["splits"] if features.splits else []
    return product({CEIL_DIV: [rows, t.block_q]}, heads, "batch", t.value_slices, *splits)


_BATCHED: Final = (
    "the last dimension of Q, K, V and O is dense; the strides of the others are parameters, so "
    "that [batch, heads, seq, dim], [batch, seq, heads, dim] and views of a larger buffer all work"
)
_PACKED: Final = (
    "the sequences of a batch lie one after another in Q, K, V and O, whose last dimension is "
    "dense; the strides of the others are parameters. Sequences may be empty. Rows that are in no "
    "sequence, or beyond what is used of one, are neither read nor written. Elsewhere seq_q and "
    "seq_k are a sequence's own numbers of queries and keys"
)
_PACKED_QUERIES: Final = (
    "The queries of a batch of sequences lie one after another in Q and O. Sequences may be empty. Rows "
    "of Q and O that are in no sequence, or beyond what is used of one, are neither read nor written"
)


def _layout(features: Features) -> str:
    """Where the rows of K and V lie, and which of them are keys."""
    if features.packs_keys:
        return _PACKED
    if not features.cached:
        return _BATCHED
    padding = ", but for the first leftpad_k[b] of these" if features.leftpad_k else ""
    parts = (
        ". O and LSE are those of each split: parts that the merge kernel takes as PARTS and LSES"
        if features.splits
        else ""
    )
    packed = f". {_PACKED_QUERIES}" if features.varlen else ""
    return (
        f"{cache_layout(features)}; its keys are the first seqused_k[b] rows of that{padding}. "
        "Rows that are no keys may hold anything. Elsewhere seq_k is an item's own number of keys"
        f"{parts}{packed}"
    )


def cache_layout(features: Features) -> str:
    """Where the rows of a cache that a kernel attends to or appends to lie."""
    location, n = "row r of K[s]", features.page_size
    if n:
        location = f"row r % {n} of page block_table[s, r / {n} rounded down]"
    sequence = "cache_batch_idx[b]" if features.cache_batch_idx else "b"
    return (
        "the last dimension of all arrays is dense, the strides of the others are parameters. K "
        f"and V are a cache: row r of sequence s is {location}, V likewise; item b of the batch has "
        f"sequence {sequence}"
    )


NOT_WRITTEN_MEANWHILE: Final = (
    "what the kernel is told of the sequences is not written while it runs; whatever it says, "
    "nothing outside the arrays is accessed"
)
ONE_SLOT: Final = (
    "no two new rows have one place: cache_batch_idx names a sequence once, and a page that is "
    "written to is of one sequence"
)


def rotary_entries(rotation: Rotation | None) -> dict[str, Any]:
    """The entries of a contract for the rotation of rows."""
    rotation = rotation or Rotation(0)
    return {"rotary_dim": rotation.rotary_dim, "rotary_interleaved": rotation.interleaved}


def rotated_together(rotation: Rotation | None) -> Iterator[str]:
    """The constraint that says which two columns are rotated together, if any are."""
    if rotation is not None:
        pair = "2 i and 2 i + 1" if rotation.interleaved else "i and i + rotary_dim / 2"
        yield f"columns {pair} of a row are rotated together"


def _constraints(config: KernelConfig) -> Iterator[str]:
    features, rows = config.features, config.features.row_counts
    yield from constraints_of_arrays(arrays_of(config))
    yield f"{rows[0]} and {rows[1]} are at most {max_seq(features)}"
    if config.packed:
        yield f"{features.longest_q} * group is at most {_most_rows(config)}"
    yield WHOLE_GROUPS
    yield _of_grid(config)
    if config.family.values_in_keys:
        yield (
            "V is K: it has the same address and the same strides, and the values are the first head_dim_v "
            "columns of the keys"
        )
    if mapped := maps_of(config):
        yield mapped_strides(mapped)
    if features.appended is not None:
        yield from _of_new_rows(config)
    yield from rotated_together(features.rotation)
    if features.varlen or features.cached:
        yield NOT_WRITTEN_MEANWHILE
    if config.takes_tickets:
        yield (
            "tickets is 0 before a launch; launches with one counter follow each other, and nothing else "
            "writes it meanwhile"
        )


def _of_grid(config: KernelConfig) -> str:
    """The constraint on the grid."""
    if not config.is_persistent:
        return "block and grid are exactly as given: the batch is known from the number of CTAs"
    return (
        "block is exactly as given, and the batch is known from parts. ctas is best the number of CTAs that "
        "run at once, multiprocessors times CTAs of each, and no more than parts"
    )


def _of_new_rows(config: KernelConfig) -> Iterator[str]:
    """The constraints of a kernel that appends: a CTA writes only rows that no other CTA reads."""
    rows = "seq_q * group" if config.packed else "group is 1, and seq_q"
    yield (
        "of the CTAs that read a row of K one writes it, because all queries of its head of K are "
        f"in one block: {rows} is at most {_most_rows(config)}"
    )
    yield ONE_SLOT
