"""Variables of modules and enclosing functions that kernels read: what changes is built anew."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ptxgen as px
from ptxgen import Pointer, f32
from ptxgen.kernels import KernelFunction

FACTOR = 2.0
SETTINGS = SimpleNamespace(factor=2.0, unused=0)
TABLE = np.array([2.0, 7.0], np.float32)
SCALES = {"first": [2.0]}


class Scale:
    """A class of the user's, of which kernels use a constant, a field and a method."""

    constant = 2.0

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def of(self, x: Any) -> Any:
        return x * self.factor


SCALE = Scale(2.0)


def scaled(x: Any) -> Any:
    return x * FACTOR


def result_of(kernel: KernelFunction) -> float:
    x = np.ones(1, np.float32)
    kernel[1](x, backend="interpreter")
    return float(x[0])


def made(function: Callable[..., None]) -> KernelFunction:
    return px.kernel(threads=1)(function)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, with a constant and a function that reads another."""
    module = ModuleType("settings_of_kernels")
    exec("FACTOR = 2.0\nOTHER = 2.0\ndef scaled(x):\n    return x * OTHER\n", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@px.kernel(threads=1)
def by_global(_: Any, X: Pointer[f32]) -> None:
    X[0] = X[0] * FACTOR


@px.kernel(threads=1)
def by_helper(_: Any, X: Pointer[f32]) -> None:
    X[0] = scaled(X[0])


@px.kernel(threads=1)
def by_nested(_: Any, X: Pointer[f32]) -> None:
    def nested() -> Any:
        return X[0] * FACTOR

    X[0] = nested()


@px.kernel(threads=1)
def by_namespace(_: Any, X: Pointer[f32]) -> None:
    X[0] = X[0] * SETTINGS.factor


@px.kernel(threads=1)
def by_array(_: Any, X: Pointer[f32]) -> None:
    X[0] = X[0] * float(TABLE[0])


@px.kernel(threads=1)
def by_dict(_: Any, X: Pointer[f32]) -> None:
    X[0] = X[0] * SCALES["first"][0]


@px.kernel(threads=1)
def by_method(_: Any, X: Pointer[f32]) -> None:
    X[0] = SCALE.of(X[0])


@px.kernel(threads=1)
def by_class(_: Any, X: Pointer[f32]) -> None:
    X[0] = X[0] * Scale.constant


def test_a_global_that_changes_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in (by_global, by_helper, by_nested):
        assert result_of(kernel) == 2
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    for kernel in (by_global, by_helper, by_nested):
        assert result_of(kernel) == 3


def test_what_changes_in_place_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = by_namespace, by_array, by_dict, by_method, by_class
    assert [result_of(kernel) for kernel in kernels] == [2] * 5
    monkeypatch.setattr(SETTINGS, "factor", 3.0)
    monkeypatch.setattr(SCALE, "factor", 3.0)
    monkeypatch.setattr(Scale, "constant", 3.0)
    SCALES["first"][0] = TABLE[0] = 3.0
    try:
        assert [result_of(kernel) for kernel in kernels] == [3] * 5
    finally:
        SCALES["first"][0] = TABLE[0] = 2.0
    monkeypatch.undo()
    assert [result_of(kernel) for kernel in kernels] == [2] * 5


def test_a_variable_of_an_enclosing_function_that_changes_is_built_anew() -> None:
    factor, factors = 2.0, [1.0]

    @made
    def kernel(_: Any, X: Pointer[f32]) -> None:
        X[0] = X[0] * factor * factors[0]

    assert result_of(kernel) == 2
    factor = 3.0
    assert result_of(kernel) == 3
    factors[0] = 5.0
    assert result_of(kernel) == 15


def test_another_module_is_read_too(settings: ModuleType) -> None:
    @made
    def kernel(_: Any, X: Pointer[f32]) -> None:
        X[0] = settings.scaled(X[0]) * settings.FACTOR

    assert result_of(kernel) == 4
    settings.FACTOR = 3.0  # type: ignore[attr-defined]
    assert result_of(kernel) == 6
    settings.OTHER = 5.0  # type: ignore[attr-defined]
    assert result_of(kernel) == 15
    exec("def scaled(x):\n    return x * 7.0\n", settings.__dict__)
    assert result_of(kernel) == 21


def test_functions_in_values_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    partial, listed = functools.partial(scaled), [scaled]
    cached_factor = functools.cache(lambda n: FACTOR + n)

    @made
    def kernel(_: Any, X: Pointer[f32]) -> None:
        X[0] = partial(X[0]) + listed[0](X[0]) + cached_factor(FACTOR)

    assert result_of(kernel) == 8
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert result_of(kernel) == 12


def test_equal_values_share_a_build() -> None:
    sizes = [1.0, (2.0, "two"), {"three": np.float32(3)}]

    @made
    def kernel(_: Any, X: Pointer[f32]) -> None:
        X[0] = X[0] * sizes[1][0]  # type: ignore[index]

    first = kernel.build()
    sizes = [1.0, (2.0, "two"), {"three": np.float32(3)}]
    assert kernel.build() is first
    sizes[0] = 1
    other = kernel.build()
    assert other is not first
    sizes[0] = 1.0
    assert kernel.build() is first


def test_what_building_the_kernel_changes_is_no_part_of_it() -> None:
    calls, count = [], 0

    @made
    def kernel(_: Any, X: Pointer[f32]) -> None:
        nonlocal count
        count += 1
        calls.append(count)
        X[0] = 2.0

    assert [result_of(kernel) for _ in range(3)] == [2, 2, 2]
    assert (calls, count) == ([1], 1)


def test_what_another_build_changes_is_no_part_of_it() -> None:
    calls: list[int] = []

    @made
    def kernel(_: Any, X: Pointer[f32], *, times: int) -> None:
        calls.append(times)
        X[0] = float(times)

    one, two = kernel.build(times=1), kernel.build(times=2)
    assert (kernel.build(times=1), kernel.build(times=2)) == (one, two)
    assert calls == [1, 2]


def test_static_choices_are_built_for_each_value_too() -> None:
    factor = 2.0

    @made
    def kernel(_: Any, X: Pointer[f32], *, times: int) -> None:
        X[0] = X[0] * factor * float(times)

    one, two = kernel.build(times=1), kernel.build(times=2)
    assert kernel.build(times=1) is one
    factor = 3.0
    assert kernel.build(times=2) not in (one, two)


def test_a_variable_that_is_not_set_yet_may_be_set_later() -> None:
    if FACTOR:

        @made
        def kernel(_: Any, X: Pointer[f32]) -> None:
            X[0] = X[0] * later

        with pytest.raises(NameError):
            kernel.build()
    later = 5.0
    assert result_of(kernel) == 5


def test_values_that_did_not_change_cost_little() -> None:
    by_global.build()
    before = time.perf_counter()
    for _ in range(1000):
        by_global.build()
    assert time.perf_counter() - before < 0.5  # 2 microseconds each, where nothing else runs
