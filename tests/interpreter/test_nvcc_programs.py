"""CUDA programs compiled by nvcc (tests/ptx/cuda, kept as PTX in tests/ptx/nvcc) run here both
ways, by generated code and stepwise, and on a GPU where there is one, and give what numpy gives.
Every kernel of every fixture is run by a test.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_runs import LEFT_OUT, GpuArena, run_on_gpu
from interpreter.both_paths import run_both_ways
from texture_oracle import cube_place, fetched

from ptxgen.errors import TrapError
from ptxgen.interpreter import DeviceArena
from ptxgen.tensormap import TensorMap, swizzled
from ptxgen.texture import Surface, Texture

Array = np.ndarray[Any, np.dtype[Any]]

FIXTURES = Path(__file__).parents[1] / "ptx" / "nvcc"
F32 = 2.0**-24  # half a unit in the last place of 1
F16 = 2.0**-11
BF16 = 2.0**-8
MASK64 = (1 << 64) - 1

CLAIMED: defaultdict[str, set[str]] = defaultdict(set)  # kernels that a test says it runs


@dataclass
class Program:
    """One fixture; called with an entry and its arguments, it runs them."""

    name: str
    target: str
    on_gpu: bool = False
    ran: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return (FIXTURES / f"{self.name}.{self.target}.ptx").read_text()

    def __call__(
        self, entry: str, *args: Any, grid: Any = 1, block: Any = 32, smem: int = 0, **more: Any
    ) -> Any:
        self.ran.add(entry)
        run = run_on_gpu if self.on_gpu else run_both_ways
        return run(self.text, entry, grid=grid, block=block, args=args, dynamic_smem=smem, **more)

    def arena(self) -> Any:
        """Device memory that outlives a launch."""
        return GpuArena() if self.on_gpu else DeviceArena()


Test = Callable[..., None]


def on(name: str, *entries: str) -> Callable[[Test], Test]:
    """Runs a test on every target that the program `name` is kept for, on the CPU and on the GPU;
    it must run the entries. `make test` has the newest target.
    """
    CLAIMED[name] |= set(entries)
    targets = sorted(path.name.split(".")[1] for path in FIXTURES.glob(f"{name}.*.ptx"))
    assert targets, f"no fixture of {name}; run tests/ptx/make_nvcc.py"

    def wrap(test: Test) -> Test:
        @functools.wraps(test)
        def checked(program: Program, **more: Any) -> None:
            test(program, **more)
            assert program.ran == set(entries), "a test runs the kernels that it names"

        programs = [
            pytest.param(Program(name, t), id=f"{name}-{t}", marks=[pytest.mark.slow][: n > 0])
            for n, t in enumerate(reversed(targets))
        ]
        if not LEFT_OUT.keys() & set(entries):
            programs += [
                pytest.param(Program(name, t, True), id=f"{name}-{t}-gpu", marks=pytest.mark.gpu)
                for t in targets
            ]
        return pytest.mark.parametrize("program", programs)(checked)

    return wrap


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def s32(values: Any) -> Array:
    return np.asarray(values, np.int64).astype(np.int32)


def u32(value: int) -> int:
    """An `int` argument as nvcc declares it: .u32."""
    return value & 0xFFFFFFFF


def close(got: Array, want: Any, *, rtol: float, atol: float = 0.0) -> None:
    """Within the tolerance, whose reason the caller states; a NaN is equal to a NaN."""
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol, atol=atol)


def same(got: Array, want: Any) -> None:
    np.testing.assert_array_equal(got, want)


def warps(values: Array) -> Array:
    """One row a warp."""
    return values.reshape(-1, 32)


# ---- every kernel -----------------------------------------------------------------------------


def entries_of(text: str) -> set[str]:
    return set(re.findall(r"\.entry\s+(\w+)", text))


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.ptx")), ids=lambda p: p.stem)
def test_every_kernel_of_a_fixture_is_run_by_a_test(path: Path) -> None:
    assert entries_of(path.read_text()) == CLAIMED[path.name.split(".")[0]]


def test_every_kernel_left_out_on_the_gpu_is_one_of_a_fixture() -> None:
    assert set(LEFT_OUT) <= set().union(*CLAIMED.values())


def test_every_source_has_fixtures_and_no_fixture_lacks_its_source() -> None:
    sources = {path.stem for path in (FIXTURES.parent / "cuda").glob("*.cu")}
    assert {path.name.split(".")[0] for path in FIXTURES.glob("*.ptx")} == sources


# ---- reductions -------------------------------------------------------------------------------


@on("reduce", "reduce_tree")
def test_a_tree_in_shared_memory_sums_each_block(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-(1 << 30), 1 << 30, 1000))
    partial = np.zeros(4, np.int32)
    program("reduce_tree", x, partial, 1000, grid=4, block=256)
    padded = np.concatenate([x, np.zeros(24, np.int32)]).reshape(4, 256)
    same(partial, s32(padded.sum(axis=1, dtype=np.int64)))


@on("reduce", "reduce_shuffle")
def test_warp_shuffles_sum_a_block(program: Program, rng: Any) -> None:
    x = rng.integers(-100, 100, 777).astype(np.float32)  # integers: exact in any order
    total = np.zeros(1, np.float32)
    program("reduce_shuffle", x, total, 777, block=192)
    assert total[0] == x.sum()


@on("reduce", "reduce_atomic")
def test_64_bit_atomics_sum_a_grid(program: Program, rng: Any) -> None:
    x = rng.integers(0, 1 << 63, 300).astype(np.uint64)
    total = np.array([5], np.uint64)
    program("reduce_atomic", x, total, 300, grid=3, block=128)
    assert int(total[0]) == (5 + sum(map(int, x))) & MASK64


@on("reduce", "reduce_last_block")
def test_the_last_block_adds_up_what_the_others_left_and_resets_the_ticket(
    program: Program, rng: Any
) -> None:
    arena = program.arena()
    for grid in (6, 4):
        x = rng.integers(-100, 100, 2000).astype(np.float32)
        partial, total = np.zeros(grid, np.float32), np.zeros(1, np.float32)
        program("reduce_last_block", x, partial, total, 2000, grid=grid, block=128, arena=arena)
        assert total[0] == x.sum() == partial.sum()


@on("reduce", "reduce_extremes")
def test_structures_in_shared_memory_carry_extremes_and_their_places(program: Program, rng: Any) -> None:
    x = rng.permutation(900).astype(np.float32)
    out = np.zeros(4, np.int32)
    program("reduce_extremes", x, out, 900, block=128)
    same(out[:2].view(np.float32), [0.0, 899.0])
    same(out[2:], [x.argmin(), x.argmax()])


# ---- scans ------------------------------------------------------------------------------------


@on("scan", "scan_hillis_steele")
def test_the_scan_of_hillis_and_steele(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-1000, 1000, 100))
    out = np.zeros_like(x)
    program("scan_hillis_steele", x, out, 100, block=128, smem=800)
    same(out, x.cumsum())


@on("scan", "scan_blelloch")
def test_the_scan_of_blelloch(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-1000, 1000, 256))
    out = np.zeros_like(x)
    program("scan_blelloch", x, out, block=128)
    same(out, x.cumsum() - x)


@on("scan", "scan_warp")
def test_a_scan_of_64_bit_values_by_warps(program: Program, rng: Any) -> None:
    x = rng.integers(-(1 << 50), 1 << 50, 256)
    out = np.zeros_like(x)
    program("scan_warp", x, out, block=256)
    same(out, x.cumsum())


@on("scan", "compact")
def test_ballots_and_population_counts_keep_the_positive(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-50, 50, 160))
    out, count = np.zeros_like(x), np.zeros(1, np.int32)
    program("compact", x, out, count, block=160)
    kept = x[x > 0]
    assert count[0] == len(kept)
    same(out[: len(kept)], kept)


# ---- transposes, histograms, sorting ----------------------------------------------------------


@on("transpose", "transpose_plain", "transpose_tiled")
def test_transposes_of_ragged_matrices(program: Program, rng: Any) -> None:
    x = rng.normal(size=(45, 70)).astype(np.float32)
    for entry, grid, block in (("transpose_plain", (5, 6), (16, 8)), ("transpose_tiled", (3, 2), (32, 8))):
        out = np.zeros((70, 45), np.float32)
        program(entry, x, out, 45, 70, grid=grid, block=block)
        same(out, x.T)


@on("transpose", "transpose_bytes")
def test_a_swizzled_transpose_of_bytes(program: Program, rng: Any) -> None:
    x = rng.integers(0, 256, (64, 64)).astype(np.uint8)
    out = np.zeros_like(x)
    program("transpose_bytes", x, out, 64, grid=(2, 2), block=256)
    same(out, x.T)


@on("histogram", "histogram_bytes", "histogram_match")
def test_histograms_of_bytes(program: Program, rng: Any) -> None:
    x = (rng.integers(0, 16, 1500) ** 2).astype(np.uint8)
    for entry, grid in (("histogram_bytes", 3), ("histogram_match", 12)):
        bins = np.zeros(256, np.uint32)
        program(entry, x, bins, 1500, grid=grid, block=128)
        same(bins, np.bincount(x, minlength=256))


@on("histogram", "histogram_extremes")
def test_atomic_extremes_and_bits(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-(1 << 31), 1 << 31, 300))
    low, high = np.full(8, 2**31 - 1, np.int32), np.full(8, -(2**31), np.int32)
    bits = np.repeat(np.array([0, 0, 0xFFFFFFFF], np.uint32), 8)
    program("histogram_extremes", x, low, high, bits, 300, grid=3, block=128)
    word = x.view(np.uint32)
    for b in range(8):
        mine = word[(x & 7) == b]
        assert (low[b], high[b]) == (x[(x & 7) == b].min(), x[(x & 7) == b].max())
        assert bits[b] == np.bitwise_or.reduce(np.uint32(1) << mine % 31)
        assert bits[8 + b] == np.bitwise_xor.reduce(mine)
        assert bits[16 + b] == np.bitwise_and.reduce(~(np.uint32(1) << mine % 29))


@on("sort", "sort_bitonic", "sort_odd_even")
def test_sorting_networks(program: Program, rng: Any) -> None:
    for entry, n, block, smem in (("sort_bitonic", 128, 64, 512), ("sort_odd_even", 61, 32, 0)):
        x = rng.integers(0, 1 << 32, n).astype(np.uint32)
        want = np.sort(x)
        program(entry, x, n, block=block, smem=smem)
        same(x, want)


@on("sort", "sort_warp")
def test_pairs_are_sorted_inside_warps(program: Program, rng: Any) -> None:
    keys = rng.permutation(128).astype(np.float32)
    values = np.arange(128, dtype=np.int32)
    keys_out, values_out = np.zeros_like(keys), np.zeros_like(values)
    program("sort_warp", keys, values, keys_out, values_out, grid=2, block=64)
    same(keys_out, np.sort(warps(keys)).ravel())
    same(keys[values_out], keys_out)


# ---- matrix products --------------------------------------------------------------------------


def random(rng: Any, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def product_bound(a: Any, b: Any, rounding: float) -> Array:
    """How far a sum of products rounded at every step may be from exact: k roundings, of |A||B|."""
    return (a.shape[1] + 1) * rounding * (abs(wide(a)) @ abs(wide(b)))


def wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def is_product(c: Array, a: Array, b: Array, rounding: float = F32, plus: Any = 0.0) -> None:
    error = abs(wide(c) - (wide(a) @ wide(b) + plus))
    bound = product_bound(a, b, rounding) + rounding * abs(wide(plus) if np.ndim(plus) else plus)
    assert (error <= bound).all(), f"{(error / bound).max():.3g} times what rounding allows"


@on("matmul", "matmul_plain", "matmul_tiled")
def test_products_of_ragged_matrices(program: Program, rng: Any) -> None:
    a, b = random(rng, 37, 70), random(rng, 70, 21)
    for entry, grid, block in (("matmul_plain", (3, 10), (8, 4)), ("matmul_tiled", (2, 3), 16)):
        c = np.zeros((37, 21), np.float32)
        program(entry, a, b, c, 37, 21, 70, grid=grid, block=(16, 16) if block == 16 else block)
        is_product(c, a, b)


@on("matmul", "matmul_registers")
def test_a_product_in_tiles_of_registers(program: Program, rng: Any) -> None:
    a, b = random(rng, 64, 24), random(rng, 24, 32)
    c = np.zeros((64, 32), np.float32)
    program("matmul_registers", a, b, c, 64, 32, 24, grid=(1, 2), block=64)
    is_product(c, a, b)


@on("wmma", "wmma_f16_f32")
def test_wmma_of_f16(program: Program, rng: Any) -> None:
    # Nine steps: nvcc unrolls by four, so the loop is entered twice and leaves a remainder.
    a, b = random(rng, 32, 144, dtype=np.float16), random(rng, 144, 32, dtype=np.float16)
    c = np.zeros((32, 32), np.float32)
    program("wmma_f16_f32", a, b, c, 32, 144, grid=(2, 2))
    is_product(c, a, b)


@on("wmma", "wmma_f16_f16")
def test_wmma_accumulates_in_f16(program: Program, rng: Any) -> None:
    a, b = random(rng, 64, 48, dtype=np.float16), random(rng, 48, 16, dtype=np.float16)
    before = random(rng, 64, 16, dtype=np.float16)
    c = before.copy()
    program("wmma_f16_f16", a, np.ascontiguousarray(b.T), c, 16, 48, grid=(2, 2))
    is_product(c, a, b, F16, plus=wide(before))


@on("wmma", "wmma_s8")
def test_wmma_of_bytes_is_exact(program: Program, rng: Any) -> None:
    a = rng.integers(-128, 128, (16, 144)).astype(np.int8)
    b = rng.integers(-128, 128, (144, 64)).astype(np.int8)
    c = np.zeros((64, 16), np.int32)
    program("wmma_s8", np.ascontiguousarray(a.T), b, c, 16, 64, 144, grid=(2, 2))
    same(c, 3 * (a.astype(np.int32) @ b.astype(np.int32)).T)


@on("wmma_ampere", "wmma_bf16")
def test_wmma_of_bf16(program: Program, rng: Any) -> None:
    a = random(rng, 32, 144, dtype=ml_dtypes.bfloat16)
    b = random(rng, 144, 32, dtype=ml_dtypes.bfloat16)
    c = np.zeros((32, 32), np.float32)
    program("wmma_bf16", a, b, c, 32, 144, grid=(2, 2))
    is_product(c, a, b)


@on("wmma_ampere", "wmma_tf32")
def test_wmma_of_tf32_rounds_its_inputs_to_11_bits(program: Program, rng: Any) -> None:
    a, b = random(rng, 32, 72), random(rng, 72, 32)
    c = np.zeros((32, 32), np.float32)
    program("wmma_tf32", a, b, c, 32, 72, grid=(2, 2))
    is_product(c, rounded_to_tf32(a), rounded_to_tf32(b))


def rounded_to_tf32(x: Array) -> Array:
    """To the nearest of 11 significant bits, ties away from zero: cvt.rna."""
    bits = x.view(np.uint32) + np.uint32(1 << 12)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


@on("wmma_ampere", "wmma_f64")
def test_wmma_of_f64(program: Program, rng: Any) -> None:
    a, b = rng.normal(size=(16, 36)), rng.normal(size=(36, 16))
    c = np.zeros((16, 16))
    program("wmma_f64", a, b, c, 16, 36, grid=(2, 2))
    close(c, a @ b, rtol=0, atol=1e-13)  # 36 roundings of values below 20


@on("mma", "mma_f16")
def test_mma_with_ldmatrix_and_a_double_buffer_of_cp_async(program: Program, rng: Any) -> None:
    a, b = random(rng, 128, 160, dtype=np.float16), random(rng, 160, 128, dtype=np.float16)
    c = np.zeros((128, 128), np.float32)
    program("mma_f16", a, b, c, 128, 160, grid=(2, 2), block=128)
    is_product(c, a, b)


@on("mma", "mma_bf16", "mma_tf32", "mma_f64")
def test_mma_of_other_floats(program: Program, rng: Any) -> None:
    a, b = random(rng, 16, 8, dtype=ml_dtypes.bfloat16), random(rng, 8, 8, dtype=ml_dtypes.bfloat16)
    c = np.zeros((16, 8), np.float32)
    program("mma_bf16", a, np.ascontiguousarray(b.T), c)
    is_product(c, a, b)

    a, b = rounded_to_tf32(random(rng, 16, 8)), rounded_to_tf32(random(rng, 8, 8))
    c = np.zeros((16, 8), np.float32)
    program("mma_tf32", a, np.ascontiguousarray(b.T), c)
    is_product(c, a, b)

    a, b, d = rng.normal(size=(8, 4)), rng.normal(size=(4, 8)), np.zeros((8, 8))
    program("mma_f64", a, np.ascontiguousarray(b.T), d)
    close(d, a @ b, rtol=0, atol=1e-14)  # 4 roundings of values below 10


@on("mma", "mma_s8")
def test_mma_of_bytes_is_exact(program: Program, rng: Any) -> None:
    a = rng.integers(-128, 128, (16, 32)).astype(np.int8)
    b = rng.integers(0, 256, (32, 8)).astype(np.uint8)
    c = np.zeros((16, 8), np.int32)
    program("mma_s8", a, np.ascontiguousarray(b.T), c)
    row, column = np.indices((16, 8))
    start = 1 + column % 2 + 2 * (row >= 8)
    same(c, a.astype(np.int32) @ b.astype(np.int32) + start)


@on("wgmma", "wgmma_swizzled")
def test_wgmma_of_tiles_with_the_128_byte_swizzle(program: Program, rng: Any) -> None:
    a, b = random(rng, 64, 128, dtype=np.float16), random(rng, 64, 128, dtype=np.float16)
    c = np.zeros((64, 64), np.float32)
    program("wgmma_swizzled", a, b, c, 128, block=128)
    is_product(c, a, b.T)


@on("wgmma", "wgmma_registers")
def test_wgmma_with_a_in_registers_and_b_in_its_other_major_without_swizzle(
    program: Program, rng: Any
) -> None:
    a = random(rng, 64, 16, dtype=ml_dtypes.bfloat16)
    b = random(rng, 16, 64, dtype=ml_dtypes.bfloat16)
    c = np.zeros((64, 64), np.float32)
    program("wgmma_registers", a, b, c, block=128)
    # The second product takes rows g twice, and is subtracted.
    twice = np.concatenate([np.tile(a[16 * w : 16 * w + 8], (2, 1)) for w in range(4)])
    both = wide(a) @ wide(b) - wide(twice) @ wide(b)
    bound = product_bound(a, b, F32) + product_bound(twice, b, F32)
    assert (abs(c - both) <= bound).all()


@on("tma", "tma_copy")
def test_tma_reads_zeros_outside_and_writes_nothing_there(program: Program, rng: Any) -> None:
    x, out = random(rng, 20, 40), np.zeros((12, 48), np.float32)
    program("tma_copy", TensorMap(x, box=(32, 8)), TensorMap(out, box=(32, 8)), u32(-4), 15, 24, 6, block=64)
    tile = np.zeros((8, 32), np.float32)
    tile[:5, 4:] = 2 * x[15:20, :28]
    want = np.zeros_like(out)
    want[6:12, 24:48] = tile[:6, :24]
    same(out, want)


@on("tma", "tma_image")
def test_tma_lays_out_rows_with_the_128_byte_swizzle(program: Program, rng: Any) -> None:
    x = rng.integers(0, 1 << 16, (16, 128)).astype(np.uint16)
    out = np.zeros(8 * 64, np.uint16)
    program("tma_image", TensorMap(x, box=(64, 8), swizzle="128B"), out, 64, 4, block=64)
    want = np.zeros((8, 8, 8), np.uint16)  # row, chunk of 16 bytes, element
    for row in range(8):
        for chunk in range(8):
            at = 64 + 8 * chunk
            want[row, chunk ^ row] = x[4 + row, at : at + 8]
    same(out, want.ravel())
    assert swizzled(np.array(128 + 16), "128B") == 128  # the same, as the table has it


@on("tma", "tma_wgmma")
def test_a_warp_feeds_wgmma_by_tma_in_two_stages(program: Program, rng: Any) -> None:
    a, b = random(rng, 128, 320, dtype=np.float16), random(rng, 320, 128, dtype=np.float16)
    c = np.zeros((128, 128), np.float32)
    maps = [TensorMap(m, box=(64, 64), swizzle="128B") for m in (a, b)]
    program("tma_wgmma", *maps, c, 128, 320, grid=(2, 2), block=160, smem=32768)
    is_product(c, a, b)


# ---- warps and groups -------------------------------------------------------------------------


@on("warp", "warp_shuffles")
def test_shuffles(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-1000, 1000, 96))
    out = np.zeros((8, 96), np.int32)
    program("warp_shuffles", x, out, block=96)
    lane = np.arange(32)

    def clamped(source: Array, width: int) -> Array:
        """A lane outside its segment keeps its own value."""
        return np.where(source // width == lane // width, source, lane)

    sources = [
        *((lane * 5 + 3) % 32, lane // 8 * 8 + lane // 4 % 8, clamped(lane - 3, 32), clamped(lane - 2, 8)),
        *(clamped(lane + 7, 32), clamped(lane + 1, 16), lane ^ 13, lane ^ 3),
    ]
    for got, source in zip(out, sources, strict=True):
        same(warps(got), warps(x)[:, source])


@on("warp", "warp_shuffles_wide")
def test_shuffles_of_doubles_and_of_odd_lanes_alone(program: Program, rng: Any) -> None:
    x, y = rng.normal(size=64), random(rng, 64)
    out, z = np.zeros(64), np.zeros(64, np.float32)
    program("warp_shuffles_wide", x, out, y, z, block=64)
    lane = np.arange(32)
    up = np.where(lane < 4, lane, lane - 4)
    same(warps(out), warps(x)[:, lane ^ 1] + warps(x)[:, up])
    down = warps(y)[:, np.minimum(lane + 2, 31)]
    same(warps(z)[:, 1::2], down[:, 1::2])
    same(warps(z)[:, ::2], -warps(y)[:, ::2])


def ballot(flags: Array) -> Array:
    """The mask of each warp's true lanes, for each of its lanes."""
    masks = (warps(flags).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
    return np.repeat(masks.astype(np.uint32), 32)


@on("warp", "warp_votes")
def test_votes(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-100, 100, 96))
    x[:32] = np.arange(32)
    out = np.zeros((5, 96), np.uint32)
    program("warp_votes", x, out, block=96)
    same(out[0], ballot(x > 0))
    some, every = warps(x > 90).any(axis=1), warps(x > -90).all(axis=1)
    same(out[1], np.repeat(some + 2 * every, 32))
    same(out[2], np.repeat(warps(x % 2 == 0).sum(axis=1), 32))
    odd = x % 2 != 0
    active = np.where(odd, ballot(odd), 0)
    same(out[3], active)
    low = np.arange(96) % 32 < 20
    same(out[4], np.where(low, ballot((x < 0) & low), active))


