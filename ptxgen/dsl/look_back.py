"""Scans over the threads of the grid in one launch, by decoupled look-back (`k.look_back`).

Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016): each CTA publishes
the total of its threads, adds the totals of the CTAs before it, newest first, until one of them has published
the total from the first CTA on, and publishes the same for itself.

A CTA waits for CTAs with lower numbers only, and a number is taken when a CTA begins. So the one with the
lowest number among those that have not ended never waits, whatever order the hardware begins CTAs in, and
however few of them are resident. The state of a CTA is one word of 64 bits, a value and a flag. One
access writes or reads both, so that no order between two accesses is needed ("relaxed", PTX ISA, "Memory
Consistency Model").
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from ptxgen.dsl.atomics import Atomic
from ptxgen.dsl.collective import Cta, Warp
from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Pointer, Value, Var
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import b32, f32, s32, u32, u64

_TOTAL: Final = 1  # the flag of a word with the total of a CTA
_UP_TO: Final = 2  # that of a word with the total of all CTAs up to this one
_TYPES: Final = (f32, u32, s32)


class LookBack:
    """The CTAs of a grid in the order in which they begin: `index` is this CTA's number in it, u32."""

    def __init__(self, k: Control, atomic: Atomic, warp: Warp, block: Cta, state: object) -> None:
        if not isinstance(state, Pointer) or state.space != "global" or state.dtype is not u64:
            raise TypeMismatchError(
                f"look_back: the state must be a pointer to u64 in global memory, got {shown(state)}"
            )
        if k.threads % WARP_SIZE:
            raise ConfigError(f"look_back: threads must be a multiple of {WARP_SIZE}, got {k.threads}")
        k.require_all_threads("look_back")
        self._k = k
        self._warp = warp
        self._block = block
        self._state = state.at(1)
        self._used = False
        taken = k.var(u32, 0)
        with k.when(k.thread_index() == 0):
            taken.set(atomic.add(Pointer(state.base, "global", u32, state.offset), 1))
        # A state that was not 0 before the launch must not lead out of the array.
        self.index: Value = k.min(block.broadcast(taken, 0), k.blocks() - 1)

    def scan(self, value: Value, combine: Callable[[Value, Value], Value] | None = None) -> Value:
        """The sum of the values of this thread, of all lower threads of its CTA and of all threads of CTAs
        with lower numbers. `combine(a, b)`, if there is one, replaces the sum: an associative function, whose
        `a` is the result for threads before those of `b`. Values are f32, u32 or s32.

        Which totals are added first depends on how far other CTAs are, so that sums of floats may differ
        in the last bits from launch to launch. All threads of the CTA arrive. Raises `TypeMismatchError` for
        other values, and `ConfigError` for a second scan, which needs another state.
        """
        k = self._k
        if self._used:
            raise ConfigError(
                "look_back: a state serves one scan; make another k.look_back with another state"
            )
        if getattr(value, "type", None) not in _TYPES:
            raise TypeMismatchError(f"look_back: scan takes an f32, u32 or s32 value, got {shown(value)}")
        self._used = True
        join: Callable[[Value, Value], Value] = combine if combine is not None else lambda a, b: a + b
        inside = self._block.scan(value, join)
        total = self._block.broadcast(inside, k.threads - 1)
        before = k.var(value.type, 0)
        with k.when(k.thread_index() < WARP_SIZE, uniform="warp"):
            self._publish(total, k.selp(_UP_TO, _TOTAL, self.index == 0, type=u32))
            with k.when(self.index != 0, uniform="warp"):
                self._look_back(before, join)
                self._publish(join(before, total), k.mov(_UP_TO, type=u32))
        before_all = self._block.broadcast(before, 0)
        return k.selp(inside, join(before_all, inside), self.index == 0)

    def _publish(self, value: Value, flag: Value) -> None:
        k = self._k
        word = k.pack([value.as_(u32), flag])
        with k.when(k.thread_index() == 0):
            k.st_ordered(
                self._state.element(self.index), word, sem="relaxed", scope="gpu", space="global", type=u64
            )

    def _look_back(self, before: Var, join: Callable[[Value, Value], Value]) -> None:
        """Set `before` to the total of all CTAs with lower numbers, in the first warp: its lanes read the
        words of 32 CTAs at once, the nearest one in lane 0.
        """
        k = self._k
        lane, end = k.thread_index(), k.var(u32, self.index)  # the first of the CTAs that are done
        has_value = k.var(u32, 0)  # whether `before` has a value
        word, flag = k.var(u64, 0), k.var(u32, 0)

        def has_come(at: Pointer) -> Value:
            word.set(k.ld_ordered(at, sem="relaxed", scope="gpu", space="global", type=u64))
            flag.set(k.unpack(word)[1].as_(u32))
            return flag != 0

        with k.while_(lambda: end != 0, uniform="warp"):
            flag.set(0)
            with k.when(lane < end):
                at = self._state.element(k.min(end - 1 - lane, self.index))
                k.repeat_until(functools.partial(has_come, at))
            # Lanes up to the first one with a total of all CTAs up to it; the others have nothing to add.
            up_to = k.ballot(flag == _UP_TO, -1)
            last = k.clz(k.brev(up_to, type=b32), type=b32)
            counts = k.selp(1, 0, (flag != 0) & (lane <= last), type=u32)
            value = k.unpack(word)[0].as_(before.type)

            def later(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
                both = k.selp(join(b[1], a[1]), a[1], b[0] != 0)
                return a[0] | b[0], k.selp(both, b[1], a[0] != 0)

            _, sum_of_lanes = self._warp.reduce((counts, value), later)
            before.set(k.selp(join(sum_of_lanes, before), sum_of_lanes, has_value != 0))
            has_value.set(1)
            end.set(k.selp(0, end - k.min(end, WARP_SIZE), up_to.as_(u32) != 0))
