"""Keys and values in pages, as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from flash.adapters.flash_attn.arguments import check_numbers
from flash.problem.features import MAX_PAGE_SIZE
from ptxgen.errors import LaunchError


class Caches(NamedTuple):
    """The caches as kernels take them: a sequence has room for `capacity` rows."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor | None
    capacity: int


def paged(
    caller: str, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: object, page_size: int
) -> Caches:
    """Paged caches, with larger pages than kernels take divided into equal ones, without a copy."""
    table = check_numbers(caller, "block_table", block_table, ("sequences", "n_pages"))
    capacity = table.shape[1] * page_size
    if page_size <= MAX_PAGE_SIZE:
        return Caches(k_cache, v_cache, table, capacity)
    rows = max(n for n in range(1, MAX_PAGE_SIZE + 1) if page_size % n == 0)
    parts = page_size // rows
    if rows == 1 or any(cache.stride(0) != page_size * cache.stride(1) for cache in (k_cache, v_cache)):
        raise LaunchError(
            f"{caller}: pages of more than {MAX_PAGE_SIZE} rows must lie one after another and have a number "
            f"of rows with a divisor from 2 to {MAX_PAGE_SIZE}, got {page_size} rows and strides "
            f"{list(k_cache.stride())} and {list(v_cache.stride())}; use pages of up to {MAX_PAGE_SIZE} rows"
        )
    k_cache, v_cache = (cache.view(-1, rows, *cache.shape[2:]) for cache in (k_cache, v_cache))
    inner = torch.arange(parts, dtype=torch.int32, device=table.device)
    return Caches(k_cache, v_cache, (table[:, :, None] * parts + inner).flatten(1), capacity)
