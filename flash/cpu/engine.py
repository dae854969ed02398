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


@dataclass(frozen=True, slots=True)
class Engine:
    """The three steps of a block, between which the features of a call change scores and weights."""

    scores_of_keys: ScoresOfKeys
    weigh: Weigh
    outputs_of_values: OutputsOfValues


NUMPY: Final = Engine(scores_of_keys, weigh, outputs_of_values)
