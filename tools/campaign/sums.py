"""The kernel that sums terms of gradients of arrays of scores, for the mutation campaign: its problems,
and the right results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from flash.calls.step import Step
from flash.gradients.steps import sum_steps
from flash.operands.dtypes import F32, DType
from flash.scores.bias import Bias
from flash.scores.feature import summed_to
from ptxgen.arrays.views import view
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from ptxgen.target import target
from tools.campaign.launches import of_step

_SEED: Final = 20254
_UNIT: Final = 2.0**-24  # of f32


@dataclass(frozen=True, slots=True)
class SumProblem:
    """The shape of the terms, [batch, heads, queries, keys], and that of their sums."""

    terms: tuple[int, int, int, int]
    sums: tuple[int, int, int, int]


# Sums over each axis and over several, of more and fewer terms than lanes, and of one; sums that do not
# fill a CTA.
_PROBLEMS: Final = (
    SumProblem((2, 3, 5, 9), (2, 3, 1, 1)),
    SumProblem((2, 3, 5, 9), (1, 3, 5, 9)),
    SumProblem((2, 3, 5, 9), (2, 1, 5, 1)),
    SumProblem((3, 2, 4, 5), (3, 2, 1, 5)),
    SumProblem((3, 2, 4, 5), (1, 1, 1, 1)),
    SumProblem((1, 2, 3, 2), (1, 2, 3, 2)),
    *(SumProblem((1, 1, 1, n), (1, 1, 1, 1)) for n in (1, 31, 32, 33, 64, 66)),
)


def sum_subject(name: str, *, target_name: str, dtype: DType) -> KernelUnderTest:
    """The subject of the kernel whose sums are of type `dtype`."""

    def arrays(problem: SumProblem) -> _Arrays:
        return _Arrays.of(problem, dtype)

    def step(arrays_of: _Arrays) -> Step:
        terms, sums = view(arrays_of.terms, "terms"), view(arrays_of.sums, "sums")
        (launched,) = sum_steps(Bias, terms, sums, target(target_name), name)
        return launched

    def prepare(problem: SumProblem) -> Launch:
        inputs = arrays(problem)
        return of_step(step(inputs), (inputs.sums,), inputs.wrong)

    build = step(arrays(_PROBLEMS[0])).build
    return KernelUnderTest(name, build.kernel.name, build.threads, build.module, _PROBLEMS, prepare)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The terms, their sums, and the right sums with the error that each may have."""

    terms: Array
    sums: Array
    right: Array
    allowed: Array

    @classmethod
    def of(cls, p: SumProblem, dtype: DType) -> _Arrays:
        """The arrays of a problem, dense, with equal contents at each call."""
        random = np.random.default_rng(_SEED)
        terms = random.standard_normal(p.terms).astype(F32.numpy)
        right = summed_to(terms.astype(np.float64), p.sums)
        roundings = math.prod(p.terms) // math.prod(p.sums) + 1
        allowed = roundings * _UNIT * summed_to(np.abs(terms).astype(np.float64), p.sums)
        rounding = dtype.rounding[0]
        sums = np.full(p.sums, np.nan, dtype.numpy)
        return cls(terms, sums, right, 1.01 * allowed + rounding * np.abs(right))

    def wrong(self) -> str:
        """A description of the first wrong sum; empty if all are right."""
        return difference("sums", self.sums, self.right, self.allowed)
