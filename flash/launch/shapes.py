"""Shapes of Q, K, V and O in the caller's layout, and their checks."""

from __future__ import annotations

from typing import Final

from flash.host.arrays import ArrayView
from flash.host.caller import Caller
from flash.problem.config import AttentionConfig

LAYOUTS: Final = ("bhsd", "bshd")
PACKED: Final = "thd"  # packed sequences: [rows of all sequences, heads, dim]

_SHAPES: Final = {
    "bhsd": "[batch, heads, seq, dim] or [batch * heads, seq, dim]",
    "bshd": "[batch, seq, heads, dim]",
    PACKED: "[total, heads, dim], as the config says varlen",
}


def rank_problems(arrays: dict[str, ArrayView], layout: str) -> list[str]:
    """Say what is wrong with the ranks of a call's arrays, which are given by name."""
    ranks = {"bhsd": (3, 4), "bshd": (4,), PACKED: (3,)}[layout]
    wrong = [
        f"{name} must be {_SHAPES[layout]}, got shape {list(array.shape)}"
        for name, array in arrays.items()
        if len(array.shape) not in ranks
    ]
    if wrong or len({len(array.shape) for array in arrays.values()}) == 1:
        return wrong
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    return [f"all arrays must have as many dimensions as q, got {shapes}"]


def split(values: tuple[int, ...], layout: str, missing: int) -> tuple[int, int, int, int]:
    """Shape or strides as (batch, head, row, column). A 3-D array has no batch dimension: `missing`
    is returned for it.

    A 3-D array is one batch item with batch * heads heads: its heads still match those of K and V,
    because (b * heads + h) // group == b * kv_heads + h // group. Packed sequences are one batch
    item, too.
    """
    if layout == PACKED:
        rows, heads, columns = values
        return missing, heads, rows, columns
    if len(values) == 3:
        return missing, *values
    b, x, y, d = values
    return (b, x, y, d) if layout == "bhsd" else (b, y, x, d)


def joined(batch: int, heads: int, rows: int, columns: int, *, rank: int, layout: str) -> tuple[int, ...]:
    """The shape in the caller's layout: the inverse of `split`."""
    if layout == PACKED:
        return rows, heads, columns
    if rank == 3:
        return heads, rows, columns
    return (batch, heads, rows, columns) if layout == "bhsd" else (batch, rows, heads, columns)


def shape_problems(
    config: AttentionConfig,
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    layout: str,
    caller: Caller,
) -> list[str]:
    """Say what is wrong with the shapes of q, k and v, whose ranks are right."""
    (batch, heads, _, d), (k_batch, kv_heads, seq_k, k_d), (v_batch, v_heads, seq_v, v_d) = (
        split(shape, layout, 1) for shape in (q, k, v)
    )
    problems = [
        f"{name} must have {what}={wanted} in its last dimension, {caller.said('as q has')}, got "
        f"shape {list(shape)}" + (f"; use AttentionConfig({what}={got}, ...)" if caller.has_config else "")
        for name, what, wanted, got, shape in (
            ("q", "head_dim", config.head_dim, d, q),
            ("k", "head_dim", config.head_dim, k_d, k),
            ("v", "head_dim_v", config.value_dim, v_d, v),
        )
        if got != wanted
    ]
    if (k_batch, kv_heads, seq_k) != (v_batch, v_heads, seq_v):
        problems.append(
            f"k and v must have the same batch, heads and length, got shapes {list(k)} and {list(v)}"
        )
    if batch != k_batch:
        problems.append(f"q and k must have the same batch, got {batch} and {k_batch}")
    if heads % kv_heads if kv_heads else heads:
        problems.append(
            f"the heads of q must be a multiple of those of k and v, got {heads} and {kv_heads} "
            f"(layout {layout!r}, shapes {list(q)} and {list(k)})"
        )
    return problems
