"""A recorded walk: what a debugger shows of one warp at each of its instructions, as data of a report."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen import interpreter
from ptxgen.debugger.session import QuitError, Session
from ptxgen.debugger.source_map import SourceMap
from ptxgen.debugger.tables import barriers
from ptxgen.errors import LaunchError
from ptxgen.interpreter import DeviceArena, Result
from ptxgen.interpreter.arguments import Argument, extents
from ptxgen.interpreter.debugging import Debugger
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.parse import parse
from ptxgen.report.collect import Subject, block_of, kernel_of
from ptxgen.report.data import Walk, WalkRegister, WalkStep

if TYPE_CHECKING:
    from ptxgen.debugger.moment import Moment

    Lanes = np.ndarray[Any, np.dtype[Any]]

MOST_STEPS: Final = 2000
MOST_BYTES: Final = 150_000  # of recorded registers and shared memory, as text
_REPORT: Final = "report: "  # begins a session's reason to stop for a report of a sanitizer
_END: Final = "the kernel has ended"  # and at its end
_WORD: Final = 4  # bytes of shared memory that are recorded together


def recorded_walk(subject: Subject, thread: Sequence[int] = (0,), cta: Sequence[int] = (0,)) -> Walk:
    """The recorded steps of the warp that has thread `thread` of CTA `cta`, both of 1 to 3 indices, x first.
    All sanitizers watch the run, and the walk has their reports on any warp. It ends with the warp, or after
    `MOST_STEPS` steps or `MOST_BYTES`.

    Raises `LaunchError` for a subject without a launch, and for a thread or a CTA that the launch does not
    have; `ParseError` for text that is no PTX.
    """
    if subject.launch is None:
        raise LaunchError("a walk needs a launch: pass the grid and the arguments, or an example")
    text = subject.module if isinstance(subject.module, str) else None
    module = parse(text) if text is not None else subject.module
    assert not isinstance(module, str)
    launch, kernel = subject.launch, kernel_of(module, subject.entry)
    block = block_of(kernel, subject.block)
    numbers = _number("thread", thread, block), _number("CTA", cta, extents(kernel, launch.grid, block, 1)[0])
    smem = launch.dynamic_smem if launch.dynamic_smem is not None else kernel.dynamic_shared_bytes

    def run(debugger: Debugger, args: Sequence[Argument], arena: DeviceArena) -> Result:
        return interpreter.run(
            module,
            kernel.name,
            grid=launch.grid,
            block=block,
            cluster=launch.cluster,
            args=args,
            dynamic_smem=smem,
            sanitize=True,
            arena=arena,
            raise_on_report=False,
            debugger=debugger,
        )

    recorder = _Recorder(*numbers)
    names = [param.name for param in kernel.params]
    sources = SourceMap(module, subject.renamed, text)
    recorder.session = Session(launch.args, names, sources, run, recorder.stopped)
    recorder.session.debug()
    return Walk(
        _index(numbers[1], extents(kernel, launch.grid, block, 1)[0]),
        numbers[0] // WARP,
        numbers[0] % WARP,
        tuple(recorder.registers.values()),
        tuple(recorder.barriers),
        tuple(recorder.steps),
        recorder.ended,
    )


def _number(noun: str, index: Sequence[int], sizes: tuple[int, int, int]) -> int:
    x, y, z = (*index, 0, 0)[:3]
    if not all(0 <= n < size for n, size in zip((x, y, z), sizes, strict=True)):
        raise LaunchError(f"there is no {noun} {(x, y, z)} to record; the launch has {sizes}")
    return x + sizes[0] * (y + sizes[1] * z)


def _index(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


@dataclass
class _Recorder:
    """Goes on at each stop of a session to the next instruction of a warp, and notes what has changed."""

    thread: int
    cta: int
    session: Session = field(init=False)
    registers: dict[str, WalkRegister] = field(default_factory=dict)
    barriers: dict[str, int] = field(default_factory=dict)
    steps: list[WalkStep] = field(default_factory=list)
    ended: str = "the warp has ended"
    _written: list[str] = field(default_factory=list)  # by the step before
    _shared: Lanes | None = None
    _reports: list[str] = field(default_factory=list)
    _nbytes: int = 0

    def stopped(self) -> None:
        """Note a step, and go on; ends the session at the end of the walk."""
        session = self.session
        self._reports += [why.removeprefix(_REPORT) for why in session.reasons if not why.startswith(_END)]
        session.thread, session.cta = self.thread, self.cta
        if session.ended:
            if self._reports and self.steps:  # a failure, in an instruction of any warp
                self.steps.append(WalkStep(0, 0, (), (), self._barriers(), self._taken()))
                self.ended = "the kernel fails"
            raise QuitError
        if not session.inside and session.is_here():
            assert session.now is not None
            self._note(session.now)
        session.step()

    def _note(self, now: Moment) -> None:
        if len(self.steps) == MOST_STEPS or self._nbytes > MOST_BYTES:
            self.ended = f"the first {len(self.steps):,} steps are recorded"
            raise QuitError
        first = (self.session.lane() or 0) // WARP * WARP
        here = slice(first, first + min(WARP, now.batch.threads - first % now.batch.width))
        changed = tuple(self._register(now, name, here) for name in self._written)
        self._written = [reg.name for reg in now.step.written]
        words = tuple(self._words(now))
        self._nbytes += sum(len(values) for _, values in (*changed, *words))
        active = sum(1 << n for n in np.flatnonzero(now.mask[here]).tolist())
        line = self.session.map.ptx_line(now.instr)
        self.steps.append(WalkStep(line, active, changed, words, self._barriers(), self._taken()))

    def _register(self, now: Moment, name: str, here: slice) -> tuple[int, str]:
        lanes = now.register(name)[here]
        new = WalkRegister(name, lanes.dtype.str.lstrip("<|"), len(self.registers))
        one = self.registers.setdefault(name, new)
        return one.number, packed(lanes)

    def _words(self, now: Moment) -> list[tuple[int, str]]:
        """The words of the CTA's shared memory that have changed since the step before: neighbours together,
        with the first byte's position.
        """
        batch = now.batch
        start = (self.cta - batch.first) * batch.shared_stride
        nbytes = batch.shared_bytes // _WORD * _WORD
        held = now.machine.shared.window.data[start : start + nbytes].view(np.uint32).copy()
        before, self._shared = self._shared, held
        if before is None:
            return []
        at = np.flatnonzero(held != before)
        runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if at.size else []
        return [(int(of[0]) * _WORD, _text(held[of])) for of in runs]

    def _barriers(self) -> int:
        words = "\n".join(barriers(self.session))
        return self.barriers.setdefault(words, len(self.barriers))

    def _taken(self) -> tuple[str, ...]:
        reports, self._reports = tuple(self._reports), []
        return reports


def packed(lanes: Lanes) -> str:
    """The values of a register in all lanes of a warp as text: bytes in base64. After `=` they are the one
    value that all lanes have; after `+` the value of lane 0, and the difference of each lane from the
    previous one; else the value of each lane. Predicates are one word with a bit for each lane.
    """
    if lanes.dtype == np.bool_:
        return "=" + _text(np.array([sum(1 << n for n in np.flatnonzero(lanes).tolist())], np.uint32))
    bits = lanes.view(f"u{lanes.itemsize}")
    if (bits == bits[0]).all():
        return "=" + _text(bits[:1])
    steps = np.diff(bits)
    if lanes.dtype.kind in "iu" and (steps == steps[0]).all():
        return "+" + _text(np.array([bits[0], steps[0]], bits.dtype))
    return _text(bits)


def _text(values: Lanes) -> str:
    return base64.b64encode(values.tobytes()).decode()
