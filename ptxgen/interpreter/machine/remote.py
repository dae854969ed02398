"""Values that threads send to the shared memory of a CTA of their cluster: `st.async`, `red.async`.

They arrive like bulk copies, with completion on an mbarrier of that CTA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.boxes import combine
from ptxgen.interpreter.machine.tensor_copies import TensorCopyMachine
from ptxgen.isa import mbarrier_word

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.boxes import Reduce
    from ptxgen.interpreter.machine.bulk_start import Start
    from ptxgen.interpreter.machine.observer import Tell
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]


class RemoteMachine(TensorCopyMachine):
    """The operations of instructions that send values."""

    def send_values(
        self, dst: Lanes, values: tuple[Lanes, ...], mbarrier: Lanes, reduce: Reduce | None, type: ScalarType
    ) -> None:
        """Start writing consecutive values to shared `dst`, with completion on `mbarrier` there; or
        reducing them into `dst`.
        """
        size = type.nbytes * len(values)
        wide = np.stack([self._each(v) for v in values], axis=1).astype(type.dtype)
        octets = wide.view(np.uint8)
        pairs = zip(self.positions(dst, size), self.positions(mbarrier, 8), strict=True)
        for n, (target, counter) in enumerate((int(t), int(c)) for t, c in pairs):
            start = self._start(n)
            first = np.array([target])
            landed = start.writes(first, size, counter, update=reduce is not None)
            if reduce is None:
                self._poison(target, size)
            if self.definedness is not None and reduce is None:
                self.definedness.receives(target, size)

            def land(
                start: Start = start,
                target: int = target,
                counter: int = counter,
                landed: Tell = landed,
                data: Lanes = octets[n],
            ) -> None:
                landed()
                combine(self.shared.window.data[target : target + size], data, reduce, type)
                self._change(start, counter, mbarrier_word.brought, size)

            self.agents.add(counter, land)
