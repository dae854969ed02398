"""The parameters of a forward kernel: its arrays, with their strides, and its scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from flash.device.grouped_heads import PackedMatrix
from flash.device.sequence_span import Span
from flash.device.tiles import Matrix, Strip, access_width
from flash.operands.declared import Operand
from flash.operands.dtypes import F32_BYTES, DType
from flash.problem.arrays import matrices
from flash.problem.config import KernelConfig
from flash.problem.features import Features
from flash.scores.feature import LOG2E
from flash.scores.heads import Packing
from flash.scores.places import PackedPlane, ScorePlane
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.dsl.division import quotient, remainder
from ptxgen.dsl.matrices.lanes import of_segment
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, s64, u32, u64


@dataclass(frozen=True)
class Pages:
    """Where the rows of one sequence of K and V are: the address of the number of its page n is
    `entries` + n * `entry_bytes`. With `shared_lookups` the threads that copy one row divide the reads
    of the table among themselves and exchange what they have read.

    Quotients and remainders by the size of a page are shifts or products (`ptxgen/dsl/division.py`).
    """

    entries: Value  # u64
    entry_bytes: Value  # s64
    page_size: int
    last_page: Value  # the last page of K and V, u32
    last_row: Value  # the last row of the sequence, u32
    shared_lookups: bool

    @classmethod
    def of(
        cls,
        k: KernelBuilder,
        table: ScoreArray,
        sequence: Value,
        page_size: int,
        pages: Value,
        rows: Value,
        *,
        shared_lookups: bool,
    ) -> Pages:
        """The pages of a sequence of `rows` rows, where K and V have `pages` pages; the sequence
        has room for at least one row.
        """
        last_row = (k.max(rows, 1) - 1).as_(u32)
        _, step = table.strides.values()
        entry_bytes = step * table.dtype.nbytes
        return cls(table.row(k, sequence), entry_bytes, page_size, pages - 1, last_row, shared_lookups)

    def page(self, k: KernelBuilder, row: Value) -> Value:
        """The page of a row, u32. A row behind the last gives the page of the last row, so that no
        table entry behind that is read.
        """
        return self.existing(k, self._entry(k, row))

    def entry(self, k: KernelBuilder, n: Value) -> Value:
        """What the table says of page n (u32) of the sequence, s32, which may be anything. Nobody
        writes the table while the kernel runs.
        """
        step = k.cvt(n, dtype=s64) * self.entry_bytes
        return k.ld_nc(Pointer(self.entries + step.as_(u64), "global", s32), type=s32)

    def _entry(self, k: KernelBuilder, row: Value) -> Value:
        """What the table says of the page of a row, which may be anything."""
        return self.entry(k, _quotient(k.min(row.as_(u32), self.last_row), self.page_size))

    def existing(self, k: KernelBuilder, page: Value) -> Value:
        """A page number of the table, s32, as one of the pages that there are, u32."""
        return k.min(page.as_(u32), self.last_page)

    def shared(
        self, k: KernelBuilder, row: Value, step: int, count: int, nth: Value, lanes: int
    ) -> Callable[[int], Value]:
        """A function of n that gives the page of row `row` + n * `step`, u32, for n below `count`, a
        power of two. The thread is the `nth` (u32) of `lanes` neighbouring ones, a power of two,
        that have this row: each reads one entry in `lanes`, and the others get it from there.
        """
        among = min(lanes, count)
        mine = row + k.signed(nth & among - 1) * step
        entries = [self._entry(k, mine + n * step if n else mine) for n in range(0, count, among)]
        return lambda n: self.existing(k, of_segment(k, entries[n // among], n % among, lanes))

    def boxes(self, k: KernelBuilder, row: Value, rows: int, count: int) -> list[tuple[Value, Value]]:
        """The page, and the index there, of the first row of each of `count` boxes of `rows` rows, which
        divide a page, from row `row` on, a multiple of `rows`; s32. A box behind the last row is in the
        page of that.
        """
        firsts = [row + n * rows if n else row for n in range(count)]
        pages = [self.page(k, first) for first in firsts]
        places = [k.signed(first.as_(u32) % self.page_size) for first in firsts]
        return list(zip(pages, places, strict=True))

    def place(self, k: KernelBuilder, row: Value) -> Value:
        """The index of a row in its page, u32. A row behind the last gives the index of the last
        row.
        """
        return _remainder(k.min(row.as_(u32), self.last_row), self.page_size)


def _quotient(value: Value, by: int) -> Value:
    """value // by, for a u32."""
    found = quotient(value, by)
    assert found is not None  # `by` fits u32
    return found


