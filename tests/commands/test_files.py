"""The files of commands: all or none, in one step, with an error that names the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgen.commands.parts.files import FileError, check_writable, why_not_writable, write_file, write_files

ROOT = Path(__file__).parents[2]
DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_text_is_written_as_utf_8_and_bytes_as_they_are(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "é\n")
    write_file(tmp_path / "b", b"\xff\r\n")
    assert (tmp_path / "a").read_bytes() == "é\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\xff\r\n"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_new_file_has_the_usual_mode_and_a_known_one_keeps_its(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        write_file(tmp_path / "new", "")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    (tmp_path / "new").chmod(0o640)
    write_file(tmp_path / "new", "more")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failed_step_leaves_all_files_as_they_were(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).write_text("old")
    monkeypatch.setattr(os, step, full if step != "chmod" else lambda *_, **__: full())
    with pytest.raises(FileError) as caught:
        write_files({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert str(caught.value) == f"cannot write {tmp_path / 'a'}: No space left on device"
    assert caught.value.code == 1
    assert [(tmp_path / name).read_text() for name in "ab"] == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_the_second_of_two_files_is_named_and_the_first_is_not_written(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "b"
    with pytest.raises(FileError) as caught:
        write_files({tmp_path / "a": b"new", missing: b"new"})
    assert str(caught.value) == f"cannot write {missing}: No such file or directory"
    assert os.listdir(tmp_path) == []


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable([pipe])
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_files({pipe: b"text", tmp_path / "file": b"more"})
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert (tmp_path / "file").read_bytes() == b"more"


@DEVICE
def test_a_device_is_written_to_and_not_replaced() -> None:
    check_writable([Path("/dev/full"), Path("/dev/null")])
    write_file(Path("/dev/null"), "text")
    with pytest.raises(FileError) as caught:
        write_file(Path("/dev/full"), "text")
    assert str(caught.value) == "cannot write /dev/full: No space left on device"
    assert Path("/dev/full").is_char_device()
    assert Path("/dev/null").is_char_device()


def test_why_a_file_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path / "new" / "folder" / "a") == ""
    assert (tmp_path / "new" / "folder").is_dir()
    assert why_not_writable(tmp_path / "file" / "a") == f"{tmp_path / 'file'} is no folder"
    assert why_not_writable(tmp_path) == "it is a folder"
    check_writable([tmp_path / "a", tmp_path / "file"])
    for path, why in (
        (tmp_path, "it is a directory"),
        (tmp_path / "none" / "a", f"{tmp_path / 'none'} is no writable directory"),
        (tmp_path / "file" / "a", f"{tmp_path / 'file'} is no writable directory"),
    ):
        with pytest.raises(FileError) as caught:
            check_writable([tmp_path / "a", path])
        assert str(caught.value) == f"cannot write {path}: {why}"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes")
def test_a_folder_and_a_pipe_without_permission_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "access", lambda *_: False)  # which root always has
    for path, why in ((tmp_path / "a", f"{tmp_path} is no writable directory"), (pipe, "Permission denied")):
        with pytest.raises(FileError) as caught:
            check_writable([path])
        assert str(caught.value) == f"cannot write {path}: {why}"
    assert why_not_writable(tmp_path / "a") == f"{tmp_path} is not writable"


KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p) { ret; }
"""
LAUNCH = ["--entry", "k", "--grid", "1", "--block", "1"]


def run(folder: Path, limit: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command in a process whose files may have `limit` bytes, as on a disk with so much room."""
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "from ptxgen.commands.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-B", "-c", code, *argv]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_an_array_that_the_disk_has_no_room_for_is_named_and_no_part_of_it_stays(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(KERNEL)
    done = run(tmp_path, 2000, "run", "k.ptx", *LAUNCH, "--arg", "out:y.npy:f32:1000")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ptxgen run: error: cannot write y.npy: File too large\n"
    assert os.listdir(tmp_path) == ["k.ptx"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (["report", "k.ptx", "--block", "32", "-o", "page.html"], "page.html"),
        (["context-parallel", "--estimate", "8,64", "--plot", "plot.svg"], "plot.svg"),
    ],
)
def test_a_page_that_the_disk_has_no_room_for_is_named(argv: list[str], file: str, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(KERNEL)
    done = run(tmp_path, 500, *argv)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ptxgen {argv[0]}: error: cannot write {file}: File too large"
    assert os.listdir(tmp_path) == ["k.ptx"]


@pytest.mark.slow
@DEVICE
@pytest.mark.sample(2, gate=3)
@pytest.mark.parametrize(
    "argv",
    [
        ["run", "k.ptx", "--json"],
        ["run", "k.ptx", *LAUNCH, "--arg", "u64:0", "--json"],
        ["check", "k.ptx", "--block", "32"],
        ["check", "k.ptx", "--block", "32", "--format", "sarif"],
        ["cache", "info", "--json"],
        ["completion", "bash"],
        ["context-parallel", "--estimate", "8"],
    ],
)
def test_a_full_standard_output_is_1_and_no_traceback(argv: list[str], tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(KERNEL)
    with Path("/dev/full").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "ptxgen", *argv],
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PTXGEN_CACHE_DIR": str(tmp_path / "cache")},
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"ptxgen {argv[0]}: error: cannot write standard output: No space left on device\n"
    )
