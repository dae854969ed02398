"""The reasons why some mutants are equivalent: proofs where values can be computed, otherwise an
argument in words.

The arguments stand beside the code that they are about, in the `equivalent.toml` of its folder, as
`[[reason]]` tables: `why`, the `marks` of the code (`ptxgen/dsl/marks.py`), and `changes`, each a
kind of mistake, what it changes, and a pattern that the instruction begins with. A table may have
`steps`, `entry`, `behind`, `loop` and `rounds`, which `Reason` describes.
"""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import flash
from flash.commands.campaign.argument import Reason
from flash.commands.campaign.equivalence import proved
from flash.commands.campaign.mistakes import KINDS, Mutant

FILES: Final = tuple(sorted(Path(flash.__file__).parent.glob("*/equivalent.toml")))

_TYPES: Final = {"why": str, "marks": list, "changes": list}  # of the keys that each table has
_OPTIONAL: Final = {"steps": list, "entry": str, "behind": str, "loop": int, "rounds": bool}
_OF_A_CHANGE: Final = 3


def reason(mutant: Mutant, block: int, *, same: bool = True) -> str | None:
    """Why a mutant that no check caught is equivalent, for blocks of `block` threads; None if no
    reason is known. `same`: its results had equal bits in all runs.
    """
    why = proved(mutant, block) if same else None
    known = (r.why for r in reasons() if r.fits(mutant) and (same or r.rounds))
    return why or next(known, None)


@functools.cache
def reasons() -> tuple[Reason, ...]:
    """The reasons of all kernels, file by file."""
    return tuple(r for file in FILES for r in load(file.read_text(encoding="utf-8")))


def load(text: str) -> Iterator[Reason]:
    """The reasons of a TOML text: one for each mark, step and change of each table.

    Raises `ValueError` for a table that is no reason.
    """
    for number, table in enumerate(tomllib.loads(text).get("reason", ()), 1):
        _check(number, table)
        more = {key: table[key] for key in ("loop", "entry", "behind", "rounds") if key in table}
        for mark, step, change in itertools.product(
            table["marks"], table.get("steps", [""]), table["changes"]
        ):
            kind, what, before = change
            yield Reason(kind, what, mark, step, before, table["why"], **more)


def _check(number: int, table: Mapping[str, Any]) -> None:
    known = _TYPES | _OPTIONAL
    wrong = [key for key in {**_TYPES, **table} if not isinstance(table.get(key), known.get(key, ()))]
    if wrong:
        raise ValueError(
            f"reason {number}: needs a sentence `why` and lists `marks` and `changes`, and may have a list "
            f"`steps`, patterns `entry` and `behind`, a number `loop` and `rounds = true`; "
            f"{wrong[0]!r} is {table.get(wrong[0])!r}"
        )
    for change in table["changes"]:
        words = change if isinstance(change, list) and len(change) == _OF_A_CHANGE else [None]
        if not all(isinstance(word, str) for word in words) or words[0] not in KINDS:
            raise ValueError(
                f"reason {number}: a change is a kind of mistake, what it changes and a pattern of the "
                f"instruction, got {change!r}"
            )
