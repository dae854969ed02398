"""PTX text to IR: a recursive descent, the inverse of `ptxgen.text` on what that prints.

PTX is free-form: several instructions may share a line and one may span lines. What is read:

* `.version`, `.target`, `.address_size 64`, `.extern .shared` arrays and `.entry` kernels with
  `.param` scalars, `.maxntid`, `.minnctapersm`, `.reg`, `.shared`, labels, and the instructions of
  the table;
* a `//` comment that has a line of a body to itself is a `Note`; one at the head of the file is
  the module's header; `// region …` among the declarations is a `Region`; others are skipped;
* registers take the class their type is kept in: `.reg .u32` is read as `.reg .b32`.

Every error is a `ParseError` with line, column, the line's text and a caret.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Final, NoReturn

from ptxgen.errors import ModifierError, TypeMismatchError, did_you_mean
from ptxgen.ir import (
    Address,
    FloatImm,
    Guard,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Operand,
    Origin,
    Pair,
    Param,
    Reg,
    Region,
    RegisterRange,
    Shared,
    Special,
    Statement,
    Symbol,
    Vector,
)
from ptxgen.isa.special import special
from ptxgen.isa.table import op_of, recognise
from ptxgen.tokens import DECIMAL_FLOAT, Tokens, comment

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_REGION: Final = re.compile(r"region (\S+): offset (\d+), (\d+) bytes, align (\d+)")
# What `text.render` gives every dynamic shared array, so it need not be remembered.
_DYNAMIC_ALIGN: Final = 16


def parse(text: str) -> Module:
    """The module that a PTX text says. `Instr.origin` is the line the instruction begins at.

    Raises `ParseError` for text that is not PTX, for instructions that are not in the table, and
    for parts of PTX that are not modelled. Whether the operands fit is for `verify` to say.
    """
    return _Parser(text).module()


def range_of(name: str, ranges: Mapping[str, RegisterRange]) -> RegisterRange | None:
    """The one of `ranges`, by prefix, that declares a register: `%r<5>` for `%r3`; None if none."""
    prefix = name.rstrip("0123456789")
    while prefix != name:
        number = name[len(prefix) :]
        found = ranges.get(prefix)
        if found and (number[0] != "0" or number == "0") and int(number) < found.count:
            return found
        prefix = name[: len(prefix) + 1]  # a prefix may itself end in digits
    return None


class _Parser(Tokens):
    """One module's text; the fields below belong to the kernel being read, except `arrays`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.arrays: dict[str, int] = {}  # dynamic shared arrays: name to alignment
        self.names: dict[str, Reg | Special] = {}
        self.ranges: dict[str, RegisterRange] = {}
        self.mentioned: dict[str, int] = {}  # symbols, and the token that first named them
        self.decimal = False  # whether the instruction being read has a float in decimals

    # ---------------------------------------------------------------------------------- module

    def module(self) -> Module:
        """The whole text."""
        header = self._header()
        self.want(".version")
        version = _VERSION.fullmatch(self.peek())
        if version is None:
            self.fail(f"wanted a version such as 7.0, got {self.shown(self.peek())}")
        self.at += 1
        self.want(".target")
        target = self.name("a target such as sm_80")
        self.want(".address_size")
        if self.count("64") != 64:
            self.fail("only 64-bit addresses are read; wanted 64", self.at - 1)
        kernels = []
        while self.peek():
            if self.skip(".extern"):
                self._dynamic_array()
            else:
                kernels.append(self._kernel())
        return Module((int(version[1]), int(version[2])), target, tuple(kernels), header)

    def _header(self) -> tuple[str, ...]:
        lines = []
        while self.words[self.at][:2] == "//":
            lines.append(comment(self.words[self.at]))
            self.at += 1
        # As printed, an empty comment line stands above and below.
        if len(lines) > 2 and not lines[0] and not lines[-1]:
            lines = lines[1:-1]
        return tuple(lines)

    def _dynamic_array(self) -> None:
        self.want(".shared")
        align = self.count("an alignment") if self.skip(".align") else 0
        element = self.type()
        name = self.name("the array's name")
        for word in "[];":
            self.want(word)
        self.arrays[name] = max(align, element.nbytes)

    def _kernel(self) -> Kernel:
        self.skip(".visible")
        if self.peek() != ".entry":
            known = ".visible .entry or .extern .shared"
            self.fail(f"wanted {known} at module level, got {self.shown(self.peek())}")
        self.at += 1
        self.names, self.ranges, self.mentioned = {}, {}, {}
        name = self.name("the kernel's name")
        params = self._params()
        threads, min_ctas = self._promises()
        self.want("{")
        shared: list[Shared] = []
        regions: list[Region] = []
        body = self._body(shared, regions)
        dynamic = self._dynamic_shared(regions)
        if dynamic and self.arrays[dynamic] > max([_DYNAMIC_ALIGN, *(r.align for r in regions)]):
            # An empty region keeps an alignment that no other part asks for.
            regions.append(Region(dynamic, 0, 0, self.arrays[dynamic]))
        return Kernel(
            name, params, tuple(self.ranges.values()), body, tuple(shared),
            threads, min_ctas, dynamic, tuple(regions),
        )  # fmt: skip

    def _dynamic_shared(self, regions: list[Region]) -> str:
        """The dynamic shared array that the kernel just read uses, or the empty string."""
        used = [name for name in self.arrays if name in self.mentioned]
        if len(used) > 1:
            self.fail(
                f"a kernel uses one dynamic shared array, this one uses {' and '.join(used)} "
                "(all of them begin at the same address)",
                self.mentioned[used[1]],
            )
        if regions and not used:
            used = list(self.arrays)[:1]
        return used[0] if used else ""

    def _params(self) -> tuple[Param, ...]:
        params: list[Param] = []
        if not self.skip("(") or self.skip(")"):
            return ()
        while True:
            self.want(".param")
            type = self.type()
            if self.skip(".ptr"):  # a promise that changes no meaning
                while self.peek()[:1] == ".":
                    if self.next() == ".align":
                        self.count("an alignment")
            params.append(Param(self.name("the parameter's name"), type.name))
            if self.skip(")"):
                return tuple(params)
            self.want(",")

    def _promises(self) -> tuple[int, int]:
        """The block size of `.maxntid` and the number of `.minnctapersm`, 0 for what is absent."""
        threads = min_ctas = 0
        while self.peek() != "{":
            if self.skip(".maxntid"):
                threads = self.count("a number of threads")
                while self.skip(","):
                    threads *= self.count("a number of threads")
            elif self.skip(".minnctapersm"):
                min_ctas = self.count("a number of CTAs")
            else:
                known = (".maxntid", ".minnctapersm", "{")
                word = self.peek()
                hint = did_you_mean(word, known)
                self.fail(f"wanted {', '.join(known[:2])} or {{, got {self.shown(word)}{hint}")
        return threads, min_ctas

    # ---------------------------------------------------------------------------------- body

    def _body(self, shared: list[Shared], regions: list[Region]) -> tuple[Statement, ...]:
        body: list[Statement] = []
        words = self.words
        while True:
            word = words[self.at]
            first = word[:1]
            if word[:2] == "//":
                self.at += 1
                region = None if body else _REGION.fullmatch(comment(word))
                if region is None:
                    body.append(Note(comment(word)))
                else:
                    regions.append(Region(region[1], *map(int, region.groups()[1:])))
            elif first == ".":
                self._declaration(shared)
            elif word == "}":
                self.at += 1
                return tuple(body)
            elif words[min(self.at + 1, len(words) - 1)] == ":":
                self.at += 2
                body.append(Label(word, self._pragma()))
            elif word != ";":
                body.append(self._instr())
            else:  # an empty statement
                self.at += 1

    def _pragma(self) -> str:
        """The pragma of the loop that a label heads, empty if there is none."""
        if self.words[self.at] != ".pragma":  # a comment here is the next statement
            return ""
        self.at += 1
        text = self.peek()
        if text[:1] != '"':
            self.fail(f'wanted a string such as "nounroll", got {self.shown(text)}')
        self.at += 1
        self.want(";")
        return text.strip('"')

    def _declaration(self, shared: list[Shared]) -> None:
        if self.skip(".reg"):
            self._registers()
        elif self.skip(".shared"):
            shared.append(self._shared())
        else:
            word = self.peek()
            hint = did_you_mean(word, (".reg", ".shared"))
            self.fail(f"in a body, .reg and .shared are read, got {self.shown(word)}{hint}")
        self.want(";")

    def _registers(self) -> None:
        declared = self.type().register
        while True:
            token = self.at
            prefix = self.name("a register's name")
            count = 0
            if self.skip("<"):
                count = self.count("how many registers")
                self.want(">")
            if prefix in self.ranges:
                self.fail(f"{prefix!r} is declared twice", token)
            self.ranges[prefix] = RegisterRange(prefix, declared, count)
            if not count:
                self.names[prefix] = Reg(prefix, declared)
            if not self.skip(","):
                return

    def _shared(self) -> Shared:
        align = self.count("an alignment") if self.skip(".align") else 0
        element = self.type()
        name = self.name("the variable's name")
        nbytes = element.nbytes
        while self.skip("["):
            nbytes *= self.count("a number of elements")
            self.want("]")
        return Shared(name, nbytes, align or element.nbytes)

    def _instr(self) -> Instr:
        start = self.at
        guard = self._guard() if self.words[start] == "@" else None
        token = self.at
        opcode = self.name("an instruction") if self.peek() != "{" else self._nested()
        if not recognise(opcode):
            self._unknown(opcode, token)
        operands: list[Operand] = []
        self.decimal = False
        if not self.skip(";"):
            while True:
                operands.append(self._operand())
                word = self.next()
                if word == ";":
                    break
                if word != ",":
                    self.at -= 1 if word else 0
                    self.fail(f"wanted ',' or ';' after an operand, got {self.shown(word)}")
        instr = Instr(opcode, tuple(operands), guard, Origin(None, self.line(start)))
        return self._with_narrow_floats(instr, start) if self.decimal else instr

    def _nested(self) -> NoReturn:
        self.fail("a block within a body is not read; give its registers names of their own")

    def _unknown(self, opcode: str, token: int) -> NoReturn:
        try:
            op_of(Instr(opcode))
        except ModifierError as error:
            self.fail(str(error), token)
        raise AssertionError(opcode)  # op_of refuses whatever recognise does not know

    def _guard(self) -> Guard:
        self.at += 1
        negated = self.skip("!")
        token = self.at
        register = self._value(self.name("a predicate register"), token)
        if not isinstance(register, Reg):
            self.fail("a guard must be a predicate register", token)
        return Guard(register, negated)

    # ---------------------------------------------------------------------------------- operands

    def _operand(self) -> Operand:
        word = self.next()
        known = self.names.get(word)
        if known is None:
            if word == "[":
                return self._address()
            if word == "{":
                return self._vector()
            known_or_other = self._simple(word)
            if not isinstance(known_or_other, Reg):
                return known_or_other
            known = known_or_other
        if self.words[self.at] == "|" and isinstance(known, Reg):
            self.at += 1
            second = self._value(self.name("a register"), self.at - 1)
            if not isinstance(second, Reg):
                self.fail("the second of two results must be a register", self.at - 1)
            return Pair(known, second)
        return known

    def _simple(self, word: str) -> Reg | Special | Symbol | IntImm | FloatImm:
        """An operand of a single token, which is behind us, or a literal with its sign."""
        token = self.at - 1
        if word == "-":
            literal = self._literal(self.next(), self.at - 1)
            if isinstance(literal, IntImm):
                return IntImm(-literal.value)
            return FloatImm(literal.bits ^ 1 << (literal.width - 1), literal.width)
        if word[:1].isdigit():
            return self._literal(word, token)
        if not word[:1].isalpha() and word[:1] not in ("%", "$", "_"):
            token += not word
            self.fail(f"wanted an operand, got {self.shown(word)}", token)
        return self._value(word, token)

    def _value(self, word: str, token: int) -> Reg | Special | Symbol:
        """What a name means here."""
        known = self.names.get(word)
        if known is not None:
            return known
        declared = range_of(word, self.ranges)
        if declared is not None:
            known = self.names[word] = Reg(word, declared.declared)
            return known
        if word[0] != "%":
            self.mentioned.setdefault(word, token)
            return Symbol(word)
        try:
            special(word)
        except ModifierError as error:
            self.fail(f"register {word} is not declared in a .reg line, and {error}", token)
        known = self.names[word] = Special(word)
        return known

    def _literal(self, word: str, token: int) -> IntImm | FloatImm:
        if not word[:1].isdigit():
            self.fail(f"wanted a number, got {self.shown(word)}", token + (not word))
        if word[:2] in ("0f", "0F") and len(word) == 10:
            return FloatImm(int(word[2:], 16), 32)
        if word[:2] in ("0d", "0D") and len(word) == 18:
            return FloatImm(int(word[2:], 16), 64)
        if DECIMAL_FLOAT.fullmatch(word):
            self.decimal = True
            return FloatImm(_double_bits(float(word)), 64)
        return IntImm(self.integer(word, token))

    def _address(self) -> Address:
        token = self.at
        base = self._value(self.name("a register or a name"), token)
        if isinstance(base, Special):
            self.fail("an address must be a register or a name", token)
        offset = 0
        sign = self.next()
        if sign != "]":
            negative = sign == "-" or (sign == "+" and self.skip("-"))
            if sign not in ("+", "-"):
                got = self.shown(sign)
                self.fail(f"wanted '+', '-' or ']' in an address, got {got}", self.at - bool(sign))
            offset = self.count("an offset in bytes")
            offset = -offset if negative else offset
            self.want("]")
        return Address(base, offset)

    def _vector(self) -> Vector:
        items: list[Reg | IntImm | FloatImm] = []
        while True:
            token = self.at
            item = self._simple(self.next())
            if isinstance(item, (Special, Symbol)):
                self.fail(f"wanted a register or a number in a vector, got {item.name!r}", token)
            items.append(item)
            if self.skip("}"):
                return Vector(tuple(items))
            self.want(",")

    # ---------------------------------------------------------------------------------- decimals

    def _with_narrow_floats(self, instr: Instr, token: int) -> Instr:
        """The instruction with each 64-bit literal as wide as its operand is.

        PTX ISA, section "Floating-Point Constants": a decimal literal is a double until it is used.
        """
        try:
            op = op_of(instr)
        except TypeMismatchError as error:
            self.fail(str(error), token)
        operands = []
        for operand, wanted in zip(instr.operands, op.flat, strict=False):
            narrow = wanted.type is not None and wanted.type.bits == 32
            operands.append(_narrowed(operand) if narrow else operand)
        return Instr(instr.opcode, tuple(operands), instr.guard, instr.origin)


def _narrowed(operand: Operand) -> Operand:
    if isinstance(operand, Vector):
        return Vector(tuple(_narrow(i) if isinstance(i, FloatImm) else i for i in operand.items))
    return _narrow(operand) if isinstance(operand, FloatImm) else operand


def _narrow(literal: FloatImm) -> FloatImm:
    if literal.width == 32:
        return literal
    (value,) = struct.unpack("<d", literal.bits.to_bytes(8, "little"))
    try:
        data = struct.pack("<f", value)
    except OverflowError:  # rounds to infinity
        data = struct.pack("<f", math.copysign(math.inf, value))
    return FloatImm(int.from_bytes(data, "little"), 32)


def _double_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")
