"""Proofs that mutants are equivalent: by the values that a change computes in every thread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ptxgen import interpreter, ir
from ptxgen.check.flow import blocks
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm, Reg, Special, Symbol
from ptxgen.isa.spec import Effect
from ptxgen.isa.table import op_of
from ptxgen.mutation.operators import Mutant
from ptxgen.types import TYPES

_WARP: Final = 32
_WORD_BITS: Final = 64
_HALF_BITS: Final = 16
_OF_A_THREAD: Final = ("%tid.x", "%tid.y", "%tid.z", "%laneid")


def proved(mutant: Mutant, block: int | tuple[int, ...]) -> str | None:
    """Why a mutant whose results had equal bits in all runs is equivalent, if values in CTAs of
    `block` threads prove it; else None.
    """
    block = block if isinstance(block, tuple) else (block,)
    if mutant.kind == "barrier" and "warp alone" in mutant.name and math.prod(block) <= _WARP:
        return "proved: the block is one warp"
    if _drops_nothing(mutant, block):
        return "proved: computed for every thread of the block, the condition holds"
    if _is_never_read(mutant):
        return "proved: no instruction that does more than compute depends on the value"
    if _same_for_every_thread(mutant, block):
        return "proved: computed for every thread of the block, all that is read elsewhere has the same value"
    return None


def _same_for_every_thread(mutant: Mutant, block: tuple[int, ...]) -> bool:
    """Whether the change is to a value that depends on the thread index alone, and all values that
    the rest of the kernel reads stay equal, in every thread of the block.
    """
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    mutated = next(k for k in mutant.module.kernels if k.name == mutant.entry)
    if len(mutant.instead) != 1:
        return False
    before, after = _decided(kernel), _decided(mutated)
    if mutant.index not in before or mutant.index not in after:
        return False
    read = _read_elsewhere(kernel, before)
    first = _values(mutant.original, kernel, before, read, block)
    second = _values(mutant.original, mutated, after, read, block)
    return bool(np.array_equal(first, second))


def _drops_nothing(mutant: Mutant, block: tuple[int, ...]) -> bool:
    """Whether the change drops a condition that depends on the thread index alone, and that has no
    effect in any thread of the block.
    """
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    instr = kernel.body[mutant.index]
    guard = instr.guard if isinstance(instr, Instr) else None
    if guard is None or any(instead.guard is not None for instead in mutant.instead):
        return False
    decided = _decided(kernel)
    if guard.register.name not in {name for s in decided.values() for name in _names(s)[0]}:
        return False
    holds = _values(mutant.original, kernel, decided, [guard.register], block) != guard.negated
    # A deleted instruction was never executed, or one without its guard always was.
    return bool(holds.all() if mutant.instead else not holds.any())


def _is_never_read(mutant: Mutant) -> bool:
    """Whether the change is to the values of registers that are read for nothing but such values."""
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    both = kernel.body[mutant.index], *mutant.instead
    changed = [s for s in both if isinstance(s, Instr) and op_of(s).effect is Effect.NONE]
    if len(changed) != len(both) or len({(s.guard, _names(s)[0]) for s in changed}) != 1:
        return False
    unread, before = set(_names(changed[0])[0]), 0
    later = [(op_of(s).effect, *_names(s), s.guard) for s in _later(kernel, mutant.index)]
    while len(unread) > before:
        before = len(unread)
        for effect, writes, reads, guard in later:
            if unread.isdisjoint(reads if guard is None else (*reads, guard.register.name)):
                continue
            if effect is not Effect.NONE:
                return False
            unread.update(writes)
    return True


def _later(kernel: ir.Kernel, index: int) -> Iterator[Instr]:
    """The instructions that may be executed after the one with an index in the kernel's body."""
    number = sum(isinstance(s, Instr) for s in kernel.body[:index])
    graph = blocks(kernel)
    own = next(b for b in graph if b.start <= number < b.start + len(b.instrs))
    seen, left = set[int](), list(own.successors)
    while left:
        block = left.pop()
        if block not in seen:
            seen.add(block)
            left += graph[block].successors
    yield from own.instrs[number + 1 - own.start :]
    for block in seen:
        yield from graph[block].instrs


