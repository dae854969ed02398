"""The kernels of gradients: what their text depends on. `flash/problem/gradient_arrays.py` has their arrays.

Two kernels make the gradients of a call (FlashAttention-2, section 3.1, in two sweeps, so that no two
CTAs add to one number). The one by queries owns rows of dQ and walks over the keys that they see;
it also writes D, the sum of O times its gradient over each row. The one by keys owns rows of dK and
dV and walks over the queries that see them, for all heads that share the keys. Each computes the
weights again, from Q, K and LSE.

In one sweep, where the order of sums may differ from call to call, the kernel by keys also adds to
sums of dQ in global memory. One of deltas, which writes D, comes before it, and after it one of
sums, which rounds dQ.

The kernels by queries and by keys have two forms: with `mma.sync` or without tensor cores
(`GradientTiling`), and with `wgmma` on Hopper for f16, bf16 and fp8 (`WgmmaGradientTiling`). In one sweep
with the latter, the kernel of sums reads blocks in the order of threads (`WgmmaSumsTiling`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from flash.families.mma import MmaTiling
from flash.families.precision import F32_GRADE, FMA, HALF, Operands
from flash.families.request import natural_alignment
from flash.families.simt import padded
from flash.families.wgmma_gradient import WgmmaGradientTiling, WgmmaSumsTiling
from flash.mods.elements import differentiable
from flash.mods.trace import AuxArray
from flash.operands.declared import MAX_WINDOWED_SEQ, Number, Operand
from flash.operands.dtypes import BF16, F32, F32_BYTES, I64, DType
from flash.problem.features import NO_FEATURES, Features
from flash.scores.feature import ScoreFeature
from flash.scores.mods import ScoreMod
from flash.scores.window import Window
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import u32

QUERIES: Final = "queries"
KEYS: Final = "keys"
SCORES: Final = "scores"
ELEMENTS: Final = "elements"
DELTAS: Final = "deltas"
SUMS: Final = "sums"
OWNERS: Final = (QUERIES, KEYS)
OWNERS_IN_ONE_SWEEP: Final = (DELTAS, KEYS, SUMS)
SUMS_OF_QUERIES: Final = "dQ_sums"
ORDER_OF_SUMS: Final = "dQ_order"
BEGUN_CTAS: Final = "begun_ctas"
WIDE: Final = "_wide"  # what the name of a matrix of fp8 in bf16 ends with
WIDENED: Final = ("Q", "K", "dO")  # those that kernels of fp8 read in bf16, too
# Exact sums (`flash/device/exact_sums.py`): integers for each, bits of a digit, and the most terms.
PLANE_BITS: Final = 24
PLANES: Final = 13
MOST_TERMS: Final = 1 << 63 - PLANE_BITS
_OF_ROWS: Final = (QUERIES, DELTAS, SUMS, ELEMENTS)  # whose CTAs own rows of Q
OF_BIAS: Final = tuple(
    Number(name, u32, meaning, (1, 2**31 - 1))
    for name, meaning in (
        ("batch", "batch items of Q: bias_batch * over_batch"),
        ("bias_batch", "batch items of the bias: 1, or those of Q"),
        ("bias_heads", "heads of the bias: 1, or those of Q"),
        ("over_batch", "batch items that share one of the bias"),
        ("over_heads", "heads that share one of the bias"),
    )
)
_CROWDED: Final = 128  # columns of f32_grade: with more, what the assembler moves among products spills
LONGEST_K: Final = Number(
    "max_seqlen_k",
    u32,
    "the most keys of a sequence, for which the grid is made; gradients of those of longer ones beyond "
    f"it are not written; 1 to {MAX_WINDOWED_SEQ}",
    (1, MAX_WINDOWED_SEQ),
)


SUM_BLOCKS: Final = Number(
    "sum_blocks",
    u32,
    "blocks of rows of dQ for which each head has sums, the last not full; of packed sequences one more for "
    "each sequence than all rows together fill",
    (1, 2**31 - 1),
)


def owners_of(*, one_sweep: bool, writes_queries: bool = True, writes_keys: bool = True) -> tuple[str, ...]:
    """The owners of the kernels that compute dQ, dK and dV, in the order of their launches. In two sweeps, a
    call that does not need dQ (`writes_queries`) computes only D in its place, and one that needs neither dK
    nor dV (`writes_keys`) has no kernel for them.
    """
    if one_sweep:
        return OWNERS_IN_ONE_SWEEP
    return (QUERIES if writes_queries else DELTAS, *((KEYS,) if writes_keys else ()))


def term_of(feature: ScoreFeature | type[ScoreFeature], *, one_sweep: bool) -> str:
    """The name of the array of terms for the gradient of a feature's array. In one sweep terms by rows
    become terms by keys, because the rows have no owner.
    """
    of = feature.gradient_of
    if of == "scores":
        return f"d{feature.argument}"
    by_keys = of == "keys" or (of == "rows" and one_sweep)
    return f"{'key' if by_keys else 'row'}_{feature.argument}"


def exact_sums_of(array: AuxArray) -> str:
    """The name of the array with the exact sums of the gradient of an array of `aux`."""
    return f"{array.operand}_sums"


def _exact_sums(array: AuxArray) -> Operand:
    role = f"exact sums of the gradient of {array.operand}, 0 before the launch, added to"
    axes = (str(PLANES), *array.sizes)
    return Operand(exact_sums_of(array), I64, axes, role=role, is_written=True, is_dense=True)


@dataclass(frozen=True, slots=True)
class GradientTiling:
    """Tiles and warps of a kernel of gradients, in elements. A CTA owns `block` rows, of queries or
    of keys, and walks over the others in tiles of `tile` rows, of which shared memory holds
    `stages`. With `slices` 2 two CTAs own the same rows, and each makes half of their columns: the
    registers of a CTA do not hold more. A CTA of keys that `adds_queries` also adds to sums of dQ in
    global memory, and has room for a tile of gradients of scores. A kernel that walks over nothing
    has `tile` 0. Registers hold the scores of `step` rows of a tile at once, or with 0 of all of them,
    and with `resident` 1 what the CTA owns of Q or K, with 2 also of dO or V. With `prefetches` the next
    tiles wait in registers, because the target does not copy asynchronously.

    In a kernel by keys `across` warps own the same rows: each computes the scores of one slice of a tile
    and one slice of the columns of dK and dV; P and dS pass through shared memory. If `across` is above 1,
    the warps have a barrier in each tile, `step` and `resident` are 0, and they do not add to sums of dQ.

    `column_warps` warps own the same rows and have different columns of all matrices; their products of
    scores are sums over these alone, which pass through shared memory (`flash/device/column_warps.py`). If
    `column_warps` is above 1, `slices` and `across` are 1, and `step` and `resident` 0.
    """

    head_dim: int
    head_dim_v: int
    block: int
    tile: int
    warps: int
    stages: int
    slices: int = 1
    operands: Operands = HALF
    adds_queries: bool = False
    step: int = 0
    resident: int = 0
    across: int = 1
    prefetches: bool = False
    column_warps: int = 1

    @property
    def warps_meet(self) -> bool:
        """Whether warps pass scores or their gradients to one another, so that all or none take a tile."""
        return self.adds_queries or self.warps_of_rows > 1

    @property
    def warps_of_rows(self) -> int:
        """The number of warps of a CTA that own the same rows."""
        return self.across * self.column_warps

    @property
    def column_parts(self) -> int:
        """The number of parts of a gradient's columns, each of which one warp computes for its rows."""
        return self.slices * self.warps_of_rows

    @property
    def rows_at_once(self) -> int:
        """The number of rows of a tile whose scores a warp holds in registers at once."""
        return self.step or self.tile

    @property
    def parts(self) -> range:
        """The first row, counted in the tile, of each part of `rows_at_once` rows."""
        return range(0, self.tile, self.rows_at_once)

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return self.warps * WARP_SIZE

    @property
    def rows_of_warp(self) -> int:
        """The number of rows of a gradient that a warp owns."""
        return self.block * self.warps_of_rows // self.warps

    @property
    def of_scores(self) -> MmaTiling:
        """The tiling of the products that sum over head_dim, and of those that give head_dim columns."""
        return self._products(self.head_dim)

    @property
    def of_weights(self) -> MmaTiling:
        """The tiling of the matrix products that sum over head_dim_v, or give head_dim_v columns."""
        return self._products(self.head_dim_v)

    @property
    def is_crowded(self) -> bool:
        """Whether sums take so many registers that products must do with fewer operands in flight."""
        return self.operands is F32_GRADE and max(self.head_dim, self.head_dim_v) > _CROWDED

    def _products(self, columns: int) -> MmaTiling:
        output_columns = columns if self.column_parts == 1 else self.slice_width(columns)
        summed = columns if self.column_warps == 1 else output_columns
        met, warps = self.rows_at_once // self.across, self.warps // self.warps_of_rows
        return MmaTiling(summed, output_columns, met, self.block, warps, self.stages, self.operands)

    def slice_width(self, columns: int) -> int:
        """The number of columns of one part of rows of `columns` columns: whole panels of a tile."""
        return padded(-(-columns // self.column_parts), self.operands.panel)

    def width(self, products: MmaTiling) -> int:
        """The number of columns, padding included, of the tiles that `products` read."""
        if self.column_parts == 1:
            return products.score_width
        return self.column_parts * products.output_columns

    def product_columns(self, owner: str) -> Iterator[int]:
        """For each matrix product of a tile: the columns that it sums over or computes, padding included."""
        for products in (self.of_scores, self.of_weights):
            yield self.column_warps * products.score_columns
        if owner in OWNERS:
            yield self.warps_of_rows * self.of_scores.output_columns
        if owner == KEYS:
            yield self.warps_of_rows * self.of_weights.output_columns
            yield from [self.of_scores.output_columns] * self.adds_queries

    @property
    def partial_sums(self) -> int:
        """The number of f32 sums over one warp's columns: one for each score of its rows and a tile."""
        return self.rows_of_warp * self.tile if self.column_warps > 1 else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA, in bytes: four tiles, and those of what warps pass on: P and
        dS across warps, dS for sums of dQ, sums over columns in f32.
        """
        if not self.tile:
            return 0
        widths = self.width(self.of_scores) + self.width(self.of_weights)
        elements = widths * (self.block + self.stages * self.tile)
        passed = self.adds_queries + 2 * (self.across > 1)
        tiles = (elements + passed * self.block * self.tile) * self.operands.nbytes
        return tiles + self.warps * self.partial_sums * F32_BYTES


AnyGradientTiling: TypeAlias = GradientTiling | WgmmaGradientTiling | WgmmaSumsTiling


@dataclass(frozen=True, slots=True)
class GradientConfig:
    """Everything that the text of a kernel of gradients depends on. Same value, same bytes.

    `owner` says what a CTA owns rows of: queries (dQ), keys (dK and dV), scores (the gradient of a
    bias), deltas (D), sums (dQ, rounded), or elements: queries, whose scores add to gradients of arrays
    of aux. `alignment`, in bytes, is a promise about all pointers and strides of matrices.
    """

    owner: str
    target: Target
    tiling: AnyGradientTiling
    causal: str  # "", "bottom_right" or "top_left"
    alignment: int
    dtype: DType
    features: Features = NO_FEATURES
    with_dlse: bool = False  # whether LSE has a gradient
    wanted: tuple[str, ...] = ()  # the arrays of scores whose gradients are wanted, by argument
    dout_dtype: DType | None = None  # the type of dO, if that of Q, K and V is narrow
    written: DType | None = None  # the type of O and of gradients likewise

    @property
    def mma(self) -> GradientTiling:
        """The tiling of a kernel with `mma`, or without tensor cores. Raises `TypeError` for another."""
        if not isinstance(self.tiling, GradientTiling):
            raise TypeError(f"a tiling of mma is wanted, got {type(self.tiling).__name__}")
        return self.tiling

    @property
    def wgmma(self) -> WgmmaGradientTiling:
        """The `WgmmaGradientTiling` of a gradient kernel with `wgmma`. Raises `TypeError` for another."""
        if not isinstance(self.tiling, WgmmaGradientTiling):
            raise TypeError(f"a tiling of wgmma is wanted, got {type(self.tiling).__name__}")
        return self.tiling

    @property
    def sums(self) -> WgmmaSumsTiling:
        """The tiling of a kernel that rounds blocks of sums. Raises `TypeError` for another."""
        if not isinstance(self.tiling, WgmmaSumsTiling):
            raise TypeError(f"a tiling of blocks of sums is wanted, got {type(self.tiling).__name__}")
        return self.tiling

    @property
    def mapped(self) -> WgmmaGradientTiling | WgmmaSumsTiling:
        """The tiling of a kernel with tensor maps. Raises `TypeError` for another."""
        return self.sums if isinstance(self.tiling, WgmmaSumsTiling) else self.wgmma

    @property
    def has_wgmma(self) -> bool:
        """Whether the kernel is of those with `wgmma`, whose tiles are copied by TMA."""
        return not isinstance(self.tiling, GradientTiling)

    @property
    def is_fp8(self) -> bool:
        """Whether Q, K, V and dO have fp8 elements, which scales multiply."""
        return self.dtype.is_narrow

    @property
    def factor_type(self) -> DType:
        """The element type of the operands of products that sum gradients, such as dS and K for dQ."""
        return BF16 if self.is_fp8 else self.dtype

    def factor_of(self, matrix: str) -> str:
        """The matrix with the numbers of `matrix` as factors of products that sum gradients."""
        return f"{matrix}{WIDE}" if self.is_fp8 else matrix

    def type_of(self, matrix: str) -> DType:
        """The element type of a matrix of the gradient kernel, by the matrix's name."""
        if not self.is_fp8 or matrix in ("Q", "K", "V"):
            return self.dtype
        of_gradient = self.dout_dtype if matrix == "dO" else self.written
        result = BF16 if matrix.endswith(WIDE) else of_gradient
        assert result is not None  # a config of fp8 says both
        return result

    @property
    def adds_in_order(self) -> bool:
        """Whether CTAs add to sums of dQ in a fixed order, so that results are deterministic."""
        return isinstance(self.tiling, WgmmaGradientTiling) and self.tiling.in_order

    @property
    def sum_block(self) -> tuple[int, int] | None:
        """The rows and columns of a block of sums of dQ in the order of threads; None of a kernel without
        such blocks.
        """
        if isinstance(self.tiling, WgmmaSumsTiling):
            return self.tiling.tile_of("dQ")
        if isinstance(self.tiling, WgmmaGradientTiling) and self.tiling.adds_queries:
            return self.tiling.tile, self.tiling.widths[0]
        return None

    @property
    def keys_of_tile(self) -> int:
        """Keys that are taken at once: by a warp of a CTA that owns keys, unless its warps meet, else
        by a CTA.
        """
        if self.owner != KEYS:
            return self.tiling.tile
        return self.tiling.block if self.tiling.warps_meet else self.tiling.rows_of_warp

    @property
    def hides_keys(self) -> bool:
        """Whether the mask may hide a key that exists from a query, as causality or a window does."""
        return bool(self.causal) or self.features.hides_anywhere or self.features.has(Window)

    @property
    def owns_rows(self) -> bool:
        """Whether a CTA owns rows of Q, dQ or D."""
        return self.owner in _OF_ROWS

    @property
    def differentiates(self) -> bool:
        """Whether the kernel needs derivatives of its score features: True for every gradient kernel."""
        return True

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The scalars that a launch passes in addition to sizes, in the order of the parameters."""
        if self.owner == SCORES:
            return (*self.features.numbers, *OF_BIAS)
        longest = (LONGEST_K,) if self.features.varlen and self.owner == KEYS else ()
        blocks = () if self.sum_block is None else (SUM_BLOCKS,)
        return (*self.features.numbers, *longest, *blocks)

    def summed(self, *kinds: str) -> list[ScoreFeature]:
        """The features whose arrays' gradients are wanted, and follow from one of `kinds`
        (`ScoreFeature.gradient_of`).
        """
        return [f for f in self.features.scores if f.argument in self.wanted and f.gradient_of in kinds]

    @property
    def summed_elements(self) -> tuple[AuxArray, ...]:
        """The arrays of `aux` whose gradients the kernel sums."""
        mods = [feature for feature in self.features.scores if isinstance(feature, ScoreMod)]
        arrays = differentiable(mods[0].trace) if mods and self.owner == ELEMENTS else ()
        return tuple(array for array in arrays if array.operand in self.wanted)

    @property
    def terms(self) -> tuple[Operand, ...]:
        """The numbers that the kernel writes for the gradients of arrays of scores: one for each row
        of each head, or for each key, or exact sums of the elements.
        """
        if self.owner == ELEMENTS:
            return tuple(_exact_sums(array) for array in self.summed_elements)
        if self.owner == SCORES:
            role = "the gradient of the bias, summed over what shares it, written"
            axes = ("bias_batch", "bias_heads", "seq_q", "seq_k")
            return (Operand("dbias", F32, axes, role=role, is_written=True, is_dense=True),)
        rows = self.features.longest_q
        of, rows, kinds = {
            QUERIES: ("row", rows, ["rows", "first"]),
            DELTAS: ("row", rows, ["first"]),
            KEYS: ("key", self.longest_k, ["keys", "rows"] if self.tiling.adds_queries else ["keys"]),
            SUMS: ("row", rows, []),
        }[self.owner]
        return tuple(
            Operand(
                term_of(feature, one_sweep=self.tiling.adds_queries),
                F32,
                ("batch", "heads", rows),
                role=f"what each {of} adds to the gradient of {feature.argument}, written",
                is_written=True,
                is_dense=True,
            )
            for feature in self.summed(*kinds)
        )

    @property
    def longest_k(self) -> str:
        """The name of the size with the most keys of a sequence."""
        return LONGEST_K.name if self.features.varlen else "seq_k"

    @property
    def writes_deltas(self) -> bool:
        """Whether the kernel writes D, the sum of O times dO over each row."""
        return self.owner in (QUERIES, DELTAS)

    @property
    def reads_dlse(self) -> bool:
        """Whether the kernel reads the gradient of LSE, which the kernel that writes D subtracts from D."""
        return self.with_dlse and self.writes_deltas

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        t = self.tiling
        dims = f"d{t.head_dim}" + (f"v{t.head_dim_v}" if t.head_dim_v != t.head_dim else "")
        kind = self.dtype.name if t.operands in (HALF, FMA) else t.operands.name
        instruction = "wgmma_" if self.has_wgmma else ""
        words = [f"attention_gradient_{self.owner}_{instruction}{kind}", dims, f"m{t.block}"]
        words += [f"n{t.tile}"] if t.tile else []
        words += [f"s{t.stages}"] if t.stages > 1 else []
        words += ["adds"] if t.adds_queries else []
        words += ["ordered"] if self.adds_in_order else []
        words += [self.causal] if self.causal else []
        words += self.features.words
        words += ["dlse"] if self.reads_dlse else []
        for of, usual, word in ((self.dout_dtype, self.dtype, "dout_"), (self.written, BF16, "to_")):
            words += [f"{word}{of.name}"] if of not in (None, usual) else []
        words += [f"d{term.name}" for term in self.terms]
        if self.alignment != natural_alignment(t.head_dim, t.head_dim_v, self.dtype):
            words.append(f"align{self.alignment}")
        return "_".join(words)
