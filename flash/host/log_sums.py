"""The log-sum-exp of packed sequences in base 2, as FlashInfer has it."""

from __future__ import annotations

from typing import Any, Final

from flash.host.caller import raise_problems, views_of
from flash.operands.dtypes import F32
from ptxgen.errors import LaunchError

_LOG2_E: Final = 1.4426950408889634  # log2(e)
_LN_2: Final = 0.6931471805599453  # ln(2)


def lse_to_log2(lse: Any) -> Any:
    """The LSE of `attention_varlen`, natural logarithms [heads, total_q], in base 2 and the order
    [total_q, heads] of FlashInfer: each number times log2(e), rounded once to float32.

    `lse` is a float32 array of a library with arithmetic, such as numpy, torch, CuPy or JAX, on any
    device; the result is a new dense array of that library there. A row without a key stays -inf.

    Raises `LaunchError` for anything else.
    """
    return _converted("lse_to_log2", lse, "[heads, total_q]", _LOG2_E)


def lse_from_log2(lse: Any) -> Any:
    """The LSE of FlashInfer, in base 2 [total_q, heads], as natural logarithms [heads, total_q], as
    `attention_varlen` returns and `merge_partials` takes them: each number times ln(2), rounded
    once to float32. Arrays and exceptions are as in `lse_to_log2`.
    """
    return _converted("lse_from_log2", lse, "[total_q, heads]", _LN_2)


def _converted(caller: str, lse: Any, axes: str, factor: float) -> Any:
    view = views_of({"lse": lse}, caller)["lse"]
    problems = []
    if view.dtype != F32.array_name:
        problems.append(f"lse must be {F32.array_name}, got {view.dtype}")
    if len(view.shape) != 2:
        problems.append(f"lse must be {axes}, got shape {list(view.shape)}")
    raise_problems(problems, caller)
    if not hasattr(lse, "T") or not hasattr(lse, "__mul__"):
        raise LaunchError(
            f"{caller}: lse must be an array of a library with arithmetic, such as numpy, torch, cupy or "
            f"jax, got {type(lse).__name__}; convert it there, such as with torch.from_dlpack(lse)"
        )
    dense = lse.T.contiguous() if hasattr(lse, "contiguous") else lse.T.copy()
    return dense * factor
