"""A kernel with the bodies of the functions that it calls in place of the calls.

Each call gets its own registers, labels and variables, so that a function's values are known as
well as the caller's; only variables in shared memory keep their names. `.param` variables become
registers, one for each part that is stored; a load of any other part gives an unknown value.
Functions that call themselves, or that may be called through pointers, are left out, with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ptxgen.check.problems import where_from
from ptxgen.ir import (
    Address,
    Arguments,
    Function,
    Guard,
    Instr,
    Kernel,
    Label,
    Module,
    Not,
    Operand,
    Pair,
    Param,
    Reg,
    Shared,
    Statement,
    Symbol,
    Targets,
    TensorAddress,
    Variable,
    Vector,
)
from ptxgen.types import TYPES

MOST_STATEMENTS: Final = 30_000
MOST_DEEP: Final = 64
_LEAST_MOVED: Final = 16  # bits of the smallest move
_RETURNS: Final = ("ret", "ret.uni")
_RECURSIVE: Final = "a function that calls itself is not followed"
_POINTED: Final = "a function whose address is taken may be called with anything"
_BELOW: Final = "it is called by a function that is not followed"
_CLASHES: Final = "a variable in shared memory has the name of another variable"
_DEEP: Final = f"it is called through more than {MOST_DEEP} functions"
_LARGE: Final = f"with its callers it has more than {MOST_STATEMENTS} statements"


class Source(NamedTuple):
    """The origin of an instruction: the kernel or function, the instruction's number in it, the
    instruction, and the calls that lead to it, the innermost last.
    """

    owner: str
    number: int
    instr: Instr
    via: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inlined:
    """A kernel in which the called functions are inlined, as far as possible. `sources` has the origin of
    each instruction, `functions` the functions that were inlined, and `left_out` by name the reasons why
    others were not.
    """

    kernel: Kernel
    sources: tuple[Source, ...]
    functions: tuple[Function, ...]
    left_out: dict[str, str]


def inlined(module: Module, kernel: Kernel) -> Inlined:
    """A copy of the kernel with the functions that it calls inlined."""
    functions = {f.name: f for f in module.functions if f.body is not None}
    if not any(_is_call(s) for s in kernel.body):
        instrs = (s for s in kernel.body if isinstance(s, Instr))
        sources = tuple(Source(kernel.name, n, instr) for n, instr in enumerate(instrs))
        return Inlined(kernel, sources, (), {})
    inliner = _Inliner(functions, module, kernel)
    inliner.kernel(kernel)
    body, left_out = tuple(inliner.statements), dict(inliner.left_out)
    _add_pointed(module, functions, inliner, left_out)
    _add_below(functions, left_out)
    used = tuple(functions[name] for name in inliner.entered)
    return Inlined(replace(kernel, body=body), tuple(inliner.sources), used, left_out)


def _add_pointed(
    module: Module, functions: dict[str, Function], inliner: _Inliner, left_out: dict[str, str]
) -> None:
    """If anything is called through a pointer, leave out all functions whose address is taken."""
    if not inliner.through_pointers:
        return
    taken = {p.symbol for v in module.variables for p in v.pointers}
    sources: tuple[Kernel | Function, ...] = (*module.kernels, *module.functions)
    for source in sources:
        for statement in source.body or ():
            if isinstance(statement, Instr) and not _is_call(statement):
                taken |= {o.name for o in statement.operands if isinstance(o, Symbol)}
    left_out.update(dict.fromkeys(sorted(taken & set(functions)), _POINTED))


def _add_below(functions: dict[str, Function], left_out: dict[str, str]) -> None:
    """Leave out the functions that are called by functions that are left out."""
    todo = list(left_out)
    while todo:
        for statement in functions[todo.pop()].body or ():
            callee = _callee(statement)
            name = callee.name if isinstance(callee, Symbol) else ""
            if name in functions and name not in left_out:
                left_out[name] = _BELOW
                todo.append(name)


def _is_call(statement: Statement) -> bool:
    return isinstance(statement, Instr) and statement.opcode.partition(".")[0] == "call"


def _callee(statement: Statement) -> Operand | None:
    """The callee of a call: its first operand that is not a list of arguments."""
    if not isinstance(statement, Instr) or not _is_call(statement):
        return None
    return next((o for o in statement.operands if not isinstance(o, Arguments)), None)


class _Part(NamedTuple):
    """Bytes of a `.param` variable that one instruction stores or loads."""

    offset: int
    nbytes: int

    def overlaps(self, other: _Part) -> bool:
        """Whether two parts have a byte in common."""
        return self.offset < other.offset + other.nbytes and other.offset < self.offset + self.nbytes

    def of(self, variable: str) -> Reg:
        """The register that replaces this part of a variable."""
        declared = f"b{8 * self.nbytes}"
        return Reg(f"[{variable}+{self.offset}].{declared}", declared)


class _Frame(NamedTuple):
    """One call of a function, or the kernel itself (number 0).

    `local` are the labels and variables of the function, without those in shared memory; `hidden` are names
    that mean something else in the module than in the kernel. `params` maps the name of a `.param` variable
    in this function to the kernel's variable that it stands for; `parts` has the parts of it that this
    function stores or loads. `via` are the calls that lead here.
    """

    owner: str
    number: int
    params: dict[str, str]
    parts: dict[str, set[_Part]]
    local: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    via: tuple[str, ...] = ()

    @property
    def end(self) -> str:
        """The label after the inlined body of the called function."""
        return f"end of call {self.number}"

    def register(self, register: Reg) -> Reg:
        """The kernel's register for a register of this call."""
        if not self.number:
            return register
        return Reg(f"{register.name} of {self.owner} ({self.number})", register.declared)

    def named(self, name: str) -> str:
        """The kernel's name for a label or a variable of this call or of the module; no two share a name."""
        if name in self.local:
            return f"{name} of call {self.number}"
        return f"{name} of the module" if name in self.hidden else name

    def renamed(self, operand: Operand) -> Operand:
        """An operand with the kernel's names for those of this call."""
        if not self.number:
            return operand
        return _renamed(operand, self.register, self.named)


