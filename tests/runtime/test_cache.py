from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest
from messages import message as message_of

from ptxgen import errors
from ptxgen.errors import ConfigError
from ptxgen.runtime import cache as cache_module
from ptxgen.runtime.cache import (
    STALE_SECONDS,
    CacheInfo,
    CacheKey,
    CacheWarning,
    Damage,
    DiskCache,
    ModuleCache,
    Usage,
    default_cache,
    refusal,
)
from ptxgen.runtime.settings import Settings

ROOT = Path(errors.__file__).resolve().parent.parent
CAP = 1 << 20
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="owners, modes, signals and fork")

Build = Callable[[], bytes]
Caught = list[warnings.WarningMessage]


def key(text: str = "ret;", **other: object) -> CacheKey:
    fields = {"target": "sm_80", "assembler": "ptxas", "version": "13.0", "options": ("-O3",)}
    return CacheKey(text, **{**fields, **other})  # type: ignore[arg-type]  # str or tuple by name


def path_of(disk: DiskCache, entry: CacheKey) -> Path:
    return disk.directory / f"{entry.digest}.entry"


def temporaries(disk: DiskCache) -> list[Path]:
    return sorted(disk.directory.glob("*.tmp"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def entry_bytes(disk: DiskCache, payload: bytes) -> int:
    """The size of an entry file with such a payload, for keys as `key` makes them."""
    probe = DiskCache(disk.directory.parent / "probe", CAP)
    probe.put(key("probe"), payload)
    return path_of(probe, key("probe")).stat().st_size


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", CAP)


@pytest.fixture
def caught() -> Iterator[Caught]:
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        yield messages


def only_message(caught: Caught) -> str:
    assert [warning.category for warning in caught] == [CacheWarning]
    return str(caught[0].message)


def in_memory_only(problem: str) -> str:
    return (
        f"ptxgen keeps compiled modules in memory only: {problem}; set PTXGEN_CACHE_DIR to a "
        "private, writable directory, raise PTXGEN_CACHE_SIZE, or set PTXGEN_CACHE=off"
    )


# Keys


def test_a_digest_is_the_same_in_every_process_and_release() -> None:
    # The encoding is written out here; a change of it must bump KEY_SCHEMA, and then this test.
    parts = ("1", "sm_80", "ptxas", "13.0", "ret;", "-O3", "-v")
    encoded = b"".join(len(part).to_bytes(8, "little") + part.encode() for part in parts)
    assert key(options=("-O3", "-v")).digest == hashlib.sha256(encoded).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        *(key("ret; "), key(target="sm_90"), key(assembler="nvjitlink"), key(version="13.1")),
        *(key(options=()), key(options=("-O", "3")), key(options=("-O3", ""))),
        *(key(target="sm_80p", assembler="txas"), key(version="13.0r", text="et;")),
    ],
)
def test_every_field_and_its_borders_are_in_the_digest(other: CacheKey) -> None:
    assert other.digest != key().digest


def test_equal_keys_are_equal_and_do_not_print_their_text() -> None:
    assert key() == key()
    assert hash(key()) == hash(key())
    assert repr(key("secret" * 1000)) == (
        "CacheKey(target='sm_80', assembler='ptxas', version='13.0', options=('-O3',))"
    )


# Round trip and the file


@pytest.mark.parametrize("payload", [b"", b"\n", b"\0\xff\r\n", bytes(range(256)) * 300])
def test_what_was_put_comes_back(disk: DiskCache, payload: bytes) -> None:
    assert disk.get(key()) is None
    assert not disk.directory.exists()
    for replaced in (b"old", payload):
        disk.put(key(), replaced)
        assert disk.get(key()) == replaced
    assert disk.get(key("other")) is None


def test_an_entry_is_a_text_header_of_three_lines_and_then_the_payload(disk: DiskCache) -> None:
    disk.put(key(target="sm_90a", version="13" * 500), b"\x7fELF\n\n")
    magic, seal, line, payload = (
        path_of(disk, key(target="sm_90a", version="13" * 500)).read_bytes().split(b"\n", 3)
    )
    assert magic == b"ptxgen-cache"
    assert seal.decode() == hashlib.sha256(line + b"\n").hexdigest()
    assert json.loads(line) == {
        "schema": 1,
        "key": key(target="sm_90a", version="13" * 500).digest,
        "target": "sm_90a",
        "assembler": "ptxas",
        "version": "13" * 100,
        "payload_bytes": 6,
        "payload_sha256": hashlib.sha256(b"\x7fELF\n\n").hexdigest(),
    }
    assert payload == b"\x7fELF\n\n"


def test_long_and_foreign_names_in_a_key_do_no_harm(disk: DiskCache) -> None:
    odd = key(target="\U0001f600" * 9999, assembler="\n" * 9999, version="\0é" * 9999)
    disk.put(odd, b"data")
    assert disk.get(odd) == b"data"


