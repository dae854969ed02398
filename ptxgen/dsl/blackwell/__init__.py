"""Features of sm_100 and later: tensor memory, its accumulators and operands, products that one
thread starts, scale factors of blocks, and rings of tensor memory between roles.
"""

from ptxgen.dsl.blackwell.accumulator import Accumulator
from ptxgen.dsl.blackwell.ring import TensorRing, TensorStage
from ptxgen.dsl.blackwell.scales import Scales
from ptxgen.dsl.blackwell.tensor_memory import TensorMemory
from ptxgen.dsl.blackwell.tensor_operand import TensorOperand

__all__ = ["Accumulator", "Scales", "TensorMemory", "TensorOperand", "TensorRing", "TensorStage"]
