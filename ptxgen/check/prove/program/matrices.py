"""The bytes of shared memory that `wgmma.mma_async`, `tcgen05.mma`, `tcgen05.cp` and tensor copies access.

The code follows the manual and shares nothing with the interpreter, so that one can be checked
against the other. The source is PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Matrix
Descriptor Format", and "Strides" with the table of canonical layouts below; "TensorCore 5th Generation Family
Instructions": "Shared memory descriptor", "Canonical Layouts". Its units have 16 bytes;
`w` units make a row of the swizzle (1, 2, 4, 8 for none, 32, 64, 128 bytes). A matrix lies at the
sums of these strides:

| | along M or N | along K |
|---|---|---|
| K-major, none | 8 rows 1 apart, groups of them SBO | units LBO apart |
| K-major, swizzled | 8 rows w apart, groups of them SBO | units 1 apart |
| M- or N-major, none | units SBO apart | 8 rows 1 apart, groups of them LBO |
| M- or N-major, swizzled | w units 1 apart, groups of them LBO | 8 rows w apart, groups SBO |

A product reads 2 units of each row along K. The swizzle then exchanges atoms of one unit within 128 bytes; of
`tcgen05`, there is one with atoms of two units, M- or N-major with groups of 4 rows along K, for tf32 alone.
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
_ROW_BYTES: Final = 32  # of each row along K that a product reads
# Units in a row of the swizzle and in an atom, by the two highest bits of a descriptor.
_SWIZZLES: Final = {0: (1, 1), 1: (8, 1), 2: (4, 1), 3: (2, 1)}
# The same units by the three highest bits of a descriptor of `tcgen05`, and the version that it names.
_TENSOR_SWIZZLES: Final = {0: (1, 1), 1: (8, 2), 2: (8, 1), 4: (4, 1), 6: (2, 1)}
_VERSION: Final = 1  # in bits 46 to 48
_LARGE: Final = 4  # bytes of the elements, tf32, that M- or N-major have atoms of two units
_ROW_SPANS: Final = {"32B": 32, "64B": 64, "128B": 128}  # bytes of a row of a box with a swizzle


class Matrix(NamedTuple):
    """A matrix that an instruction reads: its rows along M or N; `transposed` if it is M- or N-major.

    A row has `nbytes` bytes along K, of elements of `size` bytes. `tensor` says that its descriptor is one of
    `tcgen05`, and not of `wgmma`.
    """

    name: str
    rows: int
    transposed: bool
    nbytes: int = _ROW_BYTES
    size: int = 2
    tensor: bool = False


class Fields(NamedTuple):
    """The fields of a descriptor other than its start address, in units of 16 bytes; `wrong` says what no
    instruction takes, `unknown` what is not followed. Both are empty for all others.
    """

    leading: int
    stride: int
    base_offset: int
    width: int
    atom: int = 1
    wrong: str = ""
    unknown: str = ""

    @property
    def pattern(self) -> int:
        """The number of bytes after which the swizzle repeats; 1 without a swizzle."""
        return _CORE * self.width * UNIT if self.width > 1 else 1

    def phase(self, address: Lanes | int) -> Lanes | int:
        """The number of the row of 128 bytes in the pattern of the swizzle."""
        return (address >> 7) - self.base_offset & self.width // self.atom - 1


def start_of(descriptors: Lanes) -> Lanes:
    """The start addresses of descriptors, int64, from 0 to 2**18 - 16."""
    return (descriptors & np.uint64(_FIELD)).astype(np.int64) * UNIT


def fields_of(descriptor: int, matrix: Matrix) -> Fields:
    """The fields of the descriptor of a matrix other than its start address."""
    plain = descriptor >> 16 & _FIELD, descriptor >> 32 & _FIELD, descriptor >> 49 & 7
    if not matrix.tensor:
        return Fields(*plain, *_SWIZZLES[descriptor >> 62])
    version, code = descriptor >> 46 & 7, descriptor >> 61
    width, atom = _TENSOR_SWIZZLES.get(code, (1, 1))
    wrong = unknown = ""
    if version != _VERSION:
        wrong = f"bits 46 to 48 of its descriptor are {version:03b}, not 001"
    elif code not in _TENSOR_SWIZZLES:
        wrong = f"its descriptor has the swizzle {code}, and there are 0, 1, 2, 4 and 6"
    elif matrix.transposed and (matrix.size == _LARGE) != (atom > 1):
        rule = "of M- or N-major matrices tf32 has 1, all others another"
        wrong = f"its descriptor has the swizzle {code}, and {rule}"
    elif descriptor >> 52 & 1:
        unknown = "its descriptor has an address in place of the leading dimension's offset"
    return Fields(*plain, width, atom, wrong, unknown)


def units_of(start: int, fields: Fields, matrix: Matrix) -> Lanes:
    """The addresses of the units of a matrix that begins at `start`, int64."""
    leads, strides, units = _layout(matrix, fields.width, fields.atom)
    offset = leads * fields.leading + strides * fields.stride + units
    address = start + offset * UNIT
    moved: Lanes = address ^ fields.phase(address) * (fields.atom * UNIT)
    return moved


@lru_cache(maxsize=128)
def _layout(matrix: Matrix, width: int, atom: int) -> tuple[Lanes, Lanes, Lanes]:
    """For each unit, the multiples of the leading offset, of the stride and of one unit in its address."""
    if matrix.transposed:
        return _transposed(matrix, width, atom)
    row, unit = (x.ravel() for x in np.mgrid[0 : matrix.rows, 0 : matrix.nbytes // UNIT])
    group, inner = row // _CORE, row % _CORE
    if width == 1:
        return unit, group, inner
    return np.zeros_like(unit), group, inner * width + unit


def _transposed(matrix: Matrix, width: int, atom: int) -> tuple[Lanes, Lanes, Lanes]:
    values, units = matrix.nbytes // matrix.size, -(-matrix.rows * matrix.size // UNIT)
    k, unit = (x.ravel() for x in np.mgrid[0:values, 0:units])
    group, inner = np.divmod(k, _CORE // atom)
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
