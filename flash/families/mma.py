"""How a tensor-core kernel's work is dealt to warps.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys. Each warp takes
`16 * row_tiles` of the rows and all keys of a tile, so that four lanes share a row's maximum and
sum. The product is `mma.sync` of 16 rows by 8 columns, 32 bytes of an operand's row deep
(`m16n8k16` of 16-bit elements, `m16n8k8` of tf32): head_dim and head_dim_v are padded in shared
memory, with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

from flash.families.any_target import AnyTarget, of_columns, of_shared
from flash.families.family import Offered
from flash.families.precision import F32_GRADE, HALF, IEEE, PAIRS, TF32, Operands
from flash.families.request import TileRequest
from flash.families.simt import KIB, TILES, ValueSlices, padded
from flash.operands.dtypes import BF16, F16, F32
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE, Target

MMA_ROWS: Final = 16  # M of m16n8k16 and m16n8k8
MMA_KEYS: Final = 8  # N of both
MMA_BLOCKS_Q: Final = (32, 64, 128)  # two warps at least
FIRST_ASYNCHRONOUS: Final = 80  # cp.async
FIRST_WITH_MMA: Final = 75  # m16n8k8 and ldmatrix
FIRST_WITH_DEEP_MMA: Final = 80  # m16n8k16, bf16 and tf32; before it there is m16n8k8 of f16 alone
# The default tile and block_q of 16-bit types; keys as in `DEFAULT_TILES`.
DEFAULT_MMA_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    227 * KIB: {64: (64, 128), 128: (64, 128), 192: (64, 64), 256: (64, 64), 576: (64, 128)},
    163 * KIB: {64: (64, 128), 128: (64, 128), 192: (64, 64), 256: (64, 128), 576: (64, 64)},
    99 * KIB: {64: (64, 128), 128: (32, 128), 192: (32, 64), 256: (64, 64), 384: (32, 64), 576: (16, 64)},
    64 * KIB: {64: (64, 128), 128: (64, 128), 192: (16, 128), 256: (16, 64), 576: (16, 64)},
}
# The default tile and block_q of f32, by precision, and by columns as in `DEFAULT_TILES`, on every target
# that has tensor cores.
DEFAULT_TF32_TILES: Final[dict[str, dict[int, tuple[int, int]]]] = {
    PAIRS.name: {64: (32, 128), 576: (16, 128)},
    TF32.name: {64: (32, 128), 192: (32, 64), 576: (16, 64)},
}
LEAST_ASYNCHRONOUS: Final = 4  # bytes that one `cp.async` copies (PTX ISA)
# The largest default tile where copies are narrower: these go through registers, of which larger
# tiles leave too few.
_TILE_THROUGH_REGISTERS: Final = 32
# The largest default tile of 16-bit types with wide rows and a mask or a bias: so much of these is in flight
# that larger tiles were seen to spill.
_TILE_WITH_PLANES: Final = 32
# Operations in a second by precision (see `Family.operations`); f32_grade takes three products for one.
_OPERATIONS: Final = {HALF.name: 312e12, TF32.name: 156e12, F32_GRADE.name: 312e12 / 3}

# For f32: `mma` steps whose products the tensor core sums together
# (`flash/device/tf32_products.py`), and how many if O has more than _WIDE columns, which leave
# registers for the operands of fewer steps.
LONGEST_GROUP: Final = 4
_SMALL_GROUP: Final = 2
_WIDE: Final = 128
# Registers besides the accumulators: with one product of tf32, and for each row of tiles the sums of a
# group of its steps; with three products of f16.
_TF32_REGISTERS: Final = 88
_GROUP_REGISTERS: Final = 20
_PAIRS_REGISTERS: Final = 90

# Registers besides the accumulators, what P takes and the operands in flight: what the assembler
# was seen to add.
_OTHER_REGISTERS: Final = 48
_MOST_REGISTERS: Final = 255
# A Q Kᵀ of one warp that has more `mma` instructions was seen to spill where the rest of the
# estimate is near the limit: it is unrolled. The estimate adds a register for every two of these.
_SHORT_PRODUCT: Final = 192
# Estimated registers of a thread, beyond which none are left for what only saves instructions.
_ROOMY: Final = 224
# Registers for each tile of 16 rows of a warp with which the largest scores of rows are followed.
_REGISTERS_OF_TOPS: Final = 8
PART_KEYS: Final = 32  # of a tile, whose weights have sums of their own
_CHECKED_PARTS: Final = 2  # of a tile
_CHECKED_ROWS: Final = 2  # tiles of 16 rows of a warp
_OPERAND: Final = 4  # registers of operand A
_WORD: Final = 4  # bytes of a register
_FEW_WAITING: Final = 16  # registers of a thread: four chunks
_ACCUMULATOR: Final = MMA_ROWS * MMA_KEYS // WARP_SIZE  # registers of one 16 x 8 tile of f32


@dataclass(frozen=True, slots=True)
class MmaTiling:
    """Tiles and warps of one kernel; all sizes in elements unless they say bytes.

    `stages` is how many tiles of K, and of V, shared memory holds. With `prefetches` the next one waits in
    registers, because the target does not copy asynchronously. `by_rows` is whether maxima of all tiles
    are taken although sums of weights could say which are needed, so that the bits of a row depend on no
    other row of its warp (`flash/problem/row_bits.py`).
    """

    head_dim: int
    head_dim_v: int
    tile: int
    block_q: int
    warps: int
    stages: int = 1
    operands: Operands = HALF
    value_slices: int = 1  # slices of the columns of V and O
    by_rows: bool = False
    prefetches: bool = False

    gathers: ClassVar[bool] = False  # whether threads copy rows from their pages in place of tensor copies
    consumers: ClassVar[int] = 1  # groups of warps that compute alternately
    moved_bytes: ClassVar[int | None] = None  # see `WgmmaTiling`

    @property
    def slices(self) -> ValueSlices:
        """The slices in which the columns of V and O are divided among CTAs."""
        return ValueSlices.of(self.head_dim_v, self.value_slices, self._output_unit)

    @property
    def precision(self) -> str:
        """The name of the form in which elements are multiplied: of f32 its precision
        (`flash/families/precision.py`).
        """
        return self.operands.name

    @property
    def products(self) -> int:
        """How often `mma` is issued for one product of two tiles: 3 times for f32_grade, else once."""
        return self.operands.products

    @property
    def row_step(self) -> int:
        """The distance in rows between the two rows of S that a thread has of a 16 x 8 tile."""
        return MMA_ROWS // 2

    @property
    def row_tiles(self) -> int:
        """The number of blocks of 16 query rows that one warp computes."""
        return self.block_q // (MMA_ROWS * self.warps)

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return self.warps * WARP_SIZE

    @property
    def computing_threads(self) -> int:
        """The number of threads of a CTA that run the main loop over tiles: all."""
        return self.threads

    @property
    def score_columns(self) -> int:
        """The number of columns of head_dim that Q Kᵀ sums over, padding included."""
        of = self.operands
        return padded(self.head_dim, of.panel if of is PAIRS else of.depth)

    @property
    def output_columns(self) -> int:
        """The number of columns of head_dim_v that a CTA computes, padding included."""
        return padded(self.slices.width, self._output_unit)

    @property
    def _output_unit(self) -> int:
        """Columns of which P V computes whole multiples. Of f32 these are a panel, of which a lane has
        neighbouring columns.
        """
        of = self.operands
        return of.depth if of is HALF else of.panel

    @property
    def score_width(self) -> int:
        """The number of columns of the Q and K tiles in shared memory."""
        return self._width(self.score_columns)

    @property
    def output_width(self) -> int:
        """The number of columns of the V tiles in shared memory."""
        return self._width(self.output_columns)

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA: the Q, K and V tiles. O leaves through the Q tile."""
        keys = self.stages * self.tile
        elements = (self.block_q + keys) * self.score_width + keys * self.output_width
        return self.operands.nbytes * elements

    @property
    def group(self) -> int:
        """The number of `mma` steps of tf32 whose products the tensor core sums together."""
        return _SMALL_GROUP if self.has_wide_outputs else LONGEST_GROUP

    @property
    def has_wide_outputs(self) -> bool:
        """Whether O of a CTA has so many columns that a thread has few registers for operands."""
        return self.output_columns > _WIDE

    @property
    def registers(self) -> int:
        """The estimated number of registers of a thread: the accumulators of S and O, P, and the rest."""
        score_sums = self.tile * (2 if self.operands is PAIRS else 1)  # small products have their own
        columns = score_sums + self.output_columns
        accumulators = self.row_tiles * columns // MMA_KEYS * _ACCUMULATOR
        if self.operands is TF32:
            return accumulators + self.row_tiles * _GROUP_REGISTERS + _TF32_REGISTERS
        if self.operands is PAIRS:
            return accumulators + _PAIRS_REGISTERS
        depth = self.operands.depth
        product = self.row_tiles * (self.tile // MMA_KEYS) * (self.score_columns // depth)
        in_flight = max(product - _SHORT_PRODUCT, 0) // 2 + self._prefetched
        return accumulators + in_flight + 4 * self.row_tiles + _OTHER_REGISTERS

    @property
    def _prefetched(self) -> int:
        """The number of registers of a thread in which a tile waits; those of K are free when those of V are
        taken.
        """
        words = self.tile * max(self.score_width, self.output_width) * self.operands.nbytes // _WORD
        return words // self.threads if self.prefetches else 0

    def bytes_in_flight(self, target: Target, nbytes: int, ctas: int | None = None) -> int:
        """Bytes of K and V, of `nbytes` an element, that are on their way to a multiprocessor while each of
        its CTAs multiplies one tile: all stages but one. `ctas` are the CTAs that fit, by default by the
        estimate of registers.
        """
        if ctas is None:
            ctas = target.blocks_per_sm_for(self.threads, self.registers, self.shared_bytes)
        of_both = self.tile * (self.head_dim + self.slices.width) * nbytes
        return ctas * (2 * self.stages - 1) * of_both // 2

    def with_stages(self, offered: Sequence[int], target: Target, nbytes: int, wanted: float) -> MmaTiling:
        """This tiling with the fewest of the `offered` stages, the least first, that bring `wanted` bytes in
        flight, as `bytes_in_flight` counts them, or with the most that there may be: a multiprocessor is to
        hold two CTAs, and at least half of those that it holds now, since fewer warps issue less.
        """
        held = target.blocks_per_sm_for(self.threads, self.registers, self.shared_bytes)
        best = self
        for stages in offered:
            deeper = replace(self, stages=stages)
            ctas = target.blocks_per_sm_for(self.threads, self.registers, deeper.shared_bytes)
            if best.bytes_in_flight(target, nbytes) >= wanted or ctas < max(2, held / 2):
                return best
            best = deeper
        return best

    @property
    def has_spare_registers(self) -> bool:
        """Whether a thread has registers for what only makes the kernel faster. f32 has none: its
        operands are split when they are used.
        """
        return self.operands is HALF and self.registers <= _ROOMY

    @property
    def has_spare_beside_tops(self) -> bool:
        """Whether `has_spare_registers` also holds where the largest scores of rows are followed."""
        return self.has_spare_registers and self.registers + _REGISTERS_OF_TOPS * self.row_tiles <= _ROOMY

    @property
    def weaves_weights(self) -> bool:
        """Whether P V is computed in steps, with the weights of one step among the products of another: where
        registers are short, so that the assembler would not mix them without spilling.
        """
        return self.operands is HALF and not self.has_spare_registers

    @property
    def keeps_queries(self) -> bool:
        """Whether a warp reads its rows of Q once, and keeps them in registers."""
        registers = self.row_tiles * self.score_columns // self.operands.depth * _OPERAND
        return self.has_spare_registers and self.registers + registers <= _ROOMY

    @property
    def has_long_rows(self) -> bool:
        """Whether rows of f32, as pairs of f16, have more than 128 elements, and a warp has 16 of them: O of
        more rows takes all registers.
        """
        widest = max(self.score_columns, self.output_columns)
        return self.operands is PAIRS and self.row_tiles == 1 and widest > _WIDE

    @property
    def checks_sums(self) -> bool:
        """Whether weights are computed before it is known that their shift is large enough
        (`flash/device/sum_checked_softmax.py`), those of a part of a tile among the products of another. By
        the issue model other shapes gain nothing (docs/measurements.md).
        """
        has_shape = self.row_tiles == _CHECKED_ROWS and self.tile == _CHECKED_PARTS * PART_KEYS
        return self.keeps_queries and has_shape and not self.by_rows

    @property
    def row_arithmetic(self) -> tuple[object, ...]:
        """The tile sizes that, with the problem and the target, decide the bits of a row of O."""
        return MmaTiling, self.tile, self.operands, self.group, self.checks_sums

    def fits(self, target: Target, other_registers: int = 0) -> bool:
        """Whether a CTA of this shape, whose threads need `other_registers` for features, can run
        on the target without spilling. f32 needs no more for these: where they are needed, the
        registers of the split operands are free. The same are those in which a tile waits, unless
        these are so many that their addresses take as many again.
        """
        waiting, others = self._prefetched, other_registers if self.operands is HALF else 0
        others = max(others - waiting, 0) if waiting <= _FEW_WAITING else others + waiting
        return self.row_tiles > 0 and self.registers + others <= min(
            _MOST_REGISTERS, target.registers_per_block // self.threads
        )

    def _width(self, columns: int) -> int:
        """Columns of a shared tile for rows of `columns` columns: whole panels, and of 16-bit
        elements at most one narrower panel (`ptxgen/dsl/swizzle.py`). Each further panel width
        would cost addresses, which are registers. O of f32 leaves through whole panels of the Q
        tile.
        """
        panel = self.operands.panel
        if self.operands is not HALF:
            return padded(columns, panel)
        whole, rest = divmod(columns, panel)
        return panel * whole + (1 << (rest - 1).bit_length() if rest else 0)


class MmaFamily(AnyTarget[MmaTiling]):
    """The family of `mma` kernels of 16-bit types and f32, for any target with tensor cores."""

    name = "mma"
    products = "mma.sync"
    multiplies = f"mma.sync multiplies f16 and bf16 here, and f32 with another precision than {IEEE!r}"
    tiling = MmaTiling
    emitter = "flash.kernels.mma_forward:mma_attention_forward"
    dtypes = (F16, BF16, F32)
    tile_sizes = TILES
    blocks_q = MMA_BLOCKS_Q
    remedy = f"no tile fits; use a 16-bit type, {IEEE!r} for f32, or a target with more shared memory"

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.dtype in self.dtypes and request.operands is not None

    def is_for(self, target: Target) -> bool:
        """See `Family`: targets without asynchronous copies have kernels of their own."""
        return target.sm < FIRST_ASYNCHRONOUS

    def explained(self, t: MmaTiling) -> str:
        """See `Family`."""
        return f"{self.products} of m16n8k8, the next tile in registers" if t.prefetches else self.products

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        return self.lacking(request, target) or super().against(request, target, alignment)

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:
        """See `Family`."""
        return self.lacking(request, target) or super().refusal(request, target, alignment, offered)

    def lacking(self, request: TileRequest, target: Target) -> str:
        """Why a target has no kernel for a request, with what to use instead; the empty string if it may."""
        if target.sm >= FIRST_ASYNCHRONOUS:
            return ""
        if request.dtype is F32:
            refused, instead = f"precision={request.precision!r}", f"precision={IEEE!r}"
            why = "whose tensor cores and asynchronous copies the kernel uses"
        elif target.sm < FIRST_WITH_MMA:
            return (
                f"dtype={request.dtype.name!r} needs sm_{FIRST_WITH_MMA} or later, whose tensor cores the "
                f"kernel uses, got {target.name}; use dtype={F32.name!r}"
            )
        elif request.dtype is not F16:
            refused, instead = f"dtype={request.dtype.name!r}", f"dtype={F16.name!r} or {F32.name!r}"
            why = f"before which tensor cores multiply {F16.name} alone"
        elif request.stages > 1:
            refused, instead = f"stages={request.stages}", "stages=1"
            why = "whose asynchronous copies fill them"
        else:
            return ""
        return f"{refused} needs sm_{FIRST_ASYNCHRONOUS} or later, {why}, got {target.name}; use {instead}"

    def default_sizes(self, request: TileRequest, target: Target) -> tuple[int, int]:
        """See `AnyTarget`."""
        if request.dtype is F32:
            return of_columns(DEFAULT_TF32_TILES[str(request.precision_of_f32)], request.columns)
        return of_shared(DEFAULT_MMA_TILES, request.columns, target)

    def largest_default(self, request: TileRequest, block_q: int, alignment: int) -> int | None:  # noqa: ARG002
        """See `AnyTarget`."""
        if alignment < LEAST_ASYNCHRONOUS:
            return _TILE_THROUGH_REGISTERS
        has_planes = request.dtype is not F32 and request.has_planes and request.columns > _WIDE
        return _TILE_WITH_PLANES if has_planes else None

    def shapes(self, request: TileRequest, tile: int, block_q: int, target: Target) -> list[MmaTiling]:
        """See `AnyTarget`. More rows in a warp mean fewer reads of K and V from shared memory for each
        product, so four warps come before eight; but where copies pass through registers and a multiprocessor
        has room for one such CTA alone, four warps would leave each scheduler a single one. Threads need
        registers for the kernel's features.
        """
        if request.operands is PAIRS and (tile not in TILES or block_q > max(MMA_BLOCKS_Q)):
            return []  # of other tiles the rows are no multiple of those that threads split at once
        first = self.least(request, tile, block_q)
        first = replace(first, prefetches=target.sm < FIRST_ASYNCHRONOUS)
        is_alone = first.prefetches and 2 * first.shared_bytes > target.shared_per_sm
        numbers = (8, 4, 2) if is_alone else (4, 8, 2)
        shapes = [replace(first, warps=n) for n in numbers if block_q % (n * MMA_ROWS) == 0]
        return [t for t in shapes if t.fits(target, request.other_registers)]

    def least(self, request: TileRequest, tile: int, block_q: int) -> MmaTiling:
        """See `AnyTarget`."""
        operands = request.operands
        assert operands is not None  # the family `computes` the request
        return MmaTiling(*request.dims, tile, block_q, 4, request.stages, operands, request.value_slices)

    def operations(self, t: MmaTiling) -> float:
        """See `Family`."""
        return _OPERATIONS[t.operands.name]

    def by_rows(self, t: MmaTiling) -> MmaTiling:
        """See `Family`."""
        return replace(t, by_rows=True) if t.checks_sums else t


MMA: Final = MmaFamily()
