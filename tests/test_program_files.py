"""Files that `ptxgen run-program` reads: executables, fat binaries, and its libraries in the cache."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from error_texts import refused

from ptxgen.commands import run_program
from ptxgen.errors import LaunchError, PtxGenError
from ptxgen.program import run
from ptxgen.program.device import Reply
from ptxgen.program.elf import executable
from ptxgen.program.fatbinary import entries, lz4
from ptxgen.program.host import _REPLY, _REQUEST, _STOP, _WORDS, _Server
from ptxgen.program.libraries import DRIVER, FOLDER, RUNTIME, folder_of_libraries

ENTRY_BYTES = 64
LZ4, ZSTD = 0x2000, 0x8000
# Forty bytes: four literals, and 31 + 4 bytes from 4 back; then one literal.
LZ4_BLOCK, LZ4_TEXT = b"\x4fabcd\x04\x00\x10\x10x", b"abcd" * 9 + b"abc" + b"x"


def errors(capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Standard output and error, without what the system says of the empty library that it is to load."""
    out, err = capfd.readouterr()
    return out, "".join(f"{line}\n" for line in err.splitlines() if "from LD_PRELOAD cannot be" not in line)


def entry(data: bytes, *, sm: int = 80, flags: int = 0, whole: int = 0, head: int = ENTRY_BYTES) -> bytes:
    """An entry of PTX in a fat binary, compressed if `whole` is not 0."""
    padded = data + bytes(-len(data) % 8)
    compressed = len(data) if whole else 0
    header = struct.pack("<HHIQIIHHI", 1, 0x101, head, len(padded), compressed, 0, 0, 8, sm)
    return header.ljust(40, b"\0") + struct.pack("<QQQ", flags, 0, whole) + padded


def container(*of: bytes) -> bytes:
    """A fat binary with entries."""
    body = b"".join(of)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def ends_well(read: Callable[[], object]) -> bool:
    """Whether bytes are read or refused by an error of this project, soon and in little memory."""
    begun = time.monotonic()
    tracemalloc.start()
    try:
        read()
    except PtxGenError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return time.monotonic() - begun < 2 and most < 64 << 20


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, and sometimes cut."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.choice(
            (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
        )
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.3 else changed)


# ------------------------------------------------------------------------------------- fat binaries


def test_a_fat_binary_is_read_entry_by_entry() -> None:
    result = list(entries(container(entry(b"one"), entry(LZ4_BLOCK, sm=90, flags=LZ4, whole=len(LZ4_TEXT)))))
    assert [(ptx.sm, ptx.text()) for ptx in result] == [(80, "one"), (90, LZ4_TEXT.decode())]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (container(entry(b"", head=0)), "its entry at byte 16 says that it has 0 + 0 bytes, of which 0 are"),
        (container(entry(b"12345678", head=1 << 20)), "says that it has 1048576 + 8 bytes"),
        (
            container(entry(b"12345678")[:-1]),
            "says that it has 64 + 8 bytes, of which 0 are compressed, but there are 71",
        ),
        (container(bytes(24)), "is cut short: its entry at byte 16 has 24 bytes"),
        (container(entry(b"12345678"))[:-8], r"says that it has 16 \+ 72 bytes, but there are 80"),
        (struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 0), r"says that it has 0 \+ 0 bytes, but there are 16"),
    ],
)
def test_a_fat_binary_with_lengths_that_cannot_be_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(LaunchError, match=message.replace(" + ", r" \+ ")):
        list(entries(data))


def test_an_lz4_block_has_the_size_that_is_said_with_it() -> None:
    assert lz4(LZ4_BLOCK, len(LZ4_TEXT)) == LZ4_TEXT
    long = b"\x1fa\x01\x00" + b"\xff" * 1000 + b"\x00"  # a byte, and 255,019 more of it
    for block, whole, has in ((LZ4_BLOCK, 41, "has 40"), (LZ4_BLOCK, 39, "has 40"), (long, 1000, "has more")):
        with refused(LaunchError, f"an LZ4 block must have {whole} bytes when decompressed, but {has}"):
            lz4(block, whole)


def test_a_text_that_is_said_to_be_huge_is_refused_before_it_is_decompressed() -> None:
    (ptx,) = entries(container(entry(b"x", flags=ZSTD, whole=1 << 40)))
    with refused(
        LaunchError,
        "PTX in a fat binary must have at most 268435456 bytes, but this one is said to have 1099511627776 "
        "when decompressed",
    ):
        ptx.text()


def test_a_zstd_frame_that_says_another_size_or_is_damaged_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    for data, message in (
        (frame, "must have 100 bytes, its frame says 1048576"),
        (b"nothing", "is damaged: "),
    ):
        (ptx,) = entries(container(entry(data, flags=ZSTD, whole=100)))
        with pytest.raises(LaunchError, match=f"PTX compressed with zstd {message}"):
            ptx.text()


def test_a_damaged_fat_binary_is_read_or_refused_soon_and_in_little_memory() -> None:
    whole = container(
        entry(b".version 8.0"), entry(LZ4_BLOCK, flags=LZ4, whole=len(LZ4_TEXT)), entry(b"text", sm=90)
    )
    for seed in range(1500):
        data = damaged(whole, random.Random(seed))
        assert ends_well(lambda data=data: [ptx.text() for ptx in entries(data)]), seed  # type: ignore[misc]


# -------------------------------------------------------------------------------------- executables


