"""The names of the sanitizers, and the values that `sanitize=` takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from ptxgen.errors import LaunchError, did_you_mean, shown

SANITIZERS: Final = ("bounds", "init", "race", "sync", "proxy")
ALL: Final = "all"
# An mbarrier that asynchronous operations may not see: not one of all, because kernels of Triton rely on
# a barrier alone, and the PTX manual does not say that it is wrong.
MBARRIER_INIT: Final = "mbarrier_init"
# Sums of floating-point numbers whose order nothing fixes: no mistake unless a kernel promises the same bits.
DETERMINISM: Final = "determinism"
# Fences and waits between accesses of two threads to tensor memory: not one of all, because public kernels
# for Blackwell leave them out.
TENSOR_FENCE: Final = "tensor_fence"
# The order of one thread's products by the manual's letter, which flash-attn-4's kernels do not keep.
TENSOR_ORDER: Final = "tensor_order"


def sanitizers(asked: object) -> frozenset[str]:
    """The names of the sanitizers that `sanitize=` asks for. Raises `LaunchError` for others."""
    if isinstance(asked, bool):
        return frozenset(SANITIZERS) if asked else frozenset()
    known = (*SANITIZERS, MBARRIER_INIT, DETERMINISM, TENSOR_FENCE, TENSOR_ORDER, ALL)
    names: list[object] = [asked]
    if isinstance(asked, str):
        names = [*asked.split(",")]
    elif isinstance(asked, Iterable) and not isinstance(asked, np.ndarray):
        names = list(asked)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise LaunchError(
                f"sanitize must be True, False or names among {', '.join(known)}, got {shown(name)}"
                f"{did_you_mean(name, known)}"
            )
    asked_for = frozenset(map(str, names))
    return asked_for - {ALL} | frozenset(SANITIZERS) if ALL in names else asked_for
