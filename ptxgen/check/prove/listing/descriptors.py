"""Verdicts on the matrices in shared memory that `wgmma.mma_async`, `tcgen05.mma` and `tcgen05.cp` read
through descriptors.

A descriptor holds an address among other bit fields, so the rules for sums of addresses do not
apply to it. The descriptor is computed, by the semantics of the instructions that make it, for
every address that its variable can have within the 256 KiB that descriptors reach. Each combination
of the values that do not depend on that address is taken once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.listing.rows import MOST_ROWS, NotListedError, Table
from ptxgen.check.prove.listing.search import Finding, InstrSite, Search
from ptxgen.check.prove.listing.tables import Lister
from ptxgen.check.prove.program.domain import register_dtype
from ptxgen.check.prove.program.matrices import (
    ADDRESS_BITS,
    UNIT,
    Fields,
    Matrix,
    fields_of,
    start_of,
    units_of,
)
from ptxgen.check.prove.program.shared_accesses import Home, Provenance, Touch, home_of
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.prove.program.variable_addresses import ANYHOW
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION
from ptxgen.types import u64

Lanes = np.ndarray[Any, np.dtype[Any]]

_WINDOW: Final = 1 << ADDRESS_BITS
_LINE: Final = 1024  # bytes after which the widest swizzle pattern repeats
_FIELD: Final = (1 << 14) - 1  # the bits of a descriptor's start address, in units of 16 bytes
_UNIT_BITS: Final = 4
_RANK: Final = 1 << 24  # the lowest bit of the rank of a CTA in an address
_DEPENDS: Final = "the matrix that its descriptor names depends on the variable's address"


class Case(NamedTuple):
    """A matrix as one descriptor gives it: `start` in its variable in bytes, the descriptor's other
    `fields`, and `phase`, the variable's address modulo the period of the widest swizzle, in bytes.
    """

    start: int
    fields: Fields
    phase: int

    @property
    def swizzle_row(self) -> int:
        """The row of the swizzle's pattern that the matrix starts with."""
        return int(self.fields.phase(self.start + self.phase))


class Group(NamedTuple):
    """One row of the table with its matrices, one for each address of the variable modulo the
    swizzle that gives another matrix.
    """

    row: int
    cases: tuple[Case, ...]


class Judged(NamedTuple):
    """The verdict on a group: `reason` is empty if nothing is wrong; `everywhere` says whether it
    is wrong for every address of the variable. `first` and `last` are the bytes accessed in `home`.
    """

    reason: str
    everywhere: bool
    first: int
    last: int
    home: Home


