from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ptxgen.errors import AssemblerError, BackendError, ConfigError
from ptxgen.runtime import assembler as module
from ptxgen.runtime.assembler import (
    Advisory,
    Assembler,
    KernelUsage,
    NvJitLink,
    Ptxas,
    assemble,
    find_assembler,
)
from ptxgen.runtime.assembler_log import INSTALL, advisories_of, kernels_of

SAXPY = """\
.version 8.0
.target sm_80
.address_size 64

.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  .shared .align 16 .b8 tile[256];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.f32 %f1, [a];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra done;
  mul.wide.u32 %rd3, %r2, 4;
  add.u64 %rd1, %rd1, %rd3;
  ld.global.f32 %f2, [%rd1];
  fma.rn.f32 %f3, %f1, %f2, %f2;
  mov.u32 %r3, tile;
  st.shared.f32 [%r3], %f3;
  bar.sync 0;
  ld.shared.f32 %f3, [%r3+4];
  add.u64 %rd2, %rd2, %rd3;
  st.global.f32 [%rd2], %f3;
done:
  ret;
}
"""

SPILLING = (
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry spilling(.param .u64 x) .maxntid 1024,1,1 .minnctapersm 2\n"
    "{\n  .reg .f32 %f<64>;\n  .reg .b64 %rd<2>;\n  ld.param.u64 %rd1, [x];\n"
    + "".join(f"  ld.volatile.global.f32 %f{i}, [%rd1+{4 * i}];\n" for i in range(64))
    + "".join(f"  st.volatile.global.f32 [%rd1+{4 * i}], %f{63 - i};\n" for i in range(64))
    + "  ret;\n}\n"
)

TWO_KERNELS = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry with_stack(.param .u64 x)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<5>;
  .local .align 16 .b8 scratch[64];
  ld.param.u64 %rd1, [x];
  ld.global.u32 %r1, [%rd1];
  mul.wide.u32 %rd2, %r1, 4;
  mov.u64 %rd3, scratch;
  add.u64 %rd4, %rd3, %rd2;
  st.local.u32 [%rd4], %r1;
  ld.local.u32 %r2, [%rd3+8];
  st.global.u32 [%rd1], %r2;
  ret;
}
.visible .entry empty()
{
  ret;
}
"""

SETMAXNREG = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry warps()
{
  setmaxnreg.dec.sync.aligned.u32 40;
  ret;
}
"""

WGMMA_WITHOUT_WAIT = """\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry hopper(.param .u64 x, .param .u64 a, .param .u64 b) .maxntid 128,1,1
{
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [a];
  ld.param.u64 %rd3, [b];
  ld.global.f32 %f0, [%rd1];
  ld.global.f32 %f1, [%rd1+4];
  ld.global.f32 %f2, [%rd1+8];
  ld.global.f32 %f3, [%rd1+12];
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
    {%f0, %f1, %f2, %f3}, %rd2, %rd3, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  st.global.f32 [%rd1], %f0;
  st.global.f32 [%rd1+4], %f1;
  st.global.f32 [%rd1+8], %f2;
  st.global.f32 [%rd1+12], %f3;
  ret;
}
"""

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'saxpy' for 'sm_80'
ptxas info    : Function properties for saxpy
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem, 376 bytes cmem[0], \
8 bytes cmem[2]
"""


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PTXGEN_PTXAS", raising=False)
    module._find.cache_clear()
    yield
    module._find.cache_clear()


@pytest.fixture(params=module.KINDS)
def either(request: pytest.FixtureRequest) -> Assembler:
    """Each kind of assembler in turn, where it is installed."""
    try:
        return find_assembler(request.param)
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture
def ptxas() -> Assembler:
    try:
        return find_assembler("ptxas")
    except BackendError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """A maker of shell scripts that answer like ptxas, and run `body` when asked to assemble."""

    def make(
        body: str = "exit 0",
        *,
        name: str = "ptxas",
        version: str = "Cuda compilation tools, release 13.0, V13.0.88",
        targets: str = "sm_80",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        listed = ",".join(f"'{target}'" for target in targets.split())
        path = folder / "ptxas"
        path.write_text(
            f'#!/bin/sh\ncase "$1" in\n--version) echo "{version}";;\n'
            f"--help) echo \"Allowed values: 'compute_80',{listed}.\";;\n*)\n{body}\n;;\nesac\n"
        )
        path.chmod(0o755)
        return path

    return make


def saying(log: str, exit_code: int = 0) -> str:
    """A body for `fake` that prints `log` and, when it succeeds, writes a cubin."""
    cubin = r"printf '\177ELF' > kernel.cubin" if exit_code == 0 else ":"
    return f"cat <<'END' >&2\n{log}\nEND\n{cubin}\nexit {exit_code}"


def before_the_log(message: str) -> str:
    return message.split("\n\nits log:\n", 1)[0]


def refusal(
    assembler: Assembler, text: str = SAXPY, target: str = "sm_80", kind: type[Exception] = AssemblerError
) -> str:
    """The whole message of an assembly that fails, with the assembler's version and path masked."""
    with pytest.raises(kind) as error:
        assembler.assemble(text, target)
    return str(error.value).replace(str(assembler), "THIS")


