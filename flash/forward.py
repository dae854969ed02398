"""The f32 forward kernel: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V
(FlashAttention-2, algorithm 1).

One CTA computes `block_q` rows of one head. Everything is f32 and each operation is rounded once;
`flash/tiling.py` says which thread holds what.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

from flash.config import KernelConfig
from flash.mask import Mask
from flash.softmax import LOG2E, OnlineSoftmax
from flash.tiles import (
    Matrix,
    TileLoader,
    access_width,
    await_copies,
    clear_padding,
    commit_copies,
    repeat,
    store_chunk,
)
from flash.tiling import CHUNK, F32_BYTES, Tiling
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, SharedTile, TilePointer, Value, Var
from ptxgen.types import f32, s32, s64, u32, u64

# Text size against loop overhead: a turn of the two inner loops holds about so many multiply-adds.
_FMAS_PER_TURN = 512


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


def attention_forward(config: KernelConfig) -> ir.Module:
    """The module with the kernel of this configuration; `flash/contract.py` says what its
    parameters mean.
    """
    t = config.tiling
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1)
    Q_all, K_all, V_all, O_all, LSE = _arrays(k, config)
    seq_q, seq_k = (k.signed(k.param(name, u32)) for name in ("seq_q", "seq_k"))
    heads, group = k.param("heads", u32), k.param("group", u32)
    scale_log2 = k.param("softmax_scale", f32) * LOG2E

    k.note("which query rows of which head")
    blocks = k.divide_up(seq_q, t.block_q)
    block = k.signed(k.block_id())
    head_of_batch = block // blocks
    nth_block = block % blocks
    if config.causal:  # the last rows see the most keys: begin with them
        nth_block = blocks - 1 - nth_block
    first_row = nth_block * t.block_q
    batch, head = head_of_batch // heads.as_(s32), head_of_batch % heads.as_(s32)
    kv_head = head // group.as_(s32)
    Q, O = (M.head(k, batch, head, seq_q) for M in (Q_all, O_all))
    K, V = (M.head(k, batch, kv_head, seq_k) for M in (K_all, V_all))

    k.note("shared memory, and where this thread stands in it")
    Q_tile = k.shared("Q_tile", (t.block_q, t.qk_pitch))
    K_tile = k.shared("K_tile", (t.tile, t.qk_pitch))
    V_tile = k.shared("V_tile", (t.tile, t.v_pitch))
    P_tile = k.shared("P_tile", (t.block_q, t.p_pitch))
    no_row = k.mov(0, type=s32)
    Q_loader = TileLoader(k, Q, Q_tile, first_row)
    K_loader = TileLoader(k, K, K_tile, no_row)
    V_loader = TileLoader(k, V, V_tile, no_row)

    me = Thread.of(k, t)
    my_first_row = first_row + k.signed(me.group)
    mask = Mask.of(k, config.causal, seq_q, seq_k)
    all_see = mask.last_key(k, first_row)
    tiles = mask.tiles(k, k.min(first_row + (t.block_q - 1), seq_q - 1), t.tile)

    q_rows = Q_tile.pointer(me.group, me.split * CHUNK)
    k_rows = K_tile.pointer(me.key_lane, me.split * CHUNK)
    p_rows = P_tile.pointer(me.group)
    p_mine = P_tile.pointer(me.group, me.key_lane * CHUNK)
    v_chunks = _value_chunks(k, t, V_tile, me)

    softmax = OnlineSoftmax(k, t.rows, _distances(t.interleave, t.key_lanes))
    O_acc = k.fragment(t.rows, t.chunks * CHUNK)  # sum of P V so far, under the maximum so far
    S = k.fragment(t.rows, t.keys)

    for tile in (Q_tile, K_tile):
        clear_padding(k, tile, used=t.head_dim, read=t.dim_chunks * t.splits * CHUNK)
    clear_padding(k, V_tile, used=t.head_dim_v, read=t.value_chunks * CHUNK)
    with k.when(tiles > 0, uniform=True):
        Q_loader.start()
        K_loader.start()
        commit_copies(k)
    with k.loop(0, tiles * t.tile, step=t.tile) as first_key:
        await_copies(k)
        k.barrier()  # K (and Q) have arrived for all, and nobody still reads the V before
        V_loader.start()
        commit_copies(k)

        k.note("S = scale * Q K^T")
        _scores(k, t, S, q_rows, k_rows)
        for score in S.all():
            k.mul(score, scale_log2, into=score)
        hides_keys = first_key + (t.tile - 1) > all_see
        with k.when(hides_keys, uniform=True):
            mask.apply(k, t, S, my_first_row, first_key + k.signed(me.key_lane))

        k.note("P = exp2(S - max); rescale what was summed under the old maximum")
        rescale = softmax.take(S)
        _share_weights(k, t, S, me, p_mine)
        for outputs, factor in zip(O_acc, rescale, strict=True):
            for value in outputs:
                k.mul(value, factor, into=value)

        V_loader.advance()
        K_loader.advance()
        await_copies(k)
        k.barrier()  # V and P have arrived for all, and nobody still reads this K
        with k.when(first_key < (tiles - 1) * t.tile, uniform=True):
            K_loader.start()
            commit_copies(k)

        k.note("O += P V")
        if not config.causal:  # the only keys unseen are beyond the end, where V is zero
            _outputs(k, t, O_acc, p_rows, v_chunks, _add_product)
        else:
            with k.when(hides_keys, uniform=True):
                _outputs(k, t, O_acc, p_rows, v_chunks, _add_product_if_seen)
            with k.otherwise():
                _outputs(k, t, O_acc, p_rows, v_chunks, _add_product)

    k.note("O / sum, LSE")
    for i in range(t.rows):
        row = my_first_row + t.groups * i
        inverse, lse = softmax.finish(i)
        with k.when(row < seq_q):
            _store_row(k, t, O, row, me, [value * inverse for value in O_acc.row(i)])
            if LSE is not None:
                with k.when(me.lane == 0):
                    at = k.mad_wide(head_of_batch, seq_q, k.cvt(row, dtype=s64)) * F32_BYTES
                    k.store(LSE.plus(at.as_(u64)), lse)
    return k.build()


@dataclass(frozen=True)
class Array:
    """Q, K, V or O as the kernel gets it: batch by head by row by `columns` f32 values."""

    first: Value
    strides: tuple[Value, Value, Value]  # of batch, head and row, in elements, s64
    columns: int
    width: int  # columns that one access may take

    def head(self, k: KernelBuilder, batch: Value, head: Value, rows: Value) -> Matrix:
        """The rows of one head. Offsets are 64 bits wide."""
        of_batch, of_head, of_row = self.strides
        elements = k.cvt(batch, dtype=s64) * of_batch + k.cvt(head, dtype=s64) * of_head
        first = self.first + (elements * F32_BYTES).as_(u64)
        return Matrix(first, of_row * F32_BYTES, rows, self.columns, self.width)


def _arrays(
    k: KernelBuilder, config: KernelConfig
) -> tuple[Array, Array, Array, Array, Pointer | None]:
    """Declare the pointers Q, K, V, O and, if wanted, LSE; then the strides of the first four."""
    t = config.tiling
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
            access_width(n, config.alignment),
        )
        for name, n in columns.items()
    )
    return Q, K, V, O, LSE


def _scores(
    k: KernelBuilder, t: Tiling, S: Fragment, q_rows: TilePointer, k_rows: TilePointer
) -> None:
    """S = Q Kᵀ for this thread's rows and keys."""
    S.fill(0.0)
    q, key = q_rows.cursor(), k_rows.cursor()
    stride = t.splits * CHUNK  # the chunks of head_dim are dealt to the splits

    def add_chunk(c: int) -> None:
        q_parts = [k.load(q.step(t.groups * i, stride * c), CHUNK) for i in range(t.rows)]
        k_parts = [k.load(key.step(t.key_lanes * j, stride * c), CHUNK) for j in range(t.keys)]
        for d in range(CHUNK):
            for i, j in product(range(t.rows), range(t.keys)):
                k.accumulate(S[i, j], q_parts[i][d], k_parts[j][d])

    def advance(chunks: int) -> None:
        q.advance(columns=stride * chunks)
        key.advance(columns=stride * chunks)

    repeat(k, t.dim_chunks, _unroll(t.rows * t.keys * CHUNK), add_chunk, advance)
    for distance in _distances(t.interleave * t.key_lanes, t.splits):
        for score in S.all():
            k.add(score, k.butterfly(score, distance), into=score)


