"""The kernels of gradients on tensor cores (FlashAttention-2, algorithm 2, in two sweeps), for f16
and bf16: dQ by queries, dK and dV by keys (`flash/problem/gradients.py`).

With S = scale Q Kᵀ and the LSE of each row, P = exp(S - LSE); dP = dO Vᵀ; dS = P ∘ (dP - D), where D
is the sum of O ∘ dO over a row. Then dQ = scale dS K, dK = scale dSᵀ Q and dV = Pᵀ dO. Products of
16-bit elements are exact and summed in f32; P and dS are rounded to the 16-bit type, gradients once
at the end.

By keys the scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers
of the lanes that need them as operand A of the next products.
"""

from __future__ import annotations

from typing import Final

from flash.device.epilogue import Epilogue
from flash.device.gradient_parts import GradientParameters, KeysPart, QueriesPart, RowNumbers
from flash.device.mma_products import MmaProducts, WarpPlace, fragment_columns, fragment_rows
from flash.device.panel_loader import PanelLoader
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import await_copies
from flash.problem.gradients import GradientConfig
from flash.problem.mma_tiling import MMA_KEYS
from flash.scores.feature import LOG2E
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, over_lanes
from ptxgen.target import WARP_SIZE
from ptxgen.types import f32, u16, u32, u64

_INFINITY: Final = float("inf")
_COLUMNS_PER_LANE: Final = LANE_COLUMNS


