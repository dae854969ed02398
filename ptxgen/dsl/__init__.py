"""Builds PTX kernels from Python: `KernelBuilder`, and the values, pointers and tiles it makes."""

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.hopper.accumulator_memory import thread_order
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.matrices.matrix import Matrix
from ptxgen.dsl.matrices.registers import PackedTile, RegisterTile
from ptxgen.dsl.matrices.staged import StagedTile
from ptxgen.dsl.source_regions import marked
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.dsl.tiles import Fragment, SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, PointerType, Value, Var

__all__ = [
    "Fragment",
    "KernelBuilder",
    "Matrix",
    "PackedTile",
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
