"""The functions that CUDA's device runtime has and PTX only declares: `vprintf`, `__assertfail`,
`malloc` and `free`.

Each takes the machine, the lanes that call it (numbers in the batch) and the bytes of each
argument, `[lanes, bytes]`, and returns the bytes of each result.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError

if TYPE_CHECKING:
    from ptxgen.interpreter.machine import LaneMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

Builtin = Callable[["LaneMachine", "Lanes", "list[Lanes]"], "list[Lanes]"]

_LONGEST: Final = 1 << 16  # characters of a string
# C++, `std::printf`; what a device's printf takes (CUDA C++ Programming Guide, "Formatted Output").
_FORMAT: Final = re.compile(
    r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t)?([diouxXeEfFgGaAcspn%])"
)


def vprintf(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """Print for one lane after another; the result is the number of arguments in the format."""
    formats, buffers = (a.view(np.uint64)[:, 0] for a in arguments)
    counts = np.zeros(len(lanes), np.int32)
    for n, lane in enumerate(lanes):
        text = machine.peek_string(int(formats[n]), int(lane), _LONGEST)
        printed, counts[n] = _formatted(machine, text, int(buffers[n]), int(lane))
        machine.printed.append(printed)
    return [counts.view(np.uint8).reshape(-1, 4)]


def _formatted(machine: LaneMachine, text: str, buffer: int, lane: int) -> tuple[str, int]:
    at, taken = buffer, 0

    def take(letter: str, size: str) -> Any:
        nonlocal at, taken
        # As varargs are passed: int and unsigned in 4 bytes, all else in 8, each aligned.
        small = letter in "cdiouxX" and size not in ("l", "ll", "z", "j", "t")
        nbytes = 4 if small else 8
        at = -(-at // nbytes) * nbytes
        data = machine.peek(at, lane, nbytes)
        at, taken = at + nbytes, taken + 1
        code = {"h": "h", "hh": "b"}.get(size, "i") if small else "q"
        if letter in "eEfFgGaA":
            code = "d"
        elif letter not in "dic":
            code = code.upper()
        return struct.unpack_from(f"<{code}", data)[0]

    def one(match: re.Match[str]) -> str:
        flags, width, precision, size, letter = match.groups()
        if letter == "%":
            return "%"
        width = int(take("d", "") if width == "*" else width or 0)
        if precision is not None:
            precision = int(take("d", "") if precision == "*" else precision)
        if max(abs(width), precision or 0) > _LONGEST:
            machine.trap(f"vprintf is asked for more than {_LONGEST} characters by {match[0]}")
        value = take(letter, size or "")
        if letter == "s":
            value = machine.peek_string(value, lane, _LONGEST) if value else "(null)"
        if width < 0:
            flags, width = flags + "-", -width
        kept = None if precision is None or precision < 0 else precision
        return _one(value, flags, width, kept, letter)

    return _FORMAT.sub(one, text), taken


def _one(value: Any, flags: str, width: int, precision: int | None, letter: str) -> str:
    """A value as C formats it."""
    if letter == "p":
        value, flags, letter = (value, flags + "#", "x") if value else ("(nil)", "-" * 0, "s")
    if letter in "aA":
        value, letter = _hexadecimal(float(value), precision, flags, letter), "s"
        precision = None
    if letter == "c":
        value &= 0xFF
    if letter in "uoxX":
        flags = re.sub("[+ ]", "", flags)
    if letter in "oxX" and "#" in flags and not value:
        flags = flags.replace("#", "")
    if letter == "o" and "#" in flags:
        value, letter = f"0{value:o}", "s"
    after = "" if precision is None else f".{precision}"
    size = str(width) if width else ""
    filled: str = f"%{flags}{size}{after}{letter.replace('u', 'd')}" % value
    return filled


def _hexadecimal(value: float, precision: int | None, flags: str, letter: str) -> str:
    """`%a`: without zeros at the end, or with as many digits as asked for, half to even."""
    sign = "-" if math.copysign(1, value) < 0 else "".join(c for c in "+ " if c in flags)[:1]
    mantissa, power, exponent = abs(value).hex().partition("p")
    if power:
        digits = mantissa[4:].rstrip("0")
        if precision is not None:
            whole = (
                round(int(mantissa[2] + mantissa[4:].ljust(13, "0"), 16) / 16 ** (13 - precision))
                if precision < 13
                else None
            )
            digits = digits.ljust(precision, "0") if whole is None else f"{whole:x}"[1:]
        mantissa = f"{mantissa[:3]}{'.' * bool(digits)}{digits}"
    text = f"{sign}{mantissa}{power}{exponent}"
    return text if letter == "a" else text.upper()


def assertfail(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """An assertion does not hold. Raises `TrapError`."""
    message, file, line, function = (
        a.view(np.uint64 if a.shape[1] == 8 else np.uint32)[:, 0] for a in arguments[:4]
    )
    lane = int(lanes[0])
    words = [machine.peek_string(int(x[0]), lane, _LONGEST) for x in (message, file, function)]
    raise TrapError(
        f"{machine.faults.where(machine.at, lane)}: assertion `{words[0]}` failed in {words[2]}, "
        f"{words[1]}:{int(line[0])}"
    )


def malloc(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """Device memory for each lane; address 0 for no bytes."""
    sizes = arguments[0].view(np.uint64)[:, 0]
    addresses = [
        machine.arena.place(np.empty(int(size), np.uint8), name=f"malloc of thread {lane}")
        if size
        else 0
        for size, lane in zip(sizes, lanes, strict=True)
    ]
    return [np.array(addresses, np.uint64).view(np.uint8).reshape(-1, 8)]


def free(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """Give device memory back. Raises `TrapError` for an address that `malloc` did not give."""
    for lane, address in zip(lanes, arguments[0].view(np.uint64)[:, 0], strict=True):
        if address and not machine.arena.remove(int(address)):
            raise TrapError(
                f"{machine.faults.where(machine.at, int(lane))}: frees {int(address):#x}, where no "
                "memory from malloc begins"
            )
    return []


BUILTINS: Final[dict[str, Builtin]] = {
    "vprintf": vprintf,
    "__assertfail": assertfail,
    "malloc": malloc,
    "free": free,
}
