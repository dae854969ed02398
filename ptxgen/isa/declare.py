"""The declaration of instructions: `@inst` makes rows of the table from lines of the PTX manual.

An instruction is declared by copying its line from the manual and writing its semantics as a numpy
function below (`docs/adding-an-instruction.md`). The syntax language:

* opcode: pieces joined by dots. A piece whose name is a keyword argument of `@inst` is a *slot*
  with those choices, the first being the default; `{.name}` is optional: a slot if `name` is a
  keyword argument (default: absent), else a *flag*. Pieces that are neither are printed
  unchanged.
* operands: `name:type*count`, comma separated. `d`, `p` and `q` are written, all others are read;
  `[name]` is an address; a decimal number is a literal; `d|p:pred` is a pair of results; `{, b}` at
  the end is optional. `*vec` is a vector with the width that the slot `vec` gives (`v4`, `2d`) or
  that the function `vec` among `counts` returns, `*2` one of fixed width. `[name*2]` is a tensor
  map's address, or a texture's handle, with 2 coordinates; they are s32 unless `/u32.f32` names
  their types, the last of which is repeated. The type is a slot's name, a type's name, `wide`
  (twice as wide as the slot `type`), `byte` (8 bits in a register declared `.b8`), `imm` (an
  integer literal only), `label` or `args` (the parenthesised arguments or results of a call); the
  default is the slot `type`, or else the opcode's last piece.

The function takes each operand that is read and each modifier by name, and returns the written
values: one value, a tuple of lanes for a vector, or a tuple with one entry for each operand of
several. A function with a result among its parameters gets the old contents of the result's
registers. An instruction that waits for other threads may return its results only when it goes on:
then the function returns nothing, and `resume`, called with the same arguments, returns the written
values. An address with coordinates is a pair: the address and the tuple of coordinates.

Lines of the manual with common semantics are a *family*: one `@inst` with a table, whose columns
are the differences. In the syntax, the docstring and the other texts, `<column>` is replaced:

* by a text, a type or a number, which is also passed to the function's parameter of that name, if
  it has one;
* by the column's name as a slot, if the value is a tuple or a dict of choices;
* None means that the line does not have the column.

Keyword arguments are columns that all lines have. Modifiers that a line does not have are left out
of the call, so their parameters need a default. `ignores` names modifiers and operands that change
no value; the function need not take them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ptxgen.isa.spec import ANY, HEADS, RECOGNISED, ROWS, Effect, Gate, Inst, Modifier, Operand, Piece, Rule
from ptxgen.types import ScalarType

_WHOLE: Final = Rule()

Line = Mapping[str, Any]  # a line of a table: values by column
Table = list[Line]

_COLUMN: Final = re.compile(r"<(\w+)>")
_PIECE: Final = re.compile(r"\{\.([\w:]+)\}|\.?([\w:]+)")
_OPERAND: Final = re.compile(
    r"(?P<open>\[)?(?P<name>\w+)(?::(?P<type>\w+))?(?:\*(?P<count>\w+))?(?:/(?P<along>[\w.]+))?\]?"
)
_AFTER_HEAD: Final = re.compile(r"[.{ ]")
_FIXED: Final = re.compile(r"(?:^|\.)([\w:]+)(?=[.{]|$)")  # pieces without columns and braces
_WRITTEN: Final = frozenset("dpq")
_VARIADIC: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
# Exactly these types hold the choices of a slot; a named tuple is one value.
_SEVERAL: Final = (tuple, dict)


def each(columns: str, *lines: Any) -> Table:
    """A table from the names of its columns and its lines: tuples, or single values if there is one column. A
    table as a value replaces several columns; each of its lines becomes a line.
    """
    names = columns.split()
    table: Table = []
    for values in lines if len(names) > 1 else zip(lines, strict=True):
        line = dict(zip(names, values, strict=True))
        inner = {k: v for k, v in line.items() if isinstance(v, list)}
        table += times(*(inner.get(k, [{k: v}]) for k, v in line.items())) if inner else [line]
    return table


def times(*tables: Table) -> Table:
    """A table of all combinations of lines, one of each table; the lines of the last table change fastest."""
    return [
        {column: value for line in lines for column, value in line.items()}
        for lines in itertools.product(*tables)
    ]


def inst(
    syntax: str,
    *tables: Table,
    name: str = "",
    ptx: tuple[int, int] = (1, 0),
    sm: int = 10,
    only: tuple[str, ...] = (),
    effect: Effect = Effect.NONE,
    max_ulp: float = 0.0,
    accuracy: str = "",
    section: str = "",
    doc: str = "",
    ignores: tuple[str, ...] = (),
    counts: Mapping[str, Callable[[Mapping[str, Any]], int]] | None = None,
    resume: Callable[..., Any] | None = None,
    undefined: Rule = _WHOLE,
    unmodelled: str = "",
    **columns: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a row, or one for each line of a table, or of the product of several tables; the
    module's docstring describes `syntax` and tables.

    `columns` gives the legal values of each slot, the first being the default: a sequence, or a mapping from
    value to the `gate` that this value adds. `ptx`, `sm` and `only` are the row's own gate; `section` names
    the manual's section; `undefined` says where undefined bits of the operands go (`ptxgen.isa.undefined`);
    `doc` describes the row, if the function's docstring does not. `unmodelled` is the reason why the
    interpreter refuses the instruction; its function then has a docstring and no parameters, and is never
    called. These may be columns of a table, too.
    Rows are made when one of them is first looked up, so that a process that emits PTX waits for those
    that it needs alone. `ValueError` is raised then, and by any walk over the table, for a slot without
    choices, a column that no row uses, a missing docstring, a syntax declared twice, and a function whose
    parameters are not exactly the operands read and the modifiers declared (slots that are the type of an
    operand may be left out: the lanes carry their dtype).

    Several rows may share a `name`, if the manual gives several lines to one instruction: the first
    row whose slots accept the operands' types is used. `tests/isa` proves that no two rows print
    the same opcode for the same operands.
    """
    keywords: dict[str, Any] = {
        "name": name,
        "ptx": ptx,
        "sm": sm,
        "only": only,
        "effect": effect,
        "max_ulp": max_ulp,
        "accuracy": accuracy,
        "section": section,
        "doc": doc,
        "ignores": ignores,
        "counts": counts or {},
        "resume": resume,
        "undefined": undefined,
        "unmodelled": unmodelled,
    }

    def declare(meaning: Callable[..., Any]) -> Callable[..., Any]:
        declaration = _Declaration(syntax, tables, keywords, columns, meaning)
        names, heads = declaration.words()
        ROWS.declare(names, declaration)
        HEADS.declare(heads, declaration)
        RECOGNISED.clear()
        return meaning

    return declare


