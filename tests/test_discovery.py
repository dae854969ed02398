"""What a user finds by dir, help and completion."""

from __future__ import annotations

import pydoc
import re
import rlcompleter
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import flash
import ptxgen

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("module", [flash, ptxgen], ids=["flash", "ptxgen"])
def test_dir_is_the_api(module: ModuleType) -> None:
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in dir(module))
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'atention'"):
        module.atention  # noqa: B018


def test_the_interpreter_completes_functions() -> None:
    completed = rlcompleter.Completer({"flash": flash}).attr_matches("flash.attention")
    assert {name.rstrip("(") for name in completed} == {
        "flash.attention", "flash.attention_backward", "flash.attention_varlen",
        "flash.attention_varlen_backward", "flash.attention_weights", "flash.attention_with_kvcache",
    }  # fmt: skip


def test_help_begins_with_what_there_is_to_use() -> None:
    text = pydoc.plain(pydoc.render_doc(flash))
    overview = text[: text.index("PACKAGE CONTENTS")]
    assert all(f"{name}" in overview for name in flash.__all__)
    contents = text[text.index("PACKAGE CONTENTS") : text.index("CLASSES")]
    assert len(contents.splitlines()) < 32
    assert re.search(r"attention\(\s*q: '?AnyArray'?,\s*k: '?AnyArray'?,", text)  # by version of Python
    assert "{settings" not in text


def test_the_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ptxgen.__version__"}
    assert flash.__version__ == ptxgen.__version__


def test_importing_flash_imports_neither_numpy_nor_a_kernel() -> None:
    code = (
        "import flash, sys; print('numpy' in sys.modules, [m for m in sys.modules if m.startswith('flash.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False []\n"
