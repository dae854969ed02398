"""The bytes of shared memory that `wgmma.mma_async` and tensor copies access.

The code follows the manual and shares nothing with the interpreter, so that one can be checked
against the other. The source is PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix
Descriptor Format", and "Strides" with the table of canonical layouts below. Its units have 16 bytes;
`w` units make a row of the swizzle (1, 2, 4, 8 for none, 32, 64, 128 bytes). A matrix lies at the
sums of these strides:

| | along M or N | along K |
|---|---|---|
| K-major, none | 8 rows 1 apart, groups of them SBO | 2 units, LBO apart |
| K-major, swizzled | 8 rows w apart, groups of them SBO | 2 units, 1 apart |
| M- or N-major, none | units of 8 elements, SBO apart | 8 rows 1 apart, groups of them LBO |
| M- or N-major, swizzled | w units 1 apart, groups of them LBO | 8 rows w apart, groups SBO |

The swizzle then exchanges units within 128 bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.program.ranges import Range, signed
from ptxgen.tensormap import TensorMap

Lanes = np.ndarray[Any, np.dtype[Any]]

UNIT: Final = 16  # bytes that a swizzle moves together
ADDRESS_BITS: Final = 18  # bits of a shared address that a descriptor can hold
_FIELD: Final = (1 << 14) - 1
_CORE: Final = 8  # rows of a core matrix
_ALONG_K: Final = 2  # units of each row that one instruction reads
_K_16: Final = 16  # values of k of one instruction for 16-bit elements
_ELEMENTS: Final = 8  # 16-bit elements in a unit
# Units in a row of the swizzle, by the two highest bits of a descriptor.
_WIDTHS: Final = (1, 8, 4, 2)
_ROW_SPANS: Final = {"32B": 32, "64B": 64, "128B": 128}  # bytes of a row of a box with a swizzle


class Matrix(NamedTuple):
    """A matrix that an instruction reads: its rows along M or N; `transposed` if it is M- or N-major."""

    name: str
    rows: int
    transposed: bool


class Fields(NamedTuple):
    """The fields of a descriptor other than its start address, in units of 16 bytes."""

    leading: int
    stride: int
    base_offset: int
    width: int

    @property
    def pattern(self) -> int:
        """The number of bytes after which the swizzle repeats; 1 without a swizzle."""
        return _CORE * self.width * UNIT if self.width > 1 else 1


def start_of(descriptors: Lanes) -> Lanes:
    """The start addresses of descriptors, int64, from 0 to 2**18 - 16."""
    return (descriptors & np.uint64(_FIELD)).astype(np.int64) * UNIT


def fields_of(descriptor: int) -> Fields:
    """The fields of a descriptor other than its start address."""
    return Fields(
        descriptor >> 16 & _FIELD,
        descriptor >> 32 & _FIELD,
        descriptor >> 49 & 7,
        _WIDTHS[descriptor >> 62 & 3],
    )


def units_of(start: int, fields: Fields, matrix: Matrix) -> Lanes:
    """The addresses of the units of a matrix that begins at `start`, int64."""
    leads, strides, units = _layout(matrix.rows, matrix.transposed, fields.width)
    offset = leads * fields.leading + strides * fields.stride + units
    address = start + offset * UNIT
    row = (address >> 7) - fields.base_offset & fields.width - 1
    moved: Lanes = address ^ row * UNIT
    return moved


@lru_cache(maxsize=128)
def _layout(rows: int, transposed: bool, width: int) -> tuple[Lanes, Lanes, Lanes]:
    """For each unit, the multiples of the leading offset, of the stride and of one unit in its address."""
    if transposed:
        return _transposed(rows, width)
    row, unit = (x.ravel() for x in np.mgrid[0:rows, 0:_ALONG_K])
    group, inner = row // _CORE, row % _CORE
    if width == 1:
        return unit, group, inner
    return np.zeros_like(unit), group, inner * width + unit


def _transposed(rows: int, width: int) -> tuple[Lanes, Lanes, Lanes]:
    k, unit = (x.ravel() for x in np.mgrid[0:_K_16, 0 : rows // _ELEMENTS])
    group, inner = k // _CORE, k % _CORE
    if width == 1:
        return group, unit, inner
    return unit // width, group, inner * width + unit % width


def box_span(box: TensorMap) -> int:
    """The bytes of shared memory from the first to the last of a box. With a swizzle, each row
    takes the swizzle's width, whether it fills it or not (CUDA C++ Programming Guide, "Tensor
    Memory Access: Swizzle").
    """
    rows = 1
    for count in box.box_shape[1:]:
        rows *= count
    return rows * _ROW_SPANS.get(box.swizzle, box.row_bytes)


def misplaced_boxes(firsts: Range, of: TensorMap) -> str:
    """Why no box of a map may begin at any of these innermost coordinates, 32 bits each; empty if one may."""
    firsts = signed(firsts, 32)
    same = firsts.step % of.coordinate_step == 0  # all are as far from a multiple of it
    return of.misplaced(firsts.first) if same else ""