def _decided(kernel: ir.Kernel) -> dict[int, Instr]:
    """The instructions, by index, whose results depend on the thread index alone: pure, without a
    guard, the only writers of their registers, and with only such inputs.
    """
    written = Counter(name for s in instrs(kernel).values() for name in _names(s)[0])
    params = {param.name for param in kernel.params}
    known: set[str] = set()
    decided: dict[int, Instr] = {}
    for index, instr in instrs(kernel).items():
        writes, reads = _names(instr)
        if (
            writes
            and instr.guard is None
            and op_of(instr).effect is Effect.NONE
            and all(written[name] == 1 for name in writes)
            and known.issuperset(reads)
            and all(_constant(o, params) for o in instr.operands if not isinstance(o, Reg))
        ):
            known.update(writes)
            decided[index] = instr
    return decided


def _constant(operand: ir.Operand, params: set[str]) -> bool:
    if isinstance(operand, Special):
        return operand.name in _OF_A_THREAD
    if isinstance(operand, Symbol):
        return operand.name not in params
    return isinstance(operand, (IntImm, ir.FloatImm))


def _read_elsewhere(kernel: ir.Kernel, decided: Mapping[int, Instr]) -> list[Reg]:
    results = {r.name: r for s in decided.values() for r in s.operands[:1] if isinstance(r, Reg)}
    others = (s for n, s in instrs(kernel).items() if n not in decided)
    read: set[str] = set()
    for instr in others:
        read.update(_names(instr)[1])
        if instr.guard is not None:
            read.add(instr.guard.register.name)
    return [results[name] for name in sorted(read & set(results))]


def _values(
    module: ir.Module,
    kernel: ir.Kernel,
    decided: Mapping[int, Instr],
    wanted: Iterable[Reg],
    block: tuple[int, ...],
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """The bits of registers in every thread, `[registers, threads]`."""
    threads, (x, y) = math.prod(block), (*block, 1)[:2]
    registers = list(wanted)
    at, number, word = Reg("%whyo", "b64"), Reg("%whyn", "b32"), Reg("%whyw", "b64")
    half, axis = Reg("%whyh", "b32"), Reg("%whya", "b32")
    body: list[ir.Statement] = [
        *decided.values(),
        Instr("ld.param.u64", (at, ir.Address(Symbol("out")))),
        Instr("mov.u32", (number, Special("%tid.z"))),
        Instr("mov.u32", (axis, Special("%tid.y"))),
        Instr("mad.lo.u32", (number, number, IntImm(y), axis)),
        Instr("mov.u32", (axis, Special("%tid.x"))),
        Instr("mad.lo.u32", (number, number, IntImm(x), axis)),
        Instr("mad.wide.u32", (at, number, IntImm(8), at)),
    ]
    for n, register in enumerate(registers):
        body += _widened(register, word, half)
        body.append(Instr("st.global.u64", (ir.Address(at, n * 8 * threads), word)))
    added = tuple(ir.RegisterRange(r.name, r.declared, 0) for r in (at, number, word, half, axis))
    small = replace(
        kernel,
        params=(ir.Param("out", "u64"),),
        cluster=(),
        registers=(*kernel.registers, *added),
        body=(*body, Instr("ret", ())),
    )
    out = np.zeros((max(len(registers), 1), threads), np.uint64)
    interpreter.run(
        replace(module, kernels=(small,)),
        small.name,
        grid=1,
        block=block,
        args=[out],
        dynamic_smem=kernel.dynamic_shared_bytes,
    )
    return out


def _widened(register: Reg, word: Reg, half: Reg) -> list[Instr]:
    if register.declared == "pred":
        return [Instr("selp.b64", (word, IntImm(1), IntImm(0), register))]
    if TYPES[register.declared].bits == _WORD_BITS:
        return [Instr("mov.b64", (word, register))]
    if TYPES[register.declared].bits <= _HALF_BITS:
        return [Instr(f"cvt.u64.u{TYPES[register.declared].bits}", (word, register))]
    return [Instr("mov.b32", (half, register)), Instr("cvt.u64.u32", (word, half))]


def instrs(kernel: ir.Kernel) -> dict[int, Instr]:
    """The instructions of a kernel by their index in its body."""
    return {n: s for n, s in enumerate(kernel.body) if isinstance(s, Instr)}


def _names(instr: Instr) -> tuple[tuple[str, ...], tuple[str, ...]]:
    shape = shape_of(instr)
    names = () if shape.complaints else tuple(shape.names(instr.operands))
    return names[: shape.dests], names[shape.dests :]
