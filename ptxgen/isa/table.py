"""The table of all rows: the rows that print an opcode, and those among them that operands fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ptxgen import ir
from ptxgen.errors import ModifierError, TypeMismatchError, did_you_mean
from ptxgen.ir import Instr
from ptxgen.isa.spec import HEADS, RECOGNISED, ROWS, BoundOperand, Inst, Modifier, Op, Piece

_SHOWN: Final = 6  # rows of an instruction that a message lists


def rows() -> Mapping[str, list[Inst]]:
    """All rows by name, in declared order."""
    return ROWS


def rows_named(name: str) -> list[Inst]:
    """The rows called `name`. Raises `ModifierError`, with the nearest name, if there are none."""
    try:
        return ROWS[name]
    except KeyError:
        raise ModifierError(f"no instruction {name!r}{did_you_mean(name, ROWS)}") from None


def recognise(opcode: str) -> tuple[Op, ...]:
    """The ops that print an opcode: none, or one for each form of operands; cached.

    Modifiers may be in another order than the manual's, if no row prints that order.
    """
    ops = RECOGNISED.get(opcode)
    if ops is None:
        words = opcode.split(".")
        rows = [row for row in HEADS.printing(words[0], words) if _has_words(row, words)]
        candidates = [_match(row, words, _next_word) for row in rows]
        if not any(candidates):
            candidates = [_match(row, words, _any_word) for row in rows]
        ops = RECOGNISED[opcode] = tuple(op for op in candidates if op is not None)
    return ops


def _has_words(row: Inst, words: list[str]) -> bool:
    """Whether the words of an opcode are no more than the pieces of the row, and hold its fixed pieces."""
    if len(words) > len(row.pieces):
        return False
    return all(piece.slot or piece.name in words for piece in row.pieces)


def op_of(instr: Instr) -> Op:
    """The op of an instruction: the op of its opcode that its operands fit.

    Raises `ModifierError` for an opcode that no row prints, `TypeMismatchError` for operands that
    fit none of its ops.
    """
    ops = recognise(instr.opcode)
    if len(ops) == 1:
        return ops[0]
    if not ops:
        head = instr.opcode.split(".")[0]
        known = HEADS.get(head)
        hint = f"; {_nearest(instr.opcode, known)}" if known else did_you_mean(head, HEADS)
        raise ModifierError(f"no instruction prints the opcode {instr.opcode!r}{hint}")
    for op in ops:
        if fits(op, instr.operands):
            return op
    raise TypeMismatchError(
        f"{instr.opcode}: its {len(instr.operands)} operands fit none of: {_forms([op.row for op in ops])}"
    )


def _nearest(opcode: str, known: Sequence[Inst]) -> str:
    """The beginning of an opcode that rows print, and these rows, for a message."""
    words = opcode.split(".")
    begun = [_begun(row, words) for row in known]
    most = max(begun)
    rows = [row for row, count in zip(known, begun, strict=True) if count == most]
    return f"{'.'.join(words[:most])} is declared as: {_forms(rows)}"


def _begun(row: Inst, words: list[str]) -> int:
    """The number of words at the beginning of an opcode that are those of the row, in its order."""
    count = 0
    for piece in row.pieces:
        if count < len(words) and _value(row, piece, words[count]) is not None:
            count += 1
        elif not piece.optional:
            break
    return count


def _forms(rows: Sequence[Inst]) -> str:
    """The syntax of the first of some rows, for a message."""
    forms = list(dict.fromkeys(row.syntax for row in rows))
    shown = " | ".join(forms[:_SHOWN])
    more = len(forms) - _SHOWN
    return f"{shown} | and {more} more (docs/isa.md)" if more > 0 else shown


def fits(op: Op, operands: tuple[ir.Operand, ...]) -> bool:
    """Whether the operands have the number and the shapes (vector, pair, address) of the op."""
    if not op.required <= len(operands) <= len(op.flat):
        return False
    return all(
        (i in op.pairs) == isinstance(got, ir.Pair) and _fits(want, got)
        for i, (want, got) in enumerate(zip(op.flat, operands, strict=False))
    )


def _fits(want: BoundOperand, got: ir.Operand) -> bool:
    if isinstance(got, ir.Address):
        return want.address and not want.count
    if isinstance(got, ir.TensorAddress):
        return want.address and want.count == len(got.coordinates)
    if isinstance(got, ir.Vector):
        return want.count == len(got.items) and not want.address
    if isinstance(got, ir.Arguments):
        return want.kind == "args"
    if isinstance(got, (ir.Reg, ir.Not)) and want.type is not None:
        held = got.register if isinstance(got, ir.Not) else got
        if (held.declared == "pred") != (want.type.kind == "p"):
            return False
    return not want.address and not want.count and want.kind != "args"


def _match(row: Inst, words: list[str], choose: _Choose) -> Op | None:
    """The row's op for the words of an opcode; `choose` gives the words that may come next."""

    def walk(
        pieces: tuple[Piece, ...], rest: list[str], chosen: dict[str, Modifier]
    ) -> dict[str, Modifier] | None:
        if not pieces:
            return None if rest else chosen
        piece, tail = pieces[0], pieces[1:]
        for n in choose(rest):
            value = _value(row, piece, rest[n])
            if value is not None:
                more = {**chosen, piece.name: value} if piece.slot else chosen
                done = walk(tail, rest[:n] + rest[n + 1 :], more)
                if done is not None:
                    return done
        return walk(tail, rest, chosen) if piece.optional else None

    head = _value(row, row.pieces[0], words[0])
    first = {row.pieces[0].name: head} if row.pieces[0].slot else {}
    chosen = walk(row.pieces[1:], words[1:], first)
    if chosen is None:
        return None
    absent = {p.name: None if None in row.choices[p.name] else False for p in row.pieces if p.optional}
    return row.resolve({**absent, **chosen})


_Choose = Callable[[list[str]], range]


def _next_word(rest: list[str]) -> range:
    """The index of the next word only: the order of the manual's syntax."""
    return range(min(1, len(rest)))


def _any_word(rest: list[str]) -> range:
    """The indices of all words: any order, as assemblers accept it; of two that fit, the first is taken."""
    return range(len(rest))


def _value(row: Inst, piece: Piece, word: str) -> Modifier:
    if not piece.slot:
        return word if word == piece.name else None
    for value in row.choices[piece.name]:
        if (value is True and word == piece.name) or (
            value is not None and not isinstance(value, bool) and str(value) == word
        ):
            return value
    return None
