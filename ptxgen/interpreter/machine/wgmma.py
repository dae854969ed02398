"""Multiplications of warpgroups: `wgmma`, with groups that are committed and waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.access import MemoryAccess
from ptxgen.interpreter.machine.warpgroups import Warpgroups

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.machine.wgmma_late import LateProducts
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
    from ptxgen.isa.machine import Matrices

    Lanes = np.ndarray[Any, np.dtype[Any]]


class WgmmaMachine(MemoryAccess):
    """The operations of instructions that multiply with a warpgroup. `wgmma` has their registers,
    None in a program without them. `products` has the multiplications that a schedule delays, None
    if each is done when it starts.
    """

    wgmma: WgmmaRegisters | None
    products: LateProducts | None
    warpgroups: Warpgroups

    def multiply(
        self,
        read: Callable[[], Matrices],
        multiplied: Callable[[Matrices, tuple[Lanes, ...]], tuple[Lanes, ...]],
        d: tuple[Lanes, ...],
    ) -> tuple[Lanes, ...]:
        """The result of `multiplied(read(), d)`, computed at once or, if the schedule delays it, at
        the wait.
        """
        if self.products is None:
            return multiplied(read(), d)
        return self.products.start(read, multiplied, d)

    def follow(self, wgmma: WgmmaRegisters | None) -> None:
        """Follow the groups of `wgmma` of a program with these registers, if it has any."""
        self.wgmma = wgmma
        self.warpgroups = Warpgroups(self.batch, wgmma, self._retire)

    def _retire(self, warp: int, count: int, members: range) -> None:
        if self.products is not None:
            self.products.retire(count, members)
        if self.watch is not None:
            self.watch.retired(warp, count, members)

    def settle(self, at: int, values: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
        """The values of all accumulators after the wait `at`; `values` are those before it."""
        return values if self.products is None else self.products.settle(at, values)