@on("warp", "warp_matches")
def test_matches(program: Program, rng: Any) -> None:
    x = rng.integers(0, 4, 96).astype(np.uint32)
    x[32:64] = 9
    y = rng.integers(0, 3, 96).astype(np.uint64) << np.uint64(40)
    out = np.zeros((6, 96), np.uint32)
    program("warp_matches", x, y, out, block=96)
    for row, v in ((0, x), (1, y)):
        for w in range(3):
            mine = v[32 * w : 32 * w + 32]
            want = [sum(1 << i for i in range(32) if mine[i] == k) for k in mine]
            same(out[row, 32 * w : 32 * w + 32], want)
    alike = np.repeat((warps(x) == warps(x)[:, :1]).all(axis=1), 32)
    same(out[2], np.where(alike, 0xFFFFFFFF, 0))
    same(out[3], alike)
    same(out[4], np.full(96, 0xFFFFFFFF))
    same(out[5], np.ones(96))


@on("warp", "block_votes")
@pytest.mark.parametrize("special", [0, 77, -300])
def test_barriers_that_count_and_vote(program: Program, rng: Any, special: int) -> None:
    x = s32(rng.integers(-50, 50, 80))
    x[41] = special
    out = np.zeros((3, 80), np.int32)
    program("block_votes", x, out, block=80)
    same(out[0], np.full(80, (x > 0).sum()))
    same(out[1] != 0, np.full(80, special == 77))
    same(out[2] != 0, np.full(80, special != -300))


