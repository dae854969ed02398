"""The prompt of the debugger: its commands, from a terminal or from a script."""

from __future__ import annotations

import cmd
import re
from collections.abc import Sequence
from typing import IO, Any, Final, NoReturn

import numpy as np

from ptxgen.debugger import tables
from ptxgen.debugger.addresses import cell_of
from ptxgen.debugger.expressions import Expression, shown
from ptxgen.debugger.memory import Cell, Format
from ptxgen.debugger.session import Breakpoint, QuitError, Session, Watch
from ptxgen.errors import LaunchError, PtxGenError, did_you_mean
from ptxgen.report.arguments import words_of

PROMPT: Final = "(ptxgen) "
_SHORT: Final = {
    "b": "break", "c": "continue", "s": "step", "n": "next", "p": "print", "l": "list", "q": "quit",
    "r": "run", "rc": "reverse", "d": "delete", "where": "bt", "h": "help",
}  # fmt: skip
_BREAK: Final = re.compile(r"(?P<at>.*?)(?P<of>(?:\s*\b(?:thread|cta)\s+[\d,]+)*)(?:\s*\bif\s+(?P<if>.+))?")
_SLASH: Final = re.compile(r"(?:/(\S*))?\s*(.*)")


class Prompt(cmd.Cmd):
    """Asks for commands at each stop of `session`: first those of `commands`, which are printed as if they
    were typed; then those that are typed if `asks`, else it quits. `refused` is the number of commands of
    `commands` that could not be carried out.
    """

    prompt = PROMPT
    doc_header = f"commands (short: {' '.join(_SHORT)}; help COMMAND says more):"

    def __init__(self, commands: Sequence[str], output: IO[str], *, asks: bool) -> None:
        super().__init__(stdout=output)
        self.session: Session
        self.refused = 0
        self.cmdqueue = [*commands, *(["quit"] * (not asks))]
        self._scripted = len(commands)

    def stopped(self) -> None:
        """Show where the run has stopped, and carry out commands until one says where to go on."""
        self._place()
        self.cmdloop()

    # ---------------------------------------------------------------------------------- the machinery

    def get_names(self) -> list[str]:
        """The names that help and completion look for commands in."""
        return [name for name in super().get_names() if name != "do_EOF"]

    def precmd(self, line: str) -> str:
        """Print a command of the script, and write out the short names of commands."""
        if self._scripted:
            self._say(f"{PROMPT}{line}")
        word = re.match(r"[a-zA-Z]*", line)
        assert word is not None
        return _SHORT.get(word[0], word[0]) + line[word.end() :]

    def onecmd(self, line: str) -> bool:
        """Carry out a command; whether the run is to go on."""
        scripted = self._scripted > 0
        self._scripted -= scripted
        try:
            return bool(super().onecmd(line))
        except PtxGenError as error:
            self.refused += scripted
            self._say(f"error: {error}")
            return False

    def default(self, line: str) -> NoReturn:
        """Refuse an unknown command."""
        word = line.split(maxsplit=1)[0]
        names = [name[3:] for name in self.get_names() if name.startswith("do_")]
        raise LaunchError(f"no command {word!r}{did_you_mean(word, names)}; help lists them")

    def _say(self, text: str) -> None:
        self.stdout.write(f"{self.session.readable(text)}\n")

    def _lines(self, lines: Sequence[str]) -> None:
        self._say("\n".join(lines))

    def _place(self) -> None:
        """Print why the run has stopped, and where."""
        session = self.session
        lines = list(session.reasons)
        now = session.now
        if now is not None and not (session.ended and not session.inside):
            others = int(np.count_nonzero(now.mask)) - 1
            if session.is_here():
                more = f" and {others} other{'s' * (others > 1)}" if others else ""
                more = more if now.mask[session.lane()] else ", which does not execute it"
                lines.append(f"{session.name()}{more}, event {session.event}")
                lines += [f"  {line}" for line in session.map.words(now.instr)]
            else:
                lines += [f"{session.name()}, event {session.event}", *tables.frames(session, now)]
        self._lines(lines)

    # ------------------------------------------------------------------------------------ where to go on

    def do_continue(self, _: str) -> bool:
        """Run to the next breakpoint, change of watched memory, or report of a sanitizer."""
        self.session.go()
        return True

    def do_step(self, _: str) -> bool:
        """Run to the next instruction of this warp."""
        self.session.step()
        return True

    def do_next(self, _: str) -> bool:
        """Run to the next source line that this warp comes to."""
        self.session.next()
        return True

    def do_back(self, _: str) -> bool:
        """Go back to this warp's instruction before this point; from a failure, to the one that fails."""
        self.session.back()

    def do_reverse(self, _: str) -> bool:
        """Go back to the last stop before this point: a breakpoint, a change, or a report."""
        self.session.reverse()

    def do_run(self, _: str) -> bool:
        """Run again from the start; breakpoints stay."""
        self.session.restart()

    def do_quit(self, _: str) -> bool:
        """End the debugger."""
        raise QuitError

    do_EOF = do_quit  # noqa: N815  # the name that cmd.Cmd calls

    # ------------------------------------------------------------------------------------ where to stop

    def do_break(self, words: str) -> None:
        """break [LINE | FILE:LINE | ptx:LINE] [thread X,Y,Z] [cta X,Y,Z] [if CONDITION]: stop where a thread
        comes to a line, by default this one. A condition has registers, Python variables, arguments and
        operators: break 12 if %r3 == 5 && %tid.x < 8.
        """
        session, match = self.session, _BREAK.fullmatch(words.strip())
        assert match is not None  # the location may be anything
        at, condition, of = (
            match["at"].strip(),
            match["if"],
            dict(re.findall(r"(\w+)\s+([\d,]+)", match["of"])),
        )
        if not at:
            if session.now is None:
                raise LaunchError("the kernel has not begun; name a line")
            at = f"ptx:{session.map.ptx_line(session.now.instr)}"
        target = session.map.target(at)
        restrictions = {**of, "if": condition} if condition else of
        point = Breakpoint(
            " ".join([str(target), *(f"{word} {text}" for word, text in restrictions.items())]),
            target,
            session.thread_number(_index(of["thread"])) if "thread" in of else None,
            session.cta_number(_index(of["cta"])) if "cta" in of else None,
            Expression(condition) if condition else None,
        )
        self._say(f"breakpoint {session.add(point)}: {point}")

    def do_watch(self, words: str) -> None:
        """watch[/FORMAT] ADDRESS: stop where memory changes, and say which instruction, and which thread,
        may have changed it. `help x` says what addresses and formats are.
        """
        cell, form = self._cell(words)
        watch = Watch(cell.typed(form.dtype))
        held = self.session.bytes_of(watch.cell)
        number = self.session.add(watch)
        now = "not there yet" if held is None else f"now {form.shown(np.frombuffer(held, form.dtype))[0]}"
        self._say(f"watch {number}: {cell} as {form.dtype}, {now}")

    def do_delete(self, words: str) -> None:
        """delete [NUMBER]: delete a breakpoint or a watch, by default all."""
        points = self.session.breakpoints
        if words.strip() and (not words.strip().isdecimal() or int(words) not in points):
            raise LaunchError(
                f"there is no breakpoint {words.strip()} ({', '.join(map(str, points)) or 'none'})"
            )
        for number in [int(words)] if words.strip() else list(points):
            del points[number]

    def do_breakpoints(self, _: str) -> None:
        """List the breakpoints and watches."""
        self._lines([f"{n}: {point}" for n, point in self.session.breakpoints.items()] or ["there are none"])

    # -------------------------------------------------------------------------------------- what is seen

    def do_print(self, words: str) -> None:
        """print[/FORMAT] EXPRESSION: registers (%r3, %tid.x), Python variables, arguments (X[37], X[0:8]) and
        operators. A format reads the bits of a register anew: f float, d signed, x hexadecimal.
        """
        form, text = _formatted(words)
        value = Expression(text).value(self.session.value)
        words = _again_as(form, value) if form else shown(value)
        register = self._register_of(text)
        now, lane = self.session.now, self.session.lane()
        if (
            register
            and now is not None
            and lane is not None
            and now.is_unwritten(now.register(register)[lane])
        ):
            words = "unwritten"
        self._say(f"{text}{f' ({register})' if register not in (None, text) else ''} = {words}")

    def _register_of(self, text: str) -> str | None:
        """The register that an expression names, itself or by its Python variable; None if it does not."""
        if re.fullmatch(r"%[\w$.]+", text):
            return text
        now = self.session.now
        if now is None or not text.isidentifier() or text in self.session.names:
            return None
        return self.session.map.variable(text, now.instr)

    def do_x(self, words: str) -> None:
        """x[/FORMAT] ADDRESS: memory, such as x/8f shared+16 or x/4 X[37]. An address is shared+16, local+8,
        NAME+16 of a variable in shared memory, tensor[LANE, COLUMN], X[37] of an argument, or an address.
        A format is a count and letters: f float, d signed, u unsigned, x hexadecimal, t bfloat16; b, h, w, g
        for 1, 2, 4, 8 bytes.
        """
        cell, form = self._cell(words)
        typed = cell.typed(form.dtype)
        held = self.session.bytes_of(typed, form.count)
        if held is None:
            raise LaunchError(
                f"{cell}: {cell.space} memory has no {form.count * form.dtype.itemsize} bytes there"
            )
        values = form.shown(np.frombuffer(held, form.dtype))
        row = max(16 // form.dtype.itemsize, 1)
        rows = [values[n : n + row] for n in range(0, len(values), row)]
        rows = [
            [f"{cell}{f', +{n * row * form.dtype.itemsize}' if n else ''}:", *r] for n, r in enumerate(rows)
        ]
        self._lines(list(tables.aligned([r + [""] * (len(rows[0]) - len(r)) for r in rows])))

    def do_registers(self, words: str) -> None:
        """registers [NAME ...]: registers of this warp, by default those of the instruction; all for all."""
        self._lines(tables.registers(self.session, words.split()))

    def do_warps(self, _: str) -> None:
        """Where the warps of this CTA are, and what they wait for."""
        self._lines(tables.warps(self.session))

    def do_barriers(self, _: str) -> None:
        """The barriers and mbarriers of this CTA, and which threads wait."""
        self._lines(tables.barriers(self.session))

    def do_bt(self, _: str) -> None:
        """Where this thread is: the source, the PTX, and the calls that it is in."""
        if self.session.now is None:
            raise LaunchError("the kernel has not begun")
        self._lines(tables.frames(self.session, self.session.now))

    def do_list(self, words: str) -> None:
        """list [ptx]: the lines of the source, or of PTX, around this one."""
        now = self.session.now
        if now is None or words.strip() not in ("", "ptx"):
            raise LaunchError("list takes nothing or ptx, and the kernel must have begun")
        targets = [p.target for p in self.session.breakpoints.values() if isinstance(p, Breakpoint)]
        self._lines(self.session.map.listing(now.instr, targets, ptx=bool(words.strip())))

    def do_arguments(self, _: str) -> None:
        """The arguments of the launch."""
        pairs = zip(self.session.names, self.session.args, strict=False)
        self._lines([f"{name} = {words_of(value)}" for name, value in pairs])

    def do_thread(self, words: str) -> None:
        """thread [X,Y,Z]: look at another thread of this CTA."""
        if words.strip():
            self.session.thread = self.session.thread_number(_index(words))
        self._looked()

    def do_cta(self, words: str) -> None:
        """cta [X,Y,Z]: look at the same thread of another CTA."""
        if words.strip():
            self.session.cta = self.session.cta_number(_index(words))
        self._looked()

    def _looked(self) -> None:
        lines = [] if self.session.now is None else tables.frames(self.session, self.session.now)
        self._lines([self.session.name(), *lines])

    def _cell(self, words: str) -> tuple[Cell, Format]:
        form, text = _formatted(words)
        cell = cell_of(self.session, text)
        return cell, Format.of(form, cell.dtype)


def _again_as(form: str, value: Any) -> str:
    """The bits of a number, read as another type."""
    if isinstance(value, float):
        bits = np.float32(value).tobytes()
    elif isinstance(value, int):
        bits = (value % (1 << 64)).to_bytes(8, "little")
    else:
        raise LaunchError(f"a format is for a number, got {type(value).__name__}; x shows arrays")
    read = Format.of(form, None)
    return read.shown(np.frombuffer(bits.ljust(8, b"\0"), read.dtype)[:1])[0]


def _formatted(words: str) -> tuple[str, str]:
    """The format after a slash, and the rest."""
    match = _SLASH.fullmatch(words.strip())
    if match is None or not match[2]:
        raise LaunchError(f"something must be named, such as %r3, X[37] or shared+16, got {words.strip()!r}")
    return match[1] or "", match[2]


def _index(words: str) -> tuple[int, ...]:
    if re.fullmatch(r"\d+(,\d+){0,2}", words.strip()) is None:
        raise LaunchError(f"an index is X, X,Y or X,Y,Z, got {words.strip()!r}")
    return tuple(map(int, words.split(",")))
