"""The instruction table as methods: `k.fma(a, b, c)` appends an instruction of the row `fma`.

Each method is made from the table at its first use; `ops.pyi`, which editors and type checkers
read, is generated from the table by `tools/gen_ops_stub.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

from ptxgen import ir
from ptxgen.dsl.choice import Plan, accepts, plan_call
from ptxgen.dsl.names import unknown_word
from ptxgen.dsl.tensors import TensorPointer
from ptxgen.dsl.values import Bits, Pointer, Value, Var
from ptxgen.errors import TypeMismatchError, UnsupportedTargetError, shown
from ptxgen.isa.forms import form_of
from ptxgen.isa.spec import Modifier, Op
from ptxgen.isa.table import rows, rows_named
from ptxgen.register_names import REGISTERS
from ptxgen.target import Target
from ptxgen.types import REGISTER_PREFIX, ScalarType

Into: TypeAlias = Var | Sequence[Var] | None
_NO_MODIFIERS: Final[Mapping[str, Modifier]] = {}


class _OurFiles(dict[str, bool]):
    """By file name, whether the stack frames of a file belong to the DSL, not to a kernel's source code."""

    _dsl = str(Path(__file__).parent)
    _contextlib = contextmanager.__code__.co_filename  # between a `with` line and a DSL generator

    def __missing__(self, filename: str) -> bool:
        self[filename] = filename.startswith(self._dsl) or filename == self._contextlib
        return self[filename]


_OURS: Final = _OurFiles()


# A tuple of values, which is kept so that no other object gets its id; what choosing a row needs to know of
# it; the operand that it is; whether all of its values are variables.
_Vector: TypeAlias = tuple[tuple[Value, ...], tuple[object, ...], ir.Vector, bool]

# By target, the plans that it admits, by row name, kinds of the operands and modifiers. A plan does not
# depend on the kernel.
_PLANS: Final[defaultdict[Target, dict[tuple[Any, ...], Plan]]] = defaultdict(dict)


