"""Instructions that change no value or stop the kernel (PTX ISA, "Miscellaneous Instructions").

`stacksave`, `stackrestore` and `alloca` are not declared, because the interpreter has no growing
stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptxgen.isa.declare import inst
from ptxgen.isa.spec import Effect

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MISCELLANEOUS: Final = "Miscellaneous Instructions"


@inst("nanosleep.u32 a", ptx=(6, 3), sm=70, section=f"{MISCELLANEOUS}: nanosleep")
def nanosleep(a: Lanes) -> tuple[()]:
    """Suspend the thread for about a nanoseconds, at most twice as long; changes no value."""
    del a
    return ()


@inst("pmevent n:imm", ptx=(1, 4), section=f"{MISCELLANEOUS}: pmevent")
def pmevent(n: int) -> tuple[()]:
    """Count performance event n, 0 to 15; changes no value."""
    del n
    return ()


@inst("pmevent.mask n:imm", name="pmevent_mask", ptx=(3, 0), sm=20, section=f"{MISCELLANEOUS}: pmevent")
def pmevent_mask(n: int) -> tuple[()]:
    """Count the performance events whose bits are set in n, 16 bits; changes no value."""
    del n
    return ()


@inst("brkpt", effect=Effect.CONTROL, sm=11, section=f"{MISCELLANEOUS}: brkpt")
def brkpt(machine: Machine) -> tuple[()]:
    """Stop for the debugger; there is none, so the kernel stops with an error."""
    machine.trap("brkpt instruction")
    return ()
