"""What a forward kernel is given, and which part of it a CTA computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flash.config import KernelConfig
from flash.dropout import Dropout
from flash.dtypes import F32, F32_BYTES, DType
from flash.features import Operand
from flash.mask import Mask
from flash.packing import PackedMatrix, PackedNumbers, Packing
from flash.score_plane import ScorePlane
from flash.scoring import Scoring
from flash.sections import last_first
from flash.softmax import LOG2E, Sink, sink_terms
from flash.span import Span
from flash.tiles import Matrix, access_width
from flash.tiling import Tiling, ValueSlices
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import f32, s32, s64, u32, u64


@dataclass(frozen=True)
class Array:
    """Q, K, V or O as the kernel gets it: batch by head by row by `columns` elements; of packed
    sequences head by row.
    """

    first: Value
    strides: dict[str, Value]  # of batch, head and row, in elements, s64
    columns: int  # that a CTA computes with
    width: int  # of them that one access may take
    nbytes: int  # of an element
    begin: Value | None = None  # the row that one of the packed sequences begins with

    def head(self, k: KernelBuilder, batch: Value, head: Value, rows: Value) -> Matrix:
        """The rows of one head. Offsets are 64 bits wide."""
        outer = ("batch", batch) if self.begin is None else ("row", self.begin)
        steps = (outer, ("head", head))
        one, other = (k.cvt(index, dtype=s64) * self.strides[step] for step, index in steps)
        first = self.first + ((one + other) * self.nbytes).as_(u64)
        return Matrix(first, self.strides["row"] * self.nbytes, rows, self.columns, self.width)

    def group(
        self, k: KernelBuilder, batch: Value, kv_head: Value, rows: Value, packing: Packing
    ) -> PackedMatrix:
        """The rows of all heads that share a head of K and V, packed."""
        one = self.head(k, batch, kv_head * packing.group, rows)
        head_bytes = self.strides["head"] * self.nbytes
        return PackedMatrix(
            one.first, one.row_bytes, rows, self.columns, self.width, head_bytes=head_bytes,
            packing=packing,
        )  # fmt: skip


@dataclass(frozen=True)
class ScoreArray:
    """An operand of `flash/features.py` as the kernel gets it."""

    first: Value
    strides: dict[str, Value]  # by axis, in elements, s64
    dtype: DType

    @classmethod
    def declare(cls, k: KernelBuilder, operand: Operand, at: Pointer) -> ScoreArray:
        """Declare and load the strides."""
        strides = {axis: k.param(operand.stride(axis), s64) for axis in operand.axes}
        return cls(at.value, strides, operand.dtype)

    def of_sequence(self, k: KernelBuilder, index: Value) -> Value:
        """A sequence's number. Nobody writes it while the kernel runs, so that all threads of a
        CTA read the same.
        """
        elements = k.cvt(index, dtype=s64) * self.strides["batch"]
        at = self.first + (elements * self.dtype.nbytes).as_(u64)
        return k.ld_nc(Pointer(at, "global", self.dtype.scalar), type=self.dtype.scalar)

    def head(self, k: KernelBuilder, batch: Value, head: Value) -> Value:
        """Where the numbers of one head begin."""
        elements = k.cvt(batch, dtype=s64) * self.strides["batch"]
        elements = elements + k.cvt(head, dtype=s64) * self.strides["heads"]
        return self.first + (elements * self.dtype.nbytes).as_(u64)

    def plane(
        self, k: KernelBuilder, batch: Value, head: Value, seq_q: Value, seq_k: Value
    ) -> ScorePlane:
        """The numbers of one head, one for each score."""
        row, column = (self.strides[axis] * self.dtype.nbytes for axis in ("seq_q", "seq_k"))
        first = self.head(k, batch, head)
        return ScorePlane(first, row, column, seq_q, seq_k, self.dtype.scalar)


@dataclass(frozen=True)
class Arguments:
    """The kernel's parameters; `flash/contract.py` says what they mean."""

    Q: Array
    K: Array
    V: Array
    O: Array
    LSE: Pointer | None
    seq_q: Value  # s32, as all that rows and keys are counted in; all rows of packed sequences
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale: Value  # softmax_scale
    scale_log2: Value  # the same in units of log2
    numbers: dict[str, Value]  # those of `flash/features.py`, by name
    operands: dict[str, ScoreArray]

    @classmethod
    def declare(cls, k: KernelBuilder, config: KernelConfig) -> Arguments:
        """Declare and load them, in the order of the contract."""
        t, nbytes = config.tiling, config.dtype.nbytes
        of_keys, of_values = (t.head_dim, t.head_dim), (t.head_dim_v, t.slices.width)
        columns = {"Q": of_keys, "K": of_keys, "V": of_values, "O": of_values}
        pointers = {name: k.pointer(name) for name in columns}
        LSE = k.pointer("LSE") if config.return_lse else None
        places = [(operand, k.pointer(operand.name)) for operand in config.features.operands]
        Q, K, V, O = (
            Array(
                pointers[name].value,
                {step: k.param(f"{name}_{step}_stride", s64) for step in config.features.steps},
                computed,
                access_width(in_row, config.alignment, nbytes),
                nbytes,
            )
            for name, (in_row, computed) in columns.items()
        )
        names = (*config.features.row_counts, "heads", "group")
        seq_q, seq_k, heads, group = (k.signed(k.param(name, u32)) for name in names)
        scale = k.param("softmax_scale", f32)
        scale_log2 = scale * LOG2E
        numbers = {n.name: k.param(n.name, n.type) for n in config.numbers}
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in places}
        return cls(
            Q, K, V, O, LSE, seq_q, seq_k, heads, group, scale, scale_log2, numbers, operands
        )

    @property
    def longest_q(self) -> Value:
        """The most query rows of a sequence."""
        longest = self.numbers.get("max_seqlen_q")
        return self.seq_q if longest is None else longest.as_(s32)

    def of_sequence(self, k: KernelBuilder, number: Value) -> Arguments:
        """What concerns one of the packed sequences: arrays that begin with its rows, and its own
        lengths.
        """
        queries, keys = (
            self._span(k, side, number, total)
            for side, total in (("q", self.seq_q), ("k", self.seq_k))
        )
        LSE = self.LSE
        if LSE is not None:
            LSE = LSE.plus((k.cvt(queries.begin, dtype=s64) * F32_BYTES).as_(u64))
        return replace(
            self,
            Q=replace(self.Q, begin=queries.begin),
            K=replace(self.K, begin=keys.begin),
            V=replace(self.V, begin=keys.begin),
            O=replace(self.O, begin=queries.begin),
            LSE=LSE,
            seq_q=queries.length,
            seq_k=keys.length,
        )

    def _span(self, k: KernelBuilder, side: str, number: Value, total: Value) -> Span:
        ends, used = (self.operands.get(f"{name}_{side}") for name in ("cu_seqlens", "seqused"))
        assert ends is not None  # sequences are packed
        return Span.clamped(
            k,
            ends.of_sequence(k, number),
            ends.of_sequence(k, number + 1),
            None if used is None else used.of_sequence(k, number),
            total,
        )


