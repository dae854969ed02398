"""What GPUs gave (tests/vectors/sm_NN, made by record.py) against the interpreter; and the
comparison itself, on vectors that the interpreter gave.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import lzma
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import refused
from fake_driver import A100, FakeDriver
from fake_gpu import Machine
from gpu_runs import not_here
from vectors import recording
from vectors.cases import RULES, Array, Case
from vectors.compare import compare, interpreted
from vectors.recording import FAMILIES, HERE, main, print_comparison, record_family, recorded
from vectors.store import SUFFIX, load, save

from ptxgen.errors import BackendError, PoisonedContextError
from ptxgen.runtime.cuda import CudaBackend

FILES = sorted(HERE.glob(f"sm_*/*{SUFFIX}"))
FACTS: dict[str, Any] = {
    "family": "here",
    "device": "the interpreter",
    "sm": "sm_90",
    "driver": "0.0",
    "assembler": "none",
    "failed": {},
}
STRIDE = 5  # of a family's cases, every fifth is enough to test the comparison

# ---- what GPUs gave ---------------------------------------------------------------------------


def name_of(path: Path) -> str:
    return path.name.partition(".")[0]


def whole_and_sampled() -> list[Any]:
    """Each file, and the step among its cases: 1, and before that STRIDE for those that take seconds."""
    large = [path for path in FILES if name_of(path) in ("wgmma", "mma", "roundings")]
    return [
        *(pytest.param(path, STRIDE, id=f"{path.parent.name}-{name_of(path)}-some") for path in large),
        *(
            pytest.param(
                path,
                1,
                id=f"{path.parent.name}-{name_of(path)}",
                marks=[pytest.mark.slow] if path in large else [],
            )
            for path in FILES
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "step"), whole_and_sampled())
def test_the_interpreter_gives_what_a_gpu_gave(path: Path, step: int) -> None:
    facts, cases = load(path)
    wrong = [str(r) for r in (compare(c.on(facts["target"]), out) for c, out in cases[::step]) if r.problem]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "others"),
    [("ex2.approx.f16", 1), ("ex2.approx.ftz.bf16", 199), ("tanh.approx.f16", 62), ("tanh.approx.bf16", 2)],
)
def test_approximations_of_16_bits_are_cut_off_as_on_an_h200(name: str, others: int) -> None:
    _, cases = load(HERE / "sm_90" / f"approximations{SUFFIX}")
    (spread,) = (compare(case, output).spread for case, output in cases if case.name == name)
    equal, other = spread.removeprefix("units apart: ").split(", ")
    assert int(equal.removeprefix("0: ")) > 63_000
    assert other == f"1: {others}"


# ---- the comparison ---------------------------------------------------------------------------


@functools.cache
def cases_of(family: str) -> list[Case]:
    return list(FAMILIES[family]())


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_interpreter_gave_is_found_again(family: str, tmp_path: Path) -> None:
    path = tmp_path / f"{family}{SUFFIX}"
    save(path, FACTS, [(case, interpreted(case)) for case in cases_of(family)[::STRIDE]])
    _, cases = load(path)
    assert [c.name for c, _ in cases] == [c.name for c in cases_of(family)[::STRIDE]]
    results = [compare(case, output) for case, output in cases]
    assert [str(r) for r in results if r.problem] == []
    assert {c.rule for c, _ in cases} <= set(RULES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_of_a_family_has_a_name_of_its_own(family: str) -> None:
    names = [case.name for case in cases_of(family)]
    assert len(set(names)) == len(names) > 0


def changed(output: Array, number: int, bit: int) -> Array:
    copy = output.copy()
    flat = copy.reshape(-1)
    flat[number] ^= flat.dtype.type(1 << bit)
    return copy


def case_of(family: str, name: str) -> Case:
    return next(c for c in cases_of(family) if c.name.startswith(name))


# A case, an element that is an ordinary number there, a bit that matters.
CHANGES = [
    ("mma", "mma.sync.aligned.m16n8k16.row.col.f32.f16", 3, 30),
    ("mma", "mma.sync.aligned.m16n8k16.row.col.f32.f16", 3, 0),
    ("mma", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3", 3, 22),
    ("mma", "mma.sync.aligned.m16n8k32.row.col.s32", 3, 0),
    ("mma", "mma.sync.aligned.m8n8k4.row.col.f64", 3, 12),
    ("mma", "mma.sync.aligned.m16n8k8.row.col.f16", 3, 30),
    ("matrices", "movmatrix", 5, 0),
    ("approximations", "ex2.approx.f32", 8000, 3),
    ("approximations", "lg2.approx.f32", 2003, 8),
    ("approximations", "sin.approx.f32", 8000, 20),
    ("approximations", "tanh.approx.f16x2", 0x3800, 6),
    ("approximations", "rcp.approx.ftz.f64", 100, 40),
    ("fp8", "cvt.rn.satfinite.e4m3x2.f32", 5000, 0),
    ("roundings", "fma.rz.f32", 100, 0),
    ("matrices", "ld ldmatrix", 5, 0),
    ("matrices", "st stmatrix", 5, 0),
    ("wgmma", "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 128B a:M", 100, 0),
    ("wgmma", "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 128B a:K b:K start:0 random", 100, 30),
    ("tensor_copies", "64B at 384", 600, 0),
]


@pytest.mark.parametrize(("family", "name", "number", "bit"), CHANGES)
def test_one_changed_element_is_found(family: str, name: str, number: int, bit: int) -> None:
    case = case_of(family, name)
    output = interpreted(case)
    assert compare(case, output).problem == ""
    problem = compare(case, changed(output, number, bit)).problem
    assert " differ, the first is number " in problem
    assert problem.startswith("1 of ")


def test_each_rule_has_a_change_that_is_found() -> None:
    assert {case_of(family, name).rule for family, name, *_ in CHANGES} == set(RULES)
    assert {family for family, *_ in CHANGES} == set(FAMILIES)


def test_a_difference_says_where_and_what() -> None:
    case = case_of("matrices", "movmatrix")
    output = interpreted(case)
    result = compare(case, changed(output, 5, 0))
    want = int(output.reshape(-1)[5])
    assert str(result) == (
        f"{case.name}: 1 of 64 elements differ, the first is number 5: "
        f"recorded {want ^ 1:#010x}, here {want:#010x} (64 elements, bit for bit)"
    )


def test_approximations_may_be_off_by_what_their_row_promises_and_are_counted() -> None:
    case = case_of("approximations", "ex2.approx.f32")
    output = interpreted(case)
    flat = output.reshape(-1)
    flat[8000:8010] += np.arange(10, dtype=np.uint32) % 2
    result = compare(case, output)
    assert result.problem == ""
    assert result.spread.endswith(", 1: 5")
    flat[8000] += 9
    assert compare(case, output).spread.endswith(", 1: 5, 8+: 1")


def test_the_error_of_a_sum_is_told_by_its_magnitudes() -> None:
    case = case_of("mma", "mma.sync.aligned.m16n8k16.row.col.f32.f16")
    output = interpreted(case)
    assert compare(case, output).spread == "1024 sums, worst error 0 of their magnitudes, 100.0% equal"
    output.reshape(-1)[3] += np.uint32(2)
    spread = compare(case, output).spread
    assert re.fullmatch(r"1024 sums, worst error 2\^-2\d\.\d of their magnitudes, 99\.9% equal", spread)


def test_a_case_is_interpreted_with_the_tensor_cores_of_the_gpu_that_gave_it() -> None:
    case = case_of("mma", "mma.sync.aligned.m16n8k16.row.col.f16.f16")
    assert case.target == "sm_80"
    newer = case.on("sm_90a")
    assert newer.ptx.startswith(".version 8.0\n.target sm_90a\n.address_size 64\n")
    assert newer.on("sm_80").ptx.startswith(".version 8.0\n.target sm_80\n.address_size 64\n")
    output = interpreted(newer)
    assert compare(newer, output).problem == ""
    assert compare(case, output).problem != ""


def test_nan_is_nan_whatever_its_bits_and_a_number_is_not() -> None:
    case = case_of("approximations", "rcp.approx.f32")
    output = interpreted(case)
    (nan,) = np.flatnonzero(np.isnan(output.view(np.float32)))[:1]
    output.reshape(-1)[nan] = 0xFFC12345
    assert compare(case, output).problem == ""
    output.reshape(-1)[nan] = 0x3F800000
    assert compare(case, output).problem.startswith("1 of 8192 elements differ")


# ---- files ------------------------------------------------------------------------------------


def test_a_file_holds_the_cases_and_no_time(tmp_path: Path) -> None:
    cases = [case_of("matrices", "movmatrix"), case_of("tensor_copies", "64B at")]
    pairs = [(case, interpreted(case)) for case in cases]
    for name in ("one.npz.xz", "two.npz.xz"):
        save(tmp_path / name, FACTS, pairs)
    assert (tmp_path / "one.npz.xz").read_bytes() == (tmp_path / "two.npz.xz").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2
    facts, kept = load(tmp_path / "one.npz.xz")
    assert facts == {"format": 2, **FACTS}
    for (got, output), (case, want) in zip(kept, pairs, strict=True):
        np.testing.assert_array_equal(output, want)
        for field in dataclasses.fields(Case):
            if field.name == "inputs":
                np.testing.assert_array_equal(got.inputs[0], case.inputs[0])
            else:
                assert getattr(got, field.name) == getattr(case, field.name)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.npz.xz"
    path.write_bytes(b"old")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lzma, "compress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path, FACTS, [])
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.npz.xz"
    facts = np.frombuffer(json.dumps({"format": 0, "cases": []}).encode(), np.uint8)
    whole = io.BytesIO()
    np.savez(whole, facts=facts)
    path.write_bytes(lzma.compress(whole.getbuffer()))
    with refused(ValueError, f"{path} has format 0, wanted 2; record it again"):
        load(path)


# ---- recording --------------------------------------------------------------------------------


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """One whose GPU is a fake, and which the interpreter stands in for."""
    monkeypatch.setattr(recording, "launched", lambda _, case: interpreted(case))
    return CudaBackend(FakeDriver())


def test_a_family_is_recorded_with_the_names_of_what_made_it(
    backend: CudaBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record_family("matrices", backend, tmp_path) == 0
    facts, cases = load(tmp_path / "sm_90" / "matrices.npz.xz")
    assert len(cases) == 13
    assert {k: facts[k] for k in ("family", "device", "sm", "driver", "target", "failed")} == {
        "family": "matrices",
        "device": "Fake H100",
        "sm": "sm_90",
        "driver": "13.0",
        "target": "sm_90a",
        "failed": {},
    }
    assert facts["assembler"]
    assert capsys.readouterr().out.startswith("matrices: 13 of 13 cases, ")
    assert print_comparison(tmp_path) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("matrices on Fake H100 (sm_90), driver 13.0, ")
    assert len(lines) == 13
    assert all(line.endswith("elements, bit for bit)") for line in lines)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gpu_is_given_what_the_interpreter_is(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaBackend, "compile", lambda *given: given[1].encode())
    backend = CudaBackend(Machine())
    cases = [c for c in cases_of(family) if not not_here(c.target, 9, 0)]
    for case in cases[:: 2 * STRIDE]:
        got, want = recording.launched(backend, case), interpreted(case)
        np.testing.assert_array_equal(got, want, strict=True)


def test_what_a_gpu_lacks_is_left_out(
    backend: CudaBackend, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del backend
    older = CudaBackend(FakeDriver(A100))
    assert record_family("wgmma", older, tmp_path) == 0
    assert record_family("matrices", older, tmp_path) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "wgmma: this GPU has none of it"
    assert second.startswith("matrices: 7 of 7 cases, ")


@pytest.fixture
def three() -> Iterator[Case]:
    case = case_of("matrices", "movmatrix")
    return iter([dataclasses.replace(case, name=name) for name in ("one", "two", "three")])


def test_a_kernel_that_fails_is_named_and_the_others_are_kept(three: Iterator[Case]) -> None:
    def run(case: Case) -> Array:
        if case.name == "two":
            raise BackendError("refused")
        return interpreted(case)

    done, failed = recorded(three, run)
    assert [case.name for case, _ in done] == ["one", "three"]
    assert failed == {"two": "refused"}


def test_nothing_is_run_after_a_destroyed_context(three: Iterator[Case]) -> None:
    def run(case: Case) -> Array:
        if case.name == "two":
            raise PoisonedContextError("destroyed")
        return interpreted(case)

    done, failed = recorded(three, run)
    assert [case.name for case, _ in done] == ["one"]
    assert failed == {"two": "destroyed"}


def test_a_kernel_that_hangs_is_named_and_is_the_last(three: Iterator[Case]) -> None:
    release = threading.Event()

    def run(case: Case) -> Array:
        release.wait()
        return interpreted(case)

    done, failed = recorded(three, run, seconds=0.05)
    release.set()
    assert failed == {"one": "does not end within 0.05 s"}
    assert [case.name for case, _ in done] in ([], ["one"])  # it may end after all, too late


def test_an_error_of_ours_is_no_failed_case(three: Iterator[Case]) -> None:
    def run(case: Case) -> Array:
        raise ZeroDivisionError(case.name)

    with pytest.raises(ZeroDivisionError, match=r"^one$"):
        recorded(three, run)


def test_without_a_gpu_the_recorder_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    driver = FakeDriver()
    driver.fail("cuInit", "CUDA_ERROR_NO_DEVICE")
    monkeypatch.setattr(recording, "cuda_backend", lambda: CudaBackend(driver))
    assert main(["--out", str(tmp_path)]) == 2
    written = capsys.readouterr().err
    assert written.startswith("record.py: needs a GPU to record from: cannot open the GPU: cuInit")
    assert not list(tmp_path.iterdir())


def test_without_recorded_files_the_comparison_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--compare", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"nothing is recorded in {tmp_path}\n"


@pytest.mark.slow
def test_the_recorder_runs_as_a_program() -> None:
    command = [sys.executable, str(HERE / "record.py"), "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: record.py [-h]")


# ---- the assembler ----------------------------------------------------------------------------


@pytest.mark.ptxas
@pytest.mark.parametrize("family", FAMILIES)
def test_the_assembler_takes_the_first_and_the_last_kernel(family: str, assembler: Any) -> None:
    cases = cases_of(family)
    for case in (cases[0], cases[-1]):
        assert assembler.assemble(case.ptx, case.target).cubin


@pytest.mark.ptxas
@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_the_assembler_takes_every_kernel(family: str, assembler: Any) -> None:
    for case in cases_of(family):
        assert assembler.assemble(case.ptx, case.target).cubin
