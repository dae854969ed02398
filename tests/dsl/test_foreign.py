"""What Python, `math` and numpy cannot do with values: each error has a cure, and each cure is right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from error_texts import refused

from ptxgen import f16, f32, interpreter, s32, u32
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TypeMismatchError
from ptxgen.types import ScalarType

MATH = "k.exp(v), k.log(v), k.sqrt(v), k.sin(v), k.cos(v) and k.tanh(v)"
ITSELF = "cannot take it; write the value itself, which is an integer, or k.cvt(v, dtype=s32)"
POWER = "cannot take it; write v * v for a square, or k.ex2(k.lg2(v) * exponent) of f32"
ANY = "cannot take it; write a word of k, such as k.exp(v), k.sqrt(v) or k.max(a, b)"
AS_FLOAT = f"float() and functions of math cannot take it; compute with {MATH}"


def value(type: ScalarType = f32) -> Any:
    return KernelBuilder("k", target="sm_80", threads=32).param("v", type)


@pytest.mark.parametrize(
    ("use", "type", "refusal"),
    [
        (math.exp, f32, AS_FLOAT),
        (float, f32, AS_FLOAT),
        (complex, f32, AS_FLOAT),
        (np.float32, u32, f"{AS_FLOAT}; k.cvt(v, dtype=f32, rnd='rn') makes an f32 of it"),
        (math.sqrt, f16, f"{AS_FLOAT}; k.cvt(v, dtype=f32) makes an f32 of it"),
        (int, f32, "int() cannot take it; write k.cvt(v, dtype=s32, rnd='rzi')"),
        (math.trunc, f32, "math.trunc cannot take it; write k.cvt(v, dtype=s32, rnd='rzi')"),
        (math.floor, f32, "math.floor cannot take it; write k.cvt(v, dtype=s32, rnd='rmi')"),
        (math.ceil, f32, "math.ceil cannot take it; write k.cvt(v, dtype=s32, rnd='rpi')"),
        (round, f32, "round() cannot take it; write k.cvt(v, dtype=s32, rnd='rni')"),
        (int, u32, f"int() {ITSELF}"),
        (abs, f32, "abs() cannot take it; write k.abs(v)"),
        (lambda v: v**2, f32, f"** {POWER}"),
        (lambda v: 2**v, f32, "** cannot take it; write k.ex2(v) for 2 ** v, and k.exp(v) for e ** v"),
        (lambda v: divmod(v, 2), u32, "divmod() cannot take it; write v // n and v % n"),
        (np.exp, f32, "numpy.exp cannot take it; write k.exp(v)"),
        (np.abs, f32, "numpy.absolute cannot take it; write k.abs(v)"),
        (np.square, f32, "numpy.square cannot take it; write v * v"),
        (lambda v: np.maximum(v, 0), f32, "numpy.maximum cannot take it; write k.max(a, b)"),
        (np.arctan, f32, f"numpy.arctan {ANY}"),
    ],
)  # fmt: skip
def test_a_value_is_no_number_of_python(use: Callable[[Any], Any], type: ScalarType, refusal: str) -> None:
    v = value(type)
    with refused(TypeMismatchError, f"{v!r} is known only on the GPU, so {refusal}"):
        use(v)


def test_the_cures_are_right() -> None:
    k = KernelBuilder("cures", target="sm_80", threads=1)
    X, v, n = k.pointer("X"), k.param("v", f32), k.param("n", s32)
    words = [k.exp(v), k.log(v), k.sqrt(v), k.sin(v), k.cos(v), k.tanh(v), k.abs(v), k.max(v, 0.0), 1 / v]
    words += [k.cvt(n, dtype=f32, rnd="rn"), k.ex2(k.lg2(v) * 3.0)]
    words += [k.cvt(k.cvt(v, dtype=s32, rnd=r), dtype=f32, rnd="rn") for r in ("rzi", "rmi", "rpi", "rni")]
    for i, word in enumerate(words):
        X[i] = word
    x = np.zeros(len(words), np.float32)
    interpreter.run(k.build(), grid=1, block=1, args=[x, 2.5, 7])
    functions = [math.exp, math.log, math.sqrt, math.sin, math.cos, math.tanh, abs]
    wanted = [*(f(2.5) for f in functions), 2.5, 0.4, 7, 2.5**3, 2, 2, 3, 2]
    assert np.allclose(x, wanted, rtol=1e-3)


def stored(compute: Callable[[Any], Any], number: int = 3) -> int:
    """What a kernel computes of a parameter of u32."""
    k = KernelBuilder("stored", target="sm_80", threads=1)
    X, n = k.pointer("X", u32), k.param("n", u32)
    X[0] = compute(n)
    x = np.zeros(1, np.uint32)
    interpreter.run(k.build(), grid=1, block=1, args=[x, number])
    return int(x[0])


@pytest.mark.parametrize(
    "compute",
    [
        *(lambda n: 10 // n, lambda n: 10 % n, lambda n: 1 << n, lambda n: 64 >> n, lambda n: 6 & n),
        *(lambda n: 8 | n, lambda n: 6 ^ n, lambda n: +n, lambda n: np.uint32(5) * n - np.uint8(1) * n),
        lambda n: np.uint32(100) // n,
    ],
)
def test_a_number_on_the_left_of_an_operator_is_a_value_too(compute: Callable[[Any], Any]) -> None:
    assert stored(compute) == compute(3)


def test_a_number_on_the_left_of_an_operator_of_integers_is_no_float() -> None:
    with pytest.raises(TypeMismatchError, match=re.escape("// is for integers, got Value(%f0: f32)")):
        _ = 3 // value()


def test_an_array_of_values_is_computed_by_its_elements() -> None:
    assert stored(lambda n: (np.array([1, 2]) * n + np.array([n, n]))[1]) == 9