class Descriptors:
    """Judges the matrix descriptors, through which instructions read shared memory, of one kernel."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def judge(self, site: InstrSite, touch: Touch, matrix: Matrix) -> Finding:
        """The verdict on a matrix in shared memory that an instruction reads through a descriptor."""
        search = self._search
        if not matrix.rows:
            return _unknown(matrix, "the shape of its product is not known")
        descriptor = search.values.operand(touch.descriptor, u64, site.block, site.position)
        symbols = search.provenance.symbols(descriptor)
        if not symbols or not symbols <= set(search.homes):
            return _unknown(matrix, "its descriptor is not computed from a shared variable")
        if len(symbols) > 1:
            return _unknown(matrix, "its descriptor may be of one variable or another")
        variable = search.homes[min(symbols)]
        finding = Finding(UNKNOWN)
        for thorough in (False, True):
            try:
                finding = self._tried(site, descriptor, matrix, variable, thorough)
            except NotListedError as error:
                reason = f"its descriptor cannot be listed: {error}"
                finding = _unknown(matrix, reason, variable.name)
            if finding.verdict == PROVED:
                break
        return finding

    def _tried(
        self, site: InstrSite, descriptor: Node, matrix: Matrix, variable: Home, thorough: bool
    ) -> Finding:
        search = self._search
        lister, table = search.table([descriptor], search.condition(site), thorough, search.bases(0))
        if not table.n:
            return Finding(PROVED, "no thread gets there", variable.name)
        groups = self._groups(lister, table, descriptor, variable, matrix)
        if groups is None:
            return _unknown(matrix, _DEPENDS, variable.name)
        unknown = next((c.fields.unknown for g in groups for c in g.cases if c.fields.unknown), "")
        if unknown:
            return _unknown(matrix, unknown, variable.name)
        home, constant = self._home(descriptor, variable)
        judged = [self._judged(group, matrix, home, constant, variable) for group in groups]
        wrong = [n for n, j in enumerate(judged) if j.reason]
        swizzle = self._swizzle_finding(groups, variable)
        if wrong:
            sure = [n for n in wrong if table.sure[groups[n].row] and judged[n].everywhere]
            if not sure and swizzle.verdict != PROVED:
                return swizzle
            at = (sure or wrong)[0]
            return self._wrong(lister, table, groups[at].row, judged[at], matrix, bool(sure))
        low, high = min(j.first for j in judged), max(j.last for j in judged)
        return swizzle._replace(allocation=judged[0].home.name, first=low, last=high)

    def _wrong(
        self, lister: Lister, table: Table, row: int, judged: Judged, matrix: Matrix, sure: bool
    ) -> Finding:
        witness = self._search.witness(lister, table, row, judged.first)
        reason = f"{matrix.name}: {judged.reason}: {witness}"
        if not sure:
            reason = f"{matrix.name}: perhaps {judged.reason}, but that may not happen ({witness})"
        verdict = VIOLATION if sure else UNKNOWN
        return Finding(verdict, reason, judged.home.name, judged.first, judged.last, witness)

    def _swizzle_finding(self, groups: list[Group], variable: Home) -> Finding:
        """Proved, unless the matrix starts in another row of the swizzle for another address of its
        variable.
        """
        for group in groups:
            if len({case.swizzle_row for case in group.cases}) > 1:
                needed = max(case.fields.pattern for case in group.cases)
                reason = (
                    f"{variable.name} is aligned to {variable.align} bytes only, and the swizzle "
                    f"needs {needed}"
                )
                return Finding(UNKNOWN, reason, variable.name)
        return Finding(PROVED)

    # ------------------------------------------------------------------------ allocations

    def _home(self, descriptor: Node, variable: Home) -> tuple[Home | None, int | None]:
        """The allocation that the constant part of the start address lies in, and that constant."""
        regions = self._search.regions
        if variable.name != self._search.dynamic or not regions:
            return variable, 0
        constant = _Constant(self._search.values, self._search.provenance).of(descriptor, in_units=True)
        if constant is None:
            return None, None
        return home_of(constant, variable, regions), constant

    def _judged(
        self, group: Group, matrix: Matrix, home: Home | None, constant: int | None, variable: Home
    ) -> Judged:
        judged = []
        for case in group.cases:
            units = units_of(case.start + case.phase, case.fields, matrix) - case.phase
            low, high = int(units.min()), int(units.max()) + UNIT - 1
            one = self._in_home(low, high, home, constant, variable)
            judged.append(one._replace(reason=case.fields.wrong or one.reason))
        wrong = [j for j in judged if j.reason]
        worst = (wrong or judged)[0]
        return worst._replace(everywhere=len(wrong) == len(judged))

    def _in_home(
        self, low: int, high: int, home: Home | None, constant: int | None, variable: Home
    ) -> Judged:
        """An error if bytes `low` to `high` of a variable lie outside the allocation that they
        should be in.
        """
        reason = ""
        if home is None and constant is not None:
            reason = f"byte {constant} of {variable.name} is in none of its regions"
        elif home is None:
            inside = (h for h in self._search.regions.values() if _holds(h, low, high))
            home = next(inside, None)
            if home is None:
                reason = f"bytes {low} to {high} of {variable.name} are not inside one region"
        elif not _holds(home, low, high):
            reason = (
                f"bytes {low - home.start} to {high - home.start} are outside {home.name}, which "
                f"has {home.nbytes} bytes"
            )
        of = home or variable
        return Judged(reason, False, low - of.start, high - of.start, of)

    # ------------------------------------------------------------------------------ listing

    def _groups(
        self, lister: Lister, table: Table, descriptor: Node, variable: Home, matrix: Matrix
    ) -> list[Group] | None:
        """The matrices that a descriptor gives; None if they depend on the variable's address."""
        fixed, moving, symbols = self._parts(descriptor)
        base = self._search.bases(0)[variable.name]
        columns = {node.id: lister.evaluate(table, node).astype(np.uint64) for node in fixed}
        for node in moving:
            columns[node.id] = lister.evaluate(table, node).astype(np.uint64) - np.uint64(base)
        rows = _different(columns, table)
        addresses = np.arange(0, _WINDOW - variable.nbytes + 1, variable.align)
        if self._search.ctas > 1:  # an address has the rank of its CTA, too
            addresses = np.concatenate([addresses, addresses + _RANK])
        if len(rows) * len(addresses) > MOST_ROWS:
            raise NotListedError(f"more than {MOST_ROWS} combinations")
        everywhere = np.tile(addresses, len(rows)).astype(np.uint64)
        tiled = Table(len(everywhere), {}, np.ones(len(everywhere), np.bool_), {})
        for node in (*fixed, *moving):
            column = np.repeat(columns[node.id][rows], len(addresses))
            column = column + everywhere if node in moving else column
            tiled.columns[node.id] = column.astype(register_dtype(node.bits))
        for node in symbols:
            tiled.columns[node.id] = everywhere.astype(register_dtype(node.bits))
        descriptors = lister.evaluate(tiled, descriptor).reshape(len(rows), len(addresses))
        return _grouped(descriptors, addresses, rows, variable, matrix)

    def _parts(self, descriptor: Node) -> tuple[list[Node], list[Node], list[Node]]:
        """The values that a descriptor is computed from: those that do not depend on the variable's
        address, those that move with it and are carried round loops, and the address itself. Raises
        `NotListedError`.
        """
        fixed, moving, symbols = [], [], []
        provenance = self._search.provenance
        seen, stack = {descriptor.id}, [descriptor]
        while stack:
            node = stack.pop()
            if node.kind == "symbol":
                symbols.append(node)
            elif not provenance.symbols(node):
                fixed += [node] * (node.kind != "const")
            elif node.kind in ("join", "header"):
                if self._search.dependence.of(node).period > 1 or self._search.dependence.of(node) == ANYHOW:
                    raise NotListedError("it is carried from one iteration of a loop to the next", node)
                moving.append(node)
            elif node.kind in ("shuffle", "mapped"):
                raise NotListedError("it comes from another lane or CTA", node)
            else:
                new = [a for a in node.args if a.id not in seen]
                seen |= {a.id for a in new}
                stack += new
        return fixed, moving, symbols


