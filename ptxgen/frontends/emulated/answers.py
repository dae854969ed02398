"""`torch.cuda` and `torch.accelerator` of the emulated GPU: what its target is, and that all work is done."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import torch

from ptxgen.frontends.emulated.placement import CUDA, MEMORY, wants_cuda
from ptxgen.frontends.emulated.refusal import refusal
from ptxgen.target import Target

MULTIPROCESSORS: Final = 8  # so that kernels with a CTA for each multiprocessor are small
TOTAL_MEMORY: Final = 8 << 30  # bytes, so that tests that need a large GPU skip themselves
_L2: Final = 40 << 20  # bytes: an A100


class Stream:
    """A stream: kernels have run when their launch returns, so that there is nothing to wait for."""

    device = CUDA
    device_index = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self._before: list[Stream] = []

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def is_capturing(self) -> bool:
        """Whether launches are recorded into a graph."""
        return False

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event, recorded now."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._before.pop())


class Event:
    """An event: the time of the host at which it is recorded."""

    cuda_event = 0
    device = CUDA

    def __init__(self, *_: Any, **__: Any) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def query(self) -> bool:
        """Whether all work before it is done."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end: Event) -> float:
        """The milliseconds of the host, not of a GPU, up to another event."""
        if self._time is None or end._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1e3


class _Device:
    """A context in which the one device is the current one."""

    def __init__(self, device: Any = None) -> None:
        self.idx = _ordinal(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_DEFAULT: Final = Stream()
_current: Final = [_DEFAULT]


def current_stream(device: Any = None) -> Stream:
    """The stream that was set last."""
    return _current[0]


def set_stream(stream: Stream | None) -> None:
    """Set the current stream."""
    if stream is not None:
        _current[0] = stream


@contextlib.contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    with contextlib.nullcontext() if stream is None else stream:
        yield


def properties(target: Target) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` returns: the target's limits, on a small device."""
    return SimpleNamespace(
        name=name_of(target),
        major=target.sm // 10,
        minor=target.sm % 10,
        total_memory=TOTAL_MEMORY,
        multi_processor_count=MULTIPROCESSORS,
        is_integrated=0,
        is_multi_gpu_board=0,
        warp_size=32,
        max_threads_per_block=target.threads_per_block,
        max_threads_per_multi_processor=target.threads_per_sm,
        regs_per_multiprocessor=target.registers_per_sm,
        shared_memory_per_block=target.shared_per_block,
        shared_memory_per_block_optin=target.shared_per_block_optin,
        shared_memory_per_multiprocessor=target.shared_per_sm,
        L2_cache_size=_L2,
    )


def name_of(target: Target) -> str:
    """The name of the emulated GPU."""
    return f"PTX interpreter ({target.name})"


def _ordinal(device: Any) -> int:
    if device is not None and device != -1 and not wants_cuda(device):
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return 0


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _of_memory() -> dict[str, Callable[..., Any]]:
    """The figures of memory: the bytes of the tensors that say they are on CUDA."""

    def forget_peak(device: Any = None) -> None:
        MEMORY.peak = MEMORY.allocated

    now, peak = (lambda device=None: MEMORY.allocated), (lambda device=None: MEMORY.peak)
    forgotten = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), now),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), peak),
        **dict.fromkeys(forgotten, forget_peak),
        "mem_get_info": lambda device=None: (TOTAL_MEMORY - MEMORY.allocated, TOTAL_MEMORY),
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
    }


def of_cuda(target: Target) -> dict[str, Any]:
    """The answers of `torch.cuda`, by name."""
    of = properties(target)

    def get_device_properties(device: Any = None) -> SimpleNamespace:
        _ordinal(device)
        return of

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        _ordinal(device)
        return of.major, of.minor

    def get_device_name(device: Any = None) -> str:
        _ordinal(device)
        return str(of.name)

    generator = torch.default_generator
    return _of_memory() | {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _ordinal,
        "device": _Device,
        "device_of": lambda tensor: _Device(),
        "synchronize": _nothing,
        "get_device_properties": get_device_properties,
        "get_device_capability": get_device_capability,
        "get_device_name": get_device_name,
        "get_arch_list": lambda: [f"sm_{of.major}{of.minor}"],
        "is_bf16_supported": lambda including_emulation=True: of.major >= 8,
        "is_tf32_supported": lambda: of.major >= 8,
        "can_device_access_peer": lambda device, peer: False,
        "Stream": Stream,
        "Event": Event,
        "stream": _stream,
        "StreamContext": _stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: _DEFAULT,
        "set_stream": set_stream,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "seed": lambda: generator.seed(),
        "seed_all": lambda: generator.seed(),
        "initial_seed": lambda: generator.initial_seed(),
        "get_rng_state": lambda device=None: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda state, device=None: generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "default_generators": (generator,),
    }


def of_accelerator(target: Target) -> dict[str, Any]:
    """The answers of `torch.accelerator`, by name."""
    cuda = of_cuda(target)
    same = (
        "is_available",
        "device_count",
        "synchronize",
        "current_stream",
        "set_stream",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "get_device_capability",
    )
    return {name: cuda[name] for name in same} | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": _ordinal,
        "set_device_idx": _ordinal,
        "get_memory_info": cuda["mem_get_info"],
    }


def refused(module: Any, answered: dict[str, Any]) -> dict[str, Any]:
    """The functions and classes of a module of PyTorch that have no answer, by name."""
    return {
        name: _refused(f"{module.__name__}.{name}", value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in answered
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("torch.")
        and not (inspect.isclass(value) and issubclass(value, Exception))
    }


def _refused(call: str, value: Any) -> Any:
    """A function that is refused when it is called, or a class when it is instantiated."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(call)

    return type(value.__name__, (), {"__new__": refuse}) if inspect.isclass(value) else refuse
