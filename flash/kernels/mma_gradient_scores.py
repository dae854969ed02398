"""The kernel that writes the gradient of a bias: gradients of scores, summed over the batch items and
heads that share it. A CTA has a block of queries and a tile of keys, and computes their weights for
one batch item and head after another, in a fixed order. `flash/device/gradient_tiles.py` has the
formulas.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

from flash.device.column_warps import ColumnWarps
from flash.device.gradient_parts import GradientParameters, RowNumbers
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_tiles import begun, products_of, shift_of, tamed, tiles_of
from flash.device.head_scores import HeadScores
from flash.device.mma_products import WarpCoordinates, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.tiles import await_copies, commit_copies
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value
from ptxgen.dsl.source_regions import marked
from ptxgen.types import f32, s32, s64, u32, u64


@dataclass(frozen=True)
class _Part:
    """The part of a bias's gradient that a CTA computes: of item `batch` and head `head` of the bias, the
    queries from `first_row` and the keys from `first_key` on.
    """

    batch: Value
    head: Value
    first_row: Value
    first_key: Value

    @classmethod
    def of(cls, k: KernelBuilder, config: GradientConfig, parameters: GradientParameters) -> _Part:
        """The part that this CTA computes. From fastest to slowest the grid has tiles of keys, blocks of
        queries, heads of the bias, and its batch items.
        """
        k.note("which queries and keys, of which head of the bias")
        t = config.mma
        tiles, blocks = k.divide_up(parameters.seq_k, t.tile), k.divide_up(parameters.seq_q, t.block)
        nth = k.signed(k.block_id())
        of_head = nth // tiles
        of_batch = of_head // blocks
        heads = k.signed(parameters.numbers["bias_heads"])
        return cls(of_batch // heads, of_batch % heads, of_head % blocks * t.block, nth % tiles * t.tile)


@marked("gradient of scores: loops")
def gradient_of_scores(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    t, dtype = config.mma, config.dtype.scalar
    part = _Part.of(k, config, parameters)
    columns = ColumnWarps.of(k, config)
    me = WarpCoordinates.of(k) if columns is None else columns.rows
    (Q_tile, dO_tile), (K_tile, V_tile) = tiles_of(k, config, ("Q", "dO"), ("K", "V"))
    (products,) = products_of(k, t.of_scores, me, (Q_tile, K_tile, K_tile), config, column_warps=columns)
    (of_values,) = products_of(
        k, t.of_weights, me, (dO_tile, V_tile, V_tile), config, column_warps=columns, are_second=True
    )
    rows, keys = fragment_rows(t.of_scores), fragment_columns(t.tile)
    S, dP = (k.fragment(len(rows), t.tile // 4, initial=None) for _ in range(2))
    total = k.fragment(len(rows), t.tile // 4)
    my_query = part.first_row + k.signed(me.first_row(t.of_scores))
    over = [k.signed(parameters.numbers[f"over_{axis}"]) for axis in ("batch", "heads")]

    with k.loop(0, over[0]) as i, k.loop(0, over[1]) as j:
        # Both exist anyway: the minimum states it for the proof.
        batch = k.min((part.batch * over[0] + i).as_(u32), parameters.numbers["batch"] - 1).as_(s32)
        head = k.min((part.head * over[1] + j).as_(u32), (parameters.heads - 1).as_(u32)).as_(s32)
        coordinates = [
            ("Q", head),
            ("dO", head),
            ("K", head // parameters.group),
            ("V", head // parameters.group),
        ]
        loaders = [
            PanelLoader(k, parameters.rows(k, name, batch, of), tile)
            for (name, of), tile in zip(coordinates, (Q_tile, dO_tile, K_tile, V_tile), strict=True)
        ]
        k.barrier()  # the tiles of the head before have been read by all
        for loader, first in zip(loaders, [part.first_row] * 2 + [part.first_key] * 2, strict=True):
            loader.fill(first)
        commit_copies(k)
        await_copies(k)
        scores = HeadScores.of(k, config, parameters, (batch, head, batch * parameters.heads + head), None)
        mask = scores.mask()
        for loader in loaders[1::2]:  # NaN in dO and V, of what may not see or be seen
            clear(k, dtype, loader, None)
        k.barrier()
        gradients = ScoreGradients.of(k, scores, mask)
        products.scores(S, None)
        where = ScoreCoordinates(k, my_query, part.first_key, me.in_quad * 2, rows, keys)
        always = part.first_row == part.first_row
        _, result = gradients.score(S, functools.partial(_itself, where), always)
        of_values.scores(dP, None)
        of_rows = RowNumbers.of(k, parameters, batch, head)
        numbers = []  # the shift and D of each of a lane's rows
        for down in rows:
            row = k.min(my_query + down, parameters.seq_q - 1)
            lse, delta = tamed(k, *(k.load(of_rows[name].at(k, row)) for name in ("LSE", "D")))
            numbers.append((shift_of(k, lse), delta))
        gradients.differentiate(S, dP, numbers.__getitem__, result)
        for into, more in zip(total.all(), dP.all(), strict=True):
            k.add(into, more, into=into)
    with nullcontext() if columns is None else k.when(columns.number == 0):
        _store(k, parameters, part, me, total, (my_query, rows, keys))
    return k.finish()


def _itself(coordinates: ScoreCoordinates) -> ScoreCoordinates:
    return coordinates


def _store(
    k: KernelBuilder,
    parameters: GradientParameters,
    part: _Part,
    me: WarpCoordinates,
    total: Fragment,
    coordinates: tuple[Value, list[int], list[int]],
) -> None:
    """Write this thread's sums of gradients of the bias to memory."""
    my_query, rows, keys = coordinates
    first_key = part.first_key + k.signed(me.in_quad * 2)
    nth = [k.cvt(n, dtype=s64) for n in (part.batch, part.head)]
    plane = nth[0] * k.cvt(parameters.numbers["bias_heads"], dtype=s64) + nth[1]
    first = plane * k.cvt(parameters.seq_q, dtype=s64)
    for (i, down), (j, across) in product(enumerate(rows), enumerate(keys)):
        row, key = my_query + down, first_key + across
        with k.when((row < parameters.seq_q) & (key < parameters.seq_k)):
            element = (first + k.cvt(row, dtype=s64)) * k.cvt(parameters.seq_k, dtype=s64) + k.cvt(
                key, dtype=s64
            )
            at = parameters.terms["dbias"].plus((element * f32.nbytes).as_(u64))
            k.store(Pointer(at.value, "global", f32, at.offset), total[i, j])
