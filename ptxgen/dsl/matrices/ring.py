"""The stages of a tile in shared memory that are used in turn: the offset of the present one."""

from __future__ import annotations

from ptxgen.dsl.control import Control
from ptxgen.dsl.values import Var
from ptxgen.types import u32


class StageRing:
    """The stages of a tile, `stage_bytes` apart; `at` is the byte at which the current stage begins,
    None if there is only one stage. It begins with stage `first`.
    """

    def __init__(self, k: Control, stages: int, stage_bytes: int, first: int = 0) -> None:
        self.k = k
        self.end = stages * stage_bytes
        self.step = stage_bytes
        self.at: Var | None = None if stages == 1 else k.var(u32, first % stages * stage_bytes)

    def advance(self) -> None:
        """Go on to the next stage of the ring; after the last one comes the first."""
        if self.at is not None:
            following = self.at + self.step
            self.at.set(self.k.selp(0, following, following == self.end))
