"""A run of the interpreter whose numbers are followed exactly.

The interpreter executes the kernel on floats, and these decide branches, comparisons, selections and which of
two numbers is greater. Besides, each register and each 16 bits of memory have the exact number that they
stand for (`ptxgen.algebra.words`): conversions and rounding do not change it, sums and products are computed
without rounding. An instruction without a rule makes its results unknown, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.algebra.bits import BITS, is_integer_conversion, widen
from ptxgen.algebra.memory import Memories, Memory
from ptxgen.algebra.movement import MOVEMENTS
from ptxgen.algebra.operands import Executed, Registers
from ptxgen.algebra.products import can_multiply, mma
from ptxgen.algebra.residues import FINITE, Exact
from ptxgen.algebra.words import FORMATS, PARTS
from ptxgen.errors import LaunchError
from ptxgen.interpreter.debugging import DebuggedScheduler, Debugger
from ptxgen.isa.spec import OF_REGISTERS, Effect
from ptxgen.text import render_instr

if TYPE_CHECKING:
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.program.stepwise import State

Lanes = np.ndarray[Any, np.dtype[Any]]

# Functions of which nothing but their name is known, and the same functions of floats.
_OPAQUE: Final[Mapping[str, Callable[..., Any]]] = {
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}


def _applied(name: str) -> Callable[[Exact], Exact]:
    return lambda a: a.applied(name)


# The exact result of an instruction, by the name of its row without a rounding, and the same function of
# floats, which gives the result where an operand is infinite.
_RULES: Final[Mapping[str, tuple[Callable[..., Exact], Callable[..., Any]]]] = {
    "add": (lambda a, b: a + b, np.add),
    "sub": (lambda a, b: a - b, np.subtract),
    "mul": (lambda a, b: a * b, np.multiply),
    "fma": (lambda a, b, c: a * b + c, lambda a, b, c: a * b + c),
    "neg": (lambda a: -a, np.negative),
    "ex2": (Exact.exp2, np.exp2),
    "rcp": (Exact.reciprocal, np.reciprocal),
    "div": (lambda a, b: a / b, np.divide),
    **{name: (_applied(name), of) for name, of in _OPAQUE.items()},
}
_CHOOSING: Final[Mapping[str, Callable[..., Lanes]]] = {"max": np.argmax, "min": np.argmin}
# Words of an opcode that change numbers, of which the last four round to whole ones.
_CHANGING: Final = frozenset({"sat", "relu", "satfinite", "xorsign", "abs", "rni", "rzi", "rmi", "rpi"})
# Effects without numbers, of all instructions that have no rule.
_WITHOUT_NUMBERS: Final = frozenset({Effect.BARRIER, Effect.FENCE, Effect.CONTROL, Effect.ADDRESS})
_ELSEWHERE: Final = frozenset({Effect.ASYNC, Effect.ATOMIC, Effect.TEXTURE})  # numbers move outside registers
_AWAITING: Final = ("cp_async_commit", "cp_async_wait", "prefetch")


class Follower(Debugger):
    """Follows the numbers of a run. `of_global` are the words of global memory, with the symbols of inputs.

    Raises `LaunchError` at the first instruction that moves numbers in a way that is not followed.
    """

    def __init__(self, of_global: Memory) -> None:
        self._memories = Memories(of_global, Memory([]))
        self._steps: dict[int, Step] = {}
        self._registers = Registers(0)
        self._scheduler: DebuggedScheduler

    def begin(self, scheduler: DebuggedScheduler) -> None:
        """See `Debugger`."""
        batch = scheduler.machine.batch
        self._scheduler = scheduler
        self._registers = Registers(batch.lanes)
        shared = Memory([(0, batch.ctas * batch.shared_stride)])
        self._memories = Memories(self._memories.of_global, shared, batch.width, batch.shared_stride)

    def before(self, step: Step, state: State) -> None:
        """See `Debugger`."""
        if step.calls:
            raise LaunchError(f"numbers are not followed through {step.instr.opcode}: inline the function")
        if step.leaves or step.resumes or (step.op.effect in _WITHOUT_NUMBERS and not step.op.dests):
            return
        now = Executed(self._registers, self._scheduler.machine, step, state)
        if not len(now.ids):
            return
        self._steps[step.number] = step
        if now.name in MOVEMENTS:
            MOVEMENTS[now.name](self._memories, now)
        elif now.name.startswith(_AWAITING):
            return
        elif step.op.effect in _ELSEWHERE or any(operand.address for operand in step.op.operands):
            raise LaunchError(f"numbers are not followed through {step.instr.opcode}")
        elif now.has_words() or _may_round(now):
            _follow(now)
        else:
            now.clear()

    def text(self, at: int) -> str:
        """Why a number is unknown: the text of instruction number `at` of the run, `PARTS`, or -1 for the
        formula.
        """
        if at < 0:
            return "the formula, which has no value there"
        return (
            "bits that are no number in the format of the array"
            if at == PARTS
            else render_instr(self._steps[at].instr)
        )


def _rule(now: Executed) -> str:
    """The name of an instruction's row without a rounding."""
    return now.name.removesuffix("_rn").removesuffix("_approx")


def _may_round(now: Executed) -> bool:
    """Whether the instruction may round floats that no symbol has entered, and its result without rounding is
    known.
    """
    name = _rule(now)
    has_rule = name == "cvt" or (name in _RULES and name not in _OPAQUE)
    return has_rule and now.type_of(now.results[0]).name in FORMATS


def _follow(now: Executed) -> None:
    """Follow an instruction on numbers in registers."""
    if now.name.startswith("mma") and can_multiply(now):
        mma(now)
    elif is_integer_conversion(now):
        widen(now)
    elif now.name in BITS and now.type_of("d").is_integer:
        BITS[now.name](now)
    elif not _compute(now):
        now.lose()


def _compute(now: Executed) -> bool:
    """Follow an instruction on floats, if there is a rule for it."""
    names, words = now.sources, now.step.instr.opcode.split(".")
    if now.step.op.effect not in OF_REGISTERS or not _CHANGING.isdisjoint(words[1:]):
        return False
    if not now.results or any(now.type_of(name).name not in FORMATS for name in (*now.results, *names)):
        return False
    operands = [now.numbers(name) for name in names]
    name = _rule(now)
    floats = [held for _, held in operands]
    into = now.type_of(now.results[0])
    if name == "cvt":
        numbers = _converted([number for number, _ in operands])
    elif name in _CHOOSING:
        chosen = _CHOOSING[name](np.stack(floats), axis=0)
        numbers = operands[0][0]
        for nth, (other, _) in enumerate(operands[1:], 1):
            numbers = numbers.where(chosen != nth, other)
        numbers = numbers.where(~np.isnan(floats).any(0), np.nan)
    elif name == "abs":
        numbers = operands[0][0].where(floats[0] >= 0, -operands[0][0])
    elif name in _RULES:
        exactly, of_floats = _RULES[name]
        numbers = exactly(*(number for number, _ in operands))
        infinite = np.any([number.kind > FINITE for number, _ in operands], 0)
        if infinite.any():
            with np.errstate(all="ignore"):
                numbers = numbers.where(~infinite, Exact.of(of_floats(*floats)))
    else:
        return False
    now.write_numbers(now[now.results[0]], into, numbers)
    return True


def _converted(operands: list[Exact]) -> Exact:
    """The floats of a conversion: of two operands the second is the lower half."""
    if len(operands) == 1:
        return operands[0]
    upper, lower = operands
    return Exact(*(np.concatenate(pair, 1) for pair in zip(lower.lanes(), upper.lanes(), strict=True)))