def test_a_damaged_executable_is_read_or_refused_soon_and_in_little_memory(tmp_path: Path) -> None:
    whole = Path(sys.executable).resolve().read_bytes()
    (shoff,) = struct.unpack_from("<Q", whole, 40)
    file = tmp_path / "a.out"
    file.write_bytes(whole)
    with file.open("r+b") as changed:
        for seed in range(300):
            chance = random.Random(seed)
            # Where damage matters: the file's header, and the headers of sections at its end.
            at = chance.choice((0, shoff))
            head = damaged(whole[at : at + 64 * (1 + 30 * (at > 0))], chance)
            changed.seek(at)
            changed.write(head)
            changed.flush()
            assert ends_well(lambda: executable(file)), seed
            changed.seek(at)
            changed.write(whole[at : at + 64 * 31])
    for nbytes in (0, 4, 6, 63, 64, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:nbytes])
        assert ends_well(lambda: executable(file)), nbytes


def test_a_program_for_another_machine_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "a.out"
    file.write_bytes(b"\x7fELF\x01\x01" + bytes(100))
    with refused(LaunchError, f"{file} must be a 64-bit little-endian program"):
        executable(file)


# ------------------------------------------------------------------------------- libraries in the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cache, which is not there yet; and a compiler that makes empty libraries."""
    result = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(result))
    monkeypatch.setenv("PTXGEN_CACHE", "on")
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    return result


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program that prints whether the library of the driver that it would load is one that was planted."""
    result = tmp_path / "script"
    result.write_text(f'#!/bin/sh\ngrep -c planted "${{LD_LIBRARY_PATH%%:*}}/{DRIVER}"\nexit 0\n')
    result.chmod(0o755)
    return str(result)


def test_a_library_that_another_user_can_have_planted_is_not_loaded(
    cache: Path, script: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.umask(0)  # whatever is made is private
    try:
        folder = folder_of_libraries(tmp_path)
    finally:
        os.umask(before)
    assert folder.parent == cache / FOLDER
    kept = (cache, folder.parent, folder, *folder.iterdir())
    assert {path.stat().st_mode & 0o077 for path in kept} == {0}
    (folder / DRIVER).write_text("planted")
    assert run_program.main([script]) == 0
    assert errors(capfd) == ("1\n", "")
    for path, mode, problem in (
        (folder / DRIVER, 0o666, f"{folder / DRIVER} belongs to or is writable by another user"),
        (folder, 0o777, f"{folder} is writable by others (mode 777, wanted 700)"),
        (folder.parent, 0o770, f"{folder.parent} is writable by others (mode 770, wanted 700)"),
        (cache, 0o1777, f"{cache} is writable by others (mode 1777, wanted 700)"),
    ):
        usual = path.stat().st_mode & 0o7777
        path.chmod(mode)
        assert run_program.main([script]) == 0
        path.chmod(usual)
        assert errors(capfd) == (
            "0\n",
            f"ptxgen run-program: the answering libraries are compiled for this run alone: {problem}; set "
            "PTXGEN_CACHE_DIR to a private, writable directory, or PTXGEN_CACHE=off\n",
        )


@pytest.mark.usefixtures("cache")
def test_a_link_in_place_of_a_library_is_not_loaded(script: str, tmp_path: Path) -> None:
    folder = folder_of_libraries(tmp_path)
    (folder / RUNTIME).unlink()
    (folder / RUNTIME).symlink_to("/tmp/planted.so")
    said: list[str] = []
    run([script], tell=said.append)
    assert len(said) == 1
    assert f"{folder / RUNTIME} is a symbolic link" in said[0]


@pytest.mark.usefixtures("cache")
def test_a_cache_that_cannot_be_written_is_said_and_costs_a_compilation(
    script: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "/proc/nowhere")
    assert run_program.main([script]) == 0
    out, err = errors(capfd)
    assert out == "0\n"
    assert err.startswith(
        "ptxgen run-program: the answering libraries are compiled for this run alone: /proc/nowhere cannot "
        "be used ("
    )
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("cache")
def test_a_temporary_folder_that_cannot_be_used_is_an_error_with_its_cure(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    for folder, said, cure in (
        (deep, f"no socket can be made at {deep}", "(AF_UNIX path too long); set TMPDIR to a shorter path"),
        (tmp_path / "no", "no temporary folder can be made (No such", "set TMPDIR to a writable directory"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(folder))
            assert run_program.main([script]) == 1
        _, err = errors(capfd)
        assert err.startswith(f"ptxgen run-program: error: {said}")
        assert err.endswith(f"{cure}\n")
        assert len(err.splitlines()) == 1


def test_an_answer_that_cannot_be_sent_ends_the_program_and_is_raised(tmp_path: Path) -> None:
    class Careless:
        def respond(self, *_: object) -> Reply:
            return Reply(numbers=(-1,))

    path = tmp_path / "socket"
    with _Server(path, Careless()) as server, socket.socket(socket.AF_UNIX) as client:  # type: ignore[arg-type]
        client.connect(str(path))
        client.sendall(_REQUEST.pack(b"attribute", *[0] * _WORDS, 0))
        reply = client.recv(_REPLY.size, socket.MSG_WAITALL)
        client.sendall(_REQUEST.pack(b"write", *[0] * _WORDS, 1 << 60))  # bytes that nobody has
        assert client.recv(1) == b""
    assert _REPLY.unpack(reply)[0] == _STOP
    assert isinstance(server.failure, struct.error)
    assert server.stopped == f"a call brings {1 << 60} bytes, more than the device has"
