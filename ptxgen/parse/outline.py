"""Finds the blocks in braces of a text at module level without reading their contents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ptxgen.tokens import COMMENT, STRING, Span

_BRACE: Final = re.compile(rf"{STRING}|{COMMENT}|[{{}}]", re.DOTALL | re.ASCII)
_NO_CODE: Final = re.compile(rf"{STRING}|{COMMENT}", re.DOTALL | re.ASCII)
_IN_NAME: Final = re.compile(r"[\w$%.]", re.ASCII)
_KEYWORD: Final = re.compile(r"(?<![\w$.%:])\.(entry|func|section)\b", re.ASCII)
# Patterns of what the rest of the module depends on, and of what may hide it: regions, which are
# comments, and variables that become variables of the module. Each begins with a text to search for.
_NEEDED: Final = tuple(map(re.compile, (r"// *region ", r"/\*", r"\.global\s", r"\.const\s")))


class Block(NamedTuple):
    """A block: `entry`, `func`, `section`, or empty for an initial value; the offsets of its braces."""

    kind: str
    opens: int
    closes: int


def blocks(text: str) -> Iterator[Block]:
    """The blocks at module level, in order, up to a brace that is without a partner."""
    depth = opens = after = 0
    for brace in _BRACE.finditer(text):
        at = brace.start()
        sign = text[at]
        if sign == "{":
            if not depth:
                opens = at
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth < 0:
                return
            if not depth:
                yield Block(_kind(text[after:opens]), opens, at)
                after = at + 1


def _kind(head: str) -> str:
    """The kind of a block, by the text between the block before it and its brace."""
    *_, kind, rest = ["", "", *_KEYWORD.split(_NO_CODE.sub(" ", head))]
    return "" if "=" in rest else kind


def may_wait(text: str, block: Block) -> bool:
    """Whether a kernel's body may be read when it is used, because nothing else depends on it."""
    inside = block.opens, block.closes
    return block.kind == "entry" and not any(needed.search(text, *inside) for needed in _NEEDED)


def first_of(names: Iterable[str], text: str, block: Block) -> str:
    """The first of some names that code in a block names; the empty string if it names none."""
    occurrences = [(at, name) for name in names if (at := _first(name, text, block)) >= 0]
    return min(occurrences)[1] if occurrences else ""


def _first(name: str, text: str, block: Block) -> int:
    at = text.find(name, block.opens, block.closes)
    while at >= 0:
        line = text[text.rfind("\n", 0, at) + 1 : at]
        after = text[at + len(name)]
        if not _IN_NAME.match(after) and not _IN_NAME.match(line[-1:]) and "//" not in line:
            return at
        at = text.find(name, at + 1, block.closes)
    return -1


def between(blocks: Iterable[Block], end: int) -> list[Span]:
    """The spans of a text of `end` characters without the insides of some blocks."""
    spans, start = [], 0
    for block in blocks:
        spans.append((start, block.opens + 1))
        start = block.closes
    return [*spans, (start, end)]
