"""Links between the documents lead to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(page: Path) -> str:
    """The text of a page without blocks and spans of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", lambda span: re.sub(r"[\[\]()]", "", span[0]), text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", h.strip().lower()) for h in re.findall(r"^#+ (.*)", prose(page), re.M))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        to = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_files_of_the_repository_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    told = re.findall(r"`((?:ptxgen|flash|templates|benchmarks|tools|tests)/[\w/.-]+\.\w+)`", text)
    assert [path for path in told if not (ROOT / path).exists()] == []
