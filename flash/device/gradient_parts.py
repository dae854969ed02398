"""Which part of the problem a CTA of a kernel of gradients has, and the parameters that say so."""

from __future__ import annotations

from dataclasses import dataclass

from flash.device.mask import Mask
from flash.device.parameters import Array, ScoreArray, stride_parameters
from flash.device.tiles import Matrix, access_width
from flash.operands.dtypes import F32_BYTES
from flash.problem.gradients import GradientConfig, gradient_matrices, row_numbers
from flash.scores.window import Reach
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.types import f32, s32, s64, u32, u64


@dataclass(frozen=True)
class GradientParameters:
    """The parameters of a kernel of gradients."""

    matrices: dict[str, Array]  # Q, K, V, dO, and O and dQ or dK and dV
    LSE: Pointer
    D: Pointer
    seq_q: Value  # s32, as all counts of rows and keys
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale: Value  # softmax_scale
    numbers: dict[str, Value]
    operands: dict[str, ScoreArray]

    @classmethod
    def declare(cls, k: KernelBuilder, config: GradientConfig) -> GradientParameters:
        """Declare and load the parameters, in the order of `gradient_arrays`."""
        of_kernel = gradient_matrices(config)
        pointers = {array.name: k.pointer(array.name) for array in of_kernel}
        LSE, D = (k.pointer(operand.name) for operand in row_numbers(config))
        places = [(operand, k.pointer(operand.name)) for operand in config.features.operands]
        matrices = {
            array.name: Array(
                pointers[array.name].value,
                stride_parameters(k, array),
                array.columns,
                access_width(array.columns, array.alignment, array.dtype.nbytes),
                array.dtype.nbytes,
            )
            for array in of_kernel
        }
        names = (*config.features.row_counts, "heads", "group")
        seq_q, seq_k, heads, group = (k.signed(k.param(name, u32)) for name in names)
        scale = k.param("softmax_scale", f32)
        numbers = {n.name: k.param(n.name, n.type) for n in config.numbers}
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in places}
        return cls(matrices, LSE, D, seq_q, seq_k, heads, group, scale, numbers, operands)

    def mask(self, k: KernelBuilder, config: GradientConfig) -> Mask:
        """Which keys are seen. Bottom-right aligns the last query with the last key, top-left the
        first query with the first key.
        """
        diagonal = None
        if config.causal or config.features.uses_position:
            aligned = config.causal != "top_left"
            diagonal = self.seq_k - self.seq_q if aligned else k.mov(0, type=s32)
        left, right = (self.numbers.get(f"window_{side}") for side in ("left", "right"))
        return Mask(Reach(diagonal, bool(config.causal), left, right, self.seq_k), ())

    def rows_of_queries(self, k: KernelBuilder, name: str, batch: Value, head: Value) -> Matrix:
        """The rows of one head of Q, O or one of their gradients."""
        return self.matrices[name].head(k, batch, head, self.seq_q)

    def rows_of_keys(self, k: KernelBuilder, name: str, batch: Value, kv_head: Value) -> Matrix:
        """The rows of one head of K, V or one of their gradients."""
        return self.matrices[name].head(k, batch, kv_head, self.seq_k)


@dataclass(frozen=True)
class RowNumbers:
    """LSE or D of one head: an f32 for each of its rows."""

    first: Pointer

    @classmethod
    def of(cls, k: KernelBuilder, array: Pointer, head_of_batch: Value, rows: Value) -> RowNumbers:
        """Those of a head, counted over all batches, of `rows` rows."""
        elements = k.mul_wide(head_of_batch, rows)
        return cls(array.plus((elements * F32_BYTES).as_(u64)))

    def at(self, k: KernelBuilder, row: Value) -> Pointer:
        """The address of the number of a row."""
        return self.first.plus((k.cvt(row, dtype=s64) * F32_BYTES).as_(u64))


@dataclass(frozen=True)
class QueriesPart:
    """The rows of dQ that one CTA owns: `block` of one head from `first_row` on. Their queries see
    keys of the tiles from `first_tile` up to `end_tile`, exclusive.
    """

    batch: Value
    head: Value
    kv_head: Value
    head_of_batch: Value
    first_row: Value
    first_tile: Value
    end_tile: Value
    mask: Mask
    all_see: Value  # the last key that all rows see
    all_see_from: Value | None  # the first key that all rows see; None if it is key 0

    @classmethod
    def of(cls, k: KernelBuilder, config: GradientConfig, given: GradientParameters) -> QueriesPart:
        """The part of this CTA. From fastest to slowest the grid has blocks, heads, batches."""
        k.note("which query rows of which head")
        t = config.tiling
        blocks = k.divide_up(given.seq_q, t.block)
        nth = k.signed(k.block_id())
        head_of_batch = nth // blocks
        first_row = nth % blocks * t.block
        batch, head = head_of_batch // given.heads, head_of_batch % given.heads
        mask = given.mask(k, config)
        last_row = k.min(first_row + (t.block - 1), given.seq_q - 1)
        end = mask.reach.end_tile(k, last_row, t.tile)
        first = k.min(mask.reach.first_key(k, first_row) // t.tile, end)
        limited = mask.reach.left is not None
        return cls(
            batch,
            head,
            head // given.group,
            head_of_batch,
            first_row,
            first,
            end,
            mask,
            mask.last_for_all(k, first_row),
            mask.reach.first_key(k, last_row) if limited else None,
        )

    @marked("gradient of queries: tiles with hidden keys")
    def hides_keys(self, first_key: Value, tile: int) -> Value:
        """Whether some row does not see some key of the tile that begins with `first_key`."""
        behind = first_key + (tile - 1) > self.all_see
        return behind if self.all_see_from is None else behind | (first_key < self.all_see_from)


@dataclass(frozen=True)
class KeysPart:
    """The rows of dK and dV that one CTA owns: `block` of one head of K and V from `first_key` on.
    Queries that see some of them are in the tiles from `first_tile` up to `end_tile`, exclusive, of
    each head of Q that shares the head.
    """

    batch: Value
    kv_head: Value
    first_key: Value
    first_tile: Value
    end_tile: Value
    mask: Mask

    @classmethod
    def of(cls, k: KernelBuilder, config: GradientConfig, given: GradientParameters) -> KeysPart:
        """The part of this CTA. From fastest to slowest the grid has blocks, heads of K and V,
        batches.
        """
        k.note("which keys of which head")
        t = config.tiling
        blocks = k.divide_up(given.seq_k, t.block)
        nth = k.signed(k.block_id())
        head_of_batch = nth // blocks
        first_key = nth % blocks * t.block
        kv_heads = given.heads // given.group
        mask = given.mask(k, config)
        first, end = mask.reach.queries(k, first_key, first_key + (t.block - 1), given.seq_q)
        end_tile = k.divide_up(end, t.tile)
        return cls(
            head_of_batch // kv_heads,
            head_of_batch % kv_heads,
            first_key,
            k.min(first // t.tile, end_tile),
            end_tile,
            mask,
        )

    @marked("gradient of keys: tiles with hidden keys")
    def hides_keys(self, k: KernelBuilder, first_query: Value, block: int, tile: int) -> Value | None:
        """Whether some query of the tile that begins with `first_query` does not see some key of the
        CTA; None: no query of any tile.
        """
        reach = self.mask.reach
        found = None
        if reach.is_causal or reach.right is not None:
            found = reach.last_key(k, first_query) < self.first_key + (block - 1)
        if reach.left is not None:
            too_early = reach.first_key(k, first_query + (tile - 1)) > self.first_key
            found = too_early if found is None else found | too_early
        return found
