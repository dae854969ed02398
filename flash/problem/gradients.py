"""The kernels of gradients: what their text depends on, and their arrays.

Two kernels make the gradients of a call (FlashAttention-2, section 3.1, in two sweeps, so that no two
CTAs add to one number). The one by queries owns rows of dQ and walks over the keys that they see;
it also writes D, the sum of O times its gradient over each row. The one by keys owns rows of dK and
dV and walks over the queries that see them, for all heads that share the keys. Each computes the
weights again, from Q, K and LSE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from flash.operands.declared import MAX_WINDOWED_SEQ, Number, Operand
from flash.operands.dtypes import F32, DType
from flash.problem.config import AttentionConfig
from flash.problem.features import NO_FEATURES, Features
from flash.problem.mma_tiling import F32_GRADE, HALF, TF32, MmaTiling, Operands
from flash.problem.precision import operands_of
from flash.problem.simt_tiling import MAX_HEAD_DIM, padded
from flash.problem.tile_choice import FIRST_WITH_MMA, natural_alignment
from flash.scores.feature import ScoreFeature
from ptxgen.errors import ConfigError
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import u32

QUERIES: Final = "queries"
KEYS: Final = "keys"
SCORES: Final = "scores"
OWNERS: Final = (QUERIES, KEYS)
OF_BIAS: Final = tuple(
    Number(name, u32, meaning, (1, 2**31 - 1))
    for name, meaning in (
        ("batch", "batch items of Q: bias_batch * over_batch"),
        ("bias_batch", "batch items of the bias: 1, or those of Q"),
        ("bias_heads", "heads of the bias: 1, or those of Q"),
        ("over_batch", "batch items that share one of the bias"),
        ("over_heads", "heads that share one of the bias"),
    )
)
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
    step: int = 0
    kept: int = 0

    @property
    def rows_at_once(self) -> int:
        """Rows of a tile with which registers hold scores at once."""
        return self.step or self.tile

    @property
    def parts(self) -> range:
        """The first rows of these parts of a tile, counted in the tile."""
        return range(0, self.tile, self.rows_at_once)

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
        """The tiling of the products that sum over head_dim, and of those that give head_dim columns."""
        return self._products(self.head_dim)

    @property
    def of_weights(self) -> MmaTiling:
        """The tiling of the products that sum over head_dim_v, or give head_dim_v columns."""
        return self._products(self.head_dim_v)

    def _products(self, columns: int) -> MmaTiling:
        made = columns if self.slices == 1 else self.slice_width(columns)
        return MmaTiling(columns, made, self.rows_at_once, self.block, self.warps, self.stages, self.operands)

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
    with_dlse: bool = False  # whether LSE has a gradient
    wanted: tuple[str, ...] = ()  # the arrays of scores whose gradients are wanted, by argument

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
        if self.owner == SCORES:
            return (*self.features.numbers, *OF_BIAS)
        longest = (LONGEST_K,) if self.features.varlen and self.owner == KEYS else ()
        return (*self.features.numbers, *longest)

    def summed(self, *kinds: str) -> list[ScoreFeature]:
        """The features whose arrays' gradients are wanted, and follow from one of `kinds`
        (`ScoreFeature.gradient_of`).
        """
        return [f for f in self.features.scores if f.argument in self.wanted and f.gradient_of in kinds]

    @property
    def terms(self) -> tuple[Operand, ...]:
        """The numbers that the kernel writes for the gradients of arrays of scores: one for each row
        of each head, or for each key.
        """
        if self.owner == SCORES:
            role = "the gradient of the bias, summed over what shares it, written"
            axes = ("bias_batch", "bias_heads", "seq_q", "seq_k")
            return (Operand("dbias", F32, axes, role=role, is_written=True, is_dense=True),)
        of, rows, kinds = "key", "seq_k", ["keys"]
        if self.owner == QUERIES:
            of, rows, kinds = "row", self.features.longest_q, ["rows", "first"]
        return tuple(
            Operand(
                f"{of}_{feature.argument}",
                F32,
                ("batch", "heads", rows),
                role=f"what each {of} adds to the gradient of {feature.argument}, written",
                is_written=True,
                is_dense=True,
            )
            for feature in self.summed(*kinds)
        )

    @property
    def reads_dlse(self) -> bool:
        """Whether the kernel reads the gradient of LSE: that by queries does, and takes it off D."""
        return self.with_dlse and self.owner == QUERIES

    @property
    def name(self) -> str:
        """The name of the kernel's entry, which says the configuration."""
        t = self.tiling
        dims = f"d{t.head_dim}" + (f"v{t.head_dim_v}" if t.head_dim_v != t.head_dim else "")
        words = [f"attention_gradient_{self.owner}_{self.dtype.name}", dims, f"m{t.block}", f"n{t.tile}"]
        words += [f"s{t.stages}"] if t.stages > 1 else []
        words += [self.causal] if self.causal else []
        words += self.features.words
        words += ["dlse"] if self.reads_dlse else []
        words += [f"d{term.name}" for term in self.terms]
        if self.alignment != natural_alignment(t.head_dim, t.head_dim_v, self.dtype):
            words.append(f"align{self.alignment}")
        return "_".join(words)


