"""Two small kernels that measure a GPU's maximum rates of multiply-adds and of copied bytes."""

from __future__ import annotations

from typing import Final

from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.target import Target
from ptxgen.types import f32, s32, u32, u64

THREADS: Final = 256
CHAINS: Final = 16  # independent sums of a thread, which hide the few cycles an fma takes
UNROLL: Final = 16  # fma of each chain in an iteration of the loop, whose counter takes 3 instructions
COPIES: Final = 4  # 16-byte chunks that a thread has in flight
CHUNK_BYTES: Final = 16
FLOPS_PER_FMA: Final = 2
# Multiply-adds of 16-bit types that the tensor cores of a multiprocessor start in a clock, of dense matrices:
# NVIDIA A100 and H100 Tensor Core GPU Architecture, "Tensor Core Operations" and "Tensor Cores".
TENSOR_FMAS: Final = {80: 1024, 90: 2048}


def fma_kernel(
    target: Target, *, chains: int = CHAINS, unroll: int = UNROLL, threads: int = THREADS
) -> ir.Module:
    """Each thread repeats x = x * factor + term on `chains` numbers, `turns * unroll` times each.

    Chain c begins at c; the sum of all chains is written to out[thread of the grid], so that no fma
    can be optimised away. Parameters: out (f32 pointer), turns (u32), factor and term (f32).
    """
    k = KernelBuilder("fma_ceiling", target=target, threads=threads)
    out = k.pointer("out")
    rounds, factor, term = k.param("turns", u32), k.param("factor", f32), k.param("term", f32)
    sums = [k.var(f32, float(chain)) for chain in range(chains)]
    with k.loop(0, rounds.as_(s32)):
        for _ in range(unroll):
            for x in sums:
                k.fma(x, factor, term, into=x)
    total: Value = sums[0]
    for x in sums[1:]:
        total = total + x
    thread = k.block_id() * threads + k.thread_id()
    k.store(_further(k, out, thread, f32.nbytes), total)
    return k.build()


def fma_flops(ctas: int, rounds: int) -> int:
    """Floating-point operations of one launch of `fma_kernel` with its default sizes."""
    return FLOPS_PER_FMA * CHAINS * UNROLL * THREADS * ctas * rounds


def copy_kernel(target: Target, *, threads: int = THREADS) -> ir.Module:
    """Copy `COPIES` chunks of 16 bytes in each thread; neighbouring threads copy neighbouring chunks.

    Parameters: source and copy (f32 pointers, multiples of 16 bytes). Each CTA of the grid copies
    `bytes_per_cta`.
    """
    k = KernelBuilder("copy_ceiling", target=target, threads=threads)
    source, copy = k.pointer("source"), k.pointer("copy")
    chunk = k.block_id() * (threads * COPIES) + k.thread_id()
    source, copy = (_further(k, pointer, chunk, CHUNK_BYTES) for pointer in (source, copy))
    words = CHUNK_BYTES // f32.nbytes
    steps = [threads * words * n for n in range(COPIES)]
    parts = [k.load(source.at(step), words) for step in steps]
    for step, part in zip(steps, parts, strict=True):
        k.store(copy.at(step), part)
    return k.build()


def bytes_per_cta(threads: int = THREADS) -> int:
    """Bytes that one CTA of `copy_kernel` copies; it moves twice as many, in and out."""
    return threads * COPIES * CHUNK_BYTES


def _further(k: KernelBuilder, pointer: Pointer, index: Value, nbytes: int) -> Pointer:
    return pointer.plus(k.cvt(index, dtype=u64) * nbytes)


def peak_flops(target: Target, multiprocessors: int, clock_mhz: float) -> float:
    """Theoretical f32 operations per second: an fma on every lane at every clock."""
    return FLOPS_PER_FMA * target.fp32_lanes_per_sm * multiprocessors * clock_mhz * 1e6


def tensor_peak_flops(target: Target, multiprocessors: int, clock_mhz: float) -> float:
    """Theoretical operations per second of tensor cores on 16-bit types; 0 for targets not known here."""
    return FLOPS_PER_FMA * TENSOR_FMAS.get(target.sm, 0) * multiprocessors * clock_mhz * 1e6
