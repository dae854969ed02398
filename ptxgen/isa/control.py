"""Control flow and barriers (PTX ISA, "Control Flow Instructions", "Parallel Synchronization").

The interpreter follows branches and calls itself, by the row's name, so the functions of `bra`,
`brx`, `call`, `call_indirect`, `ret` and `exit` only state the meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import inst
from ptxgen.isa.memory import hinted
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
    """Continue at label number a, from 0 on, of the list of branch targets called target; nothing
    is said of an a beyond the list. .uni promises that all active threads have the same a.
    """
    del machine, a, target, uni
    return ()


def _call(machine: Machine, f: str, *, uni: bool) -> tuple[()]:
    """Call the function f; .uni promises that all active threads of the warp do."""
    del machine, f, uni
    return ()


def _call_with(machine: Machine, f: str, a: tuple[Lanes, ...], *, uni: bool) -> tuple[()]:
    """Call the function f with the arguments a, and get its results, if d names any; .uni promises
    that all active threads of the warp do.
    """
    del machine, f, a, uni
    return ()


for _results in ("", "d:args, "):
    inst(
        f"call{{.uni}} {_results}f:label", name="call",
        effect=Effect.CONTROL, section=f"{CONTROL}: call",
    )(_call)  # fmt: skip
    inst(
        f"call{{.uni}} {_results}f:label, a:args", name="call",
        effect=Effect.CONTROL, section=f"{CONTROL}: call",
    )(_call_with)  # fmt: skip


def _call_indirect(machine: Machine, f: Lanes, t: str, *, uni: bool) -> tuple[()]:
    """Call the function at the address f, which is one of the list t of call targets or has the
    prototype t; .uni promises that all active threads of the warp call the same.
    """
    del machine, f, t, uni
    return ()


def _call_indirect_with(
    machine: Machine, f: Lanes, a: tuple[Lanes, ...], t: str, *, uni: bool
) -> tuple[()]:
    """Call the function at the address f, which is one of the list t of call targets or has the
    prototype t, with the arguments a, and get its results, if d names any; .uni promises that all
    active threads of the warp call the same.
    """
    del machine, f, a, t, uni
    return ()


for _results in ("", "d:args, "):
    inst(
        f"call{{.uni}} {_results}f:u64, t:label", name="call_indirect", ptx=(2, 1), sm=20,
        effect=Effect.CONTROL, section=f"{CONTROL}: call",
    )(_call_indirect)  # fmt: skip
    inst(
        f"call{{.uni}} {_results}f:u64, a:args, t:label", name="call_indirect", ptx=(2, 1), sm=20,
        effect=Effect.CONTROL, section=f"{CONTROL}: call",
    )(_call_indirect_with)  # fmt: skip


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


@inst(
    "bar.sync a:u32{, b:u32}",
    name="bar_sync",
    effect=Effect.BARRIER,
    section=f"{SYNCHRONIZATION}: bar",
)
def bar_sync(machine: Machine, a: Lanes, b: Lanes | None = None) -> tuple[()]:
    """Wait at barrier a until b threads (all of the block, if left out) have arrived."""
    machine.barrier(a, b, wait=True)
    return ()


@inst(
    "bar.arrive a:u32, b:u32",
    name="bar_arrive",
    ptx=(2, 0),
    sm=20,
    effect=Effect.BARRIER,
    section=f"{SYNCHRONIZATION}: bar",
)
def bar_arrive(machine: Machine, a: Lanes, b: Lanes) -> tuple[()]:
    """Count as arrived at barrier a of b threads, without waiting."""
    machine.barrier(a, b, wait=False)
    return ()


# ---------------------------------------- barriers of the CTA, in their other spellings

_SPELLINGS: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("bar", "", {}),
    ("bar.cta", "", {"ptx": (7, 8), "sm": 30}),
    (
        "barrier{.cta}",
        "{.aligned}",
        {"cta": {True: gate(ptx=(7, 8), sm=30)}, "ptx": (6, 0), "sm": 30},
    ),
)


def _sync(machine: Machine, a: Lanes, b: Lanes | None = None) -> tuple[()]:
    machine.barrier(a, b, wait=True)
    return ()


def _arrive(machine: Machine, a: Lanes, b: Lanes) -> tuple[()]:
    machine.barrier(a, b, wait=False)
    return ()


def _vote(
    machine: Machine, a: Lanes, c: Lanes, *, b: Lanes | None = None, op: str = "popc"
) -> tuple[()]:
    del op
    machine.barrier(a, b, wait=True, vote=c)
    return ()


def _outcome(
    machine: Machine, a: Lanes, c: Lanes, *, b: Lanes | None = None, op: str = "popc"
) -> Lanes:
    del a, b, c
    return machine.barrier_outcome(op)


_SYNC: Final = "Wait at barrier a until b threads (all of the block, if left out) have arrived."
_ARRIVE: Final = "Count as arrived at barrier a of b threads, without waiting."
_VOTE: Final = "Wait at barrier a for b threads (all of the block, if left out); "
_COUNT: Final = "d = for how many of them c holds."
_TRUTH: Final = "p = whether c holds for all of them (and), or for any (or)."


_COMBINED: Final[tuple[tuple[str, str, dict[str, Any], dict[str, str], str], ...]] = (
    ("popc", "d", {}, {"op": "popc"}, _COUNT),
    ("op", "p:pred", {"op": ("and", "or")}, {}, _TRUTH),
)


def _votes(head: str, tail: str, hints: tuple[str, ...], keywords: dict[str, Any]) -> None:
    """Declare the barriers that combine a predicate, with and without a number of threads."""
    for threads, fixed in ((", b:u32", {}), ("", {"b": None})):
        for operation, result, choices, more, doc in _COMBINED:
            constant: dict[str, Any] = {**fixed, **more}
            type = "u32" if more else "pred"
            inst(
                f"{head}.red.{operation}{tail}.{type} {result}, a:u32{threads}, c:pred",
                name="bar_red_popc" if more else "bar_red", **keywords, **choices,
                effect=Effect.BARRIER, section=f"{SYNCHRONIZATION}: bar",
                resume=hinted(_outcome, doc, *hints, **constant),
            )(hinted(_vote, f"{_VOTE}{doc}", *hints, **constant))  # fmt: skip


for _head, _tail, _keywords in _SPELLINGS:
    _hints = ("cta", "aligned") if _tail else ()
    _votes(_head, _tail, _hints, _keywords or {"ptx": (2, 0), "sm": 20})
    if _keywords:
        _name = _head.partition("{")[0].replace(".", "_")
        inst(
            f"{_head}.sync{_tail} a:u32{{, b:u32}}", name=f"{_name}_sync", **_keywords,
            effect=Effect.BARRIER, section=f"{SYNCHRONIZATION}: bar",
        )(hinted(_sync, _SYNC, *_hints))  # fmt: skip
        inst(
            f"{_head}.arrive{_tail} a:u32, b:u32", name=f"{_name}_arrive", **_keywords,
            effect=Effect.BARRIER, section=f"{SYNCHRONIZATION}: bar",
        )(hinted(_arrive, _ARRIVE, *_hints))  # fmt: skip
