"""The kernels before and after the sweep by keys, if it is the only sweep: the first writes D, the second
rounds the sums of dQ. A CTA owns rows of one head.
"""

from __future__ import annotations

from contextlib import nullcontext

from flash.device.gradient_parts import RowNumbers, RowsPart, Terms
from flash.device.gradient_tiles import begun
from flash.device.rounded_pair import rounded_pair
from flash.device.row_sums import sum_rows
from flash.operands.dtypes import F32_BYTES
from flash.problem.gradients import GradientConfig
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, bf16, bf16x2, f16x2, f32, u16, u32, u64


def deltas(config: GradientConfig) -> ir.Module:
    """The module with the kernel that writes D, and the gradients that follow from D alone."""
    k, parameters = begun(config)
    part = RowsPart.of(k, config, parameters)
    O, dO = (part.parameters.rows(k, name, part.batch, part.head) for name in ("O", "dO"))
    of_rows = RowNumbers.of(k, part.parameters, part.batch, part.head)
    terms = Terms.of(k, part.parameters, part.batch, part.head, parameters.longest("q"))
    scores = part.scores(k, config)

    def write_first(row: Value, lse: Value, delta: Value) -> None:
        for feature in config.summed("first"):
            result = feature.applied(scores).first_gradient(lse, delta)
            terms.write(k, f"row_{feature.argument}", row, result)

    block = part.first_row, config.tiling.block, of_rows, None
    sum_rows(k, O, dO, config.dtype.scalar, *block, write_first)
    return k.finish()


def rounded_sums(config: GradientConfig) -> ir.Module:
    """The module with the kernel that writes dQ: its sums, times the scale, rounded once. The lanes of
    a row take its pieces alternately.
    """
    k, parameters = begun(config)
    part, t, dtype = RowsPart.of(k, config, parameters), config.tiling, config.dtype.scalar
    dQ = part.parameters.rows(k, "dQ", part.batch, part.head)
    sums = part.parameters.rows_of_sums(k, t.head_dim, part.batch, part.head)
    pieces = dQ.columns // dQ.width
    lanes = min(WARP_SIZE, 1 << (pieces - 1).bit_length())
    thread = k.thread_id()
    nth, lane = thread // lanes, thread % lanes
    with k.loop(nth, t.block, step=k.threads // lanes) as down:
        row = part.first_row + k.signed(down)
        with k.when(row < dQ.rows):
            for first in range(0, pieces, lanes):
                some = lane < pieces - first if first + lanes > pieces else None
                with nullcontext() if some is None else k.when(some):
                    column = (lane + first) * dQ.width
                    at, to = (
                        matrix.row(k, row) + k.cvt(column * nbytes, dtype=u64)
                        for matrix, nbytes in ((sums, F32_BYTES), (dQ, dtype.nbytes))
                    )
                    width = min(sums.width, dQ.width)
                    result: list[Value] = []
                    for n in range(0, dQ.width, width):
                        loaded = k.load(Pointer(at, "global", f32, n * F32_BYTES), width)
                        result += loaded if isinstance(loaded, tuple) else [loaded]
                    _store(k, to, [x * part.parameters.scale for x in result], dtype)
    return k.finish()


def _store(k: KernelBuilder, to: Value, values: list[Value], dtype: ScalarType) -> None:
    """Round neighbouring f32 values and write them to memory in one access."""
    if dtype is f32:
        k.store(Pointer(to, "global", f32), values)
        return
    if len(values) == 1:
        rounded = k.cvt(values[0], rnd="rn", dtype=dtype)
        k.store(Pointer(to, "global", u16), rounded.as_(u16))
        return
    pair = bf16x2 if dtype is bf16 else f16x2
    words = [
        rounded_pair(k, low, high, pair).as_(u32) for low, high in zip(values[::2], values[1::2], strict=True)
    ]
    k.store(Pointer(to, "global", u32), words)