class Ops:
    """One method for each row of the instruction table; each call appends an instruction."""

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self._statements: list[ir.Statement] = []
        self._counts = dict.fromkeys(REGISTER_PREFIX, 0)
        self._guard: ir.Guard | None = None
        self._admitted = _PLANS[target]
        self._plans: dict[tuple[Any, ...], Plan] = {}  # those of them that this kernel has used
        self._vectors: dict[int, _Vector] = {}  # by id of the tuple
        self._origins: dict[tuple[int, int], ir.Origin] = {}  # by id of code and index in it
        self._call_origin: ir.Origin | None = None  # that of all instructions of a `placed`
        self._version = target.ptx  # lowest PTX version with the target and all ops used so far

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in rows():
            raise unknown_word(name, (word for word in dir(self) if not word.startswith("_")))

        def method(self: Ops, *args: Any, into: Into = None, **modifiers: Modifier) -> Any:
            return self.emit(name, args, modifiers, into=into)

        method.__name__ = name
        method.__doc__ = "\n\n".join(f"`{row.syntax}`\n\n{row.doc}" for row in rows_named(name))
        setattr(Ops, name, method)
        return method.__get__(self)  # type: ignore[no-any-return]  # a bound method

    def __dir__(self) -> list[str]:
        """The words of the DSL and all instructions, for completion."""
        return sorted({*super().__dir__(), *rows()})

    def emit(  # noqa: C901, PLR0912  # most of the time of emission is spent here, much of it on calls
        self,
        name: str,
        args: tuple[Any, ...],
        modifiers: Mapping[str, Modifier] = _NO_MODIFIERS,
        *,
        into: Into = None,
    ) -> Any:
        """Append an instruction of the row `name`; returns its result, a tuple of results, or None.

        `into` names the variable that takes the result instead of a new register, or the variables
        that take the elements of a vector result. Raises `ModifierError` for a modifier that the
        row lacks, `TypeMismatchError` for an operand that does not fit, and
        `UnsupportedTargetError` if the target has no such instruction.
        """
        kinds: list[Any] = [name, *modifiers.items()] if modifiers else [name]
        sources: list[Any] = []
        literals = []  # the positions of operands whose form depends on the row
        for arg in args:
            kind: Any = arg.__class__
            if (kind is Value or kind is Var) and arg.k is self:
                kinds.append(arg.type)
                sources.append(arg.reg)
                continue
            source: Any = None
            if kind is tuple and (known := self._vectors.get(id(arg))) is not None:
                _, kind, source, _ = known
            elif kind is not int and kind is not float:
                kind, source = self._operand(name, arg)
            if source is None:
                literals.append(len(sources))
            kinds.append(kind)
            sources.append(source)
        try:
            plan = self._plans.get(tuple(kinds))
        except TypeError:  # a modifier that cannot be hashed
            plan = None
        if plan is None:
            plan = self._plan(kinds, name, args, modifiers)
        for i in literals:
            sources[i] = plan.literal(args[i], i)
        if plan.gathers:
            self.gather(name, plan.op, sources)
        single = plan.result
        if single is None:
            result, operands = self._results(plan, sources, into)
        elif plan.count:
            result, vector = self._elements(plan, single, plan.count, into)
            operands = (vector, *sources)
        elif into is None:  # the same as `fresh`
            declared = single.register
            number = self._counts[declared]
            self._counts[declared] = number + 1
            result = Value(self, REGISTERS[declared][number], single)
            operands = (result.reg, *sources)
        else:
            if into.__class__ is not Var or into.k is not self or into.type is not single:
                self._check_into(name, single, into)
            result = into
            operands = (into.reg, *sources)
        origin = self._call_origin or self._origin_of(sys._getframe(1))
        instr = ir.Instr(plan.opcode, operands, self._guard, origin, plan.form)
        if plan.form is None:
            plan.form = form_of(instr)
        self._statements.append(instr)
        return result

    def gather(self, name: str, op: Op, sources: Sequence[ir.Operand]) -> None:
        """Check a warp-wide instruction that is about to be emitted; control flow may refuse it."""

    def append(self, opcode: str, operands: tuple[ir.Operand, ...]) -> None:
        """Append one instruction without checks, predicated if an `only_if` block is open."""
        self._statements.append(ir.Instr(opcode, operands, self._guard, self.origin(2)))

    def origin(self, depth: int = 1) -> ir.Origin:
        """The innermost stack frame outside the DSL: the line of kernel source being executed. The
        first `depth` frames, with that of this method, are known to be the DSL's.
        """
        return self._call_origin or self._origin_of(sys._getframe(depth))

    def _origin_of(self, frame: FrameType) -> ir.Origin:
        """The innermost frame outside the DSL, from this one on."""
        code = frame.f_code
        while _OURS[code.co_filename]:
            frame = frame.f_back  # type: ignore[assignment]  # code outside the DSL called it
            code = frame.f_code
        # A call is looked up by the index of its bytecode, since the line of an index is found by a
        # search of the whole function. The origin keeps the code object, and so its id.
        position = id(code), frame.f_lasti
        origin = self._origins.get(position)
        if origin is None:
            origin = self._origins[position] = ir.Origin(code, frame.f_lineno)
        return origin

    @contextmanager
    def placed(self) -> Iterator[None]:
        """A context in which all instructions get the same origin, which is looked up once. It is for methods
        of the DSL that emit many instructions and call nothing outside the DSL.
        """
        outer, self._call_origin = self._call_origin, self.origin()
        try:
            yield
        finally:
            self._call_origin = outer

    def fresh(self, type: ScalarType) -> Value:
        """A value of `type` in a new register, which no instruction has written yet."""
        declared = type.register
        number = self._counts[declared]
        self._counts[declared] = number + 1
        return Value(self, REGISTERS[declared][number], type)

    def _plan(
        self, kinds: list[Any], name: str, args: tuple[Any, ...], modifiers: Mapping[str, Modifier]
    ) -> Plan:
        """The plan of a call of a form that is new in this kernel, after a check that the target admits it.
        `kinds` is the form: the call's name, its modifiers, and the kinds of its operands.
        """
        key = tuple(kinds)
        try:
            plan = self._admitted.get(key)
        except TypeError:  # a modifier that cannot be hashed, and so is no valid choice
            plan = None
        if plan is None:
            plan = plan_call(name, args, modifiers)
            self._admit(plan.op)
            self._admitted[key] = plan
        self._version = max(self._version, plan.op.gate.ptx)
        self._plans[key] = plan
        return plan

    def _admit(self, op: Op) -> None:
        gate = op.gate
        if not gate.admits(self.target):
            only = f" (only {', '.join(gate.owners)})" if gate.only else ""
            raise UnsupportedTargetError(
                f"{op.opcode} needs sm_{gate.sm}{only} / PTX {gate.ptx[0]}.{gate.ptx[1]}, "
                f"but kernel {self.name!r} targets {self.target.name}"
            )

    def _foreign(self, name: str, value: Value) -> TypeMismatchError:
        return TypeMismatchError(
            f"{name}: {value!r} belongs to kernel {value.k.name!r}, not to {self.name!r}; "
            "a value lives in the KernelBuilder that made it"
        )

    def _check_into(self, name: str, result: ScalarType, into: object) -> None:
        if not isinstance(into, Var):
            raise TypeMismatchError(f"{name}: into= must be a Var, made by k.var, got {shown(into)}")
        if into.k is not self:
            raise self._foreign(name, into)
        if not accepts(result, into):
            raise TypeMismatchError(f"{name}: the result is {result}, but into= names {into!r}")

    def _elements(
        self, plan: Plan, type: ScalarType, count: int, into: object
    ) -> tuple[Sequence[Value], ir.Vector]:
        """The `count` values of the vector result, those of `into`, checked, or new ones; and the operand."""
        if into is None:
            values = tuple([self.fresh(type) for _ in range(count)])
            return values, ir.Vector(tuple([v.reg for v in values]))
        if (known := self._vectors.get(id(into))) is not None:
            values, kinds, operand, are_variables = known
            if are_variables and kinds == (type,) * count:
                return values, operand
        name = plan.op.row.name
        if not isinstance(into, (tuple, list)) or len(into) != count:
            raise TypeMismatchError(
                f"{name}: the result is a vector, so into= must be {count} variables, got {shown(into)}"
            )
        for variable in into:
            # The usual case at once; the check knows other types of the same size, and what is wrong.
            if variable.__class__ is not Var or variable.k is not self or variable.type is not type:
                self._check_into(name, type, variable)
        return tuple(into), ir.Vector(tuple([v.reg for v in into]))

    def _results(self, plan: Plan, sources: list[Any], into: object) -> tuple[Any, tuple[ir.Operand, ...]]:
        """The results of an op, in the form that `emit` returns, and its operands as printed."""
        dests = plan.op.dests
        if into is not None and (len(dests) != 1 or not dests[0].count):
            raise TypeMismatchError(f"{plan.op.row.name}: into= is for a single result (got {shown(into)})")
        if not plan.has_appended_operands:
            return None, tuple(sources)
        results: list[Any] = []
        operands: list[ir.Operand] = []
        remaining, written = iter(sources), iter(plan.dest_types)
        for bound in plan.op.operands:
            if bound.literal is not None:
                operands.append(ir.IntImm(bound.literal))
            elif not bound.written:
                operands += itertools.islice(remaining, 1)
            elif bound.count:
                values, vector = self._elements(plan, next(written), bound.count, into)
                results.append(values)
                operands.append(vector)
            else:
                value = self.fresh(next(written))
                results.append(value)
                first = operands.pop() if bound.second else None
                operands.append(ir.Pair(first, value.reg) if isinstance(first, ir.Reg) else value.reg)
        if not results:
            return None, tuple(operands)
        return results[0] if len(results) == 1 else tuple(results), tuple(operands)

    def _operand(self, name: str, arg: Any) -> tuple[object, ir.Operand | None]:
        """The properties of an argument that is no `Value` by which a row is chosen and checked, and its
        operand; None for literals, whose form depends on the row.
        """
        if isinstance(arg, Value):
            if arg.k is not self:
                raise self._foreign(name, arg)
            return _kind(arg), arg.reg
        if isinstance(arg, Pointer):
            base = arg.base
            if isinstance(base, Value) and base.k is not self:
                raise self._foreign(name, base)
            dims = len(arg.coordinates) if isinstance(arg, TensorPointer) else 0
            return (Pointer, arg.space, base.type if isinstance(base, Value) else None, dims), arg.address
        if isinstance(arg, (tuple, list)):
            return self._vector_operand(name, arg)
        return arg.__class__, arg if isinstance(arg, (ir.Special, ir.Symbol)) else None

    def _vector_operand(
        self, name: str, items: tuple[Any, ...] | list[Any]
    ) -> tuple[tuple[object, ...], ir.Vector | None]:
        """`_operand` of a tuple or a list, whose items are values and numbers."""
        kinds: list[object] = []
        registers: list[ir.Reg] = []
        variables = plain = 0
        for item in items:
            kind = item.__class__
            if kind is Value and item.k is self:
                plain += 1
                kinds.append(item.type)
                registers.append(item.reg)
                continue
            if isinstance(item, Value):
                if item.k is not self:
                    raise self._foreign(name, item)
                variables += kind is Var
                kind = _kind(item)
                registers.append(item.reg)
            kinds.append(kind)
        if len(registers) < len(items):
            return tuple(kinds), None
        operand = tuple(kinds), ir.Vector(tuple(registers))
        # A tuple of these never changes; other classes may refuse to give their register at times.
        if isinstance(items, tuple) and variables + plain == len(items):
            self._vectors[id(items)] = (items, *operand, not plain)
        return operand


def _kind(value: Value) -> object:
    """The properties of a value that the choice of a row depends on."""
    return (value.type, value.reg.declared) if isinstance(value, Bits) else value.type
