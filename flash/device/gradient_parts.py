"""The parameters of a kernel of gradients, and the part of the problem that each CTA of it computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from flash.device.head_scores import HeadScores
from flash.device.mask import Mask
from flash.device.parameters import Array, ScoreArray
from flash.device.sequence_span import Span
from flash.device.tiles import Matrix, access_width
from flash.families.request import natural_alignment
from flash.operands.dtypes import F32, F32_BYTES
from flash.problem.gradient_arrays import gradient_matrices, order_of_sums, row_numbers, sums_of_queries
from flash.problem.gradients import SUM_BLOCKS, AnyGradientTiling, GradientConfig
from flash.scores.window import Reach
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.dsl.source_regions import marked
from ptxgen.types import f32, s32, s64, u32, u64

_OF_KEYS = ("K", "V", "dK", "dV")


@dataclass(frozen=True)
class GradientParameters:
    """The parameters of a gradient kernel: arrays with their strides, and scalars."""

    matrices: dict[str, Array]  # Q, K, V, dO, and O and dQ or dK and dV
    of_rows: dict[str, Pointer]  # LSE, D, and dLSE if it is read: a number for each row
    sums: Pointer | None  # of dQ, a dense row for each row, if the kernel has them
    order: tuple[Pointer, Pointer] | None  # counters of CTAs: of blocks of sums, and of those that have begun
    terms: dict[str, Pointer]  # what is written for the gradients of arrays of scores
    seq_q: Value  # s32, as all counts of rows and keys; with varlen, of all sequences
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale: Value  # softmax_scale
    numbers: dict[str, Value]
    operands: dict[str, ScoreArray]
    every_row: Value  # rows that LSE and D have for each head
    begin: Value | None = None  # the first row of the sequence in LSE and D; None is row 0

    @classmethod
    def declare(cls, k: KernelBuilder, config: GradientConfig) -> GradientParameters:
        """Declare and load the parameters, in the order of `gradient_arrays`."""
        of_kernel = gradient_matrices(config)
        pointers = {array.name: k.pointer(array.name) for array in of_kernel}
        of_rows = {operand.name: k.pointer(operand.name) for operand in row_numbers(config)}
        sums = [k.pointer(operand.name) for operand in sums_of_queries(config)]
        order = [k.pointer(operand.name, u32) for operand in order_of_sums(config)]
        terms = {operand.name: k.pointer(operand.name) for operand in config.terms}
        of_features = [(operand, k.pointer(operand.name)) for operand in config.features.operands]
        matrices = {
            array.name: Array.declare(k, array, pointers[array.name], array.columns) for array in of_kernel
        }
        names = (*config.features.row_counts, "heads", "group")
        seq_q, seq_k, heads, group = (k.signed(k.param(name, u32)) for name in names)
        scale = k.param("softmax_scale", f32)
        numbers = {n.name: k.param(n.name, n.type) for n in config.numbers}
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in of_features}
        counters = (order[0], order[1]) if order else None
        to = of_rows, sums[0] if sums else None, counters, terms
        return cls(matrices, *to, seq_q, seq_k, heads, group, scale, numbers, operands, seq_q)

    def longest(self, side: str) -> Value:
        """The number of rows of the longest sequence, of queries ("q") or keys ("k")."""
        longest = self.numbers.get(f"max_seqlen_{side}")
        if longest is not None:
            return longest.as_(s32)
        return self.seq_q if side == "q" else self.seq_k

    def of_sequence(self, k: KernelBuilder, number: Value) -> GradientParameters:
        """The arguments of packed sequence `number`: arrays that begin with its rows, and its lengths."""
        queries, keys = (
            self._span(k, side, number, total) for side, total in (("q", self.seq_q), ("k", self.seq_k))
        )
        matrices = {
            name: replace(array, begin=(keys if name in _OF_KEYS else queries).begin)
            for name, array in self.matrices.items()
        }
        return replace(self, matrices=matrices, seq_q=queries.length, seq_k=keys.length, begin=queries.begin)

    def _span(self, k: KernelBuilder, side: str, number: Value, total: Value) -> Span:
        ends, used = (self.operands.get(f"{name}_{side}") for name in ("cu_seqlens", "seqused"))
        assert ends is not None  # sequences are packed
        used_rows = None if used is None else used.of_sequence(k, number)
        first, last = ends.of_sequence(k, number), ends.of_sequence(k, number + 1)
        return Span.clamped(k, first, last, used_rows, total)

    def rows(self, k: KernelBuilder, name: str, batch: Value, head: Value) -> Matrix:
        """The rows of head `head` of the matrix called `name`: one for each query, or for each key."""
        count = self.seq_k if name in _OF_KEYS else self.seq_q
        return self.matrices[name].head(k, batch, head, count)

    def first_element(self, k: KernelBuilder, batch: Value, head: Value) -> Value:
        """The index (s64) of the first row of a head among the rows of all heads: of a batch item, or
        of a packed sequence.
        """
        nth = k.cvt(head, dtype=s64)
        if self.begin is None:
            nth = k.mul_wide(batch, self.heads) + nth
        elements = nth * k.cvt(self.every_row, dtype=s64)
        if self.begin is not None:
            elements = elements + k.cvt(self.begin, dtype=s64)
        return elements

    def rows_of_sums(self, k: KernelBuilder, columns: int, batch: Value, head: Value) -> Matrix:
        """The matrix of the f32 sums of dQ for one head, of `columns` columns."""
        assert self.sums is not None  # the kernel has them
        row_bytes = columns * F32_BYTES
        first = self.sums.value + (self.first_element(k, batch, head) * row_bytes).as_(u64)
        width = access_width(columns, natural_alignment(columns, columns, F32))
        return Matrix(first, k.mov(row_bytes, type=s64), self.seq_q, columns, width)

    def block_of_sums(
        self, k: KernelBuilder, batch: Value, head: Value, n: Value, rows: int, columns: int
    ) -> Pointer:
        """The sums of block `n` of dQ of a head: `rows` x `columns` f32 in the order of threads. The blocks
        of a packed sequence follow those of the sequences before, of which each may end with a block that is
        not full.
        """
        assert self.sums is not None  # the kernel has them
        index = self._sum_block(k, batch, head, n, rows)
        return Pointer(self.sums.value + (index * (rows * columns * F32_BYTES)).as_(u64), "global", f32)

    def order_of_block(
        self, k: KernelBuilder, batch: Value, head: Value, n: Value, rows: int, half: Value
    ) -> Pointer:
        """The counter of the CTAs that have added to half `half` (u32) of the sums of block `n` of a head."""
        assert self.order is not None  # the kernel has them
        index = self._sum_block(k, batch, head, n, rows) * 2 + k.cvt(half, dtype=s64)
        return Pointer(self.order[0].value + (index * u32.nbytes).as_(u64), "global", u32)

    def _sum_block(self, k: KernelBuilder, batch: Value, head: Value, n: Value, rows: int) -> Value:
        """The index (s64) of block `n` of dQ of a head among the blocks of all heads."""
        blocks = self.numbers[SUM_BLOCKS.name]
        nth = k.cvt(head, dtype=s64)
        if self.begin is None:
            nth = k.mul_wide(batch, self.heads) + nth
        else:
            n = self.begin // rows + batch + n
        # It exists anyway: the minimum states it for the proof.
        n = k.min(n.as_(u32), blocks - 1).as_(s32)
        return nth * k.cvt(blocks, dtype=s64) + k.cvt(n, dtype=s64)


@dataclass(frozen=True)
class RowNumbers:
    """LSE, D or the gradient of LSE of one head: an f32 for each of its rows, from `begin` bytes (u64) of the
    array on. The three arrays share this offset, which is held in place of three addresses because registers
    are short.
    """

    array: Pointer
    begin: Value

    @classmethod
    def of(
        cls, k: KernelBuilder, parameters: GradientParameters, batch: Value, head: Value
    ) -> dict[str, RowNumbers]:
        """LSE, D and the gradient of LSE of a head of a batch item, or of a packed sequence, by name."""
        begin = (parameters.first_element(k, batch, head) * F32_BYTES).as_(u64)
        return {name: cls(array, begin) for name, array in parameters.of_rows.items()}

    def at(self, k: KernelBuilder, row: Value) -> Pointer:
        """The address in global memory of the f32 that belongs to row `row`."""
        return self.array.plus(self.begin + (k.cvt(row, dtype=s64) * F32_BYTES).as_(u64))


@dataclass(frozen=True)
class Terms:
    """The sums over the rows, or keys, of one head for the gradients of arrays of scores: an f32 for each
    row, by the names of the operands.
    """

    first: dict[str, Pointer]

    @classmethod
    def of(
        cls, k: KernelBuilder, parameters: GradientParameters, batch: Value, head: Value, rows: Value
    ) -> Terms:
        """The terms of a head, which are arrays of `rows` numbers."""
        nth = k.mul_wide(batch, parameters.heads) + k.cvt(head, dtype=s64)
        begin = (nth * k.cvt(rows, dtype=s64) * F32_BYTES).as_(u64)
        return cls({name: array.plus(begin) for name, array in parameters.terms.items()})

    def write(self, k: KernelBuilder, name: str, row: Value, value: Value) -> None:
        """Write `value`, the term of row `row`, to the array of the operand `name`."""
        k.store(self.first[name].plus((k.cvt(row, dtype=s64) * F32_BYTES).as_(u64)), value)


@dataclass(frozen=True)
class RowsPart:
    """Rows of Q that one CTA owns: `GradientTiling.block` of one head from `first_row` on. `parameters` are
    those of their sequence.
    """

    parameters: GradientParameters
    batch: Value
    head: Value
    head_of_batch: Value
    first_row: Value

    @classmethod
    def of(
        cls, k: KernelBuilder, config: GradientConfig, parameters: GradientParameters, *, again: bool = False
    ) -> RowsPart:
        """The rows of Q that this CTA owns. From fastest to slowest the grid has blocks, heads, batches. Code
        is emitted that ends CTAs whose rows lie after their sequence, if it is not computed `again`.
        """
        k.note("which query rows of which head")
        t = config.tiling
        blocks = k.divide_up(parameters.longest("q"), t.block)
        nth = k.signed(k.block_id())
        head_of_batch = nth // blocks
        first_row = nth % blocks * t.block
        batch, head = head_of_batch // parameters.heads, head_of_batch % parameters.heads
        if config.features.varlen:
            parameters = parameters.of_sequence(k, batch)
            if not again:
                with k.only_if(first_row >= parameters.seq_q):
                    k.ret()
        return cls(parameters, batch, head, head_of_batch, first_row)

    def scores(self, k: KernelBuilder, config: GradientConfig) -> HeadScores:
        """The inputs of the score features, such as a bias, for the CTA's head."""
        return HeadScores.of(k, config, self.parameters, (self.batch, self.head, self.head_of_batch), None)