@on("warp", "special_registers")
def test_special_registers_of_three_dimensions(program: Program) -> None:
    out = np.zeros((12, 30, 6), np.uint32)
    program("special_registers", out, grid=(2, 3, 2), block=(5, 2, 3))
    thread, block = np.arange(30), np.arange(12)
    same(out[:, :, 0], np.tile(thread, (12, 1)))
    same(out[:, :, 1], np.tile((1 << thread) - 1, (12, 1)))
    same(out[:, :, 2], np.tile(0xFFFFFFFF & ~((1 << thread) - 1), (12, 1)))
    assert (out[:, :, 3] == 3).all()
    same(out[3, :, 4], thread % 5 | thread // 5 % 2 << 8 | thread // 10 << 16)
    same(out[:, 7, 5], block % 2 | block // 2 % 3 << 8 | block // 6 << 16)


@on("warp_ampere", "warp_reductions")
def test_reductions_of_a_warp_in_one_instruction(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-(1 << 31), 1 << 31, 64))
    out = np.zeros((8, 64), np.int32)
    program("warp_reductions", x, out, block=64)
    signed, word = warps(x), warps(x.view(np.uint32))
    rows = [
        *(s32(signed.sum(axis=1, dtype=np.int64)), signed.min(axis=1), signed.max(axis=1)),
        *(word.max(axis=1), np.bitwise_and.reduce(word, axis=1), np.bitwise_or.reduce(word, axis=1)),
        np.bitwise_xor.reduce(word, axis=1),
    ]
    for got, want in zip(out, rows, strict=False):
        same(got.view(np.uint32), np.repeat(want.astype(np.uint32), 32))
    first = np.where(np.arange(32) < 12, word[:, :12].sum(axis=1, dtype=np.uint32)[:, None], 0)
    same(out[7].view(np.uint32), first.ravel())


@on("groups", "group_tiles")
def test_tiles_of_a_block(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 30, 96))
    out = np.zeros((4, 96), np.int32)
    program("group_tiles", x, out, block=96)
    i = np.arange(96)
    for got, size in zip(out, (4, 8, 16, 32), strict=True):
        sums = np.repeat(x.reshape(-1, size).sum(axis=1), size)
        same(got, sums + 1000 * (i // size) + 100000 * (i % size == 0))


@on("groups", "group_coalesced")
def test_the_lanes_that_come_together_take_one_atomic(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 10000, 500))
    out, count = np.zeros(500, np.int32), np.zeros(1, np.int32)
    program("group_coalesced", x, out, count, 500, grid=4, block=128)
    wanted = x[x % 3 == 0]
    assert count[0] == len(wanted)
    same(np.sort(out[: len(wanted)]), np.sort(wanted))


@on("groups", "group_labels", "group_binary")
def test_groups_of_equal_labels(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-20, 40, 64))
    labels = np.where(x > 0, x % 5, -(-x % 5))
    for entry, label in (("group_labels", labels), ("group_binary", x > 0)):
        out = np.zeros((64, 3), np.int32)
        program(entry, x, out, block=64)
        for i, (size, rank, value) in enumerate(out):
            warp = np.arange(i // 32 * 32, i // 32 * 32 + 32)
            mine = warp[label[warp] == label[i]]
            assert (size, rank) == (len(mine), (mine < i).sum())
            assert value == (x[mine].sum() if entry == "group_labels" else x[mine[-1]])


@on("groups", "group_reduce")
def test_reductions_and_scans_of_a_tile(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-1000, 1000, 64))
    sums, highest, scans = (np.zeros(64, np.int32) for _ in range(3))
    program("group_reduce", x, sums, highest, scans, block=64)
    tiles = x.reshape(-1, 16)
    same(sums, np.repeat(tiles.sum(axis=1), 16))
    same(highest, np.repeat(tiles.max(axis=1), 16))
    same(scans, tiles.cumsum(axis=1).ravel())


def bits(flags: Iterable[bool]) -> int:
    return sum(flag << k for k, flag in enumerate(flags))


