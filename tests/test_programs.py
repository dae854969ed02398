"""CUDA programs, compiled by nvcc, run without a GPU; each judges its own results."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvcc_programs import PLAIN, TARGET, Compile, compiler, missing

from ptxgen.commands import run_program
from ptxgen.errors import BackendError, LaunchError
from ptxgen.program import run
from ptxgen.program.fatbinary import entries, lz4

MAGIC = b"\x50\xed\x55\xba"  # of a fat binary


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """Compile a program of tests/programs with nvcc's options: the path of the executable."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXGEN_CACHE_DIR", str(folder / "cache"))
        yield compiler(folder)


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vector_add", "0 of 1000 wrong, cudaSuccess\n"),
        ("reduction", "sum 12497500\n"),
        ("streams", "wrong 0, later 1, refused 1\n"),
        ("symbols", "wrong 0\n"),
        ("templates", "wrong 0\n"),
        ("matrices", "wrong 0\n"),
        ("queries", "wrong 0\n"),
        ("histogram", "ptxgen interpreter (sm_80), 8.0, 64 B\n"),
        (
            "prints",
            "".join(
                f"before {n}\nkernel {n}, thread 0, {n / 2}\nkernel {n}, thread 1, {n / 2}\nafter {n}\n"
                for n in (1, 2)
            ),
        ),
    ],
)
def test_a_program_runs_and_finds_its_results_right(
    name: str, says: str, compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_program.main(["--sanitize", str(compiled(name))]) == 0, capfd.readouterr().err
    out, err = capfd.readouterr()
    assert out == says
    assert "nothing was found in " in err


@pytest.mark.slow
def test_a_kernel_of_a_program_ends_at_the_limit(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    run_program.main(["--max-instructions", "3", str(compiled("vector_add"))])
    assert ": still running after 3 instructions in a row, at " in capfd.readouterr().err


@pytest.mark.slow
def test_errors_of_calls_and_kernels_are_those_of_cuda(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_program.main([str(compiled("errors"))]) == 0
    out, err = capfd.readouterr()
    assert out == "as expected, an illegal memory access was encountered\n"
    assert "2048" in err  # why the launch was refused
    assert "3984 bytes after the end of allocation" in err


@pytest.mark.slow
def test_a_race_is_reported_with_its_line_and_fails_the_command(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled("racy"))
    assert run_program.main([program]) == 0
    capfd.readouterr()
    assert run_program.main(["--sanitize", program]) == 1
    err = capfd.readouterr().err
    assert "race" in err
    assert "racy.cu:6" in err
    assert "x[threadIdx.x] = tile[(threadIdx.x + 32) % 64];" in err


@pytest.mark.slow
def test_arguments_and_exit_codes_are_passed_on_as_nvcc_compiles_by_default(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard", reason="nvcc compresses PTX with zstd by default: pip install zstandard")
    program = str(compiled("vector_add", "-O2"))
    assert run_program.main(["--target", "sm_90", program, "77"]) == 0
    assert capfd.readouterr().out == "0 of 77 wrong, cudaSuccess\n"


@pytest.mark.slow
def test_a_call_that_is_not_answered_ends_the_program_by_name(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_program.main([str(compiled("graphs"))]) == 1
    assert "calls cudaGraphCreate, which is not answered" in capfd.readouterr().err


@pytest.mark.slow
def test_a_program_with_the_runtime_inside_is_refused(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = compiled("racy", TARGET, PLAIN, runtime="static")
    assert run_program.main([str(program)]) == 2
    assert "nvcc -cudart shared" in capfd.readouterr().err


@pytest.mark.slow
def test_ptx_is_read_however_it_is_compressed(compiled: Compile) -> None:
    texts = []
    for options in ((), (TARGET, "-Xfatbin=-compress-mode=speed", "-lineinfo")):
        data = compiled("prints", *options).read_bytes()
        starts = [match.start() for match in re.finditer(re.escape(MAGIC), data)]
        (result,) = [ptx for start in starts for ptx in entries(data[start:])]
        texts.append((result.flags & 0x2000, result.text()))
    assert [flag for flag, _ in texts] == [0, 0x2000]
    assert texts[0][1] == texts[1][1]
    assert ".target sm_80" in texts[0][1]


def test_an_lz4_block_is_decompressed() -> None:
    # Four literals, then 15 + 0 + 4 bytes from 4 back, which overlap; then two literals.
    assert lz4(b"\x4fabcd\x04\x00\x00\x20xy", 25) == b"abcd" * 5 + b"abc" + b"xy"
    with pytest.raises(LaunchError, match="refers 9 bytes back"):
        lz4(b"\x10a\x09\x00\x00", 25)
    with pytest.raises(LaunchError, match="cut short"):
        lz4(b"\x4fabcd\x04", 25)


def test_bytes_that_are_no_fat_binary_are_refused() -> None:
    with pytest.raises(LaunchError, match="must begin with 0xba55ed50"):
        list(entries(bytes(64)))
    with pytest.raises(LaunchError, match="cut short"):
        list(entries(b"\x50\xed"))


@pytest.mark.parametrize("name", ["missing", "readme.txt"])
def test_what_is_no_program_is_a_usage_error(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "readme.txt").write_text("text")
    assert run_program.main([str(tmp_path / name)]) == 2
    assert "cannot run" in capfd.readouterr().err


@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler is needed")
def test_the_exit_code_of_a_program_without_cuda_is_passed_on(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for line, code in (("exit 7", 7), ("kill -9 $$", 137)):
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        assert run([str(script)]).code == code


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="a C compiler is needed once"):
        run([str(script)])


@pytest.mark.slow
def test_memory_that_was_never_written_or_is_freed_is_reported(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled("memory_mistakes"))
    assert run_program.main([program]) == 0
    assert run_program.main([program, "freed"]) == 9
    assert "which the program has freed" in capfd.readouterr().err
    assert run_program.main(["--sanitize", program]) == 1
    err = capfd.readouterr().err
    assert "uninitialised" in err
    assert "memory_mistakes.cu:3" in err


@pytest.mark.slow
def test_undefined_values_that_kernels_store_are_reported_when_the_host_copies_them(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled("undefined_copies"))
    assert run_program.main(["--sanitize", program, "whole"]) == 1
    copied = "__global__ void copy(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }"
    [report, count] = capfd.readouterr().err.splitlines()
    assert report == (
        "ptxgen run-program: kernel _Z4copyPKiPi: st.global.u32 [%rd7], %r2; "
        f"(undefined_copies.cu:3: {copied}): thread (16, 0, 0) of CTA (0, 0, 0): uninitialised: byte 64 of "
        "allocation 2 (device memory), which the host copies after the kernel, depends on global address "
        "0x200000040 (allocation 1 (device memory)), "
        "which nothing has written; it was read by ld.global.u32 %r2, [%rd6]; (undefined_copies.cu:3: "
        f"{copied})"
    )
    assert count == "ptxgen run-program: 1 problem found in 1 launch"
    assert run_program.main(["--sanitize", program, "count"]) == 1
    assert "(allocation 3 (device memory)), which has undefined bits from st.global.u32 [%rd7], %r2; (" in (
        capfd.readouterr().err
    )
    for right in ("half", "set", "again"):
        assert run_program.main(["--sanitize", program, right]) == 0, capfd.readouterr().err


@pytest.mark.slow
def test_clusters_and_cooperative_launches_run_on_a_newer_target(
    compiled: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(compiled("launches", "-gencode=arch=compute_90,code=compute_90", PLAIN))
    assert run_program.main(["--sanitize", program]) == 0, capfd.readouterr()
    assert capfd.readouterr().out == "wrong 0\n"
    assert run_program.main(["--target", "sm_80", program]) != 0
    assert "the program has PTX for sm_90, which does not run on the device, sm_80" in capfd.readouterr().err


@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler is needed")
def test_a_program_of_another_cuda_is_refused_by_its_version(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    other = "libcudart.so.12"
    for options in (
        ["-shared", f"-Wl,-soname,{other}", "-o", other],
        ["-Wl,--no-as-needed", "-L.", f"-l:{other}", "-o", "a.out"],
    ):
        subprocess.run(["cc", "main.c", *options], cwd=tmp_path, check=True)
    with pytest.raises(LaunchError, match=r"needs libcudart\.so\.12, but libcudart\.so\.13 is answered"):
        run([str(tmp_path / "a.out")])


def test_a_damaged_executable_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "a.out"
    damaged.write_bytes(b"\x7fELF\x02\x01" + bytes(10))
    damaged.chmod(0o755)
    with pytest.raises(LaunchError, match="no intact ELF file"):
        run([str(damaged)])
