"""The error of forward attention of MXFP8, and with Q and K of NVFP4, against float64: of this project's
kernel, which the interpreter runs, of other ways to round weights, and of rounding Q, K and V alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.fp8_error import NUMBERS, Numbers, relative_error
from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Job, Rows, Setting, measured
from flash.device.fp8_softmax import LIFT
from flash.kernel import AttentionKernel
from flash.operands.dtype_names import ScaleBlock
from flash.operands.dtypes import E4M3, MX, NV, NVFP4
from flash.problem.config import AttentionConfig
from flash.problem.features import SCALES
from flash.quantization import LARGEST_OF_FOUR_BITS, quantize_mx, quantize_nvfp4
from flash.reference import attention_reference, scaled_numbers

Array = NDArray[Any]

MX_ERROR_REMARKS: Final = (
    "mxfp8: |O - O in float64| / |O in float64|, Frobenius norms, of 64 queries; Q, K and V are normal, and "
    "of MXFP8 as flash.quantize_mx says, before any method sees them; the other methods are in float64 but "
    "for the weights, which they round to e4m3: with a power of two for each 32 of them, or times 2^8 and "
    "with O divided by the sum of the weights before they are rounded. The error of rounding Q, K and V is "
    "that of O in float64",
    "nvfp4: the same with Q and K as flash.quantize_nvfp4 says, and V of MXFP8; the error in all is that of "
    "the kernel against float64 of Q, K and V before they are rounded, and so is that with weights and V of "
    "NVFP4, where each row of weights is multiplied by 448 times 6 before, as SageAttention3 does (arXiv "
    "2505.11594)",
)
_QUERIES: Final = 64
_HEAD_DIM: Final = 128
_KEYS: Final = (512, 4096)


def mx_jobs(quick: bool) -> list[Job]:
    """A job for each number of keys and kind of numbers; `quick` has the smallest."""
    return [
        Job(f"{name} keys={keys} {kind.name}", functools.partial(errors, keys, kind))
        for name, errors in (("mxfp8", _errors), ("nvfp4", _errors_of_four_bits))
        for keys in (_KEYS[:1] if quick else _KEYS)
        for kind in (*NUMBERS, Numbers("peaked", 4.0, 0.0))
    ]


def _drawn(keys: int, kind: Numbers) -> list[Array]:
    q, k, v = normal(*((1, 1, n, _HEAD_DIM) for n in (_QUERIES, keys, keys)))
    return [q * np.float32(kind.spread), k, v + np.float32(kind.mean)]


def _run(narrow: Sequence[tuple[Array, Array]], block: ScaleBlock) -> tuple[list[Array], Array]:
    """The numbers of Q, K and V in blocks, and O of the kernel."""
    numbers = [scaled_numbers(x, scale, block) for x, scale in narrow]
    config = AttentionConfig(_HEAD_DIM, dtype="e4m3", out_dtype="f16", scale_block=block)
    scales: Any = {name: scale for name, (_, scale) in zip(SCALES, narrow, strict=True)}
    out: Any = AttentionKernel(config).launch(*(x for x, _ in narrow), backend="interpreter", **scales)
    return numbers, out


def _errors(keys: int, kind: Numbers) -> Rows:
    q, k, v = _drawn(keys, kind)
    numbers, out = _run((quantize_mx(q), quantize_mx(k), quantize_mx(v, axis=-2)), MX)
    exact, _ = attention_reference(*numbers)
    wide, _ = attention_reference(*(x.astype(np.float64) for x in (q, k, v)))
    ours, (blocks, unrounded) = relative_error(out, exact), _by_other_weights(numbers, exact)
    settings: dict[str, Setting] = {"d": _HEAD_DIM, "keys": keys, "numbers": kind.name}
    return [
        measured("error", "of O", [ours], config=settings),
        measured("error with scales of weights", "of O", [blocks], config=settings),
        measured("error with the sum of unrounded weights", "of O", [unrounded], config=settings),
        measured("error of rounding Q, K and V", "of O", [relative_error(exact, wide)], config=settings),
        measured("error, ours / scales of weights", "", [ours / blocks], config=settings),
    ]


def _errors_of_four_bits(keys: int, kind: Numbers) -> Rows:
    q, k, v = _drawn(keys, kind)
    numbers, out = _run((quantize_nvfp4(q), quantize_nvfp4(k), quantize_mx(v, axis=-2)), NV)
    exact, _ = attention_reference(*numbers)
    wide, _ = attention_reference(*(x.astype(np.float64) for x in (q, k, v)))
    settings: dict[str, Setting] = {"d": _HEAD_DIM, "keys": keys, "numbers": kind.name}
    errors = {
        "error": relative_error(out, exact),
        "error of rounding Q, K and V": relative_error(exact, wide),
        "error in all": relative_error(out, wide),
        "error in all with weights and V of nvfp4": relative_error(
            _of_four_bits(numbers[0], numbers[1], v), wide
        ),
    }
    return [measured(name, "of O", [error], config=settings) for name, error in errors.items()]


def _of_four_bits(q: Array, k: Array, v: Array) -> Array:
    """O with weights and V of NVFP4, in float64 but for these."""
    weights = _weights(q, k)
    largest = NVFP4.scale.largest * LARGEST_OF_FOUR_BITS
    rounded = scaled_numbers(*quantize_nvfp4((weights * largest).astype(np.float32)), NV) / largest
    columns = scaled_numbers(*quantize_nvfp4(np.ascontiguousarray(v.swapaxes(2, 3))), NV).swapaxes(2, 3)
    out: Array = rounded @ columns / rounded.sum(axis=-1, keepdims=True)
    return out


def _weights(q: Array, k: Array) -> Array:
    """The weights of each row, of which the largest is 1."""
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3])
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights


def _by_other_weights(numbers: list[Array], exact: Array) -> tuple[float, float]:
    """The errors with a scale for each 32 weights, and with the sum of weights before they are rounded."""
    q, k, v = numbers
    weights = _weights(q, k)
    total = weights.sum(axis=-1, keepdims=True)
    in_blocks = scaled_numbers(*quantize_mx(weights.astype(np.float32)), MX)
    lifted = (weights * 2.0**LIFT).astype(np.float32).astype(E4M3.numpy).astype(np.float64) / 2.0**LIFT
    by_blocks = in_blocks @ v / in_blocks.sum(axis=-1, keepdims=True)
    return relative_error(by_blocks, exact), relative_error(lifted @ v / total, exact)
