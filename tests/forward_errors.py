"""Errors of f32 attention by the ways to multiply, beside PyTorch's, for `docs/numerics.md`.

`PYTHONPATH=. python tests/forward_errors.py` runs the kernels on the interpreter, whose tensor cores are bit
for bit those of a target, and prints Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from kernel_runs import run_forward

from flash import AttentionConfig
from flash.operands.dtype_names import Precision
from flash.reference import attention_reference

Array = np.ndarray[Any, Any]
QUERIES: Final = 64
KEYS: Final = 512
HEAD_DIMS: Final = (64, 128, 256)
WAYS: Final[tuple[tuple[Precision, str], ...]] = (
    *(("ieee", "sm_80"), ("f32_grade", "sm_80"), ("f32_grade", "sm_90"), ("f32_grade", "sm_90a")),
    *(("f32_grade", "sm_100a"), ("tf32", "sm_80")),
)


def inputs(head_dim: int) -> Iterator[tuple[str, tuple[Array, Array, Array]]]:
    """Normal numbers, their magnitudes, and scores of a deviation of 8."""
    rng = np.random.default_rng(0)
    shapes = [(1, 1, n, head_dim) for n in (QUERIES, KEYS, KEYS)]
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    yield "normal", (q, k, v)
    yield "positive", (np.abs(q), np.abs(k), np.abs(v))
    yield "peaked", (8 * q, k, v)


def error(out: Array, wanted: Array) -> float:
    """The norm of the difference, relative to that of what is wanted."""
    return float(np.linalg.norm(out - wanted) / np.linalg.norm(wanted))


def of_kernel(arrays: tuple[Array, ...], precision: Precision, target: str) -> Array:
    """O of a kernel for a target, on the interpreter."""
    config = AttentionConfig(arrays[0].shape[3], precision=precision, target=target)
    return run_forward(config, arrays)[0].astype(np.float64)


def of_torch(arrays: tuple[Array, ...]) -> Array:
    """O of PyTorch on the CPU."""
    import torch

    built = torch.nn.functional.scaled_dot_product_attention(*(torch.from_numpy(x) for x in arrays))
    out: Array = built.numpy().astype(np.float64)
    return out


def errors(head_dim: int, kind: str) -> list[float]:
    """Relative errors of one kind of inputs: PyTorch's, and those of `WAYS`."""
    arrays = dict(inputs(head_dim))[kind]
    wanted, _ = attention_reference(*arrays)
    result = [of_torch(arrays), *(of_kernel(arrays, *way) for way in WAYS)]
    return [error(out, wanted) for out in result]


def table() -> Iterator[str]:
    """The lines of the table."""
    names = ["PyTorch", *(f"`{precision}`, {target}" for precision, target in WAYS)]
    yield f"| head_dim | inputs | {' | '.join(names)} |"
    yield "|" + "---|" * (len(names) + 2)
    for head_dim in HEAD_DIMS:
        for kind, _ in inputs(head_dim):
            figures = " | ".join(f"{x:.1e}" for x in errors(head_dim, kind))
            yield f"| {head_dim} | {kind} | {figures} |"


if __name__ == "__main__":
    for line in table():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
