"""The operands of an instruction as words and as exact numbers, for the lanes that execute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.algebra.residues import Exact
from ptxgen.algebra.words import (
    BF16,
    F32,
    FORMATS,
    UPPER,
    cause,
    has_format,
    in_format,
    maker,
    packed,
    unknown,
    unpacked,
)
from ptxgen.ir import Pair, Reg, Vector
from ptxgen.isa.spec import Effect
from ptxgen.types import TYPES, ScalarType, b16, pred

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.program.stepwise import State

Lanes = np.ndarray[Any, np.dtype[Any]]

UNIT_BITS: Final = 16  # bits of a register for which there is one word


class Registers:
    """The words of registers: an array `[lanes of the batch, words of a register]` for each register that has
    one, by its name in the whole program.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.words: dict[str, Lanes] = {}

    def write(self, name: str, ids: Lanes, words: Lanes) -> None:
        """Change the words of lanes to `words`, `[n, words of the register]`."""
        held = self.words.get(name)
        if held is None:
            if not words.any():
                return
            held = self.words[name] = np.zeros((self.lanes, words.shape[1]), np.uint64)
        elif len(ids) == self.lanes and not words.any():
            del self.words[name]
            return
        held[ids] = words


class Executed:
    """An instruction that is about to be executed. `ids` are the numbers in the batch of the lanes that
    execute it, `[n]`; words and numbers of operands are `[n, ...]`.
    """

    def __init__(self, registers: Registers, machine: LaneMachine, step: Step, state: State) -> None:
        self.step = step
        self.state = state
        self.name = step.op.row.name
        self.modifiers = step.op.modifiers
        self._registers = registers
        self._active = state.active(step)
        self.ids: Lanes = machine.selection.ids[self._active]
        self._operands = dict(_operands(step))

    def __getitem__(self, name: str) -> Any:
        """An operand, None for one that is left out."""
        return self._operands.get(name, (None, None))[1]

    def type_of(self, name: str) -> ScalarType:
        """The type of an operand that has one."""
        type: ScalarType | None = self._operands[name][0].type
        assert type is not None
        return type

    @property
    def sources(self) -> list[str]:
        """The names of the operands that are read."""
        return [name for name, (want, got) in self._operands.items() if not want.written and got is not None]

    @property
    def results(self) -> list[str]:
        """The names of the operands that are written."""
        return [name for name, (want, _) in self._operands.items() if want.written]

    def has_words(self) -> bool:
        """Whether a register that the instruction reads has words."""
        key, words = self.state.key, self._registers.words
        return any(key(register.name) in words for register in self.step.copied)

    def held(self, name: str, got: object = None) -> Lanes:
        """What the interpreter has for an operand, or for `got` of its vector, by lane."""
        got = self[name] if got is None else got
        lanes = np.asarray(self.state.typed(got, self.type_of(name), name))
        if lanes.ndim == 0:
            return np.broadcast_to(lanes, len(self.ids))
        return lanes[self._active]

    def addresses(self, name: str) -> Lanes:
        """The addresses of an operand, int64."""
        operand = self[name]
        return self.state.address(operand.base, operand.offset)[self._active].view(np.int64)

    # ------------------------------------------------------------------------------------- words

    def words(self, got: object, units: int) -> Lanes:
        """The first words of a register or a literal, `[n, units]`, or those of all items of a vector, as
        many of each; those that it lacks are 0.
        """
        if isinstance(got, Vector):
            return np.concatenate([self.words(item, units // len(got.items)) for item in got.items], 1)
        held = self._registers.words.get(self.state.key(got.name)) if isinstance(got, Reg) else None
        result = np.zeros((len(self.ids), units), np.uint64)
        if held is not None:
            result[:, : held.shape[1]] = held[self.ids, :units]
        return result

    def words_of_lanes(self, got: object, lanes: Lanes) -> Lanes:
        """The words of a register in other lanes of the batch, `[n, words of the register]`."""
        held = self._registers.words.get(self.state.key(got.name)) if isinstance(got, Reg) else None
        return np.zeros((len(lanes), 1), np.uint64) if held is None else held[lanes]

    def write(self, got: object, words: Lanes) -> None:
        """Change the words of a register, or of all registers of a vector, to `words`, `[n, words]`, and
        further ones of these registers to 0.
        """
        items = list(_registers(got))
        each = words.shape[1] // len(items)
        for nth, item in enumerate(items):
            units = units_of(item)
            if isinstance(item, Reg) and units:
                new = np.zeros((len(self.ids), units), np.uint64)
                mine = words[:, nth * each : (nth + 1) * each][:, :units]
                new[:, : mine.shape[1]] = mine
                self._registers.write(self.state.key(item.name), self.ids, new)

    def clear(self) -> None:
        """The results are what the interpreter has."""
        self.fill(np.zeros(len(self.ids), np.uint64))

    def fill(self, word: Lanes) -> None:
        """Change all words of the results to one word of each lane, `[n]`."""
        for name in self.results:
            for item in _registers(self[name]):
                self.write(item, np.repeat(word[:, None], units_of(item), 1))

    def lose(self) -> None:
        """The results are unknown in lanes where a source has words, or in all if lanes exchange values."""
        known = [self.words(self[name], 4 * len(list(_registers(self[name])))) for name in self.sources]
        has_words = np.any([words.any(1) for words in known], 0)
        if self.step.op.effect is Effect.WARP:
            has_words = np.full_like(has_words, has_words.any())
        made_by = cause(known, self.step.number)[:, 0]
        self.fill(np.where(has_words, unknown(made_by), np.uint64(0)))

    # ----------------------------------------------------------------------------------- numbers

    def number_words(self, name: str) -> Lanes:
        """The words of the floats in an operand, `[n, floats]`; 0 where the interpreter has the number."""
        type = self.type_of(name)
        words = self.words(self[name], type.bits // UNIT_BITS)
        if type.bits == 2 * UNIT_BITS and type.kind != "x":
            return single(words, self.held(name), self.step.number)[:, None]
        right = (words & UPPER == 0) & has_format(words, FORMATS[type.name])
        return np.where(right, words, unknown(self.step.number))

    def numbers(self, name: str) -> tuple[Exact, Lanes]:
        """The exact floats in an operand, and the interpreter's, both `[n, floats]`."""
        floats = as_floats(self.held(name), self.type_of(name))
        return unpacked(self.number_words(name), floats), floats

    def write_numbers(self, got: object, type: ScalarType, numbers: Exact) -> None:
        """Change a register of a type to numbers, `[n, floats]`."""
        read = [self.words(self[name], 2) for name in self.sources]
        words = packed(numbers, FORMATS[type.name], cause(read, self.step.number))
        self.write(got, doubled(words) if type.bits == 2 * UNIT_BITS and type.kind != "x" else words)


def single(words: Lanes, held: Lanes, at: int, formats: Sequence[int] = (F32,)) -> Lanes:
    """The words of numbers of 32 bits, given both halves of each, `[..., 2]`, and what the interpreter has,
    `[...]`; unknown, because of instruction `at`, if the halves are not of one number in a format of
    `formats`. The upper half alone may be a number of bf16 that zeros widen.
    """
    lower, upper = words[..., 0], words[..., 1]
    has_zeros = np.ascontiguousarray(held).view(np.uint32) & 0xFFFF == 0
    widened = (lower == 0) & (upper & UPPER == 0) & has_format(upper, BF16) & (has_zeros | (upper == 0))
    whole = (upper == lower | UPPER) & has_format(lower, *formats)
    whole |= maker(lower) >= 0
    result: Lanes = np.where(widened, upper, np.where(whole, lower, unknown(at)))
    return in_format(result, F32)


def doubled(words: Lanes) -> Lanes:
    """Both halves of numbers of 32 bits, `[..., 2]`, of their words `[..., 1]`."""
    return np.concatenate([words, np.where(words == 0, words, words | UPPER)], -1)


def as_floats(lanes: Lanes, type: ScalarType) -> Lanes:
    """The floats in lanes of a type, `[n, floats]` float64; those of packed ones, the lower first."""
    lanes = np.ascontiguousarray(lanes)
    if type.kind == "x":
        half = TYPES[type.name.removesuffix("x2")].dtype
        return lanes.view(half).reshape(len(lanes), -1).astype(np.float64)
    return lanes.astype(np.float64)[:, None]


def units_of(register: object) -> int:
    """The words of a register; a predicate has none, and a literal in its place as many as the least one."""
    type = TYPES[register.declared] if isinstance(register, Reg) else b16
    return 0 if type is pred else max(type.bits // UNIT_BITS, 1)


def _registers(got: object) -> Iterator[object]:
    match got:
        case Vector(items):
            yield from items
        case Pair(first, second):
            yield from (first, second)
        case _:
            yield got


def _operands(step: Step) -> Iterator[tuple[str, tuple[Any, Any]]]:
    given: Sequence[object] = step.instr.operands
    for nth, want in enumerate(step.op.flat):
        yield want.name, (want, given[nth] if nth < len(given) else None)