# ---- real assemblers


@pytest.mark.ptxas
def test_a_text_becomes_a_cubin_with_its_resources(either: Assembler) -> None:
    result = either.assemble(SAXPY, "sm_80")
    usage = result.kernel("saxpy")
    assert result.cubin.startswith(b"\x7fELF")
    assert (result.assembler, result.version) == (either.name, either.version)
    assert (result.target, result.advisories) == ("sm_80", ())
    assert result.kernels == (
        KernelUsage(
            "saxpy",
            registers=usage.registers,
            static_shared_bytes=256,
            constant_bytes=352 + 24,  # the parameters begin at byte 352 of bank 0 on sm_80
            barriers=1,
        ),
    )
    assert 6 <= usage.registers <= 32  # three 64-bit addresses are live at once
    assert "saxpy" in result.log


@pytest.mark.ptxas
def test_the_same_text_gives_the_same_bytes(either: Assembler) -> None:
    first, second = (either.assemble(SAXPY, "sm_80").cubin for _ in range(2))
    assert first == second


@pytest.mark.ptxas
def test_the_optimisation_level_reaches_the_assembler(either: Assembler) -> None:
    plain = either.assemble(SAXPY, "sm_80", opt_level=0)
    assert plain.cubin != either.assemble(SAXPY, "sm_80").cubin


@pytest.mark.ptxas
def test_spills_are_reported(either: Assembler) -> None:
    usage = either.assemble(SPILLING, "sm_80").kernel("spilling")
    assert usage.registers <= 32  # 65536 registers among 2 blocks of 1024 threads
    assert usage.spill_store_bytes >= 4 * 32
    assert usage.spill_load_bytes >= 4 * 32
    assert usage.stack_bytes >= 4 * 32


@pytest.mark.ptxas
def test_every_kernel_is_reported_by_name(either: Assembler) -> None:
    result = either.assemble(TWO_KERNELS, "sm_80")
    assert [usage.name for usage in result.kernels] == ["empty", "with_stack"]
    assert [usage.stack_bytes for usage in result.kernels] == [0, 64]
    assert [usage.spill_store_bytes for usage in result.kernels] == [0, 0]
    assert [usage.static_shared_bytes for usage in result.kernels] == [0, 0]


@pytest.mark.ptxas
def test_a_refusal_shows_every_offending_line(either: Assembler) -> None:
    text = SAXPY.replace("fma.rn.f32 %f3", "fma.rn.f32 %f9").replace("%rd2, %rd2,", "%rd2 %rd2,")
    refused = refusal(either, text)
    assert (
        before_the_log(refused)
        == """\
THIS refused the PTX for sm_80: 2 errors

line 22: Arguments mismatch for instruction 'fma'
      20 |   add.u64 %rd1, %rd1, %rd3;
      21 |   ld.global.f32 %f2, [%rd1];
>     22 |   fma.rn.f32 %f9, %f1, %f2, %f2;
         |   ^~~
      23 |   mov.u32 %r3, tile;
      24 |   st.shared.f32 [%r3], %f3;

line 27: Parsing error near '%rd2': syntax error
      25 |   bar.sync 0;
      26 |   ld.shared.f32 %f3, [%r3+4];
>     27 |   add.u64 %rd2 %rd2, %rd3;
         |   ^~~~~~~~~~~~~~~~~~~~~~~~
      28 |   st.global.f32 [%rd2], %f3;
      29 | done:"""
    )
    assert "Ptx assembly aborted due to errors" in refused


