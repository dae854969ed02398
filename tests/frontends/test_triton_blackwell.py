"""Products that Triton compiles for tensor memory, run here: they give what float64 gives."""

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


def judge(launch: Any, c: Any, left: Any, right: Any, *, error: float) -> None:
    """The text is read and printed, and its results are near the product of float64."""
    module = launch.kernel.program.module
    assert verify(module) == ()
    text = render(module)
    assert parse(text) == module
    assert re.search(r"\btcgen05\.mma\b", text)
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
@pytest.mark.parametrize("kind", ["mxf8", "mxf4", "nvf4"])
def test_a_product_of_scaled_blocks(k: Any, kind: str, how: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    m, n, step = 128, 128, 128 if kind == "mxf8" else 256
    depth, packed, block = 2 * step, 1 if kind == "mxf8" else 2, 16 if kind == "nvf4" else 32
    operands, scales, exact = [], [], []
    for rows in (m, n):
        if kind == "mxf8":
            x = rng.standard_normal((rows, depth), np.float32).astype(E4M3)
            values = x.astype(np.float64)
        else:
            codes = rng.integers(0, 16, (rows, depth), np.uint8)
            values, x = E2M1[codes], codes[:, ::2] | codes[:, 1::2] << 4
        if kind == "nvf4":
            s = rng.uniform(0.5, 4, (rows, depth // block)).astype(E4M3)
            factors = s.astype(np.float64)
        else:
            s = rng.integers(124, 131, (rows, depth // block), np.uint8)
            factors = 2.0 ** (s.astype(np.float64) - 127)
        operands.append(np.ascontiguousarray(x))
        scales.append(s)
        exact.append(values * np.repeat(factors, block, axis=1))
    c = np.zeros((m, n), np.float32)
    (a, b), (sa, sb) = operands, scales
    constants = {"BM": m, "BN": n, "BK": step, "PACKED": packed, "BLOCK": block}
    constants["FORMAT"] = "e4m3" if kind == "mxf8" else "e2m1"
    launch = front.launch(
        k.scaled_product, 1, [a, sa, b, sb, c, n, depth], constants, target="sm_100a", **how
    )
    judge(launch, c, *exact, error=SUMS)
