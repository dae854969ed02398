"""The cost of a kernel: registers, shared memory, occupancy, arithmetic, and global memory compared
with attention that stores the N² scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtypes import F32_BYTES
from flash.problem.arrays import matrices
from flash.problem.kernel_config import KernelConfig
from flash.scores.window import Sides, key_limits, position_offset
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE

FLOPS_PER_FMA: Final = 2
_NUMBERS_OF_ROW: Final = 2  # that a softmax of tiles keeps: the maximum and the sum so far

# `d` such that query i is at the position of key i + d, and how many keys before and after that
# position the query sees; None for all.
Reached = tuple[int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a call, in bytes: `flash_bytes` of Q, K, V, O and LSE alone, `naive_bytes` of these and the
    matrix of scores in f32. Of one head, beyond its inputs and outputs: `tile_bytes` of shared memory, in
    which a CTA holds its tiles, and `row_bytes` of the maximum and the sum of each row in f32, where the
    naive form has `score_bytes` of scores.
    """

    flash_bytes: int
    naive_bytes: int
    tile_bytes: int
    row_bytes: int
    score_bytes: int

    @property
    def factor(self) -> float:
        """How many times more memory a call that stores the scores needs; 1 if neither needs any."""
        return self.naive_bytes / self.flash_bytes if self.flash_bytes else 1.0

    @property
    def beyond_bytes(self) -> int:
        """Bytes that one head needs beyond its inputs and outputs."""
        return self.tile_bytes + self.row_bytes

    @property
    def beyond_factor(self) -> float:
        """How many times more memory one head needs beyond its inputs and outputs where the scores are
        stored; 1 if none is needed either way.
        """
        return self.score_bytes / self.beyond_bytes if self.beyond_bytes else 1.0

    @property
    def beyond(self) -> str:
        """The memory of one head beyond its inputs and outputs, as text."""
        sizes = f"{size_text(self.beyond_bytes)} instead of {size_text(self.score_bytes)}"
        return f"{sizes}, {_times_less(self.beyond_factor)}"

    def __str__(self) -> str:
        sizes = f"{size_text(self.flash_bytes)} instead of {size_text(self.naive_bytes)}"
        of_head = f"beyond inputs and outputs {self.beyond} for a head"
        return f"{sizes}, {_times_less(self.factor)}; {of_head}"