@on("groups", "group_votes")
def test_tiles_of_a_warp_vote_each_for_itself(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-50, 50, 64))
    x[8:16] = 45
    out = np.zeros((6, 64), np.uint32)
    program("group_votes", x, out, block=64)
    for i in range(64):
        tile = [int(v) for v in x[i // 8 * 8 : i // 8 * 8 + 8]]
        label = [truncated(v, 3)[1] for v in tile]
        assert [int(w) for w in out[:, i]] == [
            bits(v > 0 for v in tile),
            any(v > 40 for v in tile) + 2 * all(v > -40 for v in tile),
            bits(n == label[i % 8] for n in label),
            255,  # v / 64 is 0 in all
            1,
            (tile[5] - tile[i % 8 + 3 if i % 8 < 5 else i % 8]) & 0xFFFFFFFF,
        ]


@on("groups", "group_block")
def test_a_block_as_a_group(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 1000, 48))
    out = np.zeros(48, np.int32)
    program("group_block", x, out, block=(12, 4), smem=192)
    i = np.arange(48)
    same(out, x[::-1] + 1000 * (i % 12) + 100000 * (i // 12))


@on("grid", "grid_rounds", "grid_facts")
def test_the_blocks_of_a_grid_wait_for_each_other(program: Program, rng: Any) -> None:
    n = 150
    x = s32(rng.integers(-100, 100, n))
    a, b = np.zeros_like(x), np.zeros_like(x)
    program("grid_rounds", x, a, b, n, grid=(2, 3), block=32)
    want = x.copy()
    for r in range(3):
        rolled = np.roll(want, -1) + r
        want = np.roll(rolled, 1) * 2
    same(a, want)
    same(b, rolled)

    sums, facts = np.zeros(6, np.int32), np.zeros(6 * 32, np.int32)
    program("grid_facts", x, sums, facts, grid=(3, 2), block=32)
    same(facts, x[:6].sum() + 1000 * (np.arange(6 * 32) == 0))


@on("wide_tiles", "wide_tiles")
def test_tiles_of_two_warps(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 92, 192))
    shuffled, sums, turned = (np.zeros_like(x) for _ in range(3))
    program("wide_tiles", x, shuffled, sums, turned, block=192, smem=4 * 192)
    tiles = x.reshape(3, 64)
    any_large = (tiles > 90).any(axis=1)
    same(shuffled, np.repeat(tiles[:, 5] + 1000 * any_large, 64))
    same(sums, np.repeat(tiles.sum(axis=1), 64))
    same(turned, tiles[:, ::-1].ravel())


# ---- textures and surfaces --------------------------------------------------------------------


def texel(image: Array, at: Iterable[Any], mode: str = "clamp", linear: bool = False) -> float:
    """What a fetch at coordinates in texels, x first, gives of one channel."""
    modes = (mode,) * image.ndim
    fractions = [Fraction(float(c)) for c in at]
    return float(fetched(image, fractions, image.shape[::-1], modes, linear))


@on("textures", "texture_turned")
def test_an_image_turned(program: Program, rng: Any) -> None:
    width, height = 16, 8
    image, out = random(rng, height, width), np.zeros((height, width), np.float32)
    texture = Texture(image, filter="linear", address="wrap", normalized=True)
    cosine, sine = np.float32(0.8), np.float32(0.6)
    program("texture_turned", texture, out, width, height, cosine, sine, grid=(2, 1), block=(8, 8))
    v, u = np.indices(out.shape)
    u, v = (u + 0.5) / width - 0.5, (v + 0.5) / height - 0.5
    u, v = u * 0.8 - v * 0.6 + 0.5, v * 0.8 + u * 0.6 + 0.5
    places = zip(u.ravel() * width, v.ravel() * height, strict=True)
    want = np.reshape([texel(image, p, "wrap", True) for p in places], out.shape)
    # A coordinate of the kernel is an f32, so a weight may be one step of 1/256 from ours.
    close(out, want, rtol=0, atol=2 * np.ptp(image) / 256)


@on("textures", "texture_layers", "texture_convolved")
def test_layers_and_a_row_filter(program: Program, rng: Any) -> None:
    image, out = random(rng, 3, 8, 8), np.zeros((3, 8, 8), np.float32)
    layered = Texture(image, "a2d", filter="linear", address="wrap", normalized=True)
    program("texture_layers", layered, out, 8, grid=3, block=(8, 8))
    same(out, -image + np.arange(3, dtype=np.float32)[:, None, None])

    rows = np.zeros((8, 8), np.float32)
    program("texture_convolved", Texture(image[0]), rows, 8, grid=8, block=8)
    padded = np.pad(image[0].astype(np.float64), ((0, 0), (2, 2)), mode="edge")
    weights = np.array([1, 4, 6, 4, 1]) / 16
    want = sum(w * padded[:, k : k + 8] for k, w in enumerate(weights))
    close(rows, want, rtol=0, atol=16 * F32)


@on("textures", "texture_box", "texture_volume")
def test_bytes_as_fractions(program: Program, rng: Any) -> None:
    image = rng.integers(0, 256, (4, 32, 4)).astype(np.uint8)
    out = np.zeros_like(image)
    texture = Texture(image, "2d", read="normalized", address="border")
    program("texture_box", texture, out, 32, 2, grid=4, block=32)
    padded = np.pad(image.astype(np.int64), ((0, 0), (2, 2), (0, 0)))
    sums = sum(padded[:, k : k + 32] for k in range(5))
    assert np.abs(out - sums / 5).max() <= 0.5 + 1e-4

    volume = rng.integers(0, 256, (4, 5, 6)).astype(np.uint8)
    slice_ = np.zeros((16, 16), np.uint32)
    texture = Texture(volume, filter="linear", address="wrap", normalized=True, read="normalized")
    program("texture_volume", texture, slice_, 16, 0.3, grid=16, block=16)
    y, x = np.indices(slice_.shape) / 16
    places = zip(x.ravel() * 6, y.ravel() * 5, np.full(256, 4 * np.float32(0.3)), strict=True)
    want = np.reshape([texel(volume, p, "wrap", True) for p in places], slice_.shape)
    assert np.abs(slice_ + 0.5 - want).max() <= 0.5 + 1e-3  # it is cut to an integer


@on("textures", "texture_bicubic")
def test_a_cubic_spline_by_linear_fetches(program: Program, rng: Any) -> None:
    image, out = random(rng, 8, 8), np.zeros((12, 12), np.float32)
    zoom = np.float32(0.6)
    texture = Texture(image, filter="linear")
    program("texture_bicubic", texture, out, 12, zoom, grid=12, block=12)
    location = np.arange(12) * 0.6 - 0.5
    low = np.floor(location).astype(int)
    f = location - low
    cubes = (1 - f) ** 3, 3 * f**3 - 6 * f**2 + 4, -3 * f**3 + 3 * f**2 + 3 * f + 1, f**3
    spline = np.zeros((12, 8))
    for k, weights in enumerate(cubes):
        np.add.at(spline, (np.arange(12), np.clip(low + k - 1, 0, 7)), weights / 6)
    want = spline @ wide(image) @ spline.T
    close(out, want, rtol=0, atol=4 * np.ptp(image) / 512)  # weights are rounded to 1/256


@on("textures", "texture_cube")
def test_the_faces_of_a_cube(program: Program, rng: Any) -> None:
    faces, out = random(rng, 6, 4, 4), np.zeros(32, np.float32)
    directions = random(rng, 32, 3)
    program("texture_cube", Texture(faces, "cube", normalized=True), directions, out)
    for got, direction in zip(out, directions, strict=True):
        face, s, t = cube_place(*(Fraction(float(c)) for c in direction))
        assert got == texel(faces[face], (4 * s, 4 * t))


@on("textures", "texture_others")
def test_other_geometries_and_elements(program: Program, rng: Any) -> None:
    line = rng.integers(-(2**15), 2**15, 20).astype(np.int16)
    words = rng.integers(0, 2**32, (8, 2), dtype=np.uint32)
    lines, image = random(rng, 3, 12), random(rng, 6, 16, 2)
    ints, floats = np.zeros((2, 32), np.int32), np.zeros((4, 32), np.float32)
    program(
        "texture_others",
        Texture(line),
        Texture(words, "1d"),
        Texture(lines, "a1d", filter="linear"),
        Texture(image, "2d"),
        ints,
        floats,
    )
    x = np.arange(32)
    same(ints[0], [int(line[i - 4]) if 0 <= i - 4 < 20 else 0 for i in x])
    same(ints[1], np.subtract(*words[np.minimum(x, 7)].T).view(np.int32))
    same(floats[0], [np.float32(texel(lines[1], [i / 2], linear=True)) for i in x])
    left, right = (np.clip(np.floor(x / 2 - 0.5) + k, 0, 15).astype(int) for k in (0, 1))
    close(
        floats[1],
        image[3, left, 1]
        + 10.0 * image[3, right, 1]
        + 100.0 * image[2, right, 1]
        + 1000.0 * image[2, left, 1],
        rtol=0,
        atol=0.01,
    )
    same(floats[2], image[2, np.minimum(x, 15), 1])
    same(floats[3], image[2, np.minimum(x, 15), 0])


@on("textures", "surface_written", "surface_others")
def test_surfaces(program: Program, rng: Any) -> None:
    x, written = random(rng, 4, 16), np.zeros((6, 20), np.float32)
    program("surface_written", x, Surface(written), 16, grid=4, block=16)
    same(written[:4, :16], x)
    assert not written[4:].any()
    assert not written[:, 16:].any()

    line = s32(np.arange(40)).astype(np.uint16)
    before = line.copy()
    volume = np.zeros((4, 2, 32, 2), np.float32)
    layers = random(rng, 3, 5, 32, 4)
    out, octets = np.zeros((2, 32, 4), np.float32), np.zeros(32, np.uint8)
    program("surface_others", Surface(line), Surface(volume, "3d"), Surface(layers, "a2d"), out, octets)
    i = np.arange(32)
    same(volume[3, 1], layers[2, 1][:, [0, 3]])
    same(out[0], layers[0, np.minimum(i, 4), np.maximum(i - 4, 0)])
    same(out[1], np.where(i[:, None] >= 4, layers[1, 1, np.maximum(i - 4, 0)], 0))
    same(octets, before.view(np.uint8)[:32])
    same(line, np.concatenate([before[:8], (i + 1000).astype(np.uint16)]))


@on("textures", "surface_outside")
def test_outside_of_a_surface_the_kernel_stops(program: Program) -> None:
    with pytest.raises(TrapError) as trapped:
        program("surface_outside", Surface(np.zeros((4, 16), np.float32)))
    result = re.sub(r"%\w+|line \d+", "…", str(trapped.value))
    assert result == (
        "kernel surface_outside: sust.b.2d.b32.trap […, {…, …}], …; (…): "
        "thread (16, 0, 0) of CTA (0, 0, 0) wants to write 4 bytes of a 2d surface at (64, 1), "
        "outside of its shape (4, 16)"
    )


# ---- calls ------------------------------------------------------------------------------------


@on("recursion", "recursive_fibonacci", "recursive_parity")
def test_recursion_of_different_depth_in_each_lane(program: Program) -> None:
    x = np.arange(40, dtype=np.int32) % 9
    out = np.zeros_like(x)
    program("recursive_fibonacci", x, out, block=40)
    same(out, [(0, 1, 1, 2, 3, 5, 8, 13, 21)[n] for n in x])
    program("recursive_parity", x.astype(np.uint32), out, block=40)
    same(out, x % 2 == 0)


@on("recursion", "recursive_ackermann")
def test_the_function_of_ackermann(program: Program) -> None:
    pairs = s32([(m, n) for m in range(3) for n in range(3)])
    out = np.zeros(9, np.int32)
    program("recursive_ackermann", pairs, out, block=9)
    same(out, [1, 2, 3, 2, 3, 4, 3, 5, 7])


@on("recursion", "recursive_quicksort")
def test_quicksort_on_an_array_of_each_thread(program: Program, rng: Any) -> None:
    x = random(rng, 20, 16)
    out = np.zeros_like(x)
    program("recursive_quicksort", x, out, block=20)
    same(out, np.sort(x, axis=1))


@on("recursion", "structure_calls")
def test_functions_take_and_return_structures(program: Program, rng: Any) -> None:
    kind = np.dtype([("over", "i8"), ("under", "i4"), ("value", "f4")])
    x, y, out = (np.zeros(33, kind) for _ in range(3))
    for side in (x, y):
        side["over"], side["under"] = rng.integers(-(1 << 20), 1 << 20, 33), rng.integers(1, 99, 33)
        side["value"] = side["over"] / side["under"]
    program("structure_calls", *(v.view(np.uint8) for v in (x, y, out)), block=33)
    same(out["over"], x["over"] * y["under"] + y["over"] * x["under"])
    same(out["under"], x["under"] * y["under"])
    same(out["value"], x["value"] + y["value"])


BINARY = (np.add, np.subtract, np.multiply, np.maximum)


@on("function_pointers", "pointer_constant", "pointer_global", "pointer_passed")
def test_calls_through_tables_of_functions(program: Program, rng: Any) -> None:
    which = s32(rng.integers(0, 4, 70))
    x, y, out = random(rng, 70), random(rng, 70), np.zeros(70, np.float32)
    program("pointer_constant", which, x, y, out, block=70)
    same(out, [BINARY[w](a, b) for w, a, b in zip(which, x, y, strict=True)])
    for number, function in ((0, np.multiply), (1, np.subtract)):
        program("pointer_global", number, x, y, out, block=70)
        same(out, function(x, y))
    program("pointer_passed", x, out, 6, block=70)
    folds = [f(f(f(f(f(x[0], x[1]), x[2]), x[3]), x[4]), x[5]) for f in BINARY]
    same(out, np.tile(np.array(folds, np.float32), 18)[:70])


@on("function_pointers", "pointer_virtual")
def test_virtual_functions(program: Program, rng: Any) -> None:
    x, out = random(rng, 40), np.zeros(40, np.float32)
    program("pointer_virtual", x, out, block=40)
    square = np.arange(40) % 3 == 0
    same(out, np.where(square, x * x, np.float32(3) * x * x))


# ---- small floats -----------------------------------------------------------------------------

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 6e-8, -3e-5, 65504.0, 0.1, 1024.5, -448.0, 2e-3]
)


def small_floats(rng: Any, n: int, dtype: Any) -> Array:
    built = np.concatenate([SPECIAL, rng.normal(size=n - len(SPECIAL)) * 4])
    with np.errstate(over="ignore"):
        return built.astype(dtype)


@on("half", "half_arithmetic")
def test_arithmetic_of_pairs_of_halves(program: Program, rng: Any) -> None:
    x, y = (rng.permutation(small_floats(rng, 128, np.float16)) for _ in range(2))
    out = np.zeros((6, 128), np.float16)
    program("half_arithmetic", x, y, out, block=64)
    a, b = wide(x), wide(y)
    with np.errstate(all="ignore"):
        product = (a * b).astype(np.float16)  # exact in f64, rounded once
        rows = [
            *(x + y, product, (a * b + 0.5).astype(np.float16), -x - y),
            *(np.clip(np.where(np.isnan(product), 0, product), 0, 1), (x > y).astype(np.float16)),
        ]
    for got, want in zip(out, rows, strict=True):
        same(got, want)


@on("half", "half_scalar")
def test_arithmetic_of_halves(program: Program, rng: Any) -> None:
    x, y = (rng.permutation(small_floats(rng, 96, np.float16)) for _ in range(2))
    out, flags = np.zeros((4, 96), np.float16), np.zeros(96, np.int32)
    program("half_scalar", x, y, out, flags, block=96)
    a, b = wide(x), wide(y)
    with np.errstate(all="ignore"):
        same(out[0], x + y)
        # The division goes through f32 approximations: one unit in the last place.
        close(out[1], x / y, rtol=2 * F16, atol=6e-8)
        same(out[2], (a * b + a).astype(np.float16))
        same(out[3], abs(x) - y)
    infinite = 8 * np.where(np.isinf(y), np.sign(y), 0)  # -1 for the negative one
    same(flags, (x < y) + 2 * (x == y) + 4 * np.isnan(x) + infinite)


@on("half", "half_dot")
def test_a_dot_product_of_halves(program: Program, rng: Any) -> None:
    x, y = random(rng, 800, dtype=np.float16), random(rng, 800, dtype=np.float16)
    out = np.zeros(1, np.float32)
    program("half_dot", x, y, out, 400)
    is_product(out[None], x[None], y[:, None])


def rounded(x: Array, dtype: Any, towards: str) -> Array:
    """x as `dtype`: the nearest that is not beyond x in the direction, found by neighbours."""
    with np.errstate(all="ignore"):
        near = x.astype(dtype)
        down = np.where(near.astype(np.float64) > x, np.nextafter(near, dtype(-np.inf)), near)
        up = np.where(near.astype(np.float64) < x, np.nextafter(near, dtype(np.inf)), near)
    if towards == "zero":
        return np.where(x > 0, down, up)
    return down if towards == "down" else up


