"""New rows of a KV cache, written by the CTAs of the forward kernel that attend to them, so that they need no
launch of their own.

Each row is written by the one CTA that reads it: the CTA of its head of K and V and, where several CTAs share
the keys, of the split whose tiles hold the row. So one CTA must have all queries of a head of K and V. Rows
that no query sees lie before the rows that some query sees, because the last query sees the last row; the
first split writes them. Queries are rotated in shared memory, by the angles of `flash/device/row_copy.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flash.device.cta import Cta
from flash.device.parameters import InCache, Parameters
from flash.device.row_copy import (
    BITS,
    RotaryAngles,
    RowCopy,
    as_f32,
    load_if,
    only_if,
    position_of,
    rotated_pair,
    rounded,
    row_scale,
)
from flash.device.team import WHOLE_CTA, Team
from flash.operands.dtypes import DType
from flash.problem.features import Appended, Rotation
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, marked
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.types import u32

_PAIRS: Final = 4  # pairs that a thread rotates at once: the loads of their angles overlap


@dataclass(frozen=True)
class AppendedKV:
    """The new cache rows that a CTA writes, if there are any, and the queries that it rotates."""

    k: KernelBuilder
    new: Appended | None  # None: only queries are rotated
    rotation: Rotation | None
    dtype: DType  # type of Q
    stored: DType  # type of K and V
    block_q: int
    parameters: Parameters
    cta: Cta
    where: InCache
    is_copied: bool  # whether tensor copies read what is written

    @classmethod
    def of(
        cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters, cta: Cta
    ) -> AppendedKV | None:
        """The new rows and rotated queries of this CTA. Returns None if the kernel neither appends rows nor
        rotates queries.
        """
        features = config.features
        if features.appended is None and features.rotation is None:
            return None
        assert cta.in_cache is not None  # rows are appended to caches only
        stored = features.kv_dtype or config.dtype
        block_q = config.tiling.block_q
        new, rotation = features.appended, features.rotation
        is_copied = bool(config.family.mapped)
        return cls(k, new, rotation, config.dtype, stored, block_q, parameters, cta, cta.in_cache, is_copied)

    @classmethod
    def written(
        cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters, cta: Cta
    ) -> AppendedKV | None:
        """Write the new rows of this CTA, if there are any; all its threads may read them afterwards. Returns
        what `of` returns.
        """
        appended = cls.of(k, config, parameters, cta)
        if appended is not None and appended.new is not None:
            appended._write_all(appended.new)
        return appended

    @property
    def rotates(self) -> bool:
        """Whether the kernel rotates the queries by rotary angles."""
        return self.rotation is not None

    @marked("new rows: loop")
    def _write_all(self, new: Appended) -> None:
        k, n = self.k, self.k.signed(self.parameters.numbers["n"])
        k.note("the new rows of this CTA's keys")
        thread = k.thread_id()
        with k.loop(k.signed(thread // WARP_SIZE), n, step=k.threads // WARP_SIZE) as row:
            slot = self.where.rows - n + row
            with k.when(self._is_read_here(slot)):
                self._write(new, row, slot, k.signed(thread % WARP_SIZE))
        if self.is_copied:
            k.fence_proxy_async(space="global")
        k.barrier()

    @marked("new rows: own rows")
    def _is_read_here(self, slot: Value) -> Value:
        """Whether row `slot` of the sequence exists and is one of the keys that this CTA reads."""
        part, padding = self.cta.part, self.where.padding
        is_there = slot >= 0
        if part is None:
            return is_there
        key, tile = slot if padding is None else slot - padding, self.cta.tile
        assert self.cta.first_tile is not None  # a split has one
        not_before = (part.number == 0) | (key >= self.cta.first_tile * tile)
        return is_there & not_before & (key < self.cta.tiles * tile)

    def _write(self, new: Appended, row: Value, slot: Value, lane: Value) -> None:
        k, head = self.k, self.cta.kv_head
        angles = None if self.rotation is None else self._angles(self.rotation, slot)
        held = []
        for name, columns in (("K", new.head_dim), ("V", new.head_dim_v)):
            array = self.parameters.K if name == "K" else self.parameters.V
            scales = self.parameters.operands.get(f"{name.lower()}_scale")
            scale = None if scales is None else row_scale(k, scales, self.where, head, slot, lane)
            copy = RowCopy(k, new.dtype, self.stored, scale)
            begin = self.parameters.operands[f"{name.lower()}_new"].address(k, self.cta.batch, head, row)
            to = self.where.head(k, array, head).row(k, slot)
            held.append((copy, to, copy.read(begin, lane, columns, angles if name == "K" else None)))
        for copy, to, parts in held:
            copy.write(to, parts)

    def _angles(self, rotation: Rotation, slot: Value) -> RotaryAngles:
        """The rotary angles (cos and sin) for the position of row `slot` of the sequence."""
        k, operands = self.k, self.parameters.operands
        position = position_of(k, self.where, slot, k.signed(self.parameters.numbers["positions"]))
        cos, sin = (operands[f"rotary_{name}"].address(k, position) for name in ("cos", "sin"))
        return RotaryAngles(cos, sin, rotation.rotary_dim, rotation.interleaved)

    @marked("new rows: queries")
    def rotate_queries(
        self,
        element: Callable[[Value, Value], Pointer | TilePointer],
        team: Team = WHOLE_CTA,
        first_row: int = 0,
        count: int | None = None,
    ) -> None:
        """Rotate the queries that have arrived in shared memory, or `count` of their rows from `first_row`
        on, by all threads of the team; `element(row, column)` is the address of an element there. All threads
        see the rotated queries after the next barrier.
        """
        assert self.rotation is not None  # see `rotates`
        k, rotation, half = self.k, self.rotation, self.rotation.rotary_dim // 2
        k.note("queries are turned where they are")
        count = self.block_q if count is None else count
        left = self.cta.Q.rows - self.cta.first_row
        rows = k.min(left - first_row if first_row else left, count)
        pairs = k.max(rows, 0).as_(u32) * half
        threads = team.threads(k)
        at_once = min(_PAIRS, -(-count * half // threads))
        with k.loop(team.thread(k), pairs, step=threads * at_once, type=u32) as first:
            groups = []
            for n in range(at_once):
                nth = first + threads * n if n else first
                inside = nth < pairs if n else None
                row = nth // half + first_row if first_row else nth // half
                groups.append((self._rotated(rotation, row, nth % half, element, inside), inside))
            for parts, inside in groups:
                for at, bits in parts:
                    with only_if(k, inside):
                        k.store(at, bits)

    @marked("new rows: element of a query")
    def _rotated(
        self,
        rotation: Rotation,
        row: Value,
        pair: Value,
        element: Callable[[Value, Value], Pointer | TilePointer],
        inside: Value | None,
    ) -> list[tuple[Pointer, Value]]:
        """The addresses of the two elements of a pair of columns, and their rotated bits."""
        k = self.k
        query = self.cta.query(self.cta.first_row + k.signed(row))
        angles = self._angles(rotation, self.where.rows - self.cta.queries + query)
        addresses = []
        for column in angles.columns(pair):
            at = element(row, column)
            addresses.append(Pointer(at.value, "shared", BITS[self.dtype.nbytes], at.offset))
        a, b = (as_f32(k, load_if(k, at, inside), self.dtype) for at in addresses)
        values = rotated_pair(a, b, *angles.angle(k, pair, inside))
        return [(at, rounded(k, x, self.dtype)) for at, x in zip(addresses, values, strict=True)]
