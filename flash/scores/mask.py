"""Mask: a byte for each score; 0 hides the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from flash.operands.declared import LAST_KEYS, MAX_WINDOWED_SEQ, PER_SCORE, Number, Operand
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import BOOL
from flash.scores.feature import NEG_INF, Applied, Array, Block, Inputs, Scored, ScoreFeature
from flash.scores.score_coordinates import ScoreCoordinates, ScorePlane
from ptxgen.records import dataclass
from ptxgen.types import u32

if TYPE_CHECKING:
    from ptxgen.dsl import Fragment, KernelBuilder, Value


class MaskArguments(TypedDict, total=False):
    """mask: bool [batch, heads, seq_q, seq_k]; False hides the key."""

    mask: AnyArray | None


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """mask: whether launches give `mask`."""

    mask: bool = False


@dataclass(frozen=True)
class BoolMask(ScoreFeature):
    """The mask of a kernel; for a cache it covers the last keys of each sequence."""

    setting: ClassVar = "mask"
    argument: ClassVar = "mask"
    axes: ClassVar = PER_SCORE
    array_dtype: ClassVar = BOOL
    example: ClassVar = "mask=True"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "--mask": {"action": "store_true", "help": "a byte for each score: 0 hides the key"}
    }
    hides: ClassVar = True
    uses_query: ClassVar = True
    of_each: ClassVar = "score"
    registers: ClassVar = 32
    follows_grid: ClassVar = True

    def operands(self, *, cached: bool) -> tuple[Operand, ...]:
        """The declaration of the mask."""
        hides = "0 hides the key, any other byte lets it be seen"
        if not cached:
            return (Operand("mask", self.array_dtype, self.axes, hides),)
        return (
            Operand(
                "mask",
                self.array_dtype,
                (*self.axes[:3], LAST_KEYS),
                f"{hides}; the last column is of the last key of each sequence, keys before those "
                "with a column are seen, and columns before the first key are of none",
            ),
        )

    def numbers(self, *, cached: bool) -> tuple[Number, ...]:
        """For a cache, the declaration of the mask's number of columns."""
        if not cached:
            return ()
        return (
            Number(
                LAST_KEYS,
                u32,
                f"of how many keys, the last ones of a sequence, the mask speaks; 0 to {MAX_WINDOWED_SEQ}",
                (0, MAX_WINDOWED_SEQ),
            ),
        )

    def applied(self, inputs: Inputs) -> Applied:
        """The mask in a kernel."""
        return AppliedMask(inputs.k, inputs.plane("mask"))

    @classmethod
    def hidden_in(cls, block: Block) -> Array:
        """See `ScoreFeature.hidden_in`."""
        return ~block.take(cls)

    @classmethod
    def visible(cls, of: Scored) -> Array:
        """See `ScoreFeature.visible`."""
        shown: Array = of.whole(cls).astype(bool)
        return shown


@dataclass(frozen=True)
class AppliedMask(Applied):
    """A plane of bytes of which 0 hides a key."""

    k: KernelBuilder
    plane: ScorePlane

    @property
    def begin(self) -> Value | None:
        """See `Applied.begin`."""
        return self.plane.begin

    def hide(self, S: Fragment, coordinates: ScoreCoordinates) -> None:
        """See `Applied.hide`."""
        k = self.k

        def hide(i: int, j: int, shown: Value) -> None:
            with k.only_if(shown == 0):
                S[i, j].set(NEG_INF)

        self.plane.each(k, coordinates, hide)

    def hides(self, row: Value, key: Value) -> Value:
        """See `Applied.hides`."""
        return self.plane.element(self.k, row, key, otherwise=1) == 0
