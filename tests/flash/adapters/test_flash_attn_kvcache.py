"""`flash_attn_with_kvcache` beside an oracle: results, and what the caches hold after a call."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import flash_attn_oracle as oracle
import numpy as np
import pytest
from flash_attn_cases import as_numpy, bound_of, in_numpy, tensors
from judge import assert_close

BATCH, HEADS, KV_HEADS, DIM, CAPACITY, PAGE = 2, 4, 2, 40, 16, 4
BEFORE, LEFTPAD, INDEX = (3, 9), (2, 0), (2, 0)
MASKS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window_size": (4, 1)},
    "causal_window": {"causal": True, "window_size": (2, 0), "softcap": 5.0},
}


def quarter_turns(torch: ModuleType, positions: int, half: int, dtype: Any) -> tuple[Any, Any]:
    """Tables whose angles are multiples of 90 degrees, so that rotated rows are exact."""
    at = (torch.arange(positions)[:, None] * torch.arange(1, half + 1) + torch.arange(half)) % 4
    cos, sin = (torch.tensor(x, dtype=dtype)[at] for x in ([1, 0, -1, 0], [0, 1, 0, -1]))
    return cos, sin


def filled(torch: ModuleType, how: dict[str, Any], places: int, rows: int, dtype: str) -> list[Any]:
    """Caches with numbers in the rows that count, and NaN everywhere else."""
    k, v = tensors(torch, dtype, (places, rows, KV_HEADS, DIM), (places, rows, KV_HEADS, DIM))
    counts = torch.zeros(places, rows, dtype=torch.bool)
    for b in range(BATCH):
        sequence = int(how["cache_batch_idx"][b]) if "cache_batch_idx" in how else b
        first = int(how["cache_leftpad"][b]) if "cache_leftpad" in how else 0
        for row in range(first, int(BEFORE[b])):
            if "block_table" in how:
                counts[how["block_table"][sequence, row // rows], row % rows] = True
            else:
                counts[sequence, row] = True
    return [torch.where(counts[:, :, None, None], x, torch.nan) for x in (k, v)]


def assert_step_is_right(
    torch: ModuleType,
    flash_attn: Any,
    rows: tuple[int, int],
    where: str,
    padded: bool,
    rotary: str,
    mask: str,
    dtype: str = "float16",
    num_splits: int = 0,
) -> None:
    """A call with `rows` (queries, new rows) gives what the oracle gives, and leaves the caches as
    the oracle leaves its own.
    """
    seqlen_q, new = rows
    numbers = {"dtype": torch.int32}
    how: dict[str, Any] = {"cache_seqlens": torch.tensor(BEFORE, **numbers)}
    if where in ("index", "paged_index"):
        how["cache_batch_idx"] = torch.tensor(INDEX, **numbers)
    if padded:
        how["cache_leftpad"] = torch.tensor(LEFTPAD, **numbers)
    places, of_place = 3, CAPACITY
    if where in ("paged", "paged_index"):
        places, of_place = 14, PAGE
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).to(torch.int32)
        how["block_table"] = order.reshape(3, 4)[: 3 if where == "paged_index" else BATCH]
    k_cache, v_cache = filled(torch, how, places, of_place, dtype)
    q, k, v = tensors(
        torch, dtype, (BATCH, seqlen_q, HEADS, DIM), (BATCH, new, KV_HEADS, DIM), (BATCH, new, KV_HEADS, DIM)
    )
    of_new = {"k": k, "v": v} if new else {}
    mine = [as_numpy(x).copy() for x in (k_cache, v_cache)]
    tables: dict[str, Any] = {}
    if rotary != "none":
        tables = dict(
            zip(("cos", "sin"), quarter_turns(torch, CAPACITY, 8, q.dtype), strict=True),
            rotary_interleaved=rotary == "interleaved",
        )
    given = {"rotary_" + n if n in ("cos", "sin") else n: x for n, x in tables.items()}
    out, lse = flash_attn.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        **of_new,
        **given,
        **how,
        **MASKS[mask],
        num_splits=num_splits,
        return_softmax_lse=True,
    )
    items = oracle.cache_step(
        as_numpy(q),
        *mine,
        *(as_numpy(x) for x in of_new.values()),
        **in_numpy(tables),
        **in_numpy(how),
        positions_increase=mask != "all",
    )
    for found, said in zip((k_cache, v_cache), mine, strict=True):
        np.testing.assert_array_equal(as_numpy(found), said)
    assert out.is_contiguous()
    assert_items(out, lse, items, MASKS[mask])


def assert_items(out: Any, lse: Any, items: list[Any], how: dict[str, Any]) -> None:
    """out and lse of each batch item are those of the oracle for its queries, keys and values."""
    for b, item in enumerate(items):
        wanted, sums = oracle.attention(*(x[None] for x in item), **how)
        bound = bound_of(*(x.swapaxes(0, 1)[None] for x in item), how)
        assert_close(f"out of item {b}", as_numpy(out[b]), wanted[0], bound.out_error[0].swapaxes(0, 1))
        assert_close(f"lse of item {b}", as_numpy(lse[b]), sums[0], bound.lse_error[0])


@pytest.mark.judged
@pytest.mark.sample(60)
@pytest.mark.parametrize("rotary", ["none", "interleaved", "halves"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("where", ["plain", "index", "paged", "paged_index"])
@pytest.mark.parametrize("rows", [(1, 0), (4, 0), (1, 1), (5, 5), (3, 5), (5, 3)])
def test_a_step_is_that_of_the_oracle(
    torch: ModuleType,
    flash_attn: Any,
    rows: tuple[int, int],
    where: str,
    padded: bool,
    mask: str,
    rotary: str,
) -> None:
    if rotary != "none" and not rows[1]:
        rows = (rows[0], 2)  # rotation is for new rows
    assert_step_is_right(torch, flash_attn, rows, where, padded, rotary, mask)


@pytest.mark.judged
@pytest.mark.parametrize(
    ("rows", "where", "rotary", "mask"),
    [
        ((5, 5), "plain", "interleaved", "causal"),
        ((1, 1), "paged", "halves", "all"),
        ((3, 0), "paged_index", "none", "window"),
    ],
)
def test_a_step_on_the_interpreter_is_that_of_the_oracle(
    torch: ModuleType, flash_attn: Any, rows: tuple[int, int], where: str, rotary: str, mask: str
) -> None:
    with flash_attn.using_backend("interpreter"):
        assert_step_is_right(torch, flash_attn, rows, where, True, rotary, mask, num_splits=2)
