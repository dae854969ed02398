"""The keys that a mask_mod may show to some of a range of queries: bounds that follow from its
comparisons. Kernels and numpy leave out what lies beyond them.

A comparison of sums bounds the key where the key, or key // n, is a term of factor 1 or -1: query
>= key, query - key < n, query // n == key // n, key < lengths[batch]. & has the narrower bounds, |
the wider ones; any other condition has none. Bounds are exact or too wide, never too narrow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from flash.mods.operations import LEAST, MOST, OPERATIONS
from flash.mods.trace import INDICES, AuxArray, Step, Trace
from flash.operands.declared import MAX_WINDOWED_SEQ
from ptxgen.types import s32

_FAR = 2**30 + 2**28  # farther than any key, even less `_NEAR`
_NEAR = 2**28


class Range(NamedTuple):
    """The least and the largest value of an integer that are known without a call."""

    low: int
    high: int

    @property
    def fits(self) -> bool:
        """Whether all values are s32, so that nothing wraps."""
        return self.low >= LEAST and self.high <= MOST


_FULL = Range(LEAST, MOST)
_INPUTS = {name: Range(0, MOST) for name in INDICES} | {
    "query": Range(-MAX_WINDOWED_SEQ, MAX_WINDOWED_SEQ),
    "key": Range(0, MAX_WINDOWED_SEQ),
}


@functools.lru_cache(maxsize=256)
def ranges(trace: Trace) -> tuple[Range | None, ...]:
    """The range of each integer step; None for a step that may wrap, and for steps of other types."""
    known_ranges: list[Range | None] = []
    for step in trace.steps:
        args = [known_ranges[n] for n in step.args]
        known = _range(trace, step, args) if step.kind is s32 else None
        known_ranges.append(known if known is not None and known.fits else None)
    return tuple(known_ranges)


def _range(trace: Trace, step: Step, args: Sequence[Range | None]) -> Range | None:
    if step.op == "load":
        bits = trace.array(step).dtype.scalar.bits
        return _FULL if bits >= s32.bits else Range(0, 2**bits - 1)
    if step.op == "input":
        return _INPUTS[str(step.value)]
    if step.op == "const":
        return Range(int(step.value or 0), int(step.value or 0))
    of = [arg for n, arg in zip(step.args, args, strict=True) if trace.steps[n].kind is s32]
    if None in of and step.op != "mod":  # whose result has the same limits for all operands
        return None
    ends = OPERATIONS[step.op].ends([arg for arg in of if arg is not None], step.value)
    return None if ends is None else Range(*ends)


class Interval(NamedTuple):
    """The least and the largest value of an integer in one call: ints, or values of a kernel. Both are the
    same object if the integer has only one value.
    """

    low: Any
    high: Any


class Calls(Protocol):
    """The intervals of a call's indices, and arithmetic on their limits, which are Python ints on the
    host and values in a kernel.
    """

    def index(self, name: str) -> Interval | None:
        """The interval of the batch, head or query; None if it is not known."""

    def element(self, array: AuxArray, indices: Sequence[Interval]) -> Interval | None:
        """The interval of an element of an array; None if it is not known."""

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two limits."""

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two limits."""

    def floor_divided(self, a: Any, by: int) -> Any:
        """a // by, rounded down."""


class KeyBounds(NamedTuple):
    """The first and the last key that may be seen; None for no bound."""

    first: Any
    last: Any


NO_BOUNDS = KeyBounds(None, None)
_ZERO = Interval(0, 0), Range(0, 0)
_MOST_RANGES = 4  # with which a kernel compares each tile
# What a condition is where it does not hold; comparisons of swapped operands.
_DUAL = {"and": "or", "or": "and", "lt": "le", "le": "lt", "eq": "ne", "ne": "eq"}


def bounds_keys(trace: Trace) -> bool:
    """Whether `key_bounds` may find a bound for some call."""
    return key_bounds(trace, _Hopeful()) != NO_BOUNDS


def has_gaps(trace: Trace) -> bool:
    """Whether `seen_ranges` may find ranges, or `block_flags` flags, for some call."""
    return seen_ranges(trace, _Hopeful()) is not None or bool(block_flags(trace, _Hopeful()))


def shows_tiles(trace: Trace) -> bool:
    """Whether `hiding_bounds` may find ranges for some call."""
    return hiding_bounds(trace, _Hopeful()) is not None


