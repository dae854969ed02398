"""One launch of a call that may need several: a kernel, its arrays and its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from flash.contract.built_kernel import Made
from flash.host.arrays import ArrayView, host_array
from flash.operands.declared import Operand
from flash.problem.config import ALIGNMENTS
from flash.problem.limits import MAX_CTAS
from ptxgen import interpreter
from ptxgen.errors import LaunchError
from ptxgen.runtime.plan import LaunchPlan


class Step(NamedTuple):
    """One launch: the kernel, the arrays behind its pointers, and its arguments."""

    made: Made
    arrays: tuple[ArrayView, ...]
    plan: LaunchPlan

    def interpret(self) -> None:
        """Interpret the kernel's PTX on the arrays, which are on the host; results are in them."""
        memory = [host_array(array) for array in self.arrays]
        interpreter.run(
            self.made.module,
            grid=self.plan.grid,
            block=self.plan.block,
            args=[*memory, *self.plan.values[len(memory) :]],
            dynamic_smem=self.plan.dynamic_shared,
        )


def launch_step(
    made: Made,
    arrays: Mapping[str, ArrayView],
    operands: Mapping[Operand, ArrayView],
    values: Mapping[str, int | float],
    ctas: int,
) -> Step:
    """A launch of a kernel. Its pointers are `arrays`, then `operands`. The strides of `operands`
    are computed here, 0 where an operand is broadcast; `values` are all other parameters.
    """
    pointers = {**arrays, **{operand.name: array for operand, array in operands.items()}}
    known = {**values, **{name: array.pointer for name, array in pointers.items()}}
    for operand, array in operands.items():
        steps = outer_strides(array) if operand.columns else strides_of(array)
        wide = (0,) * (len(operand.axes) - len(steps)) + steps
        known |= {operand.stride(a): step for a, step in zip(operand.axes, wide, strict=True)}
    plan = LaunchPlan(
        entry=made.kernel.name,
        grid=(ctas, 1, 1),
        block=(made.threads, 1, 1),
        dynamic_shared=made.kernel.dynamic_shared_bytes,
        slots=made.slots,
        values=tuple(known[slot.name] for slot in made.slots),
    )
    return Step(made, tuple(pointers.values()), plan)


def strides_of(array: ArrayView) -> tuple[int, ...]:
    """The strides of an array, in elements; 0 for a dimension with one element or none."""
    steps = zip(array.shape, array.strides, strict=True)
    return tuple(step if length > 1 else 0 for length, step in steps)


def outer_strides(array: ArrayView) -> tuple[int, ...]:
    """The strides of all dimensions but the last one, as in `strides_of`."""
    return strides_of(array)[:-1]


def aligned(array: ArrayView, nbytes: int) -> int:
    """The alignment in bytes, at most 16, of all rows of an array with elements of `nbytes`."""
    return math.gcd(ALIGNMENTS[0], array.pointer, *[s * nbytes for s in outer_strides(array)])


def require_grid(who: str, ctas: int) -> None:
    """Raise `LaunchError` for more CTAs than a grid can have."""
    if ctas > MAX_CTAS:
        raise LaunchError(
            f"{who}: a grid has at most {MAX_CTAS} CTAs, this call needs {ctas}; split the batch, "
            "or use fewer splits"
        )
