"""How the arrays and scalars of a kernel are declared. Its parameters and their meaning, the
contracts of the proofs and of other hosts, the checks of a launch and its argument block follow.
"""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import DType
from ptxgen.records import dataclass
from ptxgen.types import ScalarType

PER_HEAD: Final = ("batch", "heads")
PER_SCORE: Final = ("batch", "heads", "seq_q", "seq_k")
PER_KEY: Final = ("batch", "heads", "seq_k")
PER_SEQUENCE: Final = ("batch",)
# The last axis of a mask for a cache, whose sequences have lengths of their own: column n of m is
# that of key n of the last m keys of each sequence.
LAST_KEYS: Final = "last_keys"
# The most elements along an axis of an array that functions of scores index: the largest s32.
MAX_ELEMENTS: Final = 2**31 - 1
# The most queries, and keys, in kernels with a window, whose sums of a row, a length and a window
# must not leave s32; the most rows of all packed sequences together; and the widest window.
MAX_WINDOWED_SEQ: Final = 2**30 - 256


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a pointer of a kernel points to. `axes` are the extents of its dimensions, outermost
    first, as expressions of the sizes of a launch; the strides of all of them are parameters.

    Arrays other than Q, K, V and O have no `role` and are read; the caller's array is broadcast to
    their axes. With `more` > 0 an array has `more` elements more than its one axis (batch + 1 of
    `cu_seqlens_q`), and is not broadcast. One that `is_whole` has axes of its own, of at least one
    element, which the caller's array has exactly; their lengths are parameters. With `columns` > 0,
    each index has a row of `columns` adjacent elements: the last dimension, called `last` in texts.
    `steps` are the words for the axes in the names of the parameters with strides, by default the
    axes themselves. An array that `is_dense` has no such parameters. `align`: the bytes of which
    its address and its strides are multiples, 0 for the size of an element. Each element of an array with
    an `initial` number is this before a launch.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    meaning: str = ""
    more: int = 0
    columns: int = 0
    last: str = ""
    steps: tuple[str, ...] = ()
    role: str = ""
    is_written: bool = False
    is_dense: bool = False
    is_whole: bool = False
    align: int = 0
    shape: str = ""
    initial: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one row of `columns` elements, or of one element."""
        return max(self.columns, 1) * self.dtype.nbytes

    @property
    def alignment(self) -> int:
        """The bytes of which the array's address and strides are multiples."""
        return self.align or self.dtype.nbytes

    def extent(self, axis: str) -> str:
        """How many elements lie along an axis, as an expression."""
        return f"{axis} + {self.more}" if self.more else axis

    @property
    def dims(self) -> str:
        """All dimensions, as expressions separated by commas: `shape`, by default the axes in their
        order and the columns. A product of sizes is several dimensions of a dense array.
        """
        if self.shape:
            return self.shape
        dims = ", ".join([*map(self.extent, self.axes), *([self.last] if self.columns else [])])
        return dims.replace(" * ", ", ") if self.is_dense else dims

    @property
    def strides(self) -> tuple[str, ...]:
        """The names of the parameters with the strides of its axes, in elements."""
        return tuple([f"{self.name}_{step}_stride" for step in self.step_words])

    @property
    def step_words(self) -> tuple[str, ...]:
        """The words for the axes in the names of the parameters with strides; none if there are no such
        parameters.
        """
        return () if self.is_dense else self.steps or self.axes


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar that a launch passes; `bounds` are the least and the largest value of an integer."""

    name: str
    type: ScalarType
    meaning: str
    bounds: tuple[int, int] | None = None
