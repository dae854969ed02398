"""A traced function in a kernel: what depends on the head only is computed once, what depends on the
query once for each row of a tile, what depends on the key once for each column.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flash.mods.operations import OPERATIONS, Emission
from flash.mods.reach import factor_of_key, ranges
from flash.mods.trace import SCORE, SUMMED, AuxArray, Step, Trace
from flash.operands.dtypes import BOOL
from ptxgen import dsl
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, f32, s32, s64, u8, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value

_COMPARISONS: Final[dict[str, Callable[[Value, int], Value]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "ne": operator.ne,
}
_FIRST: Final = -1  # the column of the first key
_OF_ROWS: Final = frozenset(("batch", "head", "query", SCORE))
_OF_COLUMNS: Final = frozenset(("key", SCORE))


@dataclass(frozen=True)
class AuxElements:
    """An array of `aux` in a kernel: the address of its first element (u64), and for each axis the
    distance between elements in bytes (s64) and the index of the last one (u32).
    """

    first: Value
    steps: Sequence[Value]
    last: Sequence[Value]


class Emitted:
    """A traced function in a kernel. `inputs` are the values of the inputs that are the same for the
    whole CTA. An index outside of an array is that of its nearest element, so that nothing outside
    is read.
    """

    def __init__(
        self,
        k: KernelBuilder,
        trace: Trace,
        inputs: Mapping[str, Value],
        arrays: Mapping[str, AuxElements],
        *,
        rounds_once: bool,
    ) -> None:
        self.k = k
        self.trace = trace
        self.arrays = arrays
        self.rounds_once = rounds_once
        self.ranges = ranges(trace)
        self.of_cta: dict[object, Any] = {}
        known = {name: lambda value=value: value for name, value in inputs.items()}
        self.uniform = frozenset(inputs)
        first = Elements(self)
        for n, needed in enumerate(trace.inputs):
            is_load, is_uniform = trace.steps[n].op == "load", needed <= self.uniform
            if is_load and not (is_uniform and self.loads(n)):
                first.address(n, known, within=self.uniform)
            elif is_uniform and trace.steps[n].op != "const":
                first.step(n, known)

    def loads(self, n: int) -> bool:
        """Whether the element of the "load" `n` is loaded, and not only its address computed."""
        return self.trace.steps[n].value != SUMMED

    def value(self, inputs: Mapping[str, Callable[[], Value]]) -> Value | bool | float:
        """The function for one score; `inputs` emit its other inputs."""
        return Elements(self).at(0, 0, inputs)


class Elements:
    """A traced function for the scores of one tile, at a point where no branch has begun. The keys of
    the `columns` are counted from the input "first_key".
    """

    def __init__(self, of: Emitted, columns: Sequence[int] = (0,)) -> None:
        self.of = of
        self.k = of.k
        self._columns = columns
        self._cached: dict[object, Any] = {}
        self._position = 0, 0

    def prepare(self, row: int, inputs: Mapping[str, Callable[[], Value]]) -> None:
        """Emit what all scores of a row share, so that branches may begin after it."""
        self._position = row, 0
        shared = self.of.uniform | {"batch", "head", "query"}
        for n, needed in enumerate(self.of.trace.inputs):
            step = self.of.trace.steps[n]
            if step.op == "load" and not (needed <= shared and self.of.loads(n)):
                self.address(n, inputs, within=shared)
            elif needed <= shared:
                self.step(n, inputs)
            else:
                self._begun(step, inputs)

    def at(self, row: int, column: int, inputs: Mapping[str, Callable[[], Value]]) -> Value | bool | float:
        """The function for the score in `row` and `column`; `inputs` emit the inputs that differ within the
        CTA. `query` and `head` are the same in a row, `key` in a column.
        """
        self._position = row, column
        value: Value | bool | float = self.step(self.of.trace.result, inputs)
        return value

    def element(self, row: int, column: int, inputs: Mapping[str, Callable[[], Value]]) -> Value:
        """The address of the element that the function is, for the score in `row` and `column`."""
        self._position = row, column
        return self.address(self.of.trace.result, inputs)

    def step(self, n: int, inputs: Mapping[str, Callable[[], Value]]) -> Any:
        """The value of step `n`: a Python number if it is a constant."""
        step = self.of.trace.steps[n]
        if step.op == "const":
            return step.value

        def emitted() -> Any:
            if step.op == "input":
                return inputs[str(step.value)]()
            if step.op == "load":
                return loaded(self.k, self.of.trace.array(step), self.address(n, inputs))
            by_key = self._by_key(step, inputs)
            if by_key is not None:
                return by_key
            return self._computed(step, [self.step(at, inputs) for at in step.args])

        return self._once(n, self.of.trace.inputs[n], emitted)

    def _by_key(self, step: Step, inputs: Mapping[str, Callable[[], Value]]) -> Value | None:
        """The value of a step that is an f32 or a comparison of integers that grow by 1 or -1 from key to
        key, from its operands for the first key; None for any other step. The f32 is exact below 2**24.
        """
        first = self._begun(step, inputs)
        if first is None:
            return None
        apart = factor_of_key(self.of.trace, *step.args) * self._columns[self._position[1]]
        if step.op == "float":
            return first + float(apart) if apart else first
        return _COMPARISONS[step.op](first, -apart)

    def _begun(self, step: Step, inputs: Mapping[str, Callable[[], Value]]) -> Value | None:
        """The operand of a step of `_by_key`, or the difference of its two operands, for the first key."""
        trace, args, is_float = self.of.trace, step.args, step.op == "float"
        if not is_float and (step.op not in _COMPARISONS or trace.steps[args[0]].kind is not s32):
            return None
        if "first_key" not in inputs or not factor_of_key(trace, *args):
            return None
        position, at_first = self._position, {**inputs, "key": inputs["first_key"]}

        def begun() -> Value:
            values = [self.step(n, at_first) for n in args]
            if is_float:
                return self.k.cvt(values[0], rnd="rn", dtype=f32)
            apart: Value = self._value(values[0], s32) - values[1]
            return apart

        self._position = position[0], _FIRST
        needed = frozenset[str]().union(*(trace.inputs[n] for n in args))
        first: Value = self._once((args, is_float), needed, begun)
        self._position = position
        return first

    def _once(self, what: object, needed: frozenset[str], emit: Callable[[], Any]) -> Any:
        """The result of `emit`, which depends on the inputs `needed`; it is emitted once, at the first
        request.
        """
        store: dict[object, Any] = self.of.of_cta
        key: tuple[int | None, ...] = ()
        if not needed <= self.of.uniform:
            row = None if needed.isdisjoint(_OF_ROWS - self.of.uniform) else self._position[0]
            column = None if needed.isdisjoint(_OF_COLUMNS) else self._position[1]
            store, key = self._cached, (row, column)
        if (what, key) not in store:
            store[what, key] = emit()
        return store[what, key]

    def _value(self, x: Any, kind: ScalarType) -> Value:
        """The register of `x`: a Python number is moved to a new one of type `kind`, a `Value` has one."""
        return x if isinstance(x, dsl.Value) else self.k.mov(x, type=kind)

    def _computed(self, step: Step, args: list[Any]) -> Any:
        of = self.of
        limits = None if not step.args else of.ranges[step.args[0]]
        is_natural = limits is not None and limits.low >= 0
        if step.op != "where":
            args[0] = self._value(args[0], of.trace.steps[step.args[0]].kind)
        return OPERATIONS[step.op].emit(Emission(self.k, step, of.rounds_once, is_natural), *args)

    def address(
        self, n: int, inputs: Mapping[str, Callable[[], Value]], *, within: frozenset[str] | None = None
    ) -> Value:
        """The address of the element of a "load", u64; its parts are cached like other values. `within`:
        only the parts that depend on these inputs; None for the whole address.
        """
        trace = self.of.trace
        step = trace.steps[n]
        of, needed = self.of.arrays[str(step.value)], frozenset[str]()
        at: Value = of.first
        for axis in sorted(range(len(step.args)), key=lambda axis: self._spread(step.args[axis])):
            index = step.args[axis]
            needed |= trace.inputs[index]
            if within is not None and not needed <= within:
                break

            def moved(at: Value = at, index: int = index, axis: int = axis) -> Value:
                return at + self._offset(of, index, self.step(index, inputs), axis)

            at = self._once((n, axis), needed, moved)
        return at

    def _spread(self, index: int) -> int:
        """How many values the index `index` has in a tile: indices with the fewest are added first."""
        needed = self.of.trace.inputs[index] - self.of.uniform
        return (not needed.isdisjoint(_OF_ROWS)) + 2 * (not needed.isdisjoint(_OF_COLUMNS))

    def _offset(self, of: AuxElements, index: int, value: Any, axis: int) -> Value:
        """The offset in bytes, u64, of the index `value` along an axis."""
        k, limits = self.k, self.of.ranges[index]
        inside = self._value(value, s32)
        if limits is None or limits.low < 0:
            inside = k.max(inside, 0)
        inside = k.min(inside.as_(u32), of.last[axis]).as_(s32)
        return (k.cvt(inside, dtype=s64) * of.steps[axis]).as_(u64)


def loaded(k: KernelBuilder, array: AuxArray, at: Value) -> Value:
    """The element at an address (u64): f32, s32 or a condition; an integer of 64 bits is limited to 32.
    No thread writes it while the kernel runs, so that all threads of a CTA read the same value.
    """
    scalar = array.dtype.scalar
    if scalar is u8:
        byte = k.cvt(k.ld_nc(dsl.Pointer(at, "global", u8), type=u8), dtype=u32)
        return byte != 0 if array.dtype is BOOL else byte.as_(s32)
    if scalar.bits == u16.bits:
        return k.cvt(k.ld_nc(dsl.Pointer(at, "global", u16), type=u16).as_(scalar), dtype=f32)
    element = k.ld_nc(dsl.Pointer(at, "global", scalar), type=scalar)
    return k.cvt(element, dtype=s32, sat=True) if scalar is s64 else element
