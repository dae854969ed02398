"""Multiplications of warpgroups: `wgmma`, whose groups are committed and waited for."""

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
    """What instructions may ask of the multiplications of a warpgroup. `wgmma` has their registers,
    None in a program without them; `products` those that a schedule does late, None if all are done
    when they are started.
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
        """`multiplied(read(), d)`, at once or, under a schedule that says so, once it is waited
        for.
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
        """What the accumulators of all multiplications hold after the wait `at`; `values` is what
        they held before.
        """
        return values if self.products is None else self.products.settle(at, values)
