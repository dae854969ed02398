"""Syntax colours of listings: the HTML of lines whose tokens are marked, by Pygments.

A token has an element whose style is in the page: `b` a keyword of a language or an opcode of PTX, `i` a
number or a special register, and `i` with a class from `_CLASSES` the rest that has a colour. Registers have
none, because nearly every operand is one.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import Any, Final

from markupsafe import Markup, escape
from pygments.lexer import RegexLexer, default, include, words
from pygments.lexers import find_lexer_class_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from ptxgen import isa
from ptxgen.isa.spec import HEADS

_KEYWORDS: Final = (Keyword, Operator.Word)
# The class of the first of these that a token is of.
_CLASSES: Final[tuple[tuple[Any, str], ...]] = (
    (Comment, "q"),
    (String, "s"),
    (Number, ""),
    (Name.Builtin, ""),
    (Name.Label, "f"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "f"),
)
_QUOTES: Final = ('"""', "'''")
_PYTHON: Final = ".py"


class PtxLexer(RegexLexer):  # type: ignore[misc]  # Pygments has no types
    """PTX, whose opcodes and special registers are those of the instruction table. Names of parameters,
    variables and functions, and directives, have no colour.
    """

    name = "PTX"
    tokens = {  # noqa: RUF012  # as Pygments declares it
        "root": [
            include("blank"),
            (r"@!?%\w+", Name.Decorator),
            (r"[$\w]+(?=:(?!:))", Name.Label),
            (words(sorted(HEADS), suffix=r"(?=[.:;\s])"), Keyword, ("operands", "modifiers")),
            (r"[{}]", Punctuation),
            default("operands"),
        ],
        "modifiers": [(r"[.:]+\w+", Keyword), default("#pop")],
        "operands": [
            (r"[;\n]", Text, "#pop"),
            include("blank"),
            (r'"[^"\n]*"', String),
            (r"0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+U?|\d+(?:\.\d+)?U?", Number),
            (words(sorted(isa.SPECIALS), suffix=r"\b"), Name.Builtin),
            (r"\$\w+", Name.Label),
            (r"[%.]?[\w$]+|.", Name.Variable),
        ],
        "blank": [(r"//.*|/\*[^*]*(?:\*(?!/)[^*]*)*\*/", Comment), (r"\s+", Text)],
    }


def ptx(text: str) -> list[Markup]:
    """The lines of PTX, marked."""
    return _lines(PtxLexer(), text)


def source(name: str, lines: Sequence[str | None]) -> list[Markup]:
    """Lines of the source file `name`, marked by its language, or only escaped if the language is not known;
    None for a line whose text is not known, of which nothing is shown.

    A run of lines may begin in a string of several lines. It does if, of a Python file, its first triple
    quotes end a line that has more before them, or nothing else.
    """
    kind = find_lexer_class_for_filename(name)
    text = "\n".join(line or "" for line in lines)
    if kind is None:
        return [escape(line) for line in text.split("\n")]
    quotes = _open_string(text) if name.endswith(_PYTHON) else ""
    return _lines(kind(), text, f"{quotes}\n" if quotes else "")


def _open_string(text: str) -> str:
    """The quotes of the string in which some lines of Python begin, "" for none."""
    for line in map(str.strip, text.split("\n")):
        for quotes in _QUOTES:
            if quotes in line:
                inside = line.endswith(quotes) and (line.count(quotes) == 1)
                return quotes if inside else ""
    return ""


def _lines(lexer: Any, text: str, before: str = "") -> list[Markup]:
    """The lines of a text, with its tokens marked; `before` is read before the text, and not shown."""
    lines = [""]
    tokens = lexer.get_tokens_unprocessed(before + text)
    for (opened, closed), group in itertools.groupby(tokens, key=lambda token: _element(token[1])):
        first, *others = "".join(value for _, _, value in group).split("\n")
        lines[-1] += _marked(opened, first, closed)
        lines += [_marked(opened, part, closed) for part in others]
    return [Markup(line) for line in lines[before.count("\n") :]]  # its tokens are escaped


def _marked(opened: str, words: str, closed: str) -> str:
    text = html.escape(words, quote=False)
    return f"{opened}{text}{closed}" if text.strip() else text


def _element(kind: Any) -> tuple[str, str]:
    if any(kind in group for group in _KEYWORDS):
        return "<b>", "</b>"
    name = next((name for group, name in _CLASSES if kind in group), None)
    if name is None:
        return "", ""
    return (f"<i class={name}>" if name else "<i>"), "</i>"
