"""The shipped kernels that the campaign mutates, and the check of their results.

A new kernel is one more entry of `_FORWARD` or another table, of a family's `campaign`, or of `subjects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from flash.contract.catalogue import Build, build
from flash.families.choice import FAMILIES
from flash.launch.calls import counters, make_plan
from flash.launch.checks import Geometry, check
from flash.mods import where
from flash.operands.dtypes import BF16, F16, F32
from flash.problem.config import AttentionConfig
from flash.problem.gradients import KEYS, QUERIES, SCORES
from ptxgen.arrays.views import ArrayView, view
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Launch
from tools.campaign.append import append_subject
from tools.campaign.arrays import Array, Arrays, arrays_of, with_margins
from tools.campaign.cache import cache_subject
from tools.campaign.gradients import gradient_subject
from tools.campaign.launches import of_plan
from tools.campaign.merge import merge_subject
from tools.campaign.problems import SAMPLED, Problem, problems_of
from tools.campaign.sums import sum_subject


def _forward(name: str, *, few: bool = False, **settings: Any) -> KernelUnderTest:
    """The subject of the forward kernel of one configuration; `few` is that of `problems_of`."""
    config = AttentionConfig(return_lse=True, **settings)
    built = build(config.kernel())
    block = config.kernel().tiling.threads
    return KernelUnderTest(
        name,
        built.kernel.name,
        block,
        built.module,
        problems_of(config, few=few),
        partial(forward_launch, config, built),
        params=built.smallest_maps,
    )


def _hopper(
    name: str,
    *,
    heads: int = 1,
    queries: int | None = None,
    seeds: tuple[int, ...] = (1, 2, 3),
    scheduled: int = 2,
    **settings: Any,
) -> KernelUnderTest:
    """The subject of a forward kernel for Hopper, whose runs take long: it has few problems. The first, on
    which each mutant runs, has `heads` heads and, unless it is None, `queries` queries.
    """
    subject = _forward(name, few=True, **settings)
    first, *others = subject.problems
    problems = replace(first, heads=heads, seq_q=queries or first.seq_q), *others
    return replace(subject, problems=problems, scheduled=scheduled, seeds=seeds, sampled=SAMPLED)


def forward_launch(config: AttentionConfig, built: Build, problem: Problem) -> Launch:
    """The launch of a configuration's forward kernel on a problem; the results are new at each call."""
    inputs, settings = arrays_of(config, problem), problem.config(config)
    out = with_margins(inputs.out.shape, config.output, None, reverse=problem.reverse)
    lse = np.full(inputs.lse.shape, np.nan, F32.numpy)
    results = (out, lse) if config.return_lse else (out,)
    arrays = (inputs.q, inputs.k, inputs.v, *results, *inputs.operands.values(), *counters(built.config))
    plan = make_plan(
        built,
        _geometry(settings, problem, inputs, out),
        settings.scale,
        (0,) * len(arrays),
        {**settings.numbers, "dropout_seed": problem.dropout_seed, "section": problem.section},
        multiprocessors=_MULTIPROCESSORS,
    )
    if problem.ctas is not None:
        plan = replace(plan, grid=(problem.ctas, 1, 1))
    return of_plan(plan, arrays, (out, lse), lambda: inputs.difference(out, lse))


