"""The shipped kernels that the campaign mutates, and the check of their results.

A new kernel is one more entry of `subjects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from flash.commands.campaign.append import append_subject
from flash.commands.campaign.arrays import Array, Arrays, arrays_of, with_margins
from flash.commands.campaign.cache import cache_subject
from flash.commands.campaign.merge import merge_subject
from flash.commands.campaign.problems import Problem, problems_of
from flash.commands.campaign.subject import Launch, Subject
from flash.contract.catalogue import Build, build
from flash.launch.calls import make_plan
from flash.launch.checks import Geometry, check
from flash.operands.dtypes import F16, F32
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import ArrayView, view


def _forward(name: str, **settings: Any) -> Subject:
    """The subject of the forward kernel of one configuration."""
    config = AttentionConfig(return_lse=True, **settings)
    built = build(config.kernel())
    block = config.kernel().tiling.threads
    return Subject(
        name,
        built.kernel.name,
        block,
        built.module,
        problems_of(config),
        partial(forward_launch, config, built),
    )


def forward_launch(config: AttentionConfig, built: Build, problem: Problem) -> Launch:
    """The launch of a configuration's forward kernel on a problem; the results are new at each call."""
    given, own = arrays_of(config, problem), problem.config(config)
    out = with_margins(given.out.shape, config.element, None, reverse=problem.reverse)
    lse = np.full(given.lse.shape, np.nan, F32.numpy)
    results = (out, lse) if config.return_lse else (out,)
    arrays = (given.q, given.k, given.v, *results, *given.operands.values())
    plan = make_plan(
        built,
        _geometry(own, problem, given, out),
        own.scale,
        (0,) * len(arrays),
        {**own.numbers, "dropout_seed": problem.dropout_seed, "section": problem.section},
    )
    return Launch(plan, arrays, (out, lse), lambda: given.difference(out, lse))


