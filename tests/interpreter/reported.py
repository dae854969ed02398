"""What the interpreter says of a kernel, by generated code and instruction by instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from interpreter.both_paths import run_both_ways

from ptxgen.errors import TrapError
from ptxgen.interpreter import Report, run


def messages(text: str, args: Sequence[Any] = (), **how: Any) -> list[str]:
    """What all sanitizers report, in order."""
    how = {"grid": 1, "block": 32, "raise_on_report": False, **how}
    return [r.message for r in run_both_ways(text, args=args, **how).reports]


def trap(text: str, args: Sequence[Any] = (), **how: Any) -> str:
    """The error that ends a run with all sanitizers."""
    with pytest.raises(TrapError) as caught:
        run_both_ways(text, args=args, **{"grid": 1, "block": 32, **how})
    return str(caught.value)


def reports(
    text: Any, args: Sequence[Any] = (), *, seed: int | None = None, **how: Any
) -> tuple[Report, ...]:
    """What the sanitizers report, by generated code alone, in lockstep or by the random order of a seed."""
    schedule = "lockstep" if seed is None else f"pct:{seed}"
    how = {"schedule": schedule, "grid": 1, "block": 32, "sanitize": True, "raise_on_report": False, **how}
    return run(text, args=args, **how).reports


def kinds(text: Any, args: Sequence[Any] = (), **how: Any) -> list[str]:
    """The kinds of `reports`, each once."""
    return sorted({r.kind for r in reports(text, args, **how)})
