"""Resolves names in a body: registers, special registers, variables and labels in nested scopes.

All scopes of a body become one. A name declared in an inner scope is replaced by a new one, such as
`%p$1`, or `%r$1_` for a range, so that it hides no outer name. A new name has more than one `$` if
a word of the text begins with the old name and a `$`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from ptxgen.errors import ModifierError
from ptxgen.ir import FloatImm, Instr, IntImm, Reg, RegisterRange, Special, Statement, Symbol, Targets, Vector
from ptxgen.isa.special import special
from ptxgen.parse.constants import Constants
from ptxgen.records import dataclass
from ptxgen.register_names import is_index, splits
from ptxgen.tokens import Span

# The names of the elements of a vector register, by either of which each may be called.
_ELEMENTS: Final = ("xr", "yg", "zb", "wa")


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Vector registers of `lanes` elements, `count` of them (0: one without a number), which are the
    registers of a range one after another.
    """

    registers: RegisterRange
    lanes: int
    count: int

    def vector(self, number: int) -> Vector:
        """The vector register with this number, all its elements in order."""
        of = self.registers
        first = number * self.lanes
        return Vector(tuple(Reg(f"{of.prefix}{first + n}", of.declared) for n in range(self.lanes)))


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
        self.names: dict[str, Reg | Vector | Special | Symbol | IntImm | FloatImm] = {}
        # By the prefix in the text: the ranges in scope, the innermost first.
        self.ranges: dict[str, tuple[RegisterRange | _Vectors, ...]] = {}
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
        self._define(prefix, registers)

    def declare_vectors(self, prefix: str, declared: str, lanes: int, count: int, token: int) -> None:
        """Declare `.reg .vLANES .declared prefix<count>`, or the one vector `prefix` if `count` is 0."""
        self._declare(prefix + "<" * bool(count), token, shown=prefix)
        registers = RegisterRange(f"{self._fresh(prefix)}_", declared, lanes * max(count, 1))
        self.registers.append(registers)
        vectors = _Vectors(registers, lanes, count)
        if count:
            self._define(prefix, vectors)
            return
        whole = vectors.vector(0)
        self._set(self.names, prefix, whole)
        for names, element in zip(_ELEMENTS, whole.items, strict=False):
            for name in names:
                self._set(self.names, f"{prefix}.{name}", element)

    def _define(self, prefix: str, registers: RegisterRange | _Vectors) -> None:
        """Make a range known by its prefix in the text; what its names meant before is hidden."""
        self._set(self.ranges, prefix, (registers, *self.ranges.get(prefix, ())))
        count = registers.count
        if isinstance(registers, RegisterRange) and count < len(self.names):
            hidden = [f"{prefix}{i}" for i in range(count)]
        else:
            hidden = [word for word in self.names if word.startswith(prefix)]
        for word in hidden:
            number = word[len(prefix) :].partition(".")[0]
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

    def value(self, word: str, token: int) -> Reg | Vector | Special | Symbol:
        """The register, vector of registers, special register or symbol that a name means in this scope."""
        known = self.names.get(word)
        if known is not None:
            assert not isinstance(known, (IntImm, FloatImm))  # a literal does not look like a name
            return known
        value = self._resolved(word, token)
        self._set(self.names, word, value)
        return value

    def _resolved(self, word: str, token: int) -> Reg | Vector | Special | Symbol:
        whole, _, element = word.partition(".")
        for prefix, number in splits(whole):
            for declared in self.ranges.get(prefix, ()):
                if not is_index(number, declared.count):
                    continue
                if isinstance(declared, _Vectors):
                    return self._of_vector(declared.vector(int(number)), word, element, token)
                if not element:
                    return Reg(declared.prefix + number, declared.declared)
        known = self.names.get(whole) if element else None
        if isinstance(known, Vector):
            return self._of_vector(known, word, element, token)
        if word[0] != "%":
            if word in self.arrays:
                self.mentioned.append(word)
            return Symbol(word)
        try:
            special(word)
        except ModifierError as error:
            self.fail(f"register {word} is not declared in a .reg line, and {error}", token)
        return Special(word)

    def _of_vector(self, vector: Vector, word: str, element: str, token: int) -> Reg | Vector:
        """The element of a vector register that `word` names, all of it if it names none."""
        if not element:
            return vector
        known = _ELEMENTS[: len(vector.items)]
        registers = {name: r for names, r in zip(known, vector.items, strict=True) for name in names}
        register = registers.get(element)
        if not isinstance(register, Reg):
            legal = " or ".join(",".join(f".{n[i]}" for n in known) for i in range(2))
            self.fail(f"{word}: the elements of a vector register of {len(known)} are {legal}", token)
        return register


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
