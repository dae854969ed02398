"""The resources (registers, shared memory) and operations that gradient kernels need."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from flash.contract.built_kernel import BuiltKernel
from flash.contract.gradients import GradientBuild
from flash.contract.resources import FLOPS_PER_FMA, reach_of, seen_pairs, size_text, tiles_seen
from flash.gradients.checks import WRITTEN
from flash.problem.gradients import KEYS, SCORES, GradientConfig
from flash.scores.window import Sides
from ptxgen.runtime.assembler_log import KernelUsage
from ptxgen.target import WARP_SIZE, Target


def needed_flops(
    head_dim: int, head_dim_v: int, pairs: int, written: Collection[str] = tuple(WRITTEN)
) -> int:
    """Floating-point operations of the matrix products that the gradients `written`, of dq, dk and dv, of
    `pairs` scores need: those of the scores and of their gradients, and one for each gradient.
    """
    columns = head_dim + head_dim_v + sum(head_dim_v if name == "dv" else head_dim for name in written)
    return FLOPS_PER_FMA * pairs * columns


@dataclass(frozen=True, slots=True)
class GradientResources:
    """The resources of a kernel of gradients on its target; sizes are in bytes.

    `registers` is 32-bit registers of a thread and `spilled_bytes` the bytes that its spills store, by the
    assembler; None where none is installed. `shared_bytes` is dynamic shared memory of a CTA; there is no
    static shared memory. Methods that count take the window as an argument, because the kernel's text only
    depends on which of its sides are limited. `config` is None for the kernel that sums terms.
    """

    name: str
    target: Target
    threads: int
    shared_bytes: int
    registers: int | None
    spilled_bytes: int | None
    config: GradientConfig | None

    @classmethod
    def of(cls, kernel: BuiltKernel) -> GradientResources:
        """The resources of a kernel. Raises `AssemblerError` if the assembler refuses it."""
        usage: KernelUsage | None = kernel.assembled
        return cls(
            kernel.header.name,
            kernel.target,
            kernel.threads,
            kernel.header.dynamic_shared_bytes,
            None if usage is None else usage.registers,
            None if usage is None else usage.spill_store_bytes,
            kernel.config if isinstance(kernel, GradientBuild) else None,
        )

    @property
    def ctas_per_sm(self) -> int:
        """How many CTAs one multiprocessor holds at once. Without `registers`, by threads and shared
        memory: registers may allow fewer.
        """
        return self.target.blocks_per_sm_for(self.threads, self.registers or 0, self.shared_bytes)

    @property
    def occupancy(self) -> float:
        """The share of a multiprocessor's warps that can be resident, 0 to 1."""
        return self.ctas_per_sm * (self.threads // WARP_SIZE) / self.target.warps_per_sm

    def visited_tiles(self, seq_q: int, seq_k: int, window: Sides = None) -> int:
        """Tiles that all CTAs of one head of Q visit: of keys, or of queries if CTAs own keys; a tile counts
        once for each of `slices`. Tiles that causality or the window hides are skipped, but not in the kernel
        of a bias. 0 for a kernel without products.
        """
        if self.config is None or not self.config.tiling.tile:
            return 0
        t, owner = self.config.tiling, self.config.owner
        if owner == SCORES:
            return -(-seq_q // t.block) * -(-seq_k // t.tile)
        reach = diagonal, before, after = reach_of(self.config.causal, seq_q, seq_k, window)
        rows, others = (seq_k, seq_q) if owner == KEYS else (seq_q, seq_k)
        if owner == KEYS:  # query i sees key j if key j is seen from i: the limits change sides
            reach = -diagonal, after, before
        first = np.arange(0, rows, t.block, dtype=np.int64)
        last = np.minimum(first + t.block, rows) - 1
        return int(tiles_seen(reach, first, last, others, t.tile).sum()) * t.slices

    def products(self) -> Iterator[int]:
        """For each matrix product of a tile: the columns that it sums over or computes, padding included."""
        if self.config is None or not self.config.tiling.tile:
            return
        yield from self.config.tiling.product_columns(self.config.owner)

    def flops(self, batch: int, heads: int, seq_q: int, seq_k: int, window: Sides = None) -> int:
        """Floating-point operations of the products as the kernel issues them.

        Tiles count whole, with head_dim and head_dim_v padded as in the kernel; skipped tiles do not
        count.
        """
        if self.config is None:
            return 0
        t, tiles = self.config.tiling, self.visited_tiles(seq_q, seq_k, window)
        return FLOPS_PER_FMA * batch * heads * tiles * t.block * t.tile * sum(self.products())

    def useful_flops(
        self,
        batch: int,
        heads: int,
        seq_q: int,
        seq_k: int,
        window: Sides = None,
        written: Collection[str] = tuple(WRITTEN),
    ) -> int:
        """Floating-point operations that the gradients `written` of a call need, in whatever kernels: for all
        five products for each key that a query sees. Keys that a mask or a bias hides count as seen. 0 for a
        kernel without products.
        """
        if self.config is None or not self.config.tiling.tile:
            return 0
        t, causal = self.config.tiling, self.config.causal
        pairs = batch * heads * seen_pairs(reach_of(causal, seq_q, seq_k, window), seq_q, seq_k)
        return needed_flops(t.head_dim, t.head_dim_v, pairs, written)

    def __str__(self) -> str:
        registers = "registers unknown (no assembler)"
        most = "at most "
        if self.registers is not None:
            registers, most = f"{self.registers} registers (assembled)", ""
            registers += f", {self.spilled_bytes} bytes spilled" if self.spilled_bytes else ""
        return (
            f"{self.name} on {self.target}: {self.threads} threads, {registers}, "
            f"{size_text(self.shared_bytes)} shared, {most}{self.ctas_per_sm} CTAs per SM "
            f"(occupancy {most}{self.occupancy:.0%})"
        )
