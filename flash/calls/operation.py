"""`Operation`: a kind of call, and what all kinds of calls have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from flash.calls.backend import check_device, choose
from flash.calls.gpu import Launcher, Prepared
from flash.calls.memory import HostMemory, Memory
from flash.calls.step import Step
from flash.host import results
from flash.host.caller import Caller, raise_problems, require_no_gradients
from flash.operands.dtypes import F32_BYTES, DType
from ptxgen.arrays import streams
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array, reader_of, unreadable, view
from ptxgen.errors import BackendError, LaunchError
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import WITHOUT_KERNELS
from ptxgen.target import Target

C = TypeVar("C")  # a checked call


class Result(NamedTuple):
    """An array that a call makes for a result: of the library and on the device of `like`. Where a call has
    nothing to compute, its elements are `initial`.
    """

    name: str
    like: ArrayView
    shape: tuple[int, ...]
    dtype: DType
    initial: float | None = None


class Operation(ABC, Generic[C]):
    """A kind of call. Its arrays are read and checked, and its backend is chosen; then `run` computes the
    checked call `C` where the backend does, or puts its launches on a stream. These are prepared once for
    all calls that differ in addresses alone.

    `caller` is the called function, for messages, `gpu` compiles, loads and launches kernels, and `asked` is
    the target of a config, None for that of the device.
    """

    copies_to_gpu: ClassVar = False  # whether arrays on the host are copied to a GPU to compute there
    results: ClassVar[Collection[str]] = ("out",)  # arrays of the caller that are written
    of_gradients: ClassVar = False  # whether gradients are computed, so that others would be of second order

    def __init__(self, gpu: Launcher, caller: Caller, asked: str | None = None) -> None:
        self.gpu = gpu
        self.caller = caller
        self._asked = asked
        self._prepared = BoundedCache[tuple[object, ...], Prepared]()

    # ---- what differs

    @abstractmethod
    def arrays(self, call: C) -> Mapping[str, ArrayView]:
        """The arrays of a call."""

    @abstractmethod
    def over(self, call: C, arrays: Mapping[str, ArrayView]) -> C:
        """The call with `arrays`, of the same layout, instead of its arrays."""

    @abstractmethod
    def key(self, call: C, ordinal: int) -> tuple[object, ...]:
        """The key of a cache of launches: everything that they depend on, on a device, except addresses."""

    @abstractmethod
    def steps(self, call: C, ordinal: int | None, memory: Memory) -> Iterable[Step]:
        """The launches of a call on device `ordinal`, None for the interpreter. Raises `LaunchError` for what
        the device does not hold, `ConfigError` where there is no kernel.
        """

    @abstractmethod
    def on_cpu(self, call: C, backend: str) -> None:
        """Compute a call on `backend`, which has no kernels: with numpy, or with compiled loops."""

    # ---- what is common

    def target(self, ordinal: int) -> Target:
        """The target of kernels on a device."""
        return self.gpu.target(ordinal, self._asked)

    def read(self, arrays: Mapping[str, object], stream: int | None) -> dict[str, ArrayView]:
        """Views of the arrays of a call, by name. Raises `LaunchError` that names all that are no arrays, or
        all whose gradients would be lost.
        """
        find = self.gpu.backend.device_of_pointer
        views: dict[str, ArrayView] = {}
        try:  # a comprehension is a call of its own
            for name, array in arrays.items():
                views[name] = reader_of(type(array))(array, name, stream, find)
        except LaunchError:
            raise_problems(unreadable(dict(arrays), stream), self.caller.name)
            raise  # not reached: `unreadable` finds the same array
        except BackendError:  # no GPU opens, which the checks of devices say
            views = {name: view(array, name, stream) for name, array in arrays.items()}
        for array in views.values():
            if array.read_only:
                require_no_gradients(views, self.caller.name, self.results, is_second=self.of_gradients)
                break
        return views

    def require_located(self, views: Iterable[ArrayView]) -> None:
        """Raise `LaunchError` for an array whose memory is on no GPU of this process."""
        for array in views:
            if array.device[1] == UNKNOWN_DEVICE:
                self.gpu.located(array, self.caller.name)

    def choose(self, backend: object, like: ArrayView, stream: int | None) -> tuple[str, str]:
        """The backend of a call with arrays like `like`, and why. Raises `LaunchError` for a stream, or
        arrays, that it does not take.
        """
        caller, copies = self.caller.name, self.copies_to_gpu
        choice = choose(backend, like, self.gpu.backend, caller, copies_to_gpu=copies)
        check_device(caller, choice[0], like, stream, copies_to_gpu=copies)
        return choice

    def new(
        self, declared: Iterable[Result], stream: int | None
    ) -> tuple[dict[str, object], dict[str, ArrayView]]:
        """New arrays for results, by name, and views of them; no earlier work writes these."""
        arrays: dict[str, object] = {}
        views: dict[str, ArrayView] = {}
        for name, like, shape, dtype, _ in declared:
            arrays[name] = results.empty(like, shape, dtype, memory=self.gpu.backend, stream=stream)
            views[name] = view(arrays[name], name)
            if views[name].stream is not None:
                views[name] = views[name]._replace(stream=None)
        return arrays, views

    def placed(self, like: ArrayView, views: Iterable[ArrayView]) -> ArrayView:
        """`like` with the number of its GPU: an array without memory, which may not have it, gets that of the
        other arrays of a call, or of the current GPU if none has memory.
        """
        if like.device[1] != UNKNOWN_DEVICE:
            return like
        known = ordinal_of(views)
        ordinal = self.gpu.backend.current_device() if known == UNKNOWN_DEVICE else known
        return like._replace(device=(like.device[0], ordinal))

    def fill(self, declared: Iterable[Result], views: Mapping[str, ArrayView], stream: int | None) -> None:
        """Set new arrays to their `initial` elements, where a call has nothing to compute."""
        for result in declared:
            array = views[result.name]._replace(device=result.like.device)
            set_initial(self.gpu.backend, array, result.initial, stream_of(result.like, stream))

    def run(self, call: C, backend: str, like: ArrayView, stream: int | None) -> None:
        """Compute a call, or put it on a stream: None is the current one of the library of `like`."""
        if backend in WITHOUT_KERNELS:
            self.on_cpu(call, backend)
        elif backend == "interpreter":
            _interpret(self.steps(call, None, HostMemory()))
        else:
            self._launch(call, like, stream_of(like, stream))

    def _launch(self, call: C, like: ArrayView, stream: int) -> None:
        """Put the launches of a call, whose arrays are on a GPU, on a stream."""
        arrays, ordinal = self.arrays(call), like.device[1]
        views = tuple(arrays.values())
        if ordinal == UNKNOWN_DEVICE:
            ordinal = ordinal_of(views)
            if ordinal == UNKNOWN_DEVICE:
                return  # no array has memory
        self.gpu.launch(self.prepared(call, arrays, ordinal), views, stream, ordinal, like)

    def prepared(self, call: C, arrays: Mapping[str, ArrayView], ordinal: int) -> Prepared:
        """The launches of a call with these arrays, cached for later calls that differ in addresses alone."""
        key = self.key(call, ordinal)
        launches = self._prepared.get(key)
        if launches is None:

            def steps(views: Sequence[ArrayView], memory: Memory) -> Iterable[Step]:
                there = self.over(call, dict(zip(arrays, views, strict=True)))
                return self.steps(there, ordinal, memory)

            prepared = self.gpu.prepare(tuple(arrays.values()), steps, ordinal)
            launches = self._prepared.keep(key, prepared)
        return launches

    def bound(self, call: C, backend: str, room: Callable[[int], ArrayView]) -> Callable[[int], None]:
        """A function of a stream that computes a call whose arrays are where the backend computes. It may be
        called repeatedly and uses the current contents of the arrays. `room(n)` returns memory for at least n
        f32, which no other work uses at the same time.
        """
        if backend in WITHOUT_KERNELS:
            return lambda _: self.on_cpu(call, backend)
        if backend == "interpreter":
            steps = list(self.steps(call, None, HostMemory()))
            return lambda _: _interpret(steps)
        arrays = self.arrays(call)
        views = tuple(arrays.values())
        ordinal = ordinal_of(views)
        return self.bound_to(self.prepared(call, arrays, ordinal), views, room, ordinal)

    def bound_to(
        self, prepared: Prepared, views: Sequence[ArrayView], room: Callable[[int], ArrayView], ordinal: int
    ) -> Callable[[int], None]:
        """The function that `bound` returns, of launches that are prepared for arrays like `views` on device
        `ordinal`.
        """
        space = room(-(-prepared.nbytes // F32_BYTES)) if prepared.nbytes else None
        return prepared.bound(self.gpu.backend, views, space, ordinal).put_on


class CopyingOperation(Operation[C]):
    """A kind of call whose arrays may be on the host where it is computed on a GPU."""

    copies_to_gpu: ClassVar = True

    @abstractmethod
    def dense(self, call: C, arrays: Mapping[str, ArrayView]) -> C:
        """The call with dense copies of its arrays."""

    def require(self, call: C, ordinal: int) -> None:
        """Raise `LaunchError` for a call that a device does not hold, before its arrays are copied there."""

    @abstractmethod
    def written(self, call: C) -> Mapping[str, bool]:
        """The names of the arrays that a call writes, and whether it writes all elements of each."""

    def _launch(self, call: C, like: ArrayView, stream: int) -> None:
        """Put the launches of a call on a stream. Arrays on the host are copied to a GPU and back."""
        if like.device != HOST:
            super()._launch(call, like, stream)
            return
        ordinal = self.gpu.backend.current_device()
        self.require(call, ordinal)
        arrays, written = self.arrays(call), self.written(call)
        with Staging(self.gpu.backend, stream, ordinal) as staging:
            there = {
                name: staging.room_for(array) if written.get(name) else staging.copy_of(array)
                for name, array in arrays.items()
            }
            self._launch(self.dense(call, there), next(iter(there.values())), stream)
            fetched = [(arrays[name], staging.fetch(there[name])) for name in written]
            staging.wait()
        for into, values in fetched:
            host_array(into)[...] = values


def set_initial(backend: CudaBackend, array: ArrayView, initial: float | None, stream: int) -> None:
    """Set the elements of a dense array of f32 to `initial`, on a GPU in stream order; None: leave them."""
    if initial is None or not array.size:
        return
    if array.device == HOST:
        host_array(array)[...] = initial
        return
    word = int(np.float32(initial).view(np.uint32))
    backend.fill(array.pointer, word, array.size, stream, ordinal=array.device[1])


def ordinal_of(arrays: Iterable[ArrayView]) -> int:
    """The number of the GPU that the arrays of a call are on; `UNKNOWN_DEVICE` if none has memory there."""
    for array in arrays:
        if array.device[1] != UNKNOWN_DEVICE:
            return array.device[1]
    return UNKNOWN_DEVICE


def stream_of(like: ArrayView, explicit: int | None) -> int:
    """The stream of a call: the one that the caller names, else the current one of the library of `like`, 0
    for arrays on the host.
    """
    if explicit is not None:
        return explicit
    return 0 if like.device == HOST else streams.current_stream(like)


def _interpret(steps: Iterable[Step]) -> None:
    for step in steps:
        step.interpret()
