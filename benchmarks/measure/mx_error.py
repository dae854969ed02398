"""The error of forward attention of MXFP8 against float64: of this project's kernel, which the interpreter
runs, of other ways to round weights, and of rounding Q, K and V alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.fp8_error import NUMBERS, Numbers, relative_error
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Job, Rows, Setting, measured
from flash.device.fp8_softmax import LIFT
from flash.kernel import AttentionKernel
from flash.operands.dtypes import E4M3, MX
from flash.problem.config import AttentionConfig
from flash.problem.features import SCALES
from flash.quantization import quantize_mx
from flash.reference import attention_reference, scaled_numbers

Array = NDArray[Any]

MX_ERROR_REMARKS: Final = (
    "mxfp8: |O - O in float64| / |O in float64|, Frobenius norms, of 64 queries; Q, K and V are normal, and "
    "of MXFP8 as flash.quantize_mx says, before any method sees them; the other methods are in float64 but "
    "for the weights, which they round to e4m3: with a power of two for each 32 of them, or times 2^8 and "
    "with O divided by the sum of the weights before they are rounded. The error of rounding Q, K and V is "
    "that of O in float64",
)
_QUERIES: Final = 64
_HEAD_DIM: Final = 128
_KEYS: Final = (512, 4096)


def mx_jobs(quick: bool) -> list[Job]:
    """A job for each number of keys and kind of numbers; `quick` has the smallest."""
    return [
        Job(f"mxfp8 keys={keys} {kind.name}", functools.partial(_errors, keys, kind))
        for keys in (_KEYS[:1] if quick else _KEYS)
        for kind in (*NUMBERS, Numbers("peaked", 4.0, 0.0))
    ]


def _errors(keys: int, kind: Numbers) -> Rows:
    q, k, v = normal(*((1, 1, n, _HEAD_DIM) for n in (_QUERIES, keys, keys)))
    q, v = q * np.float32(kind.spread), v + np.float32(kind.mean)
    narrow = quantize_mx(q), quantize_mx(k), quantize_mx(v, axis=-2)
    numbers = [scaled_numbers(x, scale, MX) for x, scale in narrow]
    exact, _ = attention_reference(*numbers)
    wide, _ = attention_reference(*(x.astype(np.float64) for x in (q, k, v)))
    config = AttentionConfig(_HEAD_DIM, dtype="e4m3", out_dtype="f16", scale_block=MX)
    scales: Any = {name: scale for name, (_, scale) in zip(SCALES, narrow, strict=True)}
    out: Any = AttentionKernel(config).launch(*(x for x, _ in narrow), backend="interpreter", **scales)
    ours, (blocks, unrounded) = relative_error(out, exact), _by_other_weights(numbers, exact)
    settings: dict[str, Setting] = {"d": _HEAD_DIM, "keys": keys, "numbers": kind.name}
    return [
        measured("error", "of O", [ours], config=settings),
        measured("error with scales of weights", "of O", [blocks], config=settings),
        measured("error with the sum of unrounded weights", "of O", [unrounded], config=settings),
        measured("error of rounding Q, K and V", "of O", [relative_error(exact, wide)], config=settings),
        measured("error, ours / scales of weights", "", [ours / blocks], config=settings),
    ]


def _by_other_weights(numbers: list[Array], exact: Array) -> tuple[float, float]:
    """The errors with a scale for each 32 weights, and with the sum of weights before they are rounded."""
    q, k, v = numbers
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    in_blocks = scaled_numbers(*quantize_mx(weights.astype(np.float32)), MX)
    lifted = (weights * 2.0**LIFT).astype(np.float32).astype(E4M3.numpy).astype(np.float64) / 2.0**LIFT
    by_blocks = in_blocks @ v / in_blocks.sum(axis=-1, keepdims=True)
    return relative_error(by_blocks, exact), relative_error(lifted @ v / total, exact)
