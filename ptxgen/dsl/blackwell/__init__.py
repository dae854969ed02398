"""Features of sm_100 and later: tensor memory, its accumulators and operands, products that one thread starts,
block scales, and rings of tensor memory between roles.
"""

from ptxgen.dsl.blackwell.matrices import Accumulator, Scales, TensorOperand
from ptxgen.dsl.blackwell.ring import TensorRing, TensorStage
from ptxgen.dsl.blackwell.tensor_memory import TensorMemory

__all__ = ["Accumulator", "Scales", "TensorMemory", "TensorOperand", "TensorRing", "TensorStage"]
