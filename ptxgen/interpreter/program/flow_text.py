"""The text of a segment's function: variables for registers and their shadows, and the calls that follow
undefined bits through an instruction.

A register without undefined bits has no shadow, so most calls are never made: the text tests first whether
any register that an instruction reads has one, or whether it has met undefined bits in memory.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ptxgen.interpreter.program.segments import Step
from ptxgen.ir import Reg, Sink, Vector
from ptxgen.isa.spec import PURE, Effect


class FlowText:
    """The lines of a function; `prefix` begins the names of its registers in the whole program. With
    `follows`, undefined bits are followed; only the registers in `suspects` may have any (None: every
    register may).
    """

    def __init__(self, prefix: str, *, follows: bool, suspects: Container[str] | None = None) -> None:
        self.inputs: dict[str, str] = {}  # by register: the variable that it comes in
        self.written: dict[str, str] = {}  # by register: the variable that holds it now
        self.shadow_inputs: dict[str, str] = {}  # by register: the variable that its shadow comes in
        self._shadows: dict[str, str] = {}  # by register: the variable that holds its shadow now
        self._prefix = prefix
        self._follows = follows
        self._suspects = suspects
        self._lines: list[str] = ["D = m.definedness"] if follows else []
        self._names: dict[str, Any] = {"where": np.where}
        self._constants: dict[object, str] = {}
        # Variables made so far for views, addresses and guards.
        self._derived: dict[tuple[str, ...], str] = {}
        self._values: dict[str, str] = {}  # by operand: the expression for its lanes
        self._count = 0

    def key(self, register: str) -> str:
        """The name of a register of the routine in the whole program."""
        return self._prefix + register

    def _current(self, register: Reg) -> str:
        return self._variable(self.key(register.name))

    def _variable(self, name: str) -> str:
        held = self.written.get(name) or self.inputs.get(name)
        if held is None:
            held = self.inputs[name] = self._new()
        return held

    # --------------------------------------------------------------------------------------- shadows

    def _shadow(self, register: Reg) -> str:
        """The variable that holds a register's shadow; the text `None` if it never has undefined bits."""
        if self._suspects is not None and register.name not in self._suspects:
            return "None"
        key = self.key(register.name)
        held = self._shadows.get(key) or self.shadow_inputs.get(key)
        if held is None:
            self._current(register)  # the shadow comes in with the register
            held = self.shadow_inputs[key] = self._new()
        return held

    def _judge(self, step: Step, guard: str) -> None:
        """Write the call that reports undefined registers whose use is a mistake."""
        shadows = {r.name: self._shadow(r) for r in step.read}
        if some := _some(shadows.values()):
            self._line(f"if {some}: D.judge({self._named(step)}, {_text(shadows)}, {guard})")

    def _flow_before(self, step: Step, guard: str | None) -> _Flow:
        """Write the lines before an instruction that follow undefined bits through it; return their
        variables.
        """
        op = step.op
        read = list(step.read)
        for want, got in step.results:  # a result whose old contents the instruction reads
            operands = parts(got) if want.name in op.row.parameters else []
            read += [r for r in operands if isinstance(r, Reg)]
        shadows = {r.name: self._shadow(r) for r in read}
        if op.effect is not Effect.NONE:
            if some := _some(shadows.values()):
                self._line(f"if {some}: D.judge({self._named(step)}, {_text(shadows)}, {guard})")
            if op.row.undefined.follows(pure=op.effect in PURE):
                self._line("D.moved = False")
        old = [self._shadow(r) for r in destinations(step) if isinstance(r, Reg)] if guard else []
        return _Flow(guard, shadows, old, _text(self._values))

    def _flow_after(self, step: Step, flow: _Flow) -> None:
        """Write the lines that compute the shadows of the registers that an instruction has written."""
        op = step.op
        written = [r for r in destinations(step) if isinstance(r, Reg)]
        follows = op.row.undefined.follows(pure=op.effect in PURE)
        names = [self._new() for _ in written]
        new = "".join(f"{name}, " for name in names)
        if step.resumes or not follows:
            for name, old in zip(names, flow.old or ["None"] * len(names), strict=True):
                merged = "None" if old == "None" else f"{old} and D.preserved({old}, {flow.guard})"
                self._line(f"{name} = {merged}")
        elif some := " or ".join(
            filter(
                None, ["D.moved" * (op.effect is not Effect.NONE), _some([*flow.shadows.values(), *flow.old])]
            )
        ):
            call = (
                f"D.flow({self._named(step)}, {_text(flow.shadows)}, {flow.values}, {flow.guard}, "
                f"({''.join(f'{old}, ' for old in flow.old)}))"
            )
            if names:
                self._line(f"{new}= {call} if {some} else ({'None, ' * len(names)})")
            else:
                self._line(f"if {some}: {call}")
        else:
            names = ["None"] * len(names)
        for register, name in zip(written, names, strict=True):
            self._shadows[self.key(register.name)] = name

    def _named(self, step: Step) -> str:
        """The name of an instruction in the function."""
        name = f"S{step.number}"
        self._names[name] = step
        return name

    # ----------------------------------------------------------------------------------------- text

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _derive(self, *key: str, code: str) -> str:
        """A variable that holds `code`, made once for each key; such variables are never assigned again."""
        name = self._derived.get(key)
        if name is None:
            name = self._derived[key] = self._new()
            self._line(f"{name} = {code}")
        return name

    def _constant(self, value: object) -> str:
        if value is None or isinstance(value, (str, bool)):
            return repr(value)
        key = (value.dtype.name, value.tobytes()) if isinstance(value, np.ndarray) else value
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"K{len(self._constants)}"
            self._names[name] = value
        return name


class _Flow(NamedTuple):
    """The variables of an instruction's guard, of the shadows that it reads and of those that its results
    have before it, and the expression for its operands.
    """

    guard: str | None
    shadows: dict[str, str]
    old: list[str]
    values: str


def _some(shadows: Iterable[str]) -> str:
    """The condition that a register has a shadow; empty if none can have one."""
    names = [n for n in dict.fromkeys(shadows) if n != "None"]
    return f"not {' is '.join(names)} is None" if names else ""


def _text(entries: Mapping[str, str]) -> str:
    """A dictionary with text keys as source text."""
    return f"{{{', '.join(f'{key!r}: {value}' for key, value in entries.items())}}}"


def parts(operand: object) -> list[Reg | Sink]:
    """The registers of an operand that is a register or a vector of registers."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return [r for r in items if isinstance(r, (Reg, Sink))]


def destinations(step: Step) -> list[Reg | Sink]:
    """The registers that an instruction writes, in order."""
    return [r for _, got in step.results for r in parts(got)]
