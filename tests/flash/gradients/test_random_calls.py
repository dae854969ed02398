"""Gradients of calls that are drawn at random, with features in any mixture, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_runs import KINDS, Case, bounds, by_name, case, check_packed
from judge import assert_close
from kernel_runs import mostly_nightly
from numpy.typing import NDArray

from flash.reference import visible_keys
from flash.scores.features import scored

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]
Rng = np.random.Generator

_LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 70, 90, 127, 129]
_HEAD_DIMS = [1, 3, 8, 16, 20, 32, 33, 40, 64, 72, 80, 96, 111, 128, 136, 160, 192, 256]
_HEADS = [(1, 1), (2, 1), (2, 2), (4, 2), (3, 1), (5, 1), (6, 2)]
_KINDS = list(KINDS.values())
_SIDES = [None, 0, 1, 9, 40]


def _bent(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + 0.05 * score * score + 0.01 * (head + batch) + 0.001 * (query - key)


def _banded(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + 2 * key + head + batch) % 5 != 0


def _one_of(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _broadcast(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    some = tuple(1 if rng.random() < 0.3 else n for n in shape)
    while some and some[0] == 1 and rng.random() < 0.5:
        some = some[1:]
    return some


def _added(rng: Rng, shape: tuple[int, ...], kind: Any) -> Array:
    """Numbers of which one in ten is -inf, or none."""
    drawn = np.asarray(rng.standard_normal(shape, np.float32))
    hidden = rng.random(shape) < _one_of(rng, [0.0, 0.1])
    return np.asarray(np.where(hidden, np.float32(-np.inf), drawn).astype(kind))


class _Features:
    """Features that are drawn at random: the settings of a config, and the arguments of a call."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.settings: dict[str, Any] = {}
        self.arrays: dict[str, Array] = {}
        self.others: dict[str, Any] = {}

    def maybe(self, probability: float, **settings: Any) -> bool:
        """Take some settings with a probability, and say whether they are taken."""
        some = bool(self.rng.random() < probability)
        self.settings.update(settings if some else {})
        return some

    def draw(self, of_heads: tuple[int, int]) -> None:
        """The features that calls of both kinds may have."""
        rng = self.rng
        self.settings |= _one_of(rng, _KINDS)
        self.settings["causal"] = _one_of(rng, [False, False, True, "top_left"])
        self.settings["softmax_scale"] = _one_of(rng, [None, None, None, -0.4, 0.0, 1.0])
        sides = _one_of(rng, _SIDES), _one_of(rng, _SIDES)
        self.maybe(0.3, window=sides if sides != (None, None) else (7, 2))
        self.maybe(0.2, softcap=2.5)
        self.maybe(0.2, dropout=0.25)
        if self.maybe(0.15, score_mod=_bent, bend=2.0):
            self.settings.pop("softcap", None)
        self.maybe(0.15, mask_mod=_banded)
        if self.maybe(0.25, alibi=True):
            self.arrays["alibi_slopes"] = np.asarray(rng.random(_broadcast(rng, of_heads), np.float32) / 5)
        if self.maybe(0.25, sink=True):
            self.arrays["sink"] = _added(rng, _broadcast(rng, of_heads), np.float32)

    def draw_dense(self, of_scores: tuple[int, int, int, int]) -> None:
        """The features that calls of packed sequences have not."""
        rng, (batch, heads, _, seq_k) = self.rng, of_scores
        if self.maybe(0.25, bias="f32"):
            self.arrays["bias"] = _added(rng, _broadcast(rng, of_scores), np.float32)
        elif self.maybe(0.25, key_bias="f32"):
            self.arrays["key_bias"] = _added(rng, _broadcast(rng, (batch, heads, seq_k)), np.float32)
        if self.maybe(0.2, mask=True):
            self.others["mask"] = np.asarray(rng.random(_broadcast(rng, of_scores)) < 0.8)


