"""The kernel that writes new keys and values after those in a cache, and rotates new keys and
queries by the angles of their positions (`flash/problem/rotary.py`).

A warp has one row of one head. The lengths that it reads count the new rows: row i of n is written
to row `seqused_k - n + i` of its sequence, and nowhere if that is negative. Each item may have an n
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from flash.device.parameters import Array, InCache, ScoreArray, stride_parameters
from flash.device.row_copy import RotaryAngles, RowCopy, position_of, row_scale
from flash.operands.blocks import BlockType
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, F32_BYTES, I32, DType
from flash.problem.features import Features
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import s64, u32, u64

WARPS: Final = 4  # warps of a CTA, each with one row
THREADS: Final = WARPS * WARP_SIZE
MAX_ROWS: Final = 2**30  # new rows of all heads of all batches, and rows of a sequence
_SOURCES: Final = ("batch", "head", "row")
COUNTS: Final = Operand("counts", I32, ("batch",), "how many of its n new rows each item has: the first ones")


@dataclass(frozen=True, slots=True)
class AppendConfig:
    """The configuration of an append kernel. `features` are those of the cache. The first `rotary_dim`
    columns of each row of K and Q are rotated, in pairs of neighbours if `interleaved`.
    """

    target: Target
    head_dim: int
    head_dim_v: int
    dtype: DType
    features: Features
    rotary_dim: int = 0
    interleaved: bool = False
    counted: bool = False  # whether each item has a number of new rows of its own

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        dims = f"d{self.head_dim}" + (f"v{self.head_dim_v}" if self.head_dim_v != self.head_dim else "")
        rotary = [f"rotary{self.rotary_dim}"] if self.rotary_dim else []
        rotary += ["interleaved"] if self.interleaved else []
        counted = ["counted"] if self.counted else []
        return "_".join(["append", self.dtype.name, dims, *self.features.words, *rotary, *counted])

    @property
    def stored(self) -> DType:
        """The element type of the cache: that of new rows, unless the cache has scales."""
        return self.features.kv_dtype or self.dtype

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arrays that say where new rows go in the cache, and the arrays of its scales."""
        result = self.features.operands
        if self.features.per_token:
            written = {name: f"{name}, written for new rows" for name in ("k_scale", "v_scale")}
            result = tuple(
                replace(o, role=written[o.name], is_written=True) if o.name in written else o for o in result
            )
        return (*result, COUNTS) if self.counted else result

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The new rows, the cache and, with rotary angles, the queries and the tables, in the order
        of the parameters.
        """
        features, new = self.features, ("batch", "kv_heads", "n")
        of_cache = ("pages", "kv_heads", str(features.page_size))
        if not features.page_size:
            of_cache = (features.kv_batch, "kv_heads", "seq_k")
        steps = features.steps_of("K")
        result = [
            self._rows("K_NEW", new, "head_dim", "the new keys, read"),
            self._rows("V_NEW", new, "head_dim_v", "the new values, read"),
            self._rows("K", of_cache, "head_dim", "the keys of the cache, written", steps),
            self._rows("V", of_cache, "head_dim_v", "the values of the cache, written", steps),
        ]
        if self.rotary_dim:
            of_q = ("batch", "heads", "seq_q")
            result += [
                self._rows("Q", of_q, "head_dim", "the queries, read"),
                self._rows("Q_OUT", of_q, "head_dim", "the rotated queries, written"),
                self._angles("COS", "the cosines of the angles, read"),
                self._angles("SIN", "the sines of the angles, read"),
            ]
        return tuple(result)

    def _rows(
        self, name: str, axes: tuple[str, ...], last: str, role: str, steps: tuple[str, ...] = _SOURCES
    ) -> Operand:
        of = self.stored if name in ("K", "V") else self.dtype
        return Operand(
            name,
            of,
            axes,
            columns=of.in_row(self.head_dim if last == "head_dim" else self.head_dim_v),
            last=of.length(last),
            steps=steps,
            role=role,
            is_written=role.endswith("written"),
            align=of.row_alignment if isinstance(of, BlockType) else 0,
        )

    def _angles(self, name: str, role: str) -> Operand:
        columns, last = self.rotary_dim // 2, "rotary_dim / 2"
        return Operand(name, F32, ("positions",), columns=columns, last=last, steps=("row",), role=role)

    @property
    def counts(self) -> tuple[str, ...]:
        """The names of the u32 parameters that hold the sizes of a launch, such as seq_k."""
        of_cache = ("new_rows", "n", "kv_heads", "seq_k")
        return (*of_cache, "q_rows", "seq_q", "heads", "positions") if self.rotary_dim else of_cache


def append_kernel(config: AppendConfig) -> ir.Module:
    """Generate the kernel of this configuration: its PTX module. `flash/contract/cache.py` says what its
    parameters mean.
    """
    k = KernelBuilder(config.name, target=config.target, threads=THREADS, reciprocals=False)
    parameters = _Parameters.declare(k, config)
    thread = k.thread_id()
    lane = k.signed(thread % WARP_SIZE)
    nth = k.signed(k.block_id()) * WARPS + k.signed(thread // WARP_SIZE)
    with k.when(nth < parameters.counts["new_rows"]):
        _append(k, config, parameters, nth, lane)
    if config.rotary_dim:
        new_rows = parameters.counts["new_rows"]
        query = k.max(nth - new_rows, 0)
        with k.when((nth >= new_rows) & (query < parameters.counts["q_rows"])):
            _rotate_query(k, config, parameters, query, lane)
    return k.finish()


@dataclass(frozen=True)
class _Parameters:
    """The loaded parameters of the kernel that appends rows to a KV cache."""

    arrays: Mapping[str, Array]
    operands: Mapping[str, ScoreArray]
    counts: Mapping[str, Value]  # s32
    numbers: Mapping[str, Value]

    @classmethod
    def declare(cls, k: KernelBuilder, config: AppendConfig) -> _Parameters:
        """Declare and load the parameters: pointers, sizes, strides."""
        pointers = {array.name: k.pointer(array.name) for array in config.arrays}
        of_features = [(operand, k.pointer(operand.name)) for operand in config.operands]
        counts = {name: k.signed(k.param(name, u32)) for name in config.counts}
        numbers = {n.name: k.param(n.name, n.type) for n in config.features.numbers}
        arrays = {
            array.name: Array(
                pointers[array.name].value, stride_parameters(k, array), array.columns, 1, array.dtype.nbytes
            )
            for array in config.arrays
        }
        operands = {o.name: ScoreArray.declare(k, o, at) for o, at in of_features}
        return cls(arrays, operands, counts, numbers)

    def copy(
        self, k: KernelBuilder, config: AppendConfig, name: str, head: Value, to: tuple[InCache, Value, Value]
    ) -> RowCopy:
        """The copy of a row into a head of K or V (`name`); `to` is the cache of its item, the row's slot
        there, and the lane.
        """
        scales = self.operands.get(f"{name.lower()}_scale")
        where, slot, lane = to
        scale = None if scales is None else row_scale(k, scales, where, head, slot, lane)
        return RowCopy(k, config.dtype, config.stored, scale)

    def angles(
        self, k: KernelBuilder, config: AppendConfig, where: InCache, slot: Value
    ) -> RotaryAngles | None:
        """The rotary angles of row `slot` of a sequence; None if nothing is rotated."""
        if not config.rotary_dim:
            return None
        position = position_of(k, where, slot, self.counts["positions"])
        cos, sin = (_table_row(k, self.arrays[name], position) for name in ("COS", "SIN"))
        return RotaryAngles(cos, sin, config.rotary_dim, config.interleaved)

    def in_cache(self, k: KernelBuilder, config: AppendConfig, batch: Value) -> InCache:
        """Where the rows of item `batch` are in the cache."""
        page_size = config.features.page_size
        return InCache.of(k, self.operands, self.numbers, self.counts["seq_k"], batch, page_size)


@dataclass(frozen=True)
class _Row:
    """The coordinates of a row: batch item, head, and index in the head, all s32."""

    batch: Value
    head: Value
    row: Value

    @classmethod
    def of(cls, nth: Value, heads: Value, rows: Value) -> _Row:
        """Row `nth` of the rows of all heads of all items, where each head has `rows`."""
        head_of_batch = nth // rows
        return cls(head_of_batch // heads, head_of_batch % heads, nth % rows)

    def of_array(self, k: KernelBuilder, array: Array, rows: Value) -> Value:
        """The address of the row in an array whose heads have `rows` rows."""
        return array.head(k, self.batch, self.head, rows).row(k, self.row)


def _append(k: KernelBuilder, config: AppendConfig, parameters: _Parameters, nth: Value, lane: Value) -> None:
    """Copy a row of K_NEW and one of V_NEW into the cache."""
    n = parameters.counts["n"]
    source = _Row.of(nth, parameters.counts["kv_heads"], n)
    where = parameters.in_cache(k, config, source.batch)
    slot, written = _slot_of_new(k, config, parameters, where, source)
    with k.when(written):
        angles = parameters.angles(k, config, where, slot)
        columns = {"K": (config.head_dim, angles), "V": (config.head_dim_v, None)}
        rows = {
            name: (
                parameters.copy(k, config, name, source.head, (where, slot, lane)),
                where.head(k, parameters.arrays[name], source.head).row(k, slot),
                source.of_array(k, parameters.arrays[f"{name}_NEW"], n),
            )
            for name in columns
        }
        held = {name: copy.read(begin, lane, *columns[name]) for name, (copy, _, begin) in rows.items()}
        for name, (copy, to, _) in rows.items():
            copy.write(to, held[name])


def _slot_of_new(
    k: KernelBuilder, config: AppendConfig, parameters: _Parameters, where: InCache, source: _Row
) -> tuple[Value, Value]:
    """The row of its sequence that a new row becomes, s32, and whether it is written."""
    n = parameters.counts["n"]
    if not config.counted:
        slot = where.rows - n + source.row
        return slot, slot >= 0
    count = k.max(k.min(parameters.operands[COUNTS.name].of_sequence(k, source.batch), n), 0)
    remaining = count - 1 - source.row  # how many rows of the item come after this one
    slot = where.rows - 1 - remaining
    return slot, (remaining >= 0) & (slot >= 0)


def _table_row(k: KernelBuilder, table: Array, position: Value) -> Value:
    down = k.cvt(position, dtype=s64) * table.strides["row"]
    return table.first + (down * F32_BYTES).as_(u64)


def _rotate_query(
    k: KernelBuilder, config: AppendConfig, parameters: _Parameters, nth: Value, lane: Value
) -> None:
    """Rotate a row of Q into Q_OUT."""
    seq_q = parameters.counts["seq_q"]
    row = _Row.of(nth, parameters.counts["heads"], seq_q)
    where = parameters.in_cache(k, config, row.batch)
    begin, to = (row.of_array(k, parameters.arrays[name], seq_q) for name in ("Q", "Q_OUT"))
    angles = parameters.angles(k, config, where, where.rows - seq_q + row.row)
    copy = RowCopy(k, config.dtype, config.dtype, None)
    copy.write(to, copy.read(begin, lane, config.head_dim, angles))
