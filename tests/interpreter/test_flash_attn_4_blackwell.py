"""flash-attn-4's forward kernels for Blackwell, compiled by the package without a GPU: their PTX run here
gives what float64 gives, within the bound of our own kernels. One of them runs in pairs of CTAs.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from interpreter.test_flash_attn_4 import L2_BYTES, SWIZZLED, Forward, divisor

from benchmarks.measure.static_hopper import flash_attn_4_text
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.tensormap import TensorMap
from ptxgen.text import render

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("flash_attn_4")]

ROWS: Final = 128  # of a tile of tensor memory; a CTA has two
KEYS: Final = 128  # of a tile
MULTIPROCESSORS: Final = 148
# The relative error of the polynomial of degree 3 that stands for some of the powers of two on sm_100a.
POLYNOMIAL: Final = 8.8e-5


@dataclass(frozen=True)
class BlackwellForward(Forward):
    """A kernel, and a problem with more tiles of keys than one and ragged ends."""

    ctas: int = 1  # of a cluster, whose products are those of a pair if there are two

    @property
    def text(self) -> str:
        options = ("--dtype", self.dtype, "--lse", "--target", self.target, *["--causal"] * self.causal)
        return flash_attn_4_text(self.head_dim, *options)

    @property
    def launch(self) -> dict[str, Any]:
        return {"cluster": self.ctas}

    def blocks(self, rows: int) -> int:
        del rows
        return -(-self.seq_q // (2 * ROWS * self.ctas))

    def grid(self, rows: int) -> tuple[int, ...]:
        tiles = self.blocks(rows) * self.heads * self.batch
        return tiles if self.causal else min(tiles, MULTIPROCESSORS // self.ctas) * self.ctas, 1, 1

    def tensors(self, out: np.ndarray[Any, Any], lse: int, rows: int) -> list[Any]:
        """The tensors of a launch. V is [head_dim, seq, heads, batch], and each CTA of a pair copies its keys
        of K and its columns of V.
        """
        del rows
        all_ = (*self.arrays, out)
        shapes = [list(struct.unpack("<4i", x)) for x in super().tensors(out, lse, ROWS)[:4]]
        shapes[2][:2] = shapes[2][1::-1]
        maps = [
            TensorMap(a.swapaxes(1, 2), box=(SWIZZLED, n, 1, 1), swizzle="128B")
            for a, n in zip(all_, (ROWS, KEYS // self.ctas, KEYS, ROWS), strict=True)
        ]
        strides = (self.seq_q, self.heads * self.seq_q)
        lse_tensor = struct.pack("<Q3i4x2q", lse, self.seq_q, self.heads, self.batch, *strides)
        atoms = [bytes(self.atom_bytes)] * 2  # of both products; the kernel does not read them
        scale = np.float32(math.log2(math.e) / math.sqrt(self.head_dim))
        return [*(struct.pack("<4i", *s) for s in shapes), lse_tensor, *maps, scale, *atoms]

    @property
    def atom_bytes(self) -> int:
        return 32 * self.ctas

    def scheduler(self, rows: int) -> list[Any]:
        blocks, instances = self.blocks(rows), self.heads * self.batch
        if not self.causal:
            divisors = (blocks, self.heads)
            encoded = [part for by in divisors for part in (divisor(by), by)]
            return [*encoded, blocks * instances, 1]
        head_bytes = 2 * self.arrays[1][0, :, 0].nbytes
        minor = 1 << (L2_BYTES // head_bytes).bit_length() - 1
        divisors = (self.heads, minor, minor * blocks, max(instances % minor, 1))
        encoded = [part for by in divisors for part in (divisor(by), by)]
        sizes = [blocks * instances, 1, blocks, self.heads, self.batch, minor]
        return [*sizes, *encoded, instances // minor, divisor(1), 1, 1]


CASES = [
    pytest.param(BlackwellForward(d, "bf16", causal, target=target, lse_error=error, ctas=ctas), id=name)
    for name, d, causal, target, error, ctas in (
        ("d64", 64, False, "sm_100a", POLYNOMIAL, 1),
        ("d64-causal", 64, True, "sm_100a", POLYNOMIAL, 1),
        ("d128-causal", 128, True, "sm_100a", POLYNOMIAL, 1),
        ("d128-pair", 128, False, "sm_100a", POLYNOMIAL, 2),
        ("d128-causal-sm_103a", 128, True, "sm_103a", 0.0, 1),
    )
]
each_kernel = pytest.mark.parametrize("forward", CASES)


@each_kernel
def test_it_is_read_and_printed_and_nothing_is_wrong_with_it(forward: BlackwellForward) -> None:
    module = parse(forward.text)
    assert render(parse(render(module))) == render(module)
    assert verify(module) == ()


@each_kernel
def test_its_results_are_within_our_bound(forward: BlackwellForward) -> None:
    forward.check(**forward.launch)


@each_kernel
@pytest.mark.parametrize("seed", [1, 2])
def test_they_are_in_other_orders_of_its_warps(forward: BlackwellForward, seed: int) -> None:
    forward.check(schedule=PCT(seed), **forward.launch)


@each_kernel
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_sanitizers_have_nothing_to_report(forward: BlackwellForward, schedule: str) -> None:
    forward.check(sanitize="all", schedule=schedule, **forward.launch)