class _Declaration:
    """One `@inst`, whose rows are made when one of them is first looked up."""

    def __init__(
        self,
        syntax: str,
        tables: tuple[Table, ...],
        keywords: Line,
        columns: Line,
        meaning: Callable[..., Any],
    ) -> None:
        self._syntax = syntax
        self._tables = tables
        self._keywords = keywords
        self._columns = columns
        self._meaning = meaning
        self._rows: list[list[Inst]] = []  # one list, when the rows have been made

    def words(self) -> tuple[list[str], list[str]]:
        """The names of the rows, and the first pieces of their opcodes, in declared order."""
        head, name = _head(self._syntax), self._keywords["name"]
        if "<" not in head + name and not any("name" in line for table in self._tables for line in table):
            return [name or head], [head]
        names, heads = [], []
        for line in self._lines():
            columns = {**self._columns, **line}
            texts = _texts(columns)
            filled = _head(_filled(head, texts, set(), columns))
            names.append(_filled(str(columns.get("name", name)), texts, set()) or filled)
            heads.append(filled)
        return names, heads

    @functools.cached_property
    def fixed(self) -> frozenset[str]:
        """Pieces that the opcodes of all rows have: neither slots nor optional, without columns."""
        columns = self._columns.keys() | {name for table in self._tables for line in table for name in line}
        return frozenset(_FIXED.findall(self._syntax.partition(" ")[0])) - columns

    def rows(self) -> list[Inst]:
        """The rows, one for each line of the table. Raises `ValueError` as `inst` says."""
        if not self._rows:
            self._rows.append(self._made())
        return self._rows[0]  # those of the quickest of several threads

    def _lines(self) -> list[dict[str, Any]]:
        table = self._tables[0] if len(self._tables) == 1 else times(*self._tables)
        return [{k: v for k, v in line.items() if v is not None} for line in table]

    def _made(self) -> list[Inst]:
        keywords, columns = self._keywords, self._columns
        takes, used, known = _parameters(self._meaning), set(keywords), set(columns)
        rows = []
        for line in self._lines():
            known.update(line)
            line_keywords = {**keywords, **line} if keywords.keys() & line.keys() else keywords
            rows.append(_row(self._syntax, line_keywords, {**columns, **line}, self._meaning, takes, used))
        if known - used:
            raise ValueError(f"@inst({self._syntax!r}): no row has a use for {sorted(known - used)}")
        return rows


