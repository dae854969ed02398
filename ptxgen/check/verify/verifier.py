"""`verify`: all problems of a module at once."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ptxgen.check.flow import Block, blocks, reverse_post_order
from ptxgen.check.problems import Problem, problem_in
from ptxgen.check.verify.alignment import (
    Definition,
    launched_pointers,
    misalignment,
    residues,
    variable_aligns,
)
from ptxgen.check.verify.budget import declaration_problems, module_problems
from ptxgen.check.verify.definition_paths import guarded_writes, used_undefined
from ptxgen.check.verify.definitions import Uses, undefined
from ptxgen.check.verify.names import module_name_problems, name_problems
from ptxgen.check.verify.operand_kinds import PartKinds
from ptxgen.check.verify.shapes import SIZED, Shape, kinds, shape_of
from ptxgen.check.verify.symbols import Symbols
from ptxgen.collector import uncollected
from ptxgen.errors import Suggestions, UnsupportedTargetError, VerifyError
from ptxgen.ir import (
    Address,
    FloatImm,
    Function,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Operand,
    Pragma,
    Reg,
    RegisterRange,
    Symbol,
    Targets,
    TensorAddress,
    registers_of,
    require_module,
)
from ptxgen.isa.forms import Form, form_of
from ptxgen.isa.spec import Effect, Gate, Op
from ptxgen.register_names import range_of
from ptxgen.target import Target
from ptxgen.target import target as target_named
from ptxgen.text import render_operand
from ptxgen.types import TYPES

# PTX ISA, "Release Notes": the number of versions 6.x, 7.x and 8.x; for later ones it is not known
# yet.
_MINORS: Final = {6: 6, 7: 9, 8: 9}
_ANY_MINOR: Final = 10
_SHOWN: Final = 20  # problems that an error lists
_ONE: Final = 0x3F800000  # 1.0 as f32; the positive numbers up to it are the bits from 1 to this
_MOST_COPIED: Final = 16  # bytes that cp.async.cg copies


def verify(module: Module) -> tuple[Problem, ...]:
    """The problems of a module, in the order of its text; empty if there are none.

    Checked are: names, opcodes, operands and their types, ranges of literals, declarations of
    registers and symbols, labels, definition before use on every path, the target and the PTX
    version that each instruction needs, barriers, alignment where it is certainly wrong, regions of
    shared memory and its budget, block sizes, and that control does not run off a kernel's end.
    """
    require_module("verify", module)
    problems: list[Problem] = []
    suggestions = Suggestions()
    limits: Target | None = None
    try:
        limits = target_named(module.target)
    except UnsupportedTargetError as error:
        problems.append(Problem("target", str(error)))
    if limits is not None and module.version < limits.ptx:
        message = (
            f"{limits.name} needs PTX {_dotted(limits.ptx)}, but the module says PTX "
            f"{_dotted(module.version)}; raise its version"
        )
        problems.append(Problem("target", message))
    problems += [
        Problem("text", f"the header line {line!r} does not fit a comment line")
        for line in module.header
        if not _fits_a_line(line)
    ]
    if module.version[1] not in range(_MINORS.get(module.version[0], _ANY_MINOR)):
        message = f"there is no PTX {_dotted(module.version)}; use the version before or after it"
        problems.append(Problem("target", message))
    problems += module_name_problems(module)
    problems += module_problems(module)
    bodies: tuple[Kernel | Function, ...] = (*module.functions, *module.kernels)
    for body in bodies:
        problems += name_problems(body)
        problems += declaration_problems(body, limits)
        if body.body is not None:
            problems += _BodyCheck(module, body, limits, suggestions).problems()
    return tuple(dict.fromkeys(problems))


def require_valid(module: Module) -> None:
    """Raise `VerifyError` with all problems of a module; its message shows the first 20."""
    with uncollected():
        problems = verify(module)
    if not problems:
        return
    shown = [f"{number}. {problem}" for number, problem in enumerate(problems[:_SHOWN], 1)]
    if len(problems) > _SHOWN:
        shown.append(f"… and {len(problems) - _SHOWN} more")
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise VerifyError("\n".join([f"the module has {count}:", *shown]), problems)


class _BodyCheck:
    """One walk over the instructions of a kernel or a function, and the data that it gathers for
    the checks after it.
    """

    def __init__(
        self, module: Module, body: Kernel | Function, limits: Target | None, suggestions: Suggestions
    ) -> None:
        self.module = module
        self.body = body
        self.limits = limits
        self.index = 0  # index of the instruction being checked
        self.by_index: list[tuple[int, Problem]] = []
        self.ranges = {r.prefix: r for r in body.registers if r.count}
        self.passed = _passed_in_registers(body)
        self.known: dict[str, str] = {r.prefix: r.declared for r in body.registers if not r.count}
        self.known.update(self.passed)
        for name in self.known:  # what a range declares, too, counts as the range's
            if (declaration := range_of(name, self.ranges)) is not None:
                self.known[name] = declaration.declared
        self.others = [s for s in body.body or () if s.__class__ is not Instr]
        self.labels = Counter(s.name for s in self.others if isinstance(s, Label))
        self.symbols = Symbols(module, body, self.others, suggestions)
        self._class_of = functools.partial(_class_of, self.known, self.ranges)
        self.kinds = PartKinds(self.ranges.values(), self._class_of)
        self.shapes: dict[tuple[object, ...], Shape] = {}  # by opcode and kinds of operands
        self.latest: dict[Form | None, Shape] = {}
        self.integers: list[Definition] = []
        self.unruled: set[Reg] = set()  # registers of integers whose residue no rule determines
        self.accesses: list[tuple[int, Instr, Shape]] = []

    def problems(self) -> Iterator[Problem]:
        """The problems of the body, in its order."""
        graph = blocks(self.body)
        uses = [self._block(block) for block in graph]
        self._undefined(graph, uses)
        self._alignment()
        self._statements()
        self._end(graph)
        self.by_index.sort(key=lambda pair: pair[0])
        return (problem for _, problem in self.by_index)

    def _report(self, kind: str, message: str, instr: Instr | None = None, *, certain: bool = True) -> None:
        name, what = self.body.name, "kernel" if isinstance(self.body, Kernel) else "function"
        if instr:
            problem = problem_in(kind, message, name, instr, what, certain)
        else:
            problem = Problem(kind, message, name, what=what)
        self.by_index.append((self.index, problem))

    # ---------------------------------------------------------------------------------- the walk

    def _block(self, block: Block) -> Uses:
        uses = Uses()
        written = uses.written
        kind, latest = self.kinds.__getitem__, self.latest.get
        for index, instr in enumerate(block.instrs, block.start):
            operands = instr.operands
            shape = latest(instr.form or form_of(instr))
            if shape is None or [*map(kind, parts := shape.parts(operands))] != shape.kinds:
                self.index = index
                shape = self._shape(instr, uses)
                if shape is None:
                    continue
                parts = shape.parts(operands)
                if [*map(kind, parts)] != shape.kinds:
                    parts = self._registers(instr, shape)
            if shape.valued:
                self.index = index
                self._values(instr, shape)
            dests = shape.dests
            writes, reads = parts[:dests], parts[dests : shape.registers]
            if instr.guard is not None or uses.maybe:
                self.index = index
                self._guarded(instr, writes, reads, uses)
            else:  # the same as `_guarded`, but faster
                if not written.issuperset(reads):
                    uses.read_all(reads, instr)
                written.update(writes)
            if shape.is_address:
                if shape.has_residue:
                    self.integers.append((writes[0], instr, shape.rule, reads))
                else:
                    self.unruled.update(writes)
        return uses

    def _shape(self, instr: Instr, uses: Uses) -> Shape | None:
        """The shape of an instruction; None if the instruction is wrong, which is reported."""
        operands = instr.operands
        key = (instr.opcode, *[o.declared if o.__class__ is Reg else kinds(o) for o in operands])
        shape = self.shapes.get(key)
        if shape is None:
            shape = shape_of(instr)
            if shape.complaints:
                self._declared(instr)
                for kind, message in shape.complaints:
                    self._report(kind, message, instr)
                # The first operand counts as written, so that one mistake is reported as one problem.
                first = [r.name for o in operands[:1] for r in registers_of(o)]
                uses.written.update(self._as_declared(first))
                return None
            self._gates(instr, shape)
            self.shapes[key] = shape
        self.latest[form_of(instr)] = shape
        return shape

    def _registers(self, instr: Instr, shape: Shape) -> tuple[Reg, ...]:
        """The registers of an instruction as the body declares them, the written ones first."""
        names = shape.names(instr.operands)
        if [self._class_of(name) for name in names] != shape.declared:
            self._declared(instr)
        return self._as_declared(names)

    def _as_declared(self, names: Iterable[str]) -> tuple[Reg, ...]:
        return tuple([Reg(name, self.known[name]) for name in names])

    def _guarded(self, instr: Instr, writes: Sequence[Reg], reads: Sequence[Reg], uses: Uses) -> None:
        """Record the reads and writes of an instruction under a guard, or after guarded writes."""
        guard = instr.guard
        if guard is not None:
            got = guard.register
            if got.declared != "pred":
                message = f"a guard must be of class pred, got {got.name} of class {got.declared}"
                self._report("operand", message, instr)
            if self._class_of(got.name) != got.declared:
                self._declared(instr)
            uses.read(Reg(got.name, self.known[got.name]), instr)
        uses.read_all(reads, instr)
        for register in writes:
            uses.write(register, guard)

    def _declared(self, instr: Instr) -> None:
        """Check that each register of the instruction is declared, with the class that the operand has."""
        registers = [r for operand in instr.operands for r in registers_of(operand)]
        if instr.guard is not None:
            registers.append(instr.guard.register)
        for register in registers:
            name = register.name
            declared = self._class_of(name)
            if declared is None:
                message = f"{name} is not declared; add it to a .reg line"
                self._report("register", message, instr)
                declared = self.known[name] = register.declared
            if declared != register.declared:
                message = f"{name} is declared {declared}, but is used as {register.declared}"
                self._report("register", message, instr)

    def _values(self, instr: Instr, shape: Shape) -> None:
        """Check the literals, names and addresses, which a shape does not depend on."""
        if shape.accesses:
            self.accesses.append((self.index, instr, shape))
        operands = instr.operands
        for limit in shape.integers:
            value = operands[limit.operand].value  # type: ignore[union-attr]  # an IntImm
            if value not in limit.legal:
                self._report(limit.kind, f"wanted {limit.words}, got {value}", instr)
        if shape.is_special and shape.op is not None:
            self._special(instr, shape, shape.op)
        for index, kind, bits in shape.symbols:
            self._symbol(operands[index].name, kind, bits, instr)  # type: ignore[union-attr]  # one
        if shape.calls:
            for message in self.symbols.call(instr):
                self._report("call", message, instr)

    def _special(self, instr: Instr, shape: Shape, op: Op) -> None:
        """Check the addresses, numbers of threads, sizes and fractions that have rules of their own."""
        operands = instr.operands
        for index, name in shape.unmoved:
            address = operands[index]
            if isinstance(address, Address | TensorAddress) and address.offset:
                text = render_operand(address)
                self._report("operand", f"operand {name} of {op.row.name} takes no offset, got {text}", instr)
        if op.effect is Effect.BARRIER:
            self._barrier(instr, op)
        if op.opcode.startswith(SIZED):
            self._sizes(operands, op, instr)

    # ------------------------------------------------------------------------------ one instruction

    def _gates(self, instr: Instr, shape: Shape) -> None:
        if self.limits is None:
            return
        for what, gate in shape.gates:
            if not gate.admits(self.limits) or gate.ptx > self.module.version:
                has = f"{self.limits.name} / PTX {_dotted(self.module.version)}"
                message = f"{what} needs {_needs(gate)}, but the module targets {has}"
                self._report("gate", message, instr)

    def _barrier(self, instr: Instr, op: Op) -> None:
        threads = self.body.most_threads if isinstance(self.body, Kernel) else 0
        if not threads:
            return
        for wanted, count in zip(op.flat, instr.operands, strict=False):
            if wanted.name == "b" and isinstance(count, IntImm) and count.value > threads:
                message = f"waits for {count.value} threads, but the block has {threads}"
                self._report("barrier", f"{message}; they would never arrive", instr)

    def _sizes(self, operands: tuple[Operand, ...], op: Op, instr: Instr) -> None:
        """Check that a copy reads no more bytes than it writes, that a part of a range is no larger
        than the range, and that a fraction is more than 0 and at most 1.
        """
        for got in operands:
            if isinstance(got, FloatImm) and not 0 < got.bits <= _ONE:
                message = f"wanted a fraction from above 0 to 1, got {render_operand(got)}"
                self._report("operand", message, instr)
        numbers = {
            wanted.name: got.value
            for wanted, got in zip(op.flat, operands, strict=False)
            if isinstance(got, IntImm)
        }
        nbytes, read = numbers.get("cp_size", _MOST_COPIED), numbers.get("src_size", 0)
        if not 0 <= read <= nbytes:
            message = f"reads {read} bytes to write {nbytes}; read 0 to {nbytes}"
            self._report("operand", message, instr)
        size = numbers.get("size", 0)
        total = numbers.get("total", size)
        if size > total:
            message = f"wanted a size of at most the total, {total}, got {size}"
            self._report("operand", message, instr)

    def _symbol(self, name: str, kind: str, bits: int, instr: Instr) -> None:
        if kind == "label":
            self._label(name, instr)
            return
        message = self.symbols.value(name, bits) if kind == "value" else self.symbols.named(name, kind)
        if message:
            self._report("symbol", message, instr)

    def _label(self, name: str, instr: Instr | None = None) -> None:
        if name not in self.labels:
            what = "kernel" if isinstance(self.body, Kernel) else "function"
            message = f"no label {name!r} in this {what}{self.symbols.hint(name, self.labels)}"
            self._report("label", message, instr)

    # ---------------------------------------------------------------------------- after the walk

    def _undefined(self, graph: tuple[Block, ...], uses: list[Uses]) -> None:
        if not graph:
            return
        for passed in self._as_declared(self.passed):
            for use in uses:
                use.exposed.pop(passed, None)
        read = undefined(graph, uses)
        if not read:
            return
        suspects = used_undefined(graph, {r.name: instr for r, instr in read.items()}, self.passed)
        anywhere = {r.name for u in uses for r in u.written}
        guarded = guarded_writes(graph)
        indices = {id(instr): b.start + i for b in graph for i, instr in enumerate(b.instrs)}
        for name, instr in suspects.items():
            if name in anywhere:
                message = f"{name} may be read before it is written: a path to here does not write it"
            elif name in guarded:
                message = f"{name} is written only under a guard that may be false"
            else:
                message = f"{name} is read but never written"
            self.index = indices[id(instr)]
            certain = name not in anywhere and name not in guarded
            self._report("undefined", f"{message}; write it on every path before", instr, certain=certain)

    def _alignment(self) -> None:
        aligns = variable_aligns(self.module, self.body)
        launched = launched_pointers(self.body)
        state = residues(self.integers, self.unruled, aligns, launched) if self.accesses else {}
        for index, instr, shape in self.accesses:
            self.index = index
            for position, size in shape.accesses:
                nbytes = size if shape.size_index is None else _literal(instr, shape.size_index)
                address = instr.operands[position]
                if not isinstance(address, Address):  # a tensor map's address
                    continue
                if isinstance(address.base, Symbol):
                    self._access(address.base.name, address.offset, nbytes, shape, instr)
                past = misalignment(address, nbytes, state, aligns) if nbytes else 0
                if past:
                    message = (
                        f"the address must be a multiple of {nbytes} bytes, but it is {past} more "
                        "than one; change the offset, or access fewer bytes at a time"
                    )
                    self._report("alignment", message, instr)

    def _access(self, name: str, offset: int, nbytes: int, shape: Shape, instr: Instr) -> None:
        space = shape.op.modifiers.get("space") if shape.op else None
        message = self.symbols.access(name, offset, nbytes, str(space or ""))
        message = message or self.symbols.passed(name, instr)
        if message:
            self._report("symbol", message, instr)

    def _statements(self) -> None:
        self.index = -1
        for name, count in self.labels.items():
            if count > 1:
                message = f"{count} labels are called {name!r}; rename all but one"
                self._report("label", message)
        for statement in self.others:
            if isinstance(statement, Note) and not _fits_a_line(statement.text):
                message = f"the note {statement.text!r} does not fit a comment line"
                self._report("text", message)
            elif isinstance(statement, Pragma) and not _fits_quotes(statement.text):
                message = f"the pragma {statement.text!r} does not fit between quotes"
                self._report("text", message)
            elif isinstance(statement, Targets) and statement.kind == "branchtargets":
                for target in statement.targets:
                    self._label(target)

    def _end(self, graph: tuple[Block, ...]) -> None:
        """Check that a kernel ends with an instruction that ends it; a function returns at its end."""
        if not isinstance(self.body, Kernel):
            return
        last = graph[-1] if graph else None
        if last is not None and not (last.falls_through and last.index in reverse_post_order(graph)):
            return
        if last is not None and last.instrs and self._never_returns(last.instrs[-1]):
            return
        self.index = last.start + len(last.instrs) if last else 0
        self._report("end", "control runs off the end of the kernel; end it with ret")

    def _never_returns(self, instr: Instr) -> bool:
        """Whether the instruction calls a function that is declared to never return."""
        if not instr.opcode.startswith("call") or instr.guard is not None:
            return False
        known = (self.symbols.functions, self.symbols.prototypes)
        names = [o.name for o in instr.operands if isinstance(o, Symbol)]
        return any(name in of and of[name].noreturn for name in names for of in known)


def _passed_in_registers(body: Kernel | Function) -> dict[str, str]:
    """The registers that hold a function's parameters and results, and their classes."""
    params = (*body.results, *body.params) if isinstance(body, Function) else ()
    return {p.name: TYPES[p.type].register for p in params if p.register and p.type in TYPES}


def _literal(instr: Instr, index: int) -> int:
    operand = instr.operands[index]
    assert isinstance(operand, IntImm)  # the shape says so
    return operand.value


def _fits_a_line(text: str) -> bool:
    """Whether a comment line can hold the text so that reading the line returns the same text."""
    return text == text.rstrip() and len(text.splitlines()) <= 1


def _fits_quotes(text: str) -> bool:
    """Whether a PTX string literal can hold the text unchanged."""
    return re.fullmatch(r'(?:[^"\\\n]|\\[^\n])*', text) is not None


def _needs(gate: Gate) -> str:
    gpu = " or ".join(gate.owners) if gate.only else f"sm_{gate.sm}"
    return f"{gpu} / PTX {_dotted(gate.ptx)}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _class_of(known: dict[str, str], ranges: Mapping[str, RegisterRange], name: str) -> str | None:
    """The class of a register as a body declares it, or as it was used first if it is not declared. `known`
    has the classes by name, and grows; `ranges` has the declared ranges by prefix.
    """
    declared = known.get(name)
    if declared is None and (declaration := range_of(name, ranges)) is not None:
        declared = known[name] = declaration.declared
    return declared
