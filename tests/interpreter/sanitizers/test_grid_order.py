"""Accesses to what the grid before writes, in a kernel that may begin before that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptxgen
from ptxgen import Pointer, interpreter, ir
from ptxgen.errors import LaunchError
from ptxgen.types import f32

BLOCK = 64
COUNT = 2 * BLOCK


def module(wait: Callable[[Any], None]) -> ir.Module:
    """A kernel that doubles X into Y; `wait` emits what comes before it reads."""

    def double(k: Any, X: Pointer[f32], Y: Pointer[f32]) -> None:
        at = k.block_id() * k.threads + k.thread_id()
        wait(k)
        Y[at] = X[at] * 2.0

    return ptxgen.kernel(threads=BLOCK)(double).build(target="sm_90").module


def by_every_thread(k: Any) -> None:
    k.griddepcontrol_wait()


def by_one_thread(k: Any) -> None:
    with k.when(k.thread_id() == 0):
        k.griddepcontrol_wait()


def by_one_thread_before_a_barrier(k: Any) -> None:
    by_one_thread(k)
    k.barrier()


def by_nobody(k: Any) -> None:
    k.barrier()


def reports(wait: Callable[[Any], None], in_flight: str = "X", sanitize: str = "race") -> list[str]:
    """The reports of a run in which the grid before writes one of the arrays."""
    X, Y = np.arange(COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)
    arrays = {"X": X, "Y": Y, "none of them": np.zeros(4, np.float32)}
    result = interpreter.run(
        module(wait),
        grid=COUNT // BLOCK,
        block=BLOCK,
        args=[X, Y],
        sanitize=sanitize,
        in_flight=[arrays[in_flight]],
        raise_on_report=False,
    )
    assert (Y == 2 * X).all()
    return [str(report).partition("race: ")[2] for report in result.reports]


@pytest.mark.parametrize("wait", [by_every_thread, by_one_thread_before_a_barrier])
@pytest.mark.parametrize("in_flight", ["X", "Y"])
def test_threads_that_come_after_a_wait_may_access_what_the_grid_before_writes(
    wait: Callable[[Any], None], in_flight: str
) -> None:
    assert reports(wait, in_flight) == []


@pytest.mark.parametrize("wait", [by_one_thread, by_nobody])
@pytest.mark.parametrize(("in_flight", "name"), [("X", "X"), ("Y", "Y")])
def test_other_threads_may_not(wait: Callable[[Any], None], in_flight: str, name: str) -> None:
    (said,) = reports(wait, in_flight)
    assert said.startswith("global address 0x")
    assert said.endswith(
        f" ({name}) is accessed before griddepcontrol.wait; the grid before this one may still write it"
    )


def test_other_arrays_need_no_wait() -> None:
    assert reports(by_nobody, "none of them") == []


def test_only_the_race_sanitizer_looks_for_it() -> None:
    assert reports(by_nobody, sanitize="init") == []


def test_arrays_in_flight_are_arrays() -> None:
    with pytest.raises(LaunchError) as caught:
        interpreter.run(
            module(by_nobody),
            grid=1,
            block=BLOCK,
            args=[np.zeros(COUNT, np.float32)] * 2,
            in_flight=[1],  # type: ignore[list-item]  # it is wrong
        )
    assert str(caught.value) == "in_flight must be a list of numpy arrays, got 1; give what args has"
