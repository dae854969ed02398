"""Control flow and barriers (PTX ISA, "Control Flow Instructions", "Parallel Synchronization").

The interpreter follows branches itself, by the row's name, so the functions of `bra`, `ret` and
`exit` only state the meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptxgen.isa.spec import Effect, inst

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


@inst("ret{.uni}", effect=Effect.CONTROL, section=f"{CONTROL}: ret")
def ret(machine: Machine, *, uni: bool) -> tuple[()]:
    """Return from the kernel: the thread ends."""
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
