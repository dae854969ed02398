"""The outputs of attention other than O, each declared once: arrays of f32 that a call returns on demand.

Kernels, their contracts, all backends, the reference, adapters and ranks take them from `OUTPUTS`, in this
order: a new one is a row here, and what computes it on each backend. Each is -inf where no key is visible.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from numpy.typing import NDArray

from flash.operands.declared import Operand
from flash.operands.dtypes import F32
from flash.problem.features import Features
from ptxgen.records import dataclass

NOTHING: Final = float("-inf")  # where no key is visible
PREFIX: Final = "return_"


@dataclass(frozen=True, slots=True)
class Output:
    """An output other than O, an array of f32 with `what` in it. `array` is its name in kernels, `word`
    that in the names of kernels that write it. It has a number for each row of each head if it `has_rows`,
    else one for each head of each sequence, the maximum of what CTAs, devices and parts of a problem
    compute: it is -inf before a launch.
    """

    name: str
    array: str
    word: str
    what: str
    meaning: str
    has_rows: bool

    @property
    def option(self) -> str:
        """The name of the argument, such as `return_lse`, that asks for this output."""
        return PREFIX + self.name

    @property
    def initial(self) -> float | None:
        """The value that each element of the output has before a launch; None if any will do."""
        return None if self.has_rows else NOTHING

    @property
    def access(self) -> str:
        """How kernels access the output's array, in words for its description."""
        return "written" if self.has_rows else "read and written, -inf before a launch"

    def operand(self, features: Features) -> Operand:
        """The operand of a kernel with `features`; outputs of rows have one number for each split."""
        axes: tuple[str, ...] = ("batch * heads",)
        if self.has_rows:
            heads = "heads" if features.varlen else "batch * heads"
            axes = (heads, features.row_counts[0], *(("splits",) if features.splits else ()))
        return Operand(
            self.array,
            F32,
            axes,
            self.meaning,
            role=f"{self.what}, {self.access}",
            is_written=True,
            is_dense=True,
            initial=self.initial,
        )

    def shape(self, batch: int, heads: int, rows: int, *, packed: bool) -> tuple[int, ...]:
        """The shape of the array of a call, whose `rows` are those of a sequence, or of all if `packed`."""
        if not self.has_rows:
            return batch, heads
        return (heads, rows) if packed else (batch, heads, rows)

    def of_sequence(self, array: NDArray[Any], number: int, rows: slice) -> NDArray[Any]:
        """The part of `array` for packed sequence `number`, whose queries are `rows`, as a batch of one."""
        return array[None, :, rows] if self.has_rows else array[number : number + 1]


LSE: Final = Output(
    "lse",
    "LSE",
    "lse",
    "the log-sum-exp (natural logarithm) of each row's scaled scores",
    "-inf for a row that sees no key",
    has_rows=True,
)
MAX_LOGIT: Final = Output(
    "max_logit",
    "MAX_LOGIT",
    "maxlogit",
    "the largest score of each head, before the sink and dropout",
    "-inf for a head whose rows see no key, NaN if a score that a row sees is NaN",
    has_rows=False,
)
OUTPUTS: Final = (LSE, MAX_LOGIT)


def and_lse(outputs: Collection[Output]) -> tuple[Output, ...]:
    """The given outputs and LSE, by which the partial results of splits are merged."""
    return tuple([output for output in OUTPUTS if output is LSE or output in outputs])
