"""Which part of the problem a CTA of a forward kernel computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flash.device.cta_order import last_first
from flash.device.dropout import Dropout
from flash.device.grouped_heads import PackedNumbers, Packing
from flash.device.mask import NEG_INF, Mask
from flash.device.parameters import Arguments, Array, InCache
from flash.device.score_plane import ScorePlane
from flash.device.scoring import Scoring
from flash.device.softmax import LOG2E, NO_SINK, Sink, sink_terms
from flash.device.tiles import Matrix
from flash.problem.config import KernelConfig
from flash.problem.dtypes import F32, F32_BYTES
from flash.problem.features import LAST_KEYS
from flash.problem.simt_tiling import Tiling, ValueSlices
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import f32, s32, s64, u32, u64


@dataclass(frozen=True)
class SplitOfKeys:
    """The part of the keys that a CTA takes, where several share those of a block of queries
    (flash-decoding); both s32.
    """

    number: Value
    splits: Value

    def tiles(self, k: KernelBuilder, first: Value | None, end: Value) -> tuple[Value, Value]:
        """Of the tiles from `first` (None: 0) on before `end` those of this part, in the same way:
        the parts differ by at most one tile, and the first ones are the longer.
        """
        count = end if first is None else end - first
        size = count // self.splits
        longer = count - size * self.splits
        begin, behind = (n * size + k.min(n, longer) for n in (self.number, self.number + 1))
        return (begin, behind) if first is None else (first + begin, first + behind)

    def place(self, k: KernelBuilder, matrix: Matrix, O: Array) -> Matrix:
        """Where the part of a block of O goes."""
        elements = k.cvt(self.number, dtype=s64) * O.strides["split"]
        return replace(matrix, first=matrix.first + (elements * O.nbytes).as_(u64))


@dataclass(frozen=True)
class LogSums:
    """Where the log-sum-exp of a CTA's rows goes: `rows` f32 for each head. With packing `head` is
    that of K and V, whose heads of Q have `all_rows` together. Of each row all splits are
    neighbours.
    """

    first: Pointer
    head: Value
    rows: Value
    packing: Packing | None
    all_rows: Value
    part: SplitOfKeys | None

    def at(self, k: KernelBuilder, row: Value) -> Pointer:
        """The place of a row."""
        if self.packing is None:
            place = k.mad_wide(self.head, self.rows, k.cvt(row, dtype=s64))
        else:
            query = k.cvt(self.packing.query(row), dtype=s64)
            place = k.mad_wide(self.packing.head(row), self.rows, query)
            place = k.mad_wide(self.head, self.all_rows, place)
        if self.part is not None:
            place = place * k.cvt(self.part.splits, dtype=s64) + k.cvt(self.part.number, dtype=s64)
        return self.first.plus((place * F32_BYTES).as_(u64))


@dataclass(frozen=True)
class ValueSlice:
    """The columns of V and O that one CTA computes, of several slices
    (`flash/problem/simt_tiling.py`).
    """

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
class _Place:
    """A CTA's place in the grid, which is flat: slices of values fastest, whose CTAs read the same
    queries and keys, then splits of the keys, then query blocks, then heads (those of K and V if
    rows are packed), then batches; with causality in the order of `flash/device/cta_order.py`.
    """

    slice: ValueSlice | None
    part: SplitOfKeys | None
    head_of_batch: Value
    nth_block: Value

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, given: Arguments, blocks: Value) -> _Place:
        """This CTA's, where there are so many blocks of rows for each head."""
        t, splits = config.tiling, given.numbers.get("splits")
        rest, slice, part = k.signed(k.block_id()), None, None
        if t.value_slices > 1:
            slice = ValueSlice.of(k, t.slices, rest % t.value_slices)
            rest = rest // t.value_slices
        if splits is not None:
            part = SplitOfKeys(rest % k.signed(splits), k.signed(splits))
            rest = rest // k.signed(splits)
        if not config.takes_turns:
            return cls(slice, part, rest // blocks, rest % blocks)
        ctas = k.special("nctaid.x")
        if t.value_slices > 1:
            ctas = ctas // t.value_slices
        section = given.numbers["section"]
        return cls(slice, part, *last_first(k, rest.as_(u32), blocks.as_(u32), ctas, section))


@dataclass(frozen=True)
class Cta:
    """The part of the problem that one CTA computes: some query rows of one head, or packed ones
    of all heads that share a head of K and V; and of wide values some columns.

    Its tiles of keys are those from `first_tile` on before `tiles`; `whole_tiles` are those of
    which all rows see all keys.
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
    tiles: Value  # the tile behind the last that any of the rows sees, or of the part
    first_tile: Value | None  # the first that any sees, or of the part; None if it is tile 0
    slice: ValueSlice | None  # None if the CTA computes all columns
    part: SplitOfKeys | None  # None if it takes all keys that its rows see
    scale_log2: Value  # softmax_scale in units of log2, times that of K
    batch: Value
    kv_head: Value
    in_cache: InCache | None  # where its keys are, if they are in a cache

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, given: Arguments) -> Cta:
        """This CTA's part."""
        k.note("which query rows of which head")
        t = config.tiling
        packing = Packing(given.group) if config.packed else None
        rows = given.longest_q if packing is None else given.longest_q * packing.group
        heads = given.heads if packing is None else given.heads // packing.group
        place = _Place.of(k, config, given, k.divide_up(rows, t.block_q))
        head_of_batch, part, slice = place.head_of_batch, place.part, place.slice
        first_row = place.nth_block * t.block_q
        batch, head = head_of_batch // heads, head_of_batch % heads
        kv_head = head // given.group if packing is None else head
        every_row, of_head = given.seq_q, head_of_batch
        if config.features.varlen:
            given = given.of_sequence(k, batch)
            rows, of_head = given.seq_q, head
        elif config.features.cached:
            given = given.of_batch(k, batch, config.features.page_size).of_kv_head(k, kv_head)
        scores = _Scores(k, config, given, batch, head, packing)
        mask = scores.mask()
        last_row = k.min(first_row + (t.block_q - 1), rows - 1)
        Q, K, V, O = (
            _rows(k, given.Q, batch, head, rows, packing),
            given.K.head(k, batch, kv_head, given.seq_k),
            given.V.head(k, batch, kv_head, given.seq_k),
            _rows(k, given.O, batch, head, rows, packing),
        )
        if slice is not None:
            V = slice.part(k, V, config.element_of("V").nbytes)
            O = slice.part(k, O, config.output.nbytes)
        if part is not None:
            O = part.place(k, O, given.O)
        first_query, last_query = first_row, last_row
        if packing is not None and mask.has_positions:
            first_query, last_query = packing.query(first_row), packing.query(last_row)
        all_see = mask.last_for_all(k, first_query)
        tiles = mask.end_tile(k, last_query, t.tile)
        scoring, sink = scores.scoring(mask), scores.sink()
        dropout = scores.dropout(head_of_batch)
        all_see_from = first_tile = None
        if mask.left is not None:
            all_see_from = mask.first_key(k, last_query)
            first_tile = k.min(mask.first_key(k, first_query) // t.tile, tiles)
        if part is not None:
            first_tile, tiles = part.tiles(k, first_tile, tiles)
        LSE = None
        if given.LSE is not None:
            LSE = LogSums(given.LSE, of_head, every_row, packing, rows, part)
        return cls(
            Q, K, V, O, LSE, t.tile, packing, first_row, mask, scoring, sink, dropout, all_see,
            all_see_from, tiles, first_tile, slice, part, given.scale_log2, batch, kv_head,
            given.in_cache,
        )  # fmt: skip

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
    def packs_queries(self) -> bool:
        """Whether scores of a row depend on its query, and that is not the row itself."""
        has_slope = self.scoring is not None and self.scoring.slope is not None
        asks = self.mask.has_positions or self.mask.has_planes or has_slope
        return self.packing is not None and (asks or self.dropout is not None)

    def sinks(
        self, k: KernelBuilder, lane: Value, rows: Sequence[int], first_row: Callable[[], Value]
    ) -> list[Sink]:
        """What a softmax begins with: once for all rows, or if they are of several heads for each.
        They are counted from the first, which is only asked for then. `lane` is as for
        `sink_terms`.
        """
        if self.sink is None:
            return [NO_SINK]
        if not isinstance(self.sink, PackedNumbers):
            return [sink_terms(k, self._of_one_part(k, self.sink), lane)]
        first = first_row()
        logits = [self.sink.of_row(k, first + row) for row in rows]
        return [sink_terms(k, self._of_one_part(k, logit * LOG2E), lane) for logit in logits]

    def _of_one_part(self, k: KernelBuilder, logit: Value) -> Value:
        """What the first part of the keys has, and no other."""
        return logit if self.part is None else k.selp(logit, NEG_INF, self.part.number == 0)

    def hides_keys(self, first_key: Value) -> Value:
        """Whether a row of the CTA does not see, by its position, a key of the tile that begins
        with this one.
        """
        behind = first_key + (self.tile - 1) > self.all_see
        return behind if self.all_see_from is None else behind | (first_key < self.all_see_from)

    def whole_tiles(self, k: KernelBuilder) -> tuple[Value, Value | None]:
        """The tile behind the last, and the first, of those of which all rows of the CTA see all
        keys; None if it is the CTA's first.
        """
        end = k.min(k.max(self.all_see + 1, 0) // self.tile, self.tiles)
        if self.first_tile is None or self.all_see_from is None:
            return end if self.first_tile is None else k.max(end, self.first_tile), None
        behind_first = k.max(end, self.first_tile)
        begin = k.min(k.divide_up(self.all_see_from, self.tile), behind_first)
        # A part of the keys may begin behind the first that all rows see.
        return end, begin if self.part is None else k.max(begin, self.first_tile)


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
        columns, begin = given.seq_k, None
        if LAST_KEYS in array.strides:
            columns = given.numbers[LAST_KEYS].as_(s32)
            begin = given.seq_k - columns
        place = self.k, self.batch, self.head, given.seq_q, columns, begin
        if self.packing is None:
            return array.plane(*place)
        return array.packed_plane(*place, self.packing)

    def _of_head(self, name: str) -> Value | PackedNumbers | None:
        array = self.given.operands.get(name)
        if array is None:
            return None
        if self.packing is None:
            return self.k.load(Pointer(array.head(self.k, self.batch, self.head), "global", f32))
        first = array.head(self.k, self.batch, self.head * self.packing.group)
        step_bytes = array.strides["heads"] * array.dtype.nbytes
        return PackedNumbers(first, step_bytes, self.packing)

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
        if self.packing is not None:
            head_of_batch = head_of_batch * self.packing.group
        return Dropout(self.k, numbers["dropout_keep"], numbers["dropout_seed"], head_of_batch)

    def sink(self) -> Value | PackedNumbers | None:
        """The score that every row has beside those of its keys."""
        logit = self._of_head("sink")
        return logit * LOG2E if isinstance(logit, Value) else logit


@dataclass(frozen=True)
class Thread:
    """Where a thread stands in its CTA (`flash/problem/simt_tiling.py`)."""

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
