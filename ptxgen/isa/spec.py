"""How one PTX instruction is declared, and everything that is derived from the declaration itself.

An instruction is declared by copying its line from the PTX manual and writing its meaning as a
numpy function below (`docs/adding-an-instruction.md`). The small syntax language:

* opcode: pieces joined by dots. A piece whose name is a keyword argument of `@inst` is a *slot*
  with those choices, the first being the default; `{.name}` is optional: a slot if `name` is a
  keyword argument (default: absent), else a *flag*. Pieces that are neither are printed as they
  stand.
* operands: `name:type*count`, comma separated. `d`, `p` and `q` are written, everything else is
  read; `[name]` is an address; a decimal number is a literal; `d|p:pred` is a pair of results;
  `{, b}` at the end is optional; `*vec` is a vector as wide as the slot `vec` says (`v4`, `2d`) or
  as the function `vec` among `counts` does, `*2` one of fixed width; `[name*2]` is a tensor map's
  address, or a texture's handle, with so many coordinates; they are s32 unless `/u32.f32` names
  their types, the last of which is repeated. The type is a slot's name, a type's name, `wide`
  (twice as wide as the slot `type`), `imm` (an integer literal only), `label` or `args` (the
  parenthesised ones of a call); when it is left out it is the slot `type`, or else the opcode's
  last piece.

The function takes each operand read and each modifier by name, and returns what is written: one
value, a tuple of lanes for a vector, or a tuple with one entry for each operand of several. A
function that takes a result by name, too, gets what its registers hold before. An instruction that
waits for other threads may return its results only when it goes on: then the function returns
nothing, and `resume`, called with the same arguments, what is written. An address
with coordinates comes as a pair: the address and the tuple of coordinates.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.errors import ModifierError, did_you_mean, shown
from ptxgen.types import ScalarType, scalar_type


class Effect(enum.Enum):
    """What an instruction touches besides its result registers."""

    NONE = "registers only"
    READ = "reads memory"
    WRITE = "writes memory"
    ATOMIC = "reads and writes memory in one step"
    ASYNC = "starts, groups or awaits an asynchronous copy"
    BARRIER = "waits for other threads"
    FENCE = "orders memory accesses"
    ADDRESS = "asks where a state space lies"
    CARRY = "reads or writes the carry flag"
    WARP = "exchanges values between the lanes of a warp"
    CONTROL = "changes the flow of control"
    TEXTURE = "reads or writes a texture or a surface"


@dataclass(frozen=True, slots=True)
class Gate:
    """The first PTX version and the first GPU that have something; `only` lists the sole targets
    that do, if not empty.
    """

    ptx: tuple[int, int] = (1, 0)
    sm: int = 10
    only: frozenset[str] = frozenset()

    def join(self, other: Gate) -> Gate:
        """The gate of something that needs both."""
        if other is ANY or other == self:
            return self
        if self is ANY:
            return other
        only = (self.only & other.only) if self.only and other.only else self.only | other.only
        return Gate(max(self.ptx, other.ptx), max(self.sm, other.sm), only)

    def admits(self, target_name: str, sm: int) -> bool:
        """Whether the target's GPUs have it; its PTX version is a matter of the module."""
        return sm >= self.sm and (not self.only or target_name in self.only)


ANY: Final = Gate()


