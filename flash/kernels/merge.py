"""The kernel that merges attention to parts of the keys into attention to all of them.

A warp has one row: `lse = log Σ exp(lse_i)` and `out = Σ exp(lse_i - lse) out_i`. A part that has
seen no key, whose lse is -inf, or +inf as flash-attn 2 writes it, is not read, so that it may hold
anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flash.device.parameters import stride_parameters
from flash.device.softmax import LN2
from flash.device.tiles import access_width
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, F32_BYTES, DType
from flash.problem.features import OVERLAPPING_SM
from flash.scores.feature import LOG2E, NEG_INF
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import f32, s64, u16, u32, u64

WARPS: Final = 4  # warps of a CTA, each with one row
THREADS: Final = WARPS * WARP_SIZE
MAX_ROWS: Final = 2**31 - 1
_LANES: Final = [16, 8, 4, 2, 1]  # butterfly distances that join a warp
_AT_ONCE: Final = 4  # parts whose loads are in flight together
_WIDEST: Final = 4  # columns of an access
_ROWS: Final = "batch * heads * seq_q"
MERGED_LSE: Final = Operand(
    "LSE",
    F32,
    (_ROWS,),
    "-inf for a row of which no part has a key",
    role="the merged log-sum-exp (natural logarithm), written",
    is_written=True,
    is_dense=True,
)


@dataclass(frozen=True, slots=True)
class MergeConfig:
    """The configuration of a merge kernel: the types of the parts and of the result, and the alignment of
    their rows in bytes. With `return_lse` the merged lse is written, too. With `plus_is_empty` a part whose
    lse is +inf has seen no key, either.
    """

    target: Target
    head_dim_v: int
    dtype: DType  # type of the result
    parts: DType = F32
    alignment: int = 16  # bytes that rows of the result are multiples of
    parts_alignment: int = 16
    return_lse: bool = True
    plus_is_empty: bool = False

    @property
    def width(self) -> int:
        """The number of columns that a thread reads or writes in one access."""
        dim = self.head_dim_v
        of_result = access_width(dim, self.alignment, self.dtype.nbytes)
        of_parts = access_width(dim, self.parts_alignment, self.parts.nbytes)
        return min(of_result, of_parts, _WIDEST)

    @property
    def overlaps(self) -> bool:
        """Whether the kernel may begin before the preceding grid has ended, for which it then waits."""
        return self.target.sm >= OVERLAPPING_SM

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The partial results and the merged ones, in the order of the parameters."""
        rows = ("batch", "heads", "seq_q")
        result = (
            Operand(
                "PARTS",
                self.parts,
                (*rows, "splits"),
                f"a part whose lse is {'-inf or +inf' if self.plus_is_empty else '-inf'} may hold anything",
                columns=self.head_dim_v,
                last="head_dim_v",
                steps=("batch", "head", "row", "split"),
                role="the parts, read",
                align=self.width * self.parts.nbytes,
            ),
            Operand(
                "LSES",
                F32,
                (_ROWS, "splits"),
                steps=("row", "split"),
                role="the log-sum-exp (natural logarithm) of each part, read",
            ),
            Operand(
                "O",
                self.dtype,
                rows,
                columns=self.head_dim_v,
                last="head_dim_v",
                steps=("batch", "head", "row"),
                role="the result, written",
                is_written=True,
                align=self.width * self.dtype.nbytes,
            ),
        )
        return (*result, MERGED_LSE) if self.return_lse else result

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        types = self.dtype.name if self.parts is F32 else f"{self.parts.name}_{self.dtype.name}"
        lse = "_lse" if self.return_lse else ""
        empty = "_plus_is_empty" if self.plus_is_empty else ""
        return f"merge_partials_{types}_d{self.head_dim_v}_w{self.width}{lse}{empty}"


@dataclass(frozen=True)
class _Row:
    """One row: the addresses of its parts, of their lse and of the result."""

    parts: Value  # u64
    part_bytes: Value  # from one part to the next, s64
    lses: Value
    lse_bytes: Value
    out: Value
    splits: Value  # s32


