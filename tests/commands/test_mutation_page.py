"""docs/mutation.md: its files are written, and its commands run, in their order, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands.test_commands_page import ROOT, examples, matches

PAGE = (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")
TESTED = "test_softmax.py"


def blocks() -> list[tuple[str, str, str]]:
    """The fenced blocks of the page: the language, the name of the file, if any, and the text."""
    return re.findall(r"^```(\w+) ?([\w.]*)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A process of the page's folder."""
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    commands = 0
    for language, name, text in blocks():
        if name:
            with (tmp_path / name).open("a") as file:
                file.write(text)
        if language != "console":
            continue
        for command, shown, code in examples(f"```console\n{text}```"):
            done = ran(tmp_path, "-m", *command.split())
            assert done.returncode == code, done.stderr
            assert matches(shown, done.stdout.splitlines()), done.stdout
            commands += 1
    assert commands == 5
    done = ran(tmp_path, "-m", "pytest", "-q", "-p", "ptxgen.pytest_plugin", TESTED)
    assert done.returncode == 0, done.stdout


def test_every_key_of_a_reason_is_in_the_table() -> None:
    from ptxgen.mutation import reasons

    told = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    known = {*reasons._TYPES, *reasons._CODE, *reasons._OPTIONAL} - {"marks"}
    assert set(told) == known


@pytest.mark.nightly
def test_the_readme_says_how_many_mistakes_its_command_finds_unnoticed(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    kernel = re.search(
        r"^>>> import numpy as np, ptxgen as px\n(.*?)^>>> rng", readme, re.MULTILINE | re.DOTALL
    )
    command = re.search(r"^ptxgen (mutate kernels\.py.*)$", readme, re.MULTILINE)
    claim = re.search(r"of (\d+) mistakes in this softmax\s+the problem below misses (\d+)", readme)
    assert kernel is not None
    assert command is not None
    assert claim is not None
    source = "".join(f"{line[4:]}\n" for line in kernel[0].splitlines() if line.startswith((">>> ", "... ")))
    (tmp_path / "kernels.py").write_text(source.rpartition("rng")[0], encoding="utf-8")
    said = ran(tmp_path, "-m", "ptxgen", *command[1].split())
    mutants, survivors = claim.groups()
    assert f"{mutants} mutants, 1 problem" in said.stdout, said.stderr
    assert said.stdout.rstrip().endswith(f"and {survivors} survive")
