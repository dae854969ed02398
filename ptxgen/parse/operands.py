"""Reads the operands of instructions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

from ptxgen.errors import TypeMismatchError
from ptxgen.ir import (
    Address,
    Arguments,
    FloatImm,
    Instr,
    IntImm,
    Not,
    Operand,
    Pair,
    Reg,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Vector,
)
from ptxgen.isa.table import fits, op_of, recognise
from ptxgen.parse.constants import ENDS
from ptxgen.parse.names import Names
from ptxgen.tokens import Span

_SINK: Final = Sink()


class Operands(Names):
    """Reads the operands of one instruction at a time."""

    def __init__(self, text: str, spans: Sequence[Span] | None = None) -> None:
        super().__init__(text, spans)
        self.single = False  # whether the instruction being read has a vector of one element

    def operand(self) -> Operand:
        """Read one operand; raises `ParseError` if none is next."""
        words, at = self.words, self.at
        word = words[at]
        known = self.names.get(word)
        if known is not None and words[at + 1] in ENDS:
            self.at = at + 1
            return known
        if word[:1] == "%" and words[at + 1] in ENDS:
            self.at = at + 1
            return self.value(word, at)
        if word == "[":
            self.at = at + 1
            return self._address()
        if word == "{":
            self.at = at + 1
            return self._vector()
        return self._other(self.peek())

    def _other(self, word: str) -> Operand:
        if self.starts_constant(word):
            return self._literal(word)
        if word == "!":
            return self._not()
        if word in ("[", "{"):
            self.at += 1
            return self._address() if word == "[" else self._vector()
        if not self.is_name(word):
            self.fail(f"wanted an operand, got {self.shown(word)}")
        token = self.at
        self.at += 1
        known: Reg | Vector | Special | Symbol | Sink = _SINK if word == "_" else self.value(word, token)
        after = self.peek()
        if after == "|" and isinstance(known, (Reg, Sink)):
            self.at += 1
            return Pair(known, self._register_or_sink("the second of two results"))
        if after in ("+", "-") and isinstance(known, Symbol):
            return Symbol(known.name, known.offset + self.offset())
        return known

    def _literal(self, word: str) -> IntImm | FloatImm:
        start = self.at
        literal = self.constant()
        if self.at == start + 1 and word[0].isdigit() and not self.decimal:
            self.names[word] = literal  # the next occurrence is looked up instead of evaluated
        return literal

    def _not(self) -> Not | IntImm | FloatImm:
        start = self.at
        self.at += 1
        word = self.peek()
        token = self.at
        if self.is_name(word) and word != "WARP_SZ":
            self.at += 1
            register = self.value(word, token)
            if not isinstance(register, Reg):
                self.fail("after '!' there must be a predicate register or a number", token)
            return Not(register)
        self.at = start
        return self.constant()

    def _register_or_sink(self, what: str) -> Reg | Sink:
        token = self.at
        if self.skip("_"):
            return _SINK
        register = self.value(self.name("a register"), token)
        if not isinstance(register, Reg):
            self.fail(f"{what} must be a register", token)
        return register

    # ---------------------------------------------------------------------------------- addresses

    def _address(self) -> Address | TensorAddress:
        word = self.next()
        token = self.at - 1
        if self.starts_constant(word):
            self.at = token
            offset = self.whole("an address")
            base = None
        else:
            base = self._base(word, token)
            if self.words[self.at] == "]":  # most addresses have no offset
                self.at += 1
                return Address(base)
            offset = self.offset()
        if base is not None and self.skip(","):
            return self._tensor_address(base, offset)
        if not self.skip("]"):
            got = self.shown(self.peek())
            self.fail(f"wanted '+', '-' or ']' in an address, got {got}")
        return Address(base, offset)

    def _base(self, word: str, token: int) -> Reg | Symbol:
        known = self.names.get(word)
        if known.__class__ is Reg or known.__class__ is Symbol:
            return known
        if not self.is_name(word):
            token += not word
            self.fail(f"wanted a register or a name, got {self.shown(word)}", token)
        base = self.value(word, token)
        if isinstance(base, (Special, Vector)):
            self.fail("an address must be a register or a name", token)
        return base

    def offset(self) -> int:
        """Read offsets such as `+4`, `+-4` or `-4`; the result is their sum, 0 if there is none."""
        offset = 0
        while True:
            sign = self.peek()
            if sign not in ("+", "-"):
                return offset
            self.at += 1
            words, at = self.words, self.at
            if words[at].isdecimal() and words[at + 1] in ENDS and words[at][0] != "0":
                self.at += 1
                amount = self.integer(words[at], at)
            else:
                amount = self._amount()
            offset += amount if sign == "+" else -amount

    def _amount(self) -> int:
        """Read one offset in bytes; it ends at the next `+` or `-` outside brackets."""
        token = self.at
        word = self.peek()
        if not self.starts_constant(word) and word not in ("!", "~"):
            self.fail(f"wanted an offset in bytes, got {self.shown(word)}")
        value = self.summand("an offset in bytes")
        if value is None:
            self.fail("wanted an offset in bytes, got a floating-point number", token)
        return value

    def _tensor_address(self, base: Reg | Symbol, offset: int) -> TensorAddress:
        token = self.at
        of = self._vector() if self.skip("{") else self.value(self.name("coordinates in braces"), token)
        if not isinstance(of, Vector):
            self.fail("coordinates must be in braces, or be a vector register", token)
        coordinates = []
        for item in of.items:
            if not isinstance(item, (Reg, IntImm, FloatImm)):
                self.fail("a coordinate must be a register or a number", self.at - 1)
            coordinates.append(item)
        self.want("]")
        return TensorAddress(base, offset, tuple(coordinates))

    # ---------------------------------------------------------------------------------- several

    def _vector(self) -> Vector:
        items: list[Reg | IntImm | FloatImm | Sink] = []
        while True:
            self.peek()
            token = self.at
            item = self._item("a vector")
            if isinstance(item, Symbol):
                self.fail(f"wanted a register or a number in a vector, got {item.name!r}", token)
            items.append(item)
            if self.skip("}"):
                self.single = self.single or len(items) == 1
                return Vector(tuple(items))
            self.want(",")

    def arguments(self) -> Arguments:
        """Read the arguments or results of a call, parentheses included."""
        self.want("(")
        items: list[Reg | IntImm | FloatImm | Symbol | Sink] = []
        if self.skip(")"):
            return Arguments(())
        while True:
            items.append(self._item("arguments"))
            if self.skip(")"):
                return Arguments(tuple(items))
            self.want(",")

    def _item(self, where: str) -> Reg | IntImm | FloatImm | Symbol | Sink:
        word = self.peek()
        known = self.names.get(word)
        if known.__class__ is Reg:
            self.at += 1
            return known
        if self.starts_constant(word) or word in ("!", "~"):
            return self.constant()
        if not self.is_name(word):
            self.fail(f"wanted an operand, got {self.shown(word)}")
        token = self.at
        self.at += 1
        if word == "_":
            return _SINK
        item = self.value(word, token)
        if isinstance(item, (Special, Vector)):
            self.fail(f"wanted a register or a number in {where}, got {word!r}", token)
        return item

    # ---------------------------------------------------------------------------------- adjustments

    def without_needless_braces(self, instr: Instr) -> Instr:
        """The instruction with `%r1` for `{%r1}`, unless a row of its opcode fits it with braces.

        Triton writes `ld.global.b32 {%r1}, [%rd1]`.
        """
        if any(fits(op, instr.operands) for op in recognise(instr.opcode)):
            return instr
        operands = tuple(
            o.items[0] if isinstance(o, Vector) and len(o.items) == 1 else o for o in instr.operands
        )
        return Instr(instr.opcode, operands, instr.guard, instr.origin)

    def with_narrow_floats(self, instr: Instr, token: int) -> Instr:
        """The instruction with f32 literals for f64 literals where the operand has 32 bits.

        PTX ISA, section "Floating-Point Constants": a decimal literal is a double until it is used.
        Raises `ParseError` if the operands do not fit the instruction.
        """
        try:
            op = op_of(instr)
        except TypeMismatchError as error:
            self.fail(str(error), token)
        operands = list(instr.operands)
        for n, (operand, wanted) in enumerate(zip(instr.operands, op.flat, strict=False)):
            if isinstance(operand, TensorAddress) or (wanted.type is not None and wanted.type.bits == 32):
                operands[n] = _narrowed(operand)
        return Instr(instr.opcode, tuple(operands), instr.guard, instr.origin)


def _narrowed(operand: Operand) -> Operand:
    if isinstance(operand, Vector):
        return Vector(tuple(narrow(i) if isinstance(i, FloatImm) else i for i in operand.items))
    if isinstance(operand, TensorAddress):
        along = tuple(narrow(i) if isinstance(i, FloatImm) else i for i in operand.coordinates)
        return TensorAddress(operand.base, operand.offset, along)
    return narrow(operand) if isinstance(operand, FloatImm) else operand


def narrow(literal: FloatImm) -> FloatImm:
    """The literal as an f32, rounded to nearest even if it is an f64."""
    if literal.width == 32:
        return literal
    (value,) = struct.unpack("<d", literal.bits.to_bytes(8, "little"))
    try:
        data = struct.pack("<f", value)
    except OverflowError:  # rounds to infinity
        data = struct.pack("<f", math.copysign(math.inf, value))
    return FloatImm(int.from_bytes(data, "little"), 32)