def key_bounds(trace: Trace, call: Calls) -> KeyBounds:
    """The bounds of the keys that a mask_mod may show in a call."""
    return _Solver(trace, call).bounds(trace.result)


def hiding_bounds(trace: Trace, call: Calls) -> list[KeyBounds] | None:
    """Ranges of keys beyond which a mask_mod hides no key from any query of a call: a tile that meets
    none of them is seen as a whole. None if it may hide any key.
    """
    solver = _Solver(trace, call)
    bounds = [solver.bounds(n, negated=not negated) for n, negated in solver.parts(trace.result)]
    is_open = [one.first is None and one.last is None for one in bounds]
    return None if any(is_open) else bounds


def seen_ranges(trace: Trace, call: Calls) -> list[KeyBounds] | None:
    """Ranges of keys, at least two, outside of which a mask_mod shows no key to any query of a call; None
    if no such ranges are known. `key_bounds` is around all of them.
    """
    alternatives = _Solver(trace, call).alternatives(trace.result)
    is_open = [one.first is None and one.last is None for one in alternatives]
    return None if any(is_open) or len(alternatives) == 1 else alternatives


def block_flags(trace: Trace, call: Calls) -> list[tuple[AuxArray, list[Interval]]]:
    """The arrays of flags that must be True where a mask_mod shows a key, with the intervals of their
    indices for a range of keys: `blocks[query // 128, key // 128]`.
    """
    solver, flags = _Solver(trace, call), []
    for n, negated in solver.parts(trace.result):
        step = trace.steps[n]
        if step.op == "load" and not negated and "key" in trace.inputs[n]:
            indices = [one for at in step.args if (one := solver.interval(at)) is not None]
            if len(indices) == len(step.args):
                flags.append((trace.array(step), indices))
    return flags


class Form(NamedTuple):
    """A sum of integers: factors of steps, and a constant."""

    factors: dict[int, int]
    constant: int

    def plus(self, other: Form, times: int) -> Form:
        """The sum of this form and `times` times the other."""
        factors = dict(self.factors)
        for step, factor in other.factors.items():
            factors[step] = factors.get(step, 0) + times * factor
        nonzero = {step: factor for step, factor in factors.items() if factor}
        return Form(nonzero, self.constant + times * other.constant)


def form(trace: Trace, n: int) -> Form:
    """The value of an integer step as a sum of steps; a step that may wrap is one term."""
    step = trace.steps[n]
    if step.op == "const":
        return Form({}, int(step.value or 0))
    if ranges(trace)[n] is not None:
        if step.op in ("add", "sub"):
            a, b = (form(trace, at) for at in step.args)
            return a.plus(b, 1 if step.op == "add" else -1)
        if step.op == "neg":
            return Form({}, 0).plus(form(trace, step.args[0]), -1)
        if step.op == "mul":
            for one, other in (step.args, step.args[::-1]):
                if trace.steps[other].op == "const":
                    return Form({}, 0).plus(form(trace, one), int(trace.steps[other].value or 0))
    return Form({n: 1}, 0)


def factor_of_key(trace: Trace, a: int, b: int | None = None) -> int:
    """By how much the integer step `a`, less the step `b` if it is not None, grows from one key to the next;
    0 if it may wrap, or grows by a number other than 1 and -1.
    """
    indices = [n for n in (a, b) if n is not None]
    known = [one for n in indices if (one := ranges(trace)[n]) is not None]
    if len(known) < len(indices):
        return 0
    if b is not None and not Range(*(OPERATIONS["sub"].ends(known, None) or _FULL)).fits:
        return 0
    whole = form(trace, a) if b is None else form(trace, a).plus(form(trace, b), -1)
    with_key = [n for n in whole.factors if "key" in trace.inputs[n]]
    if len(with_key) != 1 or trace.steps[with_key[0]].op != "input":
        return 0
    factor = whole.factors[with_key[0]]
    return factor if abs(factor) == 1 else 0


