"""`kernel`: a decorator that makes a Python function a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

from ptxgen.errors import ConfigError
from ptxgen.kernels.function import KernelFunction, Threads
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend


@overload
def kernel(
    function: None = None,
    *,
    threads: Threads | Callable[..., Threads],
    min_ctas: int = 0,
    cluster: int | tuple[int, ...] | None = None,
    cooperative: bool = False,
    programmatic: bool = False,
    target: str | None = None,
    asserts: bool = False,
    proved: bool = True,
    cuda: CudaBackend | None = None,
    cache: ModuleCache | None = None,
) -> Callable[[Callable[..., None]], KernelFunction]: ...
@overload
def kernel(function: Callable[..., None], **choices: Any) -> KernelFunction: ...
def kernel(function: Callable[..., None] | None = None, **choices: Any) -> Any:
    """Make a function a kernel.

    `threads` is the size of a CTA: a number of threads, a tuple of the numbers along x, y and z, or
    a function of the static parameters, by name, that returns it; `min_ctas` the least CTAs per
    multiprocessor (0: not printed); `target` such as "sm_90", by default that of the device, else sm_80. From
    sm_90 on, `cluster` is the CTAs of a cluster along x, y and z; `programmatic` lets the kernel begin before
    the previous one in the stream has ended, until it calls `k.griddepcontrol_wait()`. `cooperative` launches
    have all CTAs resident at once. `asserts` says whether launches have the assertions of the kernel
    (`k.device_assert`), which `check` always has. `proved` says whether launches on a GPU ask the proof of
    shared memory and barriers, once for each build, and are refused if it has a violation. `cuda` is the GPU
    backend and `cache` keeps compiled kernels; by default those of the process.

    >>> from ptxgen import Pointer, f32, kernel, u32
    >>> @kernel(threads=64)
    ... def scale(k, X: Pointer[f32], n: u32, factor: f32):
    ...     i = k.block_id() * 64 + k.thread_id()
    ...     with k.when(i < n):
    ...         X[i] = X[i] * factor

    Raises `ConfigError` for a function that cannot be a kernel.
    """
    if "threads" not in choices:
        raise ConfigError("kernel: threads, the size of a CTA, is missing: @ptxgen.kernel(threads=128)")
    if function is None:
        return functools.partial(kernel, **choices)
    return KernelFunction(function, **choices)
