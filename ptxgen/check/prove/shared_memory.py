"""Proof, before a launch, that a kernel's accesses to shared memory stay inside the variables or
regions that they are meant for.

Every address becomes a function of the thread, the iterations of loops and the paths through
branches; numpy then evaluates all combinations of these. There is no solver. An address that cannot
be listed in this way is reported as unknown, never as safe.

An access is proved if it is aligned to its size and, in every thread of the block and every
iteration that can be reached, inside the variable that its address is computed from, or inside the
region that holds the constant part of the address. A value read from memory may be anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from ptxgen.arguments import integer
from ptxgen.check.problems import Problem
from ptxgen.check.prove.barriers.judging import BarrierProver
from ptxgen.check.prove.barriers.shared_flags import Touched
from ptxgen.check.prove.barriers.sites import WARP, kind_of
from ptxgen.check.prove.convergence.judging import ConvergenceProver
from ptxgen.check.prove.convergence.sites import WARPGROUP, is_site
from ptxgen.check.prove.listing.descriptors import Descriptors
from ptxgen.check.prove.listing.products import Products
from ptxgen.check.prove.listing.rows import Effort, SpentError
from ptxgen.check.prove.listing.search import Finding, InstrSite, Search
from ptxgen.check.prove.program.agreement import Agreement
from ptxgen.check.prove.program.inlining import Source
from ptxgen.check.prove.program.operands import WORD
from ptxgen.check.prove.program.paths import Paths
from ptxgen.check.prove.program.ranges import Range, spaced
from ptxgen.check.prove.program.shared_accesses import Home, Touch, region_home, touches
from ptxgen.check.prove.program.values import Values, param_bits
from ptxgen.check.prove.program.variable_addresses import GENERIC
from ptxgen.check.prove.proxies import unfenced_reads
from ptxgen.check.prove.subject import Judged, Subject, judged, merged
from ptxgen.check.prove.tensor_memory.allocations import Allocations
from ptxgen.check.prove.tensor_memory.judging import TensorMemoryProver, operation_of
from ptxgen.check.prove.tensor_memory.order import Order
from ptxgen.check.prove.verdicts import UNKNOWN, Proof
from ptxgen.check.verify.budget import declaration_problems, static_shared_bytes
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.ir import Instr, Kernel, Module
from ptxgen.target import EARLY_TARGETS, TARGETS
from ptxgen.tensormap import TensorMap

# Steps that a kernel and one access may spend, as `Effort` counts them.
STEPS: Final = 160_000
_STEPS_OF_ACCESS: Final = 80_000
_SPENT: Final = f"listing its address takes more than {_STEPS_OF_ACCESS} steps"
_RANK: Final = "%cluster_ctarank"

_LOWEST: Final = -(1 << 63)  # lowest value of a signed parameter
_HIGHEST: Final = (1 << 64) - 1  # highest value of an unsigned parameter
_MOST_BYTES: Final = (1 << 32) - 1  # largest number of bytes that 32-bit shared addresses can tell apart

Bound = int | tuple[int, ...] | range | TensorMap


def shared_proof(
    subject: Subject,
    dynamic_smem: int | None,
    dynamic_align: int,
    params: Mapping[str, Bound] | None,
    steps: int = STEPS,
) -> Proof:
    """The proof of a kernel's accesses to shared memory, its barriers and its convergence; the arguments are
    those of `ptxgen.check.prove.prove_shared`.
    """
    kernel, shape = subject.kernel, subject.shape
    known = kernel.dynamic_shared_bytes or None
    if dynamic_smem is not None:
        known = _count("dynamic_smem", dynamic_smem, 0)
    dynamic_align = _count("dynamic_align", dynamic_align, 1)
    dynamic = known or 0
    inputs = _parameters(kernel, {} if params is None else params)
    variables = subject.homes(known, dynamic_align)
    prover, tensor_memory = _proved(subject, variables, inputs, steps)
    accesses, barriers, unfenced = prover.found
    convergence = [*prover.convergence(), *subject.left_out(is_site)]
    accesses += subject.left_out(lambda i: _judged_of(i, bool(variables)))
    barriers += subject.left_out(lambda i: bool(kind_of(i)))
    tensor_memory += subject.left_out(lambda i: bool(operation_of(i)))
    problems = tuple(_problems(subject.module, kernel, dynamic))
    threads = (shape.x, shape.y, shape.z)
    return Proof(
        kernel.name,
        threads,
        dynamic,
        merged(accesses),
        merged(barriers),
        problems,
        unfenced,
        merged(convergence),
        merged(tensor_memory),
    )


def _proved(
    subject: Subject, variables: dict[str, Home], inputs: _Inputs, steps: int
) -> tuple[_Prover, list[Judged]]:
    """The prover of a kernel that has judged its accesses, and the verdicts on tensor memory."""
    prover = _Prover(subject, variables, inputs, steps)
    if not prover.has_tensor_memory:
        return prover, []
    refuted = ""
    allocations = prover.allocations
    if allocations.loads:
        knowing = _Prover(subject, variables, inputs, steps, allocations)
        refuted = allocations.refuted(knowing.touched, knowing.static)
        prover = prover if refuted else knowing
    return prover, list(prover.tensor_memory(allocations, refuted))


def _judged_of(instr: Instr, variables: bool) -> int:
    """The number of accesses of an instruction that may be to shared memory."""
    return sum(touch.space != GENERIC or variables for touch in touches(instr))


# ------------------------------------------------------------------------------ arguments


class _Inputs(NamedTuple):
    """The parameters with known values, the bounds of others, and the tensor maps."""

    known: dict[str, int]
    ranges: dict[str, Range]
    maps: dict[str, TensorMap]


def _count(name: str, value: object, least: int) -> int:
    count = integer(value, least, _MOST_BYTES)
    if count is None:
        raise LaunchError(
            f"prove: {name} must be an integer from {least} to {_MOST_BYTES}, got {shown(value)}"
        )
    return count


def _parameters(kernel: Kernel, params: Mapping[str, Bound]) -> _Inputs:
    names = [p.name for p in kernel.params]
    if not isinstance(params, Mapping):
        raise LaunchError(f"prove: params must be a mapping from names to bounds, got {shown(params)}")
    inputs = _Inputs({}, {}, {})
    known, ranges = inputs.known, inputs.ranges
    for name, bound in params.items():
        if name not in names:
            raise LaunchError(
                f"prove: {kernel.name} has no parameter {shown(name)}{did_you_mean(name, names)}"
            )
        number, ends = integer(bound, _LOWEST, _HIGHEST), _ends(bound)
        if isinstance(bound, TensorMap):
            inputs.maps[name] = bound
        elif number is not None:
            known[name] = number
        elif isinstance(bound, range) and len(bound) and bound.step > 0:
            ranges[name] = spaced(bound[0], bound[-1], bound.step)
        elif ends is not None:
            ranges[name] = spaced(*ends, 1)
        else:
            raise LaunchError(
                f"prove: the bounds of {name} must be a number, the lowest and the highest, "
                f"or a range with a positive step, got {shown(bound)}"
            )
    return inputs


def _ends(bound: object) -> tuple[int, int] | None:
    """The lowest and the highest number, if `bound` is a pair of numbers in this order; else None."""
    if not isinstance(bound, tuple | list) or len(bound) != len(("lowest", "highest")):
        return None
    low, high = (integer(end, _LOWEST, _HIGHEST) for end in bound)
    return None if low is None or high is None or low > high else (low, high)


def _problems(module: Module, kernel: Kernel, dynamic: int) -> Iterator[Problem]:
    limits = TARGETS.get(module.target) or EARLY_TARGETS.get(module.target)
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
    def __init__(
        self,
        subject: Subject,
        variables: dict[str, Home],
        inputs: _Inputs,
        steps: int,
        addresses: Allocations | None = None,
    ) -> None:
        kernel, shape = subject.whole.kernel, subject.shape
        self._sources = subject.whole.sources
        self._graph = subject.graph
        specials = {f"%ntid.{axis}": n for axis, n in zip("xyz", shape, strict=True)}
        params = param_bits(kernel)
        ctas = math.prod(kernel.cluster) if kernel.cluster else 0
        ranges = dict(inputs.ranges)
        if ctas:
            specials["%cluster_nctarank"] = ctas
            params[_RANK] = WORD
            ranges[_RANK] = spaced(0, ctas - 1, 1)
        loads = None
        if addresses is not None:
            params |= dict.fromkeys(addresses.ranges, WORD)
            ranges |= addresses.ranges
            loads = addresses.loads
        self._values = Values(
            self._graph, specials, frozenset(variables), inputs.known, params, subject.analysis, loads
        )
        self._paths = Paths(self._graph, self._values)
        self._effort = Effort(steps)
        regions = {}
        if kernel.dynamic_shared:
            of = variables[kernel.dynamic_shared]
            regions = {r.name: region_home(r, of) for r in kernel.regions if r.nbytes > 0}
        self._search = Search(
            self._values,
            self._paths,
            shape,
            ranges,
            variables,
            regions,
            kernel.dynamic_shared,
            inputs.maps,
            self._effort,
            ctas,
        )
        self._products = Products(self._search)
        self._descriptors = Descriptors(self._search)
        self._shape = shape
        self.static = frozenset(s.name for s in kernel.shared)

    @cached_property
    def _judged_accesses(self) -> tuple[list[Judged], list[Touched]]:
        accesses: list[Judged] = []
        touched: list[Touched] = []
        reached = set(self._graph.order)
        for block in self._graph.blocks:
            if block.index not in reached:
                continue
            for position, instr in enumerate(block.instrs):
                site = InstrSite(block.index, position, instr)
                source = self._sources[block.start + position]
                accesses += self._accesses(site, source, touched)
        return accesses, touched

    @property
    def touched(self) -> list[Touched]:
        """The accesses of the kernel to shared memory, each with its verdict."""
        return self._judged_accesses[1]

    @property
    def found(self) -> tuple[list[Judged], list[Judged], tuple[Problem, ...]]:
        """The verdicts on the accesses and on the barriers, in the order of the text, and reads without a
        proxy fence.
        """
        accesses, touched = self._judged_accesses
        barriers = BarrierProver(
            self._search, self._effort, self._shape, self._sources, _STEPS_OF_ACCESS, touched, self.static
        )
        unfenced = unfenced_reads(self._search, self._graph, self._sources, touched, self.static)
        return accesses, barriers.run(), unfenced

    # ------------------------------------------------------------------------------ tensor memory

    @property
    def has_tensor_memory(self) -> bool:
        """Whether any instruction of the kernel allocates, frees or uses tensor memory."""
        return any(operation_of(i) for b in self._graph.order for i in self._graph.blocks[b].instrs)

    @cached_property
    def _order(self) -> Order:
        return Order(self._search, self._graph, self._shape)

    @property
    def allocations(self) -> Allocations:
        """The allocations of tensor memory that the kernel makes (`tcgen05.alloc`)."""
        return Allocations(self._search, self._graph, self._order, self._products)

    def tensor_memory(self, allocations: Allocations, refuted: str) -> Iterator[Judged]:
        """The verdicts on the instructions that use tensor memory, in the order of the text."""
        yield from TensorMemoryProver(
            self._search,
            self._graph,
            self._order,
            allocations,
            self._products,
            refuted,
            self._effort,
            self._sources,
            self._search.ctas,
            _STEPS_OF_ACCESS,
        ).run()

    def convergence(self) -> Iterator[Judged]:
        """The verdicts on the instructions that lanes execute together, in the order of the text."""
        warps = self._search.agreement
        groups = Agreement(self._values, self._paths, self._shape, WARPGROUP, warps)
        agreements = {WARP: warps, WARPGROUP: groups}
        yield from ConvergenceProver(self._graph, self._values, self._shape, self._sources, agreements).run()

    def _accesses(self, site: InstrSite, source: Source, touched: list[Touched]) -> Iterator[Judged]:
        """The verdicts on the accesses of an instruction; the accesses are added to `touched`."""
        for which, named in enumerate(touches(site.instr)):
            self._effort.allow(_STEPS_OF_ACCESS)
            touch = named
            try:
                touch = self._products.shaped(site, named)
                finding = self._finding(site, touch)
            except SpentError:
                finding = Finding(UNKNOWN, _SPENT)
            if finding is not None:
                touched.append(Touched(site, touch, finding))
                yield judged(source, which, finding)

    def _finding(self, site: InstrSite, touch: Touch) -> Finding | None:
        """The verdict on an access; None if the access is not to shared memory."""
        if touch.address.base is None and touch.reason:  # anything may be accessed
            return Finding(UNKNOWN, touch.reason)
        if touch.matrix is None:
            return self._search.judge(site, touch)
        return self._descriptors.judge(site, touch, touch.matrix)
