"""A toolkit that generates, checks, runs and caches NVIDIA PTX."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptxgen.dsl import KernelBuilder, Value, Var
    from ptxgen.dsl.annotations import Pointer, bf16, f16, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64
    from ptxgen.kernels import BuiltFunction, KernelFunction, kernel
    from ptxgen.tensormap import TensorMap
    from ptxgen.tuning import TunedKernel, autotune

__version__: Final = "0.1.0"  # of the distribution; pyproject.toml reads it

__all__ = [
    "BuiltFunction",
    "KernelBuilder",
    "KernelFunction",
    "Pointer",
    "TensorMap",
    "TunedKernel",
    "Value",
    "Var",
    "autotune",
    "bf16",
    "f16",
    "f32",
    "f64",
    "kernel",
    "s8",
    "s16",
    "s32",
    "s64",
    "u8",
    "u16",
    "u32",
    "u64",
]

# Imported at first use: code that emits text needs neither numpy nor the runtime.
_ROOMS: Final = {
    **dict.fromkeys(("BuiltFunction", "KernelFunction", "kernel"), "ptxgen.kernels"),
    **dict.fromkeys(("KernelBuilder", "Pointer", "Value", "Var"), "ptxgen.dsl"),
    "TensorMap": "ptxgen.tensormap",
    **dict.fromkeys(("TunedKernel", "autotune"), "ptxgen.tuning"),
}


def _public(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'ptxgen' has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOMS.get(name, "ptxgen.types")), name)


if not TYPE_CHECKING:  # for a type checker, any name would exist
    __getattr__ = _public


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
