"""Another distribution with a top-level module `flash` is noticed, whichever was installed last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flash
import ptxgen
from ptxgen import distribution
from ptxgen.commands.main import main

ROOT = Path(__file__).parents[1]
OTHER = "raise ModuleNotFoundError(\"No module named 'pytorch_lightning'\")\n"
MARK = '__distribution__: Final = "ptxgen"'


def installed(site: Path, name: str, *files: str) -> None:
    """The metadata that an installer writes for a distribution."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (folder / "top_level.txt").write_text("".join(f"{top}\n" for top in {f.partition("/")[0] for f in files}))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages into which both distributions were installed; flash/__init__.py is ours."""
    shutil.copytree(ROOT / "ptxgen", tmp_path / "ptxgen", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "commands", "families", "operands", "problem", "scores", "mods"):
        source = ROOT / "flash" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (tmp_path / "flash").mkdir(exist_ok=True)
        copy(source, tmp_path / "flash" / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)  # which has the entry points
    installed(tmp_path, "ptxgen", "flash/__init__.py", "ptxgen/__init__.py")
    installed(tmp_path, "lightning-flash", "flash/__init__.py", "flash/core/__init__.py")
    (tmp_path / "flash" / "core").mkdir()
    (tmp_path / "flash" / "core" / "__init__.py").touch()
    return tmp_path


def run(site: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, *argv], cwd=site, env=environment, capture_output=True, text=True, check=False
    )


def test_where_ours_was_installed_last_an_import_warns_and_names_the_other(site: Path) -> None:
    done = run(site, "-c", "import flash; print(flash.AttentionConfig.__name__)")
    assert (done.returncode, done.stdout) == (0, "AttentionConfig\n")
    assert f"RuntimeWarning: {site / 'flash'} is of ptxgen and of lightning-flash, whose core" in done.stderr
    assert "install them in separate environments" in done.stderr


@pytest.mark.slow
def test_where_the_other_was_installed_last_our_modules_and_our_program_say_so(site: Path) -> None:
    (site / "flash" / "__init__.py").write_text("")  # of a version that needs nothing
    done = run(site, "-c", "import flash.problem.config")
    assert done.returncode == 1
    message = f"{site / 'flash' / '__init__.py'} is not of ptxgen but of lightning-flash"
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {message}")
    for text in ("", OTHER):
        (site / "flash" / "__init__.py").write_text(text)
        done = run(site, "-m", "ptxgen", "emit")
        assert (done.returncode, done.stdout) == (2, "")
        note, *_, error = done.stderr.splitlines()
        assert note.startswith(f"ptxgen: note: {message}, which has a module flash, too. Each overwrites")
        assert error.startswith(
            "ptxgen: error: no command 'emit' is installed; the commands are check, run, "
        )
    done = run(site, "-m", "ptxgen", "cache", "info")  # which needs no flash
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_of_that_name_before_ours_is_named(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "before"
    folder.mkdir()
    (folder / "flash.py").write_text("x = 1\n")
    shutil.rmtree(next(site.glob("lightning_flash*")))
    code = f"import sys; sys.path[:0] = [{str(folder)!r}]; from ptxgen.__main__ import main; main()"
    said = run(site, "-c", code, "emit").stderr.splitlines()
    assert said[0] == (
        f"ptxgen: note: {folder / 'flash.py'} is not the module flash of ptxgen, but stands in its place; "
        "rename or move it"
    )


def test_a_missing_module_is_said(site: Path) -> None:
    shutil.rmtree(site / "flash")
    said = run(site, "-S", "-c", "import sys; from ptxgen.__main__ import main; main()", "emit")
    assert said.stderr.splitlines()[0] == (
        "ptxgen: note: the module flash, which ptxgen installs, is not there; reinstall ptxgen"
    )


def test_another_fault_of_an_import_is_said_as_it_is() -> None:
    error = ModuleNotFoundError("No module named 'polars'", name="polars")
    assert distribution.why_not_imported("json.commands", "plots", error) == (
        "cannot import json.commands, which plots registers: No module named 'polars'"
    )


def test_files_that_no_distribution_owns_are_no_clash(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "new_room.py").touch()
    distribution.warn_if_shared(str(tmp_path), {"new_room.py", ".DS_Store"}, "ptxgen")
    assert not recwarn


def test_the_list_of_our_files_is_complete() -> None:
    """An import that finds other names than these looks for another distribution, which takes time."""
    assert flash._unknown() == set()
    assert set(os.listdir(ROOT / "flash")) | {"__pycache__"} == flash._FILES
    assert MARK in (ROOT / "flash" / "__init__.py").read_text()


# ------------------------------------------------------------------------------------- versions


def test_all_have_one_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"ptxgen {ptxgen.__version__}\n"
    assert flash.__version__ == ptxgen.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ptxgen.__version__"}
