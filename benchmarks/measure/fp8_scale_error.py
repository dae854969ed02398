"""The error of forward attention of e4m3 against float64 of the numbers before they are rounded, with a scale
for each head, with scales for blocks of rows, and with those of MXFP8.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.commands.measure.cpu import normal
from flash.commands.measure.record import Goal, Job, Rows, Setting, measured
from flash.families.wgmma import WGMMA_TARGET
from flash.kernel import AttentionKernel
from flash.operands.dtype_names import ScaleBlock
from flash.operands.dtypes import E4M3, MX
from flash.problem.config import AttentionConfig
from flash.problem.features import SCALES
from flash.quantization import quantize_mx
from flash.reference import attention_reference

Array = NDArray[Any]

FP8_SCALE_REMARKS: Final = (
    "fp8 scales: the root of the mean over rows of (|O - O in float64| / |O in float64|)^2, of numbers that "
    "are rounded to e4m3 over a scale, which is the largest magnitude of the rows that share it over 448, "
    "or are of MXFP8 as flash.quantize_mx says, and not rounded in float64; each query sees its own and the "
    "127 keys before it; V is normal, times "
    "2^(-fall * key / 128)",
)
_ROWS: Final = 1024
_WINDOW: Final = 127  # keys before a query that it sees next to its own
_HEAD_DIM: Final = 128
# Rows that share a scale; None: all; MX: blocks of elements.
_BLOCKS: Final[tuple[ScaleBlock | None, ...]] = (None, 128, 64, MX)
_FALLS: Final = (0, 2, 4, 16)  # powers of two by which 128 rows of V are smaller than those before them
_QUICK: Final = 4  # of them
_LARGEST: Final = 448.0  # e4m3
_NOT_WORSE: Final = Goal("<=", 1.02)  # with blocks / with heads


def fp8_scale_jobs(quick: bool) -> list[Job]:
    """A job for each kind of V; `quick` has one."""
    falls = (_QUICK,) if quick else _FALLS
    return [Job(f"fp8 scales fall={fall}", functools.partial(_errors, fall)) for fall in falls]


def _errors(fall: int) -> Rows:
    q, k, v = normal(*[(1, 1, _ROWS, _HEAD_DIM)] * 3)
    v = v * np.exp2(-fall / 128 * np.arange(_ROWS, dtype=np.float32))[:, None]
    wide = (x.astype(np.float64) for x in (q, k, v))
    exact, _ = attention_reference(*wide, causal=True, window=(_WINDOW, 0))
    results: Rows = []
    errors: list[float] = []
    for block in _BLOCKS:
        by_rows = block if isinstance(block, int) else None
        target = None if block == MX else WGMMA_TARGET
        config = AttentionConfig(
            _HEAD_DIM, dtype="e4m3", target=target, scale_block=block, causal=True, window=(_WINDOW, 0)
        )
        if block == MX:
            inputs = [quantize_mx(x, axis=axis) for x, axis in ((q, -1), (k, -1), (v, -2))]
        else:
            inputs = [narrowed(x, by_rows) for x in (q, k, v)]
        scales: Any = dict(zip(SCALES, (scale for _, scale in inputs), strict=True))
        narrow = (x for x, _ in inputs)
        out = AttentionKernel(config).launch(*narrow, backend="interpreter", **scales)
        errors.append(error_of_rows(np.asarray(out), exact))
        settings: dict[str, Setting] = {"d": _HEAD_DIM, "keys": _ROWS, "fall": fall}
        if block is None:
            results.append(measured("error with a scale of each head", "of O", errors, config=settings))
            continue
        settings["scale_block"] = block
        results.append(measured("error with scales of blocks", "of O", errors[-1:], config=settings))
        ratio = errors[-1] / errors[0]
        results.append(measured("error, blocks / heads", "", [ratio], config=settings, goal=_NOT_WORSE))
    return results


def narrowed(x: Array, block: int | None) -> tuple[Array, Array]:
    """x [1, 1, rows, dim] of f32 as e4m3, and its scales: one for all rows if `block` is None, or one for
    each `block` rows.
    """
    rows = x.shape[2]
    blocks = x.reshape(1, 1, -1, (block or rows) * x.shape[3])
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(_LARGEST)
    return (blocks / scale).astype(E4M3.numpy).reshape(x.shape), scale[:, :, 0 if block is None else ..., 0]


def error_of_rows(result: Array, exact: Array) -> float:
    """The root mean square, over all rows, of |result - exact| / |exact|."""
    wrong = np.linalg.norm(result.astype(np.float64) - exact, axis=-1)
    return float(np.sqrt(np.mean((wrong / np.linalg.norm(exact, axis=-1)) ** 2)))
