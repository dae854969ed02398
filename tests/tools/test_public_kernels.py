"""Public kernels: their verdicts, which take minutes, and the command and the page that tell them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Command

from ptxgen.errors import CompileError
from ptxgen.frontends import ptx
from tools import gen_public_kernels
from tools import public_kernels as tool
from tools.public import rows, table
from tools.public.cuda_text import between, changed
from tools.public.rows import REPORTED, RIGHT, STOPPED, WRONG, Row, Source, Verdict
from tools.public.trial import Trial

PROGRAM = "public_kernels.py"

BUGS = Path(__file__).resolve().parents[1] / "ptx" / "bugs"


@pytest.mark.nightly
@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: f"{row.source.name}-{row.name}")
def test_each_public_kernel_has_its_verdict(row: Row) -> None:
    if why := row.source.why_missing():
        pytest.skip(why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries
        verdict = row.judge()
    assert row.is_expected(verdict), f"expected {row.expected}, got {verdict.kind}: {verdict.details}"


# ---------------------------------------------------------------------------------------- the table


def test_every_row_says_what_it_is_and_why_it_is_not_right() -> None:
    assert len({(row.source.name, row.name) for row in table.ROWS}) == len(table.ROWS) > 60
    for row in table.ROWS:
        assert row.about
        assert bool(row.reason) == bool(row.says) == (row.expected != RIGHT)
        assert row.expected == REPORTED or not row.twin
        assert row.expected != WRONG


def test_a_page_of_another_table_is_outdated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "ROWS", table.ROWS[:-1])
    assert gen_public_kernels.main(["--check"]) == 1
    assert "run python tools/gen_public_kernels.py" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- the verdict


def judged(run: Callable[[Trial], None]) -> Verdict:
    source = Source("here")
    source.row()(run)
    return source.rows[0].judge()


def total(trial: Trial) -> None:
    launched(trial, (BUGS / "missing_barrier.ptx").read_text(), 255 * 128)


def launched(trial: Trial, text: str, wanted: float) -> None:
    x, out = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    trial.launch(ptx.load(text).only(), 1, 256, [x, out])
    trial.close("the sum", out, [wanted], 1e-6)


def mended() -> str:
    text = (BUGS / "missing_barrier.ptx").read_text()
    return text.replace("next:\n", "next:\n    bar.sync 0;\n")


def refused(trial: Trial) -> None:
    raise CompileError(f"no kernel for {type(trial).__name__}")


def test_findings_make_a_kernel_reported_whatever_its_results() -> None:
    verdict = judged(total)
    assert verdict.kind == REPORTED
    assert any("race" in detail for detail in verdict.details)


def test_the_reference_decides_about_a_kernel_without_findings() -> None:
    assert judged(lambda trial: launched(trial, mended(), 255 * 128)) == Verdict(RIGHT)
    difference = (
        "the sum[0] is 32640, the reference 1; 1 of 1 elements differ by more than 1e-06 of the largest"
    )
    assert judged(lambda trial: launched(trial, mended(), 1)) == Verdict(WRONG, (difference,))


def test_what_the_check_command_finds_on_a_path_not_taken_makes_a_kernel_reported() -> None:
    beyond = "setp.lt.f32 %p0, %f0, 0f00000000;\n    @%p0 st.shared.f32 [partial+4096], %f0;\n"
    text = mended().replace("    mov.u32 %r1, partial;", f"    {beyond}    mov.u32 %r1, partial;")
    verdict = judged(lambda trial: launched(trial, text, 255 * 128))
    assert verdict.kind == REPORTED
    assert "bytes 4096 to 4100 of 'partial' are accessed, but it has 1024" in verdict.details[0]


def test_a_compilers_error_stops_a_kernel() -> None:
    assert judged(refused) == Verdict(STOPPED, ("no kernel for Trial",))


def test_a_row_that_launches_nothing_is_a_mistake() -> None:
    def nothing(trial: Trial) -> None:
        trial.close("nothing", [1], [1], 0)

    with pytest.raises(AssertionError, match="here, nothing: the row launched no kernel"):
        judged(nothing)


@pytest.mark.parametrize(
    ("got", "wanted", "difference"),
    [
        ([1.0, np.inf], [1.0, np.inf], ""),
        ([1.0, np.nan], [1.0, np.nan], ""),
        (
            [1.0, np.inf],
            [1.0, -np.inf],
            "x[1] is inf, the reference -inf; 1 of 2 elements differ by more than ",
        ),
        ([1.1, 10.0], [1.0, 10.0], ""),
        (
            [1.3, 10.0],
            [1.0, 10.0],
            "x[0] is 1.3, the reference 1; 1 of 2 elements differ by more than 0.02 of ",
        ),
        ([1.0, np.nan], [1.0, 10.0], "x[1] is nan, the reference 10; 1 of 2 elements differ"),
        ([1.0], [1.0, 2.0], "x has the shape (1,), the reference (2,)"),
        ([], [], "x is empty, which compares nothing"),
    ],
)
def test_results_are_compared_with_the_largest_of_the_reference(
    got: list[float], wanted: list[float], difference: str
) -> None:
    trial = Trial()
    trial.close("x", got, wanted, 0.02)
    assert bool(trial.differences) == bool(difference)
    assert all(result.startswith(difference) for result in trial.differences)


def test_a_verdict_for_another_reason_is_not_the_expected_one() -> None:
    row = Row(Source("here"), "kernel", "", total, REPORTED, "a race", "race", twin=False)
    assert row.is_expected(Verdict(REPORTED, ("race: 1", "race: 2")))
    assert not row.is_expected(Verdict(REPORTED, ("race: 1", "undefined")))
    assert not row.is_expected(Verdict(STOPPED, ("race",)))


# ------------------------------------------------------------------------------------- the sources


def test_what_a_source_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(rows.FOLDER, raising=False)
    lacking = Source("Kernels", package="no-such-package==1.0")
    assert lacking.why_missing() == "Kernels: no-such-package is not installed (make public installs it)"
    checkout = Source("Kernels", checkout="kernels")
    assert checkout.why_missing() == "Kernels: PTXGEN_PUBLIC_SOURCES does not name a folder with sources"
    monkeypatch.setenv(rows.FOLDER, str(tmp_path))
    assert checkout.why_missing() == "Kernels: the folder that PTXGEN_PUBLIC_SOURCES names has no kernels"
    (tmp_path / "kernels").mkdir()
    assert checkout.why_missing() == ""
    assert checkout.folder == tmp_path / "kernels"


def test_kernels_are_cut_from_files_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "all.cu"
    file.write_text("one\ntwo begin\nthree\nend\n")
    assert between(file, "begin", "end") == f'#line 2 "{file}"\ntwo begin\nthree\n'
    assert between(file, "three") == f'#line 3 "{file}"\nthree\nend\n'
    with pytest.raises(LookupError, match=r"all\.cu has no line with 'one' after that with 'begin'"):
        between(file, "begin", "one")
    assert changed("a b c", "b", "d") == "a d c"
    with pytest.raises(LookupError, match="'b' must occur once in the kernel, and occurs 2 times"):
        changed("b b", "b", "")


# ------------------------------------------------------------------------------------- the command


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Source]:
    """A source with a racy kernel and one that is refused, and a source that is not there."""
    here, away = Source("here"), Source("away", package="no-such-package")
    here.row(REPORTED, "a barrier is missing", says="race")(total)
    here.row(STOPPED, "it is no kernel", says="no kernel")(refused)
    away.row()(total)
    monkeypatch.setattr(tool, "SOURCES", (here, away))
    monkeypatch.setattr(tool, "ROWS", (*here.rows, *away.rows))
    return here, away


@pytest.mark.usefixtures("two")
def test_the_command_prints_verdicts_and_what_did_not_run(call: Command) -> None:
    out = [line.split() for line in call.out().splitlines()]
    assert out[0] == ["here", "total", "reported", "a", "barrier", "is", "missing"]
    assert out[1] == ["here", "refused", "stopped", "it", "is", "no", "kernel"]
    assert out[2][:5] == ["not", "run:", "away:", "no-such-package", "is"]
    assert " ".join(out[3]) == "1 reported, 1 stopped; made wrong on purpose 0, reported 0"


def test_the_command_fails_for_another_verdict(
    two: tuple[Source, Source], call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = two
    here.row()(refused)
    monkeypatch.setattr(tool, "ROWS", tuple(here.rows[2:]))
    result = call.document("--json", code=1)
    (row,) = result["kernels"]
    assert (row["verdict"], row["expected"], row["as_expected"]) == (STOPPED, RIGHT, False)
    assert result["counts"] == {"right": 0, "reported": 0, "stopped": 1, "wrong": 0}
    assert "expected right\n    no kernel for Trial\n" in call.out(code=1)


@pytest.mark.usefixtures("two")
def test_the_command_fails_if_nothing_can_run(call: Command) -> None:
    assert call.error("--source", "away") == (
        1,
        "away: no-such-package is not installed (make public installs it)",
    )
    assert call.error("--source", "here", "--kernel", "nobody") == (1, "there is no kernel nobody")


def test_packages_are_pinned(call: Command) -> None:
    assert "liger-kernel==0.8.5" in call.out("--packages").splitlines()
