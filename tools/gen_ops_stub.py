"""Write `ptxgen/dsl/ops.pyi`, the types of the table's methods, or check that it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

import ptxgen.isa  # noqa: F401  # declares the rows
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from ptxgen.isa.spec import Inst, Modifier, Operand
from ptxgen.isa.table import rows
from ptxgen.types import ScalarType, pred
from tools.commands.generated_file import write_or_check

STUB = Path(__file__).resolve().parent.parent / "ptxgen" / "dsl" / "ops.pyi"

_VEC = "vec"  # the slot that makes an operand a vector


@dataclass(frozen=True)
class Slot:
    """A keyword of a method: its legal values, and whether operands imply it if it is left out."""

    name: str
    choices: tuple[Modifier, ...]
    inferred: bool

    def __str__(self) -> str:
        first = self.choices[0]
        if isinstance(first, bool):
            kind = "bool" if len(self.choices) > 1 else f"Literal[{first}]"
            return f"{self.name}: {kind} = {first}"
        words = [f'"{c}"' for c in self.choices if isinstance(c, str)]
        kinds = [f"Literal[{', '.join(words)}]"] if words else []
        kinds += ["ScalarType"] if any(isinstance(c, ScalarType) for c in self.choices) else []
        kinds += ["None"] if None in self.choices else []
        # An inferred choice, or a type (which a stub cannot write as a default), has no default.
        plain = not self.inferred and not isinstance(first, ScalarType)
        default = (f'"{first}"' if isinstance(first, str) else str(first)) if plain else "..."
        required = first is not None and self.name == _VEC  # this signature is that with a vector
        return f"{self.name}: {' | '.join(kinds)}" + ("" if required else f" = {default}")

    def join(self, other: Slot) -> Slot:
        """A slot with the choices of this slot and the other."""
        choices = tuple(dict.fromkeys((*self.choices, *other.choices)))
        return Slot(self.name, choices, self.inferred and other.inferred)

    def within(self, other: Slot) -> bool:
        """Whether, for a type checker, the other slot takes all choices of this one."""
        ours, theirs = (
            {ScalarType if isinstance(c, ScalarType) else c for c in slot.choices} for slot in (self, other)
        )
        return ours <= theirs


@dataclass(frozen=True)
class Signature:
    """One way to call a method."""

    operands: tuple[str, ...]
    result: str
    into: str  # type of an argument that receives the result, instead of new registers; or empty
    slots: tuple[Slot, ...]
    lines: tuple[str, ...]  # lines of the docstring

    @property
    def parameters(self) -> list[str]:
        """The parameters as they are printed."""
        into = [f"into: {self.into} | None = None"] if self.into else []
        keywords = [*into, *map(str, self.slots)]
        positional = [*self.operands, "/"] if self.operands else []
        return ["self", *positional, *(["*", *keywords] if keywords else [])]

    @property
    def doc(self) -> str:
        """The docstring: the syntax and meaning of each row."""
        return "\n\n        ".join(self.lines) + ("\n        " if len(self.lines) > 1 else "")

    def merges_with(self, other: Signature) -> bool:
        """Whether the two signatures differ only in the choices of their keywords."""
        return (
            self.operands == other.operands
            and self.result == other.result
            and [s.name for s in self.slots] == [s.name for s in other.slots]
        )

    def merge(self, other: Signature) -> Signature:
        """One signature that accepts the calls of both; only if `merges_with`."""
        slots = tuple(a.join(b) for a, b in zip(self.slots, other.slots, strict=True))
        lines = tuple(dict.fromkeys((*self.lines, *other.lines)))
        return replace(self, slots=slots, lines=lines)

    def covered_by(self, other: Signature) -> bool:
        """Whether a type checker would never choose this signature if it follows `other`."""
        theirs = {s.name: s for s in other.slots}
        return (
            self.operands == other.operands
            and self.result == other.result
            and all(s.name in theirs and s.within(theirs[s.name]) for s in self.slots)
        )


@dataclass(frozen=True)
class Method:
    """A method and all ways to call it."""

    name: str
    signatures: tuple[Signature, ...]

    @property
    def overloaded(self) -> bool:
        """Whether the method has several signatures."""
        return len(self.signatures) > 1


@dataclass(frozen=True)
class EmitForm:
    """The names of all rows with results of one shape, for `Ops.emit`."""

    names: list[str]
    result: str
    into: str


# By the type of a result: the type of an argument that receives it instead of new registers.
_INTO: Final = {"Value": "Var", "tuple[Value, ...]": "Sequence[Var]"}


def render_stub() -> str:
    """The text of ptxgen/dsl/ops.pyi."""
    methods = [method_of(name, named) for name, named in sorted(rows().items())]
    return load_template("ops.pyi.j2").render(emits=_emit_forms(methods), methods=methods)


def method_of(name: str, named: Sequence[Inst]) -> Method:
    """The method for the rows of one name; rows with equal signatures are merged."""
    signatures: list[Signature] = []
    for signature in (s for row in named for s in _signatures(row)):
        for i, known in enumerate(signatures):
            if known.merges_with(signature):
                signatures[i] = known.merge(signature)
                break
        else:
            signatures.append(signature)
    remaining = list(signatures)
    for signature in signatures:
        others = [s for s in remaining if s is not signature]
        wider = next((s for s in others if signature.covered_by(s)), None)
        if wider is not None:
            lines = tuple(dict.fromkeys((*wider.lines, *signature.lines)))
            remaining = [replace(s, lines=lines) if s is wider else s for s in others]
    return Method(name, tuple(remaining))


def _emit_forms(methods: Sequence[Method]) -> list[EmitForm]:
    names: dict[str, list[str]] = {}
    intos: dict[str, set[str]] = {}
    for method in methods:
        results = list(dict.fromkeys(s.result for s in method.signatures))
        shape = " | ".join(sorted(results, key=len))
        names.setdefault(shape, []).append(method.name)
        intos.setdefault(shape, {"None"}).update(s.into for s in method.signatures if s.into)
    return [
        EmitForm(members, shape, " | ".join(sorted(intos[shape], key=lambda t: (t == "None", t))))
        for shape, members in sorted(names.items())
    ]


def _signatures(row: Inst) -> Iterator[Signature]:
    """The signatures of a row: without a vector and, if an operand can be one, with a vector."""
    if any(o.count == _VEC for o in row.operands):
        yield _signature(row, vector=False)
        yield _signature(row, vector=True)
    else:
        yield _signature(row, vector=False)


def _signature(row: Inst, *, vector: bool) -> Signature:
    written = [o for o in row.operands if o.written]
    read = [o for o in row.operands if not o.written and o.literal is None]
    results = ["tuple[Value, ...]" if _is_vector(o, vector) else "Value" for o in written]
    result = {0: "None", 1: results[0] if results else ""}.get(len(results), f"tuple[{', '.join(results)}]")
    slots = []
    for name, choices in row.choices.items():
        values = tuple(choices)
        if name == _VEC:
            values = tuple(v for v in values if v is not None) if vector else (None,)
        slots.append(Slot(name, values, _is_inferred(row, name)))
    doc = f"{row.doc.replace(chr(10), ' ')} `{row.syntax}`"
    types = [
        f"{name}: {', '.join(map(str, choices))}."
        for name, choices in row.choices.items()
        if any(isinstance(c, ScalarType) for c in choices)
    ]
    return Signature(
        tuple(f"{o.name}: {_operand_type(row, o, vector)}" for o in read),
        result,
        _INTO.get(result, ""),
        tuple(slots),
        (" ".join([doc, *types]),),
    )


def _is_vector(operand: Operand, vector: bool) -> bool:
    return operand.count != "" and (vector or operand.count != _VEC)


def _is_inferred(row: Inst, slot: str) -> bool:
    """Whether the types of read operands, or the space of a pointer, imply the slot."""
    read = [o for o in row.operands if not o.written and o.literal is None]
    if slot == "space":
        return any(o.address for o in read)
    return any((o.type or "type") == slot and not o.address for o in read)


def _operand_type(row: Inst, operand: Operand, vector: bool) -> str:
    if operand.address:
        kind = "Pointer"
    elif operand.type == "imm":
        kind = "int"
    elif operand.type == "label":
        kind = "ir.Symbol"
    else:
        kind = "Scalar"
        if operand.type == pred.name or set(row.choices.get(operand.type or "type", ())) == {pred}:
            kind = "Value"  # PTX has no literal for a predicate
        elif row.name == "mov":
            kind = "Scalar | ir.Special | ir.Symbol"
        if _is_vector(operand, vector):
            kind = f"Sequence[{kind}]"
    return f"{kind} = ..." if operand.optional else kind


def main(argv: Sequence[str] | None = None) -> int:
    """Write the stub and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_ops_stub.py", __doc__, STUB, "the instruction table says", render_stub)


if __name__ == "__main__":
    sys.exit(quietly(main))