class _Solver:
    """Solves the comparisons of a trace for the key."""

    def __init__(self, trace: Trace, call: Calls) -> None:
        self.trace = trace
        self.call = call
        self.ranges = ranges(trace)
        self._intervals: dict[int, Interval | None] = {}

    def bounds(self, n: int, *, negated: bool = False) -> KeyBounds:
        """The bounds of the keys for which the condition of step `n` may hold, or with `negated` may not
        hold.
        """
        step = self.trace.steps[n]
        if step.op == "not":
            return self.bounds(step.args[0], negated=not negated)
        if step.op in ("and", "or"):
            op = step.op if not negated else _DUAL[step.op]
            return self._joined(op, *(self.bounds(at, negated=negated) for at in step.args))
        if step.op not in _DUAL or self.trace.steps[step.args[0]].kind is not s32:
            return NO_BOUNDS
        op, args = (_DUAL[step.op], step.args[::-1]) if negated else (step.op, step.args)
        if op == "ne":
            return NO_BOUNDS
        a, b = (form(self.trace, at) for at in args)
        apart = a.plus(b, -1)
        if op == "lt":
            apart = Form(apart.factors, apart.constant + 1)
        bounds = self._at_most(apart, *_ZERO)
        if op != "eq":
            return bounds
        return self._joined("and", bounds, self._at_most(Form({}, 0).plus(apart, -1), *_ZERO))

    def alternatives(self, n: int, *, negated: bool = False) -> list[KeyBounds]:
        """Ranges of keys, in one of which a key is if the condition of step `n` holds for it, or with
        `negated` does not.
        """
        step = self.trace.steps[n]
        if step.op == "not":
            return self.alternatives(step.args[0], negated=not negated)
        if step.op not in ("and", "or"):
            return [self.bounds(n, negated=negated)]
        a, b = (self.alternatives(at, negated=negated) for at in step.args)
        if (step.op == "or") != negated:
            joined = a + b
        else:
            joined = [self._joined("and", one, other) for one in a for other in b]
        return joined if len(joined) <= _MOST_RANGES else [self.bounds(n, negated=negated)]

    def parts(self, n: int, *, negated: bool = False) -> Iterator[tuple[int, bool]]:
        """The conditions that all hold if step `n` holds, or with `negated` does not: each is a step, and
        whether it is negated.
        """
        step = self.trace.steps[n]
        if step.op == "not":
            yield from self.parts(step.args[0], negated=not negated)
        elif step.op == ("or" if negated else "and"):
            for at in step.args:
                yield from self.parts(at, negated=negated)
        else:
            yield n, negated

    def _joined(self, op: str, a: KeyBounds, b: KeyBounds) -> KeyBounds:
        if op == "or":
            first = last = None
            if a.first is not None and b.first is not None:
                first = self.call.minimum(a.first, b.first)
            if a.last is not None and b.last is not None:
                last = self.call.maximum(a.last, b.last)
            return KeyBounds(first, last)
        first = a.first if b.first is None else b.first
        last = a.last if b.last is None else b.last
        if a.first is not None and b.first is not None:
            first = self.call.maximum(a.first, b.first)
        if a.last is not None and b.last is not None:
            last = self.call.minimum(a.last, b.last)
        return KeyBounds(first, last)

    def _at_most(self, form: Form, most: Interval, limits: Range) -> KeyBounds:
        """The bounds of the key where the form is at most `most`, which lies within `limits`."""
        with_key = [n for n in form.factors if "key" in self.trace.inputs[n]]
        if len(with_key) != 1 or abs(form.factors[with_key[0]]) != 1:
            return NO_BOUNDS
        at = with_key[0]
        factor = form.factors[at]
        rest = self._sum(
            Form({n: f for n, f in form.factors.items() if n != at}, form.constant), most, limits
        )
        if rest is None:
            return NO_BOUNDS
        interval, known = rest
        if factor > 0:  # the term is at most -rest
            return self._key_of(at, KeyBounds(None, -interval.low), Range(-known.high, -known.low))
        return self._key_of(at, KeyBounds(interval.low, None), known)

    def _key_of(self, at: int, term: KeyBounds, known: Range) -> KeyBounds:
        """The bounds of the key, given those of a term in which it occurs, which are within `known`."""
        step = self.trace.steps[at]
        if step.op == "input":
            return term
        if step.op == "abs" and term.last is not None:
            of, most = form(self.trace, step.args[0]), Interval(term.last, term.last)
            both = (of, Form({}, 0).plus(of, -1))
            return self._joined("and", *(self._at_most(one, most, known) for one in both))
        if step.op != "floordiv":
            return NO_BOUNDS
        by, inner = int(step.value or 1), form(self.trace, step.args[0])
        if len(inner.factors) != 1 or list(inner.factors.values()) != [1]:
            return NO_BOUNDS
        wider = Range(known.low * by - inner.constant, known.high * by + by - 1 - inner.constant)
        if not wider.fits or not Range(known.low * by, known.high * by + by - 1).fits:
            return NO_BOUNDS
        first = None if term.first is None else term.first * by - inner.constant
        last = None if term.last is None else term.last * by + (by - 1 - inner.constant)
        return self._key_of(next(iter(inner.factors)), KeyBounds(first, last), wider)

    def _sum(self, form: Form, less: Interval, limits_of_less: Range) -> tuple[Interval, Range] | None:
        """The interval of a form without the key, less a number, and the range in which it lies
        anyway. At most one term may be any s32: it is limited to a number that is farther than any key.
        """
        total = Interval(form.constant - less.high, form.constant - less.low)
        known = Range(form.constant - limits_of_less.high, form.constant - limits_of_less.low)
        wide = 0
        for n, factor in form.factors.items():
            term, limits = self.interval(n), self.ranges[n]
            if term is None or limits is None:
                return None
            if limits == _FULL and abs(factor) == 1:
                wide += 1
                limits = Range(-_FAR, _FAR)
                low, high = (self.call.maximum(self.call.minimum(x, _FAR), -_FAR) for x in term)
                term = Interval(low, high)
            else:
                reach = max(abs(limits.low), abs(limits.high)) * abs(factor)
                known = Range(known.low - reach, known.high + reach)
            total = Interval(*_sum_of(total, term, factor))
        if wide:
            if wide > 1 or max(-known.low, known.high) > _NEAR:
                return None
            known = Range(known.low - _FAR, known.high + _FAR)
        return (total, known) if known.fits and Range(-known.high, -known.low).fits else None

    def interval(self, n: int) -> Interval | None:
        """The interval of an integer step in the call; None if it is not known."""
        if n not in self._intervals:
            self._intervals[n] = self._new_interval(n)
        return self._intervals[n]

    def _new_interval(self, n: int) -> Interval | None:
        step = self.trace.steps[n]
        if step.op == "input":
            return self.call.index(str(step.value))
        if step.op == "const":
            return Interval(int(step.value or 0), int(step.value or 0))
        of = [self.interval(at) for at in (step.args[1:] if step.op == "where" else step.args)]
        args = [one for one in of if one is not None]
        if len(args) < len(of) or self.ranges[n] is None:
            return None
        if step.op == "load":
            return self.call.element(self.trace.array(step), args)
        return self._computed(step, args)

    def _computed(self, step: Step, args: Sequence[Interval]) -> Interval | None:
        call, a, b = self.call, args[0], args[-1]
        if step.op == "where":
            return Interval(call.minimum(a.low, b.low), call.maximum(a.high, b.high))
        if step.op in ("min", "max"):
            choose = call.minimum if step.op == "min" else call.maximum
            return Interval(choose(a.low, b.low), choose(a.high, b.high))
        if step.op == "floordiv":
            return Interval(*(call.floor_divided(end, int(step.value or 1)) for end in a))
        if step.op in ("add", "sub", "neg"):
            ends = OPERATIONS[step.op].ends(args, step.value)
            return None if ends is None else Interval(*ends)
        factor = next((x.low for x in args if isinstance(x.low, int) and x.low is x.high), None)
        if step.op == "mul" and factor is not None:
            other = b if a.low is factor else a
            return Interval(*_sum_of(Interval(0, 0), other, factor))
        return None


def _sum_of(total: Interval, term: Interval, factor: int) -> tuple[Any, Any]:
    """The interval of total + factor * term."""
    low, high = (term.low, term.high) if factor > 0 else (term.high, term.low)
    if abs(factor) != 1:
        return total.low + low * factor, total.high + high * factor
    if factor > 0:
        return total.low + low, total.high + high
    return total.low - low, total.high - high


class _Hopeful:
    """A call of which every integer is known, by which `bounds_keys` sees whether there are bounds."""

    def index(self, name: str) -> Interval:
        """See `Calls.index`."""
        return Interval(0, 0)

    def element(self, array: AuxArray, indices: Sequence[Interval]) -> Interval:
        """See `Calls.element`."""
        return Interval(0, 0)

    def minimum(self, a: int, b: int) -> int:
        """See `Calls.minimum`."""
        return min(a, b)

    def maximum(self, a: int, b: int) -> int:
        """See `Calls.maximum`."""
        return max(a, b)

    def floor_divided(self, a: int, by: int) -> int:
        """See `Calls.floor_divided`."""
        return a // by
