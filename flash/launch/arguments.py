"""The arrays of a call, declared by name, dimensions and element types: checks of types, shapes, strides,
addresses, devices and shared memory, and their messages, follow from the declarations.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flash.operands.declared import Operand
from flash.operands.dtypes import BF16, E2M1, E8M0, OF_ARRAYS, U8, DType
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.overlap import may_overlap_itself, may_share_elements
from ptxgen.arrays.views import UNKNOWN_DEVICE, ArrayView

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
    > 0 it has `more` elements more than its one axis. `has_rows`: its last dimension is dense;
    `is_dense`: all of it is.
    """

    name: str
    axes: tuple[str, ...]
    dtypes: tuple[DType, ...]
    why: str = ""
    broadcasts: bool = False
    more: int = 0
    has_rows: bool = True
    is_dense: bool = False

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
        """Say what is wrong with the strides, if the last dimension, or the array, must be dense."""
        shape, strides = array.shape, array.strides
        if self.is_dense and array.size:
            steps = zip(shape, strides, dense_strides(shape), strict=True)
            if any(n > 1 and step != dense for n, step, dense in steps):
                yield (
                    f"{self.name} must be dense, as `attention` returns it, got strides {list(strides)} for "
                    f"shape {list(shape)}; {copy_of(self.name, array)}"
                )
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
    """Say what is wrong with the address of an array, whose elements have `nbytes` bytes."""
    if not array.size:
        return
    if not array.pointer:
        yield f"{name} must have memory, got a null pointer for shape {list(array.shape)}"
    if array.pointer % nbytes:
        yield (
            f"{name} must begin at a multiple of {nbytes} bytes, got address {array.pointer:#x}; "
            f"{copy_of(name, array)}"
        )


def written_problems(name: str, array: ArrayView, when: str = "") -> Iterator[str]:
    """Say why a call cannot write to an array; `when` says which calls write to it."""
    if array.read_only:
        of_torch = array.kind == "torch"
        why = "a tensor that requires gradients" if of_torch else "a read-only array"
        cure = f"{name}.detach()" if of_torch else "a writable one"
        yield f"{name} must be writable{when}, got {why}; pass {cure}"
    if may_overlap_itself(array.shape, array.strides):
        yield (
            f"{name} must have an element of its own for each index{when}, got strides {list(array.strides)} "
            f"for shape {list(array.shape)}; {copy_of(name, array)}"
        )


def sharing_problems(written: Iterable[str], views: Mapping[str, ArrayView], when: str = "") -> Iterator[str]:
    """Say which arrays share memory with those that are `written`, each pair once; `when` as in
    `written_problems`. Arrays of a type that no kernel takes are left out.
    """
    others = {name: array for name, array in views.items() if array.dtype in OF_ARRAYS}
    for name in written:
        array = others.pop(name, None)
        if array is None:
            continue
        cure = "pass" if when else f"leave {name}=None, or pass"
        yield from (
            f"{name} must not share memory with {other}{when}; {cure} an array of its own"
            for other, other_array in others.items()
            if may_share_elements(array, other_array)
        )


def out_problems(out: ArrayView | None, shape: tuple[int, ...]) -> Iterator[str]:
    """Say why a result of this shape cannot be written to `out`, if it is given."""
    if out is None:
        return
    if tuple(out.shape) != shape:
        yield f"out must have shape {list(shape)}, got {list(out.shape)}; leave out=None to have it made"
    yield from written_problems("out", out)


def device_problems(arrays: Mapping[str, ArrayView], to: str = "q") -> Iterator[str]:
    """Say that the arrays of a call are on several devices; `to` names, for the message, an array that is on
    the right one.
    """
    devices = {array.device for array in arrays.values() if array.device[1] != UNKNOWN_DEVICE}
    if len(devices) > 1 or len({array.device[0] for array in arrays.values()}) > 1:
        where = ", ".join(f"{name} on {array.device_name}" for name, array in arrays.items())
        yield f"all arrays must be on one device, got {where}; move them to that of {to}"


def together_problems(arguments: Container[str], *pairs: tuple[str, str]) -> Iterator[str]:
    """Say which arguments are given without the other one of a pair."""
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            if one in arguments and other not in arguments:
                yield f"{one} is given without {other}; give both, or neither"


def heads_problems(heads: int, kv_heads: int, of: str, shapes: str = "") -> Iterator[str]:
    """Say that heads of Q do not divide evenly among those of K; `of` says where these are."""
    if heads % kv_heads if kv_heads else heads:
        yield f"the heads of q must be a multiple of those of {of}, got {heads} and {kv_heads}{shapes}"


def conversion(name: str, array: ArrayView, to: DType) -> str:
    """For a message: the expression of the array's library that converts it to dtype `to`. Bytes are codes of
    scales that are powers of two.
    """
    if to is E2M1:
        return f"flash.quantize_nvfp4({name})"
    if to is E8M0:
        library = "torch" if array.kind == "torch" else "ml_dtypes"
        method = "view" if array.dtype == U8.array_name else "to" if library == "torch" else "astype"
        return f"{name}.{method}({library}.{to.array_name})"
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
