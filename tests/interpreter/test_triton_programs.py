"""Kernels compiled by Triton (tests/ptx/make_triton.py, kept as PTX in tests/ptx/triton) run here,
and on a GPU where there is one, and give what numpy gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runs import run_on_gpu
from interpreter.both_paths import run_both_ways

from ptxgen.tensormap import SWIZZLES, TensorMap

Array = np.ndarray[Any, np.dtype[Any]]

FIXTURES = Path(__file__).parents[1] / "ptx" / "triton"
F32 = 2.0**-24  # half a unit in the last place of 1
F16 = 2.0**-11
SWIZZLE = {number: name for name, number in SWIZZLES.items()}


@dataclass(frozen=True)
class Program:
    """One fixture; called with the arguments of the Triton kernel, it runs it."""

    path: Path
    on_gpu: bool = False

    def __call__(self, *args: Any, grid: Any) -> None:
        facts = self.facts
        arguments: list[Any] = []
        maps = iter(facts["tensor_maps"])
        for arg, declared in zip(args, facts["signature"].values(), strict=True):
            arguments += _described(arg, next(maps)) if "tensordesc" in declared else [arg]
        # Two pointers to scratch memory that these kernels do not use.
        assert len(facts["parameters"]) == len(arguments) + 2
        run: Callable[..., Any] = run_on_gpu if self.on_gpu else run_both_ways
        run(
            self.path.read_text(),
            facts["entry"],
            grid=grid,
            block=facts["block"],
            args=[*arguments, 0, 0],
            dynamic_smem=facts["shared"],
        )

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads(self.path.with_suffix(".json").read_text())


def _described(array: Array, meta: dict[str, Any]) -> list[Any]:
    """A tensor descriptor as Triton passes it: the map, then shape and strides in elements."""
    box = tuple(reversed(meta["block_size"]))
    strides = [n // array.itemsize for n in array.strides]
    return [TensorMap(array, box=box, swizzle=SWIZZLE[meta["swizzle"]]), *array.shape, *strides]


Test = Callable[..., None]
CLAIMED: set[str] = set()


def on(*names: str) -> Callable[[Test], Test]:
    """Runs a test on every target of the named variants, on the CPU and on the GPU."""
    CLAIMED.update(names)
    paths = [path for name in names for path in sorted(FIXTURES.glob(f"{name}.*.ptx"))]
    assert paths, f"no fixture of {names}; run tests/ptx/make_triton.py"
    programs = [pytest.param(Program(path), id=path.stem) for path in paths]
    programs += [
        pytest.param(Program(path, True), id=f"{path.stem}-gpu", marks=pytest.mark.gpu) for path in paths
    ]
    return pytest.mark.parametrize("program", programs)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def wide(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


def random(rng: Any, *shape: int, dtype: Any = np.float32) -> Array:
    return rng.normal(size=shape).astype(dtype)


def close(got: Array, want: Array, *, atol: float, rtol: float = 0.0) -> None:
    """Within the tolerance, whose reason the caller states; a NaN in `got` fails."""
    np.testing.assert_allclose(wide(got), want, rtol=rtol, atol=atol)


def test_every_variant_is_run_by_a_test() -> None:
    assert {path.name.split(".")[0] for path in FIXTURES.glob("*.ptx")} == CLAIMED


@on("vector_add")
def test_a_sum_of_vectors_with_a_ragged_end(program: Program, rng: Any) -> None:
    x, y = random(rng, 1000), random(rng, 1000)
    out = np.full(1024, 7, np.float32)
    program(x, y, out, 1000, grid=4)
    np.testing.assert_array_equal(out[:1000], x + y)
    assert (out[1000:] == 7).all()


@on("softmax")
def test_softmax_of_rows(program: Program, rng: Any) -> None:
    x = random(rng, 6, 256)
    x[2, 5] = -np.inf
    out = np.zeros_like(x)
    program(x, out, 256, 200, grid=6)
    weights = np.exp(wide(x[:, :200]) - wide(x[:, :200]).max(axis=1, keepdims=True))
    # The argument of 2^x, up to 16, is rounded twice; a sum, a division: 40 roundings are ample.
    close(out[:, :200], weights / weights.sum(axis=1, keepdims=True), rtol=40 * F32, atol=1e-30)
    assert (out[:, 200:] == 0).all()


@on("layer_norm")
def test_layer_norm_of_rows(program: Program, rng: Any) -> None:
    x = random(rng, 5, 200, dtype=np.float16)
    weight, bias = random(rng, 200), random(rng, 200)
    out = np.zeros_like(x)
    program(x, weight, bias, out, 200, np.float32(1e-5), grid=5)
    v = wide(x)
    apart = v - v.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((apart**2).mean(axis=1, keepdims=True) + 1e-5)
    close(out, apart * scale * weight + bias, rtol=1.01 * F16, atol=1e-5)  # rounded to f16 at last


@on("histogram")
def test_a_histogram(program: Program, rng: Any) -> None:
    x = rng.integers(0, 32, 1000).astype(np.int32)
    bins = np.zeros(32, np.int32)
    program(x, bins, 1000, grid=4)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=32))


@on("running_sum")
def test_a_running_sum(program: Program, rng: Any) -> None:
    x = rng.integers(-99, 99, (3, 256)).astype(np.float32)  # integers: exact in any order
    out = np.zeros_like(x)
    program(x, out, grid=3)
    np.testing.assert_array_equal(out, x.cumsum(axis=1))


@on("sort_rows")
def test_a_sort_of_rows(program: Program, rng: Any) -> None:
    x = random(rng, 3, 64)
    out = np.zeros_like(x)
    program(x, out, grid=3)
    np.testing.assert_array_equal(out, np.sort(x, axis=1))


def is_product(c: Array, a: Array, b: Array) -> None:
    """Each sum of products is rounded at every step at most."""
    bound = (a.shape[1] + 1) * F32 * (abs(wide(a)) @ abs(wide(b)))
    assert (abs(c - wide(a) @ wide(b)) <= bound).all()


@on("matmul_2_stages", "matmul_3_stages", "matmul_descriptor")
def test_products_of_f16(program: Program, rng: Any) -> None:
    constants = program.facts["constants"]
    m, n, k = 64, 128, 4 * constants["BK"]  # each buffer is used more than once
    a, b = random(rng, m, k, dtype=np.float16), random(rng, k, n, dtype=np.float16)
    c = np.zeros((m, n), np.float32)
    program(a, b, c, n, k, grid=(m // constants["BM"], n // constants["BN"]))
    is_product(c, a, b)


@on("matmul_f32")
def test_a_product_of_f32_goes_through_tf32(program: Program, rng: Any) -> None:
    a, b = random(rng, 32, 64), random(rng, 64, 64)
    c = np.zeros((32, 64), np.float32)
    program(a, b, c, 64, 64, grid=(1, 2))
    # tf32 keeps 11 bits; however an operand is brought there, it is off by less than a unit, 2^-10.
    bound = 2.1 * 2.0**-10 * (abs(wide(a)) @ abs(wide(b)))
    assert (abs(c - wide(a) @ wide(b)) <= bound).all()
    exact = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    d = np.zeros_like(c)
    program(exact, np.eye(64, dtype=np.float32), d, 64, 64, grid=(1, 2))
    np.testing.assert_array_equal(d, exact)


def attention(q: Array, k: Array, v: Array, scale: float, causal: bool) -> Array:
    scores = wide(q) @ wide(k).swapaxes(-1, -2) * scale
    if causal:
        scores[..., np.tri(*scores.shape[-2:]) == 0] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ wide(v)


# Weights are rounded to f16, and so is the result: averages of values up to max|v| are off by a
# relative F16 each; the f32 work between is far below.
def bound_of(v: Array) -> float:
    return float(2.1 * F16 * abs(wide(v)).max())


@pytest.mark.slow
@pytest.mark.sample(3)
@on("attention", "attention_causal")
def test_flash_attention_with_ragged_ends(program: Program, rng: Any) -> None:
    queries = keys = 100
    q, k, v = (random(rng, 2, n, 64, dtype=np.float16) for n in (queries, keys, keys))
    out = np.zeros_like(q)
    program(q, k, v, out, queries, keys, 0.125, grid=(2, 2))
    close(out, attention(q, k, v, 0.125, program.facts["constants"]["CAUSAL"]), atol=bound_of(v))


@pytest.mark.sample(3)
@on(
    *(f"attention_forward_d{d}{suffix}" for d in (64, 128) for suffix in ("", "_causal")),
    *(f"attention_forward_hopper_d{d}" for d in (64, 128, 256)),
)
def test_flash_attention_with_whole_tiles_apart(program: Program, rng: Any) -> None:
    head_dim, length = program.facts["constants"]["D"], 136  # two whole tiles, and eight keys
    q, k, v = (random(rng, 1, length, head_dim, dtype=np.float16) for _ in range(3))
    out = np.zeros_like(q)
    program(q, k, v, out, length, length, 0.125, grid=(2, 1))
    close(out, attention(q, k, v, 0.125, program.facts["constants"]["CAUSAL"]), atol=bound_of(v))


@on("attention_descriptor", "attention_descriptor_causal")
def test_flash_attention_by_tensor_maps(program: Program, rng: Any) -> None:
    q, k, v = (random(rng, n, 64, dtype=np.float16) for n in (128, 192, 192))
    out = np.zeros_like(q)
    program(q, k, v, out, 192, 0.125, grid=2)
    close(out, attention(q, k, v, 0.125, program.facts["constants"]["CAUSAL"]), atol=bound_of(v))
