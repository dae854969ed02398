"""Another distribution with a top-level module `flash` is noticed, whichever was installed last."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flash
import ptxgen
from flash.commands.main import main
from ptxgen import distribution

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
    for name in ("__init__.py", "commands", "operands", "problem", "scores", "mods"):
        source = ROOT / "flash" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        (tmp_path / "flash").mkdir(exist_ok=True)
        copy(source, tmp_path / "flash" / name)
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


def test_where_the_other_was_installed_last_our_modules_and_our_program_say_so(site: Path) -> None:
    (site / "flash" / "__init__.py").write_text("")  # of a version that needs nothing
    done = run(site, "-c", "import flash.problem.config")
    assert done.returncode == 1
    message = f"{site / 'flash' / '__init__.py'} is not of ptxgen but of lightning-flash"
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {message}")
    (site / "flash" / "__init__.py").write_text(OTHER)
    done = run(site, "-m", "ptxgen", "--version")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"ptxgen: error: {message}, which has a module flash, too. Each overwrites")


def test_a_folder_of_that_name_in_front_is_named(tmp_path: Path) -> None:
    (tmp_path / "flash.py").write_text("x = 1\n")
    (tmp_path / "site").symlink_to(ROOT)
    done = run(
        tmp_path, "-c", "import sys; sys.path.append('site'); from ptxgen.__main__ import main; main()"
    )
    assert done.stderr == (
        f"ptxgen: error: {tmp_path / 'flash.py'} is not the module flash of ptxgen, but stands in its place; "
        "rename or move it\n"
    )


def test_a_missing_module_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution.importlib.util, "find_spec", lambda _: None)
    assert distribution.why_not_ours() == (
        "the module flash, which ptxgen installs, is not there; reinstall ptxgen"
    )


def test_here_it_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distribution.why_not_ours() == ""
    archive = importlib.machinery.ModuleSpec("flash", None, origin="some.whl/flash/__init__.py")
    monkeypatch.setattr(distribution.importlib.util, "find_spec", lambda _: archive)
    assert distribution.why_not_ours() == ""  # imported from an archive, which one cannot overwrite


def test_files_that_no_distribution_owns_are_no_clash(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "new_room.py").touch()
    distribution.warn_if_shared(str(tmp_path), {"new_room.py", ".DS_Store"})
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
