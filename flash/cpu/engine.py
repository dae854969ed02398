"""What computes the blocks of attention on the host: the steps that a backend has of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from flash.cpu.blocks import Workspace
from flash.cpu.paged_rows import KeyPlace, KeyRows
from flash.cpu.products import outputs_of_values, scores_of_keys, weigh

Array = NDArray[Any]


class ScoresOfKeys(Protocol):
    """A function that computes what `flash.cpu.products.scores_of_keys` does."""

    def __call__(self, space: Workspace, source: KeyRows, place: KeyPlace, q: Array, out: Array) -> None:
        """Write `q @ k^T` to `out`."""


class Weigh(Protocol):
    """A function that computes what `flash.cpu.products.weigh` does."""

    def __call__(self, space: Workspace, score: Array, hidden: Array | None, total: Array) -> None:
        """Write the exponentials of scores over these, and add their sums to `total`."""


class OutputsOfValues(Protocol):
    """A function that computes what `flash.cpu.products.outputs_of_values` does."""

    def __call__(
        self,
        space: Workspace,
        source: KeyRows,
        place: KeyPlace,
        weight: Array,
        hidden: Array | None,
        out: Array,
    ) -> None:
        """Write `weight @ v` to `out`."""


class Attend(Protocol):
    """A function that does all three steps for keys that all rows see, of scores that nothing changes."""

    def __call__(
        self,
        space: Workspace,
        k: KeyRows,
        v: KeyRows,
        place: KeyPlace,
        q: Array,
        total: Array,
        out: Array,
        least_total: float,
        least_sum: float,
    ) -> bool | None:
        """Add the sums of the exponentials of `q @ k^T` to `total`, and write the sums of these times v,
        divided by `total`, to `out`. Return whether the sums are safe, by these limits; else what was written
        is of no use. None, and nothing is written, if the steps by themselves take less time.
        """


@dataclass(frozen=True, slots=True)
class Engine:
    """The three steps of a block, between which the features of a call change scores and weights; and perhaps
    a function for the case that none does, where each head of K has `few_rows` rows or fewer.

    A block has several heads of K if K of all of them has `together` times KEY_ELEMENTS elements, or fewer:
    the more, the fewer calls, and the fewer threads that few queries can have.
    """

    scores_of_keys: ScoresOfKeys
    weigh: Weigh
    outputs_of_values: OutputsOfValues
    together: int
    attend: Attend | None = None
    few_rows: int = 0


NUMPY: Final = Engine(scores_of_keys, weigh, outputs_of_values, together=8)