def drawn(seed: int) -> tuple[Case, dict[str, Array]]:
    """A call, and the lengths of its sequences if they are packed."""
    rng = np.random.default_rng(seed)
    heads, kv_heads = _one_of(rng, _HEADS)
    head_dim = _one_of(rng, _HEAD_DIMS)
    packed = rng.random() < 0.3
    batch = int(rng.integers(1, 5)) if packed else int(rng.integers(1, 3))
    lengths = {side: [_one_of(rng, [0, *_LENGTHS]) for _ in range(batch)] for side in "qk"}
    if not packed:
        lengths = {side: lengths[side][:1] * batch for side in "qk"}
    seq_q, seq_k = (sum(lengths[side]) if packed else lengths[side][0] for side in "qk")
    features = _Features(rng)
    features.draw((batch, heads))
    if not packed:
        features.draw_dense((batch, heads, seq_q, seq_k))
    built = case(
        seq_q,
        seq_k,
        head_dim,
        _one_of(rng, [head_dim, head_dim, _one_of(rng, _HEAD_DIMS)]),
        batch=1 if packed else batch,
        heads=heads,
        kv_heads=kv_heads,
        with_dlse=bool(rng.random() < 0.3),
        arrays=features.arrays,
        others=features.others,
        **features.settings,
    )
    if not packed:
        return built, {}
    ends = {f"cu_seqlens_{side}": np.cumsum([0, *lengths[side]]).astype(np.int32) for side in "qk"}
    for side in "qk":
        if rng.random() < 0.3:
            ends[f"seqused_{side}"] = np.array([rng.integers(0, n + 1) for n in lengths[side]], np.int32)
    used = {name: True for name in ends if name.startswith("seqused")}
    return replace(built, config=replace(built.config, varlen=True, **used)), ends


def _dead_rows(lse: Array) -> Array:
    return np.isneginf(lse)


def _unseen_keys(of: Case, lse: Array) -> Array:
    """Which keys no query sees: [batch, kv_heads, seq_k]."""
    batch, heads, seq_q, seq_k = *of.q.shape[:3], of.k.shape[2]
    at = scored(
        (batch, heads, seq_q, seq_k), of.config.causal, np.float64, of.others.get("first_batch", 0), of.given
    )
    seen = visible_keys(at) & ~_dead_rows(lse)[..., None]
    kv_heads = of.k.shape[1]
    return ~seen.reshape(batch, kv_heads, heads // kv_heads, seq_q, seq_k).any(axis=(2, 3))


def _filled(array: Array, where: Array, bad: float) -> Array:
    """A copy with `bad` in rows."""
    result = array.copy()
    result[where] = bad
    return result


def check_dense(of: Case, backend: str, bad: float, spread: Callable[[Array], Array], layout: str) -> None:
    """Run a call with `bad` in what no gradient may depend on, and judge it."""
    out, lse = of.forward()
    within = bounds(of, out, lse)
    keys, rows = _unseen_keys(of, lse), _dead_rows(lse)
    hidden = replace(
        of,
        k=_filled(of.k, keys, bad),
        v=_filled(of.v, keys, bad),
        q=_filled(of.q, rows, bad),
        dout=_filled(of.dout, rows, bad),
    )
    arguments = {
        "dout": hidden.dout,
        "q": hidden.q,
        "k": hidden.k,
        "v": hidden.v,
        "out": _filled(out, rows, bad),
    }
    result = hidden.run(backend=backend, layout=layout, **{name: spread(a) for name, a in arguments.items()})
    for name, gradient in by_name(result).items():
        assert_close(name, gradient, *within[name])


def _spread(seed: int) -> Callable[[Array], Array]:
    """A function that gives arrays other strides, with NaN between rows."""
    before, behind = _one_of(np.random.default_rng(seed), [(0, 0), (0, 0), (1, 0), (0, 3), (8, 8)])

    def spread(array: Array) -> Array:
        *outer, columns = array.shape
        room = np.full((*outer, before + columns + behind), np.nan, array.dtype)
        built = room[..., before : before + columns]
        built[...] = array
        return built

    return spread


def check(seed: int, backend: str) -> None:
    """Draw a call, run it, each third in one sweep, and judge it."""
    of, ends = drawn(seed)
    of = replace(of, deterministic=seed % 3 != 0)
    bad = (np.nan, np.inf)[seed % 2]
    if ends:
        check_packed(of, ends, backend, bad)
    else:
        check_dense(of, backend, bad, _spread(seed), ("bhsd", "bshd")[seed // 2 % 2])


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("seed", mostly_nightly(range(300), [25]))
def test_calls_drawn_at_random(seed: int, backend: str) -> None:
    check(seed, backend)
