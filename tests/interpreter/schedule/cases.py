"""Every launch that the tests of the nvcc, Triton and Hopper programs make, also under schedules
drawn from seeds.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs, test_nvcc_programs, test_triton_programs
from interpreter.both_paths import assert_same_bits, memory_of

from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, DeviceArena, Result, run

RNG_SEED = 5


@dataclass(frozen=True)
class Case:
    """A test of a module, with values for its parameters; called, it runs. `runner` is how the
    module calls the interpreter.
    """

    module: ModuleType
    runner: str
    test: Callable[..., None]
    given: dict[str, Any]
    id: str

    @property
    def name(self) -> str:
        return self.test.__name__

    def __call__(self, patch: pytest.MonkeyPatch, runner: Callable[..., Result]) -> None:
        patch.setattr(self.module, self.runner, runner)
        arguments = dict(self.given)
        if "rng" in arguments:
            arguments["rng"] = np.random.default_rng(RNG_SEED)
        self.test(**arguments)


def run_under_seeds(
    seeds: Sequence[int],
    ptx: Any,
    entry: str | None = None,
    *,
    args: Sequence[Any],
    arena: DeviceArena | None = None,
    **how: Any,
) -> Result:
    """As `run` in lockstep; runs by these seeds leave the same bits, and fail if it does."""
    arena = DeviceArena() if arena is None else arena
    kept = [x for x in memory_of(args, arena) if x.flags.writeable]
    before = [x.copy() for x in kept]
    variants: list[tuple[list[np.ndarray[Any, Any]], Result | None]] = []
    for seed in seeds:
        twin = copy.copy(arena)  # of the same memory, but a new module gets variables of its own
        twin.modules = dict(arena.modules)
        try:
            result = run(ptx, entry, args=args, arena=twin, schedule=PCT(seed), **how)
        except TrapError:
            result = None
        variants.append(([x.copy() for x in kept], result))
        for array, old in zip(kept, before, strict=True):
            array[...] = old
    try:
        want = run(ptx, entry, args=args, arena=arena, **how)
    except TrapError:
        assert all(result is None for _, result in variants)
        raise
    for memory, result in variants:
        assert result is not None, "failed under PCT"
        for array, got in zip(kept, memory, strict=True):
            assert_same_bits(got, array)
        for name, value in want.variables.items():
            assert_same_bits(result.variables[name], value)
        assert sorted(result.printed.splitlines()) == sorted(want.printed.splitlines())
        assert result.counters.tensor_flops == want.counters.tensor_flops
    return want


def all_cases() -> Iterator[Case]:
    for module, runner in (
        (test_nvcc_programs, "run_both_ways"),
        (test_triton_programs, "run_both_ways"),
        (test_hopper_programs, "run"),
    ):
        for name, test in vars(module).items():
            if name.startswith("test_"):
                for arguments, suffix in _expanded(test):
                    yield Case(module, runner, test, arguments, f"{name}[{suffix}]")


def _expanded(test: Callable[..., None]) -> Iterator[tuple[dict[str, Any], str]]:
    """What pytest would give the test, one after another; nothing for one that wants other
    fixtures.
    """
    axes = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, values = mark.args
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        axis = []
        for n, value in enumerate(values):
            if any(mark.name == "gpu" for mark in getattr(value, "marks", ())):
                continue  # the same on another machine
            row = value.values if hasattr(value, "values") and hasattr(value, "marks") else None
            row = row if row is not None else (value if len(names) > 1 else (value,))
            shown = getattr(value, "id", None) or "-".join(
                str(v) if isinstance(v, (int, str)) else f"{names[0]}{n}" for v in row
            )
            axis.append((dict(zip(names, row, strict=True)), shown))
        axes.append(axis)
    wanted = set(inspect.signature(inspect.unwrap(test)).parameters)
    for choice in itertools.product(*axes):
        arguments = {name: value for values, _ in choice for name, value in values.items()}
        if "rng" in wanted:
            arguments["rng"] = RNG_SEED
        if set(arguments) == wanted:
            yield arguments, "-".join(shown for _, shown in choice)
