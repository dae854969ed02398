"""Programs of PTX: kernels by name, arguments, schedules, findings; no compiler is needed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import BackendError, LaunchError, ParseError, TrapError
from ptxgen.frontends import ptx
from ptxgen.frontends.cpp_names import cpp_names, demangled
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import FoundError, Program, Saved
from ptxgen.frontends.structures import Structure
from ptxgen.interpreter import PCT, DeviceArena
from ptxgen.tensormap import TensorMap
from ptxgen.texture import Texture

ROOT = Path(__file__).parents[2]
NVCC = ROOT / "tests" / "ptx" / "nvcc"
BUG = ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx"

# y[i] += x[i] for 32 threads, as C++ with the name add(float const*, float*) at lines of add.cu; a
# kernel of C that adds 1 to p[0] twice in every thread, unrolled with its block in the text.
TEXT = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry _Z3addPKfPf(.param .u64 _Z3addPKfPf_param_0, .param .u64 _Z3addPKfPf_param_1)
{
    .reg .b32 %r<2>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<5>;
    .loc 1 2 3
    ld.param.u64 %rd0, [_Z3addPKfPf_param_0];
    ld.param.u64 %rd1, [_Z3addPKfPf_param_1];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd3, %rd0, %rd2;
    add.s64 %rd4, %rd1, %rd2;
    .loc 1 3 9
    ld.global.f32 %f0, [%rd3];
    ld.global.f32 %f1, [%rd4];
    add.f32 %f2, %f0, %f1;
    st.global.f32 [%rd4], %f2;
    ret;
}
.visible .entry count(.param .u64 count_param_0)
.reqntid 64
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [count_param_0];
    .loc 1 7 1
    ld.global.u32 %r0, [%rd0];
    add.u32 %r1, %r0, 1;
    st.global.u32 [%rd0], %r1;
    ld.global.u32 %r2, [%rd0];
    add.u32 %r3, %r2, 1;
    st.global.u32 [%rd0], %r3;
    ret;
}
.file 1 "SOURCE"
"""
CPP = """// add.cu
__global__ void add(const float *x, float *y) {
  y[threadIdx.x] += x[threadIdx.x];
}


  ++*p;
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "add.cu"
    path.write_text(CPP)
    return path


@pytest.fixture
def program(source: Path) -> Program:
    return ptx.load(TEXT.replace("SOURCE", str(source)))


def numbers() -> Any:
    return np.arange(32, dtype=np.float32)


def message(call: Any, kind: type[Exception] = LaunchError) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


# ---- programs -----------------------------------------------------------------------------------


def test_a_file_and_its_kernels_by_name() -> None:
    program = ptx.load(NVCC / "stencils.sm_80.ptx")
    assert program["saxpy"].parameters[0] == "saxpy_param_0: f32"
    assert "saxpy" in list(program)
    assert len(program) == len(program.module.kernels)
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    outcome = program["saxpy"].run(1, 32, [2, x, y, 8])
    assert y.tolist() == (2 * x + 1).tolist()
    assert outcome.clean
    assert str(outcome.findings) == "nothing was found"


def test_names_of_cpp(program: Program) -> None:
    assert repr(program) == "<program the PTX text: add, count>"
    assert repr(program["add"]) == "<kernel add(add_param_0: u64, add_param_1: u64)>"
    assert program["_Z3addPKfPf"] is program["add"]
    x, y = numbers(), numbers()
    program["add"].run(1, 32, {"add_param_1": y, "add_param_0": x})
    assert np.array_equal(y, 2 * x)


def test_overloads_keep_their_symbols() -> None:
    text = TEXT.replace("count(", "_Z3addi(").replace("count_param", "_Z3addi_param")
    assert list(ptx.load(text)) == ["_Z3addPKfPf", "_Z3addi"]


def test_what_is_no_program(tmp_path: Path) -> None:
    assert message(lambda: ptx.load(tmp_path / "no.ptx")) == (
        f"cannot read {tmp_path / 'no.ptx'}: No such file or directory"
    )
    (tmp_path / "a.ptx").write_bytes(b"\xff\xfe\x00")
    assert message(lambda: ptx.load(tmp_path / "a.ptx")).endswith("it is no text, so it is no PTX")
    assert message(lambda: ptx.load(3)).startswith("load: the PTX must be a path or text")  # type: ignore[arg-type]
    assert "wanted '.version'" in message(lambda: ptx.load("\nno PTX\n"), ParseError)
    assert message(ptx.load(TEXT).only) == (
        "the PTX text has the kernels add, count; say which one is to run"
    )
    assert message(lambda: ptx.load(TEXT)["ad"]) == (
        "the PTX text has no kernel 'ad'; did you mean 'add'? (it has add, count)"
    )


# ---- names of C++ -------------------------------------------------------------------------------


def test_names_and_types_come_from_symbols_and_from_the_source() -> None:
    ptx_text = (
        ".entry _Z3addPKfPf(\n.param .u64 _Z3addPKfPf_param_0, _Z3addPKfPf_param_1)\n_ZZ3addPKfPfE4part;"
    )
    names = cpp_names(ptx_text, CPP)
    assert names.of_symbols == {
        "_Z3addPKfPf": "add",
        "_Z3addPKfPf_param_0": "x",
        "_Z3addPKfPf_param_1": "y",
        "_ZZ3addPKfPfE4part": "part",
    }
    assert {n: to.dtypes for n, to in names.pointees["_Z3addPKfPf"].items()} == {
        0: ("float32",),
        1: ("float32",),
    }


@pytest.mark.parametrize(
    ("source", "known"),
    [
        ('extern "C" __global__ void __launch_bounds__(64, 2) k(int n, float (*f)) {', ()),
        ('extern "C" __global__ void __launch_bounds__(64, 2) k(int n, const __half *__restrict__ x) {',
         ("n", "x")),
        ("__global__ void k(Pair<int, 3> p, unsigned int bins[16]) { /* a */ }", ("p", "bins")),
        ("// __global__ void k(int a) {\n__global__ void k(int b /* of */, int c = f<2>) {", ("b", "c")),
        ("__global__ void k(int a) {} __global__ void k(float a) {}", ()),
        ("__global__ void k(int a);", ()),
        ("__global__ void k(PARAMETERS) {", ()),
    ],
)  # fmt: skip
def test_parameters_of_a_kernel_with_c_linkage(source: str, known: tuple[str, ...]) -> None:
    text = ".entry k(\n.param .u32 k_param_0,\n.param .u64 k_param_1)"
    result = cpp_names(text, source)
    assert [result.of_symbols[f"k_param_{n}"] for n in range(2)] == [
        known[n] if known else f"k_param_{n}" for n in range(2)
    ]
    types = {n: to.type for n, to in result.pointees["k"].items()}
    assert types == (
        {1: "__half*"} if "__half" in source else {1: "unsigned int*"} if "bins" in source else {}
    )


def test_pointers_are_known_behind_an_enumerator_among_the_arguments_of_a_template() -> None:
    symbol = "_Z1kILi64EL4mode1EEvPfi"
    text = f".visible .entry {symbol}(.param .u64 {symbol}_param_0, .param .u32 {symbol}_param_1)"
    result = cpp_names(text)
    assert result.pointees[symbol] == {0: ("float*", ("float32",))}
    assert result.of_symbols[f"{symbol}_param_0"] == "k<64, (mode)1>_param_0"


@pytest.mark.parametrize(
    ("symbol", "declaration", "short"),
    [
        ("_Z9block_sumIfLi64EEvPKT_PS0_", "void block_sum<float, 64>(float const*, float*)",
         "block_sum<float, 64>"),
        ("_ZN12_GLOBAL__N_11kEi", "(anonymous namespace)::k(int)", "(anonymous namespace)::k"),
        ("_ZN2ns1kEPKi", "ns::k(int const*)", "ns::k"),
        ("_Z1kIN2ns4PairIiEEEvT_", "void k<ns::Pair<int> >(ns::Pair<int>)", "k<ns::Pair<int> >"),
        ("_ZL7weights", "weights", "weights"),
        ("_Z1kILi64EL4mode1EEvPfi", "void k<64, (mode)1>(float*, int)", "k<64, (mode)1>"),
        ("_Z1kI6__halfXadL_Z4siluRKfEEEvPT_", "void k<__half, &(silu(float const&))>(__half*)",
         "k<__half, &(silu(float const&))>"),
        ("_ZNK4LessclEff", "Less::operator()(float, float) const", "Less::operator()"),
        ("_ZlsRi4Bits", "operator<<(int&, Bits)", "operator<<"),
        ("saxpy", "", None),
        ("_Znothing", "", None),
    ],
)  # fmt: skip
def test_symbols_are_read_as_the_runtime_library_does(
    symbol: str, declaration: str, short: str | None
) -> None:
    assert demangled(symbol) == declaration
    assert cpp_names(f".global .u32 {symbol};").of_symbols.get(symbol) == short


# ---- arguments ----------------------------------------------------------------------------------


def test_the_block_comes_from_the_text(program: Program) -> None:
    total = np.zeros(1, np.uint32)
    program["count"].run(1, args=[total], sanitize=False)
    assert total[0] == 2  # all threads of the block read before the first wrote
    wanted = "add: block must be given, the threads of a CTA: block=256"
    assert message(lambda: program["add"].run(1, args=[numbers(), numbers()])) == wanted


def test_arguments_of_other_libraries_and_of_c(program: Program, torch: Any) -> None:
    x, y = torch.ones(32), torch.zeros(32)
    program["add"].run(1, 32, [x, y])
    assert y.tolist() == [1.0] * 32
    arena = DeviceArena()
    address = arena.place(numbers(), name="numbers")
    z = np.zeros(32, np.float32)
    program["add"].run(1, 32, [ctypes.c_uint64(address), z], arena=arena)
    assert np.array_equal(z, numbers())
    gradient = torch.ones(32, requires_grad=True)
    program["add"].run(1, 32, [x, gradient])
    assert gradient.tolist() == [2.0] * 32


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([numbers()], "add takes 2 arguments (add_param_0: u64, add_param_1: u64), got 1"),
        ([numbers(), object], "add: add_param_1 must be an array, a number, None for a null pointer, or "
         "bytes for a structure, got <class 'object'>"),
        ([numbers(), np.zeros(32)], "add: argument 1 (add_param_1) must be float32 (float*), got float64; "
         "convert it"),
        ([numbers(), 2.5], "add: argument 1 (add_param_1) must be an integer for its type u64, got 2.5"),
        ({"x": 1}, "add has no parameter 'x' (it has add_param_0, add_param_1)"),
        ({"add_param_0": 1}, "add: args lacks add_param_1; give every parameter"),
        (None, "add: args must be a list with an argument for each parameter (add_param_0: u64, add_param_1: "
         "u64), got None"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(program: Program, args: Any, wanted: str) -> None:
    assert message(lambda: program["add"].run(1, 32, args)) == wanted


def test_none_is_a_null_pointer(program: Program) -> None:
    wanted = "wants to read 4 bytes of global memory at 0x0, a null pointer"
    assert wanted in message(lambda: program["add"].run(1, 32, [None, numbers()]), TrapError)


POINT = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry sum(.param .align 8 .b8 sum_param_0[24], .param .u64 sum_param_1)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    .reg .b16 %h<1>;
    ld.param.u32 %r0, [sum_param_0];
    ld.param.u64 %rd0, [sum_param_0+8];
    ld.param.u8 %h0, [sum_param_0+16];
    ld.param.u64 %rd1, [sum_param_1];
    ld.global.u32 %r1, [%rd0+4];
    add.u32 %r2, %r0, %r1;
    cvt.u32.u16 %r3, %h0;
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%rd1], %r2;
    ret;
}
"""


