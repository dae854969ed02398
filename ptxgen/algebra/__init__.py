"""Kernels in exact arithmetic: whether what they compute is a formula, whatever its rounding."""

from ptxgen.algebra.comparison import Compared, Comparison, compare
from ptxgen.algebra.residues import Exact

__all__ = ["Compared", "Comparison", "Exact", "compare"]
