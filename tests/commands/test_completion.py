"""What the shell completes: commands, options and values."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flash.operands.dtypes import INPUT_DTYPES
from ptxgen.commands.main import commands, main
from ptxgen.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx"

argcomplete = pytest.importorskip("argcomplete")


class Answer(BaseException):
    """Stands for the end of the process that answers the shell; its argument are the completions."""


def completions(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `main` answers when the shell asks for the completions of a line."""

    def answer(parser: argparse.ArgumentParser) -> None:
        # As argcomplete.autocomplete does, which also opens file descriptors that may be another's.
        finder = argcomplete.CompletionFinder(parser)
        quote, prefix, _, words, location = argcomplete.split_line(line, len(line))
        words = words[int(os.environ["_ARGCOMPLETE"]) - 1 :]
        raise Answer(finder._get_completions(words, prefix, quote, location))

    monkeypatch.setattr(argcomplete, "autocomplete", answer)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    with pytest.raises(Answer) as answered:
        main()
    return [word.strip() for word in answered.value.args[0]]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ptxgen em", ["emit"]),
        ("ptxgen run", ["run", "run-program"]),
        ("ptxgen --vers", ["--version"]),
        ("ptxgen emit --head", ["--head-dim", "--head-dim-v"]),
        ("ptxgen emit dec", ["decode"]),
        ("ptxgen emit decode --spl", ["--splits"]),
        ("ptxgen emit backward --owner k", ["keys"]),
        ("ptxgen emit backward --wanted al", ["alibi_slopes"]),
        ("ptxgen emit --target sm_10", [n for n in TARGETS if n[:5] == "sm_10"]),
        ("ptxgen emit --dtype ", [*INPUT_DTYPES]),
        ("ptxgen emit --causal top", ["top_left"]),
        ("ptxgen report att", ["attention"]),
        ("ptxgen report attention --se", ["--seqused-q", "--seqused-k", "--seq"]),
        ("ptxgen cache ver", ["verify"]),
        ("ptxgen cache verify --f", ["--fix"]),
        ("ptxgen check --format s", ["sarif"]),
        (f"ptxgen run {MODULE} --entry sax", ["saxpy"]),
        (f"ptxgen check {MODULE} --entry sax", ["saxpy"]),
        (f"ptxgen report {MODULE} --entry sax", ["saxpy"]),
        ("ptxgen completion z", ["zsh"]),
    ],
)
def test_words_are_completed(line: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert completions(line, monkeypatch) == found


def test_all_commands_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = completions("ptxgen ", monkeypatch)
    assert [word for word in result if not word.startswith("-")] == list(commands())


def test_files_stay_possible_where_words_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "attempt.ptx").touch()
    monkeypatch.chdir(tmp_path)
    assert completions("ptxgen report att", monkeypatch) == ["attention", "attempt.ptx"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_what_the_command_prints(tmp_path: Path) -> None:
    program = tmp_path / "ptxgen"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ptxgen "$@"\n')
    program.chmod(0o755)
    script = """
eval "$(ptxgen completion bash)"
complete -p ptxgen >&2
COMP_LINE='ptxgen emit --head-dim-' COMP_POINT=23 COMP_TYPE=9
COMP_WORDS=(ptxgen emit --head-dim-) COMP_CWORD=2
_python_argcomplete ptxgen
printf '%s\\n' "${COMPREPLY[@]}"
"""
    environment = dict(os.environ, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.split() == ["--head-dim-v"], done.stderr