@pytest.mark.ptxas
def test_a_refusal_is_the_same_in_every_process(ptxas: Assembler) -> None:
    messages = []
    for _ in range(2):
        with pytest.raises(AssemblerError) as error:
            ptxas.assemble(SAXPY.replace("bar.sync 0", "bar.sink 0"), "sm_80")
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "\nptxas kernel.ptx, line 25; " in messages[0]


@pytest.mark.ptxas
def test_ptxas_that_ignores_setmaxnreg_is_an_error(ptxas: Assembler) -> None:
    assert (
        before_the_log(refusal(ptxas, SETMAXNREG, "sm_90a"))
        == """\
THIS took the PTX for sm_90a, but with an advisory that ruins the kernel:

C7508 Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
  setmaxnreg needs a known register count at entry: give .maxntid and .minnctapersm"""
    )


@pytest.mark.ptxas
def test_setmaxnreg_is_taken_where_the_entry_count_is_known(ptxas: Assembler) -> None:
    text = SETMAXNREG.replace("warps()", "warps() .maxntid 384,1,1 .minnctapersm 1")
    usage = ptxas.assemble(text, "sm_90a").kernel("warps")
    assert usage.registers == 65536 // 384 // 8 * 8


@pytest.mark.ptxas
def test_nvjitlink_never_takes_setmaxnreg() -> None:
    try:
        library = NvJitLink.loaded()
    except BackendError as reason:
        pytest.skip(str(reason))
    text = SETMAXNREG.replace("warps()", "warps() .maxntid 384,1,1 .minnctapersm 1")
    assert (
        before_the_log(refusal(library, text, "sm_90a"))
        == """\
THIS took the PTX for sm_90a, but with an advisory that ruins the kernel:

C7504 Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility across \
compilation units.
  relocatable code never honours setmaxnreg; assemble with ptxas, not nvJitLink"""
    )


@pytest.mark.ptxas
def test_an_injected_wait_is_an_error_that_shows_its_line(ptxas: Assembler) -> None:
    first, said, *rest = (
        before_the_log(refusal(ptxas, WGMMA_WITHOUT_WAIT, "sm_90a")).replace("\n\n", "\n").split("\n")
    )
    assert first == "THIS took the PTX for sm_90a, but with an advisory that ruins the kernel:"
    assert said.startswith("C7517 ")  # its words changed from 13.0 to 13.5
    assert rest == [
        "  wgmma.wait_group is missing before a register is used, so one was injected",
        "      17 |     {%f0, %f1, %f2, %f3}, %rd2, %rd3, 1, 1, 1, 0, 0;",
        "      18 |   wgmma.commit_group.sync.aligned;",
        ">     19 |   st.global.f32 [%rd1], %f0;",
        "         |   ^~~~~~~~~~~~~~~~~~~~~~~~~~",
        "      20 |   st.global.f32 [%rd1+4], %f1;",
        "      21 |   st.global.f32 [%rd1+8], %f2;",
    ]


@pytest.mark.ptxas
def test_a_target_the_assembler_lost_is_named(either: Assembler) -> None:
    assert either.knows("sm_90a")
    assert not either.knows("sm_20")
    said = {
        "ptxas": "1 error\n\nValue 'sm_20' is not defined for option 'gpu-name'",
        "nvJitLink": "without a reason (ERROR_UNSUPPORTED_ARCH (17))",
    }[either.name]
    colon = ":" if either.name == "ptxas" else ""
    assert before_the_log(refusal(either, SAXPY, "sm_20")).removesuffix("\n\nits log is empty") == (
        f"THIS refused the PTX for sm_20{colon} {said}\n"
        f"  this assembler does not know sm_20; to get another: {INSTALL}"
    )


@pytest.mark.ptxas
def test_a_text_for_a_newer_gpu_is_refused_with_both_names(either: Assembler) -> None:
    assert (
        before_the_log(refusal(either, SETMAXNREG))
        == """\
THIS refused the PTX for sm_80: 1 error

SM version specified by .target is higher than default SM version assumed
  the text declares .target sm_90a; assemble for that, or generate for sm_80"""
    )


