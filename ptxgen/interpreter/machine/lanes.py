"""The threads of a batch of CTAs as lanes, and the selection of those that execute a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ModifierError
from ptxgen.interpreter.machine.address_map import RANK_SHIFT

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

WARP: Final = 32

# If a larger part of the warps takes part, masking is cheaper than picking their lanes out.
_WORTH_PICKING: Final = 0.9


@dataclass(frozen=True, slots=True)
class Batch:
    """CTAs `first` to `first + ctas - 1` of a grid; each CTA has `width` lanes, whole warps of 32.

    CTAs are numbered cluster by cluster, x fastest both among clusters and inside one; a batch
    never splits a cluster. The first `reserved_bytes` of the `shared_bytes` of a CTA are the
    driver's; `workspace` is the address of the driver's workspace of a cooperative launch, 0 for
    other launches.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    first: int
    ctas: int
    shared_stride: int
    shared_bytes: int
    dynamic_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    reserved_bytes: int = 0
    workspace: int = 0

    @property
    def cluster_size(self) -> int:
        """The number of CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return math.prod(self.block)

    @property
    def width(self) -> int:
        """The number of lanes of a CTA: its threads, and the lanes that fill its last warp."""
        return -(-self.threads // WARP) * WARP

    @property
    def lanes(self) -> int:
        """The number of lanes of the batch."""
        return self.ctas * self.width

    def real(self) -> Lanes:
        """Which lanes are threads, `[lanes]` bool."""
        return np.tile(np.arange(self.width) < self.threads, self.ctas)

    def cta(self, lane: int) -> tuple[int, int, int]:
        """The index in the grid of a lane's CTA."""
        return self.index_of(self.first + lane // self.width)

    def index_of(self, cta: int) -> tuple[int, int, int]:
        """The index in the grid of the CTA with a number."""
        number, rank = divmod(cta, self.cluster_size)
        x, y, z = (
            c * size + inside
            for c, size, inside in zip(
                _index(number, self._clusters()), self.cluster, _index(rank, self.cluster), strict=True
            )
        )
        return x, y, z

    def thread(self, lane: int) -> tuple[int, int, int]:
        """The index of a lane's thread in its CTA."""
        return _index(lane % self.width, self.block)

    def special(self, name: str) -> Lanes:
        """The values of a special register that never changes, `[lanes]`. Raises `ModifierError`
        for one that is not modelled.
        """
        kind, _, axis = name.partition(".")
        values = self._vector(kind, "xyz".index(axis)) if axis else self._scalar(kind)
        if values is None:
            raise ModifierError(f"the interpreter does not model the special register {name}")
        return np.ascontiguousarray(np.broadcast_to(values, self.lanes).astype(np.uint64))

    def _clusters(self) -> tuple[int, int, int]:
        """The extents of the grid in clusters."""
        x, y, z = (-(-g // c) for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def _numbers(self) -> Lanes:
        """The number of each lane's CTA."""
        return np.repeat(self.first + np.arange(self.ctas), self.width)

    def _vector(self, kind: str, axis: int) -> Lanes | int | None:
        size = self.cluster[axis]
        known: dict[str, int] = {
            "%ntid": self.block[axis],
            "%nctaid": self.grid[axis],
            "%cluster_nctaid": size,
            "%nclusterid": self._clusters()[axis],
        }
        if kind in known:
            return known[kind]
        if kind == "%tid":
            inside = (1, self.block[0], self.block[0] * self.block[1])[axis]
            return np.tile(np.arange(self.width) // inside % self.block[axis], self.ctas)
        inside_cluster = _along(self._numbers() % self.cluster_size, self.cluster, axis)
        cluster = _along(self._numbers() // self.cluster_size, self._clusters(), axis)
        by_kind = {
            "%cluster_ctaid": inside_cluster,
            "%clusterid": cluster,
            "%ctaid": cluster * size + inside_cluster,
        }
        return by_kind.get(kind)

    def _scalar(self, kind: str) -> Lanes | int | None:
        thread = np.arange(self.lanes) % self.width
        lane = (thread % WARP).astype(np.uint64)
        one = np.left_shift(np.uint64(1), lane)
        # The model has a multiprocessor for each CTA.
        known: dict[str, Lanes | int] = {
            "%laneid": lane,
            "%warpid": thread // WARP,
            "%nwarpid": 64,
            "%smid": self._numbers(),
            "%nsmid": math.prod(self.grid),
            "%gridid": 1,
            "%lanemask_eq": one,
            "%lanemask_lt": one - 1,
            "%lanemask_le": one * 2 - 1,
            "%lanemask_ge": (1 << WARP) - one,
            "%lanemask_gt": (1 << WARP) - one * 2,
            "%total_smem_size": self.shared_bytes - self.reserved_bytes,
            "%aggr_smem_size": self.shared_bytes,
            "%dynamic_smem_size": self.dynamic_bytes,
            "%is_explicit_cluster": int(self.cluster_size > 1),
            "%cluster_ctarank": self._numbers() % self.cluster_size,
            "%cluster_nctarank": self.cluster_size,
            "%reserved_smem_offset_begin": 0,
            "%reserved_smem_offset_0": 0,
            "%reserved_smem_offset_1": self.reserved_bytes // 2,
            "%reserved_smem_offset_end": self.reserved_bytes,
            "%reserved_smem_offset_cap": self.reserved_bytes,
            "%envreg1": self.workspace >> 32,
            "%envreg2": self.workspace & 0xFFFFFFFF,
        }
        return known.get(kind)


def _along(numbers: Lanes, extents: tuple[int, int, int], axis: int) -> Lanes:
    before = (1, extents[0], extents[0] * extents[1])[axis]
    along: Lanes = numbers // before % extents[axis]
    return along


def _index(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


class Selection:
    """The lanes that execute a block: whole warps, picked out if they are few, and a mask over
    their lanes.

    `mask` is over all lanes of the batch, or None if all execute. `rows` are the picked warps
    (None: all), `count` is the number of their lanes, `inner` the mask over these lanes (None: all
    active), and `ids` their numbers in the batch. `rank_base` is the address of byte 0 of the
    shared memory of each lane's CTA, int64; None if clusters have one CTA.
    """

    __slots__ = (
        "batch",
        "count",
        "ids",
        "inner",
        "mask",
        "rank_base",
        "rows",
        "shared_base",
        "threads",
        "warps",
    )

    def __init__(self, batch: Batch, mask: Lanes) -> None:
        self.batch = batch
        self.threads = int(np.count_nonzero(mask))
        self.mask: Lanes | None = None if self.threads == batch.lanes else mask
        by_warp = mask.reshape(-1, WARP)
        present: Lanes = np.logical_or.reduce(by_warp, axis=1)
        self.warps = int(np.count_nonzero(present))
        self.rows: Lanes | None = None
        self.inner = self.mask
        if self.warps < _WORTH_PICKING * len(present):
            self.rows = np.flatnonzero(present)
            inner = by_warp[self.rows].reshape(-1)
            self.inner = None if inner.all() else inner
        lanes = np.arange(batch.lanes)
        self.ids: Lanes = self.pick(lanes)
        self.count = len(self.ids)
        # None: one CTA, with shared memory from byte 0
        self.shared_base: Lanes | None = (
            self.ids // batch.width * batch.shared_stride if batch.ctas > 1 else None
        )
        size = batch.cluster_size
        self.rank_base: Lanes | None = self.ids // batch.width % size << RANK_SHIFT if size > 1 else None

    def full_mask(self) -> Lanes:
        """The mask over all lanes of the batch."""
        return np.ones(self.batch.lanes, np.bool_) if self.mask is None else self.mask

    def widen(self, inner: Lanes) -> Lanes:
        """A mask over the picked lanes, extended to all lanes of the batch."""
        if self.rows is None:
            return inner
        wide = np.zeros((self.batch.lanes // WARP, WARP), np.bool_)
        wide[self.rows] = inner.reshape(-1, WARP)
        return wide.reshape(-1)

    def pick(self, register: Lanes) -> Lanes:
        """The values of the picked lanes of a register."""
        if self.rows is None:
            return register
        return register.reshape(-1, WARP).take(self.rows, axis=0).reshape(-1)

    def merge(self, old: Lanes, new: Lanes) -> Lanes:
        """A register after the active lanes have taken new values, which are given for the picked lanes."""
        if self.rows is None:
            return new if self.inner is None else np.where(self.inner, new, old)
        merged = old.copy()
        if self.inner is not None:
            new = np.where(self.inner, new, self.pick(old))
        merged.reshape(-1, WARP)[self.rows] = new.reshape(-1, WARP)
        return merged


def absent_member(here: Lanes, gone: Lanes, members: Lanes) -> tuple[int, str] | None:
    """The first active lane whose membermask names a lane that does not take part, or lacks the
    lane itself, and the mistake in words; None if there is none.

    `here` says which lanes are active, `gone` which have exited or never existed, bool; `members`
    are the masks, uint32.
    """
    bits = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))
    here, gone, members = (x.reshape(-1, WARP) for x in (here, gone, members))
    present = np.where(here, bits, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    fine = np.where(here | gone, bits, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    for wrong, what in (
        ((members & bits) == 0, "its own lane is not in the membermask"),
        ((members & ~fine[:, None]) != 0, "lanes of the membermask are not here"),
    ):
        lanes = np.flatnonzero(here & wrong)
        if len(lanes):
            lane = int(lanes[0])
            mask, active = int(members.reshape(-1)[lane]), int(present[lane // WARP])
            return lane, f"{what} {mask:#010x}; the active lanes are {active:#010x}"
    return None
