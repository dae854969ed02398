"""Tiles of V of one-byte elements, transposed in shared memory, as `wgmma` reads them: rows along the
keys, and P of fp8, whose registers have the keys in the same order.

A thread has the scores of keys 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t of each 16 (t = lane % 4), but in
the A fragment of m64nNk32 those of indices 4 t to 4 t + 3 (PTX ISA, "Register Fragments for
wgmma.mma_async.m64nNk32"). So P stays where it is, and index 4 t + i stands for the i-th of these keys:
the order in which `ldmatrix.trans` and `prmt` give the keys of V, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.families.wgmma_fp8 import ONES
from flash.operands.dtypes import DType
from ptxgen.dsl import Fragment, KernelBuilder, Role, Value, Var, marked
from ptxgen.dsl.hopper import BoxTile, Ring
from ptxgen.target import WARP_SIZE
from ptxgen.types import u32

_KEYS: Final = WARP_SIZE  # of the four matrices that a warp reads at once: a row of one for each lane
_CHUNK: Final = 16  # bytes of a row of such a matrix: as many columns of V, or keys in their new order
_WARPS: Final = 4
_BYTES_0_AND_2: Final = 0x6420  # the selection of bytes 0 and 2 of two words, and of bytes 1 and 3
_BYTES_1_AND_3: Final = 0x7531
_STEP: Final = 8  # elements of a thread's row in one register quartet of P


class Fp8Values:
    """Transposes tiles of V, which arrive in stages of `raw` as `v`, to stages of `values` as `v`, by the
    threads of `role`, a warpgroup. With `nonfinite`, NaN and infinity become 0 on the way.
    """

    def __init__(
        self, k: KernelBuilder, role: Role, raw: Ring, values: Ring, nonfinite: Fp8NonFinite | None
    ) -> None:
        self.k = k
        self.role = role
        self.raw = raw
        self.values = values
        self.nonfinite = nonfinite
        lane, warp = role.lane, role.thread // WARP_SIZE
        keys = raw.tiles["v"].rows
        self._blocks_at_once = min(keys // _KEYS, _WARPS)
        self._chunks_at_once = _WARPS // self._blocks_at_once
        block = warp % self._blocks_at_once * _KEYS
        self._chunk: Value | None = None
        if self._chunks_at_once > 1:
            self._chunk = warp // self._blocks_at_once * _CHUNK
        # Rows of V that a warp reads: its lanes have those of all four matrices.
        self._key = block + lane
        # Rows of V transposed that it writes: matrices 0 and 1 have keys 0 to 15, matrices 2 and 3 the
        # others; of 16 columns of V matrix 0 has 0, 2, 4, 6, 9, 11, 13, 15, matrix 1 the others: eight
        # rows in different banks.
        row = lane & 7
        self._row = (row << 1) + ((lane >> 3 & 1) ^ (row >> 2))
        self._column = block + (lane >> 4) * _CHUNK
        swapped = (lane >> 4) == 1
        self._first = k.selp(_BYTES_1_AND_3, _BYTES_0_AND_2, swapped, type=u32)
        self._second = k.selp(_BYTES_0_AND_2, _BYTES_1_AND_3, swapped, type=u32)

    def add_ones(self, dtype: DType) -> None:
        """Write ones of the type of V to the last rows of all stages of transposed tiles, before the first
        is filled.
        """
        word = dtype.one * 0x0101_0101
        for stage in range(self.values.stages):
            tile = self.values.tile("v", stage)
            for at in tile.chunks(self.role.thread, self.role.threads, start=tile.rows - ONES, rows=ONES):
                self.k.store(at, [word] * 4)

    @marked("fp8 values: transpose")
    def transpose(self) -> None:
        """Transpose the next tile of V from its stage of `raw` to a stage of `values`."""
        source = self.raw.acquire()
        with self.values.write() as transposed:
            for down in range(0, source.v.rows, self._blocks_at_once * _KEYS):
                self._transpose_keys(source.v, transposed.v, down)
        source.release()

    def _transpose_keys(self, source: BoxTile, transposed: BoxTile, down: int) -> None:
        """Transpose the rows of V of this warp's keys, which follow the first `down` of the tile."""
        k, layout = self.k, transposed.layout
        row = self._row if self._chunk is None else self._row + self._chunk
        to = transposed.pointer(row, self._column + down)
        for across in range(0, source.columns, self._chunks_at_once * _CHUNK):
            column = across if self._chunk is None else self._chunk + across
            words = list(k.ldmatrix(source.pointer(self._key + down, column), trans=True, space="shared"))
            if self.nonfinite is not None:
                words = list(self.nonfinite.clear_words([word.as_(u32) for word in words]))
            keys = [(words[0], words[1]), (words[2], words[3])]
            in_new_order = [
                k.prmt(low, high, select) for low, high in keys for select in (self._first, self._second)
            ]
            k.stmatrix(to.plus_bytes(across * layout.row_bytes), in_new_order, num="x4", space="shared")


def words_of(S: Fragment) -> Iterator[list[list[Var]]]:
    """The elements of S, for each 8 keys two of each of two rows of a thread, by the registers of the left
    operand of a product with transposed tiles: four for each 32 keys, four elements each. The first and the
    third are of row 0, the others of row 1.
    """
    rows = [list(S.row(i)) for i in range(2)]
    for n in range(0, len(rows[0]), _STEP):
        yield [row[at : at + 4] for at in (n, n + 4) for row in rows]


def rounded_word(k: KernelBuilder, four: Sequence[Value]) -> Value:
    """Four weights, rounded to e4m3, in a word, the first one lowest."""
    low, high = (k.cvt_narrow(pair[1], pair[0], dtype="e4m3x2") for pair in (four[:2], four[2:]))
    word: Value = k.pack([low, high])
    return word.as_(u32)
