"""The engine that computes blocks of attention on the host: the steps in which the backends "cpu" and
"compiled" differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from numpy.typing import NDArray

from flash.cpu.blocks import Workspace
from flash.cpu.paged_rows import KeyIndex, KeyRows
from flash.cpu.products import outputs_of_values, score_gradients, scores_of_keys, weigh, weights_again
from flash.cpu.threads import Shared

Array = NDArray[Any]


class Limits(NamedTuple):
    """The least safe sum of the exponentials of a row, and the least safe size of the largest sum of a row of
    values that is not 0.
    """

    total: float
    size: float


class ScoresOfKeys(Protocol):
    """A function that computes what `flash.cpu.products.scores_of_keys` does."""

    def __call__(self, space: Workspace, source: KeyRows, index: KeyIndex, q: Array, out: Array) -> None:
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
        index: KeyIndex,
        weight: Array,
        hidden: Array | None,
        out: Array,
    ) -> None:
        """Write `weight @ v` to `out`."""


class WeightsAgain(Protocol):
    """A function that computes what `flash.cpu.products.weights_again` does."""

    def __call__(self, space: Workspace, score: Array, hidden: Array | None, lse: Array) -> None:
        """Overwrite each score in `score` with its weight, exp(score - lse); hidden keys get 0."""


class ScoreGradients(Protocol):
    """A function that computes what `flash.cpu.products.score_gradients` does."""

    def __call__(
        self, space: Workspace, dweight: Array, hidden: Array | None, weight: Array, delta: Array
    ) -> None:
        """Overwrite the gradient of each weight in `dweight` with that of its score."""


class Attend(Protocol):
    """A function that does all three steps for keys that all rows see, of scores that nothing changes."""

    def __call__(
        self,
        k: KeyRows,
        v: KeyRows,
        keys: slice,
        q: Array,
        total: Array,
        out: Array,
        limits: Limits,
        threads: int,
    ) -> tuple[Shared, Array] | None:
        """The work that adds the sums of the exponentials of `q @ k^T` to `total` [batch, kv_heads, rows],
        and writes the sums of these times v, divided by `total`, to `out` [batch, kv_heads, rows, d_v]; and
        the array [batch, kv_heads] to which it writes whether the sums of a head are safe by `limits`; the
        results of other heads are invalid. q is [batch, kv_heads, rows, d]; `keys` are seen, and `threads`
        threads will share the work. None if the steps by themselves take less time.
        """


@dataclass(frozen=True, slots=True)
class Engine:
    """The three steps of a block, between which the features of a call change scores and weights; two of its
    gradients; and perhaps a function for calls without such features, where each head of K has `few_rows`
    rows or fewer.

    A block has several heads of K if their keys have at most `together` times KEY_ELEMENTS elements: a larger
    number means fewer calls, but also fewer threads for few queries.
    """

    scores_of_keys: ScoresOfKeys
    weigh: Weigh
    outputs_of_values: OutputsOfValues
    weights_again: WeightsAgain
    score_gradients: ScoreGradients
    together: int
    attend: Attend | None = None
    few_rows: int = 0


NUMPY: Final = Engine(scores_of_keys, weigh, outputs_of_values, weights_again, score_gradients, together=8)
