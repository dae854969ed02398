"""Refuses warp-wide instructions in blocks that some lanes of a warp may not run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import numpy as np

from ptxgen import ir
from ptxgen.dsl.divergence import Divergence
from ptxgen.dsl.grid import Extents
from ptxgen.dsl.values import Scalar, Value
from ptxgen.errors import TypeMismatchError
from ptxgen.isa.warp import source_lanes
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType

# Whether lanes of one warp run a block differently, asked only if an instruction needs to know.
Splits: TypeAlias = Callable[[], bool]

# A promise about a condition: all threads of the CTA agree on it, or all threads of each warp.
Uniform: TypeAlias = bool | Literal["warp"]

_ALL: Final = 0xFFFFFFFF
_NAMED: Final = "name those that do in its membermask"
_OUT: Final = "move it out, where these lanes give a neutral element, such as k.selp(value, 0, condition)"
_BOUNDS: Final = (
    "bounds on which the lanes of a warp agree, and give those after the end a neutral element, such as "
    "k.selp(value, 0, i < n)"
)
_FALSE: Final = f"lanes of a warp where the condition is false never arrive; {_OUT}"
_PROMISE: Final = ", or promise that the lanes of each warp agree with {}(condition, uniform='warp')"
_LACKING: Final = {
    "when": _FALSE + _PROMISE.format("k.when"),
    "while_": _FALSE + _PROMISE.format("k.while_"),
    "strided": "lanes of a warp whose share has ended never arrive; move it out, or loop with k.loop(start, "
    f"stop) and {_BOUNDS}",
    "loop": f"lanes of a warp that have fewer iterations never arrive; move it out, or take {_BOUNDS}",
    "only_if": f"lanes of a warp where the condition is false do not execute it; {_OUT}",
}
_LACKING["otherwise"] = _LACKING["when"].replace("is false", "holds")
_LACKING["grid_strided"] = _LACKING["strided"]
_LEFT: Final = f"lanes of a warp that have left never arrive; {_OUT}{_PROMISE.format('k.break_if')}"


@dataclass
class _Open:
    """An open block: its kind, whether it splits a warp, what leaves it, the first instruction in it that
    needs all lanes of a warp, and whether all lanes arrive in it, as far as was asked.

    All lanes that enter a block run it: its condition is decided where it begins, variables are never judged,
    and `leave` refuses what would part lanes after an instruction that needs them all.
    """

    kind: str
    splits: Splits | None
    is_loop: bool
    breaks: list[Splits]
    gathered: str = ""
    is_complete: bool = False


class Gathering:
    """The open blocks of a kernel whose `statements` grow, in CTAs of `block_shape`, and which of them lanes
    of one warp run differently.
    """

    def __init__(self, statements: Sequence[ir.Statement], block_shape: Extents) -> None:
        self._threads = math.prod(block_shape)
        self._divergence = Divergence(statements, block_shape)
        self._open: list[_Open] = []

    def vary(self, variable: ir.Reg) -> None:
        """Note that a register is a variable, which may be written again."""
        self._divergence.vary(variable)

    def by(self, condition: Value) -> Splits:
        """Whether a predicate may differ between lanes of one warp, so that a branch splits the warp."""
        return lambda: self._divergence.splits(condition.reg)

    def by_bounds(self, start: Scalar, stop: Scalar, step: int, type: ScalarType) -> Splits:
        """Whether a loop from `start` to below `stop` splits a warp, in steps of a multiple of `step`."""
        first, last = (end.reg if isinstance(end, Value) else int(end) for end in (start, stop))
        return lambda: self._divergence.splits_loop(first, last, step, type)

    @contextmanager
    def opened(self, kind: str, splits: Splits | None, *, is_loop: bool) -> Iterator[None]:
        """A context in which instructions belong to the body of a block: of a loop, or of the branch `kind`.
        `splits` says whether its condition splits a warp.
        """
        self._open.append(_Open(kind, splits, is_loop, []))
        try:
            yield
        finally:
            self._open.pop()

    def leave(self, splits: Splits | None) -> None:
        """Note that threads may leave the innermost loop: whole warps, or if it `splits` them some of their
        lanes. Raises `TypeMismatchError` if an instruction of the loop needs all lanes.
        """
        at = max(n for n, block in enumerate(self._open) if block.is_loop)
        loop, inner = self._open[at], [block.splits for block in self._open[at + 1 :]]
        breaks = [one for one in (splits, *inner) if one is not None]
        if loop.gathered and any(one() for one in breaks):
            raise TypeMismatchError(f"break_if: {loop.gathered} is in the same loop, and {_LEFT}")
        loop.breaks += breaks

    def require(self, what: str, guard: ir.Guard | None, *, has_mask: bool = False) -> None:
        """Raise `TypeMismatchError` if some lanes of a warp do not arrive at the instruction `what`, which
        waits for all of them, or if it `has_mask` for those in its membermask.
        """
        if guard is None and (not self._open or self._open[-1].is_complete):
            return
        lacking = self._lacking(guard)
        if lacking and has_mask:
            lacking = lacking.replace("; move", f"; {_NAMED}, or move", 1)
        if lacking:
            raise TypeMismatchError(f"{what} {lacking}")
        for block in self._open:
            block.gathered = block.gathered or what
        if guard is None:
            self._open[-1].is_complete = True

    def _lacking(self, guard: ir.Guard | None) -> str:
        """A message on where lanes of a warp are lacking, and what to do; empty if all may arrive."""
        if guard is not None and self._divergence.splits(guard.register):
            return f"inside 'only_if': {_LACKING['only_if']}"
        for block in reversed(self._open):
            if block.splits is not None and block.splits():
                return f"inside '{block.kind}': {_LACKING[block.kind]}"
            if any(splits() for splits in block.breaks):
                return f"in a loop with break_if: {_LEFT}"
        return ""

    def require_whole_warps(self, what: str) -> None:
        """Raise `TypeMismatchError` if the last warp of the CTA has fewer than 32 threads."""
        if self._threads % WARP_SIZE:
            raise TypeMismatchError(
                f"{what} needs all lanes of a warp, and the last one of a CTA of {self._threads} threads has "
                f"{self._threads % WARP_SIZE}; take a multiple of {WARP_SIZE} threads"
            )

    def require_sources(self, what: str, mode: str, lane_of: ir.Operand, clamp: ir.Operand) -> None:
        """Raise `TypeMismatchError` if the shuffle `what` reads, in the last warp, a lane that the CTA does
        not have.
        """
        last = self._threads % WARP_SIZE
        if not last or mode not in _UNCLAMPED:
            return
        if not isinstance(lane_of, ir.IntImm) or not isinstance(clamp, ir.IntImm):
            return
        lanes = np.arange(last)
        b, c = (np.full(last, operand.value & _ALL, np.uint32) for operand in (lane_of, clamp))
        source, inside = source_lanes(lanes, b, c, mode)
        wrong = inside & (source >= last)
        if wrong.any():
            lane = int(wrong.argmax())
            raise TypeMismatchError(
                f"{what}: lane {lane} of the last warp reads lane {source[lane]}, but it has {last} lanes "
                f"in a CTA of {self._threads} threads; take a multiple of {WARP_SIZE} threads, or a word of "
                "k.warp, which leaves out the lanes that a warp lacks"
            )


_UNCLAMPED: Final = ("bfly", "idx")