def gate(*, ptx: tuple[int, int] = (1, 0), sm: int = 10, only: Iterable[str] = ()) -> Gate:
    """What one choice of a slot needs beyond its row, as in `type={f32: None, bf16: …}`."""
    return Gate(ptx, sm, frozenset(only))


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a row, as declared."""

    name: str
    type: str  # a slot, a type's name, "wide", "imm", "label" or "args"; "" for a literal
    written: bool = False
    address: bool = False
    optional: bool = False
    count: str = ""  # "", a number, or the name of what says the vector's width
    literal: int | None = None
    second: bool = False  # the `p` of `d|p`: shares its position with the operand before it
    along: str = "s32"  # the types of coordinates, dots between; the last one's is repeated


@dataclass(frozen=True, slots=True)
class Piece:
    """One dot-separated piece of an opcode as declared."""

    name: str
    slot: bool
    optional: bool


Modifier = str | ScalarType | bool | None


@dataclass(frozen=True, slots=True)
class BoundOperand:
    """An operand once the modifiers are chosen. `type` is None for a literal integer, a label and
    arguments.
    """

    name: str
    type: ScalarType | None
    written: bool
    address: bool
    optional: bool
    count: int  # 0: a single value; otherwise a vector of so many
    literal: int | None
    kind: str  # "value", "imm", "label", "args"
    second: bool
    along: tuple[ScalarType, ...] = ()  # of coordinates


class Op:
    """A row with its modifiers chosen: the unit the generator, the parser, the verifier and the
    interpreter work with.

    There is one object per (row, modifiers), so identity is equality.
    """

    __slots__ = (
        "dests", "effect", "flat", "gate", "modifiers", "opcode", "operands", "pairs", "required",
        "row", "sources",
    )  # fmt: skip

    def __init__(
        self,
        row: Inst,
        opcode: str,
        modifiers: Mapping[str, Modifier],
        operands: tuple[BoundOperand, ...],
        gate: Gate,
    ) -> None:
        self.row = row
        self.opcode = opcode
        self.modifiers = modifiers
        self.operands = operands
        self.gate = gate
        self.effect = row.effect
        self.dests = tuple(o for o in operands if o.written)
        self.sources = tuple(o for o in operands if not o.written)
        self.flat = tuple(o for o in operands if not o.second)  # one entry per printed operand
        self.required = sum(1 for o in self.flat if not o.optional)
        seconds = [i for i, o in enumerate(operands) if o.second]
        self.pairs = frozenset(
            i - 1 - n for n, i in enumerate(seconds)
        )  # positions printed as `d|p`

    def __repr__(self) -> str:
        return f"Op({self.opcode!r} of {self.row.name})"


@dataclass(frozen=True, slots=True, eq=False)
class Inst:
    """One row of the table: all that is known of an instruction."""

    name: str  # dsl: k.fma(...)
    syntax: str  # docs, error messages
    pieces: tuple[Piece, ...]  # text: print; parse: recognise
    operands: tuple[Operand, ...]  # dsl: arity, types; verify: the same
    choices: Mapping[str, Mapping[Modifier, Gate]]  # legal modifier values, default first
    gate: Gate  # the row's own; choices may add to it
    effect: Effect
    max_ulp: float  # promised accuracy where the result is not exact
    accuracy: str  # the manual's words for it
    semantics: Callable[..., Any]
    parameters: frozenset[str]  # what that takes, by name
    section: str  # where the PTX manual describes it
    counts: Mapping[str, Callable[[Mapping[str, Modifier]], int]]  # widths of vectors, by name
    resume: Callable[..., Any] | None  # gives the results once the threads go on
    _ops: dict[tuple[Modifier, ...], Op]

    @property
    def doc(self) -> str:
        """The meaning in one sentence."""
        return inspect.cleandoc(self.semantics.__doc__ or "")

    def resolve(self, modifiers: Mapping[str, Modifier]) -> Op:
        """The `Op` for these modifiers; those left out take their defaults.

        Raises `ModifierError` for a modifier or a value that the row does not have.
        """
        for name, value in modifiers.items():
            if name not in self.choices:
                raise ModifierError(
                    f"{self.name} has no modifier {name!r}{did_you_mean(name, self.choices)} "
                    f"(syntax: {self.syntax})"
                )
            plain = value is None or isinstance(value, str | int | ScalarType)
            if not plain or value not in list(self.choices[name]):
                legal = [str(c) for c in self.choices[name] if c is not None]
                if isinstance(value, str) and any(
                    isinstance(c, ScalarType) for c in self.choices[name]
                ):
                    raise ModifierError(
                        f"{self.name}: {name} must be a type of ptxgen.types, "
                        f"got the text {value!r}"
                    )
                said = value if isinstance(value, str) else shown(value)
                raise ModifierError(
                    f"{self.name}: {name} must be one of {', '.join(legal)}, got {said}"
                    f"{did_you_mean(said, legal)} (syntax: {self.syntax})"
                )
        key = tuple(
            _choice(c, modifiers[s]) if s in modifiers else next(iter(c))
            for s, c in self.choices.items()
        )
        found = self._ops.get(key)
        if found is None:
            found = self._ops[key] = self._bind(dict(zip(self.choices, key, strict=True)))
        return found

    def _bind(self, chosen: dict[str, Modifier]) -> Op:
        printed, gate = [], self.gate
        for piece in self.pieces:
            value: Modifier = chosen[piece.name] if piece.slot else piece.name
            if value is None or value is False:
                continue
            printed.append(piece.name if value is True else str(value))
        for slot, value in chosen.items():
            gate = gate.join(self.choices[slot][value])
        operands = tuple(_bound(o, chosen, printed[-1], self.counts) for o in self.operands)
        return Op(self, ".".join(printed), chosen, operands, gate)

    def all_ops(self) -> Iterable[Op]:
        """Every combination of modifiers, in declared order."""

        def walk(slots: list[str], chosen: dict[str, Modifier]) -> Iterable[Op]:
            if not slots:
                yield self.resolve(chosen)
                return
            for value in self.choices[slots[0]]:
                yield from walk(slots[1:], {**chosen, slots[0]: value})

        return walk(list(self.choices), {})


def _choice(choices: Mapping[Modifier, Gate], value: Modifier) -> Modifier:
    """The choice that equals the value: True for 1."""
    return next(choice for choice in choices if choice == value)


_WIDE: Final = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _bound(
    operand: Operand,
    chosen: Mapping[str, Modifier],
    last: str,
    counts: Mapping[str, Callable[[Mapping[str, Modifier]], int]],
) -> BoundOperand:
    kind, bound = "value", None
    if operand.literal is not None or operand.type == "imm":
        kind = "imm"
    elif operand.type in ("label", "args"):
        kind = operand.type
    elif operand.type == "wide":
        bound = scalar_type(_WIDE[str(chosen["type"])])
    elif operand.type in chosen:
        bound = scalar_type(str(chosen[operand.type]))
    else:
        bound = scalar_type(operand.type or str(chosen.get("type", last)))
    if operand.count in counts:
        count = counts[operand.count](chosen)
    else:
        width = chosen.get(operand.count, operand.count)
        count = int(_NOT_DIGITS.sub("", str(width))) if width else 0
    along: tuple[ScalarType, ...] = ()
    if operand.address and count:
        types = [scalar_type(str(chosen.get(word, word))) for word in operand.along.split(".")]
        along = (*types, *types[-1:] * count)[:count]
    return BoundOperand(
        operand.name, bound, operand.written, operand.address, operand.optional, count,
        operand.literal, kind, operand.second, along,
    )  # fmt: skip


# What `ptxgen.isa.table` looks things up in.
ROWS: dict[str, list[Inst]] = {}  # by DSL name
HEADS: dict[str, list[Inst]] = {}  # by first piece of the opcode
RECOGNISED: dict[str, tuple[Op, ...]] = {}  # by opcode, as far as asked for

_NOT_DIGITS: Final = re.compile(r"\D")
_PIECE: Final = re.compile(r"\{\.([\w:]+)\}|\.?([\w:]+)")
_OPERAND: Final = re.compile(
    r"(?P<open>\[)?(?P<name>\w+)(?::(?P<type>\w+))?(?:\*(?P<count>\w+))?(?:/(?P<along>[\w.]+))?\]?"
)
_WRITTEN: Final = frozenset("dpq")
_VARIADIC: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def inst(
    syntax: str,
    *,
    name: str = "",
    ptx: tuple[int, int] = (1, 0),
    sm: int = 10,
    only: Iterable[str] = (),
    effect: Effect = Effect.NONE,
    max_ulp: float = 0.0,
    accuracy: str = "",
    section: str = "",
    counts: Mapping[str, Callable[[Mapping[str, Modifier]], int]] | None = None,
    resume: Callable[..., Any] | None = None,
    **choices: Iterable[Modifier] | Mapping[Any, Gate | None],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an instruction; see the module's docstring for `syntax`.

    `choices` gives the legal values of each slot, the first being the default: a sequence, or a
    mapping from value to the `gate` that this value adds. `ptx`, `sm` and `only` are the row's own
    gate. `section` names the manual's section; `counts` and `resume` are described at the module's
    head. Raises `ValueError` at import for a slot without choices, a missing docstring, a syntax
    declared twice, and a function whose parameters are not exactly the operands read and the
    modifiers declared (slots that are the type of an operand may be left out: the lanes carry their
    dtype).

    Several rows may share a `name`, as the manual gives several lines to one instruction: the
    first whose slots admit the operands' types is meant. `tests/isa` proves that no two rows print
    the same opcode for the same operands.
    """

    def declare(semantics: Callable[..., Any]) -> Callable[..., Any]:
        opcode, _, operand_text = syntax.partition(" ")
        legal = {slot: _gated(values) for slot, values in choices.items()}
        pieces = tuple(_pieces(opcode, legal))
        for piece in pieces:
            if piece.optional:
                given = legal.get(piece.name, {True: ANY})
                absent = False if set(given) == {True} else None
                legal[piece.name] = {absent: ANY, **given}
        in_opcode = {p.name for p in pieces if p.slot}
        operands = _operands(operand_text)
        row = Inst(
            name or pieces[0].name,
            syntax, pieces, operands,
            {s: legal[s] for s in (*(p.name for p in pieces if p.slot),)},
            Gate(ptx, sm, frozenset(only)), effect, max_ulp, accuracy, semantics,
            _parameters(semantics), section, counts or {}, resume, {},
        )  # fmt: skip
        _check(row, choices, in_opcode)
        ROWS.setdefault(row.name, []).append(row)
        HEADS.setdefault(pieces[0].name, []).append(row)
        RECOGNISED.clear()
        return semantics

    return declare


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    code = getattr(function, "__code__", None)
    if code is None or vars(function) or code.co_flags & _VARIADIC:
        return frozenset(inspect.signature(function).parameters)
    # As many rows as there are, this must be quick: every process that emits PTX waits for it.
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _gated(values: Iterable[Modifier] | Mapping[Any, Gate | None]) -> dict[Modifier, Gate]:
    if isinstance(values, Mapping):
        return {value: added or ANY for value, added in values.items()}
    return dict.fromkeys(values, ANY)