class _Inliner:
    def __init__(self, functions: dict[str, Function], module: Module, kernel: Kernel) -> None:
        self.statements: list[Statement] = []
        self.sources: list[Source] = []
        self.left_out: dict[str, str] = {}
        self.entered: dict[str, None] = {}
        self.through_pointers = False
        self._functions = functions
        declared: tuple[Param | Shared | Variable, ...]
        declared = (*kernel.params, *kernel.shared, *kernel.variables)
        self._hidden = frozenset(of.name for of in declared)
        shared = (v.name for v in module.variables if v.space == "shared")
        self._hides_shared = not self._hidden.isdisjoint(shared)
        # By variable that the kernel or its functions can name: the function that declares it.
        self._owners = dict.fromkeys((*self._hidden, *(v.name for v in module.variables)), "")
        self._calls = 0
        self._chain: list[str] = []
        self._source = Source("", 0, Instr("ret"))

    def kernel(self, kernel: Kernel) -> None:
        """Add the instructions of the whole kernel, with its calls inlined."""
        names = {v.name: v.name for v in kernel.variables if v.space == "param"}
        frame = _Frame(kernel.name, 0, names, _parts(kernel))
        self._body(kernel, frame)

    def _body(self, source: Kernel | Function, frame: _Frame) -> None:
        number = 0
        for statement in source.body or ():
            if isinstance(statement, Instr):
                self._source = Source(frame.owner, number, statement, frame.via)
                self._instr(statement, frame)
                number += 1
            elif isinstance(statement, Label):
                self.statements.append(Label(frame.named(statement.name)))
            elif isinstance(statement, Targets):
                labels = tuple(map(frame.named, statement.targets))
                name = frame.named(statement.name)
                self.statements.append(Targets(name, statement.kind, labels))

    def _emit(self, opcode: str, operands: tuple[Operand, ...], guard: Guard | None = None) -> None:
        self.statements.append(Instr(opcode, operands, guard, self._source.instr.origin))
        self.sources.append(self._source)

    def _instr(self, instr: Instr, frame: _Frame) -> None:
        guard = instr.guard
        if guard is not None:
            guard = Guard(frame.register(guard.register), guard.negated)
        accessed = _accessed(instr)
        if _is_call(instr):
            self._call(instr, guard, frame)
        elif instr.opcode in _RETURNS and frame.number:
            self._emit("bra", (Symbol(frame.end),), guard)
        elif accessed is not None and accessed.name in frame.params:
            self._move_parts(accessed, guard, frame)
        else:
            self._emit(instr.opcode, tuple(map(frame.renamed, instr.operands)), guard)

    # ------------------------------------------------------------------------------ parameters

    def _move_parts(self, access: _Access, guard: Guard | None, frame: _Frame) -> None:
        """Replace a load or store of a `.param` variable by moves."""
        variable = frame.params[access.name]
        for part, item in access.parts():
            held = frame.renamed(item)
            if not access.stores:
                self._move(held, part.of(variable), part, guard)
                continue
            self._move(part.of(variable), held, part, guard)
            for other in sorted(frame.parts[access.name]):
                if other != part and other.overlaps(part):
                    self._forget(other.of(variable), guard)

    def _move(self, to: Operand, value: Operand, part: _Part, guard: Guard | None = None) -> None:
        """Move one register to another; if their sizes differ, the destination is unknown afterwards."""
        if not isinstance(to, Reg):
            return
        bits = 8 * part.nbytes
        sizes = {TYPES[o.declared].bits for o in (to, value) if isinstance(o, Reg)}
        if bits < _LEAST_MOVED or sizes != {bits}:
            self._forget(to, guard)
        else:
            self._emit(f"mov.b{bits}", (to, value), guard)

    def _forget(self, register: Reg, guard: Guard | None = None) -> None:
        """Give a register a value of which nothing is known."""
        self._emit("call", (register,), guard)

    # ------------------------------------------------------------------------------ calls

    def _call(self, instr: Instr, guard: Guard | None, frame: _Frame) -> None:
        callee = _callee(instr)
        at = instr.operands.index(callee) if callee is not None else 0
        results = _items(instr.operands[:at])
        arguments = _items(instr.operands[at + 1 :])
        self.through_pointers |= not isinstance(callee, Symbol)
        function = self._functions.get(callee.name) if isinstance(callee, Symbol) else None
        if function is None or not self._may_enter(function):
            self._emit("call", (), guard)  # memory may change in the call
            for item in results:
                self._forget_result(item, guard, frame)
            return
        self._calls += 1
        call, skip = self._source, f"after call {self._calls}"
        if guard is not None:
            self._emit("bra", (Symbol(skip),), Guard(guard.register, not guard.negated))
        inner = self._frame(function, frame)
        for held, passed, part in _copied(function.params, arguments, frame, inner):
            self._move(held, passed, part)
        taken = list(_copied(function.results, results, frame, inner))
        self._chain.append(function.name)
        self.entered[function.name] = None
        self._body(function, inner)
        self._chain.pop()
        self._source = call
        self.statements.append(Label(inner.end))
        for held, passed, part in taken:
            self._move(passed, held, part)
        if guard is not None:
            self.statements.append(Label(skip))

    def _frame(self, function: Function, frame: _Frame) -> _Frame:
        local = [s.name for s in function.body or () if isinstance(s, (Label, Targets))]
        local += [v.name for v in function.variables]
        params = [v.name for v in function.variables if v.space == "param"]
        params += [p.name for p in (*function.params, *function.results) if not p.register]
        names = {name: f"{name} of {function.name} ({self._calls})" for name in params}
        origin = where_from(self._source.instr.origin)
        via = origin or f"instruction {self._source.number} of {frame.owner}"
        return _Frame(
            function.name,
            self._calls,
            names,
            _parts(function),
            frozenset((*local, *params)),
            self._hidden,
            (*frame.via, via),
        )

    def _forget_result(self, item: Operand, guard: Guard | None, frame: _Frame) -> None:
        if isinstance(item, Reg):
            self._forget(frame.register(item), guard)
        elif isinstance(item, Symbol) and item.name in frame.params:
            for part in sorted(frame.parts.get(item.name, ())):
                self._forget(part.of(frame.params[item.name]), guard)

    def _may_enter(self, function: Function) -> bool:
        why = ""
        if function.name in self._chain:
            why = _RECURSIVE
        elif len(self._chain) == MOST_DEEP:
            why = _DEEP
        elif len(self.statements) + len(function.body or ()) > MOST_STATEMENTS:
            why = _LARGE
        elif self._clashes(function):
            why = _CLASHES
        if why:
            self.left_out[function.name] = why
        return not why

    def _clashes(self, function: Function) -> bool:
        """Whether a variable in shared memory that the function can name shares its name with
        another variable.
        """
        names = [s.name for s in function.shared]
        owners = {self._owners.setdefault(name, function.name) for name in names}
        return self._hides_shared or bool(owners - {function.name})


