"""Decides whether gradients of attention err by at most twice as much as PyTorch's in the same precision:
the rule by which FlashAttention is judged, here for a whole training step, of whose forward pass LSE and O
are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from gradient_oracles import torch_gradients_in
from gradient_runs import KINDS, Case, by_name, case
from numpy.typing import NDArray

import flash
from flash.reference import (
    attention_reference,
    attention_reference_gradients,
    score_steps,
    visible_keys,
    weight_factors,
)
from flash.scores.feature import Scored, summed_to
from flash.scores.features import scored
from flash.scores.window import position_offset

Array = NDArray[Any]
# Half a unit in the last place of a number as it enters products, and of a result.
_UNITS = {"f16": (2.0**-11, 2.0**-11), "bf16": (2.0**-8, 2.0**-8), "tf32": (2.0**-11, 2.0**-24)}
_F32 = (2.0**-24, 2.0**-24)
_FEW = 64  # elements of a gradient that can err, of fewer of which the largest error may by luck be small
_SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133}  # positive numbers; of f32 2^-149
_LEAST_NORMAL = {"f16": 2.0**-14}  # of others 2^-126


class Error(NamedTuple):
    """The largest error of one gradient, that of PyTorch, and the floor; and its largest element."""

    name: str
    ours: float
    theirs: float
    floor: float
    largest: float

    @property
    def allowed(self) -> float:
        """What the error may be."""
        return 2 * self.theirs + self.floor

    def __str__(self) -> str:
        size = self.largest or 1.0
        ours, theirs, floor = (x / size for x in (self.ours, self.theirs, self.floor))
        return f"d{self.name}: {ours:.1e} of the largest element, PyTorch {theirs:.1e}, floor {floor:.1e}"


def kind_of(of: Case) -> str:
    """The arithmetic of PyTorch for a case: "f16", "bf16", "tf32" or "f32"."""
    config = of.config
    if config.dtype != "f32":
        return config.dtype
    return "tf32" if config.precision == "tf32" else "f32"


def errors(torch: ModuleType, of: Case, backends: tuple[str, ...]) -> dict[str, list[Error]]:
    """The errors of the gradients of a case against float64, by backend: of kernels, forward and
    backward, and of PyTorch.

    The floor is what luck may be: one rounding of the result, and the standard deviation of a sum whose
    terms are each rounded once, to the type of the numbers that enter products; three times that where a
    gradient has few elements that are sums of any terms, of which PyTorch may have hit all; elements of
    none, as of keys that no query sees, are 0 in both. Besides, weights follow from LSE and from scores
    that are computed again, whose errors PyTorch, which keeps the weights, has not (`_again`).
    """
    kind = kind_of(of)
    how = {name: value for name, value in of.given.items() if name not in of.arrays and value is not None}
    operands = {"q": of.q, "k": of.k, "v": of.v, **of.arrays}
    theirs = torch_gradients_in(torch, kind, of.dout, of.dlse, operands, how)
    result = attention_reference_gradients(of.dout, of.q, of.k, of.v, dlse=of.dlse, **of.given)
    right = {"q": result.dq, "k": result.dk, "v": result.dv, **{n: result.arrays[n] for n in of.wanted}}
    spread, again = _spread(of)
    unit, of_result = _UNITS.get(kind, _F32)
    built: dict[str, list[Error]] = {}
    for backend in backends:
        out, lse = flash.AttentionKernel(of.config).launch(
            of.q, of.k, of.v, return_lse=True, backend=backend, **of.arrays, **of.others
        )
        ours = by_name(of.run(backend=backend, out=out, lse=lse))
        assert ours.keys() == right.keys()
        built[backend] = []
        for name, wanted in right.items():
            size = float(np.abs(wanted).max(initial=0))
            luck = (3 if np.count_nonzero(spread[name]) < _FEW else 1) * unit / 3**0.5
            floor = of_result * size + luck * float(np.sqrt(spread[name].max(initial=0)))
            floor += float(np.sqrt(again[name].max(initial=0)))
            floor += _SMALLEST.get(kind, 2.0**-149)
            apart = [_apart(x[name], wanted) for x in (ours, theirs)]
            built[backend].append(Error(name, *apart, floor, size))
    return built


def assert_at_most_twice(torch: ModuleType, of: Case, *backends: str) -> None:
    """The kernels' gradients of a case err by at most twice as much as PyTorch's, and the floor."""
    for backend, result in errors(torch, of, backends or ("interpreter", "cpu")).items():
        beyond = [str(error) for error in result if not error.ours <= error.allowed]
        assert not beyond, f"{backend}: {beyond}"


def _apart(found: Array, wanted: Array) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found.astype(np.float64) - wanted).max(initial=0))


def _spread(of: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """For each gradient, the sums of the squares of the terms of which it is the sum, and of these times the
    variances of `_again`; a gradient of a score is taken for as large as the magnitudes of the products of
    dO with V and O, and an element of O for no smaller than normal numbers of its type, as whose its
    rounding is.
    """
    arguments: Mapping[str, Any] = of.given
    group = of.q.shape[1] // of.k.shape[1]
    q, k, v = (
        np.repeat(x.astype(np.float64), n, axis=1) for x, n in ((of.q, 1), (of.k, group), (of.v, group))
    )
    out, lse = attention_reference(of.q, of.k, of.v, **arguments)
    dout, scale, causal = of.dout.astype(np.float64), of.config.scale, of.config.causal
    at = scored((*q.shape[:3], k.shape[2]), causal, np.float64, 0, arguments)
    of_lse, of_score, score = _again(q, k, scale, lse, at)
    rows = np.where(np.isneginf(lse), np.inf, lse)[..., None]
    weight = np.where(visible_keys(at), np.exp(score - rows), 0)
    factor = weight_factors(at)
    sizes = np.maximum(np.abs(out), _LEAST_NORMAL.get(of.config.dtype, 2.0**-126))
    delta = np.sqrt(((dout * sizes) ** 2).sum(axis=3))
    delta = delta + (0 if of.dlse is None else np.abs(of.dlse))
    product = np.sqrt(dout**2 @ (v**2).swapaxes(2, 3))
    seq_q, seq_k = product.shape[2:]
    distance = np.arange(seq_q)[:, None] + position_offset(causal, seq_q, seq_k) - np.arange(seq_k)
    shapes = {name: np.shape(arguments[name]) for name in of.wanted}

    def sums(of_sink: Any, times: Any) -> dict[str, Array]:
        squares = times * (weight * (factor * product + delta[..., None])) ** 2
        result = {
            "q": scale**2 * (squares @ k**2),
            "k": scale**2 * _over_groups(squares.swapaxes(2, 3) @ q**2, group),
            "v": _over_groups((times * (factor * weight) ** 2).swapaxes(2, 3) @ dout**2, group),
            "bias": squares,
            "key_bias": squares.sum(axis=2),
            "alibi_slopes": (squares * distance**2.0).sum(axis=(2, 3)),
        }
        if "sink" in arguments:
            first = np.exp(np.asarray(arguments["sink"], np.float64)[..., None] - rows[..., 0])
            result["sink"] = (of_sink * (first * delta) ** 2).sum(axis=2)
        return {name: summed_to(x, shapes[name]) if name in shapes else x for name, x in result.items()}

    return sums(1.0, 1.0), sums(of_lse, of_lse[..., None] + of_score)


def _again(q: Array, k: Array, scale: float, lse: Array, at: Scored) -> tuple[Array, Array, Array]:
    """The relative variances of weights that follow from LSE, [batch, heads, seq_q], and from scores that
    are computed again, [batch, heads, seq_q, seq_k]; and these scores.

    Three roundings of f32 grow with LSE: its own, that of LSE in units of log2, and that of the scale in
    these units. A score is a sum of head_dim products, each step of which is rounded; `flash/error_bound.py`
    derives its variance, and features of scores say what they add. The forward pass, whose scores are in LSE,
    adds the products in another order, so that there are two errors, which do not cancel.
    """
    rounding = (2.0**-24) ** 2 / 6  # the variance of rounding numbers near 1, on the average of their ulps
    of_lse = 3 * rounding * np.where(np.isfinite(lse), lse, 0) ** 2
    score = scale * (q @ k.swapaxes(2, 3))
    sizes = score**2 + scale**2 * (q**2 @ (k**2).swapaxes(2, 3)) / 4
    of_score = 2 * q.shape[3] * rounding * sizes
    for feature, before, after in score_steps(score, at):
        score, step = after, feature.error(before, after, at)
        if step is not None:
            of_score = of_score * np.square(step.slope) + 2 * rounding * np.square(step.rounded)
    return of_lse, np.where(np.isfinite(of_score), of_score, 0), score


def _over_groups(squares: Array, group: int) -> Array:
    batch, heads, *sizes = squares.shape
    return squares.reshape(batch, heads // group, group, *sizes).sum(axis=2)


def print_errors() -> None:
    """Print the errors of each kind of kernel, and of the cpu, on normal numbers."""
    torch = importlib.import_module("torch")
    arrays = {
        "alibi_slopes": np.float32([0.25, 0.0625]),
        "sink": np.zeros(2, np.float32),
        "bias": np.random.default_rng(0).standard_normal((1, 203), np.float32),
    }
    features = {"causal": True, "alibi": True, "sink": True, "bias": "f32", "arrays": arrays}
    for kind in KINDS.values():
        of = case(113, 203, 64, heads=2, kv_heads=1, **kind, **features)
        for backend, result in errors(torch, of, ("interpreter", "cpu")).items():
            for error in result:
                sys.stdout.write(f"{' '.join(kind.values())}, {backend}, {error}\n")


if __name__ == "__main__":
    print_errors()
