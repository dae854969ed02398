"""Mutation operators, and the mutants of a kernel: each has one small mistake that a sanitizer or a test
must catch.

`mutants` is a pure function: the same module gives the same mutants in the same order. An operator changes
the IR, so kernels of any origin have mutants.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ptxgen import ir
from ptxgen.dsl.source_regions import mark_of
from ptxgen.errors import ConfigError, did_you_mean
from ptxgen.ir import Instr, IntImm
from ptxgen.mutation import hopper_operators, sync_operators, tensor_memory_operators
from ptxgen.mutation.sites import Change, Program, Site, constant, element_bytes, moved, with_operand
from ptxgen.text import render_instr


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one mistake. `name` is unique among the mutants of a kernel.

    `index` is that of the statement in the kernel's body; `before` and `after` are its PTX,
    `after` is empty for a deleted statement. `step` is the heading of its step of the algorithm,
    `mark` the mark of its source (`ptxgen/dsl/source_regions.py`), `where` the location of its source line.
    """

    name: str
    kind: str
    index: int
    before: str
    after: str
    step: str
    mark: str
    where: str
    original: ir.Module
    entry: str
    instead: tuple[Instr, ...]

    @property
    def module(self) -> ir.Module:
        """The module with the mistake, made at each access."""
        kernels = [self._mutated(k) if k.name == self.entry else k for k in self.original.kernels]
        return replace(self.original, kernels=tuple(kernels))

    @property
    def line(self) -> str:
        """The text of the source line that the changed statement comes from: of PTX that names no source,
        the statement; empty if the source is not at hand.
        """
        kernel = next(k for k in self.original.kernels if k.name == self.entry)
        statement = kernel.body[self.index]
        assert isinstance(statement, Instr)
        source = None if statement.origin is None else statement.origin.source
        if source is None:
            return self.before
        return source.text or linecache.getline(source.file, source.line).strip()

    def _mutated(self, kernel: ir.Kernel) -> ir.Kernel:
        before, after = kernel.body[: self.index], kernel.body[self.index + 1 :]
        return replace(kernel, body=(*before, *self.instead, *after))


class _Operator(NamedTuple):
    meaning: str
    changes: Callable[[Site], Iterator[Change]]


# ------------------------------------------------------------------------------------ shared memory


def _offsets(site: Site) -> Iterator[Change]:
    """Shared addresses off by one element, or by one access, which keeps it aligned."""
    program, instr = site.program, site.instr
    for n in program.shared_operands(instr):
        scalar, access = element_bytes(instr)
        for delta in dict.fromkeys((scalar, -scalar, access, -access)):
            yield Change(f"operand {n} {delta:+d}", moved(instr, n, delta))


def _regions(site: Site) -> Iterator[Change]:
    """Shared addresses moved to the next region, at equal offset; from the last to the first."""
    program, instr = site.program, site.instr
    for n in program.shared_operands(instr):
        delta = program.to_next_region(instr.operands[n])
        if delta:
            yield Change(f"operand {n} in the next region", moved(instr, n, delta))


_SCALING: Final = ("mul", "mad", "add", "sub", "shl", "div", "rem", "min", "max", "and", "or")
_WIDE: Final = 16  # constants from here on that are multiples of 4 are taken for bytes
_ELEMENT_BYTES: Final = 4


def _addresses(site: Site) -> Iterator[Change]:
    program, instr = site.program, site.instr
    if not program.makes_shared_address(instr) or _head(instr) not in _SCALING:
        return
    for n, operand in enumerate(instr.operands[1:], 1):
        if isinstance(operand, IntImm):
            whole = operand.value >= _WIDE and operand.value % _ELEMENT_BYTES == 0
            step = _ELEMENT_BYTES if whole else 1
            for delta in (step, -step):
                yield Change(f"operand {n} {delta:+d}", constant(instr, n, operand.value + delta))


