"""The allocator of tensor memory: which columns of each CTA belong to an allocation, and the warps that wait
for columns, or for the other CTA of their pair (PTX ISA, "TensorCore 5th Generation Family Instructions:
Tensor Memory and Register Load/Store Instructions").

An allocation takes the lowest columns that are free side by side. While there are none, its warp waits, and
so do later allocations of the CTA. With pairs of CTAs, a warp of each CTA makes every request, and the two
requests are met at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.isa.tensor_memory import ALLOCATIONS, COLUMNS

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.faults import Faults
    from ptxgen.interpreter.machine.lanes import Batch

    Lanes = np.ndarray[Any, np.dtype[Any]]

ALLOCATE: Final = "tcgen05.alloc"
FREE: Final = "tcgen05.dealloc"
RELINQUISH: Final = "tcgen05.relinquish_alloc_permit"

Done = Callable[[int], None]  # takes the first column of an allocation


def unpaired(batch: Batch) -> str:
    """The mistake in words of a kernel that uses pairs in a cluster of an odd size."""
    return (
        f"a pair has two CTAs of one cluster, and the cluster has {batch.cluster_size}; launch the kernel "
        "with an even cluster"
    )


@dataclass(frozen=True, slots=True)
class Request:
    """What a warp, named by its active lanes, asks for with instruction `at`: `columns` to allocate, or those
    from `first` on to free. `done` is called when they are allocated.
    """

    what: str
    at: int
    ids: Lanes
    columns: int = 0
    first: int = 0
    pair: bool = False
    done: Done | None = None


@dataclass(slots=True)
class _Cta:
    """The tensor memory of one CTA."""

    allocations: dict[int, tuple[int, int]] = field(default_factory=dict)  # columns and instruction, by first
    largest: int = COLUMNS  # columns that the next allocation may have
    relinquished: bool = False
    # By instruction: a warp that frees columns does not queue after those that wait for them.
    requests: dict[str, deque[Request]] = field(
        default_factory=lambda: {what: deque() for what in (FREE, RELINQUISH, ALLOCATE)}
    )

    def taken(self) -> str:
        """The allocated columns in words."""
        ranges = [f"{first} to {first + n - 1}" for first, (n, _) in sorted(self.allocations.items())]
        return f"has allocated columns {', '.join(ranges)}" if ranges else "has allocated none"


class TensorAllocator:
    """The tensor memory of all CTAs of a batch. `waiting` says which lanes wait for a request, bool, `since`
    in which instruction. `allocated` counts for each CTA the allocated columns before each column.
    """

    def __init__(self, batch: Batch, faults: Faults) -> None:
        self._batch = batch
        self._faults = faults
        self._ctas = [_Cta() for _ in range(batch.ctas)]
        self.allocated: Lanes = np.zeros((batch.ctas, COLUMNS + 1), np.int64)
        self.waiting: Lanes = np.zeros(batch.lanes, np.bool_)
        self.since: Lanes = np.zeros(batch.lanes, np.int64)
        self._changed = False

    def ask(self, request: Request) -> None:
        """Queue a request for tensor memory; its lanes wait until `complete` returns them. Raises `TrapError`
        for a request that breaks the rules of tcgen05.alloc, dealloc or relinquish_alloc_permit.
        """
        cta = self._cta(request)
        self._check(request, self._ctas[cta])
        self._ctas[cta].requests[request.what].append(request)
        self.waiting[request.ids] = True
        self.since[request.ids] = request.at
        self._changed = True

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, whose requests have been met; None if there are none."""
        del exited
        if not self._changed:
            return None
        self._changed = False
        free = np.zeros_like(self.waiting)
        for cta, of in enumerate(self._ctas):
            for requests in of.requests.values():
                while requests and self._meet(cta, requests[0], free):
                    pass
        self.waiting &= ~free
        return free if free.any() else None

    def describe(self, lane: int) -> str:
        """What a lane waits for, in words."""
        cta = lane // self._batch.width
        of = self._ctas[cta]
        request, first = next((r, rs[0]) for rs in of.requests.values() for r in rs if lane in r.ids)
        if request is not first:
            return f"the {request.what} that another warp of the CTA has begun before"
        if request.pair and not self._ctas[cta ^ 1].requests[request.what]:
            return f"the {request.what} of the other CTA of its pair"
        return f"{request.columns} columns of tensor memory side by side (the CTA {of.taken()})"

    def taken(self, cta: int) -> str:
        """The columns that a CTA has allocated, in words that follow `the CTA`."""
        return self._ctas[cta].taken()

    def finish(self) -> tuple[int, str] | None:
        """An allocation that a CTA has not freed at its end: its instruction and a message; None if there is
        none.
        """
        for cta, of in enumerate(self._ctas):
            for first, (columns, at) in of.allocations.items():
                return at, (
                    f"{self._faults.where(at)}: CTA {self._batch.cta(cta * self._batch.width)} ends with the "
                    f"columns {first} to {first + columns - 1} of tensor memory allocated; free them with "
                    f"{FREE} before the last thread ends"
                )
        return None

    # ------------------------------------------------------------------------------------- helpers

    def _cta(self, request: Request) -> int:
        return int(request.ids[0]) // self._batch.width

    def _check(self, request: Request, of: _Cta) -> None:
        if request.pair and self._batch.cluster_size % 2:
            self._refuse(request, unpaired(self._batch))
        if request.what == RELINQUISH:
            return
        if request.columns not in ALLOCATIONS:
            self._refuse(
                request, f"wanted 32, 64, 128, 256 or 512 columns of tensor memory, got {request.columns}"
            )
        if request.what == ALLOCATE and of.relinquished:
            self._refuse(
                request,
                f"the CTA has promised with {RELINQUISH} to allocate no more; allocate before that "
                "instruction",
            )

    def _meet(self, cta: int, request: Request, free: Lanes) -> bool:
        """Meet the first request of a CTA, if it is possible now; `free` gets its lanes."""
        ctas = [cta]
        if request.pair:
            ctas = [cta & ~1, cta | 1]
            other = self._ctas[cta ^ 1].requests[request.what]
            if not other:
                return False
            if other[0].columns != request.columns:
                self._refuse(
                    request,
                    "both CTAs of a pair give the same number of columns, and this one gives "
                    f"{request.columns}, the other {other[0].columns}",
                )
        requests = [self._ctas[n].requests[request.what][0] for n in ctas]
        if request.what == ALLOCATE:
            first = self._room(ctas, request)
            if first is None:
                return False
            self._take(ctas, first, requests)
        for n, one in zip(ctas, requests, strict=True):
            of = self._ctas[n]
            if one.what == FREE:
                self._free(one, n)
            elif one.what == RELINQUISH:
                of.relinquished = True
            of.requests[one.what].popleft()
            free[one.ids] = True
        return True

    def _room(self, ctas: list[int], request: Request) -> int | None:
        """The first of the columns that an allocation gets in each of the CTAs; None if there is no room."""
        n = request.columns
        largest = min(self._ctas[c].largest for c in ctas)
        if n > largest:
            self._refuse(
                request,
                f"an allocation of {n} columns of tensor memory follows one of {largest}, and a CTA's later "
                "allocations are not larger; allocate the largest first",
            )
        for first in range(0, COLUMNS - n + 1, ALLOCATIONS[0]):
            if all(self.allocated[c, first + n] == self.allocated[c, first] for c in ctas):
                return first
        return None

    def _take(self, ctas: list[int], first: int, requests: list[Request]) -> None:
        for cta, request in zip(ctas, requests, strict=True):
            of = self._ctas[cta]
            of.allocations[first] = request.columns, request.at
            of.largest = request.columns
            self._count(cta)
            assert request.done is not None
            request.done(first)

    def _free(self, request: Request, cta: int) -> None:
        of = self._ctas[cta]
        allocation = of.allocations.get(request.first)
        if allocation is None or allocation[0] != request.columns:
            self._refuse(
                request,
                f"frees {request.columns} columns of tensor memory at {request.first:#x}, but the CTA "
                f"{of.taken()}; give the address that {ALLOCATE} has written, and its number of columns",
            )
        del of.allocations[request.first]
        self._count(cta)

    def _count(self, cta: int) -> None:
        """Count the allocated columns of a CTA anew."""
        taken = np.zeros(COLUMNS, np.int64)
        for first, (columns, _) in self._ctas[cta].allocations.items():
            taken[first : first + columns] = 1
        self.allocated[cta, 1:] = np.cumsum(taken)

    def _refuse(self, request: Request, why: str) -> None:
        raise TrapError(f"{self._faults.where(request.at, int(request.ids[0]))}: {why}")
