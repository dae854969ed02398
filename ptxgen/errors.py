"""The exceptions that this project raises on purpose.

Each message names the function that found the problem, what it expected, what it got, and what to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final

_OTHER_NAMES: Final = {"gpu": "cuda", "numpy": "cpu", "host": "cpu"}  # a foreign name: ours
_MOST_SHOWN: Final = 1000  # characters of a value's repr in a message


class PtxGenError(Exception):
    """Base of all errors raised on purpose by this project."""


class ConfigError(PtxGenError, ValueError):
    """A configuration asks for something that cannot be generated."""


class TypeMismatchError(PtxGenError, TypeError):
    """An operand has the wrong type, or an operand is missing or surplus."""


class KernelWarning(UserWarning):
    """A kernel does something that PTX allows but that is probably a mistake."""


class ModifierError(PtxGenError, ValueError):
    """An instruction name or one of its modifiers does not exist."""


class UnknownInstructionError(ModifierError, AttributeError):
    """A word of the DSL or an instruction, an attribute of a builder, does not exist."""


class UnsupportedTargetError(PtxGenError, ValueError):
    """A target is unknown, or is too old for an instruction."""


class ParseError(PtxGenError, ValueError):
    """PTX text could not be read; carries the line, the column and the line's text.

    `line` and `column` count from 1; they are 0 if there is no text.
    """

    line: int = 0
    column: int = 0


class VerifyError(PtxGenError, ValueError):
    """A module has problems; `problems` holds all of them."""

    def __init__(self, message: str, problems: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class TrapError(PtxGenError, RuntimeError):
    """The interpreter stopped a kernel: bad access, deadlock, runaway loop, trap.

    `printed` is the text that the kernel had printed with `vprintf` before it was stopped; `line` and
    `source` say at which instruction, as those of a sanitizer's `Report` do.
    """

    printed: str = ""
    line: int = 0
    source: object = None


class DescriptorError(PtxGenError, ValueError):
    """A descriptor of a matrix or of a product has a value that the manual reserves or does not allow."""


class LaunchError(PtxGenError, ValueError):
    """The arguments of a launch do not fit the kernel or the device."""


class CacheFullError(PtxGenError, RuntimeError):
    """A KV cache has no room for more tokens: its capacity or its pages are used up."""


class CompileError(PtxGenError, ValueError):
    """A source of another language could not be compiled to PTX; carries the compiler's log."""


class AssemblerError(PtxGenError, RuntimeError):
    """The assembler refused the text, or accepted it with a ruinous advisory; `line` is the first line of
    the text that it names, 0 for none.
    """

    line: int = 0


class BackendError(PtxGenError, RuntimeError):
    """A backend, a driver call or an external tool is missing or failed."""


class PoisonedContextError(BackendError):
    """The CUDA context was destroyed by an earlier failure; the process must be restarted."""


class PeerError(BackendError):
    """Another process of a group ended, or did not answer in time.

    `peer` is its rank in the group; None if it may be one of several.
    """

    def __init__(self, message: str, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


# Characters of a word times characters of the names compared with it: about one second of work.
_MOST_COMPARED: Final = 2_000_000


class Suggestions:
    """Suggests the known name that a misspelt word may mean.

    All calls on one object together take about one second at most; later calls suggest nothing.
    """

    def __init__(self) -> None:
        self._left = _MOST_COMPARED

    def did_you_mean(self, word: object, known: Iterable[str]) -> str:
        """`"; did you mean 'x'?"` with the nearest known name, or the empty string if none is near.

        The result is empty also if `word` is not a string.
        """
        if not isinstance(word, str) or self._left <= 0:
            return ""
        meant = {name.lower(): name for name in known}
        near = [_OTHER_NAMES.get(word.lower(), "")]
        if near[0] not in meant:
            import difflib  # at first use: a process that makes no mistake does without

            compared = self._compared(word.lower(), list(meant))
            near = difflib.get_close_matches(word.lower(), compared, n=1, cutoff=0.6)
        return f"; did you mean {meant[near[0]]!r}?" if near else ""

    def _compared(self, word: str, known: list[str]) -> list[str]:
        """The names to compare: all, or within the limit of work those with the most equal characters at both
        ends.
        """
        work = len(word) * sum(map(len, known))
        if work <= self._left:
            self._left -= work
            return known
        left, self._left = self._left, 0
        chosen: list[str] = []
        for name in sorted(set(known), key=lambda name: (-_alike(word, name), name)):
            work = len(word) * len(name)
            if work <= left:
                left -= work
                chosen.append(name)
        return chosen


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` with the nearest known name, or the empty string if none is near.

    One call takes about one second at most; to look up many words, share one `Suggestions`. The
    result is empty also if `word` is not a string.
    """
    return Suggestions().did_you_mean(word, known)


def _alike(word: str, name: str) -> int:
    """The number of leading and trailing characters that two strings have in common."""
    ends = zip(word, name, strict=False), zip(reversed(word), reversed(name), strict=False)
    return sum(sum(1 for _ in itertools.takewhile(_same, end)) for end in ends)


def _same(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def shown(value: object) -> str:
    """The repr of a user's value for an error message, cut after 1000 characters.

    Never raises: a value whose repr fails is shown by its type.
    """
    try:
        text = repr(value)
    except Exception:  # from a user's own __repr__, or for an integer with too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
