"""Control flow and barriers (PTX ISA, "Control Flow Instructions", "Parallel Synchronization").

The interpreter executes branches and calls itself, by the row's name, so the functions of `bra`,
`brx`, `call`, `call_indirect`, `ret` and `exit` only document the instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.spec import Effect, gate

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

CONTROL: Final = "Control Flow Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
MISCELLANEOUS: Final = "Miscellaneous Instructions"


@inst("bra{.uni} target:label", effect=Effect.CONTROL, section=f"{CONTROL}: bra")
def bra(machine: Machine, target: str, *, uni: bool) -> tuple[()]:
    """Continue at target; .uni promises that all active threads of the warp do."""
    del machine, target, uni
    return ()


@inst(
    "brx.idx{.uni} a:u32, target:label",
    name="brx",
    ptx=(6, 0),
    sm=30,
    effect=Effect.CONTROL,
    section=f"{CONTROL}: brx.idx",
)
def brx(machine: Machine, a: Lanes, target: str, *, uni: bool) -> tuple[()]:
    """Continue at label number a, from 0 on, of the list of branch targets called target; an a
    beyond the list is undefined. .uni promises that all active threads have the same a.
    """
    del machine, a, target, uni
    return ()


_RESULTS: Final = each("results", "", "d:args, ")
_ARGUMENTS: Final = " with the arguments a, and get its results, if d names any"
_CALL: Final[dict[str, Any]] = {
    "ignores": ("a", "uni"),
    "effect": Effect.CONTROL,
    "section": f"{CONTROL}: call",
}


@inst(
    "call{.uni} <results>f:label<arguments>",
    _RESULTS,
    each("arguments given", ("", ""), (", a:args", _ARGUMENTS)),
    **_CALL,
)
def call(machine: Machine, f: str) -> tuple[()]:
    """Call the function f<given>; .uni promises that all active threads of the warp do."""
    del machine, f
    return ()


@inst(
    "call{.uni} <results>f:u64<arguments>, t:label",
    _RESULTS,
    each("arguments given", ("", ""), (", a:args", f",{_ARGUMENTS}")),
    name="call_indirect",
    ptx=(2, 1),
    sm=20,
    **_CALL,
)
def call_indirect(machine: Machine, f: Lanes, t: str) -> tuple[()]:
    """Call the function at the address f, which is one of the list t of call targets or has the
    prototype t<given>; .uni promises that all active threads of the warp call the same.
    """
    del machine, f, t
    return ()


@inst("ret{.uni}", effect=Effect.CONTROL, section=f"{CONTROL}: ret")
def ret(machine: Machine, *, uni: bool) -> tuple[()]:
    """Return from the function to its caller; in a kernel the thread ends."""
    del machine, uni
    return ()


@inst("exit", effect=Effect.CONTROL, section=f"{CONTROL}: exit")
def exit_(machine: Machine) -> tuple[()]:
    """The thread ends."""
    del machine
    return ()


@inst("trap", effect=Effect.CONTROL, section=f"{MISCELLANEOUS}: trap")
def trap(machine: Machine) -> tuple[()]:
    """Stop the kernel with an error."""
    machine.trap("trap instruction")
    return ()


# ---------------------------------------- barriers of the CTA

_BAR: Final[dict[str, Any]] = {
    "ignores": ("cta", "aligned"),
    "effect": Effect.BARRIER,
    "section": f"{SYNCHRONIZATION}: bar",
}
_CTA: Final = each("head tail ptx sm", ("bar.cta", "", (7, 8), 30))
_BARRIER: Final = each(
    "head tail cta ptx sm", ("barrier{.cta}", "{.aligned}", {True: gate(ptx=(7, 8), sm=30)}, (6, 0), 30)
)
_FIRST: Final = each("head tail", ("bar", ""))
_SYNC: Final = each(
    "operation b wait does",
    (
        "sync",
        "{, b:u32}",
        True,
        "Wait at barrier a until b threads (all of the block, if left out) have arrived",
    ),
)
_ARRIVE: Final = each(
    "operation b wait does",
    ("arrive", ", b:u32", False, "Count as arrived at barrier a of b threads, without waiting"),
)


def bar(machine: Machine, a: Lanes, b: Lanes | None = None, *, wait: bool) -> tuple[()]:
    """<does>."""
    machine.barrier(a, b, wait=wait)
    return ()


inst(
    "<head>.<operation><tail> a:u32<b>",
    times(_FIRST, _SYNC) + times(_FIRST, _ARRIVE, each("ptx sm", ((2, 0), 20))),
    name="bar_<operation>",
    **_BAR,
)(bar)


def _outcome(machine: Machine, a: Lanes, c: Lanes, *, b: Lanes | None = None, op: str) -> Lanes:
    del a, b, c
    return machine.barrier_outcome(op)


@inst(
    "<head>.red.<op><tail>.<type> <result>, a:u32<threads>, c:pred",
    times(_FIRST, each("ptx sm", ((2, 0), 20))) + _CTA + _BARRIER,
    each("threads", ", b:u32", ""),
    each(
        "name op type result gives",
        ("bar_red_popc", "popc", "u32", "d", "d = the number of them for which c holds"),
        (
            "bar_red",
            ("and", "or"),
            "pred",
            "p:pred",
            "p = whether c holds for all of them (and), or for any (or)",
        ),
    ),
    resume=_outcome,
    **_BAR,
)
def bar_red(machine: Machine, a: Lanes, c: Lanes, *, b: Lanes | None = None, op: str) -> tuple[()]:
    """Wait at barrier a for b threads (all of the block, if left out); <gives>."""
    del op  # the result is computed when the threads go on
    machine.barrier(a, b, wait=True, vote=c)
    return ()


inst(
    "<head>.<operation><tail> a:u32<b>",
    times(each("family", "bar_cta"), _CTA) + times(each("family", "barrier"), _BARRIER),
    _SYNC + _ARRIVE,
    name="<family>_<operation>",
    **_BAR,
)(bar)
