"""The names in a body: the variables, parameters and functions that they stand for, and whether
each use fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from ptxgen.ir import (
    Arguments,
    FloatImm,
    Function,
    Instr,
    IntImm,
    Kernel,
    Module,
    Param,
    Prototype,
    Reg,
    Sink,
    Statement,
    Symbol,
    Targets,
)
from ptxgen.types import TYPES

if TYPE_CHECKING:
    from ptxgen.errors import Suggestions

_ADDRESS_BITS: Final = 64
# A name in these spaces may also stand for its generic address.
_HAS_GENERIC: Final = ("global", "shared", "local")


class Memory(NamedTuple):
    """A variable: its state space and its size in bytes, 0 if that is not known."""

    space: str
    nbytes: int


def param_bytes(param: Param) -> int:
    """The size of a parameter in bytes; 0 for a type that does not exist."""
    return TYPES[param.type].nbytes * (param.count or 1) if param.type in TYPES else 0


def dynamic_shared(body: Kernel | Function) -> str:
    """The dynamic shared array of a kernel; the empty string for a function."""
    return body.dynamic_shared if isinstance(body, Kernel) else ""


class Symbols:
    """The names of one kernel or function, whose statements other than instructions are `others`. Each
    method returns the mistake in a use of a name, or the empty string. All checks of a module share
    `suggestions`.
    """

    def __init__(
        self, module: Module, body: Kernel | Function, others: Sequence[Statement], suggestions: Suggestions
    ) -> None:
        self.hint = suggestions.did_you_mean
        results = body.results if isinstance(body, Function) else ()
        self.params = {p.name: param_bytes(p) for p in (*results, *body.params) if not p.register}
        self.variables = {v.name: Memory(v.space, v.nbytes) for v in module.variables}
        for kernel in module.kernels:
            if kernel.dynamic_shared:
                self.variables[kernel.dynamic_shared] = Memory("shared", 0)
        self.variables.update({s.name: Memory("shared", s.nbytes) for s in body.shared})
        for variable in body.variables:
            if variable.space == "param":
                self.params[variable.name] = variable.nbytes
            else:
                self.variables[variable.name] = Memory(variable.space, variable.nbytes)
        if isinstance(body, Kernel) and body.dynamic_shared:
            self.variables[body.dynamic_shared] = Memory("shared", body.dynamic_shared_bytes)
        mine = {p.name for p in body.params} if isinstance(body, Kernel) else set()
        self.constant_params = mine - {v.name for v in body.variables}
        self.transfers = {v.name for v in body.variables if v.space == "param"}
        for name in self.params:  # a name in the body hides the same name in the module
            self.variables.pop(name, None)
        self.functions = {function.name: function for function in module.functions}
        self.kernels = frozenset(kernel.name for kernel in module.kernels)
        self.prototypes = {s.name: s for s in others if isinstance(s, Prototype)}
        self.lists = {s.name: s for s in others if isinstance(s, Targets)}

    def value(self, name: str, bits: int) -> str:
        """The mistake in the address of a variable, a parameter or a function used as an operand of
        `bits` bits.
        """
        if name in self.variables or name in self.params:
            return ""
        if name in self.functions or name in self.kernels:
            what = "function" if name in self.functions else "kernel"
            wide = bits == _ADDRESS_BITS
            return "" if wide else f"{name!r} is a {what}; its address has {_ADDRESS_BITS} bits"
        return f"no variable {name!r}{self.hint(name, (*self.variables, *self.functions))}"

    def access(self, name: str, begin: int, nbytes: int, space: str) -> str:
        """The mistake in an access to bytes at an offset from a name, by an instruction for `space`
        (empty: generic).
        """
        space = space.partition("::")[0]
        if space == "param":
            return self._bounds(name, begin, nbytes, "parameter", self.params)
        sizes = {n: memory.nbytes for n, memory in self.variables.items()}
        known = self.variables.get(name)
        if known is None:
            what = f"variable in {space} memory" if space else "variable"
            return f"no {what} {name!r}{self.hint(name, sizes)}"
        if known.space not in ((space,) if space else _HAS_GENERIC):
            wanted = f"{space} memory" if space else "generic addresses"
            return f"{name!r} is in {known.space} memory, but the instruction is for {wanted}"
        return self._bounds(name, begin, nbytes, "variable", sizes) if known.nbytes else ""

    def passed(self, name: str, instr: Instr) -> str:
        """The mistake in an access to a parameter, or to an argument or a result of a call."""
        if not instr.opcode.startswith(("ld.", "st.")):
            return ""
        if name in self.constant_params and instr.opcode.startswith("st"):
            return f"{name!r} is a parameter of the kernel, which cannot be written"
        if name in self.transfers and instr.guard is not None:
            return f"{name!r} is an argument or a result of a call, which an access with a guard cannot reach"
        return ""

    def _bounds(self, name: str, begin: int, nbytes: int, what: str, sizes: dict[str, int]) -> str:
        if name not in sizes:
            return f"no {what} {name!r}{self.hint(name, sizes)}"
        if 0 <= begin <= sizes[name] - nbytes:
            return ""
        end = begin + nbytes
        return f"bytes {begin} to {end} of {name!r} are accessed, but it has {sizes[name]}"

    def named(self, name: str, kind: str) -> str:
        """The mistake in a name of this kind: `function`, `prototype` or `list` (of branch targets)."""
        if kind == "function":
            return self._known(name, "function", self.functions)
        if kind == "prototype":
            return self._known(name, "prototype", {**self.prototypes, **self.lists})
        return self._known(name, "list of branch targets", self.lists)

    def _known(self, name: str, what: str, known: Mapping[str, object]) -> str:
        return "" if name in known else f"no {what} {name!r}{self.hint(name, known)}"

    # ---------------------------------------------------------------------------------- calls

    def call(self, instr: Instr) -> Iterator[str]:
        """The mistakes in the arguments and results of a call, against the declaration of the function."""
        first, last = instr.operands[0], instr.operands[-1]
        gets = first.items if isinstance(first, Arguments) else ()
        callee, *rest = instr.operands[isinstance(first, Arguments) :]
        gives = next((o.items for o in rest if isinstance(o, Arguments)), ())
        name = callee.name if isinstance(callee, Symbol) else ""
        signature: Function | Prototype | None = self.functions.get(name)
        if not name and isinstance(last, Symbol):
            name, signature = last.name, self._signature(last.name)
        if signature is None:  # `named` reports names that do not exist
            return
        yield from self._passed(name, "result", signature.results, gets)
        yield from self._passed(name, "argument", signature.params, gives)

    def _signature(self, name: str) -> Function | Prototype | None:
        if name in self.lists:
            return next(map(self.functions.get, self.lists[name].targets), None)
        return self.prototypes.get(name)

    def _passed(
        self, name: str, what: str, formal: tuple[Param, ...], arguments: tuple[object, ...]
    ) -> Iterator[str]:
        if len(formal) != len(arguments):
            yield f"{name} has {len(formal)} {what}s, got {len(arguments)}"
            return
        for number, (param, item) in enumerate(zip_longest(formal, arguments), 1):
            wrong = self._unfit(param, item)
            if wrong:
                yield f"{what} {number} of {name} must be {_described(param)}, got {wrong}"

    def _unfit(self, param: Param, item: object) -> str:
        """A description of an argument that does not fit the parameter; empty if it fits."""
        if isinstance(item, Symbol):
            has = self.params.get(item.name)
            if has is None:
                return f"{item.name!r}, which is no variable in .param"
            return "" if has == param_bytes(param) else f"{item.name!r} of {has} bytes"
        if isinstance(item, Reg):
            register = TYPES[param.type].register if param.type in TYPES else ""
            fits = register in TYPES and TYPES[item.declared].bits == TYPES[register].bits
            return "" if fits and not param.count else f"{item.name} of class {item.declared}"
        if isinstance(item, (IntImm, FloatImm)) and param.count:
            return "a number"
        assert isinstance(item, (IntImm, FloatImm, Sink))
        return ""


def _described(param: Param) -> str:
    if param.count:
        return f"{param_bytes(param)} bytes"
    return f"a .{param.type}"
