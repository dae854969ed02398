"""`emulated_gpu`: in it, a project that asks for CUDA runs on the host, its kernels on the interpreter."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from ptxgen.errors import BackendError, CompileError, LaunchError
from ptxgen.frontends import dispatch, triton_launches
from ptxgen.frontends.emulated.refusal import refusal
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import FoundError, Outcome
from ptxgen.frontends.triton import DEFAULT_TARGET
from ptxgen.kernels.function import KernelFunction
from ptxgen.runtime.settings import AUTO
from ptxgen.target import Target
from ptxgen.target import target as find_target

_CALLER: Final = "--gpu=interpreter"
_TIMERS: Final = ("do_bench", "do_bench_cudagraph")
_TIMED: Final = "only a GPU can time a kernel"
_CUDA_VERSION: Final = "13.0"  # of a PyTorch built for the host


@contextmanager
def emulated_gpu(*, target: str = DEFAULT_TARGET, **how: Any) -> Iterator[list[Outcome]]:
    """Within the context, PyTorch has one GPU, `target`: tensors say that they are on CUDA and live on
    the host, operators run there, and kernels of Triton and of `ptxgen.kernel` run on the interpreter; the
    list gets the outcome of each launch. `how` are arguments of `ProgramKernel.run`, such as `sanitize` and
    `schedule`.

    A launch raises `TrapError` with what was found, and calls that have no answer `BackendError`. Raises
    `BackendError` if PyTorch is not installed or sees a GPU.
    """
    gpu = find_target(target)
    torch = require(_CALLER, "torch", "torch")
    if torch.cuda.is_available():
        raise BackendError(f"{_CALLER}: PyTorch sees a GPU; hide it with CUDA_VISIBLE_DEVICES= (empty)")
    from ptxgen.frontends.emulated.tensors import Modes

    modes = Modes()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        stack.enter_context(_torch_answers(torch, gpu, modes))
        try:
            triton = require(_CALLER, "triton", "triton")
        except BackendError:
            triton = None
        if triton is not None:
            stack.enter_context(_triton_launches(triton, gpu, modes, outcomes, target=target, **how))
        stack.enter_context(_own_launches(gpu, modes, outcomes, **how))
        stack.enter_context(modes.on())
        yield outcomes


@contextmanager
def _torch_answers(torch: Any, gpu: Target, modes: Any) -> Iterator[None]:
    """PyTorch's queries and classes that its modes do not see."""
    from ptxgen.frontends.emulated import answers, autocast, classes

    cuda, accelerator = answers.of_cuda(gpu), answers.of_accelerator(gpu)
    of_modules = {
        torch.cuda: cuda | answers.refused(torch.cuda, cuda),
        torch.accelerator: accelerator | answers.refused(torch.accelerator, accelerator),
        torch.cuda.nvtx: dict.fromkeys(("range_push", "range_pop", "mark"), lambda *_, **__: 0),
        torch: {"Generator": classes.Generator, "compile": classes.eager},
        torch.amp.autocast_mode.autocast: autocast.IN_CLASS,
        torch.UntypedStorage: classes.OF_STORAGE,
        torch.version: {"cuda": torch.version.cuda or _CUDA_VERSION},
        torch.autograd.Variable: {
            "_execution_engine": modes.engine(torch.autograd.Variable._execution_engine)
        },
        threading.Thread: {"run": _with_modes(threading.Thread.run, modes)},
    }
    for part in (torch.cuda.memory, torch.cuda.random):
        of_modules[part] = {
            name: value for name, value in of_modules[torch.cuda].items() if hasattr(part, name)
        }
    with ExitStack() as stack:
        stack.callback(autocast.KERNELS.drop)
        for module, values in of_modules.items():
            stack.enter_context(patch.multiple(module, create=True, **values))
        stack.enter_context(patch.multiple(torch._C, create=True, _cuda_getCurrentRawStream=lambda device: 0))
        yield


