"""Instructions that move numbers between registers, lanes and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.algebra.memory import UNIT, Memories, Memory
from ptxgen.algebra.operands import units_of
from ptxgen.algebra.words import unknown
from ptxgen.errors import LaunchError
from ptxgen.ir import Pair, Vector

if TYPE_CHECKING:
    from ptxgen.algebra.operands import Executed

Lanes = np.ndarray[Any, np.dtype[Any]]

_WARP: Final = 32
_OF_VECTOR: Final = {None: 1, "v2": 2, "v4": 4, "v8": 8}
_SIDE: Final = 8  # rows and columns of a matrix of ldmatrix
_HELD: Final = ("param", "const")  # spaces without symbols


def _mov(_: Memories, now: Executed) -> None:
    into = now["d"]
    registers = into.items if isinstance(into, Vector) else [into]
    units = len(registers) * max(map(units_of, registers))  # a sink is as wide as the others
    if any(isinstance(got, Vector) and len(got.items) > units for got in (into, now["a"])):
        now.lose()  # registers of bytes
    else:
        now.write(into, now.words(now["a"], units))


def _tf32(_: Memories, now: Executed) -> None:
    """A conversion to tf32 rounds alone."""
    now.write(now["d"], now.words(now["a"], 2))


def _units(now: Executed, name: str) -> int:
    return max(now.type_of(name).bits // 16, 1)


def _word(now: Executed, name: str) -> str | None:
    """A modifier that is a word, or None if it is left out."""
    word = now.modifiers[name]
    return None if word is None else str(word)


def _selp(_: Memories, now: Executed) -> None:
    units = _units(now, "d")
    first = now.held("c").astype(bool)[:, None]
    now.write(now["d"], np.where(first, now.words(now["a"], units), now.words(now["b"], units)))


def _shfl(_: Memories, now: Executed) -> None:
    """PTX ISA, "shfl.sync"."""
    lane = now.ids % _WARP
    b, c = (now.held(name).astype(np.int64) for name in "bc")
    clamp, mask = c & 31, c >> 8 & 31
    least, most = lane & mask, lane & mask | clamp & ~mask
    match now.modifiers["mode"]:
        case "up":
            source, inside = lane - (b & 31), lane - (b & 31) >= most
        case "down":
            source, inside = lane + (b & 31), lane + (b & 31) <= most
        case "bfly":
            source, inside = lane ^ (b & 31), lane ^ (b & 31) <= most
        case _:
            source = least | b & 31 & ~mask
            inside = source <= most
    source = np.where(inside, source, lane)
    into = now["d"]
    now.write(
        into.first if isinstance(into, Pair) else into, now.words_of_lanes(now["a"], now.ids - lane + source)
    )


def _ld(memories: Memories, now: Executed) -> None:
    if now.modifiers["space"] in _HELD:
        now.clear()
        return
    memory, addresses = _memory(memories, now, _word(now, "space"), "addr")
    count = _OF_VECTOR[_word(now, "vec")]
    type, into = now.type_of("d"), now["d"]
    words = memory.load(addresses, -(-count * type.nbytes // UNIT))
    registers = into.items if isinstance(into, Vector) else [into]
    has_signs = type.is_signed and any(units_of(register) * UNIT > type.nbytes for register in registers)
    if type.nbytes < UNIT or has_signs:
        now.fill(np.where(words.any(1), unknown(now.step.number), np.uint64(0)))
    else:
        now.write(now["d"], words)


def _st(memories: Memories, now: Executed) -> None:
    memory, addresses = _memory(memories, now, _word(now, "space"), "addr")
    count = _OF_VECTOR[_word(now, "vec")]
    nbytes = now.type_of("a").nbytes
    if nbytes < UNIT:
        words = memory.load(addresses, -(-count * nbytes // UNIT))
        has_words = words.any(1) | now.words(now["a"], count).any(1)
        words[has_words] = unknown(now.step.number)
    else:
        words = now.words(now["a"], count * nbytes // UNIT)
    memory.store(addresses, words)


def _ldmatrix(memories: Memories, now: Executed) -> None:
    """PTX ISA, "ldmatrix": lane l has the elements 2 (l % 4) and the next of row l // 4 of each matrix, or
    with `.trans` of column l // 4.
    """
    memory, addresses = _memory(memories, now, "shared", "addr")
    of_warps = addresses.reshape(-1, _WARP)
    lane = np.arange(_WARP)
    line, first = lane // 4, 2 * (lane % 4)
    words = []
    for matrix in range(int(str(now.modifiers["num"])[1:])):
        rows = of_warps[:, matrix * _SIDE : (matrix + 1) * _SIDE]
        for half in range(2):
            row, column = (first + half, line) if now.modifiers["trans"] else (line, first + half)
            words.append(memory.load((rows[:, row] + UNIT * column).reshape(-1), 1))
    now.write(now["d"], np.concatenate(words, 1))


def _cp_async(memories: Memories, now: Executed) -> None:
    """The copy is done at once: that its bytes are awaited is a matter of sanitizers."""
    into, to = _memory(memories, now, "shared", "dst")
    source, at = _memory(memories, now, "global", "src")
    nbytes = 16 if now["cp_size"] is None else now["cp_size"].value  # .cg copies 16 bytes
    if now["ignore"] is not None:
        read = np.where(now.held("ignore"), 0, nbytes)
    else:
        read = np.full(len(to), nbytes) if now["src_size"] is None else now.held("src_size").astype(np.int64)
    units = np.arange(nbytes // UNIT)
    words = np.zeros((len(to), len(units)), np.uint64)
    reads = read > 0
    present = units < (read[reads] // UNIT)[:, None]
    offsets = np.where(present, units * UNIT, 0)
    words[reads] = np.where(present, source.words[source.units(at[reads, None] + offsets)], 0)
    into.store(to, words)


def _memory(memories: Memories, now: Executed, space: str | None, name: str) -> tuple[Memory, Lanes]:
    """The memory of a state space, and the addresses of an operand in it."""
    addresses = now.addresses(name)
    if space == "global":
        return memories.of_global, addresses
    if space == "shared":
        return memories.of_shared, addresses + now.ids // memories.width * memories.stride
    raise LaunchError(
        f"numbers are not followed through {now.step.instr.opcode}: its state space is "
        f"{space or 'generic'}, and those followed are global and shared"
    )


Movement = Callable[[Memories, "Executed"], None]
MOVEMENTS: Final[Mapping[str, Movement]] = {
    **dict.fromkeys(("mov", "mov_vector", "pack", "unpack"), _mov),
    "cvt_tf32": _tf32,
    "selp": _selp,
    "shfl": _shfl,
    "ld": _ld,
    "st": _st,
    "ldmatrix": _ldmatrix,
    **{f"cp_async_{cache}{form}": _cp_async for cache in ("ca", "cg") for form in ("", "_unless")},
}
