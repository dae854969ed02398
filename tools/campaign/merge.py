"""The kernel that merges the results of splits, for the mutation campaign: its problems, and the
right results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from flash.calls.step import Step
from flash.error_bound import merge_bound
from flash.launch.merge_launch import MergeCall, merging
from flash.operands.dtypes import F32, DType
from ptxgen.arrays.views import view
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from ptxgen.target import target
from tools.campaign.arrays import margins_changed, with_margins
from tools.campaign.launches import of_step

_SEED: Final = 20250
_APART: Final = 3.0  # standard deviation of LSE, so small that every split counts


@dataclass(frozen=True, slots=True)
class MergeProblem:
    """The sizes of one merge. `special` says which LSE of every row are `value`: that of the
    "first" split, that of the "last" one, or "all"; empty for none.
    """

    batch: int
    heads: int
    seq_q: int
    splits: int
    special: str = ""
    value: float = 0.0


# Rows that do not fill a CTA; splits of one iteration, or two, of a warp, and of ragged last iterations; the
# largest LSE in the second iteration; LSE of every kind.
_PROBLEMS: Final = (
    MergeProblem(2, 3, 3, 70),
    *(MergeProblem(1, 2, 1, splits) for splits in (1, 2, 3, 4, 5, 31, 32, 33, 64, 66)),
    MergeProblem(1, 1, 3, 40, "last", 3e38),
    *(MergeProblem(1, 1, 5, 6, special, -np.inf) for special in ("first", "last", "all")),
    *(
        MergeProblem(1, 1, rows, 6, special, value)
        for rows, special in ((4, "first"), (7, "last"), (1, "all"))
        for value in (np.inf, np.nan, 3e38, -3e38)
    ),
)


def merge_subject(name: str, *, target_name: str, head_dim_v: int, dtype: DType) -> KernelUnderTest:
    """The subject of the kernel that merges f32 parts of `head_dim_v` columns to `dtype`."""

    def step(problem: MergeProblem) -> tuple[Step, _Arrays]:
        arrays = _Arrays.of(problem, head_dim_v, dtype)
        call = MergeCall(
            view(arrays.parts, "parts"),
            view(arrays.lses, "lses"),
            view(arrays.out, "out"),
            view(arrays.lse, "lse"),
        )
        return merging(call, target(target_name)), arrays

    def prepare(problem: MergeProblem) -> Launch:
        launched, arrays = step(problem)
        return of_step(launched, (arrays.out, arrays.lse), arrays.wrong)

    build = step(_PROBLEMS[0])[0].build
    return KernelUnderTest(name, build.kernel.name, build.threads, build.module, _PROBLEMS, prepare)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays of a problem, within margins of NaN: parts [batch, heads, seq_q, splits, columns],
    their LSE [rows of all heads, splits], O and LSE, and the right O and LSE (`wanted`).
    """

    parts: Array
    lses: Array
    out: Array
    lse: Array
    wanted: tuple[Array, Array]
    errors: tuple[Array, Array]

    @classmethod
    def of(cls, p: MergeProblem, columns: int, dtype: DType) -> _Arrays:
        """The arrays of a problem, with equal contents at each call."""
        random, rows = np.random.default_rng(_SEED), p.batch * p.heads * p.seq_q
        parts = with_margins((p.batch * p.heads, p.seq_q, p.splits, columns), F32, random, reverse=False)
        whole = np.full((rows, p.splits + 1), np.nan, np.float32)
        lses = whole[:, : p.splits]
        lses[...] = _APART * random.standard_normal(lses.shape)
        which = {"first": slice(1), "last": slice(-1, None), "all": slice(None), "": slice(0)}
        lses[:, which[p.special]] = p.value
        out = with_margins((p.batch, p.heads, p.seq_q, columns), dtype, None, reverse=False)
        flat = parts.reshape(rows, p.splits, columns)
        shape, bound = out.shape, merge_bound(flat, lses, dtype.numpy)
        parts[np.isneginf(lses).reshape(parts.shape[:-1])] = np.nan
        return cls(
            parts.reshape(p.batch, p.heads, p.seq_q, p.splits, columns),
            lses,
            out,
            np.full(rows, np.nan, np.float32),
            (bound.out.reshape(shape), bound.lse),
            (bound.out_error.reshape(shape), bound.lse_error),
        )

    def wrong(self) -> str:
        """A description of the first wrong result; empty if all are right."""
        return (
            difference("O", self.out, self.wanted[0], self.errors[0])
            or difference("LSE", self.lse, self.wanted[1], self.errors[1])
            or margins_changed(self.out, np.ones(self.out.shape[2], bool))
        )
