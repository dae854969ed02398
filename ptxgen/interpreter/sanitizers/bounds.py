"""Accesses that leave the allocation that they are meant for: one shared variable or region.

Variables lie side by side, as on a device, so an address alone does not tell its variable. An
access is meant for the allocation that its address is computed from in the kernel's text
(`ptxgen.check.prove.program.provenance`); if the text does not tell, for the allocation that the
access begins in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptxgen.check.prove.program.provenance import derived
from ptxgen.ir import Instr

if TYPE_CHECKING:
    from ptxgen.check.prove.program.provenance import Allowed
    from ptxgen.interpreter.program.linking import Linked
    from ptxgen.interpreter.sanitizers.conflicts import Access
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.ir import Module

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Allocation(NamedTuple):
    """An allocation in the shared memory of a CTA: bytes `start` to `end` - 1."""

    name: str
    start: int
    end: int


# By the number of an instruction and the name of an operand: the allocations that the address may
# lie in.
AllowedAllocations = Mapping[int, Mapping[str, tuple[Allocation, ...]]]


def allowed_allocations(module: Module, linked: Linked, dynamic: int) -> AllowedAllocations:
    """The allocations that each address of a program may lie in; `dynamic` is the size of dynamic
    shared memory in bytes.
    """
    first, numbers = 0, {}
    for routine in linked.routines:
        numbers[routine.name] = first
        first += sum(isinstance(s, Instr) for s in routine.source.body or ())
    symbols = _shared_addresses(linked)
    of_instructions: dict[int, dict[str, tuple[Allocation, ...]]] = {}
    for (owner, number, operand), allowed in derived(module, linked.kernel, dynamic).items():
        if all(one.variable in symbols for one in allowed):
            there = of_instructions.setdefault(numbers[owner] + number, {})
            there[operand] = tuple(_allocation(one, symbols) for one in allowed)
    return of_instructions


def _shared_addresses(linked: Linked) -> dict[str, int]:
    """The addresses of shared variables, without those of functions that share a name."""
    addresses_of: dict[str, set[int]] = {}
    for routine in linked.routines:
        for name, location in routine.symbols.items():
            if not location.framed:
                addresses_of.setdefault(name, set()).add(location.value)
    for name, location in linked.routines[-1].symbols.items():
        if not location.framed:
            addresses_of[name] = {location.value}
    return {name: addresses.pop() for name, addresses in addresses_of.items() if len(addresses) == 1}


def _allocation(allowed: Allowed, symbols: Mapping[str, int]) -> Allocation:
    home = allowed.home
    start = symbols[allowed.variable] + home.start
    return Allocation(home.name, start, start + home.nbytes)


class BoundsChecks:
    """Checks the accesses of a batch to shared memory, if there are `allocations` to compare with.
    `stride` is the distance in bytes between the shared memories of two CTAs.
    """

    def __init__(self, allocations: AllowedAllocations | None, faults: Findings, stride: int) -> None:
        self._wanted = allocations is not None
        self._allocations = allocations or {}
        self._faults = faults
        self._stride = stride
        self._regions = tuple(Allocation(name, at, at + size) for name, at, size in faults.regions)

    def check(self, at: int, low: int, high: int, access: Access, grain: int, operand: str = "") -> None:
        """Check accesses of lanes to their CTAs' shared memory, all in bytes `low` to `high` - 1;
        `access` is in units of `grain` bytes. `operand` has the address, if the instruction has
        several.
        """
        if not self._wanted:
            return
        known = self._allocations.get(at, {})
        meant: tuple[Allocation, ...] = ()
        if operand or len(known) == 1:
            meant = known.get(operand or next(iter(known)), ())
        if any(allocation.start <= low and high <= allocation.end for allocation in meant or self._regions):
            return
        first = access.first * grain % self._stride
        last = first + access.width * grain - 1
        outside = np.ones(len(first), np.bool_)
        for allocation in meant:
            outside &= (first < allocation.start) | (last >= allocation.end)
        for allocation in meant or self._regions:
            across = (
                outside & (allocation.start <= first) & (first < allocation.end) & (last >= allocation.end)
            )
            if across.any() and self._across(at, access, first, last, across, allocation.name):
                return
        if meant and outside.any():
            n = int(outside.argmax())
            addresses = " or ".join(f"{s.name}, at {s.start:#x} to {s.end - 1:#x}" for s in meant)
            why = f"its address is computed from {addresses}"
            self._faults.sync(at, int(access.ids[n]), "bounds", why, -1, int(first[n]))

    def _across(self, at: int, access: Access, first: Lanes, last: Lanes, across: Lanes, name: str) -> bool:
        """Report the first of the lanes that begin in an allocation and end outside of it, if they end in
        another allocation; true if they do.
        """
        n = int(across.argmax())
        other = self._faults.region(int(last[n]))
        if other and other != name:
            why = f"begins in {name} and ends in {other}"
            self._faults.sync(at, int(access.ids[n]), "bounds", why, -1, int(first[n]))
        return bool(other)
