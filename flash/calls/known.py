"""Calls like earlier ones: `Known` caches the checks of calls, `Repeats` the launch of the last one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flash.calls.gpu import Prepared
from flash.calls.operation import Operation, stream_of
from flash.problem.config import ALIGNMENTS
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.overlap import reach
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView
from ptxgen.runtime.bounded_cache import BoundedCache

V = TypeVar("V")  # the result of the checks of a call
_MISALIGNED: Final = ALIGNMENTS[0] - 1  # the bits of an address that are 0 where it is aligned

# (written, other, least, most): the spans of bytes of two arrays, by their numbers, overlap if the address of
# the other minus that of the written one lies between `least` and `most`.
_Pair = tuple[int, int, int, int]


def _pairs(views: Mapping[str, ArrayView], written: Collection[str]) -> list[_Pair]:
    """The pairs of each written array and each other one."""
    spans = [reach(a.shape, a.strides, numpy_type(a.dtype).itemsize) for a in views.values()]
    return [
        (n, m, low - end, high - begin)
        for n, (name, (low, high)) in enumerate(zip(views, spans, strict=True))
        for m, (begin, end) in enumerate(spans)
        if name in written and m != n
    ]


class _Alike(Generic[V]):
    """The outcome of checks of calls with arrays of one geometry. `apart` is the result of calls in which no
    array shares bytes with a written one; None before the first.
    """

    __slots__ = ("apart", "key", "pairs")

    def __init__(self, key: tuple[object, ...], pairs: list[_Pair]) -> None:
        self.key = key
        self.pairs = pairs
        self.apart: V | None = None

    def near(self, pointers: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
        """(written, other, distance) for each array that is written and each other array whose span of
        bytes overlaps it, even if they share no element; distance is between their addresses, in bytes.
        """
        near: tuple[tuple[int, int, int], ...] = ()
        for n, m, least, most in self.pairs:
            distance = pointers[m] - pointers[n]
            if least < distance < most:
                near = *near, (n, m, distance)
        return near


class Known(Generic[V]):
    """Results for calls, by what else they depend on (`of`), and by their arrays: names, shapes, strides,
    types and devices, and of the addresses their alignment, which of them are null, and how far those lie
    from one another that share bytes with an array that is `written`.
    """

    def __init__(self) -> None:
        self._alike = BoundedCache[tuple[object, ...], _Alike[V]]()
        self._sharing = BoundedCache[tuple[object, ...], V]()
        self._latest: _Alike[V] | None = None  # of the last call: comparing keys takes less than hashing one

    def get(self, of: tuple[object, ...], views: Mapping[str, ArrayView]) -> V | None:
        """The cached result for a call; None if there is none. Raises TypeError if `of` is not hashable."""
        hash(of)  # something else may compare equal to a key
        key, pointers = _key(of, views)
        alike = self._latest
        if alike is None or alike.key != key:
            alike = self._alike.get(key)
            if alike is None:
                return None
            self._latest = alike
        near = alike.near(pointers)
        return self._sharing.get((key, near)) if near else alike.apart

    def keep(
        self, of: tuple[object, ...], views: Mapping[str, ArrayView], written: Collection[str], result: V
    ) -> V:
        """Cache the result for a call whose arrays are right, and return it. Which are `written` follows from
        `of` and from the names.
        """
        key, pointers = _key(of, views)
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike.keep(key, _Alike(key, _pairs(views, written)))
        near = alike.near(pointers)
        if near:
            return self._sharing.keep((key, near), result)
        alike.apart = result
        return result


def _key(
    of: tuple[object, ...], views: Mapping[str, ArrayView]
) -> tuple[tuple[object, ...], tuple[int, ...]]:
    """The key of a call, and the addresses of its arrays."""
    pointers, *layouts, _, _, _, _ = zip(*views.values(), strict=True)
    bits = 0
    for pointer in pointers:
        bits |= pointer
    # The checks read nothing else of addresses that are neither null nor misaligned.
    rest = None
    if bits & _MISALIGNED or 0 in pointers:
        rest = tuple([pointer & _MISALIGNED if pointer else None for pointer in pointers])
    # All that checks read in addition to the address: shape, strides, dtype, device, read_only.
    return (of, rest, *views, *layouts), pointers


class _Repeat(NamedTuple):
    """The launches of calls that differ in the addresses of their arrays alone: `of` and `layouts` are equal,
    and no span of bytes of `pairs` overlaps. `streams` has None for each array.
    """

    of: tuple[object, ...]
    layouts: list[tuple[Any, ...]]
    pairs: list[_Pair]
    streams: tuple[None, ...]
    prepared: Prepared


class Repeats:
    """The launches of calls of `operation` whose arrays are the caller's, not null, aligned and apart, for
    later calls that differ from one of them in addresses alone. A call like the last one takes two thirds of
    the time that it takes to find the results of its checks, and then its launches.
    """

    def __init__(self, operation: Operation[Any]) -> None:
        self._operation = operation
        self._repeats = BoundedCache[tuple[object, ...], _Repeat]()
        self._latest: _Repeat | None = None  # of the last call: comparing takes less time than hashing

    def put(
        self, of: tuple[object, ...], views: Mapping[str, ArrayView], backend: object, stream: int | None
    ) -> bool:
        """Put the launches of a call on a stream; return False, with nothing done, if no call like it is
        known, or if it is not for a GPU. `of` is hashable, has what the launches depend on besides the
        arrays, and decides their names. Raises what the choice of a backend raises.
        """
        fields = [*zip(*views.values())]  # noqa: B905  # views have the same fields
        latest, layouts = self._latest, fields[1:6]
        if latest is None or latest[1] != layouts or latest[0] != of:
            latest = self._repeats.get((of, *layouts))
            if latest is None:
                return False
            self._latest = latest
        pointers, bits = fields[0], 0
        for pointer in pointers:
            bits |= pointer
        if bits & _MISALIGNED or 0 in pointers:
            return False
        for n, m, least, most in latest[2]:
            if least < pointers[m] - pointers[n] < most:
                return False
        if (backend.__class__ is not str or backend != "cuda") or stream is None:
            like = next(iter(views.values()))
            if self._operation.choose(backend, like, stream)[0] != "cuda":
                return False
            stream = stream_of(like, stream)
        launches, nbytes, _ = latest[4]
        launch, pointers_of, fills = launches[0]
        if nbytes or len(launches) > 1 or fills or fields[9] != latest[3]:
            arrays = tuple(views.values())
            self._operation.gpu.launch(latest[4], arrays, stream, arrays[0].device[1], arrays[0])
            return True
        launch.put_over(pointers_of(pointers), stream)
        return True

    def keep(
        self,
        of: tuple[object, ...],
        views: Mapping[str, ArrayView],
        written: Collection[str],
        launches: Prepared,
    ) -> None:
        """Cache the launches of a call that is right, unless its arrays are not as `Repeats` says, or the GPU
        of one of them is not known.
        """
        pointers, *layouts, _, _, _, _ = zip(*views.values(), strict=True)
        if 0 in pointers or any(pointer & _MISALIGNED for pointer in pointers):
            return
        if any(device == HOST or device[1] == UNKNOWN_DEVICE for device in layouts[3]):
            return
        if (of, *layouts) not in self._repeats:  # it is where arrays of this call share bytes
            repeat = _Repeat(of, layouts, _pairs(views, written), (None,) * len(pointers), launches)
            self._repeats.keep((of, *layouts), repeat)
