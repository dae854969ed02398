"""A product in tensor memory by CuTe DSL, by one CTA and by pairs, run here: it is that of float64."""

from __future__ import annotations

import importlib
import struct
from typing import Any, Final

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

SHAPE: Final = 512, 256, 5 * 64 + 16  # m, n, k: more steps along k than stages, the last of them ragged
SUMS: Final = 1e-6  # of the sum of magnitudes: products are added with at least 25 bits
TARGET: Final = "sm_100a"


@pytest.fixture
def k(cute: Any) -> Any:
    """The kernels."""
    assert cute
    return importlib.import_module("frontends.cute_blackwell_kernels")


def aligned(shape: tuple[int, int], dtype: Any) -> Any:
    """A new array whose rows TMA can load."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 128, np.uint8)
    first = -memory.ctypes.data % 128
    return memory[first : first + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("schedule", ["lockstep", "pct:1", "pct:2"])
@pytest.mark.parametrize("pair", [False, True], ids=["one CTA", "pairs"])
def test_a_product(k: Any, pair: bool, schedule: str) -> None:
    from_dlpack = importlib.import_module("cutlass.cute.runtime").from_dlpack
    m, n, depth = SHAPE
    a, b, c = aligned((m, depth), np.float16), aligned((n, depth), np.float16), aligned((m, n), np.float32)
    rng = np.random.default_rng(6)
    a[...], b[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
    tensors = [from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in (a, b, c)]
    program = front.compile(k.product, *tensors, pair, target=TARGET)
    module = parse(program.ptx)
    assert verify(module) == ()
    assert parse(render(module)) == module
    arena = DeviceArena()
    ctas = 1 + pair
    result = run(
        module,
        grid=(m // k.ROWS, n // k.KEYS, 1),
        block=k.THREADS,
        cluster=ctas,
        args=[
            bytes(32 * ctas),  # of the product, which the kernel does not read
            TensorMap(a, box=(k.DEPTH, k.ROWS), swizzle="128B"),
            struct.pack("<2i", m, depth),
            TensorMap(b, box=(k.DEPTH, k.KEYS // ctas), swizzle="128B"),
            struct.pack("<2i", n, depth),
            struct.pack("<Q2iq", arena.place(c), m, n, n),
        ],
        dynamic_smem=target(TARGET).shared_per_block_optin,
        arena=arena,
        sanitize="all",
        schedule=schedule,
    )
    assert result.reports == ()
    left, right = a.astype(np.float64), b.astype(np.float64)
    assert (np.abs(c - left @ right.T) <= SUMS * (np.abs(left) @ np.abs(right).T)).all()
