"""Sums, extremes and votes over the threads of a warp (`k.warp`) and of a CTA (`k.block`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias

from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Pointer, Value
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, f32, s32, u32

_TYPES: Final = (f32, u32, s32)  # 32 bits, which `shfl` moves
_ALL: Final = -1  # the membermask of a whole warp
_DISTANCES: Final = (16, 8, 4, 2, 1)
_LOG_WARP: Final = WARP_SIZE.bit_length() - 1

Join: TypeAlias = Callable[[Value, Value], Value]
Scratch: TypeAlias = Callable[[int, ScalarType], Pointer]


class Warp:
    """Reductions, scans and votes of a warp: all of its threads must arrive, and all get the result.

    Values are f32, u32 or s32. A last warp of fewer than 32 threads combines the threads it has.
    The order is fixed: lane i takes the value of lane i + 16, then of i + 8, i + 4, i + 2, i + 1,
    so that f32 sums are the same in every run and in every thread.
    """

    def __init__(self, k: Control) -> None:
        self._k = k

    def sum(self, value: Value) -> Value:
        """The sum of the values of the warp's threads, each addition rounded (or wrapped) once."""
        return self.joined("warp.sum", value, _sum)

    def max(self, value: Value) -> Value:
        """The largest value of the warp's threads; NaN is ignored unless all are NaN."""
        return self.joined("warp.max", value, self._k.max)

    def min(self, value: Value) -> Value:
        """The smallest value of the warp's threads; NaN is ignored unless all are NaN."""
        return self.joined("warp.min", value, self._k.min)

    def scan(self, value: Value) -> Value:
        """The sum of the values of this thread and of all lower lanes of its warp.

        Lane i adds the value of lane i - 1, then of i - 2, i - 4, i - 8 and i - 16, each addition
        rounded (or wrapped) once.
        """
        return self.scanned("warp.scan", value)

    def scanned(self, caller: str, value: Value) -> Value:
        """The inclusive sum over lanes, in each lane; errors name `caller`."""
        self._check(caller, value)
        for distance in reversed(_DISTANCES):
            below, inside = self._k.shfl_pred(value, distance, 0, _ALL, mode="up")
            value = self._k.selp(value + below, value, inside)
        return value

    def any(self, condition: Value) -> Value:
        """Whether a predicate holds in any thread of the warp, a predicate."""
        return self._vote("warp.any", condition, "any")

    def all(self, condition: Value) -> Value:
        """Whether a predicate holds in all threads of the warp, a predicate."""
        return self._vote("warp.all", condition, "all")

    def joined(self, caller: str, value: Value, join: Join) -> Value:
        """The values of the warp's threads, reduced to one by `join`, two at a time; errors name `caller`."""
        self._check(caller, value)
        k = self._k
        if k.threads % WARP_SIZE == 0:
            for distance in _DISTANCES:
                value = join(value, k.butterfly(value, distance))
            return value
        # Lanes beyond the last thread have no values; lane 0, which needs no others, spreads the result.
        last = k.min(k.threads - 1 - (k.thread_id() & -WARP_SIZE), WARP_SIZE - 1)
        for distance in _DISTANCES:
            above, inside = k.shfl_pred(value, distance, last, _ALL, mode="down")
            value = k.selp(join(value, above), value, inside)
        return k.shfl(value, 0, WARP_SIZE - 1, _ALL, mode="idx")

    def _check(self, caller: str, value: object) -> None:
        self._k.refuse_predicated(caller)
        self._k.require_lanes(caller)
        if not isinstance(value, Value) or value.type not in _TYPES:
            raise TypeMismatchError(
                f"{caller} takes an f32, u32 or s32 value of the kernel, got {shown(value)}"
            )

    def _vote(self, caller: str, condition: Value, mode: Literal["any", "all"]) -> Value:
        self._k.refuse_predicated(caller)
        self._k.require_lanes(caller)
        self._k.require_predicate(caller, condition)
        return self._k.vote(condition, _ALL, mode=mode)


class Cta:
    """Reductions and scans of a CTA: all of its threads must arrive, and all get the result.

    Values are f32, u32 or s32. Each warp joins its values as `k.warp` does, and writes the result to its slot
    in shared memory; then each thread joins the slots, warp 0 first, so that f32 sums are the same in every
    run and in every thread. A loop around the call must have the same bounds in all threads. `scratch(count,
    type)` returns the same shared memory at each call, for `count` elements of the type.
    """

    def __init__(self, k: Control, warp: Warp, scratch: Scratch) -> None:
        self._k = k
        self._warp = warp
        self._scratch = scratch
        self._used = False

    def sum(self, value: Value) -> Value:
        """The sum of the values of the CTA's threads, each addition rounded (or wrapped) once."""
        return self._joined("block.sum", value, _sum)

    def max(self, value: Value) -> Value:
        """The largest value of the CTA's threads; NaN is ignored unless all are NaN."""
        return self._joined("block.max", value, self._k.max)

    def min(self, value: Value) -> Value:
        """The smallest value of the CTA's threads; NaN is ignored unless all are NaN."""
        return self._joined("block.min", value, self._k.min)

    def scan(self, value: Value) -> Value:
        """The sum of the values of this thread and of all lower threads of the CTA.

        Each warp adds its values as `k.warp.scan` does; then the sum of the lower warps, warp 0 first, is
        added as the left operand.
        """
        k = self._k
        k.require_all_threads("block.scan")
        part = self._warp.scanned("block.scan", value)
        if self._warps == 1:
            return part
        slots = self._written(part, WARP_SIZE - 1)
        warp = k.thread_id() >> _LOG_WARP
        before, *others = _loaded(k, slots, self._warps - 1)
        result = k.selp(before + part, part, warp > 0)
        for lower, total in enumerate(others, 1):
            before = before + total
            result = k.selp(before + part, result, warp > lower)
        return result

    def _joined(self, caller: str, value: Value, join: Join) -> Value:
        k = self._k
        k.require_all_threads(caller)
        part = self._warp.joined(caller, value, join)
        if self._warps == 1:
            return part
        total, *others = _loaded(k, self._written(part, 0), self._warps)
        for other in others:
            total = join(total, other)
        return total

    @property
    def _warps(self) -> int:
        return -(-self._k.threads // WARP_SIZE)

    def _written(self, part: Value, lane: int) -> Pointer:
        """The shared slots, one for each warp, in which lane `lane` of each warp has stored `part`. All
        threads may read them.
        """
        k = self._k
        if self._used or k.is_in_block:
            k.barrier()  # all threads have read what the reduction before this one wrote
        self._used = True
        slots, thread = self._scratch(self._warps, part.type), k.thread_id()
        slot, is_writer = slots.element(thread >> _LOG_WARP), (thread & (WARP_SIZE - 1)) == lane
        with k.only_if(is_writer):
            k.store(slot, part)
        k.barrier()
        return slots


def _sum(a: Value, b: Value) -> Value:
    return a + b


def _loaded(k: Control, at: Pointer, count: int) -> Iterator[Value]:
    """The first `count` elements at a pointer, by the fewest loads."""
    done = 0
    while done < count:
        size = next(s for s in (4, 2, 1) if s <= count - done)
        loaded = k.load(at.at(done), size)
        yield from loaded if isinstance(loaded, tuple) else (loaded,)
        done += size
