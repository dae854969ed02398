"""What `tcgen05.mma` and `tcgen05.cp` do with the memories of a CTA, or of a pair of them (PTX ISA,
"TensorCore 5th Generation Family Instructions": "Matrix Multiply-Accumulate Operation using mma instruction",
"tcgen05.cp").

A product or a copy is planned from the values of its operands when its instruction is executed: descriptors
are decoded, and the memory that it reads and writes is known. Its `Operation` does it later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ptxgen.errors import DescriptorError
from ptxgen.isa.descriptors import SIZES, shared_matrix
from ptxgen.isa.mma_descriptor import Product, product_of
from ptxgen.isa.tcgen05_sums import PAIRED_KINDS, elements_of_cells, elements_of_words, multiply_add
from ptxgen.isa.tensor_agent import Box, Columns, Memories, Operation
from ptxgen.isa.tensor_memory import (
    COLUMNS,
    COPIES,
    GROUP,
    GROUPS,
    LANES,
    QUARTER,
    SCALES_ADDRESS,
    PairCells,
    cells_of_a,
    cells_of_a_in_pair,
    cells_of_d,
    cells_of_scales,
    columns_of_d,
    columns_of_scales,
    groups_of_rows,
    lanes_of_copy,
    scales_in,
    split_address,
)
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

_CELL: Final = 4  # bytes
_WORD: Final = 8
_CHUNK: Final = 16
# By kind and size of a block: the scale factors of a row in one product.
FACTORS: Final = {
    **{("mxf8f6f4", vec): 1 for vec in ("", "scale_vec::1X", "block32")},
    **{("mxf4", vec): 2 for vec in ("", "scale_vec::2X", "block32")},
    **{("mxf4nvf4", vec): 2 for vec in ("scale_vec::2X", "block32")},
    **{("mxf4nvf4", vec): 4 for vec in ("scale_vec::4X", "block16")},
}

_Factors = Callable[[Memories], tuple["Lanes", "Lanes"]]


class _SharedMatrix(NamedTuple):
    """A matrix in shared memory: the numbers of its 8-byte words, as the functions of descriptors have them,
    the bytes from the lowest to one past the highest, and the numbers of its units of 16 bytes.
    """

    words: Lanes
    along_rows: bool
    low: int
    high: int
    chunks: Lanes

    def read(self, shared: Lanes) -> Lanes:
        """The words of the matrix, uint64."""
        all_words = shared[: len(shared) // _WORD * _WORD].view(np.uint64)
        words: Lanes = all_words[self.words]
        return words

    def box(self, what: str) -> Box:
        """The bytes that are read."""
        return Box(self.low, self.high, what, self.chunks)


@lru_cache(maxsize=1024)
def _described_matrix(
    descriptor: int, rows: int, nbytes: int, type: str, along_rows: bool = False
) -> _SharedMatrix:
    """The matrix that a descriptor describes, of rows of `nbytes` bytes, or of columns if its rows lie along
    M or N. Raises `DescriptorError`.
    """
    of = shared_matrix(descriptor)
    at = of.words_along_rows(rows, type) if along_rows else of.words(rows, nbytes)
    chunks = np.unique(at // _CHUNK)
    return _SharedMatrix(at // _WORD, along_rows, int(at.min()), int(at.max()) + _WORD, chunks)


@lru_cache(maxsize=256)
def _product(kind: str, idesc: int, group: int) -> Product:
    """The product that an instruction descriptor describes. Raises `DescriptorError` for one that is not
    modelled, too.
    """
    of = product_of(kind, idesc, group=group)
    wrong = "a sparse A (bit 2)" if of.sparse else "K of 96 (bit 31)" if of.k == 96 else ""
    if wrong:
        raise DescriptorError(
            f"the instruction descriptor {idesc:#010x} asks for {wrong}, which the interpreter does not "
            "model; run it on a GPU"
        )
    return of


@dataclass(frozen=True, slots=True)
class TensorProduct:
    """A form of `tcgen05.mma` without scale factors: with `a_in_tensor` A is in tensor memory, otherwise in
    shared memory, behind a descriptor; one CTA multiplies or a `pair`; D is divided by 2 to the power of
    `lowered` first.
    """

    kind: str
    a_in_tensor: bool
    pair: bool
    lowered: int = 0

    def __call__(self, d: int, a: int, b: int, idesc: int, use: int, *mask: int) -> Operation:
        """The product with these operands. Raises `ValueError` for wrong ones."""
        of = _product(self.kind, idesc, 1 + self.pair)
        masked = _masked_lanes(mask) if any(mask) else None
        return _Matrices(of, self.a_in_tensor, d, a, b).operation(bool(use), self.lowered, masked)


@dataclass(frozen=True, slots=True)
class ScaledProduct:
    """A form of `tcgen05.mma` with scale factors for blocks of a size."""

    kind: str
    vec: str
    a_in_tensor: bool
    pair: bool

    def __call__(
        self, d: int, a: int, b: int, idesc: int, scales_a: int, scales_b: int, use: int
    ) -> Operation:
        """The product with these operands. Raises `ValueError` for wrong ones."""
        of = _product(self.kind, idesc, 1 + self.pair)
        count = FACTORS[self.kind, self.vec]
        matrices = _Matrices(of, self.a_in_tensor, d, a, b)
        sides, columns = [], []
        for name, address, rows, first in (
            ("A", scales_a & SCALES_ADDRESS, of.m // of.group, of.scale_bytes[0]),
            ("B", scales_b & SCALES_ADDRESS, of.n, of.scale_bytes[1]),
        ):
            lane, column = split_address(address)
            if lane or first + count > _CELL:
                raise DescriptorError(
                    f"the {count} scale factors of each row of {name} lie in a column of 4 bytes from lane 0 "
                    f"on, got byte {first} and lane {lane}"
                )
            sides.append(partial(_scales, rows, column, first, count))
            groups = tuple(range(0, GROUPS, 1 if rows > GROUP else QUARTER // GROUP))
            what = f"the scale factors of {name}"
            columns.append(Columns(column, columns_of_scales(rows), what, groups))
        operation = matrices.operation(
            bool(use), factors=lambda memories: (sides[0](memories), sides[1](memories))
        )
        return operation._replace(columns=(*operation.columns, *columns))


def _scales(rows: int, column: int, first: int, count: int, memories: Memories) -> Lanes:
    """The scale factors of each row in the tensor memory of a CTA, uint8 `[rows, count]`."""
    of = cells_of_scales(rows)
    return scales_in(memories.tensor[of.lane[0], of.column[0] + column], first, count)


def _masked_lanes(mask: Sequence[int]) -> Lanes:
    """Which lanes of D the masks keep from being written, bool `[ctas, lanes]`."""
    words = np.array(mask, np.uint32).view(np.uint8)
    return np.unpackbits(words, bitorder="little").astype(np.bool_).reshape(-1, LANES)


class _Matrices:
    """The matrices of one product, with the addresses of D and A and the descriptors of A and B."""

    def __init__(self, of: Product, a_in_tensor: bool, d: int, a: int, b: int) -> None:
        self._of = of
        self._d = d
        self._rows = of.m // of.group  # of A in each CTA
        self._nbytes = of.k // 2 if of.kind in PAIRED_KINDS else of.k * SIZES.get(of.a, 1)
        self._columns = [self._start("D", d, columns_of_d(of))]
        self._a = a
        self._left = None if a_in_tensor else _described_matrix(a, self._rows, self._nbytes, of.a, of.m_major)
        if a_in_tensor:
            self._columns.append(self._start("A", a, self._nbytes // _CELL))
        self._right = _described_matrix(b, of.n // of.group, self._nbytes, of.b, of.n_major)

    def operation(
        self, use: bool, lowered: int = 0, masked: Lanes | None = None, factors: _Factors | None = None
    ) -> Operation:
        """The product; with `use`, D is added."""
        boxes = [self._right.box("B")]
        if self._left is not None:
            boxes.append(self._left.box("A"))
        run = partial(self._run, use, lowered, masked, factors)
        d, *a = self._columns
        if masked is not None:
            unwritten: Lanes = np.logical_and.reduce(masked.reshape(len(masked), GROUPS, GROUP), axis=(0, 2))
            d = d._replace(groups=tuple(g for g in d.groups if not unwritten[g]))
        spread = partial(self._spread, use, masked, factors)
        of = self._of
        columns = (d._replace(reads=use, writes=True), *a)
        return Operation(run, spread, columns, tuple(boxes), of.m * of.n * of.k)

    def _spread(
        self, use: bool, masked: Lanes | None, factors: _Factors | None, ctas: tuple[Memories, ...]
    ) -> None:
        """Make the rows and columns of D undefined whose operands have undefined bits."""
        of = self._of
        right = np.concatenate([self._undefined_rows(self._right, c.shared, of.n // of.group) for c in ctas])
        for rank, cta in enumerate(ctas):
            rows, columns = self._undefined_rows_of_a(cta), right
            if factors is not None:
                a, b = factors(cta)
                rows, columns = rows | a.any(axis=1), columns | b.any(axis=1)
            index = self._index(rank)
            bits = cta.tensor.reshape(-1)
            old = bits[index]
            new = np.where(rows[:, None] | columns, np.uint32(0xFFFFFFFF), old if use else np.uint32(0))
            bits[index] = new if masked is None else np.where(masked[rank][index // COLUMNS], old, new)

    def _undefined_rows_of_a(self, cta: Memories) -> Lanes:
        """Which rows of A have undefined bits."""
        if self._left is not None:
            return self._undefined_rows(self._left, cta.shared, self._rows)
        lane, column = split_address(self._a)
        copies = (
            (cells_of_a(self._rows, self._nbytes),)
            if self._of.group == 1
            else cells_of_a_in_pair(self._rows, self._nbytes)
        )
        undefined: Lanes = np.logical_or.reduce(
            [(cta.tensor[c.lane + lane, c.column + column] != 0).any(axis=1) for c in copies]
        )
        return undefined

    def _undefined_rows(self, matrix: _SharedMatrix, bits: Lanes, rows: int) -> Lanes:
        """Which rows of A, or columns of B, behind a descriptor have undefined bits; or share a word with one
        that has some, if rows share words.
        """
        words = matrix.read(bits) != 0
        if matrix.along_rows:
            return np.repeat(words.any(axis=0), rows // words.shape[1])
        undefined: Lanes = words.any(axis=1)
        return undefined

    def _run(
        self,
        use: bool,
        lowered: int,
        masked: Lanes | None,
        factors: _Factors | None,
        ctas: tuple[Memories, ...],
    ) -> None:
        of = self._of
        right = np.concatenate([self._elements(self._right, c.shared, of.b) for c in ctas])
        lefts = [self._elements_of_a(cta) for cta in ctas]
        for rank, (cta, sides) in enumerate(zip(ctas, lefts, strict=True)):
            scales = None if factors is None else factors(cta)
            index = self._index(rank)
            cells = cta.tensor.reshape(-1)
            old = cells[index]
            start = (old.astype(np.uint16) if of.d == "f16" else old) if use else None
            new = multiply_add(of, sides[0], right, start, scales=scales, lowered=lowered)
            if len(sides) > 1 and (sides[0] != sides[1]).any():
                # The right half of D's columns is computed from the second copy of A.
                other = multiply_add(of, sides[1], right, start, scales=scales, lowered=lowered)
                new = np.concatenate([new[:, : of.n // 2], other[:, of.n // 2 :]], axis=1)
            if masked is not None:
                new = np.where(masked[rank][index // COLUMNS], old, new)
            cells[index] = new

    def _index(self, rank: int) -> Lanes:
        """The indices of D's cells in a CTA's tensor memory, `[rows, N]`."""
        lane, column = split_address(self._d)
        index: Lanes = _cells_of_d(self._of.m, self._of.n, self._of.group)[rank] + lane * COLUMNS + column
        return index

    def _start(self, name: str, address: int, columns: int) -> Columns:
        """The columns of D or A in tensor memory. Raises `DescriptorError` for a wrong first lane."""
        lane, column = split_address(address)
        halves = self._of.m == LANES // 2
        if lane not in ((0, 16) if halves else (0,)):
            raise DescriptorError(
                f"{name} of M {self._of.m} begins at lane {'0 or 16' if halves else '0'} of tensor memory, "
                f"got {address:#x}, lane {lane}"
            )
        return Columns(column, columns, name, groups_of_rows(self._of, lane))

    def _elements_of_a(self, cta: Memories) -> tuple[Lanes, ...]:
        """The bits of the elements of A in a CTA, `[rows, K]`; twice if each half of D has its copy."""
        of = self._of
        if self._left is not None:
            return (self._elements(self._left, cta.shared, of.a),)
        lane, column = split_address(self._a)
        one = of.group == 1
        copies = (
            (cells_of_a(self._rows, self._nbytes),) if one else cells_of_a_in_pair(self._rows, self._nbytes)
        )
        sides = []
        for cells in copies:
            words = cta.tensor[cells.lane + lane, cells.column + column]
            sides.append(elements_of_cells(of.kind, of.a, words))
        return tuple(sides)

    def _elements(self, matrix: _SharedMatrix, shared: Lanes, type: str) -> Lanes:
        """The bits of the elements of A or B behind a descriptor, `[rows, K]`."""
        return elements_of_words(self._of.kind, type, matrix.read(shared), along_rows=matrix.along_rows)


@lru_cache(maxsize=64)
def _cells_of_d(m: int, n: int, group: int) -> Lanes:
    """The indices of D's cells in the tensor memory of each CTA, `[ctas, rows, N]`."""
    of: PairCells = cells_of_d(m, n, group=group)
    return (of.lane * COLUMNS + of.column).reshape(group, m // group, n)


# ---------------------------------------- copies


def copy(shape: str, warps: str, d: int, descriptor: int) -> Operation:
    """The copy of a matrix in shared memory to tensor memory. Raises `ValueError` for wrong operands."""
    rows, nbytes = COPIES[shape]
    lane, column = split_address(d)
    lanes = lanes_of_copy(shape, warps) + lane
    if lanes.max() >= LANES:
        raise DescriptorError(
            f"tcgen05.cp of {shape} reaches lane {lanes.max()} from {d:#x} on, and tensor memory has {LANES} "
            "lanes"
        )
    matrix = _described_matrix(descriptor, rows, nbytes, "u8")
    groups = tuple(np.unique(lanes // GROUP).tolist())
    columns = Columns(column, nbytes // _CELL, "the copy", groups, reads=False, writes=True)
    box = matrix.box("the matrix")
    run = partial(_copied, lanes, column, matrix)
    return Operation(run, run, (columns,), (box,))


def _copied(lanes: Lanes, column: int, matrix: _SharedMatrix, ctas: tuple[Memories, ...]) -> None:
    for cta in ctas:
        words = np.ascontiguousarray(matrix.read(cta.shared)).view(np.uint32)
        cta.tensor[lanes, column : column + words.shape[1]] = words[:, None, :]
