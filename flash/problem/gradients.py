"""The kernels of gradients: what their text depends on, and their arrays.

Two kernels make the gradients of a call (FlashAttention-2, section 3.1, in two sweeps, so that no two
CTAs add to one number). The one by queries owns rows of dQ and walks over the keys that they see;
it also writes D, the sum of O times its gradient over each row. The one by keys owns rows of dK and
dV and walks over the queries that see them, for all heads that share the keys. Each computes the
weights again, from Q, K and LSE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.operands.declared import MAX_WINDOWED_SEQ, Number, Operand
from flash.operands.dtypes import F32, DType
from flash.problem.features import NO_FEATURES, Features
from flash.problem.mma_tiling import HALF, MmaTiling, Operands
from flash.problem.simt_tiling import padded
from flash.problem.tile_choice import natural_alignment
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import u32

QUERIES: Final = "queries"
KEYS: Final = "keys"
OWNERS: Final = (QUERIES, KEYS)
LONGEST_K: Final = Number(
    "max_seqlen_k",
    u32,
    "the most keys of a sequence, for which the grid is made; gradients of those of longer ones beyond "
    f"it are not written; 1 to {MAX_WINDOWED_SEQ}",
    (1, MAX_WINDOWED_SEQ),
)


@dataclass(frozen=True, slots=True)
class GradientTiling:
    """Tiles and warps of a kernel of gradients, in elements. A CTA owns `block` rows, of queries or
    of keys, and walks over the others in tiles of `tile` rows, of which shared memory holds
    `stages`. With `slices` 2 two CTAs own the same rows, and each makes half of their columns: the
    registers of a CTA do not hold more.
    """

    head_dim: int
    head_dim_v: int
    block: int
    tile: int
    warps: int
    stages: int
    slices: int = 1
    operands: Operands = HALF

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * WARP_SIZE

    @property
    def rows_of_warp(self) -> int:
        """Rows that a warp owns."""
        return self.block // self.warps

    @property
    def of_scores(self) -> MmaTiling:
        """Of the products that sum over head_dim, and of those that give head_dim columns."""
        return self._products(self.head_dim)

    @property
    def of_weights(self) -> MmaTiling:
        """Of the products that sum over head_dim_v, and of those that give head_dim_v columns."""
        return self._products(self.head_dim_v)

    def _products(self, columns: int) -> MmaTiling:
        made = columns if self.slices == 1 else self.slice_width(columns)
        return MmaTiling(columns, made, self.tile, self.block, self.warps, self.stages, self.operands)

    def slice_width(self, columns: int) -> int:
        """The columns of a slice of rows of `columns` columns: whole panels of a tile."""
        return padded(-(-columns // self.slices), self.operands.panel)

    def width(self, products: MmaTiling) -> int:
        """The columns of the tiles that these products read."""
        if self.slices == 1:
            return products.score_width
        return self.slices * self.slice_width(products.head_dim)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA, in bytes: four tiles, and the numbers of rows."""
        widths = self.width(self.of_scores) + self.width(self.of_weights)
        return widths * (self.block + self.stages * self.tile) * self.operands.nbytes


@dataclass(frozen=True, slots=True)
class GradientConfig:
    """Everything that the text of a kernel of gradients depends on. Same value, same bytes.

    `owner` says whether a CTA owns queries or keys; `alignment`, in bytes, is a promise about all
    pointers and strides of matrices.
    """

    owner: str
    target: Target
    tiling: GradientTiling
    causal: str  # "", "bottom_right" or "top_left"
    alignment: int
    dtype: DType
    features: Features = NO_FEATURES

    @property
    def keys_of_tile(self) -> int:
        """Keys that a CTA takes at once."""
        return self.tiling.rows_of_warp if self.owner == KEYS else self.tiling.tile

    @property
    def differentiates(self) -> bool:
        """True: the kernel needs the derivatives of its features."""
        return True

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The scalars that a launch passes beside sizes, in the order of the parameters."""
        longest = (LONGEST_K,) if self.features.varlen and self.owner == KEYS else ()
        return (*self.features.numbers, *longest)

    @property
    def name(self) -> str:
        """The name of the kernel's entry, which says the configuration."""
        t = self.tiling
        dims = f"d{t.head_dim}" + (f"v{t.head_dim_v}" if t.head_dim_v != t.head_dim else "")
        words = [f"attention_gradient_{self.owner}_{self.dtype.name}", dims, f"m{t.block}", f"n{t.tile}"]
        words += [f"s{t.stages}"] if t.stages > 1 else []
        words += [self.causal] if self.causal else []
        words += self.features.words
        if self.alignment != natural_alignment(t.head_dim, t.head_dim_v, self.dtype):
            words.append(f"align{self.alignment}")
        return "_".join(words)


def gradient_arrays(config: GradientConfig) -> tuple[Operand, ...]:
    """The arrays of a kernel of gradients, in the order of its pointers."""
    return (*gradient_matrices(config), *row_numbers(config), *config.features.operands)


def gradient_matrices(config: GradientConfig) -> tuple[Operand, ...]:
    """The matrices of a kernel of gradients."""
    t, features = config.tiling, config.features
    rows_q, rows_k = features.row_counts
    queries, keys = ("heads", rows_q), ("kv_heads", rows_k)
    of_d, of_d_v = (t.head_dim, "head_dim"), (t.head_dim_v, "head_dim_v")
    found = [
        ("Q", queries, of_d, "the queries, read"),
        ("K", keys, of_d, "the keys, read"),
        ("V", keys, of_d_v, "the values, read"),
        ("dO", queries, of_d_v, "the gradient of the output, read"),
    ]
    if config.owner == QUERIES:
        found.append(("O", queries, of_d_v, "the output, read"))
        found.append(("dQ", queries, of_d, "the gradient of the queries, written"))
    else:
        found.append(("dK", keys, of_d, "the gradient of the keys, written"))
        found.append(("dV", keys, of_d_v, "the gradient of the values, written"))
    return tuple(
        Operand(
            name,
            config.dtype,
            tuple({"batch": "batch", "head": heads, "row": rows}[step] for step in features.steps),
            columns=columns,
            last=last,
            steps=features.steps,
            role=role,
            is_written=role.endswith("written"),
            align=config.alignment,
        )
        for name, (heads, rows), (columns, last), role in found
    )


def row_numbers(config: GradientConfig) -> tuple[Operand, ...]:
    """LSE and D: an f32 for each row of each head."""
    writes = config.owner == QUERIES
    return tuple(
        Operand(
            name,
            F32,
            (*(() if config.features.varlen else ("batch",)), "heads", config.features.row_counts[0]),
            role=role,
            is_written=is_written,
            is_dense=True,
        )
        for name, role, is_written in (
            ("LSE", "the log-sum-exp (natural logarithm) of each row's scaled scores, read", False),
            (
                "D",
                "the sum of O times its gradient over each row, " + ("written" if writes else "read"),
                writes,
            ),
        )
    )
