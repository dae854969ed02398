"""The pictures of pipelines and barriers are those that their scripts draw, and show what can happen."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from tools import gen_barrier_picture, gen_pipeline_picture
from tools.gen_pipeline_picture import STAGES, TILES, schedule

SCRIPTS = (gen_barrier_picture, gen_pipeline_picture)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_committed_picture_is_what_the_script_draws_and_another_is_not(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--check"]) == 0
    other = tmp_path / "other.svg"
    other.write_text(script.PICTURE.read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8")
    assert script.main(["--check", "--file", str(other)]) == 1
    name = Path(script.__file__ or "").name
    assert capsys.readouterr().err == (
        f"{name}: {other} is not what the script draws; run python tools/{name}\n"
    )


def test_a_stage_is_filled_when_it_is_empty_and_read_when_it_is_full() -> None:
    tiles = schedule(TILES)
    for tile, later in zip(tiles, tiles[STAGES:], strict=False):
        assert tile.start < tile.full <= tile.read < tile.empty <= later.start
    for tile, later in pairwise(tiles):
        assert tile.empty <= later.read
    # docs/hopper.md: the consumer waits for tiles 2 and 4.
    assert [n for n, tile in enumerate(tiles) if n and tile.read > tiles[n - 1].empty] == [2, 4]


def test_the_order_that_the_barrier_picture_shows_is_one_of_barriers() -> None:
    found = gen_barrier_picture.rounds()
    for one, later in pairwise(found):
        assert one.empty < one.full < min(one.loaded)
        assert max(one.loaded) == later.empty
