"""The types of loop counters, and checks of a loop's bounds."""

from __future__ import annotations

from typing import Final

from ptxgen.dsl.values import Scalar, Value, is_int, require_type
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import ScalarType, s32, s64, u32, u64

_COUNTERS: Final = (u32, s32, u64, s64)  # types of loop counters


def counter_of(start: Scalar, stop: Scalar) -> ScalarType:
    """The default type of a loop counter: that of the loop's bounds."""
    bounds = {name: b for name, b in (("start", start), ("stop", stop)) if isinstance(b, Value)}
    for name, bound in bounds.items():
        _require_counter(f"loop: {name}", bound)
    types = {bound.type for bound in bounds.values()}
    if len(types) > 1:
        raise TypeMismatchError(
            f"loop: start and stop must have one type, got {shown(start)} and {shown(stop)}; "
            "reinterpret one with .as_(type) or convert it with k.cvt(value, dtype=type)"
        )
    return types.pop() if types else s32


def counter_to(caller: str, n: Scalar) -> ScalarType:
    """The type of the counter of a loop over 0 … n - 1."""
    if not isinstance(n, Value):
        if not is_int(n) or not 0 <= n < 1 << u32.bits:
            raise TypeMismatchError(f"{caller}: n must be an integer that fits u32, got {shown(n)}")
        return u32
    _require_counter(f"{caller}: n", n)
    return n.type


def _require_counter(name: str, bound: Value) -> None:
    if bound.type not in _COUNTERS:
        raise TypeMismatchError(f"{name} must be u32, s32, u64 or s64, got {shown(bound)}")


def check_bounds(start: Scalar, stop: Scalar, type: ScalarType) -> None:
    """Raise `TypeMismatchError` for bounds that do not fit the type of a loop's counter."""
    require_type("loop", type)
    if type.kind not in "us":
        raise TypeMismatchError(f"loop: type must be an integer type such as s32, got {type}")
    lowest, bits = (-(1 << (type.bits - 1)), type.bits - 1) if type.is_signed else (0, type.bits)
    for name, bound in (("start", start), ("stop", stop)):
        if isinstance(bound, Value):
            if bound.type is not type:
                raise TypeMismatchError(
                    f"loop: {name} must be {type}, got {shown(bound)}; "
                    f"reinterpret or convert it, or loop with type={bound.type}"
                )
        elif not is_int(bound) or not lowest <= bound < 1 << bits:
            raise TypeMismatchError(f"loop: {name} must be {type}, got {shown(bound)}")