@marked("merge: row of a warp")
def merge_kernel(config: MergeConfig) -> ir.Module:
    """Generate the kernel of this configuration: its PTX module. `flash/contract/cache.py` says what its
    parameters mean.
    """
    k = KernelBuilder(config.name, target=config.target, threads=THREADS, reciprocals=False)
    pointers = {array.name: k.pointer(array.name) for array in config.arrays}
    strides = {array.name: stride_parameters(k, array) for array in config.arrays}
    rows, seq_q, heads, splits = (
        k.signed(k.param(name, u32)) for name in ("rows", "seq_q", "heads", "splits")
    )
    if config.overlaps:
        k.note("until the grid before has written the parts")
        k.griddepcontrol_wait()
    k.note("a row for each warp")
    thread = k.thread_id()
    lane = k.signed(thread % WARP_SIZE)
    nth = k.signed(k.block_id()) * WARPS + k.signed(thread // WARP_SIZE)
    with k.when(nth < rows):
        head_of_batch = nth // seq_q
        indices = {"batch": head_of_batch // heads, "head": head_of_batch % heads, "row": nth % seq_q}

        def first(name: str, nbytes: int) -> Value:
            steps = [k.cvt(indices[s], dtype=s64) * strides[name][s] for s in indices]
            return pointers[name].value + ((steps[0] + steps[1] + steps[2]) * nbytes).as_(u64)

        of_lses = strides["LSES"]
        lses = k.cvt(nth, dtype=s64) * of_lses["row"] * F32_BYTES
        row = _Row(
            first("PARTS", config.parts.nbytes),
            strides["PARTS"]["split"] * config.parts.nbytes,
            pointers["LSES"].value + lses.as_(u64),
            of_lses["split"] * F32_BYTES,
            first("O", config.dtype.nbytes),
            splits,
        )
        lse = _merge(k, config, row, lane)
        if config.return_lse:
            with k.when(lane == 0):
                k.store(pointers["LSE"].plus(k.cvt(nth, dtype=u64) * F32_BYTES), lse)
    return k.finish()


@marked("merge: sums")
def _merge(k: KernelBuilder, config: MergeConfig, row: _Row, lane: Value) -> Value:
    """Write the merged row of O; returns its log-sum-exp."""
    k.note("the largest lse")
    result = k.var(f32, NEG_INF)
    with k.loop(lane, row.splits, step=WARP_SIZE) as split:
        k.max(result, _lse(k, config, row, split), into=result)
    largest = over_lanes(k, result, _LANES, k.max)
    base = k.selp(0.0, largest, largest == NEG_INF)

    k.note("the sum of the weights, in the order of the parts: those without a key change no bit")
    total = k.var(f32, 0.0)
    for _, _, weight in _weights(k, config, row, lane, base):
        k.add(total, weight, into=total)
    inverse = k.selp(0.0, k.rcp_rn(total), total == 0.0)

    k.note("the sum of the parts times weights that add up to 1, so that none overflows")
    span = WARP_SIZE * config.width
    column = lane * config.width
    sums = [[k.var(f32, 0.0) for _ in range(config.width)] for _ in range(-(-config.head_dim_v // span))]
    for nth, is_there, weight in _weights(k, config, row, lane, base):
        with k.when(~(weight == 0.0) & is_there):  # NaN is not 0
            _add_part(k, config, row, nth, column, weight * inverse, sums)
    for n, columns in enumerate(sums):
        with k.when(column < config.head_dim_v - n * span):
            at = row.out + k.cvt((column + n * span) * config.dtype.nbytes, dtype=u64)
            _store(k, config, at, columns)
    return base + k.lg2(total) * LN2


@marked("merge: weights")
def _weights(
    k: KernelBuilder, config: MergeConfig, row: _Row, lane: Value, base: Value
) -> Iterator[tuple[Value, Value, Value]]:
    """Loop over all parts, `_AT_ONCE` of them in each iteration. For each yields its index, whether
    there is such a part, and exp(lse - base), or 0 if there is none. Each lane computes the weight
    of one part in `WARP_SIZE`.
    """
    with k.loop(0, row.splits, step=WARP_SIZE) as first:
        local, mine = k.var(f32, 0.0), first + lane
        with k.when(mine < row.splits):
            k.ex2((_lse(k, config, row, mine) - base) * LOG2E, into=local)
        left = k.min(row.splits - first, WARP_SIZE)
        with k.loop(0, left, step=_AT_ONCE) as nth:
            for n in range(_AT_ONCE):
                weight = k.shfl(local, (nth + n).as_(u32), WARP_SIZE - 1, -1, mode="idx")
                yield first + nth + n, nth + n < left, weight


def _lse(k: KernelBuilder, config: MergeConfig, row: _Row, split: Value) -> Value:
    """The LSE of a row over one split of the keys; -inf if the row sees no key of it."""
    at = row.lses + (k.cvt(split, dtype=s64) * row.lse_bytes).as_(u64)
    result = k.load(Pointer(at, "global", f32))
    return k.selp(NEG_INF, result, result == -NEG_INF) if config.plus_is_empty else result


def _add_part(
    k: KernelBuilder,
    config: MergeConfig,
    row: _Row,
    split: Value,
    column: Value,
    weight: Value,
    sums: list[list[Var]],
) -> None:
    """Add a partial result, times its weight, to this lane's columns of O."""
    first = row.parts + (k.cvt(split, dtype=s64) * row.part_bytes).as_(u64)
    span, nbytes = WARP_SIZE * config.width, config.parts.nbytes
    for n, result in enumerate(sums):
        with k.when(column < config.head_dim_v - n * span):
            at = first + k.cvt((column + n * span) * nbytes, dtype=u64)
            for total, part in zip(result, _load(k, config, at), strict=True):
                k.fma(weight, part, total, into=total)


def _load(k: KernelBuilder, config: MergeConfig, at: Value) -> list[Value]:
    """`width` neighbouring elements of a part, as f32."""
    width, scalar = config.width, config.parts.scalar
    if scalar is f32:
        loaded = k.load(Pointer(at, "global", f32), width)
        return list(loaded) if isinstance(loaded, tuple) else [loaded]
    bits = k.load(Pointer(at, "global", u16), width)
    halves = list(bits) if isinstance(bits, tuple) else [bits]
    return [k.cvt(half.as_(scalar), dtype=f32) for half in halves]


def _store(k: KernelBuilder, config: MergeConfig, at: Value, values: Sequence[Value | Var]) -> None:
    """Round this lane's columns to the type of the result and write them."""
    scalar, width = config.dtype.scalar, config.width
    if scalar is f32:
        k.store(Pointer(at, "global", f32), values if width > 1 else values[0])
        return
    rounded = [k.cvt(value, dtype=scalar, rnd="rn").as_(u16) for value in values]
    k.store(Pointer(at, "global", u16), rounded if width > 1 else rounded[0])