def _remainder(value: Value, by: int) -> Value:
    """value % by, for a u32."""
    found = remainder(value, by)
    assert found is not None  # `by` fits u32
    return found


@dataclass(frozen=True)
class InCache:
    """Where the keys of one item of a batch are: the first `rows` rows of a sequence of K and V,
    except `padding` rows at the beginning; all s32. Whatever lengths and indices the caller's
    arrays hold, no row is outside K and V.
    """

    rows: Value
    padding: Value | None
    sequence: Value
    pages: Pages | None

    @classmethod
    def of(
        cls,
        k: KernelBuilder,
        operands: Mapping[str, ScoreArray],
        numbers: Mapping[str, Value],
        capacity: Value,
        batch: Value,
        page_size: int,
        *,
        packed: bool = False,
    ) -> InCache:
        """The keys of item `batch`; a sequence has room for `capacity` rows, s32. `packed`: whether
        the queries of all sequences are packed.
        """
        used, padded, index, table = (
            operands.get(name) for name in ("seqused_k", "leftpad_k", "cache_batch_idx", "block_table")
        )
        rows, padding, sequence = capacity, None, batch
        if used is not None:
            rows = k.min(used.of_sequence(k, batch).as_(u32), capacity.as_(u32)).as_(s32)
        if padded is not None:
            padding = k.min(padded.of_sequence(k, batch).as_(u32), rows.as_(u32)).as_(s32)
        if index is not None:
            last = numbers["kv_batch"] - 1
            sequence = k.min(index.of_sequence(k, batch).as_(u32), last).as_(s32)
        pages = None
        if table is not None:
            pages = Pages.of(k, table, sequence, page_size, numbers["pages"], rows, shared_lookups=packed)
        return cls(rows, padding, sequence, pages)

    def head(self, k: KernelBuilder, array: Array, head: Value) -> Matrix:
        """The rows of a head of K or V, including padding."""
        placed = replace(array, pages=self.pages, sequence=self.sequence)
        return placed.head(k, self.sequence, head, self.rows)


