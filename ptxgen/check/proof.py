"""Proof, before anything runs, that a kernel's accesses to shared memory stay inside what they are
meant for.

Every address is turned into a function of the thread, the turns of loops and the ways through
branches, all combinations of which are then tried with numpy. There is no solver. What cannot be
listed so is reported as unknown, never as safe.

Proved means: in every thread of the block and every turn that can be reached, the access is inside
the variable that its address is computed from, or the region that holds that address's constant
part, and aligned to its size. A value read from memory may be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from ptxgen.check.budget import declaration_problems, static_shared_bytes
from ptxgen.check.flow import blocks
from ptxgen.check.problems import Problem, where_from
from ptxgen.check.proof_access import Home, homes, region_home, touches
from ptxgen.check.proof_calls import Inlined, Source, inlined
from ptxgen.check.proof_descriptors import Descriptors
from ptxgen.check.proof_domain import Shape
from ptxgen.check.proof_graph import EXIT, Graph
from ptxgen.check.proof_paths import ALWAYS, Paths
from ptxgen.check.proof_ranges import Range, spaced
from ptxgen.check.proof_rows import NotListedError
from ptxgen.check.proof_search import SPACING, Place, Search
from ptxgen.check.proof_values import Node, Values
from ptxgen.check.proof_verdicts import PROVED, UNKNOWN, VIOLATION, Proof, Verdict, Witness
from ptxgen.errors import LaunchError, VerifyError, did_you_mean
from ptxgen.ir import Instr, Kernel, Module
from ptxgen.parse import parse
from ptxgen.target import TARGETS
from ptxgen.tensormap import TensorMap
from ptxgen.text import render_instr

__all__ = [
    "PROVED",
    "UNKNOWN",
    "VIOLATION",
    "Proof",
    "Verdict",
    "Witness",
    "prove_shared",
    "require_proved",
]

_MOST_THREADS: Final = 1024
# What waits for every thread of the block, by the first words of the opcode.
_BARRIERS: Final = ("bar.sync", "bar.red", "barrier.sync", "barrier.red", "barrier.cta.sync",
                    "bar.cta.sync", "barrier.cta.red", "bar.cta.red")  # fmt: skip

Bound = int | tuple[int, ...] | range | TensorMap


def prove_shared(
    ptx: str | Module,
    entry: str | None = None,
    *,
    block: int | tuple[int, ...],
    dynamic_smem: int | None = None,
    dynamic_align: int = 1,
    params: Mapping[str, Bound] | None = None,
) -> Proof:
    """What can be proved of a kernel's accesses to shared memory and of its barriers.

    `ptx` is text or a module, `entry` a kernel's name (may be left out if there is one kernel),
    `block` the threads along x, y and z, `dynamic_smem` the bytes of dynamic shared memory of the
    launch (default: the end of the kernel's last region). `dynamic_align` is what the launch is
    known to align that to, if to more than the text says; no manual promises more, but kernels of
    Triton rely on 1024 on sm_90. `params` bounds integer parameters: a number, or the lowest and
    the highest, or a range; of a parameter that is a tensor map, or the address of one, it has the
    `TensorMap`. Raises `LaunchError` for arguments that do not fit, `ParseError` for text that
    cannot be read.
    """
    module = parse(ptx) if isinstance(ptx, str) else ptx
    kernel = _kernel(module, entry)
    shape = _shape(block)
    dynamic = kernel.dynamic_shared_bytes if dynamic_smem is None else dynamic_smem
    given = _parameters(kernel, params or {})
    whole = inlined(module, kernel)
    variables = homes(module, kernel, dynamic, dynamic_align)
    for function in whole.functions:
        variables |= {s.name: Home(s.name, 0, s.nbytes, s.align) for s in function.shared}
    accesses, barriers = _Prover(whole, shape, variables, given).run()
    for judged, is_access in _left_out(module, whole):
        (accesses if is_access else barriers).append(judged)
    problems = tuple(_problems(module, kernel, dynamic))
    threads = (shape.x, shape.y, shape.z)
    return Proof(kernel.name, threads, dynamic, _merged(accesses), _merged(barriers), problems)


def require_proved(proof: Proof) -> None:
    """Raise `VerifyError` if the proof shows that something is wrong; what is unknown passes."""
    wrong = (*proof.problems, *proof.violations)
    if wrong:
        listed = "\n".join(f"* {w}" for w in wrong)
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        raise VerifyError(f"shared memory: {count}:\n{listed}", wrong)


# ------------------------------------------------------------------------------ arguments


def _kernel(module: Module, entry: str | None) -> Kernel:
    names = [k.name for k in module.kernels]
    if entry is None and len(names) == 1:
        return module.kernels[0]
    if entry not in names:
        wanted = "which kernel is meant" if entry is None else f"no kernel {entry!r}"
        hint = did_you_mean(entry or "", names)
        raise LaunchError(f"prove_shared: {wanted}; the module has {', '.join(names)}{hint}")
    return module.kernels[names.index(entry)]


def _shape(block: int | tuple[int, ...]) -> Shape:
    sizes = (block,) if isinstance(block, int) else tuple(block)
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1 or int(np.prod(sizes)) > _MOST_THREADS:
        raise LaunchError(
            f"prove_shared: block must be one to three positive numbers of threads, at most "
            f"{_MOST_THREADS} in all, got {block!r}"
        )
    return Shape(*sizes, *(1,) * (3 - len(sizes)))


class _Given(NamedTuple):
    """The parameters that are known, the bounds of others, and tensor maps."""

    known: dict[str, int]
    ranges: dict[str, Range]
    maps: dict[str, TensorMap]


def _parameters(kernel: Kernel, params: Mapping[str, Bound]) -> _Given:
    names = [p.name for p in kernel.params]
    given = _Given({}, {}, {})
    known, ranges = given.known, given.ranges
    for name, bound in params.items():
        if name not in names:
            raise LaunchError(
                f"prove_shared: {kernel.name} has no parameter {name!r}{did_you_mean(name, names)}"
            )
        if isinstance(bound, TensorMap):
            given.maps[name] = bound
        elif isinstance(bound, int):
            known[name] = bound
        elif isinstance(bound, range) and len(bound) and bound.step > 0:
            ranges[name] = spaced(bound[0], bound[-1], bound.step)
        elif not isinstance(bound, range) and len(bound) == 2 and bound[0] <= bound[1]:
            ranges[name] = spaced(bound[0], bound[1], 1)
        else:
            raise LaunchError(
                f"prove_shared: the bounds of {name} must be a number, the lowest and the highest, "
                f"or a range with a positive step, got {bound!r}"
            )
    return given


def _problems(module: Module, kernel: Kernel, dynamic: int) -> Iterator[Problem]:
    limits = TARGETS.get(module.target)
    yield from (p for p in declaration_problems(kernel, limits) if p.kind == "shared")
    needed = kernel.dynamic_shared_bytes
    if dynamic < needed:
        message = f"its regions need {needed} bytes of dynamic shared memory, got {dynamic}"
        yield Problem("shared", message, kernel.name)
    total = static_shared_bytes(kernel) + dynamic
    if limits is not None and total > limits.shared_per_block_optin and dynamic > needed:
        message = (
            f"{total} bytes of shared memory, {dynamic} of them dynamic, but a block has at most "
            f"{limits.shared_per_block_optin} on {limits.name}"
        )
        yield Problem("shared", message, kernel.name)


# ------------------------------------------------------------------------------ one kernel


class _Prover:
    def __init__(self, whole: Inlined, shape: Shape, found: dict[str, Home], given: _Given) -> None:
        kernel = whole.kernel
        self._sources = whole.sources
        self._graph = Graph(blocks(kernel))
        specials = {f"%ntid.{axis}": n for axis, n in zip("xyz", shape, strict=True)}
        params = frozenset(p.name for p in kernel.params)
        self._values = Values(self._graph, specials, frozenset(found), given.known, params)
        self._paths = Paths(self._graph, self._values)
        regions = {}
        if kernel.dynamic_shared:
            of = found[kernel.dynamic_shared]
            regions = {r.name: region_home(r, of) for r in kernel.regions if r.nbytes > 0}
        self._search = Search(
            self._values, self._paths, shape, given.ranges, found, regions, kernel.dynamic_shared,
            given.maps,
        )  # fmt: skip
        self._descriptors = Descriptors(self._search)
        self._shape = shape

    def run(self) -> tuple[list[Judged], list[Judged]]:
        """The verdicts on the accesses and on the barriers, in the order of the text."""
        accesses: list[Judged] = []
        barriers: list[Judged] = []
        reached = set(self._graph.order)
        for block in self._graph.blocks:
            if block.index not in reached:
                continue
            for position, instr in enumerate(block.instrs):
                place = Place(block.index, position, instr)
                source = self._sources[block.start + position]
                accesses += self._accesses(place, source)
                if _is_barrier(instr):
                    barriers.append((source, 0, self._barrier(place, source)))
        return accesses, barriers

    def _accesses(self, place: Place, source: Source) -> Iterator[Judged]:
        for which, touch in enumerate(touches(place.instr)):
            if touch.matrix is None:
                found = self._search.judge(place, touch)
            else:
                found = self._descriptors.judge(place, touch, touch.matrix)
            if found is not None:
                made = _verdict(source, found.verdict, found.reason)
                yield source, which, replace(
                    made, allocation=found.allocation, first=found.first, last=found.last,
                    witness=found.witness,
                )  # fmt: skip

    # ----------------------------------------------------------------------------- barriers

    def _barrier(self, place: Place, source: Source) -> Verdict:
        """Whether all threads of the block come to a barrier together."""
        guards = self._paths.guards_around(place.block)
        if place.instr.guard is not None:
            register = place.instr.guard.register
            guards.append(self._values.at(register, place.block, place.position))
        verdict, reason = PROVED, ""
        for guard in guards:
            verdict, reason = self._agreed(guard, place)
            if verdict != PROVED:
                break
        return _verdict(source, verdict, reason)

    def _agreed(self, guard: Node | None, place: Place) -> tuple[str, str]:
        """Whether all threads agree on a predicate that decides whether a barrier is reached."""
        if guard is None:
            return UNKNOWN, "a jump through a table decides whether it is reached"
        if self._paths.uniform(guard):
            return PROVED, ""
        simple = all(n.kind not in ("join", "header", "opaque", "param", "function")
                     for n in self._paths.sources(guard))  # fmt: skip
        unsure = "a condition on the way to it may differ between threads"
        if not simple:
            return UNKNOWN, unsure
        try:
            bases = dict.fromkeys(self._search.homes, SPACING)
            lister, table = self._search.table([guard], ALWAYS, True, bases)
        except NotListedError:
            return UNKNOWN, unsure
        holds = lister.evaluate(table, guard)
        if holds.all() or not holds.any():
            return PROVED, ""
        other = int(np.argmax(holds != holds[0]))
        first, second = (_thread(n, self._shape) for n in (0, other))
        differ = f"threads {first} and {second} differ in a condition on the way to it"
        counted = len(place.instr.operands) > 1
        if counted or not self._skipped(place):
            return UNKNOWN, f"{differ}, and whether they meet at another barrier is not followed"
        return VIOLATION, f"{differ}, so not all threads come to it"

    def _skipped(self, place: Place) -> bool:
        """Whether this is the only barrier of the kernel, and threads that pass it by go on."""
        count = sum(
            _is_barrier(instr) for b in self._graph.order for instr in self._graph.blocks[b].instrs
        )
        deciding = self._graph.controlling(place.block)
        return count == 1 and all(self._graph.post.get(b, EXIT) != EXIT for b in deciding)


def _thread(number: int, shape: Shape) -> tuple[int, int, int]:
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


def _is_barrier(instr: Instr) -> bool:
    return instr.opcode.startswith(_BARRIERS)


# ------------------------------------------------------------------------------ functions

# Where an access stands, which of its instruction's it is, and the verdict.
Judged = tuple[Source, int, Verdict]


def _verdict(source: Source, verdict: str, reason: str) -> Verdict:
    called = "".join(f", called from {place}" for place in reversed(source.via))
    return Verdict(
        verdict, source.owner, source.number, render_instr(source.instr),
        where_from(source.instr.origin), f"{reason}{called}" if reason else "",
    )  # fmt: skip


def _left_out(module: Module, whole: Inlined) -> Iterator[tuple[Judged, bool]]:
    """The accesses and barriers (of which it is False) of functions that are not followed."""
    for function in module.functions:
        reason = whole.left_out.get(function.name)
        if reason is None:
            continue
        instrs = [s for s in function.body or () if isinstance(s, Instr)]
        for number, instr in enumerate(instrs):
            source = Source(function.name, number, instr)
            made = _verdict(source, UNKNOWN, reason)
            for which, touch in enumerate(touches(instr)):
                if not touch.generic:
                    yield (source, which, made), True
            if _is_barrier(instr):
                yield (source, 0, made), False


def _merged(judged: Iterable[Judged]) -> tuple[Verdict, ...]:
    """One verdict for each place: of several calls, the worst."""
    found: dict[tuple[str, int, int], Verdict] = {}
    for source, which, verdict in judged:
        key = (source.owner, source.number, which)
        known = found.get(key)
        found[key] = verdict if known is None else _worse(known, verdict)
    return tuple(found.values())


def _worse(a: Verdict, b: Verdict) -> Verdict:
    order = (VIOLATION, UNKNOWN, PROVED)
    worst, other = sorted((a, b), key=lambda v: order.index(v.verdict))
    if worst.verdict != PROVED or a.allocation != b.allocation:
        return worst
    return replace(worst, first=min(a.first, other.first), last=max(a.last, other.last))
