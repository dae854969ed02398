"""What notebooks show: HTML of results, bars, cells of PTX and CUDA C++, and the tutorial, executed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.commands.parts.progress import progress
from ptxgen.errors import LaunchError
from ptxgen.frontends.program import Outcome
from ptxgen.kernels.findings import Findings
from ptxgen.notebook import ReportView, TimelineView, load_ipython_extension, report
from ptxgen.report import Subject, collect
from ptxgen.report.data import Lane, Pipeline, Stage
from ptxgen.tuning.ranking import Candidate, Ranking

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"
MOST_BYTES = 300_000
VARIES = "nbval-ignore-output"  # tag of cells whose output depends on the assembler that is installed
HOSTILE = "<img src=x onerror=alert(1)>&\"'"
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    .shared .b32 word;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %rd1, %r0, 4, %rd0;
    st.global.u32 [%rd1], %r0;
    // RACE
    ret;
}
"""
RACY = PTX.replace("// RACE", "st.shared.u32 [word], %r0;")


@px.kernel(threads=64)
def scale(k: Any, X: Pointer[f32], n: u32, factor: f32) -> None:
    i = k.block_id() * 64 + k.thread_id()
    with k.when(i < n):
        X[i] = X[i] * factor


@px.kernel(threads=64)
def tiled(k: Any, X: Pointer[f32], *, tile: int) -> None:
    X[k.thread_id()] = tile


