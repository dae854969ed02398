"""A product of e2m1 with scale factors by CuTe DSL, run here: it is that of float64."""

from __future__ import annotations

import importlib
import struct
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from ptxgen.check.verify import verify
from ptxgen.frontends import cute as front
from ptxgen.interpreter import DeviceArena, run
from ptxgen.parse import parse
from ptxgen.target import target
from ptxgen.tensormap import TensorMap
from ptxgen.text import render

pytestmark = pytest.mark.nightly

SHAPE: Final = 256, 384, 768  # m, n, k: more steps along k than stages
SUMS: Final = 1e-6  # of the sum of magnitudes: products are added with 35 bits
TARGET: Final = "sm_100a"
ATOM: Final = 128, 4  # rows and scale factors that lie together, as CUTLASS and cuBLAS lay them


@pytest.fixture
def k(cute: Any) -> Any:
    """The kernels."""
    assert cute
    return importlib.import_module("frontends.cute_scaled_kernels")


def operand(rng: np.random.Generator, rows: int, depth: int, block: int) -> tuple[Any, Any, Any]:
    """Two elements a byte, scale factors as a kernel loads them, 16 bits each, and the values, float64."""
    bits = rng.integers(0, 16, (rows, depth)).astype(np.uint8)
    packed = bits[:, ::2] | bits[:, 1::2] << 4
    factors = rng.uniform(0.25, 4, (rows, depth // block)).astype(ml_dtypes.float8_e4m3fn)
    of_rows, of_depth = ATOM
    atoms = factors.view(np.uint8).reshape(rows // of_rows, 4, of_rows // 4, -1, of_depth)
    laid = np.ascontiguousarray(atoms.transpose(0, 3, 2, 1, 4)).reshape(*atoms.shape[::3], -1)
    values = bits.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return packed, laid.view(np.uint16), values * np.repeat(factors.astype(np.float64), block, axis=1)


@pytest.mark.parametrize("schedule", ["lockstep", "pct:1", "pct:2"])
def test_a_scaled_product(k: Any, schedule: str) -> None:
    cutlass = importlib.import_module("cutlass")
    runtime = importlib.import_module("cutlass.cute.runtime")
    m, n, depth = SHAPE
    rng = np.random.default_rng(6)
    (a, sa, left), (b, sb, right) = (operand(rng, rows, depth, k.BLOCK) for rows in (m, n))
    c = np.zeros((m, n), np.float32)
    pointers = [
        runtime.make_ptr(type, 1 << 20, cutlass.cute.AddressSpace.gmem, assumed_align=32)
        for type in [cutlass.Float4E2M1FN] * 2 + [cutlass.Float8E4M3FN] * 2
    ]
    whole = runtime.from_dlpack(c, assumed_align=16)
    program = front.compile(k.product, *pointers, whole, depth, target=TARGET)
    module = parse(program.ptx)
    assert verify(module) == ()
    assert parse(render(module)) == module
    arena = DeviceArena()
    of_m, of_n, of_k = k.TILE
    result = run(
        module,
        grid=(m // of_m, n // of_n, 1),
        block=k.THREADS,
        args=[
            bytes(12),  # of the product: A and B are not negated
            TensorMap(a, box=(of_k, of_m), dtype="b4x16", swizzle="128B"),
            TensorMap(b, box=(of_k, of_n), dtype="b4x16", swizzle="128B"),
            *(TensorMap(x, box=(x.shape[-1], of_k // k.BLOCK // ATOM[1], 1)) for x in (sa, sb)),
            *[struct.pack("<i", depth)] * 4,
            struct.pack("<Q", arena.place(c)),
        ],
        dynamic_smem=target(TARGET).shared_per_block_optin,
        arena=arena,
        sanitize="all",
        schedule=schedule,
    )
    assert result.reports == ()
    assert (np.abs(c - left @ right.T) <= SUMS * (np.abs(left) @ np.abs(right).T)).all()
