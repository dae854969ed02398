"""The page of a report as HTML: whole, linked, labelled, escaped, the same at each call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from report.kernels import CONFLICTS, RACE, report_on, softmax_report

from ptxgen.report import Launch, Report, Subject, collect, highlight, page
from ptxgen.report.listing import linked, listing_of

VOID = {"col", "meta", "br", "hr", "img", "input", "link"}
ENDS_A_LINE = {"p", "h6"}  # begin where a line of a listing ends, which has no end tag
SVG_LEAVES = {"path", "rect", "circle", "line"}  # self-closed in the templates


class Page(HTMLParser):
    """Reads a page; raises AssertionError for tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag in ENDS_A_LINE and self.open and self.open[-1] == "p":
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_LEAVES, f"<{tag}/>"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        if tag == "div" and self.open[-1] == "p":
            self.open.pop()
        # A table's parts and items of lists may be left open in HTML; the templates close all.
        assert self.open.pop() == tag, f"</{tag}> at line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def having(self, name: str) -> list[tuple[str, dict[str, str]]]:
        return [(tag, attrs) for tag, attrs in self.tags if name in attrs]


REPORTS = {
    "a Python kernel": softmax_report,
    "PTX with findings": lambda: report_on(RACE),
    "PTX without a run": lambda: collect(Subject(CONFLICTS, assemble=False)),
    "PTX that is refused": lambda: report_on(CONFLICTS.replace("%tid.x", "%rd0")),
    "nothing installed": lambda: replace(softmax_report(), code=None, missing=(("code", "install <ptxas>"),)),
}


