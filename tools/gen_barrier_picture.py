"""Write `docs/barriers.svg`, four warps at two named barriers and why rounds do not mix, or check that it is
up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from ptxgen.commands.parts.quiet import quietly
from tools.commands.drawing import Drawing
from tools.commands.generated_file import write_or_check

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "barriers.svg"
ROUNDS: Final = 3
_ENTRY: Final = (1, 3, 2)  # steps until warps 1 to 3 arrive at EMPTY for the first time
_STORE: Final = 3  # steps in which warp 0 stores a tile
_LOAD: Final = ((4, 2, 6), (3, 5, 2), (2, 4, 3))  # steps in which warps 1 to 3 load it, by round
_LEFT, _TOP, _STEP, _ROW = 76, 64, 22, 46  # pixels


class Round(NamedTuple):
    """When the barriers of a round complete, and when warps 1 to 3 have loaded its tile, in steps."""

    empty: int
    full: int
    loaded: tuple[int, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_barrier_picture.py", __doc__, PICTURE, "the script draws", render)


def rounds() -> list[Round]:
    """The rounds of the picture: a barrier completes when the last of its warps has arrived."""
    drawn: list[Round] = []
    for loads in _LOAD:
        arrived = drawn[-1].loaded if drawn else _ENTRY
        empty = max(*arrived, drawn[-1].full if drawn else 0)
        full = empty + _STORE
        drawn.append(Round(empty, full, tuple(full + load for load in loads)))
    return drawn


def render() -> str:
    """The picture as SVG."""
    d = Drawing(
        740, 330, "Warp 0 fills a tile, warps 1 to 3 read it; two named barriers keep the rounds apart"
    )
    for warp in range(4):
        d.text(f"warp {warp}", 64, _TOP + warp * _ROW + 20, anchor="end")
    drawn = rounds()
    bottom = _TOP + 4 * _ROW - 8
    before: Sequence[int] = _ENTRY
    for number, one in enumerate(drawn, 1):
        started = drawn[number - 2].full if number > 1 else 0
        _bar(d, 0, "wait", started, one.empty)
        _bar(d, 0, "blue", one.empty, one.full, "store")
        d.dot(_x(one.full), _TOP + 15)
        for warp, (arrived, loaded) in enumerate(zip(before, one.loaded, strict=True), 1):
            _bar(d, warp, "wait", arrived, one.full)
            _bar(d, warp, "amber", one.full, loaded, "load")
        for warp, arrived in enumerate(before, 1):
            d.dot(_x(arrived), _TOP + warp * _ROW + 15)
        for name, at, y in (("EMPTY", one.empty, 20), ("FULL", one.full, 40)):
            d.line("line", [(_x(at), y + 6), (_x(at), bottom)])
            d.text(f"{name}, round {number}", _x(at), y, "small", "middle")
        before = one.loaded
    for warp, arrived in enumerate(before, 1):
        d.dot(_x(arrived), _TOP + warp * _ROW + 15)
    first = drawn[0]
    high, low = _TOP + 26, _TOP + 2 * _ROW + 26
    full, last = _x(first.full), _x(first.loaded[1])
    d.line("path", [(_x(first.empty), high), (full, high), (full, low), (last - 4, low)])
    x = float(_LEFT)
    for kind, words in (
        ("wait", "waits"),
        ("blue", "stores the tile"),
        ("amber", "loads the tile"),
        ("", "arrives"),
    ):
        if kind:
            d.box(kind, x, 272, 14, 14)
        else:
            d.dot(x + 8, 279)
        d.text(words, x + 22, 284)
        x += 134
    d.line("path", [(_LEFT, 309), (_LEFT + 30, 309)])
    d.text(
        "from round 1 of EMPTY to an arrival of round 2: this order holds in every schedule", _LEFT + 40, 313
    )
    return d.render()


def _bar(d: Drawing, warp: int, kind: str, first: int, last: int, words: str = "") -> None:
    """Draw what a warp does from one step to another as a bar."""
    if last > first:
        d.box(kind, _x(first), _TOP + warp * _ROW, (last - first) * _STEP, 30)
        d.text(words, (_x(first) + _x(last)) / 2, _TOP + warp * _ROW + 19, "small", "middle")


def _x(step: int) -> int:
    """The x coordinate at which a step begins."""
    return _LEFT + step * _STEP


if __name__ == "__main__":
    sys.exit(quietly(main))
