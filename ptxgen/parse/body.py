"""Reads the bodies of kernels and functions: declarations, labels, instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from ptxgen.errors import ModifierError, did_you_mean
from ptxgen.ir import (
    Guard,
    Instr,
    Label,
    Note,
    Operand,
    Origin,
    Pragma,
    Prototype,
    Reg,
    Region,
    Shared,
    Targets,
    Variable,
)
from ptxgen.isa.table import op_of, recognise
from ptxgen.parse.locations import Locations
from ptxgen.parse.unread import Body
from ptxgen.parse.variables import LANES, NOT_OPAQUE, OPAQUE, Variables
from ptxgen.tokens import Span, comment
from ptxgen.types import byte

_REGION: Final = re.compile(r"region (\S+): offset (\d+), (\d+) bytes, align (\d+)", re.ASCII)
_MOST_OF_VECTOR: Final = 16  # bytes of a vector register; PTX ISA, section "Vectors"
_MOST_DIGITS: Final = 18  # digits of an integer in a `// region` comment
_NOT_MODELLED: Final[Mapping[str, str]] = {
    "sured": "reductions on surfaces are not modelled",
    "istypep": "handles have no types of their own here",
    "multimem": "memory of several GPUs is not modelled",
    "alloca": "memory of the stack is not modelled",
    "stacksave": "memory of the stack is not modelled",
    "stackrestore": "memory of the stack is not modelled",
}
_DECLARED: Final = (".reg", ".shared", ".local", ".param", ".global", ".const", ".pragma", ".loc")
_LISTS: Final = (".branchtargets", ".calltargets")
# Directives of a prototype that do not change its meaning, and whether an integer follows.
_PRESERVED: Final = {".abi_preserve": True, ".abi_preserve_control": True}


class Bodies(Variables):
    """Reads the body of a kernel or a function into statements, variables and regions."""

    def __init__(self, text: str, locations: Locations, spans: Sequence[Span] | None = None) -> None:
        self._locations = locations
        super().__init__(text, spans)
        self._opcodes: set[str] = set()  # opcodes read so far; the table has each
        self.hoisted: list[Variable] = []  # module variables that were declared in a body

    def new_body(self) -> None:
        """Forget the statements, variables and names of the last body."""
        super().new_body()
        self._locations.new_body()
        self.shared: list[Shared] = []
        self.variables: list[Variable] = []
        self.regions: list[Region] = []

    def body(self) -> None:
        """Read a body to its closing brace; its opening brace has been read."""
        words = self.words
        statements = self.statements
        while True:
            word = words[self.at]
            first = word[:1]
            if word[:2] == "//":
                self.at += 1
                self._comment(comment(word))
            elif first == ".":
                self._declaration(word)
            elif word == "}":
                self.at += 1
                if not self.nested:
                    return
                self.leave()
            elif word == "{":
                self.at += 1
                self.enter()
            elif word and words[self.at + 1] == ":":
                self._label()
            elif word == ";":
                self.fail("there is no statement before this ';'; remove it")
            else:
                statements.append(self._instr())

    def parts(self) -> Body:
        """The statements, variables and other contents of the body that was read last."""
        return Body(tuple(self.registers), tuple(self.statements), tuple(self.shared), tuple(self.variables))

    def _comment(self, text: str) -> None:
        region = None if self.statements else _REGION.fullmatch(text)
        if region is None or any(len(number) > _MOST_DIGITS for number in region.groups()[1:]):
            self.statements.append(Note(text))
        else:
            self.regions.append(Region(region[1], *map(int, region.groups()[1:])))

    # ---------------------------------------------------------------------------------- labels

    def _label(self) -> None:
        token = self.at
        name = self.declare_label(self.name("a label"), token)
        self.want(":")
        word = self.words[self.at]  # not `peek`: a comment after the label is a statement
        if word in _LISTS:
            self.at += 1
            self.statements.append(Targets(name, word[1:], self._targets()))
        elif word == ".callprototype":
            self.at += 1
            self.statements.append(self._prototype(name))
        elif word == ".pragma":
            first, *others = self.pragma()
            self.statements.append(Label(name, first))
            self.statements += map(Pragma, others)
        else:
            self.statements.append(Label(name))

    def _targets(self) -> tuple[str, ...]:
        targets = [self.name("a label or a function")]
        while self.skip(","):
            targets.append(self.name("a label or a function"))
        self.want(";")
        return tuple(targets)

    def _prototype(self, name: str) -> Prototype:
        results = self.params() if self.peek() == "(" else ()
        if self.name("a name such as _ for the function") and self.peek() == "(":
            params = self.params()
        else:
            params = ()
        noreturn, seen = False, list[str]()
        while not self.skip(";"):
            word = self.peek()
            if word not in (".noreturn", *_PRESERVED):
                self.fail(f"wanted ';' after a prototype, got {self.shown(word)}")
            self.once(word, seen)
            noreturn = noreturn or word == ".noreturn"
            if _PRESERVED.get(word):
                self.count("a number of registers")
        return Prototype(name, results, params, noreturn)

    def pragma(self) -> list[str]:
        """Read a directive such as `.pragma "nounroll";`; the result is its strings."""
        self.want(".pragma")
        texts = [self.string("nounroll")]
        while self.skip(","):
            texts.append(self.string("nounroll"))
        self.want(";")
        return texts

    # --------------------------------------------------------------------------------- declarations

    def _declaration(self, word: str) -> None:
        reader = _DECLARATIONS.get(word)
        if reader is None:
            self.refuse_opaque(word)
            known = f"{', '.join(_DECLARED[:-1])} and {_DECLARED[-1]} are read"
            hint = did_you_mean(word, _DECLARED)
            self.fail(f"in a body, {known}, got {self.shown(word)}{hint}")
        reader(self)

    def refuse_opaque(self, word: str) -> None:
        """Raise `ParseError` if `word` is a type of texture, surface or sampler references."""
        if word in OPAQUE:
            self.fail(f"{word} is not read: {NOT_OPAQUE}")

    def _pragmas(self) -> None:
        self.statements += map(Pragma, self.pragma())

    def registers_line(self) -> None:
        """Read a register declaration such as `.reg .b32 %a, %b<20>;`."""
        self.want(".reg")
        lanes = LANES.get(self.peek(), 0)
        self.at += bool(lanes)
        token = self.at
        type = self.type()
        if lanes and not 0 < lanes * type.nbytes <= _MOST_OF_VECTOR:
            self.fail(
                f"a vector register has at most {_MOST_OF_VECTOR} bytes and no predicates, got "
                f".v{lanes} .{type}",
                token,
            )
        declared = byte.register if type.bits == byte.bits else type.register
        while True:
            token = self.at
            prefix = self.name("a register's name")
            count = 0
            if self.skip("<"):
                count = self.count("how many registers")
                self.want(">")
            if lanes:
                self.declare_vectors(prefix, declared, lanes, count, token)
            else:
                self.declare_registers(prefix, declared, count, token)
            if not self.skip(","):
                break
        self.want(";")

    def _variables_line(self) -> None:
        space = self.next()[1:]
        away = space in ("global", "const")
        for variable in self.declared(space, "", lambda *where: self._variable(away, *where)):
            if space == "shared":
                self.shared.append(Shared(variable.name, variable.nbytes, variable.align))
            else:
                (self.hoisted if away else self.variables).append(variable)

    def _variable(self, away: bool, name: str, token: int) -> str:
        return self.declare_variable(name, token, always=away)

    def location(self) -> None:
        """Read a directive such as `.loc 1 20 3`: the source location of the instructions after it."""
        self._locations.read(self)

    # --------------------------------------------------------------------------------- instructions

    def _instr(self) -> Instr:
        start = self.at
        words = self.words
        guard = self._guard() if words[start] == "@" else None
        opcode = words[self.at]
        if opcode in self._opcodes:
            self.at += 1
        else:
            opcode = self._opcode()
        operands: list[Operand] = []
        self.decimal = self.single = False
        word = words[self.at]
        calls = opcode[:4] == "call"
        if word == ";" or self.skip(";"):
            self.at += word == ";"
        else:
            while True:
                if calls and self.peek() == "(":
                    operands.append(self.arguments())
                else:
                    operands.append(self.operand())
                word = words[self.at]
                if word == ",":
                    self.at += 1
                elif word == ";":
                    self.at += 1
                    break
                elif self.skip(";"):
                    break
                elif not self.skip(","):
                    got = self.shown(self.peek())
                    self.fail(f"wanted ',' or ';' after an operand, got {got}")
        instr = Instr(opcode, tuple(operands), guard, Origin(None, self.line(start), self._locations.now))
        if self.single:
            instr = self.without_needless_braces(instr)
        return self.with_narrow_floats(instr, start) if self.decimal else instr

    def _opcode(self) -> str:
        """Read an opcode; raises `ParseError` if the instruction table has no such opcode."""
        opcode = self.name("an instruction")
        if not recognise(opcode):
            self._unknown(opcode, self.at - 1)
        self._opcodes.add(opcode)
        return opcode

    def _unknown(self, opcode: str, token: int) -> NoReturn:
        reason = _NOT_MODELLED.get(opcode.split(".")[0])
        if reason:
            self.fail(f"{opcode} is not read: {reason}", token)
        try:
            op_of(Instr(opcode))
        except ModifierError as error:
            self.fail(str(error), token)
        raise AssertionError(opcode)  # op_of raises for every opcode that recognise does not find

    def _guard(self) -> Guard:
        self.at += 1
        negated = self.skip("!")
        self.peek()
        token = self.at
        register = self.value(self.name("a predicate register"), token)
        if not isinstance(register, Reg):
            self.fail("a guard must be a predicate register", token)
        self.peek()
        return Guard(register, negated)


_DECLARATIONS: Final[Mapping[str, Callable[[Bodies], None]]] = {
    ".reg": Bodies.registers_line,
    ".pragma": Bodies._pragmas,
    ".loc": Bodies.location,
    **dict.fromkeys((".shared", ".local", ".param", ".global", ".const"), Bodies._variables_line),
}
