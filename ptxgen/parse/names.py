"""Resolves names in a body: registers, special registers, variables and labels in nested scopes.

All scopes of a body become one. A name declared in an inner scope is replaced by a new one, such as
`%p$1`, or `%r$1_` for a range, so that it hides no outer name. A new name has more than one `$` if
a word of the text begins with the old name and a `$`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ptxgen.errors import ModifierError
from ptxgen.ir import FloatImm, Instr, IntImm, Reg, RegisterRange, Special, Statement, Symbol, Targets
from ptxgen.isa.special import special
from ptxgen.parse.constants import Constants
from ptxgen.records import dataclass
from ptxgen.register_names import is_index, splits
from ptxgen.tokens import Span


@dataclass(slots=True)
class _Scope:
    """An inner scope of a body.

    `start` is the index of its first statement, `labels` maps its labels to their new names,
    `declared` holds the names that it declares, and `undo` the entries (dictionary, key, old value)
    to restore at its end.
    """

    start: int
    labels: dict[str, str] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    undo: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)


class Names(Constants):
    """Resolves the names of the kernel or function being read."""

    def __init__(self, text: str, spans: Sequence[Span] | None = None) -> None:
        super().__init__(text, spans)
        self.arrays: dict[str, int] = {}  # dynamic shared arrays: name to alignment
        self._separators: dict[str, str] = {}
        self._dollars: list[str] | None = None  # words of the text that contain a `$`
        self.new_body()

    def new_body(self) -> None:
        """Forget the names of the last body."""
        self.names: dict[str, Reg | Special | Symbol | IntImm | FloatImm] = {}
        # By the prefix in the text: the ranges in scope, the innermost first.
        self.ranges: dict[str, tuple[RegisterRange, ...]] = {}
        self.registers: list[RegisterRange] = []
        self.mentioned: list[str] = []  # dynamic shared arrays, in order of first use
        self.statements: list[Statement] = []
        self._scopes: list[_Scope] = []
        self._declared: set[str] = set()  # names declared outside of all inner scopes
        self._renamed: dict[str, int] = {}

    # ---------------------------------------------------------------------------------- scopes

    @property
    def nested(self) -> bool:
        """Whether the statement being read is in an inner scope."""
        return bool(self._scopes)

    def enter(self) -> None:
        """Begin an inner scope."""
        self._scopes.append(_Scope(len(self.statements)))

    def leave(self) -> None:
        """End the innermost scope: forget its names, and rename its labels in its statements."""
        scope = self._scopes.pop()
        for names, name, old in reversed(scope.undo):
            if old is None:
                names.pop(name, None)
            else:
                names[name] = old
        if scope.labels:
            for n in range(scope.start, len(self.statements)):
                self.statements[n] = renamed(self.statements[n], scope.labels)

    def _set(self, names: dict[str, Any], name: str, value: object) -> None:
        """Set `names[name]` to `value` until the innermost scope ends."""
        if self._scopes:
            self._scopes[-1].undo.append((names, name, names.get(name)))
        names[name] = value

    def _fresh(self, name: str) -> str:
        """A new name that neither occurs in the text nor was made by an earlier call."""
        separator = self._separators.get(name)
        if separator is None:
            if self._dollars is None:
                self._dollars = [word for word in set(self.words) if "$" in word]
            separator = "$"
            while any(word.startswith(name + separator) for word in self._dollars):
                separator += "$"
            self._separators[name] = separator
        number = self._renamed[name] = self._renamed.get(name, 0) + 1
        return f"{name}{separator}{number}"

    def _declare(self, name: str, token: int, *, shown: str = "") -> None:
        declared = self._scopes[-1].declared if self._scopes else self._declared
        if name in declared:
            self.fail(f"{shown or name!r} is declared twice", token)
        declared.add(name)

    def declare_registers(self, prefix: str, declared: str, count: int, token: int) -> None:
        """Declare `.reg .declared prefix<count>`, or the one register `prefix` if `count` is 0."""
        name = prefix
        # `%r<8>` and `%r` are different names.
        self._declare(prefix + "<" * bool(count), token, shown=prefix)
        if self._scopes:
            name = self._fresh(prefix) + ("_" if count else "")
        registers = RegisterRange(name, declared, count)
        self.registers.append(registers)
        if not count:
            self._set(self.names, prefix, Reg(name, declared))
            return
        self._set(self.ranges, prefix, (registers, *self.ranges.get(prefix, ())))
        if count < len(self.names):
            hidden = [f"{prefix}{i}" for i in range(count)]
        else:
            hidden = [word for word in self.names if word.startswith(prefix)]
        for word in hidden:
            number = word[len(prefix) :]
            if word in self.names and number.isdecimal() and is_index(number, count):
                self._set(self.names, word, None)
                del self.names[word]

    def declare_variable(self, name: str, token: int, *, always: bool = False) -> str:
        """Declare a variable; the result is its name in the IR.

        The name is new if the variable is in an inner scope, or `always`, which is for variables
        that become variables of the module.
        """
        if self._scopes:
            self._declare(name, token)
        elif not always:
            return name
        new = self._fresh(name)
        self._set(self.names, name, Symbol(new))
        return new

    def declare_label(self, name: str, token: int) -> str:
        """Declare a label, a list of targets or a prototype; the result is its name in the IR."""
        self._declare(name, token)
        if not self._scopes:
            return name
        new = self._scopes[-1].labels[name] = self._fresh(name)
        return new

    # ---------------------------------------------------------------------------------- uses

    def value(self, word: str, token: int) -> Reg | Special | Symbol:
        """The register, special register or symbol that a name means in the present scope."""
        known = self.names.get(word)
        if known is not None:
            assert not isinstance(known, (IntImm, FloatImm))  # a literal does not look like a name
            return known
        value = self._resolved(word, token)
        self._set(self.names, word, value)
        return value

    def _resolved(self, word: str, token: int) -> Reg | Special | Symbol:
        for prefix, number in splits(word):
            for declared in self.ranges.get(prefix, ()):
                if is_index(number, declared.count):
                    return Reg(declared.prefix + number, declared.declared)
        if word[0] != "%":
            if word in self.arrays:
                self.mentioned.append(word)
            return Symbol(word)
        try:
            special(word)
        except ModifierError as error:
            self.fail(f"register {word} is not declared in a .reg line, and {error}", token)
        return Special(word)


def renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement with the names in it, of names or functions, replaced by their new ones."""
    if isinstance(statement, Targets):
        targets = tuple(names.get(name, name) for name in statement.targets)
        return Targets(statement.name, statement.kind, targets)
    if not isinstance(statement, Instr) or not any(
        o.__class__ is Symbol and o.name in names for o in statement.operands
    ):
        return statement
    operands = tuple(
        Symbol(names.get(o.name, o.name), o.offset) if isinstance(o, Symbol) else o
        for o in statement.operands
    )
    return Instr(statement.opcode, operands, statement.guard, statement.origin)
