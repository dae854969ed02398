"""The bytes of local memory that have been written: of `.local` variables and, in frames of
functions, of the `.param` variables of calls.

A frame is unwritten at each call. A copy marks its destination as written where its source was: a
call that passes a structure, and a load into registers that only stores read. So copies of
structures with gaps between their fields are accepted, since compilers make them byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.observer import FrameObserver
from ptxgen.interpreter.program.linking import param_bytes, signature
from ptxgen.interpreter.sanitizers.conflicts import Conflict
from ptxgen.ir import Address, Instr, Not, Reg, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptxgen.interpreter.machine.memory import Plan, Space
    from ptxgen.interpreter.program.linking import Linked, Routine
    from ptxgen.interpreter.sanitizers.findings import Findings

    Lanes = np.ndarray[Any, np.dtype[Any]]

_WRITTEN: Final = 0
_NO_VARIABLE: Final = 1  # mark of bytes that belong to no variable
_WIDEST: Final = 16  # bytes of a register

Key = tuple[int, str]  # a register of a routine


@dataclass(slots=True)
class _Held:
    """The contents of a register in each lane of the batch: the marks and the address of the bytes
    that were loaded into it, and the last instruction that loaded it, with the number of bytes.
    """

    at: int
    width: int
    marks: Lanes  # [lanes, _WIDEST]
    address: Lanes


class LocalInit(FrameObserver):
    """The local memory of a batch of `lanes` lanes: for each byte 0 if it has been written, else
    the number of the variable that it belongs to.
    """

    def __init__(self, linked: Linked, lanes: int, faults: Findings) -> None:
        self._faults = faults
        self._lanes = lanes
        self._names = ["", ""]
        self._fresh = [self._frame(routine) for routine in linked.routines]
        nbytes = max(linked.local_bytes, 1)
        self._marks: Lanes = np.full((lanes, nbytes), _NO_VARIABLE, np.int16)
        kernel = self._fresh[-1]
        self._marks[:, : len(kernel)] = kernel
        self._owners = self._marks.copy()  # the marks of unwritten memory
        # In recursion, registers are saved on a stack; their contents then count as written.
        self._follows = not linked.recursive
        self._copies = _copies(linked)
        self._held: dict[Key, _Held] = {}

    def _frame(self, routine: Routine) -> Lanes:
        """The marks of a routine's frame when nothing in it is written."""
        marks = np.full(routine.frame_bytes, _NO_VARIABLE, np.int16)
        results, params = signature(routine.source)
        sizes = {p.name: param_bytes(p) for p in (*results, *params)}
        sizes |= {v.name: v.nbytes for v in routine.source.variables}
        starts = {name: location.value for name, location in routine.symbols.items() if location.framed}
        for name, start in starts.items():
            marks[start : start + sizes[name]] = len(self._names)
            self._names.append(name)
        return marks

    # --------------------------------------------------------------------------------------- calls

    def enter(self, number: int, lanes: Lanes, start: Lanes) -> None:
        """Lanes have called routine `number`; its frame begins at `start` of each lane's local memory."""
        frame = self._fresh[number]
        if len(frame):
            self._grow(int(start.max()) + len(frame))
            where = lanes[:, None], start[:, None] + np.arange(len(frame))
            self._marks[where] = self._owners[where] = frame

    def written(self, lanes: Lanes, start: Lanes, nbytes: int) -> Lanes:
        """Which of the bytes from `start` on have been written, `[lanes, bytes]` bool."""
        marks = self._marks[lanes[:, None], start[:, None] + np.arange(nbytes)]
        return np.equal(marks, _WRITTEN)

    def write(self, lanes: Lanes, start: Lanes, written: Lanes) -> None:
        """A call copies bytes to `start` and after; `written` says which of them have been written."""
        row, column = np.nonzero(written)
        self._marks[lanes[row], start[row] + column] = _WRITTEN

    # ------------------------------------------------------------------------------------- accesses

    def load(self, at: int, ids: Lanes, plan: Plan, space: Space, offset: int, total: int) -> None:
        """Instruction `at` reads `total` bytes at each lane's address: report unwritten bytes,
        unless the registers are only stored again.
        """
        first = self._offsets(ids, plan, space, offset)
        marks = self._marks[ids[:, None], first[:, None] + np.arange(total)]
        if not self._held and not marks.any():
            return
        keys = self._copies.get(at, (None,))
        width = total // len(keys)
        for n, key in enumerate(keys):
            part, where = marks[:, n * width : (n + 1) * width], space.first + first + n * width
            if key is None:
                self._judge(at, ids, part, where)
            else:
                self._hold(key, at, ids, part, where)

    def store(self, at: int, ids: Lanes, plan: Plan, space: Space, offset: int, total: int) -> None:
        """Instruction `at` writes `total` bytes at each lane's address."""
        first = self._offsets(ids, plan, space, offset)
        keys = self._copies.get(at, (None,)) if self._held else (None,)
        width = total // len(keys)
        for n, key in enumerate(keys):
            held = None if key is None else self._held.get(key)
            where = ids[:, None], first[:, None] + np.arange(n * width, (n + 1) * width)
            self._marks[where] = _WRITTEN
            if held is not None:
                unwritten = held.marks[ids, :width] != _WRITTEN
                self._marks[where] = np.where(unwritten, self._owners[where], _WRITTEN)

    def store_elsewhere(self, at: int, ids: Lanes) -> None:
        """Instruction `at` stores registers to other memory: report values of which no byte was
        written. Values of one byte are accepted, since they may be gaps in structures.
        """
        for key in self._copies.get(at, ()) if self._held else ():
            held = None if key is None else self._held.get(key)
            if held is not None and held.width > 1:
                marks = held.marks[ids, : held.width]
                marks = np.where((marks != _WRITTEN).all(axis=1)[:, None], marks, _WRITTEN)
                self._judge(held.at, ids, marks, held.address[ids])

    def _judge(self, at: int, ids: Lanes, marks: Lanes, first: Lanes) -> None:
        if not marks.any():
            return
        lane, byte = (int(n[0]) for n in np.nonzero(marks))
        found = Conflict("uninitialised", lane, 0, -1, -1, "is read before it was written")
        self._faults.memory(
            at,
            found,
            "local",
            int(first[lane]) + byte,
            int(ids[lane]),
            -1,
            region=self._names[int(marks[lane, byte])],
        )

    def _hold(self, key: Key, at: int, ids: Lanes, marks: Lanes, first: Lanes) -> None:
        """Remember the marks of bytes that have been loaded into a register to be stored."""
        held = self._held.get(key)
        if held is None:
            if not self._follows or not marks.any():
                return
            fresh = np.zeros((self._lanes, _WIDEST), np.int16)
            held = self._held[key] = _Held(at, 0, fresh, np.zeros(self._lanes, np.int64))
        held.at, held.width = at, marks.shape[1]
        held.marks[ids] = _WRITTEN
        held.marks[ids, : held.width] = marks
        held.address[ids] = first

    def loaded_elsewhere(self, at: int, ids: Lanes) -> None:
        """Instruction `at` loads registers from other memory."""
        for key in self._copies.get(at, ()) if self._held else ():
            held = None if key is None else self._held.get(key)
            if held is not None:
                held.marks[ids] = _WRITTEN

    def _offsets(self, ids: Lanes, plan: Plan, space: Space, offset: int) -> Lanes:
        """The offset of the first byte that each lane accesses in its local memory."""
        flat = plan.relative + (plan.low + offset - space.first)
        if plan.mask is not None:
            flat = flat[plan.mask]
        first: Lanes = flat - ids * space.stride
        return first

    def _grow(self, nbytes: int) -> None:
        """Extend the marks to at least `nbytes` of local memory."""
        missing = nbytes - self._marks.shape[1]
        if missing > 0:
            missing = max(missing, self._marks.shape[1])
            wider = (0, 0), (0, missing)
            self._marks = np.pad(self._marks, wider, constant_values=_NO_VARIABLE)
            self._owners = np.pad(self._owners, wider, constant_values=_NO_VARIABLE)