@POSIX
def test_directory_and_files_are_private_whatever_the_umask(disk: DiskCache) -> None:
    before = os.umask(0)
    try:
        disk.put(key(), b"data")
    finally:
        os.umask(before)
    assert stat.S_IMODE(disk.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(disk, key()).stat().st_mode) == 0o600
    assert refusal(disk.directory) is None


@POSIX
def test_the_bytes_reach_the_disk_before_the_name_and_the_name_before_put_returns(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        steps.append("directory" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_rename)
    disk.put(key(), b"data")
    path = path_of(disk, key())
    assert steps == [f"{path.stat().st_size} bytes", f"rename to {path.name}", "directory"]


# Damage


def assert_miss_then_rebuilt(disk: DiskCache, blob: bytes) -> None:
    path = path_of(disk, key())
    path.write_bytes(blob)
    assert disk.get(key()) is None
    assert not path.exists()
    assert ModuleCache(disk).get_or_build(key(), lambda: b"rebuilt") == b"rebuilt"
    assert disk.get(key()) == b"rebuilt"


def test_a_flip_of_a_bit_is_a_miss_and_the_file_is_removed(disk: DiskCache) -> None:
    disk.put(key(), b"small payload")
    path = path_of(disk, key())
    good = path.read_bytes()
    for position in range(len(good)):
        for bit in (
            range(8) if position < 16 else [position % 8]
        ):  # each bit of the first words, then one a byte
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            path.write_bytes(bad)
            assert disk.get(key()) is None, (position, bit)
            assert not path.exists(), (position, bit)
    assert_miss_then_rebuilt(disk, good[:-1] + b"!")


def test_every_truncation_and_extension_is_a_miss_and_the_file_is_removed(disk: DiskCache) -> None:
    disk.put(key(), b"small payload")
    path = path_of(disk, key())
    good = path.read_bytes()
    for wrong in (*(good[:length] for length in range(len(good))), good + b"\0", good + good):
        path.write_bytes(wrong)
        assert disk.get(key()) is None, len(wrong)
        assert not path.exists(), len(wrong)
    assert_miss_then_rebuilt(disk, b"")


def test_an_entry_under_the_name_of_another_key_is_a_miss(disk: DiskCache) -> None:
    disk.put(key("a"), b"module a")
    disk.put(key(), b"module b")
    assert_miss_then_rebuilt(disk, path_of(disk, key("a")).read_bytes())
    assert disk.get(key("a")) == b"module a"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ('{"schema": 0}', "has schema 0, this version reads 1"),
        ('{"schema": "1"}', "has schema 1, this version reads 1"),
        ("{}", "has schema None, this version reads 1"),
        ("[]", "has schema None, this version reads 1"),
        ("schema", "has schema None, this version reads 1"),
        ('{"schema": 1}', "holds the entry of another key, None"),
    ],
)
def test_a_sealed_header_of_another_schema_is_a_miss(disk: DiskCache, header: str, reason: str) -> None:
    disk.put(key(), b"data")
    line = header.encode() + b"\n"
    seal = hashlib.sha256(line).hexdigest().encode() + b"\n"
    blob = b"ptxgen-cache\n" + seal + line + b"data"
    path_of(disk, key()).write_bytes(blob)
    assert disk.verify() == (1, (Damage(path_of(disk, key()), reason),))
    assert_miss_then_rebuilt(disk, blob)


@POSIX
def test_a_link_in_place_of_an_entry_is_removed_and_not_followed(disk: DiskCache) -> None:
    disk.put(key(), b"data")
    elsewhere = disk.directory.parent / "elsewhere"
    path_of(disk, key()).rename(elsewhere)
    path_of(disk, key()).symlink_to(elsewhere)
    assert disk.get(key()) is None
    assert not path_of(disk, key()).is_symlink()
    assert elsewhere.exists()


@POSIX
def test_a_named_pipe_in_place_of_an_entry_is_removed_without_waiting(disk: DiskCache) -> None:
    disk.put(key("other"), b"data")
    os.mkfifo(path_of(disk, key()), 0o600)
    assert disk.verify() == (2, (Damage(path_of(disk, key()), "is not a regular file"),))
    assert disk.get(key()) is None
    assert not path_of(disk, key()).exists()


def test_a_directory_in_place_of_an_entry_is_a_miss(disk: DiskCache, caught: Caught) -> None:
    path_of(disk, key()).mkdir(parents=True, mode=0o700)
    disk.directory.chmod(0o700)
    assert ModuleCache(disk).get_or_build(key(), lambda: b"built") == b"built"
    assert disk.get(key()) is None
    assert only_message(caught).startswith("ptxgen keeps compiled modules in memory only: ")
    assert temporaries(disk) == []