def _items(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The items of the list of arguments among the operands."""
    return next((o.items for o in operands if isinstance(o, Arguments)), ())


def _copied(
    declared: tuple[Param, ...], items: tuple[Operand, ...], frame: _Frame, inner: _Frame
) -> Iterator[tuple[Reg, Operand, _Part]]:
    """The parts of parameters, or of results, of a function that is called in `frame`: the register in the
    function, the caller's operand, and the part. A variable of the caller becomes the function's variable,
    with nothing to copy.
    """
    for param, item in zip(declared, items, strict=False):
        if isinstance(item, Symbol) and item.name in frame.params and not param.register:
            inner.params[param.name] = frame.params[item.name]
            continue
        part = _Part(0, TYPES[param.type].nbytes)
        yield _held(param, inner, part), _passed(item, frame, part), part


def _held(param: Param, frame: _Frame, part: _Part) -> Reg:
    """The register that replaces a parameter or a result inside its function."""
    if param.register:
        return frame.register(Reg(param.name, param.type))
    return part.of(frame.params[param.name])


def _passed(item: Operand, frame: _Frame, part: _Part) -> Operand:
    """The caller's operand for an argument or a result of a call."""
    if isinstance(item, Symbol) and item.name in frame.params:
        return part.of(frame.params[item.name])
    return frame.renamed(item)


class _Access(NamedTuple):
    """A load or a store of a variable at an offset."""

    name: str
    offset: int
    stores: bool
    type: str
    held: Operand

    def parts(self) -> Iterator[tuple[_Part, Operand]]:
        """Each part of the variable, with the operand that is stored to it or loaded from it."""
        nbytes = TYPES[self.type].nbytes
        items = self.held.items if isinstance(self.held, Vector) else (self.held,)
        for n, item in enumerate(items):
            yield _Part(self.offset + n * nbytes, nbytes), item


def _accessed(instr: Instr) -> _Access | None:
    """The access of an instruction to a `.param` variable; None if it has none."""
    words = instr.opcode.split(".")
    if words[0] not in ("ld", "st") or "param" not in words or len(instr.operands) != 2:
        return None
    stores = words[0] == "st"
    address, held = instr.operands if stores else instr.operands[::-1]
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return None
    return _Access(address.base.name, address.base.offset + address.offset, stores, words[-1], held)


def _parts(source: Kernel | Function) -> dict[str, set[_Part]]:
    """The parts of `.param` variables that the body loads or stores."""
    parts: dict[str, set[_Part]] = {}
    for statement in source.body or ():
        access = _accessed(statement) if isinstance(statement, Instr) else None
        if access is not None:
            parts.setdefault(access.name, set()).update(part for part, _ in access.parts())
    return parts


def _renamed(operand: Operand, register: Callable[[Reg], Reg], named: Callable[[str], str]) -> Operand:
    """An operand with other names for its registers, labels and variables."""

    def base(of: Reg | Symbol) -> Reg | Symbol:
        return register(of) if isinstance(of, Reg) else Symbol(named(of.name), of.offset)

    match operand:
        case Reg():
            return register(operand)
        case Symbol(name, offset):
            return Symbol(named(name), offset)
        case Address(of, offset):
            return Address(of and base(of), offset)
        case TensorAddress(of, offset, coordinates):
            moved = tuple(register(c) if isinstance(c, Reg) else c for c in coordinates)
            return TensorAddress(base(of), offset, moved)
        case Vector(items):
            return Vector(tuple(register(i) if isinstance(i, Reg) else i for i in items))
        case Arguments(items):
            return Arguments(tuple(register(i) if isinstance(i, Reg) else i for i in items))
        case Pair(first, second):
            renamed = (register(r) if isinstance(r, Reg) else r for r in (first, second))
            return Pair(*renamed)
        case Not(of):
            return Not(register(of))
        case _:
            return operand