@dataclass(frozen=True)
class LogSums:
    """Where the log-sum-exp of a CTA's rows goes: `rows` f32 for each head. With packing `head` is
    that of K and V, whose heads of Q have `all_rows` together.
    """

    first: Pointer
    head: Value
    rows: Value
    packing: Packing | None
    all_rows: Value

    def at(self, k: KernelBuilder, row: Value) -> Pointer:
        """The place of a row."""
        if self.packing is None:
            place = k.mad_wide(self.head, self.rows, k.cvt(row, dtype=s64))
        else:
            query = k.cvt(self.packing.query(row), dtype=s64)
            place = k.mad_wide(self.packing.head(row), self.rows, query)
            place = k.mad_wide(self.head, self.all_rows, place)
        return self.first.plus((place * F32_BYTES).as_(u64))


@dataclass(frozen=True)
class ValueSlice:
    """The columns of V and O that one CTA computes, of several slices (`flash/tiling.py`)."""

    number: Value
    first: Value  # column
    written_from: Value | None  # column of the slice; None if it is the first

    @classmethod
    def of(cls, k: KernelBuilder, slices: ValueSlices, number: Value) -> ValueSlice:
        """The slice of this number."""
        width, last = slices.width, slices.last
        if not slices.shared:
            return cls(number, number * width, None)
        unit = math.gcd(width, last)  # a factor, so that the proof sees what divides the column
        first = k.min(number * (width // unit), last // unit) * unit
        return cls(number, first, k.max(number * width - last, 0))

    def part(self, k: KernelBuilder, matrix: Matrix, nbytes: int) -> Matrix:
        """The slice of V or O, of which an element has so many bytes."""
        first = matrix.first + k.cvt(self.first * nbytes, dtype=u64)
        return replace(matrix, first=first, written_from=self.written_from)


@dataclass(frozen=True)
class Cta:
    """The part of the problem that one CTA computes: some query rows of one head, or packed ones
    of all heads that share a head of K and V; and of wide values some columns.

    Its tiles of keys are those from `first_tile` on before `end_tile`; of the tiles from
    `first_whole` on before `end_whole` all rows see all keys.
    """

    Q: Matrix
    K: Matrix
    V: Matrix
    O: Matrix
    LSE: LogSums | None
    tile: int  # keys of one
    packing: Packing | None
    first_row: Value
    mask: Mask
    scoring: Scoring | None  # None where scores are products times a scale
    sink: Value | PackedNumbers | None  # in units of log2, or as given of each packed head
    dropout: Dropout | None
    all_see: Value  # the last key that all rows of the CTA see
    all_see_from: Value | None  # the first; None if it is key 0
    tiles: Value  # tiles from key 0 to the last that any of the rows sees
    first_tile: Value | None  # the first of them that any sees; None if it is tile 0
    slice: ValueSlice | None  # None if the CTA computes all columns

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, given: Arguments) -> Cta:
        """This CTA's part. The grid is flat: slices of values fastest, whose CTAs read the same
        queries and keys, then query blocks, then heads (those of K and V if rows are packed), then
        batches; with causality in the order of `flash/sections.py`.
        """
        k.note("which query rows of which head")
        t = config.tiling
        packing = Packing(given.group) if config.packed else None
        rows = given.longest_q if packing is None else given.longest_q * packing.group
        heads = given.heads if packing is None else given.heads // packing.group
        blocks = k.divide_up(rows, t.block_q)
        block, part = k.signed(k.block_id()), None
        if t.value_slices > 1:
            part = ValueSlice.of(k, t.slices, block % t.value_slices)
            block = block // t.value_slices
        if config.causal:
            ctas = k.special("nctaid.x")
            if part is not None:
                ctas = ctas // t.value_slices
            head_of_batch, nth_block = last_first(
                k, block.as_(u32), blocks.as_(u32), ctas, given.numbers["section"]
            )
        else:
            head_of_batch, nth_block = block // blocks, block % blocks
        first_row = nth_block * t.block_q
        batch, head = head_of_batch // heads, head_of_batch % heads
        kv_head = head // given.group if packing is None else head
        every_row, of_head = given.seq_q, head_of_batch
        if config.features.varlen:
            given = given.of_sequence(k, batch)
            rows, of_head = given.seq_q, head
        scores = _Scores(k, config, given, batch, head, packing)
        mask = scores.mask()
        last_row = k.min(first_row + (t.block_q - 1), rows - 1)
        Q, K, V, O = (
            _rows(k, given.Q, batch, head, rows, packing),
            given.K.head(k, batch, kv_head, given.seq_k),
            given.V.head(k, batch, kv_head, given.seq_k),
            _rows(k, given.O, batch, head, rows, packing),
        )
        if part is not None:
            V, O = (part.part(k, of, config.dtype.nbytes) for of in (V, O))
        first_query, last_query = first_row, last_row
        if packing is not None and mask.has_positions:
            first_query, last_query = packing.query(first_row), packing.query(last_row)
        all_see = mask.last_key(k, first_query)
        tiles = mask.end_tile(k, last_query, t.tile)
        return cls(
            Q,
            K,
            V,
            O,
            None if given.LSE is None else LogSums(given.LSE, of_head, every_row, packing, rows),
            t.tile,
            packing,
            first_row,
            mask,
            scores.scoring(mask),
            scores.sink(),
            scores.dropout(head_of_batch),
            all_see,
            None if mask.left is None else mask.first_key(k, last_query),
            tiles,
            None if mask.left is None else k.min(mask.first_key(k, first_query) // t.tile, tiles),
            part,
        )

    @classmethod
    def entered(cls, k: KernelBuilder, config: KernelConfig, given: Arguments) -> Cta:
        """The same; a CTA ends here if its rows are behind those of its sequence, which is shorter
        than the longest.
        """
        cta = cls.of(k, config, given)
        if config.features.varlen:
            with k.only_if(cta.first_row >= cta.O.rows):
                k.ret()
        return cta

    def writes_lse(self, where: Value) -> Value:
        """Whether a thread for which `where` holds writes the LSE of its row: in one slice."""
        return where if self.slice is None else where & (self.slice.number == 0)

    def query(self, row: Value) -> Value:
        """The query of one of the CTA's rows."""
        return row if self.packing is None else self.packing.query(row)

    @property
    def packs_positions(self) -> bool:
        """Whether what a row sees depends on a query that is not the row itself."""
        return self.packing is not None and self.mask.has_positions

    def sinks(
        self, k: KernelBuilder, lane: Value, rows: Sequence[int], first_row: Callable[[], Value]
    ) -> list[Sink]:
        """What a softmax begins with: once for all rows, or if they are of several heads for each.
        They are counted from the first, which is only asked for then. `lane` is as for
        `sink_terms`.
        """
        if not isinstance(self.sink, PackedNumbers):
            return [sink_terms(k, self.sink, lane)]
        first = first_row()
        logits = [self.sink.of_row(k, first + row) for row in rows]
        return [sink_terms(k, logit * LOG2E, lane) for logit in logits]

    def hides_keys(self, first_key: Value) -> Value:
        """Whether a row of the CTA does not see, by its position, a key of the tile that begins
        with this one.
        """
        behind = first_key + (self.tile - 1) > self.all_see
        return behind if self.all_see_from is None else behind | (first_key < self.all_see_from)

    def whole_tiles(self, k: KernelBuilder) -> tuple[Value, Value | None]:
        """The tile behind the last, and the first, of those of which all rows of the CTA see all
        keys; None if it is tile 0.
        """
        end = k.min(k.max(self.all_see + 1, 0) // self.tile, self.tiles)
        if self.first_tile is None or self.all_see_from is None:
            return end, None
        behind_first = k.max(end, self.first_tile)
        return end, k.min(k.divide_up(self.all_see_from, self.tile), behind_first)


def _rows(
    k: KernelBuilder, array: Array, batch: Value, head: Value, rows: Value, packing: Packing | None
) -> Matrix:
    """The rows of a head of Q or O; with packing those of the heads that share this one of K."""
    if packing is None:
        return array.head(k, batch, head, rows)
    return array.group(k, batch, head, rows, packing)


@dataclass(frozen=True)
class _Scores:
    """What the scores of one head are made of."""

    k: KernelBuilder
    config: KernelConfig
    given: Arguments
    batch: Value
    head: Value  # of K and V if heads are packed
    packing: Packing | None

    def _plane(self, name: str) -> ScorePlane | None:
        array, given = self.given.operands.get(name), self.given
        if array is None:
            return None
        return array.plane(self.k, self.batch, self.head, given.seq_q, given.seq_k)

    def _of_head(self, name: str) -> Value | None:
        array = self.given.operands.get(name)
        if array is None:
            return None
        return self.k.load(Pointer(array.head(self.k, self.batch, self.head), "global", f32))

    def mask(self) -> Mask:
        """Which keys are seen: bottom-right aligns the last query with the last key, top-left the
        first with the first.
        """
        k, given, causal = self.k, self.given, self.config.causal
        features = self.config.features
        diagonal = None
        if causal or features.windowed or features.alibi:
            aligned = causal != "top_left"
            diagonal = given.seq_k - given.seq_q if aligned else k.mov(0, type=s32)
        left, right = (given.numbers.get(f"window_{side}") for side in ("left", "right"))
        shown, bias = self._plane("mask"), self._plane("bias")
        return Mask(diagonal, bool(causal), left, right, given.seq_k, shown, bias)

    def scoring(self, mask: Mask) -> Scoring | None:
        """How products become scores."""
        if not self.config.features.changes_scores:
            return None
        softcap, slope = self.given.numbers.get("softcap"), self._of_head("alibi_slopes")
        exact = self.config.dtype is F32
        return Scoring(self.k, self.given.scale, mask.diagonal, softcap, slope, mask.bias, exact)

    def dropout(self, head_of_batch: Value) -> Dropout | None:
        """Which weights are kept."""
        numbers = self.given.numbers
        if not self.config.features.dropout:
            return None
        return Dropout(self.k, numbers["dropout_keep"], numbers["dropout_seed"], head_of_batch)

    def sink(self) -> Value | PackedNumbers | None:
        """The score that every row has beside those of its keys."""
        array = self.given.operands.get("sink")
        if self.packing is not None and array is not None:
            first = array.head(self.k, self.batch, self.head * self.packing.group)
            step_bytes = array.strides["heads"] * array.dtype.nbytes
            return PackedNumbers(first, step_bytes, self.packing)
        logit = self._of_head("sink")
        return None if logit is None else logit * LOG2E


@dataclass(frozen=True)
class Thread:
    """Where a thread stands in its CTA (`flash/tiling.py`)."""

    group: Value  # row group; its rows are group + groups * i
    lane: Value  # in the row group
    key_lane: Value  # its keys are key_lane + key_lanes * j
    split: Value  # which part of head_dim it sums over

    @classmethod
    def of(cls, k: KernelBuilder, tiling: Tiling) -> Thread:
        """This thread's place."""
        thread, alternating = k.thread_id(), tiling.interleave
        lane = thread // alternating % tiling.lanes
        group = thread // (alternating * tiling.lanes) * alternating + thread % alternating
        return cls(group, lane, lane % tiling.key_lanes, lane // tiling.key_lanes)