@dataclass(frozen=True)
class QueriesPart:
    """The rows of dQ that one CTA owns: `GradientTiling.block` of one head from `first_row` on. Their queries
    see keys of the tiles from `first_tile` up to `end_tile`, exclusive.
    """

    parameters: GradientParameters
    scores: HeadScores
    batch: Value
    head: Value
    kv_head: Value
    first_row: Value
    first_tile: Value
    end_tile: Value
    mask: Mask
    all_see: Value  # the last key that all rows see
    all_see_from: Value | None  # the first key that all rows see; None if it is key 0

    @classmethod
    def of(
        cls, k: KernelBuilder, config: GradientConfig, parameters: GradientParameters, *, again: bool = False
    ) -> QueriesPart:
        """The rows of dQ that this CTA owns; the grid and `again` are as in `RowsPart.of`."""
        t, rows = config.tiling, RowsPart.of(k, config, parameters, again=again)
        parameters, first_row, scores = rows.parameters, rows.first_row, rows.scores(k, config)
        mask = scores.mask()
        last_row = k.min(first_row + (t.block - 1), parameters.seq_q - 1)
        end = mask.reach.end_tile(k, last_row, t.tile)
        first = k.min(mask.reach.first_key(k, first_row) // t.tile, end)
        all_see = mask.last_for_all(k, first_row)
        limited = mask.reach.left is not None
        all_see_from = mask.reach.first_key(k, last_row) if limited else None
        mask = mask.of_queries(first_row, last_row)
        narrowed, end = mask.narrowed(k, first, end, t.tile)
        assert narrowed is not None  # there was a first tile
        return cls(
            parameters,
            scores,
            rows.batch,
            rows.head,
            rows.head // parameters.group,
            first_row,
            narrowed,
            end,
            mask,
            all_see,
            all_see_from,
        )

    @marked("gradients: tiles without hidden keys")
    def whole_tiles(self, k: KernelBuilder, tile: int) -> tuple[Value, Value]:
        """The first tile and the end, exclusive, of the tiles of which all rows see all keys."""
        end = k.min(k.max(self.all_see + 1, 0) // tile, self.end_tile)
        first = self.first_tile
        if self.all_see_from is not None:
            first = k.min(k.max(k.divide_up(self.all_see_from, tile), first), self.end_tile)
        return first, k.max(end, first)

    @marked("gradients: tiles with hidden keys")
    def hides_keys(self, first_key: Value, tile: int) -> Value:
        """Whether some row does not see some key of the tile that begins with `first_key`."""
        if self.mask.hides_anywhere:
            return first_key == first_key
        after = first_key + (tile - 1) > self.all_see
        return after if self.all_see_from is None else after | (first_key < self.all_see_from)


@dataclass(frozen=True)
class KeysPart:
    """The rows of dK and dV that one CTA owns: `GradientTiling.block` of one head of K and V from `first_key`
    on, and the `slice` of their columns. Queries that see some of them are in the tiles from `first_tile` up
    to `end_tile`, exclusive, of each head of Q that shares the head.
    """

    parameters: GradientParameters
    batch: Value
    kv_head: Value
    first_key: Value
    first_tile: Value
    end_tile: Value
    slice: Value | None  # u32; None if the CTA makes all columns

    @classmethod
    @marked("gradients: part of keys")
    def of(
        cls,
        k: KernelBuilder,
        config: GradientConfig,
        parameters: GradientParameters,
        *,
        again: bool = False,
        number: Value | None = None,
    ) -> KeysPart:
        """The rows of dK and dV that this CTA owns. From fastest to slowest the grid has slices, blocks,
        heads of K and V, batches. Code is emitted that ends CTAs whose rows lie after their sequence, if it
        is not computed `again`. With `number`, u32, the CTA is not the one of its index in the grid but the
        one of that number, and the blocks of a head are numbered from the last to the first.
        """
        k.note("which keys of which head")
        t = config.tiling
        blocks = k.divide_up(parameters.longest("k"), t.block)
        block, slice = k.block_id() if number is None else number, None
        if t.slices > 1:
            block, slice = block // t.slices, block % t.slices
        nth = k.signed(block)
        head_of_batch = nth // blocks
        of_head = nth % blocks
        if number is not None:
            of_head = blocks - 1 - of_head
        first_key = of_head * t.block
        kv_heads = parameters.heads // parameters.group
        batch, kv_head = head_of_batch // kv_heads, head_of_batch % kv_heads
        if config.features.varlen:
            parameters = parameters.of_sequence(k, batch)
            if not again:
                with k.only_if(first_key >= parameters.seq_k):
                    k.ret()
        first_head = kv_head * parameters.group
        reach = HeadScores.of(k, config, parameters, (batch, first_head, first_head), None).reach()
        first, end = reach.queries(k, first_key, first_key + (t.block - 1), parameters.seq_q)
        end_tile = k.divide_up(end, t.tile)
        first_tile = k.min(first // t.tile, end_tile)
        if number is not None:  # keys that no query sees have no tile: none of these counts on their CTA
            first_tile = k.selp(end_tile, first_tile, first == end)
        return cls(parameters, batch, kv_head, first_key, first_tile, end_tile, slice)

    def scores(self, k: KernelBuilder, config: GradientConfig, head: Value) -> HeadScores:
        """The inputs of the score features, such as a bias, for a head of Q."""
        of_batch = self.batch * self.parameters.heads + head
        return HeadScores.of(k, config, self.parameters, (self.batch, head, of_batch), None)

    @marked("gradients: tiles without hidden queries")
    def whole_tiles(self, k: KernelBuilder, t: AnyGradientTiling, reach: Reach) -> tuple[Value, Value]:
        """The first tile of queries and the end, exclusive, of those in which every query exists and sees
        every existing key of the CTA. `reach` says which keys a query of the head sees.
        """
        seq_q, seq_k = self.parameters.seq_q, self.parameters.seq_k
        _, end = reach.queries(k, self.first_key, self.first_key, seq_q)
        first = self.first_tile
        if reach.is_causal or reach.right is not None:
            last_key = k.min(self.first_key + (t.block - 1), seq_k - 1)
            sees_all, _ = reach.queries(k, last_key, last_key, seq_q)
            first = k.min(k.max(k.divide_up(sees_all, t.tile), first), self.end_tile)
        if t.adds_queries:  # keys that do not exist add 0 to the sums
            first = k.selp(self.end_tile, first, self.first_key + t.block > seq_k)
        return first, k.max(k.min(end // t.tile, self.end_tile), first)

    def ticket(self, k: KernelBuilder, reach: Reach, first_query: Value, t: AnyGradientTiling) -> Value:
        """The number of CTAs with later keys of which some query of the tile that begins with `first_query`
        sees some, u32: those add to its sums before this CTA, which sees some, too.
        """
        last_query = k.min(first_query + t.tile, self.parameters.seq_q) - 1
        last_key = k.min(reach.last_key(k, last_query), self.parameters.seq_k - 1)
        return (last_key // t.block - self.first_key // t.block).as_(u32)

    def sees(self, k: KernelBuilder, mask: Mask, first_query: Value, t: AnyGradientTiling) -> Value | None:
        """Whether some query of the tile that begins with `first_query` may see a key of the CTA; None:
        yes.
        """
        if not mask.has_gaps:
            return None
        last_query = k.min(first_query + t.tile, self.parameters.seq_q) - 1
        return mask.of_queries(first_query, last_query).sees_tile(self.first_key)

    @marked("gradients: tiles with hidden queries")
    def hides(self, k: KernelBuilder, mask: Mask, first_query: Value, t: AnyGradientTiling) -> Value:
        """Whether some query of the tile that begins with `first_query` does not exist, or does not see some
        key of the CTA. Keys that do not exist count only with sums of dQ, to which they must add 0; their own
        gradients are not written and may be any.
        """
        reach = mask.reach
        if mask.hides_anywhere:
            return first_query == first_query
        hidden = first_query + t.tile > self.parameters.seq_q
        if reach.is_causal or reach.right is not None or t.adds_queries:
            hidden = hidden | (reach.last_key(k, first_query) < self.first_key + (t.block - 1))
        if reach.left is not None:
            hidden = hidden | (reach.first_key(k, first_query + (t.tile - 1)) > self.first_key)
        return hidden


@marked("gradient of keys: some queries")
def if_some(k: KernelBuilder, queries: Value) -> AbstractContextManager[object]:
    """A context for code that runs only if there are queries. Without queries there is no tile of them, which
    the proof does not conclude from the end of a loop that is a quotient.
    """
    return k.when(queries > 0, uniform=True)
