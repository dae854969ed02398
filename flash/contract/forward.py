"""The launch contract of an attention kernel: all that a host program in any language needs to
launch it.

`parameters` is the one place that says what each kernel parameter means.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from flash.contract.built_kernel import BuiltKernel
from flash.contract.common import (
    Words,
    launch_contract,
    meanings_of_maps,
    meanings_of_pointers,
    meanings_of_strides,
    promised_launch,
)
from flash.operands.dtypes import F32_BYTES
from flash.problem.arrays import arrays_of, log_sums, matrices, tickets
from flash.problem.features import Features
from flash.problem.kernel_config import KernelConfig
from flash.problem.latent_tiling import LatentTiling
from flash.problem.limits import MAX_CTAS, max_seq
from flash.problem.tensor_maps import maps_of
from flash.scores.sink import Sink
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.contract.expressions import CEIL_DIV, DIV, Expression, expression, product


@functools.cache
def parameters(config: KernelConfig) -> dict[str, str]:
    """The meaning of each parameter of the kernel, in their order; with LSE, even if the kernel
    does not write it.
    """
    features = config.features
    arrays, operands = (*matrices(config), log_sums(config)), features.operands
    mapped = maps_of(config)
    pointers = *arrays, *operands, *tickets(config)
    meanings = meanings_of_pointers(pointers) | meanings_of_strides(arrays, mapped)
    longest = max_seq(features)
    lse = "LSE is the sink" if features.has(Sink) else "LSE is -inf"
    if features.varlen:
        meanings["total_q"] = f"rows of Q and O: those of all sequences, 1 to {longest}"
    else:
        meanings["seq_q"] = f"queries of each head, 1 to {_most_rows(config)}"
    if features.packs_keys:
        meanings["total_k"] = (
            f"rows of K and V, {int(bool(mapped))} to {longest}; of a sequence without keys the output is 0 "
            f"and {lse}"
        )
    else:
        meanings["seq_k"] = (
            cache_room(features, longest)
            if features.cached
            else f"keys of each head, 1 to {longest}"
            if mapped
            else f"keys of each head, 0 to {longest}; with 0 the output is 0 and {lse}"
        )
    meanings["heads"] = "heads of Q and O, at least 1"
    meanings["group"] = (
        "heads / kv_heads, a whole number: query head h reads key/value head h / group, rounded down"
    )
    meanings["softmax_scale"] = "factor of Q K^T before the softmax, usually 1 / sqrt(head_dim)"
    meanings |= {number.name: number.meaning for number in config.numbers}
    return meanings | meanings_of_strides(operands) | meanings_of_maps(arrays, mapped)


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


def contract(made: BuiltKernel, config: KernelConfig) -> dict[str, Any]:
    """The contract of the attention kernel of a configuration."""
    t, features, meanings = config.tiling, config.features, parameters(config)
    turned, turning = features.turned, {}
    if features.appended is not None or turned is not None:
        turning = rotary_words(
            turned.rotary_dim if turned else 0, interleaved=turned is not None and turned.interleaved
        )
    words = Words(
        kind="decode" if config.features.cached and not config.features.varlen else "forward",
        computes={
            "dtype": config.dtype.name,
            "precision": config.precision,
            "head_dim": t.head_dim,
            "head_dim_v": t.head_dim_v,
            "tile": t.tile,
            "block_q": t.block_q,
            **turning,
        },
        meanings=meanings,
        ctas=CTAS if config.is_persistent else _parts(config),
        equal={**({"parts": _parts(config)} if config.is_persistent else {}), **_scale_blocks(features)},
        constraints=_constraints(config),
        more={
            "alignment": config.alignment,
            "layout": _layout(config.features),
            "causal": {"mode": config.causal or "none", "meaning": CAUSAL[config.causal]},
            "lse": meanings["LSE"]
            if config.return_lse
            else "not written: the kernel was made with return_lse=False",
        },
    )
    return launch_contract(made, words)


def _parts(config: KernelConfig) -> Expression:
    """The number of parts of the problem, each of which has a CTA along x unless the kernel is persistent.
    With packed heads, rows are those of all heads of a group.
    """
    t, longest = config.tiling, config.features.longest_q
    slices: list[Expression] = [t.value_slices, *(["splits"] if config.features.splits else [])]
    rows, heads = expression(longest), expression("heads")
    if config.packed:
        rows, heads = expression(f"{longest} * group"), {DIV: ["heads", "group"]}
    return product({CEIL_DIV: [rows, t.block_q]}, heads, "batch", *slices)


def _scale_blocks(features: Features) -> dict[str, Expression]:
    """How many blocks of rows have a scale."""
    return {name: {CEIL_DIV: [rows, features.scale_block]} for name, rows in features.scale_blocks.items()}


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
    place, n = "row r of K[s]", features.page_size
    if n:
        place = f"row r % {n} of page block_table[s, r / {n} rounded down]"
    sequence = "cache_batch_idx[b]" if features.cache_batch_idx else "b"
    return (
        "the last dimension of all arrays is dense, the strides of the others are parameters. K "
        f"and V are a cache: row r of sequence s is {place}, V likewise; item b of the batch has "
        f"sequence {sequence}"
    )


NOT_WRITTEN_MEANWHILE: Final = (
    "what the kernel is told of the sequences is not written while it runs; whatever it says, "
    "nothing outside the arrays is accessed"
)
ONE_PLACE: Final = (
    "no two new rows have one place: cache_batch_idx names a sequence once, and a page that is "
    "written to is of one sequence"
)


def rotary_words(rotary_dim: int, *, interleaved: bool) -> dict[str, Any]:
    """The entries of a contract for the rotation of rows."""
    return {"rotary_dim": rotary_dim, "rotary_interleaved": interleaved}


def turned_together(rotary_dim: int, *, interleaved: bool) -> Iterator[str]:
    """The constraint that says which two columns are rotated together, if any are."""
    pair = "2 i and 2 i + 1" if interleaved else "i and i + rotary_dim / 2"
    if rotary_dim:
        yield f"columns {pair} of a row are turned together"


def _constraints(config: KernelConfig) -> list[str]:
    features, new = config.features, config.features.appended
    rows = features.row_counts
    dense = ["Q", "K", "V", "O", *(o.name for o in features.operands if o.columns)]
    written, read = (
        ("O and LSE", "what")
        if new is None
        else ("O, LSE and the rows of K and V that are written", "what else")
    )
    constraints = [
        _alignments(config),
        f"the last dimension of {_and(dense)} is dense (stride 1)",
        f"{rows[0]} and {rows[1]} are at most {max_seq(features)}",
        *([f"{features.longest_q} * group is at most {_most_rows(config)}"] if config.packed else []),
        "heads is a multiple of kv_heads",
        _of_grid(config),
        f"{written} share no memory with {read} is read or each other, and no two indices of O "
        "name one element",
    ]
    if isinstance(config.tiling, LatentTiling):
        constraints.append(
            "V is K: it has the same address and the same strides, and the values are the first head_dim_v "
            "columns of the keys"
        )
    if mapped := maps_of(config):
        constraints.append(
            f"the strides of {_and([*mapped])} are positive and below 2**40 bytes, as tensor maps take them; "
            "of a dimension with one element any such number will do"
        )
    if new is not None:
        constraints += _of_new_rows(config)
    if features.turned is not None:
        turned = features.turned
        constraints += turned_together(turned.rotary_dim, interleaved=turned.interleaved)
    if features.varlen or features.cached:
        constraints.append(NOT_WRITTEN_MEANWHILE)
    if config.takes_tickets:
        constraints.append(
            "tickets is 0 before a launch; launches with one counter follow each other, and nothing else "
            "writes it meanwhile"
        )
    return constraints


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
    yield ONE_PLACE


def _alignments(config: KernelConfig) -> str:
    """The constraint that says what pointers and strides are multiples of."""
    (most, first), *others = [
        (nbytes, _and([*names])) for nbytes, names in groupby("QKVO", config.alignment_of)
    ]
    whose = "their" if len(first) > 1 else "its"
    more = "".join(f"those of {names} of {nbytes}; " for nbytes, names in others)
    rest = [o.name for o in config.features.operands if o.columns]
    own = f"; {_and(rest)}, and their strides, of their elements' size" if rest else ""
    return (
        f"{first}, and {whose} strides in bytes, are multiples of {most} bytes; {more}LSE is a "
        f"multiple of {F32_BYTES}{own}"
    )


def _and(names: Sequence[str]) -> str:
    return " and ".join(", ".join(names).rsplit(", ", 1))


def global_contract(config: KernelConfig) -> GlobalContract:
    """The contract of an attention kernel in the form that the proof of global accesses takes.

    `batch` and `kv_heads` are not parameters: the grid and `group` imply them.
    """
    t, features = config.tiling, config.features
    rows_q, rows_k = features.row_counts
    longest = max_seq(features)
    bounds = {  # factors of other sizes first: the proof eliminates the last size first
        "group": (1, MAX_CTAS),
        rows_q: (1, _most_rows(config)),
        rows_k: (int(features.cached or bool(maps_of(config))), longest),
        "batch": (1, MAX_CTAS),
        "kv_heads": (1, MAX_CTAS),
        "heads": (1, MAX_CTAS),
        **{n.name: n.bounds for n in config.numbers if n.bounds is not None},
    }
    equal = {"heads": "group * kv_heads"}
    if features.appended is not None:
        bounds["group"] = (1, _most_rows(config) if config.packed else 1)
    if features.page_size:
        bounds["table_columns"] = (1, longest // features.page_size)
        equal[rows_k] = f"{features.page_size} * table_columns"
    for name, count in features.scale_blocks.items():
        bounds[name] = (1, -(-longest // features.scale_block))
        equal[name] = f"({count} + {features.scale_block - 1}) // {features.scale_block}"
    rows, of = features.longest_q, "heads"
    if config.packed:
        rows, of = "rows", "kv_heads"
        bounds["rows"], equal["rows"] = (1, _most_rows(config)), f"{features.longest_q} * group"
    blocks = f"({rows} + {t.block_q - 1}) // {t.block_q}"
    blocks += f" * {of} * batch * {t.value_slices}{' * splits' if features.splits else ''}"
    if config.is_persistent:
        equal["parts"], blocks = blocks, CTAS
        bounds[CTAS] = bounds["parts"]
    return promised_launch(arrays_of(config), bounds, blocks, equal, maps_of(config))