def _with_modes(run: Callable[[Any], None], modes: Any) -> Callable[[Any], None]:
    @functools.wraps(run)
    def with_modes(thread: Any) -> None:
        with modes.on():
            run(thread)

    return with_modes


# ---------------------------------------------------------------------------------------- launches


@contextmanager
def _triton_launches(
    triton: Any, gpu: Target, modes: Any, outcomes: list[Outcome], **how: Any
) -> Iterator[None]:
    """Triton's driver, and its launches."""
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(_driver(gpu))
    timers: dict[str, Any] = {name: _refuser(f"triton.testing.{name}", _TIMED) for name in _TIMERS}
    try:
        with patch.multiple(triton.testing, **timers), triton_launches.interpreted(outcomes=outcomes, **how):
            launch = triton.runtime.JITFunction.run

            def run(kernel: Any, *args: Any, **named: Any) -> Any:
                if not modes.here.opaque:
                    _require_on_cuda(args, named)
                with modes.paused():
                    try:
                        return launch(kernel, *args, **named)
                    except CompileError as error:  # a program that catches one catches Triton's
                        raise error if error.__cause__ is None else error.__cause__ from None

            with patch.object(triton.runtime.JITFunction, "run", run):
                yield
    finally:
        driver.set_active(before)


def _refuser(call: str, why: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise refusal(call, why)

    return refuse


def _require_on_cuda(args: Any, named: dict[str, Any]) -> None:
    """Raise Triton's error for a tensor that the GPU could not read."""
    from ptxgen.frontends.emulated.placement import on_cuda, pinned, tensors

    for number, value in enumerate([*args, *named.values()]):
        for tensor in tensors(value):
            if not on_cuda(tensor) and not pinned(tensor):
                raise ValueError(
                    f"Pointer argument (at {number}) cannot be accessed from Triton (cpu tensor?)"
                )


def _driver(gpu: Target) -> Any:
    """What Triton's host code asks its driver for."""
    torch = require(_CALLER, "torch", "torch")
    of = torch.cuda.get_device_properties()
    figures = {
        "max_shared_mem": gpu.shared_per_block_optin,
        "max_num_regs": gpu.registers_per_block,
        "multiprocessor_count": of.multi_processor_count,
        "warpSize": of.warp_size,
    }
    target = require(_CALLER, "triton.backends.compiler", "triton").GPUTarget("cuda", gpu.sm, of.warp_size)
    return SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        set_current_device=lambda device: None,
        get_current_stream=lambda device=0: 0,
        get_device_capability=lambda device=0: (of.major, of.minor),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: _refuser("triton.testing.do_bench", _TIMED),
        is_active=lambda: True,
        utils=SimpleNamespace(get_device_properties=lambda device: figures),
    )


@contextmanager
def _own_launches(gpu: Target, modes: Any, outcomes: list[Outcome], **how: Any) -> Iterator[None]:
    """Launches of `@ptxgen.kernel` functions, with the sanitizers."""

    def launch(
        kernel: KernelFunction,
        grid: object,
        /,
        *args: object,
        threads: int | None = None,
        stream: object = None,
        backend: str = AUTO,
        max_instructions: int | None = None,
        **named: object,
    ) -> None:
        if backend not in (AUTO, "cuda", "interpreter"):
            raise LaunchError(f"{kernel.name}: backend must be auto, cuda or interpreter, got {backend!r}")
        limits = how if max_instructions is None else how | {"max_instructions": max_instructions}
        values, statics = kernel.signature.bind(args, named)
        with modes.paused():
            try:
                outcome = dispatch.run(
                    kernel, grid, threads, values, target=kernel.target_of(None, gpu), **limits, **statics
                )
            except FoundError as error:
                outcomes.append(error.outcome)
                raise
        outcomes.append(outcome)
        sys.stdout.write(outcome.printed)

    with patch.object(KernelFunction, "launch", launch):
        yield
