"""Conversions of the values of a function of scores, and constants like a value, by the names of
Python, PyTorch and numpy.
"""

from __future__ import annotations

from typing import Any, Final

from flash.mods import arithmetic
from flash.mods.named import first_traced, named
from flash.mods.trace import Constant
from flash.mods.values import FUNCTIONS, Traced, lifted
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import ScalarType, f32, pred, s32

_FLOATS: Final = frozenset(("float16", "bfloat16", "float32", "float64", "float", "half", "double"))
_DEVICES: Final = frozenset(("cpu", "cuda", "meta", "mps", "xpu"))
_INTEGERS: Final = frozenset(("int32", "int64", "int", "long"))


@named("float", "double", "half", "bfloat16")
def as_float(a: Any) -> Traced:
    """An integer as f32, rounded to nearest, or a condition as 0.0 or 1.0; a number unchanged."""
    return arithmetic.as_float(first_traced("as_float", a))


@named("int", "long")
def as_integer(a: Any) -> Traced:
    """A number as s32, rounded towards zero, or a condition as 0 or 1; an integer unchanged."""
    return arithmetic.as_integer(first_traced("as_integer", a))


@named("bool")
def as_condition(a: Any) -> Traced:
    """Whether a number is not 0; a condition unchanged."""
    value = first_traced("as_condition", a)
    return value if value.kind is pred else value != 0


def _kind(dtype: Any) -> ScalarType | None:
    """The type of values for a type of Python, PyTorch or numpy; None if `dtype` is no type."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    name = name.removeprefix("torch.").removesuffix("Tensor").lower()
    if name == "bool":
        return pred
    return f32 if name in _FLOATS else s32 if name in _INTEGERS else None


def _required(dtype: Any) -> ScalarType:
    kind = _kind(dtype)
    if kind is None:
        raise TypeMismatchError(
            f"a value of a traced function is a float, int32 or int64, or bool, not {shown(dtype)}"
        )
    return kind


def _converted(a: Traced, kind: ScalarType) -> Traced:
    return {f32: as_float, s32: as_integer, pred: as_condition}[kind](a)


@named("type", "astype")
def to(a: Traced, *of: Any, dtype: Any = None) -> Traced:
    """The value `a` as another type: all float types are f32, all integer types int32. Devices are
    ignored.
    """
    kinds = [dtype] if dtype is not None else []
    kinds += [x for x in of if not isinstance(x, bool)]
    for x in kinds:
        if isinstance(x, Traced):
            return _converted(a, x.kind)
        if not isinstance(x, type) and hasattr(x, "dtype"):
            return _converted(a, _required(x.dtype))
        if type(x).__name__ != "device" and str(x).split(":")[0] not in _DEVICES:
            return _converted(a, _required(x))
    return a


@named()
def type_as(a: Traced, other: Any) -> Traced:
    """The value `a` as the type of `other`."""
    return to(a, other)


@named("clone", "contiguous")
def positive(a: Traced) -> Traced:
    """The value `a` itself."""
    return a


@named("full_like")
def new_full(a: Traced, *args: Any, fill_value: Any = None, size: Any = (), dtype: Any = None) -> Traced:
    """A constant of the type of the value `a`, or of the type `dtype`. Raises `TypeMismatchError` for a size
    with elements along an axis.
    """
    sizes = [x for x in (*args[:-1], size) if isinstance(x, (tuple, list)) and tuple(x) not in ((), (1,))]
    number = args[-1] if args else fill_value
    if sizes:
        raise TypeMismatchError(f"a value of a traced function has no axes: size must be (), got {sizes[0]}")
    value = lifted(a.recorder, number, a.kind)
    return _converted(value, a.kind if dtype is None else _required(dtype))


@named()
def new_tensor(a: Traced, data: Any, dtype: Any = None) -> Traced:
    """The constant `data`, of the type of the value `a` or of the type `dtype`."""
    return new_full(a, data, dtype=dtype)


def _register_constant(name: str, number: Constant) -> None:
    """Register `Tensor.new_<name>` and `<name>_like`, which make a number that has the type of a value."""

    def constant(a: Traced, size: Any = (), dtype: Any = None) -> Traced:
        return new_full(a, size, number, dtype=dtype)

    FUNCTIONS.update({f"new_{name}": constant, f"{name}_like": constant})


_register_constant("zeros", 0)
_register_constant("ones", 1)