@on("half", "half_conversions")
def test_conversions_of_halves(program: Program, rng: Any) -> None:
    x = np.concatenate([rng.normal(size=60) * 100, [0.0, 3e-6, -2.5, 3.5]]).astype(np.float32)
    out = np.zeros((4, 64), np.float16)
    ints, back = np.zeros((3, 64), np.int32), np.zeros((2, 64), np.float32)
    program("half_conversions", x, out, ints, back, block=64)
    h = x.astype(np.float16)
    for got, want in zip(out, [h, *(rounded(x, np.float16, d) for d in ("zero", "up", "down"))], strict=True):
        same(got, want)
    same(ints[0], np.rint(wide(h)))
    same(ints[1], np.trunc(wide(h)))
    same(ints[2], (100 * np.arange(64) + 7).astype(np.float16).view(np.uint16))
    same(back[0], h.astype(np.float32))
    same(back[1], np.floor(wide(h)) + 1000 * np.ceil(wide(h)))


@on("bf16", "bf16_arithmetic")
def test_arithmetic_of_pairs_of_bf16(program: Program, rng: Any) -> None:
    kind = ml_dtypes.bfloat16
    x, y = (rng.permutation(small_floats(rng, 128, kind)) for _ in range(2))
    out = np.zeros((4, 128), kind)
    program("bf16_arithmetic", x, y, out, block=64)
    with np.errstate(all="ignore"):
        rows = [
            [rounded_once(Fraction(p) + Fraction(q)) for p, q in pairs(x, y)],
            [rounded_once(Fraction(p) * Fraction(q)) for p, q in pairs(x, y)],
            [rounded_once(Fraction(p) * Fraction(q) + Fraction(p)) for p, q in pairs(x, y)],
            [max(p, q) for p, q in pairs(x, y)],
        ]
    finite = np.isfinite(wide(x)) & np.isfinite(wide(y))
    for got, want in zip(out, rows, strict=True):
        same(wide(got)[finite], want)
    # Infinities and NaN as f32 has them.
    a, b = (v.astype(np.float32)[~finite] for v in (x, y))
    with np.errstate(all="ignore"):
        larger = np.fmax(a, b)
        for got, value in zip(out, (a + b, a * b, a * b + a, larger), strict=True):
            same(wide(got)[~finite], wide(value.astype(kind)))


def pairs(x: Array, y: Array) -> list[tuple[float, float]]:
    both = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    return [(a, b) for a, b in both if math.isfinite(a) and math.isfinite(b)]


def rounded_once(exact: Fraction) -> float:
    """To the nearest of 8 significant bits, ties to even."""
    if exact == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(exact)))
    exponent += (abs(exact) >= Fraction(2) ** (exponent + 1)) - (abs(exact) < Fraction(2) ** exponent)
    unit = Fraction(2) ** max(exponent - 7, -133)
    return float(round(exact / unit) * unit)


