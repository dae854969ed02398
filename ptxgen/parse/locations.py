"""Reads `.file` and `.loc`: the lines of the source that a compiler made PTX of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ptxgen.ir import Location
from ptxgen.tokens import Tokens

# Maps the path of a source, as the PTX has it, to its lines; to none if the source is not at hand.
Sources = Callable[[str], Sequence[str]]

_Position = tuple[int, int, int]  # a file's number, a line, a column


class Locations:
    """The locations of a text's instructions. `now` is that of the next instruction; None if the
    text does not say it. `files` is the path of each source by its number; by default, they are looked
    up in the tokens that have the first directive.
    """

    def __init__(self, sources: Sources | None, files: Mapping[int, str] | None = None) -> None:
        self.now: Location | None = None
        self._sources = sources
        self._files = files
        self._lines: dict[str, Sequence[str]] = {}
        self._read: dict[_Position, Location] = {}  # in this body
        self._known: dict[tuple[str, ...], tuple[_Position, _Position | None]] = {}  # by a directive's tokens
        # LLVM counts the lines of inline assembly as lines of the source, so that only the first
        # directive in it has a line that the source has: `_fixed` says that it was read.
        self._in_asm = self._fixed = False
        self._seen = 0  # how many of `Tokens.asm` have been looked at

    def new_body(self) -> None:
        """Forget the locations of the last body."""
        self.now = None
        self._read.clear()
        self._in_asm = self._fixed = False

    def _look_for_asm(self, tokens: Tokens) -> None:
        """Find whether the next token is in inline assembly; not all comments are tokens."""
        while self._seen < len(tokens.asm) and tokens.asm[self._seen][0] <= tokens.at:
            self._in_asm, self._fixed = tokens.asm[self._seen][1], False
            self._seen += 1

    def read(self, tokens: Tokens) -> None:
        """Read a directive such as `.loc 1 20 3, function_name $L1, inlined_at 1 9 2`.

        Raises `ParseError`.
        """
        self._look_for_asm(tokens)
        position, call = self._positions(tokens)
        if self._files is None:
            self._files = files_of(tokens)
        if self._fixed:
            return
        self._fixed = self._in_asm
        # A call that was inlined itself has its own directive before this one.
        caller = None if call is None else self._read.get(call) or self._location(call, None)
        self.now = self._location(position, caller)
        if self.now is not None:
            self._read[position] = self.now

    def _positions(self, tokens: Tokens) -> tuple[_Position, _Position | None]:
        """Read a directive: its source position, and that of the call if its code was inlined."""
        words, start = tokens.words, tokens.at
        end = start + (12 if words[start + 8 : start + 9] == ["inlined_at"] else 4)
        text = tuple(words[start + 1 : end])
        known = self._known.get(text)
        if known is not None and words[end] != "," and words[end][:2] != "//":
            tokens.at = end
            return known
        tokens.want(".loc")
        position = _position(tokens)
        call: _Position | None = None
        while tokens.skip(","):
            if tokens.skip("function_name"):
                tokens.name("a label")
                if tokens.skip("+"):
                    tokens.count("an offset")
            elif tokens.skip("inlined_at"):
                call = _position(tokens)
            else:
                got = tokens.shown(tokens.peek())
                tokens.fail(f"wanted function_name or inlined_at, got {got}")
        if tokens.at == end:
            self._known[text] = position, call
        return position, call

    def _location(self, position: _Position, inlined_at: Location | None) -> Location | None:
        number, line, column = position
        name = (self._files or {}).get(number)
        if name is None or not line:  # compilers write line 0 for code that no line asks for
            return None
        if name not in self._lines:
            self._lines[name] = () if self._sources is None else self._sources(name)
        lines = self._lines[name]
        text = lines[line - 1].strip() if line <= len(lines) else ""
        return Location(name, line, column, text, inlined_at)


def _position(tokens: Tokens) -> _Position:
    number, line, column = (tokens.count(what) for what in ("a file's number", "a line", "a column"))
    return number, line, column


def files_of(tokens: Tokens) -> dict[int, str]:
    """The names of a text's files by number; nvcc writes them after the code that names them."""
    words = tokens.words
    starts = [n for n, word in enumerate(words) if word == ".file"]
    return {
        int(words[n + 1]): words[n + 2][1:-1]
        for n in starts
        if words[n + 1].isdecimal() and words[n + 2][:1] == '"'
    }
