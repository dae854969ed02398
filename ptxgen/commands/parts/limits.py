"""The limit of interpreted runs, an option of every command that runs kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxgen.commands.parts.numbers import whole
from ptxgen.interpreter.launch import MAX_INSTRUCTIONS


def add_max_instructions(add: Callable[..., Any]) -> None:
    """Add `--max-instructions` by a parser's `add_argument`."""
    add(
        "--max-instructions",
        type=whole(1),
        default=MAX_INSTRUCTIONS,
        metavar="N",
        help="that a batch of CTAs executes in sequence, after which a kernel counts as endless "
        f"(default: {MAX_INSTRUCTIONS})",
    )
