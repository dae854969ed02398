"""PTX text as tokens for `ptxgen.parse`, and errors that show the line of a token."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Final, NoReturn

from ptxgen.errors import ParseError, did_you_mean
from ptxgen.types import TYPES, ScalarType

STRING: Final = r'"(?:[^"\\\n]|\\[^\n])*"'
COMMENT: Final = r"//[^\n]*|/\*.*?\*/"
_WORD: Final = r"(?:[%$_A-Za-z]|\.(?!\d))[\w$]*(?:(?:\.|::)\w[\w$]*)*"
_DECIMAL: Final = r"\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+"
_NUMBER: Final = (
    r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?"
    rf"|{_DECIMAL}|\d+U?"
)
_SIGNS: Final = "][(){},;:@+*^~?-<>=!&|/"
_SIGN: Final = r"[][(){},;:@+*^~?-]|<<|>>|<=|>=|==|!=|&&|\|\||[<>=!&|]|/(?!\*)"
# A token in a line without `/* */`; the last two alternatives begin none.
_TOKEN: Final = re.compile(rf"{_WORD}|//.*|{_NUMBER}|{_SIGN}|{STRING}|/\*|\S", re.ASCII)
_COMMENTS: Final = re.compile(rf"{STRING}|{COMMENT}", re.DOTALL | re.ASCII)
_NOT_LINE_END: Final = re.compile(r"[^\n]")
DECIMAL_FLOAT: Final = re.compile(_DECIMAL, re.ASCII)
# Only a comment whose preceding token is one of these stands between statements.
_BETWEEN_STATEMENTS: Final = frozenset(";:{}")
_END: Final = ""
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz%$_")
_SINGLE: Final = _LETTERS | frozenset(_SIGNS) | frozenset("0123456789.")
# LLVM writes these around the code of `asm` statements.
_ASM_BEGINS, _ASM_ENDS = "// begin inline asm", "// end inline asm"

Span = tuple[int, int]  # the offsets of the first character and of that after the last


class Tokens:
    """The tokens of a text, and the index `at` of the next token to read.

    `words[at]` is the next token. A `//` comment is a token if it has a line to itself between two
    statements; other comments are skipped. The last token is the empty string. `spans` are the parts
    of the text to read, in order, by default all of it; `cuts` are the indices of the first tokens after
    each part but the last.
    """

    def __init__(self, text: str, spans: Sequence[Span] | None = None) -> None:
        self.text = text
        self.at = 0
        self.words: list[str] = []
        # For each comment at which inline assembly begins or ends: the index of the next token, and
        # whether it begins.
        self.asm: list[tuple[int, bool]] = []
        # For each line, or part of a line, that has tokens: the index of its first token, its number,
        # and its offset in the text.
        self._firsts: list[int] = []
        self._numbers: list[int] = []
        self._offsets: list[int] = []
        self.cuts: list[int] = []
        line, read = 1, 0
        spans = [(0, len(text))] if spans is None else spans
        for start, end in spans:
            line += text.count("\n", read, start)
            self._tokenize(start, end, line)
            self.cuts.append(len(self.words))
            line += text.count("\n", start, end)
            read = end
        self.cuts.pop()
        self._end = read
        self.words.append(_END)
        self._refuse_unknown()

    def _tokenize(self, start: int, end: int, number: int) -> None:
        """Add the tokens of a span, which begins in the line of this number."""
        words, firsts, numbers, offsets = self.words, self._firsts, self._numbers, self._offsets
        findall = _TOKEN.findall
        for line in _without_blocks(self.text[start:end]).split("\n"):
            tokens = findall(line)
            if tokens:
                if tokens[-1][:2] == "//":
                    self._comment_line(tokens, self.text[start : start + len(line)])
                firsts.append(len(words))
                numbers.append(number)
                offsets.append(start)
                words += tokens
            number += 1
            start += len(line) + 1

    def _comment_line(self, tokens: list[str], line: str) -> None:
        """Remove the comment that ends a line from its tokens unless it has the line to itself, between
        two statements.
        """
        comment, words = tokens[-1], self.words
        before = words[-1] if words else ";"
        if not line.lstrip().startswith("//") or (before not in _BETWEEN_STATEMENTS and before[:2] != "//"):
            tokens.pop()
        if _ASM_BEGINS in comment or _ASM_ENDS in comment:
            self.asm.append((len(words) + len(tokens), _ASM_BEGINS in comment))

    def _refuse_unknown(self) -> None:
        unknown = [w for w in set(self.words) if w == "/*" or (len(w) == 1 and w not in _SINGLE)]
        if unknown:
            self.at = min(map(self.words.index, unknown))
            word = self.words[self.at]
            if word == "/*":
                self.fail("this comment has no end; add */")
            self.fail(f"{word!r} begins no token of PTX")

    def start(self, token: int) -> int:
        """The offset in the text, in characters, of the token with index `token`."""
        if token >= len(self.words) - 1:
            return self._end
        line = bisect_right(self._firsts, token) - 1
        offset = self._offsets[line]
        end = self.text.find("\n", offset)
        matches = _TOKEN.finditer(_without_blocks(self.text), offset, len(self.text) if end < 0 else end)
        return next(islice(matches, token - self._firsts[line], None)).start()

    def line(self, token: int) -> int:
        """The line number of the token with index `token`, counted from 1."""
        if token >= len(self.words) - 1:
            return self.text.count("\n", 0, self._end) + 1
        return self._numbers[bisect_right(self._firsts, token) - 1]

    def fail(self, message: str, token: int | None = None) -> NoReturn:
        """Raise `ParseError`, which shows the token with index `token`; None is the next token."""
        token = self.at if token is None else token
        position, line = self.start(token), self.line(token)
        begin = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        shown = self.text[begin : len(self.text) if end < 0 else end].rstrip("\r")
        caret = "".join(c if c == "\t" else " " for c in self.text[begin:position])
        column = position - begin + 1
        error = ParseError(f"PTX text, line {line}, column {column}: {message}\n{shown}\n{caret}^")
        error.line, error.column = line, column
        raise error

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
        if not word.isdecimal() and (
            not word[:1].isdigit() or DECIMAL_FLOAT.fullmatch(word) or self.float_bits(word)
        ):
            self.fail(f"wanted {what}, got {self.shown(word)}")
        self.at += 1
        return self.integer(word, self.at - 1)

    def counts(self, what: str) -> tuple[int, ...]:
        """Read integer literals with commas between; `what` names each in the `ParseError`."""
        counts = [self.count(what)]
        while self.skip(","):
            counts.append(self.count(what))
        return tuple(counts)

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


def _without_blocks(text: str) -> str:
    """The text with white space for each `/* */` comment, so that offsets stay what they are."""
    if "/*" not in text:
        return text
    return _COMMENTS.sub(
        lambda match: _NOT_LINE_END.sub(" ", match[0]) if match[0][:2] == "/*" else match[0], text
    )
