"""The arguments of a launch that are given by name, and not by every launch."""

from __future__ import annotations

from typing import Any, Required, TypedDict, cast

from flash.operands.dtype_names import (
    AnyArray,
    Auto,
    Backend,
    Causal,
    DTypeLike,
    KVLayout,
    Layout,
    Precision,
    ScaleBlock,
)
from flash.problem.features import SCALES
from flash.scores.features import (
    CacheLaunchArguments,
    LaunchScores,
    ScoreArguments,
    ScoreArrays,
    VarlenArguments,
)


class EndArguments(TypedDict, total=False):
    """The row with which each packed sequence begins, and the row after the last sequence."""

    cu_seqlens_q: AnyArray | None
    cu_seqlens_k: AnyArray | None


class LengthArguments(TypedDict, total=False):
    """How many rows of each packed sequence count, its pages, and the most queries of a sequence."""

    seqused_q: AnyArray | None
    seqused_k: AnyArray | None
    block_table: AnyArray | None
    max_seqlen_q: int | None


class SequenceArguments(EndArguments, LengthArguments, total=False):
    """The keyword arguments of a launch about packed sequences (varlen): ends and lengths."""


class ScaleArguments(TypedDict, total=False):
    """The factors of the fp8 elements of Q, K and V, one for each head, or for each block of rows."""

    q_scale: AnyArray | None
    k_scale: AnyArray | None
    v_scale: AnyArray | None


class GradientScaleArguments(ScaleArguments, total=False):
    """`ScaleArguments` of gradients, with the factors of the fp8 elements of the gradient of O, as many as of
    Q.
    """

    dout_scale: AnyArray | None


class RotaryArrays(TypedDict, total=False):
    """The angles by which queries of keys in pages are rotated, for each position."""

    rotary_cos: AnyArray | None
    rotary_sin: AnyArray | None


class RotaryArguments(RotaryArrays, total=False):
    """The arguments about the rotation of queries, in a call without a config."""

    rotary_interleaved: bool


class NarrowArguments(ScaleArguments, total=False):
    """The arguments about Q, K and V of fp8 in a call without a config: their scales, and settings as in
    `AttentionConfig`.
    """

    scale_block: ScaleBlock | None
    out_dtype: DTypeLike | None


class GradientNarrowArguments(GradientScaleArguments, total=False):
    """The arguments about Q, K, V and the gradient of O of fp8 in a call without a config; O has its type."""

    scale_block: int | None


class CommonKeywords(TypedDict, total=False):
    """The keyword arguments of every forward call that do not change what it returns."""

    softmax_scale: float | None
    out: AnyArray | None
    stream: object
    backend: Backend


class CallKeywords(CommonKeywords, total=False):
    """`CommonKeywords`, and the keyword arguments of calls without a config that a config has as settings."""

    causal: Causal
    precision: Precision | None
    splits: int | Auto


class AttentionArguments(ScoreArguments, NarrowArguments, total=False):
    """The arguments of `attention` that are given by name, in addition to `CallKeywords`."""


class BackwardArguments(ScoreArguments, GradientNarrowArguments, total=False):
    """The arguments of `attention_backward` that are given by name, in addition to those in its signature."""


class AttentionVarlenArguments(VarlenArguments, NarrowArguments, RotaryArguments, total=False):
    """The arguments of `attention_varlen` that are given by name, in addition to `CallKeywords`."""


class AttentionKeywords(AttentionArguments, CallKeywords, total=False):
    """The keyword arguments of `attention` that do not change what it returns."""

    layout: Layout


class VarlenKeywords(AttentionVarlenArguments, CallKeywords, LengthArguments, total=False):
    """The keyword arguments of `attention_varlen` that do not change what it returns."""

    kv_layout: KVLayout


class ExplainArguments(ScoreArrays, SequenceArguments, total=False):
    """The arrays of all features of scores and of sequences, where a config has the settings."""


class CacheLaunchOptions(CacheLaunchArguments, total=False):
    """The arguments of `DecodeKernel.launch` that are given by name, in addition to `return_lse`."""

    seqused_k: Required[AnyArray]
    block_table: AnyArray | None
    cache_batch_idx: AnyArray | None
    leftpad_k: AnyArray | None
    k_scale: AnyArray | None
    v_scale: AnyArray | None
    rotary_cos: AnyArray | None
    rotary_sin: AnyArray | None
    rotary_interleaved: bool
    softmax_scale: float | None
    out: AnyArray | None
    splits: int | Auto
    max_seqlen_k: int | None
    backend: Backend
    stream: object


class LaunchArguments(LaunchScores, SequenceArguments, total=False):
    """The arguments of all features in a launch, where a config has the settings."""


class ForwardExplainArguments(ExplainArguments, ScaleArguments, RotaryArrays, total=False):
    """`ExplainArguments` of the forward pass, which takes fp8 and rotates queries."""


class ForwardArguments(LaunchArguments, ScaleArguments, RotaryArrays, total=False):
    """`LaunchArguments` of the forward pass, which takes fp8 and rotates queries."""


class GradientExplainArguments(ExplainArguments, GradientScaleArguments, total=False):
    """`ExplainArguments` of gradients, which take fp8."""


class GradientLaunchArguments(LaunchArguments, GradientScaleArguments, total=False):
    """`LaunchArguments` of gradients, which take fp8."""


class LaunchKeywords(ForwardArguments, CommonKeywords, total=False):
    """The keyword arguments of `AttentionKernel.launch` that do not change what it returns."""

    layout: Layout


def split_narrow(arguments: AttentionArguments | AttentionVarlenArguments) -> tuple[Any, NarrowArguments]:
    """Split a call's arguments into those about scores and those about fp8."""
    scores: Any = dict(arguments)
    narrow: Any = {name: scores.pop(name) for name in NarrowArguments.__annotations__ if name in scores}
    return scores, narrow


def scales_of(narrow: NarrowArguments) -> ScaleArguments:
    """The scales among arguments of fp8, which a launch takes; a config has the others."""
    scales: Any = {name: array for name, array in narrow.items() if name in SCALES}
    return cast(ScaleArguments, scales)