def gradient_arrays(config: GradientConfig) -> tuple[Operand, ...]:
    """The arrays of a kernel of gradients, in the order of its pointers."""
    return (*gradient_matrices(config), *row_numbers(config), *config.terms, *config.features.operands)


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
    elif config.owner == KEYS:
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
    """LSE, D, and the gradient of LSE if the kernel reads it: an f32 for each row of each head."""
    writes = config.owner == QUERIES
    roles = {
        "LSE": "the log-sum-exp (natural logarithm) of each row's scaled scores, read",
        "D": "the sum of O times its gradient over each row, less the gradient of LSE, "
        + ("written" if writes else "read"),
    }
    if config.reads_dlse:
        roles["dLSE"] = "the gradient of LSE, read"
    axes = () if config.features.varlen else ("batch",)
    return tuple(
        Operand(
            name,
            F32,
            (*axes, "heads", config.features.row_counts[0]),
            role=role,
            is_written=name == "D" and writes,
            is_dense=True,
        )
        for name, role in roles.items()
    )


class Tiles(NamedTuple):
    """Tiles that kernels of gradients may have (`GradientTiling`), if they keep no more beside sums
    than `load`: one for packed sequences, numbers that change scores, or that hide keys one by one, and
    one for what drops weights.
    """

    block: int
    tile: int
    warps: int
    stages: int
    step: int = 0
    kept: int = 0
    load: int = 2


