"""Kernels of other languages on the interpreter: PTX, CUDA C++, Triton, Numba, CuTe DSL.

`ptx`, `cuda`, `triton`, `numba` and `cute` are the front ends, each imported by itself; `run`
(`ptxgen.frontends.dispatch`) chooses by the type of the kernel. The compilers are packages of the
extra `ptxgen[frontends]`, imported at the first use.
"""
