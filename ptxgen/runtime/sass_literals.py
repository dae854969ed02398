"""Numbers that machine instructions take from registers, where these hold literals.

A product of `tcgen05` has its shape in an instruction descriptor, and an instruction that announces copies at
an mbarrier their bytes, both in a register. Moves of literals and of such registers are followed over the
basic blocks of a kernel; where ways with different values meet, and after any other instruction, a register
is unknown. A value that a move under a predicate writes counts for instructions under the same predicate.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from ptxgen.runtime.sass import IN_TENSOR_MEMORY, BasicBlock, SassInstr, basic_blocks

_DESCRIPTOR: Final = re.compile(r"idesc\[(UR\d+)\]")
_ANNOUNCED: Final = re.compile(r"\], (R\d+)$")
_REGISTER: Final = re.compile(r"(UR|R)(\d+)")
_ZERO: Final = ("RZ", "URZ")
_MOVES: Final = ("MOV", "UMOV", "R2UR")
_SUMS: Final = ("IMAD.MOV.U32", "IMAD.U32")  # of 0 * 0 and a register or literal
_HALVES: Final = ("HFMA2", "-RZ", "RZ")  # a product of zeros and the sum of two literals of f16
_LOADED: Final = re.compile(r"\.x(\d+)")
_WIDE: Final = re.compile(r"(128)|64|WIDE|^(?:CS2R|D[A-Z]|F\w+2\b)")
_MOST_OF_A_CELL: Final = 4  # registers for each of the repetitions of a load from tensor memory
_WRITTEN: Final = 2  # leading operands, of which registers may be results

# Registers by name, each with its number and the predicate of the move that wrote it.
_State: TypeAlias = dict[str, tuple[int, str]]


def with_literals(instrs: Sequence[SassInstr]) -> list[SassInstr]:
    """The instructions of a kernel, with `literal` where a product of `tcgen05` has a literal instruction
    descriptor, or an instruction announces a literal number of bytes.
    """
    blocks = basic_blocks(instrs)
    states: dict[int, _State] = {}
    for first in blocks:
        if first not in states:  # the first block, and those that a table of jumps reaches
            states[first] = {}
            _follow(instrs, blocks, first, states)
    result = list(instrs)
    for begin, state in states.items():
        for at in range(begin, blocks[begin].end):
            result[at] = replace(instrs[at], literal=_taken(instrs[at], state))
            _execute(instrs[at], state)
    return result


def _follow(
    instrs: Sequence[SassInstr], blocks: Mapping[int, BasicBlock], first: int, states: dict[int, _State]
) -> None:
    """Note what is known when each block begins that may follow `first`."""
    todo = [first]
    while todo:
        begin = todo.pop()
        state = dict(states[begin])
        for instr in instrs[begin : blocks[begin].end]:
            _execute(instr, state)
        for way in blocks[begin].ways:
            known = states.get(way)
            met = state if known is None else dict(known.items() & state.items())
            if met != known:
                states[way] = dict(met)
                todo.append(way)


def _taken(instr: SassInstr, state: Mapping[str, tuple[int, str]]) -> int | None:
    """The literal that an instruction takes from a register."""
    pattern = _DESCRIPTOR if instr.name in IN_TENSOR_MEMORY else _ANNOUNCED
    if pattern is _ANNOUNCED and not instr.announces:
        return None
    register = pattern.search(instr.operands)
    return None if register is None else _value(register[1], instr.guard, state)


def _value(operand: str, guard: str, state: Mapping[str, tuple[int, str]]) -> int | None:
    """The number of an operand: a literal, zero, or a register that holds one."""
    operand = operand.removesuffix(".reuse")
    if operand in _ZERO:
        return 0
    if operand in state:
        number, under = state[operand]
        return number if under in ("", guard) else None
    try:
        return int(operand, 0) & 0xFFFFFFFF
    except ValueError:
        return None


def _execute(instr: SassInstr, state: _State) -> None:
    """Change the state as an instruction does."""
    if instr.name == "CALL":
        state.clear()
        return
    operands = [operand.strip() for operand in instr.operands.split(",")]
    number = _moved(instr, operands, state)
    for operand in operands[:_WRITTEN]:
        register = _REGISTER.fullmatch(operand)
        if register is not None:
            for n in range(_width(instr)):
                state.pop(f"{register[1]}{int(register[2]) + n}", None)
    if number is not None:
        state[operands[0]] = number, instr.guard


def _moved(instr: SassInstr, operands: Sequence[str], state: Mapping[str, tuple[int, str]]) -> int | None:
    """The number that a move writes to its first operand; None of other instructions."""
    if not _REGISTER.fullmatch(operands[0]):
        return None
    if instr.name in _MOVES and len(operands) == 2:
        return _value(operands[1], instr.guard, state)
    if instr.opcode in _SUMS and operands[1:3] == ["RZ", "RZ"]:
        return _value(operands[3], instr.guard, state)
    if (instr.opcode, *operands[1:3]) == _HALVES:
        try:
            high, low = (struct.pack("<e", float(operand)) for operand in operands[3:])
        except ValueError:
            return None
        return int.from_bytes(low + high, "little")
    return None


def _width(instr: SassInstr) -> int:
    """The registers that an instruction may write from its first on, or more."""
    loaded = _LOADED.search(instr.opcode)
    if loaded is not None:
        return int(loaded[1]) * _MOST_OF_A_CELL
    wide = _WIDE.search(instr.opcode)
    return 1 if wide is None else 4 if wide[1] else 2
