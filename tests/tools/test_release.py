"""tools/release.py: builds the archives, and tries them in new environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ptxgen
from tools import release

WHEEL, SOURCE = (f"ptxgen-{ptxgen.__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
Run = Callable[..., tuple[int, str, str]]
THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("# Changelog\n\n## 0.2.1 (2027-01-31)\n\n## 0.1.0 (2026-11-30)\n", "0.2.1"),
        ("## Unreleased (0.2.0)\n\n## 0.1.0 (2026-11-30)\n", ""),
        ("## 0.1.0\n", ""),
        ("", ""),
    ],
)
def test_the_first_section_of_a_changelog_has_the_version(text: str, version: str) -> None:
    assert release.version_of_changelog(text) == version


def test_the_changelog_has_the_version_of_the_package() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.version_of_changelog(text) == ptxgen.__version__


def test_pythons_of_the_classifiers_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path, misnamed, of_pyenv = (
        tmp_path / name for name in ("bin/python3.11", "bin/python3.12", "versions/3.13.2/bin/python")
    )
    for python, version in ((on_path, "3.11"), (misnamed, "3.10"), (of_pyenv, "3.13")):
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert release.supported() == ["3.11", "3.12", "3.13", "3.14"]
    assert release.installed(release.supported()) == {"3.11": on_path, "3.13": of_pyenv}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, output and errors of a run whose commands all pass, but for those that contain `failing`."""

    def with_failing(failing: str, *argv: str) -> tuple[int, str, str]:
        def pretended(command: Sequence[Any], _folder: Path) -> str:
            return "it broke" if failing in " ".join(map(str, command)) else ""

        monkeypatch.setattr(release, "_run", pretended)
        code = release.main(["--python", sys.executable, *argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return with_failing


def test_a_failed_try_is_shown_and_ends_in_failure(run: Run) -> None:
    code, out, _ = run("attention.ptx --no-assemble")
    table, *errors, missing = out.strip().split("\n\n")
    assert code == 1
    assert [line.split() for line in table.splitlines()[1:]] == [
        [THIS, archive, "ok", "ok", "ok", "failed", "ok", "ok", "ok"] for archive in (WHEEL, SOURCE)
    ]
    assert errors == [f"Python {THIS}, {archive}, ptxgen check:\nit broke" for archive in (WHEEL, SOURCE)]
    assert missing == f"not tried: Python {', '.join(name for name in release.supported() if name != THIS)}"


def test_an_archive_that_cannot_be_installed_is_not_tried_further(run: Run) -> None:
    code, out, _ = run("pip install", "--json")
    assert code == 1
    failed = {"version": THIS, "step": "install", "error": "it broke"}
    assert json.loads(out)["tries"] == [{**failed, "archive": archive} for archive in (WHEEL, SOURCE)]


def test_nothing_is_tried_without_archives(run: Run) -> None:
    assert run("-m build") == (1, "", "release.py: error: the build failed:\nit broke\n")


def test_nothing_is_built_of_another_version_than_the_changelogs(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    monkeypatch.setattr(release, "__version__", "9.9.9")
    message = "release.py: error: CHANGELOG.md begins with version 0.1.0, ptxgen.__version__ is 9.9.9\n"
    assert run("-m build") == (1, "", message)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert run("-m build") == (1, "", message.replace("version 0.1.0", "no version and date"))


def test_an_interpreter_that_does_not_run_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "python"
    assert release.main(["--python", str(missing)]) == 1
    message = f"release.py: error: --python must name an interpreter, {missing} does not run\n"
    assert capsys.readouterr().err == message


@pytest.mark.nightly
def test_a_release_works_in_a_new_environment_of_this_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--python", sys.executable, "--json"]) == 0
    assert {one["error"] for one in json.loads(capsys.readouterr().out)["tries"]} == {""}
