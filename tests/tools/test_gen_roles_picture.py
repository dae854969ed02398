"""The picture of the roles of warps is what the interpreter draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import gen_roles_picture


@pytest.mark.slow
def test_the_committed_picture_is_what_a_run_draws_and_another_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gen_roles_picture.main(["--check"]) == 0
    drawn = gen_roles_picture.PICTURE.read_text(encoding="utf-8")
    monkeypatch.setattr(gen_roles_picture, "render", lambda: drawn)
    other = tmp_path / "roles.svg"
    other.write_text(drawn.replace("warp 0", "warp 1"), encoding="utf-8")
    assert gen_roles_picture.main(["--check", "--file", str(other)]) == 1
    assert capsys.readouterr().err == (
        f"gen_roles_picture.py: {other} is not what the interpreter draws; "
        "run python tools/gen_roles_picture.py\n"
    )


def texts() -> Iterator[tuple[float, float, str]]:
    """The texts of the picture and where they begin."""
    for found in ElementTree.parse(gen_roles_picture.PICTURE).iter("{http://www.w3.org/2000/svg}text"):
        yield float(found.attrib["x"]), float(found.attrib["y"]), found.text or ""


def test_the_picture_names_the_warps_and_its_key_fits() -> None:
    root = ElementTree.parse(gen_roles_picture.PICTURE).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = list(texts())
    names = [text.replace("\N{EN DASH}", " to ") for _, _, text in found if text.startswith("warp")]
    assert names == ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 7", "warps 8 to 11"]
    assert found[-1][2] == "below a row: bytes in flight"
    assert all(y < height for _, y, _ in found)
    assert all(x + 7 * len(text) < width for x, y, text in found if y > 300)