# Tiles by owner, by how elements enter tensor cores, and by the columns of Q or V, whichever are more
# (at most so many), in the order of the modelled share of tensor cores (`ptxgen bench --only static`),
# among those that were seen not to spill, but for f32_grade with 256 columns and derivatives of scores
# (16 to 192 bytes on sm_90). Rows of two blocks of 16 for each warp halve the reads of shared memory,
# which limit these kernels; what the registers beside the sums do not hold is left to smaller tiles.
GRADIENT_TILES: Final[dict[tuple[str, str], dict[int, tuple[Tiles, ...]]]] = {
    (QUERIES, HALF.name): {
        64: (
            Tiles(128, 64, 4, 2, step=32, kept=1, load=0),
            Tiles(128, 32, 4, 2, kept=1, load=1),
            Tiles(64, 64, 4, 2, step=32),
        ),
        96: (Tiles(128, 32, 4, 2, load=1), Tiles(64, 32, 4, 2)),
        128: (
            Tiles(128, 32, 4, 2, load=0),
            Tiles(128, 32, 4, 1, load=0),
            Tiles(64, 64, 4, 1, step=32, kept=1, load=1),
            Tiles(64, 32, 4, 2),
            Tiles(64, 32, 4, 1),
        ),
        256: (Tiles(64, 32, 4, 1),),
    },
    (KEYS, HALF.name): {
        64: (Tiles(128, 32, 4, 2, load=0), Tiles(64, 64, 4, 2, step=32, kept=2)),
        96: (Tiles(64, 64, 4, 2, step=32), Tiles(64, 32, 4, 2)),
        128: (Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 1)),
        256: (Tiles(64, 32, 4, 1),),
    },
    (QUERIES, TF32.name): {
        64: (Tiles(64, 32, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
    },
    (KEYS, TF32.name): {64: (Tiles(64, 32, 4, 2),), 128: (Tiles(64, 16, 4, 1),), 256: (Tiles(32, 16, 2, 1),)},
    (QUERIES, F32_GRADE.name): {
        64: (Tiles(64, 16, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
    },
    (KEYS, F32_GRADE.name): {
        64: (Tiles(64, 16, 4, 2),),
        128: (Tiles(64, 16, 4, 1),),
        256: (Tiles(32, 16, 2, 1),),
    },
}
_REGISTERS: Final = 255  # of a thread, of which these kernels take nearly all
_OTHER_BYTES: Final = 1024  # of shared memory of a CTA, at most: LSE and D of rows
_WANTED_CTAS: Final = 2  # of a multiprocessor: one issues while the other waits
# The most columns of which a CTA makes all, by how elements enter tensor cores.
_UNSLICED: Final = {HALF.name: 128, TF32.name: 128, F32_GRADE.name: 64}


def gradient_config(
    config: AttentionConfig,
    owner: str,
    target: Target,
    alignment: int,
    *,
    with_dlse: bool = False,
    wanted: tuple[str, ...] = (),
) -> GradientConfig:
    """The kernel of gradients of a problem, whose CTAs own queries or keys.

    Raises `ConfigError` for what no kernel computes on the target.
    """
    operands = operands_of(config.element, config.precision)
    if operands is None or target.sm < FIRST_WITH_MMA:
        raise ConfigError(
            f"AttentionGradient: kernels of gradients use tensor cores, which need precision='f32_grade' "
            f"or 'tf32' for f32 and sm_{FIRST_WITH_MMA} or later, got precision={config.precision!r} on "
            f"{target.name}; use backend='cpu' for others"
        )
    if config.value_dim > MAX_HEAD_DIM:
        raise ConfigError(
            f"AttentionGradient: head_dim_v must be at most {MAX_HEAD_DIM} for gradients, got "
            f"{config.value_dim}; use backend='cpu' for wider values"
        )
    columns = max(config.head_dim, config.value_dim)
    by_columns = GRADIENT_TILES[QUERIES if owner == SCORES else owner, operands.name]
    offered = next(tiles for most, tiles in by_columns.items() if columns <= most)
    keeps_more = config.varlen or any(f.changes_scores or f.hides for f in config.scores)
    load = keeps_more + any(f.changes_weights for f in config.scores)
    slices = 2 if owner == KEYS and columns > _UNSLICED[operands.name] else 1
    tilings = [
        GradientTiling(
            *(config.head_dim, config.value_dim),
            *(of.block, of.tile, of.warps, of.stages),
            slices,
            operands,
            of.step,
            of.kept,
        )
        for of in offered
        if of.load >= load
    ]
    if owner == SCORES:  # which has one tile of each matrix at a time
        tilings = [replace(t, stages=1, step=0, kept=0) for t in tilings]
    fitting = [t for t in tilings if t.shared_bytes <= target.shared_per_block_optin]
    if not fitting:
        raise ConfigError(
            f"AttentionGradient: head_dim={config.head_dim}, head_dim_v={config.value_dim} needs "
            f"{tilings[-1].shared_bytes} bytes of shared memory, but {target.name} allows "
            f"{target.shared_per_block_optin} bytes per block; use backend='cpu'"
        )
    together = [
        t
        for t in fitting
        if target.blocks_per_sm_for(t.threads, _REGISTERS, t.shared_bytes + _OTHER_BYTES) >= _WANTED_CTAS
    ]
    return GradientConfig(
        owner,
        target,
        (together or fitting)[0],
        str(config.causal or ""),
        alignment,
        config.element,
        config.features,
        with_dlse,
        wanted,
    )
