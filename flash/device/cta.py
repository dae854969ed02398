"""The part of the problem that a CTA of a forward kernel computes: its rows, keys and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flash.device.cta_coordinates import CtaCoordinates, SplitOfKeys, ValueSlice
from flash.device.head_scores import HeadScores
from flash.device.mask import Mask
from flash.device.max_logit import MaxLogits, RowTops
from flash.device.parameters import Array, InCache, Parameters
from flash.device.row_outputs import LogSums, RowOutput
from flash.device.softmax import NO_TERMS, FirstTerms, sink_terms
from flash.device.tiles import Matrix
from flash.families.simt import Tiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import LSE, MAX_LOGIT
from flash.scores.feature import NEG_INF, Applied
from flash.scores.heads import Packing
from flash.scores.scoring import Scoring
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.records import dataclass


@dataclass(frozen=True)
class Cta:
    """The part of the problem that one CTA computes: some query rows of one head, or packed rows of
    all heads that share a head of K and V; if values are wide, only some columns of O.

    Its tiles of keys are `first_tile` to `tiles` - 1; `whole_tiles` gives those whose keys are all
    seen by all rows.
    """

    Q: Matrix
    K: Matrix
    V: Matrix
    O: Matrix
    row_outputs: tuple[RowOutput, ...]  # what is written for each row besides O
    tile: int  # keys of one tile
    packing: Packing | None
    first_row: Value
    mask: Mask
    scoring: Scoring | None  # None where scores are products times a scale
    before_keys: Applied | None  # the feature that gives each row a score before any key
    after_softmax: tuple[Applied, ...]  # the features that change weights
    uses_query: bool  # whether a feature depends on the query of a row
    all_see: Value  # the last key that all rows of the CTA see
    all_see_from: Value | None  # the first key that all rows see; None if it is key 0
    tiles: Value  # end (exclusive) of the tiles that any row sees, or of the split
    first_tile: Value | None  # first tile that any row sees, or of the split; None: 0
    slice: ValueSlice | None  # None if the CTA computes all columns
    part: SplitOfKeys | None  # None if the CTA takes all keys that its rows see
    scale_log2: Value  # softmax_scale in units of log2, times the scale of K if it has one
    batch: Value
    head: Value  # of Q; with packing, of K and V
    kv_head: Value
    kv_sequence: Value  # of K and V; `batch` but in a cache with an index
    queries_from: Value | None  # of packed sequences the first row of this one in Q and O, s32
    keys_from: Value | None  # the first row of this sequence in K and V, s32; None: 0
    in_cache: InCache | None  # where the keys are, if they are in a cache
    queries: Value  # of this item of the batch, s32
    token_scales: tuple[Matrix, Matrix] | None  # scales of the rows of K and of V, if each has its own
    max_logits: MaxLogits | None  # where the largest scores of heads are written

    @classmethod
    @marked("cta: part of a CTA")
    def of(cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters) -> Cta:
        """The part of the problem that this CTA computes: its rows, head, keys and columns."""
        k.note("which query rows of which head")
        t = config.tiling
        packing = Packing(parameters.group) if config.packed else None
        rows = parameters.longest_q if packing is None else parameters.longest_q * packing.group
        heads = parameters.heads if packing is None else parameters.heads // packing.group
        at = CtaCoordinates.of(k, config, parameters, k.divide_up(rows, t.block_q))
        head_of_batch, part, slice = at.head_of_batch, at.part, at.slice
        first_row = at.nth_block * t.block_q
        batch, head = head_of_batch // heads, head_of_batch % heads
        kv_head = head // parameters.group if packing is None else head
        every_row, of_head, varlen = parameters.seq_q, head_of_batch, config.features.varlen
        parameters = parameters.of_item(k, config.features, batch, kv_head)
        if varlen:
            rows, of_head = _of_sequence(k, parameters, head, packing)
        scores = HeadScores.of(k, config, parameters, (batch, head, head_of_batch), packing)
        mask = scores.mask()
        last_row = k.min(first_row + (t.block_q - 1), rows - 1)
        Q, K, V, O = (
            _rows(k, parameters.Q, batch, head, rows, packing),
            parameters.K.head(k, batch, kv_head, parameters.seq_k),
            parameters.V.head(k, batch, kv_head, parameters.seq_k),
            _rows(k, parameters.O, batch, head, rows, packing),
        )
        if slice is not None:
            V = slice.part(k, V, config.element_of("V").nbytes)
            O = slice.part(k, O, config.output.nbytes)
        if part is not None:
            O = part.partial_output(k, O, parameters.O)
        first_query, last_query = first_row, last_row
        if packing is not None and (mask.reach.is_limited or mask.narrows):
            first_query, last_query = packing.query(first_row), packing.query(last_row)
        if varlen and config.features.page_size:
            end = mask.reach.end_key(k, last_query)  # rows after it are not copied
            K, V = replace(K, rows=end), replace(V, rows=end)
        all_see = mask.last_for_all(k, first_query)
        tiles = mask.reach.end_tile(k, last_query, t.tile)
        features = scores.features()
        scoring = None
        if config.features.changes_scores:
            scoring = Scoring(k, parameters.scale, [applied for _, applied in features])
        before_keys = next((a for feature, a in features if feature.begins_softmax), None)
        after_softmax = tuple(a for feature, a in features if feature.changes_weights)
        all_see_from = first_tile = None
        if mask.reach.left is not None:
            all_see_from = mask.reach.first_key(k, last_query)
            first_tile = k.min(mask.reach.first_key(k, first_query) // t.tile, tiles)
        mask = mask.of_queries(first_query, last_query)
        first_tile, tiles = mask.narrowed(k, first_tile, tiles, t.tile)
        if part is not None:
            first_tile, tiles = part.tiles(k, first_tile, tiles)
        lse, max_logit = (parameters.outputs.get(output.name) for output in (LSE, MAX_LOGIT))
        row_outputs: tuple[RowOutput, ...] = ()
        if lse is not None:
            row_outputs = (LogSums(lse, of_head, every_row, packing, None if varlen else rows, part),)
        return cls(
            Q,
            K,
            V,
            O,
            row_outputs,
            t.tile,
            packing,
            first_row,
            mask,
            scoring,
            before_keys,
            after_softmax,
            any(feature.uses_query for feature, _ in features),
            all_see,
            all_see_from,
            tiles,
            first_tile,
            slice,
            part,
            parameters.scale_log2,
            batch,
            head,
            kv_head,
            batch if parameters.K.sequence is None else parameters.K.sequence,
            parameters.Q.begin,
            parameters.K.begin,
            parameters.in_cache,
            parameters.seq_q,
            parameters.token_scales(k, config.features, batch, kv_head),
            None if max_logit is None else MaxLogits(max_logit, head_of_batch, packing),
        )

    @classmethod
    @marked("cta: rows behind the sequence")
    def entered(cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters) -> Cta:
        """The part of the problem that this CTA computes, as by `of`. With varlen, code is emitted that ends
        CTAs whose rows lie after their sequence: the grid is sized for the longest sequence.
        """
        cta = cls.of(k, config, parameters)
        if config.features.varlen:
            with k.only_if(cta.first_row >= cta.O.rows):
                k.ret()
        return cta

    @marked("cta: writer of LSE")
    def writes_row(self, where: Value) -> Value:
        """Whether a thread writes the `row_outputs` of its row: if `where` holds and the CTA has the first
        slice of the values.
        """
        return where if self.slice is None else where & (self.slice.number == 0)

    def tops(self, k: KernelBuilder, rows: int, scale: Value | Sequence[Value] | None) -> RowTops | None:
        """The running largest scores of a lane's rows (`RowTops`); None if the kernel does not write them."""
        return None if self.max_logits is None else RowTops(k, rows, scale)

    def store_tops(
        self,
        k: KernelBuilder,
        tops: RowTops | None,
        rows: tuple[Value, Sequence[int]],
        distances: Sequence[int],
    ) -> None:
        """Write the largest scores, if the kernel writes them. `rows` are the first row of the lane, and all
        its rows counted from that; `distances` are the butterfly distances to the lanes that share them.
        """
        if self.max_logits is None or tops is None:
            return
        first, down_from_first = rows
        of_lane = [(row, row < self.O.rows) for row in [first + down for down in down_from_first]]
        self.max_logits.store(k, tops, of_lane, distances, self.writes_row)

    def in_queries(self, k: KernelBuilder, array: Array) -> Matrix:
        """The CTA's rows, as a `Matrix`, of an array laid out by queries as Q is, such as its scales."""
        placed = replace(array, begin=self.queries_from)
        return _rows(k, placed, self.batch, self.head, self.O.rows, self.packing)

    def in_keys(self, k: KernelBuilder, array: Array, together: int = 1) -> Matrix:
        """The rows of the CTA's head of K in an array whose rows lie as those of K do, or in one with a row
        for each `together` rows of K, which divide a page; of packed keys those of all sequences.
        """
        pages = None if self.in_cache is None else self.in_cache.pages
        pages = None if pages is None else pages.of_blocks(together)
        placed = replace(array, pages=pages, sequence=self.kv_sequence)
        return placed.head(k, self.batch, self.kv_head, self.K.rows)

    def query(self, row: Value) -> Value:
        """The index of the query that one of the CTA's rows has, s32."""
        return row if self.packing is None else self.packing.query(row)

    @property
    def packs_queries(self) -> bool:
        """Whether rows are packed and their scores depend on the query, which is not the row index
        then.
        """
        return self.packing is not None and (self.mask.reach.is_limited or self.uses_query)

    def sinks(
        self, k: KernelBuilder, lane: Value, rows: Sequence[int], first_row: Callable[[], Value]
    ) -> list[FirstTerms]:
        """The initial maximum and sum of the softmax: one pair for all rows, or one for each of
        `rows` if they belong to several heads. `rows` are counted from `first_row()`, which is only
        called in the second case. `lane` is as for `sink_terms`.
        """
        if self.before_keys is None:
            return [NO_TERMS]
        of_rows = None
        if self.packing is not None:
            first = first_row()
            of_rows = [first + row for row in rows]
        logits = self.before_keys.first_logits(of_rows)
        return [sink_terms(k, self._of_one_part(k, logit), lane) for logit in logits]

    def weighed(self, inverse: Value) -> Value:
        """`inverse`, 1 / a row's sum of weights, times the factors of the features that change weights."""
        for feature in self.after_softmax:
            if (factor := feature.output_factor) is not None:
                inverse = inverse * factor
        return inverse

    def _of_one_part(self, k: KernelBuilder, logit: Value) -> Value:
        """`logit` in the first split of the keys and -inf in the others, so that a sink counts once."""
        return logit if self.part is None else k.selp(logit, NEG_INF, self.part.number == 0)

    @marked("cta: tiles of some rows")
    def tiles_of_rows(self, k: KernelBuilder, first: Value, rows: int) -> tuple[Value | int, Value]:
        """(first, end) of the CTA's tiles of which `rows` of its rows, from `first` (s32) on, see a key by
        position, `end` exclusive: one tile at least, and all that the whole CTA sees.
        """
        first_row, reach = self.first_row + first, self.mask.reach
        last_row = k.min(first_row + (rows - 1), self.O.rows - 1)
        seen = k.max(reach.end_tile(k, self.query(last_row), self.tile), self.whole_tiles(k)[0] + 1)
        if self.first_tile is None:
            return 0, k.min(seen, self.tiles)
        end = k.min(k.max(seen, self.first_tile + 1), self.tiles)
        if reach.left is None:
            return self.first_tile, end
        # A warpgroup without rows takes the tiles of the last row, about which the CTA's bounds are, too.
        nearest = reach.first_key(k, self.query(k.min(first_row, last_row))) // self.tile
        return k.max(k.min(nearest, end - 1), self.first_tile), end

    @marked("cta: tiles with hidden keys")
    def hides_keys(self, first_key: Value) -> Value:
        """Whether, by position, any row of the CTA does not see some key of the tile that begins
        with `first_key`.
        """
        after = first_key + (self.tile - 1) > self.all_see
        return after if self.all_see_from is None else after | (first_key < self.all_see_from)

    def first_key_of(self, k: KernelBuilder, tile: Value | int) -> Value | int:
        """The first key of a tile. No tile of a part of the keys begins before the first key or beyond the
        end, which is stated for the proof.
        """
        first = tile * self.tile
        if self.part is None or isinstance(first, int):
            return first
        return k.max(k.min(first, self.mask.reach.seq_k), 0)

    def whole_tiles(self, k: KernelBuilder) -> tuple[Value, Value | None]:
        """(end, first) of the tiles whose keys are all seen by all rows of the CTA, `end`
        exclusive; `first` is None if it is the CTA's first tile.
        """
        end = k.min(k.max(self.all_see + 1, 0) // self.tile, self.tiles)
        if self.first_tile is None or self.all_see_from is None:
            return end if self.first_tile is None else k.max(end, self.first_tile), None
        after_first = k.max(end, self.first_tile)
        begin = k.min(k.divide_up(self.all_see_from, self.tile), after_first)
        # A split may begin after the first key that all rows see.
        return end, begin if self.part is None else k.max(begin, self.first_tile)


def _of_sequence(
    k: KernelBuilder, parameters: Parameters, head: Value, packing: Packing | None
) -> tuple[Value, Value]:
    """The rows of a head of one packed sequence, and the head of Q; with packed heads, the rows of
    all heads that share `head`, a head of K and V, and the first of these heads.
    """
    if packing is None:
        return parameters.seq_q, head
    # A length is never negative: the maximum states it for the proof. Queries beyond the most are
    # left out anyway; with them the product might leave s32.
    rows = k.min(k.max(parameters.seq_q, 0), parameters.longest_q) * packing.group
    return rows, head * packing.group


def _rows(
    k: KernelBuilder, array: Array, batch: Value, head: Value, rows: Value, packing: Packing | None
) -> Matrix:
    """The rows of a head of Q or O; with packing, of all heads that share `head`, a head of K and
    V.
    """
    if packing is None:
        return array.head(k, batch, head, rows)
    return array.group(k, batch, head, rows, packing)


@dataclass(frozen=True)
class Thread:
    """A thread's coordinates in its CTA (`flash/families/simt.py`)."""

    group: Value  # row group; its rows are group + groups * i
    lane: Value  # index in the row group
    key_lane: Value  # its keys are key_lane + key_lanes * j
    split: Value  # index of the part of head_dim that it sums over

    @classmethod
    def of(cls, k: KernelBuilder, tiling: Tiling) -> Thread:
        """The coordinates of this thread in its CTA: its row group, and its lane among the keys."""
        thread, alternating = k.thread_id(), tiling.interleave
        lane = thread // alternating % tiling.lanes
        group = thread // (alternating * tiling.lanes) * alternating + thread % alternating
        return cls(group, lane, lane % tiling.key_lanes, lane // tiling.key_lanes)
