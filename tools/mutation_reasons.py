"""Why some mutants cannot be noticed: proved where that can be computed, otherwise argued once, in
words, for a place of an algorithm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ptxgen import interpreter, ir
from ptxgen.check.shapes import shape_of
from ptxgen.ir import Instr, IntImm, Reg, Special, Symbol
from ptxgen.isa.spec import Effect
from ptxgen.isa.table import op_of
from ptxgen.types import TYPES
from tools.mutations import Mutant

_WARP: Final = 32
_WORD_BITS: Final = 64
_OF_A_THREAD: Final = ("%tid.x", "%tid.y", "%tid.z", "%laneid")


def reason(mutant: Mutant, block: int) -> str | None:
    """Why a mutant that gave the same bits everywhere is right as well, for blocks of so many
    threads; None if no reason is known.
    """
    if mutant.kind == "barrier" and "warp alone" in mutant.name and block <= _WARP:
        return "proved: the block is one warp"
    if _same_for_every_thread(mutant, block):
        return (
            "proved: computed for every thread of the block, all that is read elsewhere has the "
            "same value"
        )
    return next((r.why for r in REASONS if r.fits(mutant)), None)


# -------------------------------------------------------------------------------------- by argument


@dataclass(frozen=True, slots=True)
class Reason:
    """An argument for mutants of a kind and a change, made from an instruction that matches
    `before` and comes from a Python function whose qualified name is `function`.
    """

    kind: str
    change: str
    function: str
    step: str
    before: str
    why: str

    def fits(self, mutant: Mutant) -> bool:
        """Whether the argument is about this mutant."""
        change = mutant.name.removeprefix(f"{mutant.kind}: ").partition(" @")[0]
        function = mutant.where.rpartition(", in ")[2]
        return (
            (self.kind, self.change, self.function) == (mutant.kind, change, function)
            and mutant.step.startswith(self.step)
            and re.match(self.before, mutant.before) is not None
        )


_SKIPPED: Final = "@!?%p"
_START: Final = "shared memory, and the first tiles"

REASONS: Final = (
    *(
        Reason(
            kind, change, "attention_forward", _START, before,
            "without any tile of keys, what the first loads bring is read by nobody",
        )
        for kind, change, before in (("mask", "dropped", _SKIPPED), ("bound", "-1", "setp.gt.s32"))
    ),
    *(
        Reason(
            kind, change, "attention_forward", "S = scale", before,
            "only spares work: in a tile of keys that all rows see, the mask hides nothing",
        )
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED), ("bound", "gt to ge", "setp.gt.s32"),
        )
    ),
    *(
        Reason(
            kind, change, "attention_forward", "P = exp2", before,
            "only spares work: nobody reads the K that would come behind the last tile, and of "
            "rows beyond the array nothing is read",
        )
        for kind, change, before in (
            ("mask", "dropped", _SKIPPED), ("bound", "lt to le", "setp.lt.s32"),
        )
    ),
    *(
        Reason(
            kind, change, "NonFinite.__init__", _START, before,
            "all threads may store the same 0: the first 1 is stored behind a barrier",
        )
        for kind, change, before in (("mask", "dropped", _SKIPPED), ("mask", "inverted", _SKIPPED))
    ),
    Reason(
        "mask", "dropped", "LazySoftmax.take", "P = exp2", _SKIPPED,
        "only spares work: where no shift moves, the factors are 1",
    ),
    Reason(
        "bound", "gt to ge", "LazySoftmax.take.<locals>.<listcomp>", "P = exp2", "setp.gt.f32",
        "a maximum that is above the shift by the slack exactly may move it or not",
    ),
    Reason(
        "bound", "lt to le", "_start_copies", _START, "setp.lt.f32",
        "with a scale of 0 it does not matter whether Q is negated",
    ),
    *(
        Reason(
            "shared-address", change, "Epilogue._send", "O / sum", before,
            "lanes whose columns are not part of O may read any others: they write nothing",
        )
        for change, before in (
            ("operand 2 -1", "rem.u32"), ("operand 2 -1", "min.u32"), ("operand 2 +1", "min.u32"),
        )
    ),
    Reason(
        "swizzle", "doubled", "Epilogue._stage", "O / sum", "xor",
        "columns beyond head_dim_v are read by nobody, wherever they lie",
    ),
    Reason(
        "mask", "always the first", "LazySoftmax._follow", "P = exp2", "selp",
        "any shift will do that is not far from the maximum, such as the maximum itself",
    ),
    Reason(
        "shared-address", "operand 2 -1", "clear_padding", _START, "add.u32",
        "the same rows are cleared, by the next threads: there are more threads than rows",
    ),
    Reason(
        "mask", "dropped", "attention_forward", "O += P V", _SKIPPED,
        "only spares work: where all rows see all keys, a weight is 0 by underflow alone, and 0 "
        "times a finite V adds nothing",
    ),
    Reason(
        "mask", "always the second", "OnlineSoftmax.finish", "O / sum", "selp",
        "the sum is 0 only where the maximum is -inf, and -inf + lg2(0) is the -inf that 0 + "
        "lg2(0) is",
    ),
    Reason(
        "bound", "+1", "_store", "O / sum", "setp.eq.u32",
        "all lanes of a row have the same LSE, so that any one of them may write it",
    ),
    *(
        Reason(
            kind, change, "_store", "O / sum", before,
            "all lanes of a row have the same LSE, and those of one warp may write the same value "
            "together",
        )
        for kind, change, before in (
            ("mask", "dropped", "@!%p"), ("mask", "inverted", "@!%p"),
            ("bound", "inverted", "setp.eq.u32"),
        )
    ),
    Reason(
        "shared-address", "operand 2 -1", "TileLoader.__init__", _START, "rem.u32",
        "the last lane has no chunk of its own, and becomes a second first lane: both copy the "
        "same bytes to the same place",
    ),
    *(
        Reason(
            "mask", change, "Products.share_weights", "P = exp2", "@!?%p[0-9]+ st.shared",
            "the threads that share a score, of one warp, have the same bits of it: any of them "
            "may write it, and all of them together",
        )
        for change in ("dropped", "inverted")
    ),
    *(
        Reason(
            "bound", change, "Products.share_weights", "P = exp2", "setp",
            "the threads that share a score, of one warp, have the same bits of it: any of them "
            "may write it",
        )
        for change in ("+1", "-1", "inverted")
    ),
    Reason(
        "loop-bound", "lt to le", "attention_forward", "O += P V", "setp.lt.s32",
        "only adds work: one more tile, of which no row sees a key, and whose V beyond the array "
        "is zero",
    ),
)  # fmt: skip


# ----------------------------------------------------------------------------------- by computation


def _same_for_every_thread(mutant: Mutant, block: int) -> bool:
    """Whether the change is to a value that the thread's number alone decides, and leaves all that
    the rest of the kernel reads as it was, in every thread of the block.
    """
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    mutated = next(k for k in mutant.module.kernels if k.name == mutant.entry)
    if len(mutant.instead) != 1:
        return False
    before, after = _decided(kernel), _decided(mutated)
    if mutant.place not in before or mutant.place not in after:
        return False
    read = _read_elsewhere(kernel, before)
    first = _values(mutant.original, kernel, before, read, block)
    second = _values(mutant.original, mutated, after, read, block)
    return bool(np.array_equal(first, second))


def _decided(kernel: ir.Kernel) -> dict[int, Instr]:
    """The instructions, by place, whose results the thread's number alone decides: pure, without a
    guard, the only ones to write their registers, and fed by nothing else.
    """
    written = Counter(name for s in _instrs(kernel).values() for name in _names(s)[0])
    known: set[str] = set()
    found: dict[int, Instr] = {}
    for place, instr in _instrs(kernel).items():
        writes, reads = _names(instr)
        if (
            writes
            and instr.guard is None
            and op_of(instr).effect is Effect.NONE
            and all(written[name] == 1 for name in writes)
            and known.issuperset(reads)
            and all(_constant(o) for o in instr.operands if not isinstance(o, Reg))
        ):
            known.update(writes)
            found[place] = instr
    return found


def _constant(operand: ir.Operand) -> bool:
    if isinstance(operand, Special):
        return operand.name in _OF_A_THREAD
    return isinstance(operand, (IntImm, Symbol, ir.FloatImm))


def _read_elsewhere(kernel: ir.Kernel, decided: Mapping[int, Instr]) -> list[Reg]:
    made = {r.name: r for s in decided.values() for r in s.operands[:1] if isinstance(r, Reg)}
    others = (s for n, s in _instrs(kernel).items() if n not in decided)
    read: set[str] = set()
    for instr in others:
        read.update(_names(instr)[1])
        if instr.guard is not None:
            read.add(instr.guard.register.name)
    return [made[name] for name in sorted(read & set(made))]


def _values(
    module: ir.Module,
    kernel: ir.Kernel,
    decided: Mapping[int, Instr],
    wanted: Iterable[Reg],
    block: int,
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """The registers' bits in every thread, `[registers, block]`."""
    registers = list(wanted)
    at, number, word = Reg("%whya", "b64"), Reg("%whyn", "b32"), Reg("%whyw", "b64")
    half, flag = Reg("%whyh", "b32"), Reg("%whyp", "pred")
    body: list[ir.Statement] = [
        *decided.values(),
        Instr("ld.param.u64", (at, ir.Address(Symbol("out")))),
        Instr("mov.u32", (number, Special("%tid.x"))),
        Instr("mad.wide.u32", (at, number, IntImm(8), at)),
    ]
    for n, register in enumerate(registers):
        body += _widened(register, word, half)
        body.append(Instr("st.global.u64", (ir.Address(at, n * 8 * block), word)))
    own = tuple(ir.RegisterRange(r.name, r.declared, 0) for r in (at, number, word, half, flag))
    small = replace(
        kernel,
        params=(ir.Param("out", "u64"),),
        registers=(*kernel.registers, *own),
        body=(*body, Instr("ret", ())),
    )
    out = np.zeros((max(len(registers), 1), block), np.uint64)
    interpreter.run(
        replace(module, kernels=(small,)), small.name, grid=1, block=block, args=[out],
        dynamic_smem=kernel.dynamic_shared_bytes,
    )  # fmt: skip
    return out


def _widened(register: Reg, word: Reg, half: Reg) -> list[Instr]:
    if register.declared == "pred":
        return [Instr("selp.b64", (word, IntImm(1), IntImm(0), register))]
    if TYPES[register.declared].bits == _WORD_BITS:
        return [Instr("mov.b64", (word, register))]
    return [Instr("mov.b32", (half, register)), Instr("cvt.u64.u32", (word, half))]


def _instrs(kernel: ir.Kernel) -> dict[int, Instr]:
    return {n: s for n, s in enumerate(kernel.body) if isinstance(s, Instr)}


def _names(instr: Instr) -> tuple[tuple[str, ...], tuple[str, ...]]:
    shape = shape_of(instr)
    names = () if shape.complaints else tuple(shape.names(instr.operands))
    return names[: shape.dests], names[shape.dests :]