@pytest.mark.ptxas
def test_a_text_of_a_future_version_asks_for_a_newer_assembler(either: Assembler) -> None:
    message = before_the_log(refusal(either, SAXPY.replace(".version 8.0", ".version 99.0")))
    current = message.split("current version is ")[1].split("\n")[0]
    assert message == (
        "THIS refused the PTX for sm_80: 1 error\n\n"
        f"line 1: Unsupported .version 99.0; current version is {current}\n"
        f"  the assembler is older than the text; to get another: {INSTALL}\n"
        ">      1 | .version 99.0\n"
        "         | ^~~~~~~~~~~~~\n"
        "       2 | .target sm_80\n"
        "       3 | .address_size 64"
    )


@pytest.mark.ptxas
def test_an_empty_text_is_refused(either: Assembler) -> None:
    said = {
        "ptxas": ": 1 error\n\n"
        "line 1: Missing .version directive at start of file 'kernel.ptx'\n"
        ">      1 |\n"
        "         | ^",
        "nvJitLink": " without a reason (ERROR_INVALID_INPUT (3))\n\nits log is empty",
    }[either.name]
    assert before_the_log(refusal(either, "")) == f"THIS refused the PTX for sm_80{said}"


@pytest.mark.ptxas
def test_assemble_takes_the_assembler_that_is_found(assembler: Assembler) -> None:
    result = assemble(SAXPY, "sm_80")
    assert (result.assembler, result.version) == (assembler.name, assembler.version)
    assert find_assembler() is find_assembler()


