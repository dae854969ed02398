"""flash-attn-4's forward kernels for Hopper, compiled by the package without a GPU: their PTX run here gives
what float64 gives, within the bound of our own kernels.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from judge import assert_within

from benchmarks.measure.static_hopper import flash_attn_4_text
from flash.error_bound import arithmetic_of, attention_bound
from ptxgen.interpreter import PCT, DeviceArena, run
from ptxgen.target import target
from ptxgen.tensormap import TensorMap

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("flash_attn_4")]

Array = np.ndarray[Any, np.dtype[Any]]

NUMPY: Final = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
KEYS: Final = {64: 128, 128: 128, 256: 80}  # of a tile, by head_dim (`_tile_size_fwd_sm90` of the package)
STAGES: Final = 2  # of the ring of tiles
SWIZZLED: Final = 64  # columns of a box, which has 128 bytes of a row
L2_BYTES: Final = 50 << 20  # what the order of CTAs of causal kernels assumes


def divisor(by: int) -> bytes:
    """A `FastDivmodDivisor` of CuTe DSL: the divisor, and the factor and shifts that stand for a division
    of 32 bits by it (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    """
    bits = (by - 1).bit_length()
    factor = (((1 << bits) - by) << 32) // by + 1
    return struct.pack("<IIBBxx", by, factor, min(bits, 1), max(bits - 1, 0))


@dataclass(frozen=True)
class Forward:
    """A kernel, and a problem with more tiles of keys than stages, and ragged ends."""

    head_dim: int
    dtype: str
    causal: bool
    batch: int = 2
    heads: int = 2
    seq_q: int = 300
    target: str = "sm_90a"
    lse_error: float = 0.0  # of log-sum-exp by approximations that our kernels do not have

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Q, K and V [batch, seq, heads, head_dim]."""
        rng = np.random.default_rng(7)
        seq_k = (STAGES + 1) * KEYS[self.head_dim] + 5
        shapes = [(self.batch, n, self.heads, self.head_dim) for n in (self.seq_q, seq_k, seq_k)]
        return tuple(rng.standard_normal(s).astype(NUMPY[self.dtype]) for s in shapes)

    @property
    def text(self) -> str:
        options = ("--dtype", self.dtype, "--lse", *["--causal"] * self.causal)
        return flash_attn_4_text(self.head_dim, *options)

    def check(self, **how: Any) -> None:
        """Run the kernel and judge what it has computed."""
        text = self.text
        result = re.search(r"\.reqntid (\d+)", text)
        assert result, "the kernel does not say how many threads a CTA has"
        threads = int(result[1])
        rows = threads // 2 - 64  # 64 for each warpgroup but the one that copies
        arena = DeviceArena()
        out = np.full_like(self.arrays[0], np.nan)
        lse = np.full((self.batch, self.heads, self.seq_q), np.nan, np.float32)
        run(
            text,
            grid=self.grid(rows),
            block=threads,
            args=[*self.tensors(out, arena.place(lse), rows), *self.scheduler(rows)],
            dynamic_smem=target(self.target).shared_per_block_optin,
            arena=arena,
            **how,
        )
        q, k, v, o = (a.swapaxes(1, 2) for a in (*self.arrays, out))
        arithmetic = arithmetic_of(self.dtype, target(self.target).sm)
        bound = attention_bound(q, k, v, o.dtype, arithmetic, causal=self.causal and "bottom_right")
        assert_within(o, lse, bound._replace(lse_error=bound.lse_error + self.lse_error))

    def blocks(self, rows: int) -> int:
        return -(-self.seq_q // rows)

    def grid(self, rows: int) -> tuple[int, ...]:
        sizes = (self.blocks(rows), self.heads, self.batch)
        return (math.prod(sizes), 1, 1) if self.causal else sizes

    def tensors(self, out: Array, lse: int, rows: int) -> list[Any]:
        """Shapes (s, d, h, b), log-sum-exp with pointer, shape and strides of h and b, and maps."""
        keys = KEYS[self.head_dim]
        all_ = (*self.arrays, out)
        shapes = [struct.pack("<4i", a.shape[1], a.shape[3], a.shape[2], a.shape[0]) for a in all_]
        strides = (self.seq_q, self.heads * self.seq_q)
        lse_tensor = struct.pack("<Q3i4x2q", lse, self.seq_q, self.heads, self.batch, *strides)
        maps = [
            TensorMap(a.swapaxes(1, 2), box=(SWIZZLED, n, 1, 1), swizzle="128B")
            for a, n in zip(all_, (rows, keys, keys, rows), strict=True)
        ]
        flags = b"\0", b"\0"  # of the atoms of both products; the kernel does not read them
        return [*shapes, lse_tensor, *maps, np.float32(math.log2(math.e) / math.sqrt(self.head_dim)), *flags]

    def scheduler(self, rows: int) -> list[Any]:
        """Numbers of tiles; in causal kernels also what gives heads that share the L2 cache to CTAs
        beside each other (`SingleTileScheduler`, `SingleTileLPTScheduler` of the package).
        """
        blocks, instances = self.blocks(rows), self.heads * self.batch
        sizes, one_split = [blocks, self.heads, self.batch], [divisor(1), 1]
        if not self.causal:
            return [*sizes, *one_split]
        head_bytes = 2 * self.arrays[1][0, :, 0].nbytes
        minor = 1 << (L2_BYTES // head_bytes).bit_length() - 1
        divisors = (self.heads, minor, minor * blocks, max(instances % minor, 1))
        encoded = [part for by in divisors for part in (divisor(by), by)]
        return [blocks * instances, *sizes, minor, *encoded, instances // minor, *one_split]


CASES = [
    pytest.param(Forward(*case), id="-".join(map(str, case)))
    for case in (
        *((64, "bf16", False), (64, "f16", True)),
        *((128, "f16", False), (128, "bf16", True)),
        (256, "bf16", False),
    )
]
each_kernel = pytest.mark.parametrize("forward", CASES)


@each_kernel
def test_its_results_are_within_our_bound(forward: Forward) -> None:
    forward.check()


@each_kernel
@pytest.mark.parametrize("seed", [1, 2])
def test_they_are_in_other_orders_of_its_warps(forward: Forward, seed: int) -> None:
    forward.check(schedule=PCT(seed))


@each_kernel
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_sanitizers_have_nothing_to_report(forward: Forward, schedule: str) -> None:
    forward.check(sanitize="all,mbarrier_init", schedule=schedule)
