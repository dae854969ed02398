"""The kernel that writes rows of fp8 in bf16, each number times its scale: factors of the products that sum
gradients, which `wgmma` of fp8 does not multiply along rows (`flash/kernels/wgmma_gradient_keys.py`).

Each number is rounded once. All rows of a CTA share a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.device.parameters import Array, ScoreArray
from flash.operands.declared import Operand
from flash.operands.dtypes import BF16, F32, DType
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.target import Target
from ptxgen.types import bf16x2, f16, f32, u16, u32, u64

ROWS: Final = 64  # of a CTA, which divide each block of rows with a scale
THREADS: Final = 128
PIECE: Final = 16  # bytes that a thread reads at once
_HALF_BITS: Final = 16
_WORDS: Final = 4  # that a thread writes at once


@dataclass(frozen=True, slots=True)
class WideConfig:
    """The configuration of a kernel that widens rows of `columns` columns, a multiple of 16: `scale_block`
    rows of a head share a scale, with 0 all rows of a head, and of the heads of a group.
    """

    target: Target
    dtype: DType
    columns: int
    scale_block: int = 0

    @property
    def arrays(self) -> tuple[Operand, Operand, Operand]:
        """The arrays of the kernel: rows of fp8, their scales, and the bf16 rows that it writes."""
        of_scale = ("batch", "heads", "blocks") if self.scale_block else ("batch", "kv_heads")
        X, W = (
            Operand(
                *(name, dtype, ("batch", "heads", "rows")),
                columns=self.columns,
                last="columns",
                steps=("batch", "head", "row"),
                role=role,
                is_written=name == "W",
                align=PIECE,
            )
            for name, dtype, role in (
                ("X", self.dtype, "the rows, read"),
                ("W", BF16, "the numbers of X times their scales, written"),
            )
        )
        return X, Operand("scale", F32, of_scale, role="what the numbers of X are multiplied with, read"), W

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        blocks = f"_scales{self.scale_block}" if self.scale_block else ""
        return f"widened_rows_{self.dtype.name}_d{self.columns}{blocks}"


@marked("widened rows: rows of a CTA")
def widened_rows(config: WideConfig) -> ir.Module:
    """Generate the kernel of this configuration: its PTX module."""
    k = KernelBuilder(config.name, target=config.target, threads=THREADS)
    pointers = [k.pointer(array.name) for array in config.arrays]
    of_x, of_scale, of_w = config.arrays
    X, W = (Array.declare(k, a, at, config.columns) for a, at in ((of_x, pointers[0]), (of_w, pointers[2])))
    scales = ScoreArray.declare(k, of_scale, pointers[1])
    rows, heads, group = (k.signed(k.param(name, u32)) for name in ("rows", "heads", "group"))
    k.note("which rows of which head")
    blocks, nth = k.divide_up(rows, ROWS), k.signed(k.block_id())
    first_row, nth_head = nth % blocks * ROWS, nth // blocks
    batch, head = nth_head // heads, nth_head % heads
    if config.scale_block:
        scale = scales.of_sequence(k, batch, head, first_row.as_(u32) // config.scale_block)
    else:
        scale = scales.of_sequence(k, batch, head // group)
    source, destination = (array.head(k, batch, head, rows) for array in (X, W))
    pieces = config.columns // PIECE
    lanes = 1 << (pieces - 1).bit_length()  # of a row
    row_of_pass, lane = k.thread_id() // lanes, k.thread_id() % lanes
    column = lane * PIECE
    with k.loop(row_of_pass, ROWS, step=THREADS // lanes) as row_of_cta:
        row = first_row + k.signed(row_of_cta)
        exists = row < rows
        with k.when(exists if pieces == lanes else exists & (lane < pieces)):
            at = source.row(k, row) + k.cvt(column, dtype=u64)
            words = [_widened(k, config, word, scale) for word in k.load(Pointer(at, "global", u32), _WORDS)]
            flat = [word for pair in words for word in pair]
            into = destination.row(k, row) + k.cvt(column * BF16.nbytes, dtype=u64)
            for i in range(0, len(flat), _WORDS):
                k.store(Pointer(into, "global", u32, i * u32.nbytes), flat[i : i + _WORDS])
    return k.finish()


def _widened(k: KernelBuilder, config: WideConfig, word: Value, scale: Value) -> list[Value]:
    """Four elements in a word, u32, times their scale, as two words of bf16."""
    result = []
    for pair in config.dtype.widened(k, word):
        low, high = (
            k.cvt(k.cvt(half, dtype=u16).as_(f16), dtype=f32) * scale for half in (pair, pair >> _HALF_BITS)
        )
        result.append(k.cvt(high, low, rnd="rn", dtype=bf16x2).as_(u32))
    return result
