"""Python functions as kernels: specialised, checked, proved, and launched on a GPU or interpreted."""

from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.decorator import kernel
from ptxgen.kernels.function import KernelFunction

__all__ = ["BuiltFunction", "KernelFunction", "kernel"]
