"""The pictures of the roles of warps are what the interpreter draws."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

import pytest

from tools import gen_roles_picture
from tools.gen_roles_picture import Picture

FORWARD, BACKWARD, BLACKWELL = gen_roles_picture.PICTURES
WARPS = {
    FORWARD.name: ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 7", "warps 8 to 11"],
    BACKWARD.name: ["warp 0", "warps 1 to 3", "warp 4", "warps 5 to 11"],
    BLACKWELL.name: [
        *("warp 0", "warps 1 to 3", "warps 4 to 5", "warps 6 to 7", "warp 8", "warp 9", "warps 10 to 11"),
        *("warp 12", "warp 13", "warp 14", "warp 15"),
    ],
}


def texts(picture: Picture) -> Iterator[tuple[float, float, str]]:
    """The texts of a picture and where they begin."""
    for result in ElementTree.parse(picture.file).iter("{http://www.w3.org/2000/svg}text"):
        yield float(result.attrib["x"]), float(result.attrib["y"]), result.text or ""


@pytest.mark.parametrize("picture", gen_roles_picture.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_names_the_warps_and_its_key_fits(picture: Picture) -> None:
    root = ElementTree.parse(picture.file).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    result = list(texts(picture))
    names = [text.replace("\N{EN DASH}", " to ") for _, _, text in result if text.startswith("warp")]
    assert names == WARPS[picture.name]
    assert root.attrib["aria-label"] == picture.title
    keys = ["below a row: bytes in flight", "columns of tensor memory: above written, below read"]
    last = result[-1][2]
    assert last == keys[bool(picture.columns)]
    assert all(y < height for _, y, _ in result)
    first = next(y for _, y, text in result if text == "tensor cores")
    assert all(x + 7 * len(text) < width for x, y, text in result if y >= first)


@pytest.mark.slow
@pytest.mark.parametrize("picture", [FORWARD, BACKWARD], ids=lambda picture: picture.name)
def test_the_roles_multiply_copy_and_store(picture: Picture) -> None:
    products, copies = gen_roles_picture.NAMES.index("tensor cores"), "asynchronous copies"
    lanes = gen_roles_picture.recorded(picture)[1].lanes
    for lane in lanes:
        done = {value for value, _, _ in lane.runs}
        assert (products in done) == (lane.warps[0] >= 4), lane.warps
        assert (gen_roles_picture.NAMES.index(copies) in done) == (lane.warps[0] in (0, 4)), lane.warps


def test_rows_of_the_picture_for_blackwell_have_their_roles_and_columns() -> None:
    result = [text.replace("\N{EN DASH}", " to ") for _, _, text in texts(BLACKWELL)]
    roles = [text for text in result if text in BLACKWELL.roles.values()]
    assert roles == [*["softmax"] * 4, *["correction"] * 3, "multiplying", "loading", "loading"]
    rows = [text for text in result if text.endswith(")")]
    assert rows == ["S0, P0 (0 to 31)", "O0 (32 to 95)", "S1, P1 (96 to 127)", "O1 (128 to 191)"]


@pytest.mark.slow
def test_the_roles_of_the_kernel_for_blackwell_use_their_columns() -> None:
    recording, shown = gen_roles_picture.recorded(BLACKWELL)
    users: dict[str, set[tuple[str, str, bool]]] = {}
    for use in recording.column_uses:
        (name,) = (n for n, (first, count) in BLACKWELL.columns.items() if first <= use.first < first + count)
        (lane,) = (lane for lane in shown.lanes if use.warp in lane.warps)
        how = recording.instrs[use.at].opcode.split(".")[1]
        users.setdefault(name, set()).add((gen_roles_picture.role_of(BLACKWELL, lane), how, use.writes))
        assert use.end > use.start
    of_scores = {("softmax", "ld", False), ("softmax", "st", True), ("multiplying", "mma", False)}
    of_sums = {("correction", "ld", False), ("correction", "st", True)}
    products = {("multiplying", "mma", True)}
    assert users == {
        **{f"S{i}, P{i}": of_scores | products for i in range(2)},
        **{f"O{i}": of_sums | products for i in range(2)},
    }
