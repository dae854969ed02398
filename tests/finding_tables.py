"""Tables of programs and of what is found in them, as text."""

from __future__ import annotations

import re
from typing import Any

import pytest


def cases(table: str, **texts: str) -> list[Any]:
    """Parameters `(program, findings)` from lines of text.

    A program's lines are followed by its findings, each of which begins with `=> `; `=> right` is none.
    A finding goes on in indented lines. A line `# words` before a program names the case. `<NAME>` in a
    program is the text of this name in `texts`.
    """
    for name, text in texts.items():
        table = table.replace(f"<{name}>", text)
    result = []
    for name, program, findings in re.findall(
        r"(?:# (.*)\n)?((?:(?!=>).+\n)+)((?:=> .*\n(?: +.*\n)*)+)", table
    ):
        messages = [" ".join(message.split()) for message in findings.split("=> ")[1:]]
        id_ = name or program.strip()
        result.append(pytest.param(program.strip(), [m for m in messages if m != "right"], id=id_))
    return result