def test_a_tuple_is_a_structure(torch: Any) -> None:
    kernel = ptx.load(POINT).only()
    out = np.zeros(1, np.uint32)
    for array in (np.array([1, 20], np.uint32), torch.tensor([1, 20], dtype=torch.int32)):
        kernel.run(1, 1, [(300, array, (np.uint8(4),)), out], schedule=["lockstep", PCT(0)])
        assert out[0] == 324
    short = message(lambda: kernel.run(1, 1, [(300, out, np.uint8(4)), out]), TrapError)
    assert "0 bytes after the end of sum_param_0[1]" in short
    assert "null pointer and 4 bytes" in message(lambda: kernel.run(1, 1, [(1, None, 1), out]), TrapError)


@pytest.mark.parametrize(
    ("structure", "wanted"),
    [
        ((1, 2), "sum: sum_param_0 must be a structure of 24 bytes, got members of 8 bytes, padding "
         "included; give numbers their types, as in numpy.int64(3)"),
        ((1 << 40, 2), "sum: sum_param_0[0] must be an array, None for a null pointer, a number or a tuple, "
         "got 1099511627776; numbers beyond 32 bits need their type, as in numpy.int64(3)"),
        ((1, "a"), "sum: sum_param_0[1] must be an array, a number, None for a null pointer, or bytes for a "
         "structure, got 'a'"),
        ((1, (b"ab",)), "sum: sum_param_0[1][0] must be an array, None for a null pointer, a number or a "
         "tuple, got b'ab'; numbers beyond 32 bits need their type, as in numpy.int64(3)"),
        (bytes(23), "sum: argument 0 (sum_param_0) must be a structure of 24 bytes, got 23 bytes"),
    ],
)  # fmt: skip
def test_a_structure_that_does_not_fit(structure: Any, wanted: str) -> None:
    assert message(lambda: ptx.load(POINT).only().run(1, 1, [structure, 0])) == wanted


