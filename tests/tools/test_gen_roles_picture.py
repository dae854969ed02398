"""The pictures of the roles of warps are what the interpreter draws."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from tools import gen_roles_picture
from tools.gen_roles_picture import Picture

FORWARD, BACKWARD = gen_roles_picture.PICTURES
WARPS = {
    FORWARD: ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 7", "warps 8 to 11"],
    BACKWARD: ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 11"],
}
EITHER = pytest.mark.parametrize("picture", WARPS, ids=lambda picture: picture.name)


def texts(picture: Picture) -> Iterator[tuple[float, float, str]]:
    """The texts of a picture and where they begin."""
    for result in ElementTree.parse(picture.file).iter("{http://www.w3.org/2000/svg}text"):
        yield float(result.attrib["x"]), float(result.attrib["y"]), result.text or ""


@EITHER
def test_a_picture_names_the_warps_and_its_key_fits(picture: Picture) -> None:
    root = ElementTree.parse(picture.file).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    result = list(texts(picture))
    names = [text.replace("\N{EN DASH}", " to ") for _, _, text in result if text.startswith("warp")]
    assert names == WARPS[picture]
    assert root.attrib["aria-label"] == picture.title
    assert result[-1][2] == "below a row: bytes in flight"
    assert all(y < height for _, y, _ in result)
    assert all(x + 7 * len(text) < width for x, y, text in result if y > 300)


@pytest.mark.slow
@EITHER
def test_the_roles_multiply_copy_and_store(picture: Picture) -> None:
    products, copies = gen_roles_picture.NAMES.index("tensor cores"), "asynchronous copies"
    lanes = gen_roles_picture.recorded(picture).lanes
    for lane in lanes:
        done = {value for value, _, _ in lane.runs}
        assert (products in done) == (lane.warps[0] >= 4), lane.warps
        assert (gen_roles_picture.NAMES.index(copies) in done) == (lane.warps[0] in (0, 4)), lane.warps
