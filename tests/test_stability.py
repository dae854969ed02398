"""What docs/stability.md calls public is what the documents import."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from tools.gen_api_docs import MODULES

ROOT = Path(__file__).parents[1]
MODULE_ROWS = ("| functions and classes |", "| adapters |")


def public_modules() -> set[str]:
    lines = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").splitlines()
    rows = "\n".join(line for line in lines if line.startswith(MODULE_ROWS))
    return set(re.findall(r"`((?:ptxgen|flash)[\w.]*)`", rows))


def imported_by_documents() -> dict[str, str]:
    """Modules of this project that code in the documents imports, each with one of these documents."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    fenced = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    imported = re.compile(r"(?:from|import) ((?:ptxgen|flash)(?:\.\w+)*)\b")
    return {
        module: page.name
        for page in pages
        for code in fenced.findall(page.read_text(encoding="utf-8"))
        for module in imported.findall(code)
    }


def test_documents_import_public_modules_alone() -> None:
    imported = imported_by_documents()
    assert len(imported) > 15
    public = public_modules()
    assert {module: page for module, page in imported.items() if module not in public} == {}


def test_public_modules_exist_and_those_of_the_api_page_are_public() -> None:
    public = public_modules()
    assert set(MODULES) <= public
    for name in public:
        if ".adapters" not in name:  # those import their framework, which may not be installed
            importlib.import_module(name)