@dataclass(frozen=True, kw_only=True)
class PagedMatrix(Matrix):
    """The rows of one sequence of one head of K or V, from row `begin` on; `first` points to the
    head's first row in page 0.
    """

    page_bytes: Value
    pages: Pages
    begin: Value | None

    def offset(self, k: KernelBuilder, index: Value) -> Value:
        """The offset of a row from `first`, in bytes, u64."""
        row = index if self.begin is None else index + self.begin
        return self._offset(k, self.pages.page(k, row), row)

    def _offset(self, k: KernelBuilder, page: Value, row: Value) -> Value:
        return self._across(k, page) + self._down(k, self.pages.place(k, row))

    def _across(self, k: KernelBuilder, page: Value) -> Value:
        """The offset of a page, in bytes, u64."""
        return (k.cvt(page, dtype=s64) * self.page_bytes).as_(u64)

    def _down(self, k: KernelBuilder, place: Value) -> Value:
        """The offset of row `place`, u32, of a page, in bytes, u64."""
        return (k.cvt(place, dtype=s64) * self.row_bytes).as_(u64)

    def further(self, k: KernelBuilder, strip: Strip) -> Callable[[int], Value]:
        """See `Matrix.further`. What all rows of one page have in common is computed once, if it is
        known which rows these are.
        """
        apart, rows, lanes = strip.apart, strip.rows, strip.lanes
        together = self._together(apart, rows)
        page_of = None
        if self.pages.shared_lookups and min(lanes, rows // apart) > 1 and not rows % apart:
            step = together or apart
            page_of = self.pages.shared(k, strip.row, step, rows // step, strip.nth, lanes)
        if together is not None:
            return self._in_groups(k, strip, together, page_of)
        if page_of is None:
            return super().further(k, strip)
        of_row, within = page_of, strip.within()
        return lambda down: self.first + self._offset(k, of_row(down // apart), strip.row + down) + within

    def _in_groups(
        self, k: KernelBuilder, strip: Strip, together: int, page_of: Callable[[int], Value] | None
    ) -> Callable[[int], Value]:
        """`further` where each `together` rows, which begin at a multiple of that, are in one page;
        `page_of` gives the page of the n-th of them.
        """
        pages, in_page = self.pages, self.pages.page_size // together
        first = (strip.row - k.signed(strip.own)).as_(u32)  # the first row of the tile
        group, last = _quotient(first, together), _quotient(pages.last_row, together)
        turn_bytes = (self.row_bytes * strip.apart).as_(u64)
        mine = self.first + self._down(k, strip.own) + strip.within()
        found: dict[int, Value] = {}

        def begin(n: int) -> Value:
            """What a thread copies first of the n-th `together` rows; behind the last row of the
            sequence, of those with the last row.
            """
            nth = k.min(group + n if n else group, last)
            page = page_of(n) if page_of else pages.existing(k, pages.entry(k, _quotient(nth, in_page)))
            at = mine + self._across(k, page)
            return at if in_page == 1 else at + self._down(k, _remainder(nth, in_page) * together)

        def find(down: int) -> Value:
            if down not in found:
                n, behind = divmod(down, together)
                found[down] = find(down - strip.apart) + turn_bytes if behind else begin(n)
            return found[down]

        return find

    def lookups(self, apart: int, rows: int) -> int:
        """See `Matrix.lookups`."""
        return rows // (self._together(apart, rows) or apart)

    def _together(self, apart: int, rows: int) -> int | None:
        """How many rows, a multiple of `apart`, are certain to be in one page with the first of
        them, in a tile of `rows` rows; None if there is no such multiple.
        """
        together = math.gcd(self.pages.page_size, rows)
        return None if self.begin is not None or together % apart else together

    @property
    def is_even(self) -> bool:
        """False: a row may be the last of its page."""
        return False


@dataclass(frozen=True)
class Array:
    """Q, K, V or O as the kernel gets it: batch by head by row by `columns` elements; of packed
    sequences (varlen) head by row by columns.
    """

    first: Value
    strides: dict[str, Value]  # by axis (batch, head, row, ...), in elements, s64
    columns: int  # columns that a CTA computes with
    width: int  # columns that one access may take
    nbytes: int  # bytes of an element
    begin: Value | None = None  # the first row of the sequence; None is row 0
    pages: Pages | None = None  # where rows are, if they are in pages
    sequence: Value | None = None  # index of the sequence in K and V; None is the batch index

    def head(self, k: KernelBuilder, batch: Value, head: Value, rows: Value) -> Matrix:
        """The rows of one head. Offsets are 64 bits wide."""
        sequence = batch if self.sequence is None else self.sequence
        steps = [("batch", sequence)] if "batch" in self.strides else []
        steps += [] if self.begin is None or self.pages is not None else [("row", self.begin)]
        steps.append(("head", head))
        elements = [k.cvt(index, dtype=s64) * self.strides[step] for step, index in steps]
        first = self.first + (sum(elements[1:], elements[0]) * self.nbytes).as_(u64)
        row_bytes = self.strides["row"] * self.nbytes
        if self.pages is None:
            return Matrix(first, row_bytes, rows, self.columns, self.width)
        page_bytes = self.strides["page"] * self.nbytes
        return PagedMatrix(
            first,
            row_bytes,
            rows,
            self.columns,
            self.width,
            page_bytes=page_bytes,
            pages=self.pages,
            begin=self.begin,
        )

    def group(
        self, k: KernelBuilder, batch: Value, kv_head: Value, rows: Value, packing: Packing
    ) -> PackedMatrix:
        """The packed rows of all heads that share `kv_head`, a head of K and V."""
        one = self.head(k, batch, kv_head * packing.group, rows)
        head_bytes = self.strides["head"] * self.nbytes
        return PackedMatrix(
            one.first, one.row_bytes, rows, self.columns, self.width, head_bytes=head_bytes, packing=packing
        )


@dataclass(frozen=True)
class ScoreArray:
    """An operand of `flash/problem/features.py` as the kernel gets it."""

    first: Value
    strides: dict[str, Value]  # by axis, in elements, s64
    dtype: DType

    @classmethod
    def declare(cls, k: KernelBuilder, operand: Operand, at: Pointer) -> ScoreArray:
        """Declare and load the strides."""
        return cls(at.value, stride_parameters(k, operand), operand.dtype)

    def of_sequence(self, k: KernelBuilder, *indices: Value) -> Value:
        """The element with these indices, such as the length of a sequence. Nobody writes the array
        while the kernel runs, so that all threads of a CTA read the same value.
        """
        at = self.place(k, *indices)
        return k.ld_nc(Pointer(at, "global", self.dtype.scalar), type=self.dtype.scalar)

    def row(self, k: KernelBuilder, index: Value) -> Value:
        """The address of the first of the elements whose first index is `index`, u64."""
        step = next(iter(self.strides.values()))
        return self.first + (k.cvt(index, dtype=s64) * step * self.dtype.nbytes).as_(u64)

    def place(self, k: KernelBuilder, *indices: Value) -> Value:
        """The address of the element, or row of elements, with these indices, u64."""
        steps = zip(indices, self.strides.values(), strict=True)
        elements = [k.cvt(index, dtype=s64) * stride for index, stride in steps]
        return self.first + (sum(elements[1:], elements[0]) * self.dtype.nbytes).as_(u64)

    def head(self, k: KernelBuilder, batch: Value, head: Value) -> Value:
        """The address of the first element of one head."""
        elements = k.cvt(batch, dtype=s64) * self.strides["batch"]
        elements = elements + k.cvt(head, dtype=s64) * self.strides["heads"]
        return self.first + (elements * self.dtype.nbytes).as_(u64)

    def plane(
        self, k: KernelBuilder, batch: Value, head: Value, seq_q: Value, columns: Value, begin: Value | None
    ) -> ScorePlane:
        """The elements of one head: one for each of `columns` keys, from `begin` on (None: key 0),
        and, if the operand has an axis of queries, for each query.
        """
        strides = list(self.strides.values())[2:]
        *row, column = [stride * self.dtype.nbytes for stride in strides]
        first = self.head(k, batch, head)
        return ScorePlane(first, row[0] if row else None, column, seq_q, columns, self.dtype.scalar, begin)

    def packed_plane(
        self,
        k: KernelBuilder,
        batch: Value,
        kv_head: Value,
        seq_q: Value,
        columns: Value,
        begin: Value | None,
        packing: Packing,
    ) -> ScorePlane:
        """The elements of all heads that share `kv_head`, a head of K and V, for packed rows."""
        one = self.plane(k, batch, kv_head * packing.group, seq_q, columns, begin)
        head_bytes = self.strides["heads"] * self.dtype.nbytes
        return PackedPlane(
            one.first,
            one.row_bytes,
            one.column_bytes,
            one.queries,
            one.columns,
            one.dtype,
            one.begin,
            head_bytes=head_bytes,
            packing=packing,
        )


def stride_parameters(k: KernelBuilder, array: Operand) -> dict[str, Value]:
    """Declare and load the strides of an array: by axis, in elements, s64."""
    return {step: k.param(name, s64) for step, name in zip(array.step_words, array.strides, strict=True)}


@dataclass(frozen=True)
class Parameters:
    """The kernel's parameters; `flash/contract/forward.py` says what they mean."""

    Q: Array
    K: Array
    V: Array
    O: Array
    LSE: Pointer | None
    seq_q: Value  # s32, as all counts of rows and keys; with varlen, of all sequences
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale: Value  # softmax_scale
    scale_log2: Value  # softmax_scale in units of log2
    numbers: dict[str, Value]  # scalars of `flash/problem/features.py`, by name
    operands: dict[str, ScoreArray]
    in_cache: InCache | None = None  # where the keys of one batch item are

    @classmethod
    def declare(cls, k: KernelBuilder, config: KernelConfig) -> Parameters:
        """Declare and load the parameters, in the order of `flash/contract/forward.py`."""
        t = config.tiling
        computed = dict.fromkeys("QK", t.head_dim) | dict.fromkeys("VO", t.slices.width)
        of_kernel = matrices(config)
        pointers = {array.name: k.pointer(array.name) for array in of_kernel}
        LSE = k.pointer("LSE") if config.return_lse else None
        places = [(operand, k.pointer(operand.name)) for operand in config.features.operands]
        Q, K, V, O = (
            Array(
                pointers[array.name].value,
                stride_parameters(k, array),
                computed[array.name],
                access_width(array.columns, array.alignment, array.dtype.nbytes),
                array.dtype.nbytes,
            )
            for array in of_kernel
        )
        names = (*config.features.row_counts, "heads", "group")
        seq_q, seq_k, heads, group = (k.signed(k.param(name, u32)) for name in names)
        scale = k.param("softmax_scale", f32)
        scale_log2 = scale * LOG2E
        numbers = {n.name: k.param(n.name, n.type) for n in config.numbers}
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in places}
        return cls(Q, K, V, O, LSE, seq_q, seq_k, heads, group, scale, scale_log2, numbers, operands)

    @property
    def longest_q(self) -> Value:
        """The query rows of the longest sequence."""
        longest = self.numbers.get("max_seqlen_q")
        return self.seq_q if longest is None else longest.as_(s32)

    def of_item(self, k: KernelBuilder, features: Features, batch: Value, kv_head: Value) -> Parameters:
        """The arguments of one item of a batch: a packed sequence, or one whose keys are in a cache,
        and of one head of K and V.
        """
        found = self.of_sequence(k, batch) if features.varlen else self
        if not features.cached:
            return found
        return found.of_batch(k, batch, features.page_size).of_kv_head(k, kv_head)

    def of_kv_head(self, k: KernelBuilder, kv_head: Value) -> Parameters:
        """The arguments of one head of K and V: with the head's scale of K, if there is one."""
        k_scale = self.operands.get("k_scale")
        if k_scale is None:
            return self
        factor = k_scale.of_sequence(k, kv_head)
        return replace(self, scale=self.scale * factor, scale_log2=self.scale_log2 * factor)

    def of_batch(self, k: KernelBuilder, batch: Value, page_size: int) -> Parameters:
        """The arguments of one item of a batch whose keys are in a cache: how many rows of its
        sequence are keys, and where they are. Whatever lengths and indices the caller's arrays
        hold, no row is outside K and V.
        """
        packed = "cu_seqlens_q" in self.operands
        of = InCache.of(k, self.operands, self.numbers, self.seq_k, batch, page_size, packed=packed)
        K, V = (replace(a, begin=of.padding, pages=of.pages, sequence=of.sequence) for a in (self.K, self.V))
        return replace(
            self, K=K, V=V, seq_k=of.rows if of.padding is None else of.rows - of.padding, in_cache=of
        )

    def of_sequence(self, k: KernelBuilder, number: Value) -> Parameters:
        """The arguments of one of the packed sequences: arrays that begin with its rows, and its
        own lengths. Keys that are not packed stay as they are (`of_batch` finds them).
        """
        queries, keys = (
            self._span(k, side, number, total) for side, total in (("q", self.seq_q), ("k", self.seq_k))
        )
        assert queries is not None  # queries are packed
        LSE = self.LSE
        if LSE is not None:
            LSE = LSE.plus((k.cvt(queries.begin, dtype=s64) * F32_BYTES).as_(u64))
        found = replace(
            self,
            Q=replace(self.Q, begin=queries.begin),
            O=replace(self.O, begin=queries.begin),
            LSE=LSE,
            seq_q=queries.length,
        )
        if keys is None:
            return found
        K, V = (replace(array, begin=keys.begin) for array in (self.K, self.V))
        return replace(found, K=K, V=V, seq_k=keys.length)

    def _span(self, k: KernelBuilder, side: str, number: Value, total: Value) -> Span | None:
        """The rows of one sequence in Q ("q") or K ("k"); None if they are not packed."""
        ends, used = (self.operands.get(f"{name}_{side}") for name in ("cu_seqlens", "seqused"))
        if ends is None:
            return None
        return Span.clamped(
            k,
            ends.of_sequence(k, number),
            ends.of_sequence(k, number + 1),
            None if used is None else used.of_sequence(k, number),
            total,
        )
