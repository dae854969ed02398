"""Text that a kernel prints, and assertions: calls of `vprintf` and `__assertfail` of the CUDA driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, TypeGuard

from ptxgen import ir
from ptxgen.dsl.control import Control
from ptxgen.dsl.grid import Extents
from ptxgen.dsl.values import Pointer, Scalar, Value
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import Target
from ptxgen.types import ScalarType, bf16, f16, f32, f64, s32, s64, u32, u64

# The functions are part of the driver (CUDA C++ Programming Guide, "Formatted Output", "Assertion").
_PRINT: Final = ir.Function(
    "vprintf",
    (ir.Param("printed", "b32"),),
    tuple(ir.Param(n, "b64") for n in ("format", "values")),
    linkage="extern",
)
_FAIL: Final = ir.Function(
    "__assertfail",
    (),
    tuple(
        ir.Param(name, type)
        for name, type in (
            ("message", "b64"),
            ("file", "b64"),
            ("line", "b32"),
            ("function", "b64"),
            ("char_bytes", "b64"),
        )
    ),
    linkage="extern",
)
_BUFFER: Final = "$values"  # the local memory that holds the values of a text to print
_CONVERSION: Final = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?(ll|l)?([A-Za-z]))")
# The types that a conversion takes; varargs of C are 32 bits, 64 bits, or doubles.
_LONG: Final = {"d": s64, "i": s64, "u": u64, "x": u64, "X": u64, "o": u64}
_SHORT: Final = {"d": s32, "i": s32, "u": u32, "x": u32, "X": u32, "o": u32, "c": u32, "p": u64}
_REAL: Final = "eEfFgGaA"
_WIDENED: Final = (f32, f16, bf16)  # to f64, as C widens a float


class Debugging(Control):
    """`k.printf` and `k.device_assert`; `asserts` says whether assertions are compiled in."""

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target, block_shape)
        self.asserts = False
        self._functions: dict[str, ir.Function] = {}
        self._texts: dict[bytes, ir.Variable] = {}
        self._slots: dict[str, ir.Variable] = {}  # the arguments of calls, and the buffer of values

    def printf(self, format: str, *values: Scalar) -> None:
        """Print the values in each thread that arrives here, as `printf` of C does.

        `format` has a conversion for each value: `%d`, `%i`: s32; `%u`, `%x`, `%X`, `%o`: u32; with `l`
        or `ll`, as in `%ld`: s64 and u64; `%f`, `%e`, `%g`, `%a`: f64, f32, f16 or bf16; `%c`: u32;
        `%p`: u64. A number of Python has the type of its conversion. On a GPU the text appears when
        the host waits for the kernel, in the order of arrival; the interpreter prints it at the end.

        Raises `ConfigError` for an invalid format, and `TypeMismatchError` for values that do not fit it.
        """
        self.refuse_predicated("printf")
        wanted = _conversions(format)
        if len(wanted) != len(values):
            raise TypeMismatchError(
                f"printf: {format!r} converts {len(wanted)} values, got {len(values)}; give one for each %"
            )
        converted = [self._converted(*pair) for pair in zip(wanted, values, strict=True)]
        self._declare_function(_PRINT)
        buffer = Value(self, self.emit("mov", (ir.Symbol(_BUFFER),), {"type": u64}).reg, u64)
        end = 0
        for value in converted:
            size = value.type.nbytes
            offset = -(-end // size) * size
            self.emit("st", (Pointer(buffer, "local", value.type, offset), value), {"space": "local"})
            end = offset + size
        before = self._slots.get(_BUFFER)
        nbytes = max(end, 8, before.nbytes if before else 0)
        self._slots[_BUFFER] = ir.Variable("local", _BUFFER, nbytes, 8)
        self._call(_PRINT, [self._text(format), self.cvta(buffer, space="local")])

    def device_assert(self, condition: Value, message: str = "") -> None:
        """Stop the kernel with an error in a thread where the condition does not hold; nothing is
        emitted unless the kernel is built with `asserts=True`.

        The error has the message, the file's name, the line and the function of this call. Raises
        `TypeMismatchError` unless `condition` is a predicate, and `ConfigError` unless `message` is
        a text.
        """
        self.refuse_predicated("device_assert")
        self.require_predicate("device_assert", condition)
        if not _is_text(message):
            raise ConfigError(f"device_assert: the message must be a text, got {shown(message)}")
        if not self.asserts:
            return
        origin, fine = self.origin(), self._label("fine")
        self._branch(fine, condition)
        self._declare_function(_FAIL)
        code = origin.code
        file = PurePath(code.co_filename).name if code else ""
        function = code.co_name if code else self.name
        arguments: list[str | int] = [message or "device_assert", file, origin.line, function, 1]
        self._call(_FAIL, [self._text(a) if isinstance(a, str) else a for a in arguments])
        self._statements.append(fine)

    def _converted(self, conversion: tuple[str, ScalarType], value: Scalar) -> Value:
        """A value in the type in which `vprintf` reads it."""
        text, type = conversion
        if not isinstance(value, Value):
            return self.emit("mov", (value,), {"type": type})
        if type is f64 and value.type in _WIDENED:
            wide = value if value.type is f32 else self.cvt(value, dtype=f32)
            return self.cvt(wide, dtype=f64)
        if value.type is not type:
            takes = "f64, f32, f16 or bf16" if type is f64 else type.name
            raise TypeMismatchError(
                f"printf: {text} takes {takes}, got {shown(value)}; use another conversion, or convert the "
                "value"
            )
        return value

    def _declare_function(self, function: ir.Function) -> None:
        """Declare a function of the driver, and `.param` memory for its arguments and results."""
        self._functions[function.name] = function
        for param in (*function.results, *function.params):
            nbytes = int(param.type[1:]) // 8
            name = _slot(function, param)
            self._slots[name] = ir.Variable("param", name, nbytes, nbytes, scalar=param.type)

    def _call(self, function: ir.Function, arguments: Sequence[Scalar]) -> None:
        for param, value in zip(function.params, arguments, strict=True):
            to = Pointer(ir.Symbol(_slot(function, param)), "param", u64)
            type = u64 if param.type == "b64" else u32
            self.emit("st", (to, value), {"space": "param", "type": type})
        results, operands = (
            ir.Arguments(tuple(ir.Symbol(_slot(function, p)) for p in params))
            for params in (function.results, function.params)
        )
        self.append("call", (*([results] if results.items else []), ir.Symbol(function.name), operands))

    def _text(self, text: str) -> Value:
        """The generic address, u64, of a zero-terminated text in global memory."""
        data = text.encode() + b"\0"
        known = self._texts.get(data)
        if known is None:
            known = ir.Variable("global", f"$text_{len(self._texts)}", len(data), 1, data.rstrip(b"\0"))
            self._texts[data] = known
        at = self.emit("mov", (ir.Symbol(known.name),), {"type": u64})
        address: Value = self.cvta(at, space="global")
        return address


def _slot(function: ir.Function, param: ir.Param) -> str:
    return f"${function.name.strip('_')}_{param.name}"


def _is_text(text: object) -> TypeGuard[str]:
    """Whether `text` is a text that a kernel can hold: without zeros, which end it, and in UTF-8."""
    return isinstance(text, str) and "\0" not in text and not any(map(_is_surrogate, text))


def _is_surrogate(character: str) -> bool:
    """Whether a character is half of a surrogate pair, which UTF-8 does not encode."""
    return "\ud800" <= character <= "\udfff"


def _conversions(format: object) -> list[tuple[str, ScalarType]]:
    """The conversions of a format, and the type that each takes."""
    if not _is_text(format):
        raise ConfigError(f"printf: the format must be a text, got {shown(format)}")
    conversions: list[tuple[str, ScalarType]] = []
    if "%" in _CONVERSION.sub("", format):
        raise ConfigError(f"printf: {format!r} has a % that begins no conversion; write %% for the character")
    for match in _CONVERSION.finditer(format):
        size, letter = match.groups()
        if letter is None:  # %%
            continue
        types = _LONG if size else _SHORT
        type = f64 if letter in _REAL and not size else types.get(letter)
        if type is None:
            raise ConfigError(
                f"printf: {match[0]} is no conversion of numbers; use %d, %u, %x, %o, %ld, %lu, %f, %e, "
                "%g, %a, %c or %p"
            )
        conversions.append((match[0], type))
    return conversions
