"""The threads that are in calls: their frames, and the blocks that they return to.

Each routine has registers of its own, so a call saves none, unless routines are recursive: then a
call puts the registers that the caller still needs on a stack, with one level for each depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.builtins import BUILTINS, DYNAMIC_PARALLELISM
from ptxgen.interpreter.program.calls import DEFINED
from ptxgen.interpreter.program.linking import param_bytes, signature
from ptxgen.ir import Function, Reg, Symbol

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.program.blocks import Block, Program
    from ptxgen.interpreter.program.calls import Call, Given
    from ptxgen.interpreter.program.linking import Routine

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Bytes of an argument or a result, `[lanes of mask, bytes]`, and which of them were written; None:
# all.
_Bytes = tuple["Lanes", "Lanes | None"]

_OUTSIDE: Final = -1  # the caller's block of a kernel's own threads


class Calls:
    """The threads of a batch that are in calls."""

    def __init__(self, program: Program, machine: LaneMachine, registers: list[Lanes]) -> None:
        self._program = program
        self._machine = machine
        self._registers = registers
        self._linked = program.linked
        lanes = machine.batch.lanes
        # For each routine: the block with the call that brought each lane there.
        self._sites = [np.full(lanes, _OUTSIDE, np.int64) for _ in self._linked.routines]
        self._depth = np.zeros(lanes, np.int64)
        self._stack: list[dict[int, Lanes]] = []
        self._stack_bytes = 0
        if self._linked.recursive:
            machine.frame = np.zeros(lanes, np.uint64)
        # The written bytes of frames, if a sanitizer follows them.
        self._marks = None if machine.watch is None else machine.watch.local

    def enter(self, number: int, block: Block, mask: Lanes, value: Any) -> list[tuple[int, Lanes]]:
        """Execute the call at the end of a block. `value` has the callee's address and the
        arguments that are values, for the lanes of the selection. Returns the blocks that the lanes
        go to, -1 for the end of the thread, with the lanes of each as masks.
        """
        call = block.call
        assert call is not None
        self._machine.at = block.segment.steps[-1].number
        pointers, values = value
        if call.callee is not None:
            return [self._enter(number, block, call, call.callee, mask, values)]
        machine = self._machine
        wide = np.zeros(machine.batch.lanes, np.uint64)
        wide[machine.selection.ids] = pointers
        entered = []
        for address in np.unique(wide[mask]):
            there = mask & (wide == address)
            callee = self._function_at(int(address), there)
            self._check_prototype(call, callee, there)
            entered.append(self._enter(number, block, call, callee, there, values))
        return entered

    def leave(self, routine: int, mask: Lanes) -> list[tuple[int, Lanes]]:
        """Return lanes from a routine. Returns the blocks that they go on with, -1 for the end of
        the thread, with the lanes of each as masks.
        """
        held = self._sites[routine][mask]
        lanes = np.flatnonzero(mask)
        returns: list[tuple[int, Lanes]] = []
        for site in map(int, np.unique(held)):
            there = np.zeros_like(mask)
            there[lanes[held == site]] = True
            if site == _OUTSIDE:
                returns.append((-1, there))
                continue
            block = self._program.blocks[site]
            self._return(block, routine, there)
            # A lane at the end of the caller returns from there, too.
            returns += self._onward(block.segment.after, there, block.segment.routine)
        return returns

    def _onward(self, after: int, mask: Lanes, routine: int) -> list[tuple[int, Lanes]]:
        if after >= 0 or routine == len(self._linked.routines) - 1:
            return [(after, mask)]
        return self.leave(routine, mask)

    def _function_at(self, address: int, mask: Lanes) -> int | Function:
        linked = self._linked
        for routine in linked.routines[:-1]:  # the last routine is the kernel, which no call reaches
            if linked.addresses.get(routine.name) == address:
                return routine.number
        if address in linked.outside:
            return linked.outside[address]
        machine = self._machine
        lane = int(np.flatnonzero(mask)[0])
        raise TrapError(f"{machine.faults.where(machine.at, lane)}: calls {address:#x}, where no function is")

    def _check_prototype(self, call: Call, callee: int | Function, mask: Lanes) -> None:
        function = callee if isinstance(callee, Function) else self._linked.routines[callee].source
        results, params = signature(function)
        wanted = [[param_bytes(p) for p in group] for group in (results, params)]
        declared = [[param_bytes(p) for p in group] for group in (call.results, call.params)]
        if declared != wanted:
            machine = self._machine
            lane = int(np.flatnonzero(mask)[0])
            raise TrapError(
                f"{machine.faults.where(machine.at, lane)}: calls {function.name}, which takes "
                f"{_sizes(wanted[1])} and gives {_sizes(wanted[0])}; the call says that it takes "
                f"{_sizes(declared[1])} and gives {_sizes(declared[0])}"
            )

    # ---------------------------------------------------------------------------------------- calls

    def _enter(
        self,
        number: int,
        block: Block,
        call: Call,
        callee: int | Function,
        mask: Lanes,
        values: tuple[Lanes, ...],
    ) -> tuple[int, Lanes]:
        arguments = self._arguments(call, mask, values)
        if isinstance(callee, Function):
            self._outside(call, callee, mask, [data for data, _ in arguments])
            return block.segment.after, mask
        routine = self._linked.routines[callee]
        source = routine.source
        assert isinstance(source, Function)
        if self._linked.recursive:
            self._push(call, routine, mask)
        self._sites[callee][mask] = number
        if self._marks is not None:
            lanes, start = self._frame(routine, mask)
            self._marks.enter(callee, lanes, start)
        for param, (data, written) in zip(source.params, arguments, strict=True):
            if param.register:
                self._set_slot(self._program.slots[f"{callee}:{param.name}"], mask, data)
            else:
                self._write(routine, param.name, mask, data, written)
        return self._program.entries[callee], mask

    def _arguments(self, call: Call, mask: Lanes, values: tuple[Lanes, ...]) -> list[_Bytes]:
        """The bytes of each argument."""
        machine = self._machine
        count = machine.selection.count
        rest = iter(values)
        found: list[_Bytes] = []
        for item, param in zip(call.given, call.params, strict=True):
            if isinstance(item, Symbol):
                found.append(self._read(call.caller, item.name, mask, param_bytes(param)))
                continue
            lanes = np.broadcast_to(next(rest), count)
            wide = np.zeros(machine.batch.lanes, lanes.dtype)
            wide[machine.selection.ids] = lanes
            found.append((wide[mask].view(np.uint8).reshape(-1, lanes.dtype.itemsize), None))
        return found

    def _outside(self, call: Call, function: Function, mask: Lanes, arguments: list[Lanes]) -> None:
        machine = self._machine
        builtin = BUILTINS.get(function.name)
        if builtin is None:
            where = machine.faults.where(machine.at, int(np.flatnonzero(mask)[0]))
            if function.name.startswith(DYNAMIC_PARALLELISM):
                raise TrapError(
                    f"{where}: {function.name} is part of dynamic parallelism, which is not "
                    "modelled; launch the kernel from the host"
                )
            raise TrapError(
                f"{where}: the interpreter has no function {function.name}; it has {', '.join(BUILTINS)}"
            )
        results = builtin(machine, np.flatnonzero(mask), arguments)
        for item, data in zip(call.got, results, strict=True):
            self._put(call, item, mask, data, None)

    # -------------------------------------------------------------------------- returning from calls

    def _return(self, block: Block, callee: int, mask: Lanes) -> None:
        call = block.call
        assert call is not None
        routine = self._linked.routines[callee]
        source = routine.source
        assert isinstance(source, Function)
        results = [
            (self._register(f"{callee}:{p.name}", mask), None)
            if p.register
            else self._read(routine, p.name, mask, param_bytes(p))
            for p in source.results
        ]
        if self._linked.recursive:
            self._pop(call, routine, mask)
        for item, (data, written) in zip(call.got, results, strict=True):
            self._put(call, item, mask, data, written)

    def _put(self, call: Call, item: Given, mask: Lanes, data: Lanes, written: Lanes | None) -> None:
        """Write a result, `[lanes of mask, bytes]`, to the operand of the call that takes it."""
        if isinstance(item, Symbol):
            self._write(call.caller, item.name, mask, data, written)
        elif isinstance(item, Reg):
            self._set_slot(call.slots[item.name], mask, data)
            defined = call.slots.get(item.name + DEFINED)
            if defined is not None:
                self._set_slot(defined, mask, np.ones_like(data[:, :1]))

    def _set_slot(self, slot: int, mask: Lanes, data: Lanes) -> None:
        held = self._registers[slot].copy()
        held[mask] = _as_lanes(data, held.dtype)
        self._registers[slot] = held

    def _register(self, name: str, mask: Lanes) -> Lanes:
        held = self._registers[self._program.slots[name]][mask]
        return held.view(np.uint8).reshape(len(held), -1)

    # ---------------------------------------------------------------------------------- frames

    def _push(self, call: Call, routine: Routine, mask: Lanes) -> None:
        machine = self._machine
        sites = self._sites[routine.number]
        for depth in np.unique(self._depth[mask]):
            lanes = np.flatnonzero(mask & (self._depth == depth))
            while len(self._stack) <= depth:
                self._stack.append({})
            level = self._stack[depth]
            kept = {slot: self._registers[slot] for slot in call.saved}
            for key, held in {**kept, ~routine.number: sites}.items():
                if key not in level:
                    level[key] = np.zeros_like(held)
                    self._stack_bytes += held.nbytes
                level[key][lanes] = held[lanes]
        self._depth[mask] += 1
        assert machine.frame is not None
        machine.frame[mask] += np.uint64(call.caller.frame_bytes)
        wanted = machine.frame[mask] + np.uint64(routine.frame_bytes)
        deepest = int(np.flatnonzero(mask)[wanted.argmax()])
        machine.need_local(deepest, int(wanted.max()), self._stack_bytes)

    def _pop(self, call: Call, routine: Routine, mask: Lanes) -> None:
        assert self._machine.frame is not None
        self._machine.frame[mask] -= np.uint64(call.caller.frame_bytes)
        self._depth[mask] -= 1
        sites = self._sites[routine.number]
        fresh = {slot: self._registers[slot].copy() for slot in call.saved}
        for depth in np.unique(self._depth[mask]):
            lanes = np.flatnonzero(mask & (self._depth == depth))
            level = self._stack[depth]
            for slot, held in fresh.items():
                held[lanes] = level[slot][lanes]
            sites[lanes] = level[~routine.number][lanes]
        for slot, held in fresh.items():
            self._registers[slot] = held

    def _rows(self, routine: Routine, name: str, mask: Lanes) -> tuple[Lanes, Lanes, Lanes]:
        """Local memory as `[lanes, bytes]`, the lanes of a mask, and the offset of a variable in
        each lane's.
        """
        machine = self._machine
        local = machine.spaces["local"]
        lanes, start = self._frame(routine, mask)
        memory = local.window.data.reshape(machine.batch.lanes, -1)
        return memory, lanes, start + routine.symbols[name].value

    def _frame(self, routine: Routine, mask: Lanes) -> tuple[Lanes, Lanes]:
        """The lanes of a mask, and the offset of the routine's frame in the local memory of each."""
        lanes = np.flatnonzero(mask)
        start = np.full(len(lanes), routine.frame, np.int64)
        if self._machine.frame is not None:
            start += self._machine.frame[lanes].astype(np.int64)
        return lanes, start

    def _read(self, routine: Routine, name: str, mask: Lanes, nbytes: int) -> _Bytes:
        memory, lanes, start = self._rows(routine, name, mask)
        found: Lanes = memory[lanes[:, None], start[:, None] + np.arange(nbytes)]
        marks = self._marks
        return found, None if marks is None else marks.written(lanes, start, nbytes)

    def _write(self, routine: Routine, name: str, mask: Lanes, data: Lanes, written: Lanes | None) -> None:
        memory, lanes, start = self._rows(routine, name, mask)
        memory[lanes[:, None], start[:, None] + np.arange(data.shape[1])] = data
        if self._marks is not None:
            written = np.ones(data.shape, np.bool_) if written is None else written
            self._marks.write(lanes, start, written)


def _sizes(nbytes: list[int]) -> str:
    return f"{', '.join(map(str, nbytes))} bytes" if nbytes else "nothing"


def _as_lanes(data: Lanes, dtype: np.dtype[Any]) -> Lanes:
    """Bytes, `[lanes, bytes]`, as values of a register, cut or filled with zeros."""
    if dtype == np.bool_:
        return np.not_equal(data[:, 0], 0)
    wide = np.zeros((len(data), dtype.itemsize), np.uint8)
    kept = min(data.shape[1], dtype.itemsize)
    wide[:, :kept] = data[:, :kept]
    lanes: Lanes = wide.view(dtype)[:, 0]
    return lanes
