"""Whether a module is right: everything wrong with it, at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ptxgen.check.alignment import Definition, misalignment, residues, variable_aligns
from ptxgen.check.budget import declaration_problems
from ptxgen.check.definitions import Uses, undefined
from ptxgen.check.flow import Block, blocks, reverse_post_order
from ptxgen.check.names import name_problems
from ptxgen.check.problems import Problem, problem_in
from ptxgen.check.shapes import ADDRESS_CLASSES, Shape, kinds, registers_of, shape_of
from ptxgen.errors import UnsupportedTargetError, VerifyError, did_you_mean
from ptxgen.ir import (
    Address,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Operand,
    Reg,
    Symbol,
)
from ptxgen.isa.spec import Effect, Gate
from ptxgen.parse import range_of
from ptxgen.target import Target
from ptxgen.target import target as target_named
from ptxgen.types import TYPES

# PTX ISA, "Release Notes": how many versions 6.x, 7.x and 8.x there are; of later ones, who knows.
_MINORS: Final = {6: 6, 7: 9, 8: 9}
_ANY_MINOR: Final = 10
_SHOWN: Final = 20  # problems that an error lists
_COPY_OPERANDS: Final = 3  # of cp.async without src_size
_NAMED: Final = 10_000  # registers of a range that are looked up by name; more take longer


def verify(module: Module) -> tuple[Problem, ...]:
    """Everything that is wrong with a module, in the order of its text; empty if nothing is.

    Checked are: names, opcodes, operands and their types, ranges of literals, declarations of
    registers and symbols, labels, definition before use on every path, what each instruction needs
    of the target and the PTX version, barriers, alignment where it is certainly wrong, regions of
    shared memory and its budget, block sizes, and that control does not run off a kernel's end.
    """
    found: list[Problem] = []
    limits: Target | None = None
    try:
        limits = target_named(module.target)
    except UnsupportedTargetError as error:
        found.append(Problem("target", str(error)))
    if limits is not None and module.version < limits.ptx:
        message = (
            f"{limits.name} needs PTX {_dotted(limits.ptx)}, but the module says PTX "
            f"{_dotted(module.version)}; raise its version"
        )
        found.append(Problem("target", message))
    found += [
        Problem("text", f"the header line {line!r} does not fit a comment line")
        for line in module.header
        if not _fits_a_line(line)
    ]
    if module.version[1] not in range(_MINORS.get(module.version[0], _ANY_MINOR)):
        message = f"there is no PTX {_dotted(module.version)}; take the version before or after it"
        found.append(Problem("target", message))
    names = [kernel.name for kernel in module.kernels]
    for kernel in module.kernels:
        if names.count(kernel.name) > 1:
            message = f"{names.count(kernel.name)} kernels have this name; rename all but one"
            found.append(Problem("symbol", message, kernel.name))
        found += name_problems(kernel)
        found += declaration_problems(kernel, limits)
        found += _KernelCheck(module, kernel, limits).problems()
    return tuple(dict.fromkeys(found))


def require_valid(module: Module) -> None:
    """Raise `VerifyError` with all problems of a module; its message shows the first 20."""
    found = verify(module)
    if not found:
        return
    shown = [f"{number}. {problem}" for number, problem in enumerate(found[:_SHOWN], 1)]
    if len(found) > _SHOWN:
        shown.append(f"… and {len(found) - _SHOWN} more")
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    raise VerifyError("\n".join([f"the module has {count}:", *shown]), found)


class _KernelCheck:
    """One walk over the instructions of a kernel, and what it gathers for the checks after it."""

    def __init__(self, module: Module, kernel: Kernel, limits: Target | None) -> None:
        self.module = module
        self.kernel = kernel
        self.limits = limits
        self.place = 0  # of the instruction being checked
        self.found: list[tuple[int, Problem]] = []
        self.ranges = {r.prefix: r for r in kernel.registers}
        self.known: dict[str, str] = {r.prefix: r.declared for r in kernel.registers if not r.count}
        for r in kernel.registers:
            self.known.update(
                dict.fromkeys([f"{r.prefix}{i}" for i in range(min(r.count, _NAMED))], r.declared)
            )
        self.labels = Counter(s.name for s in kernel.body if s.__class__ is Label)
        self.params = {param.name: param for param in kernel.params}
        self.variables = {shared.name: shared.nbytes for shared in kernel.shared}
        if kernel.dynamic_shared:
            self.variables[kernel.dynamic_shared] = kernel.dynamic_shared_bytes
        self.shapes: dict[tuple[object, ...], Shape] = {}  # those met so far
        self.integers: list[Definition] = []
        self.accesses: list[tuple[int, Instr, Shape]] = []

    def problems(self) -> Iterator[Problem]:
        """All problems of the body, in its order."""
        graph = blocks(self.kernel)
        uses = [self._block(block) for block in graph]
        self._undefined(graph, uses)
        self._alignment()
        self._statements()
        self._end(graph)
        self.found.sort(key=lambda pair: pair[0])
        return (problem for _, problem in self.found)

    def _report(self, kind: str, message: str, instr: Instr | None = None) -> None:
        name = self.kernel.name
        problem = problem_in(kind, message, name, instr) if instr else Problem(kind, message, name)
        self.found.append((self.place, problem))

    # ---------------------------------------------------------------------------------- the walk

    def _block(self, block: Block) -> Uses:
        uses = Uses()
        written = uses.written
        known, shapes = self.known.get, self.shapes.get
        for place, instr in enumerate(block.instrs, block.start):
            operands = instr.operands
            key = (
                instr.opcode,
                *[o.declared if o.__class__ is Reg else kinds(o) for o in operands],
            )
            self.place = place
            shape = shapes(key) or self._shape(instr, key, uses)
            if shape is None:
                continue
            names = shape.names(operands)
            if [known(name) for name in names] != shape.declared:
                self._declared(instr)
            if shape.valued:
                self._values(instr, shape)
            dests = shape.dests
            if instr.guard is not None or uses.maybe:
                self._guarded(instr, names[:dests], names[dests:], uses)
            else:  # what `_guarded` would do, but faster
                if not written.issuperset(names[dests:]):
                    uses.read_all(names[dests:], instr)
                written.update(names[:dests])
            if dests and shape.declared[0] in ADDRESS_CLASSES:
                rule = shape.rule
                self.integers += [Definition(name, instr, rule) for name in names[:dests]]
        return uses

    def _shape(self, instr: Instr, key: tuple[object, ...], uses: Uses) -> Shape | None:
        """The shape of the first instruction of its kind in this kernel; None if it is wrong."""
        shape = shape_of(instr)
        if not shape.complaints:
            self._gates(instr, shape)
            self.shapes[key] = shape
            return shape
        self._declared(instr)
        for kind, message in shape.complaints:
            self._report(kind, message, instr)
        # Its first operand counts as written, so that one mistake is one problem.
        uses.written.update(r.name for o in instr.operands[:1] for r in registers_of(o))
        return None

    def _guarded(
        self, instr: Instr, writes: Sequence[str], reads: Sequence[str], uses: Uses
    ) -> None:
        """Reads and writes under a guard, or after such writes."""
        guard = instr.guard
        if guard is not None:
            got = guard.register
            if got.declared != "pred":
                message = f"a guard must be of class pred, got {got.name} of class {got.declared}"
                self._report("operand", message, instr)
            if self.known.get(got.name) != got.declared:
                self._declared(instr)
            uses.read(got.name, instr)
        uses.read_all(reads, instr)
        for name in writes:
            uses.write(name, guard)

    def _declared(self, instr: Instr) -> None:
        """Each register of the instruction is declared, and as what it says it is."""
        registers = [r for operand in instr.operands for r in registers_of(operand)]
        if instr.guard is not None:
            registers.append(instr.guard.register)
        for register in registers:
            name = register.name
            declared = self.known.get(name)
            if declared is None:
                found = range_of(name, self.ranges)
                if found is None:
                    message = f"{name} is not declared; add it to a .reg line"
                    self._report("register", message, instr)
                declared = self.known[name] = found.declared if found else register.declared
            if declared != register.declared:
                message = f"{name} is declared {declared}, but is used as {register.declared}"
                self._report("register", message, instr)

    def _values(self, instr: Instr, shape: Shape) -> None:
        """Literals, names and addresses: what a shape does not depend on."""
        if shape.accesses:
            self.accesses.append((self.place, instr, shape))
        operands = instr.operands
        for limit in shape.integers:
            value = operands[limit.place].value  # type: ignore[union-attr]  # an IntImm
            if value not in limit.legal:
                self._report(limit.kind, f"wanted {limit.words}, got {value}", instr)
        if shape.op is not None and shape.op.effect is Effect.BARRIER:
            self._barrier(instr)
        if shape.size_place is not None:
            self._copied(operands, _literal(instr, shape.size_place), instr)
        for place, kind in shape.symbols:
            self._symbol(operands[place].name, kind, instr)  # type: ignore[union-attr]  # a Symbol

    # ---------------------------------------------------------------------------------- one of them

    def _gates(self, instr: Instr, shape: Shape) -> None:
        if self.limits is None:
            return
        for what, gate in shape.gates:
            if not gate.admits(self.limits.name, self.limits.sm) or gate.ptx > self.module.version:
                has = f"{self.limits.name} / PTX {_dotted(self.module.version)}"
                message = f"{what} needs {_needs(gate)}, but the module targets {has}"
                self._report("gate", message, instr)

    def _barrier(self, instr: Instr) -> None:
        threads = self.kernel.threads
        if not instr.opcode.startswith("bar.") or len(instr.operands) < 2 or not threads:
            return
        count = instr.operands[1]
        if isinstance(count, IntImm) and count.value > threads:
            message = f"waits for {count.value} threads, but the block has {threads}"
            self._report("barrier", f"{message}; they would never arrive", instr)

    def _copied(self, operands: tuple[Operand, ...], nbytes: int, instr: Instr) -> None:
        """The bytes that a copy reads, its last operand, are no more than it writes."""
        read = operands[-1] if len(operands) > _COPY_OPERANDS else None
        if isinstance(read, IntImm) and not 0 <= read.value <= nbytes:
            message = f"reads {read.value} bytes to write {nbytes}; read 0 to {nbytes}"
            self._report("operand", message, instr)

    def _symbol(self, name: str, kind: str, instr: Instr) -> None:
        if kind == "label":
            if name not in self.labels:
                hint = did_you_mean(name, self.labels)
                self._report("label", f"no label {name!r} in this kernel{hint}", instr)
        elif name in self.params:
            message = f"{name!r} is a parameter; read its value with ld.param"
            self._report("symbol", message, instr)
        elif name not in self.variables:
            hint = did_you_mean(name, self.variables)
            self._report("symbol", f"no variable {name!r} in shared memory{hint}", instr)

    def _access(self, address: Address, nbytes: int, space: str, instr: Instr) -> None:
        """An address that is a name: whether the name exists and has so many bytes."""
        name = address.base.name
        if space == "param":
            sizes = {p.name: TYPES[p.type].nbytes for p in self.kernel.params if p.type in TYPES}
            what = "parameter"
        else:
            sizes, what = self.variables, "variable in shared memory"
        if name not in sizes:
            self._report("symbol", f"no {what} {name!r}{did_you_mean(name, sizes)}", instr)
        elif not 0 <= address.offset <= sizes[name] - nbytes and (sizes[name] or space == "param"):
            begin, end = address.offset, address.offset + nbytes
            message = f"bytes {begin} to {end} of {name!r} are accessed, but it has {sizes[name]}"
            self._report("symbol", message, instr)

    # ---------------------------------------------------------------------------------- after it

    def _undefined(self, graph: tuple[Block, ...], uses: list[Uses]) -> None:
        if not graph:
            return
        anywhere = set().union(*(u.written for u in uses))
        guarded = {name for u in uses for name in u.maybe}
        places = {id(instr): b.start + i for b in graph for i, instr in enumerate(b.instrs)}
        for name, instr in undefined(graph, uses).items():
            if name in anywhere:
                message = (
                    f"{name} may be read before it is written: a path to here does not write it"
                )
            elif name in guarded:
                message = f"{name} is written only under a guard that may be false"
            else:
                message = f"{name} is read but never written"
            self.place = places[id(instr)]
            self._report("undefined", f"{message}; write it on every path before", instr)

    def _alignment(self) -> None:
        aligns = variable_aligns(self.kernel)
        state = residues(self.integers, aligns) if self.accesses else {}
        for place, instr, shape in self.accesses:
            self.place = place
            for position, size in shape.accesses:
                nbytes = size if shape.size_place is None else _literal(instr, shape.size_place)
                address = instr.operands[position]
                assert isinstance(address, Address)  # the shape says so
                if isinstance(address.base, Symbol):
                    space = str(shape.op.modifiers.get("space", "")) if shape.op else ""
                    self._access(address, nbytes, space, instr)
                past = misalignment(address, nbytes, state, aligns) if nbytes else 0
                if past:
                    message = (
                        f"the address must be a multiple of {nbytes} bytes, but it is {past} more "
                        "than one; change the offset, or access fewer bytes at a time"
                    )
                    self._report("alignment", message, instr)

    def _statements(self) -> None:
        self.place = -1
        for name, count in self.labels.items():
            if count > 1:
                message = f"{count} labels are called {name!r}; rename all but one"
                self._report("label", message)
        for statement in self.kernel.body:
            if statement.__class__ is Note and not _fits_a_line(statement.text):
                message = f"the note {statement.text!r} does not fit a comment line"
                self._report("text", message)

    def _end(self, graph: tuple[Block, ...]) -> None:
        last = graph[-1] if graph else None
        if last is not None and not (
            last.falls_through and last.index in reverse_post_order(graph)
        ):
            return
        self.place = last.start + len(last.instrs) if last else 0
        self._report("end", "control runs off the end of the kernel; end it with ret")


def _literal(instr: Instr, place: int) -> int:
    operand = instr.operands[place]
    assert isinstance(operand, IntImm)  # the shape says so
    return operand.value


def _fits_a_line(text: str) -> bool:
    """Whether a comment line can hold the text so that it can be read back."""
    return text == text.rstrip() and len(text.splitlines()) <= 1


def _needs(gate: Gate) -> str:
    gpu = " or ".join(sorted(gate.only)) if gate.only else f"sm_{gate.sm}"
    return f"{gpu} / PTX {_dotted(gate.ptx)}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
