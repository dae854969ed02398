"""A debugged launch: it stops where it is told to, and goes back by running again from the start.

A run is exact: the same launch executes the same instructions in the same order. They are counted, an
instruction of all warps that execute it at once being one event, so an event's number says where a run is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from ptxgen.debugger.expressions import Expression, scalar
from ptxgen.debugger.memory import Cell, bytes_at
from ptxgen.debugger.moment import Moment
from ptxgen.debugger.source_map import SourceMap, Target
from ptxgen.errors import LaunchError, TrapError
from ptxgen.frontends.program import arrays_of
from ptxgen.interpreter import DeviceArena, Result
from ptxgen.interpreter.arguments import Argument
from ptxgen.interpreter.debugging import DebuggedScheduler, Debugger
from ptxgen.report.arguments import copies

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.program.stepwise import State
    from ptxgen.interpreter.reports import Report

Index = tuple[int, int, int]
Run = Callable[[Debugger, Sequence[Argument], DeviceArena], Result]

_FIRST: Final = 1  # the number of the first event
# The thread that a TrapError names first (`ptxgen.interpreter.machine.faults`).
_NAMED: Final = re.compile(r"\bthread \((\d+), (\d+), (\d+)\) of CTA \((\d+), (\d+), (\d+)\)")


class QuitError(Exception):
    """The user ends the session."""


class _AgainError(Exception):
    """The run is to begin again."""


@dataclass(frozen=True)
class Breakpoint:
    """Stops where threads come to a line: any, or those of a `thread` or a `cta`, by their numbers, for which
    the condition holds. `text` is what the user wrote.
    """

    text: str
    target: Target
    thread: int | None = None
    cta: int | None = None
    condition: Expression | None = None

    def __str__(self) -> str:
        return self.text


@dataclass
class Watch:
    """Stops where the bytes of a cell of memory change. `seen` are those at the event before; None before the
    first one.
    """

    cell: Cell
    seen: bytes | None = None

    def __str__(self) -> str:
        return f"watch {self.cell}"


@dataclass
class _Aim:
    """Where a run is to stop: at event number `event`, or where `here` holds; a `quiet` one nowhere else.

    If `last` is true, the run goes on to `event`, and then goes back to the last event before it for which
    `here` held, or, without `here`, at which it would have stopped; `last_event` is that event, and `why` the
    reasons for the stop, in words.
    """

    event: int = 0
    here: Callable[[], bool] | None = None
    quiet: bool = False
    last: bool = False
    last_event: int = 0
    why: list[str] = field(default_factory=list)

    @property
    def listens(self) -> bool:
        """Whether breakpoints, changes and reports count."""
        return not self.quiet or (self.last and self.here is None)


class Session(Debugger):
    """A debugged launch of a kernel. `debug` runs it with copies of `args`, and at each stop calls `stopped`,
    which says where to go on by one of the methods for that, and returns.

    `names` are the names of the arguments; `readable` gives a text with the names of the source instead of
    the symbols of PTX. `event` is the number of the event that is about to run; `inside`
    says that it has begun, since a sanitizer has reported something or the kernel has failed. `reasons` are
    those of the stop, in words; `ended` says that the run is over, `failed` that it had a report or an
    error. `thread` is the number in its CTA of the thread that is looked at, `cta` that of its CTA in the
    grid.
    `mbarriers` are the positions of those that have been initialised in the batch's shared memory.
    """

    def __init__(
        self,
        args: Sequence[Argument],
        names: Sequence[str],
        source_map: SourceMap,
        run: Run,
        stopped: Callable[[], None],
        readable: Callable[[str], str] = str,
    ) -> None:
        self.map = source_map
        self.readable = readable
        self.breakpoints: dict[int, Breakpoint | Watch] = {}
        self.thread = self.cta = 0
        self._given = args
        self.names = names
        self._run = run
        self._stopped = stopped
        self._aim = _Aim(event=_FIRST)
        self._made = 0
        self._begin_run()

    def _begin_run(self) -> None:
        self.event = 0
        self.inside = self.ended = self.failed = False
        self.reasons: list[str] = []
        self.scheduler: DebuggedScheduler | None = None
        self.now: Moment | None = None
        self.mbarriers: set[int] = set()
        self._early: list[str] = []  # reports before the first event
        self.args = copies(self._given)
        self.arena = DeviceArena()
        for watch in self._watches.values():
            watch.seen = None

    def debug(self, *, stays: bool = False) -> None:
        """Run until the user quits; if it `stays`, a KeyboardInterrupt stops the run where it is. Raises what
        the run raises, except `TrapError`.
        """
        while True:
            self._begin_run()
            try:
                self._once()
            except _AgainError:
                continue
            except QuitError:
                return
            except KeyboardInterrupt:
                if not self.event or not stays:
                    raise
                self._aim = _Aim(event=self.event, quiet=True, why=["interrupted"])

    def _once(self) -> None:
        """Run once; stop at the end, until the user goes elsewhere."""
        try:
            result = self._run(self, self.args, self.arena)
            count = len(result.reports)
            words = f"; the sanitizers have {count} report{'s' * (count > 1)}" if count else ""
            words = f"the kernel has ended{words}"
        except TrapError as error:
            self.inside = self.failed = True
            words = f"the kernel fails: {error}"
        self.ended = True
        if self._aim.last:
            self._go_back()
        if self.inside:
            self._look_at_fault(words)
        self.reasons = [*self._changes(tell=True), words]
        while True:
            self._stopped()

    def _look_at_fault(self, words: str) -> None:
        """Look at the thread that a failure names, or at one that waits in the instruction that it names."""
        if self.scheduler is None:
            return
        named = _NAMED.search(words)
        if named is not None:
            x, y, z, *cta = map(int, named.groups())
            self.cta = self.cta_number(cta)
            self.thread = self.thread_number((x, y, z))
            return
        for stand in self.scheduler.stands():
            if stand.waits and stand.at == self.scheduler.machine.at:
                self.look_at(int(np.flatnonzero(stand.mask)[0]))
                return

    # --------------------------------------------------------------------------------- where to go on

    def restart(self) -> NoReturn:
        """Run again from the start, to the first event."""
        self._again(_Aim(event=_FIRST))

    def go(self) -> None:
        """Run to the next stop."""
        self._on(_Aim())

    def step(self) -> None:
        """Run to the next instruction of the warp that is looked at."""
        self._on(_Aim(here=self.is_here))

    def next(self) -> None:
        """Run to the next line of the source, else of PTX, that the warp comes to."""
        at = None if self.now is None else self.map.line_of(self.now.instr)

        def elsewhere() -> bool:
            return self.is_here() and self.now is not None and self.map.line_of(self.now.instr) != at

        self._on(_Aim(here=elsewhere))

    def back(self) -> NoReturn:
        """Go back to the last instruction of the warp before this point."""
        self._again(_Aim(event=self._point(), here=self.is_here, quiet=True, last=True))

    def reverse(self) -> NoReturn:
        """Go back to the last stop at a breakpoint, a change or a report before this point."""
        self._again(_Aim(event=self._point(), quiet=True, last=True))

    def _on(self, aim: _Aim) -> None:
        if self.ended:
            raise LaunchError("the kernel has ended; run begins again, back and reverse go back")
        self._aim = aim

    def _again(self, aim: _Aim) -> NoReturn:
        self._aim = aim
        raise _AgainError

    def _point(self) -> int:
        """The event that one before is wanted of; that which has begun counts as one before."""
        return self.event + (self.inside or self.ended)

    def _go_back(self) -> NoReturn:
        last, why = self._aim.last_event, self._aim.why
        self._again(_Aim(event=last or _FIRST, quiet=True, why=why if last else ["nothing is earlier"]))

    # ------------------------------------------------------------------------------------ where to stop

    def add(self, point: Breakpoint | Watch) -> int:
        """Add a breakpoint or a watch; returns its number."""
        self._made += 1
        self.breakpoints[self._made] = point
        if isinstance(point, Watch):
            point.seen = self.bytes_of(point.cell)
        return self._made

    @property
    def _watches(self) -> Mapping[int, Watch]:
        return {n: point for n, point in self.breakpoints.items() if isinstance(point, Watch)}

    def _changes(self, *, tell: bool) -> list[str]:
        """The watched cells that have changed since the event before, in words, if these are asked for."""
        changed = []
        for number, watch in self._watches.items():
            before, watch.seen = watch.seen, self.bytes_of(watch.cell)
            if not tell or before is None or watch.seen is None or before == watch.seen:
                continue
            old, new = (np.frombuffer(held, watch.cell.dtype)[0] for held in (before, watch.seen))
            changed.append(f"watch {number}: {watch.cell}: {old} -> {new}{self._writer(watch.cell)}")
        return changed

    def _writer(self, cell: Cell) -> str:
        """Which instruction may have changed a cell, and which thread: the last event, and the last of its
        threads that address the cell.
        """
        if self.now is None:
            return ""
        lanes = self.now.writers(cell)
        words = "".join(f"\n  {line}" for line in self.map.words(self.now.instr))
        if not lanes:
            return words
        self.look_at(lanes[-1])
        return f", by {self.name()} in{words}"

    def _hits(self) -> list[str]:
        """The breakpoints at this event, in words. If they do not hold for the thread that is looked at, it
        becomes another one.
        """
        assert self.now is not None
        hits: list[str] = []
        for number, point in self.breakpoints.items():
            if isinstance(point, Watch) or id(self.now.instr) not in point.target.starts:
                continue
            try:
                lanes = self._lanes_of(point, self.now)
            except LaunchError as error:
                hits.append(f"breakpoint {number}: {point}: the condition has no value: {error}")
                continue
            if lanes:
                if not hits and self.lane() not in lanes:
                    self.look_at(lanes[0])
                hits.append(f"breakpoint {number}: {point}")
        return hits

    def _lanes_of(self, point: Breakpoint, now: Moment) -> list[int]:
        """The lanes that are about to execute an instruction and that a breakpoint holds for."""
        batch, mask = now.batch, now.mask
        if point.cta is not None:
            mask = mask & (batch.numbers // batch.width == point.cta - batch.first)
        if point.thread is not None:
            mask = mask & (batch.numbers % batch.width == point.thread)
        lanes: list[int] = np.flatnonzero(mask).tolist()
        if point.condition is None:
            return lanes
        condition = point.condition
        return [lane for lane in lanes if condition.value(functools.partial(self.value, lane=lane))]

    # ----------------------------------------------------------------------------------- during a run

    def begin(self, scheduler: DebuggedScheduler) -> None:
        """See `Debugger.begin`."""
        self.scheduler, self.now = scheduler, None
        self.mbarriers.clear()

    def before(self, step: Step, state: State) -> None:
        """See `Debugger.before`."""
        assert self.scheduler is not None
        aim = self._aim
        reasons = self._changes(tell=aim.listens)
        self.now = now = Moment(self.scheduler, step, state)
        self.event += 1
        self.inside = False
        starts_mbarriers = step.instr.opcode.startswith("mbarrier.init")
        if starts_mbarriers or self._watches:
            now.addressed = now.address()
        if starts_mbarriers and now.addressed is not None:
            self.mbarriers |= set(now.addressed.at[now.mask].tolist())
        if aim.event == self.event:
            if aim.last:
                self._go_back()
            self._stop(aim.why)
            return
        if aim.listens:
            reasons += self._hits()
        if reasons or (aim.here is not None and aim.here()):
            self._stop(reasons)

    def reported(self, at: int, report: Report) -> None:
        """See `Debugger.reported`."""
        self.failed = True
        if not self._aim.listens:
            return
        words = f"report: {report}"
        if self.now is None:  # about the text of the kernel, before anything runs
            self._early.append(words)
            return
        self.inside = True
        if self.now.step.number == at:
            self.cta, self.thread = self.batch.number_of(report.cta), report.threads[0]
        self._stop([words])

    def _stop(self, reasons: list[str]) -> None:
        if self._aim.last:
            self._aim.last_event, self._aim.why = self.event, reasons
            return
        if self.event == _FIRST and self.now is not None and not self.is_here():
            self.look_at(int(np.flatnonzero(self.now.machine.selection.full_mask())[0]))
        self.reasons, self._early = [*self._early, *reasons], []
        self._stopped()

    # --------------------------------------------------------------------- the thread that is looked at

    @property
    def batch(self) -> Batch:
        """The CTAs that run. Raises `LaunchError` before the first."""
        if self.scheduler is None:
            raise LaunchError("the kernel has not begun")
        return self.scheduler.machine.batch

    def lane(self) -> int | None:
        """The lane of the batch of the thread that is looked at; None if its CTA is not running."""
        batch = self.batch
        cta = self.cta - batch.first
        return cta * batch.width + self.thread if 0 <= cta < batch.ctas else None

    def is_here(self) -> bool:
        """Whether the warp that is looked at is about to execute the instruction of this event."""
        return self.now is not None and self.now.warp_is_here(self.lane())

    def look_at(self, lane: int) -> None:
        """Look at the thread of a lane of the batch."""
        cta, self.thread = divmod(lane, self.batch.width)
        self.cta = self.batch.first + cta

    def name(self) -> str:
        """The thread that is looked at, in words."""
        return f"thread {self.batch.thread(self.thread)} of CTA {self.batch.index_of(self.cta)}"

    # ------------------------------------------------------------------------------------------ values

    def value(self, name: str, lane: int | None = None) -> Any:
        """The value of a register (with its %), an argument or a Python variable, in a lane of the batch, by
        default that of the thread that is looked at. Raises `LaunchError` for another name.
        """
        if name in self.names:
            value = self.args[self.names.index(name)]
            return (arrays_of(value) or [scalar(value)])[0]  # of a tensor map its array
        lane = self.lane() if lane is None else lane
        if self.now is None or lane is None:
            raise LaunchError(f"{self.name()} is not running")
        register = name if name.startswith("%") else self.map.variable(name, self.now.instr)
        if register is None:
            raise LaunchError(
                f"{name} is no register (%{name}), no argument ({', '.join(self.names) or 'there are none'}) "
                "and no Python variable that an instruction before this one has computed"
            )
        return scalar(self.now.register(register)[lane])

    def bytes_of(self, cell: Cell, count: int = 1) -> bytes | None:
        """The bytes of `count` elements from a cell on; None where there is no such memory, or not yet."""
        if self.scheduler is None:
            return None
        held = bytes_at(self.scheduler.machine, cell, count * cell.dtype.itemsize)
        return None if held is None else held.tobytes()

    def thread_number(self, index: Sequence[int]) -> int:
        """The number in its CTA of the thread with an index. Raises `LaunchError` for none."""
        return _number("thread", index, self.batch.block)

    def cta_number(self, index: Sequence[int]) -> int:
        """The number in the grid of the CTA with an index. Raises `LaunchError` for none."""
        _number("CTA", index, self.batch.grid)
        x, y, z = (*index, 0, 0)[:3]
        return self.batch.number_of((x, y, z))


def _number(noun: str, index: Sequence[int], extents: Index) -> int:
    x, y, z = (*index, 0, 0)[:3]
    if not all(n < extent for n, extent in zip((x, y, z), extents, strict=True)):
        raise LaunchError(f"there is no {noun} {(x, y, z)}; the extents are {extents}")
    return x + extents[0] * (y + extents[1] * z)
