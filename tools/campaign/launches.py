"""Launches of the shipped kernels, from the plans that a call makes."""

from __future__ import annotations

from collections.abc import Callable

from flash.calls.step import Step
from ptxgen.arrays.views import host_array
from ptxgen.mutation.kernel_under_test import Array, Launch
from ptxgen.runtime.plan import LaunchPlan


def of_plan(
    plan: LaunchPlan, arrays: tuple[Array, ...], results: tuple[Array, ...], wrong: Callable[[], str]
) -> Launch:
    """The launch of a plan in which `arrays` replace the addresses; `wrong` describes the first wrong array
    in `results`.
    """
    how = {
        "grid": plan.grid[0],
        "block": plan.block[0],
        "args": plan.on_host(arrays),
        "dynamic_smem": plan.dynamic_shared,
    }
    return Launch(how, results, lambda _: wrong())


def of_step(step: Step, results: tuple[Array, ...], wrong: Callable[[], str]) -> Launch:
    """The launch of one step of a call, whose arrays are on the host."""
    return of_plan(step.plan, tuple(map(host_array, step.arrays)), results, wrong)
