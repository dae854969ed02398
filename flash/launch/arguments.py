"""The arrays of a call, declared by name, dimensions and element types: checks of types, shapes and
addresses, and their messages, follow from the declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flash.operands.declared import Operand
from flash.operands.dtypes import BF16, DType
from ptxgen.arrays.views import ArrayView

_TORCH_METHODS: Final = {
    "f32": "float",
    "f16": "half",
    "bf16": "bfloat16",
    "i32": "int",
    "u8": "byte",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a call takes.

    `axes` are the names of its dimensions, which are sizes of the call; `dtypes` are the element
    types that it may have, and `why` the source of this requirement, as messages say it. If it
    `broadcasts`, the caller's array may have any shape that broadcasts to the axes. With `more`
    > 0 it has so many elements more than its one axis. `has_rows`: its last dimension is dense.
    """

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[DType, ...]
    why: str = ""
    broadcasts: bool = False
    more: int = 0
    has_rows: bool = True

    @classmethod
    def of(cls, operand: Operand) -> Argument:
        """The argument for an operand of a kernel, which the caller's array is broadcast to."""
        return cls(
            operand.name,
            (*operand.axes, operand.last) if operand.columns else operand.axes,
            (operand.dtype,),
            broadcasts=not (operand.more or operand.is_whole or operand.columns),
            more=operand.more,
            has_rows=operand.columns > 0,
        )

    def type_problems(self, array: ArrayView, or_else: str = "") -> Iterator[str]:
        """Say what is wrong with the element type; `or_else` is another cure than a conversion."""
        names = [dtype.array_name for dtype in self.dtypes]
        if array.dtype not in names:
            why = f", {self.why}" if self.why else ""
            yield (
                f"{self.name} must be {'one of ' if len(names) > 1 else ''}{', '.join(names)}{why}, "
                f"got {array.dtype}; convert with {conversion(self.name, array, self.dtypes[0])}{or_else}"
            )

    def row_problems(self, array: ArrayView) -> Iterator[str]:
        """Say what is wrong with the last dimension, if it must be dense."""
        shape, strides = array.shape, array.strides
        if self.has_rows and shape and shape[-1] > 1 and array.size and strides[-1] != 1:
            yield (
                f"{self.name} must be dense in its last dimension (stride 1), got strides "
                f"{list(strides)} for shape {list(shape)}; {copy_of(self.name, array)}"
            )

    def shape_problems(self, shape: tuple[int, ...], sizes: dict[str, int]) -> Iterator[str]:
        """Say what is wrong with the shape, by the `sizes` that are known; sizes that an array of
        the right shape adds are written to `sizes`.
        """
        lengths = [sizes[axis] + self.more if axis in sizes else None for axis in self.axes]
        if self.broadcasts:
            fits = len(shape) <= len(lengths) and all(
                length in (1, wanted)
                for length, wanted in zip(reversed(shape), reversed(lengths), strict=False)
            )
        else:
            fits = len(shape) == len(lengths) and all(
                wanted in (None, length) for length, wanted in zip(shape, lengths, strict=True)
            )
            if fits:
                sizes |= {axis: n - self.more for axis, n in zip(self.axes, shape, strict=True)}
        if not fits:
            yield self._message(shape, lengths)

    def _message(self, shape: tuple[int, ...], lengths: list[int | None]) -> str:
        names = [f"{axis} + {self.more}" if self.more else axis for axis in self.axes]
        known = [name if n is None else str(n) for name, n in zip(names, lengths, strict=True)]
        values = f" = [{', '.join(known)}]" if known != names else ""
        or_else = ", or of a shape that broadcasts to it" if self.broadcasts else ""
        return f"{self.name} must be [{', '.join(names)}]{values}{or_else}, got {list(shape)}"


def type_and_row_problems(arguments: Iterable[Argument], views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with element types, last dimensions and addresses of a call's arrays."""
    for argument in arguments:
        if argument.name in views:
            array = views[argument.name]
            yield from argument.type_problems(array)
            yield from argument.row_problems(array)
            yield from address_problems(argument.name, array, argument.dtypes[0].nbytes)


def problems_of_shapes(
    arguments: Iterable[Argument], views: Mapping[str, ArrayView], sizes: dict[str, int]
) -> Iterator[str]:
    """Say what is wrong with the shapes of a call's arrays, in the order of `arguments`: each adds
    the sizes that it has first to `sizes`.
    """
    for argument in arguments:
        if argument.name in views:
            yield from argument.shape_problems(tuple(views[argument.name].shape), sizes)


def address_problems(name: str, array: ArrayView, nbytes: int) -> Iterator[str]:
    """Say what is wrong with the address of an array with elements of `nbytes`."""
    if not array.size:
        return
    if not array.pointer:
        yield f"{name} must have memory, got a null pointer for shape {list(array.shape)}"
    if array.pointer % nbytes:
        yield (
            f"{name} must begin at a multiple of {nbytes} bytes, got address {array.pointer:#x}; "
            f"{copy_of(name, array)}"
        )


def heads_problems(heads: int, kv_heads: int, of: str, shapes: str = "") -> Iterator[str]:
    """Say that heads of Q do not divide evenly among those of K; `of` says where these are."""
    if heads % kv_heads if kv_heads else heads:
        yield f"the heads of q must be a multiple of those of {of}, got {heads} and {kv_heads}{shapes}"


def conversion(name: str, array: ArrayView, to: DType) -> str:
    """For a message: the expression of the array's library that converts it to dtype `to`."""
    if array.kind == "torch":
        return f"{name}.{_TORCH_METHODS.get(to.name) or f'to(torch.{to.array_name})'}()".replace(")()", ")")
    # numpy knows the names of these types only once ml_dtypes is imported.
    kind = f"ml_dtypes.{to.array_name}" if to.is_narrow or to is BF16 else repr(to.array_name)
    return f"{name}.astype({kind})"


def copy_of(name: str, array: ArrayView) -> str:
    """For a message: how to copy an array to dense memory with its own library."""
    if array.kind == "torch":
        return f"copy it with {name}.clone(memory_format=torch.contiguous_format)"
    return f"copy it with {name}.copy()"
