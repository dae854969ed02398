"""Reductions, scans, votes and sorts over the threads of a warp (`k.warp`) and of a CTA (`k.block`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

from ptxgen.dsl.control import Control
from ptxgen.dsl.sorting import sorted_threads
from ptxgen.dsl.values import Pointer, Value
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, f32, s32, u32

_TYPES: Final = (f32, u32, s32)  # 32 bits, which `shfl` moves
_ALL: Final = -1  # the membermask of a whole warp
_DISTANCES: Final = (16, 8, 4, 2, 1)
_LOG_WARP: Final = WARP_SIZE.bit_length() - 1

Join: TypeAlias = Callable[[Value, Value], Value]
Values = TypeVar("Values", bound=Value | tuple[Value, ...])
_Order: TypeAlias = Literal["gt", "lt"]
Combine: TypeAlias = Callable[[tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]]


class Scratch(Protocol):
    """Returns the same shared memory at each call with a name, for `count` elements of the type."""

    def __call__(self, count: int, dtype: ScalarType, name: str = ..., /) -> Pointer:
        """The pointer to shared memory for `count` elements of the type, the same for the same name."""


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

    def scan(self, value: Values, combine: Callable[[Values, Values], Values] | None = None) -> Values:
        """The sum of the values of this thread and of all lower lanes of its warp; or what `combine` makes of
        them, as for `reduce`.

        Lane i takes the value of lane i - 1, then of i - 2, i - 4, i - 8 and i - 16, each addition
        rounded (or wrapped) once.
        """
        values, joined = self.operands("warp.scan", value, combine)
        return _like(value, self.scanned(values, joined))

    def scanned(self, values: tuple[Value, ...], combine: Combine) -> tuple[Value, ...]:
        """The result of the inclusive scan over the warp's lanes, in each lane."""
        k = self._k
        for distance in reversed(_DISTANCES):
            moved = [k.shfl_pred(value, distance, 0, _ALL, mode="up") for value in values]
            below, inside = tuple(below for below, _ in moved), moved[0][1]
            joined = combine(below, values)
            values = tuple([k.selp(new, value, inside) for new, value in zip(joined, values, strict=True)])
        return values

    def reduce(self, value: Values, combine: Callable[[Values, Values], Values]) -> Values:
        """What `combine` makes of the values of the warp's threads, in the order of their lanes.

        `combine(a, b)` takes two values, or two tuples of as many as `value` has, and returns another one of
        the same types; it must be associative, and need not commute. `a` is of lower lanes than `b`.
        """
        values, joined = self.operands("warp.reduce", value, combine)
        return _like(value, self.reduced(values, joined))

    def reduced(self, values: tuple[Value, ...], combine: Combine) -> tuple[Value, ...]:
        """The values of the warp's lanes combined in the order of the lanes, in each lane."""
        k = self._k
        is_full = k.threads % WARP_SIZE == 0
        last = WARP_SIZE - 1 if is_full else self._last_lane()
        for distance in reversed(_DISTANCES):
            # Lanes whose partner is beyond the last one have results that lane 0 does not take.
            moved = [k.shfl_pred(value, distance, last, _ALL, mode="down") for value in values]
            joined = combine(values, tuple(above for above, _ in moved))
            inside = moved[0][1]
            values = tuple([k.selp(new, value, inside) for new, value in zip(joined, values, strict=True)])
        return tuple([k.shfl(value, 0, WARP_SIZE - 1, _ALL, mode="idx") for value in values])

    def argmax(self, value: Value, index: Value) -> tuple[Value, Value]:
        """The largest value of the warp's threads, and its `index`, a u32 or s32: of equal values the least
        index. NaN is ignored unless all are NaN.
        """
        return self._extreme("warp.argmax", value, index, "gt")

    def argmin(self, value: Value, index: Value) -> tuple[Value, Value]:
        """The smallest value of the warp's threads, and its `index`, as `argmax` has them."""
        return self._extreme("warp.argmin", value, index, "lt")

    def _extreme(self, caller: str, value: Value, index: Value, cmp: _Order) -> tuple[Value, Value]:
        values, combine = self.extremes(caller, value, index, cmp)
        best, at = self.reduced(values, combine)
        return best, at

    def extremes(
        self, caller: str, value: Value, index: Value, cmp: _Order
    ) -> tuple[tuple[Value, ...], Combine]:
        """For argmax: a value with its index, and a function that takes the better of two, the one that
        compares as `cmp` says, of equal ones that with the lesser index.
        """
        self._check(caller, value)
        if getattr(index, "type", None) not in (u32, s32):
            raise TypeMismatchError(f"{caller} takes a u32 or s32 value as its index, got {shown(index)}")
        k = self._k

        def better(a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
            takes = k.setp(b[0], a[0], cmp=cmp) | ((b[0] == a[0]) & (b[1] < a[1]))
            if value.type is f32:
                takes = takes | k.setp(a[0], a[0], cmp="nan") & k.setp(b[0], b[0], cmp="num")
            return k.selp(b[0], a[0], takes), k.selp(b[1], a[1], takes)

        return (value, index), better

    def operands(
        self, caller: str, value: Any, combine: Callable[..., Any] | None
    ) -> tuple[tuple[Value, ...], Combine]:
        """The values of a call and an operator on tuples of them: `combine`, or their sum without one."""
        is_tuple = isinstance(value, tuple)
        values = value if isinstance(value, tuple) else (value,)
        for each in values or (value,):
            self._check(caller, each)
        if combine is None:
            if is_tuple:
                raise TypeMismatchError(
                    f"{caller} adds single values; give combine= for {len(values)} values"
                )
            return values, lambda a, b: (b[0] + a[0],)
        if not callable(combine):
            raise TypeMismatchError(
                f"{caller}: combine must be a function of two values, got {shown(combine)}"
            )

        def checked(a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
            joined = combine(_like(value, a), _like(value, b))
            result = tuple(joined) if is_tuple and isinstance(joined, tuple) else (joined,)
            types = [each.type if isinstance(each, Value) else None for each in result]
            if types != [each.type for each in values]:
                wanted = ", ".join(str(each.type) for each in values)
                raise TypeMismatchError(
                    f"{caller}: combine must return {'a tuple of ' if is_tuple else ''}{wanted}, as its "
                    f"operands are, got {shown(joined)}"
                )
            return result

        return values, checked

    def _last_lane(self) -> Value:
        """The last lane of this thread's warp that has a thread."""
        k = self._k
        return k.min(k.threads - 1 - (k.thread_index() & -WARP_SIZE), WARP_SIZE - 1)

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
        last = self._last_lane()
        for distance in _DISTANCES:
            above, inside = k.shfl_pred(value, distance, last, _ALL, mode="down")
            value = k.selp(join(value, above), value, inside)
        return k.shfl(value, 0, WARP_SIZE - 1, _ALL, mode="idx")

    def _check(self, caller: str, value: object) -> None:
        self._k.refuse_predicated(caller)
        self._k.require_lanes(caller)
        if not isinstance(value, Value) or value.type not in _TYPES:
            raise TypeMismatchError(
                f"{caller} takes an f32, u32 or s32 value of the kernel, got {shown(value)}; convert it with "
                "k.cvt(value, dtype=f32), or make a value of a Python number with k.mov(1.0, type=f32)"
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
    run and in every thread. A loop around the call must have the same bounds in all threads.
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

    def scan(self, value: Values, combine: Callable[[Values, Values], Values] | None = None) -> Values:
        """The sum of the values of this thread and of all lower threads of the CTA; or what `combine` makes
        of them, as for `k.warp.reduce`.

        Each warp scans its values as `k.warp.scan` does; then the result of the lower warps, warp 0 first, is
        taken as the left operand.
        """
        k = self._k
        k.require_all_threads("block.scan")
        values, joined = self._warp.operands("block.scan", value, combine)
        # A sum is before + total, and after it before + the warp's own.
        after = joined if combine is not None else lambda a, b: (a[0] + b[0],)
        part = self._warp.scanned(values, joined)
        if self._warps == 1:
            return _like(value, part)
        slots = self._written(part, WARP_SIZE - 1)
        warp = k.thread_index() >> _LOG_WARP
        before, *others = _loaded(k, slots, self._warps - 1)
        result = self._where(after(before, part), part, warp > 0)
        for lower, total in enumerate(others, 1):
            before = after(before, total)
            result = self._where(after(before, part), result, warp > lower)
        return _like(value, result)

    def reduce(self, value: Values, combine: Callable[[Values, Values], Values]) -> Values:
        """What `combine` makes of the values of the CTA's threads, in the order of the threads; `combine` is
        that of `k.warp.reduce`.
        """
        self._k.require_all_threads("block.reduce")
        values, joined = self._warp.operands("block.reduce", value, combine)
        return _like(value, self._folded(self._warp.reduced(values, joined), joined))

    def argmax(self, value: Value, index: Value) -> tuple[Value, Value]:
        """The largest value of the CTA's threads, and its `index`, a u32 or s32: of equal values the least
        index. NaN is ignored unless all are NaN.
        """
        return self._extreme("block.argmax", value, index, "gt")

    def argmin(self, value: Value, index: Value) -> tuple[Value, Value]:
        """The smallest value of the CTA's threads, and its `index`, as `argmax` has them."""
        return self._extreme("block.argmin", value, index, "lt")

    def _extreme(self, caller: str, value: Value, index: Value, cmp: _Order) -> tuple[Value, Value]:
        self._k.require_all_threads(caller)
        values, combine = self._warp.extremes(caller, value, index, cmp)
        best, at = self._folded(self._warp.reduced(values, combine), combine)
        return best, at

    def broadcast(self, value: Values, thread: Value | int) -> Values:
        """The values of the CTA's thread with an index, in each thread; all threads name the same one."""
        k = self._k
        k.require_all_threads("block.broadcast")
        values, _ = self._warp.operands("block.broadcast", value, lambda a, _: a)
        slots = self._slots(values, self._warps)
        self._store(slots, values, k.thread_index() == thread)
        return _like(value, tuple([k.load(slot) for slot in slots]))

    def sort(self, value: Values, *, descending: bool = False) -> Values:
        """The values of the CTA's threads in order: thread 0 gets the smallest one, or the largest if
        `descending`. Of a tuple the first value is the key, and the others go with it; of equal keys the one
        comes first whose second value is less, as an unsigned number, so that a thread's index there keeps
        equal keys in order. -0 is less than 0, and NaN comes after infinity.

        The CTA has 2, 4, 8, … threads. It is a bitonic sort of log2(threads) (log2(threads) + 1) / 2 steps,
        each of which exchanges values with one other thread, by a shuffle or through shared memory (Batcher,
        "Sorting networks and their applications", 1968). Raises `ConfigError` for other numbers of threads.
        """
        k = self._k
        k.require_all_threads("block.sort")
        values, _ = self._warp.operands("block.sort", value, lambda a, _: a)
        if k.threads & (k.threads - 1) or k.threads == 1:
            raise ConfigError(
                f"block.sort: it sorts the values of 2, 4, 8, … threads, but the CTA has {k.threads}; launch "
                "more, and give those without a value one that comes last, such as k.inf"
            )
        return _like(value, sorted_threads(k, values, descending, self._exchanged))

    def _exchanged(self, values: Sequence[Value], distance: int) -> tuple[Value, ...]:
        """The values of the thread whose index is this thread's xor `distance`."""
        k = self._k
        if distance < WARP_SIZE:
            return tuple([k.butterfly(value, distance) for value in values])
        slots = self._slots(values, k.threads)
        self._store([slot.element(k.thread_index()) for slot in slots], values)
        return tuple([k.load(slot.element(k.thread_index() ^ distance)) for slot in slots])

    def _joined(self, caller: str, value: Value, join: Join) -> Value:
        self._k.require_all_threads(caller)
        part = self._warp.joined(caller, value, join)
        return self._folded((part,), lambda a, b: (join(a[0], b[0]),))[0]

    def _folded(self, part: tuple[Value, ...], combine: Combine) -> tuple[Value, ...]:
        """The results of all warps of the CTA, combined in the warps' order; `part` is this warp's."""
        if self._warps == 1:
            return part
        total, *others = _loaded(self._k, self._written(part, 0), self._warps)
        for other in others:
            total = combine(total, other)
        return total

    def _where(
        self, those: tuple[Value, ...], others: tuple[Value, ...], condition: Value
    ) -> tuple[Value, ...]:
        return tuple([self._k.selp(a, b, condition) for a, b in zip(those, others, strict=True)])

    @property
    def _warps(self) -> int:
        return -(-self._k.threads // WARP_SIZE)

    def _written(self, part: Sequence[Value], lane: int) -> list[Pointer]:
        """The shared slots, one for each warp, in which lane `lane` of each warp has stored each value of
        `part`. All threads may read them.
        """
        k = self._k
        slots = self._slots(part, self._warps)
        thread = k.thread_index()
        targets = [slot.element(thread >> _LOG_WARP) for slot in slots]
        self._store(targets, part, (thread & (WARP_SIZE - 1)) == lane)
        return slots

    def _slots(self, values: Sequence[Value], count: int) -> list[Pointer]:
        """The pointers to `count` shared elements for each value, which all threads may write."""
        if self._used or self._k.is_in_block:
            self._k.barrier()  # all threads have read what was stored before
        self._used = True
        slots = []
        for number, value in enumerate(values):
            name = () if count == self._warps and not number else (f"k.block {number} of {count}",)
            slots.append(self._scratch(count, value.type, *name))
        return slots

    def _store(
        self, targets: Sequence[Pointer], values: Sequence[Value], writes: Value | None = None
    ) -> None:
        """Store values, in the threads that have a predicate; after that all threads may read them."""
        k = self._k
        for target, value in zip(targets, values, strict=True):
            with contextlib.nullcontext() if writes is None else k.only_if(writes):
                k.store(target, value)
        k.barrier()


def _sum(a: Value, b: Value) -> Value:
    return a + b


def _loaded(k: Control, slots: Sequence[Pointer], count: int) -> Iterator[tuple[Value, ...]]:
    """The first `count` elements at each of several pointers, by the fewest loads."""
    done = 0
    while done < count:
        size = next(s for s in (4, 2, 1) if s <= count - done)
        loaded = [k.load(at.at(done), size) for at in slots]
        yield from zip(*(each if isinstance(each, tuple) else (each,) for each in loaded), strict=True)
        done += size


def _like(value: Values, values: tuple[Value, ...]) -> Values:
    """Values as the argument of a call was: a tuple of them, or one."""
    return cast("Values", values if isinstance(value, tuple) else values[0])
