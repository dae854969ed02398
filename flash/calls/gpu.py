"""Kernels on GPUs: compiled, loaded, and launched with other addresses each time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from flash.calls.memory import Memory, PlannedMemory, StreamMemory
from flash.calls.step import Fill, Step
from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import Build
from flash.problem.config import ALIGNMENTS
from ptxgen.arrays.devices import located, wait_for_producers
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import LaunchError
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cache import CacheKey, ModuleCache, default_cache
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.repeated_launch import RepeatedLaunch
from ptxgen.target import Target, target_for_device
from ptxgen.target import target as find_target

_APART: Final = 1 << 48  # bytes between the addresses of arrays when launches are prepared


class Ready(NamedTuple):
    """A launch of a loaded kernel. `pointers_of` gives the addresses of its pointers, from those of the
    arrays of a call. `fills` are ranges of the arrays that are set before the launch: the number of an array
    and an offset from its first element in bytes, the number of words of 32 bits, and the word.
    """

    launch: RepeatedLaunch
    pointers_of: Callable[[Sequence[int]], Sequence[int]]
    fills: tuple[tuple[tuple[int, int], int, int], ...] = ()


class Prepared(NamedTuple):
    """The launches of all calls that differ in addresses alone, in order. They need memory of `nbytes`, whose
    address is the last one, and in which the ranges `cleared` are set to 0 before the first launch.
    """

    launches: tuple[Ready, ...]
    nbytes: int
    cleared: tuple[tuple[int, int], ...]

    def bound(
        self, backend: CudaBackend, arrays: Sequence[ArrayView], space: ArrayView | None, ordinal: int
    ) -> Bound:
        """The launches on some arrays with some memory."""
        pointers = addresses(arrays)
        if space is not None:
            pointers.append(space.pointer)
        launches = [
            (
                launch,
                launch.with_pointers(pointers_of(pointers)),
                [Fill(pointers[n] + after, count, word) for (n, after), count, word in fills]
                if fills
                else fills,
            )
            for launch, pointers_of, fills in self.launches
        ]
        cleared = self.cleared and [(pointers[-1] + first, nbytes) for first, nbytes in self.cleared]
        return _new_bound((backend, ordinal, arrays, space, launches, cleared))


class Bound(NamedTuple):
    """Launches on `arrays` and with memory `space`, which it keeps alive."""

    backend: CudaBackend
    ordinal: int
    arrays: Sequence[ArrayView]
    space: ArrayView | None
    launches: list[tuple[RepeatedLaunch, Sequence[Any], Sequence[Fill]]]
    cleared: Sequence[tuple[int, int]]

    def put_on(self, stream: int) -> None:
        """Put the launches on a stream."""
        backend = self.backend
        wait_for_producers(backend, self.arrays, stream, self.ordinal)
        for pointer, nbytes in self.cleared:
            backend.clear(pointer, nbytes, stream, ordinal=self.ordinal)
        for launch, values, fills in self.launches:
            for pointer, count, word in fills:
                backend.fill(pointer, word, count, stream, ordinal=self.ordinal)
            launch.put(values, stream)


# `Bound` of all of its fields: the constructor of a NamedTuple takes three times as long.
_new_bound: Final = functools.partial(tuple.__new__, Bound)


class Launcher:
    """Launches kernels on any GPU of the machine. `cache` keeps compiled kernels; by default it is
    the cache of the process.
    """

    def __init__(self, backend: CudaBackend, cache: ModuleCache | None = None) -> None:
        self.backend = backend
        self._cache = cache
        self._loaded = BoundedCache[tuple[BuiltKernel, int], LoadedKernel]()
        self._space = StreamMemory(backend)

    def target(self, ordinal: int, asked: str | None = None) -> Target:
        """The target of kernels on device `ordinal`: the one that a config asks for, or without one the
        device's own. Raises `LaunchError` if the device does not run it.
        """
        device = self.backend.device_properties(ordinal)
        if asked is None:
            return target_for_device(device.major, device.minor)
        target = find_target(asked)
        if not target.runs_on(device.major, device.minor):
            raise LaunchError(
                f"launch: the config is for {target}, which {device} does not run; leave "
                "target=None, or use a device of that architecture"
            )
        return target

    def cache_key(self, kernel: BuiltKernel) -> CacheKey:
        """The key of the compiled kernel in the module cache."""
        target = kernel.target
        name, _, version = self.backend.version(target).partition(" ")
        return CacheKey(kernel.text, target.name, name, version)

    def program(self, kernel: BuiltKernel) -> bytes:
        """The compiled kernel, from the cache or compiled now."""
        cache = self._cache or default_cache()
        target = kernel.target
        return cache.get_or_build(self.cache_key(kernel), lambda: self.backend.compile(kernel.text, target))

    def load(self, kernel: BuiltKernel, plan: LaunchPlan, ordinal: int) -> LoadedKernel:
        """The kernel loaded on device `ordinal`; `plan` is any launch plan of this kernel."""
        loaded = self._loaded.get((kernel, ordinal))
        if loaded is None:
            program = self.program(kernel)
            loaded = self.backend.load(program, plan.entry, plan.dynamic_shared, ordinal)
            self._loaded.keep((kernel, ordinal), loaded)
            kernel.release()
            if isinstance(kernel, Build):
                kernel.registers = loaded.registers
        return loaded

    def prepare(
        self,
        arrays: Sequence[ArrayView],
        steps: Callable[[Sequence[ArrayView], Memory], Iterable[Step]],
        ordinal: int,
    ) -> Prepared:
        """The launches of calls with arrays like these on device `ordinal`. `steps` makes the launches of
        given arrays with given memory: it is called with arrays and memory whose addresses lie so far apart
        that each pointer of a launch says which of them it is of.
        """
        most = ALIGNMENTS[0]
        apart = [a._replace(pointer=n * _APART + a.pointer % most) for n, a in enumerate(arrays, 1)]
        firsts = [array.pointer for array in apart] + [(len(apart) + 1) * _APART]
        memory = PlannedMemory(firsts[-1], ("cuda", ordinal))

        def source(pointer: int) -> tuple[int, int]:
            number = (pointer + _APART // 2) // _APART - 1  # strides may be negative
            return number, pointer - firsts[number]

        launches = tuple(
            [
                Ready(
                    self.backend.repeated(self.load(step.build, step.plan, ordinal), step.plan),
                    _pointers_of([source(pointer) for pointer in step.pointers]),
                    tuple([(source(pointer), count, word) for pointer, count, word in step.fills]),
                )
                for step in list(steps(apart, memory))
            ]
        )
        return Prepared(launches, memory.nbytes, tuple(memory.cleared))

    def launch(
        self, prepared: Prepared, arrays: Sequence[ArrayView], stream: int, ordinal: int, like: ArrayView
    ) -> None:
        """Put the launches of a call on a stream, with memory like that of `like`. Returns before they have
        run.
        """
        if not prepared.nbytes:
            prepared.bound(self.backend, arrays, None, ordinal).put_on(stream)
            return
        with self._space.lock:
            space = self._space.room(like, ordinal, stream, prepared.nbytes)
            prepared.bound(self.backend, arrays, space, ordinal).put_on(stream)

    def located(self, array: ArrayView, caller: str) -> ArrayView:
        """The array with the number of the GPU that has its memory. Raises `LaunchError` if none has."""
        return located(self.backend, array, caller)


def _pointers_of(sources: Sequence[tuple[int, int]]) -> Callable[[Sequence[int]], Sequence[int]]:
    """The function of `Ready.pointers_of`. `sources` has for each pointer the number of an array, and the
    offset from its first element in bytes.
    """
    if len(sources) < 2:  # of which `itemgetter` makes no tuple
        return lambda pointers: [pointers[n] + after for n, after in sources]
    firsts = operator.itemgetter(*[n for n, _ in sources])
    offsets = [(at, after) for at, (_, after) in enumerate(sources) if after]
    if not offsets:
        return firsts

    def pointers_of(pointers: Sequence[int]) -> list[int]:
        addresses = list(firsts(pointers))
        for at, after in offsets:
            addresses[at] += after
        return addresses

    return pointers_of


@functools.lru_cache(maxsize=16)
def launcher_of(backend: CudaBackend) -> Launcher:
    """The launcher of a backend, for calls of functions."""
    return Launcher(backend)


def addresses(arrays: Sequence[ArrayView]) -> list[int]:
    """The addresses of the arrays of a call. An array without elements is not read, so it has any other."""
    pointers = [array.pointer for array in arrays]
    if 0 in pointers:
        spare = next((pointer for pointer in pointers if pointer), ALIGNMENTS[0])
        return [pointer or spare for pointer in pointers]
    return pointers
