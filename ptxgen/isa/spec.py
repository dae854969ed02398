"""The data of the instruction table: rows as declared, and ops, which are rows with their modifiers
chosen.

`ptxgen.isa.declare` makes rows from the manual's lines, `ptxgen.isa.table` finds them.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from ptxgen.errors import ModifierError, did_you_mean, shown
from ptxgen.records import dataclass
from ptxgen.target import Target, has_features, target_number
from ptxgen.types import ScalarType, byte, scalar_type


class Effect(enum.Enum):
    """The effect of an instruction on anything but its result registers."""

    NONE = "registers only"
    READ = "reads memory"
    WRITE = "writes memory"
    ATOMIC = "reads and writes memory in one step"
    ASYNC = "starts, groups or awaits an asynchronous copy"
    BARRIER = "waits for other threads"
    FENCE = "orders memory accesses"
    ADDRESS = "converts or tests addresses of state spaces"
    CARRY = "reads or writes the carry flag"
    WARP = "exchanges values between the lanes of a warp"
    CONTROL = "changes the flow of control"
    TEXTURE = "reads or writes a texture or a surface"


# Effects of instructions that change nothing but their result registers, which are functions of the
# registers that their operands name.
OF_REGISTERS: Final = frozenset({Effect.NONE, Effect.ADDRESS})
# Effects of instructions whose results are functions of registers and the carry flag.
PURE: Final = OF_REGISTERS | {Effect.CARRY}


@dataclass(frozen=True, slots=True)
class Gate:
    """The first PTX version and the first GPU with a feature. If `only` is not empty, the feature is specific
    to architectures or families: it is one of those that PTX has for one of these `a` and `f` targets.
    """

    ptx: tuple[int, int] = (1, 0)
    sm: int = 10
    only: frozenset[str] = frozenset()

    def join(self, other: Gate) -> Gate:
        """The gate of an instruction that needs the features of both gates."""
        if other is ANY or other == self:
            return self
        if self is ANY:
            return other
        only = self.only | other.only
        if self.only and other.only:
            both = ((self.only, other.only), (other.only, self.only))
            only = frozenset(x for a, b in both for x in a if any(has_features(x, y) for y in b))
        return Gate(max(self.ptx, other.ptx), max(self.sm, other.sm), only)

    def admits(self, target: Target) -> bool:
        """Whether the target has the feature; the PTX version is checked with the module."""
        return target.sm >= self.sm and (not self.only or any(map(target.has_features_of, self.only)))

    @property
    def owners(self) -> list[str]:
        """The architectures and the families in `only`, as texts such as `sm_90a` and `family sm_100f`."""
        names = sorted(self.only, key=lambda name: (target_number(name), name))
        return [f"family {name}" if name.endswith("f") else name for name in names]

    def __str__(self) -> str:
        first = f"PTX {self.ptx[0]}.{self.ptx[1]}, sm_{self.sm}"
        return f"{first}, only {', '.join(self.owners)}" if self.only else first


# The families with tensor memory and pairs of CTAs, and all since Blackwell.
TENSOR_FAMILIES: Final = ("sm_100f", "sm_110f")
BLACKWELL: Final = (*TENSOR_FAMILIES, "sm_120f")
ANY: Final = Gate()


def gate(*, ptx: tuple[int, int] = (1, 0), sm: int = 10, only: Iterable[str] = ()) -> Gate:
    """The gate of one choice of a slot, on top of the row's gate, as in `type={f32: None, bf16: …}`."""
    return Gate(ptx, sm, frozenset(only))


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a row, as declared."""

    name: str
    type: str  # a slot, a type's name, "wide", "imm", "label" or "args"; "" for a literal
    written: bool = False
    address: bool = False
    optional: bool = False
    count: str = ""  # "", a number, or the name of a slot or function that gives the vector's width
    literal: int | None = None
    second: bool = False  # the `p` of `d|p`: shares its position with the operand before it
    along: str = "s32"  # the types of coordinates, separated by dots; the last one is repeated


@dataclass(frozen=True, slots=True)
class Piece:
    """One dot-separated piece of an opcode as declared."""

    name: str
    slot: bool
    optional: bool


Modifier = str | ScalarType | bool | None


@dataclass(frozen=True, slots=True)
class BoundOperand:
    """An operand after the modifiers have been chosen. `type` is None for a literal integer, a
    label and arguments.
    """

    name: str
    type: ScalarType | None
    written: bool
    address: bool
    optional: bool
    count: int  # 0: a single value; otherwise the width of the vector
    literal: int | None
    kind: str  # "value", "imm", "label", "args"
    second: bool
    along: tuple[ScalarType, ...] = ()  # types of the coordinates


@dataclass(frozen=True, slots=True)
class Rule:
    """Where undefined bits of the operands `carried` go; an instruction must not have any other undefined
    operand. If `carried` is None, all operands are carried in an instruction without effects, and none in
    another.

    `bits` computes the undefined bits of the results from a `ptxgen.isa.undefined.Flow`, in the form in which
    the row's function gives the results: lanes of bits, or bool lanes that stand for all bits of a result.
    """

    bits: Callable[[Any], Any] | None = None
    carried: tuple[str, ...] | None = None
    vectors: bool = False  # whether a carried operand counts only if it is a vector of registers

    def follows(self, *, pure: bool) -> bool:
        """Whether undefined bits of any operand, or of memory, may go to the results; `pure`: without
        effects.
        """
        return pure or self.carried is not None

    def carries(self, operand: BoundOperand, *, pure: bool) -> bool:
        """Whether undefined bits of an operand go to the results, in an instruction without effects (`pure`)
        or with some.
        """
        if self.carried is None or pure:
            return pure and not operand.address
        return operand.name in self.carried and (operand.count > 0 or not self.vectors)


class Op:
    """A row with its modifiers chosen: the unit that the generator, the parser, the verifier and
    the interpreter work with.

    There is one object for each row and choice of modifiers, so identity is equality.
    """

    __slots__ = (
        "dests",
        "effect",
        "flat",
        "gate",
        "modifiers",
        "opcode",
        "operands",
        "pairs",
        "required",
        "row",
        "sources",
    )

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
        self.pairs = frozenset(i - 1 - n for n, i in enumerate(seconds))  # positions printed as `d|p`

    def __repr__(self) -> str:
        return f"Op({self.opcode!r} of {self.row.name})"


@dataclass(frozen=True, slots=True, eq=False)
class Inst:
    """One row of the table: all data of an instruction."""

    name: str  # dsl: k.fma(...)
    syntax: str  # docs, error messages
    pieces: tuple[Piece, ...]  # text: print; parse: recognise
    operands: tuple[Operand, ...]  # dsl: arity, types; verify: the same
    choices: Mapping[str, Mapping[Modifier, Gate]]  # legal modifier values, default first
    gate: Gate  # the row's own; choices may add to it
    effect: Effect
    max_ulp: float  # largest error in ulp; 0 if the result is exact
    accuracy: str  # the accuracy in the manual's words
    semantics: Callable[..., Any]
    parameters: frozenset[str]  # its parameters, by name: operands, modifiers, the machine
    section: str  # where the PTX manual describes it
    counts: Mapping[str, Callable[[Mapping[str, Modifier]], int]]  # widths of vectors, by name
    resume: Callable[..., Any] | None  # returns the results when the threads go on
    undefined: Rule  # sanitizer: where undefined bits of the operands go
    unmodelled: str  # the reason why the interpreter refuses the instruction; empty if it does not
    _doc: str
    _ops: dict[tuple[Modifier, ...], Op]

    @property
    def doc(self) -> str:
        """The description of the instruction in one sentence."""
        return inspect.cleandoc(self._doc)

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
                if isinstance(value, str) and any(isinstance(c, ScalarType) for c in self.choices[name]):
                    raise ModifierError(
                        f"{self.name}: {name} must be a type of ptxgen.types, got the text {value!r}"
                    )
                text = value if isinstance(value, str) else shown(value)
                raise ModifierError(
                    f"{self.name}: {name} must be one of {', '.join(legal)}, got {text}"
                    f"{did_you_mean(text, legal)} (syntax: {self.syntax})"
                )
        key = tuple(
            _choice(c, modifiers[s]) if s in modifiers else next(iter(c)) for s, c in self.choices.items()
        )
        op = self._ops.get(key)
        if op is None:
            op = self._ops[key] = self._bind(dict(zip(self.choices, key, strict=True)))
        return op

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


_NOT_DIGITS: Final = re.compile(r"\D")
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
    elif operand.type == "byte":
        bound = byte
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
        operand.name,
        bound,
        operand.written,
        operand.address,
        operand.optional,
        count,
        operand.literal,
        kind,
        operand.second,
        along,
    )


class Declared(Protocol):
    """What makes rows: one `@inst`."""

    @property
    def fixed(self) -> frozenset[str]:
        """Pieces that the opcodes of all its rows have."""

    def rows(self) -> list[Inst]:
        """The rows, the same at each call."""


class Rows(Mapping[str, list[Inst]]):
    """Rows by a word of theirs, in declared order. The rows of a word are made when it is first looked up."""

    def __init__(self, word_of: Callable[[Inst], str]) -> None:
        self._word_of = word_of
        self._declared: dict[str, list[Declared]] = {}  # what makes rows, by word
        self._made: dict[str, list[Inst]] = {}

    def declare(self, words: Iterable[str], declared: Declared) -> None:
        """Add the rows of a declaration, which have these words."""
        for word in dict.fromkeys(words):
            self._declared.setdefault(word, []).append(declared)
            self._made.pop(word, None)

    def printing(self, word: str, pieces: Iterable[str]) -> list[Inst]:
        """The rows of a word that may print an opcode with these pieces."""
        declared = [one for one in self._declared.get(word, ()) if one.fixed.issubset(pieces)]
        return [row for one in declared for row in one.rows() if self._word_of(row) == word]

    def __getitem__(self, word: str) -> list[Inst]:
        """The rows of a word. Raises `KeyError` if there are none, `ValueError` for a row that is declared
        twice or wrongly.
        """
        rows = self._made.get(word)
        if rows is None:
            rows = [row for one in self._declared[word] for row in one.rows() if self._word_of(row) == word]
            _require_once(rows)
            self._made[word] = rows
        return rows

    def __contains__(self, word: object) -> bool:
        return word in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


def _require_once(rows: Iterable[Inst]) -> None:
    alike: dict[tuple[str, str], list[Inst]] = {}
    for row in rows:
        same = alike.setdefault((row.name, row.syntax), [])
        if any(row.choices == other.choices for other in same):
            raise ValueError(f"@inst({row.syntax!r}): declared twice")
        same.append(row)


# The indices that `ptxgen.isa.table` searches.
ROWS: Final = Rows(lambda row: row.name)
HEADS: Final = Rows(lambda row: row.pieces[0].name)  # by first piece of the opcode
RECOGNISED: dict[str, tuple[Op, ...]] = {}  # by opcode, filled on demand
