"""The launches of the cache kernels other than attention: the kernel that appends new rows
to a cache, and the kernel that merges results of parts of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from flash.contract.forward import (
    NOT_WRITTEN_MEANWHILE,
    ONE_SLOT,
    cache_layout,
    cache_room,
    rotary_entries,
    rotated_together,
)
from flash.contract.launches import EXACTLY, NO_LSE, Launch, constraints_of_arrays, meaning_of, size
from flash.kernels import append, merge
from flash.kernels.append import COUNTS, AppendConfig
from flash.kernels.merge import MERGED_LSE, MergeConfig
from flash.operands.declared import Number, Operand
from flash.problem.features import MAX_SPLITS, Rotation
from ptxgen.contract.expressions import CEIL_DIV, expression, product

_POSITIONS: Final = (
    "rows of COS and SIN; row r of a sequence is rotated by the angles of position r, less its padding, 0 "
    "for padding, and at most the last"
)


def appending(config: AppendConfig) -> Launch:
    """The launches of the append kernel of a configuration: `new_rows` is batch * kv_heads * n, `q_rows`
    batch * heads * seq_q.
    """
    features, rows = config.features, "new_rows"
    arrays = (*config.arrays, *[_of_append(config, operand) for operand in config.operands])
    rotation = Rotation(config.rotary_dim, config.interleaved) if config.rotary_dim else None
    equal = {"new_rows": product("batch", "kv_heads", "n")}
    if rotation is not None:
        rows, equal["q_rows"] = "new_rows + q_rows", product("batch", "heads", "seq_q")
    if features.page_size:
        equal["seq_k"] = product(features.page_size, "table_columns")
    return Launch(
        kind="append",
        computes={
            "dtype": config.dtype.name,
            "head_dim": config.head_dim,
            "head_dim_v": config.head_dim_v,
            **rotary_entries(rotation),
        },
        arrays=arrays,
        scalars=(*_scalars_of_append(config),),
        ctas={CEIL_DIV: [expression(rows), append.WARPS]},
        equal=equal,
        constraints=(
            *rotated_together(rotation),
            *constraints_of_arrays(arrays),
            ONE_SLOT,
            EXACTLY,
            NOT_WRITTEN_MEANWHILE,
        ),
        more={"layout": cache_layout(features)},
    )


def _scalars_of_append(config: AppendConfig) -> Iterator[Number]:
    features, most = config.features, append.MAX_ROWS
    yield size("batch", most)
    yield size("new_rows", most, "new rows of all heads of K: batch * kv_heads * n")
    yield size("n", most, "new rows of each head of K")
    yield size("kv_heads", most, "heads of K and V")
    yield size("seq_k", most, cache_room(features, most))
    if config.rotary_dim:
        yield size("q_rows", most, "rows of all heads of Q: batch * heads * seq_q")
        yield size("seq_q", most, "queries of each head")
        yield size("heads", most, "heads of Q")
        yield size("positions", most, _POSITIONS)
    yield from features.numbers
    if features.page_size:
        yield size("table_columns", most // features.page_size)


def _of_append(config: AppendConfig, operand: Operand) -> Operand:
    """`operand` with its meaning for an append kernel."""
    n = COUNTS.name if config.counted else "n"
    words = {
        "seqused_k": (
            f"how many rows each sequence has with the new ones: new row i of {n} becomes row "
            f"seqused_k - {n} + i, or none if that is negative"
        ),
        **{f"{what}_scale": _divisor(config, what) for what in "kv"},
        "cache_batch_idx": "which sequence of K and V each item of the batch is of",
    }
    return replace(operand, meaning=words.get(operand.name, operand.meaning))


def _divisor(config: AppendConfig, what: str) -> str:
    """The meaning of the scales of K ("k") or V ("v")."""
    if not config.features.per_token:
        return f"what new rows of {what.upper()} are divided by, above 0"
    return (
        f"what each new row of {what.upper()} is divided by: its largest finite magnitude / "
        f"{config.stored.largest:g}, at least 2**-126"
    )


def merging(config: MergeConfig) -> Launch:
    """The launches of the merge kernel of a configuration. `rows` counts the rows of all heads of all
    batches; `LSES` has `splits` elements for each row.
    """
    most = merge.MAX_ROWS
    return Launch(
        kind="merge",
        computes={
            "dtype": config.dtype.name,
            "parts_dtype": config.parts.name,
            "head_dim_v": config.head_dim_v,
            **({"plus_is_empty": True} if config.plus_is_empty else {}),
        },
        arrays=config.arrays,
        scalars=(
            size("heads", most, "heads of O"),
            size("seq_q", most, "queries of each head"),
            size("batch", most),
            size("rows", most, f"rows of O: batch * heads * seq_q, 1 to {most}"),
            size("splits", MAX_SPLITS, f"parts of each row, 1 to {MAX_SPLITS}"),
        ),
        ctas={CEIL_DIV: ["rows", merge.WARPS]},
        equal={"rows": product("batch", "heads", "seq_q")},
        constraints=(*constraints_of_arrays(config.arrays), EXACTLY),
        more={"lse": meaning_of(MERGED_LSE) if config.return_lse else NO_LSE},
    )
