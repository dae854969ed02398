"""What a forward kernel is given, and which part of it a CTA computes."""

from __future__ import annotations

from dataclasses import dataclass

from flash.config import KernelConfig
from flash.mask import Mask
from flash.softmax import LOG2E
from flash.tiles import Matrix, access_width
from flash.tiling import Tiling
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.types import f32, s64, u32, u64


@dataclass(frozen=True)
class Array:
    """Q, K, V or O as the kernel gets it: batch by head by row by `columns` elements."""

    first: Value
    strides: tuple[Value, Value, Value]  # of batch, head and row, in elements, s64
    columns: int
    width: int  # columns that one access may take
    nbytes: int  # of an element

    def head(self, k: KernelBuilder, batch: Value, head: Value, rows: Value) -> Matrix:
        """The rows of one head. Offsets are 64 bits wide."""
        of_batch, of_head, of_row = self.strides
        elements = k.cvt(batch, dtype=s64) * of_batch + k.cvt(head, dtype=s64) * of_head
        first = self.first + (elements * self.nbytes).as_(u64)
        return Matrix(first, of_row * self.nbytes, rows, self.columns, self.width)


@dataclass(frozen=True)
class Arguments:
    """The kernel's parameters; `flash/contract.py` says what they mean."""

    Q: Array
    K: Array
    V: Array
    O: Array
    LSE: Pointer | None
    seq_q: Value  # s32, as all that rows and keys are counted in
    seq_k: Value
    heads: Value
    group: Value  # query heads for each head of K and V
    scale_log2: Value  # softmax_scale in units of log2

    @classmethod
    def declare(cls, k: KernelBuilder, config: KernelConfig) -> Arguments:
        """Declare and load them, in the order of the contract."""
        t, nbytes = config.tiling, config.dtype.nbytes
        columns = {"Q": t.head_dim, "K": t.head_dim, "V": t.head_dim_v, "O": t.head_dim_v}
        pointers = {name: k.pointer(name) for name in columns}
        LSE = k.pointer("LSE") if config.return_lse else None
        Q, K, V, O = (
            Array(
                pointers[name].value,
                (
                    k.param(f"{name}_batch_stride", s64),
                    k.param(f"{name}_head_stride", s64),
                    k.param(f"{name}_row_stride", s64),
                ),
                n,
                access_width(n, config.alignment, nbytes),
                nbytes,
            )
            for name, n in columns.items()
        )
        counts = (k.signed(k.param(name, u32)) for name in ("seq_q", "seq_k", "heads", "group"))
        seq_q, seq_k, heads, group = counts
        scale_log2 = k.param("softmax_scale", f32) * LOG2E
        return cls(Q, K, V, O, LSE, seq_q, seq_k, heads, group, scale_log2)


@dataclass(frozen=True)
class Cta:
    """The part of the problem that one CTA computes: some query rows of one head."""

    Q: Matrix
    K: Matrix
    V: Matrix
    O: Matrix
    head_of_batch: Value  # batch * heads + head
    first_row: Value
    mask: Mask
    all_see: Value  # the last key that all rows of the CTA see
    tiles: Value  # tiles of keys that any of them sees

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, given: Arguments) -> Cta:
        """This CTA's part. The grid is flat: query blocks fastest, then heads, then batches."""
        k.note("which query rows of which head")
        t = config.tiling
        blocks = k.divide_up(given.seq_q, t.block_q)
        block = k.signed(k.block_id())
        head_of_batch = block // blocks
        nth_block = block % blocks
        if config.causal:  # the last rows see the most keys: begin with them
            nth_block = blocks - 1 - nth_block
        first_row = nth_block * t.block_q
        batch, head = head_of_batch // given.heads, head_of_batch % given.heads
        kv_head = head // given.group
        mask = Mask.of(k, config.causal, given.seq_q, given.seq_k)
        last_row = k.min(first_row + (t.block_q - 1), given.seq_q - 1)
        return cls(
            given.Q.head(k, batch, head, given.seq_q),
            given.K.head(k, batch, kv_head, given.seq_k),
            given.V.head(k, batch, kv_head, given.seq_k),
            given.O.head(k, batch, head, given.seq_q),
            head_of_batch,
            first_row,
            mask,
            mask.last_key(k, first_row),
            mask.tiles(k, last_row, t.tile),
        )

    def whole_tiles(self, k: KernelBuilder, tile: int) -> Value:
        """How many tiles, from the first on, hold only keys that all rows of the CTA see."""
        return k.min(k.max(self.all_see + 1, 0) // tile, self.tiles)


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