def _geometry(config: AttentionConfig, problem: Problem, inputs: Arrays, out: Array) -> Geometry:
    """The sizes and strides of a launch. Dimensions of one element have their stride, too, so that
    an access to a second element hits the margin.
    """

    def seen(array: Array, name: str) -> ArrayView:
        in_pages = config.page_size is not None and name in ("k", "v")
        return view(array[0].swapaxes(0, 1) if config.varlen and not in_pages else array, name)

    four = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "out": out}
    checked = check(
        config,
        *(seen(array, name) for name, array in four.items()),
        operands={name: view(array, name) for name, array in inputs.operands.items()},
        max_seqlen_q=max(n for n, _ in problem.sequences),
    )
    strides = [[s // array.itemsize for s in array.strides[:3]] for array in four.values()]
    return replace(checked, strides=tuple((b, h, r) for b, h, r in strides))


class _Subjects(Mapping[str, KernelUnderTest]):
    """Kernels of the campaign by name. A kernel is generated and proved at its first access,
    because some take a second and most callers use one kernel.
    """

    def __init__(self, *recipes: partial[KernelUnderTest]) -> None:
        self._recipes = {str(recipe.args[0]): recipe for recipe in recipes}
        self._built: dict[str, KernelUnderTest] = {}

    def __getitem__(self, name: str) -> KernelUnderTest:
        if name not in self._built:
            self._built[name] = self._recipes[name]()
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)


def _relative(score: Any, batch: Any, head: Any, query: Any, key: Any, table: Any) -> Any:  # noqa: ARG001
    return where((query - key) % 5 < 4, 0.5 * score, score) + table[head, query - key + 8]


def _sparse(batch: Any, head: Any, query: Any, key: Any, hidden: Any) -> Any:  # noqa: ARG001
    return (query - key < 4) & (key != hidden[batch]) & ((query - key) % 3 < 2)


_MULTIPROCESSORS: Final = 1  # so that a CTA of a persistent kernel has several blocks of queries
_F32: Final = {"target": "sm_80", "head_dim": 20, "tile": 16, "block_q": 128}
_F16: Final = {"target": "sm_80", "dtype": "f16", "head_dim": 16, "tile": 16, "block_q": 32}
_WGMMA: Final = {"target": "sm_90a", "dtype": "f16", "tile": 16}
_TF32: Final = {"target": "sm_80", "head_dim": 8, "tile": 16, "block_q": 32, "window": (80, 10)}
_FORWARD: Final[dict[str, dict[str, Any]]] = {
    "f32-sm_75": _F32 | {"target": "sm_75"},
    "f32-sm_80": _F32,
    "f32-sm_80-causal": _F32 | {"causal": "top_left"},
    # Two threads share a score; rows and columns need padding; narrow copies.
    "f32-sm_75-causal-split": _F32
    | {"target": "sm_75", "head_dim": 6, "block_q": 16, "causal": "bottom_right"},
    # Tensor cores: panels of 64, 32 and 16 columns, and an epilogue in passes.
    "f16-sm_80": _F16 | {"head_dim": 24, "head_dim_v": 72},
    "bf16-sm_80-causal-stages": _F16 | {"dtype": "bf16", "block_q": 64, "causal": "top_left", "stages": 2},
    # Weights without maxima, whose sums say whether a shift has to move.
    "f16-sm_80-sums": _F16 | {"tile": 64, "block_q": 128},
    # Kernels that copy through registers.
    "f16-sm_80-causal-narrow": _F16 | {"head_dim": 5, "head_dim_v": 37, "causal": "bottom_right"},
    # One tf32 product or three of f16, whose rows fill a panel, and tiles that a window cuts on either side.
    "tf32-sm_80-window-sink": _TF32 | {"precision": "tf32", "head_dim_v": 4, "sink": True},
    "f32_grade-sm_80-window": _TF32 | {"precision": "f32_grade", "head_dim": 32},
    # Turing: a tile waits in registers while the one before is computed.
    "f16-sm_75-causal": _F16 | {"target": "sm_75", "head_dim": 24, "causal": "bottom_right"},
    # Kernels with masks: any key may be hidden, in every tile.
    "f16-sm_80-features": _F16 | {"softcap": 3.0, "alibi": True, "bias": "f16", "mask": True, "dropout": 0.3},
    "f16-sm_80-causal-key-bias": _F16 | {"causal": "top_left", "key_bias": "f32", "pack_gqa": True},
    # CTAs with rows of several heads (packed GQA); in f32 also with slices of values.
    "bf16-sm_80-causal-packed": _F16
    | {"dtype": "bf16", "causal": "bottom_right", "sink": True, "pack_gqa": True},
    "f32-sm_80-packed-wide": _F32
    | {"head_dim": 4, "head_dim_v": 260, "block_q": 16, "sink": True, "pack_gqa": True},
    # Packed sequences (varlen).
    "f16-sm_80-causal-varlen": _F16
    | {"causal": "bottom_right", "varlen": True, "seqused_q": True, "seqused_k": True},
    # Packed sequences whose keys are in pages, with packed heads, as in serving.
    "f16-sm_80-causal-varlen-paged": _F16
    | {"causal": "bottom_right", "varlen": True, "seqused_q": True, "page_size": 4, "pack_gqa": True},
    # Warpgroups of several roles, which take turns, tensor copies and wgmma.
    "f16-sm_90a": _WGMMA | {"head_dim": 56, "head_dim_v": 56, "block_q": 128},
    # Functions of scores, which index an array.
    "f16-sm_80-mods": _F16
    | {"score_mod": _relative, "mask_mod": _sparse, "aux": {"table": ("f16", 2), "hidden": ("i32", 1)}},
}
_HOPPER: Final[dict[str, dict[str, Any]]] = {
    name: {**_WGMMA, **settings} for family in FAMILIES for name, settings in family.campaign.items()
}
_CACHE: Final[dict[str, dict[str, Any]]] = {
    # Kernels that attend to a cache: in pages, contiguous, or in e4m3.
    "f16-sm_80-cache-paged": {"page_size": 4, "attention": _F16 | {"head_dim_v": 24, "pack_gqa": True}},
    "f32-sm_80-cache": {
        "indexed": False,
        "attention": _F32 | {"head_dim": 4, "block_q": 16, "pack_gqa": False},
    },
    # Kernels that attend to a cache and also write new rows, rotated like the queries.
    "f16-sm_80-cache-paged-append": {
        "page_size": 4,
        "rotary_dim": 10,
        "attention": _F16 | {"head_dim_v": 24, "pack_gqa": True},
    },
    "f32-sm_80-cache-append": {
        "indexed": False,
        "has_splits": False,
        "rotary_dim": 4,
        "attention": _F32 | {"head_dim": 8, "block_q": 16, "pack_gqa": False},
    },
    "e4m3-sm_89-cache": {
        "indexed": False,
        "has_splits": False,
        "kv_dtype": "e4m3",
        "attention": _F16 | {"target": "sm_89", "head_dim": 32, "pack_gqa": False},
    },
}
_APPEND: Final[dict[str, dict[str, Any]]] = {
    # Kernels that append new rows to a cache: in pages and rotated, or in fp8.
    "f16-sm_80-append-paged": {"target": "sm_80", "dims": (80, 37), "rotary_dim": 72, "page_size": 4},
    "e4m3-sm_89-append": {
        "target": "sm_89",
        "dims": (40, 37),
        "rotary_dim": 24,
        "interleaved": True,
        "kv_dtype": "e4m3",
        "padding": False,
        "index": False,
    },
    "e5m2-sm_80-append": {
        "target": "sm_80",
        "dims": (24, 37),
        "rotary_dim": 0,
        "kv_dtype": "e5m2",
        "padding": False,
        "index": False,
        # The middle between 1 and 1.25, and a quotient that is so near above it that it becomes the same f16
        # where it is cut.
        "scale": 3.0,
        "special": (np.nan, np.inf, -np.inf, 3.375, 3.376953125),
    },
}
_FEATURES: Final = {
    "dtype": "f16",
    "head_dim": 24,
    "softcap": 3.0,
    "alibi": True,
    "mask": True,
    "dropout": 0.3,
}
_VARLEN: Final = {
    "dtype": "bf16",
    "head_dim": 24,
    "head_dim_v": 40,
    "causal": "bottom_right",
    "varlen": True,
    "seqused_q": True,
    "seqused_k": True,
}
_WINDOW: Final = {
    "dtype": "f32",
    "precision": "f32_grade",
    "head_dim": 8,
    "head_dim_v": 12,
    "window": (20, 9),
}
_HALF: Final = {"dtype": "f16", "head_dim": 16}
_TURING: Final = _HALF | {"target": "sm_75"}
_HOPPER_HALF: Final = {"target": "sm_90a", "dtype": "f16", "head_dim": 64}
_HOPPER_FP8: Final = {"target": "sm_90a", "dtype": "e4m3", "head_dim": 64, "tile": 64}
_HOPPER_FEATURES: Final = {
    "target": "sm_90a",
    "dtype": "f16",
    "head_dim": 64,
    "head_dim_v": 56,
    "softcap": 3.0,
    "dropout": 0.3,
}
_HOPPER_VARLEN: Final = _VARLEN | {"target": "sm_90a", "head_dim": 56, "head_dim_v": 64}
# All columns of a panel: what meets a column of zeros could be anything.
_EXACT: Final = {"head_dim": 32, "causal": "top_left"}
_GRADIENTS: Final[dict[str, dict[str, Any]]] = {
    # Gradients: of queries, and of the numbers of scores that follow from rows.
    "f16-sm_80-dq-features": {
        "owner": QUERIES,
        "wanted": ("alibi_slopes",),
        "with_dlse": True,
        "attention": _FEATURES | {"causal": "bottom_right", "bias": "f16"},
    },
    "bf16-sm_80-dq-varlen": {"owner": QUERIES, "wanted": ("sink",), "attention": _VARLEN | {"sink": True}},
    "f16-sm_80-dq-narrow": {
        "owner": QUERIES,
        "stages": 1,
        "attention": {"dtype": "f16", "head_dim": 5, "head_dim_v": 37, "causal": "top_left"},
    },
    "f32_grade-sm_80-dq-window": {"owner": QUERIES, "attention": _WINDOW},
    # Gradients of keys and values, and of numbers of scores for each key.
    "f16-sm_80-dkv-features": {
        "owner": KEYS,
        "wanted": ("key_bias",),
        "attention": _FEATURES | {"causal": "top_left", "key_bias": "f32"},
    },
    "bf16-sm_80-dkv-varlen": {"owner": KEYS, "attention": _VARLEN | {"causal": "top_left"}},
    # Two CTAs make a slice of the columns each.
    "f16-sm_80-dkv-wide": {
        "owner": KEYS,
        "stages": 1,
        "slices": 2,
        "attention": {"dtype": "f16", "head_dim": 72, "head_dim_v": 16, "causal": "bottom_right"},
    },
    # Two warps own the same keys, and pass weights to one another. Each makes one panel of columns of dK and
    # two of dV; of all panels only the last ones lack columns, a chunk each.
    "f16-sm_80-dkv-across": {
        "owner": KEYS,
        "wanted": ("key_bias",),
        "across": 2,
        "attention": {
            "dtype": "f16",
            "head_dim": 120,
            "head_dim_v": 248,
            "causal": "bottom_right",
            "key_bias": "f32",
            "dropout": 0.3,
        },
    },
    # Two warps own the same queries, and add up scores of their columns.
    "f16-sm_80-dq-columns": {
        "owner": QUERIES,
        "wanted": ("sink",),
        "stages": 1,
        "column_warps": 2,
        "attention": {
            "dtype": "f16",
            "head_dim": 120,
            "head_dim_v": 72,
            "causal": "bottom_right",
            "sink": True,
        },
    },
    "f32_grade-sm_80-dkv-window": {"owner": KEYS, "attention": _WINDOW},
    # Scores of a tile in parts, and matrices of the CTA's own rows in registers.
    "f16-sm_80-dq-parts": {"owner": QUERIES, "in_parts": True, "attention": _HALF},
    "f16-sm_80-dkv-parts": {"owner": KEYS, "in_parts": True, "attention": _HALF},
    # One sweep, which also adds to sums of dQ.
    "f16-sm_80-dkv-adds": {"owner": KEYS, "one_sweep": True, "attention": _HALF | {"causal": "bottom_right"}},
    # Pairs of tiles that wait in registers.
    "f16-sm_75-dq": {"owner": QUERIES, "stages": 1, "attention": _TURING | {"causal": "bottom_right"}},
    "f16-sm_75-dkv": {"owner": KEYS, "stages": 1, "attention": _TURING | {"window": (20, 9)}},
    # Exact products of f32.
    "f32-sm_80-dq": {"owner": QUERIES, "stages": 1, "attention": _EXACT},
    "f32-sm_80-dkv": {"owner": KEYS, "stages": 1, "attention": _EXACT},
    # Warpgroups of two roles, tensor copies and wgmma: gradients of queries.
    "f16-sm_90a-dq": {"owner": QUERIES, "attention": _HOPPER_HALF},
    "f16-sm_90a-dq-features": {
        "owner": QUERIES,
        "wanted": ("alibi_slopes",),
        "with_dlse": True,
        "attention": _HOPPER_FEATURES | {"causal": "bottom_right", "alibi": True, "mask": True},
    },
    "bf16-sm_90a-dq-varlen": {
        "owner": QUERIES,
        "wanted": ("sink",),
        "attention": _HOPPER_VARLEN | {"sink": True},
    },
    # Gradients of keys and values.
    "f16-sm_90a-dkv": {"owner": KEYS, "attention": _HOPPER_HALF},
    "f16-sm_90a-dkv-features": {
        "owner": KEYS,
        "wanted": ("key_bias",),
        "attention": _HOPPER_FEATURES | {"causal": "top_left", "key_bias": "f32"},
    },
    "bf16-sm_90a-dkv-varlen": {
        "owner": KEYS,
        "attention": _HOPPER_VARLEN | {"causal": False, "window": (20, 9)},
    },
    # Two warpgroups own the same keys, and each sums half of the columns.
    "f16-sm_90a-dkv-split": {
        "owner": KEYS,
        "attention": {"target": "sm_90a", "dtype": "f16", "head_dim": 192, "head_dim_v": 64, "causal": True},
    },
    # One sweep, whose CTAs add to sums of dQ in any order, and in a fixed one.
    "f16-sm_90a-dkv-adds": {
        "owner": KEYS,
        "one_sweep": True,
        "attention": _HOPPER_HALF | {"window": (20, 70)},
    },
    "f16-sm_90a-dkv-ordered": {
        "owner": KEYS,
        "one_sweep": True,
        "in_order": True,
        "attention": _HOPPER_HALF | {"causal": "bottom_right"},
    },
    # Q, K, V and dO of fp8.
    "e4m3-sm_90a-dq": {"owner": QUERIES, "attention": _HOPPER_FP8 | {"causal": "top_left"}},
    "e4m3-sm_90a-dkv": {"owner": KEYS, "attention": _HOPPER_FP8 | {"causal": "bottom_right"}},
    # Gradients of scores, summed over what shares a bias.
    "f16-sm_80-dbias": {
        "owner": SCORES,
        "wanted": ("bias",),
        "attention": {"dtype": "f16", "head_dim": 24, "causal": "top_left", "bias": "f16"},
    },
}


@lru_cache(maxsize=1)
def subjects() -> Mapping[str, KernelUnderTest]:
    """All kernels of the mutation campaign by name."""
    return _Subjects(
        *(partial(_forward, name, **settings) for name, settings in _FORWARD.items()),
        *(partial(_hopper, name, **settings) for name, settings in _HOPPER.items()),
        # The merge of the results of splits.
        partial(merge_subject, "f16-sm_80-merge", target_name="sm_80", head_dim_v=136, dtype=F16),
        *(partial(append_subject, name, dtype=F16, **settings) for name, settings in _APPEND.items()),
        *(partial(cache_subject, name, **settings) for name, settings in _CACHE.items()),
        *(partial(gradient_subject, name, **settings) for name, settings in _GRADIENTS.items()),
        # The sums of what rows, keys and scores add to gradients of arrays of scores.
        partial(sum_subject, "bf16-sm_80-sum", target_name="sm_80", dtype=BF16),
    )
