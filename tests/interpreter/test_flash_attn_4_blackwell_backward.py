"""flash-attn-4's backward kernels for Blackwell, compiled by the package without a GPU: their PTX run here,
one after another, gives the gradients that float64 gives.
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
from interpreter.test_flash_attn_4 import SWIZZLED, divisor

from benchmarks.measure.static_hopper import flash_attn_4_texts
from flash.reference import attention_reference, attention_reference_gradients
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT, DeviceArena, run
from ptxgen.parse import parse
from ptxgen.target import target
from ptxgen.tensormap import TensorMap
from ptxgen.text import render

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("flash_attn_4")]

Array = np.ndarray[Any, np.dtype[Any]]

ROWS: Final = 128  # of a tile, of queries and of keys
ALLOWED: Final = 1 / 128  # of the largest gradient: P, dS and the results are rounded to bf16
LOG2_E: Final = math.log2(math.e)


def tensor(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """A tensor of CuTe DSL: its pointer, its extents, and those strides in elements that are not 1."""
    sizes = struct.pack(f"<Q{len(shape)}i", pointer, *shape)
    return sizes + bytes(-len(sizes) % 8) + struct.pack(f"<{len(strides)}q", *strides)


@dataclass(frozen=True)
class Backward:
    """The kernels of a head_dim, and a problem with several tiles and ragged ends."""

    head_dim: int
    causal: bool
    batch: int = 1
    heads: int = 2
    seq: int = 300
    target: str = "sm_100a"

    @property
    def pairs(self) -> bool:
        """Whether pairs of CTAs multiply."""
        return self.head_dim > 64

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Q, K, V, O, dO [batch, seq, heads, head_dim] and LSE [batch, heads, seq]."""
        rng = np.random.default_rng(9)
        shape = self.batch, self.seq, self.heads, self.head_dim
        q, k, v, dout = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for _ in range(4))
        out, lse = attention_reference(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=self.causal)
        return q, k, v, np.ascontiguousarray(out.swapaxes(1, 2)).astype(q.dtype), dout, lse.astype(np.float32)

    @property
    def texts(self) -> dict[str, str]:
        """The PTX of the preprocess, of the kernel itself and of the postprocess."""
        options = ("--backward", "--target", self.target, *["--causal"] * self.causal)
        texts = flash_attn_4_texts(self.head_dim, *options)
        return {
            name: next(t for t in texts if f"bwd_{name}" in t)
            for name in ("preprocess", "sm100", "postprocess")
        }

    def check(self, **how: Any) -> list[str]:
        """Run the three kernels and judge the gradients; what sanitizers report."""
        q, k, v, out, dout, lse = self.arrays
        padded = -(-self.seq // ROWS) * ROWS
        of_rows = self.batch, self.heads, padded
        delta, log2 = (np.full(of_rows, np.nan, np.float32) for _ in range(2))
        sums = np.full((*of_rows[:2], padded * self.head_dim), np.nan, np.float32)
        dq, dk, dv = (np.full_like(x, np.nan) for x in (q, k, v))
        arena = DeviceArena()
        at = {id(x): arena.place(x) for x in (q, k, v, out, dout, lse, delta, log2, sums, dq, dk, dv)}

        def rows_of(x: Array) -> bytes:  # [batch, heads, n] as (n, heads, batch)
            n = x.shape[2]
            return tensor(at[id(x)], (n, self.heads, self.batch), (n, n * self.heads))

        def wide(x: Array) -> bytes:  # [batch, seq, heads, head_dim] as (seq, head_dim, heads, batch)
            d = self.head_dim
            shape = self.seq, d, self.heads, self.batch
            return tensor(at[id(x)], shape, (self.heads * d, d, self.seq * self.heads * d))

        sizes = [padded // ROWS, self.heads, self.batch, divisor(1), 1]
        scale = 1 / math.sqrt(self.head_dim)
        texts, grid = self.texts, tuple(sizes[:3])
        values = [wide(out), wide(dout), *(rows_of(x) for x in (delta, lse, log2, sums))]
        # It computes with registers of rows behind the last one, which it has not loaded.
        kinds = {"sanitize": "race,sync,bounds"} if "sanitize" in how else {}
        reports = self.run(
            texts["preprocess"], grid, [*values, np.float32(LOG2_E), *sizes], arena, how | kinds
        )

        shape = struct.pack("<4i", self.seq, self.head_dim, self.heads, self.batch)
        swapped = struct.pack("<4i", self.head_dim, self.seq, self.heads, self.batch)
        maps = [self.tiles(x, SWIZZLED, "128B") for x in (q, k, v, dout)]
        maps += [self.tiles(x, min(self.head_dim // 2, SWIZZLED)) for x in (dv, dk)]
        values = [shape] * 3 + [rows_of(log2), rows_of(delta), swapped]
        values += [wide(dv), wide(dk), rows_of(sums), shape, shape, *maps, *[bytes(32)] * 5]
        if self.pairs:  # It also reads Q, K and dO transposed, each CTA its half of the columns.
            of_cta = [self.tiles(x, SWIZZLED, "128B", rows=ROWS // 2) for x in (q, dout)]
            whole = [self.tiles(x, SWIZZLED, "128B") for x in (q, k, v, dout, dv, dk)]
            of_both = self.tiles(k, SWIZZLED, "128B", rows=2 * ROWS)
            maps = [of_cta[0], whole[0], whole[1], of_both, *whole[2:4], of_cta[1], *whole[4:]]
            values = [shape, swapped, shape, swapped, shape, rows_of(log2), rows_of(delta), shape, swapped]
            values += [wide(dv), wide(dk), rows_of(sums), shape, shape, *maps, *[bytes(64)] * 5]
            grid = (grid[0] + grid[0] % 2, *grid[1:])
            how = how | {"cluster": 2}
        values += [np.float32(scale), np.float32(scale * LOG2_E), *sizes]
        reports += self.run(texts["sm100"], grid, values, arena, how)
        grid, how = tuple(sizes[:3]), {name: value for name, value in how.items() if name != "cluster"}

        n, d = sums.shape[2], self.head_dim
        values = [tensor(at[id(sums)], (self.batch, self.heads, n), (n * self.heads, n))]
        strides = (self.seq * self.heads * d, self.heads * d, d)
        values += [tensor(at[id(dq)], (self.batch, self.seq, self.heads, d), strides)]
        reports += self.run(
            texts["postprocess"], grid, [*values, np.float32(scale), bytes(32), *sizes], arena, how
        )
        self.judge(dq, dk, dv)
        return reports

    def judge(self, *found: Array) -> None:
        q, k, v, _, dout, _ = (x.swapaxes(1, 2) for x in self.arrays)
        wanted = attention_reference_gradients(dout, q, k, v, causal=self.causal)
        for name, got, exact in zip("qkv", found, (wanted.dq, wanted.dk, wanted.dv), strict=True):
            error = np.abs(got.swapaxes(1, 2).astype(np.float64) - exact).max()
            assert error <= ALLOWED * np.abs(exact).max(), f"d{name}: {error} of {np.abs(exact).max()}"

    def tiles(self, x: Array, columns: int, swizzle: Any = None, rows: int = ROWS) -> TensorMap:
        """A map of [batch, seq, heads, head_dim] in tiles of so many rows and columns."""
        swizzle = swizzle or {32: "64B", 64: "128B"}[columns]
        return TensorMap(x.swapaxes(1, 2), box=(columns, rows, 1, 1), swizzle=swizzle)

    def run(
        self, text: str, grid: Any, args: list[Any], arena: DeviceArena, how: dict[str, Any]
    ) -> list[str]:
        result = re.search(r"\.reqntid (\d+)", text)
        assert result, "the kernel does not say how many threads a CTA has"
        smem = target(self.target).shared_per_block_optin
        how = {"dynamic_smem": smem, "arena": arena, "raise_on_report": False, **how}
        return [r.message for r in run(text, grid=grid, block=int(result[1]), args=args, **how).reports]


CASES = [
    pytest.param(Backward(64, False), id="d64"),
    pytest.param(Backward(64, True), id="d64-causal"),
    pytest.param(Backward(128, False), id="d128-pair"),
]
each_kernel = pytest.mark.parametrize("backward", CASES)


@each_kernel
def test_it_is_read_and_printed_and_nothing_is_wrong_with_it(backward: Backward) -> None:
    for name, text in backward.texts.items():
        module = parse(text)
        assert render(parse(render(module))) == render(module)
        problems = verify(module)
        if name == "preprocess" or (name == "sm100" and backward.pairs):
            # They have paths on which registers are read that nothing has written.
            problems = tuple(p for p in problems if "may be read before it is written" not in p.message)
        assert problems == ()


@each_kernel
def test_its_gradients_are_those_of_float64(backward: Backward) -> None:
    backward.check()


@each_kernel
@pytest.mark.parametrize("seed", [1, 2])
def test_they_are_in_other_orders_of_its_warps(backward: Backward, seed: int) -> None:
    backward.check(schedule=PCT(seed))


# What the package does and the manual does not allow: warps of a warpgroup keep different numbers of
# registers (PTX ISA, "setmaxnreg"); the warp that stores dK or dV arrives at a barrier and then waits there,
# too, which counts it twice, as is meant; the CTA ends without waiting for these stores
# ("cp.async.bulk.wait_group").
KNOWN: Final = (
    "sync: all warps of a warpgroup execute the same, but warp ",
    "again before the others have: it counts twice",
    "sync: the copy is still under way when its threads have ended",
)
# In pairs, all lanes of a warp initialise three mbarriers, and copies are under way in some orders only.
TWICE: Final = "is initialised again while it is valid"


@each_kernel
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_sanitizers_report_what_the_manual_does_not_allow(backward: Backward, schedule: str) -> None:
    reports = backward.check(sanitize="all", schedule=schedule)
    always = (*KNOWN[:2], TWICE) if backward.pairs else KNOWN
    assert {known for known in always for report in reports if known in report} == {*always}
    assert [report for report in reports if not any(known in report for known in (*always, *KNOWN))] == []
