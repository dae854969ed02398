"""The kernels of gradients, and the cpu, err by at most twice as much as PyTorch in the same precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gradient_rule import assert_at_most_twice
from gradient_runs import HARD as CHANGED
from gradient_runs import ROUNDED, Case, case
from kernel_runs import mostly_nightly
from numpy.typing import NDArray

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]

_CAUSAL = [False, True, "top_left"]
_SHORT = [
    (1, 1),
    (1, 3),
    (2, 1),
    (64, 128),
    (128, 192),
    (239, 1),
    (799, 3),
    (113, 203),
    (113, 128),
    (128, 217),
]
_SHORT += [(108, 256), (1, 239), (3, 799)]
_LONG = [(256, 512), (384, 256), (640, 128), (127, 512), (512, 127)]
_LONGEST = [(1023, 1024), (1024, 1023)]


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def _lengths() -> Iterable[tuple[str, int, int, Any]]:
    """The pairs of lengths of each kind, with each causality in turn; the long ones of two kinds."""
    for n, kind in enumerate(ROUNDED):
        pairs = [
            *_SHORT,
            *(_LONG if kind in ("f16", "f32_grade") else []),
            *(_LONGEST if kind == "f16" else []),
        ]
        for m, (seq_q, seq_k) in enumerate(pairs):
            yield kind, seq_q, seq_k, _CAUSAL[(n + m) % 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seq_q", "seq_k", "causal"), mostly_nightly(_lengths(), [("f16", 64, 128, False)])
)
def test_every_length(kind: str, seq_q: int, seq_k: int, causal: Any, torch: ModuleType) -> None:
    assert_at_most_twice(torch, case(seq_q, seq_k, 32, causal=causal, with_dlse=True, **ROUNDED[kind]))


_HEAD_DIMS = [32, 40, 59, 64, 72, 80, 96, 111, 128, 160, 192, 256, 512]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("head_dim", _HEAD_DIMS)
@pytest.mark.parametrize("values", ["equal", "half", "double"])
def test_every_head_dim(kind: str, head_dim: int, values: str, torch: ModuleType) -> None:
    head_dim_v = {"equal": head_dim, "half": head_dim // 2, "double": min(2 * head_dim, 512)}[values]
    assert_at_most_twice(torch, case(37, 75, head_dim, head_dim_v, causal=True, **ROUNDED[kind]))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 4), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (16, 1), (12, 2)]
)
def test_heads_that_share_keys(kind: str, heads: int, kv_heads: int, torch: ModuleType) -> None:
    of = case(40, 50, 16, batch=2, heads=heads, kv_heads=kv_heads, causal=True, **ROUNDED[kind])
    assert_at_most_twice(torch, of)


MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "bottom_right": {"causal": True},
    "top_left": {"causal": "top_left"},
    "window": {"window": (30, 9)},
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", [None, 15.0])
def test_masks_with_and_without_a_softcap(
    kind: str, mask: str, softcap: float | None, torch: ModuleType
) -> None:
    of = case(70, 90, 32, heads=2, softcap=softcap, **MASKS[mask], **ROUNDED[kind])
    assert_at_most_twice(torch, of)


ARRAYS: dict[str, dict[str, Any]] = {
    "alibi": {"alibi": True, "arrays": {"alibi_slopes": np.float32([0.5, 0.25, 0.125, 0.0625])}},
    "bias": {"bias": "f32", "arrays": {"bias": normal(4, 40, 50)}},
    "bias of heads": {"bias": "f32", "causal": True, "arrays": {"bias": normal(4, 1, 1)}},
    "key_bias": {"key_bias": "f32", "arrays": {"key_bias": normal(4, 50)}},
    "sink": {"sink": True, "causal": True, "arrays": {"sink": normal(4)}},
    "dropout": {"dropout": 0.2, "causal": True},
    "mask": {"mask": True, "others": {"mask": normal(4, 40, 50) < 0.8}},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), mostly_nightly([(k, n) for k in ROUNDED for n in ARRAYS], [("bf16", "sink")])
)
def test_arrays_of_scores(kind: str, name: str, torch: ModuleType) -> None:
    assert_at_most_twice(torch, case(40, 50, 16, heads=4, kv_heads=2, **ARRAYS[name], **ROUNDED[kind]))


# ------------------------------------------------------------------------------------------
# hard inputs

Change = Callable[[Case], Case]


def _unchanged(of: Case) -> Case:
    return of


HARD: dict[str, tuple[Change, dict[str, Any]]] = {
    **{name: (change, {}) for name, change in CHANGED.items()},
    "rows without keys": (_unchanged, {"seq_q": 70, "seq_k": 50, "causal": True}),
    "tiny scale": (_unchanged, {"softmax_scale": 1e-6}),
    "large scale": (_unchanged, {"softmax_scale": 3.0}),
    "negative scale": (_unchanged, {"softmax_scale": -0.5, "causal": "top_left"}),
    "one query": (_unchanged, {"seq_q": 1, "causal": True}),
    "one key": (_unchanged, {"seq_k": 1}),
    "one query and key": (_unchanged, {"seq_q": 1, "seq_k": 1}),
    "large slopes": (
        _unchanged,
        {"alibi": True, "causal": True, "arrays": {"alibi_slopes": np.full(1, 4, np.float32)}},
    ),
    "sink above all": (_unchanged, {"sink": True, "arrays": {"sink": np.full(1, 20, np.float32)}}),
}
_QUICK = [("f16", "one-hot rows"), ("f32_grade", "sink above all")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), mostly_nightly([(k, n) for k in ROUNDED for n in HARD], _QUICK))
def test_hard_inputs(kind: str, name: str, torch: ModuleType) -> None:
    change, how = HARD[name]
    settings = {"seq_q": 50, "seq_k": 70, "head_dim": 32, "head_dim_v": 24, **how, **ROUNDED[kind]}
    assert_at_most_twice(torch, change(case(**settings)))
