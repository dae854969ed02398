"""Reads declarations of variables and parameters, and initial values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from ptxgen.ir import FloatImm, IntImm, Param, Pointer, Variable
from ptxgen.parse.operands import Operands, narrow
from ptxgen.records import dataclass
from ptxgen.types import ScalarType

LANES: Final = {".v2": 2, ".v4": 4, ".v8": 8}
OPAQUE: Final = (".texref", ".surfref", ".samplerref")
NOT_OPAQUE: Final = (
    "references to textures are not modelled; take a texture's or a surface's handle as a .u64 "
    "parameter, and pass a ptxgen.texture.Texture or Surface"
)
_POINTED_TO: Final = (".const", ".global", ".local", ".shared")
_INITIALISED: Final = ("global", "const")
_MOST_BYTES: Final = 2**40  # bytes of a variable; no GPU has more memory
_MOST_DATA: Final = 2**28  # bytes of an initial value
_BYTE: Final = 0xFF


class _Element(NamedTuple):
    """The part of a variable's declaration before the names: type, vector lanes, and alignment in bytes.

    `align` is 0 where the declaration names no alignment.
    """

    type: ScalarType
    lanes: int
    align: int

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.type.nbytes * self.lanes


@dataclass(slots=True)
class _Value:
    """The part of an initial value that has been read: its bytes, and the addresses in them."""

    type: ScalarType
    data: bytearray = field(default_factory=bytearray)
    pointers: list[Pointer] = field(default_factory=list)


class Variables(Operands):
    """Reads declarations of variables and lists of parameters."""

    def declared(self, space: str, linkage: str, named: Callable[[str, int], str]) -> Iterator[Variable]:
        """Read the variables of a declaration, whose state space has been read.

        `named` maps the name in the text and its token index to the name in the IR.
        """
        element = self._element()
        while True:
            self.peek()
            token = self.at
            name = named(self.name("the variable's name"), token)
            sizes = self._sizes()
            value = _Value(element.type)
            if self.skip("="):
                self._initial(space, element, sizes, value)
            nbytes = self._nbytes(element, sizes, value, linkage, token)
            scalar = space == "param" and element.lanes == 1 and not sizes
            yield Variable(
                space,
                name,
                nbytes,
                element.align or element.nbytes,
                bytes(value.data).rstrip(b"\0"),
                tuple(merged(value.pointers)),
                linkage,
                element.type.name if scalar else "",
            )
            if not self.skip(","):
                break
        self.want(";")

    def _element(self) -> _Element:
        align, lanes = 0, 1
        while True:
            word = self.peek()
            if word == ".attribute":
                self._attribute()
            elif word == ".align":
                self.at += 1
                align = self.count("an alignment")
            else:
                break
        if word in LANES:
            self.at += 1
            lanes = LANES[word]
            word = self.peek()
        token = self.at
        if word in OPAQUE:
            self.fail(f"{word} is not read: {NOT_OPAQUE}")
        type = self.type()
        if not type.nbytes:
            self.fail("only registers can be of type .pred", token)
        return _Element(type, lanes, align)

    def _attribute(self) -> None:
        """Read and skip an attribute such as `.attribute(.managed)`, which has no effect here."""
        self.want(".attribute")
        self.want("(")
        while not self.skip(")"):
            if not self.next():
                self.fail("wanted ')' after .attribute, got the end of the text")

    def _sizes(self) -> list[int]:
        """Read the extents of an array, `[2][3]` for example; the extent of `[]` is 0."""
        sizes: list[int] = []
        while self.skip("["):
            self.peek()
            token = self.at
            if self.skip("]"):
                if sizes:
                    self.fail("only the first size of an array may be left out", token)
                sizes.append(0)
                continue
            sizes.append(self.whole("a number of elements"))
            if sizes[-1] <= 0:
                self.fail("an array has 1 or more elements", token)
            self.want("]")
        return sizes

    def _nbytes(self, element: _Element, sizes: list[int], value: _Value, linkage: str, token: int) -> int:
        nbytes = element.nbytes
        for size in sizes[1:]:
            nbytes *= size
        if sizes and not sizes[0] and nbytes:
            if not value.data and linkage != "extern":
                self.fail("an array without a size must be .extern or have an initial value", token)
            nbytes = -(-len(value.data) // nbytes) * nbytes
        elif sizes:
            nbytes *= sizes[0]
        if nbytes > _MOST_BYTES:
            self.fail(f"a variable of {nbytes} bytes is too large", token)
        return nbytes

    # ---------------------------------------------------------------------------------- parameters

    def params(self) -> tuple[Param, ...]:
        """Read a list of parameters or results, parentheses included."""
        params: list[Param] = []
        self.want("(")
        if self.skip(")"):
            return ()
        while True:
            params.append(self._param())
            if self.skip(")"):
                return tuple(params)
            self.want(",")

    def _param(self) -> Param:
        register = self.skip(".reg")
        if not register:
            self.want(".param")
        align = self.count("an alignment") if self.skip(".align") else 0
        word = self.peek()
        if word in OPAQUE:
            self.fail(f"{word} is not read: {NOT_OPAQUE}")
        type = self.type()
        self._promise()
        self.peek()
        token = self.at
        name = self.name("the parameter's name")
        sizes = self._sizes()
        if 0 in sizes:
            self.fail("a parameter's array must have a size", token)
        count = 1 if sizes else 0
        for size in sizes:
            count *= size
        if count * type.nbytes > _MOST_BYTES:
            self.fail(f"a parameter of {count * type.nbytes} bytes is too large", token)
        return Param(name, type.name, count, align, register)

    def _promise(self) -> None:
        """Read and skip the attributes of a pointer parameter, such as `.ptr .global .align 16`."""
        if not self.skip(".ptr"):
            return
        if self.peek() in _POINTED_TO:
            self.at += 1
        if self.skip(".align"):
            align = self.count("an alignment")
            if align & (align - 1):
                self.fail(f"an alignment must be a power of two, got {align}", self.at - 1)

    def once(self, word: str, seen: list[str]) -> None:
        """Read the directive `word` and add it to `seen`; raises `ParseError` if `seen` has it."""
        if word in seen:
            self.fail(f"{word} is said twice; remove one")
        seen.append(word)
        self.at += 1

    # ---------------------------------------------------------------------------------- values

    def _initial(self, space: str, element: _Element, sizes: list[int], value: _Value) -> None:
        if space not in _INITIALISED:
            self.fail(f"a variable in {space} memory has no initial value", self.at - 1)
        shape = [*sizes, *([element.lanes] if element.lanes > 1 else [])]
        if not shape:
            self._scalar(value, 0)
            return
        strides = [element.type.nbytes]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        self._list(value, shape, strides, 0)

    def _list(self, value: _Value, shape: Sequence[int], strides: Sequence[int], at: int) -> None:
        """Read a list in braces, of elements or of inner lists, into `value` from byte `at` on.

        `shape` are the extents in elements, `strides` the bytes from one entry to the next.
        """
        self.want("{")
        if self.skip("}") or (len(shape) == 1 and self._numbers_of(value, shape[0], at)):
            return
        number = 0
        while True:
            self.peek()
            if shape[0] and number == shape[0]:
                self.fail(f"wanted {shape[0]} or fewer initial values here")
            if at + number * strides[0] > _MOST_DATA:
                self.fail("this initial value is too large")
            if len(shape) > 1:
                self._list(value, shape[1:], strides[1:], at + number * strides[0])
            else:
                self._scalar(value, at + number * strides[0])
            number += 1
            if self.skip("}"):
                return
            self.want(",")

    def _numbers_of(self, value: _Value, most: int, at: int) -> bool:
        """Read the rest of a list if it has decimal integers alone, `most` of them (0: any number), as the
        tables of compilers do; the result says whether it has.
        """
        try:
            end = self.words.index("}", self.at)
        except ValueError:  # the list has no end; the caller's error is clearer
            return False
        type = value.type
        listed = self.words[self.at : end]
        numbers = listed[::2]
        if (
            type.is_float
            or set(listed[1::2]) - {","}
            or len(listed) % 2 == 0
            or 0 < most < len(numbers)
            or at + len(numbers) * type.nbytes > _MOST_DATA
            or not all(n.isdecimal() and len(n) < 20 and (n[0] != "0" or n == "0") for n in numbers)
        ):
            return False
        mask = (1 << type.bits) - 1
        value.data.extend(bytes(at - len(value.data)))
        value.data.extend(b"".join([(int(n) & mask).to_bytes(type.nbytes, "little") for n in numbers]))
        self.at = end + 1
        return True

    def _scalar(self, value: _Value, at: int) -> None:
        """Read the value of one element into `value` at byte `at`."""
        type = value.type
        word = self.peek()
        value.data.extend(bytes(at + type.nbytes - len(value.data)))
        if self.is_name(word) and word != "WARP_SZ":
            value.pointers.append(self._pointer(at, type.nbytes, 0))
            return
        if word[:1].isdigit() and self.words[self.at + 1] == "(":
            value.pointers.append(self._masked(word, at))
            return
        token = self.at
        constant = self.constant("an initial value")
        if isinstance(constant, IntImm):
            if type.is_float:
                self.fail(f"wanted a floating-point number for a .{type}, got an integer", token)
            bits = constant.value
        else:
            bits = self._float(constant, type, token)
        data = (bits & ((1 << type.bits) - 1)).to_bytes(type.nbytes, "little")
        value.data[at : at + type.nbytes] = data

    def _float(self, number: FloatImm, type: ScalarType, token: int) -> int:
        if type.kind not in "fb" or type.bits not in (32, 64):
            self.fail(f"wanted an integer for a .{type}, got a floating-point number", token)
        if type.bits == 32:
            return narrow(number).bits
        if number.width == 64:
            return number.bits
        (single,) = struct.unpack("<f", number.bits.to_bytes(4, "little"))
        return int.from_bytes(struct.pack("<d", single), "little")

    def _pointer(self, at: int, nbytes: int, shift: int) -> Pointer:
        """Read an address such as `symbol+4` or `generic(symbol)+4`."""
        symbol = self.name("a variable or a function")
        generic = symbol == "generic" and self.skip("(")
        if generic:
            symbol = self.name("a variable")
            self.want(")")
        return Pointer(at, symbol, self.offset(), generic, nbytes, shift)

    def _masked(self, word: str, at: int) -> Pointer:
        """Read one byte of an address, such as `0xFF00(symbol+4)`."""
        token = self.at
        self.at += 1
        mask = self.integer(word, token)
        shift = max(mask.bit_length() - 8, 0)
        if mask != _BYTE << shift or shift % 8:
            self.fail(f"a mask is 0xFF, 0xFF00 and so on, got {word}", token)
        self.want("(")
        pointer = self._pointer(at, 1, shift)
        self.want(")")
        return pointer


def merged(pointers: Sequence[Pointer]) -> Iterator[Pointer]:
    """The pointers with each eight consecutive bytes of one address merged into one pointer."""
    n = 0
    while n < len(pointers):
        first = pointers[n]
        whole = [
            Pointer(first.offset + i, first.symbol, first.addend, first.generic, 1, 8 * i) for i in range(8)
        ]
        if list(pointers[n : n + 8]) == whole:
            yield Pointer(first.offset, first.symbol, first.addend, first.generic)
            n += 8
        else:
            yield first
            n += 1
