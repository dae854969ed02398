"""`Features`: what the text of a kernel depends on in addition to types, tiles and causality, such as steps
on scores (`flash/scores`), and where the rows of sequences are. Each declares its arrays and scalars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from flash.operands.declared import MAX_WINDOWED_SEQ, PER_SCORE, PER_SEQUENCE, Number, Operand
from flash.operands.dtypes import E8M0, F32, I32, MX_BLOCK, BlockFormat, DType
from flash.scores.feature import ScoreFeature
from ptxgen.contract.expressions import CEIL_DIV, PLUS, Expression, evaluated
from ptxgen.records import dataclass
from ptxgen.types import u32

_MOST: Final = 2**31 - 1  # the largest s32
MAX_SPLITS: Final = 1 << 15  # splits of the keys
MAX_POSITIONS: Final = 2**30  # rows of the tables of a rotary embedding
# Rows of a head that a forward kernel appends at most: a warp of its CTA writes one at a time.
MAX_NEW_ROWS: Final = 16
_REGISTERS_OF_LOOKUPS: Final = 8  # for shared reads of a page table
SCALES: Final = ("q_scale", "k_scale", "v_scale")  # the operands of Q, K and V of fp8
GRADIENT_SCALE: Final = "dout_scale"  # the operand of the gradient of O, if that is of fp8
ANGLES: Final = ("rotary_cos", "rotary_sin")  # the operands with the angles of a rotation
Q_BLOCKS: Final = "q_blocks"  # how many blocks of rows with a scale each a head of Q has
K_BLOCKS: Final = "k_blocks"  # how many blocks of rows with a scale each a head of K, or of V, has
OVERLAPPING_SM: Final = 90  # the first target whose grids may begin before the preceding grid has ended
MAX_PAGE_SIZE: Final = 256  # rows of a page of K and V
# The operands that say how many rows of the cache are keys, with which row these begin, and which
# sequence they are of.
LENGTHS: Final = ("seqused_k", "leftpad_k", "cache_batch_idx")


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rows that a forward kernel rotates by the positions of their keys: the first `rotary_dim` columns
    of each row of Q, and of each new row of K if the kernel appends, in pairs of neighbours if
    `interleaved`.
    """

    rotary_dim: int
    interleaved: bool = False

    @property
    def words(self) -> list[str]:
        """The words for rotary embedding in the kernel's name."""
        return [f"rotary{self.rotary_dim}", *(["interleaved"] if self.interleaved else [])]

    def operands(self, rows: str) -> Iterator[Operand]:
        """The arrays with the rotary angles (cos and sin tables) for `rows`."""
        for name, what in zip(ANGLES, ("cosines", "sines"), strict=True):
            yield Operand(
                name,
                F32,
                ("positions",),
                f"{what} of the angles by which {rows} are rotated, row r "
                "of a sequence by those of position r, less its padding, at least 0 and at "
                "most the last",
                columns=self.rotary_dim // 2,
                last="rotary_dim / 2",
            )

    @property
    def numbers(self) -> Iterator[Number]:
        """The scalar parameter with the number of rows of the tables of rotary angles."""
        yield Number(
            "positions", u32, f"rows of rotary_cos and rotary_sin, 1 to {MAX_POSITIONS}", (1, MAX_POSITIONS)
        )