class Page(HTMLParser):
    """The elements of HTML, the values of their attributes, and their text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(of: Any) -> Page:
    return Page(of._repr_html_())


# ------------------------------------------------------------------------------------------- results


def test_a_kernel_shows_its_resources_and_its_ptx() -> None:
    page = shown(scale)
    assert "kernel scale(X: Pointer[f32], n: u32, factor: f32)" in page.text
    needs = f"live registers{scale.resources.live_registers}"
    assert f"\ntargetsm_80\nthreads of a CTA64\n{needs}\n" in page.text
    assert scale.ptx in page.text
    assert page.text == shown(scale.build()).text


def test_a_kernel_that_is_not_built_by_default_says_why() -> None:
    page = shown(tiled)
    assert page.text.split("\n")[-3].strip() == (
        "<kernel tiled(X)>: tiled() needs tile, which the kernel is built for; pass it by name"
    )


def test_findings_show_what_is_wrong() -> None:
    x = np.ones(64, np.float32)
    assert "sanitizers: nothing was found" in shown(scale.check(1, x, 64, 2.0)).text
    findings = scale.check(2, x, 65, 2.0)
    assert "sanitizers: 1 problem" in shown(findings).text
    assert str(findings) in shown(findings).text


def hostile_ranking() -> Ranking:
    bad = Candidate(HOSTILE, problem=HOSTILE)
    return Ranking(HOSTILE, "model", HOSTILE, {HOSTILE: 1}, (Candidate(HOSTILE, unit=HOSTILE, cost=1), bad))


def hostile_timeline() -> TimelineView:
    lane = Lane((0,), 99, ((0, 0, 99),), (), ())
    return TimelineView(HOSTILE, Pipeline((HOSTILE,), 99, 99, (Stage(HOSTILE, 0, 99, 1),), (lane,)))


def hostile_report() -> ReportView:
    text = PTX.replace("// RACE", f"// {HOSTILE}")
    return ReportView(collect(Subject(text, block=(32,), config=((HOSTILE, HOSTILE),), assemble=False)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Findings((), (HOSTILE,)),
        lambda: Outcome(HOSTILE, None, Findings((), ()), HOSTILE, HOSTILE),
        hostile_ranking,
        hostile_timeline,
        hostile_report,
    ],
)
def test_no_text_becomes_an_element(make: Callable[[], Any]) -> None:
    page = shown(make())
    framed = [Page(value) for value in page.values if "<!DOCTYPE html>" in value]  # a report's page
    assert all("img" not in each.tags for each in (page, *framed))
    assert any(HOSTILE in text for text in (page.text, *page.values, *(each.text for each in framed)))


def test_a_report_has_a_timeline_if_there_was_a_run() -> None:
    x = np.ones(100, np.float32)
    view = report(scale, 2, x, 100, 2.0)
    page = shown(view)
    assert page.tags == {"style", "iframe"}
    assert repr(view) == "<report of scale for sm_80>"
    assert str(view).startswith("<!DOCTYPE html>")
    framed = next(value for value in page.values if value.startswith("<!DOCTYPE html>"))
    assert str(view) == framed.replace('<base href="about:srcdoc">', "")
    assert "about:srcdoc" in Page(framed).values  # without which links leave the page
    assert "scale: 2 warps of the first CTA over time" in shown(view.timeline).text
    assert (x == 1).all()
    with pytest.raises(LaunchError, match=r"^scale: there is no timeline: no launch was given$"):
        _ = report(scale).timeline


def test_a_report_is_of_a_kernel() -> None:
    tuned = px.autotune(tile=(1, 2))(tiled)
    with pytest.raises(LaunchError) as error:
        report(tuned)  # type: ignore[arg-type]
    assert str(error.value) == (
        "report: the first argument must be a function with @ptxgen.kernel, got <kernel tiled with 2 "
        "configurations>; of a tuned kernel f that is f.kernel"
    )


# ------------------------------------------------------------------------------------------ progress


def test_a_notebook_gets_a_bar_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[dict[str, str]] = []

    def display(data: dict[str, str], **_: bool) -> Any:
        shown.append(data)
        return SimpleNamespace(update=lambda data, **_: shown.append(data))

    shell = SimpleNamespace(kernel="of Jupyter")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with progress(3) as step:
        step("a<b")
        step("at once, so that it is not drawn")
    assert capsys.readouterr().err == ""
    assert shown == [
        {"text/plain": ""},
        {"text/html": '<progress max="3" value="0"></progress> 0 of 3: a&lt;b', "text/plain": "[0/3] a<b"},
        {"text/plain": ""},
    ]


# --------------------------------------------------------------------------------------------- cells


@pytest.fixture
def magics(notebook: ModuleType) -> dict[str, Callable[[str, str], Outcome]]:  # noqa: ARG001  # IPython
    """The magics in a shell that has the array `out`, of 32 words."""
    known: dict[str, Callable[[str, str], Outcome]] = {}
    names = {"out": np.zeros(32, np.uint32), "words": {"out": np.zeros(32, np.uint32)}}
    load_ipython_extension(
        SimpleNamespace(
            ev=lambda text: eval(text, names),
            register_magic_function=lambda f, kind, name: known.update({name: f}) if kind == "cell" else None,
        )
    )
    return known


@pytest.mark.parametrize("argument", ["out", 'words["out"]', "out[:32]"])
def test_a_cell_of_ptx_runs_under_the_sanitizers(magics: Any, argument: str) -> None:
    assert magics["ptx"](f"--block 32 {argument}", PTX).clean
    outcome = magics["ptx"](f"--grid 1 --block 32 {argument}", RACY)
    assert [found.kind for found in outcome.findings.reports] == ["race"]
    assert "kernel k: 1 problem" in shown(outcome).text


@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [
        (
            "--block 0 out",
            PTX,
            "%%ptx: argument --block: must be one to three numbers from 1, such as 4, 4,2 or",
        ),
        (
            "--block 32 nowhere",
            PTX,
            "%%ptx: the argument nowhere cannot be evaluated: NameError: name 'nowhere'",
        ),
        ("out", PTX, "%%ptx: k: block must be given, the threads of a CTA: block=256"),
        ("--block 32", PTX, "%%ptx: k takes 1 arguments (out: u64), got 0"),
        ("--entry other --block 32 out", PTX, "%%ptx: the cell has no kernel 'other' (it has k)"),
        ("--block 32 out", "ret;", "%%ptx: PTX text, line 1, column 1: wanted '.version', got 'ret'"),
        ("--block 32 'out", PTX, "%%ptx: No closing quotation in the line: --block 32 'out"),
    ],
)
def test_what_is_wrong_with_a_cell_is_said_without_a_traceback(
    magics: Any, line: str, cell: str, message: str
) -> None:
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as error:
        magics["ptx"](line, cell)
    assert str(error.value).startswith(message)


def test_a_cell_of_cuda_runs_under_the_sanitizers(magics: Any, nvrtc: None) -> None:  # noqa: ARG001
    source = "__global__ void k(unsigned *x) { x[threadIdx.x] = threadIdx.x; }"
    assert magics["cuda"]("--block 32 --target sm_90 out", source).clean
    assert "32 threads" not in magics["cuda"].__doc__
    assert "--target" in magics["cuda"].__doc__
    assert "--target" not in magics["ptx"].__doc__


# ------------------------------------------------------------------------------------------ tutorial


def outputs(cell: Any) -> list[Any]:
    """What a cell shows: texts, and the text of HTML; of cells that vary only the kinds of it."""
    kinds = [
        {**each.get("data", {}), each.output_type: each.get("text", "")} for each in cell.get("outputs", [])
    ]
    return [sorted(kind) for kind in kinds] if VARIES in cell.metadata.get("tags", []) else kinds


@pytest.mark.slow
def test_the_tutorial_shows_what_it_says(notebook: ModuleType, update_golden: bool) -> None:
    from nbformat import read, write

    stored, executed = (read(TUTORIAL, as_version=4) for _ in range(2))
    notebook.NotebookClient(executed, timeout=600, kernel_name="python3", record_timing=False).execute()
    if update_golden:
        write(executed, TUTORIAL)
        return
    for before, after in zip(stored.cells, executed.cells, strict=True):
        assert outputs(after) == outputs(before), "outputs differ; --update-golden writes them"
    assert TUTORIAL.stat().st_size < MOST_BYTES
