"""Every access and barrier is proved, and no register spills, of kernels of which `tests/conformance.py` has
no kind: with packed heads and sequences, over caches, of splits, persistent ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from conformance import KINDS
from grids import pairwise
from kernel_runs import assert_no_spill, assert_proved

from flash import cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.catalogue import Build
from flash.families.choice import offered_tiles, tiles_that_fit
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import TARGETS, target

Settings = dict[str, Any]
Kernel = Callable[[], AttentionConfig | KernelConfig | Build]


def product(**choices: Iterable[Any]) -> list[Settings]:
    """Settings for each combination of choices."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def each(of: Callable[..., Any], *settings: Iterable[Settings], **common: Any) -> list[Kernel]:
    """Calls of `of` with each combination of settings, one of each of the lists."""
    return [
        partial(of, **{k: v for one in (common, *chosen) for k, v in one.items()})
        for chosen in itertools.product(*settings)
    ]


def of_splits(page_size: int = 0, **settings: Any) -> KernelConfig:
    """The kernel of a launch whose keys are divided into splits; with `page_size` they are in pages."""
    kernel = AttentionConfig(**settings).kernel(return_lse=True)
    paged = {"page_size": page_size, "seqused_k": True} if page_size else {}
    return replace(kernel, features=replace(kernel.features, splits=True, **paged), written=None)


_OF_CALL = ("splits", "seq_q", "group", "append", "rotary_dim", "rotary_interleaved")
_OF_CACHE = ("page_size", "leftpad_k", "cache_batch_idx", "kv_dtype", "scale_per")


def over_cache(**settings: Any) -> Build:
    """The kernel for Hopper that attends to a KV cache."""
    call, cache = ({n: settings.pop(n) for n in names if n in settings} for names in (_OF_CALL, _OF_CACHE))
    config = AttentionConfig(**{"dtype": "bf16", "target": "sm_90a", "causal": True, **settings})
    return cache_kernels.decode(config, CacheConfig(**cache), **call)


