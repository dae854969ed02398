"""Write `docs/pipeline.svg`, a TMA pipeline of two stages in space and in time, or check that it is up to
date.
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

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "pipeline.svg"
STAGES: Final = 2
TILES: Final = 6
_ISSUE, _COPY, _PRODUCT = 1, 4, 3  # steps: between two starts of copies, from start to arrival, of a product
_LEFT, _TOP, _STEP, _ROW = 104, 334, 23, 44  # pixels, of the timeline


class Tile(NamedTuple):
    """The steps at which the copy of a tile starts and has arrived, and its product starts and ends."""

    start: int
    full: int
    read: int
    empty: int


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_pipeline_picture.py", __doc__, PICTURE, "the script draws", render)


def schedule(count: int) -> list[Tile]:
    """When each tile is copied and multiplied: copies start in empty stages, products in full ones."""
    tiles: list[Tile] = []
    for number in range(count):
        empty = tiles[number - STAGES].empty if number >= STAGES else 0
        start = max(empty, tiles[-1].start + _ISSUE) if tiles else 0
        read = max(start + _COPY, tiles[-1].empty if tiles else 0)
        tiles.append(Tile(start, start + _COPY, read, read + _PRODUCT))
    return tiles


def render() -> str:
    """The picture as SVG."""
    drawing = Drawing(
        740,
        506,
        "A producer fills the stages of a ring by TMA, a consumer multiplies them by wgmma and frees them",
    )
    _space(drawing)
    _time(drawing, schedule(TILES))
    return drawing.render()


def _space(d: Drawing) -> None:
    """Draw the pipeline in space: the roles on either side of the ring of stages."""
    d.box("blue", 20, 20, 170, 214)
    d.box("amber", 550, 20, 176, 214)
    d.box("none", 262, 20, 216, 214)
    for x, title, lines in (
        (
            32,
            "producer",
            ("one warpgroup,", "one thread of it works", "", "1. wait for empty[s]", "2. start TMA copies"),
        ),
        (
            562,
            "consumer",
            (
                "one or more warpgroups",
                "",
                "3. wait for full[s]",
                "4. multiply by wgmma",
                "5. arrive at empty[s]",
            ),
        ),
        (274, "ring in shared memory", ()),
    ):
        d.text(title, x, 42, "name")
        for number, line in enumerate(lines):
            d.text(line, x, 66 + 20 * number)
    for stage in range(STAGES):
        y = 58 + 86 * stage
        d.text(f"stage {stage}", 274, y + 12, "small")
        for x, name in ((274, "tile a"), (334, "tile b")):
            d.box("blue", x, y + 20, 54, 40)
            d.text(name, x + 27, y + 45, "small", "middle")
        for offset, name in ((18, "full"), (42, "empty")):
            d.box("amber", 398, y + offset, 68, 20)
            d.text(f"{name}[{stage}]", 432, y + offset + 14, "small", "middle")
    d.line("arrow", [(190, 140), (258, 140)])
    d.text("tiles", 224, 132, anchor="middle")
    d.line("arrow", [(478, 140), (546, 140)])
    d.text("tiles", 512, 132, anchor="middle")
    d.line("arrow", [(636, 234), (636, 262), (104, 262), (104, 238)])
    d.text(
        "empty[s]: an arrival of each consumer warp, and the stage may be filled again",
        370,
        256,
        "what",
        "middle",
    )


def _time(d: Drawing, tiles: Sequence[Tile]) -> None:
    """Draw the pipeline in time: a row for each stage and for the consumer."""
    d.text(f"In time: a copy takes {_COPY} steps, a product {_PRODUCT}", 20, _TOP - 18, "name")
    for row, name in enumerate([*(f"stage {stage}" for stage in range(STAGES)), "consumer"]):
        d.text(name, _LEFT - 12, _TOP + row * _ROW + 20, anchor="end")
    for number, tile in enumerate(tiles):
        y = _TOP + number % STAGES * _ROW
        for kind, first, last in (
            ("blue", tile.start, tile.full),
            ("amber", tile.full, tile.read),
            ("dark", tile.read, tile.empty),
        ):
            if last > first:
                d.box(kind, _x(first), y, (last - first) * _STEP, 30)
        parity = number // STAGES % 2
        d.text(f"tile {number}", _x(tile.start) + 6, y + 13, "small")
        d.text(f"parity {parity}", _x(tile.start) + 6, y + 26, "small")
        waited = tiles[number - 1].empty if number else 0
        y = _TOP + STAGES * _ROW
        if tile.read > waited:
            d.box("wait", _x(waited), y, (tile.read - waited) * _STEP, 30)
        d.box("dark", _x(tile.read), y, _PRODUCT * _STEP, 30)
        d.text(f"tile {number}", _x(tile.read) + 6, y + 19, "small")
    x = float(_LEFT)
    for kind, words in (
        ("blue", "copy in flight"),
        ("amber", "full, not read yet"),
        ("dark", "wgmma reads it"),
        ("wait", "waits for full[s]"),
    ):
        y = _TOP + (STAGES + 1) * _ROW + 14
        d.box(kind, x, y, 14, 14)
        d.text(words, x + 20, y + 12)
        x += 154


def _x(step: int) -> int:
    """The x coordinate at which a step begins."""
    return _LEFT + step * _STEP


if __name__ == "__main__":
    sys.exit(quietly(main))
