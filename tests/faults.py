"""Faults at every step of a call: what raises in its midst, and what it leaves behind."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import flash
import ptxgen

Trace = Callable[[FrameType, str, Any], Any]

_LIBRARY: Final = str(Path(flash.__file__).parent)
_RUNTIME: Final = str(Path(ptxgen.__file__).parent / "runtime")
_CALLS: Final = ("call", "c_call")


class Fault:
    """Inside `with` the n-th step, from 1 on, raises `error`, an instance; of what frees an object
    that nobody uses any more, whose errors Python only prints, the step behind that.

    steps: "calls", what `flash` and `ptxgen.runtime` call: their own functions, those of libraries,
    and whatever allocates in numpy; or "lines", those of both.
    """

    def __init__(self, n: int, error: BaseException, steps: str = "calls") -> None:
        self._n = n
        self._error = error
        self._of = steps
        self.steps = 0  # so far
        self.met = False  # whether there were as many steps

    def __enter__(self) -> Fault:
        self._before: tuple[Any, Any] = sys.getprofile(), sys.gettrace()
        if self._of == "calls":
            sys.setprofile(self._profile)
        else:
            sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        profile, trace = self._before
        if self._of == "calls":
            sys.setprofile(profile)
        else:
            sys.settrace(trace)

    def _step(self, frame: FrameType) -> None:
        self.steps += 1
        if self.steps >= self._n and not self.met and not _is_freeing(frame):
            self.met = True
            raise self._error

    def _profile(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what.__name__ == "__exit__":
            return  # of a lock, which takes no memory and is not interrupted
        if event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return  # perhaps it is only freed, as above; what it calls are steps
        # A function of numpy's that is written in Python is called by a frame of ours.
        caller = frame.f_back if event == "call" else frame
        if event in _CALLS and (_is_ours(frame) or (caller is not None and _is_ours(caller))):
            self._step(frame)

    def _trace(self, frame: FrameType, event: str, _: object) -> Trace | None:
        if not _is_ours(frame):
            return None
        if event == "line":
            self._step(frame)
        return self._trace


def _is_ours(frame: FrameType) -> bool:
    return _is_of_ours(frame.f_code)


@functools.cache
def _is_of_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((_LIBRARY, _RUNTIME))


def _is_freeing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != weakref.__file__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Nothing runs between the steps of a call but the call."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def steps_of(call: Callable[[], Any], steps: str = "calls") -> tuple[Any, int]:
    """What a call gives, and how many steps it takes."""
    fault = Fault(sys.maxsize, AssertionError(), steps)
    with no_garbage_collected(), fault:
        result = call()
    return result, fault.steps


def sweep(
    call: Callable[[], Any],
    state: Callable[[], Any],
    *,
    steps: str = "calls",
    stride: int = 1,
    error: type[BaseException] = MemoryError,
) -> tuple[Any, int]:
    """Do a call again and again with a fault at its n-th step, n = 1, 1 + stride, …, until it comes
    through; after each fault the state is what it was. What the call gives then, and how many
    faults it met.
    """
    before, n = state(), 1
    with no_garbage_collected():
        while True:
            injected = error("injected")
            try:
                with Fault(n, injected, steps) as fault:
                    result = call()
            except error as met:
                if met is not injected:
                    raise
                del met
                injected.__traceback__ = None  # which keeps all that the call had made
                assert state() == before, f"changed by a fault at step {n} of its {steps}"
            else:
                assert not fault.met, f"the fault at step {n} of its {steps} was swallowed"
                return result, n // stride
            n += stride
