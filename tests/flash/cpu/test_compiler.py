"""What Numba compiled is kept on disk, where only its user can write."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

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
    found = tmp_path / "cache"
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(found))
    monkeypatch.setenv("PTXGEN_CACHE", "on")
    (tmp_path / "one_loop.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return found


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


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.rglob(f"*.{kind}"))


def test_a_loop_is_compiled_once_and_then_read(folder: Path) -> None:
    config = importlib.import_module("numba").config
    before = config.CACHE_DIR
    first, second = loaded(folder), loaded(folder)
    assert before == config.CACHE_DIR
    assert works(first)
    assert works(second)
    assert sum(first.stats.cache_misses.values()) == 1
    assert (second.stats.cache_misses, sum(second.stats.cache_hits.values())) == ({}, 1)
    assert {file.relative_to(folder).parts[0] for file in files(folder, "nb?")} == {"numba"}
    assert [directory.stat().st_mode & 0o777 for directory in (folder, folder / "numba")] == [0o700] * 2
    assert not files(folder.parent / "__pycache__", "*")


def test_a_change_in_a_module_beside_the_loop_is_noticed(folder: Path) -> None:
    assert works(loaded(folder))
    (folder.parent / "parts.py").write_text("# called by the loop")
    importlib.import_module("flash.cpu.compiler")._digest_of.cache_clear()
    assert works(changed := loaded(folder))
    assert sum(changed.stats.cache_misses.values()) == 1


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_costs_a_compilation_and_is_replaced(folder: Path, kind: str) -> None:
    assert works(loaded(folder))
    (damaged,) = files(folder, kind)
    damaged.write_bytes(damaged.read_bytes()[:20])
    again, last = loaded(folder), loaded(folder)
    assert works(again)
    assert works(last)
    assert [sum(loop.stats.cache_hits.values()) for loop in (again, last)] == [0, 1]


@pytest.mark.parametrize("kind", ["nbi", "nbc", "folder"])
def test_what_another_user_can_have_written_is_not_read(folder: Path, kind: str) -> None:
    assert works(loaded(folder))
    (data,) = files(folder, "nbc")
    planted = data.parent if kind == "folder" else files(folder, kind)[0]
    planted.chmod(planted.stat().st_mode | 0o022)
    again, last = loaded(folder), loaded(folder)
    assert works(again)
    assert works(last)
    assert [sum(loop.stats.cache_hits.values()) for loop in (again, last)] == (
        [1, 1] if kind == "folder" else [0, 1]
    )
    assert data.parent.stat().st_mode & 0o777 == 0o700


def test_files_are_private_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert works(loaded(folder))
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}


@pytest.mark.parametrize("why", ["off", "others may write", "no directory"])
def test_where_nothing_can_be_kept_a_loop_still_works(
    folder: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "off":
        monkeypatch.setenv("PTXGEN_CACHE", "off")
    elif why == "no directory":
        folder.write_text("a file")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert works(loaded(folder))
    assert not files(folder.parent, "nb?")


def test_a_full_disk_costs_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core.caching import IndexDataCacheFile

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "_save_index", full)
    loop = loaded(folder)
    assert works(loop)
    assert works(loop)
