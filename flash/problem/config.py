"""`AttentionConfig`: an attention problem, and the choices of how to compute it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from flash.families.choice import (
    FAMILIES,
    AnyTiling,
    choose_launch_tiling,
    choose_tiling,
    families_of,
    family_of,
    gathers_rows,
    largest_tile,
    most_generous,
    only_target,
    possible_blocks_q,
    possible_tiles,
)
from flash.families.precision import IEEE, choices, resolved
from flash.families.request import TileRequest, natural_alignment
from flash.families.simt import BLOCKS_Q
from flash.families.wgmma import BOX_ROWS, lies_in_boxes
from flash.operands.dtype_names import (
    Auto,
    Causal,
    DTypeLike,
    InputDTypeLike,
    Precision,
    ScaleBlock,
    Scheduler,
)
from flash.operands.dtypes import DTYPES, F32, FP8_DTYPES, FP8_NAMES, INPUT_DTYPES, DType, config_name
from flash.problem.features import MAX_PAGE_SIZE, Features, MxScales, Rotation
from flash.problem.head_dims import checked_head_dim, checked_head_dim_v
from flash.problem.kernel_config import KernelConfig
from flash.problem.narrow import block_format, not_for_fp8, resolved_out_dtype, resolved_scale_block
from flash.problem.outputs import LSE, OUTPUTS, Output
from flash.problem.persistence import SCHEDULERS, scheduled
from flash.problem.rotary import resolved_rotary_dim, why_not_rotated
from flash.problem.splits import splits_of
from flash.scores.features import ScoreSettings, meanings_of_settings
from flash.scores.options import SCALES, flag, is_scale, require_one_of
from ptxgen.arguments import in_numbers, integer
from ptxgen.errors import ConfigError, shown
from ptxgen.records import dataclass
from ptxgen.target import Target
from ptxgen.target import target as find_target

DEFAULT_TARGET: Final = "sm_80"  # target of emitted text; a launch takes the device's own
ALIGNMENTS: Final = (16, 8, 4, 2)  # bytes
STAGES: Final = (1, 2, 3, 4)
CAUSAL: Final = (False, True, "bottom_right", "top_left")
_OUTPUTS: Final = tuple([output.option for output in OUTPUTS])
_FLAGS: Final = (*_OUTPUTS, "varlen", "seqused_q", "seqused_k", "rotary_interleaved")


@dataclass(frozen=True, repr=False)
class AttentionConfig(ScoreSettings):
    """An attention problem and how to compute it. Frozen, hashable, checked when it is made.

    head_dim: 1..576; head_dim_v: 1..512, by default head_dim. The columns of
        wide values are dealt to several CTAs, each of which computes the scores for itself
        (`flash/families/request.py`).
    dtype: "f32", "f16" or "bf16", of Q, K, V and O, or what array libraries call these: "float16",
        "half", torch.bfloat16, numpy.float32. Sums and LSE are f32. The 16-bit types run on tensor
        cores and need sm_80 or later, 'f16' sm_75. {fp8} (fp8) is of Q, K and V alone, for Hopper
        (target="sm_90a", if you give none) and Blackwell ("sm_100a", "sm_103a"), and launches then give
        `q_scale`, `k_scale` and `v_scale`, float32 [batch, kv_heads], by which numbers of Q, K and V are
        multiplied (`flash/families/wgmma_fp8.py` and `tcgen05_fp8.py` say which tiles there are); with
        `scale_block` each block of rows of a head has scales of its own.
    precision: of f32, "ieee" (f32 throughout), "f32_grade" (on tensor cores, each product as three
        of f16: the error is that of f32) or "tf32" (on tensor cores, with 11 significant bits of
        Q, K, P and V); None and "auto" are "ieee". Products of 16-bit types are exact
        anyway. Tensor cores multiply f32 from sm_80 on.
    causal: False; True or "bottom_right" (the last query sees every key, as flash-attn and KV
        caches need); "top_left" (query i sees keys 0..i, as PyTorch's `is_causal`).
    tile: keys per tile of K and V, one of 16, 32, 64, 128; block_q: query rows per CTA, one of 16,
        32, 64, 128, on tensor cores at least 32; with target="sm_90a" a 16-bit type and "f32_grade" may
        also have a tile of 48, 80, 96, 112, 144, 160 or 176, and a 16-bit type a block_q of 192; with
        target="sm_100a" or "sm_103a" 16-bit types and fp8 may have a tile of 96 and a block_q of 256, and
        "f32_grade" a tile of 48 or 80.
        "auto" takes the documented default for head_dim and target (`DEFAULT_TILES`,
        `DEFAULT_MMA_TILES`, `DEFAULT_TF32_TILES`,
        `flash/families/wgmma.py`, `flash/families/tcgen05.py`), as does a launch whose arrays `wgmma` or
        `tcgen05` does not take, where the kernel without it has no such size.
    stages: tiles of K, and of V, that shared memory holds, 1..4; more hide more of the latency of memory,
        fewer leave room for more CTAs. "auto" is 1, and over a cache what memory needs (docs/kv-cache.md).
        f32 without tensor cores has 1, kernels with `wgmma` at least 2, with `tcgen05` for 1 all that fit.
    softmax_scale: factor of Q Kᵀ; None means 1/√head_dim. It is an argument of the kernel, not
        part of its text.
    return_lse: also write the log-sum-exp of each row (natural logarithm, f32, [batch, heads,
        seq_q]).
    return_max_logit: also write the largest score of each head (f32, [batch, heads]) after the scale and
        whatever changes or hides scores, before the sink and dropout: -inf for a head whose rows see no
        key, NaN if a score that a row sees is NaN.
    {settings of scores}
    pack_gqa: whether a CTA computes the queries of all heads that share a head of K and V, which it
        then reads once for all of them (`flash/device/grouped_heads.py`). "auto" does so where it
        takes fewer CTAs, with pages always, and otherwise not with varlen or scales of rows (for emitted text
        never); True is refused with scales of rows (`scale_block`), of which a warpgroup has one of Q.
    varlen: whether the sequences of a batch have lengths of their own, their rows packed one after
        another: launches give `cu_seqlens_q` and `cu_seqlens_k`. Not with bias,
        key_bias or mask.
    seqused_q, seqused_k: with varlen, whether launches also give how many of each sequence's
        queries, and keys, count.
    page_size: with varlen, 1..256: K and V are in pages of this many rows, found by a `block_table`,
        and `seqused_k`, which is then True, says how many keys each sequence has; there is no
        `cu_seqlens_k`. Of fp8 it is a multiple of 16, with scales of elements of 32. None: the keys of all
        sequences lie one after another, like their queries.
    rotary_dim: with page_size, the columns of Q that the kernel rotates, even, 0..head_dim: the first ones,
        by the position of each query among the keys, of which the last query has the last. Launches give
        `rotary_cos` and `rotary_sin`, f32 [positions, rotary_dim / 2]. Keys are rotated when they are
        written to their pages. Not with causal="top_left" and fp8.
    rotary_interleaved: whether columns 2 i and 2 i + 1 are rotated together, instead of i and
        i + rotary_dim / 2.
    target: such as "sm_90"; None means sm_80 for emitted text and the device's own for a launch on
        a GPU, but sm_90a with fp8. The kernels
        for sm_90a, a Hopper GPU's own target, use `wgmma` and TMA where they can
        (`flash/families/wgmma.py`), those for sm_90 never; those for sm_100a and sm_103a, which
        only Blackwell GPUs run, use `tcgen05` (`flash/families/tcgen05.py`), those for sm_100 and sm_103
        never.
    splits: into how many parts the keys are divided, 1..32768: each has CTAs of its own, and a second
        launch merges their results. 1 is one launch. "auto" divides them on a GPU that would otherwise
        be partly idle, where tile and block_q are "auto", too (`flash/launch/key_splits.py`), so that
        the last bits of results depend on the batch and on the GPU; with a number they depend on neither
        (`flash/problem/row_bits.py`). It is a choice of launches of `AttentionKernel`; emitted text does not
        depend on it. With varlen it is 1 or "auto".
    out_dtype: with fp8 the type of O, "bf16" (None) or "f16".
    scale_block: with fp8 how many rows of a head of Q, of K and of V share a scale: a
        multiple of 64, and of `tile`. `q_scale` is then [batch, heads, ceil(seq_q / scale_block)],
        `k_scale` and `v_scale` are [batch, kv_heads, ceil(seq_k / scale_block)]. None: all rows share it.
        With "mx" blocks of 32 elements do (MXFP8, by `flash.quantize_mx`), for Blackwell alone: scales are
        float8_e8m0fnu, `q_scale` [batch, heads, seq_q, head_dim / 32], `k_scale` [batch, kv_heads, seq_k,
        head_dim / 32], `v_scale` [batch, kv_heads, ceil(seq_k / 32), head_dim_v]. With "nv" that is so of V,
        and Q and K are NVFP4 (by `flash.quantize_nvfp4`): uint8 [..., head_dim / 2], whose bytes have two
        elements each, and blocks of 16 elements have scales, float8_e4m3fn [..., head_dim / 16]. With varlen
        such scales are packed, or in pages (`docs/numerics.md`); scales of rows have no kernel with varlen.
    shared_kv: whether V is the first head_dim_v columns of K; launches take no v.{families with shared_kv}
    scheduler: "grid" (a CTA for each block of queries of a head) or, of f16 and bf16 with `wgmma` and
        `tcgen05`, "static" (as many CTAs as run at once, each of which takes several blocks), "mirrored"
        (the same, in every other round from the last CTA to the first, which suits causality) or "ticket" (a
        CTA that is done takes the next block); others have a grid (`flash/problem/persistence.py`). "auto" is
        a grid for emitted text, and what a model says for a launch (`flash/launch/scheduler_choice.py`). No
        result depends on it.
    alignment: bytes that all pointers and strides are multiples of; "auto" takes the most that
        head_dim allows for emitted text, and the alignment of the arrays for a launch.

    Raises `ConfigError` for anything that cannot be generated.
    """

    head_dim: int
    head_dim_v: int | None = None
    dtype: InputDTypeLike = "f32"
    causal: Causal = False
    tile: int | Auto = "auto"
    block_q: int | Auto = "auto"
    stages: int | Auto = "auto"
    softmax_scale: float | None = None
    return_lse: bool = False
    varlen: bool = False
    seqused_q: bool = False
    seqused_k: bool = False
    target: str | None = None
    alignment: int | Auto = "auto"
    precision: Precision | None = None
    pack_gqa: bool | Auto = "auto"
    page_size: int | None = None
    splits: int | Auto = "auto"
    out_dtype: DTypeLike | None = None
    shared_kv: bool = False
    scheduler: Scheduler | Auto = "auto"
    scale_block: ScaleBlock | None = None
    rotary_dim: int = 0
    rotary_interleaved: bool = False
    return_max_logit: bool = False

    def __repr__(self) -> str:
        """The call that makes the config, with the settings of scores after the other fields."""
        names = [f.name for f in sorted(fields(self), key=lambda f: bool(f.kw_only))]
        return f"AttentionConfig({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"

    def __post_init__(self) -> None:
        flag("shared_kv", self.shared_kv)
        object.__setattr__(self, "head_dim", checked_head_dim(self.head_dim))
        value_dim = self.head_dim if self.head_dim_v is None else self.head_dim_v
        object.__setattr__(self, "head_dim_v", checked_head_dim_v(value_dim))
        self._require_shared()
        object.__setattr__(self, "dtype", config_name(self.dtype))
        require_one_of("dtype", self.dtype, tuple(INPUT_DTYPES))
        object.__setattr__(self, "out_dtype", resolved_out_dtype(self.dtype, self.out_dtype))
        scaled = resolved_scale_block(self.dtype, self.scale_block, self.head_dim)
        object.__setattr__(self, "scale_block", scaled)
        require_one_of("precision", self.precision, choices(self.element), hint=self._why_no_precision)
        object.__setattr__(self, "precision", resolved(self.element, self.precision))
        require_one_of("causal", self.causal, CAUSAL)
        if self.causal is True:
            object.__setattr__(self, "causal", "bottom_right")
        only = only_target(
            TileRequest(
                self.head_dim,
                self.value_dim,
                self.element,
                precision=self.precision,
                shared_kv=self.shared_kv,
                mx=block_format(self.scale_block),
            )
        )
        named = only if self.target is None else self.target
        object.__setattr__(self, "target", None if named is None else find_target(named).name)
        for name in _FLAGS:
            flag(name, getattr(self, name))
        self._normalize()
        self._require_splits()
        self._require_paged()
        self._require_rotated()
        self._require_packable()
        require_one_of("pack_gqa", self.pack_gqa, ("auto", True, False))
        require_one_of("scheduler", self.scheduler, ("auto", *SCHEDULERS))
        stages = (1,) if self.precision == IEEE else STAGES
        require_one_of("stages", self.stages, (*stages, "auto"))
        tiles = possible_tiles(self.tile_request, find_target(self.target or DEFAULT_TARGET))
        require_one_of("tile", self.tile, (*tiles, "auto"), hint=self._largest_tile)
        blocks_q = possible_blocks_q(self.tile_request, find_target(self.target or DEFAULT_TARGET))
        require_one_of("block_q", self.block_q, (*blocks_q, "auto"), hint=self._largest_tile)
        alignments = [n for n in ALIGNMENTS if n >= self.element.nbytes]
        require_one_of("alignment", self.alignment, (*alignments, "auto"))
        object.__setattr__(self, "softmax_scale", _checked_scale(self.softmax_scale))
        choose_tiling(self.tile_request, find_target(self.target) if self.target else most_generous())

    def _require_shared(self) -> None:
        if self.shared_kv and self.value_dim > self.head_dim:
            raise ConfigError(
                f"AttentionConfig: head_dim_v must be at most head_dim={self.head_dim} with shared_kv, where "
                f"V is columns of K, got {self.value_dim}"
            )

    def _require_splits(self) -> None:
        splits = splits_of("AttentionConfig", self.splits, ConfigError)
        if splits is None:
            return
        if splits > 1 and self.varlen:
            raise ConfigError(
                f"AttentionConfig: splits={splits} is for batches of sequences of one length; of packed "
                "sequences keys are not divided: use splits=1 or 'auto'"
            )
        object.__setattr__(self, "splits", splits)

    def _require_paged(self) -> None:
        """Check `page_size`, which implies `seqused_k`."""
        if self.page_size is None:
            return
        rows = integer(self.page_size, 1, MAX_PAGE_SIZE)
        if rows is None:
            raise ConfigError(
                f"AttentionConfig: page_size must be an integer from 1 to {MAX_PAGE_SIZE}, or None for "
                f"keys without pages, got {shown(self.page_size)}"
            )
        if not self.varlen:
            raise ConfigError(
                "AttentionConfig: page_size is for sequences of their own lengths; use varlen=True with "
                "it, or DecodeKernel, whose launches take a block_table"
            )
        object.__setattr__(self, "page_size", rows)
        object.__setattr__(self, "seqused_k", True)

    def _require_rotated(self) -> None:
        """Check `rotary_dim`, without which `rotary_interleaved` says nothing."""
        rotary_dim = resolved_rotary_dim(self.rotary_dim, self.head_dim)
        why = why_not_rotated(self.page_size, self.causal, is_fp8=self.is_fp8) if rotary_dim else ""
        if why:
            raise ConfigError(f"AttentionConfig: rotary_dim={rotary_dim} {why}")
        object.__setattr__(self, "rotary_dim", rotary_dim)
        object.__setattr__(self, "rotary_interleaved", rotary_dim > 0 and bool(self.rotary_interleaved))

    def _require_packable(self) -> None:
        for name in ("seqused_q", "seqused_k"):
            if getattr(self, name) and not self.varlen:
                raise ConfigError(
                    f"AttentionConfig: {name} is for sequences of their own lengths; use "
                    f"varlen=True with it, or leave {name}=False"
                )
        for feature in self.scores:
            if feature.excludes and getattr(self, feature.excludes):
                raise ConfigError(
                    f"AttentionConfig: {feature.setting} cannot be combined with "
                    f"{feature.excludes}; add its elements to those of {feature.excludes}"
                )
            if feature.of_each and self.varlen:
                raise ConfigError(
                    f"AttentionConfig: varlen cannot be combined with {feature.setting}, which has "
                    f"a number for each {feature.of_each} of [{', '.join(feature.axes)}], and "
                    "sequences of their own lengths have no such array; use window, causal or "
                    "alibi, or a batch for each length"
                )

    def _why_no_precision(self) -> str:
        if self.element is F32:
            return ""
        return f"; products of {self.dtype} are exact, and the choice is that of f32"

    def _largest_tile(self) -> str:
        target = find_target(self.target or DEFAULT_TARGET)
        tile = largest_tile(self.tile_request, target)
        if not tile:
            return ""
        return (
            f"; the largest tile that fits head_dim={self.head_dim}, head_dim_v={self.head_dim_v} "
            f"on {target.name} is {tile}"
        )

    @property
    def tile_request(self) -> TileRequest:
        """The part of the config, such as types and head_dim, on which the choice of tiles depends."""
        request = TileRequest(
            self.head_dim,
            self.value_dim,
            self.element,
            self.tile,
            self.block_q,
            stages=1 if self.stages == "auto" else int(self.stages),
            other_registers=self.features.registers,
            has_planes=self.features.hides_anywhere,
            planes=self.features.planes,
            looks_up=self.page_size is not None,
            in_pages=self.page_size is not None,
            precision=self.precision,
            rotates=self.rotary_dim > 0,
            shared_kv=self.shared_kv,
            scale_block=self.scaled_rows,
            mx=block_format(self.scale_block),
        )
        in_boxes = self.page_size is None or lies_in_boxes(self.page_size, padded=False)
        gathers = not in_boxes and gathers_rows(request)
        return replace(request, gathers=gathers, without_wgmma=self._without_wgmma(in_boxes or gathers))

    def _without_wgmma(self, takes_pages: bool) -> str:
        """Why kernels with `wgmma` do not take the problem; the empty string if they do
        (`flash/families/wgmma.py`). `takes_pages` is whether its kernel takes pages of this size.
        """
        if self.is_fp8:
            return not_for_fp8(self.page_size, self.pack_gqa, self.dropout, self.varlen, self.scale_block)
        if takes_pages:
            return ""
        return f"pages have {self.page_size} rows, and boxes of tensor copies multiples of {BOX_ROWS}"

    @property
    def is_fp8(self) -> bool:
        """Whether Q, K and V have fp8 elements, which the kernel multiplies by scales."""
        return self.dtype in FP8_DTYPES

    @property
    def scaled_rows(self) -> int:
        """The number of fp8 rows that share a scale; 0 if a head, or a block of elements, has one."""
        return self.scale_block if isinstance(self.scale_block, int) else 0

    @property
    def element(self) -> DType:
        """The element type of Q, K and V as a PTX type; `output` is that of O."""
        return INPUT_DTYPES[str(self.dtype)]

    @property
    def output(self) -> DType:
        """The element type of the output O: `out_dtype`, by default the type of Q, K and V."""
        return self.element if self.out_dtype is None else DTYPES[str(self.out_dtype)]

    @property
    def value_dim(self) -> int:
        """The columns of V and O: `head_dim_v`, by default `head_dim`; an int, never None."""
        assert self.head_dim_v is not None  # set in __post_init__
        return self.head_dim_v

    @property
    def features(self) -> Features:
        """The features of the problem, such as varlen or fp8 scales, on which a kernel's PTX text depends."""
        return Features(
            scores=self.scores,
            varlen=self.varlen,
            seqused_q=self.seqused_q,
            seqused_k=self.seqused_k,
            page_size=self.page_size or 0,
            query_rotation=Rotation(self.rotary_dim, self.rotary_interleaved) if self.rotary_dim else None,
            scaled=self.is_fp8,
            scale_block=self.scaled_rows,
            mx=MxScales.of(block_format(self.scale_block), self.head_dim, self.value_dim),
        )

    @property
    def gradient_features(self) -> Features:
        """The features of the problem of the gradients: with fp8 the gradient of O has scales, too."""
        return replace(self.features, scaled_gradient=self.is_fp8)

    def for_rows(
        self, rows: int, tiling_of: Callable[[AttentionConfig], AnyTiling], *, same_bits: bool = False
    ) -> AttentionConfig:
        """The config with the smallest block_q that holds `rows` rows, if its block_q is "auto":
        rows of a block without a query are wasted work. `tiling_of` gives the tiling of a config, or raises
        `ConfigError`; with `same_bits` it is one that computes a row as that of the config itself does.
        """
        if self.block_q != "auto" or (self.shared_kv and family_of(tiling_of(self)).values_in_keys):
            return self  # a kernel that reads a tile once for K and V has one block_q
        wanted = tiling_of(self).row_arithmetic if same_bits else None
        *_, last = families_of(self.tile_request)
        for block_q in sorted({*BLOCKS_Q}.intersection(last.blocks_q)):
            if rows > block_q:
                continue
            try:
                smaller = replace(self, block_q=block_q)
                arithmetic = tiling_of(smaller).row_arithmetic
            except ConfigError:
                continue
            if wanted in (None, arithmetic):
                return smaller
        return self

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs that a call returns in addition to O by default."""
        return tuple([output for output in OUTPUTS if getattr(self, output.option)])

    @property
    def scale(self) -> float:
        """The softmax scale, by which the kernel multiplies the products of q and k: a float."""
        return self.head_dim**-0.5 if self.softmax_scale is None else float(self.softmax_scale)

    def kernel(
        self,
        target: Target | str | None = None,
        alignment: int | None = None,
        return_lse: bool | None = None,
        *,
        without_wgmma: str = "",
    ) -> KernelConfig:
        """The kernel for a target (default: the config's own, else sm_80) and for arrays aligned to
        `alignment` bytes. `without_wgmma` is the reason of a launch against `wgmma`, if it has one.

        Raises `ConfigError` if the tiles do not fit the target.
        """
        if not isinstance(without_wgmma, str):
            raise ConfigError(f"without_wgmma must be a str, got {shown(without_wgmma)}")
        target = find_target(self.target or DEFAULT_TARGET if target is None else target)
        if alignment is not None:
            possible = [n for n in ALIGNMENTS if n >= self.element.nbytes]
            require_one_of("alignment", alignment, (*possible, None))
        else:
            natural = natural_alignment(self.head_dim, self.value_dim, self.element)
            alignment = natural if self.alignment == "auto" else int(self.alignment)
        request = self.tile_request
        if without_wgmma:
            request = replace(request, without_wgmma=without_wgmma)
        tiling = choose_launch_tiling(self.tile_request, request, target, alignment)
        scheduler, tiling = scheduled(str(self.scheduler), tiling, self.features, target)
        outputs = self.outputs
        if return_lse is not None:
            outputs = tuple([o for o in OUTPUTS if (return_lse if o is LSE else o in outputs)])
        return KernelConfig(
            target,
            tiling,
            self.causal or "",  # type: ignore[arg-type]  # True became "bottom_right"
            outputs,
            alignment,
            self.element,
            self.features,
            self.pack_gqa is True,
            written=self.output if self.is_fp8 else None,
            scheduler=scheduler,
        )


AttentionConfig.__doc__ = (
    inspect.cleandoc(AttentionConfig.__doc__ or "")
    .replace("{settings of scores}", meanings_of_settings())
    .replace("{fp8}", FP8_NAMES)
    .replace("{families with shared_kv}", "".join(family.shared_kv_words for family in FAMILIES))
)


def config_of_call(caller: str, **fields: Any) -> AttentionConfig:
    """The config that the function `caller` makes of its arguments. Raises `ConfigError`, which names
    `caller` as the function that was called.
    """
    try:
        return AttentionConfig(**fields)
    except ConfigError as error:
        message = str(error).removeprefix(f"{AttentionConfig.__name__}: ")
        raise ConfigError(f"{caller}: {message}") from None


def _checked_scale(value: Any) -> Any:
    if value is not None and not is_scale(value):
        raise ConfigError(
            f"AttentionConfig: softmax_scale must be {SCALES}, "
            f"or None for 1/sqrt(head_dim), got {shown(value)}"
        )
    return in_numbers(value)