@dataclass(frozen=True, slots=True)
class Appended:
    """New rows that a forward kernel writes into the cache before it attends to them: of `dtype`,
    with `head_dim` and `head_dim_v` columns. The first `rotary_dim` columns of each new row of K
    and of each row of Q are rotated on the way, in pairs of neighbours if `interleaved`.
    """

    dtype: DType
    head_dim: int
    head_dim_v: int
    rotary_dim: int = 0
    interleaved: bool = False

    @property
    def rotation(self) -> Rotation | None:
        """The rotary embedding of the appended rows; None without one."""
        return Rotation(self.rotary_dim, self.interleaved) if self.rotary_dim else None

    @property
    def words(self) -> list[str]:
        """The words for appended rows and their rotary embedding in the kernel's name."""
        return ["append", *(self.rotation.words if self.rotation else [])]

    @property
    def operands(self) -> Iterator[Operand]:
        """The arrays with the new rows, and with the rotary angles."""
        for name, what, columns, last in (
            ("k_new", "keys", self.head_dim, "head_dim"),
            ("v_new", "values", self.head_dim_v, "head_dim_v"),
        ):
            yield Operand(
                name,
                self.dtype,
                ("batch", "kv_heads", "n"),
                f"the new {what}: row i becomes row seqused_k - n + i of its sequence, or none if "
                "that is negative",
                columns=columns,
                last=last,
            )
        if self.rotation:
            yield from self.rotation.operands("new rows of K and rows of Q")

    @property
    def numbers(self) -> Iterator[Number]:
        """The scalar parameters: the number of new rows, and the rows of the tables of rotary angles."""
        yield Number("n", u32, f"new rows of each head of K and V, 1 to {MAX_NEW_ROWS}", (1, MAX_NEW_ROWS))
        if self.rotation:
            yield from self.rotation.numbers


