"""The threads that are in calls: their frames, and the blocks that they return to.

Each routine has registers of its own, so a call saves none, unless routines are recursive: then a
call puts the registers that the caller still needs on a stack, with one level for each depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.builtins import BUILTINS, DYNAMIC_PARALLELISM
from ptxgen.interpreter.machine.shadows import Shadow, merged_at
from ptxgen.interpreter.program.linking import param_bytes, signature
from ptxgen.ir import Function, Reg, Symbol
from ptxgen.types import bits_dtype

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.program.blocks import Block, Program
    from ptxgen.interpreter.program.calls import Call, CallOperand
    from ptxgen.interpreter.program.linking import Routine

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Bytes of an argument or a result, `[lanes of mask, bytes]`, and their undefined bits; None: none are.
_Bytes = tuple["Lanes", "Shadow | None"]

# The arguments of a call that are values, and the shadows of their registers.
_Values = tuple["tuple[Lanes, ...]", "tuple[Shadow | None, ...]"]

_OUTSIDE: Final = -1  # the caller's block of a kernel's own threads


class Calls:
    """The threads of a batch that are in calls."""

    def __init__(
        self, program: Program, machine: LaneMachine, registers: list[Lanes], shadows: list[Shadow | None]
    ) -> None:
        self._program = program
        self._shadows = shadows
        self._machine = machine
        self._registers = registers
        self._linked = program.linked
        lanes = machine.batch.lanes
        # For each routine: the block with the call that brought each lane there.
        self._sites = [np.full(lanes, _OUTSIDE, np.int64) for _ in self._linked.routines]
        self._depth = np.zeros(lanes, np.int64)
        self._stack: list[dict[int, Lanes]] = []
        self._shadow_stack: list[dict[int, Shadow]] = []
        self._stack_bytes = 0
        if self._linked.recursive:
            machine.frame = np.zeros(lanes, np.uint64)

    def enter(self, number: int, block: Block, mask: Lanes, value: Any) -> list[tuple[int, Lanes]]:
        """Execute the call at the end of a block. `value` has the callee's address and the
        arguments that are values, for the lanes of the selection. Returns the blocks that the lanes
        go to, -1 for the end of the thread, with the lanes of each as masks.
        """
        call = block.call
        assert call is not None
        self._machine.at = block.segment.steps[-1].number
        pointers, values, shadows = value
        if call.callee is not None:
            return [self._enter(number, block, call, call.callee, mask, (values, shadows))]
        machine = self._machine
        wide = np.zeros(machine.batch.lanes, np.uint64)
        wide[machine.selection.ids] = pointers
        entered = []
        for address in np.unique(wide[mask]):
            there = mask & (wide == address)
            callee = self._function_at(int(address), there)
            self._check_prototype(call, callee, there)
            entered.append(self._enter(number, block, call, callee, there, (values, shadows)))
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

    def site(self, routine: int, lane: int) -> int:
        """The block with the call that brought a lane to a routine."""
        return int(self._sites[routine][lane])

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
        self, number: int, block: Block, call: Call, callee: int | Function, mask: Lanes, values: _Values
    ) -> tuple[int, Lanes]:
        arguments = self._arguments(call, mask, *values)
        if isinstance(callee, Function):
            self._outside(call, callee, mask, arguments)
            return block.segment.after, mask
        routine = self._linked.routines[callee]
        source = routine.source
        assert isinstance(source, Function)
        if self._linked.recursive:
            self._push(call, routine, mask)
        self._sites[callee][mask] = number
        if self._machine.definedness is not None:
            lanes, start = self._frame(routine, mask)
            self._machine.definedness.enter(callee, lanes, start)
        for param, (data, bits) in zip(source.params, arguments, strict=True):
            if param.register:
                self._set_slot(self._program.slots[f"{callee}:{param.name}"], mask, data, bits)
            else:
                self._write(routine, param.name, mask, data, bits)
        return self._program.entries[callee], mask

    def _arguments(
        self, call: Call, mask: Lanes, values: tuple[Lanes, ...], shadows: tuple[Shadow | None, ...]
    ) -> list[_Bytes]:
        """The bytes of each argument of a call."""
        machine = self._machine
        count = machine.selection.count
        rest = zip(values, shadows, strict=True)
        arguments: list[_Bytes] = []
        for item, param in zip(call.arguments, call.params, strict=True):
            if isinstance(item, Symbol):
                arguments.append(self._read(call.caller, item.name, mask, param_bytes(param)))
                continue
            value, shadow = next(rest)
            lanes = np.broadcast_to(value, count)
            if shadow is not None:
                origin = self._bytes_of(shadow.origin, mask, 4).view(np.int32)[:, 0]
                shadow = Shadow(self._bytes_of(shadow.bits, mask, lanes.itemsize), origin)
            arguments.append((self._bytes_of(lanes, mask, lanes.itemsize), shadow))
        return arguments

    def _bytes_of(self, lanes: Lanes, mask: Lanes, nbytes: int) -> Lanes:
        """The lowest bytes of the selected lanes' values in the lanes of a mask, `[lanes of mask, bytes]`."""
        wide = np.zeros(self._machine.batch.lanes, lanes.dtype)
        wide[self._machine.selection.ids] = lanes
        whole = wide[mask].view(np.uint8).reshape(-1, lanes.itemsize)
        return np.ascontiguousarray(whole[:, :nbytes])

    def _outside(self, call: Call, function: Function, mask: Lanes, arguments: list[_Bytes]) -> None:
        machine = self._machine
        if machine.definedness is not None:
            for n, (_, bits) in enumerate(arguments):
                if bits is not None and bits.bits.any():
                    machine.definedness.passes(n, function.name, np.flatnonzero(mask), bits)
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
        results = builtin(machine, np.flatnonzero(mask), [data for data, _ in arguments])
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
            self._register(f"{callee}:{p.name}", mask)
            if p.register
            else self._read(routine, p.name, mask, param_bytes(p))
            for p in source.results
        ]
        if self._linked.recursive:
            self._pop(call, routine, mask)
        for item, (data, bits) in zip(call.got, results, strict=True):
            self._put(call, item, mask, data, bits)

    def _put(self, call: Call, item: CallOperand, mask: Lanes, data: Lanes, bits: Shadow | None) -> None:
        """Write a result, `[lanes of mask, bytes]`, to the operand of the call that takes it."""
        if isinstance(item, Symbol):
            self._write(call.caller, item.name, mask, data, bits)
        elif isinstance(item, Reg):
            self._set_slot(call.slots[item.name], mask, data, bits)

    def _set_slot(self, slot: int, mask: Lanes, data: Lanes, bits: Shadow | None) -> None:
        held = self._registers[slot].copy()
        held[mask] = _as_lanes(data, held.dtype)
        self._registers[slot] = held
        shadow = self._shadows[slot]
        if shadow is None and (bits is None or not bits.bits.any()):
            return
        dtype = held.dtype if held.dtype == np.bool_ else bits_dtype(held.itemsize)
        new = (
            Shadow(np.zeros(len(mask), dtype), np.zeros(len(mask), np.int32))
            if shadow is None
            else shadow.copy()
        )
        new.bits[mask] = 0 if bits is None else _as_lanes(bits.bits, dtype)
        if bits is not None:
            new.origin[mask] = bits.origin
        self._shadows[slot] = new

    def _register(self, name: str, mask: Lanes) -> _Bytes:
        slot = self._program.slots[name]
        held, shadow = self._registers[slot][mask], self._shadows[slot]
        if shadow is not None:
            bits = shadow.bits[mask].view(np.uint8).reshape(len(held), -1)
            shadow = Shadow(bits, shadow.origin[mask])
        return held.view(np.uint8).reshape(len(held), -1), shadow

    # ---------------------------------------------------------------------------------- frames

    def _push(self, call: Call, routine: Routine, mask: Lanes) -> None:
        machine = self._machine
        sites = self._sites[routine.number]
        for depth in np.unique(self._depth[mask]):
            lanes = np.flatnonzero(mask & (self._depth == depth))
            while len(self._stack) <= depth:
                self._stack.append({})
            level = self._stack[depth]
            saved = {slot: self._registers[slot] for slot in call.saved}
            for key, held in {**saved, ~routine.number: sites}.items():
                if key not in level:
                    level[key] = np.zeros_like(held)
                    self._stack_bytes += held.nbytes
                level[key][lanes] = held[lanes]
            self._push_shadows(call, int(depth), lanes)
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
            self._pop_shadows(call, int(depth), lanes)
            sites[lanes] = level[~routine.number][lanes]
        for slot, held in fresh.items():
            self._registers[slot] = held

    def _push_shadows(self, call: Call, depth: int, lanes: Lanes) -> None:
        while len(self._shadow_stack) <= depth:
            self._shadow_stack.append({})
        level = self._shadow_stack[depth]
        for slot in call.saved:
            shadow = self._shadows[slot]
            if shadow is not None or slot in level:
                level[slot] = merged_at(level.get(slot), shadow, lanes)  # type: ignore[assignment]

    def _pop_shadows(self, call: Call, depth: int, lanes: Lanes) -> None:
        level = self._shadow_stack[depth]
        for slot in call.saved:
            if self._shadows[slot] is not None or slot in level:
                self._shadows[slot] = merged_at(self._shadows[slot], level.get(slot), lanes)

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
        data: Lanes = memory[lanes[:, None], start[:, None] + np.arange(nbytes)]
        follower = self._machine.definedness
        return data, None if follower is None else follower.frame_bits(lanes, start, nbytes)

    def _write(self, routine: Routine, name: str, mask: Lanes, data: Lanes, bits: Shadow | None) -> None:
        memory, lanes, start = self._rows(routine, name, mask)
        memory[lanes[:, None], start[:, None] + np.arange(data.shape[1])] = data
        if self._machine.definedness is not None:
            self._machine.definedness.set_frame_bits(lanes, start, data.shape[1], bits)


def _sizes(nbytes: list[int]) -> str:
    return f"{', '.join(map(str, nbytes))} bytes" if nbytes else "nothing"


def _as_lanes(data: Lanes, dtype: np.dtype[Any]) -> Lanes:
    """Bytes, `[lanes, bytes]`, as values of a register, cut or filled with zeros."""
    if dtype == np.bool_:
        return np.not_equal(data[:, 0], 0)
    wide = np.zeros((len(data), dtype.itemsize), np.uint8)
    nbytes = min(data.shape[1], dtype.itemsize)
    wide[:, :nbytes] = data[:, :nbytes]
    lanes: Lanes = wide.view(dtype)[:, 0]
    return lanes
