"""The GPU backend and the cache that a caller gives, or those of the process."""

from __future__ import annotations

from ptxgen.errors import ConfigError, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend, cuda_backend


def gpu_of(who: str, cuda: object) -> CudaBackend:
    """The GPU backend that `who` was given, that of the process for None. Raises `ConfigError` for
    anything else.
    """
    if cuda is None:
        return cuda_backend()
    if not isinstance(cuda, CudaBackend):
        raise ConfigError(
            f"{who}: cuda must be a CudaBackend, got {shown(cuda)}; leave it out for that of the "
            "process"
        )
    return cuda


def cache_of(who: str, cache: object) -> ModuleCache | None:
    """The cache of compiled kernels that `who` was given, None for that of the process. Raises
    `ConfigError` for anything else.
    """
    if cache is not None and not isinstance(cache, ModuleCache):
        raise ConfigError(
            f"{who}: cache must be a ModuleCache, got {shown(cache)}; leave it out for that of the "
            "process"
        )
    return cache
