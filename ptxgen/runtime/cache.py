"""The module cache, which keeps compiled modules as bytes in memory and on disk.

A `CacheKey` holds everything the bytes depend on, the text itself included, so no version has to be
raised when a kernel changes. `ModuleCache` keeps the modules that this process has built or loaded;
`DiskCache` keeps one self-contained file for each entry, shared by all processes of one user:

    ptxgen-cache                     fixed first line
    <sha256 of the next line>
    {"assembler": ..., "key": ...}   schema, key, payload length and sha256; the rest is for people
    <payload>                        `tail -n +4 FILE` prints it

An entry is used only if it is a private file of this user and all its lengths and checksums are
right; anything else is a miss. Nothing here is unpickled. If the directory cannot be used, the
cache works in memory only and warns once; no launch fails.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from ptxgen.errors import ConfigError
from ptxgen.runtime.private import NotPrivateError, open_private, refusal
from ptxgen.runtime.settings import Settings

KEY_SCHEMA: Final = 1  # version of the key's encoding and of the entry file; raise it with either
STALE_SECONDS: Final = 3600  # a writer needs milliseconds: that of an older temporary file died
_MAGIC: Final = b"ptxgen-cache\n"
_OUR_NAME: Final = re.compile(r"[0-9a-f]{64}\.(entry|(?P<random>\w+)\.tmp)", re.ASCII)
_SHOWN_CHARS: Final = 200  # characters of each header field that is for people
_HEADER_MAX_BYTES: Final = 1 << 14  # twice the size of three such fields with escaped characters


class CacheWarning(UserWarning):
    """Warns that the disk cannot be used as a cache, so that modules are kept in memory only."""


@dataclass(frozen=True)
class CacheKey:
    """Everything that the bytes of a built module depend on.

    `text` is the PTX, `target` a name such as `sm_90a`; `assembler` and `version` name the program
    that makes the bytes, `options` are its further options.
    """

    text: str = field(repr=False)
    target: str
    assembler: str
    version: str
    options: tuple[str, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of `KEY_SCHEMA` and all fields, as 64 hex digits.

        Each field is preceded by its length in bytes, so different keys have different encodings.
        """
        parts = (str(KEY_SCHEMA), self.target, self.assembler, self.version, self.text)
        sha = hashlib.sha256()
        for part in (*parts, *self.options):
            data = part.encode()
            sha.update(len(data).to_bytes(8, "little"))
            sha.update(data)
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """A number of cache entries, and the total size of their files in bytes."""

    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The contents of a cache directory.

    `oldest` and `newest` are the times of the least and the most recent use (seconds since 1970,
    None without entries); `by_target` maps a target's name, or `unreadable`, to its entries;
    `temporaries` counts files that are being written, or were left by a writer that died.
    """

    total: Usage
    oldest: float | None
    newest: float | None
    by_target: dict[str, Usage]
    temporaries: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged entry, which the cache does not use, and the reason."""

    path: Path
    reason: str


class _DamagedEntryError(Exception):
    """An entry file is not as this project writes it; the message says in which way."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file with a name of the cache; `used` is its time of last use in ns since 1970."""

    name: str
    nbytes: int
    used: int


