"""CUDA programs without a GPU: the calls that a host program makes are answered by the interpreter."""

from ptxgen.program.host import Ended, run

__all__ = ["Ended", "run"]
