"""Builds PTX kernels from Python: `KernelBuilder`, and the values, pointers and tiles it makes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptxgen.dsl.builder import KernelBuilder
    from ptxgen.dsl.hopper.accumulator_memory import thread_order
    from ptxgen.dsl.hopper.role import Role
    from ptxgen.dsl.matrices.matrix import Matrix
    from ptxgen.dsl.matrices.registers import PackedTile, RegisterTile
    from ptxgen.dsl.matrices.staged import StagedTile
    from ptxgen.dsl.pairs import Pair
    from ptxgen.dsl.source_regions import marked
    from ptxgen.dsl.swizzle import SwizzledTile
    from ptxgen.dsl.tiles import Fragment, SharedTile, TilePointer
    from ptxgen.dsl.values import Pointer, PointerType, Value, Var

__all__ = [
    "Fragment",
    "KernelBuilder",
    "Matrix",
    "PackedTile",
    "Pair",
    "Pointer",
    "PointerType",
    "RegisterTile",
    "Role",
    "SharedTile",
    "StagedTile",
    "SwizzledTile",
    "TilePointer",
    "Value",
    "Var",
    "marked",
    "thread_order",
]

# Imported at first use: the settings of a kernel name these classes, and need no instruction table.
_ROOMS: Final = {
    "KernelBuilder": "builder",
    "Matrix": "matrices.matrix",
    "Pair": "pairs",
    "Role": "hopper.role",
    "StagedTile": "matrices.staged",
    "SwizzledTile": "swizzle",
    "marked": "source_regions",
    "thread_order": "hopper.accumulator_memory",
    **dict.fromkeys(("PackedTile", "RegisterTile"), "matrices.registers"),
    **dict.fromkeys(("Fragment", "SharedTile", "TilePointer"), "tiles"),
    **dict.fromkeys(("Pointer", "PointerType", "Value", "Var"), "values"),
}


def _public(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module 'ptxgen.dsl' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ptxgen.dsl.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # for a type checker, any name would exist
    __getattr__ = _public


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
