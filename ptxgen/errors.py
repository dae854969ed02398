"""Every exception this project raises on purpose.

Each message says who found the problem, what was wanted, what was got, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PtxGenError(Exception):
    """Base of all errors raised on purpose by this project."""


class ConfigError(PtxGenError, ValueError):
    """A configuration asks for something that cannot be generated."""


class TypeMismatchError(PtxGenError, TypeError):
    """An operand has the wrong type, or an operand is missing or surplus."""


class ModifierError(PtxGenError, ValueError):
    """An instruction name or one of its modifiers does not exist."""


class UnsupportedTargetError(PtxGenError, ValueError):
    """A target is unknown, or is too old for an instruction."""


class ParseError(PtxGenError, ValueError):
    """PTX text could not be read; carries the line, the column and the line's text."""


class VerifyError(PtxGenError, ValueError):
    """A module has problems; `problems` holds all of them."""

    def __init__(self, message: str, problems: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TrapError(PtxGenError, RuntimeError):
    """The interpreter stopped a kernel: bad access, deadlock, runaway loop, trap.

    `printed` is what the kernel had printed before.
    """

    printed: str = ""


class LaunchError(PtxGenError, ValueError):
    """The arguments of a launch do not fit the kernel or the device."""


class CacheFullError(PtxGenError, RuntimeError):
    """A KV cache has no room for more tokens: its capacity or its pages are used up."""


class AssemblerError(PtxGenError, RuntimeError):
    """The assembler refused the text, or accepted it with a ruinous advisory."""


class BackendError(PtxGenError, RuntimeError):
    """A backend, a driver call or an external tool is missing or failed."""


class PoisonedContextError(BackendError):
    """The CUDA context was destroyed by an earlier failure; the process must be restarted."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest known word, or the empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
