"""Reads literals and constant expressions (PTX ISA, "Constants", "Constant Expressions")."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ptxgen.ir import FloatImm, IntImm
from ptxgen.tokens import DECIMAL_FLOAT, Span, Tokens

# A token before one of these is a whole operand or value.
ENDS: Final = frozenset({",", ";", "]", "}", ")"})
_WARP_SIZE: Final = 32
_DEEPEST: Final = 50  # nested brackets and operators, so that Python's stack does not overflow
_MASK: Final = 2**64 - 1


class _Value(NamedTuple):
    """A constant: an integer of 64 bits, signed or not, or a double."""

    value: int | float
    unsigned: bool = False


def _wrap(value: int, unsigned: bool) -> _Value:
    value &= _MASK
    return _Value(value - (1 << 64) if not unsigned and value >> 63 else value, unsigned)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


# By operator: its precedence, and its function of two integers or two doubles.
_ARITHMETIC: Final[Mapping[str, tuple[int, Callable[[Any, Any], Any]]]] = {
    "*": (10, operator.mul),
    "/": (10, _divide),
    "+": (9, operator.add),
    "-": (9, operator.sub),
}
_COMPARISONS: Final[Mapping[str, tuple[int, Callable[[Any, Any], bool]]]] = {
    "<": (7, operator.lt),
    ">": (7, operator.gt),
    "<=": (7, operator.le),
    ">=": (7, operator.ge),
    "==": (6, operator.eq),
    "!=": (6, operator.ne),
}
_BITWISE: Final[Mapping[str, tuple[int, Callable[[int, int], int]]]] = {
    "&": (5, operator.and_),
    "^": (4, operator.xor),
    "|": (3, operator.or_),
}
_OTHERS: Final = {"%": 10, "<<": 8, ">>": 8, "&&": 2, "||": 1}
_BINDING: Final = _OTHERS | {
    sign: kind[sign][0] for kind in (_ARITHMETIC, _COMPARISONS, _BITWISE) for sign in kind
}
_BEGINNINGS: Final = frozenset({"-", "+", "~", "(", "WARP_SZ"})
_CASTS: Final = {".s64": False, ".u64": True}


class Constants(Tokens):
    """Reads literals and constant expressions.

    The rules are those of C with 64-bit integers only: a literal is signed unless it exceeds the
    signed range or ends in `U`, and both operands of an operator become unsigned if one of them is.
    """

    def __init__(self, text: str, spans: Sequence[Span] | None = None) -> None:
        super().__init__(text, spans)
        self.decimal = False  # whether the instruction being read has a double among its operands
        self._depth = 0

    def constant(self, what: str = "a number") -> IntImm | FloatImm:
        """Read a literal or an expression, and evaluate it; `what` names it in the `ParseError`.

        The integer result of an operator is returned as a signed 64-bit integer.
        """
        word, start = self.peek(), self.at
        if word.isdecimal() and self.words[start + 1] in ENDS:
            self.at += 1
            return IntImm(self.integer(word, start))
        literal = self._float_literal()
        if literal is not None:
            return literal
        value, _ = self._expression(what, 0)
        if isinstance(value, float):
            self.decimal = True
            return FloatImm(double_bits(value), 64)
        single = self.at == start + 1  # a lone literal keeps its value, so that it prints unchanged
        return IntImm(value if single else int(_wrap(value, unsigned=False).value))

    def whole(self, what: str) -> int:
        """Read an integer literal or expression; `what` names it in the `ParseError`."""
        token = self.at
        value = self.constant(what)
        if not isinstance(value, IntImm):
            self.fail(f"wanted {what}, got a floating-point number", token)
        return value.value

    def summand(self, what: str) -> int | None:
        """Read and evaluate an expression up to the next `+` or `-` outside brackets; None if it is a
        float.
        """
        value, unsigned = self._expression(what, _BINDING["+"])
        return None if isinstance(value, float) else int(_wrap(value, unsigned).value)

    def starts_constant(self, word: str) -> bool:
        """Whether an operand that begins with this token is a literal or an expression."""
        if word[:1].isdigit() or word in _BEGINNINGS:
            return True
        return word[:1] == "." and word[1:2].isdigit()

    def _float_literal(self) -> FloatImm | None:
        """Read a hexadecimal float with an optional minus sign; None if something else is next."""
        self.peek()
        at = self.at + (self.words[self.at] == "-")
        width = self.float_bits(self.words[at])
        if not width or (width == 64 and self.words[at + 1] in _BINDING):
            return None
        bits = int(self.words[at][2:], 16) ^ (at - self.at) << (width - 1)
        self.decimal = self.decimal or width == 64
        self.at = at + 1
        return FloatImm(bits, width)

    # ---------------------------------------------------------------------------------- expressions

    def _expression(self, what: str, least: int) -> _Value:
        """Read an expression whose operators have a precedence above `least`, and evaluate it."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self._depth = 0
            self.fail(f"an expression may be nested {_DEEPEST} deep at most")
        left = self._unary(what)
        while True:
            sign = self.peek()
            token = self.at
            binding = _BINDING.get(sign, 0)
            if binding > least:
                self.at += 1
                left = self._binary(sign, left, self._expression("a number", binding), token)
            elif sign == "?" and not least:
                self.at += 1
                left = self._choice(left, token)
            else:
                self._depth -= 1
                return left

    def _choice(self, condition: _Value, token: int) -> _Value:
        one = self._expression("a number", 0)
        self.want(":")
        other = self._expression("a number", 0)
        if isinstance(condition.value, float):
            self.fail("the condition must be an integer", token)
        if isinstance(one.value, float) != isinstance(other.value, float):
            self.fail("both choices must be integers, or both floating-point numbers", token)
        chosen = one if condition.value else other
        if isinstance(chosen.value, float):
            return chosen
        return _wrap(chosen.value, one.unsigned or other.unsigned)

    def _unary(self, what: str) -> _Value:
        word = self.peek()
        token = self.at
        if word in ("-", "+", "!", "~"):
            self.at += 1
            return self._negated(word, self._operand_of_sign(), token)
        if word == "(":
            self.at += 1
            if self.peek() in _CASTS and self.words[self.at + 1] == ")":
                unsigned = _CASTS[self.words[self.at]]
                self.at += 2
                return _wrap(self._integer_of(self._operand_of_sign(), token), unsigned)
            inside = self._expression("a number", 0)
            self.want(")")
            return inside
        return self._atom(word, what)

    def _operand_of_sign(self) -> _Value:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._depth = 0
            self.fail(f"an expression may be nested {_DEEPEST} deep at most")
        value = self._unary("a number")
        self._depth -= 1
        return value

    def _atom(self, word: str, what: str) -> _Value:
        if word == "WARP_SZ":
            self.at += 1
            return _Value(_WARP_SIZE)
        if DECIMAL_FLOAT.fullmatch(word):
            self.at += 1
            return _Value(float(word))
        if not word[:1].isdigit():
            self.fail(f"wanted {what}, got {self.shown(word)}")
        width = self.float_bits(word)
        if width == 32:
            self.fail("a float in hexadecimal may not be part of an expression")
        self.at += 1
        if width:
            return _Value(struct.unpack("<d", int(word[2:], 16).to_bytes(8, "little"))[0])
        value = self.integer(word, self.at - 1)
        return _Value(value, word[-1] == "U" or value >> 63 != 0)

    def _integer_of(self, operand: _Value, token: int) -> int:
        if isinstance(operand.value, float):
            self.fail("this operator takes integers only", token)
        return operand.value

    def _negated(self, sign: str, operand: _Value, token: int) -> _Value:
        value, unsigned = operand
        if sign == "+":
            return operand
        if sign == "-":
            return _Value(-value) if isinstance(value, float) else _wrap(-value, unsigned)
        whole = self._integer_of(operand, token)
        return _wrap(~whole, unsigned=True) if sign == "~" else _Value(int(not whole))

    def _binary(self, sign: str, left: _Value, right: _Value, token: int) -> _Value:
        if isinstance(left.value, float) and isinstance(right.value, float):
            return self._doubles(sign, left.value, right.value, token)
        a, b = self._integer_of(left, token), self._integer_of(right, token)
        unsigned = left.unsigned or right.unsigned
        if sign in ("/", "%") and not b:
            self.fail("division by zero", token)
        if sign == "%":
            return _wrap((a & _MASK) % (b & _MASK), unsigned=False)
        if sign in ("<<", ">>"):
            bits = min(b & _MASK, 64)
            return _wrap(a << bits if sign == "<<" else a >> bits, left.unsigned)
        if sign in ("&&", "||"):
            return _Value(int((a and b) != 0) if sign == "&&" else int((a or b) != 0))
        if unsigned:
            a, b = a & _MASK, b & _MASK
        if sign in _COMPARISONS:
            return _Value(int(_COMPARISONS[sign][1](a, b)))
        return _wrap((_ARITHMETIC.get(sign) or _BITWISE[sign])[1](a, b), unsigned)

    def _doubles(self, sign: str, a: float, b: float, token: int) -> _Value:
        if sign in _COMPARISONS:
            return _Value(int(_COMPARISONS[sign][1](a, b)))
        if sign not in _ARITHMETIC:
            self.fail("this operator takes integers only", token)
        if sign == "/" and not b:
            self.fail("division by zero", token)
        return _Value(float(_ARITHMETIC[sign][1](a, b)))


def double_bits(value: float) -> int:
    """The 64 bits of a double as an integer."""
    return int.from_bytes(struct.pack("<d", value), "little")