@dataclass(frozen=True, slots=True)
class MxScales:
    """The arrays of scales where blocks of elements have scales: of rows of Q and K with `head_dim` columns,
    in blocks of `format`, and of the `head_dim_v` columns of V, in blocks of `MX_BLOCK` keys.
    """

    format: BlockFormat
    head_dim: int
    head_dim_v: int

    @classmethod
    def of(cls, format: BlockFormat | None, head_dim: int, head_dim_v: int) -> MxScales | None:
        """The scale factors that a block format of Q, K and V has; None without a format."""
        return None if format is None else cls(format, head_dim, head_dim_v)

    @property
    def of_scores(self) -> str:
        """The last dimension of Q and K, as texts have it."""
        return "head_dim" if self.format.in_byte == 1 else f"head_dim / {self.format.in_byte}"

    def operands(self, *, varlen: bool, page_size: int) -> Iterator[Operand]:
        """The arrays with the scales, of packed sequences (`varlen`) and pages, unless `page_size` is 0."""
        of, kind = self.format, "powers of two" if self.format.scale is E8M0 else "0 or more"
        of_rows = f"{kind}: of each row one for each {of.size} elements"
        of_values = (
            f"powers of two: of each column one for each {MX_BLOCK} keys, of which the last may be fewer"
        )
        if varlen and not page_size:
            of_values += f"; sequence b begins with row cu_seqlens_k[b] / {MX_BLOCK} + b, rounded down"
        rows, in_row = "total" if varlen else "seq", (self.head_dim // of.size, f"head_dim / {of.size}")
        in_block = self.head_dim_v, "head_dim_v"
        for name, dtype, heads, count, in_page, meaning, (columns, last) in (
            (SCALES[0], of.scale, "heads", f"{rows}_q", 0, f"scales of Q, {of_rows}", in_row),
            (SCALES[1], of.scale, "kv_heads", f"{rows}_k", page_size, f"scales of K, {of_rows}", in_row),
            (
                SCALES[2],
                E8M0,
                "kv_heads",
                K_BLOCKS,
                page_size // MX_BLOCK,
                f"scales of V, {of_values}",
                in_block,
            ),
        ):
            axes: tuple[str, ...] = ("pages", heads, str(in_page)) if in_page else ("batch", heads, count)
            steps: tuple[str, ...] = ("page" if in_page else "batch", "head", "row")
            if varlen and not in_page:
                axes, steps = axes[:0:-1], steps[:0:-1]
            yield Operand(name, dtype, axes, meaning, columns=columns, last=last, steps=steps)


@dataclass(frozen=True, slots=True)
class Features:
    """Everything that the text of a kernel depends on in addition to types, tiles and causality."""

    scores: tuple[ScoreFeature, ...] = ()  # in the order of `SCORES`
    varlen: bool = False
    seqused_q: bool = False
    seqused_k: bool = False
    splits: bool = False
    leftpad_k: bool = False
    cache_batch_idx: bool = False
    page_size: int = 0  # keys in a page of K and V; 0 if they are not paged
    kv_dtype: DType | None = None  # type of K and V, a narrow one; None: that of Q
    per_token: bool = False  # whether each row of K and V has a scale; else one is for a head's rows
    appended: Appended | None = None
    query_rotation: Rotation | None = None  # the rotation of Q in a kernel that appends nothing
    scaled: bool = False  # whether Q, K and V have scales, for each head of K and V of each sequence
    scale_block: int = 0  # rows of a head of Q, K and V that share a scale; 0 if all of them do
    mx: MxScales | None = None  # the scales of blocks of elements of Q, K and V; None without them
    scaled_gradient: bool = False  # whether the gradient of O has scales, too, as Q has

    @property
    def rotation(self) -> Rotation | None:
        """The rotary embedding of queries and of appended rows; None without one."""
        return self.query_rotation if self.appended is None else self.appended.rotation

    @property
    def words(self) -> list[str]:
        """The words for the features in the kernel's name; those with a type come last."""
        flags = {
            "varlen": self.varlen,
            "usedq": self.seqused_q,
            "usedk": self.seqused_k,
            "splits": self.splits,
            "leftpad": self.leftpad_k,
            "indexed": self.cache_batch_idx,
            f"page{self.page_size}": self.page_size > 0,
            f"scales{self.scale_block}": self.scale_block > 0,
        }
        if self.mx is not None:
            flags[self.mx.format.word] = True
        words = [feature.word for feature in self.scores if feature.dtype is None]
        words += [word for word, there in flags.items() if there]
        words += [f"kv_{self.kv_dtype.name}"] if self.kv_dtype is not None else []
        words += ["tokens"] if self.per_token else []
        words += self.appended.words if self.appended is not None else []
        words += self.query_rotation.words if self.query_rotation is not None else []
        return words + [feature.word for feature in self.scores if feature.dtype is not None]

    def has(self, kind: type[ScoreFeature]) -> bool:
        """Whether the kernel has a score feature of the class `kind`, such as a bias."""
        return any(isinstance(feature, kind) for feature in self.scores)

    @property
    def uses_position(self) -> bool:
        """Whether a score feature depends on the position of a query among the keys."""
        return any(f.uses_position or (self.cached and f.counts_from_keys) for f in self.scores)

    @property
    def has_functions(self) -> bool:
        """Whether a score feature is a function that a user wrote, `score_mod` or `mask_mod`."""
        return any(feature.is_function for feature in self.scores)

    @property
    def changes_scores(self) -> bool:
        """Whether scores are more than products times a scale, or compared with a sink, which is
        unscaled.
        """
        return any(feature.changes_scores for feature in self.scores)

    @property
    def hides_anywhere(self) -> bool:
        """Whether a score feature, such as a mask, may hide any key from any query."""
        return any(feature.hides for feature in self.scores)

    @property
    def planes(self) -> int:
        """The number of feature arrays, such as masks, that have an element for each score."""
        return sum(feature.axes == PER_SCORE for feature in self.scores)

    @property
    def row_counts(self) -> tuple[str, str]:
        """The names of the parameters with the numbers of rows of Q and O, and of K and V; with
        pages the latter is the number of rows that a sequence has room for.
        """
        return ("total_q" if self.varlen else "seq_q", "total_k" if self.packs_keys else "seq_k")

    @property
    def packs_keys(self) -> bool:
        """Whether the keys of all sequences lie one after another, like their queries."""
        return self.varlen and not self.page_size

    @property
    def longest_q(self) -> str:
        """The name of the parameter with the most query rows of a sequence, for which the grid is
        sized.
        """
        return "max_seqlen_q" if self.varlen else "seq_q"

    @property
    def steps(self) -> tuple[str, ...]:
        """The axes that Q, K, V and O have strides of; their columns are dense."""
        return ("head", "row") if self.varlen else ("batch", "head", "row")

    def steps_of(self, array: str) -> tuple[str, ...]:
        """The axes that one of Q, K, V and O has strides of: as `steps`, but O may have an axis of
        splits, and K and V may be in pages.
        """
        if self.page_size and array in ("K", "V"):
            return ("page", "head", "row")
        return (*self.steps, "split") if self.splits and array == "O" else self.steps

    @property
    def cached(self) -> bool:
        """Whether K and V are in a cache, where each sequence of a batch has as many keys as are in
        the cache so far.
        """
        of_sequence = self.leftpad_k or self.cache_batch_idx or self.page_size > 0
        narrow = self.kv_dtype is not None
        return of_sequence or narrow or (self.seqused_k and not self.varlen)

    @property
    def kv_batch(self) -> str:
        """The name of the size with the number of sequences of K and V, which may be more than Q
        has.
        """
        return "kv_batch" if self.cache_batch_idx else "batch"

    @property
    def registers(self) -> int:
        """Registers that a kernel may need for its features, by what the assembler was seen to
        take. Features run one after another, so that the largest need counts, except those that
        run at the same time as the others, as the shared reads of a page table do.
        """
        alone = [feature.needed_registers for feature in self.scores if not feature.adds_registers]
        concurrent = [feature.needed_registers for feature in self.scores if feature.adds_registers]
        lookups = _REGISTERS_OF_LOOKUPS if self.varlen and self.page_size else 0
        return max(alone, default=0) + sum(concurrent) + lookups

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arrays of the problem's features, in the order of the kernel's parameters."""
        cached = self.cached
        of_scores = [o for feature in self.scores for o in feature.operands(cached=cached)]
        new = self.appended.operands if self.appended is not None else ()
        angles = self.query_rotation.operands("rows of Q") if self.query_rotation is not None else ()
        return (*of_scores, *self._of_sequences, *self._scales, *new, *angles)

    @property
    def _scales(self) -> Iterator[Operand]:
        """The arrays with the fp8 scales of Q, K and V, and of the gradient of O."""
        if self.mx is not None:
            yield from self.mx.operands(varlen=self.varlen, page_size=self.page_size)
            return
        named = [*zip("QKV", SCALES, strict=True)] if self.scaled else []
        named += [("dO", GRADIENT_SCALE)] if self.scaled_gradient else []
        for what, name in named:
            if self.scale_block:
                yield self._scale_of_blocks(what, name)
                continue
            yield Operand(
                name,
                F32,
                ("batch", "kv_heads"),
                f"what the numbers of {what} are multiplied with, for each head of K and V and the heads "
                "of Q that share it",
            )

    def _scale_of_blocks(self, what: str, name: str) -> Operand:
        """The array with the fp8 scales of blocks of rows of Q, K, V or dO."""
        return Operand(
            name,
            F32,
            ("batch", "kv_heads", K_BLOCKS) if what in "KV" else ("batch", "heads", Q_BLOCKS),
            f"what the numbers of {what} are multiplied with, for each {self.scale_block} rows of a head, of "
            "which the last may be fewer",
        )

    @property
    def scale_blocks(self) -> dict[str, Expression]:
        """The names of the sizes that count blocks of rows with a scale, each with its number. Blocks of
        packed sequences begin with each of these.
        """
        if self.mx is None:
            rows = {Q_BLOCKS: "seq_q", K_BLOCKS: "seq_k"} if self.scale_block else {}
            return {name: {CEIL_DIV: [of, self.scale_block]} for name, of in rows.items()}
        if self.page_size:
            return {}
        blocks: Expression = {CEIL_DIV: [self.row_counts[1], MX_BLOCK]}
        return {K_BLOCKS: {PLUS: [blocks, "batch"]} if self.varlen else blocks}

    def counts_of_scales(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """How many blocks of rows have a scale, by the names of these sizes; `sizes` has the numbers of rows
        and of sequences by name.
        """
        return {name: evaluated(of, sizes) for name, of in self.scale_blocks.items()}

    @property
    def _of_sequences(self) -> Iterator[Operand]:
        """The arrays that say where the rows of each sequence are, and how many of them count."""
        if self.varlen:
            for side, what in (("q", "queries"), ("k", "keys"))[: 1 + self.packs_keys]:
                yield Operand(
                    f"cu_seqlens_{side}",
                    I32,
                    PER_SEQUENCE,
                    f"the {what} of sequence b are rows cu_seqlens_{side}[b] to "
                    f"cu_seqlens_{side}[b + 1] - 1 of total_{side}; never decreasing",
                    more=1,
                )
        for side, what, there in (("q", "queries", self.seqused_q), ("k", "keys", self.seqused_k)):
            if there:
                new = ", the new ones among them" if self.appended is not None else ""
                yield Operand(
                    f"seqused_{side}",
                    I32,
                    PER_SEQUENCE,
                    f"how many {what} each sequence has{new}: the first of its rows",
                )
        if self.kv_dtype is not None and self.kv_dtype.has_scales:
            for what in ("k", "v"):
                yield self._scale_of_tokens(what) if self.per_token else self._scale_of_heads(what)
        if self.leftpad_k:
            yield Operand(
                "leftpad_k",
                I32,
                PER_SEQUENCE,
                "how many of each sequence's rows, the first ones, are no keys of it",
            )
        if self.cache_batch_idx:
            yield Operand(
                "cache_batch_idx",
                I32,
                PER_SEQUENCE,
                "which sequence of K and V the queries of each sequence are for",
            )
        if self.page_size:
            yield Operand(
                "block_table",
                I32,
                (self.kv_batch, "table_columns"),
                f"in which page each {self.page_size} keys of a sequence of K and V are",
            )

    def _scale_of_heads(self, what: str) -> Operand:
        """The scales of K ("k") or V ("v"), one for each head."""
        new = ", and new rows divided by" if self.appended is not None else ""
        meaning = f"what the numbers of {what.upper()} are multiplied with{new}, above 0"
        return Operand(f"{what}_scale", F32, ("kv_heads",), meaning)

    def _scale_of_tokens(self, what: str) -> Operand:
        """The scales of K ("k") or V ("v"), one for each row of each head, laid out as the rows are."""
        axes = (self.kv_batch, "kv_heads", "seq_k")
        if self.page_size:
            axes = ("pages", "kv_heads", str(self.page_size))
        return Operand(
            f"{what}_scale",
            F32,
            axes,
            f"what the numbers of each row of {what.upper()} are multiplied with, finite and at least 0; of "
            "rows that are no keys it may be anything",
            steps=self.steps_of(what.upper()),
            role=f"{what}_scale, read, and written for new rows" if self.appended is not None else "",
            is_written=self.appended is not None,
        )

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The scalars of the problem's features, in the order of the kernel's parameters."""
        numbers = list(self._numbers_of_scores(follow_grid=False))
        if self.varlen:
            numbers.append(
                Number(
                    "max_seqlen_q",
                    u32,
                    "the most queries of a sequence, for which the grid is made; those of longer "
                    f"ones beyond it are left out; 1 to {MAX_WINDOWED_SEQ}",
                    (1, MAX_WINDOWED_SEQ),
                )
            )
        if self.splits:
            numbers.append(
                Number(
                    "splits",
                    u32,
                    "how many CTAs share the keys of a block of queries: each takes as many tiles "
                    f"of them, in their order, and writes O and LSE of these; 1 to {MAX_SPLITS}",
                    (1, MAX_SPLITS),
                )
            )
        numbers += self._numbers_of_scores(follow_grid=True)
        if self.cache_batch_idx:
            numbers.append(Number("kv_batch", u32, "sequences of K and V", (1, _MOST)))
        if self.page_size:
            numbers.append(Number("pages", u32, "pages of K and V", (1, _MOST)))
        if self.mx is not None and self.packs_keys:
            numbers.append(Number(K_BLOCKS, u32, "rows of v_scale of each head", (1, _MOST)))
        numbers += self.appended.numbers if self.appended is not None else []
        numbers += self.query_rotation.numbers if self.query_rotation is not None else []
        return tuple(numbers)

    def _numbers_of_scores(self, *, follow_grid: bool) -> Iterator[Number]:
        for feature in self.scores:
            if feature.follows_grid is follow_grid:
                yield from feature.numbers(cached=self.cached)


NO_FEATURES: Final = Features()

PARTS: Final = Number(
    "parts",
    u32,
    "into how many parts the problem is divided, one for each block of query rows of each head: CTA n "
    "of the grid computes every so many of them. The results do not depend on the number of CTAs",
    (1, _MOST),
)

SECTION: Final = Number(
    "section",
    u32,
    "how many heads of all batches take turns: the last block of query rows of each of them, then "
    "the blocks before, then the next so many heads; at least 1, and better no more than have "
    "their K and V in the cache together. The results do not depend on it",
    (1, 2**31 - 1),
)
