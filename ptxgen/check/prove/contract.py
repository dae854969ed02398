"""A contract for the proof of global accesses: the arrays that a kernel may access, with extents
and strides, and the bounds of a launch's parameters.

Sizes and strides are expressions of the kernel's parameters and of other names in `bounds`, with `+
- * //` and brackets, such as `4 * K_row_stride` or `(seq_q + 63) // 64`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ptxgen.check.prove.polynomials import Atoms, Poly
from ptxgen.errors import LaunchError, did_you_mean

Size = int | str

# PTX ISA, section "Special Registers: %nctaid".
MOST_BLOCKS: Final = {"x": (1 << 31) - 1, "y": 65535, "z": 65535}


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of an array: indices from 0 to `extent` - 1, `stride` bytes apart."""

    extent: Size
    stride: Size


@dataclass(frozen=True, slots=True)
class GlobalArray:
    """An array that a pointer parameter points to: elements of `nbytes` contiguous bytes, a dense row, say,
    which may be as long as an expression says. The address of an element is the pointer plus, for
    each axis, index times stride.

    The strides may have any value, also a negative one or zero; only the bytes of elements may be
    accessed. A stride is a positive number or the product of a number and names. The pointer and
    all strides are multiples of `align` bytes.
    """

    pointer: str
    axes: tuple[Axis, ...]
    nbytes: Size
    align: int = 1


@dataclass(frozen=True, slots=True)
class GlobalContract:
    """The arrays that a kernel may access, and the conditions that each launch meets.

    `strides` are 64-bit parameters of any value. `bounds` gives the lowest and the highest value of
    each other integer parameter that sizes are made of, and of names that are not parameters.
    `equal` expresses some of these names by other names, for example a product that has bounds of
    its own. `grid` is the number of blocks along x, y and z.
    """

    arrays: tuple[GlobalArray, ...]
    strides: tuple[str, ...]
    bounds: Mapping[str, tuple[int, int]]
    grid: tuple[Size, Size, Size]
    equal: Mapping[str, Size] = field(default_factory=dict)

    def value(self, size: Size, names: Mapping[str, Any], divide: Callable[[Any, Any], Any]) -> Any:
        """The value of an expression, with `names` for its names and `divide` for `//`. Raises
        `LaunchError` for an expression that cannot be read.
        """
        try:
            return _value(ast.parse(str(size), mode="eval").body, names, divide)
        except (SyntaxError, TypeError, KeyError) as error:
            missing = error.args[0] if isinstance(error, KeyError) else ""
            near = did_you_mean(missing, list(names))
            there = ", ".join([*self.bounds, *self.strides]) or "none"
            hint = f": no size {missing!r}{near}; the sizes are {there}" if missing else ""
            raise LaunchError(
                f"prove: {size!r} must be made of integers and sizes by +, -, * and //{hint}"
            ) from error


_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _value(node: ast.expr, names: Mapping[str, Any], divide: Callable[[Any, Any], Any]) -> Any:
    match node:
        case ast.Constant(value=int()):
            return node.value
        case ast.Name(id):
            return names[id]
        case ast.BinOp(left, op, right):
            how = divide if isinstance(op, ast.FloorDiv) else _OPERATORS.get(type(op))
            if how is not None:
                return how(_value(left, names, divide), _value(right, names, divide))
    raise TypeError(ast.dump(node))


class Promised:
    """A contract in the form of polynomials. `known` has the polynomials of parameters and special registers;
    each polynomial of `facts` is at least 0 in every launch.
    """

    def __init__(self, contract: GlobalContract, atoms: Atoms) -> None:
        self._contract = contract
        self._atoms = atoms
        self._sizes: dict[Size, Poly] = {}
        half = 1 << 63
        self.known: dict[str, Poly] = {
            name: atoms.named("size", name, low, high) for name, (low, high) in contract.bounds.items()
        }
        for name in contract.strides:
            self.known[name] = atoms.named("stride", name, -half, half - 1)
        self.facts: tuple[Poly, ...] = ()
        for name, size in contract.equal.items():
            value = self.known[name] = self.size(size)
            if name in contract.bounds:
                low, high = contract.bounds[name]
                self.facts += (value - low, high - value, *(high - of for of in self._factors(value)))
        for array in contract.arrays:
            self.known[array.pointer] = atoms.named("pointer", array.pointer, 0, (1 << 64) - 1)
        for axis, size in zip("xyz", contract.grid, strict=True):
            number = self.known[f"%nctaid.{axis}"] = self.size(size)
            if number.constant == 1:
                self.known[f"%ctaid.{axis}"] = Poly.of(0)
                continue
            high = MOST_BLOCKS[axis] - 1
            index = atoms.named("index", f"%ctaid.{axis}", 0, high)
            self.known[f"%ctaid.{axis}"] = index
            self.facts += (number - 1 - index,)
            # A grid such as `row blocks * heads` has at least one row block and one head, so a
            # single factor is no more than the limit of blocks either.
            self.facts += tuple(high + 1 - of for of in (number, *self._factors(number)))
        self._sizes.clear()  # sizes in it may have been computed before others were known

    def _factors(self, number: Poly) -> Iterator[Poly]:
        """The product of the sizes in `number`, without its quotients, and that product without any
        one of the sizes; nothing unless `number` is one product of atoms that are all at least 1.
        """
        if len(number.terms) != 1:
            return
        ((monomial, factor),) = number.terms.items()
        if any(self._atoms[n].low < 1 for n in monomial):
            return
        sizes = tuple(n for n in monomial if self._atoms[n].kind != "div")
        for left in (sizes, *(sizes[:n] + sizes[n + 1 :] for n in range(len(sizes)))):
            if left and left != monomial:
                yield Poly({left: factor})

    def size(self, size: Size) -> Poly:
        """An expression as a polynomial; each dividend in it must be at least 0."""
        known = self._sizes.get(size)
        if known is None:
            value = self._contract.value(size, self.known, self._div)
            known = self._sizes[size] = value if isinstance(value, Poly) else Poly.of(value)
        return known

    def _div(self, a: Poly | int, b: Poly | int) -> Poly:
        above, below = (p if isinstance(p, Poly) else Poly.of(p) for p in (a, b))
        return self._atoms.function_of("div", above, below)
