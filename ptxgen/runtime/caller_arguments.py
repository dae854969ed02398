"""Checks the GPU backend and the module cache that a user passes."""

from __future__ import annotations

from ptxgen.errors import ConfigError, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend, cuda_backend


def gpu_of(caller: str, cuda: object) -> CudaBackend:
    """The GPU backend passed to the function `caller`; the process's own backend for None.

    Raises `ConfigError` if `cuda` is neither None nor a `CudaBackend`.
    """
    if cuda is None:
        return cuda_backend()
    if not isinstance(cuda, CudaBackend):
        raise ConfigError(
            f"{caller}: cuda must be a CudaBackend, got {shown(cuda)}; leave it out for that of the process"
        )
    return cuda


def cache_of(caller: str, cache: object) -> ModuleCache | None:
    """The module cache passed to the function `caller`; None is the process's own cache.

    Raises `ConfigError` if `cache` is neither None nor a `ModuleCache`.
    """
    if cache is not None and not isinstance(cache, ModuleCache):
        raise ConfigError(
            f"{caller}: cache must be a ModuleCache, got {shown(cache)}; leave it out for that of the process"
        )
    return cache