@marked("gradient of queries")
def mma_gradient_of_queries(config: GradientConfig) -> ir.Module:
    """The module with the kernel that writes dQ and D."""
    t, dtype = config.tiling, config.dtype.scalar
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=False)
    given = GradientParameters.declare(k, config)
    part = QueriesPart.of(k, config, given)
    me = WarpPlace.of(k)
    of_scores, of_weights = t.of_scores, t.of_weights

    k.note("shared memory, and the first tiles on their way there")
    Q_tile = k.swizzled("Q_tile", (t.block, of_scores.score_width), dtype)
    dO_tile = k.swizzled("dO_tile", (t.block, of_weights.score_width), dtype)
    K_tile = k.swizzled("K_tile", (t.tile, of_scores.score_width), dtype, stages=t.stages)
    V_tile = k.swizzled("V_tile", (t.tile, of_weights.score_width), dtype, stages=t.stages)
    row_D = k.shared("row_D", (1, t.block), f32)
    Q, dO, O, dQ = (given.rows_of_queries(k, n, part.batch, part.head) for n in ("Q", "dO", "O", "dQ"))
    K, V = (given.rows_of_keys(k, n, part.batch, part.kv_head) for n in "KV")
    for matrix, tile in ((Q, Q_tile), (dO, dO_tile)):
        PanelLoader(k, matrix, tile).start(part.first_row)
    k.cp_async_commit_group()
    pairs = TilePairs(k, (PanelLoader(k, K, K_tile), PanelLoader(k, V, V_tile)))
    pairs.restart(part.first_tile, part.end_tile)

    LSE, D = (
        RowNumbers.of(k, array, part.head_of_batch, given.seq_q) for array in (given.LSE, given.D)
    )
    _sum_rows(k, (O, dO), part.first_row, config, lambda row, total: k.store(D.at(k, row), total), row_D)
    k.barrier()  # D has been written by all

    my_first_row = me.first_row(of_scores)
    rows = fragment_rows(of_scores)
    shifts, deltas = [], []
    for down in rows:
        row = k.min(part.first_row + k.signed(my_first_row) + down, given.seq_q - 1)
        shifts.append(_shift(k, k.load(LSE.at(k, row))))
        deltas.append(k.load(row_D.pointer(0, my_first_row).step(columns=down)))

    products = MmaProducts(k, of_scores, me, (Q_tile, K_tile, K_tile), dtype)
    of_values = MmaProducts(k, of_weights, me, (dO_tile, V_tile, V_tile), dtype)
    scale_log2 = given.scale * LOG2E
    S, dP = (k.fragment(len(rows), t.tile // 4, initial=None) for _ in range(2))
    total = k.fragment(len(rows), of_scores.output_columns // 4)
    keys = fragment_columns(t.tile)
    with k.loop(part.first_tile, part.end_tile) as n:
        pairs.await_next(n, part.end_tile)
        k.note("S = Q K^T")
        products.scores(S, pairs.stage(0))
        first_key = n * t.tile
        with k.when(part.hides_keys(first_key, t.tile), uniform=True):
            places = ScorePlaces(
                k, part.first_row + k.signed(my_first_row), first_key, me.in_quad * 2, rows, keys
            )
            part.mask.apply(k, S, places)
        k.note("dP = dO V^T; dS = P (dP - D)")
        of_values.scores(dP, pairs.stage(1))
        for i, (shift, delta) in enumerate(zip(shifts, deltas, strict=True)):
            for score, weight in zip(S.row(i), dP.row(i), strict=True):
                _to_gradient(k, score, weight, scale_log2, shift, delta)
        k.note("dQ += dS K")
        products.outputs(total, products.weights(dP), pairs.stage(0))
        pairs.advance()

    k.note("dQ")
    for value in total.all():
        k.mul(value, given.scale, into=value)
    k.barrier()  # Q has been read by all
    Epilogue(k, of_scores, me, Q_tile, products, dQ, part.first_row).store(total)
    return k.build()


@marked("gradient of keys")
def mma_gradient_of_keys(config: GradientConfig) -> ir.Module:
    """The module with the kernel that writes dK and dV."""
    t, dtype = config.tiling, config.dtype.scalar
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=False)
    given = GradientParameters.declare(k, config)
    part = KeysPart.of(k, config, given)
    me = WarpPlace.of(k)
    of_scores, of_weights = t.of_scores, t.of_weights

    K_tile = k.swizzled("K_tile", (t.block, of_scores.score_width), dtype)
    V_tile = k.swizzled("V_tile", (t.block, of_weights.score_width), dtype)
    Q_tile = k.swizzled("Q_tile", (t.tile, of_scores.score_width), dtype, stages=t.stages)
    dO_tile = k.swizzled("dO_tile", (t.tile, of_weights.score_width), dtype, stages=t.stages)
    of_rows = k.shared("row_numbers", (2 * t.stages, t.tile), f32)
    K, V, dK, dV = (given.rows_of_keys(k, n, part.batch, part.kv_head) for n in ("K", "V", "dK", "dV"))
    for matrix, tile in ((K, K_tile), (V, V_tile)):
        PanelLoader(k, matrix, tile).start(part.first_key)
    k.cp_async_commit_group()

    keys = MmaProducts(k, of_scores, me, (K_tile, Q_tile, Q_tile), dtype)
    values = MmaProducts(k, of_weights, me, (V_tile, dO_tile, dO_tile), dtype)
    mine = fragment_rows(of_scores)
    scale_log2 = given.scale * LOG2E
    S, dP = (k.fragment(len(mine), t.tile // 4, initial=None) for _ in range(2))
    dK_sum = k.fragment(len(mine), of_scores.output_columns // 4)
    dV_sum = k.fragment(len(mine), of_weights.output_columns // 4)
    columns = fragment_columns(t.tile)
    my_first_key = me.first_row(of_scores)

    with k.loop(0, given.group) as member:
        head = part.kv_head * given.group + member
        head_of_batch = part.batch * given.heads + head
        Q, dO = (given.rows_of_queries(k, n, part.batch, head) for n in ("Q", "dO"))
        LSE, D = (RowNumbers.of(k, array, head_of_batch, given.seq_q) for array in (given.LSE, given.D))
        pairs = TilePairs(
            k,
            (PanelLoader(k, Q, Q_tile), PanelLoader(k, dO, dO_tile)),
            lambda first, stage: _copy_row_numbers(k, (LSE, D), of_rows, t.tile, first, stage, given.seq_q),
            2 * t.tile * f32.nbytes,
        )
        k.barrier()  # the tiles of the head before have been read by all
        pairs.restart(part.first_tile, part.end_tile)
        with k.loop(part.first_tile, part.end_tile) as n:
            pairs.await_next(n, part.end_tile)
            first_query = n * t.tile
            k.note("S^T = K Q^T")
            keys.scores(S, pairs.stage(0))
            hides = part.hides_keys(k, first_query, t.block, t.tile)
            if hides is not None:
                with k.when(hides, uniform=True):
                    places = ScorePlaces(
                        k,
                        first_query + k.signed(me.in_quad * 2),
                        part.first_key,
                        my_first_key,
                        columns,
                        mine,
                    )
                    part.mask.apply(k, S.transposed, places)
            k.note("P; dP^T = V dO^T")
            values.scores(dP, pairs.stage(1))
            at = of_rows.pointer(0, me.in_quad * 2)
            if (stage := pairs.stage(2)) is not None:
                at = at.moved(at.value + stage)
            by_query = S.transposed, dP.transposed
            for tile in range(t.tile // MMA_KEYS):
                shifts = k.load(at.step(columns=MMA_KEYS * tile), 2)
                deltas = k.load(at.step(rows=1, columns=MMA_KEYS * tile), 2)
                for c, (shift, delta) in enumerate(zip(shifts, deltas, strict=True)):
                    column = 2 * tile + c
                    shift = _shift(k, shift)
                    for score, weight in zip(by_query[0].row(column), by_query[1].row(column), strict=True):
                        _to_gradient(k, score, weight, scale_log2, shift, delta)
            k.note("dV += P^T dO; dK += dS^T Q")
            values.outputs(dV_sum, values.weights(S), pairs.stage(1))
            keys.outputs(dK_sum, keys.weights(dP), pairs.stage(0))
            pairs.advance()

    k.note("dK, dV")
    for value in dK_sum.all():
        k.mul(value, given.scale, into=value)
    await_copies(k)
    k.barrier()  # K and V have been read by all
    Epilogue(k, of_scores, me, K_tile, keys, dK, part.first_key).store(dK_sum)
    Epilogue(k, of_weights, me, V_tile, values, dV, part.first_key).store(dV_sum)
    return k.build()


def _shift(k: KernelBuilder, lse: Value) -> Value:
    """What is subtracted from the scores of a row, in units of log2: LSE, or of a row that sees no
    key infinity, so that its weights are 0.
    """
    return k.selp(_INFINITY, lse * LOG2E, lse == -_INFINITY)


def _to_gradient(
    k: KernelBuilder, score: Value, weight: Value, scale_log2: Value, shift: Value, delta: Value
) -> None:
    """Turn a product of Q and K into its weight P, and a product of dO and V into dS."""
    k.fma(score, scale_log2, k.neg(shift), into=score)
    k.ex2(score, ftz=True, into=score)
    k.sub(weight, delta, into=weight)
    k.mul(weight, score, into=weight)


@marked("gradient: numbers of rows")
def _copy_row_numbers(k, arrays, of_rows, tile, first_row, stage, rows) -> None:
    """Start copying LSE and D of the rows from `first_row` on; those of rows that do not exist are
    0.
    """
    thread = k.thread_id()
    for n, array in enumerate(arrays):
        for first in range(0, tile, k.threads):
            with k.when(thread < tile - first):
                row = first_row + k.signed(thread) + first
                to = of_rows.pointer(n, thread).step(columns=first)
                to = to if stage is None else to.moved(to.value + stage)
                valid = k.selp(4, 0, row < rows, type=u32)
                k.copy_async(to, array.at(k, row), 4, valid)


@marked("gradient: D")
def _sum_rows(k, matrices, first_row, config, write, kept) -> None:
    """D of the CTA's rows."""
    t = config.tiling
    O, dO = matrices
    accesses = O.columns // O.width
    lanes = min(WARP_SIZE, 1 << (accesses - 1).bit_length())
    at_once = k.threads // lanes
    thread = k.thread_id()
    mine, lane = k.signed(thread // lanes), thread % lanes
    with k.loop(mine, t.block, step=at_once) as down:
        row = first_row + down
        total = k.var(f32, 0.0)
        with k.when(row < O.rows):
            starts = [m.row(k, row) for m in (O, dO)]
            for first in range(0, accesses, lanes):
                with k.when(lane < accesses - first) if first + lanes > accesses else _always():
                    offset = k.cvt((lane + first) * (O.width * config.dtype.nbytes), dtype=u64)
                    a, b = (_numbers(k, start + offset, O.width, config.dtype.scalar) for start in starts)
                    for x, y in zip(a, b, strict=True):
                        k.fma(x, y, total, into=total)
        whole = over_lanes(k, total, [1 << n for n in range(lanes.bit_length() - 1)], lambda a, b: a + b)
        with k.when(lane == 0):
            k.store(kept.pointer(0, down.as_(u32)), whole)
            with k.when(row < O.rows):
                write(row, whole)


def _always():
    from contextlib import nullcontext

    return nullcontext()


def _numbers(k, at, width, dtype):
    """`width` neighbouring elements as f32."""
    found = []
    per = min(width, 2)
    if width == 1:
        bits = k.load(Pointer(at, "global", u16))
        return [k.cvt(bits.as_(dtype), dtype=f32)]
    words = k.load(Pointer(at, "global", u32), width // 2) if width > 2 else [k.load(Pointer(at, "global", u32))]
    for word in words:
        low = k.cvt(word & 0xFFFF, dtype=u16)
        high = k.cvt(word >> 16, dtype=u16)
        found += [k.cvt(low.as_(dtype), dtype=f32), k.cvt(high.as_(dtype), dtype=f32)]
    return found