def _unknown(matrix: Matrix, reason: str, allocation: str = "") -> Finding:
    return Finding(UNKNOWN, f"{matrix.name}: {reason}", allocation)


def _holds(home: Home, low: int, high: int) -> bool:
    return home.start <= low and high < home.start + home.nbytes


def _different(columns: dict[int, Lanes], table: Table) -> Lanes:
    """One row for each combination of values in `columns`, if possible one that certainly happens."""
    order = np.argsort(~table.sure, kind="stable")
    if not columns:
        return order[:1]
    values = np.stack(list(columns.values()), axis=1)[order]
    _, first = np.unique(values, axis=0, return_index=True)
    rows: Lanes = order[np.sort(first)]
    return rows


def _grouped(
    descriptors: Lanes, bases: Lanes, rows: Lanes, variable: Home, matrix: Matrix
) -> list[Group] | None:
    """The matrices of `descriptors`, which has a row for each row of the table and a column for each of
    the variable's addresses in `bases`; None if a matrix depends on the address.
    """
    # A matrix that starts up to this many bytes before the variable counts as before it.
    before = _WINDOW - variable.nbytes >> 1
    start = (start_of(descriptors) - bases + before) % _WINDOW - before
    rest = descriptors & np.uint64(((1 << 64) - 1) ^ 0xFFFF)
    count = min(max(_LINE // variable.align, 1), len(bases))
    again = np.arange(len(bases)) % count
    if (start != start[:, again]).any() or (rest != rest[:, again]).any():
        return None
    groups = []
    for n, row in enumerate(rows.tolist()):
        cases = {
            _case(int(start[n, c]), int(rest[n, c]), int(bases[c]) % _LINE, matrix): None
            for c in range(count)
        }
        groups.append(Group(row, tuple(cases)))
    return groups


def _case(start: int, rest: int, phase: int, matrix: Matrix) -> Case:
    fields = fields_of(rest, matrix)
    return Case(start, fields, phase if fields.width > 1 else 0)


class _Constant:
    """The constant in bytes that is added to a variable's address in a descriptor: it selects which
    region of the variable is meant. None if it depends on the path taken, or is not known.
    """

    def __init__(self, values: Values, provenance: Provenance) -> None:
        self._values = values
        self._provenance = provenance

    def of(self, node: Node, *, in_units: bool, seen: tuple[int, ...] = ()) -> int | None:
        """The constant part of `node`, an address in bytes or, with `in_units`, in units of 16
        bytes.
        """
        if node.kind == "const":
            return _units(node.data) if in_units else _signed(node.data, node.bits)
        if node.id in seen or node.kind == "choose":
            return None
        inner = (*seen, node.id)
        if node.kind == "offset":
            below = self.of(node.args[0], in_units=in_units, seen=inner)
            return None if below is None else below + node.data * (UNIT if in_units else 1)
        if node.kind in ("window", "unwindowed"):
            return self.of(node.args[0], in_units=in_units, seen=inner)
        if node.kind in ("join", "header"):
            latches = self._values.graph.latches.get(node.block, ())
            came = [v for b, v in self._values.meeting(node) if b not in latches]
            constants = {self.of(value, in_units=in_units, seen=inner) for value in came}
            return constants.pop() if len(constants) == 1 else None
        return self._applied(node, in_units, inner) if node.kind == "apply" else 0

    def _applied(self, node: Node, in_units: bool, seen: tuple[int, ...]) -> int | None:
        head = node.data.op.opcode.partition(".")[0]
        if head in ("shr", "bfe") and in_units:
            by = node.args[1]
            if by.kind != "const" or by.data != _UNIT_BITS:
                return None
            return self.of(node.args[0], in_units=False, seen=seen)
        if head in ("mov", "cvt"):  # the low half of a pair
            return self._sum(node.args[:1], in_units, seen)
        if head in ("add", "or"):
            return self._sum(node.args, in_units, seen)
        if head == "mad":
            return self._sum(node.args[2:], in_units, seen)
        if head == "and":  # a mask keeps the constant of the other operand
            varying = [a for a in node.args if a.kind != "const"]
            return self._sum(varying, in_units, seen)
        if head == "sub" and node.args[1].kind == "const":
            left, right = (self.of(a, in_units=in_units, seen=seen) for a in node.args)
            return None if left is None or right is None else left - right
        return None if any(map(self._provenance.symbols, node.args)) else 0

    def _sum(self, args: Sequence[Node], in_units: bool, seen: tuple[int, ...]) -> int | None:
        total = 0
        for arg in args:
            part = self.of(arg, in_units=in_units, seen=seen)
            if part is None:
                return None
            total += part
        return total


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _units(value: int) -> int:
    """The bytes by which a number added to a descriptor moves its start."""
    return _signed(value & _FIELD, 14) * UNIT