def _geometry(config: AttentionConfig, problem: Problem, given: Arrays, out: Array) -> Geometry:
    """The sizes and strides of a launch. Dimensions of one element have their stride, too, so that
    an access to a second element hits the margin.
    """

    def seen(array: Array, name: str) -> ArrayView:
        in_pages = config.page_size is not None and name in ("k", "v")
        return view(array[0].swapaxes(0, 1) if config.varlen and not in_pages else array, name)

    four = {"q": given.q, "k": given.k, "v": given.v, "out": out}
    found = check(
        config,
        *(seen(array, name) for name, array in four.items()),
        operands={name: view(array, name) for name, array in given.operands.items()},
        max_seqlen_q=max(n for n, _ in problem.sequences),
    )
    strides = [[s // array.itemsize for s in array.strides[:3]] for array in four.values()]
    return replace(found, strides=tuple((b, h, r) for b, h, r in strides))


class _Subjects(Mapping[str, Subject]):
    """Kernels of the campaign by name. A kernel is generated and proved at its first access,
    because some take a second and most users want only one kernel.
    """

    def __init__(self, *recipes: partial[Subject]) -> None:
        self._recipes = {str(recipe.args[0]): recipe for recipe in recipes}
        self._made: dict[str, Subject] = {}

    def __getitem__(self, name: str) -> Subject:
        if name not in self._made:
            self._made[name] = self._recipes[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)


@lru_cache(maxsize=1)
def subjects() -> Mapping[str, Subject]:
    """All kernels of the campaign by name."""
    return _Subjects(
        partial(_forward, "f32-sm_75", target="sm_75", head_dim=20, tile=16, block_q=128),
        partial(_forward, "f32-sm_80", target="sm_80", head_dim=20, tile=16, block_q=128),
        partial(
            _forward, "f32-sm_80-causal", target="sm_80", head_dim=20, tile=16, block_q=128, causal="top_left"
        ),
        # Two threads share a score; rows and columns need padding; narrow copies.
        partial(
            _forward,
            "f32-sm_75-causal-split",
            target="sm_75",
            head_dim=6,
            tile=16,
            block_q=16,
            causal="bottom_right",
        ),
        # Tensor cores: panels of 64, 32 and 16 columns, and an epilogue in passes.
        partial(
            _forward,
            "f16-sm_80",
            target="sm_80",
            dtype="f16",
            head_dim=24,
            head_dim_v=72,
            tile=16,
            block_q=32,
        ),
        partial(
            _forward,
            "bf16-sm_80-causal-stages",
            target="sm_80",
            dtype="bf16",
            head_dim=16,
            tile=16,
            block_q=64,
            causal="top_left",
            stages=2,
        ),
        # Kernels that copy through registers.
        partial(
            _forward,
            "f16-sm_80-causal-narrow",
            target="sm_80",
            dtype="f16",
            head_dim=5,
            head_dim_v=37,
            tile=16,
            block_q=32,
            causal="bottom_right",
        ),
        # One or three tf32 products, and tiles that a window cuts on either side.
        partial(
            _forward,
            "tf32-sm_80-window-sink",
            target="sm_80",
            precision="tf32",
            head_dim=8,
            head_dim_v=4,
            tile=16,
            block_q=32,
            window=(80, 10),
            sink=True,
        ),
        partial(
            _forward,
            "f32_grade-sm_80-window",
            target="sm_80",
            precision="f32_grade",
            head_dim=8,
            head_dim_v=12,
            tile=16,
            block_q=32,
            window=(80, 10),
        ),
        # Kernels with masks: any key may be hidden, in every tile.
        partial(
            _forward,
            "f16-sm_80-features",
            target="sm_80",
            dtype="f16",
            head_dim=16,
            tile=16,
            block_q=32,
            softcap=3.0,
            alibi=True,
            bias="f16",
            mask=True,
            dropout=0.3,
        ),
        partial(
            _forward,
            "f16-sm_80-causal-key-bias",
            target="sm_80",
            dtype="f16",
            head_dim=16,
            tile=16,
            block_q=32,
            causal="top_left",
            key_bias="f32",
            pack_gqa=True,
        ),
        # CTAs with rows of several heads (packed GQA); in f32 also with slices of values.
        partial(
            _forward,
            "bf16-sm_80-causal-packed",
            target="sm_80",
            dtype="bf16",
            head_dim=16,
            tile=16,
            block_q=32,
            causal="bottom_right",
            sink=True,
            pack_gqa=True,
        ),
        partial(
            _forward,
            "f32-sm_80-packed-wide",
            target="sm_80",
            head_dim=4,
            head_dim_v=260,
            tile=16,
            block_q=16,
            sink=True,
            pack_gqa=True,
        ),
        # Packed sequences (varlen).
        partial(
            _forward,
            "f16-sm_80-causal-varlen",
            target="sm_80",
            dtype="f16",
            head_dim=16,
            tile=16,
            block_q=32,
            causal="bottom_right",
            varlen=True,
            seqused_q=True,
            seqused_k=True,
        ),
        # Packed sequences whose keys are in pages, with packed heads, as in serving.
        partial(
            _forward,
            "f16-sm_80-causal-varlen-paged",
            target="sm_80",
            dtype="f16",
            head_dim=16,
            tile=16,
            block_q=32,
            causal="bottom_right",
            varlen=True,
            seqused_q=True,
            page_size=4,
            pack_gqa=True,
        ),
        # The merge of the results of splits.
        partial(merge_subject, "f16-sm_80-merge", target_name="sm_80", head_dim_v=136, dtype=F16),
        # Kernels that append new rows to a cache: in pages and rotated, or in e4m3.
        partial(
            append_subject,
            "f16-sm_80-append-paged",
            target="sm_80",
            dims=(80, 37),
            dtype=F16,
            rotary_dim=72,
            page_size=4,
        ),
        partial(
            append_subject,
            "e4m3-sm_89-append",
            target="sm_89",
            dims=(40, 37),
            dtype=F16,
            rotary_dim=24,
            interleaved=True,
            scales=True,
            padding=False,
            index=False,
        ),
        # Kernels that attend to a cache: in pages, contiguous, or in e4m3.
        partial(
            cache_subject,
            "f16-sm_80-cache-paged",
            page_size=4,
            attention={
                "target": "sm_80",
                "dtype": "f16",
                "head_dim": 16,
                "head_dim_v": 24,
                "tile": 16,
                "block_q": 32,
                "pack_gqa": True,
            },
        ),
        partial(
            cache_subject,
            "f32-sm_80-cache",
            indexed=False,
            attention={"target": "sm_80", "head_dim": 4, "tile": 16, "block_q": 16, "pack_gqa": False},
        ),
        # Kernels that attend to a cache and also write new rows, rotated like the queries.
        partial(
            cache_subject,
            "f16-sm_80-cache-paged-append",
            page_size=4,
            rotary_dim=10,
            attention={
                "target": "sm_80",
                "dtype": "f16",
                "head_dim": 16,
                "head_dim_v": 24,
                "tile": 16,
                "block_q": 32,
                "pack_gqa": True,
            },
        ),
        partial(
            cache_subject,
            "f32-sm_80-cache-append",
            indexed=False,
            has_splits=False,
            rotary_dim=4,
            attention={"target": "sm_80", "head_dim": 8, "tile": 16, "block_q": 16, "pack_gqa": False},
        ),
        partial(
            cache_subject,
            "e4m3-sm_89-cache",
            indexed=False,
            has_splits=False,
            scales=True,
            attention={
                "target": "sm_89",
                "dtype": "f16",
                "head_dim": 32,
                "tile": 16,
                "block_q": 32,
                "pack_gqa": False,
            },
        ),
    )
