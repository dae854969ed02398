"""The checks of tensor memory: of `tcgen05.ld`, `.st`, `.mma`, `.cp` and `.commit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.observer import TensorObserver
from ptxgen.interpreter.sanitizers.detectors import WAIT_FOR_COMMIT
from ptxgen.interpreter.sanitizers.names import TENSOR_FENCE, TENSOR_ORDER
from ptxgen.interpreter.sanitizers.shared_blocks import Product
from ptxgen.interpreter.sanitizers.tensor_order import TensorOrder
from ptxgen.interpreter.sanitizers.tensor_race import TensorRaces, address_of, units_at, units_of_columns
from ptxgen.isa.tensor_agent import Columns
from ptxgen.isa.tensor_memory import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.conflicts import Conflict
    from ptxgen.interpreter.sanitizers.detectors import Detectors
    from ptxgen.isa.tensor_agent import Operation, RegisterShape

    Lanes = np.ndarray[Any, np.dtype[Any]]

_CHUNK: Final = 16  # bytes: the size of the pieces of matrices in shared memory


class TensorWatch(TensorObserver):
    """The part of `Watch` that follows the tensor memory of a batch."""

    def __init__(self, watch: Detectors, batch: Batch) -> None:
        self._watch = watch
        self._stride = batch.shared_stride
        self._width = batch.width
        fences, pairs = watch.wants(TENSOR_FENCE), watch.wants(TENSOR_ORDER)
        self._order: TensorOrder | None = None
        if fences or pairs:
            self._order = TensorOrder(watch.clocks, watch.instrs, fences=fences, pairs=pairs)
        self.races = TensorRaces(watch.clocks, batch, self._order)
        # By number of an operation: the instruction, lane and mbarrier of the arrival of a commit, and the
        # newest operation that it covers.
        self._arrivals: dict[int, tuple[int, int, int, int]] = {}

    def loads(self, at: int, lane: int, cell: int, of: RegisterShape) -> None:
        """The warp of a lane loads a shape that begins at a cell."""
        self._judge(at, lane, self.races.load(lane, units_at(cell, of), at))

    def stores(self, at: int, lane: int, cell: int, of: RegisterShape) -> None:
        """The warp of a lane starts to store a shape that begins at a cell."""
        self._judge(at, lane, self.races.store(lane, units_at(cell, of), at))

    def waits(self, lane: int, way: str) -> None:
        """The warp of a lane has waited for its loads (`way` "ld") or its stores ("st")."""
        if way == "st":
            self.races.wait(lane)
        elif self._order is not None:
            self._order.wait(lane // WARP)

    def fence(self, ids: Lanes, side: str) -> None:
        """Lanes execute `tcgen05.fence`, `side` before or after the synchronisation of threads."""
        if self._order is not None:
            self._order.fence(ids, side)

    def starts(self, at: int, lane: int, ctas: tuple[int, ...], operation: Operation) -> None:
        """A lane starts an operation on the memories of CTAs of the batch."""
        reads = [units_of_columns(ctas, of) for of in operation.columns if of.reads]
        writes = [units_of_columns(ctas, of) for of in operation.columns if of.writes]
        self._judge(at, lane, self.races.operate(lane, reads, writes, at))
        self._reads_shared(at, lane, ctas, np.concatenate([box.chunks for box in operation.boxes]))

    def commits(self, at: int, lane: int, positions: list[int]) -> Callable[[int], None]:
        """A lane commits its operations to the mbarriers at these positions. Returns the function to call
        when they are complete and arrive at one of these.
        """
        release = self._watch.objects.release_when_complete(lane)
        stamp = self._watch.clocks.started(lane // WARP)
        numbers = {position: self._watch.operations.start(position) for position in positions}
        self._arrivals |= {n: (at, lane, p, stamp) for p, n in numbers.items()}

        def arrive(position: int) -> None:
            release(position)
            self._watch.objects.landed(position, numbers[position])

        return arrive

    def ended(self) -> None:
        """Report the arrivals at mbarriers that may still be under way when all threads have ended: no
        thread has waited for them, or for those of another commit that covers the same operations; by the
        manual, only a wait for the arrival itself counts.
        """
        over: dict[int, int] = {}  # by lane, the newest operation that a thread has waited for
        for number, (_, lane, _, stamp) in self._arrivals.items():
            if self._watch.operations.waited(number):
                over[lane] = stamp
        for number, (at, lane, position, stamp) in self._arrivals.items():
            if self._watch.operations.waited(number):
                continue
            kind = "sync" if stamp > over.get(lane, 0) else TENSOR_ORDER
            why = "the arrival may still be under way when all threads have ended: none has waited for it"
            if self._watch.wants(kind):
                self._watch.faults.sync(at, lane, kind, why, address=position % self._stride)

    def frees(self, at: int, lane: int, cta: int, first: int, columns: int) -> None:
        """The warp of a lane frees columns of a CTA of the batch, from `first` on."""
        units = units_of_columns((cta,), Columns(first, columns, "", tuple(range(GROUPS))))
        self._judge(at, lane, self.races.free(lane, units))

    def _reads_shared(self, at: int, lane: int, ctas: tuple[int, ...], chunks: Lanes) -> None:
        """The operation that a lane has started reads pieces of the shared memory of CTAs of the batch."""
        watch, grain = self._watch, self._watch.grain
        first, one = (chunks * _CHUNK // grain)[None], np.zeros(1, np.int64)
        stamp = np.array([watch.clocks.started(lane // WARP)])
        for cta in ctas:
            base = one + cta * self._stride // grain
            product = Product(at, one + lane, first, one, base, _CHUNK // grain)
            if conflicts := watch.race.start_product(product, stamp):
                watch.judge(at, conflicts, product.access())

    def _judge(self, at: int, lane: int, conflicts: list[Conflict]) -> None:
        """Report the conflicts of an access, of the kinds asked for."""
        watch = self._watch
        reports = [(c, self._lacking(c)) for c in conflicts] or self.races.lacking
        for c, lacking in reports:
            if watch.wants(c.kind):
                cta, address = address_of(c.unit)
                watch.faults.memory(at, c, "tensor", address, lane, cta, region="", lacking=lacking)

    def _lacking(self, conflict: Conflict) -> str:
        """What would order the access after the other one, in words; empty if it is a barrier."""
        if conflict.kind == "pending":
            return "its warp has not waited for it with tcgen05.wait::st"
        if conflict.twin:
            return WAIT_FOR_COMMIT
        return ""