class _Parameters(NamedTuple):
    """The names of a function's parameters, and of those that have a default."""

    names: frozenset[str]
    optional: frozenset[str]


def _parameters(function: Callable[..., Any]) -> _Parameters:
    """The parameters of a function; quicker than `inspect.signature`, for which every process that emits PTX
    would wait.
    """
    function = inspect.unwrap(function)
    code = function.__code__
    if code.co_flags & _VARIADIC:
        raise ValueError(f"{function.__qualname__}: a meaning names its parameters")
    end = code.co_argcount
    names = code.co_varnames[: end + code.co_kwonlyargcount]
    with_default = names[end - len(function.__defaults__ or ()) : end]
    return _Parameters(frozenset(names), frozenset((*with_default, *(function.__kwdefaults__ or ()))))


def _row(
    template: str,
    keywords: Mapping[str, Any],
    line: Line,
    meaning: Callable[..., Any],
    takes: _Parameters,
    used: set[str],
) -> Inst:
    """The row that a line of a table declares; adds the columns that the row uses to `used`."""
    texts = _texts(line)
    syntax = _filled(template, texts, used, line)
    opcode, _, operand_text = syntax.partition(" ")
    operands = _operands(operand_text)
    pieces, choices = [], {}
    for optional, plain in _PIECE.findall(opcode):
        word = optional or plain
        values = line.get(word)
        slot = bool(optional) or type(values) in _SEVERAL
        if slot:
            choices[word] = _choices(values, bool(optional))
        pieces.append(_piece(word, slot, bool(optional)))
    has = {"machine", *choices, *(o.name for o in operands)}
    fixed = {k: v for k, v in texts.items() if k in takes.names and k not in has}
    left = takes.names - fixed.keys() - (takes.optional - has)
    read = {o.name for o in operands if not o.written and o.literal is None}
    ignored = frozenset(keywords["ignores"])
    dropped = ignored & read - left
    used.update(choices, fixed)
    counts, resume = keywords["counts"], keywords["resume"]
    row = Inst(
        _filled(keywords["name"], texts, used) or pieces[0].name,
        syntax,
        tuple(pieces),
        operands,
        choices,
        _gate(keywords["ptx"], keywords["sm"], keywords["only"]),
        keywords["effect"],
        keywords["max_ulp"],
        _filled(keywords["accuracy"], texts, used),
        _adapted(meaning, fixed, dropped),
        left | dropped,
        _filled(keywords["section"], texts, used),
        {n: functools.partial(_counted, count, texts) for n, count in counts.items()},
        resume and _adapted(resume, fixed, dropped),
        keywords["undefined"],
        keywords["unmodelled"],
        _filled(keywords["doc"] or meaning.__doc__ or "", texts, used),
        {},
    )
    _check(row, read, ignored)
    return row