# ---- finding


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A machine on which nothing is found but what a test puts on `path` or into `toolkit`."""
    places = types.SimpleNamespace(path=None, toolkit=None)
    pathfinder = types.ModuleType("cuda.pathfinder")
    pathfinder.find_nvidia_binary_utility = lambda _name: places.toolkit  # type: ignore[attr-defined] # a stand-in
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)  # refuses to be imported
    monkeypatch.setattr(module.shutil, "which", lambda _name: places.path)
    return places


@pytest.mark.usefixtures("bare")
def test_without_an_assembler_the_message_says_what_to_install() -> None:
    with pytest.raises(BackendError) as error:
        assemble(SAXPY, "sm_80")
    assert str(error.value) == (
        "no PTX assembler that knows sm_80 found:\n"
        "  there is no ptxas on PATH\n"
        "  there is no ptxas in a pip package or a CUDA toolkit\n"
        "  nvJitLink cannot be loaded: "
        "import of cuda.bindings.nvjitlink halted; None in sys.modules\n"
        "to get one: pip install 'ptxgen[test]' (or: pip install nvidia-cuda-nvcc; "
        "Linux and Windows), or name a ptxas in PTXGEN_PTXAS"
    )


@pytest.mark.usefixtures("bare")
def test_without_cuda_python_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(BackendError) as error:
        find_assembler("ptxas")
    assert str(error.value) == (
        "no ptxas found:\n"
        "  there is no ptxas on PATH\n"
        "  cuda.pathfinder cannot search for ptxas: "
        "import of cuda.pathfinder halted; None in sys.modules\n"
        f"to get one: {INSTALL}"
    )


def test_ptxas_on_path_comes_before_the_toolkit(
    bare: types.SimpleNamespace, fake: Callable[..., Path]
) -> None:
    bare.path, bare.toolkit = fake(name="path"), fake(name="toolkit")
    assert find_assembler() == Ptxas(bare.path, "13.0.88")


def test_the_next_ptxas_is_taken_where_the_first_does_not_know_the_target(
    bare: types.SimpleNamespace, fake: Callable[..., Path]
) -> None:
    bare.path = fake(name="old", version="V12.0.140", targets="sm_80 sm_90a")
    bare.toolkit = fake(name="new", version="V13.0.88", targets="sm_90a sm_103a")
    assert find_assembler(target="sm_90a") == Ptxas(bare.path, "12.0.140")
    assert find_assembler(target="sm_103a") == Ptxas(bare.toolkit, "13.0.88")
    with pytest.raises(BackendError) as error:
        find_assembler(target="sm_120")
    assert str(error.value) == (
        "no PTX assembler that knows sm_120 found:\n"
        f"  ptxas 12.0.140 ({bare.path}) does not know sm_120\n"
        f"  ptxas 13.0.88 ({bare.toolkit}) does not know sm_120\n"
        "  nvJitLink cannot be loaded: "
        "import of cuda.bindings.nvjitlink halted; None in sys.modules\n"
        f"to get one: {INSTALL}"
    )


def test_a_program_on_path_that_is_no_ptxas_is_passed_over(
    bare: types.SimpleNamespace, fake: Callable[..., Path]
) -> None:
    bare.path, bare.toolkit = fake(name="path", version="hello"), fake(name="toolkit")
    assert find_assembler() == Ptxas(bare.toolkit, "13.0.88")


def test_a_named_ptxas_is_the_only_one_tried(
    bare: types.SimpleNamespace, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.path = fake(name="path", targets="sm_80 sm_90a")
    named = fake(name="named", version="V12.0.140")
    monkeypatch.setenv("PTXGEN_PTXAS", str(named))
    assert find_assembler() == Ptxas(named, "12.0.140")
    with pytest.raises(BackendError) as error:
        find_assembler(target="sm_90a")
    assert str(error.value) == (
        "no PTX assembler that knows sm_90a found:\n"
        f"  ptxas 12.0.140 ({named}) does not know sm_90a\n"
        f"to get one: {INSTALL}"
    )


@pytest.mark.usefixtures("bare")
def test_a_named_program_that_is_no_ptxas_is_an_error(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = fake(version="hello")
    monkeypatch.setenv("PTXGEN_PTXAS", str(named))
    with pytest.raises(BackendError) as error:
        find_assembler()
    assert str(error.value) == (
        "no PTX assembler found:\n"
        f"  {named} is not a usable ptxas: --version should print a version such as V13.0.88, "
        "got 'hello'\n"
        f"to get one: {INSTALL}"
    )


def test_a_ptxas_whose_help_lists_nothing_is_given_the_chance(fake: Callable[..., Path]) -> None:
    assert Ptxas.at(fake(targets="")).knows("sm_80")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        find_assembler("ptxass")
    assert str(error.value) == (
        "find_assembler: kind must be one of ptxas, nvJitLink, got 'ptxass'; did you mean 'ptxas'?"
    )


@pytest.mark.parametrize("target", ["80", "compute_80", "sm_80 -G", "sm_90A", ""])
def test_a_target_that_is_none_is_refused_before_anything_runs(target: str) -> None:
    nowhere = Ptxas(Path("/nonexistent/ptxas"), "13.0.88")
    for refused in (
        lambda: nowhere.assemble(SAXPY, target),
        lambda: NvJitLink("13.0").assemble(SAXPY, target),
        lambda: find_assembler(target=target),
    ):
        with pytest.raises(ConfigError) as error:
            refused()
        assert str(error.value) == f"target must be like 'sm_80' or 'sm_90a', got {target!r}"


def test_an_optimisation_level_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Ptxas(Path("/nonexistent/ptxas"), "13.0.88").assemble(SAXPY, "sm_80", opt_level=4)
    assert str(error.value) == "opt_level must be 0, 1, 2 or 3, got 4"


# ---- a ptxas that fails


def test_death_by_a_signal_is_the_fault_of_the_assembler(fake: Callable[..., Path]) -> None:
    broken = Ptxas.at(fake("echo working >&2; kill -SEGV $$"))
    assert refusal(broken, kind=BackendError) == (
        "THIS died of SIGSEGV while it assembled for sm_80; this is its fault, "
        "not the text's: try another version through PTXGEN_PTXAS\n\nits log:\nworking"
    )


def test_death_behind_a_shell_script_is_recognised(fake: Callable[..., Path]) -> None:
    broken = Ptxas.at(fake(f"exit {128 + signal.SIGABRT}"))
    assert refusal(broken, kind=BackendError) == (
        "THIS died of SIGABRT while it assembled for sm_80; this is its fault, "
        "not the text's: try another version through PTXGEN_PTXAS\n\nits log is empty"
    )


def test_death_after_a_reason_is_a_refusal(fake: Callable[..., Path]) -> None:
    log = "ptxas fatal   : Unresolved extern function 'f'"
    broken = Ptxas.at(fake(f'echo "{log}" >&2; kill -SEGV $$'))
    assert refusal(broken) == (
        f"THIS refused the PTX for sm_80: 1 error\n\nUnresolved extern function 'f'\n\nits log:\n{log}"
    )


def test_an_assembler_that_does_not_finish_is_stopped(fake: Callable[..., Path]) -> None:
    path = fake("sleep 20")  # a child of the script, which goes on holding the script's output
    with pytest.raises(BackendError) as error:
        Ptxas(path, "13.0.88", timeout_s=0.2).assemble(SAXPY, "sm_80")
    assert str(error.value) == (
        f"{path} was stopped: it had not finished after 0.2 s; "
        "use a smaller tile, or another version through PTXGEN_PTXAS"
    )


def test_a_refusal_without_a_reason_says_how_it_ended(fake: Callable[..., Path]) -> None:
    broken = Ptxas.at(fake(r"printf 'caf\351\n'; exit 3"))
    assert refusal(broken) == (
        "THIS refused the PTX for sm_80 without a reason (exit 3)\n\nits log:\ncaf\ufffd"
    )


@pytest.mark.parametrize(
    ("body", "size"), [("exit 0", 0), ("echo no > kernel.cubin", 3)], ids=["none", "garbage"]
)
def test_success_without_a_cubin_is_an_error(fake: Callable[..., Path], body: str, size: int) -> None:
    broken = Ptxas.at(fake(body))
    assert refusal(broken, kind=BackendError) == (
        f"THIS reported success for sm_80 but made no cubin ({size} bytes that are not an ELF "
        "file); try another version through PTXGEN_PTXAS\n\nits log is empty"
    )


def test_a_ptxas_that_is_gone_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ptxas"
    with pytest.raises(BackendError) as error:
        Ptxas(path, "13.0.88").assemble(SAXPY, "sm_80")
    assert str(error.value) == (f"{path} cannot be run: [Errno 2] No such file or directory: '{path}'")


def test_a_missing_temporary_directory_is_an_error(
    fake: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Ptxas.at(fake())
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "gone"))
    before, after = refusal(good, kind=BackendError).split("[Errno 2]")
    assert before == "kernel.ptx cannot be written to a temporary directory for the assembler: "
    assert after.endswith("; name one with free space in TMPDIR")


def test_nothing_is_left_in_the_temporary_directory(
    fake: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Ptxas.at(fake(saying(REPORT)))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "scratch"))
    assert good.assemble(SAXPY, "sm_80").cubin == b"\x7fELF"
    assert list((tmp_path / "scratch").iterdir()) == []


# ---- nvJitLink


class FakeLibrary(types.ModuleType):
    """Stands for cuda.bindings.nvjitlink; `complete` fails if there is an `error_log`."""

    InputType = types.SimpleNamespace(PTX=1)

    class nvJitLinkError(Exception):  # noqa: N801 - the library's own
        pass

    def __init__(self, error_log: bytes) -> None:
        super().__init__("nvjitlink")
        self.error_log, self.alive, self.options = error_log, 0, ()

    def create(self, count: int, options: list[str]) -> str:
        assert count == len(options)
        self.alive, self.options = self.alive + 1, tuple(options)
        return "handle"

    def destroy(self, _handle: str) -> None:
        self.alive -= 1

    def add_data(self, _handle: str, kind: int, data: bytes, size: int, _name: str) -> None:
        assert (kind, size) == (1, len(data))

    def version(self) -> tuple[int, int]:
        return 13, 5

    def complete(self, _handle: str) -> None:
        if self.error_log:
            raise self.nvJitLinkError("ERROR_PTX_COMPILE (4)")

    def __getattr__(self, name: str) -> Callable[..., int | None]:
        content = {
            "error_log": self.error_log,
            "info_log": REPORT.encode() + b"\0",
            "linked_cubin": b"\x7fELF",
        }[name.removeprefix("get_").removesuffix("_size")]

        def read(_handle: str, buffer: bytearray) -> None:
            buffer[:] = content

        return (lambda _handle: len(content)) if name.endswith("_size") else read


def test_nvjitlink_is_asked_for_the_target_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary(b"")
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", library)
    result = NvJitLink("13.0").assemble(SAXPY, "sm_80", opt_level=1)
    assert (result.cubin, result.log) == (b"\x7fELF", REPORT)
    assert library.options == ("-arch=sm_80", "-verbose", "-O1")
    assert library.alive == 0


@pytest.mark.usefixtures("bare")
def test_nvjitlink_can_be_asked_for_where_a_ptxas_is_named(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeLibrary(b"")
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", library)
    monkeypatch.setenv("PTXGEN_PTXAS", str(fake()))
    assert find_assembler("nvJitLink", "sm_80") == NvJitLink("13.5")
    assert library.alive == 0


def test_nvjitlink_is_released_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary(b"ptxas application ptx input, line 30; error   : Oh 'ret' no\n\0")
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", library)
    with pytest.raises(AssemblerError) as error:
        NvJitLink("13.0").assemble(SAXPY, "sm_80")
    assert (
        str(error.value)
        == """\
