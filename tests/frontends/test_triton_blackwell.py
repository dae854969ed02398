"""Products that Triton compiles for the tensor cores of Blackwell, run here: they give what float64 gives."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from ptxgen.check.verify import verify
from ptxgen.frontends import triton as front
from ptxgen.parse import parse
from ptxgen.text import render

pytestmark = pytest.mark.nightly

E2M1: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3: Final = ml_dtypes.float8_e4m3fn
TYPES: Final = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": E4M3,
    "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
}
SUMS: Final = 1e-6  # of the sum of magnitudes: products are added with at least 25 bits
TF32: Final = 2.0**-10  # relative, of an operand that is cut to 10 bits


@pytest.fixture
def k(triton: Any) -> Any:
    """The kernels."""
    assert triton
    return importlib.import_module("frontends.triton_kernels")


def judge(
    launch: Any, c: Any, left: Any, right: Any, *, error: float, opcode: str = r"\btcgen05\.mma\b"
) -> None:
    """The text is read and printed, and its results are near the product of float64."""
    module = launch.kernel.program.module
    assert verify(module) == ()
    text = render(module)
    assert parse(text) == module
    assert re.search(opcode, text)
    outcome = launch.run()
    assert outcome.clean
    magnitude = np.abs(left) @ np.abs(right).T
    assert (np.abs(c - left @ right.T) <= error * magnitude).all()


SCHEDULES = [{"schedule": ["lockstep"]}, {"schedule": ["pct:1", "pct:2"]}]
each_schedule = pytest.mark.parametrize("how", SCHEDULES, ids=["lockstep", "random"])


@each_schedule
@pytest.mark.parametrize(
    ("types", "tile", "warps"),
    [
        (("f16", "f16"), (64, 64, 64), 4),
        (("bf16", "bf16"), (64, 128, 64), 8),
        (("bf16", "bf16"), (128, 32, 64), 4),
        (("bf16", "bf16"), (128, 256, 64), 8),
        (("bf16", "bf16"), (256, 128, 64), 8),
        (("e4m3", "e4m3"), (128, 128, 64), 4),
        (("e4m3", "e5m2"), (64, 64, 64), 4),
        (("f32", "f32"), (128, 64, 32), 4),
        (("f32", "f32"), (64, 64, 32), 4),
    ],
    ids=str,
)
def test_a_product(k: Any, types: Any, tile: tuple[int, int, int], warps: int, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    (m, n, step), depth = tile, 3 * tile[2]
    a = rng.standard_normal((m, depth), np.float32).astype(TYPES[types[0]])
    b = rng.standard_normal((depth, n), np.float32).astype(TYPES[types[1]])
    c = np.zeros((m, n), np.float32)
    tiles = {"BM": m, "BN": n, "BK": step}
    launch = front.launch(
        k.matmul, 1, [a, b, c, m, n, depth], tiles, target="sm_100a", num_warps=warps, **how
    )
    error = 2 * TF32 if types[0] == "f32" else SUMS
    judge(launch, c, a.astype(np.float64), b.astype(np.float64).T, error=error)


@each_schedule
@pytest.mark.parametrize("steps", [1, 3, 4, 7])
def test_a_product_of_specialised_warps(k: Any, steps: int, how: dict[str, Any]) -> None:
    """A warp copies tiles, one starts products, and four store the sums, after which they invalidate the
    mbarriers of stages whose last arrivals they have not waited for.
    """
    rng = np.random.default_rng(5)
    m, n, step, grid = 128, 128, 64, (2, 1)
    a, b = (
        rng.standard_normal((rows, step * steps), np.float32).astype(TYPES["bf16"])
        for rows in (m * grid[0], n * grid[1])
    )
    c = np.zeros((m * grid[0], n * grid[1]), np.float32)
    tiles = {"BM": m, "BN": n, "BK": step}
    launch = front.launch(
        k.matmul_by_roles, grid, [a, b, c, *c.shape, step * steps], tiles, target="sm_100a", **how
    )
    judge(launch, c, a.astype(np.float64), b.astype(np.float64), error=SUMS)


def drawn_blocks(rng: Any, type: str, scale: str, shape: tuple[int, int], block: int) -> tuple[Any, Any, Any]:
    """A matrix as Triton takes it, its scale factors, and what both are in float64."""
    if type == "e2m1":
        codes = rng.integers(0, 16, shape, np.uint8)
        values, x = E2M1[codes], codes[:, ::2] | codes[:, 1::2] << 4
    else:
        x = rng.standard_normal(shape, np.float32).astype(TYPES[type])
        values = x.astype(np.float64)
    blocks = (shape[0], shape[1] // block)
    if scale == "ue4m3":
        factors = rng.uniform(0.5, 4, blocks).astype(E4M3)
        exact = factors.astype(np.float64)
    else:
        factors = rng.integers(124, 131, blocks, np.uint8)
        exact = 2.0 ** (factors.astype(np.float64) - 127)
    return np.ascontiguousarray(x), factors, values * np.repeat(exact, block, axis=1)


def check_blocks(
    k: Any,
    types: tuple[str, str],
    scale: str,
    tile: tuple[int, int, int],
    target: str,
    opcode: str,
    grid: tuple[int, int] = (1, 1),
    **how: Any,
) -> None:
    """Two tiles along K of a product with scale factors."""
    rng = np.random.default_rng(4)
    m, n, depth = tile[0] * grid[0], tile[1] * grid[1], 2 * tile[2]
    block = 16 if scale == "ue4m3" else 32
    a, of_a, left = drawn_blocks(rng, types[0], scale, (m, depth), block)
    b, of_b, right = drawn_blocks(rng, types[1], scale, (n, depth), block)
    c = np.zeros((m, n), np.float32)
    constants = {"BM": tile[0], "BN": tile[1], "BK": tile[2], "LEFT": types[0], "RIGHT": types[1]}
    constants |= {"PACKED": 2 if "e2m1" in types else 1, "BLOCK": block}
    launch = front.launch(
        k.scaled_product, grid, [a, of_a, b, of_b, c, n, depth], constants, target=target, **how
    )
    judge(launch, c, left, right, error=SUMS, opcode=opcode)


@each_schedule
@pytest.mark.parametrize(
    ("types", "scale"),
    [(("e4m3", "e4m3"), "ue8m0"), (("e2m1", "e2m1"), "ue8m0"), (("e2m1", "e2m1"), "ue4m3")],
    ids=["mxf8", "mxf4", "nvf4"],
)
def test_a_product_of_scaled_blocks(k: Any, types: Any, scale: str, how: dict[str, Any]) -> None:
    step = 256 if "e2m1" in types else 128
    check_blocks(k, types, scale, (128, 128, step), "sm_100a", r"\btcgen05\.mma\b", **how)


@each_schedule
@pytest.mark.parametrize(("tile", "warps"), [((64, 32, 128), 4), ((128, 64, 256), 8), ((32, 128, 128), 2)])
@pytest.mark.parametrize(
    ("types", "scale", "form"),
    [
        (("e4m3", "e4m3"), "ue8m0", "mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"),
        (("e5m2", "e5m2"), "ue8m0", "mxf8f6f4.block_scale.scale_vec::1X.f32.e5m2.e5m2.f32.ue8m0"),
        (("e4m3", "e5m2"), "ue8m0", "mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e5m2.f32.ue8m0"),
        (("e2m1", "e2m1"), "ue8m0", "mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"),
        (("e2m1", "e2m1"), "ue4m3", "mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"),
    ],
    ids=lambda form: form if isinstance(form, str) else "-".join(form),
)
def test_a_product_of_scaled_blocks_on_registers(
    k: Any, types: Any, scale: str, form: str, tile: tuple[int, int, int], warps: int, how: dict[str, Any]
) -> None:
    opcode = rf"\bmma\.sync\.aligned\.\w+\.row\.col\.kind::{re.escape(form)} "
    check_blocks(k, types, scale, tile, "sm_120a", opcode, grid=(2, 1), num_warps=warps, **how)
