"""Products of matrices by a warp, `mma.sync`, on exact numbers (PTX ISA, "Matrix Fragments for mma")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.algebra.operands import doubled, single
from ptxgen.algebra.residues import Exact, product
from ptxgen.algebra.words import F32, FORMATS, RAISED, UPPER, has_format, packed, unknown, unpacked
from ptxgen.types import TYPES, f32

if TYPE_CHECKING:
    from ptxgen.algebra.operands import Executed

Lanes = np.ndarray[Any, np.dtype[Any]]

_WARP: Final = 32
_GROUP, _IN_GROUP = np.arange(_WARP) >> 2, np.arange(_WARP) & 3
_WIDE: Final = ("f16", "bf16")  # two of these in a register


def can_multiply(now: Executed) -> bool:
    """Whether `mma` follows the instruction."""
    words = now.step.instr.opcode.split(".")
    return (
        words[-7][:6] == "m16n8k"
        and words[-4] == words[-1] == "f32"
        and words[-3] == words[-2]
        and words[-2] in (*_WIDE, "tf32")
    )


def mma(now: Executed) -> None:
    """D = A B + C of `mma.sync.m16n8k…` with 16-bit or tf32 factors and sums in f32."""
    words = now.step.instr.opcode.split(".")
    k, factor = int(words[-7][6:]), words[-2]
    A = _matrix(now, "a", factor, _places_of_a(k, factor), (16, k))
    B = _matrix(now, "b", factor, _places_of_b(k, factor), (k, 8))
    at = [(_GROUP + 8 * (i // 2), 2 * _IN_GROUP + i % 2) for i in range(4)]
    C = _matrix(now, "c", "f32", at, (16, 8))
    (products, multiplied), (sums, added) = _times(A, B), C
    D = products + sums
    known: Lanes = np.logical_or(multiplied, added)
    for register, (rows, columns) in zip(now["d"].items, at, strict=True):
        of_lanes = D.each(lambda lanes: lanes[:, rows, columns].reshape(-1, 1))  # noqa: B023
        new = np.where(
            known[:, rows, columns].reshape(-1, 1), packed(of_lanes, F32, now.step.number), np.uint64(0)
        )
        now.write(register, doubled(new))


def _times(a: tuple[Exact, Lanes], b: tuple[Exact, Lanes]) -> tuple[Exact, Lanes]:
    """A product, and which of its elements depend on a number that the interpreter does not have."""
    known: Lanes = np.any(a[1], -1, keepdims=True) | np.any(b[1], -2, keepdims=True)
    return product(a[0], b[0]), known


def _matrix(
    now: Executed, name: str, element: str, at: list[tuple[Lanes, Lanes]], shape: Any
) -> tuple[Exact, Lanes]:
    """The matrix that the registers of an operand are, of each warp, and which elements have words. `at` has
    the row and the column of each element of a lane.
    """
    registers = now[name].items
    wide = element in _WIDE
    words, floats = [], []
    for register in registers:
        of_register = now.words(register, 2)
        held = np.ascontiguousarray(now.held(name, register))
        if wide:
            right = (of_register & UPPER == 0) & has_format(of_register, FORMATS[element])
            words += list(np.where(right, of_register, unknown(now.step.number)).T)
            halves = held.view(TYPES[element].dtype).reshape(-1, 2).astype(np.float64)
            floats += [halves[:, 0], halves[:, 1]]
        else:
            formats = (F32, RAISED) if element == "tf32" else (F32,)
            words.append(single(of_register, held, now.step.number, formats))
            floats.append(held.view(f32.dtype).astype(np.float64))
    warps = len(now.ids) // _WARP
    of_warps, of_floats = np.zeros((warps, *shape), np.uint64), np.zeros((warps, *shape))
    for (rows, columns), word, number in zip(at, words, floats, strict=True):
        of_warps[:, rows, columns] = word.reshape(warps, _WARP)
        of_floats[:, rows, columns] = number.reshape(warps, _WARP)
    return unpacked(of_warps, of_floats), of_warps != 0


def _places_of_a(k: int, factor: str) -> list[tuple[Lanes, Lanes]]:
    if factor in _WIDE:
        return [(_GROUP + 8 * (i // 2 % 2), 2 * _IN_GROUP + i % 2 + 8 * (i // 4)) for i in range(k // 2)]
    return [(_GROUP + 8 * (i % 2), _IN_GROUP + 4 * (i // 2)) for i in range(k // 2)]


def _places_of_b(k: int, factor: str) -> list[tuple[Lanes, Lanes]]:
    if factor in _WIDE:
        return [(2 * _IN_GROUP + i % 2 + 8 * (i // 2), _GROUP) for i in range(k // 4)]
    return [(_IN_GROUP + 4 * i, _GROUP) for i in range(k // 4)]
