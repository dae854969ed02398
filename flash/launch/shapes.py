"""The dimensions of Q, K, V and O in the caller's layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flash.launch.arguments import Argument
from flash.problem.config import AttentionConfig

LAYOUTS: Final = ("bhsd", "bshd")
PACKED: Final = "thd"  # packed sequences: [rows of all sequences, heads, dim]

_SHAPES: Final = {
    "bhsd": "[batch, heads, seq, dim] or [batch * heads, seq, dim]",
    "bshd": "[batch, seq, heads, dim]",
    PACKED: "[total, heads, dim], as the config says varlen",
}


def rank_problems(q: tuple[int, ...], layout: str) -> Iterator[str]:
    """Say that q has a number of dimensions that the layout does not allow."""
    if len(q) not in {"bhsd": (3, 4), "bshd": (4,), PACKED: (3,)}[layout]:
        yield f"q must be {_SHAPES[layout]}, got shape {list(q)}"


def matrices(
    config: AttentionConfig, layout: str, rank: int, why: str, of_pages: str = ""
) -> tuple[Argument, ...]:
    """The declarations of q, k, v and out, of `rank` dimensions in the caller's layout; `why` is the source
    of their element type, for messages. `of_pages` is the layout of k and v if they are in pages.
    """

    def axes(heads: str, rows: str, columns: str) -> tuple[str, ...]:
        if of_pages and heads == "kv_heads":
            inner = (heads, "page_size") if of_pages == "bhsd" else ("page_size", heads)
            return "pages", *inner, columns
        if layout == PACKED:
            return rows.replace("seq", "total"), heads, columns
        if rank == 3:
            return f"batch * {heads}", rows, columns
        return ("batch", heads, rows, columns) if layout == "bhsd" else ("batch", rows, heads, columns)

    mx = config.features.mx
    of_scores = "head_dim", config.element, why
    if mx is not None and mx.format.element is not None:
        of_scores = (
            mx.of_scores,
            mx.format.element,
            f"two of e2m1 in each, with scale_block={mx.format.word!r}",
        )
    return tuple(
        Argument(name, axes(heads, rows, columns), (dtype,), why)
        for name, heads, rows, (columns, dtype, why) in (
            ("q", "heads", "seq_q", of_scores),
            ("k", "kv_heads", "seq_k", of_scores),
            ("v", "kv_heads", "seq_k", ("head_dim_v", config.element, why)),
            ("out", "heads", "seq_q", ("head_dim_v", config.output, why)),
        )
    )


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
    """The shape of an array in the caller's layout, of rank `rank`: the inverse of `split`."""
    if layout == PACKED:
        return rows, heads, columns
    if rank == 3:
        return heads, rows, columns
    return (batch, heads, rows, columns) if layout == "bhsd" else (batch, rows, heads, columns)
