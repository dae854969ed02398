"""Each `ptxgen` command that a document shows has options that the command knows."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgen.commands.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


class ParsedError(BaseException):
    """The arguments are right; the command has not run."""


def shown() -> Iterator[tuple[str, str]]:
    """The page and the line of each command, but for help and what is shown as wrong usage."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for kind, block in re.findall(r"^```(sh|console|)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
            prompt = r"\$ " if kind == "console" else ""
            for example in re.split(rf"^{prompt}(?=ptxgen )", block, flags=re.MULTILINE)[1:]:
                line, _, answer = example.partition("\n")
                line = re.split(r" #| > | \| |;", line)[0].strip()
                if not re.search(r"…|\.\.\.|--help", line) and "[2]" not in answer.splitlines():
                    yield page.name, line


@pytest.mark.parametrize("shown_at", sorted({f"{page}: {line}" for page, line in shown()}))
def test_a_command_of_a_document_has_options_that_exist(
    shown_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse: Any = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    with pytest.raises(ParsedError):
        main(shlex.split(shown_at.partition(": ")[2])[1:])
