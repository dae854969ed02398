"""Programs that call the CUDA driver, without a GPU: libcuda.so.1 is answered by the interpreter."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
from host_programs import Hosts, cuda_headers, ran

from ptxgen.commands import run_program
from ptxgen.program.calls import calls_of_versions

PROGRAMS = Path(__file__).parent / "programs"


def compiled(cc: Hosts, name: str, folder: Path) -> Path:
    return cc.c(Path(shutil.copy(PROGRAMS / f"{name}.c", folder)), "-std=c11")


def test_the_driver_answers_as_a_driver_does(
    cc: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, said = ran(compiled(cc, "driver_calls", tmp_path), sanitize=True)
    assert capfd.readouterr().out == "0 wrong\n"
    assert (ended.code, ended.stopped, ended.reports, ended.faults) == (0, "", (), ())
    assert ended.launches == 4
    assert [text.partition("\n")[0].rpartition("/")[2] for text in said] == [
        "PTX text, line 3, column 1: wanted '.address_size', got 'nonsense'",
        "driver_calls has no kernel 'subtract' (it has add)",
        "add: a block has at most 1024 threads, got (2048, 1, 1), 2048 threads",
    ]


def test_all_versions_of_a_call_are_answered_from_one_table(
    cc: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended, said = ran(compiled(cc, "versions", tmp_path))
    assert capfd.readouterr().out == "0 wrong\n"
    assert (ended.code, ended.stopped, said) == (0, "", [])


def test_the_table_of_calls_is_that_of_the_header() -> None:
    headers = cuda_headers()
    assert headers is not None
    text = (headers / "cudaTypedefs.h").read_text()
    typedef = re.compile(r"typedef CUresult \(CUDAAPI \*PFN_(cu\w+?)_v(\d+)\)\(([^;]*)\);")
    parameters = {
        (name, int(since)): re.sub(r"\w+(?=,|$)", "", of) for name, since, of in typedef.findall(text)
    }
    table = files("ptxgen.program").joinpath("answers/driver_calls.txt").read_text()
    calls = calls_of_versions(table)
    since_of = {(name, version.since) for name, versions in calls.versions.items() for version in versions}
    newer = {call for call in parameters if call[1] > 13050}  # a header may be newer than the table
    assert len(parameters) > 400
    assert parameters.keys() - newer <= since_of
    for name, versions in calls.versions.items():
        assert [version.since for version in versions] == sorted(version.since for version in versions)
        for before, after in pairwise(versions):
            if calls.same.get(before.symbol) == after.symbol and (name, after.since) in parameters:
                assert parameters[name, before.since] == parameters[name, after.since], name


def test_a_fault_of_a_kernel_comes_with_the_next_call_and_stays(
    cc: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled(cc, "driver_faults", tmp_path))
    assert run_program.main([program]) == 0
    out, err = capfd.readouterr()
    assert out == "0 700 700\n"
    assert "4092 bytes after the end of allocation 1 (device memory)" in err


def test_a_call_of_the_driver_that_is_not_answered_ends_the_program(
    cc: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled(cc, "driver_faults", tmp_path))
    assert run_program.main([program, "graph"]) == 1
    assert "calls cuGraphCreate, which is not answered" in capfd.readouterr().err


def test_ptx_for_a_newer_device_is_refused_as_such(
    cc: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled(cc, "driver_faults", tmp_path))
    assert run_program.main(["--target", "sm_75", program]) == 9
    assert "PTX for sm_80, which does not run on the device, sm_75" in capfd.readouterr().err
