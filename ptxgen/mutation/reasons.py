"""The reasons why some mutants are equivalent: proofs where values can be computed, otherwise an
argument in words.

The arguments are `[[reason]]` tables of a TOML file next to the code that they are about, its
`equivalent.toml`. A table has `why`; which code it is about: `lines`, texts that a line of the source
contains, or `marks` (`ptxgen/dsl/source_regions.py`); and `changes`, each a kind of mistake, what it
changes, and a pattern that the instruction begins with. It may have `steps`, `entry`, `behind`, `loop` and
`rounds`, which `Reason` describes.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ptxgen.mutation.argument import Reason
from ptxgen.mutation.equivalence import proved
from ptxgen.mutation.operators import KINDS, Mutant

FILE: Final = "equivalent.toml"  # the name of a file of reasons

_TYPES: Final = {"why": str, "changes": list}  # types of the keys that each table has
_CODE: Final = {"marks": list, "lines": list}  # keys of which each table has one
_OPTIONAL: Final = {"steps": list, "entry": str, "behind": str, "loop": int, "rounds": bool}
_OF_A_CHANGE: Final = 3


def reason(
    mutant: Mutant, block: int | tuple[int, ...], reasons: Sequence[Reason], *, same: bool = True
) -> str | None:
    """Why a mutant that no check caught is equivalent, for CTAs of `block` threads: by a proof, or by one of
    `reasons`; None if no reason is known. `same`: its results had equal bits in all runs.
    """
    why = proved(mutant, block) if same else None
    known = (r.why for r in reasons if r.fits(mutant) and (same or r.rounds))
    return why or next(known, None)


def load(text: str) -> Iterator[Reason]:
    """The reasons of a TOML text: one for each mark or line, step and change of each table.

    Raises `ValueError` for a table that is no reason.
    """
    for number, table in enumerate(tomllib.loads(text).get("reason", ()), 1):
        _check(number, table)
        more = {key: table[key] for key in ("loop", "entry", "behind", "rounds") if key in table}
        code = [(mark, "") for mark in table.get("marks", ())]
        code += [(None, line) for line in table.get("lines", ())]
        for (mark, line), step, change in itertools.product(code, table.get("steps", [""]), table["changes"]):
            kind, what, before = change
            yield Reason(kind, what, mark, step, before, table["why"], line=line, **more)


def _check(number: int, table: Mapping[str, Any]) -> None:
    known = _TYPES | _CODE | _OPTIONAL
    code = [key for key in _CODE if key in table] or ["lines"]
    keys = {**_TYPES, **dict.fromkeys(code), **table}
    wrong = [key for key in keys if not isinstance(table.get(key), known.get(key, ()))] + code[1:]
    if wrong:
        raise ValueError(
            f"reason {number}: needs a sentence `why`, a list `changes` and either a list `lines` or a list "
            "`marks`, and may have a list `steps`, patterns `entry` and `behind`, a number `loop` and "
            f"`rounds = true`; {wrong[0]!r} is {table.get(wrong[0])!r}"
        )
    for change in table["changes"]:
        words = change if isinstance(change, list) and len(change) == _OF_A_CHANGE else [None]
        if not all(isinstance(word, str) for word in words) or words[0] not in KINDS:
            raise ValueError(
                f"reason {number}: a change is a kind of mistake, what it changes and a pattern of the "
                f"instruction, got {change!r}"
            )
