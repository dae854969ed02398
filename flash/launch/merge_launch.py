"""The launch that merges the partial results of splits: its kernel, arrays and arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from flash.calls.step import Step, aligned, launch_step
from flash.contract.cache_builds import merge_build
from flash.kernels.merge import WARPS, MergeConfig
from flash.launch.arguments import Argument, type_and_row_problems
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.config import ALIGNMENTS
from ptxgen.arrays.views import ArrayView
from ptxgen.target import Target

_DIMENSIONS: Final = 3  # of the rows: batch, heads and queries


class MergeCall(NamedTuple):
    """The arrays of the merge kernel: parts [batch, heads, seq_q, splits, head_dim_v] and O [batch,
    heads, seq_q, head_dim_v], with dense columns and otherwise any strides; LSE of the parts, f32
    [batch * heads * seq_q, splits], of any strides; and merged LSE, dense, None if it is not
    wanted. No dimension is 0.
    """

    parts: ArrayView
    lses: ArrayView
    out: ArrayView
    lse: ArrayView | None


class MergeArguments(NamedTuple):
    """The arrays of a user's merge: parts [splits, ..., head_dim_v], O [..., head_dim_v] and LSE of
    the parts, f32 [splits, ...], all of any strides; and merged LSE [...], dense.
    """

    outs: ArrayView
    lses: ArrayView
    out: ArrayView
    lse: ArrayView

    def problems(self) -> Iterator[str]:
        """Why a kernel cannot take arrays with these addresses and strides."""
        views = {"outs": self.outs, "lses": self.lses, "out": self.out}
        yield from type_and_row_problems(
            [Argument(n, (), (OF_ARRAYS[a.dtype],), has_rows=n != "lses") for n, a in views.items()], views
        )
        shape = list(self.outs.shape)
        if len(self._rows) > _DIMENSIONS:
            yield (
                f"outs and out must have rows in at most {_DIMENSIONS} dimensions once those that "
                f"follow one another are joined, got strides {list(self.outs.strides)} and "
                f"{list(self.out.strides)} for shape {shape}; copy them to dense arrays"
            )
        if len(self._rows_of_lses) > 1:
            yield (
                "lses must have rows that are equally far from one another, got strides "
                f"{list(self.lses.strides)} for shape {shape[:-1]}; copy it to a dense array"
            )

    def call(self) -> MergeCall:
        """The arrays in the kernel's shapes. Requires no problems, and no dimension of 0."""
        rows = [Joined(1, (0, 0))] * _DIMENSIONS + self._rows
        last_rows = rows[-_DIMENSIONS:]
        sizes = tuple(row.length for row in last_rows)
        of_parts, of_out = (tuple(row.strides[n] for row in last_rows) for n in (0, 1))
        splits, columns = self.outs.shape[0], self.outs.shape[-1]
        of_lses = self._rows_of_lses or [Joined(1, (0,))]
        return MergeCall(
            self.outs._replace(shape=(*sizes, splits, columns), strides=(*of_parts, self.outs.strides[0], 1)),
            self.lses._replace(
                shape=(of_lses[0].length, splits), strides=(of_lses[0].strides[0], self.lses.strides[0])
            ),
            self.out._replace(shape=(*sizes, columns), strides=(*of_out, 1)),
            self.lse,
        )

    @property
    def _rows(self) -> list[Joined]:
        rows = slice(1, -1)
        return joined(self.outs.shape[rows], self.outs.strides[rows], self.out.strides[:-1])

    @property
    def _rows_of_lses(self) -> list[Joined]:
        return joined(self.lses.shape[1:], self.lses.strides[1:])


class Joined(NamedTuple):
    """One dimension that joins adjacent ones: its length, and its stride in each array, in elements."""

    length: int
    strides: tuple[int, ...]


def joined(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[Joined]:
    """The dimensions of arrays of one shape. Adjacent dimensions that are contiguous in all arrays
    are joined to one, and dimensions with one element are left out.
    """
    dimensions: list[Joined] = []  # innermost first
    for length, *steps in reversed(list(zip(shape, *strides, strict=True))):
        if length == 1:
            continue
        last = dimensions[-1] if dimensions else None
        if last and all(s == last.length * t for s, t in zip(steps, last.strides, strict=True)):
            dimensions[-1] = Joined(length * last.length, last.strides)
        else:
            dimensions.append(Joined(length, tuple(steps)))
    return dimensions[::-1]


def merging(
    call: MergeCall, target: Target, alignment: int = ALIGNMENTS[0], *, plus_is_empty: bool = False
) -> Step:
    """The launch that merges a call's partial results; its kernel suits any O that is aligned as the call's
    O, or to `alignment` bytes if that is less. With `plus_is_empty` a part whose lse is +inf has seen no key.
    """
    element, of_parts = OF_ARRAYS[call.out.dtype], OF_ARRAYS[call.parts.dtype]
    kernel = merge_build(
        MergeConfig(
            target,
            call.parts.shape[4],
            element,
            of_parts,
            math.gcd(alignment, aligned(call.out, element.nbytes)),
            aligned(call.parts, of_parts.nbytes),
            call.lse is not None,
            plus_is_empty,
        )
    )
    kernel.require_proved()
    arrays = {"PARTS": call.parts, "LSES": call.lses, "O": call.out}
    arrays |= {} if call.lse is None else {"LSE": call.lse}
    batch, heads, seq_q, splits, _ = call.parts.shape
    rows = batch * heads * seq_q
    values: dict[str, int | float] = {"rows": rows, "seq_q": seq_q, "heads": heads}
    values["splits"] = splits
    return launch_step(kernel, arrays, values, -(-rows // WARPS))
