"""Numba as a compiler of loops. What it compiled is kept on disk, beside the modules for GPUs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

from ptxgen.runtime.private import PRIVATE_MODE, NotPrivateError, open_private, private_folder
from ptxgen.runtime.settings import Settings

_Loop = TypeVar("_Loop", bound=Callable[..., Any])

FOLDER: Final = "numba"  # in the cache's directory, where the files of modules have other names
_CONFIGURED: Final = threading.Lock()


def part_of_loop(fastmath: frozenset[str]) -> Callable[[_Loop], _Loop]:
    """A decorator of functions that compiled loops call. `fastmath` are the liberties that LLVM has."""

    def decorated(function: _Loop) -> _Loop:
        found: _Loop = numba.njit(function, nogil=True, fastmath=set(fastmath))
        return found

    return decorated


def compiled(fastmath: frozenset[str]) -> Callable[[_Loop], _Loop]:
    """A decorator of loops that are compiled, or read from disk, when they are first called with arguments of
    some types, and run without the lock of Python's interpreter.
    """

    def decorated(loop: _Loop) -> _Loop:
        found = part_of_loop(fastmath)(loop)
        folder = _folder()
        if folder is not None:
            # Numba finds that it cannot write there, or others could have written what is there.
            with contextlib.suppress(OSError, RuntimeError, NotPrivateError):
                # `cache=True` would choose a folder beside the source.
                found._cache = _KeptCode(loop, folder)  # type: ignore[attr-defined]
        return found

    return decorated


def _folder() -> Path | None:
    """Where compiled loops are kept; None if they are not, or others could write there: what is read from
    there is run.
    """
    settings = Settings.from_environment()
    if settings.cache_on_disk:
        with contextlib.suppress(OSError, NotPrivateError):
            return private_folder(settings.cache_dir, FOLDER)
    return None


@functools.cache
def _digest_of(folder: Path) -> str:
    """A digest of the Python files of a folder."""
    each = [hashlib.sha256(file.read_bytes()).digest() for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(each)).hexdigest()


class _PrivateFiles(IndexDataCacheFile):  # type: ignore[misc]  # Numba has no types
    """The files of a compiled function. They are read only if nobody else could have written them."""

    def _load_index(self) -> Any:
        with contextlib.suppress(FileNotFoundError):
            open_private(Path(self._index_path)).close()
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        open_private(Path(self._data_path(name))).close()
        return super()._load_data(name)

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        with super()._open_for_write(filepath) as file:
            Path(file.name).chmod(PRIVATE_MODE)  # whatever the process's umask is
            yield file


class _KeptCode(FunctionCache):  # type: ignore[misc]  # Numba has no types
    """Numba's files of a compiled function, in a folder. One that cannot be read or written costs time."""

    def __init__(self, loop: Callable[..., Any], folder: Path) -> None:
        with _CONFIGURED:
            usual, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
            try:
                super().__init__(loop)
            finally:
                numba.config.CACHE_DIR = usual
        kept = Path(self._cache_path)
        kept.chmod(0o700)  # Numba has made it as the process's umask is
        private_folder(folder, kept.name)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _PrivateFiles(self._cache_path, self._impl.filename_base, stamp)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        """What Numba keeps code by, which knows the loop's own file; and the files beside it, which may have
        parts of the loop.
        """
        found: tuple[Any, ...] = super()._index_key(sig, codegen)
        return *found, _digest_of(Path(self._py_func.__code__.co_filename).parent)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for a signature; None if it is not there, or cannot be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged file may raise anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled function for a signature."""
        with contextlib.suppress(OSError, NotPrivateError):
            super().save_overload(sig, data)
