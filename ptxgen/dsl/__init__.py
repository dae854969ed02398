"""Building PTX from Python: `KernelBuilder` and the values it hands out."""

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.tiles import Fragment, SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, Value, Var

__all__ = ["Fragment", "KernelBuilder", "Pointer", "SharedTile", "TilePointer", "Value", "Var"]
