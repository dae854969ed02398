"""What tensor cores compute: recorded outputs of GPUs, and the model where nothing is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from isa import tensor_core_model as model
from isa.tensor_core_runs import Shape, dot_products, text, wgmma_products

from ptxgen.isa import tensor_core
from ptxgen.isa.tensor_core import adder, factors, multiplied
from ptxgen.parse import parse

Array = np.ndarray[Any, Any]
SHAPES = {"f16": "m16n8k16", "bf16": "m16n8k16", "tf32": "m16n8k8", "e4m3": "m16n8k32", "e5m2": "m16n8k32"}
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
ACCUMULATORS: dict[str, Any] = {"f32": np.float32, "f16": np.float16}
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")

# ---------------------------------------- recorded

_WIDE = (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"))
_FP8 = tuple((type, d) for type in ("e4m3", "e5m2") for d in ("f32", "f16"))
RECORDED = {
    ("V100", "sm_70"): _WIDE[:2],
    ("A100", "sm_80"): _WIDE,
    ("A2", "sm_86"): _WIDE,
    ("Ada", "sm_89"): (*_WIDE, *_FP8),
    ("L40S", "sm_89"): (*_WIDE, *(of for of in _FP8 if of[1] == "f32")),
    ("H100", "sm_90a"): (*_WIDE, *_FP8),
    ("H200", "sm_90a"): (*_WIDE, *_FP8),
    ("B200", "sm_100a"): (*_WIDE, *_FP8),
}
COMPARISONS = [
    pytest.param(gpu, target, *of, id=f"{gpu}-{of[0]}-{of[1]}")
    for (gpu, target), sets in RECORDED.items()
    for of in sets
]


def recorded(data: Any, gpu: str, type: str, d_type: str) -> tuple[Array, Array, Array, Array]:
    """A, B, C and the bits of D."""
    sets = np.load(data / f"{gpu}_{'fp16' if type == 'f16' else type}.npz")
    c = sets["c_f32"].view(np.float32).astype(ACCUMULATORS[d_type])
    d = sets[f"d_{d_type}"].view(np.float32).astype(ACCUMULATORS[d_type])
    return sets["a"], sets["b"], c, d.view(f"u{d.itemsize}")


@pytest.mark.parametrize(("gpu", "target", "type", "d_type"), COMPARISONS)
def test_the_instruction_gives_the_bits_that_were_recorded(
    gpu: str, target: str, type: str, d_type: str, tensor_core_data: Any
) -> None:
    a, b, c, want = recorded(tensor_core_data, gpu, type, d_type)
    if gpu.startswith("H") and (type, d_type) in _FP8 and d_type == "f32":
        got = wgmma_products(Shape("m64n8k32", type, d_type), a, b, None)
    else:
        shape = "m8n8k4" if gpu == "V100" else SHAPES[type]
        got = dot_products(Shape(shape, type, d_type), target, a, b, c)
    np.testing.assert_array_equal(got, want)


def products(sm: int, type: str, a: Array, b: Array, c: Array, family: Any = "mma", other: str = "") -> Array:
    """D of single products as bits, without an instruction."""
    how = adder(sm, family, type)
    across = [np.ascontiguousarray(x.T[:, None]) for x in (a, b)]
    left, right = factors(type, across[0], how), factors(other or type, across[1], how)
    d = multiplied(how, type, left, right, c[None, None])[0, 0]
    return d.view(f"u{d.itemsize}")


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_the_rounding_of_another_generation_is_told_apart(gpu: str, tensor_core_data: Any) -> None:
    """The sets would not agree with just any model."""
    a, b, c, want = recorded(tensor_core_data, gpu, "f16", "f32")
    own, other = (80, 90) if gpu == "A100" else (90, 80)
    assert (products(own, "f16", a, b, c) == want).all()
    assert (products(other, "f16", a, b, c) == want).mean() < 0.9


@pytest.mark.parametrize(("type", "d_type"), _WIDE)
def test_tcgen05_adds_wide_products_as_mma_was_recorded_to_on_its_gpu(
    type: str, d_type: str, tensor_core_data: Any
) -> None:
    a, b, c, want = recorded(tensor_core_data, "B200", type, d_type)
    np.testing.assert_array_equal(products(100, type, a, b, c, "tcgen05"), want)


@pytest.mark.parametrize("type", ["e4m3", "e5m2"])
def test_tcgen05_adds_fp8_in_one_step_and_mma_on_its_gpu_does_not(type: str, tensor_core_data: Any) -> None:
    a, b, c, by_mma = recorded(tensor_core_data, "B200", type, "f32")
    got = products(100, type, a, b, c, "tcgen05")
    assert (got != by_mma).mean() > 0.3
    assert (got == products(120, type, a, b, c)).all()


# ---------------------------------------- the model


def sm_of(target: str) -> int:
    return int(target.removeprefix("sm_").rstrip("a"))


# The shapes of each target, with types of A, of accumulators and of B if it is another.
_SHAPES_75 = (("m16n8k8", "f16", "f32"), ("m16n8k8", "f16", "f16"), ("m8n8k4", "f16", "f32"))
_SHAPES_80 = (
    *_SHAPES_75,
    ("m8n8k4", "f16", "f16"),
    ("m16n8k16", "f16", "f32"),
    ("m16n8k16", "f16", "f16"),
    ("m16n8k8", "bf16", "f32"),
    ("m16n8k16", "bf16", "f32"),
    ("m16n8k4", "tf32", "f32"),
    ("m16n8k8", "tf32", "f32"),
)
_SHAPES_89 = tuple(
    (shape, *of)
    for shape in ("m16n8k16", "m16n8k32")
    for of in (("e4m3", "f32", "e5m2"), ("e5m2", "f16", "e4m3"), ("e4m3", "f16"))
)
MODELLED = [
    pytest.param(target, Shape(*of), id="-".join((target, *of)))
    for target in TARGETS
    for of in (
        *(_SHAPES_75 if target == "sm_75" else _SHAPES_80),
        *(_SHAPES_89 if sm_of(target) >= 89 else ()),
    )
]
LARGEST = {"f16": 0x7BFF, "bf16": 0x7F7F, "tf32": 0x7F7FE000, "e4m3": 0x7E, "e5m2": 0x7B}


def any_bits(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> Array:
    """Elements of all sizes, a few of them zero, infinite or NaN."""
    dtype = np.dtype(f"u{np.dtype(DTYPES[type]).itemsize}")
    bits = rng.integers(0, 1 << 8 * dtype.itemsize, shape, dtype=np.uint64).astype(dtype)
    largest = dtype.type(LARGEST[type])
    sign = dtype.type(1 << 8 * dtype.itemsize - 1)
    finite = np.where((bits & ~sign) > largest, bits & largest, bits)
    chosen = rng.random(shape)
    return np.where(chosen < 0.01, bits, np.where(chosen < 0.1, bits & sign, finite)).astype(dtype)


def near_one(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> Array:
    """Elements of moderate size."""
    numbers = rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 3, shape)
    narrow = numbers.astype(DTYPES[type])
    return narrow.view(f"u{narrow.itemsize}")


def value(type: str, bits: Array) -> Array:
    if type == "tf32":
        bits = bits & np.uint32(0xFFFFE000)
    return widened(bits.view(DTYPES[type]))


def widened(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        return x.astype(np.float64)


def wanted(of: Shape, sm: int, a: Array, b: Array, c: Array, family: str = "mma") -> list[int]:
    """The bits of D by plain Python."""
    types = of.type, of.other or of.type
    left, right = value(types[0], a), value(types[1], b)
    return [
        model.bits(
            model.dot(list(zip(x.tolist(), y.tolist(), strict=True)), types, z, of.accumulator, sm, family),
            of.accumulator,
        )
        for x, y, z in zip(left, right, widened(c).tolist(), strict=True)
    ]


def problem(of: Shape, rng: np.random.Generator, count: int = 160) -> tuple[Array, Array, Array]:
    """A, B and C, the first half of moderate size, the rest of any."""
    half, types = (count // 2, of.k), (of.type, of.other or of.type)
    a, b = (np.concatenate([near_one(rng, t, half), any_bits(rng, t, half)]) for t in types)
    dtype = ACCUMULATORS[of.accumulator]
    bits = rng.integers(0, 1 << 32, count // 2, dtype=np.uint64)
    moderate = rng.standard_normal(count // 2).astype(dtype)
    c = bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    c[:20], a[-10:] = 0, 0
    return a, b, np.concatenate([moderate, c])


@pytest.mark.parametrize(("target", "of"), MODELLED)
def test_the_instruction_gives_what_the_model_says(target: str, of: Shape) -> None:
    a, b, c = problem(of, np.random.default_rng(of.k))
    got = dot_products(of, target, a, b, c)
    assert got.tolist() == wanted(of, sm_of(target), a, b, c)


@pytest.mark.parametrize(
    "of",
    [
        Shape("m64n8k16", "f16", "f32"),
        Shape("m64n8k16", "f16", "f16"),
        Shape("m64n8k16", "bf16", "f32"),
        Shape("m64n8k8", "tf32", "f32"),
        Shape("m64n8k32", "e4m3", "f32", "e5m2"),
        Shape("m64n8k32", "e5m2", "f16", "e4m3"),
    ],
    ids=str,
)
def test_wgmma_gives_what_the_model_says(of: Shape) -> None:
    a, b, c = problem(of, np.random.default_rng(of.k))
    got = wgmma_products(of, a, b, c)
    assert got.tolist() == wanted(of, 90, a, b, c, "wgmma")
    assert wgmma_products(of, a, b, c, schedule="pct:3").tolist() == got.tolist()
    assert wgmma_products(of, a, b, c, stepwise=True).tolist() == got.tolist()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_single_instructions_give_the_same_bits(target: str) -> None:
    of = Shape("m16n8k16", "bf16", "f32")
    a, b, c = problem(of, np.random.default_rng(7))
    got = dot_products(of, target, a, b, c, stepwise=True)
    assert got.tolist() == dot_products(of, target, a, b, c).tolist()


def test_a_kernel_that_has_run_for_one_target_runs_for_another() -> None:
    of = Shape("m16n8k16", "f16", "f16")
    ones = np.zeros((1, 16), np.float16)
    ones[0, [0, 8]] = 1.0
    c = np.array([2048.0], np.float16)
    first = parse(text(of, "sm_80"))
    got = [
        dot_products(of, module, ones.view(np.uint16), ones.view(np.uint16), c).view(np.float16)[0]
        for module in (first, replace(first, target="sm_90"), first)
    ]
    assert got == [2048.0, 2050.0, 2048.0]


# ---------------------------------------- the smallest inputs that tell


def one(of: Shape, target: str, pairs: dict[int, tuple[float, float]], c: float) -> float:
    """D of one product, with what is at some places along K."""
    a, b = np.zeros((2, 1, of.k), DTYPES[of.type])
    for k, (x, y) in pairs.items():
        a[0, k], b[0, k] = x, y
    a, b = (x.view(f"u{x.itemsize}") for x in (a, b))
    start = np.array([c], ACCUMULATORS[of.accumulator])
    if of.shape.startswith("m64"):
        d = wgmma_products(of, a, b, start)
    else:
        d = dot_products(of, target, a, b, start)
    return float(d.view(start.dtype)[0])


def shape_of(type: str, target: str) -> Shape:
    """The largest of a type."""
    return Shape("m16n8k8" if target == "sm_75" else SHAPES[type], type, "f32")


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_is_truncated(target: str) -> None:
    start = 1 + 2.0**-23
    for type in ("f16",) if target == "sm_75" else ("f16", "bf16", "tf32"):
        of = shape_of(type, target)
        assert one(of, target, {0: (2.0**-12, 2.0**-12)}, start) == start  # to nearest: 1 + 2**-22
        assert one(of, target, {0: (2.0**-12, -(2.0**-12))}, -start) == -start


@pytest.mark.parametrize("target", TARGETS)
def test_bits_too_low_are_lost_before_they_are_added(target: str) -> None:
    of = shape_of("f16", target)
    d = one(of, target, dict.fromkeys(range(8), (2.0**-12, 2.0**-13)), 1.0)
    assert d == (1 + 2.0**-22 if sm_of(target) >= 90 else 1.0)


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "sm_75"])
def test_halves_of_k_are_added_one_after_the_other_where_they_are(target: str) -> None:
    of = Shape("m16n8k16", "f16", "f16")
    d = one(of, target, {0: (1.0, 1.0), 8: (1.0, 1.0)}, 2048.0)
    assert d == (2050.0 if sm_of(target) >= 90 else 2048.0)


@pytest.mark.parametrize("target", TARGETS)
def test_quads_are_added_one_after_the_other_where_no_instruction_has_them(target: str) -> None:
    of = Shape("m8n8k4", "f16", "f32")
    d = one(of, target, {0: (1.0, 1.0), 1: (2.0**-12, 2.0**-12), 2: (-1.0, 1.0)}, 0.0)
    assert d == (2.0**-24 if target == "sm_75" else 0.0)  # 1 + 2**-24 is 1 in f32


@pytest.mark.parametrize(
    ("pairs", "c", "wanted"),
    [
        ({0: (2.0**12, 2.0**12), 1: (2.0**12, -(2.0**12))}, 0.5, 0.5),  # 0 if C met the first alone
        ({0: (2.0**12, 2.0**12), 2: (2.0**12, -(2.0**12))}, 1.0, 0.0),  # 1 if the second pair came first
    ],
)
def test_quads_in_f16_are_added_in_pairs(
    pairs: dict[int, tuple[float, float]], c: float, wanted: float
) -> None:
    assert one(Shape("m8n8k4", "f16", "f16"), "sm_90a", pairs, c) == wanted


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_short_product_of_fp8_is_two_of_f16(target: str) -> None:
    of = Shape("m16n8k16", "e4m3", "f16")
    d = one(of, target, {0: (2.0**8, 2.0**3), 2: (1.0, 1.0), 3: (1.0, 1.0), 4: (1.0, 1.0)}, 0.0)
    assert d == 2050.0  # 2049, rounded to 2048, and two


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "sm_75"])
def test_products_beyond_f32_cancel(target: str) -> None:
    of = shape_of("bf16", target)
    large = 2.0**100
    d = one(of, target, {0: (large, large), 1: (large, -large), 2: (1.0, 1.0)}, 0.0)
    assert d == 0.0
    assert one(of, target, {0: (large, large)}, 0.0) == np.inf
    assert one(of, target, {0: (large, -large)}, 0.0) == -np.inf


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_sum_is_plus_zero(target: str) -> None:
    d = one(shape_of("f16", target), target, {0: (-1.0, 0.0), 1: (0.0, -1.0)}, -0.0)
    assert not np.signbit(d)


@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
def test_sums_of_fp8_keep_fourteen_bits(target: str) -> None:
    shape = "m64n8k32" if target == "sm_90a" else "m16n8k32"
    assert one(Shape(shape, "e4m3", "f32"), target, {0: (1.0, 1.0)}, 1 + 2.0**-14) == 2.0


@pytest.mark.parametrize("target", TARGETS)
def test_sums_below_the_smallest_normal_number_are_truncated(target: str) -> None:
    of = shape_of("f16", target)
    small = 2.0**-127 + 2.0**-149
    assert one(of, target, {}, small) == small
    assert one(of, target, {}, -small) == -small


_DIGEST = """
import hashlib, numpy as np
from isa.test_tensor_core import Shape, dot_products, problem
of = Shape("m16n8k16", "f16", "f32")
d = dot_products(of, "sm_90", *problem(of, np.random.default_rng(1), 2000))
print(hashlib.sha256(d.tobytes()).hexdigest())
"""


@pytest.mark.nightly
def test_bits_do_not_depend_on_the_blas() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "OPENBLAS_CORETYPE": name, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in ("Haswell", "Prescott")
    }
    assert len(digests) == 1


def test_how_many_are_done_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Shape("m16n8k16", "bf16", "f32")
    a, b, c = problem(of, np.random.default_rng(5))
    want = dot_products(of, "sm_80", a, b, c).tolist()
    for count in (1, 3000):
        monkeypatch.setattr(tensor_core, "_AT_ONCE", count)
        assert dot_products(of, "sm_80", a, b, c).tolist() == want
