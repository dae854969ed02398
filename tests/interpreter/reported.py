"""What the interpreter says of a kernel, by generated code and instruction by instruction."""

from __future__ import annotations

from typing import Any

import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import line_of

from ptxgen.errors import TrapError


def messages(text: str, args: list[Any], **how: Any) -> list[str]:
    """What all sanitizers report, in order."""
    how = {"grid": 1, "block": 32, "raise_on_report": False, **how}
    return [r.message for r in run_both_ways(text, args=args, **how).reports]


def trap(text: str, args: list[Any], **how: Any) -> str:
    """The error that ends a run with all sanitizers."""
    with pytest.raises(TrapError) as caught:
        run_both_ways(text, args=args, **{"grid": 1, "block": 32, **how})
    return str(caught.value)


def at(text: str, instruction: str, thread: int = 0, nth: int = 0) -> str:
    """How a message begins that is about an instruction of `text`, found by a part of it."""
    number = line_of(text, instruction, nth)
    whole = text.splitlines()[number - 1].strip()
    return f"kernel k: {whole} (line {number}): thread ({thread}, 0, 0) of CTA (0, 0, 0): "