_gate = functools.cache(lambda ptx, sm, only: Gate(ptx, sm, frozenset(only)))
_piece = functools.cache(Piece)


def _head(syntax: str) -> str:
    """The first piece of an opcode, with its columns."""
    return _AFTER_HEAD.split(syntax, 1)[0]


def _texts(line: Line) -> dict[str, Any]:
    """The columns of a line that have one value: all but slots."""
    return {k: v for k, v in line.items() if type(v) not in _SEVERAL}


def _filled(template: str, texts: Line, used: set[str], slots: Line = MappingProxyType({})) -> str:
    """`template` with the texts and the names of slots in place of each `<column>`; adds the
    columns to `used`.
    """
    if "<" not in template:
        return template

    def value(match: re.Match[str]) -> str:
        column = match[1]
        used.add(column)
        if column in texts:
            return _filled(str(texts[column]), texts, used, slots)
        return column if column in slots else match[0]

    return _COLUMN.sub(value, template)


def _counted(count: Callable[[Mapping[str, Any]], int], texts: Line, chosen: Mapping[str, Modifier]) -> int:
    """The width of a vector, from the text of each column and the modifiers chosen."""
    return count({**texts, **chosen})


def _adapted(
    meaning: Callable[..., Any], fixed: Mapping[str, Any], dropped: frozenset[str]
) -> Callable[..., Any]:
    """`meaning` with the arguments `fixed`, for calls that pass the operands `dropped`, too."""
    if not dropped:
        return functools.partial(meaning, **fixed) if fixed else meaning

    def of_row(**arguments: Any) -> Any:
        return meaning(**{name: x for name, x in arguments.items() if name not in dropped}, **fixed)

    return of_row


def _choices(values: Any, optional: bool) -> dict[Modifier, Gate]:
    if isinstance(values, dict):
        choices = {value: added or ANY for value, added in values.items()}
    else:
        choices = dict.fromkeys(values if type(values) in _SEVERAL else (True,), ANY)
    if not optional:
        return choices
    return {False if set(choices) == {True} else None: ANY, **choices}


@functools.cache  # many rows share their operands
def _operands(text: str) -> tuple[Operand, ...]:
    operands = []
    required, _, tail = text.partition("{,")
    for optional, part in ((False, required), (True, tail.rstrip("} "))):
        for word in filter(None, (w.strip() for w in part.split(","))):
            if word.isdigit():
                operands.append(Operand(word, "", literal=int(word)))
                continue
            for position, half in enumerate(word.split("|")):
                m = _OPERAND.fullmatch(half)
                if m is None:
                    raise ValueError(f"cannot read the operand {word!r} in {text!r}")
                operands.append(
                    Operand(
                        m["name"],
                        m["type"] or "",
                        m["name"] in _WRITTEN and not m["open"],
                        bool(m["open"]),
                        optional,
                        m["count"] or "",
                        second=position > 0,
                        along=m["along"] or "s32",
                    )
                )
    return tuple(operands)


def _check(row: Inst, read: set[str], ignored: frozenset[str]) -> None:
    where = f"@inst({row.syntax!r})"
    if not row._doc:
        raise ValueError(f"{where}: the function needs a docstring that says what the instruction means")
    if not all(row.choices.values()):
        raise ValueError(f"{where}: a slot without choices")
    if row.unmodelled:
        if row.parameters:
            raise ValueError(
                f"{where}: the function of an instruction that is not modelled has no parameters"
            )
        return
    got = row.parameters - {"machine"}
    want = read | row.choices.keys()
    of_types = {
        s for s in want - ignored - got if all(isinstance(v, ScalarType) for v in row.choices.get(s, (None,)))
    }
    results = {o.name for o in row.operands if o.written}
    if not want - of_types - ignored <= got <= want | results:
        raise ValueError(f"{where}: the function takes {sorted(got)}, the instruction has {sorted(want)}")
    if (row.effect is not Effect.NONE) != ("machine" in row.parameters):
        raise ValueError(f"{where}: an effect other than NONE and the parameter 'machine' go together")