def _pieces(opcode: str, slots: Mapping[str, object]) -> Iterable[Piece]:
    for optional, plain in _PIECE.findall(opcode):
        if optional:
            yield Piece(optional, slot=True, optional=True)
        else:
            yield Piece(plain, slot=plain in slots, optional=False)


@functools.cache  # many rows have the operands of others
def _operands(text: str) -> tuple[Operand, ...]:
    found = []
    required, _, tail = text.partition("{,")
    for optional, part in ((False, required), (True, tail.rstrip("} "))):
        for word in filter(None, (w.strip() for w in part.split(","))):
            if word.isdigit():
                found.append(Operand(word, "", literal=int(word)))
                continue
            for position, half in enumerate(word.split("|")):
                m = _OPERAND.fullmatch(half)
                if m is None:
                    raise ValueError(f"cannot read the operand {word!r} in {text!r}")
                found.append(Operand(
                    m["name"], m["type"] or "", m["name"] in _WRITTEN and not m["open"],
                    bool(m["open"]), optional, m["count"] or "", second=position > 0,
                    along=m["along"] or "s32",
                ))  # fmt: skip
    return tuple(found)


def _check(row: Inst, choices: Mapping[str, object], in_opcode: set[str]) -> None:
    where = f"@inst({row.syntax!r})"
    if not row.semantics.__doc__:
        raise ValueError(
            f"{where}: the function needs a docstring that says what the instruction means"
        )
    unused = set(choices) - in_opcode
    if unused:
        raise ValueError(f"{where}: choices for {sorted(unused)}, which are not in the opcode")
    if any(not values for values in row.choices.values()):
        raise ValueError(f"{where}: a slot without choices")
    if any(
        row.syntax == other.syntax and row.choices == other.choices
        for other in ROWS.get(row.name, ())
    ):
        raise ValueError(f"{where}: declared twice")
    want = {o.name for o in row.operands if not o.written and o.literal is None}
    want |= set(row.choices)
    of_types = {
        s for s, values in row.choices.items() if all(isinstance(v, ScalarType) for v in values)
    }
    got = row.parameters - {"machine"}
    results = {o.name for o in row.operands if o.written}
    if not want - of_types <= got <= want | results:
        raise ValueError(
            f"{where}: the function takes {sorted(got)}, the instruction has {sorted(want)}"
        )
    if (row.effect is not Effect.NONE) != ("machine" in row.parameters):
        raise ValueError(
            f"{where}: an effect other than NONE and the parameter 'machine' go together"
        )
