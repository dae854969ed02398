"""The kernel that a proof is about: the checks that all proofs share, and the kernel with its calls
inlined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ptxgen.arguments import extents
from ptxgen.check.flow import blocks
from ptxgen.check.problems import where_from
from ptxgen.check.prove.listing.search import Finding
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.inlining import Inlined, Source, inlined
from ptxgen.check.prove.program.shared_accesses import Home, homes
from ptxgen.check.prove.program.values import Values
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Verdict, Witness
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.ir import NOWHERE, Instr, Kernel, Module
from ptxgen.parse import module_of
from ptxgen.text import render_instr

# PTX ISA, section "Special Registers: %ntid"; CUDA C++ Programming Guide, "Compute Capabilities".
_MOST_THREADS: Final = 1024
_MOST_ALONG_Z: Final = 64
_DIMENSIONS: Final = 3

# The origin of an access, its index among the accesses of its instruction, and its verdict.
Judged = tuple[Source, int, Verdict]


@dataclass(frozen=True)
class Subject:
    """A kernel with the functions that it calls inlined, for blocks of one shape."""

    module: Module
    kernel: Kernel
    shape: Shape
    whole: Inlined

    @cached_property
    def graph(self) -> Graph:
        """The kernel's control-flow graph, with dominators and loops."""
        return Graph(blocks(self.whole.kernel))

    @cached_property
    def analysis(self) -> Values:
        """The analysis of the kernel's values without those of a launch; its proofs share it."""
        return Values(self.graph, {}, frozenset(), {}, {})

    def homes(self, dynamic: int | None, dynamic_align: int = 1) -> dict[str, Home]:
        """The variables in shared memory that the kernel and its functions may name. Dynamic
        variables have `dynamic` bytes, None if that is not known.
        """
        variables = homes(self.module, self.kernel, dynamic, dynamic_align)
        for function in self.whole.functions:
            variables |= {s.name: Home(s.name, 0, s.nbytes, s.align) for s in function.shared}
        return variables

    def left_out(self, is_judged: Callable[[Instr], int]) -> Iterator[Judged]:
        """An unknown verdict for each access in functions that are left out. `is_judged` gives the
        number of accesses of an instruction.
        """
        for function in self.module.functions:
            reason = self.whole.left_out.get(function.name)
            if reason is None:
                continue
            instrs = [s for s in function.body or () if isinstance(s, Instr)]
            for number, instr in enumerate(instrs):
                source = Source(function.name, number, instr)
                for which in range(is_judged(instr)):
                    yield source, which, verdict_of(source, UNKNOWN, reason)


def subject_of(ptx: object, entry: object, block: object) -> Subject:
    """The subject of a proof. Raises `LaunchError` for arguments that do not fit, `ParseError` for
    text that cannot be read.
    """
    shape = _shape(block)
    module = module_of("prove", ptx)
    kernel = _kernel(module, entry)
    return Subject(module, kernel, shape, inlined(module, kernel))


def _kernel(module: Module, entry: object) -> Kernel:
    names = [k.name for k in module.kernels]
    if entry is None and len(names) == 1:
        return module.kernels[0]
    if not isinstance(entry, str) or entry not in names:
        wanted = "which kernel is meant" if entry is None else f"no kernel {shown(entry)}"
        hint = did_you_mean(entry, names)
        raise LaunchError(f"prove: {wanted}; the module has {', '.join(names)}{hint}")
    return module.kernels[names.index(entry)]


def _shape(block: object) -> Shape:
    sizes = extents(block, _DIMENSIONS)
    fits = sizes is not None and math.prod(sizes) <= _MOST_THREADS
    if sizes is None or not fits or sizes[_DIMENSIONS - 1 :] > (_MOST_ALONG_Z,):
        raise LaunchError(
            f"prove: block must be one to three positive numbers of threads, at most "
            f"{_MOST_THREADS} in all and {_MOST_ALONG_Z} along z, got {shown(block)}"
        )
    return Shape(*sizes, *(1,) * (_DIMENSIONS - len(sizes)))


# ------------------------------------------------------------------------------ verdicts


def verdict_of(
    source: Source,
    verdict: str,
    reason: str,
    allocation: str = "",
    first: int = 0,
    last: int = -1,
    witness: Witness | None = None,
) -> Verdict:
    """A verdict on an instruction, with the calls that lead to it in its reason."""
    origin = source.instr.origin or NOWHERE
    called = "".join(f", called from {caller}" for caller in reversed(source.via))
    return Verdict(
        verdict,
        source.owner,
        source.number,
        render_instr(source.instr),
        where_from(source.instr.origin),
        f"{reason}{called}" if reason else "",
        allocation,
        first,
        last,
        witness,
        line=origin.ptx_line,
        source=origin.source,
    )


def judged(source: Source, which: int, finding: Finding) -> Judged:
    """The verdict on access number `which` of an instruction, from the result of a search."""
    return source, which, verdict_of(source, *finding)


def merged(judged: Iterable[Judged]) -> tuple[Verdict, ...]:
    """One verdict for each access; an access in a function that is called several times gets the worst."""
    verdicts: dict[tuple[str, int, int], Verdict] = {}
    for source, which, verdict in judged:
        key = (source.owner, source.number, which)
        known = verdicts.get(key)
        verdicts[key] = verdict if known is None else _worse(known, verdict)
    return tuple(verdicts.values())


def _worse(a: Verdict, b: Verdict) -> Verdict:
    order = (VIOLATION, UNKNOWN, PROVED)
    worst, other = sorted((a, b), key=lambda v: order.index(v.verdict))
    if worst.verdict != PROVED or a.allocation != b.allocation:
        return worst
    return replace(worst, first=min(a.first, other.first), last=max(a.last, other.last))