nvJitLink 13.0 refused the PTX for sm_80: 1 error

line 30: Oh 'ret' no
      28 |   st.global.f32 [%rd2], %f3;
      29 | done:
>     30 |   ret;
         |   ^~~
      31 | }
      32 |

its log:
ptxas application ptx input, line 30; error   : Oh 'ret' no"""
    )
    assert library.alive == 0


# ---- reading logs


def test_a_report_of_ptxas_is_read() -> None:
    assert kernels_of(REPORT) == (
        KernelUsage(
            "saxpy",
            registers=10,
            spill_store_bytes=4,
            spill_load_bytes=12,
            stack_bytes=8,
            static_shared_bytes=256,
            constant_bytes=384,
            barriers=1,
        ),
    )


def test_kernels_are_sorted_by_name() -> None:
    two = REPORT + REPORT.replace("saxpy", "axpy")
    assert [usage.name for usage in kernels_of(two)] == ["axpy", "saxpy"]


def test_a_report_of_ptxas_12_0_leaves_the_barriers_open() -> None:
    usage = kernels_of(REPORT.replace(", used 1 barriers", ""))[0]
    assert (usage.registers, usage.barriers, usage.static_shared_bytes) == (10, None, 256)


def test_a_report_of_a_called_function_is_not_taken_for_the_kernel() -> None:
    called = (
        "ptxas info    : Function properties for helper\n"
        "    72 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads\n"
    )
    before, after = kernels_of(called + REPORT), kernels_of(REPORT + called)
    assert before == after == kernels_of(REPORT)


def test_the_stack_of_called_functions_is_counted() -> None:
    log = REPORT.replace("used 1 barriers", "used 1 barriers, 64 bytes cumulative stack size")
    assert kernels_of(log)[0].stack_bytes == 64


def test_the_report_of_linked_code_is_the_final_one() -> None:
    log = REPORT.replace("    8 bytes", "ptxas         .     8 bytes") + (
        "info    : 0 bytes gmem\n"
        "info    : Function properties for 'saxpy':\n"
        "info    : used 24 registers, used 6 barriers, 72 stack, 512 bytes smem, "
        "360 bytes cmem[0], 0 bytes lmem\n"
    )
    assert kernels_of(log) == (
        KernelUsage(
            "saxpy",
            registers=24,
            spill_store_bytes=4,
            spill_load_bytes=12,
            stack_bytes=72,
            static_shared_bytes=512,
            constant_bytes=360,
            barriers=1,
        ),
    )


def test_warnings_and_numbered_remarks_are_kept_once_each() -> None:
    log = (
        "ptxas warning : .minnctapersm will be ignored\n"
        "ptxas kernel.ptx, line 7; warning : slow path\n"
        "ptxas kernel.ptx, line 7; warning : slow path\n"
        "ptxas info    : (C7600) something in around line 9 happened\n"
        "ptxas info    : 0 bytes gmem\n"
    )
    assert advisories_of(log) == (
        Advisory("", ".minnctapersm will be ignored"),
        Advisory("", "slow path", 7),
        Advisory("C7600", "something in around line 9 happened", 9),
    )


def test_a_harmless_advisory_comes_with_the_result(fake: Callable[..., Path]) -> None:
    log = "ptxas warning : Value of threads per SM is out of range. .minnctapersm will be ignored"
    result = Ptxas.at(fake(saying(log))).assemble(SAXPY, "sm_80")
    assert result.advisories == (Advisory("", log.removeprefix("ptxas warning : ")),)


@pytest.mark.parametrize("number", [7508, 7511, 7512, 7514, 7515, 7517, 7518, 7519])
def test_a_ruinous_number_is_ruinous_whatever_its_words(number: int) -> None:
    assert advisories_of(f"ptxas info    : (C{number}) other words")[0].ruinous


def test_every_ignored_setmaxnreg_and_serialised_wgmma_is_ruinous_whatever_its_number() -> None:
    words = "Potential Performance Loss: wgmma.mma_async instructions are serialized due to x"
    assert advisories_of(f"ptxas info    : (C9999) {words}")[0].ruinous
    assert not Advisory("C9999", "nothing to see").ruinous


def test_all_ruinous_advisories_are_shown(fake: Callable[..., Path]) -> None:
    log = (
        "ptxas info    : (C7600) harmless\n"
        "ptxas info    : (C7519) warpgroup.arrive is injected in around line 3 by compiler\n"
        "ptxas info    : (C7999) Potential Performance Loss: something new"
    )
    broken = Ptxas.at(fake(saying(log)))
    assert (
        refusal(broken)
        == f"""\
