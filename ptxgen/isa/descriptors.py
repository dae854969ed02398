"""Matrices in shared memory that `wgmma`, `tcgen05.mma` and `tcgen05.cp` read through 64-bit descriptors (PTX
ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Shared Memory Matrix Layout", "Matrix Descriptor
Format"; "TensorCore 5th Generation Family Instructions": "Shared memory descriptor", "Canonical Layouts").

| bits of a descriptor | hold |
|---|---|
| 0-13 | start address, in units of 16 bytes |
| 16-29 | leading dimension byte offset (LBO), in units of 16 bytes |
| 32-45 | stride dimension byte offset (SBO), in units of 16 bytes |
| 46-48 | 001 (tcgen05) |
| 49-51 | base offset: address bits 7-9 of the beginning of the swizzle's pattern |
| 52 | LBO is an address (tcgen05) |
| 62-63 | swizzle of wgmma: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes |
| 61-63 | swizzle of tcgen05: 0 none, 1 128 bytes in atoms of 32, 2 128 bytes, 4 64 bytes, 6 32 bytes |

One instruction reads 32 bytes of each row along K. With rows of M or N numbered `r`, and `S` bytes
in a row of the swizzle:

* K-major, no swizzle: 8 x 16 byte blocks, LBO apart along K and SBO along M or N;
* K-major, swizzled: `r // 8 * SBO + r % 8 * S`, and the 32 bytes side by side (LBO is ignored);
* M- or N-major (of wgmma 16-bit elements only), no swizzle: blocks of 16 bytes along M or N for 8 values
  of k, 16 bytes apart; SBO apart along M or N and LBO along K;
* M- or N-major, swizzled: S bytes along M or N for each k, S apart for 8 values of k, or for 4 in atoms of 32
  bytes; LBO apart along M or N and SBO along K.

A swizzle exchanges the atoms, of 16 bytes if nothing else is said, of a row by the number of the row of 128
bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.errors import DescriptorError
from ptxgen.records import dataclass
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

ROW_BYTES: Final = 32  # that one instruction reads along K
WARPS: Final = 4  # of a warpgroup; they share the rows of A

_UNIT: Final = 16
_FIELD: Final = (1 << 14) - 1
_CORE: Final = 8  # rows, or values of k, of a block
_WORD: Final = 8  # bytes of one read
_LINE: Final = 7  # the lowest bit of an address that is the number of a row of 128 bytes


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Rows of `row` bytes, whose atoms of `atom` bytes are exchanged by `bits` bits of the address."""

    row: int
    bits: int
    atom: int = _UNIT

    @property
    def core(self) -> int:
        """Values of k of a block that is M- or N-major."""
        return _CORE * _UNIT // self.atom

    def applied(self, address: Lanes, base: Lanes | int) -> Lanes:
        """The addresses at which the bytes of a matrix lie, whose pattern begins at a base offset."""
        phase = ((address >> _LINE) - base) & ((1 << self.bits) - 1)
        swizzled: Lanes = address ^ phase * self.atom
        return swizzled


_NONE: Final = Swizzle(16, 0)
_OF_128: Final = Swizzle(128, 3)
_OF_128_IN_32: Final = Swizzle(128, 2, 32)
_OF_64: Final = Swizzle(64, 2)
_OF_32: Final = Swizzle(32, 1)
# By the value in the descriptor.
_WGMMA: Final = (_NONE, _OF_128, _OF_64, _OF_32)
_TCGEN05: Final = {0: _NONE, 1: _OF_128_IN_32, 2: _OF_128, 4: _OF_64, 6: _OF_32}
# By the name that tensor maps have for it.
OF_MAPS: Final = {"none": _NONE, "128B": _OF_128, "64B": _OF_64, "32B": _OF_32}

