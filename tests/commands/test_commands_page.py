"""docs/commands.md and docs/checking.md: each example is run, in order, and prints what the page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ptxgen.commands.main import commands, main
from ptxgen.commands.parts.exits import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
COMMANDS = {name: command.about for name, command in commands().items()}
LONG = ("bench", "mutate", "tune", "demo")  # sections whose examples take more than a few seconds


def sections() -> dict[str, str]:
    """The sections of the page, by their headings."""
    parts = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(text: str) -> list[tuple[str, list[str], int]]:
    """The commands of a section, with the lines and the exit code that it shows for each."""
    result = []
    for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = example.rstrip("\n").split("\n")
            code = 0
            if shown and re.fullmatch(r"\[\d+\]", shown[-1]):
                code = int(shown.pop()[1:-1])
            result.append((command, shown, code))
    return result


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are those shown, where `...` is any text and, alone, any lines."""
    pattern = ""
    for line in shown:
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def run(command: str) -> int:
    """Run a command of the page, and write its output where the shell would."""
    line, _, path = command.partition(" > ")
    program, *argv = shlex.split(line)
    assert program == "ptxgen"
    try:
        if not path:
            return main(argv)
        with Path(path).open("w") as file, redirect_stdout(file):
            return main(argv)
    except SystemExit as stopped:
        return int(stopped.code or 0)


def follow(texts: Iterable[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tests").symlink_to(ROOT / "tests")
    for text in texts:
        for command, shown, code in examples(text):
            assert run(command) == code, (command, capsys.readouterr().err)
            said = capsys.readouterr()
            printed = [one.splitlines() for one in (said.out, said.err, f"{said.out}{said.err}")]
            assert any(matches(shown, lines) for lines in printed), (command, printed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a module cache of its own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    return work


@pytest.mark.slow
def test_the_examples_of_quick_commands_do_what_the_page_shows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("argcomplete")
    follow((text for name, text in sections().items() if name not in LONG), folder, capsys)
    written = {path.name for path in folder.iterdir()} - {"tests"}
    told = re.findall(r"(?: -o |> |out:)([\w.]+)", PAGE)
    assert written == set(told) - {"/"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", LONG)
def test_the_examples_of_long_commands_do_what_the_page_shows(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow([sections()[name]], folder, capsys)


def test_the_race_of_the_start_page_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "checking.md").read_text(encoding="utf-8")
    assert len(examples(text)) == 1
    follow([text], folder, capsys)


def test_every_command_has_a_section_and_a_row() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(#([\w-]+)\) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert {name: about for name, _, about in rows} == COMMANDS
    assert [name for name, anchor, _ in rows if anchor != name] == []
    assert [name for name in sections() if name in COMMANDS] == list(COMMANDS)
    assert [name for name in COMMANDS if not examples(sections()[name])] == []


def test_the_exit_codes_are_those_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    for name in COMMANDS:
        assert run(f"ptxgen {name} --help") == 0
        shown = capsys.readouterr().out.partition("\nexit codes:\n")[2].partition("\n\n")[0]
        codes = [int(code) for code in re.findall(r"^  (\d+)  ", shown, flags=re.MULTILINE)]
        assert codes, name
        assert set(codes) <= set(EXIT_CODES), name


def test_the_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ptxgen --help") == 0
    said = capsys.readouterr().out
    assert [name for name, about in COMMANDS.items() if f"  {name:<18}{about}\n" not in said] == []


def test_scripts_of_a_checkout_are_these_commands() -> None:
    for name in set(COMMANDS) - {"completion"}:
        text = (ROOT / "tools" / f"{name.replace('-', '_')}.py").read_text()
        assert f'command("{name}")' in text