def _copies(linked: Linked) -> dict[int, tuple[Key | None, ...]]:
    """For each load and store, by number, the registers that hold its values; None for a register
    that other instructions use, too.
    """
    found: dict[int, tuple[Key | None, ...]] = {}
    before = 0
    for routine in linked.routines:
        instrs = [s for s in routine.source.body or () if isinstance(s, Instr)]
        results, params = signature(routine.source)
        used = {p.name for p in (*results, *params) if p.register}
        for instr in instrs:
            used.update(_used(instr))
        for n, instr in enumerate(instrs, before):
            value = _value(instr)
            if value is not None:
                items = value.items if isinstance(value, Vector) else (value,)
                found[n] = tuple(
                    (routine.number, item.name) if isinstance(item, Reg) and item.name not in used else None
                    for item in items
                )
        before += len(instrs)
    return found


def _value(instr: Instr) -> object:
    """The operand that a load or store moves; None for other instructions."""
    head = instr.opcode.partition(".")[0]
    if head not in ("ld", "st"):
        return None
    return next((o for o in instr.operands if not isinstance(o, Address)), None)


def _used(instr: Instr) -> Iterator[str]:
    """The registers that an instruction uses, except as the value of a load or store."""
    if instr.guard is not None:
        yield instr.guard.register.name
    value = _value(instr)
    for operand in instr.operands:
        if operand is not value:
            yield from _registers(operand)


def _registers(operand: object) -> Iterator[str]:
    if isinstance(operand, Reg):
        yield operand.name
        return
    if isinstance(operand, Not):
        yield operand.register.name
    parts = getattr(operand, "items", None)
    if not isinstance(parts, tuple):
        names = ("base", "first", "second")
        parts = tuple(getattr(operand, name, None) for name in names)
        parts += tuple(getattr(operand, "coordinates", ()))
    for part in parts:
        if part is not None:
            yield from _registers(part)