def _swizzles(site: Site) -> Iterator[Change]:
    program, instr = site.program, site.instr
    if _head(instr) != "xor" or not program.makes_shared_address(instr):
        return
    d, a, *_ = instr.operands
    size = instr.opcode.rpartition(".")[2]
    yield Change("left out", (Instr(f"mov.{size}", (d, a), instr.guard, instr.origin),))
    for n, operand in enumerate(instr.operands[1:], 1):
        if isinstance(operand, IntImm):
            yield Change("doubled", constant(instr, n, operand.value * 2))
            if operand.value > 1:
                yield Change("halved", constant(instr, n, operand.value // 2))


def _stages(site: Site) -> Iterator[Change]:
    program, instr = site.program, site.instr
    if _head(instr) == "selp" and program.makes_shared_address(instr):
        d, a, b, p = instr.operands
        yield Change("swapped", (Instr(instr.opcode, (d, b, a, p), instr.guard, instr.origin),))


# ------------------------------------------------------------------------------------ masks, bounds


def _masks(site: Site) -> Iterator[Change]:
    """Conditions that are dropped or negated, except conditions of loops."""
    program, index, instr = site
    head = _head(instr)
    if head == "selp" and not program.makes_shared_address(instr):
        d, a, b, _ = instr.operands
        move = instr.opcode.replace("selp", "mov", 1)
        yield Change("always the first", (Instr(move, (d, a), instr.guard, instr.origin),))
        yield Change("always the second", (Instr(move, (d, b), instr.guard, instr.origin),))
    if head in ("and", "or") and instr.opcode.endswith(".pred"):
        other = {"and": "or.pred", "or": "and.pred"}[head]
        yield Change("and for or", with_operand(instr, opcode=other))
    if instr.guard is None or program.loop_branch(index) or program.awaits(instr):
        return
    free = () if head == "bra" else (_guarded(instr, None),)
    yield Change("dropped", free)
    inverted = instr.guard._replace(negated=not instr.guard.negated)
    yield Change("inverted", (_guarded(instr, inverted),))


_WIDER: Final = {
    "lt": "le",
    "le": "lt",
    "gt": "ge",
    "ge": "gt",
    "lo": "ls",
    "ls": "lo",
    "hi": "hs",
    "hs": "hi",
}
_OPPOSITE: Final = {"eq": "ne", "ne": "eq", "equ": "neu", "neu": "equ"}


def _bounds(site: Site) -> Iterator[Change]:
    program, instr = site.program, site.instr
    if not program.loop_condition(instr):
        yield from _comparison(instr)


def _loop_bounds(site: Site) -> Iterator[Change]:
    """Loop bounds off by one, and loop branches that are never taken."""
    program, index, instr = site
    if program.loop_condition(instr):
        yield from _comparison(instr)
    if program.loop_branch(index) and instr.guard is not None and not program.awaits(instr):
        yield Change("never taken", ())


def _comparison(instr: Instr) -> Iterator[Change]:
    if _head(instr) != "setp":
        return
    words = instr.opcode.split(".")
    numbers = [n for n, o in enumerate(instr.operands) if n and isinstance(o, IntImm)]
    for n in numbers:  # 6 for 5 in `x < 5` makes it `x <= 5`
        old = instr.operands[n]
        assert isinstance(old, IntImm)
        for delta in (1, -1):
            yield Change(f"{delta:+d}", constant(instr, n, old.value + delta))
    if not numbers and words[1] in _WIDER:
        other = _WIDER[words[1]]
        opcode = ".".join([words[0], other, *words[2:]])
        yield Change(f"{words[1]} to {other}", with_operand(instr, opcode=opcode))
    if words[1] in _OPPOSITE:
        opcode = ".".join([words[0], _OPPOSITE[words[1]], *words[2:]])
        yield Change("inverted", with_operand(instr, opcode=opcode))


def _guarded(instr: Instr, guard: ir.Guard | None) -> Instr:
    return Instr(instr.opcode, instr.operands, guard, instr.origin)


def _head(instr: Instr) -> str:
    return instr.opcode.partition(".")[0]


def _products(site: Site) -> Iterator[Change]:
    yield from hopper_operators.products(site)
    yield from tensor_memory_operators.products(site)


def _tensor_memory(site: Site) -> Iterator[Change]:
    yield from tensor_memory_operators.columns(site)
    yield from tensor_memory_operators.copies(site)


# -------------------------------------------------------------------------------------- all of them

_OPERATORS: Final[dict[str, _Operator]] = {
    "barrier": _Operator("a barrier of the block is deleted or weakened", sync_operators.barriers),
    "copy-wait": _Operator("a wait for copies or tensor memory is deleted or weakened", sync_operators.waits),
    "copy-commit": _Operator(
        "copies, or products in tensor memory, are not committed", sync_operators.commits
    ),
    "fence": _Operator("a fence is deleted or weakened", sync_operators.fences),
    "mbarrier": _Operator(
        "an mbarrier's arrival, count, bytes, phase or wait is wrong", sync_operators.mbarriers
    ),
    "phase": _Operator("the parity of a phase is wrong", hopper_operators.phases),
    "tensor-copy": _Operator("a tensor copy is left out, or of another box", hopper_operators.tensor_copies),
    "descriptor": _Operator("a field of a matrix descriptor is wrong", hopper_operators.descriptors),
    "product": _Operator("an asynchronous product adds, negates or transposes otherwise", _products),
    "tensor-memory": _Operator("other columns or lanes of tensor memory are used", _tensor_memory),
    "registers": _Operator("a role has other registers, or keeps its own", hopper_operators.registers),
    "warp": _Operator("a warp's barrier, mask or lane distance is wrong", sync_operators.warps),
    "memory-order": _Operator("an acquire or release is relaxed", sync_operators.orders),
    "shared-offset": _Operator("a shared access is off by one element or access", _offsets),
    "shared-region": _Operator("a shared access goes to another region", _regions),
    "shared-address": _Operator("a constant of a shared address is off by one", _addresses),
    "swizzle": _Operator("an xor of a shared address is wrong", _swizzles),
    "stage": _Operator("two stages are swapped", _stages),
    "mask": _Operator("a condition is dropped or inverted", _masks),
    "bound": _Operator("a comparison is off by one or inverted", _bounds),
    "loop-bound": _Operator("a loop's bound is off by one, or it is not repeated", _loop_bounds),
}
# Kinds of which only kernels for Hopper have mutants.
OF_HOPPER: Final = frozenset(("mbarrier", "phase", "tensor-copy", "descriptor", "product", "registers"))
KINDS: Final[dict[str, str]] = {kind: o.meaning for kind, o in _OPERATORS.items()}


def mutants(module: ir.Module, entry: str, kinds: Sequence[str] = tuple(KINDS)) -> list[Mutant]:
    """Every mutant of a kernel, by kind, then by index of the statement.

    A mutant may not be valid PTX: a verifier that refuses it has caught it. Raises `ConfigError`
    for an unknown kernel or kind.
    """
    for kind in kinds:
        if kind not in _OPERATORS:
            raise ConfigError(
                f"mutants: kinds must be of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}"
            )
    kernel = next((k for k in module.kernels if k.name == entry), None)
    if kernel is None:
        names = [k.name for k in module.kernels]
        raise ConfigError(
            f"mutants: the module has no kernel {entry!r}{did_you_mean(entry, names)} (it has "
            f"{', '.join(names) or 'none'})"
        )
    program = Program(module, kernel)
    return [m for kind in kinds for m in _of_kind(program, kind)]


def _of_kind(program: Program, kind: str) -> Iterator[Mutant]:
    step = ""
    for index, statement in enumerate(program.kernel.body):
        if isinstance(statement, ir.Note):
            step = statement.text
        if not isinstance(statement, Instr):
            continue
        for what, instead in _OPERATORS[kind].changes(Site(program, index, statement)):
            yield Mutant(
                name=f"{kind}: {what} @{index}",
                kind=kind,
                index=index,
                before=render_instr(statement),
                after=" ".join(render_instr(instr) for instr in instead),
                step=step,
                mark=mark_of(statement.origin),
                where=_where(statement.origin),
                original=program.module,
                entry=program.kernel.name,
                instead=instead,
            )


def _where(origin: ir.Origin | None) -> str:
    """The line of the source, or of PTX text that names none, without the folder, so that it is equal on all
    machines.
    """
    if origin is None:
        return ""
    if origin.code is None:
        if origin.location is None:
            return f"line {origin.line}"
        file = origin.location.file.replace("\\", "/").rpartition("/")[2]
        return f"{file}:{origin.location.line}"
    file = origin.code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{origin.line}, in {origin.code.co_qualname}"
