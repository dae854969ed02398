"""A traced function of scores: its operations as a list in static single assignment form. Kernels,
numpy, derivatives, tile bounds and rounding errors follow from the list.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from flash.operands.dtypes import BOOL, DType
from ptxgen.errors import TypeMismatchError
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, f32, pred, s32

SCORE: Final = "score"
INDICES: Final = ("batch", "head", "query", "key")
AUX: Final = "aux"  # the argument with the arrays
SUMMED: Final = (
    "sums"  # stands for the gradient of an array, of which a kernel needs the address of an element
)
_SHOWN_DIGITS: Final = 8  # hexadecimal digits of a digest in names

Constant = float | int | bool


@dataclass(frozen=True, slots=True)
class AuxArray:
    """An array that functions of scores index: its name in `aux`, element type and number of axes."""

    name: str
    dtype: DType
    rank: int

    @property
    def kind(self) -> ScalarType:
        """The type of an element in a function: f32, s32 or pred."""
        if self.dtype is BOOL:
            return pred
        return f32 if self.dtype.scalar.is_float else s32

    @property
    def operand(self) -> str:
        """The name of the kernel's pointer to the array."""
        return f"{AUX}_{self.name}"

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the kernel's parameters with the lengths of the array's axes."""
        return tuple(f"{self.operand}_size_{axis}" for axis in range(self.rank))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes, from axis_0 on."""
        return tuple(f"axis_{axis}" for axis in range(self.rank))

    @property
    def strides(self) -> tuple[str, ...]:
        """The names of the kernel's parameters with the array's strides."""
        return tuple(f"{self.operand}_{axis}_stride" for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name}[{self.rank}]"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the results of earlier steps, `args`, of type `kind`. `value` is the value of
    a "const", the name of an "input" or of the array of a "load", the divisor of a "floordiv" or a
    "mod", else None.
    """

    op: str
    kind: ScalarType
    args: tuple[int, ...] = ()
    value: Constant | str | None = None

    def __str__(self) -> str:
        shown = self.value.hex() if isinstance(self.value, float) else self.value
        words = [f"{self.op}.{self.kind}", *([] if shown is None else [str(shown)])]
        return " ".join([*words, *[f"%{n}" for n in self.args]])


class Recorder:
    """Records the steps of a function; an equal step is recorded once. `capture` declares an array that a
    function indexes although it is no parameter.
    """

    def __init__(self, steps: Iterable[Step] = (), capture: Callable[[Any], AuxArray] | None = None) -> None:
        self.steps = list(steps)
        self._capture = capture
        self._known = {str(step): n for n, step in enumerate(self.steps)}

    def record(self, op: str, kind: ScalarType, *args: int, value: Constant | str | None = None) -> int:
        """The index of a step with these arguments."""
        step = Step(op, kind, args, value)
        text = str(step)
        if text not in self._known:
            self._known[text] = len(self.steps)
            self.steps.append(step)
        return self._known[text]

    def captured(self, array: Any) -> AuxArray:
        """The declaration of an array that the function indexes although it is no parameter. Raises
        `TypeMismatchError` where such arrays are not accepted.
        """
        if self._capture is None:
            raise TypeMismatchError(
                "a function that is traced without arrays cannot index one from outside; take it as a "
                "parameter and give aux={name: array}, in a config aux={name: (type, axes)}"
            )
        return self._capture(array)

    def constant(self, value: Constant, kind: ScalarType) -> int:
        """The index of a constant; one of f32 is rounded to f32."""
        return self.record("const", kind, value=rounded_to_f32(float(value)) if kind is f32 else value)


def rounded_to_f32(value: float) -> float:
    """A number rounded to f32; infinity beyond the largest."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Trace:
    """A function as steps, of which the last is the result. `name` is the name of the argument,
    "score_mod" or "mask_mod"; `arrays` are the arrays that are indexed, by their names.

    Two traces are equal if they compute the same steps on arrays of the same types, whatever
    functions they were traced from.
    """

    def __init__(self, name: str, steps: Iterable[Step], result: int, arrays: Iterable[AuxArray]) -> None:
        self.name = name
        self.steps = tuple(_pruned(list(steps), result))
        loaded = {step.value for step in self.steps if step.op == "load"}
        self.arrays = tuple(array for array in arrays if array.name in loaded)

    @functools.cached_property
    def text(self) -> str:
        """The canonical text: arrays, then one line for each step."""
        arrays = [str(array) for array in self.arrays]
        steps = [f"%{n} = {step}" for n, step in enumerate(self.steps)]
        return "\n".join([self.name, *arrays, *steps])

    @functools.cached_property
    def digest(self) -> str:
        """The first digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_SHOWN_DIGITS]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Trace], tuple[Any, ...]]:
        return Trace, (self.name, self.steps, self.result, self.arrays)

    def __repr__(self) -> str:
        return f"<{self.name} {self}>"

    def __str__(self) -> str:
        return f"{self.digest} of {len(self.steps)} steps"

    @property
    def result(self) -> int:
        """The index of the step that is the result."""
        return len(self.steps) - 1

    def array(self, step: Step) -> AuxArray:
        """The array that a "load" step reads."""
        return next(array for array in self.arrays if array.name == step.value)

    @functools.cached_property
    def inputs(self) -> tuple[frozenset[str], ...]:
        """The names of the inputs that each step depends on."""
        by_step: list[frozenset[str]] = []
        for step in self.steps:
            direct = {str(step.value)} if step.op == "input" else set()
            by_step.append(frozenset(direct).union(*(by_step[n] for n in step.args)))
        return tuple(by_step)

    @functools.cached_property
    def loads_by_key(self) -> bool:
        """Whether an element that is loaded depends on the key."""
        return any(s.op == "load" and "key" in n for s, n in zip(self.steps, self.inputs, strict=True))


def _pruned(steps: list[Step], result: int) -> Iterator[Step]:
    """The steps that `result` needs, in the order of a depth-first walk, so that they do not depend
    on the order in which they were recorded.
    """
    numbers: dict[int, int] = {}
    waiting = [result]
    while waiting:
        at = waiting[-1]
        step = steps[at]
        missing = [n for n in step.args if n not in numbers]
        if missing:
            waiting.append(missing[0])
            continue
        waiting.pop()
        if at not in numbers:
            numbers[at] = len(numbers)
            yield Step(step.op, step.kind, tuple(numbers[n] for n in step.args), step.value)
