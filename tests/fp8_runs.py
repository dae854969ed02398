"""Problems with Q, K and V of fp8 and scales of heads: kernels run on the interpreter, against float64."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from conformance import KINDS, SCALES, Array, Arrays

from flash.reference import scaled_numbers
from ptxgen import interpreter

config_of: Final = KINDS["fp8 e4m3"].config
EVERY_CHECK = ["all", "mbarrier_init"]  # of the sanitizers


class Kernels:
    """What launches on the interpreter run: the names of kernels; and how they are run."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.how: dict[str, Any] = {"sanitize": EVERY_CHECK}


def watched(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The kernels that launches on the interpreter run from now on."""
    run, found = interpreter.run, Kernels()

    def watching(module: Any, *given: Any, **how: Any) -> Any:
        found.names.append(module.kernels[0].name)
        return run(module, *given, **{**how, **found.how})

    monkeypatch.setattr(interpreter, "run", watching)
    return found


def scales_of(batch: int = 1, kv_heads: int = 1) -> dict[str, Array]:
    """Scales that differ in all sequences and heads; one of Q is negative."""
    rng = np.random.default_rng(batch + kv_heads)
    found = {name: rng.uniform(0.5, 2, (batch, kv_heads)).astype(np.float32) for name in SCALES}
    found["q_scale"][-1, -1] *= -1
    return found


def scaled(arrays: Arrays, scales: dict[str, Array]) -> tuple[Array, ...]:
    """Q, K and V as the numbers that they stand for, in float64."""
    return tuple(scaled_numbers(x, scales[name]) for x, name in zip(arrays, SCALES, strict=True))