def _share_weights(
    k: KernelBuilder, t: Tiling, P: Fragment, me: Thread, p_mine: TilePointer
) -> None:
    """Give this thread's weights to the other lanes of its row group; they are complete after the
    next barrier.

    Columns of the P tile are in the order in which keys were dealt: chunk c of a key lane holds its
    keys 4c … 4c+3. The splits of a key lane have the same weights and write every splits-th row
    each.
    """
    for writer in range(t.splits):
        with k.only_if(me.split == writer) if t.splits > 1 else nullcontext():
            for i, c in product(range(writer, t.rows, t.splits), range(t.keys // CHUNK)):
                to = p_mine.step(t.groups * i, c * t.key_lanes * CHUNK)
                k.store(to, P.row(i)[c * CHUNK : (c + 1) * CHUNK])


def _add_product(k: KernelBuilder, totals: list[Var], weight: Value, values: list[Value]) -> None:
    """totals += weight * values."""
    for total, value in zip(totals, values, strict=True):
        k.accumulate(total, weight, value)


def _add_product_if_seen(
    k: KernelBuilder, totals: list[Var], weight: Value, values: list[Value]
) -> None:
    """totals += weight * values, but nothing where the weight is 0: 0 * NaN from a key that is not
    seen would be NaN.
    """
    with k.only_if(k.setp(weight, 0.0, cmp="neu")):
        _add_product(k, totals, weight, values)


def _outputs(
    k: KernelBuilder,
    t: Tiling,
    O: Fragment,
    p_rows: TilePointer,
    v_chunks: list[TilePointer],
    add: Callable[[KernelBuilder, list[Var], Value, list[Value]], None],
) -> None:
    """O += P V for this thread's rows and chunks of head_dim_v; `add` adds one key's values to one
    row.
    """
    p = p_rows.cursor()
    v = [chunk.cursor() for chunk in v_chunks]
    # Chunks that every lane has; they lie at fixed distances from the first.
    whole = t.value_chunks // t.lanes

    def v_part(c: int, key: int) -> tuple[Value, ...]:
        cursor = v[0].step(key, t.lanes * CHUNK * c) if c < whole else v[-1].step(key)
        return k.load(cursor, CHUNK)

    def add_keys(n: int) -> None:
        """The keys of key lane n."""
        for c in range(t.keys // CHUNK):
            p_parts = [
                k.load(p.step(t.groups * i, (c * t.key_lanes + n) * CHUNK), CHUNK)
                for i in range(t.rows)
            ]
            for j in range(CHUNK):
                key = n + t.key_lanes * (c * CHUNK + j)
                v_row = [value for x in range(t.chunks) for value in v_part(x, key)]
                for i in range(t.rows):
                    add(k, O.row(i), p_parts[i][j], v_row)

    def advance(lanes: int) -> None:
        p.advance(columns=CHUNK * lanes)
        for cursor in v:
            cursor.advance(rows=lanes)

    repeat(k, t.key_lanes, _unroll(t.rows * t.keys * t.chunks * CHUNK), add_keys, advance)


def _value_chunks(k: KernelBuilder, t: Tiling, V_tile: SharedTile, me: Thread) -> list[TilePointer]:
    """Where this thread reads V: its first chunk, and its last one if only some lanes have it.

    The lanes without one read the row's last chunk; what they sum from it is never stored.
    """
    whole, rest = divmod(t.value_chunks, t.lanes)
    pointers = [V_tile.pointer(0, me.lane * CHUNK)] if whole else []
    if rest:
        last = k.min(me.lane + t.lanes * whole, t.value_chunks - 1)
        pointers.append(V_tile.pointer(0, last * CHUNK))
    return pointers


def _store_row(
    k: KernelBuilder, t: Tiling, O: Matrix, row: Value, me: Thread, values: list[Value]
) -> None:
    """Write this thread's chunks of one row of O."""
    at = O.row(k, row) + k.cvt(me.lane * (CHUNK * F32_BYTES), dtype=u64)
    full = t.head_dim_v // CHUNK  # chunks without padding
    for c in range(t.chunks):
        chunk = at + t.lanes * CHUNK * F32_BYTES * c
        part = values[c * CHUNK : (c + 1) * CHUNK]
        nth = t.lanes * c  # of lane 0
        if nth + t.lanes <= full:
            store_chunk(k, chunk, part, O.width)
            continue
        if nth < full:
            with k.when(me.lane < full - nth):
                store_chunk(k, chunk, part, O.width)
        if nth <= full < t.value_chunks:
            with k.when(me.lane == full - nth):
                store_chunk(k, chunk, part[: t.head_dim_v % CHUNK], O.width)


def _distances(first: int, lanes: int) -> list[int]:
    """The lane distances of the butterfly that joins `lanes` lanes, `first` apart."""
    return [first << n for n in range(lanes.bit_length() - 1)]


def _unroll(fmas: int) -> int:
    """How many times to repeat `fmas` multiply-adds in one turn of a loop."""
    return max(1, _FMAS_PER_TURN // fmas)