@POSIX
def test_an_entry_that_others_can_write_is_a_miss(disk: DiskCache) -> None:
    disk.put(key(), b"data")
    path_of(disk, key()).chmod(0o666)
    assert disk.get(key()) is None
    assert not path_of(disk, key()).exists()


@POSIX
def test_an_entry_of_another_user_is_a_miss(disk: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.put(key(), b"data")
    real = os.fstat

    def foreign_fstat(descriptor: int) -> os.stat_result:
        return with_owner(real(descriptor), os.geteuid() + 1)

    monkeypatch.setattr(os, "fstat", foreign_fstat)
    assert disk.get(key()) is None
    assert not path_of(disk, key()).exists()


# A directory that cannot be trusted


def with_owner(status: os.stat_result, user: int) -> os.stat_result:
    values = list(status)
    values[4] = user
    return os.stat_result(values)


def assert_works_in_memory_with_one_warning(disk: DiskCache, caught: Caught, problem: str) -> None:
    memory = ModuleCache(disk)
    for text in ("a", "b", "a", "b", "c"):
        assert memory.get_or_build(key(text), text.encode) == text.encode()
        assert disk.get(key("never put")) is None
    assert only_message(caught) == in_memory_only(problem)


@POSIX
def test_a_directory_of_another_user_is_refused(
    disk: DiskCache, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put(key("a"), b"planted")
    owner, me = os.geteuid(), os.geteuid()
    if me == 0:
        owner = 12345
        os.chown(disk.directory, owner, -1)
    else:
        me += 1
        monkeypatch.setattr(os, "geteuid", lambda: me)
    problem = f"{disk.directory} belongs to user {owner}, not to this process's user {me}"
    assert_works_in_memory_with_one_warning(disk, caught, problem)
    assert message_of(disk.clear, ConfigError) == f"the module cache refuses its directory: {problem}"
    assert len(list(disk.directory.iterdir())) == 1


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(disk: DiskCache, caught: Caught, mode: int) -> None:
    disk.put(key("a"), b"planted")
    disk.directory.chmod(mode)
    problem = f"{disk.directory} is writable by others (mode {mode:o}, wanted 700)"
    assert_works_in_memory_with_one_warning(disk, caught, problem)
    assert len(list(disk.directory.iterdir())) == 1


@POSIX
def test_a_directory_that_others_can_only_read_is_used(disk: DiskCache) -> None:
    disk.directory.mkdir(mode=0o755)
    disk.put(key(), b"data")
    assert disk.get(key()) == b"data"


@POSIX
def test_a_link_made_by_another_user_is_refused(
    disk: DiskCache, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = disk.directory.parent / "target"
    target.mkdir(mode=0o700)
    disk.directory.symlink_to(target)
    real, me = os.lstat, os.geteuid()

    def foreign_lstat(path: str | Path) -> os.stat_result:
        status = real(path)
        return with_owner(status, me + 1) if Path(path) == disk.directory else status

    monkeypatch.setattr(os, "lstat", foreign_lstat)
    problem = f"{disk.directory} is a link made by user {me + 1}, not by this process's user {me}"
    assert_works_in_memory_with_one_warning(disk, caught, problem)
    assert list(target.iterdir()) == []


@POSIX
def test_a_link_of_ones_own_is_followed(disk: DiskCache) -> None:
    target = disk.directory.parent / "target"
    target.mkdir(mode=0o700)
    disk.directory.symlink_to(target)
    disk.put(key(), b"data")
    assert disk.get(key()) == b"data"
    assert len(list(target.iterdir())) == 1


def test_a_file_in_place_of_the_directory_is_refused(disk: DiskCache, caught: Caught) -> None:
    disk.directory.write_bytes(b"somebody's notes")
    problem = f"{disk.directory} is not a directory"
    assert refusal(disk.directory) == problem
    memory = ModuleCache(disk)
    assert memory.get_or_build(key(), lambda: b"built") == b"built"
    assert only_message(caught) == in_memory_only(problem)
    assert disk.directory.read_bytes() == b"somebody's notes"


def test_a_relative_directory_is_refused(
    tmp_path: Path, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = DiskCache(Path("~/cache"), CAP)
    assert ModuleCache(disk).get_or_build(key(), lambda: b"built") == b"built"
    assert only_message(caught) == in_memory_only(f"{disk.directory} is not an absolute path")


@POSIX
def test_a_directory_below_a_file_is_refused(tmp_path: Path, caught: Caught) -> None:
    (tmp_path / "file").touch()
    disk = DiskCache(tmp_path / "file" / "cache", CAP)
    problem = f"{disk.directory} cannot be examined (Not a directory)"
    assert_works_in_memory_with_one_warning(disk, caught, problem)


# A disk that cannot be written


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize(
    ("module", "function", "fault"),
    [
        (os, "fsync", NO_SPACE),
        (os, "replace", NO_SPACE),
        (tempfile, "mkstemp", NO_SPACE),
        (tempfile, "mkstemp", READ_ONLY),
        (os, "mkdir", READ_ONLY),
    ],
)
def test_a_full_or_read_only_disk_means_memory_only_with_one_warning(
    disk: DiskCache,
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    function: str,
    fault: OSError,
) -> None:
    if function != "mkdir":
        disk.put(key("before"), b"before")
    attempts: list[str] = []

    def counted_fault(*_: object, **__: object) -> None:
        attempts.append(function)
        raise fault

    monkeypatch.setattr(module, function, counted_fault)
    problem = f"{disk.directory} cannot be written ({fault.strerror})"
    assert_works_in_memory_with_one_warning(disk, caught, problem)
    assert attempts == [function]
    if function != "mkdir":
        assert disk.get(key("before")) == b"before"
        assert [path.name for path in disk.directory.iterdir()] == [f"{key('before').digest}.entry"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_write_that_the_system_refuses_for_lack_of_space_leaves_nothing(
    disk: DiskCache, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkstemp_on_a_full_device(dir: Path, prefix: str, suffix: str) -> tuple[int, str]:
        name = f"{dir}/{prefix}full{suffix}"
        Path(name).touch()
        return os.open("/dev/full", os.O_WRONLY), name

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp_on_a_full_device)
    problem = f"{disk.directory} cannot be written (No space left on device)"
    assert_works_in_memory_with_one_warning(disk, caught, problem)
    assert list(disk.directory.iterdir()) == []


@POSIX
def test_a_directory_without_write_permission_means_memory_only(disk: DiskCache, caught: Caught) -> None:
    if os.geteuid() == 0:
        pytest.skip("permissions do not bind root; the read-only disk above is the same path")
    disk.put(key("before"), b"before")
    disk.directory.chmod(0o500)
    memory = ModuleCache(disk)
    assert memory.get_or_build(key(), lambda: b"built") == b"built"
    assert memory.get_or_build(key("x"), lambda: b"built") == b"built"
    assert memory.get_or_build(key("before"), lambda: b"wrong") == b"before"
    problem = f"{disk.directory} cannot be written (Permission denied)"
    assert only_message(caught) == in_memory_only(problem)
    disk.directory.chmod(0o700)


def test_an_unreadable_entry_is_a_miss_and_the_next_put_replaces_it(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put(key(), b"data")

    def input_output_error(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", input_output_error)
        assert disk.get(key()) is None
    assert disk.get(key()) == b"data"


def test_a_time_of_use_that_cannot_be_set_is_no_miss(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put(key(), b"data")

    def read_only(*_: object) -> None:
        raise READ_ONLY

    monkeypatch.setattr(os, "utime", read_only)
    assert disk.get(key()) == b"data"


def test_a_cache_cleared_in_the_middle_of_a_put_is_used_again_afterwards(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace_after_clear(source: Path, target: Path) -> None:
        disk.clear()
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_after_clear)
        disk.put(key(), b"data")
    assert disk.get(key()) is None
    disk.put(key(), b"data")
    assert disk.get(key()) == b"data"


# The cap


def test_entries_unused_for_longest_make_room(disk: DiskCache) -> None:
    size = entry_bytes(disk, b"1234")
    small = DiskCache(disk.directory, 3 * size)
    for text, seconds in (("a", 300), ("b", 200), ("c", 100)):
        small.put(key(text), b"1234")
        age(path_of(small, key(text)), seconds)
    assert small.get(key("a")) == b"1234"  # now used last
    small.put(key("d"), b"1234")
    assert [small.get(key(text)) for text in "abcd"] == [b"1234", None, b"1234", b"1234"]
    assert small.info().total == Usage(3, 3 * size)
    for text, seconds in (("d", 300), ("a", 200), ("c", 100)):
        age(path_of(small, key(text)), seconds)
    small.put(key("e"), b"12345")  # one byte more than one entry frees
    assert [small.get(key(text)) for text in "acde"] == [None, b"1234", None, b"12345"]


def test_the_entry_just_written_is_never_the_one_to_go(disk: DiskCache) -> None:
    size = entry_bytes(disk, b"1234")
    small = DiskCache(disk.directory, size)
    small.put(key("a"), b"1234")
    age(path_of(small, key("a")), -1000)  # a clock that was wrong
    small.put(key("b"), b"1234")
    assert small.get(key("a")) is None
    assert small.get(key("b")) == b"1234"


def test_an_entry_larger_than_the_cap_is_kept_in_memory_with_one_warning(
    disk: DiskCache, caught: Caught
) -> None:
    size = entry_bytes(disk, b"1234")
    small = DiskCache(disk.directory, size)
    small.put(key("a"), b"1234")
    memory = ModuleCache(small)
    assert memory.get_or_build(key("b"), lambda: b"12345") == b"12345"
    assert memory.get_or_build(key("c"), lambda: b"12345") == b"12345"
    assert only_message(caught) == in_memory_only(
        f"an entry of {size + 1} bytes is larger than the cap of {size}"
    )
    assert small.get(key("a")) == b"1234"
    assert small.get(key("b")) is None


def test_files_that_are_not_entries_neither_count_nor_go(disk: DiskCache) -> None:
    size = entry_bytes(disk, b"1234")
    small = DiskCache(disk.directory, size)
    small.put(key("a"), b"1234")
    other = disk.directory / "notes.txt"
    other.write_bytes(bytes(10 * size))
    age(other, 10 * STALE_SECONDS)
    small.put(key("b"), b"1234")
    assert small.get(key("b")) == b"1234"
    assert other.exists()


def test_only_stale_temporary_files_are_swept(disk: DiskCache) -> None:
    disk.put(key(), b"data")
    stale = disk.directory / f"{key('a').digest}.abc12_z9.tmp"
    young = disk.directory / f"{key('b').digest}.abc12_z9.tmp"
    foreign = disk.directory / "thesis.tmp"
    for path, seconds in ((stale, STALE_SECONDS + 5), (young, STALE_SECONDS - 60), (foreign, 1e6)):
        path.write_bytes(b"ptxg")
        age(path, seconds)
    disk.put(key(), b"data")
    assert [path.exists() for path in (stale, young, foreign)] == [False, True, True]


# Other processes

WRITERS = """
import hashlib, os, sys
from pathlib import Path
from ptxgen.runtime.cache import CacheKey, DiskCache

directory, cap = Path(sys.argv[1]), int(sys.argv[2])

def entry(name):
    payload = hashlib.sha256(name.encode()).digest() * (20 + len(name) * 7)
    return CacheKey(name, "sm_80", "ptxas", "13.0"), payload

def write_and_check(writer):
    disk = DiskCache(directory, cap)
    for turn in range(3):
        for name in ("shared", f"shared {turn % 3}", f"own {writer} {turn}"):
            key, payload = entry(name)
            disk.put(key, payload)
            if disk.get(key) not in (payload, None):
                return 3
    return 0

gate, open_gate = os.pipe()
children = []
for writer in range(32):
    child = os.fork()
    if child == 0:
        os.close(open_gate)
        os.read(gate, 1)  # until the parent has started all
        try:
            os._exit(write_and_check(writer))
        finally:
            os._exit(4)
    children.append(child)
os.close(open_gate)
print(sorted({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}))
"""


def written(name: str) -> tuple[CacheKey, bytes]:
    payload = hashlib.sha256(name.encode()).digest() * (20 + len(name) * 7)
    return CacheKey(name, "sm_80", "ptxas", "13.0"), payload


WRITTEN_NAMES = [
    "shared",
    *(f"shared {turn}" for turn in range(3)),
    *(f"own {writer} {turn}" for writer in range(32) for turn in range(3)),
]


@pytest.mark.slow
@POSIX
@pytest.mark.parametrize("cap", [CAP, 40_000])
def test_32_concurrent_writers_hold_the_cap_and_lose_nothing_below_it(disk: DiskCache, cap: int) -> None:
    ran = python(WRITERS, disk.directory, cap)
    assert (ran.stdout, ran.stderr) == ("[0]\n", "")
    result = 0
    for name in WRITTEN_NAMES:
        entry, payload = written(name)
        data = disk.get(entry)
        assert data in (payload, None), name
        result += data is not None
    info = disk.info()
    assert 0 < info.total.nbytes <= cap
    assert result == info.total.entries
    assert (result == len(WRITTEN_NAMES)) == (cap == CAP)
    assert disk.verify() == (result, ())
    assert cap < CAP or temporaries(disk) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from ptxgen.runtime.cache import CacheKey, DiskCache

class HalfWriter:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *_):
        pass
    def write(self, blob):
        self.file.write(blob[:len(blob) // 2])
        self.file.flush()
        die()

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "mid-write":
    fdopen = os.fdopen
    os.fdopen = lambda descriptor, mode: HalfWriter(fdopen(descriptor, mode))
else:
    os.replace = die
DiskCache(Path(sys.argv[1]), 1 << 20).put(
    CacheKey("ret;", "sm_80", "ptxas", "13.0", ("-O3",)), b"new bytes" * 1000
)
"""


@POSIX
@pytest.mark.parametrize("moment", ["mid-write", "before the rename"])
@pytest.mark.parametrize("before", [None, b"old bytes"])
def test_a_writer_killed_with_signal_9_leaves_what_was_there(
    disk: DiskCache, moment: str, before: bytes | None
) -> None:
    if before is not None:
        disk.put(key(), before)
    disk.put(key("other"), b"other")
    ran = python(KILLED, disk.directory, moment)
    assert (ran.returncode, ran.stderr) == (-9, "")
    assert disk.get(key()) == before
    assert disk.get(key("other")) == b"other"
    (temporary,) = temporaries(disk)
    assert temporary.stat().st_size > 4000
    disk.put(key(), b"next")
    assert disk.get(key()) == b"next"
    assert temporaries(disk) == [temporary]  # it could still have a writer
    age(temporary, STALE_SECONDS + 5)
    disk.put(key("another"), b"another")
    assert temporaries(disk) == []


FORKED = """
import os, threading
from ptxgen.runtime.cache import CacheKey, ModuleCache

memory = ModuleCache(None)
key = CacheKey("ret;", "sm_80", "ptxas", "13.0")
building, finish = threading.Event(), threading.Event()

def slow():
    building.set()
    finish.wait()
    return b"parent"

thread = threading.Thread(target=memory.get_or_build, args=(key, slow))
thread.start()
building.wait()
child = os.fork()
if child == 0:
    os._exit(0 if memory.get_or_build(key, lambda: b"child") == b"child" else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
finish.set()
thread.join()
print(status, memory.get_or_build(key, bytes))
"""


@POSIX
def test_a_child_forked_during_a_build_does_not_wait_for_it() -> None:
    ran = python(FORKED)
    assert ran.stdout == "0 b'parent'\n", ran.stderr


# In memory


def test_memory_answers_before_the_disk_and_the_disk_before_the_build(disk: DiskCache) -> None:
    builds: list[str] = []

    def build() -> bytes:
        builds.append("build")
        return b"data"

    memory = ModuleCache(disk)
    first = memory.get_or_build(key(), build)
    disk.clear()
    assert memory.get_or_build(key(), build) is first
    assert builds == ["build"]
    disk.put(key(), b"from disk")
    assert ModuleCache(disk).get_or_build(key(), build) == b"from disk"
    assert builds == ["build"]
    assert ModuleCache(None).get_or_build(key(), build) == b"data"
    assert builds == ["build", "build"]


def test_an_empty_module_is_kept_too() -> None:
    memory = ModuleCache(None)
    assert memory.get_or_build(key(), bytes) == b""
    assert memory.get_or_build(key(), lambda: b"built again") == b""


class CountedFuture(Future[bytes]):
    """A future that tells how many threads began to wait for it."""

    waiting = threading.Semaphore(0)

    def result(self, timeout: float | None = None) -> bytes:
        self.waiting.release()
        return super().result(timeout)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    monkeypatch.setattr(CountedFuture, "waiting", threading.Semaphore(0))
    monkeypatch.setattr(cache_module, "Future", CountedFuture)
    return CountedFuture.waiting


def wait_for(waiting: threading.Semaphore, threads: int) -> None:
    assert all(waiting.acquire(timeout=30) for _ in range(threads))


THREADS = 12


def in_threads(memory: ModuleCache, build: Build) -> list[bytes | BaseException]:
    """What `get_or_build` gives or raises in each of `THREADS` threads that ask at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(memory.get_or_build, key(), build) for _ in range(THREADS)]
    return [future.exception() or future.result() for future in asked]


def test_threads_that_ask_at_once_share_one_build(disk: DiskCache, waiting: threading.Semaphore) -> None:
    builds: list[int] = []

    def build() -> bytes:
        builds.append(threading.get_ident())
        wait_for(waiting, THREADS - 1)
        return b"data"

    assert in_threads(ModuleCache(disk), build) == [b"data"] * THREADS
    assert len(builds) == 1
    assert disk.get(key()) == b"data"


def test_a_failing_build_reaches_every_thread_and_is_not_kept(
    disk: DiskCache, waiting: threading.Semaphore
) -> None:
    builds: list[int] = []

    def fail() -> bytes:
        builds.append(threading.get_ident())
        wait_for(waiting, THREADS - 1)
        raise RuntimeError("ptxas said no")

    memory = ModuleCache(disk)
    outcomes = in_threads(memory, fail)
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [
        (RuntimeError, "ptxas said no")
    ] * THREADS
    assert len(builds) == 1
    assert not disk.directory.exists()
    assert memory.get_or_build(key(), lambda: b"data") == b"data"


def test_an_interrupted_build_is_begun_anew_by_a_thread_that_waited(waiting: threading.Semaphore) -> None:
    memory = ModuleCache(None)
    builds: list[int] = []

    def build() -> bytes:
        builds.append(threading.get_ident())
        if len(builds) == 1:
            wait_for(waiting, THREADS - 1)
            raise KeyboardInterrupt
        return b"data"

    outcomes = in_threads(memory, build)
    assert outcomes.count(b"data") == THREADS - 1
    assert [type(outcome) for outcome in outcomes if outcome != b"data"] == [KeyboardInterrupt]
    assert len(builds) == 2


def test_threads_build_different_keys_side_by_side() -> None:
    memory = ModuleCache(None)
    both = threading.Barrier(2)

    def build() -> bytes:
        both.wait(timeout=30)  # broken unless the other build runs too
        return b"data"

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(memory.get_or_build, key(text), build) for text in "ab"]
    assert [future.result() for future in asked] == [b"data", b"data"]


# For people


def test_info_counts_entries_by_target_and_times_of_use(disk: DiskCache) -> None:
    nothing = CacheInfo(Usage(0, 0), None, None, {}, 0)
    assert disk.info() == nothing
    disk.put(key("a"), b"1234")
    disk.put(key("b"), b"12345")
    disk.put(key("c", target="sm_90a"), b"")
    size = path_of(disk, key("a")).stat().st_size
    disk.put(key("d"), b"damaged")
    broken = path_of(disk, key("d"))
    broken.write_bytes(b"x")
    for entry, used in ((key("a"), 3e9), (key("b"), 1e9), (key("c", target="sm_90a"), 2e9)):
        os.utime(path_of(disk, entry), (used, used))
    os.utime(broken, (2e9, 2e9))
    (disk.directory / f"{key().digest}.abc.tmp").touch()
    (disk.directory / "notes.txt").write_text("not ours")
    info = disk.info()
    by_target = {
        "sm_80": Usage(2, 2 * size + 1),
        "sm_90a": Usage(1, path_of(disk, key("c", target="sm_90a")).stat().st_size),
        "unreadable": Usage(1, 1),
    }
    total = Usage(4, sum(usage.nbytes for usage in by_target.values()))
    assert info == CacheInfo(total, 1e9, 3e9, by_target, 1)
    assert list(info.by_target) == ["sm_80", "sm_90a", "unreadable"]


def test_verify_names_each_kind_of_damage_and_changes_nothing(disk: DiskCache) -> None:
    texts = "abcdef"
    for text in texts:
        disk.put(key(text), b"payload")
    paths = {text: path_of(disk, key(text)) for text in texts}
    good = paths["a"].read_bytes()
    paths["b"].write_bytes(paths["b"].read_bytes()[:-1])
    paths["c"].write_bytes(paths["c"].read_bytes()[:-1] + b"!")
    paths["d"].write_bytes(good)
    paths["e"].write_bytes(b"P" + good[1:])
    paths["f"].write_bytes(good.replace(b"ptxas", b"ptxaz"))
    reasons = {
        "b": "has 6 bytes of payload, its header says 7",
        "c": "has a damaged payload",
        "d": f"holds the entry of another key, {key('a').digest}",
        "e": "does not begin as an entry does",
        "f": "has a damaged header",
    }
    damaged = sorted(
        (Damage(paths[text], reason) for text, reason in reasons.items()), key=lambda damage: damage.path
    )
    assert disk.verify() == (6, tuple(damaged))
    assert all(path.exists() for path in paths.values())
    disk.discard(damaged)
    assert disk.verify() == (1, ())
    assert disk.get(key("a")) == b"payload"


def test_an_entry_that_goes_while_verify_runs_is_no_damage(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.put(key("a"), b"data")
    disk.put(key("b"), b"data")
    scan = DiskCache._scan

    def scan_then_remove(self: DiskCache) -> object:
        listing = scan(self)
        path_of(self, key("a")).unlink()
        return listing

    monkeypatch.setattr(DiskCache, "_scan", scan_then_remove)
    assert disk.verify() == (1, ())


def test_clear_removes_ours_and_nothing_else(disk: DiskCache) -> None:
    assert disk.clear() == (Usage(0, 0), ())
    disk.put(key("a"), b"1234")
    size = path_of(disk, key("a")).stat().st_size
    disk.put(key("b"), b"")
    path_of(disk, key("b")).write_bytes(b"ptx")  # cut short
    temporary = disk.directory / f"{key().digest}.abc.tmp"
    temporary.touch()
    others = {
        disk.directory / "notes.txt": b"ptxgen-cache\n",
        disk.directory / f"{key('c').digest}.entry": b"somebody else's entry",
        disk.directory / f"{key('c').digest}.entry.bak": b"ptxgen-cache\n",
        disk.directory / f"{key('c').digest.upper()}.entry": b"ptxgen-cache\n",
    }
    for path, content in others.items():
        path.write_bytes(content)
    kept = (disk.directory / f"{key('c').digest}.entry",)
    assert disk.clear() == (Usage(3, size + 3), kept)
    assert {path: path.read_bytes() for path in disk.directory.iterdir()} == others


# Settings and the cache of the process


def test_an_empty_environment_means_the_defaults() -> None:
    defaults = Settings(
        cache_dir=platformdirs.user_cache_path("ptxgen", appauthor=False),
        cache_bytes=512 * 1024 * 1024,
        cache_on_disk=True,
        ptxas=None,
        backend="auto",
    )
    assert Settings.from_environment({}) == defaults
    names = ("CACHE_DIR", "CACHE_SIZE", "CACHE", "PTXAS", "BACKEND")
    assert Settings.from_environment({f"PTXGEN_{name}": "" for name in names}) == defaults


def test_every_variable_is_read() -> None:
    settings = Settings.from_environment({"PTXGEN_CACHE_DIR": "~/ptx"})
    assert settings.cache_dir == Path("~/ptx").expanduser()
    assert Settings.from_environment(
        {
            "PTXGEN_CACHE_DIR": str(ROOT / "there"),
            "PTXGEN_CACHE_SIZE": "3MiB",
            "PTXGEN_CACHE": "off",
            "PTXGEN_PTXAS": sys.executable,
            "PTXGEN_BACKEND": "interpreter",
        }
    ) == Settings(ROOT / "there", 3 << 20, False, Path(sys.executable), "interpreter")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        *(("1", 1), ("4096", 4096), ("7B", 7), ("512MB", 512_000_000), ("512 MB", 512_000_000)),
        *((" 2gib ", 2 << 30), ("5KiB", 5120), ("5kb", 5000), ("1GB", 10**9)),
    ],
)
def test_a_cache_size_is_bytes_or_has_a_unit(text: str, nbytes: int) -> None:
    assert Settings.from_environment({"PTXGEN_CACHE_SIZE": text}).cache_bytes == nbytes


@pytest.mark.parametrize(
    "text", ["0", "0MB", "-1", "1.5GB", "lots", "MB", "12 parsecs", "9" * 5000, "٣", "0x10", "1e6"]
)
def test_a_wrong_cache_size_is_refused(text: str) -> None:
    assert message_of(lambda: Settings.from_environment({"PTXGEN_CACHE_SIZE": text}), ConfigError) == (
        "PTXGEN_CACHE_SIZE must be a positive whole number of bytes or one with a unit "
        f"(KB, MB, GB, KiB, MiB, GiB) such as 512MB, got {text!r}; "
        "to keep nothing on disk set PTXGEN_CACHE=off"
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PTXGEN_CACHE", "no", "PTXGEN_CACHE must be one of on, off, got 'no'"),
        (
            "PTXGEN_BACKEND",
            "interpeter",
            "PTXGEN_BACKEND must be one of auto, cuda, interpreter, cpu, compiled, got 'interpeter'; "
            "did you mean 'interpreter'?",
        ),
        (
            "PTXGEN_CACHE_DIR",
            "some/where",
            "PTXGEN_CACHE_DIR must be an absolute path (or begin with ~), got 'some/where'",
        ),
        (
            "PTXGEN_PTXAS",
            "/no/such/ptxas",
            "PTXGEN_PTXAS must be the path of an executable file, got '/no/such/ptxas'; "
            "unset it to search the pip package, the toolkit and PATH",
        ),
        (
            "PTXGEN_PTXAS",
            str(ROOT),
            f"PTXGEN_PTXAS must be the path of an executable file, got {str(ROOT)!r}; "
            "unset it to search the pip package, the toolkit and PATH",
        ),
        (
            "PTXGEN_PTXAS",
            errors.__file__,
            f"PTXGEN_PTXAS must be the path of an executable file, got {errors.__file__!r}; "
            "unset it to search the pip package, the toolkit and PATH",
        ),
    ],
)
def test_a_wrong_setting_is_refused(variable: str, value: str, message: str) -> None:
    assert message_of(lambda: Settings.from_environment({variable: value}), ConfigError) == message


def test_the_cache_of_the_process_follows_the_environment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_DEFAULT", {})
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "there"))
    monkeypatch.setenv("PTXGEN_CACHE_SIZE", "7MB")
    monkeypatch.delenv("PTXGEN_CACHE", raising=False)
    memory = default_cache()
    assert memory.disk is not None
    assert (memory.disk.directory, memory.disk.max_bytes) == (tmp_path / "there", 7_000_000)
    monkeypatch.setenv("PTXGEN_CACHE", "off")
    assert default_cache() is memory
    monkeypatch.setattr(cache_module, "_DEFAULT", {})
    assert default_cache().disk is None


def test_threads_get_one_cache_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_DEFAULT", {})
    all_in = threading.Barrier(4)
    settings = replace(Settings.from_environment({}), cache_dir=tmp_path)

    def read_together() -> Settings:
        all_in.wait(timeout=30)
        return settings

    monkeypatch.setattr(Settings, "from_environment", read_together)
    with ThreadPoolExecutor(4) as pool:
        caches = {id(result.result()) for result in [pool.submit(default_cache) for _ in range(4)]}
    assert len(caches) == 1
