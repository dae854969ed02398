"""The peer kernels of benchmarks/gallery_cute.py compute what ours compute."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from benchmarks.measure import gallery
from ptxgen.frontends import cute as front
from ptxgen.frontends.program import ProgramKernel
from ptxgen.interpreter import DeviceArena, run
from ptxgen.parse import parse
from ptxgen.target import target
from ptxgen.tensormap import TensorMap

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


@pytest.fixture
def peer(cute: Any) -> Any:
    """The module of the kernels."""
    assert cute
    return gallery.peer_module("CuTe DSL")


def kernel(peer: Any, name: str) -> ProgramKernel:
    variant = peer.KERNELS[name]
    return front.compile(variant.functions[0], *variant.arguments()).only()


def tensor(array: Any, *, transposed: bool = False) -> tuple[object, ...]:
    """A dense array as CuTe DSL passes it: pointer, sizes, and the strides that are not 1 or static."""
    sizes = array.shape[:2]
    strides = [np.int64(array.strides[0] // array.itemsize)] if array.ndim > 1 else []
    return array, *(sizes[::-1] if transposed else sizes), *strides


def test_softmax(peer: Any) -> None:
    x = RNG.standard_normal((3, 1000), np.float32)
    y = np.empty_like(x)
    kernel(peer, "softmax").run(3, 256, args=[tensor(x), tensor(y)], shared=32)
    wanted = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, wanted / wanted.sum(1, keepdims=True), rtol=1e-5)


def test_layer_norm(peer: Any) -> None:
    x, weight = RNG.standard_normal((3, 500), np.float32), RNG.standard_normal(500, np.float32)
    y = np.empty_like(x)
    args = [tensor(x), tensor(weight), tensor(y), 1e-5]
    kernel(peer, "layer_norm").run(3, 128, args=args, shared=16)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(y, wanted, atol=1e-5)


def test_gemm(peer: Any) -> None:
    compiled = kernel(peer, "gemm")
    for m, n, depth in ((150, 136, 168), (70, 72, 8)):  # more blocks than stages, and a part of one
        a = RNG.standard_normal((m, depth)).astype(np.float16)
        b = RNG.standard_normal((depth, n)).astype(np.float16)
        c = np.empty((m, n), np.float32)
        args = [tensor(a), tensor(b, transposed=True), tensor(c)]
        compiled.run(
            ((n + 127) // 128, (m + 127) // 128), 128, args=args, shared=3 * 2 * 128 * 32 * a.itemsize
        )
        np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_blackwell_gemm(peer: Any) -> None:
    variant = peer.KERNELS["blackwell_gemm"]
    program = front.compile(variant.functions[0], *variant.arguments(), target="sm_100a")
    m, n, depth = 120, 104, 320
    a = RNG.standard_normal((m, depth)).astype(np.float16)
    b = RNG.standard_normal((depth, n)).astype(np.float16)
    arena = DeviceArena()
    c = np.empty((m, n), np.float16)
    args = [
        bytes(32),  # of the product, which the kernel does not read
        TensorMap(a, box=(64, 128), swizzle="128B"),
        struct.pack("<2i", m, depth),
        TensorMap(b, box=(64, 64), swizzle="128B"),
        struct.pack("<2i", n, depth),
        struct.pack("<Q2iq", arena.place(c), m, n, n),
    ]
    most = target("sm_100a").shared_per_block_optin
    run(parse(program.ptx), grid=1, block=128, args=args, dynamic_smem=most, arena=arena, sanitize="all")
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_attention(peer: Any, causal: bool) -> None:
    variant = peer.KERNELS["attention"]
    compiled = front.compile(variant.functions[0], *variant.arguments()[:-1], causal).only()
    for queries, keys in ((140, 90), (70, 200)):
        q = RNG.standard_normal((2, queries, 64)).astype(np.float16)
        key, value = RNG.standard_normal((2, 2, keys, 64)).astype(np.float16)
        out = np.empty_like(q)
        args = [*(tensor(array) for array in (q, key, value, out)), 1 / 8]
        compiled.run(((queries + 127) // 128, 2), 128, args=args, shared=(128 + 2 * 2 * 64) * 64 * q.itemsize)
        scores = q.astype(np.float64) @ key.astype(np.float64).swapaxes(1, 2) / 8
        if causal:
            scores[:, ~np.tri(queries, keys, dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
        np.testing.assert_allclose(out, weights @ value.astype(np.float64), atol=2e-3)
