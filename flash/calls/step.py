"""One launch of a call that may need several: a kernel, its arrays and its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flash.contract.built_kernel import BuiltKernel
from flash.operands.declared import Operand
from flash.problem.config import ALIGNMENTS
from flash.problem.limits import MAX_CTAS
from flash.problem.tensor_maps import map_name
from ptxgen import ir
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.errors import LaunchError
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.tensormap import Boxes, TensorMap

if TYPE_CHECKING:
    from ptxgen import interpreter


class Fill(NamedTuple):
    """`words` words of 32 bits from address `pointer` on, each of which is `word` before a launch."""

    pointer: int
    words: int
    word: int


class Step(NamedTuple):
    """One launch: the kernel, the arrays that its pointers point to, and its arguments. `in_flight` are the
    arrays that the launch before it writes, if this launch may begin before that one has ended.
    """

    build: BuiltKernel
    arrays: tuple[ArrayView, ...]
    plan: LaunchPlan
    in_flight: tuple[ArrayView, ...] = ()

    @property
    def pointers(self) -> list[int]:
        """The addresses of the arrays, in the order of the kernel's pointers."""
        return [array.pointer for array in self.arrays]

    @property
    def fills(self) -> list[Fill]:
        """The ranges of its arrays that are set to a word before this launch, as its kernel declares them."""
        return [
            Fill(array.pointer, math.prod(array.shape), int(np.float32(operand.initial).view(np.uint32)))
            for operand, array in zip(self.build.arrays, self.arrays, strict=True)
            if operand.initial is not None
        ]

    def interpret(self, module: ir.Module | None = None, **how: Any) -> interpreter.Result:
        """Interpret the kernel's PTX on the arrays, which are on the host; results are in them.
        Another `module` may take the kernel's place; `how` are further arguments of
        `ptxgen.interpreter.run`.
        """
        # Imported here, because launches on a GPU do without the interpreter.
        from ptxgen import interpreter

        memory = [host_array(array) for array in self.arrays]
        for operand, array in zip(self.build.arrays, memory, strict=True):
            if operand.initial is not None:
                array[...] = operand.initial
        arguments: dict[str, Any] = {"grid": self.plan.grid, "block": self.plan.block, **how}
        arguments.setdefault("in_flight", [host_array(array) for array in self.in_flight])
        return interpreter.run(
            module or self.build.module,
            args=self.plan.on_host(memory),
            dynamic_smem=self.plan.dynamic_shared,
            **arguments,
        )


def launch_step(
    kernel: BuiltKernel, arrays: Mapping[str, ArrayView], values: Mapping[str, int | float], ctas: int
) -> Step:
    """A launch of a kernel on `arrays`, by the names of its pointers; `values` are its scalars."""
    views = tuple([arrays[array.name] for array in kernel.arrays])
    strides = [
        outer_strides(view) if array.columns else strides_of(view)
        for array, view in zip(kernel.arrays, views, strict=True)
    ]
    return Step(kernel, views, plan_of(kernel, [view.pointer for view in views], strides, values, ctas))


def plan_of(
    kernel: BuiltKernel,
    pointers: Sequence[int],
    strides: Sequence[tuple[int, ...]],
    values: Mapping[str, int | float],
    ctas: int,
) -> LaunchPlan:
    """The plan of a launch. `pointers` and `strides`, in elements, are those of the kernel's
    arrays, in their order; an array with fewer strides than axes is broadcast along the first ones.
    Tensor maps follow from these and from the sizes in `values`.
    """
    known: dict[str, Any] = dict(values)
    for array, pointer, steps in zip(kernel.arrays, pointers, strides, strict=True):
        known[array.name] = pointer
        names = array.strides  # none for a dense array
        known |= zip(names, ((0,) * (len(names) - len(steps)) + steps)[: len(names)], strict=True)
    maps = {}
    for n, array in enumerate(kernel.arrays):
        if array.name in kernel.maps:
            name = map_name(array.name)
            known[name], maps[name] = tensor_map(kernel.maps[array.name], array, known), n
    return LaunchPlan(
        entry=kernel.header.name,
        grid=(ctas, 1, 1),
        block=(kernel.threads, 1, 1),
        dynamic_shared=kernel.header.dynamic_shared_bytes,
        slots=kernel.slots,
        attributes=kernel.attributes,
        values=tuple([known[slot.name] for slot in kernel.slots]),
        maps=tuple([(n, maps[slot.name]) for n, slot in enumerate(kernel.slots) if slot.name in maps]),
    )


def tensor_map(boxes: Boxes, array: Operand, known: Mapping[str, Any]) -> TensorMap:
    """The tensor map of an array with rows; `known` has its address, the lengths of its axes and its strides,
    in elements. An axis with one element gets the size of a row as its stride.
    """
    dims, strides = [array.columns], []
    for axis, stride in reversed(list(zip(array.axes, array.strides, strict=True))):
        length = int(axis) if axis.isdigit() else known[axis]
        dims.append(length)
        strides.append(known[stride] * array.dtype.nbytes if length > 1 else array.nbytes)
    return boxes.of(known[array.name], tuple(dims), tuple(strides))


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


def require_grid(caller: str, ctas: int) -> None:
    """Raise `LaunchError` for more CTAs than a grid can have."""
    if ctas > MAX_CTAS:
        raise LaunchError(
            f"{caller}: a grid has at most {MAX_CTAS} CTAs, this call needs {ctas}; split the batch, "
            "or use fewer splits"
        )
