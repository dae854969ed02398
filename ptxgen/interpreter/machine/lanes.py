"""The threads of a batch of CTAs as lanes, and the selection of those that execute a block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ModifierError
from ptxgen.interpreter.machine.address_map import RANK_SHIFT

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

WARP: Final = 32

# If a larger part of the warps takes part, masking is cheaper than picking their lanes out.
_WORTH_PICKING: Final = 0.9


@dataclass(frozen=True)
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

    @cached_property
    def cluster_size(self) -> int:
        """The number of CTAs of a cluster."""
        return math.prod(self.cluster)

    @cached_property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return math.prod(self.block)

    @cached_property
    def width(self) -> int:
        """The number of lanes of a CTA: its threads, and the lanes that fill its last warp."""
        return -(-self.threads // WARP) * WARP

    @cached_property
    def lanes(self) -> int:
        """The number of lanes of the batch."""
        return self.ctas * self.width

    @cached_property
    def numbers(self) -> Lanes:
        """The numbers of the lanes, `[lanes]` int64."""
        return np.arange(self.lanes)

    @cached_property
    def shared_base(self) -> Lanes | None:
        """Where the shared memory of each lane's CTA begins, `[lanes]` int64; None of one CTA, whose begins
        at byte 0.
        """
        return self.numbers // self.width * self.shared_stride if self.ctas > 1 else None

    @cached_property
    def rank_base(self) -> Lanes | None:
        """The address of byte 0 of the shared memory of each lane's CTA, `[lanes]` int64; None if clusters
        have one CTA.
        """
        size = self.cluster_size
        return self.numbers // self.width % size << RANK_SHIFT if size > 1 else None

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
                _index(number, self._clusters), self.cluster, _index(rank, self.cluster), strict=True
            )
        )
        return x, y, z

    def number_of(self, index: tuple[int, int, int]) -> int:
        """The number of the CTA with an index in the grid."""
        clusters, inside = zip(*map(divmod, index, self.cluster), strict=True)
        number = _flat(clusters, self._clusters)
        return number * self.cluster_size + _flat(inside, self.cluster)

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
        special = np.empty(self.lanes, np.uint64)
        special[:] = values
        return special

    @cached_property
    def _clusters(self) -> tuple[int, int, int]:
        """The extents of the grid in clusters."""
        x, y, z = (-(-g // c) for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def _ctas(self) -> Lanes:
        """The number of each lane's CTA."""
        return self.first + self.numbers // self.width

    def _vector(self, kind: str, axis: int) -> Lanes | int | None:
        size = self.cluster[axis]
        known: dict[str, int] = {
            "%ntid": self.block[axis],
            "%nctaid": self.grid[axis],
            "%cluster_nctaid": size,
            "%nclusterid": self._clusters[axis],
        }
        if kind in known:
            return known[kind]
        if kind == "%tid":
            inside = (1, self.block[0], self.block[0] * self.block[1])[axis]
            return self.numbers % self.width // inside % self.block[axis]
        ctas = self._ctas()
        if kind == "%ctaid" and self.cluster_size == 1:
            return _along(ctas, self.grid, axis)
        inside_cluster = _along(ctas % self.cluster_size, self.cluster, axis)
        cluster = _along(ctas // self.cluster_size, self._clusters, axis)
        by_kind = {
            "%cluster_ctaid": inside_cluster,
            "%clusterid": cluster,
            "%ctaid": cluster * size + inside_cluster,
        }
        return by_kind.get(kind)

    def _scalar(self, kind: str) -> Lanes | int | None:
        thread = self.numbers % self.width
        lane = (thread % WARP).astype(np.uint64)
        one = np.left_shift(np.uint64(1), lane)
        # The model has a multiprocessor for each CTA.
        known: dict[str, Lanes | int] = {
            "%laneid": lane,
            "%warpid": thread // WARP,
            "%nwarpid": 64,
            "%smid": self._ctas(),
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
            "%cluster_ctarank": self._ctas() % self.cluster_size,
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


def _flat(index: tuple[int, ...], extents: tuple[int, int, int]) -> int:
    x, y, z = index
    return x + extents[0] * (y + extents[1] * z)


class Selection:
    """The lanes that execute a block: whole warps, picked out if they are few, and a mask over
    their lanes.

    `mask` is over all lanes of the batch, or None if all execute. `rows` are the picked warps
    (None: all), `count` is the number of their lanes, and `inner` the mask over these lanes (None: all
    active).
    """

    __slots__ = ("_ids", "_slice", "batch", "count", "inner", "mask", "rows", "threads", "warps")

    def __init__(self, batch: Batch, mask: Lanes) -> None:
        self.batch = batch
        self.threads = int(np.count_nonzero(mask))
        self.rows: Lanes | None = None
        self.inner: Lanes | None = None
        self.mask: Lanes | None = None
        self.count = batch.lanes
        self.warps = self.count // WARP
        self._ids: Lanes | None = None  # made when they are first asked for
        if self.threads == self.count:
            return
        self.mask = self.inner = mask
        present = np.packbits(mask).view(np.uint32).nonzero()[0]  # a word has the bits of a warp
        if len(present) < _WORTH_PICKING * self.warps:
            self.rows = present
            first, last = int(present[0]), int(present[-1]) + 1
            # The lanes of consecutive warps are a slice, which numpy does not copy.
            self._slice = slice(first * WARP, last * WARP) if last - first == len(present) else None
            self.count = len(present) * WARP
            self.inner = None if self.threads == self.count else self.pick(mask)
        self.warps = len(present)

    @property
    def ids(self) -> Lanes:
        """The numbers in the batch of the lanes that `count` counts."""
        if self._ids is None:
            self._ids = self.pick(self.batch.numbers)
        return self._ids

    @property
    def shared_base(self) -> Lanes | None:
        """Where the shared memory of each lane's CTA begins; None if that is byte 0 for all lanes."""
        base = self.batch.shared_base
        return None if base is None else self.pick(base)

    @property
    def rank_base(self) -> Lanes | None:
        """The address of byte 0 of the shared memory of each lane's CTA; None if clusters have one CTA."""
        base = self.batch.rank_base
        return None if base is None else self.pick(base)

    def full_mask(self) -> Lanes:
        """The mask over all lanes of the batch."""
        return np.ones(self.batch.lanes, np.bool_) if self.mask is None else self.mask

    def widen(self, inner: Lanes) -> Lanes:
        """A mask over the picked lanes, extended to all lanes of the batch."""
        if self.rows is None:
            return inner
        return self._put(np.zeros(self.batch.lanes, np.bool_), inner)

    def pick(self, register: Lanes) -> Lanes:
        """The values of the picked lanes of a register, which are not to be changed."""
        if self.rows is None:
            return register
        if self._slice is not None:
            return register[self._slice]
        return register.reshape(-1, WARP).take(self.rows, axis=0).reshape(-1)

    def merge(self, old: Lanes, new: Lanes) -> Lanes:
        """A register after the active lanes have taken new values, which are given for the picked lanes."""
        if self.inner is not None:
            new = np.where(self.inner, new, self.pick(old))
        return new if self.rows is None else self._put(old.copy(), new)

    def _put(self, register: Lanes, values: Lanes) -> Lanes:
        """A register with the values of the picked lanes, which are written to it."""
        if self._slice is not None:
            register[self._slice] = values
        else:
            register.reshape(-1, WARP)[self.rows] = values.reshape(-1, WARP)
        return register


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
