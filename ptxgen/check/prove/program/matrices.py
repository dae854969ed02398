"""Which bytes of shared memory `wgmma.mma_async` and tensor copies touch.

Written from the manual and from nothing that the interpreter reads with, so that the two can be
held against each other. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix
Descriptor Format", and "Strides" with its table of canonical layouts, which is this one. In units
of 16 bytes, of which `w` make a row of the swizzle (1, 2, 4, 8 for none, 32, 64, 128 bytes), a
matrix lies at sums of

| | along M or N | along K |
|---|---|---|
| K-major, none | 8 rows 1 apart, groups of them SBO | 2 units, LBO apart |
| K-major, swizzled | 8 rows w apart, groups of them SBO | 2 units, 1 apart |
| M- or N-major, none | units of 8 elements, SBO apart | 8 rows 1 apart, groups of them LBO |
| M- or N-major, swizzled | w units 1 apart, groups of them LBO | 8 rows w apart, groups SBO |

and then the swizzle exchanges units inside of 128 bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.tensormap import TensorMap

Lanes = np.ndarray[Any, np.dtype[Any]]

UNIT: Final = 16  # bytes that a swizzle moves as one
ADDRESS_BITS: Final = 18  # of shared memory that a descriptor can name
_FIELD: Final = (1 << 14) - 1
_CORE: Final = 8  # rows of a group
_ALONG_K: Final = 2  # units of each row that one instruction reads
_K_16: Final = 16  # values of k of one instruction, if the elements have 16 bits
_ELEMENTS: Final = 8  # of 16 bits in a unit
# By the two highest bits of a descriptor: units in a row of the swizzle.
_WIDTHS: Final = (1, 8, 4, 2)
_ROW_SPANS: Final = {"32B": 32, "64B": 64, "128B": 128}  # of a box with a swizzle


class Matrix(NamedTuple):
    """A matrix that an instruction reads: rows along M or N, and whether these are contiguous."""

    name: str
    rows: int
    turned: bool


class Fields(NamedTuple):
    """What a descriptor says beside its start, in units of 16 bytes."""

    leading: int
    stride: int
    base_offset: int
    width: int

    @property
    def pattern(self) -> int:
        """After how many bytes the swizzle recurs; 1 without one."""
        return _CORE * self.width * UNIT if self.width > 1 else 1


def start_of(descriptors: Lanes) -> Lanes:
    """The addresses at which matrices start, int64, from 0 up to 2**18 - 16."""
    return (descriptors & np.uint64(_FIELD)).astype(np.int64) * UNIT


def fields_of(descriptor: int) -> Fields:
    """The rest of a descriptor."""
    return Fields(
        descriptor >> 16 & _FIELD,
        descriptor >> 32 & _FIELD,
        descriptor >> 49 & 7,
        _WIDTHS[descriptor >> 62 & 3],
    )


def units_of(start: int, fields: Fields, matrix: Matrix) -> Lanes:
    """The addresses of the units that a matrix from `start` on consists of, int64."""
    leads, strides, units = _layout(matrix.rows, matrix.turned, fields.width)
    place = leads * fields.leading + strides * fields.stride + units
    address = start + place * UNIT
    turn = (address >> 7) - fields.base_offset & fields.width - 1
    moved: Lanes = address ^ turn * UNIT
    return moved


@lru_cache(maxsize=128)
def _layout(rows: int, turned: bool, width: int) -> tuple[Lanes, Lanes, Lanes]:
    """Of each unit, how often the leading offset, the stride and one unit are added."""
    if turned:
        return _turned(rows, width)
    row, unit = (x.ravel() for x in np.mgrid[0:rows, 0:_ALONG_K])
    group, inner = row // _CORE, row % _CORE
    if width == 1:
        return unit, group, inner
    return np.zeros_like(unit), group, inner * width + unit


def _turned(rows: int, width: int) -> tuple[Lanes, Lanes, Lanes]:
    k, unit = (x.ravel() for x in np.mgrid[0:_K_16, 0 : rows // _ELEMENTS])
    group, inner = k // _CORE, k % _CORE
    if width == 1:
        return group, unit, inner
    return unit // width, group, inner * width + unit % width


def box_span(box: TensorMap) -> int:
    """How many bytes of shared memory a box takes, from its first to its last: with a swizzle each
    row has the swizzle's width, whether it fills it or not (CUDA C++ Programming Guide, "Tensor
    Memory Access: Swizzle").
    """
    row = box.box_shape[0] * box.type.nbytes
    rows = 1
    for count in box.box_shape[1:]:
        rows *= count
    return rows * _ROW_SPANS.get(box.swizzle, row)