@on("half", "bf16_conversions")
def test_conversions_of_bf16(program: Program, rng: Any) -> None:
    kind = ml_dtypes.bfloat16
    x = (rng.normal(size=128) * 50).astype(np.float32)
    out, back = np.zeros((2, 128), kind), np.zeros(64, np.float32)
    program("bf16_conversions", x, out, back, block=64)
    near = x.astype(kind)
    same(wide(out[0]), wide(near))
    bits = x.view(np.uint32)
    cut = (bits & np.uint32(0xFFFF0000)).view(np.float32)  # towards zero
    above = np.where((cut < x), ((bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32), cut)
    same(wide(out[1, ::2]), cut[::2])
    same(wide(out[1, 1::2]), above[1::2])
    same(back, near[::2].astype(np.float32) + near[1::2].astype(np.float32))


FP8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def as_fp8(x: Array, kind: Any) -> Array:
    """Too large a number becomes the largest: ml_dtypes would give NaN or infinity."""
    most = 448.0 if kind is ml_dtypes.float8_e4m3fn else 57344.0
    return np.clip(x, -most, most).astype(kind)


@on("half", "fp8_conversions", "fp8_pairs")
def test_conversions_of_fp8(program: Program, rng: Any) -> None:
    x = np.concatenate([rng.normal(size=120) * 30, [1e6, -1e6, 0.0, -0.0, 1e-3, -1e-4, 448, 0.06]])
    x = x.astype(np.float32)
    want = [as_fp8(x, kind) for kind in FP8]
    for entry, block in (("fp8_conversions", 128), ("fp8_pairs", 64)):
        out, back = np.zeros((2, 128), np.uint8), np.zeros((2, 128), np.float16)
        program(entry, x, out, back, block=block)
        for got, half, kind in zip(out, back, want, strict=True):
            same(got, kind.view(np.uint8))
            same(half, kind.astype(np.float16))


@on("half", "half_atomics")
def test_atomic_sums_of_small_floats(program: Program, rng: Any) -> None:
    # Integers whose sums both types hold exactly, in any order.
    x = rng.integers(-9, 9, (40, 2)).astype(np.float16)
    y = rng.integers(-3, 3, 40).astype(ml_dtypes.bfloat16)
    total, one = np.array([1, 2], np.float16), np.array([5, 7], ml_dtypes.bfloat16)
    program("half_atomics", x, total, y, one, 40, block=64)
    same(total, np.array([1, 2]) + wide(x).sum(axis=0))
    same(wide(one), [5 + wide(y).sum(), 7])


# ---- finance, bodies, printing ----------------------------------------------------------------


def normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


@on("finance", "black_scholes", "black_scholes_fast")
def test_prices_of_black_and_scholes(program: Program, rng: Any) -> None:
    n = 200
    spot, strike = (rng.uniform(5, 50, n).astype(np.float32) for _ in range(2))
    years = rng.uniform(0.2, 8, n).astype(np.float32)
    rate, volatility = np.float32(0.02), np.float32(0.3)
    s, k, t, r, v = map(wide, (spot, strike, years, rate, volatility))
    d1 = (np.log(s / k) + (r + v * v / 2) * t) / (v * np.sqrt(t))
    d2 = d1 - v * np.sqrt(t)
    want = s * normal_cdf(d1) - k * np.exp(-r * t) * normal_cdf(d2)
    call, put = np.zeros(n, np.float32), np.zeros(n, np.float32)
    # Ten f32 functions of values up to 50, each within a few units in the last place.
    program("black_scholes", spot, strike, years, rate, volatility, call, put, n, grid=2, block=64)
    close(call, want, rtol=0, atol=50 * 32 * F32)
    close(put, want - s + k * np.exp(-r * t), rtol=0, atol=50 * 48 * F32)
    call[:] = 0
    # The fast logarithm is within 2^-21.4 absolutely, and d1 divides it by the volatility.
    program("black_scholes_fast", spot, strike, years, rate, volatility, call, n, grid=2, block=128)
    close(call, want, rtol=0, atol=50 * 128 * F32)


@on("finance", "count_inside")
def test_a_monte_carlo_count_is_that_of_python(program: Program) -> None:
    inside = np.zeros(1, np.uint32)
    program("count_inside", 1234, 10, inside, grid=2, block=32)
    assert inside[0] == sum(draws_inside(1234 + thread, 10) for thread in range(64))


def draws_inside(state: int, draws: int) -> int:
    count = 0
    for _ in range(draws):
        at = []
        for _ in range(2):
            state = (state + 0x9E3779B97F4A7C15) & MASK64
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK64
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK64
            at.append(((z ^ (z >> 31)) >> 40) / 2**24)
        count += at[0] ** 2 + at[1] ** 2 < 1
    return count


@on("nbody", "nbody_step")
def test_a_step_of_bodies_that_attract_each_other(program: Program, rng: Any) -> None:
    n, dt, softening = 128, np.float32(0.01), np.float32(0.1)
    location, speed = random(rng, n, 4), random(rng, n, 4)
    location[:, 3] = rng.uniform(0.5, 2, n)
    was, moved = wide(speed), np.zeros_like(location)
    program("nbody_step", location, speed, moved, n, dt, softening, grid=2, block=64, smem=1024)
    p = wide(location)
    apart = p[None, :, :3] - p[:, None, :3]
    distance = (apart**2).sum(axis=2) + softening
    pull = (apart * (p[None, :, 3] * distance**-1.5)[:, :, None]).sum(axis=1)
    most = (abs(apart) * (p[None, :, 3] * distance**-1.5)[:, :, None]).sum(axis=1)
    bound = (n + 12) * F32 * (most * dt + abs(was[:, :3]))  # n sums, a dozen steps a term
    now = was[:, :3] + pull * dt
    assert (abs(speed[:, :3] - now) <= bound).all()
    assert (abs(moved[:, :3] - (p[:, :3] + now * dt)) <= bound + F32 * 4 * abs(p[:, :3])).all()
    same(moved[:, 3], location[:, 3])


@on("print", "print_plain", "print_numbers", "print_formats")
def test_printf(program: Program) -> None:
    assert program("print_plain", grid=2, block=1).printed == "hello\n" * 2
    x, y = s32([5, -6, 7, 8]), np.array([1.5, 2.25, -0.0625, 0], np.float32)
    result = program("print_numbers", x, y, 1 << 40, block=4)
    assert result.printed == (
        "0: x=5 y=1.500 z=1099511627776 % a\n"
        "1: x=-6 y=2.250 z=1099511627777 % b\n"
        "2: x=7 y=-0.062 z=1099511627778 % c\n"
    )
    result = program("print_formats", 1234, 2.5, 1 << 35, block=1)
    assert result.printed == (
        "[ 1234|1234  |000004d2|0X4D2|2322][2.500000e+00|2.5|      2.50|+2.5][34359738368|800000000|large]\n"
    )


@on("print", "print_assert", "print_trap")
def test_assertions_that_hold_and_traps_that_are_not_reached(program: Program) -> None:
    x = np.arange(1, 41, dtype=np.int32)
    out = np.zeros_like(x)
    program("print_assert", x, out, block=40)
    same(out, 2 * x)
    x[7] = -54321  # this thread leaves
    out[:] = 0
    program("print_trap", x, out, block=40)
    same(out, np.where(x == -54321, 0, x + 1))


@on("print", "print_assert", "print_trap")
@pytest.mark.parametrize(("entry", "bad"), [("print_assert", -1), ("print_trap", -12345)])
def test_assertions_that_fail_and_traps_stop_the_kernel(program: Program, entry: str, bad: int) -> None:
    x = np.full(40, 3, np.int32)
    x[33] = bad
    program.ran |= {"print_assert", "print_trap"}
    with pytest.raises(TrapError) as caught:
        program(entry, x, np.zeros_like(x), block=40)
    words = "x[threadIdx.x] > 0" if entry == "print_assert" else "trap"
    assert words in str(caught.value)


# ---- variables, structures, local memory ------------------------------------------------------


@on("variables", "constant_filter", "constant_structure")
def test_tables_and_structures_in_constant_memory(program: Program, rng: Any) -> None:
    x, out = rng.integers(-16, 16, 90).astype(np.float32), np.zeros(90, np.float32)
    program("constant_filter", x, out, 90, grid=2, block=64)
    padded = np.pad(x, 2, mode="edge")
    same(out, sum(w / 16 * padded[k : k + 90] for k, w in enumerate((1, 4, 6, 4, 1))))
    values = np.zeros(6)
    program("constant_structure", values, block=6)
    same(values, 1.5 + np.tile([20, -30, 40], 2) + 200_000 + 1e6)


@on("variables", "count_launches", "count_through_pointer", "keep", "fetch")
def test_variables_keep_their_values_between_launches(program: Program, rng: Any) -> None:
    arena, out = program.arena(), np.zeros(1, np.int32)
    counts = []
    for entry in ("count_launches", "count_launches", "count_through_pointer", "count_launches"):
        program(entry, out, block=32, arena=arena)
        counts.append(int(out[0]))
    assert counts == [100, 101, 102, 112]
    x, y = random(rng, 256), np.zeros(256, np.float32)
    program("keep", x, block=256, arena=arena)
    program("fetch", y, block=256, arena=arena)
    same(y, 2 * x[::-1])


@on("variables", "read_table")
def test_initial_values_of_wide_words_and_pointers_to_text(program: Program) -> None:
    out, letters = np.zeros(8, np.uint64), np.zeros(8, np.uint8)
    program("read_table", out, letters, block=8)
    table = [1, MASK64, 1 << 40, 7]
    same(out, np.array([(table[i % 4] + i) & MASK64 for i in range(8)], np.uint64))
    assert bytes(letters) == bytes(b"zer"[i // 2 % 3] if i % 2 == 0 else b"one"[i // 2 % 3] for i in range(8))


POINT = np.dtype(
    {
        "names": ["x", "y", "weight", "tag"],
        "formats": ["f4", "f4", "f8", "i1"],
        "offsets": [0, 4, 8, 16],
        "itemsize": 24,
    }
)
PROBLEM = np.dtype(
    {
        "names": ["input", "output", "n", "scale", "shift"],
        "formats": ["u8", "u8", "i4", "f4", ("i2", 4)],
        "offsets": [0, 8, 16, 20, 24],
        "itemsize": 32,
    }
)


@on("structures", "structure_value", "structure_pointers")
def test_structures_by_value_and_with_pointers_inside(program: Program, rng: Any) -> None:
    point = np.array([(1.5, -2.0, 0.25, -3)], POINT)
    out = np.zeros(40)
    program("structure_value", point.tobytes(), 35, out, block=40)
    same(out, np.where(np.arange(40) < 35, 1.5 - 2.0 * np.arange(40) - 0.75, 0))

    arena = program.arena()
    x, y = rng.integers(-99, 99, 100).astype(np.float32), np.zeros(100, np.float32)
    problem = np.array([(arena.place(x), arena.place(y), 90, 0.5, (1, -2, 3, -4))], PROBLEM)
    program("structure_pointers", problem.tobytes(), grid=4, block=32, arena=arena)
    want = x * 0.5 + np.tile([1, -2, 3, -4], 25)
    same(y, np.where(np.arange(100) < 90, want, 0))


@on("structures", "structure_list")
def test_a_linked_list(program: Program, rng: Any) -> None:
    arena = program.arena()
    nodes = np.zeros((30, 2), np.int64)  # value and padding, next
    base = arena.place(nodes)
    order = rng.permutation(30)
    nodes[:, 0] = 1 << np.arange(30)
    nodes[order[:-1], 1] = base + 16 * order[1:]
    out = np.zeros(8, np.int32)
    program("structure_list", base + 16 * int(order[0]), out, 24, block=8, arena=arena)
    same(out, [(1 << order[: 24 + i]).sum() for i in range(8)])


@on("structures", "structure_bits", "structure_table")
def test_bit_fields_unions_and_large_parameters(program: Program, rng: Any) -> None:
    x = rng.integers(0, 1 << 32, 50).astype(np.uint32)
    y, out = random(rng, 50), np.zeros((50, 4), np.uint32)
    program("structure_bits", x, y, out, block=50)
    bits = y.view(np.uint32)
    same(out[:, 0], x & 31)
    same(out[:, 1], (x >> 5 & 2047) * 3)
    same(out[:, 2], (x >> 16) + (bits >> 23 & 255))
    same(out[:, 3], y.view(np.uint8).reshape(-1, 4)[np.arange(50), np.arange(50) % 4])

    table, which = s32(rng.integers(-999, 999, 64)), s32(rng.integers(0, 64, 40))
    result = np.zeros(40, np.int32)
    program("structure_table", table.tobytes(), which, result, block=40)
    same(result, table[which])


@on("local", "local_array", "local_bytes")
def test_arrays_of_each_thread(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 1000, (20, 30)))
    out = np.zeros((20, 10), np.int32)
    program("local_array", x, out, 30, block=20)
    same(out, [np.bincount(row % 10, minlength=10) for row in x])
    letters = rng.integers(0, 256, (40, 12)).astype(np.uint8)
    want = np.sort(letters, axis=1)
    program("local_bytes", letters, block=40)
    same(letters, want)


@on("local", "jump_table")
def test_a_switch_whose_lanes_go_different_ways(program: Program, rng: Any) -> None:
    op = s32(rng.integers(-1, 13, 128))
    x = rng.integers(0, 1 << 32, 128).astype(np.uint32)
    x[::9] = 0
    out = np.zeros(128, np.uint32)
    program("jump_table", op, x, out, block=128)
    same(out, [switched(int(o), int(v), i) for i, (o, v) in enumerate(zip(op, x, strict=True))])


def switched(op: int, v: int, i: int) -> int:
    cases: dict[int, Callable[[], int]] = {
        0: lambda: v + 17,
        1: lambda: v * v,
        2: lambda: v ^ 0x5A5A5A5A,
        3: lambda: int(f"{v:032b}"[::-1], 2),
        4: lambda: v // 7,
        5: lambda: v >> i % 32,
        6: lambda: v >> i % 32,
        7: lambda: v % 1000,
        9: lambda: 32 - v.bit_length(),
        10: lambda: (v & -v).bit_length() - 5,
    }
    return cases.get(op, lambda: 0xDEADBEEF)() & 0xFFFFFFFF


@on("local", "byte_code")
def test_a_little_machine_runs_byte_code(program: Program) -> None:
    out, x = np.zeros(4, np.int32), np.array([1, 2, 3, 9], np.int32)
    program("byte_code", np.array(BYTE_CODE, np.uint8), len(BYTE_CODE), x, out, block=4)
    same(out, [top_of_stack(int(v)) for v in x])


# total = 1; do total += total; x -= 1; while x > 0; then -(total + x), squared.
BYTE_CODE = [0, 1, 6, 6, 3, 1, 6, 5, 3, 4, 3, 1, 7, 3, 2]


def top_of_stack(x: int) -> int:
    """What the byte code leaves, on a Python list."""
    code, stack, at = BYTE_CODE, [x], 0
    while at < len(code):
        op, at = code[at], at + 1
        if op == 0:
            stack.append(code[at])
            at += 1
        elif op == 1:
            stack.append(stack.pop() + stack.pop())
        elif op == 2:
            stack.append(stack.pop() * stack.pop())
        elif op == 3:
            stack.append(stack[-1])
        elif op == 4:
            at = code[at] if stack.pop() > 0 else at + 1
        elif op == 5:
            stack[-1] -= 1
        elif op == 6:
            stack[-2], stack[-1] = stack[-1], stack[-2]
        else:
            stack[-1] = -stack[-1]
    return stack[-1]


@on("local", "collatz")
def test_loops_of_different_length(program: Program) -> None:
    x = np.arange(1, 65, dtype=np.uint64)
    x[40] = 837799
    steps, peak = np.zeros(64, np.int32), np.zeros(64, np.uint64)
    program("collatz", x, steps, peak, grid=2, block=32)
    for v, n, top in zip(x, steps, peak, strict=True):
        path = [int(v)]
        while path[-1] != 1 and len(path) <= 600:
            path.append(path[-1] // 2 if path[-1] % 2 == 0 else 3 * path[-1] + 1)
        cut = next((k for k in range(501, len(path)) if path[k - 1] % 2 == 1), len(path) - 1)
        assert (int(n), int(top)) == (cut, max(path[: cut + 1]))


# ---- integers ---------------------------------------------------------------------------------

EDGES64 = [0, 1, 2, MASK64, MASK64 - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1]


def words64(rng: Any, n: int) -> Array:
    random_words = rng.integers(0, 1 << 64, n - len(EDGES64), dtype=np.uint64)
    return rng.permutation(np.concatenate([np.array(EDGES64, np.uint64), random_words]))


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@on("integers", "wide_products", "wide_words")
def test_products_of_64_and_128_bits(program: Program, rng: Any) -> None:
    x, y = words64(rng, 64), words64(rng, 64)
    out = np.zeros((8, 64), np.uint64)
    program("wide_products", x, y, out, block=64)
    both = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    low = (1 << 32) - 1
    rows: list[Callable[[int, int], int]] = [
        lambda a, b: a * b >> 64,
        lambda a, b: signed(a, 64) * signed(b, 64) >> 64 & MASK64,
        lambda a, b: a * b & MASK64,
        lambda a, b: (a & low) * (b & low) >> 32,
        lambda a, b: signed(a, 32) * signed(b, 32) >> 32 & low,
        lambda a, b: signed(a, 24) * signed(b, 24) & low,
        lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & low,
        lambda a, b: abs((a & low) - (b & low)) + 9 & low,
    ]
    for got, row in zip(out, rows, strict=True):
        same(got, np.array([row(a, b) for a, b in both], np.uint64))
    wide_out = np.zeros((64, 2), np.uint64)
    program("wide_words", x, y, wide_out, block=64)
    for (a, b), (low_word, high_word) in zip(both, wide_out, strict=True):
        assert int(low_word) | int(high_word) << 64 == (a * b + (b << 70) - a) % (1 << 128)


@on("integers", "carries")
def test_chains_of_carries(program: Program, rng: Any) -> None:
    x, y = words64(rng, 64).view(np.uint32), words64(rng, 64).view(np.uint32)
    total, difference, product = (np.zeros((32, 4), np.uint32) for _ in range(3))
    program("carries", x, y, total, difference, product, block=32)
    mask = (1 << 128) - 1
    for i in range(32):
        a, b = (sum(int(w) << 32 * k for k, w in enumerate(v[4 * i : 4 * i + 4])) for v in (x, y))
        for got, want in ((total, a + b), (difference, a - b), (product, (a & MASK64) * (b & MASK64))):
            assert sum(int(w) << 32 * k for k, w in enumerate(got[i])) == want & mask


def truncated(a: int, b: int) -> tuple[int, int]:
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


@on("integers", "divisions")
def test_quotients_and_remainders(program: Program, rng: Any) -> None:
    n = 64
    x, y = s32(rng.integers(-(1 << 31), 1 << 31, n)), s32(rng.integers(-300, 300, n))
    u = rng.integers(-(1 << 63), 1 << 63, n)
    v = rng.integers(-(1 << 63), 1 << 63, n) >> rng.integers(0, 60, n)
    y[y == 0], v[v == 0] = 7, -3
    out, wide_out = np.zeros((6, n), np.int32), np.zeros((5, n), np.int64)
    program("divisions", x, y, u, v, out, wide_out, block=n)
    low = (1 << 32) - 1
    for i in range(n):
        a, b, c, d = (int(w[i]) for w in (x, y, u, v))
        short = truncated(signed(a, 16), signed(b | 1, 16))[0]
        want = [*truncated(a, b), (a & low) // (b & low), (a & low) % (b & low), truncated(a, 10)[0], short]
        assert [int(w) & low for w in out[:, i]] == [w & low for w in want]
        want = [
            *truncated(c, d),
            (c & MASK64) // (d & MASK64),
            (c & MASK64) % (d & MASK64),
            truncated(c, 1000000007)[0],
        ]
        assert [int(w) & MASK64 for w in wide_out[:, i]] == [w & MASK64 for w in want]


@on("integers", "bits")
def test_fiddling_with_bits(program: Program, rng: Any) -> None:
    x = rng.integers(0, 1 << 32, 64).astype(np.uint32)
    x[:3] = 0, 0xFFFFFFFF, 1 << 31
    y = words64(rng, 64)
    out = np.zeros((12, 64), np.uint32)
    program("bits", x, y, out, block=64)
    low = 0xFFFFFFFF
    for i in range(64):
        v, w = int(x[i]), int(y[i])
        u = w & low
        both, s = u << 32 | v, i % 32
        eight = (v | u << 32).to_bytes(8, "little")
        half = signed(v, 32) + signed(u, 32)
        want = [
            *(v.bit_count() | w.bit_count() << 8, 32 - v.bit_length() | 64 - w.bit_length() << 8),
            (v & -v).bit_length() | (w & -w).bit_length() << 8,
            int(f"{v:032b}"[::-1], 2) ^ int(f"{w:064b}"[::-1], 2) >> 7,
            *(int.from_bytes(bytes(eight[k] for k in (2, 5, 1, 6)), "little"), both << s >> 32, both >> s),
            *(both << min(i + 20, 32) >> 32, (v << s | v >> (32 - s) % 32), signed(v, 32) >> s),
            *(half // 2 ^ (half + 1) // 2, (v & u) | (~v & 0x12345678)),
        ]
        assert [int(g) for g in out[:, i]] == [n & low for n in want]


def dot(x: list[int], y: list[int]) -> int:
    return sum(a * b for a, b in zip(x, y, strict=True))


def parts(word: int, bits: int, is_signed: bool) -> list[int]:
    values = [word >> k & ((1 << bits) - 1) for k in range(0, 32, bits)]
    return [signed(v, bits) for v in values] if is_signed else values


@on("integers", "dot_products", "bytes_at_once")
def test_bytes_and_halves_of_a_word(program: Program, rng: Any) -> None:
    x, y = (rng.integers(0, 1 << 32, 64).astype(np.uint32) for _ in range(2))
    dots, out = np.zeros((4, 64), np.uint32), np.zeros((6, 64), np.uint32)
    program("dot_products", x, y, dots, block=64)
    program("bytes_at_once", x, y, out, block=64)
    low = 0xFFFFFFFF

    def joined(values: list[int], bits: int = 8) -> int:
        return sum((v & ((1 << bits) - 1)) << bits * k for k, v in enumerate(values))

    for i in range(64):
        a, b = int(x[i]), int(y[i])
        s, t, p, q = parts(a, 8, True), parts(b, 8, True), parts(a, 8, False), parts(b, 8, False)
        h, g, e = parts(a, 16, True), parts(a, 16, False), parts(b, 16, True)
        assert [int(d) for d in dots[:, i]] == [
            w & low for w in (100 + dot(s, t), 7 + dot(p, q), -5 + dot(h, t[:2]), 3 + dot(g, q[2:]))
        ]
        assert [int(d) for d in out[:, i]] == [
            joined([m + n for m, n in zip(p, q, strict=True)]),
            joined([max(m, n) for m, n in zip(s, t, strict=True)]),
            joined([abs(m - n) for m, n in zip(p, q, strict=True)]),
            joined([255 * (m > n) for m, n in zip(p, q, strict=True)]),
            joined([min(max(m - n, -32768), 32767) for m, n in zip(h, e, strict=True)], 16),
            sum(abs(m - n) for m, n in zip(p, q, strict=True)),
        ]


@on("integers", "narrow")
def test_arithmetic_of_narrow_integers(program: Program, rng: Any) -> None:
    a, b, c, d = (
        rng.integers(np.iinfo(t).min, np.iinfo(t).max, 64).astype(t)
        for t in (np.int8, np.int16, np.uint8, np.uint16)
    )
    outs = [np.zeros_like(v) for v in (a, b, c, d)]
    program("narrow", a, b, c, d, *outs, block=64)
    p, q, r, s = (v.astype(np.int64) for v in (a, b, c, d))
    last = np.where(p < q, 5, np.where(r > 100, 7, 9))
    wants = (p * 3 + q, q - p * r, r + s // 3, s * s + last)
    for got, want in zip(outs, wants, strict=True):
        same(got, want.astype(got.dtype))


# ---- atomics ----------------------------------------------------------------------------------


@on("atomics", "atomic_floats", "atomic_loop")
def test_atomics_of_floats(program: Program, rng: Any) -> None:
    x = rng.integers(-50, 50, 200).astype(np.float32)  # integers: exact in any order
    y = rng.integers(-50, 50, 200).astype(np.float64) / 8
    f, d = np.zeros(3, np.float32), np.ones(3)
    program("atomic_floats", x, y, f, d, 200, grid=2, block=128)
    same(f, [x[k::3].sum() for k in range(3)])
    same(d, [1 + y[k::3].sum() for k in range(3)])
    z, highest = rng.normal(size=150), np.array([-9.0])
    program("atomic_loop", z, highest, 150, grid=2, block=96)
    assert highest[0] == z.max()


@on("atomics", "atomic_kinds")
def test_atomics_of_every_kind(program: Program) -> None:
    words = np.array([3, 5, 7, 1 << 20, 0, 0], np.uint32)
    wides, slots = np.array([5000, MASK64 - 5000, 0], np.uint64), np.zeros(128, np.int32)
    program("atomic_kinds", words, wides, slots, grid=2, block=64)
    up, down = 3, 5
    for _ in range(128):
        up = 0 if up >= 9 else up + 1
        down = 6 if down == 0 or down > 6 else down - 1
    assert [int(w) for w in words[:3]] == [up, down, (7 - 127 * 64) & 0xFFFFFFFF]
    assert words[3] < 128
    assert [int(w) for w in words[4:]] == [256, 384]
    odd = sum(1 << k for k in range(50) if len(range(k, 128, 50)) % 2)
    assert [int(w) for w in wides] == [1000 - 127, (-1000 + 127) & MASK64, odd]
    assert slots.min() >= 0
    assert slots.sum() >= 127


@on("atomics", "atomic_short")
def test_16_bit_compare_and_swap(program: Program) -> None:
    x = np.array([1, 65530, 3, 4, 5], np.uint16)
    program("atomic_short", x, 5, block=64)
    turns = [len(range(k, 64, 5)) for k in range(5)]
    same(x, (np.array([1, 65530, 3, 4, 5]) + 3 * np.array(turns)).astype(np.uint16))


@on("atomics", "atomic_lock")
def test_a_lock_between_blocks(program: Program) -> None:
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
    program("atomic_lock", lock, counter, 3, grid=5, block=32)
    assert (lock[0], counter[0]) == (0, 15)


@on("atomics", "persistent")
def test_persistent_blocks_take_tickets(program: Program, rng: Any) -> None:
    x = random(rng, 11, 64)
    out, worker = np.zeros_like(x), np.full(11, -1, np.int32)
    program("persistent", x, out, worker, 11, grid=3, block=64)
    same(out, x * np.arange(11, dtype=np.float32)[:, None])
    assert set(worker.tolist()) <= {0, 1, 2}


@on("atomics", "atomic_shared")
def test_atomics_on_addresses_of_either_space(program: Program, rng: Any) -> None:
    x = s32(rng.integers(0, 1000, 200))
    inside, outside = np.zeros(32, np.int32), np.zeros(32, np.int32)
    program("atomic_shared", x, inside, outside, 200, block=64)
    sums: Counter[int] = Counter()
    for v in x:
        sums[int(v) & 31] += int(v)
    same(inside, [sums[k] if k % 2 else 0 for k in range(32)])
    same(outside, [0 if k % 2 else sums[k] for k in range(32)])


# ---- memory and barriers ----------------------------------------------------------------------


@on("memory", "shared_regions", "vectors")
def test_shared_memory_in_two_parts_and_vectors(program: Program, rng: Any) -> None:
    x, y = rng.normal(size=48), rng.integers(-99, 99, 48).astype(np.int16)
    out = np.zeros(48)
    program("shared_regions", x, y, out, 48, block=48, smem=48 * 10)
    same(out, x[::-1] * np.roll(y, -1))

    f, u = random(rng, 40, 4), rng.integers(0, 256, (40, 4)).astype(np.uint8)
    s, d = rng.integers(-99, 99, (40, 2)).astype(np.int16), rng.normal(size=(40, 2))
    outs = [np.zeros_like(v) for v in (f, u, s, d)]
    program("vectors", f, u, s, d, *outs, block=40)
    same(outs[0], f[:, ::-1])
    same(outs[1], np.stack([u[:, 1] + 1, u[:, 0], u[:, 3], u[:, 2] * 2], axis=1).astype(np.uint8))
    same(outs[2], np.stack([s[:, 1], s[:, 0] - s[:, 1]], axis=1))
    same(outs[3], np.stack([d[:, 0] + d[:, 1], d[:, 0] * d[:, 1]], axis=1))


@on("memory", "cache_operators", "generic_addresses")
def test_cache_operators_and_generic_addresses(program: Program, rng: Any) -> None:
    x, y = rng.integers(-9, 9, 64).astype(np.float32), s32(rng.integers(0, 99, (64, 4)))
    out, packed = np.zeros(64, np.float32), np.zeros((64, 4), np.int32)
    program("cache_operators", x, y, out, packed, block=64)
    same(out, 6 * x)
    same(packed, y)

    v, result = s32(rng.integers(0, 9, 64)), np.zeros(128, np.int32)
    program("generic_addresses", v, result, block=64)
    eight = np.repeat(v.reshape(8, 8).sum(axis=1), 8)
    own = sum(2 * np.roll(v, -k) for k in range(8))
    same(result[:64], eight + 100 * (eight + 8) + 10000 * own)
    same(result[64:], np.full(64, 7))


@on("memory", "chain", "ring")
def test_blocks_that_wait_for_each_other(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-99, 99, 6 * 32))
    sums, flags = np.zeros(6, np.int32), np.zeros(6, np.int32)
    program("chain", x, sums, flags, grid=6, block=32)
    same(sums, x.reshape(6, 32).sum(axis=1).cumsum())
    same(flags, np.ones(6))

    values, arrived, out = np.zeros(10, np.int32), np.zeros(1, np.uint32), np.zeros(5, np.int32)
    program("ring", values, arrived, out, grid=5, block=32)
    assert arrived[0] == 15
    same(out, np.roll(np.arange(5), 3) * 8 + 7)


@on("memory", "named_barriers")
def test_makers_and_users_meet_at_named_barriers(program: Program, rng: Any) -> None:
    x = s32(rng.integers(-99, 99, (4, 64)))
    out = np.zeros_like(x)
    program("named_barriers", x, out, 4, block=128)
    same(out, 5 * x[:, ::-1] + np.arange(4)[:, None])


@on("barriers", "mbarrier_rounds", "mbarrier_copies", "copy_stages")
def test_mbarriers_and_asynchronous_copies(program: Program, rng: Any) -> None:
    x, out = s32(rng.integers(-99, 99, 64)), np.zeros(64, np.int32)
    program("mbarrier_rounds", x, out, 5, block=64)
    same(out, np.roll(x, -5) + 10)

    v, reversed_out = random(rng, 128), np.zeros(128, np.float32)
    for valid in (512, 200, 0):
        program("mbarrier_copies", v, reversed_out, valid, block=32)
        same(reversed_out, np.where(np.arange(128) < valid // 4, v, 0)[::-1])

    stages = s32(rng.integers(-99, 99, (7, 64)))
    program("copy_stages", stages, out, 7, block=64)
    same(out, (stages[:, ::-1] * np.arange(1, 8)[:, None]).sum(axis=0))


@on("barriers_hopper", "bulk_pipeline", "bulk_store", "elected")
def test_bulk_copies_and_transaction_counts(program: Program, rng: Any) -> None:
    x = rng.integers(-9, 9, (5, 256)).astype(np.float32)
    out = np.zeros(256, np.float32)
    program("bulk_pipeline", x, out, 5, block=96)
    same(out, (x * np.arange(1, 6)[:, None]).sum(axis=0))

    y = rng.integers(-9, 9, (3, 128)).astype(np.float32)
    copy, total = np.zeros_like(y), np.ones(128, np.float32)
    program("bulk_store", y, copy, total, grid=3, block=128)
    same(copy, 3 * y)
    same(total, 1 + 3 * y.sum(axis=0))

    chosen = np.zeros(64, np.int32)
    program("elected", chosen, block=64)
    same(chosen, np.full(64, 3))


@on("clusters", "cluster_histogram", "cluster_ring", "cluster_signals")
def test_clusters_share_memory(program: Program, rng: Any) -> None:
    x, bins = s32(rng.integers(0, 40, 500)), np.zeros(40, np.int32)
    program("cluster_histogram", x, bins, 500, 20, grid=2, block=64, smem=80)
    same(bins, np.bincount(x, minlength=40))

    v = rng.integers(-9, 9, (8, 64)).astype(np.float32)
    out = np.zeros_like(v)
    program("cluster_ring", v, out, grid=8, block=64)
    rank = np.arange(8)
    ahead = rank // 4 * 4 + (rank + 1) % 4
    same(out, 2 * (v[ahead][:, ::-1] + ahead[:, None] % 4))

    w = s32(rng.integers(-99, 99, (4, 32)))
    signals = np.zeros_like(w)
    program("cluster_signals", w, signals, grid=4, block=32)
    same(signals, 7 * w[rank[:4] ^ 1][:, ::-1] + rank[:4, None] % 2)


# ---- mathematics ------------------------------------------------------------------------------


def ulps(got: Array, want: Any) -> float:
    """The greatest distance in units of the last place of what is wanted, in got's type."""
    want = np.asarray(want, np.float64)
    unit = np.spacing(abs(want).astype(got.dtype)).astype(np.float64)
    return float((abs(wide(got) - want) / unit).max())


@on("math", "single_math", "single_fast")
def test_functions_of_single_precision(program: Program, rng: Any) -> None:
    x = (rng.normal(size=64) * 3).astype(np.float32)
    x[:2] = 0.001, -20.0
    out = np.zeros((14, 64), np.float32)
    program("single_math", x, out, block=64)
    v = wide(x)
    # The greatest error in units in the last place that the CUDA C++ Programming Guide gives, +1.
    wants: list[tuple[Any, float]] = [
        *((np.sin(v), 3), (np.cos(v), 3), (np.exp(v), 3), (np.log(abs(v)), 2)),
        *((abs(v) ** float(np.float32(1.7)), 9), (np.tanh(v), 3), (np.sqrt(abs(v)), 1), (1 / v, 1)),
        *((np.arctan2(v, 2.0), 4), ([math.erf(a) for a in v], 3), (np.cbrt(v), 2)),
        *((np.fmod(v, 0.75), 0.01), (np.log1p(abs(v)), 2), (np.exp2(v), 3)),
    ]
    errors = [ulps(got, want) for got, (want, _) in zip(out, wants, strict=True)]
    assert all(e <= most for e, (_, most) in zip(errors, wants, strict=True)), errors

    small = np.clip(x, -3, 3)
    fast = np.zeros((7, 64), np.float32)
    program("single_fast", small, fast, block=64)
    v = wide(small)
    # Absolute errors of 2^-21 for sine, cosine and logarithm; two units of each multiplication.
    wants = [
        *((np.sin(v), 2e-6), (np.cos(v), 2e-6), (np.exp(v), 2e-5), (np.log2(abs(v)), 2e-6)),
        *((abs(v) ** -0.5, 1e-5), (v / 3, 1e-6), (abs(v) ** float(np.float32(1.7)), 2e-5)),
    ]
    for got, (want, error) in zip(fast, wants, strict=True):
        close(got, want, rtol=0, atol=error)


@on("math", "double_math")
def test_functions_of_double_precision(program: Program, rng: Any) -> None:
    x = rng.normal(size=64) * 5
    x[:3] = 1e-5, -30.0, 1e6
    x[3] = 3.0e5  # past the first reduction of the argument
    out = np.zeros((9, 64))
    program("double_math", x, out, block=64)
    with np.errstate(over="ignore"):
        wants = [
            *((np.sin(x), 3), (np.exp(x), 2), (abs(x) ** 1.25, 3), (np.log(abs(x)), 2)),
            *((np.sqrt(abs(x)), 0), (x / 3.7, 0), (np.tanh(x), 3), (abs(x) ** -0.5, 2)),
        ]
    for got, (want, most) in zip(out, wants, strict=False):
        # numpy's own error is up to one unit, which the bound of CUDA's guide does not have.
        np.testing.assert_array_max_ulp(got, want, maxulp=most) if most else same(got, want)
    exact = [float(Fraction(a) ** 2 + Fraction(1, 8)) + math.floor(a) for a in x]
    same(out[8], exact)


@on("math", "roundings")
def test_rounding_in_every_direction(program: Program, rng: Any) -> None:
    a = (rng.normal(size=64) * 100).astype(np.float32)
    b = (rng.normal(size=64) * 3).astype(np.float32)
    a[:4], b[:4] = (2.5, -3.5, 0.5, 0.25), (0.3, -0.5, 1.5, 2.5)
    out, ints = np.zeros((8, 64), np.float32), np.zeros((7, 64), np.int32)
    program("roundings", a, b, out, ints, block=64)
    for i in range(64):
        p, q = Fraction(float(a[i])), Fraction(float(b[i]))
        assert out[0, i] == directed(p + q, "up")
        assert out[1, i] == directed(p * q, "down")
        assert out[2, i] == directed(p * q + p, "zero")
        assert out[3, i] == directed(p / q, "up")
        root = float(out[4, i])
        after = float(np.nextafter(out[4, i], np.float32(np.inf)))
        assert Fraction(root) ** 2 <= abs(p) < Fraction(after) ** 2
        assert out[5, i] == directed(1 / q, "zero")
    v, w = wide(a), wide(b)
    same(out[6], (np.rint(a) + np.float32(1000) * np.floor(b)).astype(np.float32))
    same(out[7], np.clip(a, 0, 1) + np.trunc(b))
    same(ints[0], np.rint(v))
    same(ints[1], np.ceil(v))
    same(ints[2], np.maximum(np.trunc(v), 0))
    same(ints[3], np.floor(v))
    numbers = ints[0].astype(np.int64) * 123457 + 1
    want = [directed(Fraction(int(n)), "zero") for n in numbers]
    same(ints[4].view(np.float32), np.array(want, np.float32))
    same(ints[5].view(np.float32), np.copysign(a, b))
    same(ints[6], np.trunc(w + np.copysign(0.5, w)))


def directed(exact: Fraction, towards: str) -> float:
    """An exact number as f32, rounded in a direction."""
    near = np.float32(float(exact))  # double rounding moves it by at most one neighbour
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    values = [Fraction(float(c)) for c in candidates]
    if towards == "up" or (towards == "zero" and exact < 0):
        return float(min(v for v in values if v >= exact))
    return float(max(v for v in values if v <= exact))


# ---- loops over grids -------------------------------------------------------------------------


@on("stencils", "life", "heat")
def test_stencils(program: Program, rng: Any) -> None:
    x = (rng.random((20, 30)) < 0.4).astype(np.uint8)
    out = np.zeros_like(x)
    program("life", x, out, 30, 20, grid=(2, 3), block=(16, 8))
    alive = sum(np.roll(x, (r, c), (0, 1)).astype(int) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c)
    same(out, (alive == 3) | ((alive == 2) & (x == 1)))

    v = rng.integers(-8, 8, (5, 6, 7)).astype(np.float32)
    warm = np.zeros_like(v)
    program("heat", v, warm, 7, 6, 5, 0.125, grid=(2, 2, 2), block=(4, 4, 4))
    total = np.zeros_like(v)
    for axis in range(3):
        edge = np.diff(v, axis=axis)
        pad = [(0, 0)] * 3
        pad[axis] = (0, 1)
        total += np.pad(edge, pad)
        pad[axis] = (1, 0)
        total -= np.pad(edge, pad)
    same(warm, v + total / 8)


@on("stencils", "sparse", "saxpy")
def test_a_sparse_product_and_a_grid_stride_loop(program: Program, rng: Any) -> None:
    lengths = rng.integers(0, 12, 50)
    start = s32(np.concatenate([[0], lengths.cumsum()]))
    column = s32(rng.integers(0, 40, start[-1]))
    value, x = rng.integers(-9, 9, start[-1]).astype(np.float64), rng.integers(-9, 9, 40) / 4
    y = np.zeros(50)
    program("sparse", start, column, value, x, y, 50, grid=2, block=32)
    dense = np.zeros((50, 40))
    np.add.at(dense, (np.repeat(np.arange(50), lengths), column), value)
    same(y, dense @ x)

    u, v = (rng.integers(-9, 9, 900).astype(np.float32) for _ in range(2))
    want = 2.5 * u + v
    program("saxpy", 2.5, u, v, 900, grid=2, block=64)
    same(v, want)


@on("stencils", "mandelbrot")
def test_the_set_of_mandelbrot(program: Program) -> None:
    out = np.zeros((24, 24), np.int32)
    program("mandelbrot", out, 24, 24, 40, grid=(2, 3), block=(16, 8))
    r, c = np.indices((24, 24))
    x0, y0 = -2.0 + 3.0 * c / 24, -1.5 + 3.0 * r / 24
    x, y, n = np.zeros_like(x0), np.zeros_like(y0), np.zeros_like(out)
    for _ in range(40):
        inside = x * x + y * y < 4
        n += inside
        x, y = (np.where(inside, x * x - y * y + x0, x), np.where(inside, 2 * x * y + y0, y))
    same(out, n)


@on("attention", "attention")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_a_warp_a_row(program: Program, rng: Any, causal: bool) -> None:
    q, k, v = random(rng, 16, 64), random(rng, 24, 64), random(rng, 24, 64)
    out = np.zeros_like(q)
    program("attention", q, k, v, out, 24, 0.125, int(causal), grid=4, block=128)
    scores = wide(q) @ wide(k).T / 8
    if causal:
        scores[np.triu_indices(16, 1, 24)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    want = weights / weights.sum(axis=1, keepdims=True) @ wide(v)
    close(out, want, rtol=0, atol=64 * F32 * 4)  # sums of 64 f32 products, values below 4
