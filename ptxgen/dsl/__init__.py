"""Builds PTX kernels from Python: `KernelBuilder`, and the values, pointers and tiles it makes."""

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.marks import marked
from ptxgen.dsl.tiles import Fragment, SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, PointerType, Value, Var

__all__ = [
    "Fragment",
    "KernelBuilder",
    "Pointer",
    "PointerType",
    "SharedTile",
    "TilePointer",
    "Value",
    "Var",
    "marked",
]
