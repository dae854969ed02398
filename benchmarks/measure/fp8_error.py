"""The error of forward attention of e4m3 against float64: of this project's kernel, which the interpreter
runs, and of FlashAttention-3's method with the same arithmetic of the tensor cores.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.device.fp8_softmax import LIFT
from flash.families.wgmma import WGMMA_TARGET
from flash.kernel import AttentionKernel
from flash.operands.dtypes import E4M3
from flash.problem.config import AttentionConfig
from flash.problem.features import SCALES
from flash.reference import attention_reference
from ptxgen.isa.tensor_core import adder, factors, multiplied

Array = NDArray[Any]

FP8_ERROR_REMARKS: Final = (
    "fp8: |O - O in float64| / |O in float64|, Frobenius norms, of 64 queries; Q, K and V are normal, "
    "rounded to e4m3 before either method sees them. FlashAttention-3's method: one sum of P V over all "
    "keys in the tensor core, which keeps 14 significant bits; P times 2^8 as e4m3; O divided by the sum "
    "of P in f32 before it is rounded (its hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp and softmax.h); "
    "computed in numpy with the adder of the interpreter's wgmma, in FlashAttention-3's tiles",
)
_QUERIES: Final = 64
_SM: Final = 90
_DEPTH: Final = 32  # products in a step of `wgmma`
_TILES: Final = {64: 160, 128: 224, 256: 128}  # keys of FlashAttention-3's tiles of fp8
_SIZES: Final = ((64, 4096), (128, 512), (128, 4096), (128, 16384), (256, 4096))  # head_dim and keys
_BETTER: Final = Goal("<=", 1.0)  # ours / theirs


class Numbers(NamedTuple):
    """The distributions of Q and V: Q is normal times `spread`, V is normal plus `mean`."""

    name: str
    spread: float
    mean: float


NUMBERS: Final = (Numbers("normal", 1.0, 0.0), Numbers("V of mean 1", 1.0, 1.0), Numbers("flat", 0.02, 1.0))


def fp8_jobs(quick: bool) -> list[Job]:
    """A job for each head_dim, number of keys and kind of numbers; `quick` has the smallest."""
    sizes = ((64, 512),) if quick else _SIZES
    return [
        Job(f"fp8 d={d} keys={keys} {kind.name}", functools.partial(_errors, d, keys, kind))
        for d, keys in sizes
        for kind in NUMBERS
    ]


def _errors(head_dim: int, keys: int, kind: Numbers) -> Rows:
    q, k, v = drawn(head_dim, keys, kind)
    exact, _ = attention_reference(*(x.astype(np.float64) for x in (q, k, v)))
    config = AttentionConfig(head_dim, dtype="e4m3", out_dtype="f16", target=WGMMA_TARGET)
    ones: Any = {name: np.ones(1, np.float32) for name in SCALES}
    ours = relative_error(AttentionKernel(config).launch(q, k, v, backend="interpreter", **ones), exact)
    theirs = relative_error(one_sum(q[0, 0], k[0, 0], v[0, 0], _TILES[head_dim]), exact[0, 0])
    settings: dict[str, Setting] = {"d": head_dim, "keys": keys, "numbers": kind.name}
    return [
        measured("error", "of O", [ours], config=settings),
        measured("error by FlashAttention-3's method", "of O", [theirs], config=settings),
        measured("error, ours / theirs", "", [ours / theirs], config=settings, goal=_BETTER),
    ]


def drawn(head_dim: int, keys: int, kind: Numbers) -> tuple[Array, Array, Array]:
    """Q, K and V of e4m3, [1, 1, rows, head_dim]."""
    rows = (_QUERIES, keys, keys)
    q, k, v = normal(*((1, 1, n, head_dim) for n in rows))
    of = E4M3.numpy
    return (q * kind.spread).astype(of), k.astype(of), (v + kind.mean).astype(of)


def relative_error(result: Array, exact: Array) -> float:
    """|result - exact| / |exact|, norms over all elements."""
    return float(np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact))


def one_sum(q: Array, k: Array, v: Array, tile: int) -> Array:
    """O of q, k and v of e4m3, [rows, head_dim], by FlashAttention-3's method: f32, one running sum."""
    keys, scale = len(k), np.float32(math.log2(math.e) / math.sqrt(q.shape[1]))
    top = np.full((len(q), 1), -np.inf, np.float32)
    total, out = np.zeros((len(q), 1), np.float32), np.zeros((len(q), v.shape[1]), np.float32)
    for begin in reversed(range(0, keys, tile)):
        some = slice(begin, min(begin + tile, keys))
        scores = product(q, k[some].T, np.zeros((len(q), some.stop - begin), np.float32))
        before, top = top, np.maximum(top, scores.max(axis=1, keepdims=True))
        factor = np.exp2((before - top) * scale)
        weights = np.exp2((scores - top) * scale + np.float32(LIFT))
        total = total * factor + weights.sum(axis=1, keepdims=True, dtype=np.float32)
        out = product(weights.astype(E4M3.numpy), v[some], out * factor)
    return out / total


def product(a: Array, b: Array, c: Array) -> Array:
    """a b + c as `wgmma` of e4m3 adds it, f32: a [rows, depth], b [depth, columns]."""
    how = adder(_SM, "wgmma", E4M3.name)
    for first in range(0, a.shape[1], _DEPTH):
        some = slice(first, first + _DEPTH)
        left, right = a[:, some].T.view(np.uint8), b[some].view(np.uint8)
        sums = multiplied(
            how,
            E4M3.name,
            factors(E4M3.name, np.ascontiguousarray(left)[..., None], how),
            factors(E4M3.name, np.ascontiguousarray(right)[..., None], how),
            np.ascontiguousarray(c)[..., None],
        )
        c = sums[..., 0]
    return c
