"""The kernels in CUDA C++ on the pages of docs/kernels compute what those in Python next to them do."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.frontends import cuda

PAGES = Path(__file__).parents[1] / "docs" / "kernels"
rng = np.random.default_rng(1)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


@dataclass
class Launch:
    """A launch of the CUDA kernel: its arguments, which of them is the result, and its largest error."""

    grid: Any
    block: int
    arguments: list[Any]
    result: int
    wanted: Any
    error: float = 1e-5
    symbols: dict[str, Any] = field(default_factory=dict)


def softmax() -> Launch:
    x = normal(2, 700)
    exact = np.exp(x.astype(np.float64))
    return Launch(2, 256, [x, np.empty_like(x), 700], 1, exact / exact.sum(1, keepdims=True))


def rms_norm() -> Launch:
    x, r, weight = (
        normal(2, 300, dtype=np.float16),
        normal(2, 300, dtype=np.float16),
        normal(300, dtype=np.float16),
    )
    h = x.astype(np.float64) + r
    wanted = h / np.sqrt((h * h).mean(1, keepdims=True) + 1e-5) * weight
    return Launch(2, 128, [x, r, weight, np.empty_like(x), 300, 1e-5], 3, wanted, 4e-3)


def rope() -> Launch:
    x, cos, sin = normal(2, 5, 64), normal(5, 32), normal(5, 32)
    a, b = x[..., :32].copy(), x[..., 32:].copy()
    return Launch((5, 2), 32, [x, cos, sin, 5], 0, np.concatenate([a * cos - b * sin, a * sin + b * cos], 2))


def cross_entropy() -> Launch:
    x, labels = normal(3, 700), np.array([5, 699, -1], np.int32)
    lse = np.log(np.exp(x.astype(np.float64)).sum(1))
    wanted = np.where(labels < 0, 0, lse - x[range(3), labels])
    return Launch(3, 256, [x, labels, np.empty(3, np.float32), np.empty(3, np.float32), 700], 2, wanted)


def gemm() -> Launch:
    a, b = normal(64, 48, dtype=np.float16), normal(48, 64, dtype=np.float16)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    return Launch((1, 1), 128, [a, b, np.empty((64, 64), np.float32), 64, 64, 48], 2, wanted, 1e-4)


def quantised_gemm() -> Launch:
    a, b = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((20, 64), (30, 64)))
    of_a, of_b = rng.uniform(0.5, 1, 20).astype(np.float32), rng.uniform(0.5, 1, 30).astype(np.float32)
    wanted = a.astype(np.int64) @ b.astype(np.int64).T * of_a[:, None] * of_b
    arguments = [a, b, of_a, of_b, np.empty((20, 30), np.float32), 20, 30, 64]
    return Launch((2, 2), 256, arguments, 4, wanted, 1e-6 * 64 * 127 * 127)


def top_k() -> Launch:
    x = rng.integers(0, 40, (2, 300)).astype(np.float32)
    arguments = [x, np.empty((2, 4), np.float32), np.empty((2, 4), np.uint32), 300, 4]
    return Launch(2, 128, arguments, 2, np.argsort(-x, axis=1, kind="stable")[:, :4], 0)


def scan() -> Launch:
    x = normal(2, 600)
    return Launch(2, 256, [x, np.empty_like(x), 600], 1, np.cumsum(x, axis=1, dtype=np.float64), 1e-4)


def convolution() -> Launch:
    x, weight = normal(20, 35), normal(5, 5)
    padded = np.pad(x.astype(np.float64), 2)
    wanted = sum(weight[i, j] * padded[i : i + 20, j : j + 35] for i in range(5) for j in range(5))
    return Launch(
        (3, 2), 256, [x, np.empty_like(x), 20, 35], 1, wanted, symbols={"WEIGHT": weight.reshape(-1)}
    )


def attention() -> Launch:
    q, k, v = normal(2, 40, 64), normal(2, 50, 64), normal(2, 50, 64)
    weights = np.exp(q.astype(np.float64) @ k.swapaxes(1, 2) / 8)
    wanted = weights / weights.sum(2, keepdims=True) @ v
    return Launch((1, 2), 64, [q, k, v, np.empty_like(q), 40, 50, 1 / 8], 3, wanted)


LAUNCHES: dict[str, Callable[[], Launch]] = {
    "attention": attention,
    "convolution": convolution,
    "cross-entropy": cross_entropy,
    "gemm": gemm,
    "quantised-gemm": quantised_gemm,
    "rms-norm": rms_norm,
    "rope": rope,
    "scan": scan,
    "softmax": softmax,
    "top-k": top_k,
}


def test_each_page_has_a_launch_and_begins_with_its_question() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(LAUNCHES)
    for page in PAGES.glob("*.md"):
        assert re.match(r"# How do I [^\n]+\?\n", page.read_text(encoding="utf-8"))


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("name", LAUNCHES)
def test_the_kernel_in_cuda_is_right(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```cuda\n(.*?)```", text, re.DOTALL)
    (entry,) = re.findall(r"__global__ void (\w+)", source)
    of = LAUNCHES[name]()
    program = cuda.compile(source, defines={"INFINITY": "__int_as_float(0x7f800000)"})  # of nvcc's math.h
    program[entry].run(of.grid, of.block, of.arguments, symbols=of.symbols)
    result = of.arguments[of.result].astype(np.float64)
    assert np.allclose(result, of.wanted, rtol=of.error, atol=of.error)
    python = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    assert f"def {entry}(k" in python
