"""`KernelConfig`: everything that the text of a forward kernel depends on."""

from __future__ import annotations

from typing import Any

from flash.families.choice import AnyTiling, family_of
from flash.families.family import Family
from flash.families.precision import IEEE
from flash.families.request import natural_alignment
from flash.operands.declared import Number
from flash.operands.dtypes import F16, F32, DType
from flash.problem.features import NO_FEATURES, OVERLAPPING_SM, PARTS, SECTION, Features
from flash.problem.outputs import LSE, Output
from flash.problem.persistence import GRID, TICKET
from flash.scores.window import Window
from ptxgen.records import dataclass
from ptxgen.target import Target


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Everything the emitted text depends on, and nothing else. Same value, same bytes.

    `alignment`, in bytes, is a promise: every pointer and stride of Q, K, V and O is a multiple of
    it (`alignment_of` says where it is another).
    """

    target: Target
    tiling: AnyTiling
    causal: str  # "", "bottom_right" or "top_left"
    outputs: tuple[Output, ...]  # the outputs other than O
    alignment: int
    dtype: DType = F32
    features: Features = NO_FEATURES
    packed: bool = False  # whether a CTA's rows are of all heads that share a head of K and V
    written: DType | None = None  # the type of O, where it is not that of Q
    scheduler: str = GRID  # how parts of the problem are dealt to CTAs (`flash/problem/persistence.py`)

    @property
    def precision(self) -> str | None:
        """The precision of products of f32 (`flash/families/precision.py`); None for 16-bit types."""
        if self.dtype is not F32:
            return None
        return self.tiling.precision

    @property
    def family(self) -> Family[Any]:
        """The kernel family to which the tiling of this configuration belongs."""
        return family_of(self.tiling)

    @property
    def return_lse(self) -> bool:
        """Whether the kernel writes LSE, the log-sum-exp of each row of scores."""
        return LSE in self.outputs

    @property
    def gathers(self) -> bool:
        """Whether a producer copies each row of K and V from its page (`WgmmaTiling.gathers`)."""
        return self.tiling.gathers

    @property
    def keys_of_tile(self) -> int:
        """The number of keys in a tile, which a CTA takes at once."""
        return self.tiling.tile

    @property
    def hides_keys(self) -> bool:
        """Whether the mask may hide a key that exists from a query, as causality or a window does."""
        return bool(self.causal) or self.features.hides_anywhere or self.features.has(Window)

    @property
    def differentiates(self) -> bool:
        """Whether the kernel needs derivatives of its score features: False for every forward kernel."""
        return False

    @property
    def output(self) -> DType:
        """The element type of O: that of Q, or `written`, or f32 for splits that another kernel merges."""
        return F32 if self.features.splits else self.written or self.dtype

    @property
    def begins_next(self) -> bool:
        """Whether the kernel lets the grid that merges its splits begin before it has ended."""
        return self.features.splits and self.target.sm >= OVERLAPPING_SM

    @property
    def multiplied(self) -> DType:
        """The type of the elements in shared memory and of P: that of Q, or f16 for K and V of one
        byte, which are widened to it (`flash/device/half_queries.py`).
        """
        return self.dtype if self.features.kv_dtype is None else F16

    def element_of(self, array: str) -> DType:
        """The element type of one of Q, K, V and O."""
        if array == "O":
            return self.output
        stored, mx = self.features.kv_dtype, self.features.mx
        if mx is not None and array in ("Q", "K"):
            return mx.format.element or self.dtype
        return stored if stored is not None and array in ("K", "V") else self.dtype

    def alignment_of(self, array: str) -> int:
        """The promised alignment, in bytes, of one of Q, K, V and O. Parts of O that are to be
        merged are not the caller's: they are as aligned as their rows. K and V of a narrow type have an
        alignment of their own.
        """
        t = self.tiling
        if array == "O" and self.features.splits:
            return natural_alignment(t.head_dim_v, t.head_dim_v, F32)
        if self.features.kv_dtype is not None and array in ("K", "V"):
            return self.features.kv_dtype.row_alignment
        return self.alignment

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The scalars that a launch passes in addition to sizes, in the order of the parameters."""
        of_parts = [PARTS] if self.is_persistent else []
        return (*of_parts, *([SECTION] if self.ping_pong else []), *self.features.numbers)

    @property
    def is_persistent(self) -> bool:
        """Whether a CTA computes several work tiles, one after another."""
        return self.scheduler != GRID

    @property
    def takes_tickets(self) -> bool:
        """Whether CTAs take the numbers of their work tiles from a counter in memory."""
        return self.scheduler == TICKET

    @property
    def ping_pong(self) -> bool:
        """Whether consecutive CTAs compute query blocks of several heads alternately, beginning with the
        blocks that see the most keys (`flash/device/cta_order.py`): in causal kernels without splits. With
        splits there are few query blocks.
        """
        return bool(self.causal) and not self.features.splits

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        t = self.tiling
        dims = f"d{t.head_dim}" + (f"v{t.head_dim_v}" if t.head_dim_v != t.head_dim else "")
        kind = self.dtype.name if self.precision in (None, IEEE) else self.precision
        words = [f"attention_forward_{self.family.entry}{kind}", dims, f"m{t.block_q}", f"n{t.tile}"]
        words += [f"s{t.stages}"] if t.stages > 1 else []
        words += [self.causal] if self.causal else []
        words += self.features.words
        words += ["packed"] if self.packed else []
        words += [self.written.name] if self.written is not None else []
        words += [self.scheduler] if self.is_persistent else []
        words += ["by_rows"] if t.by_rows else []
        words += [output.word for output in self.outputs]
        words += (
            [f"align{self.alignment}"]
            if self.alignment != natural_alignment(t.head_dim, t.head_dim_v, self.dtype)
            else []
        )
        return "_".join(words)
