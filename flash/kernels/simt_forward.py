"""The f32 forward kernel: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V
(FlashAttention-2, algorithm 1).

One CTA computes `block_q` rows of one head, or packed rows of several
(`flash/device/grouped_heads.py`); if values are wider than a CTA can hold, a slice of their
columns. Everything is f32 and each operation is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta, Thread
from flash.device.mask import if_seen
from flash.device.max_logit import RowTops
from flash.device.parameters import Parameters
from flash.device.row_outputs import store_row_outputs
from flash.device.simt_products import Products, add_product, add_product_if_seen
from flash.device.softmax import OnlineSoftmax
from flash.device.tiles import Matrix, TileLoader, await_copies, commit_copies, store_chunk
from flash.families.simt import CHUNK, F32_BYTES, Tiling
from flash.problem.kernel_config import KernelConfig
from flash.scores.dropout import OCTET
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, SharedTile, Value, Var, marked
from ptxgen.types import s32, u64


@marked("simt: loop over tiles")
def attention_forward(config: KernelConfig, t: Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=False)
    parameters = Parameters.declare(k, config)
    cta = Cta.entered(k, config, parameters)
    appended = AppendedKV.written(k, config, parameters, cta)
    me = Thread.of(k, t)
    my_first_row = cta.first_row + k.signed(me.group)

    k.note("shared memory, and the first tiles on their way there")
    products = Products(k, t, me)
    Q_loader = TileLoader(k, cta.Q, products.Q_tile, cta.first_row)
    begin = None if cta.first_tile is None else cta.first_tile * t.tile
    K_loader = TileLoader(k, cta.K, products.K_tile, begin)
    V_loader = TileLoader(k, cta.V, products.V_tile, begin)
    _start_first(k, cta, (Q_loader, K_loader), begin, appended, products.Q_tile)

    sinks = cta.sinks(k, me.key_lane, t.score_rows, lambda: my_first_row)
    softmax = OnlineSoftmax(k, t.rows, t.key_distances, sinks)
    tops = cta.tops(k, t.rows, None)
    O = k.fragment(t.rows, t.chunks * CHUNK)  # sum of P V so far, under the maximum so far
    S = k.fragment(t.rows, t.keys)
    # Computed once, because that takes divisions.
    queries = [cta.query(my_first_row + row) for row in t.score_rows if cta.packs_queries]
    with k.loop(0 if begin is None else begin, cta.tiles * t.tile, step=t.tile) as first_key:
        await_copies(k)
        k.barrier()  # K (and Q) have arrived for all, and nobody still reads the previous tile of V
        with _if_seen(k, cta, first_key):
            _start(k, V_loader)

            k.note("S = scale * Q K^T")
            products.scores(S)
            lane, begins_block = me.key_lane, t.tile >= KEYS_PER_BLOCK and t.key_lanes <= OCTET
            coordinates = ScoreCoordinates(
                k,
                my_first_row,
                first_key,
                lane,
                t.score_rows,
                t.score_keys,
                begins_block,
                cta.packing,
                queries.__getitem__ if queries else None,
            )
            hides_keys = _score(k, S, parameters, cta, coordinates)
            if tops is not None:
                tops.take(S)

            k.note("P = exp2(S - max); rescale what was summed under the old maximum")
            rescale = softmax.take(S)
            for feature in cta.after_softmax:
                feature.drop(S, coordinates)
            products.share_weights(S)
            _rescale(k, O, rescale)

        V_loader.advance()
        K_loader.advance()
        await_copies(k)
        k.barrier()  # V and P have arrived for all, and nobody still reads this tile of K
        with k.when(first_key < (cta.tiles - 1) * t.tile, uniform=True), _if_seen(k, cta, first_key, t.tile):
            _start(k, K_loader)

        k.note("O += P V")
        with _if_seen(k, cta, first_key):
            _add_outputs(k, products, O, cta, hides_keys)

    if config.begins_next:
        k.note("the grid that merges the parts may begin")
        k.griddepcontrol_launch_dependents()
    _store(k, t, cta, me, softmax, O, tops)
    return k.finish()


def _if_seen(
    k: KernelBuilder, cta: Cta, first_key: Value | None, ahead: int = 0
) -> AbstractContextManager[object]:
    """A context for code that is skipped if no query sees the tile that begins `ahead` keys after `first_key`
    (None: key 0).
    """
    if not cta.mask.has_gaps:
        return nullcontext()
    first_key = k.mov(0, type=s32) if first_key is None else first_key
    seen = cta.mask.sees_tile(first_key + ahead if ahead else first_key)
    return if_seen(k, seen)


@marked("simt: first copies")
def _start_first(
    k: KernelBuilder,
    cta: Cta,
    loaders: tuple[TileLoader, TileLoader],
    begin: Value | None,
    appended: AppendedKV | None,
    Q_tile: SharedTile,
) -> None:
    """Start the first copies, if there is a tile, and rotate queries in shared memory if the kernel
    does.
    """
    with k.when(cta.tiles > (0 if cta.first_tile is None else cta.first_tile), uniform=True):
        Q_loader, K_loader = loaders
        Q_loader.start()
        with _if_seen(k, cta, begin):
            K_loader.start()
        commit_copies(k)
        if appended is not None and appended.rotates:
            await_copies(k)
            k.barrier()
            appended.rotate_queries(Q_tile.pointer)


def _start(k: KernelBuilder, *loaders: TileLoader) -> None:
    """Start the copies of these loaders to shared memory as one `cp.async` group."""
    for loader in loaders:
        loader.start()
    commit_copies(k)


@marked("simt: scores")
def _score(
    k: KernelBuilder, S: Fragment, parameters: Parameters, cta: Cta, coordinates: ScoreCoordinates
) -> Value | None:
    """Turn products into scores, -inf for keys that are not seen. Returns whether a row of the CTA may not
    see a key of the tile; None if that may be so in each tile.
    """
    if cta.scoring is None:
        _multiply(k, S.all(), parameters.scale_log2)
    else:
        cta.scoring.apply(S, coordinates)
    if cta.mask.hides_anywhere:
        cta.mask.apply(k, S, coordinates)
        return None
    hides_keys = cta.hides_keys(coordinates.first_key)
    with k.when(hides_keys, uniform=True):
        cta.mask.apply(k, S, coordinates)
    return hides_keys


@marked("simt: sum of P V")
def _add_outputs(
    k: KernelBuilder, products: Products, O: Fragment, cta: Cta, hides_keys: Value | None
) -> None:
    """O += P V, where NaN in V of keys that a row does not see must not reach that row."""
    if not cta.mask.hides_keys:  # the only keys unseen are beyond the end, where V is zero
        products.outputs(O, add_product)
    elif hides_keys is None:
        products.outputs(O, add_product_if_seen)
    else:
        with k.when(hides_keys, uniform=True):
            products.outputs(O, add_product_if_seen)
        with k.otherwise():
            products.outputs(O, add_product)


def _multiply(k: KernelBuilder, variables: Iterable[Var], factor: Value) -> None:
    """Emit a multiplication of each f32 variable by the factor."""
    for variable in variables:
        k.mul(variable, factor, into=variable)


def _rescale(k: KernelBuilder, O: Fragment, factors: list[Value]) -> None:
    """Multiply each row of O by its factor since the softmax shift moved."""
    for row, factor in zip(O, factors, strict=True):
        _multiply(k, row, factor)


@marked("simt: sums and LSE")
def _store(
    k: KernelBuilder,
    t: Tiling,
    cta: Cta,
    me: Thread,
    softmax: OnlineSoftmax,
    O: Fragment,
    tops: RowTops | None,
) -> None:
    """Write O / sum and the `row_outputs`, and the largest scores if `tops` follow them."""
    k.note("O / sum, LSE")
    my_first_row = cta.first_row + k.signed(me.group)
    for i in range(t.rows):
        row = my_first_row + t.groups * i
        finished = softmax.finish(i)
        inverse = cta.weighed(finished.inverse)
        with k.when(row < cta.O.rows):
            _store_row(k, t, cta.O, row, me, [output * inverse for output in O.row(i)])
            if cta.row_outputs:
                with k.when(cta.writes_row(me.lane == 0)):
                    store_row_outputs(k, cta.row_outputs, row, finished)
    cta.store_tops(k, tops, (my_first_row, t.score_rows), t.key_distances)


def _store_row(k: KernelBuilder, t: Tiling, O: Matrix, row: Value, me: Thread, values: list[Value]) -> None:
    """Write this thread's 16-byte chunks of one row of O to global memory."""
    at = O.row(k, row) + k.cvt(me.lane * (CHUNK * F32_BYTES), dtype=u64)
    full = t.slices.width // CHUNK  # chunks without padding
    for c in range(t.chunks):
        chunk = at + t.lanes * CHUNK * F32_BYTES * c
        part = values[c * CHUNK : (c + 1) * CHUNK]
        nth = t.lanes * c  # chunk of lane 0
        column = (me.lane + nth).as_(s32) * CHUNK if nth * CHUNK < t.slices.shared else None
        if nth + t.lanes <= full:
            _store_chunk(k, chunk, part, O, column)
            continue
        if nth < full:
            with k.when(me.lane < full - nth):
                _store_chunk(k, chunk, part, O, column)
        if nth <= full < t.value_chunks:
            with k.when(me.lane == full - nth):
                store_chunk(k, chunk, part[: t.slices.width % CHUNK], O.width)


@marked("simt: chunk of O")
def _store_chunk(k: KernelBuilder, at: Value, values: list[Value], O: Matrix, column: Value | None) -> None:
    """Write the values that begin in column `column`; None if the CTA writes all columns of the
    chunk.
    """
    if column is None or O.written_from is None:
        store_chunk(k, at, values, O.width)
        return
    for piece in range(0, CHUNK, O.width):
        with k.when(column + piece >= O.written_from):
            part = values[piece : piece + O.width]
            store_chunk(k, at + piece * F32_BYTES, part, O.width)