def _times_less(factor: float) -> str:
    return f"{factor:.1f} times less" if factor >= 1 else f"{1 / factor:.1f} times more" if factor else "more"


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The resources of one kernel on its target; bytes unless it says otherwise.

    `registers` is 32-bit registers of a thread: the assembler's number if `assembled`, else the
    estimate of its tiling. `shared_bytes` is dynamic shared memory of a CTA; there is no static
    shared memory. Methods that count arithmetic take the window as an argument, because the
    kernel's text only depends on which of its sides are limited.
    """

    config: KernelConfig
    registers: int
    assembled: bool
    shared_bytes: int

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return self.config.tiling.threads

    @property
    def ctas_per_sm(self) -> int:
        """How many CTAs one multiprocessor holds at once."""
        return self.config.target.blocks_per_sm_for(self.threads, self.registers, self.shared_bytes)

    @property
    def occupancy(self) -> float:
        """The part of a multiprocessor's warps that can be resident, 0 to 1."""
        return self.ctas_per_sm * (self.threads // WARP_SIZE) / self.config.target.warps_per_sm

    def visited_tiles(self, seq_q: int, seq_k: int, window: Sides = None, group: int = 1) -> int:
        """Tiles of keys that all CTAs of one head visit; if rows are packed, those of a group of
        `group` heads. Tiles that causality or the window hides are skipped.
        """
        return int(self.tiles_of_blocks(seq_q, seq_k, window, group).sum())

    def tiles_of_blocks(
        self, seq_q: int, seq_k: int, window: Sides = None, group: int = 1
    ) -> NDArray[np.int64]:
        """Tiles of keys that the CTA of each query block visits, from the first block on; arguments
        as in `visited_tiles`.
        """
        t, reach = self.config.tiling, reach_of(self.config.causal, seq_q, seq_k, window)
        packed = group if self.config.packed else 1
        first_rows = np.arange(0, seq_q * packed, t.block_q, dtype=np.int64)
        last = (np.minimum(first_rows + t.block_q, seq_q * packed) - 1) // packed
        return tiles_seen(reach, first_rows // packed, last, seq_k, t.tile)

    def flops(
        self,
        batch: int,
        heads: int,
        seq_q: int,
        seq_k: int,
        window: Sides = None,
        *,
        kv_heads: int | None = None,
    ) -> int:
        """Floating-point operations of Q Kᵀ and P V as the kernel issues them.

        Tiles count whole, with head_dim and head_dim_v padded as in the kernel; scores count once
        for each slice of values; skipped tiles do not count.
        """
        t = self.config.tiling
        fma_per_tile = t.block_q * t.tile * (t.score_columns + t.output_columns)
        group = heads // kv_heads if kv_heads else 1
        tiles = self.visited_tiles(seq_q, seq_k, window, group)
        if self.config.packed:
            heads //= group
        return FLOPS_PER_FMA * batch * heads * t.value_slices * tiles * fma_per_tile

    def useful_flops(self, batch: int, heads: int, seq_q: int, seq_k: int, window: Sides = None) -> int:
        """Floating-point operations of Q Kᵀ and P V that the result needs: those of keys that a
        query sees. Keys that a mask or a bias hides count as seen.
        """
        t, reach = self.config.tiling, reach_of(self.config.causal, seq_q, seq_k, window)
        pairs = seen_pairs(reach, seq_q, seq_k)
        return FLOPS_PER_FMA * batch * heads * pairs * (t.head_dim + t.head_dim_v)

    def memory(self, batch: int, heads: int, seq_q: int, seq_k: int, kv_heads: int | None = None) -> Memory:
        """Memory of a call, and of one that stores the scores (once, softmax in place)."""
        kv_heads = heads if kv_heads is None else kv_heads
        columns = {matrix.name: matrix.columns for matrix in matrices(self.config)}
        row = columns["Q"] + columns["O"]
        of_key = columns["K"] if self.config.family.values_in_keys else row  # where V is columns of K
        elements = batch * (heads * seq_q * row + kv_heads * seq_k * of_key)
        nbytes = elements * self.config.dtype.nbytes
        for output in self.config.outputs:
            nbytes += math.prod(output.shape(batch, heads, seq_q, packed=False)) * F32_BYTES
        of_head = seq_q * seq_k * F32_BYTES
        rows = _NUMBERS_OF_ROW * seq_q * F32_BYTES
        return Memory(nbytes, nbytes + batch * heads * of_head, self.shared_bytes, rows, of_head)

    def packed_memory(self, heads: int, kv_heads: int, lengths: Iterable[tuple[int, int]]) -> Memory:
        """Memory of a call with packed sequences, compared as in `memory`; `lengths` are the numbers of
        queries and keys of each sequence.
        """
        each = [self.memory(1, heads, *rows, kv_heads) for rows in lengths]
        return Memory(
            sum(m.flash_bytes for m in each),
            sum(m.naive_bytes for m in each),
            self.shared_bytes,
            sum(m.row_bytes for m in each),
            sum(m.score_bytes for m in each),
        )

    def __str__(self) -> str:
        source = "assembled" if self.assembled else "estimated"
        return (
            f"{self.config.name} on {self.config.target}: {self.threads} threads, "
            f"{self.registers} registers ({source}), {size_text(self.shared_bytes)} shared, "
            f"{self.ctas_per_sm} CTAs per SM (occupancy {self.occupancy:.0%})"
        )


def reach_of(causal: str, seq_q: int, seq_k: int, window: Sides) -> Reached:
    """The keys that each query sees by its position."""
    mode: Any = causal or False
    return position_offset(mode, seq_q, seq_k), *key_limits(bool(mode), window)


def tiles_seen(
    reach: Reached, first: NDArray[np.int64], last: NDArray[np.int64], others: int, tile: int
) -> NDArray[np.int64]:
    """Tiles of `others` keys that blocks of queries see, from their `first` to their `last` one each."""
    diagonal, before, after = reach
    end = others if after is None else last + diagonal + after + 1
    begin = 0 if before is None else first + diagonal - before
    ends = -(-np.clip(end, 0, others) // tile) + 0 * first
    return np.asarray(ends - np.minimum(np.maximum(begin, 0) // tile, ends), np.int64)


def seen_pairs(reach: Reached, seq_q: int, seq_k: int) -> int:
    """How many pairs of a query and a key that it sees there are."""
    diagonal, before, after = reach
    pairs = seq_q * seq_k
    if after is not None:
        pairs = _sum_of_seen(diagonal + after + 1, seq_q, seq_k)
    if before is not None:
        pairs -= _sum_of_seen(diagonal - before, seq_q, seq_k)
    return pairs


def _sum_of_seen(first: int, rows: int, most: int) -> int:
    """The sum of min(max(first + i, 0), most) for i in 0 … rows - 1."""
    rising_from = min(max(-first, 0), rows)  # rows before this one see nothing
    full_from = min(max(most - first, rising_from), rows)  # rows from this one on see everything
    rising = full_from - rising_from
    return rising * (first + rising_from) + rising * (rising - 1) // 2 + (rows - full_from) * most


def size_text(nbytes: int) -> str:
    """Bytes for people: `96.0 KiB`."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
