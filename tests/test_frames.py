"""Loading of templates; where they lie in each kind of install is in test_packaging.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest

from ptxgen import frames
from ptxgen.errors import PtxGenError

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of templates in the place of the checkout's."""
    monkeypatch.setattr(frames, "_CHECKOUT_FOLDER", tmp_path)
    frames._environment.cache_clear()
    yield tmp_path
    frames._environment.cache_clear()


def test_a_block_line_leaves_no_trace_and_the_last_newline_stays(folder: Path) -> None:
    (folder / "list.j2").write_text("  {% for x in xs %}\n{{ x }}\n  {% endfor %}\n")
    assert frames.load_template("list.j2").render(xs=[1, 2]) == "1\n2\n"


def test_nothing_is_escaped(folder: Path) -> None:
    (folder / "raw.j2").write_text("{{ text }}")
    assert frames.load_template("raw.j2").render(text="@%p0 <&>") == "@%p0 <&>"


def test_a_variable_that_was_not_passed_is_an_error(folder: Path) -> None:
    (folder / "name.j2").write_text("{{ name }}")
    with pytest.raises(jinja2.UndefinedError, match=r"^'name' is undefined$"):
        frames.load_template("name.j2").render(nmae="x")


def test_a_template_is_compiled_once(folder: Path) -> None:
    (folder / "name.j2").write_text("{{ name }}")
    assert frames.load_template("name.j2") is frames.load_template("name.j2")


def test_an_unknown_template_is_refused_with_the_nearest_name_and_the_list(folder: Path) -> None:
    (folder / "module.ptx.j2").touch()
    (folder / "ops.pyi.j2").touch()
    message = (
        "no template 'modul.ptx.j2'; did you mean 'module.ptx.j2'? Templates found: module.ptx.j2, ops.pyi.j2"
    )
    with pytest.raises(PtxGenError, match=f"^{re.escape(message)}$"):
        frames.load_template("modul.ptx.j2")


@pytest.mark.usefixtures("folder")
def test_an_install_without_templates_says_so() -> None:
    message = "no template 'module.ptx.j2'. Templates found: none"
    with pytest.raises(PtxGenError, match=f"^{re.escape(message)}$"):
        frames.load_template("module.ptx.j2")


def test_jinja2_is_imported_in_one_file_only() -> None:
    importing = {
        str(path.relative_to(ROOT))
        for top in ("ptxgen", "flash", "tools")
        for path in (ROOT / top).rglob("*.py")
        if re.search(r"^\s*(import|from) jinja2\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert importing == {str(Path("ptxgen", "frames.py"))}
