"""Sorts the values of the threads of a CTA: a bitonic network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Value
from ptxgen.types import f32, s32, u32

_SIGN: Final = 1 << 31
_ALL: Final = (1 << 32) - 1
_INFINITY: Final = 0x7F80_0000  # the bits of an f32

Exchange = Callable[[Sequence[Value], int], tuple[Value, ...]]  # values of the thread at index ^ distance


def sorted_threads(
    k: Control, values: tuple[Value, ...], descending: bool, exchanged: Exchange
) -> tuple[Value, ...]:
    """Values of a power of two of threads in the order of the first, the key, and of equal keys in the order
    of the second, as an unsigned number.
    """
    key, *others = values
    flip = _ALL if descending else 0
    now: tuple[Value, ...] = (_ordinal(k, key) ^ flip, *others)
    thread = k.thread_index()
    size = 2
    while size <= k.threads:
        distance = size // 2
        while distance:
            now = _step(k, now, thread, size, distance, exchanged)
            distance //= 2
        size *= 2
    return (_from_ordinal(k, now[0] ^ flip, key), *now[1:])


def _step(
    k: Control, now: tuple[Value, ...], thread: Value, size: int, distance: int, exchanged: Exchange
) -> tuple[Value, ...]:
    """Each pair of threads in order: rising in runs of `size` threads with an even number, else falling."""
    there = exchanged(now, distance)
    takes_larger = (thread & distance) != 0
    if size < k.threads:
        takes_larger = takes_larger ^ ((thread & size) != 0)
    if len(now) == 1:
        return (k.selp(k.max(now[0], there[0]), k.min(now[0], there[0]), takes_larger),)
    above, below = _before(now, there), _before(there, now)
    takes = (above & takes_larger) | (below & ~takes_larger)
    return tuple([k.selp(theirs, ours, takes) for theirs, ours in zip(there, now, strict=True)])


def _before(a: tuple[Value, ...], b: tuple[Value, ...]) -> Value:
    """Whether a tuple of values sorts before another one, a predicate."""
    (key, second), (other, other_second) = a[:2], b[:2]
    return (key < other) | ((key == other) & (second.as_(u32) < other_second.as_(u32)))


def _ordinal(k: Control, value: Value) -> Value:
    """A u32 that compares as the value does; of f32 -0 is less than 0, and each NaN is the last number."""
    bits = value.as_(u32)
    if value.type is s32:
        return bits ^ _SIGN
    if value.type is f32:
        magnitude = bits & (_SIGN - 1)
        bits = k.selp(_SIGN - 1, bits, magnitude > _INFINITY)
        return k.selp(~bits, bits | _SIGN, bits >= _SIGN)
    return bits


def _from_ordinal(k: Control, ordinal: Value, like: Value) -> Value:
    """The value, of the type of `like`, that an ordinal stands for."""
    if like.type is f32:
        ordinal = k.selp(ordinal ^ _SIGN, ~ordinal, ordinal >= _SIGN)
    elif like.type is s32:
        ordinal = ordinal ^ _SIGN
    return ordinal.as_(like.type)
