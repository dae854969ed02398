"""The undefined bits of the memory that one batch of CTAs uses, the copies between memories, and what leaves
the kernel.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine import boxes
from ptxgen.interpreter.machine.address_map import SHARED_WINDOW, WINDOW_BYTES, WINDOWS
from ptxgen.interpreter.machine.memory import in_cluster, in_own_cta
from ptxgen.interpreter.machine.shadows import Shadow
from ptxgen.interpreter.sanitizers.shadow_machine import ShadowMachine
from ptxgen.interpreter.sanitizers.undefined_memory import UndefinedMemory
from ptxgen.interpreter.sanitizers.undefined_tensor import UndefinedTensor
from ptxgen.isa.table import op_of
from ptxgen.types import TYPES, b8

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.memory import Address, Plan, Space
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.interpreter.sanitizers.undefined_arrays import UndefinedArrays
    from ptxgen.isa.tensor_agent import Operation
    from ptxgen.tensormap import TensorMap

    Lanes = np.ndarray[Any, np.dtype[Any]]

_CHUNK: Final = 16  # bytes of a unit of a box
_ABSENT: Final = "what a lane holds that does not take part, or is not in the membermask"


class UndefinedPlaces:
    """The undefined bits of shared and local memory; `arrays` has those of global memory, and all origins."""

    def __init__(
        self, machine: LaneMachine, faults: Findings, arrays: UndefinedArrays, frames: tuple[int, ...]
    ) -> None:
        self._machine = machine
        self._faults = faults
        self._arrays = arrays
        self._frames = frames  # by routine: the bytes of its frame
        self.moved = False
        batch = machine.batch
        self.shared = UndefinedMemory(0, len(machine.shared.window.data), undefined=True)
        if batch.reserved_bytes:
            self.shared.bits.reshape(batch.ctas, -1)[:, : batch.reserved_bytes] = 0
        local = machine.spaces["local"]
        self._local = UndefinedMemory(local.window.base, len(local.window.data), undefined=True)
        self._carry: Lanes = np.zeros(batch.lanes, np.bool_)

    def leaves(self, address: int, lane: int, nbytes: int) -> None:
        """A lane passes bytes at a generic address to the outside."""
        location = self._at(address, lane)
        if location is None:
            return
        memory, position = location
        wrong = memory.bits[position : position + nbytes]
        if memory.some and wrong.any():
            byte = position + int((wrong != 0).argmax())
            at = self._machine.at
            origin = int(memory.origins[byte // 4]) or self._unwritten_generic(
                address + byte - position, lane
            )
            self._arrays.report(self._faults, at, lane, "what it prints", origin)

    def passes(self, number: int, function: str, ids: Lanes, bits: Shadow) -> None:
        """Report that lanes call a function outside of the program with an undefined argument."""
        row = int((bits.bits != 0).any(axis=1).argmax())
        origin = int(bits.origin[row])
        at = self._machine.at
        if not origin:
            what = f"argument {number} of {function}, which nothing has written"
            origin = self._arrays.origin(at, "uninitialised", "param", 0, "", what)
        self._arrays.report(self._faults, at, int(ids[row]), f"argument {number} of {function}", origin)

    # -------------------------------------------------------------------------------------- memory

    @functools.cached_property
    def tensor(self) -> UndefinedTensor:
        """The undefined bits of tensor memory."""
        machine = self._machine
        return UndefinedTensor(self, machine.batch.ctas, machine.shared.stride)

    def starts(self, ctas: tuple[int, ...], operation: Operation) -> None:
        """An operation on the tensor memory and the shared memory of CTAs has started."""
        self.tensor.starts(ctas, operation, self.shared)

    def unwritten_tensor(self, address: int) -> int:
        """The origin of a cell of tensor memory that nothing has written."""
        return self._arrays.unwritten(self._machine.at, "tensor", address, "")

    def _memory(self, plan: Plan, needed: bool) -> UndefinedMemory | None:
        """The undefined bits of the memory of a plan; None if it has none, unless they are `needed`."""
        if plan.watched:
            return self.shared
        if plan.buffer is not None:
            return self._arrays.of(plan.buffer, needed=needed)
        if plan.window is self._machine.spaces["local"].window:
            return self._local
        return None

    def loads(self, plan: Plan, offset: int, total: int) -> None:
        """An instruction reads memory."""
        if not self.moved:
            memory = self._memory(plan, False)
            self.moved = memory is not None and memory.any(plan, offset, total)

    def stores(self, plan: Plan, offset: int, total: int) -> None:
        """An instruction has written memory."""
        memory = self._memory(plan, False)
        if memory is not None:
            memory.clear(plan, offset, total)

    def reads_matrices(self, words: Lanes, rows: Lanes, bases: Lanes, nbytes: int) -> None:
        """Warps read `nbytes` of shared memory at each of the addresses of their rows of `words`, in CTAs
        whose memory begins at these positions.
        """
        if self.shared.some and not self.moved:
            if not self.shared.any_between(np.unique(bases), int(words.min()), int(words.max()) + nbytes):
                return
            units = self.shared.window.elements(np.dtype(f"u{nbytes}"), 1, 0)
            # Many warps read the same matrix of their CTA.
            each, cells = np.unique(bases // nbytes * len(words) + rows), words // nbytes
            self.moved = bool(units[cells[each % len(words)] + (each // len(words))[:, None]].any())

    def stored(self, lane: int) -> None:
        """Record that a lane has stored undefined bits in an array."""
        self._arrays.stored(self._faults, self._machine.at, lane)

    def absent(self) -> None:
        """Note that lanes read the register of a lane that does not take part."""
        self.moved = True

    def from_local(self, origins: Lanes) -> Lanes:
        """Which of these origins are unwritten local memory, bool."""
        return self._arrays.from_local(origins)

    def from_absent(self) -> int:
        """The origin of what the running instruction has read from lanes that do not take part."""
        return self._arrays.origin(self._machine.at, "undefined", "register", 0, "", _ABSENT)

    def _born(self, plan: Plan, offset: int, total: int, lanes: Lanes) -> Lanes:
        """The origin of bytes that nothing has written, for the lanes that read them."""
        machine = self._machine
        lane = int(lanes.argmax())
        memory = self._memory(plan, False)
        assert memory is not None
        first = int(plan.relative[lane]) + plan.low + offset
        bits = memory.bits[first - memory.base : first - memory.base + total]
        first += int((bits != 0).argmax())
        thread = int(machine.selection.ids[lane])
        if plan.watched:
            number = self._unwritten_at(machine.at, "shared", first % machine.shared.stride, thread)
        elif plan.buffer is not None:
            number = self._arrays.unwritten(machine.at, "global", first, plan.buffer.name)
        else:
            local = machine.spaces["local"]
            number = self._unwritten_at(machine.at, "local", first - thread * local.stride, thread)
        return np.full(machine.selection.count, number, np.int32)

    def unwritten_shared(self, position: int) -> int:
        """The origin of a byte at a position in shared memory, which nothing has written."""
        cta, address = divmod(position, self._machine.shared.stride)
        return self._unwritten_at(self._machine.at, "shared", address, cta * self._machine.batch.width)

    def _unwritten_at(self, at: int, space: str, address: int, lane: int) -> int:
        name = self._faults.region(address) if space == "shared" else ""
        if space == "local":
            offset = address - self._machine.spaces["local"].first
            frame = self._machine.frame
            name = self._arrays.local_name(offset - (0 if frame is None else int(frame[lane])), at)
        return self._arrays.unwritten(at, space, address, name)

    def _unwritten_generic(self, address: int, lane: int) -> int:
        """The origin of an unwritten byte at a generic address."""
        at, machine = self._machine.at, self._machine
        buffer = machine.arena.find(address, address + 1)
        if buffer is not None:
            return self._arrays.unwritten(at, "global", address, buffer.name)
        if WINDOWS["local"] <= address < WINDOWS["local"] + WINDOW_BYTES:
            return self._unwritten_at(at, "local", address - WINDOWS["local"], lane)
        return self._unwritten_at(
            at, "shared", in_own_cta(machine.batch, lane, address - SHARED_WINDOW), lane
        )

    def _at(self, address: int, lane: int) -> tuple[UndefinedMemory, int] | None:
        """The undefined bits of the memory at a generic address of a lane, and the position in them."""
        machine = self._machine
        buffer = machine.arena.find(address, address + 1)
        if buffer is not None:
            memory = self._arrays.of(buffer, needed=False)
            return None if memory is None else (memory, address - memory.base)
        local, first = machine.spaces["local"], WINDOWS["local"]
        if first <= address < first + WINDOW_BYTES:
            return self._local, address - first - local.first + lane * local.stride
        if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
            offset, cta = in_cluster(machine.batch, lane, address - SHARED_WINDOW)
            return self.shared, cta * machine.batch.shared_stride + offset
        return None

    # --------------------------------------------------------------------------------------- copies

    def copies(self, plan: Plan, offset: int, nbytes: int, src: Address, src_nbytes: Lanes | None) -> None:
        """Carry over the undefined bits of a `cp.async` to shared memory that has started."""
        self.shared.clear(plan, offset, nbytes)
        if not self._arrays.some:
            return
        machine = self._machine
        count = machine.selection.count
        op = op_of(self._faults.instrs[machine.at])
        reader = ShadowMachine(machine, op, self._memory, self._born, np.zeros(count, np.int32))
        sizes = np.full(count, nbytes) if src_nbytes is None else np.broadcast_to(src_nbytes, count)
        octets = np.zeros((count, nbytes), np.uint8)
        for n in range(nbytes):
            here = machine.active() & (sizes > n)
            if here.any():
                load = functools.partial(reader.load, "global", src.base.at(src.offset + n), b8, 1)
                octets[:, n] = np.where(here, machine.with_mask(here, load)[0], 0)
        if octets.any():
            parts = tuple(np.ascontiguousarray(octets.view(np.uint32)).T)
            parts = tuple(np.ascontiguousarray(part) for part in parts)
            self.shared.store(plan, offset, TYPES["b32"], parts, reader.met, machine.at)

    def receives(self, position: int, nbytes: int, source: int | None = None) -> None:
        """Carry over the undefined bits of a copy to shared memory that has started."""
        location = None if source is None or not self._arrays.some else self._at(source, 0)
        self._write_shared(slice(position, position + nbytes), location, nbytes)

    def sends(self, target: int, source: int, nbytes: int, *, reduces: bool) -> None:
        """Carry over the undefined bits of a copy between two positions in shared memory."""
        self._write_shared(slice(target, target + nbytes), (self.shared, source), nbytes, adds=reduces)

    def _write_shared(
        self, index: slice, location: tuple[UndefinedMemory, int] | None, nbytes: int, *, adds: bool = False
    ) -> None:
        if not self.shared.some and (location is None or not location[0].some):
            return
        bits: Any = 0
        if location is not None:
            memory, first = location
            bits = memory.bits[first : first + nbytes].copy()
            if bits.any():
                origin = int(memory.origins[first // 4]) or self._arrays.unwritten(
                    self._machine.at, "shared", first % self._machine.shared.stride, ""
                )
                self.shared.mark(np.arange(index.start, index.stop), origin, self._machine.at)
        self.shared.write(index, bits, adds=adds)

    def writes_back(self, target: int, source: int, nbytes: int, *, reduces: bool) -> None:
        """Carry over the undefined bits of a copy from shared to global memory."""
        bits = self.shared.bits[source : source + nbytes] if self.shared.some else np.zeros(nbytes, np.uint8)
        buffer = self._machine.arena.find(target, target + nbytes)
        some = bool(bits.any())
        memory = None if buffer is None else self._arrays.of(buffer, needed=some)
        if memory is None:
            return
        first = target - memory.base
        memory.write(slice(first, first + nbytes), bits, adds=reduces)
        if some:
            self._mark_sent(memory, first + np.flatnonzero(bits), source + np.flatnonzero(bits))

    def _mark_sent(self, memory: UndefinedMemory, to: Lanes, source: Lanes) -> None:
        """Note the origins of bytes that a copy takes from shared memory."""
        machine = self._machine
        position = int(source[0])
        origins = self.shared.origins[source // 4]
        if not origins.all():
            address = position % machine.shared.stride
            lane = position // machine.shared.stride * machine.batch.width
            origins = np.where(origins > 0, origins, self._unwritten_at(machine.at, "shared", address, lane))
        memory.mark(to, origins, machine.at)
        lane = int(machine.active_ids(machine.mask)[0])
        self._arrays.stored(self._faults, machine.at, lane)

    def receives_box(self, image: Lanes, of: TensorMap, part: Any) -> None:
        """Carry over the undefined bits of a box that is loaded to these units of shared memory."""
        bits = boxes.chunks_of(of, np.zeros(of.box_shape[::-1], np.uint8), 0xFF) if of.spaced else None
        source = None if part is None or not self._arrays.some else self._at(part.first, 0)
        if source is not None and source[0].some:
            memory, first = source
            box = np.zeros(of.box_shape[::-1], f"u{of.type.nbytes}")
            data = memory.bits[first : first + part.last - part.first]
            box[part.inside] = boxes.elements_of(of, part, data, part.first)
            bits = boxes.chunks_of(of, box, 0xFF)
            if bits.any():
                index = (image[:, None] * _CHUNK + np.arange(_CHUNK))[bits != 0]
                origin = int(memory.origins[first // 4 : (first + part.last - part.first) // 4 + 1].max())
                self.shared.mark(index, origin, self._machine.at)
        if bits is not None:
            self.shared.write(image[:, None] * _CHUNK + np.arange(_CHUNK), bits)
        elif self.shared.some:
            self.shared.clear_chunks(image)

    def writes_box_back(self, image: Lanes, of: TensorMap, part: Any, *, reduces: bool) -> None:
        """Carry over the undefined bits of a box that is stored from these units of shared memory."""
        index = image[:, None] * _CHUNK + np.arange(_CHUNK)
        width = of.type.nbytes
        shape = of.box_shape[::-1]
        bits = self.shared.bits[index].reshape(-1).view(f"u{width}").reshape(shape)[part.inside]
        some = self.shared.some and bool(bits.any())
        buffer = self._machine.arena.find(part.first, part.last)
        memory = None if buffer is None else self._arrays.of(buffer, needed=some)
        if memory is None:
            return
        first = part.first - memory.base
        data = memory.bits[first : first + part.last - part.first]
        elements = boxes.elements_of(of, part, data, part.first)
        elements[...] = elements | bits if reduces else bits
        memory.some = memory.some or some
        if some:
            positions = index.reshape(-1)[::width].reshape(shape)[part.inside][bits != 0]
            to = np.arange(len(data)) if elements.size == len(data) else np.flatnonzero(data)
            to = to[data[to] != 0]
            self._mark_sent(memory, first + to, np.resize(positions, len(to)))

    # ---------------------------------------------------------------------------------------- calls

    def enter(self, number: int, lanes: Lanes, start: Lanes) -> None:
        """Mark the frames of a routine that lanes have called as unwritten."""
        nbytes = self._frames[number]
        if nbytes:
            index = self._frame(lanes, start, nbytes)
            self._local.write(index, 0xFF)
            self._local.mark(index, 0, 0)

    def frame_bits(self, lanes: Lanes, start: Lanes, nbytes: int) -> Shadow | None:
        """The undefined bits of the bytes of frames, `[lanes, bytes]`."""
        index = self._frame(lanes, start, nbytes)
        bits = self._local.bits[index]
        if not self._local.some or not bits.any():
            return None
        return Shadow(bits, self._local.origins[index // 4].max(axis=1))

    def set_frame_bits(self, lanes: Lanes, start: Lanes, nbytes: int, bits: Shadow | None) -> None:
        """Set the undefined bits of bytes that a call has copied to frames."""
        index = self._frame(lanes, start, nbytes)
        self._local.write(index, 0 if bits is None else bits.bits)
        self._local.mark(index, 0 if bits is None else bits.origin[:, None], 0)

    def _frame(self, lanes: Lanes, start: Lanes, nbytes: int) -> Lanes:
        stride = self._machine.spaces["local"].stride
        index: Lanes = (lanes * stride + start)[:, None] + np.arange(nbytes)
        return index

    def grown(self, old: Space, new: Space) -> None:
        """Keep the undefined bits of the local memory of each lane, which has grown."""
        before = self._local
        self._local = UndefinedMemory(new.window.base, len(new.window.data), undefined=True)
        lanes = self._machine.batch.lanes
        self._local.bits.reshape(lanes, -1)[:, : old.stride] = before.bits.reshape(lanes, -1)
        for mine, theirs in ((self._local.origins, before.origins), (self._local.writers, before.writers)):
            words = mine[: lanes * new.stride // 4].reshape(lanes, -1)
            words[:, : old.stride // 4] = theirs[: lanes * old.stride // 4].reshape(lanes, -1)
