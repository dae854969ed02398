"""Calls: the callee, the arguments and the results that a call instruction names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter.program.linking import Linked, Routine, signature
from ptxgen.interpreter.reports import where_from
from ptxgen.ir import (
    Arguments,
    FloatImm,
    Function,
    Instr,
    IntImm,
    Kernel,
    Param,
    Prototype,
    Reg,
    Sink,
    Symbol,
    Targets,
)

CallOperand = Reg | IntImm | FloatImm | Symbol | Sink


@dataclass(frozen=True, slots=True)
class Call:
    """A call in `caller`. `callee` is the number of a routine, a function without a body, or None
    for a call through `pointer`.

    `arguments` are operands, and `got` the operands that the results go to; `params` and `results`
    are declared by the callee or the prototype. `slots` are the slots of registers for results,
    `saved` those of registers that the caller still needs.
    """

    caller: Routine
    callee: int | Function | None
    pointer: Reg | None
    arguments: tuple[CallOperand, ...]
    got: tuple[CallOperand, ...]
    params: tuple[Param, ...]
    results: tuple[Param, ...]
    slots: Mapping[str, int]
    saved: tuple[int, ...]


def call_of(
    instr: Instr,
    linked: Linked,
    caller: Routine,
    slots: Mapping[str, int] | None,
    key: Callable[[str], str],
    saved: tuple[int, ...],
) -> Call:
    """The call of an instruction. Raises `TypeMismatchError` for a callee that does not exist, and
    for arguments that it does not take.
    """
    operands = list(instr.operands)
    got = operands.pop(0) if isinstance(operands[0], Arguments) else Arguments(())
    target = operands.pop(0)
    arguments = operands.pop(0) if operands and isinstance(operands[0], Arguments) else Arguments(())
    where = f"the interpreter: {where_from(instr)}"
    callee: int | Function | None = None
    if isinstance(target, Symbol):
        routine = next((r for r in linked.routines if r.name == target.name), None)
        outside = (f for f in linked.outside.values() if f.name == target.name)
        callee = next(outside, None) if routine is None else routine.number
        if callee is None:
            raise TypeMismatchError(f"{where}: no function {target.name!r}")
        source = callee if isinstance(callee, Function) else linked.routines[callee].source
        if isinstance(source, Kernel):
            raise TypeMismatchError(f"{where}: {source.name} is a kernel, which nothing can call")
        results, params = signature(source)
    else:
        proto = _prototype(linked, caller, operands[-1] if operands else None)
        if proto is None:
            raise TypeMismatchError(
                f"{where}: a call through a register needs a .callprototype or .calltargets"
            )
        results, params = signature(proto)
    assert isinstance(got, Arguments)
    assert isinstance(arguments, Arguments)
    if len(arguments.items) != len(params) or len(got.items) != len(results):
        raise TypeMismatchError(
            f"{where}: has {len(arguments.items)} arguments and {len(got.items)} results, but the "
            f"function has {len(params)} and {len(results)}"
        )
    names = [i.name for i in got.items if isinstance(i, Reg)]
    known = slots or {}
    registers = {name: known[key(name)] for name in names if key(name) in known}
    pointer = target if isinstance(target, Reg) else None
    return Call(caller, callee, pointer, arguments.items, got.items, params, results, registers, saved)


def _prototype(linked: Linked, caller: Routine, label: object) -> Prototype | Function | None:
    """The prototype that the label after a call refers to; for a list of targets, the first function."""
    functions: list[Function] = [
        *linked.outside.values(),
        *(r.source for r in linked.routines if isinstance(r.source, Function)),
    ]
    for statement in caller.source.body or ():
        if not isinstance(label, Symbol) or getattr(statement, "name", "") != label.name:
            continue
        if isinstance(statement, Prototype):
            return statement
        if isinstance(statement, Targets):
            return next((f for f in functions if f.name in statement.targets), None)
    return None
