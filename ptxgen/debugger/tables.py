"""Tables of a stopped run: the registers of a warp, the warps of a CTA, and its barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.debugger.expressions import shown
from ptxgen.errors import LaunchError
from ptxgen.interpreter.debugging import Stand
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.text import render_instr

if TYPE_CHECKING:
    from ptxgen.debugger.moment import Moment
    from ptxgen.debugger.session import Session

    Lanes = np.ndarray[Any, np.dtype[Any]]

_COLUMNS: Final = 6  # registers side by side
_NAMED: Final = 3  # threads that are named of those that wait


def registers(session: Session, names: Sequence[str]) -> list[str]:
    """The registers of the warp that is looked at: those with these names, `all`, or by default those of the
    instruction. A register that is the same in all lanes has one line; of the others a table has a row for
    each lane, `*` marking those that are about to execute the instruction.
    """
    now, lane = session.now, session.lane()
    if now is None or lane is None:
        raise LaunchError(f"{session.name()} is not running")
    if list(names) == ["all"]:
        names = [name for name in now.state.lanes if name.startswith("%")]
    elif not names:
        names = list(dict.fromkeys(r.name for r in (*now.step.read, *now.step.written)))
    first = lane // WARP * WARP
    here = slice(first, first + min(WARP, now.batch.threads - first % now.batch.width))
    columns = {name: now.register(name)[here] for name in names}
    alike = {name: lanes for name, lanes in columns.items() if _is_same(lanes)}
    lines = [f"{name} = {_word(now, lanes[0], shown)} in all lanes" for name, lanes in alike.items()]
    others = [(name, lanes) for name, lanes in columns.items() if name not in alike]
    for start in range(0, len(others), _COLUMNS):
        part = others[start : start + _COLUMNS]
        rows = [["lane", *(name for name, _ in part)]]
        for number, mark in enumerate(now.mask[here]):
            words = [_word(now, lanes[number], _short) for _, lanes in part]
            rows.append([f"{'*' if mark else ' '}{number}", *words])
        lines += aligned(rows)
    return lines


def _is_same(lanes: Lanes) -> bool:
    """Whether all lanes have the same bits."""
    return len(np.unique(lanes.view(f"V{lanes.itemsize}"))) == 1


def _word(now: Moment, value: Any, words: Callable[[Any], str]) -> str:
    """A register's value in words; "unwritten" for the bits of one that nothing has written."""
    return "unwritten" if now.is_unwritten(value) else words(value)


def _short(value: Any) -> str:
    """A register's value in a table: one of 64 bits, which may be an address, in hexadecimal digits."""
    return f"{value:#x}" if value.dtype == np.uint64 else str(value)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of words as lines, with the words of each column under each other, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()


def warps(session: Session) -> list[str]:
    """Where the warps of the CTA that is looked at are: a line for each warp and location."""
    first, width = _lanes_of_cta(session)
    assert session.scheduler is not None
    exited, real = session.scheduler.machine.exited, session.batch.real()
    lines = []
    stands = list(_stands(session))
    for warp in range(width // WARP):
        here = slice(first + warp * WARP, first + (warp + 1) * WARP)
        for stand in stands:
            count = int(np.count_nonzero(stand.mask[here]))
            if count:
                lanes = "" if count == WARP else f" ({count} lanes)"
                waits = "waits " if stand.waits else ""
                lines.append(f"warp {warp}{lanes}: {waits}{_what(session, stand)}")
        gone = exited[here] & real[here]
        if gone.any():
            lines.append(f"warp {warp} ({int(np.count_nonzero(gone))} lanes): ended")
    return lines


def barriers(session: Session) -> list[str]:
    """The barriers and mbarriers of the CTA that is looked at, with the threads that wait for each."""
    first, width = _lanes_of_cta(session)
    assert session.scheduler is not None
    machine, batch = session.scheduler.machine, session.batch
    cta = session.cta - batch.first
    lines = []
    for number, arrived, wanted in machine.barriers.counts(cta):
        of = f"of {wanted}" if wanted else f"of all {int((~machine.exited[first : first + width]).sum())}"
        lines.append(f"barrier {number}: {arrived} {of} threads have arrived")
    mine = sorted(n for n in session.mbarriers if n // batch.shared_stride == cta)
    lines += [machine.mbarrier(position).rstrip(",") for position in mine]
    for stand in _stands(session):
        waiting = np.flatnonzero(stand.mask[first : first + width])
        if stand.waits and len(waiting):
            verb = "wait" if len(waiting) > 1 else "waits"
            lines.append(f"  {_threads(session, waiting)} {verb} {_what(session, stand)}")
    return lines or ["no thread has arrived at a barrier, and there is no mbarrier"]


def _lanes_of_cta(session: Session) -> tuple[int, int]:
    batch = session.batch
    lane = session.lane()
    if lane is None:
        raise LaunchError(f"{session.name()} is not running")
    return lane // batch.width * batch.width, batch.width


def _stands(session: Session) -> Iterable[Stand]:
    """Where the lanes of the batch are, those that are about to execute the instruction first."""
    assert session.scheduler is not None
    now = session.now
    if now is not None and not session.ended:
        mask = now.machine.selection.full_mask()
        yield Stand(mask, now.step.number, "")
    yield from session.scheduler.stands()


def _what(session: Session, stand: Stand) -> str:
    assert session.scheduler is not None
    if stand.at < 0:
        return "at the end of a function"
    instr = session.scheduler.program.instrs[stand.at]
    source = session.map.source(instr)
    where = f"ptx:{session.map.ptx_line(instr)}" if source is None else session.map.short(source)
    words = f"at {where}: {render_instr(instr)}"
    return f"for {stand.waits.rstrip(',')}, {words}" if stand.waits else words


def _threads(session: Session, lanes: Lanes) -> str:
    names = ", ".join(str(session.batch.thread(int(n))) for n in lanes[:_NAMED])
    more = f" and {len(lanes) - _NAMED} more" if len(lanes) > _NAMED else ""
    return f"thread{'s' * (len(lanes) > 1)} {names}{more}"


def frames(session: Session, now: Moment) -> list[str]:
    """Where the thread that is looked at is: the calls that it is in, the innermost first."""
    lane = session.lane()
    program = now.scheduler.program
    if lane is None or not session.is_here():
        at = [s.at for s in _stands(session) if lane is not None and s.mask[lane] and s.at >= 0]
    else:
        at = [now.step.number]
    if not at or lane is None:
        return [f"{session.name()} is not running"]
    numbers = [at[0], *now.scheduler.callers(lane, now.scheduler.routine_of(at[0]))]
    lines = []
    for depth, number in enumerate(numbers):
        name = program.linked.routines[now.scheduler.routine_of(number)].name
        lines.append(f"#{depth} {name}")
        lines += [f"   {line}" for line in session.map.words(program.instrs[number])]
    return lines
