"""What Numba compiled is kept on disk, where only its user can write."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ptxgen.runtime.cache import CacheKey, CacheWarning, DiskCache

pytestmark = pytest.mark.usefixtures("compiled")

SOURCE = """
from flash.cpu.compiler import compiled

@compiled(frozenset())
def twice(x):
    for n in range(len(x)):
        x[n] = 2 * x[n]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cache, which is not there yet."""
    result = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(result))
    monkeypatch.setenv("PTXGEN_CACHE", "on")
    (tmp_path / "one_loop.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return result


def loaded(folder: Path) -> Any:
    """The loop of a module that is imported anew, as another process would."""
    spec = importlib.util.spec_from_file_location("one_loop", folder.parent / "one_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.twice  # type: ignore[attr-defined]


def works(loop: Any) -> bool:
    x = np.arange(5, dtype=np.float32)
    loop(x)
    return bool((x == 2 * np.arange(5)).all())


def entry(folder: Path) -> Path:
    (result,) = folder.iterdir()
    assert result.suffix == ".entry"
    return result


def hits(loop: Any) -> int:
    return sum(loop.stats.cache_hits.values())


def test_a_loop_is_compiled_once_and_then_read(folder: Path) -> None:
    first, second = loaded(folder), loaded(folder)
    assert works(first)
    assert works(second)
    assert sum(first.stats.cache_misses.values()) == 1
    assert (second.stats.cache_misses, hits(second)) == ({}, 1)
    assert second.stats.cache_path == str(folder)
    assert [path.stat().st_mode & 0o777 for path in (folder, entry(folder))] == [0o700, 0o600]
    assert not (folder.parent / "__pycache__").exists()


def test_loops_are_entries_of_the_cache_like_all_others(folder: Path) -> None:
    assert works(loaded(folder))
    disk = DiskCache(folder, 1 << 30)
    info = disk.info()
    assert (list(info.by_target), info.total.entries) == (["cpu"], 1)
    assert disk.verify() == (1, ())
    assert disk.clear()[0].entries == 1
    assert not any(folder.iterdir())


def test_arguments_of_other_types_are_another_entry(folder: Path) -> None:
    loop = loaded(folder)
    assert works(loop)
    loop(x := np.arange(3))
    assert list(x) == [0, 2, 4]
    assert len(list(folder.iterdir())) == 2


def test_a_change_in_a_module_beside_the_loop_is_noticed(folder: Path) -> None:
    assert works(loaded(folder))
    (folder.parent / "parts.py").write_text("# called by the loop")
    importlib.import_module("flash.cpu.compiler")._digest_of.cache_clear()
    assert works(changed := loaded(folder))
    assert sum(changed.stats.cache_misses.values()) == 1


def test_other_liberties_of_arithmetic_are_another_entry(folder: Path) -> None:
    from flash.cpu.compiler import compiled

    def half(x: Any) -> None:
        x[0] = x[0] / 2

    for fastmath in (frozenset[str](), frozenset({"arcp"})):
        compiled(fastmath)(half)(x := np.ones(1, np.float32))
        assert x[0] == 0.5
    assert len(list(folder.iterdir())) == 2


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    copy = path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(copy)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def _of_another_version(path: Path) -> None:
    """A sound entry under this name that another version of Numba wrote."""
    disk = DiskCache(path.parent, 1 << 30)
    other = CacheKey("of another version", "cpu", "numba", "0.1")
    disk.put(other, b"not what this version unpickles")
    (path.parent / f"{other.digest}.entry").replace(path)


TAMPERED: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut in the header": lambda path: os.truncate(path, 40),
    "cut behind the header": lambda path: os.truncate(path, path.read_bytes().index(b"}\n") + 2),
    "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer by a byte": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "a bit of the header": lambda path: _flipped(path, 100),
    "a bit of the code": lambda path: _flipped(path, path.stat().st_size * 3 // 4),
    "the last bit": lambda path: _flipped(path, -1),
    "writable by others": lambda path: path.chmod(0o666),
    "a link": _link,
    "a pipe": _pipe,
    "of another version": _of_another_version,
}


@pytest.mark.sample(4, gate=8)
@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_file_costs_a_compilation_and_is_replaced(folder: Path, how: str) -> None:
    assert works(loaded(folder))
    TAMPERED[how](path := entry(folder))
    again, last = loaded(folder), loaded(folder)
    assert works(again)
    assert works(last)
    assert [hits(loop) for loop in (again, last)] == [0, 1]
    assert entry(folder) == path
    assert path.is_file()
    assert not path.is_symlink()


def test_a_directory_instead_of_a_file_costs_a_compilation_each_time(folder: Path) -> None:
    assert works(loaded(folder))
    _directory(entry(folder))
    with pytest.warns(CacheWarning, match=r"cannot be written \(Is a directory\)"):
        assert works(loaded(folder))


def test_an_entry_that_numba_cannot_use_costs_a_compilation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sound and for this key, but of another build with the same version."""
    assert works(loaded(folder))
    monkeypatch.setattr(DiskCache, "get", lambda *_: b"no pickle")
    again = loaded(folder)
    assert works(again)
    assert hits(again) == 0


def test_a_cache_that_is_off_is_not_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE", "off")
    assert works(loaded(folder))
    assert not folder.exists()


@pytest.mark.parametrize("why", ["is writable by others", "is not a directory"])
def test_where_nothing_can_be_kept_a_loop_still_works_and_one_warning_says_why(
    folder: Path, why: str
) -> None:
    if why == "is not a directory":
        folder.write_text("a file")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.warns(CacheWarning, match=why) as caught:
        assert works(loaded(folder))
    assert len(caught) == 1
    assert works(loaded(folder))  # without another
    assert not list(folder.parent.rglob("*.entry"))


def test_a_full_disk_costs_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    loop = loaded(folder)
    with pytest.warns(CacheWarning, match=r"cannot be written \(No space left on device\)"):
        assert works(loop)
    assert works(loop)
    assert not any(folder.iterdir())