THIS took the PTX for sm_80, but with 2 advisories that ruin the kernel:

C7519 warpgroup.arrive is injected in around line 3 by compiler
  wgmma.fence is missing before registers are handed to wgmma, so one was injected
       1 | .version 8.0
       2 | .target sm_80
>      3 | .address_size 64
         | ^~~~~~~~~~~~~~~~
       4 |
       5 | .visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)

C7999 Potential Performance Loss: something new

its log:
{log}"""
    )


def test_many_errors_and_a_long_log_are_cut(fake: Callable[..., Path]) -> None:
    line = "ptxas kernel.ptx, line 999; error   : "
    broken = Ptxas.at(fake(saying("\n".join(f"{line}{at:0100}" for at in range(40)), 255)))
    head, log = refusal(broken).split("\n\nits log:\n")
    assert head == (
        "THIS refused the PTX for sm_80: 40 errors\n\n"
        + "\n\n".join(f"line 999: {at:0100}" for at in range(10))
        + "\n\nand 30 more"
    )
    whole = "\n".join(f"{line}{at:0100}" for at in range(40))
    cut = len(whole) - 4000
    assert log == f"{whole[:3000]}\n… ({cut} characters left out) …\n{whole[-1000:]}"


def test_tabs_and_long_lines_keep_the_marker_in_place(fake: Callable[..., Path]) -> None:
    broken = Ptxas.at(fake(saying("ptxas kernel.ptx, line 1; error   : bad 'bar'", 255)))
    assert before_the_log(refusal(broken, f"\tfoo bar {'x' * 200}")) == (
        "THIS refused the PTX for sm_80: 1 error\n\n"
        "line 1: bad 'bar'\n"
        f">      1 |         foo bar {'x' * 144} …\n"
        "         |             ^~~"
    )


def test_a_line_behind_the_end_of_the_text_is_not_shown(fake: Callable[..., Path]) -> None:
    broken = Ptxas.at(fake(saying("ptxas kernel.ptx, line 2; error   : too short", 255)))
    assert before_the_log(refusal(broken, "ret;")) == (
        "THIS refused the PTX for sm_80: 1 error\n\nline 2: too short"
    )


@pytest.mark.parametrize(
    ("line", "token", "marker"),
    [
        ("add %f1, %f12;", "%f1", "    ^~~"),
        ("add.u65 %r1;", ".u65", "   ^~~~"),
        ("sub %f1, %f1;", "%f1", "^~~~~~~~~~~~~"),
        ("  mad.lo;", "ad", "  ^~~~~~~"),
        (".version 99.0", "9.0", "^~~~~~~~~~~~~"),
    ],
)
def test_the_marker_points_at_a_whole_word_that_occurs_once(
    fake: Callable[..., Path], line: str, token: str, marker: str
) -> None:
    broken = Ptxas.at(fake(saying(f"ptxas kernel.ptx, line 1; error   : bad '{token}'", 255)))
    assert before_the_log(refusal(broken, line)).endswith(f"| {line}\n         | {marker}")


def test_a_kernel_that_is_not_there_is_named(fake: Callable[..., Path]) -> None:
    result = Ptxas.at(fake(saying(REPORT))).assemble(SAXPY, "sm_80")
    with pytest.raises(ConfigError) as error:
        result.kernel("saxpi")
    assert str(error.value) == (
        "the assembled text has no kernel 'saxpi', only ['saxpy']; did you mean 'saxpy'?"
    )
