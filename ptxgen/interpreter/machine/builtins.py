"""The functions of CUDA's device runtime that PTX only declares: `vprintf`, `__assertfail`,
`malloc` and `free`.

Each takes the machine, the lanes that call it (numbers in the batch) and the bytes of each
argument, `[lanes, bytes]`, and returns the bytes of each result.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.heap import HeapBytes
from ptxgen.interpreter.reports import where_from

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

Builtin = Callable[["LaneMachine", "Lanes", "list[Lanes]"], "list[Lanes]"]

_LONGEST: Final = 1 << 16  # characters of a string
_LARGEST: Final = 1 << 30  # bytes that one `malloc` may give
_MANTISSA_DIGITS: Final = 13  # hexadecimal digits after the point of a 64-bit float
# The conversions that a device's printf accepts (C++, `std::printf`; CUDA C++ Programming Guide,
# "Formatted Output").
_FORMAT: Final = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t)?([diouxXeEfFgGaAcsp%])")


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
        # Varargs are passed as int and unsigned in 4 bytes, all others in 8, each aligned.
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
            raise TrapError(
                f"{machine.faults.where(machine.at, lane)}: vprintf is asked for more than "
                f"{_LONGEST} characters by {match[0]}"
            )
        value = take(letter, size or "")
        if letter == "s":
            value = machine.peek_string(value, lane, _LONGEST) if value else "(null)"
        if width < 0:
            flags, width = flags + "-", -width
        digits = None if precision is None or precision < 0 else precision
        return _one(value, flags, width, digits, letter)

    return _FORMAT.sub(one, text), taken


def _one(value: Any, flags: str, width: int, precision: int | None, letter: str) -> str:
    """A value formatted as C formats it."""
    if letter == "c":
        value &= 0xFF
    if letter in "uoxX":
        flags = re.sub("[+ ]", "", flags)
    if letter in "oxX" and not value:
        flags = flags.replace("#", "")
    if letter == "o" and "#" in flags:
        value, letter = f"0{value:o}", "s"
    if letter == "p":
        value, letter = f"{value:#x}" if value else "(nil)", "s"
    if letter in "aA":
        value, letter, precision = _hexadecimal(value, precision, flags, letter), "s", None
    size = str(width) if width else ""
    after = "" if precision is None else f".{precision}"
    filled: str = f"%{flags}{size}{after}{letter.replace('u', 'd')}" % value
    return filled


def _hexadecimal(value: float, precision: int | None, flags: str, letter: str) -> str:
    """A value formatted by `%a`: without trailing zeros, or with `precision` digits, half to even."""
    sign = "-" if math.copysign(1, value) < 0 else "".join(c for c in "+ " if c in flags)[:1]
    mantissa, power, exponent = abs(value).hex().partition("p")
    if power:
        digits = (mantissa[2] + mantissa[4:]).ljust(1 + _MANTISSA_DIGITS, "0")
        if precision is None:
            digits = digits[0] + digits[1:].rstrip("0")
        elif precision < _MANTISSA_DIGITS:
            rounded = round(int(digits, 16) / 16 ** (_MANTISSA_DIGITS - precision))
            digits = f"{rounded:0{precision + 1}x}"
        else:
            digits = digits.ljust(precision + 1, "0")
        mantissa = f"0x{digits[0]}{'.' * bool(digits[1:])}{digits[1:]}"
    text = f"{sign}{mantissa}{power}{exponent}"
    return text if letter == "a" else text.upper()


def assertfail(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """Stop at an assertion that does not hold. Raises `TrapError`."""
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
    """Give each lane device memory; address 0 for a size of 0, or for more than there is."""
    sizes = arguments[0].view(np.uint64)[:, 0]
    addresses = np.zeros(len(lanes), np.uint64)
    for n, (lane, size) in enumerate(zip(lanes.tolist(), sizes.tolist(), strict=True)):
        if 0 < size <= _LARGEST:
            name = f"malloc of thread {machine.batch.thread(lane)} of CTA {machine.batch.cta(lane)}"
            addresses[n] = machine.arena.place(np.empty(size, np.uint8), name=name)
            machine.arena.heap[int(addresses[n])] = HeapBytes(size)
    return [addresses.view(np.uint8).reshape(-1, 8)]


def free(machine: LaneMachine, lanes: Lanes, arguments: list[Lanes]) -> list[Lanes]:
    """Take device memory back. Raises `TrapError` for an address that `malloc` did not give."""
    arena = machine.arena
    for lane, address in zip(lanes, arguments[0].view(np.uint64)[:, 0].tolist(), strict=True):
        if not address:
            continue
        batch = machine.batch
        where = where_from(machine.faults.instrs[machine.at])
        caller = f"thread {batch.thread(int(lane))} of CTA {batch.cta(int(lane))} in {where}"
        wrong = arena.free(address, caller)
        if wrong:
            raise TrapError(
                f"{machine.faults.where(machine.at, int(lane))}: frees {address:#x}, {wrong}; free "
                "takes what malloc gave, once"
            )
    return []


# Beginnings of the names of functions by which kernels launch kernels (CUDA C++ Programming Guide,
# "CUDA Dynamic Parallelism"): of the runtime since CUDA 12, and of the one before.
DYNAMIC_PARALLELISM: Final = ("__cudaCDP2", "cudaLaunchDevice", "cudaGetParameterBuffer")

BUILTINS: Final[dict[str, Builtin]] = {
    "vprintf": vprintf,
    "__assertfail": assertfail,
    "malloc": malloc,
    "free": free,
}
