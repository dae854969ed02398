from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command

from ptxgen.commands import cache as tool
from ptxgen.runtime.cache import CacheKey, DiskCache

PROGRAM = "ptxgen cache"

ROOT = Path(__file__).parents[2]
WHEN = 1_700_000_000


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """A cache of three entries that the environment names, last used at `WHEN`."""
    for variable in ("PTXGEN_CACHE", "PTXGEN_PTXAS", "PTXGEN_BACKEND"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PTXGEN_CACHE_SIZE", "1MB")
    disk = DiskCache(tmp_path / "cache", 1_000_000)
    for text, target in (("a", "sm_80"), ("b", "sm_80"), ("c", "sm_90a")):
        disk.put(key(text, target), b"payload")
    for path in entries(disk):
        os.utime(path, (WHEN, WHEN))
    return disk


def key(text: str, target: str) -> CacheKey:
    return CacheKey(text, target, "ptxas", "13.0")


def entries(disk: DiskCache) -> list[Path]:
    return sorted(disk.directory.iterdir())


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_info_prints_a_table(disk: DiskCache, call: Command) -> None:
    nbytes = sum(path.stat().st_size for path in entries(disk))
    of_90a = (disk.directory / f"{key('c', 'sm_90a').digest}.entry").stat().st_size
    when = tool._time(WHEN)
    assert call.out("info") == (
        f"directory    {disk.directory}\n"
        "state        on\n"
        "cap          1,000,000 bytes\n"
        f"entries      3 entries, {nbytes:,} bytes\n"
        f"oldest use   {when}\n"
        f"newest use   {when}\n"
        "unfinished   0 files, being written or left by a killed writer\n"
        f"sm_80        2 entries, {nbytes - of_90a:,} bytes\n"
        f"sm_90a       1 entries, {of_90a:,} bytes\n"
    )


def test_info_prints_json(disk: DiskCache, call: Command) -> None:
    sizes = {path.name: path.stat().st_size for path in entries(disk)}
    of_90a = sizes[f"{key('c', 'sm_90a').digest}.entry"]
    total = sum(sizes.values())
    assert call.document("info", "--json") == {
        "directory": str(disk.directory),
        "on_disk": True,
        "entries": 3,
        "bytes": total,
        "max_bytes": 1_000_000,
        "oldest": tool._time(WHEN),
        "newest": tool._time(WHEN),
        "temporaries": 0,
        "targets": {
            "sm_80": {"entries": 2, "bytes": total - of_90a},
            "sm_90a": {"entries": 1, "bytes": of_90a},
        },
    }


def test_info_of_a_directory_that_does_not_exist_creates_nothing(
    tmp_path: Path, disk: DiskCache, call: Command
) -> None:
    missing = tmp_path / "missing"
    assert call.out("info", "--dir", str(missing)) == (
        f"directory    {missing}\n"
        "state        on\n"
        f"cap          {disk.max_bytes:,} bytes\n"
        "entries      0 entries, 0 bytes\n"
        "oldest use   -\n"
        "newest use   -\n"
        "unfinished   0 files, being written or left by a killed writer\n"
    )
    assert not missing.exists()


def test_info_says_when_the_disk_is_off(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE", "off")
    assert "state        off (PTXGEN_CACHE=off): not used\n" in call.out("info")
    assert "state        on\n" in call.out("info", "--dir", str(disk.directory))


def test_verify_of_a_sound_cache_is_0(disk: DiskCache, call: Command) -> None:
    assert call.out("verify") == "3 entries checked, 0 damaged\n"
    assert call.document("verify", "--json") == {
        "directory": str(disk.directory),
        "checked": 3,
        "removed": 0,
        "damaged": [],
    }


def test_verify_reports_damage_with_1_and_fix_removes_it(
    disk: DiskCache, call: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = entries(disk)[1]
    damage(broken)
    before = tree(disk.directory)
    assert call.out("verify", code=1) == (
        f"{broken} has a damaged payload\n3 entries checked, 1 damaged\nverify --fix removes them\n"
    )
    assert tree(disk.directory) == before
    assert call.document("verify", "--fix", "--json", code=1) == {
        "directory": str(disk.directory),
        "checked": 3,
        "removed": 1,
        "damaged": [{"file": broken.name, "reason": "has a damaged payload"}],
    }
    before.pop(broken.name)
    assert tree(disk.directory) == before
    assert tool.main(["verify"]) == 0
    damage(entries(disk)[0])
    broken = entries(disk)[0]
    capsys.readouterr()
    assert call.out("verify", "--fix", code=1) == (
        f"{broken} has a damaged payload; removed\n2 entries checked, 1 damaged\n"
    )


def test_clear_removes_the_entries_and_says_what_it_kept(disk: DiskCache, call: Command) -> None:
    nbytes = sum(path.stat().st_size for path in entries(disk))
    notes = disk.directory / "notes.txt"
    foreign = disk.directory / f"{'0' * 64}.entry"
    notes.write_bytes(b"notes")
    foreign.write_bytes(b"foreign")
    assert call.out("clear") == (
        f"{disk.directory}: removed 3 files, {nbytes:,} bytes\n"
        f"kept {foreign}: it does not begin as an entry does\n"
    )
    assert tree(disk.directory) == {"notes.txt": b"notes", foreign.name: b"foreign"}
    assert call.document("clear", "--json") == {
        "directory": str(disk.directory),
        "removed": 0,
        "bytes": 0,
        "kept": [foreign.name],
    }


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("command", ["info", "verify", "clear"])
def test_a_directory_that_is_not_private_is_refused_with_1(
    disk: DiskCache, call: Command, command: str
) -> None:
    disk.directory.chmod(0o777)
    assert call.error(command) == (
        1,
        f"the module cache refuses its directory: {disk.directory} is writable by "
        "others (mode 777, wanted 700)",
    )
    assert len(entries(disk)) == 3


def test_a_file_that_cannot_be_removed_is_reported_with_1(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    def denied(path: Path, **_: bool) -> None:
        raise PermissionError(13, "Permission denied", path.name)

    monkeypatch.setattr(Path, "unlink", denied)
    before = tree(disk.directory)
    printed = call("clear")
    assert (printed.code, printed.out) == (1, "")
    assert printed.err.startswith("ptxgen cache: error: [Errno 13] Permission denied: ")
    assert tree(disk.directory) == before


def test_a_wrong_setting_is_2(disk: DiskCache, monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setenv("PTXGEN_CACHE", "maybe")
    assert call.error("clear") == (2, "PTXGEN_CACHE must be one of on, off, got 'maybe'")
    assert len(entries(disk)) == 3


@pytest.mark.parametrize("argv", [[], ["shrink"], ["info", "--fix"], ["clear", "--dir"]])
def test_wrong_usage_is_2(argv: list[str], call: Command) -> None:
    call.usage(*argv)


def test_help_shows_examples_and_exit_codes(call: Command) -> None:
    printed = call.help()
    assert "ptxgen cache verify --fix" in printed
    assert "exit codes:\n  0  done" in printed


def test_the_tool_runs_from_a_bare_checkout_in_any_directory(disk: DiskCache, tmp_path: Path) -> None:
    # A copy elsewhere, so that the working directory and PYTHONPATH cannot be what makes it work.
    checkout = tmp_path / "checkout"
    hide = shutil.ignore_patterns("__pycache__")
    for folder in ("flash", "ptxgen", "tools"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=hide)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, str(checkout / "tools" / "cache.py"), "verify"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "3 entries checked, 0 damaged\n", "")
    assert len(entries(disk)) == 3