# The bits of a start address that count periods of 1024 bytes, after which each swizzle repeats.
_PERIODS: Final = _FIELD & ~(1024 // _UNIT - 1)
_QUARTER: Final = 14  # the lowest of two bits that no descriptor of wgmma uses


@lru_cache(maxsize=128)
def _offsets(
    swizzle: Swizzle, transposed: bool, rows: int, size: int = 2, nbytes: int = ROW_BYTES
) -> tuple[Lanes, Lanes, Lanes]:
    """Offsets of the 8-byte words of a matrix of `rows` rows with `nbytes` bytes along K: multiples of LBO,
    of SBO, and bytes, each `[rows, words]`, or `[k, words]` if M- or N-major, of elements of `size` bytes.
    """
    if transposed:
        k = np.arange(nbytes // size)[:, None]
        byte = _WORD * np.arange(rows * size // _WORD)[None, :]
        along, inside = np.divmod(byte, swizzle.row)
        core, k0 = np.divmod(k, swizzle.core)
        bytes_ = inside + swizzle.row * k0
        lbo, sbo = (core, along) if swizzle is _NONE else (along, core)
    else:
        r = np.arange(rows)[:, None]
        byte = _WORD * np.arange(nbytes // _WORD)[None, :]
        sbo, row = np.divmod(r, _CORE)
        lbo, inside = np.divmod(byte, _UNIT) if swizzle is _NONE else (0 * byte, byte)
        bytes_ = row * swizzle.row + inside
    shape = np.broadcast_shapes(lbo.shape, sbo.shape)
    offsets = tuple(np.ascontiguousarray(np.broadcast_to(x, shape)) for x in (lbo, sbo, bytes_))
    return offsets[0], offsets[1], offsets[2]


# ---------------------------------------- wgmma


@lru_cache(maxsize=512)
def _in_period(form: int, rows: int, transposed: bool, parted: bool) -> Lanes:
    """The address of each word of a matrix whose descriptor points into the first period of the swizzle,
    `[1, words]`; with `parted`, those of each quarter of the rows, `[4, words]`.
    """

    def field(low: int) -> int:
        return (form >> low & _FIELD) * _UNIT

    swizzle = _WGMMA[form >> 62 & 3]
    lbo, sbo, inside = _offsets(swizzle, transposed, rows)
    address = swizzle.applied(field(0) + lbo * field(16) + sbo * field(32) + inside, form >> 49 & 7)
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
    address, rows_of = _addresses(each, rows, transposed, quarter)
    words = machine.load_by_warp(address, rows_of, b64)
    if transposed:
        return words.reshape(len(each), ROW_BYTES // 2, -1)
    return words.reshape(len(each), -1, ROW_BYTES // _WORD)


def _addresses(each: Lanes, rows: int, transposed: bool, quarter: Lanes | None) -> tuple[Lanes, Lanes]:
    """The shared-memory addresses of the words of each different matrix, `[matrices, words]`, and the
    number of the matrix of each warp.
    """
    # A descriptor has no bits 14 and 15, so they can hold the quarter.
    keys = each if quarter is None else each & ~(3 << _QUARTER) | quarter << _QUARTER
    distinct, rows_of = np.unique(keys, return_inverse=True)
    start = distinct & _PERIODS  # whole periods of the swizzle
    address = np.empty(
        (len(distinct), rows * ROW_BYTES // _WORD // (1 if quarter is None else WARPS)), np.int64
    )
    for n, (begin, key) in enumerate(zip(start.tolist(), (distinct - start).tolist(), strict=True)):
        part = 0 if quarter is None else key >> _QUARTER & 3
        form = key if quarter is None else key & ~(3 << _QUARTER)
        np.add(_in_period(form, rows, transposed, quarter is not None)[part], begin * _UNIT, out=address[n])
    return address, rows_of


# ---------------------------------------- tcgen05

_VERSION: Final = 1  # in bits 46-48
SIZES: Final = {"f16": 2, "bf16": 2, "tf32": 4}  # bytes of an element; others have one


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """What a descriptor of `tcgen05` says; `start`, `lbo` and `sbo` are in bytes."""

    start: int
    lbo: int
    sbo: int
    base_offset: int
    swizzle: Swizzle
    lbo_is_address: bool = False

    @property
    def bits(self) -> int:
        """The descriptor that `shared_matrix` reads as this matrix."""
        start, lbo, sbo = (nbytes // _UNIT & _FIELD for nbytes in (self.start, self.lbo, self.sbo))
        code = next(code for code, swizzle in _TCGEN05.items() if swizzle == self.swizzle)
        above = _VERSION << 46 | self.base_offset << 49 | self.lbo_is_address << 52 | code << 61
        return start | lbo << 16 | sbo << 32 | above

    def words(self, rows: int, nbytes: int = ROW_BYTES) -> Lanes:
        """The shared-memory address of each 8-byte word of a K-major matrix, int64 `[rows, nbytes / 8]`.

        Raises `DescriptorError` if LBO is an address.
        """
        return self._at(_offsets(self.swizzle, False, rows, nbytes=nbytes))

    def words_along_rows(self, rows: int, type: str) -> Lanes:
        """The shared-memory address of each 8-byte word of an M- or N-major matrix of elements of a type,
        int64 `[K, words of rows]`; elements of fewer than 8 bits take a byte each.

        Raises `DescriptorError` if LBO is an address, and for a swizzle that the type lacks: tf32 needs that
        of 128 bytes in atoms of 32, which no other type has.
        """
        if (type == "tf32") != (self.swizzle is _OF_128_IN_32):
            raise DescriptorError(
                "a descriptor of an M- or N-major matrix in shared memory: expected the swizzle of 128 bytes "
                "in atoms of 32, 1 in bits 61-63, for tf32 and for no other type, got that of "
                f"{self.swizzle.row} bytes in atoms of {self.swizzle.atom} for {type}"
            )
        return self._at(_offsets(self.swizzle, True, rows, SIZES.get(type, 1)))

    def _at(self, offsets: tuple[Lanes, Lanes, Lanes]) -> Lanes:
        if self.lbo_is_address:
            raise DescriptorError(
                "a descriptor of a matrix in shared memory: expected an LBO that is an offset, got one that "
                "is an address (bit 52), which is not modelled"
            )
        lbo, sbo, inside = offsets
        return self.swizzle.applied(self.start + lbo * self.lbo + sbo * self.sbo + inside, self.base_offset)


def shared_matrix(bits: int) -> SharedMatrix:
    """What a descriptor of `tcgen05` says. Raises `DescriptorError` for values that the manual reserves."""
    if bits >> 46 & 7 != _VERSION:
        raise DescriptorError(
            f"the descriptor {bits:#018x} of a matrix in shared memory: expected 001 in bits 46-48, got "
            f"{bits >> 46 & 7:03b}"
        )
    if bits >> 61 not in _TCGEN05:
        raise DescriptorError(
            f"the descriptor {bits:#018x} of a matrix in shared memory: expected the swizzle 0 (none), 1 "
            "(128 bytes in atoms of 32), 2 (128 bytes), 4 (64 bytes) or 6 (32 bytes) in bits 61-63, got "
            f"{bits >> 61}"
        )
    start, lbo, sbo = ((bits >> low & _FIELD) * _UNIT for low in (0, 16, 32))
    return SharedMatrix(start, lbo, sbo, bits >> 49 & 7, _TCGEN05[bits >> 61], bool(bits >> 52 & 1))
