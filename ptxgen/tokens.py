"""PTX text as tokens for `ptxgen.parse`, and errors that show the line of a token."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final, NoReturn

from ptxgen.errors import ParseError, did_you_mean
from ptxgen.types import TYPES, ScalarType

_SKIPPED: Final = r"(?:\s+|/\*.*?\*/)*"
_WORD: Final = r"[.%$_A-Za-z][\w$]*(?:(?:\.|::)\w[\w$]*)*"
_STRING: Final = r'"(?:[^"\\\n]|\\[^\n])*"'
_DECIMAL: Final = r"\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+"
_NUMBER: Final = (
    r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    rf"|{_DECIMAL}|\d+U?"
)
_SIGN: Final = r"<<|>>|<=|>=|==|!=|&&|\|\||[][(){}<>,;:|@!+*&^~?=-]|/(?!\*)"
_TOKEN: Final = re.compile(
    rf"{_SKIPPED}(//[^\n]*|{_STRING}|{_NUMBER}|{_WORD}|{_SIGN}|)", re.DOTALL | re.ASCII
)
DECIMAL_FLOAT: Final = re.compile(_DECIMAL, re.ASCII)
# Only a comment whose preceding token is one of these stands between statements.
_BETWEEN_STATEMENTS: Final = frozenset(";:{}")
_END: Final = ""
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz%$_")


class Tokens:
    """The tokens of a text, and the index `at` of the next token to read.

    `words[at]` is the next token and `starts[at]` its offset in the text, in characters. A `//`
    comment is a token if it has a line to itself between two statements; other comments are
    skipped. The last token is the empty string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.words: list[str] = []
        self.starts: list[int] = []
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._tokenize()

    def _tokenize(self) -> None:
        words, starts = self.words, self.starts
        text = self.text
        before = ";"
        for match in _TOKEN.finditer(text):
            word = match[1]
            if word[:2] == "//":
                if before not in _BETWEEN_STATEMENTS or not self._alone(match.start(1)):
                    continue
            elif not word:
                starts.append(match.start(1))
                words.append(_END)
                break
            else:
                before = word
            words.append(word)
            starts.append(match.start(1))
        if starts[-1] < len(text):
            self.at = len(starts) - 1
            rest = text[starts[-1] :]
            if rest.startswith("/*"):
                self.fail("this comment has no end; add */")
            self.fail(f"{rest[0]!r} begins no token of PTX")

    def _alone(self, start: int) -> bool:
        """Whether only white space precedes the offset `start` on its line."""
        return not self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()

    def line(self, token: int) -> int:
        """The line number of the token with index `token`, counted from 1."""
        return bisect_right(self._line_ends, self.starts[token] - 1) + 1

    def fail(self, message: str, token: int | None = None) -> NoReturn:
        """Raise `ParseError`, which shows the token with index `token`; None is the next token."""
        token = self.at if token is None else token
        place = self.starts[token]
        line = self.line(token)
        begin = self._line_ends[line - 2] + 1 if line > 1 else 0
        end = self._line_ends[line - 1] if line <= len(self._line_ends) else len(self.text)
        shown = self.text[begin:end].rstrip("\r")
        caret = "".join(c if c == "\t" else " " for c in self.text[begin:place])
        raise ParseError(f"PTX text, line {line}, column {place - begin + 1}: {message}\n{shown}\n{caret}^")

    def next(self) -> str:
        """Read the next token that is no comment; comments before it are skipped."""
        words, at = self.words, self.at
        word = words[at]
        while word[:2] == "//":
            at += 1
            word = words[at]
        self.at = at + 1 if word else at
        return word

    def peek(self) -> str:
        """The next token that is no comment, without reading it; comments before it are skipped."""
        while self.words[self.at][:2] == "//":
            self.at += 1
        return self.words[self.at]

    def skip(self, word: str) -> bool:
        """Read the next token if it is `word`; the result says whether it was."""
        if self.peek() != word:
            return False
        self.at += 1
        return True

    def want(self, wanted: str) -> None:
        """Read the next token, which must be `wanted`; raises `ParseError` otherwise."""
        if not self.skip(wanted):
            self.fail(f"wanted {wanted!r}, got {self.shown(self.peek())}")

    @staticmethod
    def shown(word: str) -> str:
        """A token as error messages show it."""
        return repr(word) if word else "the end of the text"

    @staticmethod
    def is_name(word: str) -> bool:
        """Whether a token is a name, or a word such as `.b32` or `%tid.x` that begins like one."""
        return word[:1] in _LETTERS

    def name(self, what: str) -> str:
        """Read a name or dotted word, which must be next; `what` names it in the `ParseError`."""
        word = self.peek()
        if word[:1] not in _LETTERS:
            self.fail(f"wanted {what}, got {self.shown(word)}")
        self.at += 1
        return word

    def count(self, what: str) -> int:
        """Read an integer literal, which has no sign; `what` names it in the `ParseError`."""
        word = self.peek()
        if not word[:1].isdigit() or DECIMAL_FLOAT.fullmatch(word) or self.float_bits(word):
            self.fail(f"wanted {what}, got {self.shown(word)}")
        self.at += 1
        return self.integer(word, self.at - 1)

    def counts(self, what: str) -> tuple[int, ...]:
        """Read integer literals with commas between; `what` names each in the `ParseError`."""
        found = [self.count(what)]
        while self.skip(","):
            found.append(self.count(what))
        return tuple(found)

    def string(self, such_as: str) -> str:
        """Read a string literal; the result is the text between the quotes.

        `such_as` is the example in the `ParseError` that is raised if no string is next.
        """
        text = self.peek()
        if text[:1] != '"':
            self.fail(f'wanted a string such as "{such_as}", got {self.shown(text)}')
        self.at += 1
        return text[1:-1]

    def type(self) -> ScalarType:
        """Read a type with its dot, such as `.u32`; raises `ParseError` if no type is next."""
        word = self.peek()
        if word[:1] != "." or word[1:] not in TYPES:
            hint = did_you_mean(word, [f".{t}" for t in TYPES])
            self.fail(f"wanted a type such as .u32, got {self.shown(word)}{hint}")
        self.at += 1
        return TYPES[word[1:]]

    def integer(self, word: str, token: int) -> int:
        """The value of an integer literal: `10`, `0x1F`, `0b101`, `017`, with or without a `U`.

        Raises `ParseError`, at index `token`, if `word` is no such literal or exceeds 64 bits.
        """
        digits = word.removesuffix("U")
        base = 8 if digits[0] == "0" else 10
        if digits[1:2] in ("x", "X"):
            base = 16
        elif digits[1:2] in ("b", "B"):
            base = 2
        try:
            value = int(digits, base)
        except ValueError:  # a wrong digit, or thousands of decimal digits, which Python refuses
            octal = "; it begins with 0, so it is octal" if base == 8 else ""
            self.fail(f"{word[:20]} is not an integer literal{octal}", token)
        if value >> 64:
            self.fail(f"{word[:40]} does not fit 64 bits", token)
        return value

    @staticmethod
    def float_bits(word: str) -> int:
        """The bits of a hexadecimal floating-point literal, 32 (`0f…`) or 64 (`0d…`); else 0.

        PTX ISA, section "Floating-Point Constants".
        """
        return {"0f": 32, "0d": 64}.get(word[:2].lower(), 0)


def comment(word: str) -> str:
    """The text of a `//` comment without the slashes, one space after them, and trailing space."""
    return word[2:].removeprefix(" ").rstrip()
