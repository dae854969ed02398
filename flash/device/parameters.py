"""The parameters of a forward kernel: its arrays, with their strides, and its scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flash.device.grouped_heads import PackedMatrix
from flash.device.pages import PagedMatrix, Pages
from flash.device.sequence_span import Span
from flash.device.tiles import Matrix, access_width
from flash.operands.declared import Operand
from flash.operands.dtypes import F32_BYTES, DType
from flash.problem.arrays import matrices, tickets
from flash.problem.features import Features
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import OUTPUTS
from flash.scores.feature import LOG2E
from flash.scores.heads import Packing
from flash.scores.score_coordinates import PackedPlane, ScorePlane
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, s64, u32, u64


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
            last_row = (k.max(rows, 1) - 1).as_(u32)  # there is at least one row
            _, step = table.strides.values()
            entry_bytes = step * table.dtype.nbytes
            entries, last_page = table.row(k, sequence), numbers["pages"] - 1
            pages = Pages(entries, entry_bytes, page_size, last_page, last_row, shared_lookups=packed)
        return cls(rows, padding, sequence, pages)

    def head(self, k: KernelBuilder, array: Array, head: Value) -> Matrix:
        """The rows of a head of K or V, including padding."""
        placed = replace(array, pages=self.pages, sequence=self.sequence)
        return placed.head(k, self.sequence, head, self.rows)


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

    @classmethod
    def declare(cls, k: KernelBuilder, array: Operand, at: Pointer, columns: int) -> Array:
        """Declare and load the strides; a CTA computes with `columns` columns."""
        width = access_width(array.columns, array.alignment, array.dtype.nbytes)
        return cls(at.value, stride_parameters(k, array), columns, width, array.dtype.nbytes)

    def head(self, k: KernelBuilder, batch: Value, head: Value, rows: Value) -> Matrix:
        """The rows of one head of Q, K, V or O as a `Matrix`. Offsets are 64 bits wide."""
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
    """An array of a score feature, such as a bias, as a kernel parameter with its strides."""

    first: Value
    strides: dict[str, Value]  # by axis, in elements, s64
    dtype: DType

    @classmethod
    def declare(cls, k: KernelBuilder, operand: Operand, at: Pointer) -> ScoreArray:
        """Declare and load the kernel parameters with the array's strides."""
        return cls(at.value, stride_parameters(k, operand), operand.dtype)

    @property
    def is_of_rows(self) -> bool:
        """Whether the array has an element for each row of K or V, laid out as these rows are."""
        return "row" in self.strides

    @property
    def rows(self) -> Array:
        """The elements of an array that `is_of_rows`, as rows with one column."""
        return Array(self.first, self.strides, 1, 1, self.dtype.nbytes)

    def of_sequence(self, k: KernelBuilder, *indices: Value) -> Value:
        """The element with these indices, such as the length of a sequence. Nothing writes the array while
        the kernel runs, so that all threads of a CTA read the same value.
        """
        at = self.address(k, *indices)
        return k.ld_nc(Pointer(at, "global", self.dtype.scalar), type=self.dtype.scalar)

    def part(self, k: KernelBuilder, index: Value) -> ScoreArray:
        """The elements whose first index is `index`, by the other axes."""
        _, *others = self.strides.items()
        return ScoreArray(self.row(k, index), dict(others), self.dtype)

    def row(self, k: KernelBuilder, index: Value) -> Value:
        """The address of the first of the elements whose first index is `index`, u64."""
        step = next(iter(self.strides.values()))
        return self.first + (k.cvt(index, dtype=s64) * step * self.dtype.nbytes).as_(u64)

    def address(self, k: KernelBuilder, *indices: Value) -> Value:
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
    outputs: Mapping[str, Pointer]  # what is written besides O, by name
    seq_q: Value  # s32, as all counts of rows and keys; with varlen, of all sequences
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale: Value  # softmax_scale
    scale_log2: Value  # softmax_scale in units of log2
    numbers: dict[str, Value]  # scalars of `flash/problem/features.py`, by name
    operands: dict[str, ScoreArray]
    in_cache: InCache | None = None  # where the keys of one batch item are
    part: Value | None = None  # the number of the part, u32, of a CTA that takes several; None: its index
    tickets: Pointer | None = None  # the counter that gives the numbers of parts, u32

    @classmethod
    def declare(cls, k: KernelBuilder, config: KernelConfig) -> Parameters:
        """Declare and load the parameters, in the order of `flash/contract/forward.py`."""
        t = config.tiling
        # Rows of four bits count bytes, those of a cache's blocks elements.
        computed = {} if config.features.mx is not None else dict.fromkeys("QK", t.head_dim)
        computed |= dict.fromkeys("VO", t.slices.width)
        of_kernel = matrices(config)
        pointers = {array.name: k.pointer(array.name) for array in of_kernel}
        outputs = {output.name: k.pointer(output.array) for output in config.outputs}
        of_features = [(operand, k.pointer(operand.name)) for operand in config.features.operands]
        counter = next((k.pointer(array.name, u32) for array in tickets(config)), None)
        Q, K, V, O = (
            Array.declare(k, array, pointers[array.name], computed.get(array.name, array.columns))
            for array in of_kernel
        )
        names = (*config.features.row_counts, "heads", "group")
        seq_q, seq_k, heads, group = (k.signed(k.param(name, u32)) for name in names)
        scale = k.param("softmax_scale", f32)
        scale_log2 = scale * LOG2E
        numbers = {n.name: k.param(n.name, n.type) for n in config.numbers}
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in of_features}
        arrays, sizes = (Q, K, V, O, outputs), (seq_q, seq_k, heads, group)
        return cls(*arrays, *sizes, scale, scale_log2, numbers, operands, tickets=counter)

    @property
    def longest_q(self) -> Value:
        """The number of query rows of the longest sequence, s32."""
        longest = self.numbers.get("max_seqlen_q")
        return self.seq_q if longest is None else longest.as_(s32)

    def of_item(self, k: KernelBuilder, features: Features, batch: Value, kv_head: Value) -> Parameters:
        """The arguments of one item of a batch: of a packed sequence, or of one whose keys are in a cache,
        and of one head of K and V.
        """
        result = self.of_sequence(k, batch) if features.varlen else self
        if features.cached:
            result = result.of_batch(k, batch, features.page_size)
        if features.scaled:
            return result if features.scale_block or features.mx else result.of_scales(k, batch, kv_head)
        return result.of_kv_head(k, kv_head) if features.cached else result

    def of_kv_head(self, k: KernelBuilder, kv_head: Value) -> Parameters:
        """The arguments of one head of K and V: the softmax's scale includes the head's scale of K, if there
        is one.
        """
        k_scale = self.operands.get("k_scale")
        if k_scale is None or k_scale.is_of_rows:
            return self
        factor = k_scale.of_sequence(k, kv_head)
        return replace(self, scale=self.scale * factor, scale_log2=self.scale_log2 * factor)

    def token_scales(
        self, k: KernelBuilder, features: Features, batch: Value, kv_head: Value
    ) -> tuple[Matrix, Matrix] | None:
        """The scales of one head of K and of V, one for each key: rows of one f32. None if keys have no
        scales of their own.
        """
        if not features.per_token:
            return None
        position = {name: getattr(self.K, name) for name in ("begin", "pages", "sequence")}
        rows = (replace(self.operands[f"{what}_scale"].rows, **position) for what in "kv")
        of_keys, of_values = (scales.head(k, batch, kv_head, self.seq_k) for scales in rows)
        return of_keys, of_values

    def of_scales(self, k: KernelBuilder, batch: Value, kv_head: Value) -> Parameters:
        """The arguments of one head of K and V of one item: the softmax's scale includes its scales of Q and
        K.
        """
        q_scale, k_scale = (self.operands[f"{what}_scale"] for what in "qk")
        factor = q_scale.of_sequence(k, batch, kv_head) * k_scale.of_sequence(k, batch, kv_head)
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
        """The arguments of packed sequence `number`: arrays that begin with its rows, and its lengths. Keys
        that are not packed stay as they are (`of_batch` finds them).
        """
        queries, keys = (
            self._span(k, side, number, total) for side, total in (("q", self.seq_q), ("k", self.seq_k))
        )
        assert queries is not None  # queries are packed
        outputs = dict(self.outputs)
        for output in OUTPUTS:
            if output.has_rows and output.name in outputs:
                offset = (k.cvt(queries.begin, dtype=s64) * F32_BYTES).as_(u64)
                outputs[output.name] = outputs[output.name].plus(offset)
        result = replace(
            self,
            Q=replace(self.Q, begin=queries.begin),
            O=replace(self.O, begin=queries.begin),
            outputs=outputs,
            seq_q=queries.length,
        )
        if keys is None:
            return result
        K, V = (replace(array, begin=keys.begin) for array in (self.K, self.V))
        return replace(result, K=K, V=V, seq_k=keys.length)

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