@pytest.fixture(params=REPORTS, scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    return REPORTS[request.param]()


@pytest.fixture(scope="module")
def found(report: Report) -> Page:
    return Page(page(report))


def test_ids_are_unique(found: Page) -> None:
    ids = [attrs["id"] for _, attrs in found.having("id")]
    assert len(ids) == len(set(ids))


def test_every_link_has_its_target(found: Page) -> None:
    ids = {attrs["id"] for _, attrs in found.having("id")}
    targets = {attrs["href"] for _, attrs in found.having("href")}
    assert targets
    assert all(target.startswith("#") for target in targets)
    assert {target[1:] for target in targets} <= ids
    labels = {attrs["aria-labelledby"] for _, attrs in found.having("aria-labelledby")}
    assert labels <= ids


def test_pictures_lists_and_scrolling_boxes_are_labelled(found: Page) -> None:
    for tag, attrs in found.tags:
        if tag == "svg" or attrs.get("role") == "img":
            assert attrs.get("aria-label") or attrs.get("aria-hidden") == "true", attrs
        if attrs.get("role") in ("region", "listbox") or tag in ("nav", "section"):
            assert attrs.get("aria-label") or attrs.get("aria-labelledby"), attrs
        if attrs.get("class") == "scroll":
            assert attrs.get("tabindex") == "0", attrs


def test_headings_do_not_skip_a_level(found: Page) -> None:
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_nothing_comes_from_elsewhere(report: Report) -> None:
    text = page(report)
    assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:|//)", text)
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#hatch"}
    assert "default-src 'none'" in text


def test_the_same_report_gives_the_same_page(report: Report) -> None:
    assert page(report) == page(report)


def test_every_line_of_ptx_is_on_the_page(report: Report, found: Page) -> None:
    ids = {attrs["id"] for _, attrs in found.having("id")}
    assert {f"p{line.number}" for line in report.ptx} <= ids


def test_findings_link_to_their_lines() -> None:
    result = Page(page(report_on(RACE)))
    finding = next(f for f in report_on(RACE).findings if f.line)
    assert f"#p{finding.line}" in {attrs["href"] for _, attrs in result.having("href")}
    marked = [attrs["id"] for _, attrs in result.tags if "error-r" in attrs.get("class", "").split()]
    assert f"p{finding.line}" in marked
    # And the line to the worst finding on it, which is the first one.
    assert ("a", {"href": "#f1", "aria-label": f"error on line {finding.line}"}) in result.tags
    assert ("tr", {"id": "f1", "data-l": str(finding.line)}) in result.tags


def test_lines_that_a_message_names_are_links() -> None:
    assert linked("<st> (line 3) after line 9 of 0 lines", 5) == (
        '&lt;st&gt; (<a href="#p3">line 3</a>) after line 9 of 0 lines'
    )


def test_tokens_of_ptx_and_of_sources_have_colours() -> None:
    ptx = "@%p1 bra $L<2>;\n\tmad.lo.u32 %r4, %tid.x, 0x80, add; /* <a\nb> */\n.visible .entry ret("
    assert highlight.ptx(ptx) == [
        "<i class=f>@%p1</i> <b>bra</b> <i class=f>$L</i>&lt;<i>2</i>&gt;;",
        "\t<b>mad.lo.u32</b> %r4, <i>%tid.x</i>, <i>0x80</i>, add; <i class=q>/* &lt;a</i>",
        "<i class=q>b&gt; */</i>",
        ".visible .entry ret(",
    ]
    lines = ["    of a string.", '    """', "    return x < 1", None]
    assert highlight.source("kernel.py", lines) == [
        "<i class=s>    of a string.</i>",
        '<i class=s>    """</i>',
        "    <b>return</b> x &lt; <i>1</i>",
        "",
    ]
    whole = ['    """Whole."""', "    x"]
    assert highlight.source("kernel.py", whole) == ['    <i class=s>"""Whole."""</i>', "    x"]
    assert highlight.source("kernel.unknown", ["return 1 < 2"]) == ["return 1 &lt; 2"]
    assert highlight.source("kernel.cu", ["return 1;"]) == ["<b>return</b> <i>1</i>;"]


def test_every_opcode_of_the_text_is_explained(report: Report) -> None:
    lines = [line.text.split(";")[0].split() for line in report.ptx if line.kind == "instruction"]
    opcodes = {words[1] if words[0].startswith("@") else words[0] for words in lines}
    assert {row.opcode for row in report.instructions} == opcodes
    assert sum(row.lines for row in report.instructions) == len(lines)
    text = page(report)
    for row in report.instructions:
        assert f'<tr data-o="{row.opcode}">' in text
        assert row.meaning
        assert row.needs.startswith("PTX ")


def test_columns_are_as_wide_as_their_lines_and_there_is_none_without_machine_code() -> None:
    columns = listing_of(softmax_report()).columns
    assert re.fullmatch(r"(minmax\(0,\d+fr\) ?){2,3}", columns)
    alone = listing_of(REPORTS["nothing installed"]())
    assert (alone.title, len(alone.columns.split())) == ("Python and PTX", 2)
    assert "Machine code <span>" not in page(REPORTS["nothing installed"]())


def test_reasons_are_said_where_something_is_missing() -> None:
    words = "".join(Page(page(REPORTS["PTX without a run"]())).words)
    assert words.count("no launch was given") >= 3
    words = "".join(Page(page(REPORTS["PTX that is refused"]())).words)
    assert "Nothing was proved: the verifier refuses the module" in words
    words = "".join(Page(page(REPORTS["nothing installed"]())).words)
    assert "install <ptxas>" in words


def test_the_figures_at_the_head_say_what_is_good_and_what_is_not() -> None:
    def tiles(report: Report) -> dict[str, tuple[str, ...]]:
        text = page(report)
        result = re.findall(r'class="tile (\w*)"[^>]*><span>(.*?)</span><b>(.*?)</b><span>(.*?)</span>', text)
        return {name: (state, value, more) for state, name, value, more in result}

    good = tiles(softmax_report())
    assert good["Proved"] == ("ok", "11 of 11", "accesses, barriers and warps, not races")
    assert good["Sanitizers"] == ("ok", "clean", "all, in one run")
    bad = tiles(report_on(RACE))
    assert bad["Proved"] == ("warn", "2 of 2", "without global memory")
    assert bad["Sanitizers"] == ("bad", "1 problem", "all, in one run")
    assert bad["Bank conflicts"] == ("warn", "124", "extra wavefronts")
    assert tiles(REPORTS["PTX without a run"]())["Sanitizers"] == ("warn", "not run", "no run succeeded")


HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;\'"'
TEXT = CONFLICTS.replace("\tbar.sync 0;", f"\t// {HOSTILE}\n\t.loc 1 3 0\n\tbar.sync 0;")
TEXT += '.file 1 "x/<script>alert(3)</script>.cu"\n'


def test_what_a_text_says_is_no_part_of_the_page() -> None:
    source = ["", "", f"x = {HOSTILE} </code></script>", ""]
    subject = Subject(
        TEXT,
        launch=Launch((1,), [np.zeros(128, np.uint8)]),
        config=(("name <b>", HOSTILE),),
        sources={"script>.cu": source},
        assemble=False,
    )
    result = Page(page(collect(subject)))
    words = "".join(result.words)
    assert f"// {HOSTILE}" in words
    assert f"name <b> {HOSTILE}" in words
    assert f"x = {HOSTILE} </code></script>" in words
    scripts = [tag for tag, _ in result.tags if tag == "script"]
    assert len(scripts) == 1
    assert not result.having("onerror")
    assert not [tag for tag, _ in result.tags if tag == "img"]


@pytest.mark.slow
def test_no_clock_path_or_hash_reaches_the_page(tmp_path: Path) -> None:
    code = (
        "import hashlib, sys\n"
        "from report.kernels import softmax_report, report_on, RACE\n"
        "from ptxgen.report import page\n"
        "text = page(softmax_report()) + page(report_on(RACE))\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), 'report/kernels.py' in text, sys.argv[0] in text)"
    )
    root = Path(__file__).parents[2]
    said = set()
    for seed, folder in (("1", tmp_path), ("2", root)):
        paths = os.pathsep.join([str(root), str(root / "tests")])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths, "TZ": f"UTC-{seed}"}
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        said.add(ran.stdout)
    assert len(said) == 1
    assert str(root) not in page(softmax_report())


def test_a_kernel_of_6000_lines_is_a_page_of_half_a_megabyte() -> None:
    more = "\n".join(["\tmad.lo.u32 %r2, %r0, 128, %r1;"] * 6000)
    text = CONFLICTS.replace("\tbar.sync 0;", f"{more}\n\tbar.sync 0;")
    result = page(collect(Subject(text, assemble=False)))
    assert len(result.encode()) < 0.5e6
    assert result.count('class="k"') >= 60


def test_a_finding_links_to_its_line_of_the_source() -> None:
    text = RACE.replace("\tst.shared", "\t.loc 1 7 3\n\tst.shared").replace(
        "\tld.shared", "\t.loc 1 9 0\n\tld.shared"
    )
    result = report_on(text + '.file 1 "/somewhere/else/kernel.cu"\n')
    (race,) = {f.line for f in result.findings if f.kind == "sanitizer, race"}
    id = result.ptx[race - 1].source
    assert id
    shown = page(result)
    findings = shown[shown.index('<section id="findings"') : shown.index('<section id="registers"')]
    location = r"kernel\.cu:[79]"
    link = rf'<td class="nw"><a href="#y{id}" title="{location}">{location}</a></td>'
    assert re.search(rf'<a href="#p{race}">line {race}</a></td>{link}', findings)
    assert f"<p id=y{id}>" in shown
