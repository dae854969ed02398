"""The two matrix products of a CTA, register-tiled: S = Q Kᵀ and O += P V.

`flash/families/simt.py` says which thread holds what, and why the shared loads meet no bank
conflicts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product

from flash.device.cta import Thread
from flash.device.tiles import clear_padding, repeat
from flash.families.simt import CHUNK, Tiling
from ptxgen.dsl import Fragment, KernelBuilder, SharedTile, TilePointer, Value, Var, marked

# Multiply-adds in an iteration of an inner loop, about: text size against loop overhead.
_FMAS_PER_ITERATION = 512

AddRow = Callable[[KernelBuilder, list[Var], Value, list[Value]], None]


class Products:
    """The shared tiles of a CTA, and the two products that this thread computes from them.

    Loaders copy the CTA's Q, K and V blocks into `Q_tile`, `K_tile` and `V_tile`. P goes through
    shared memory, because the lanes of a row group hold different keys of S but need all of P for
    their part of O.
    """

    def __init__(self, k: KernelBuilder, t: Tiling, me: Thread) -> None:
        self.k = k
        self.t = t
        self.me = me
        self.Q_tile = k.shared("Q_tile", (t.block_q, t.qk_pitch))
        self.K_tile = k.shared("K_tile", (t.tile, t.qk_pitch))
        self.V_tile = k.shared("V_tile", (t.tile, t.v_pitch))
        self.P_tile = k.shared("P_tile", (t.block_q // t.interleave, t.p_pitch))
        self._q_rows = self.Q_tile.pointer(me.group, me.split * CHUNK)
        self._k_rows = self.K_tile.pointer(me.key_lane, me.split * CHUNK)
        # A row of the P tile holds rows of `interleave` row groups, chunk by chunk in turn.
        p_row, p_column = me.group // t.interleave, me.group % t.interleave * CHUNK
        self._p_rows = self.P_tile.pointer(p_row, p_column)
        self._p_mine = self.P_tile.pointer(p_row, me.key_lane * (t.interleave * CHUNK) + p_column)
        self._v_chunks = _value_chunks(k, t, self.V_tile, me)
        for tile in (self.Q_tile, self.K_tile):
            clear_padding(k, tile, used=t.head_dim, read=t.dim_chunks * t.splits * CHUNK)
        clear_padding(k, self.V_tile, used=t.slices.width, read=t.value_chunks * CHUNK)

    def scores(self, S: Fragment) -> None:
        """Compute the scores S = Q Kᵀ for this thread's rows and keys."""
        k, t = self.k, self.t
        S.fill(0.0)
        q, key = self._q_rows.cursor(), self._k_rows.cursor()
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
        for distance in t.split_distances:
            for score in S.all():
                k.add(score, k.butterfly(score, distance), into=score)

    @marked("simt products: shared weights")
    def share_weights(self, P: Fragment) -> None:
        """Give this thread's weights to the other lanes of its row group; they are complete after
        the next barrier.

        Columns of the P tile are in the order in which keys were dealt: chunk c of a key lane holds
        its keys 4c … 4c+3. The splits of a key lane have the same weights; each writes every
        splits-th row.
        """
        k, t = self.k, self.t
        for writer in range(t.splits):
            with k.only_if(self.me.split == writer) if t.splits > 1 else nullcontext():
                for i, c in product(range(writer, t.rows, t.splits), range(t.keys // CHUNK)):
                    to = self._p_step(self._p_mine, i, c * t.key_lanes)
                    k.store(to, P.row(i)[c * CHUNK : (c + 1) * CHUNK])

    def _p_step(self, at: TilePointer, i: int, chunks: int) -> TilePointer:
        """The address of this thread's i-th row in the P tile, `chunks` chunks after `at`."""
        t = self.t
        return at.step(t.groups // t.interleave * i, t.interleave * CHUNK * chunks)

    def outputs(self, O: Fragment, add: AddRow) -> None:
        """O += P V for this thread's rows and chunks of columns.

        `add` adds one key's values to one row: `add_product` or `add_product_if_seen`.
        """
        k, t = self.k, self.t
        p = self._p_rows.cursor()
        v = [chunk.cursor() for chunk in self._v_chunks]
        # Chunks that every lane has; they lie at fixed distances from the first.
        whole = t.value_chunks // t.lanes

        def v_part(c: int, key: int) -> tuple[Value, ...]:
            cursor = v[0].step(key, t.lanes * CHUNK * c) if c < whole else v[-1].step(key)
            return k.load(cursor, CHUNK)

        def add_keys(n: int) -> None:
            """Add P V for the keys whose weights the n-th key lane holds."""
            for c in range(t.keys // CHUNK):
                p_parts = [k.load(self._p_step(p, i, c * t.key_lanes + n), CHUNK) for i in range(t.rows)]
                for j in range(CHUNK):
                    key = n + t.key_lanes * (c * CHUNK + j)
                    v_row = [value for x in range(t.chunks) for value in v_part(x, key)]
                    for i in range(t.rows):
                        add(k, O.row(i), p_parts[i][j], v_row)

        def advance(lanes: int) -> None:
            p.advance(columns=t.interleave * CHUNK * lanes)
            for cursor in v:
                cursor.advance(rows=lanes)

        repeat(k, t.key_lanes, _unroll(t.rows * t.keys * t.chunks * CHUNK), add_keys, advance)


def add_product(k: KernelBuilder, totals: list[Var], weight: Value, values: list[Value]) -> None:
    """Emit totals += weight * values: add one key's weighted row of V to a row of O."""
    for total, value in zip(totals, values, strict=True):
        k.accumulate(total, weight, value)


def add_product_if_seen(k: KernelBuilder, totals: list[Var], weight: Value, values: list[Value]) -> None:
    """totals += weight * values, but nothing where the weight is 0: 0 * NaN from a key that is not
    seen would be NaN.
    """
    with k.only_if(k.setp(weight, 0.0, cmp="neu")):
        add_product(k, totals, weight, values)


def _value_chunks(k: KernelBuilder, t: Tiling, V_tile: SharedTile, me: Thread) -> list[TilePointer]:
    """This thread's addresses in V: of its first chunk, and of its last one if only some lanes have
    it.

    Lanes that do not have it read the row's last chunk; what they sum from it is never stored.
    """
    whole, rest = divmod(t.value_chunks, t.lanes)
    pointers = [V_tile.pointer(0, me.lane * CHUNK)] if whole else []
    if rest:
        last = k.min(me.lane + t.lanes * whole, t.value_chunks - 1)
        pointers.append(V_tile.pointer(0, last * CHUNK))
    return pointers


def _unroll(fmas: int) -> int:
    """How often a loop's body of `fmas` multiply-adds is repeated in one iteration (unrolled)."""
    return max(1, _FMAS_PER_ITERATION // fmas)
