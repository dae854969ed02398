"""How the arrays and scalars are declared that a launch passes beside Q, K, V and O.

The parameters of a kernel and their meaning, the contract of the proof, the checks of a launch and
its argument block follow from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.operands.dtypes import DType
from ptxgen.types import ScalarType

PER_HEAD: Final = ("batch", "heads")
PER_SCORE: Final = ("batch", "heads", "seq_q", "seq_k")
PER_KEY: Final = ("batch", "heads", "seq_k")
PER_SEQUENCE: Final = ("batch",)
# The last axis of a mask for a cache, whose sequences have lengths of their own: the mask has a
# column for so many keys at the end of each sequence.
LAST_KEYS: Final = "last_keys"
# The most queries, and keys, in kernels with a window, whose sums of a row, a length and a window
# must not leave s32; the most rows of all packed sequences together; and the widest window.
MAX_WINDOWED_SEQ: Final = 2**30 - 256


@dataclass(frozen=True, slots=True)
class Operand:
    """An array beside Q, K, V and O, which is broadcast to `axes` and may have any strides.

    With `more` > 0 it has so many elements more than its one axis (batch + 1 of `cu_seqlens_q`),
    and is not broadcast. With `columns` > 0, each index has a row of so many adjacent elements: the
    last dimension, called `last` in texts.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    meaning: str
    more: int = 0
    columns: int = 0
    last: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one row of `columns` elements, or of one element."""
        return max(self.columns, 1) * self.dtype.nbytes

    def extent(self, axis: str) -> str:
        """How many elements lie along an axis, as an expression."""
        return f"{axis} + {self.more}" if self.more else axis

    @property
    def dims(self) -> str:
        """All dimensions, as expressions separated by commas."""
        return ", ".join([*map(self.extent, self.axes), *([self.last] if self.columns else [])])

    def stride(self, axis: str) -> str:
        """The name of the parameter with the stride of an axis, in elements."""
        return f"{self.name}_{axis}_stride"


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar that a launch passes; `bounds` are the least and the largest value of an integer."""

    name: str
    type: ScalarType
    meaning: str
    bounds: tuple[int, int] | None = None