class DiskCache:
    """Entries as files of one private directory of at most `max_bytes` bytes.

    Any number of threads and processes may use one directory at once. The least recently used
    entries are removed to make room for new ones. `get` and `put` never raise because of the disk:
    they warn once (`CacheWarning`). `info`, `verify`, `discard` and `clear`, which are for people,
    raise OSError, and ConfigError for a directory that is not private.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self._writable = True
        self._warned = threading.Lock()  # a latch: the thread that takes it warns; never released

    def get(self, key: CacheKey) -> bytes | None:
        """The bytes stored under `key`, or None if there are none. A damaged entry is removed."""
        problem = refusal(self.directory)
        if problem:
            self._warn(problem)
            return None
        path = self._path(key)
        try:
            with _open_entry(path) as file:
                payload = _read_entry(file, key.digest)
        except _DamagedEntryError:
            # If another process has just replaced it, the new entry is lost, and built again.
            _remove(path)
            return None
        except OSError:
            return None  # no such file, or unreadable: the next put replaces it or warns
        with contextlib.suppress(OSError):  # a read-only cache is still worth reading
            os.utime(path)
        return payload

    def put(self, key: CacheKey, data: bytes) -> None:
        """Store `data` under `key`, then remove least recently used entries beyond `max_bytes`."""
        if not self._writable:
            return
        path, blob = self._path(key), _encode(key, data)
        if len(blob) > self.max_bytes:
            self._warn(f"an entry of {len(blob)} bytes is larger than the cap of {self.max_bytes}")
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = refusal(self.directory)
            if problem is None:
                _write(path, blob)
                self._make_room(keep=path.name)
        except FileNotFoundError:
            return  # another process removed the directory; the next put makes it again
        except OSError as error:
            problem = f"{self.directory} cannot be written ({error.strerror or error})"
        if problem:
            self._writable = False
            self._warn(problem)

    def info(self) -> CacheInfo:
        """Count the entries and temporary files, reading only headers."""
        self._require_private()
        entries, temporaries = self._scan()
        by_target: dict[str, Usage] = {}
        for entry in entries:
            target = _target_of(self.directory / entry.name)
            before = by_target.get(target, Usage(0, 0))
            by_target[target] = Usage(before.entries + 1, before.nbytes + entry.nbytes)
        used = [entry.used / 1e9 for entry in entries]
        return CacheInfo(
            total=Usage(len(entries), sum(entry.nbytes for entry in entries)),
            oldest=min(used, default=None),
            newest=max(used, default=None),
            by_target=dict(sorted(by_target.items())),
            temporaries=len(temporaries),
        )

    def verify(self) -> tuple[int, tuple[Damage, ...]]:
        """Read and check every entry; returns how many were checked, and the damaged ones."""
        self._require_private()
        checked, damaged = 0, []
        for entry in sorted(self._scan()[0], key=lambda entry: entry.name):
            path = self.directory / entry.name
            try:
                with _open_entry(path) as file:
                    _read_entry(file, path.stem)
            except FileNotFoundError:
                continue  # removed since the listing to make room for another entry
            except (_DamagedEntryError, OSError) as error:
                damaged.append(Damage(path, str(error)))
            checked += 1
        return checked, tuple(damaged)

    def discard(self, damaged: Iterable[Damage]) -> None:
        """Remove the entries that `verify` found damaged."""
        self._require_private()
        for damage in damaged:
            damage.path.unlink(missing_ok=True)

    def clear(self) -> tuple[Usage, tuple[Path, ...]]:
        """Remove every entry and temporary file that begins with the cache's first line.

        Returns the number and size of the removed files, and the paths of files that remain
        because only their names are like those of the cache.
        """
        self._require_private()
        removed, refused = [], []
        for file in itertools.chain(*self._scan()):
            path = self.directory / file.name
            if _begins_like_ours(path):
                path.unlink(missing_ok=True)
                removed.append(file.nbytes)
            else:
                refused.append(path)
        return Usage(len(removed), sum(removed)), tuple(refused)

    def _path(self, key: CacheKey) -> Path:
        return self.directory / f"{key.digest}.entry"

    def _warn(self, problem: str) -> None:
        if self._warned.acquire(blocking=False):
            message = (
                f"ptxgen keeps compiled modules in memory only: {problem}; set PTXGEN_CACHE_DIR to "
                "a private, writable directory, raise PTXGEN_CACHE_SIZE, or set PTXGEN_CACHE=off"
            )
            warnings.warn(message, CacheWarning, stacklevel=3)

    def _require_private(self) -> None:
        problem = refusal(self.directory)
        if problem:
            raise ConfigError(f"the module cache refuses its directory: {problem}")

    def _scan(self) -> tuple[list[_File], list[_File]]:
        """The entries and the temporary files; both lists are empty if there is no directory."""
        entries: list[_File] = []
        temporaries: list[_File] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as items:
            for item in items:
                if not (match := _OUR_NAME.fullmatch(item.name)):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed since the listing
                    status = item.stat(follow_symlinks=False)
                    file = _File(item.name, status.st_size, status.st_mtime_ns)
                    (temporaries if match["random"] else entries).append(file)
        return entries, temporaries

    def _make_room(self, keep: str) -> None:
        """Remove stale temporary files, and least recently used entries beyond `max_bytes`."""
        entries, temporaries = self._scan()
        newest_stale = time.time_ns() - STALE_SECONDS * 10**9
        for temporary in temporaries:
            if temporary.used < newest_stale:
                _remove(self.directory / temporary.name)
        excess = sum(entry.nbytes for entry in entries) - self.max_bytes
        for entry in sorted(entries, key=lambda entry: (entry.used, entry.name)):
            if excess <= 0:
                break
            if entry.name != keep:
                _remove(self.directory / entry.name)
                excess -= entry.nbytes


class ModuleCache:
    """The modules that this process has built or loaded, above a `DiskCache` (None: no disk)."""

    # `dict.setdefault` decides which thread builds, so no lock can be copied by a fork while held.

    def __init__(self, disk: DiskCache | None) -> None:
        self.disk = disk
        self._modules: dict[str, bytes] = {}
        self._builds: dict[tuple[int, str], Future[bytes]] = {}  # running, by process and digest

    def get_or_build(self, key: CacheKey, build: Callable[[], bytes]) -> bytes:
        """The bytes of `key`: from memory, from disk, or from `build()`.

        Threads that ask for one key at the same time share one build. If it raises, nothing is cached, all
        these threads get the exception, and the next call builds again.
        """
        digest = key.digest
        while True:
            if (known := self._modules.get(digest)) is not None:
                return known
            mine: Future[bytes] = Future()
            # The process is part of the key: a forked child inherits the running builds of its
            # parent, but not the threads that run them.
            current = self._builds.setdefault((os.getpid(), digest), mine)
            if current is mine:
                break
            # Cancelled: the builder was interrupted, which is not this thread's failure.
            with contextlib.suppress(CancelledError):
                return current.result()
        data, fresh = self._settle(key, build, mine)
        if self.disk and fresh:
            self.disk.put(key, data)
        return data

    def _settle(self, key: CacheKey, build: Callable[[], bytes], result: Future[bytes]) -> tuple[bytes, bool]:
        """Find or build `key` and set `result`, for which threads wait; True if it was built."""
        fresh = False
        try:
            data = self._modules.get(key.digest)  # another build may just have ended
            if data is None and self.disk:
                data = self.disk.get(key)
            if data is None:
                data, fresh = build(), True
            self._modules[key.digest] = data
            result.set_result(data)
        except Exception as error:
            result.set_exception(error)
            raise
        finally:
            self._builds.pop((os.getpid(), key.digest), None)
            result.cancel()  # has an effect only if an interrupt ended the build
        return data, fresh


_DEFAULT: Final[dict[str, ModuleCache]] = {}


def default_cache() -> ModuleCache:
    """The cache of this process, set up from the environment variables at the first call.

    Raises ConfigError if a variable has an invalid value.
    """
    if "cache" not in _DEFAULT:
        settings = Settings.from_environment()
        disk = DiskCache(settings.disk, settings.cache_bytes) if settings.disk else None
        # If several threads get here at once, setdefault gives all of them the same cache.
        _DEFAULT.setdefault("cache", ModuleCache(disk))
    return _DEFAULT["cache"]


def _encode(key: CacheKey, payload: bytes) -> bytes:
    """The bytes of the whole entry file."""
    header = {
        "schema": KEY_SCHEMA,
        "key": key.digest,
        "target": key.target[:_SHOWN_CHARS],
        "assembler": key.assembler[:_SHOWN_CHARS],
        "version": key.version[:_SHOWN_CHARS],
        "payload_bytes": len(payload),
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
    }
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    return _MAGIC + _seal(line) + line + payload


def _seal(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest().encode() + b"\n"


def _open_entry(path: Path) -> BinaryIO:
    """Open an entry for reading; raises `_DamagedEntryError` if another user could have made it."""
    try:
        return open_private(path)
    except NotPrivateError as error:
        raise _DamagedEntryError(str(error)) from None


def _read_header(file: BinaryIO) -> Mapping[str, object]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise _DamagedEntryError("does not begin as an entry does")
    seal, line = file.readline(_HEADER_MAX_BYTES), file.readline(_HEADER_MAX_BYTES)
    if seal != _seal(line):
        raise _DamagedEntryError("has a damaged header")
    header: dict[str, object] = {}
    with contextlib.suppress(ValueError, TypeError):  # no JSON object, so no schema either
        header = dict(json.loads(line))
    if (schema := header.get("schema")) != KEY_SCHEMA:
        raise _DamagedEntryError(f"has schema {schema}, this version reads {KEY_SCHEMA}")
    return header


def _read_entry(file: BinaryIO, digest: str) -> bytes:
    """The payload of the entry in `file`; raises `_DamagedEntryError` unless it is for `digest`."""
    header = _read_header(file)
    if header.get("key") != digest:
        raise _DamagedEntryError(f"holds the entry of another key, {header.get('key')}")
    here, written = os.fstat(file.fileno()).st_size - file.tell(), header.get("payload_bytes")
    if here != written:
        raise _DamagedEntryError(f"has {here} bytes of payload, its header says {written}")
    payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header.get("payload_sha256"):
        raise _DamagedEntryError("has a damaged payload")
    return payload


def _target_of(path: Path) -> str:
    try:
        with _open_entry(path) as file:
            return str(_read_header(file).get("target"))
    except (_DamagedEntryError, OSError):
        return "unreadable"


def _begins_like_ours(path: Path) -> bool:
    """Whether a file begins with the cache's first line, or is a beginning of that line."""
    try:
        with _open_entry(path) as file:
            return _MAGIC.startswith(file.read(len(_MAGIC)))
    except (_DamagedEntryError, OSError):
        return False


def _write(path: Path, blob: bytes) -> None:
    """Replace the contents of `path` by `blob`, or leave them unchanged if interrupted."""
    # mkstemp creates the file with mode 600 under a name that nobody can guess.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty entry
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if sys.platform == "win32" and isinstance(error, PermissionError) and path.exists():
            return  # Windows does not replace an open file; the old file has the same payload
        raise
    if sys.platform != "win32":
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable where the system can; without it, the entry is still complete."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
