"""Records each PTX text that is launched on a GPU, by whatever part of the project."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from flash.commands.measure.device import Gpu
from flash.silicon.ledger import key
from ptxgen.runtime.cache import CacheKey, ModuleCache
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel
from ptxgen.runtime.cuda_driver import DeviceProperties, Driver
from ptxgen.target import Target

_LAUNCHES: Final = {"cuLaunchKernel": 0, "cuLaunchKernelEx": 1}  # where the kernel is among the arguments
_ENTRY: Final = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$%]+)", re.MULTILINE)
_TARGET: Final = re.compile(r"^\s*\.target\s+([\w]+)", re.MULTILINE)


def kernel_of(text: str) -> str:
    """The names of a text's kernels, and its target, in the words of the ledger."""
    target = _TARGET.search(text)
    return f"{', '.join(_ENTRY.findall(text))} for {target.group(1) if target else 'no target'}"


@dataclass
class Launched:
    """The texts that were launched on each device since they were last taken. `device` is the last one;
    `before` is called with the key and the device of a text that is about to be launched.
    """

    texts: dict[str, str] = field(default_factory=dict)  # the kernel by the key of its text
    device: DeviceProperties | None = None
    before: Callable[[str, DeviceProperties], object] = lambda *_: None

    def take(self) -> dict[str, str]:
        """The texts launched since the last call of this method, as names of kernels by the keys of their
        texts.
        """
        taken, self.texts = self.texts, {}
        return taken


def is_real(driver: Driver) -> bool:
    """Whether a driver is the one of the machine's GPUs."""
    return driver._module is None or driver._module is importlib.import_module("cuda.bindings.driver")


@contextmanager
def launched(counts: Callable[[Driver], bool] = is_real) -> Iterator[Launched]:
    """A context that records the texts launched inside it through drivers for which `counts` is true."""
    texts = Launched()
    text_of: dict[bytes, str] = {}  # by program
    kernels: dict[tuple[int, int], tuple[str, str, DeviceProperties]] = {}  # by driver and function
    compiled, built, loaded, answered = (
        CudaBackend.compile,
        ModuleCache.get_or_build,
        CudaBackend.load,
        Driver.answer,
    )

    def compile_text(self: CudaBackend, text: str, target: Target) -> bytes:
        program = compiled(self, text, target)
        text_of[program] = text
        return program

    def get_or_build(self: ModuleCache, cached: CacheKey, build: Callable[[], bytes]) -> bytes:
        program = built(self, cached, build)
        text_of[program] = cached.text
        return program

    def load(
        self: CudaBackend, program: bytes, entry: str, dynamic_shared: int, ordinal: int
    ) -> LoadedKernel:
        kernel = loaded(self, program, entry, dynamic_shared, ordinal)
        text = text_of.get(program)
        if text is not None and counts(self._driver):
            kernels[id(self._driver), int(kernel.function)] = key(text), kernel_of(text), kernel.device
        return kernel

    def answer(self: Driver, name: str, arguments: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
        known = None
        if name in _LAUNCHES:
            known = kernels.get((id(self), int(arguments[_LAUNCHES[name]])))
        if known is not None:
            texts.before(known[0], known[2])
        result = answered(self, name, arguments, doing)
        if known is not None and not result[0]:
            texts.texts[known[0]], texts.device = known[1:]
        return result

    with ExitStack() as patches:
        for owner, name, function in (
            (CudaBackend, "compile", compile_text),
            (ModuleCache, "get_or_build", get_or_build),
            (CudaBackend, "load", load),
            (Driver, "answer", answer),
        ):
            patches.enter_context(mock.patch.object(owner, name, function))
        yield texts


@functools.cache
def driver_version(backend: CudaBackend, ordinal: int) -> str:
    """The version of the NVIDIA driver by nvidia-smi; without that, the newest CUDA that it supports."""
    known = Gpu(backend, ordinal).clocks().get("driver_version")
    major, minor = backend.device_properties(ordinal).driver_version
    return known or f"for CUDA {major}.{minor}"