# ---- findings -----------------------------------------------------------------------------------


def test_findings_show_the_line_of_the_source(program: Program, source: Path) -> None:
    with pytest.raises(FoundError) as error:
        program["add"].run(1, 32, [numbers()[:8], numbers()])
    assert str(error.value).startswith(
        "add: 1 problem found:\n  kernel add: ld.global.f32 %f0, [%rd3]; (add.cu:3: y[threadIdx.x] += "
        "x[threadIdx.x];): thread (8, 0, 0) of CTA (0, 0, 0) wants to read 4 bytes of global memory at "
    )
    outcome = error.value.outcome
    assert not outcome.clean
    assert outcome.result is None
    assert outcome.counters.warp_instructions == 0
    assert outcome.printed == ""
    assert source.exists()


def test_a_source_that_is_newer_than_the_file_is_not_quoted(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "add.ptx"
    path.write_text(TEXT.replace("SOURCE", str(source)))
    then = source.stat().st_mtime
    for apart, shown in ((5, "(add.cu:3: y[threadIdx.x] += x[threadIdx.x];)"), (-5, "(add.cu:3)")):
        os.utime(path, (then + apart, then + apart))
        outcome = ptx.load(path)["add"].run(1, 32, [numbers()[:8], numbers()], raise_on_report=False)
        assert shown in outcome.findings.faults[0]


def test_problems_of_one_line_are_one_finding(program: Program) -> None:
    total = np.zeros(1, np.uint32)
    outcome = program["count"].run(1, args=[total], raise_on_report=False)
    assert outcome.result is not None
    assert len(outcome.result.reports) > len(outcome.findings.reports) == 1
    report = outcome.findings.reports[0]
    assert report.count == sum(each.count for each in outcome.result.reports)
    assert report.source is not None
    assert (report.source.line, report.source.text) == (7, "++*p;")
    assert " more of the instructions of this line" in report.message
    assert report.as_json()["source"]["line"] == 7


def test_sanitizers_are_chosen(program: Program) -> None:
    total = np.zeros(1, np.uint32)
    assert program["count"].run(1, args=[total], sanitize="bounds,init").clean
    assert "did you mean 'race'" in message(lambda: program["count"].run(1, args=[total], sanitize="races"))


# ---- schedules ----------------------------------------------------------------------------------


def test_each_schedule_begins_with_the_same_values() -> None:
    x, total = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    kernel = ptx.load(BUG).only()
    alone = kernel.run(1, 256, [x, total], raise_on_report=False, schedule=PCT(1)).findings
    assert (float(total[0]), float(x.sum())) == (9152.0, 32640.0)  # what the missing barrier loses
    several = kernel.run(1, 256, [x, total], raise_on_report=False, schedule=[PCT(1), "pct:2", "lockstep"])
    assert float(total[0]) == float(x.sum())
    assert {r.message for r in alone.reports} <= {r.message for r in several.findings.reports}
    y = numbers()
    ptx.load(TEXT)["add"].run(1, 32, [numbers(), y], schedule=["lockstep"] * 3)
    assert np.array_equal(y, 2 * numbers())


def test_arrays_in_maps_textures_and_structures_are_restored() -> None:
    tile, texels, member = np.zeros((8, 8), np.float32), np.zeros((4, 4), np.float32), np.zeros(3)
    fixed = np.zeros(2)
    fixed.setflags(write=False)
    structure = Structure("s", (1, (2, member)), 16)
    saved = Saved([TensorMap(tile, (4, 4)), Texture(texels), structure, fixed, 3])
    tile[:], texels[:], member[:] = 1, 2, 3
    saved.restore()
    assert not tile.any()
    assert not texels.any()
    assert not member.any()


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ([], "add: schedule must be a schedule or several, got []"),
        (["lockstep", "lockstp"], "schedule must be 'lockstep', 'pct:SEED', 'pct:SEED:DEPTH' with numbers, "
         "or a PCT, got 'lockstp'; did you mean 'lockstep'?"),
    ],
)  # fmt: skip
def test_schedules_that_are_none(program: Program, schedule: Any, wanted: str) -> None:
    assert message(lambda: program["add"].run(1, 32, [numbers(), numbers()], schedule=schedule)) == wanted


def test_an_arena_takes_one_schedule(program: Program) -> None:
    call = lambda: program["add"].run(1, 32, [0, 0], schedule=["lockstep"] * 2, arena=DeviceArena())  # noqa: E731
    assert message(call) == (
        "add: an arena keeps what a launch wrote, so that a second schedule would begin with other values; "
        "give one schedule"
    )


# ---- packages -----------------------------------------------------------------------------------


def test_a_package_that_is_not_installed_is_named() -> None:
    assert message(lambda: require("ptxgen.frontends.tritn", "tritn.language", "tritn"), BackendError) == (
        "ptxgen.frontends.tritn needs the package tritn, which cannot be imported (No module named 'tritn'); "
        "install it: pip install tritn, or all front ends: pip install 'ptxgen[frontends]'"
    )
