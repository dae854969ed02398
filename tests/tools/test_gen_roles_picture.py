"""The picture of the roles of warps is what the interpreter draws."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from tools import gen_roles_picture


def texts() -> Iterator[tuple[float, float, str]]:
    """The texts of the picture and where they begin."""
    for result in ElementTree.parse(gen_roles_picture.PICTURE).iter("{http://www.w3.org/2000/svg}text"):
        yield float(result.attrib["x"]), float(result.attrib["y"]), result.text or ""


def test_the_picture_names_the_warps_and_its_key_fits() -> None:
    root = ElementTree.parse(gen_roles_picture.PICTURE).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    result = list(texts())
    names = [text.replace("\N{EN DASH}", " to ") for _, _, text in result if text.startswith("warp")]
    assert names == ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 7", "warps 8 to 11"]
    assert result[-1][2] == "below a row: bytes in flight"
    assert all(y < height for _, y, _ in result)
    assert all(x + 7 * len(text) < width for x, y, text in result if y > 300)
