"""Proof, before a launch, that a kernel accesses global memory only inside its arrays, for any
sizes and strides that its contract allows.

An address is split into the pointer of an array, an index times a stride for each axis, and a
remainder. Each index has to be shown to lie in its extent, by the conditions that dominate the
access: guards, clamps, the grid, the bounds of loops. Then the access is to an element, whatever
the strides are. Addresses are 64 bits wide and wrap around as in the launch. A product that the
kernel computes in 32 bits counts only if it is shown to fit.

An access that is not proved is tried in some launches; a launch in which it goes wrong makes it a
violation. Both searches stop after a fixed number of steps for all accesses together; the verdict's
reason then says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.contract import GlobalArray, GlobalContract, Promised
from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.listing.search import Finding, InstrSite
from ptxgen.check.prove.polynomials import Atoms, Poly, TooLargeError
from ptxgen.check.prove.program.domain import Domain
from ptxgen.check.prove.program.global_accesses import GlobalTouch, global_touches
from ptxgen.check.prove.program.paths import Formula, Literal, Paths
from ptxgen.check.prove.program.values import Node, Values, param_bits
from ptxgen.check.prove.program.variable_addresses import GENERIC, AddressDependence
from ptxgen.check.prove.subject import Judged, Subject, judged, merged
from ptxgen.check.prove.symbolic.examples import Examples
from ptxgen.check.prove.symbolic.goals import Facts
from ptxgen.check.prove.symbolic.values import Symbolic
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Witness
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.ir import Instr, Kernel, TensorAddress
from ptxgen.tensormap import NBYTES

Lanes = np.ndarray[Any, np.dtype[Any]]

_BULK_ALIGN: Final = 16  # PTX ISA, section "cp.async.bulk"
_NO_BOUND: Final = (1 << 31) - 1  # the highest value of a size without bounds of its own


def global_proof(subject: Subject, contract: GlobalContract) -> GlobalProof:
    """The proof of a kernel's accesses to global memory, for every launch that the contract allows.
    Raises `LaunchError` for a contract that does not fit the kernel.
    """
    kernel, shape = subject.kernel, subject.shape
    _check(kernel, contract)
    verdicts = [*_Prover(subject, contract).run(), *subject.left_out(_count)]
    return GlobalProof(kernel.name, (shape.x, shape.y, shape.z), merged(verdicts))


def _count(instr: Instr) -> int:
    """How many accesses to global memory an instruction makes."""
    return sum(1 for _ in global_touches(instr))


def _check(kernel: Kernel, contract: GlobalContract) -> None:
    if not isinstance(contract, GlobalContract):
        raise LaunchError(f"prove: contract must be a GlobalContract, got {shown(contract)}")
    names = [p.name for p in kernel.params]
    equal = [name for name in contract.equal if name not in contract.bounds]
    for name in (*[a.pointer for a in contract.arrays], *contract.strides, *equal):
        if name not in names:
            raise LaunchError(f"prove: {kernel.name} has no parameter {name!r}{did_you_mean(name, names)}")


class _Prover:
    def __init__(self, subject: Subject, contract: GlobalContract) -> None:
        kernel, shape = subject.whole.kernel, subject.shape
        self._subject = subject
        self._shape = shape
        self._contract = contract
        self._graph = subject.graph
        specials = {f"%ntid.{axis}": n for axis, n in zip("xyz", shape, strict=True)}
        self._homes = subject.homes(kernel.dynamic_shared_bytes)
        shared = frozenset(self._homes)
        params = param_bits(kernel)
        self._maps = {p.name for p in kernel.params if p.count == NBYTES and p.type == "b8"}
        self._values = Values(self._graph, specials, shared, {}, params, subject.analysis)
        self._paths = Paths(self._graph, self._values)
        self._dependence = AddressDependence(self._values, Domain(shape, {}).range)
        self._atoms = Atoms()
        self._promised = Promised(contract, self._atoms)
        self._symbolic = Symbolic(self._graph, self._values, self._paths, shape, self._atoms, self._promised)
        self._examples: Examples | None = None
        self._reached: dict[int, Facts] = {}
        self._held: dict[tuple[Any, ...], bool] = {}

    def run(self) -> Iterator[Judged]:
        """Judge each access to global memory: the verdicts in the order of the PTX text."""
        for block in self._graph.blocks:
            if block.index not in self._graph.rank:
                continue
            for position, instr in enumerate(block.instrs):
                site = InstrSite(block.index, position, instr)
                source = self._subject.whole.sources[block.start + position]
                for which, touch in enumerate(global_touches(instr)):
                    finding = self._judged(site, touch)
                    if finding is not None:
                        yield judged(source, which, finding)

    def _judged(self, site: InstrSite, touch: GlobalTouch) -> Finding | None:
        """The verdict on an access to global memory; None if the access is to another space."""
        if touch.address.base is None and touch.reason:
            return Finding(UNKNOWN, touch.reason)
        if touch.box is not None:
            return self._boxed(site, touch.box)
        base, offset = self._values.address(touch.address, site.block, site.position)
        if touch.generic and self._dependence.of(base).space == GENERIC:
            return None  # an access to shared memory
        try:
            finding = self._proved(site, touch, base, offset)
        except TooLargeError:
            finding = Finding(UNKNOWN, "its address is made of too many products")
        if finding.verdict == PROVED or touch.reason:
            return finding
        finding = finding._replace(reason=finding.reason + self._symbolic.goals.ran_out)
        if self._examples is None:
            self._examples = Examples(
                self._subject.kernel, self._homes, self._values, self._shape, self._contract
            )
        example = self._examples.find(site, touch)
        if example is None:
            return finding
        if isinstance(example, int):
            ended = f"; the search for a launch that goes wrong ended after {example} steps"
            return finding._replace(reason=finding.reason + ended)
        witness = Witness(example.thread, example.values, example.offset)
        return Finding(VIOLATION, f"{example.reason}: {witness}", example.array, witness=witness)

    # ------------------------------------------------------------------------------ one access

    def _boxed(self, site: InstrSite, box: TensorAddress) -> Finding:
        """The verdict on a tensor copy. It reads zeros outside of the array of its tensor map, and
        writes nothing there (PTX ISA, "Tensors").
        """
        name = self._values.parameter(box.base, site.block, site.position)
        array = next((a for a in self._contract.arrays if a.pointer == name), None)
        if array is None or name not in self._maps or box.offset:
            return Finding(UNKNOWN, "its tensor map is not a parameter with an array in the contract")
        rank, dims = len(array.axes) + 1, len(box.coordinates)
        if rank != dims:
            reason = f"the copy has {dims} dimensions, but the array {name} has {rank}"
            return Finding(UNKNOWN, reason, name)
        return Finding(PROVED, "its tensor map keeps it inside the array", name)

    def _proved(self, site: InstrSite, touch: GlobalTouch, base: Node, offset: int) -> Finding:
        address = self._symbolic.poly(base) + offset
        array = next((a for a in self._contract.arrays if self._is_of(address, a)), None)
        if array is None:
            reason = "its address is not the sum of a pointer parameter and offsets"
            return Finding(UNKNOWN, f"{reason}{self._unbounded()}")
        if touch.reason:
            return Finding(UNKNOWN, touch.reason, array.pointer)
        reached = self._facts(site)
        finding = Finding(PROVED, "no thread gets there", array.pointer)
        for nbytes, size_facts in self._sizes(site, touch):
            facts, lanes = self._split((*reached, *size_facts))
            size = nbytes.constant
            if isinstance(size, np.ndarray):
                lanes = lanes & (size > 0)
            if not lanes.any() or (isinstance(size, int) and size <= 0):
                continue
            finding = self._inside(address, array, nbytes, touch.nbytes or _BULK_ALIGN, facts, lanes)
            if finding.verdict != PROVED:
                wraps = any(a.number in self._symbolic.wrapping for a in self._atoms.within(address))
                return finding._replace(reason=finding.reason + self._unbounded()) if wraps else finding
        return finding

    def _unbounded(self) -> str:
        """Advice on sums and products that may wrap because sizes have no bounds of their own."""
        names = [name for name, (_, high) in self._contract.bounds.items() if high >= _NO_BOUND]
        if not names:
            return ""
        examples = ", ".join(f"{name!r}: (1, 65535)" for name in names)
        return (
            f"; if a sum or a product of 32 bits on the way to it may wrap, bounds of {' and '.join(names)} "
            f"may exclude that, such as bounds={{{examples}}}"
        )

    def _is_of(self, address: Poly, array: GlobalArray) -> bool:
        (pointer,) = self._promised.known[array.pointer].terms
        one = address.terms.get(pointer)
        return isinstance(one, int) and one == 1

    def _facts(self, site: InstrSite) -> Facts:
        guard = site.instr.guard
        if guard is None:
            facts = self._reached.get(site.block)
            if facts is None:
                facts = self._symbolic.facts(self._paths.reach(site.block))
                self._reached[site.block] = facts
            return facts
        node = self._values.at(guard.register, site.block, site.position)
        guard_facts = self._symbolic.facts(Formula((Literal(node, guard.negated),)))
        return (*self._symbolic.facts(self._paths.reach(site.block)), *guard_facts)

    def _sizes(self, site: InstrSite, touch: GlobalTouch) -> Iterator[tuple[Poly, Facts]]:
        """The numbers of bytes that one access may have, each with the facts that hold for it."""
        most = Poly.of(touch.nbytes)
        if touch.size is None or touch.counted is None:
            yield most, ()
            return
        node = self._values.operand(touch.size, touch.counted, site.block, site.position)
        size = self._symbolic.exact(node, touch.counted.bits, False)
        if size is None and touch.nbytes:
            yield most, ()  # the access never reads more than `nbytes`
            return
        if size is None:
            size = Poly.of(1 << 32)
        atoms = size.atoms()
        either = self._atoms[min(atoms)] if len(atoms) == 1 else None
        cases = either.cases if either is not None and either.poly.key == size.key else ()
        if cases:
            yield from cases
        else:
            yield size, ()

    def _split(self, facts: Facts) -> tuple[Facts, Lanes]:
        """The facts that are not a constant of each thread, and a mask of the threads in which all facts may
        hold.
        """
        lanes = np.ones(self._shape.threads, np.bool_)
        varying: list[Poly] = []
        for fact in facts:
            constant = fact.terms.get((), 0)
            others = Poly({m: c for m, c in fact.terms.items() if m})
            if others.terms:
                varying.append(fact)
            lanes &= np.asarray(constant) >= -self._atoms.bounds(others)[1]
        return tuple(varying), lanes

    def _inside(
        self, address: Poly, array: GlobalArray, nbytes: Poly, need: int, facts: Facts, lanes: Lanes
    ) -> Finding:
        """The verdict on `nbytes` bytes at an address that must be a multiple of `need` bytes:
        proved if they lie in one element.
        """
        finding = Finding(UNKNOWN, "its address is not made of whole multiples of strides")
        tried: list[Poly] = []
        for proper in (True, False):
            parts = self._parts(address - self._promised.known[array.pointer], array, proper)
            if parts is None or [p.key for p in parts] == [p.key for p in tried]:
                continue
            *indices, rest = tried = parts
            reason = self._why_not(array, indices, rest, nbytes, facts, lanes)
            if not reason:
                return self._aligned(array, rest, need, lanes)
            finding = Finding(UNKNOWN, reason)
        return finding._replace(allocation=array.pointer)

    def _parts(self, offset: Poly, array: GlobalArray, proper: bool) -> list[Poly] | None:
        """An offset into an array as the index along each axis, and the bytes that are left; None if a stride
        is a sum of several products.
        """
        indices = []
        for axis in array.axes:
            stride = self._promised.size(axis.stride).terms
            if len(stride) != 1:
                return None
            ((monomial, factor),) = stride.items()
            if not monomial:
                whole = Poly(
                    {m: c // factor for m, c in offset.terms.items() if not m or not np.any(c % factor)}
                )
                indices.append(whole)
                offset = offset - whole * factor
                continue
            # A size may be a stride and also occur in an index, for example the index of the last
            # row.
            shared = proper and all(self._atoms[a].kind == "size" for a in monomial)
            split = offset.quotient(monomial, factor, proper=shared)
            if split is None:
                return None
            index, offset = split
            indices.append(index)
        return [*indices, offset]

    def _why_not(
        self, array: GlobalArray, indices: list[Poly], rest: Poly, nbytes: Poly, facts: Facts, lanes: Lanes
    ) -> str:
        holds = self._holds
        for axis, index in zip(array.axes, indices, strict=True):
            what = f"its index along the axis of stride {axis.stride}"
            if not holds(index, facts, lanes):
                return f"{what} is not shown to be 0 or more"
            if not holds(self._promised.size(axis.extent) - 1 - index, facts, lanes):
                return f"{what} is not shown to be less than {axis.extent}"
        if not holds(rest, facts, lanes):
            return "its offset in a row is not shown to be 0 or more"
        if not holds(self._promised.size(array.nbytes) - nbytes - rest, facts, lanes):
            return f"its bytes are not shown to be among the {array.nbytes} of a row"
        return ""

    def _holds(self, goal: Poly, facts: Facts, lanes: Lanes) -> bool:
        """Whether `goal` is shown to be at least 0. Results are cached, since most accesses share
        goals.
        """
        holds = self._symbolic.goals.holds
        alike = isinstance(goal.terms.get((), 0), int)  # in all threads
        everywhere = (goal.key,)
        if alike:
            if everywhere not in self._held:
                self._held[everywhere] = holds(goal, is_brief=True)
            if self._held[everywhere]:
                return True
        here = (goal.key, *[f.key for f in facts], lanes.tobytes())
        if here not in self._held:
            self._held[here] = holds(goal, facts, lanes)
        if not self._held[here] and alike:  # facts make a search long, so that it may end too soon
            at_length = (goal.key, None)
            if at_length not in self._held:
                self._held[at_length] = holds(goal)
            return self._held[at_length]
        return self._held[here]

    def _aligned(self, array: GlobalArray, rest: Poly, need: int, lanes: Lanes) -> Finding:
        low, high = self._atoms.bounds(rest)
        start = rest.terms.get((), 0)
        if not isinstance(start, int):
            low, high = (int(n) for n in (start[lanes].min(), start[lanes].max()))
            start = start[lanes]
        off = any(m and np.any(c % need) for m, c in rest.terms.items())
        if array.align % need or off or np.any(np.asarray(start) % need):
            reason = f"its address is not shown to be a multiple of {need} bytes"
            if array.align % need:
                reason += f"; {array.pointer} and its rows are promised at multiples of {array.align}"
            return Finding(UNKNOWN, reason, array.pointer)
        return Finding(PROVED, "", array.pointer, low, high + need - 1)
