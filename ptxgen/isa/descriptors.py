"""Matrices in shared memory that `wgmma` reads through 64-bit descriptors (PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions": "Shared Memory Matrix Layout", "Matrix
Descriptor Format").

| bits of a descriptor | hold |
|---|---|
| 0-13 | start address, in units of 16 bytes |
| 16-29 | leading dimension byte offset (LBO), in units of 16 bytes |
| 32-45 | stride dimension byte offset (SBO), in units of 16 bytes |
| 49-51 | base offset: address bits 7-9 of the beginning of the swizzle's pattern |
| 62-63 | swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes |

One instruction reads 32 bytes of each row along K. With rows of M or N numbered `r`, and `S` bytes
in a row of the swizzle:

* K-major, no swizzle: 8 x 16 byte blocks, LBO apart along K and SBO along M or N;
* K-major, swizzled: `r // 8 * SBO + r % 8 * S`, and the 32 bytes side by side (LBO is ignored);
* M- or N-major (16-bit elements only), no swizzle: blocks of 8 elements along M or N for 8 values
  of k, 16 bytes apart; SBO apart along M or N and LBO along K;
* M- or N-major, swizzled: S bytes along M or N for each k, S apart for 8 values of k; LBO apart
  along M or N and SBO along K.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

ROW_BYTES: Final = 32  # that one instruction reads along K
WARPS: Final = 4  # of a warpgroup; they share the rows of A

_UNIT: Final = 16
_FIELD: Final = (1 << 14) - 1
# By the value in the descriptor: the number of swizzled address bits, and the bytes of a row.
_SWIZZLED_BITS: Final = (0, 3, 2, 1)
_ROW: Final = (16, 128, 64, 32)
_CORE: Final = 8  # rows, or values of k, of a block
_WORD: Final = 8  # bytes of one read
# The bits of a start address that count periods of 1024 bytes, after which each swizzle repeats.
_PERIODS: Final = _FIELD & ~(1024 // _UNIT - 1)


@lru_cache(maxsize=128)
def _offsets(mode: int, transposed: bool, rows: int) -> tuple[Lanes, Lanes, Lanes]:
    """Offsets of the 8-byte words of a matrix of `rows` rows: multiples of LBO, of SBO, and bytes,
    each `[rows, 4]`, or `[k, words]` if M- or N-major.
    """
    if transposed:
        k = np.arange(ROW_BYTES // 2)[:, None]
        byte = _WORD * np.arange(rows * 2 // _WORD)[None, :]
        along, inside = np.divmod(byte, _ROW[mode])
        core, k0 = np.divmod(k, _CORE)
        bytes_ = inside + _ROW[mode] * k0
        lbo, sbo = (core, along) if mode == 0 else (along, core)
    else:
        r = np.arange(rows)[:, None]
        byte = _WORD * np.arange(ROW_BYTES // _WORD)[None, :]
        sbo, row = np.divmod(r, _CORE)
        lbo, inside = np.divmod(byte, _UNIT) if mode == 0 else (0 * byte, byte)
        bytes_ = row * _ROW[mode] + inside
    shape = np.broadcast_shapes(lbo.shape, sbo.shape)
    offsets = tuple(np.ascontiguousarray(np.broadcast_to(x, shape)) for x in (lbo, sbo, bytes_))
    return offsets[0], offsets[1], offsets[2]


@lru_cache(maxsize=512)
def _in_period(form: int, rows: int, transposed: bool, parted: bool) -> Lanes:
    """The address of each word of a matrix whose descriptor points into the first period of the swizzle,
    `[1, words]`; with `parted`, those of each quarter of the rows, `[4, words]`.
    """

    def field(low: int) -> int:
        return (form >> low & _FIELD) * _UNIT

    mode = form >> 62 & 3
    lbo, sbo, inside = _offsets(mode, transposed, rows)
    address = field(0) + lbo * field(16) + sbo * field(32) + inside
    phase = (address >> 7) - (form >> 49 & 7)
    address ^= (phase & ((1 << _SWIZZLED_BITS[mode]) - 1)) << 4
    if parted and transposed:
        address = address.reshape(len(address), WARPS, -1).swapaxes(0, 1)
    shaped: Lanes = address.reshape(WARPS if parted else 1, -1)
    return shaped


def read_matrix(machine: Machine, descriptor: Lanes, rows: int, *, transposed: bool, parted: bool) -> Lanes:
    """The matrices that the warps' descriptors point to: 8-byte words, uint64, `[warps, rows, 4]`,
    or `[warps, 16, words]` if `transposed` (M- or N-major).

    `descriptor` has one descriptor for each thread, the same in all threads of a warp. With
    `parted`, each warp of a warpgroup gets its own quarter of the rows.
    """
    lanes = machine.active().size
    each = np.broadcast_to(descriptor, lanes)[::32].astype(np.int64)
    quarter = machine.warp_id()[::32].astype(np.int64) % WARPS if parted else None
    words = machine.load_by_warp(_addresses(each, rows, transposed, quarter), b64)
    if transposed:
        return words.reshape(len(each), ROW_BYTES // 2, -1)
    return words.reshape(len(each), -1, ROW_BYTES // _WORD)


def _addresses(each: Lanes, rows: int, transposed: bool, quarter: Lanes | None) -> Lanes:
    """The shared-memory address of each word, `[warps, words]`."""
    start = each & _PERIODS  # whole periods of the swizzle
    forms = each - start
    distinct = np.unique(forms).tolist()
    begin = start[:, None] * _UNIT
    if len(distinct) == 1:
        return (
            begin
            + _in_period(distinct[0], rows, transposed, quarter is not None)[
                0 if quarter is None else quarter
            ]
        )
    relative = np.empty((len(each), rows * ROW_BYTES // _WORD), np.int64)
    for form in distinct:
        of_form = forms == form
        offsets = _in_period(form, rows, transposed, quarter is not None)
        relative[of_form] = offsets[0 if quarter is None else quarter[of_form]]
    return begin + relative
