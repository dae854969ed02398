"""Names that other languages for GPUs have for methods of the DSL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ptxgen.errors import UnknownInstructionError, did_you_mean

# A name of CUDA C++, Numba or Triton: what stands for it here.
OTHER_NAMES: Final = {
    "threadIdx": "k.thread_id()",
    "blockIdx": "k.block_id()",
    "blockDim": "k.threads",
    "gridDim": "k.blocks()",
    "program_id": "k.block_id()",
    "num_programs": "k.blocks()",
    "warp_id": "k.thread_id() // 32",
    "lane_id": "k.thread_id() % 32",
    "laneid": 'k.special("laneid")',
    "syncthreads": "k.barrier()",
    "sync": "k.barrier()",
    "select": "k.selp(a, b, predicate)",
    "where": "k.selp(a, b, predicate)",
    "range": "with k.loop(start, stop, step) as i:",
    "if_": "with k.when(predicate):",
    "else_": "with k.otherwise():",
    "cast": "k.cvt(value, dtype=type)",
    "zeros": "k.var(type, 0), k.fragment or k.accumulator",
    "shared_array": "k.shared(name, (rows, columns), type)",
    "atomicAdd": "k.atomic.add(P.element(i), value)",
    "atomicMax": "k.atomic.max(P.element(i), value)",
    "atomicMin": "k.atomic.min(P.element(i), value)",
    "atomicCAS": "k.atomic.compare_exchange(P.element(i), expected, value)",
    "atomicExch": "k.atomic.exchange(P.element(i), value)",
    "atomic_add": "k.atomic.add(P.element(i), value)",
    "shfl_xor": "k.butterfly(value, distance)",
    "cdiv": "k.divide_up(n, by)",
    "dot": "k.mma(a, b)",
    "expf": "k.exp(value)",
    "exp2": "k.ex2(value)",
    "log2": "k.lg2(value)",
    "fmax": "k.max(a, b)",
    "fmin": "k.min(a, b)",
    "fabs": "k.abs(value)",
    "assert_": "k.device_assert(predicate, message)",
}


def unknown_word(name: str, known: Iterable[str]) -> UnknownInstructionError:
    """The error for a word that is neither an instruction nor one of the `known` words of the DSL."""
    ours = OTHER_NAMES.get(name)
    hint = f"; write {ours}" if ours else did_you_mean(name, [*known])
    return UnknownInstructionError(f"no instruction {name!r}{hint}")