def gaps(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    return (query + 90 >= key) & ((query + 90 - key < 8) | (key <= 16))  # 16 begins a tile


def below(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    return query >= key


# ------------------------------------------------------------------------------------------
# kernels by what they have in common, the most telling first

SIMT_AND_MMA: list[Settings] = [{"dtype": "f16"}, {"precision": "f32_grade"}, {}]
EVERY_DTYPE: list[Settings] = [*SIMT_AND_MMA, {"precision": "tf32"}, {"dtype": "bf16"}]
WIDTHS = product(head_dim=(64, 128, 256))
ALL_BY_HEAD: Settings = {
    "mask": True,
    "bias": "f32",
    "alibi": True,
    "dropout": 0.3,
    "sink": True,
    "window": (12, 9),
}
SCORES: list[Settings] = [
    {**ALL_BY_HEAD, "causal": True},
    *({"causal": True, "window": (9, None), "sink": True}, {"causal": "top_left"}, {"causal": True}, {}),
    *product(window=((5, 9), (20, None), (None, 3))),
    *(
        {"mask": True},
        {"bias": "f32"},
        {"alibi": True},
        {"dropout": 0.3},
        {"key_bias": "f32", "causal": True},
    ),
]
NARROW: list[Settings] = [
    {"dtype": "f16", "alignment": 2},
    {"target": "sm_75"},
    {"dtype": "f16", "head_dim_v": 400},
]
LENGTHS: list[Settings] = [
    *({"causal": True, "seqused_q": True}, {"window": (99, 9), "seqused_q": True, "dropout": 0.1}, {}),
    {"causal": True, "window": (5, None), "alibi": True, "sink": True, "softcap": 2.0},
    {
        "causal": "top_left",
        "window": (5, None),
        "alibi": True,
        "sink": True,
        "softcap": 2.0,
        "seqused_q": True,
    },
]
ROWS: list[Settings] = [
    {"varlen": True, "causal": True, "window": (99, None), "page_size": 16},
    {"varlen": True, "seqused_q": True, "seqused_k": True, "sink": True},
    {"pack_gqa": True, "causal": True, "alibi": True, "bias": "f32"},
    {"pack_gqa": True, "varlen": True, "causal": "top_left", "dropout": 0.1},
    *({"varlen": True, "causal": True, "window": (99, None)}, {"pack_gqa": True, "causal": True}),
    *({"mask_mod": gaps}, {"mask_mod": below, "varlen": True, "pack_gqa": True}),
]
PERSISTENT: list[Settings] = [
    {"causal": True, "scheduler": "ticket"},  # the producer also clears values, by two barriers of a stage
    *({"causal": True, "scheduler": "mirrored"}, {"window": (9, 0), "varlen": True, "scheduler": "ticket"}),
    *({"window": (3, 4)}, {"bias": "f32", "sink": True}, {"causal": True, "varlen": True}, {}),
    *({"pack_gqa": True, "causal": True}, {"pack_gqa": True, "scheduler": "ticket"}, {"scheduler": "ticket"}),
    {"causal": True},
]
PAIRS: list[Settings] = [
    {"head_dim_v": 128, "pack_gqa": True, "causal": True},
    {"varlen": True, "page_size": 16, "pack_gqa": True},
    {"bias": "f32", "sink": True, "alibi": True},
    *(
        {"causal": True, "return_lse": True},
        {"window": (5, 5), "softcap": 5.0, "alibi": True, "sink": True},
        {},
    ),
    *({"bias": "f32", "dropout": 0.1, "softcap": 3.0}, {"mask": True, "causal": True}, {"head_dim_v": 64}),
]
FP8: list[Settings] = [
    {"causal": True, "window": (512, 0), "softcap": 30.0, "dtype": "e5m2"},
    *({"scale_block": n, "causal": True, "window": (40, 0)} for n in (192, 128, 64)),
    {"pack_gqa": True, "causal": True, "window": (40, 0)},
    {"varlen": True, "page_size": 16, "causal": True, "pack_gqa": True},
    *({}, {"causal": True}, {"scale_block": 128}, {"scale_block": 64, "mask": True}, {"scale_block": 64}),
    *(
        {"pack_gqa": True, "varlen": True, "causal": True},
        {"varlen": True, "page_size": 48, "window": (40, 0)},
    ),
]
OF_SPLITS: list[Settings] = [
    {"causal": True, "window": (40, 0)},
    {"causal": True, "pack_gqa": True},
    {"causal": True},
]
WHOLE_CACHES: list[Settings] = [
    {"page_size": 16, "pack_gqa": False, "splits": True},
    *product(
        leftpad_k=[True], cache_batch_idx=[True], window=[(99, None)], pack_gqa=[True], splits=[False, True]
    ),
    *({"leftpad_k": True, "cache_batch_idx": True}, {"page_size": 16}),
]
NEW_ROWS: list[Settings] = [
    {"append": True, "splits": True, "rotary_dim": 32},
    *({"append": True}, {"rotary_dim": 32, "rotary_interleaved": True}),
]
GATHERED: list[Settings] = [
    {"head_dim": 96, "page_size": 8, "pack_gqa": True, "softcap": 20.0},
    {"head_dim": 128, "page_size": 100, "window": (99, None), "alibi": True, "sink": True},
    *({"head_dim": 128, "page_size": 1, "pack_gqa": True}, {"head_dim": 64, "page_size": 1}),
    *(
        {"head_dim": 192, "head_dim_v": 128, "page_size": 24},
        {"head_dim": 256, "page_size": 8, "softcap": 20.0},
    ),
]
LATENTS: list[Settings] = [
    *({"page_size": 64, "splits": True}, {"page_size": 3}, {}, {"splits": True}, {"page_size": 16}),
    {"page_size": 1, "splits": True},
]
LATENT: Settings = {
    "head_dim": 576,
    "head_dim_v": 512,
    "dtype": "bf16",
    "target": "sm_90a",
    "shared_kv": True,
}
LATENT_OF_BLACKWELL: Settings = {**LATENT, "target": "sm_100a"}
HOPPER: Settings = {"dtype": "bf16", "target": "sm_90a"}
LONG_ROWS: list[Settings] = [
    {"precision": "f32_grade"},
    *product(precision=["tf32"], target=("sm_120", "sm_80")),
]
LONGER_ROWS: list[Settings] = [
    {"head_dim": 512, "dtype": "bf16"},
    {"head_dim": 576, "head_dim_v": 512, "dtype": "f16"},
    {"head_dim": 320, "head_dim_v": 256, "dtype": "f16"},
    {"head_dim": 512, "dtype": "f32"},
]
GRADE: Settings = {"precision": "f32_grade", "target": "sm_90a"}

# The kernels of each kind, and how many of them `make test` and `.ci/run` prove.
KERNELS: dict[str, tuple[list[Kernel], int, int]] = {
    "packed heads": (each(AttentionConfig, SCORES, SIMT_AND_MMA, head_dim=64, pack_gqa=True), 1, 5),
    "packed heads of odd rows": (
        each(AttentionConfig, NARROW, head_dim=63, causal=True, pack_gqa=True),
        0,
        2,
    ),
    "sequences": (
        each(AttentionConfig, LENGTHS, SIMT_AND_MMA, head_dim=64, varlen=True, seqused_k=True),
        0,
        3,
    ),
    "sequences over pages": (
        each(
            AttentionConfig,
            *(LENGTHS, product(pack_gqa=(True, False)), SIMT_AND_MMA),
            head_dim=64,
            varlen=True,
            page_size=16,
        ),
        *(1, 2),
    ),
    "wide values": (
        each(AttentionConfig, product(head_dim=(256, 64), head_dim_v=(511, 264), causal=[True]), EVERY_DTYPE),
        *(0, 3),
    ),
    "long rows of f32": (
        each(AttentionConfig, product(alignment=(4, "auto")), LONG_ROWS, head_dim=256),
        *(0, 2),
    ),
    "scores": (
        each(AttentionConfig, [{"key_bias": "f32"}, {"dropout": 0.1}], WIDTHS, SIMT_AND_MMA, causal=True),
        *(1, 7),
    ),
    "largest logits": (
        [
            partial(kind.default, *kind.widths[0], return_max_logit=True, causal=True, pack_gqa=packed)
            for packed in (True, False)
            for name, kind in KINDS.items()
            if kind.widths and not name.startswith("fp8")
        ],
        *(1, 8),
    ),
    "rows of wgmma": (each(AttentionConfig, WIDTHS, product(block_q=("auto", 64)), ROWS, **HOPPER), 0, 2),
    "weights of three warpgroups": (
        each(AttentionConfig, product(head_dim=(64, 96)), causal=True, **HOPPER),
        0,
        1,
    ),
    "persistent": (each(AttentionConfig, PERSISTENT, WIDTHS, **{"scheduler": "static", **HOPPER}), *(1, 3)),
    "pairs of f16 of wgmma": (each(AttentionConfig, PAIRS, product(head_dim=(64, 128)), **GRADE), 1, 3),
    "pairs of f16 of tcgen05": (
        each(AttentionConfig, PAIRS, product(head_dim=(64, 128)), precision="f32_grade", target="sm_100a"),
        *(1, 2),
    ),
    "latents": (
        each(AttentionConfig, [{"varlen": True, "window": (99, 5)}, {"bias": "f32", "sink": True}], **LATENT),
        0,
        2,
    ),
    "a cache of latents": (each(over_cache, LATENTS, **LATENT, group=128), 0, 2),
    "a cache of latents on Blackwell": (each(over_cache, LATENTS, **LATENT_OF_BLACKWELL, group=128), 0, 2),
    "wide values on Blackwell": (
        each(
            AttentionConfig,
            [{"causal": True}, {"causal": True, "pack_gqa": True, "varlen": True}, {"window": (9, None)}],
            product(head_dim=(256, 64), head_dim_v=(320, 512)),
            **{**HOPPER, "target": "sm_103a"},
        ),
        *(0, 2),
    ),
    "fp8": (each(AttentionConfig, product(head_dim=(128, 256)), FP8, dtype="e4m3", return_lse=True), *(1, 6)),
    "scales of elements": (
        each(
            AttentionConfig,
            product(head_dim=(96, 256), scale_block=("nv", "mx")),
            *([{"varlen": True}, {"varlen": True, "page_size": 32, "pack_gqa": True}, {"pack_gqa": True}],),
            dtype="e4m3",
            causal=True,
            return_lse=True,
        ),
        *(0, 2),
    ),
    "splits of fp8": (each(of_splits, [*OF_SPLITS, {"scale_block": 128}], WIDTHS, dtype="e4m3"), 1, 1),
    "splits of pairs of f16": (
        each(of_splits, [*OF_SPLITS, {"page_size": 16}], product(head_dim=(128, 16, 64, 96)), **GRADE),
        *(0, 4),
    ),
    "splits of f16": (
        each(of_splits, [*OF_SPLITS, {"window": (40, 20)}, {}], WIDTHS, **{**HOPPER, "dtype": "f16"}),
        0,
        0,
    ),
    "long rows": (
        [
            *each(
                AttentionConfig,
                LONGER_ROWS,
                [{"target": name} for name in ("sm_86", "sm_90", "sm_120")],
                causal=True,
            ),
            *each(over_cache, LONGER_ROWS[:3], [{"target": "sm_90", "page_size": 16, "splits": True}]),
            *each(
                over_cache,
                LONGER_ROWS[:2],
                [{"target": "sm_90", "kv_dtype": "e4m3", "scale_per": "token"}],
                group=8,
            ),
        ],
        *(0, 2),
    ),
    "a cache": (each(over_cache, WIDTHS, WHOLE_CACHES, seq_q=256), 0, 2),
    "new rows of a cache": (
        each(over_cache, WIDTHS, NEW_ROWS, product(page_size=(64, None)), seq_q=8, group=8),
        0,
        1,
    ),
    "gathered rows of sequences": (each(AttentionConfig, GATHERED, **HOPPER, causal=True, varlen=True), 0, 2),
    "gathered rows of a cache": (
        each(
            over_cache,
            *(
                WIDTHS,
                product(page_size=(8, 1)),
                [*NEW_ROWS[:1], {}, {"leftpad_k": True, "cache_batch_idx": True}],
            ),
            seq_q=8,
            group=8,
        ),
        *(0, 1),
    ),
}


def cases(*, proofs: bool) -> list[Any]:
    """The kernels as parameters of a test: of a proof, or of an assembly, of which `.ci/run` has fewer."""
    return [
        pytest.param(kernel, id=f"{name} {n}", marks=marks)
        for name, (kernels, quick, gate) in KERNELS.items()
        for n, kernel in enumerate(kernels)
        for last in [(quick, gate) if proofs else (0, min(gate, 2))]
        for marks in [[] if n < last[0] else [pytest.mark.slow if n < last[1] else pytest.mark.nightly]]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", cases(proofs=True))
def test_every_access_and_barrier_is_proved(kernel: Kernel) -> None:
    assert_proved(kernel())


@pytest.mark.ptxas
@pytest.mark.parametrize("kernel", cases(proofs=False))
def test_no_kernel_spills(kernel: Kernel, assembler: Assembler) -> None:
    assert_no_spill(kernel(), assembler)


# ------------------------------------------------------------------------------------------
# every target, every width and every tile

ANY_TARGET = [name for name, of in KINDS.items() if of.settings.get("target", "sm_80") in ("sm_80", "sm_86")]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kind", ANY_TARGET)
def test_no_default_kernel_spills_on_any_target(kind: str, name: str, assembler: Assembler) -> None:
    # Causal on every other target; test_no_default_kernel_spills has each width with both.
    for n, dims in enumerate(KINDS[kind].widths, [*TARGETS].index(name)):
        if kind == "simt" or TARGETS[name].sm >= 80:
            assert_no_spill(KINDS[kind].default(*dims, target=name, causal=n % 2 == 1), assembler)


def offered(head_dim: int, name: str, settings: Settings) -> list[tuple[int, int]]:
    return list(offered_tiles(head_dim, head_dim, target(name), settings.get("dtype", "f32")))


# Odd rows are copied through registers, which only the default tiles are chosen for.
OFFERED: list[tuple[int, str, Settings]] = [
    *itertools.product(
        (16, 40, 64, 72, 80, 96, 128, 160, 192, 256),
        TARGETS,
        ({"return_lse": True}, {"alignment": 4}, {"dtype": "f16", "return_lse": True}),
    )
]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("head_dim", "name", "settings"),
    [row[:3] for row in pairwise((*of, offered(*of)) for of in OFFERED)],
    ids=str,
)
def test_no_tile_offered_spills_on_any_target(
    head_dim: int, name: str, settings: Settings, assembler: Assembler
) -> None:
    for (tile, block_q), causal in itertools.product(offered(head_dim, name, settings), (False, True)):
        sizes = {"tile": tile, "block_q": block_q, "causal": causal, "target": name}
        assert_no_spill(AttentionConfig(head_dim, **settings, **sizes), assembler)


TILES: list[Settings] = [
    *product(dtype=["f16"], target=["sm_90a"], causal=[False, True]),
    *({"dtype": "e4m3", "causal": True, **one} for one in ({}, {"pack_gqa": True}, {"scale_block": 128})),
    *({"dtype": dtype, "splits": True, "causal": True, "window": (512, 0)} for dtype in ("e4m3", "e5m2")),
    {"dtype": "e4m3", "varlen": True, "page_size": 16, "causal": True, "pack_gqa": True},
    {"dtype": "e5m2", "varlen": True, "page_size": 16, "causal": True, "window": (512, 0), "softcap": 30.0},
    {"dtype": "e4m3", "varlen": True, "page_size": 128, "causal": True, "alibi": True, "pack_gqa": True},
    *({**HOPPER, "varlen": True, "page_size": page_size, "causal": True} for page_size in (100, 1)),
    *(
        {"dtype": "e4m3", "scale_block": block, "target": "sm_100a", "varlen": True, "causal": True, **one}
        for block in ("mx", "nv")
        for one in ({}, {"page_size": 32, "pack_gqa": True})
    ),
]
OTHER_WIDTHS = [(64, 128), (64, 256), (128, 192), (128, 256), (192, 128), (192, 256)]
OF_LATENTS = [(576, 512), (264, 128), (512, 512), (320, 256)]
SPILLING = [(264, 128), (320, 256)]
SPILLS = pytest.mark.xfail(reason="with a mask and a bias these spill 4 and 8 bytes on sm_90a", strict=True)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "settings",
    [
        *(dict(one, head_dim=head_dim) for one in TILES for head_dim in (64, 96, 128, 192, 256)),
        *(dict(TILES[1], head_dim=a, head_dim_v=b) for a, b in OTHER_WIDTHS),
        *(
            pytest.param(
                {**of_target, "head_dim": a, "head_dim_v": b, **one},
                marks=[SPILLS] if of_target is LATENT and "bias" in one and (a, b) in SPILLING else [],
            )
            for of_target in (LATENT, LATENT_OF_BLACKWELL)
            for a, b in OF_LATENTS
            for one in ({"causal": True, "window": (9, 0), "softcap": 3.0}, {"mask": True, "bias": "f32"})
        ),
    ],
    ids=str,
)
def test_no_tile_that_is_offered_spills(settings: Settings, assembler: Assembler) -> None:
    of = of_splits if settings.pop("splits", False) else AttentionConfig
    request = AttentionConfig(**settings).tile_request
    for tile, block_q in tiles_that_fit(request, target(settings.get("target", "sm_90a"))):
        assert_no_spill(of(**{**settings, "tile": tile, "block_q": block_q}), assembler)
