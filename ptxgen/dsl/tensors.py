"""`TensorPointer`: the address of a tensor map with the coordinates of a box."""

from __future__ import annotations

from ptxgen import ir
from ptxgen.dsl.values import Pointer, Scalar, Value
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import ScalarType, s32, u32


class TensorPointer(Pointer):
    """The operand `[map, {c0, …}]` of a copy by the tensor memory accelerator.

    `base` is the generic address of the tensor map, a u64 value; `coordinates` are those of the
    box's first element, innermost first, each an s32 or u32 value or a Python int.
    """

    __slots__ = ("coordinates",)

    def __init__(self, base: Value, dtype: ScalarType, coordinates: tuple[Scalar, ...]) -> None:
        super().__init__(base, "global", dtype)
        for number, at in enumerate(coordinates):
            if isinstance(at, Value) and at.k is not base.k:
                raise TypeMismatchError(
                    f"coordinate {number} of a tensor (innermost first), {at!r}, belongs to kernel "
                    f"{at.k.name!r}, not to {base.k.name!r}"
                )
            known = at.type in (s32, u32) if isinstance(at, Value) else _fits(at)
            if not known:
                raise TypeMismatchError(
                    f"coordinate {number} of a tensor (innermost first) must be an s32 or u32 value or an "
                    f"int of 32 bits, got {shown(at)}"
                )
        self.coordinates = coordinates

    @property
    def address(self) -> ir.TensorAddress:  # type: ignore[override]  # rows say which address they take
        """The operand of a tensor copy as PTX writes it: `[base, {c0, …}]`."""
        placed = tuple(at.reg if isinstance(at, Value) else ir.IntImm(int(at)) for at in self.coordinates)
        return ir.TensorAddress(self.value.reg, 0, placed)


def _fits(at: object) -> bool:
    return isinstance(at, int) and not isinstance(at, bool) and -(1 << 31) <= at < 1 << 31
