"""Numba as a compiler of loops. Compiled loops are cached on disk, in the cache of the modules for GPUs."""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import llvmlite
import numba
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from ptxgen.runtime.cache import CacheKey, DiskCache
from ptxgen.runtime.settings import Settings

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

TARGET: Final = "cpu"  # of the cache's entries


def part_of_loop(fastmath: frozenset[str]) -> Callable[[_Loop], _Loop]:
    """A decorator of functions that compiled loops call. `fastmath` are LLVM's flags of inexact arithmetic
    that it may use.
    """

    def decorated(function: _Loop) -> _Loop:
        dispatcher: _Loop = numba.njit(function, nogil=True, fastmath=set(fastmath))
        return dispatcher

    return decorated


def compiled(fastmath: frozenset[str]) -> Callable[[_Loop], _Loop]:
    """A decorator of loops that are compiled, or read from disk, when they are first called with arguments of
    some types, and run without the lock of Python's interpreter.
    """

    def decorated(loop: _Loop) -> _Loop:
        dispatcher = part_of_loop(fastmath)(loop)
        settings = Settings.from_environment()
        if settings.disk is not None:
            disk = _disk_of(settings.disk, settings.cache_bytes)
            dispatcher._cache = _CachedCode(loop, fastmath, disk)  # type: ignore[attr-defined]
        return dispatcher

    return decorated


@functools.cache
def _disk_of(directory: Path, max_bytes: int) -> DiskCache:
    """One cache for all loops, which warns once."""
    return DiskCache(directory, max_bytes)


@functools.cache
def _digest_of(folder: Path) -> str:
    """A digest of the Python files of a folder."""
    each = [hashlib.sha256(file.read_bytes()).digest() for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(each)).hexdigest()


class _CachedCode(FunctionCache):  # type: ignore[misc]  # Numba has no types
    """The compiled code of a loop, as entries of a cache, which are checked before they are unpickled. An
    entry that cannot be read or written costs only time.
    """

    def __init__(self, loop: Callable[..., Any], fastmath: frozenset[str], disk: DiskCache) -> None:
        # Without Numba's `__init__`, which would make files of its kind: they have no checksums.
        self._py_func = loop
        self._fastmath = sorted(fastmath)
        self._disk = disk
        self._cache_path = str(disk.directory)

    def _key(self, sig: Any, codegen: Any) -> CacheKey:
        """All that the compiled code depends on: Numba's own key, which covers the loop itself, and the files
        of its folder, which may have functions that the loop calls.
        """
        loop = self._py_func
        files = _digest_of(Path(loop.__code__.co_filename).parent)
        text = repr((loop.__qualname__, self._index_key(sig, codegen), self._fastmath, files))
        python = str(sys.implementation.cache_tag)
        return CacheKey(text, TARGET, "numba", numba.__version__, (llvmlite.__version__, python))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature; None if the cache lacks it, or it cannot be used."""
        target_context.refresh()
        data = self._disk.get(self._key(sig, target_context.codegen()))
        if data is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(data))
        except Exception:  # of another build of Numba or LLVM with the same version: anything
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the compiled function for a signature in the cache."""
        if not data.lifted and not data.library.has_dynamic_globals:  # which no other process could use
            self._disk.put(self._key(sig, data.codegen), dumps(data._reduce()))

    def flush(self) -> None:
        """Do nothing: `ptxgen cache clear` removes entries."""
