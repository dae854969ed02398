"""How the work of a kernel for Hopper is dealt to warpgroups.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys, which one warpgroup
has copied to shared memory by the tensor memory accelerator (TMA). Each of the other warpgroups takes
64 rows and all keys of a tile (`wgmma` m64nNk16).
"""

from __future__ import annotations

from typing import ClassVar, Final

from flash.problem.simt_tiling import ValueSlices
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE

WGMMA_ROWS: Final = 64  # rows of a warpgroup
WARPGROUP: Final = 4 * WARP_SIZE  # threads
WGMMA_BLOCKS_Q: Final = (64, 128, 192)
# Columns of Q and K, and of V, that a kernel computes with: the least that has all. What a row lacks
# arrives as zeros.
WIDTHS: Final = (64, 96, 128, 192, 256)
# Registers of a thread of the producer and of a consumer, by consumers, as FlashAttention-3 sets them;
# 0: what the assembler takes. All threads together have 65536.
_REGISTERS: Final = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
# Where the producer also finds keys in pages, or keeps the bounds of a window beside those of a part of the
# keys or from part to part of the problem, and where its threads copy each row.
_REGISTERS_TO_WORK: Final = {**_REGISTERS, 2: (40, 232)}
_REGISTERS_TO_GATHER: Final = {**_REGISTERS, 2: (56, 224), 3: (64, 144)}
_ROW_STEP: Final = 8  # PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"
_TWO: Final = 2
_WIDEST_IN_TURNS: Final = 128
_WIDEST_SUM_CHECKED: Final = 96
_BY_POLYNOMIAL: Final = 16
_ALL_REGISTERS: Final = 65536
_REGISTER_UNIT: Final = 8  # the registers of a thread are allotted in such units
_MOST_REGISTERS: Final = 255
# Registers of a thread beside those of its matrices: as many as the assembler was seen to take, and the least
# with which it was seen to spill nothing.
_OTHER_REGISTERS: Final = 58
_LEAST_OTHER_REGISTERS: Final = 32
_PAIR: Final = 2  # bytes of an element
# Barriers of a ring, or flags, move the tile that follows to the next multiple of so many bytes.
_STEP_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class WgmmaTiling:
    """Tiles and warpgroups of one kernel; all sizes in elements unless they say bytes.

    `stages` is how many tiles of K, and of V, shared memory holds, `in_pages` whether the producer finds
    their rows in pages, `own_output` whether O has a tile of its own even if it has room in that of Q,
    `gathers` whether the threads of the producer copy each row of K and V from its page
    (`flash/device/gathered_pipeline.py`), as no boxes of tensor copies have the rows of a tile, `by_rows`
    whether maxima of all tiles are taken although sums of weights could say which are needed, so that the
    bits of a row depend on no other row of its warp (`flash/problem/row_bits.py`).
    """

    head_dim: int
    head_dim_v: int
    tile: int
    block_q: int
    stages: int = 2
    in_pages: bool = False
    own_output: bool = False
    gathers: bool = False
    by_rows: bool = False

    value_slices: ClassVar[int] = 1  # a CTA computes all columns of V
    precision: ClassVar[str | None] = None  # how f32 is multiplied

    @property
    def slices(self) -> ValueSlices:
        """How the columns of V and O are dealt to CTAs."""
        return ValueSlices.of(self.head_dim_v, 1, 1)

    @property
    def consumers(self) -> int:
        """Warpgroups that compute."""
        return self.block_q // WGMMA_ROWS

    @property
    def keys_of_consumer(self) -> int:
        """Keys of a tile whose scores a consumer computes."""
        return self.tile

    @property
    def row_step(self) -> int:
        """Distance in rows between the two rows of S that a thread has."""
        return _ROW_STEP

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return (1 + self.consumers) * WARPGROUP

    @property
    def takes_turns(self) -> bool:
        """Whether the consumers multiply in turns, as in FlashAttention-3: two, with rows of at most 128
        columns, and three with rows of at most 96. Wider rows have few exponentials for their products.
        """
        if self.consumers == _TWO:
            return self.score_columns <= _WIDEST_IN_TURNS
        return self._are_three_of_narrow_rows

    @property
    def checks_sums(self) -> bool:
        """Whether consumers weigh scores before they know the largest, as in
        `flash/device/sum_checked_softmax.py`: three, of which two compute exponentials while one multiplies.
        """
        return self._are_three_of_narrow_rows and not self.by_rows

    @property
    def _are_three_of_narrow_rows(self) -> bool:
        """Whether there are three consumers, and rows have at most 96 columns."""
        return self.consumers > _TWO and max(self.score_columns, self.output_columns) <= _WIDEST_SUM_CHECKED

    @property
    def row_arithmetic(self) -> tuple[object, ...]:
        """What decides the bits of a row beside the problem and the target."""
        return type(self), self.tile, self.checks_sums

    @property
    def by_polynomial(self) -> int:
        """The number of exponentials of which one is computed by a polynomial; 0: none is. The polynomial is
        for rows of 64 columns, where the unit of special functions would take as long as the products.
        """
        narrow = max(self.score_columns, self.output_columns) <= WIDTHS[0]
        return _BY_POLYNOMIAL if self.checks_sums and narrow else 0

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:
        """Registers of a thread that copies, and of one that computes; 0: not set. `keeps_more` is whether
        those that copy keep the bounds of a window, beside those of a part of the keys or from part to part
        of the problem.
        """
        if self.gathers:
            return _REGISTERS_TO_GATHER[self.consumers]
        return (_REGISTERS_TO_WORK if self.in_pages or keeps_more else _REGISTERS)[self.consumers]

    @property
    def score_columns(self) -> int:
        """Columns of head_dim that Q Kᵀ sums over, padding included."""
        return width_of(self.head_dim)

    @property
    def output_columns(self) -> int:
        """Columns of head_dim_v that a CTA computes, padding included."""
        return width_of(self.head_dim_v)

    def tile_of(self, array: str) -> tuple[int, int]:
        """The rows and columns of the tiles of Q, K, V or O in shared memory."""
        rows = self.block_q if array in ("Q", "O") else self.tile
        return rows, self.score_columns if array in ("Q", "K") else self.output_columns

    @property
    def output_is_over_queries(self) -> bool:
        """Whether O leaves through the tile of Q, and not through one of its own, as wider values do."""
        return self.output_columns <= self.score_columns and not self.own_output

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA, at most: the tiles of Q, K, V, and of O if it has one, and
        their barriers.
        """
        steps, tiles = 3, self.block_q * self.score_columns
        if not self.output_is_over_queries:
            steps, tiles = 4, tiles + self.block_q * self.output_columns
        tiles += self.stages * self.tile * (self.score_columns + self.output_columns)
        return self._element_bytes * tiles + self._beside_bytes + steps * _STEP_BYTES

    @property
    def _element_bytes(self) -> int:
        """The bytes of an element of a tile."""
        return _PAIR

    @property
    def _beside_bytes(self) -> int:
        """The bytes of what else is kept for each row of a tile."""
        return 0

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: with warps of several roles, what each has at the beginning;
        else the accumulators of S and O, P, and the rest.
        """
        if self._least_registers:
            return _ALL_REGISTERS // self.threads // _REGISTER_UNIT * _REGISTER_UNIT
        return min(self._held_registers + _OTHER_REGISTERS, _MOST_REGISTERS)

    @property
    def _least_registers(self) -> int:
        """Registers of a thread that computes, in the kernel that leaves it the fewest; 0: not set."""
        return min(self.registers_of_roles(keeps_more=more)[1] for more in (False, True))

    @property
    def _held_registers(self) -> int:
        """Registers of a consumer's thread with S, O and P."""
        return (self.tile + self.output_columns) // 2 + self.tile // 4

    def has_registers(self, beside: int) -> bool:
        """Whether a consumer has registers for all that it computes. `beside` is the number of registers for
        features. It counts with three consumers, whose threads have the fewest registers, and where the
        producer needs many: with others the assembler was seen to find room for features. Beside such a
        producer it was seen to spill with three consumers that take maxima of all tiles.
        """
        if self.gathers and self.consumers > _TWO and not self.checks_sums:
            return False
        most = self._least_registers or _MOST_REGISTERS
        needed = self._held_registers + _LEAST_OTHER_REGISTERS
        return needed + (beside if self.consumers > _TWO or self.gathers else 0) <= most


def width_of(columns: int) -> int:
    """The columns that a kernel computes with for rows of `columns` columns."""
    return next(width for width in WIDTHS if columns <= width)
