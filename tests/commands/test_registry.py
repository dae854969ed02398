"""Commands and kernels that other distributions register, by entry points or a checkout's pyproject.toml."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

import ptxgen
from flash import commands as attention
from flash.commands import report_attention
from flash.commands.parts.emit_kinds import KINDS
from ptxgen.commands import main as program
from ptxgen.commands import registry, report
from ptxgen.commands.registry import registered

PACKAGE = """
from ptxgen.commands.registry import Command, ReportKernels
COMMANDS = {
    "greet": Command("plugin_of_test", "say hello", "ptxgen greet you", before="run"),
    "part": Command("plugin_of_test", "say goodbye"),
    "check": Command("plugin_of_test", "a name that is taken"),
}
KERNELS = ReportKernels("plugin_of_test", {"gemm, gemv": "a product,\\nas it is"}, "ptxgen report gemm")

def main(argv):
    print("hello", *argv)
    return 3

def subject(words):
    from ptxgen.commands.parts.report_options import add_output, report_parser
    from ptxgen.report import Subject
    parser = report_parser("ptxgen report gemm", "")
    add_output(parser)
    text = ".version 7.0\\n.target sm_80\\n.address_size 64\\n.visible .entry gemm()\\n{\\n    ret;\\n}\\n"
    return parser.parse_args(words[1:]), Subject(text, block=(32,))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path into which a distribution is installed that registers commands and kernels."""
    (tmp_path / "plugin_of_test.py").write_text(PACKAGE)
    metadata = tmp_path / "plugin_of_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-test\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[ptxgen.commands]\nmine = plugin_of_test:COMMANDS\n[ptxgen.report]\nmine = plugin_of_test:KERNELS\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "plugin_of_test", raising=False)
    return tmp_path


def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str) -> None:
    """Have `ptxgen` lie in a folder with this pyproject.toml."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").write_text(project)
    monkeypatch.setattr(ptxgen, "__file__", str(tmp_path / "checkout" / "ptxgen" / "__init__.py"))


@pytest.mark.usefixtures("plugin")
def test_a_command_is_run_and_its_exit_code_returned(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["greet", "you"]) == 3
    assert capsys.readouterr() == ("hello you\n", "")


def test_packages_after_the_one_that_has_the_command_are_not_imported(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin / "plugin_of_test.py").write_text("raise AssertionError")
    for name in ("run", "emit"):
        assert name in program.commands(name)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("plugin")
def test_the_help_lists_a_command_before_the_one_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(program.commands())
    assert names[names.index("greet") + 1] == "run"
    assert names[-1] == "part"
    with pytest.raises(SystemExit):
        program.main(["--help"])
    shown = capsys.readouterr().out
    assert "  greet             say hello\n  run " in shown
    assert "  ptxgen greet you\n  ptxgen run attention.ptx\n" in shown


@pytest.mark.usefixtures("plugin")
def test_a_command_of_the_toolkit_is_not_replaced() -> None:
    assert program.commands()["check"] == program.TOOLKIT["check"]


@pytest.mark.usefixtures("plugin")
def test_report_takes_registered_kernels_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["gemv", "--no-assemble", "--json"]) == report.OK
    assert '"kernel": "gemm"' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        report.main(["--help"])
    shown = capsys.readouterr().out
    assert f"  gemm, gemv                  a product,\n{'':<30}as it is\n\nwhat the page has" in shown
    assert "\n  ptxgen report gemm\n" in shown


def test_a_package_that_cannot_be_imported_is_named_and_left_out(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin / "plugin_of_test.py").write_text("import no_such_module_at_all")
    names = program.commands()
    assert "greet" not in names
    assert "emit" in names
    assert capsys.readouterr().err == (
        "ptxgen: note: cannot import plugin_of_test, which plugin-of-test registers: "
        "No module named 'no_such_module_at_all'\n"
    )


def test_an_object_that_a_package_lacks_is_named(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plugin / "plugin_of_test.py").write_text("")
    assert "greet" not in program.commands()
    assert capsys.readouterr().err == (
        "ptxgen: note: cannot import plugin_of_test, which plugin-of-test registers: "
        "module 'plugin_of_test' has no attribute 'COMMANDS'\n"
    )


@pytest.mark.usefixtures("plugin")
def test_a_checkout_registers_what_its_project_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout(
        tmp_path,
        monkeypatch,
        '[project]\nname = "ptxgen"\n[project.entry-points."ptxgen.commands"]\na = "flash.commands:COMMANDS"',
    )
    older = tmp_path / "older" / "ptxgen-0.0.dist-info"  # of an editable install of an earlier commit
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: ptxgen\nVersion: 0.0\n")
    (older / "entry_points.txt").write_text("[ptxgen.commands]\nx = no_such_module_at_all:COMMANDS\n")
    monkeypatch.syspath_prepend(older.parent)
    first, second = registered("ptxgen.commands")
    assert first is attention.COMMANDS
    assert "greet" in second
    assert [kernels.names for kernels in registered("ptxgen.report")] == [["gemm", "gemv"]]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("group", ["ptxgen.commands", "ptxgen.report"])
def test_the_lines_of_the_project_say_what_a_parser_reads_in_them(group: str) -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    points = tomllib.loads(text)["project"]["entry-points"]
    read = registry._of_checkout(group)
    assert read == [*points[group].values()]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("project", ['[project]\nname = "other"\n', "[tool.x]\n", "no = TOML ="])
def test_the_project_of_another_distribution_registers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    checkout(tmp_path, monkeypatch, project)
    assert [table for table in registered("ptxgen.commands") if "greet" in table]


def test_attention_registers_the_kernels_that_it_reports_on() -> None:
    assert attention.REPORT.names == [report_attention.ATTENTION, *KINDS]
    assert attention.REPORT.module == report_attention.__name__
