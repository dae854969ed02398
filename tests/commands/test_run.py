from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from command_line import Command, words

from ptxgen.commands import run as tool
from ptxgen.commands.parts import progress
from ptxgen.interpreter import Result
from ptxgen.parse import parse

PROGRAM = "ptxgen run"

SCRIPT = str(Path(__file__).parents[2] / "tools" / "run.py")

HEAD = """\
.version 7.0
.target sm_80
.address_size 64
"""
SAXPY = (
    HEAD
    + """
.const .align 4 .f32 offset;
.visible .entry saxpy(
	.param .u32 n,
	.param .f32 a,
	.param .u64 x,
	.param .u64 y
)
.maxntid 256, 1, 1
{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .f32 %f<6>;
	.reg .b64 %rd<6>;
	.shared .align 4 .b8 seen[64];
	ld.param.u32 %r0, [n];
	ld.param.f32 %f0, [a];
	ld.param.u64 %rd0, [x];
	ld.param.u64 %rd1, [y];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.s32 %r4, %r1, %r2, %r3;
	setp.ge.s32 %p0, %r4, %r0;
	@%p0 bra $done;
	mul.wide.u32 %rd2, %r4, 4;
	add.u64 %rd3, %rd0, %rd2;
	add.u64 %rd4, %rd1, %rd2;
	ld.global.f32 %f1, [%rd3];
	ld.global.f32 %f2, [%rd4];
	ld.const.f32 %f4, [offset];
	fma.rn.f32 %f3, %f0, %f1, %f2;
	add.f32 %f3, %f3, %f4;
	st.global.f32 [%rd4], %f3;
$done:
	ret;
}
"""
)
# Each thread copies the 8 bytes of a structure to its place of `out`.
STRUCTURE = (
    HEAD
    + """
.extern .shared .align 16 .b8 space[];
.visible .entry spread(
	.param .align 4 .b8 pair[8],
	.param .u64 out
)
.reqntid 32, 2, 1
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd0, [pair];
	ld.param.u64 %rd1, [out];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, %tid.y;
	mad.lo.u32 %r2, %r1, 32, %r0;
	mul.wide.u32 %rd2, %r2, 8;
	add.u64 %rd1, %rd1, %rd2;
	st.global.u64 [%rd1], %rd0;
	ret;
}
.visible .entry nothing()
{
	ret;
}
"""
)
RACE = (
    HEAD
    + """
.visible .entry race(
	.param .u64 out
)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	.shared .align 4 .b8 word[4];
	ld.param.u64 %rd0, [out];
	mov.u32 %r0, %tid.x;
	st.shared.u32 [word], %r0;
	st.global.u32 [%rd0], %r0;
	ret;
}
"""
)
# Writes its parameter, of any type of 2 bytes or more, to the first element of `out`.
KEEP = (
    HEAD
    + """
.visible .entry keep(
	.param .{type} value,
	.param .u64 out
)
{{
	.reg .b16 %rs<2>;
	.reg .b32 %r<2>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd0, [out];
	ld.param.b{bits} %{register}1, [value];
	st.global.b{bits} [%rd0], %{register}1;
	ret;
}}
"""
)


# One thread writes the extents of the launch, and the bytes of dynamic shared memory.
LOOK = (
    HEAD.replace("7.0", "8.1").replace("80", "90")
    + """
.extern .shared .align 16 .b8 space[];
.visible .entry look(
	.param .u64 out
)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd0, [out];
"""
    + "".join(
        f"\tmov.u32 %r0, %{name};\n\tst.global.u32 [%rd0+{4 * n}], %r0;\n"
        for n, name in enumerate(
            f"{kind}.{axis}" for kind in ("nctaid", "ntid", "cluster_nctaid") for axis in "xyz"
        )
    )
    + """
	mov.u32 %r0, %dynamic_smem_size;
	st.global.u32 [%rd0+36], %r0;
	ret;
}
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the programs and two arrays."""
    monkeypatch.chdir(tmp_path)
    Path("saxpy.ptx").write_text(SAXPY)
    Path("structure.ptx").write_text(STRUCTURE)
    Path("race.ptx").write_text(RACE)
    np.save("x.npy", np.arange(1000, dtype=np.float32))
    np.save("y.npy", np.ones(1000, np.float32))
    return tmp_path


LAUNCH = ["saxpy.ptx", "--entry", "saxpy", "--grid", "4", "--block", "256"]
SAXPY_ARGS = ["--arg", "i32:1000", "--arg", "f32:2.0", "--arg", "x.npy", "--arg", "inout:y.npy"]


def files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def refused(argv: list[str], code: int, call: Command) -> str:
    """Message of a run that fails with this exit code and leaves all files as they are."""
    before = files()
    ended, message = call.error(*argv)
    assert (ended, files()) == (code, before)
    return message


def kept(argument: str, type: str, bits: int) -> bytes:
    """The bytes that a parameter of a type has when an argument is given for it."""
    register = {16: "rs", 32: "r", 64: "rd"}[bits]
    Path("keep.ptx").write_text(KEEP.format(type=type, bits=bits, register=register))
    argv = ["keep.ptx", "--entry", "keep", "--grid", "1", "--block", "1", "--arg", argument]
    assert tool.main([*argv, "--arg", "out:kept.npy:u8:8"]) == 0
    return np.load("kept.npy").tobytes()[: bits // 8]


# ---------------------------------------------------------------------------------------- running


def test_a_kernel_runs_and_its_array_is_written_back(call: Command) -> None:
    assert call(*LAUNCH, *SAXPY_ARGS) == (0, "", "")
    assert (np.load("y.npy") == 2 * np.arange(1000) + 1).all()
    assert (np.load("x.npy") == np.arange(1000)).all()
    assert sorted(os.listdir()) == ["race.ptx", "saxpy.ptx", "structure.ptx", "x.npy", "y.npy"]


def test_a_file_keeps_its_mode_and_a_link_stays_one() -> None:
    Path("y.npy").rename("real.npy")
    Path("real.npy").chmod(0o640)
    Path("y.npy").symlink_to("real.npy")
    assert tool.main([*LAUNCH, *SAXPY_ARGS]) == 0
    assert Path("y.npy").is_symlink()
    assert stat.S_IMODE(Path("real.npy").stat().st_mode) == 0o640
    assert np.load("real.npy")[999] == 1999


def test_results_go_to_another_folder_when_asked() -> None:
    assert tool.main([*LAUNCH, *SAXPY_ARGS, "--out-dir", "made/here"]) == 0
    assert (np.load("y.npy") == 1).all()
    assert np.load("made/here/y.npy")[999] == 1999


def test_the_program_may_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("saxpy.ptx").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        assert tool.main(["-", *LAUNCH[1:], *SAXPY_ARGS]) == 0
    assert np.load("y.npy")[999] == 1999


def test_variables_of_the_module_get_values() -> None:
    np.save("offset.npy", np.array([5], np.float32))
    assert tool.main([*LAUNCH, *SAXPY_ARGS, "--symbol", "offset=offset.npy"]) == 0
    assert np.load("y.npy")[:2].tolist() == [6, 8]
    assert tool.main([*LAUNCH, *SAXPY_ARGS, "--symbol", "offset=f32:-1"]) == 0
    assert np.load("y.npy")[:2].tolist() == [5, 9]
    assert tool.main([*LAUNCH, *SAXPY_ARGS, "--symbol", "offset=hex:0000803f"]) == 0
    assert np.load("y.npy")[:2].tolist() == [6, 12]


def test_structures_extents_and_new_arrays() -> None:
    argv = ["structure.ptx", "--entry", "spread", "--grid", "1", "--block", "32x2"]
    argv += ["--arg", "hex:0100000002000000", "--arg", "out:o.npy:uint32:64x2"]
    assert tool.main(argv) == 0
    assert (np.load("o.npy") == [1, 2]).all()
    assert np.load("o.npy").shape == (64, 2)


@pytest.mark.parametrize("text", ["2", "2,1", "1x2", "1,1x2"])
def test_extents_have_one_to_three_numbers(text: str) -> None:
    Path("look.ptx").write_text(LOOK)
    argv = ["look.ptx", "--entry", "look", "--grid", text, "--block", text, "--cluster", text]
    assert tool.main([*argv, "--arg", "out:o.npy:u32:10", "--dynamic-smem", "48"]) == 0
    sizes = [*map(int, text.replace("x", ",").split(",")), 1, 1][:3]
    assert np.load("o.npy").tolist() == [*sizes * 3, 48]


@pytest.mark.parametrize(
    ("argument", "type", "value"),
    [
        ("i32:-1", "u32", np.int32(-1)),
        ("u32:4294967295", "s32", np.int32(-1)),
        ("i32:-0x10", "b32", np.int32(-16)),
        ("u64:0xfedcba9876543210", "u64", np.uint64(0xFEDCBA9876543210)),
        ("i64:-2", "u64", np.int64(-2)),
        ("i16:-3", "u16", np.int16(-3)),
        ("f32:0.1", "f32", np.float32(0.1)),
        ("f32:-inf", "b32", np.float32("-inf")),
        ("f32:1e99", "f32", np.float32("inf")),
        ("f64:0.1", "f64", np.float64(0.1)),
        ("f16:1.5", "b16", np.float16(1.5)),
        ("bf16:-2.5", "b16", ml_dtypes.bfloat16(-2.5)),
        ("hex:01020304", "u32", np.uint32(0x04030201)),
    ],
)
def test_numbers_arrive_with_their_bits(argument: str, type: str, value: Any) -> None:
    assert kept(argument, type, value.nbytes * 8) == value.tobytes()


def test_random_arrays_differ_by_place_and_are_the_same_each_time() -> None:
    def made(x: str, y: str) -> np.ndarray:
        tool.main([*LAUNCH, *SAXPY_ARGS[:4], "--arg", x, "--arg", y])
        return np.load("z.npy")

    copy = "out:z.npy:f32:1000"
    first = made("random:f32:1000", copy)
    assert (first == made("random:f32:1000:2", copy)).all()  # the third argument
    assert (first != made("random:f32:1000:3", copy)).any()
    assert abs(first.mean()) < 0.3
    assert 1.8 < first.std() < 2.2  # two times a normal distribution
    # Integers are of all values of the type.
    integers = made("random:u8:4000", copy).view(np.uint32)
    assert len(np.unique(integers)) > 900
    assert (made("zeros:f32:1000", copy) == 0).all()


@pytest.mark.parametrize(("name", "stored"), [("bf16", "V2"), ("e5m2", "V1"), ("bool", "bool")])
def test_types_that_numpy_lacks_are_written_as_bytes(name: str, stored: str) -> None:
    argv = ["structure.ptx", "--entry", "nothing", "--grid", "1", "--block", "1"]
    text = STRUCTURE.replace("nothing()", "nothing(.param .u64 x)")
    Path("structure.ptx").write_text(text)
    assert tool.main([*argv, "--arg", f"out:o.npy:{name}:3"]) == 0
    assert np.load("o.npy").dtype == stored
    assert tool.main([*argv, "--arg", "inout:o.npy"]) == 0
    assert np.load("o.npy").dtype == stored


def test_arrays_in_any_order_are_read_as_their_elements_say() -> None:
    np.save("x.npy", np.asfortranarray(np.arange(1000, dtype=">f4").reshape(10, 100)))
    assert tool.main([*LAUNCH, *SAXPY_ARGS]) == 0
    assert (np.load("y.npy") == 2 * np.arange(1000) + 1).all()


# ------------------------------------------------------------------------------ what is printed


def test_what_the_kernel_prints_comes_first(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tool.interpreter.run

    def chatty(*args: Any, **options: Any) -> Result:
        result = run(*args, **options)
        return Result(result.counters, result.reports, "hello\nworld\n")

    monkeypatch.setattr(tool.interpreter, "run", chatty)
    assert call.out(*LAUNCH, *SAXPY_ARGS) == "hello\nworld\n"
    assert call.out(*LAUNCH, *SAXPY_ARGS, "--counters").startswith("hello\nworld\nwarp instructions ")
    assert call.document(*LAUNCH, *SAXPY_ARGS, "--json")["printed"] == "hello\nworld\n"


def test_what_a_kernel_printed_before_it_failed_is_shown(call: Command) -> None:
    Path("fails.ptx").write_text(
        HEAD
        + """
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 values);
.global .align 1 .b8 text[7] = {98, 101, 102, 111, 114, 101, 10};
.visible .entry fails()
{
	.reg .b64 %rd<3>;
	mov.u64 %rd1, text;
	cvta.global.u64 %rd1, %rd1;
	mov.u64 %rd2, 0;
	{
	.param .b64 a;
	.param .b64 b;
	.param .b32 r;
	st.param.b64 [a], %rd1;
	st.param.b64 [b], %rd2;
	call.uni (r), vprintf, (a, b);
	}
	trap;
}
"""
    )
    assert call("fails.ptx", "--entry", "fails", "--grid", "1", "--block", "1") == (
        1,
        "before\n",
        "ptxgen run: error: kernel fails: trap; (line 21): thread (0, 0, 0) of CTA (0, 0, 0): "
        "trap instruction\n",
    )


def test_counters_are_a_table(call: Command) -> None:
    args = ["--arg", "i32:999", *SAXPY_ARGS[2:4], "--arg", "random:f32:2000"]
    assert call(*LAUNCH, *args, "--arg", "zeros:f32:1000", "--counters") == (
        0,
        "warp instructions          640\n"
        "thread instructions     20,255\n"
        "tensor-core operations       0\n"
        "shared requests              0\n"
        "shared wavefronts            0\n"
        "bank conflicts               0\n"
        "global requests             96\n"
        "global sectors read        250\n"
        "global sectors written     125\n"
        "avoidable sectors            0\n"
        "\n"
        "mov.u32                     96\n"
        "ld.param.u64                64\n"
        "add.u64                     64\n"
        "ld.global.f32               64\n"
        "ld.param.u32                32\n"
        "ld.param.f32                32\n"
        "mad.lo.s32                  32\n"
        "setp.ge.s32                 32\n"
        "bra                         32\n"
        "mul.wide.u32                32\n",
        "",
    )


def test_counters_name_the_worst_lines(call: Command) -> None:
    Path("race.ptx").write_text(
        RACE.replace("word[4]", "word[4096]").replace(
            "\tst.shared.u32 [word], %r0;\n\tst.global.u32 [%rd0], %r0;\n",
            "\tmov.u32 %r1, word;\n\tshl.b32 %r2, %r0, 7;\n\tadd.u32 %r1, %r1, %r2;\n"
            "\tst.shared.u32 [%r1], %r0;\n\tcvt.u64.u32 %rd1, %r2;\n"
            "\tadd.u64 %rd1, %rd0, %rd1;\n\tst.global.u32 [%rd1], %r0;\n",
        )
    )
    argv = ["race.ptx", "--entry", "race", "--grid", "1", "--block", "32"]
    assert call.out(*argv, "--arg", "zeros:u32:1024", "--counters").endswith(
        "\nmost bank conflicts\n31  st.shared.u32 [%r1], %r0; (line 17)\n"
        "\nmost avoidable sectors\n28  st.global.u32 [%rd1], %r0; (line 20)\n"
    )


def test_json_has_everything(call: Command) -> None:
    printed = call(*LAUNCH, *SAXPY_ARGS, "--counters", "--json")
    assert printed.code == 0
    result = json.loads(printed.out)
    assert printed.out == json.dumps(result, indent=2) + "\n"
    assert printed.err == ""
    counters = result.pop("counters")
    assert result == {
        "entry": "saxpy",
        "grid": [4, 1, 1],
        "block": [256, 1, 1],
        "printed": "",
        "reports": [],
        "written": {"3": "y.npy"},
    }
    mix = counters.pop("by_opcode")
    assert sum(mix.values()) == counters["warp_instructions"] == 640
    memory = counters.pop("memory_by_instruction")
    assert counters == {
        "warp_instructions": 640,
        "thread_instructions": 20264,
        "tensor_flops": 0,
        "shared_requests": 0,
        "shared_wavefronts": 0,
        "shared_conflicts": 0,
        "global_requests": 96,
        "global_sectors_read": 250,
        "global_sectors_written": 125,
        "global_sectors_excess": 0,
        "dispatched": 20,
        "traffic_not_counted": [],
    }
    assert [m["where"] for m in memory] == [
        "ld.global.f32 %f1, [%rd3]; (line 32)",
        "ld.global.f32 %f2, [%rd4]; (line 33)",
        "st.global.f32 [%rd4], %f3; (line 37)",
    ]
    assert memory[2] == {
        "number": 18,
        "where": "st.global.f32 [%rd4], %f3; (line 37)",
        "line": 37,
        "source": None,
        "shared_requests": 0,
        "shared_wavefronts": 0,
        "shared_least": 0,
        "global_requests": 32,
        "sectors_read": 0,
        "sectors_written": 125,
        "sectors_least": 125,
        "shared_conflicts": 0,
        "sectors_excess": 0,
    }


def test_without_counters_json_has_none(call: Command) -> None:
    assert call.document(*LAUNCH, *SAXPY_ARGS, "--json")["counters"] is None


def test_what_is_not_counted_is_said(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tool.interpreter.run

    def more(*args: Any, **options: Any) -> Result:
        result = run(*args, **options)
        result.counters.by_opcode["cp.async.bulk.global.shared::cta.bulk_group"] = 1
        return result

    monkeypatch.setattr(tool.interpreter, "run", more)
    assert call.out(*LAUNCH, *SAXPY_ARGS, "--counters").endswith(
        "\ntraffic not counted: cp.async.bulk.global.shared::cta.bulk_group\n"
    )


# ---------------------------------------------------------------------------------------- listing


def test_without_an_entry_the_entries_are_listed(call: Command) -> None:
    assert call.out("saxpy.ptx") == (
        "PTX 7.0 for sm_80\n"
        "\n"
        "saxpy\n"
        "  block     at most 256 threads\n"
        "  shared    64 bytes\n"
        "  arg 0     n: u32, 4 bytes\n"
        "  arg 1     a: f32, 4 bytes\n"
        "  arg 2     x: u64, 8 bytes\n"
        "  arg 3     y: u64, 8 bytes\n"
        "\n"
        "variables\n"
        "  const     offset, 4 bytes\n"
    )
    assert call.out("structure.ptx") == (
        "PTX 7.0 for sm_80\n"
        "\n"
        "spread\n"
        "  block     32x2x1 threads\n"
        "  shared    0 bytes, and dynamic memory\n"
        "  arg 0     pair: b8[8], 8 bytes\n"
        "  arg 1     out: u64, 8 bytes\n"
        "\n"
        "nothing\n"
        "  block     any\n"
        "  shared    0 bytes, and dynamic memory\n"
    )


def test_a_cluster_and_a_least_amount_of_dynamic_memory_are_listed(
    call: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STRUCTURE.replace("7.0", "8.0").replace("sm_80", "sm_90")
    Path("structure.ptx").write_text(text.replace(".reqntid", ".reqnctapercluster 2, 1, 1\n.reqntid"))
    assert "\n  cluster   2x1x1 CTAs\n" in call.out("structure.ptx")
    from flash.contract.catalogue import build
    from flash.problem.config import AttentionConfig

    built = build(AttentionConfig(16, tile=16, block_q=16).kernel())
    Path("attention.ptx").write_text(built.text)
    assert tool.main(["attention.ptx"]) == 0
    least = parse(built.text).kernels[0].dynamic_shared_bytes
    assert least
    assert f"  shared    0 bytes, and dynamic memory of at least {least} bytes\n" in (capsys.readouterr().out)


def test_the_list_is_json_when_asked(call: Command) -> None:
    result = call.document("structure.ptx", "--json")
    nothing = result["entries"].pop()
    assert result == {
        "ptx_version": "7.0",
        "target": "sm_80",
        "entries": [
            {
                "entry": "spread",
                "parameters": [
                    {"name": "pair", "type": "b8", "count": 8, "bytes": 8, "align": 4},
                    {"name": "out", "type": "u64", "count": 0, "bytes": 8, "align": 8},
                ],
                "max_threads": 0,
                "block": [32, 2, 1],
                "cluster": [],
                "shared_bytes": 0,
                "dynamic_shared": True,
                "dynamic_shared_bytes": 0,
            }
        ],
        "variables": [],
    }
    assert (nothing["entry"], nothing["parameters"], nothing["block"]) == ("nothing", [], [])


# --------------------------------------------------------------------------------------- failures


def test_what_the_sanitizers_find_is_1_and_nothing_is_written(call: Command) -> None:
    Path("race.ptx").write_text(RACE.replace("[%rd0], %r0;", "[%rd0], 7;"))  # no race there
    argv = ["race.ptx", "--entry", "race", "--grid", "1", "--block", "64", "--sanitize"]
    argv += ["--arg", "out:o.npy:u32:1"]
    said = refused(argv, 1, call)
    assert said == (
        "the sanitizers report 1 problem; no file was written\n"
        "  kernel race: st.shared.u32 [word], %r0; (line 14): thread (0, 0, 0) of CTA (0, 0, 0): "
        "race: shared address 0x0 (word) is written at the same time by thread (63, 0, 0) in "
        "st.shared.u32 [word], %r0; (line 14); no barrier orders the two"
    )
    printed = call(*argv, "--json")
    assert printed.code == 1
    result = json.loads(printed.out)
    assert printed.err == f"ptxgen run: error: {said}\n"
    assert result["written"] == {}
    (report,) = result["reports"]
    assert said.endswith("  " + report["message"])
    assert (report["kind"], report["space"], report["region"]) == ("race", "shared", "word")
    assert not Path("o.npy").exists()
    assert tool.main([arg for arg in argv if arg != "--sanitize"]) == 0
    assert Path("o.npy").exists()


def test_a_kernel_that_fails_is_1_and_leaves_the_files(call: Command) -> None:
    args = ["--arg", "i32:1001", *SAXPY_ARGS[2:]]
    assert refused([*LAUNCH, *args], 1, call).startswith(
        "kernel saxpy: ld.global.f32 %f1, [%rd3]; (line 32): thread (232, 0, 0) of CTA (3, 0, 0) "
        "wants to read 4 bytes of global memory at "
    )
    said = refused([*LAUNCH, *SAXPY_ARGS[:-1], "y.npy"], 1, call)
    assert said.startswith("kernel saxpy: st.global.f32 [%rd4], %f3; (line 37): ")
    assert said.endswith(", in a read-only array")
    Path("race.ptx").write_text(
        RACE.replace(
            "\tret;",
            "\t.reg .pred %p0;\n$loop:\n\tadd.u32 %r1, %r1, 1;\n\tsetp.ne.u32 %p0, %r1, 0;\n"
            "\t@%p0 bra $loop;",
        )
    )
    argv = ["race.ptx", "--entry", "race", "--grid", "1", "--block", "1", "--arg", "zeros:u32:1"]
    assert "still running after 1000 instructions in a row" in refused(
        [*argv, "--max-instructions", "1000"], 1, call
    )


def test_a_text_that_is_not_ptx_is_1(call: Command) -> None:
    Path("bad.ptx").write_text(HEAD + ".visible .entry k()\n{\n\tfoo.u32 %r1;\n\tret;\n}\n")
    assert refused(["bad.ptx"], 1, call) == (
        "PTX text, line 6, column 2: no instruction prints the opcode 'foo.u32'\n\tfoo.u32 %r1;\n\t^"
    )
    Path("bad.ptx").write_bytes(b"\x7fELF\xff\xfe")
    assert refused(["bad.ptx"], 1, call) == ("cannot read bad.ptx: it is no text, so it is no PTX")
    assert refused(["none.ptx"], 1, call) == "cannot read none.ptx: No such file or directory"


def test_a_file_that_cannot_be_read_is_1(call: Command) -> None:
    argv = [*LAUNCH, *SAXPY_ARGS[:4], "--arg", "zeros:f32:1000", "--arg"]
    assert refused([*argv, "a.npy"], 1, call) == "cannot read a.npy: No such file or directory"
    assert refused([*argv, "inout:a.npy"], 1, call) == ("cannot read a.npy: No such file or directory")
    for data in (b"", b"not numpy", b"\x93NUMPY\x01\x00"):
        Path("a.npy").write_bytes(data)
        assert refused([*argv, "a.npy"], 1, call) == ("cannot read a.npy: it is no .npy file of numbers")
    np.save("a.npy", np.array([{}], object))
    assert refused([*argv, "a.npy"], 1, call) == ("cannot read a.npy: it is no .npy file of numbers")
    with Path("a.npy").open("wb") as file:
        np.savez(file, x=np.zeros(3))
    assert refused([*argv, "a.npy"], 1, call) == (
        "cannot read a.npy: it holds several arrays, and one is wanted"
    )


def test_a_file_that_cannot_be_written_is_1_before_anything_runs(
    call: Command, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tool.interpreter, "run", lambda *_, **__: pytest.fail("it runs"))
        argv = [*LAUNCH, *SAXPY_ARGS[:-1]]
        assert refused([*argv, "out:no/z.npy:f32:1"], 1, call) == (
            f"cannot write no/z.npy: {folder}/no is no writable directory"
        )
        Path("z.npy").mkdir()
        assert refused([*argv, "out:z.npy:f32:1"], 1, call) == ("cannot write z.npy: it is a directory")
        assert refused([*argv, "inout:y.npy", "--out-dir", "x.npy"], 1, call) == (
            "cannot make x.npy: File exists"
        )


def test_a_full_disk_is_1_and_names_the_file(
    call: Command, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")  # of a file that is open, so without its name

    before, files = Path("y.npy").read_bytes(), sorted(os.listdir(folder))
    monkeypatch.setattr(os, "fsync", full)
    assert refused([*LAUNCH, *SAXPY_ARGS], 1, call) == ("cannot write y.npy: No space left on device")
    said = call(*LAUNCH, *SAXPY_ARGS, "--json", "--counters")
    assert said.code == 1
    assert said.err == "ptxgen run: error: cannot write y.npy: No space left on device\n"
    result = json.loads(said.out)  # what was found all the same
    assert result["counters"]["warp_instructions"] > 0
    assert result["written"] == {}
    assert Path("y.npy").read_bytes() == before
    assert sorted(os.listdir(folder)) == files


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_is_written_to_and_stays_one(call: Command, folder: Path) -> None:
    device = folder / "full.npy"
    device.symlink_to("/dev/full")
    argv = [*LAUNCH, *SAXPY_ARGS[:-1]]
    assert refused([*argv, f"out:{device}:f32:1000"], 1, call) == (
        f"cannot write {device}: No space left on device"
    )
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            [*LAUNCH[:2], "saxpi", *LAUNCH[3:]],
            "the file has no kernel 'saxpi'; did you mean 'saxpy'? (it has saxpy)",
        ),
        ([*LAUNCH, *SAXPY_ARGS[:2]], "saxpy takes 4 arguments (n: u32, a: f32, x: u64, y: u64), got 1"),
        ([*LAUNCH, "--arg", "f32:1", *SAXPY_ARGS[2:]], "argument 0 (n) must have the type u32, got f32:1"),
        (
            [*LAUNCH, *SAXPY_ARGS[:2], "--arg", "i32:2", *SAXPY_ARGS[4:]],
            "argument 1 (a) must have the type f32, got i32:2",
        ),
        (
            [*LAUNCH, "--arg", "i64:1000", *SAXPY_ARGS[2:]],
            "argument 0 (n) must have the type u32, got i64:1000",
        ),
        (
            [*LAUNCH, "--arg", "hex:00", *SAXPY_ARGS[2:]],
            "saxpy: argument 0 (n) must be a structure of 4 bytes, got 1 bytes",
        ),
        (
            [*LAUNCH[:-1], "257", *SAXPY_ARGS],
            "saxpy promises at most 256 threads a block (.maxntid), got 257",
        ),
        (
            [*LAUNCH, *SAXPY_ARGS[:4], "--arg", "inout:y.npy", "--arg", "out:./y.npy:f32:9"],
            "two arguments would be written to y.npy",
        ),
        (
            [*LAUNCH, *SAXPY_ARGS, "--symbol", "ofset=f32:1"],
            "the module has no variable 'ofset' in global or constant memory; did you mean 'offset'?",
        ),
        (
            [*LAUNCH, *SAXPY_ARGS[:4], "--arg", "zeros:f64:99999999999999999999"],
            "there is no memory here for zeros:f64:99999999999999999999; give a smaller shape",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_2(argv: list[str], message: str, call: Command) -> None:
    assert refused(argv, 2, call) == message


FORMS = (
    "i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64, bf16, hex, inout, out, zeros, random, "
    "map, texture, surface"
)
TYPES = (
    "i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64, bf16, int8, int16, int32, int64, uint8, "
    "uint16, uint32, uint64, float16, float32, float64, bfloat16, bool, e4m3, e5m2, "
    "float8_e4m3fn, float8_e5m2"
)


TMA = Path(__file__).parents[1] / "ptx" / "nvcc" / "tma.sm_90a.ptx"
COPY_BOX = [
    *(str(TMA), "--entry", "tma_copy", "--grid", "1", "--block", "64", "--arg", "map:32x8:none:x.npy"),
    *("--arg", "{}", "--arg", "u32:4", "--arg", "u32:2", "--arg", "u32:8", "--arg", "u32:1"),
]


def test_a_tensor_map_is_of_an_array_which_may_be_written(call: Command) -> None:
    x = np.random.default_rng(0).random((20, 40), np.float32)
    np.save("x.npy", x)
    argv = [word.format("map:32x8:none:out:z.npy:f32:12x48") for word in COPY_BOX]
    assert call(*argv) == (0, "", "")
    want = np.zeros((12, 48), np.float32)
    want[1:9, 8:40] = 2 * x[2:10, 4:36]
    assert (np.load("z.npy") == want).all()
    argv = [word.format("map:32x8:64B:zeros:f32:12x48") for word in COPY_BOX]
    assert refused(argv, 2, call) == (
        "map:32x8:64B:zeros:f32:12x48: a row of a box with the 64B swizzle has at most 64 bytes, "
        "got 128; move the rest with another copy"
    )


TEXTURES = TMA.with_name("textures.sm_80.ptx")


def test_textures_and_surfaces_are_of_arrays(call: Command) -> None:
    x = np.random.default_rng(0).random((3, 8), np.float32)
    np.save("x.npy", x)
    argv = [str(TEXTURES), "--grid", "3", "--block", "8", "--entry"]
    convolved = [*argv, "texture_convolved", "--arg", "{}", "--arg", "out:y.npy:f32:3x8"]
    convolved += ["--arg", "i32:8"]
    assert tool.main([word.format("texture:2d,linear,border:x.npy") for word in convolved]) == 0
    padded = np.pad(x.astype(np.float64), ((0, 0), (2, 2)))
    want = sum(w / 16 * padded[:, k : k + 8] for k, w in enumerate((1, 4, 6, 4, 1)))
    np.testing.assert_allclose(np.load("y.npy"), want, rtol=0, atol=1e-6)
    written = [*argv, "surface_written", "--arg", "x.npy", "--arg"]
    written += ["surface:2d:out:z.npy:f32:4x9", "--arg", "i32:8"]
    assert call(*written) == (0, "", "")
    assert (np.load("z.npy") == np.pad(x, ((0, 1), (0, 1)))).all()
    argv = [word.format("texture:2d,fractions:x.npy") for word in convolved]
    assert refused(argv, 2, call) == (
        "texture:2d,fractions:x.npy: Texture: read='normalized' is for integers of 8 or 16 bits, got float32"
    )
    read_only = [*argv[:6], "surface_written", "--arg", "x.npy", "--arg", "surface:2d:x.npy"]
    assert refused([*read_only, "--arg", "i32:8"], 2, call) == (
        "surface:2d:x.npy: Surface: wanted a contiguous array that may be written"
    )


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("7", f"must be FORM:VALUE with a form of {FORMS}, or a .npy file, got '7'"),
        (
            "int32:7",
            f"must be FORM:VALUE with a form of {FORMS}, or a .npy file, got 'int32:7'; did you mean 'i32'?",
        ),
        ("i32:x", "must be an integer, got 'i32:x'"),
        ("i32:1.5", "must be an integer, got 'i32:1.5'"),
        ("u8:256", "must be from 0 to 255, got 'u8:256'"),
        ("i32:0x80000000", "must be from -2147483648 to 2147483647, got 'i32:0x80000000'"),
        ("f32:x", "must be a number, got 'f32:x'"),
        ("hex:123", "must be bytes of two hexadecimal digits each, got 'hex:123'"),
        ("inout:y.txt", "must name a .npy file, got 'inout:y.txt'"),
        ("out:y.txt:f32:4", "must name a .npy file, got 'out:y.txt:f32:4'"),
        ("out:y.npy:f32", "must be out:FILE.npy:TYPE:SHAPE, got 'out:y.npy:f32'"),
        ("zeros:f32", "must be zeros:TYPE:SHAPE, got 'zeros:f32'"),
        ("zeros:f32:4x", "must have a shape such as 1024 or 1024x64, got '4x' in 'zeros:f32:4x'"),
        ("zeros:f32:0", "must have a shape such as 1024 or 1024x64, got '0' in 'zeros:f32:0'"),
        (
            "zeros:flaot32:4",
            f"unknown type 'flaot32' in 'zeros:flaot32:4'; did you mean 'float32'?; the types are {TYPES}",
        ),
        ("random:f32", "must be random:TYPE:SHAPE or random:TYPE:SHAPE:SEED, got 'random:f32'"),
        ("random:f32:4:x", "must end in a seed from 0, got 'random:f32:4:x'"),
        *(
            (wrong, f"must be map:BOX:SWIZZLE:ARRAY, such as map:64x8:128B:zeros:f16:512x64, got {wrong!r}")
            for wrong in ("map:64x8", "map:64x8:128B:i32:4", "map:64x8:128B:map:4:none:x.npy")
        ),
        ("map:8x:none:x.npy", "must have a shape such as 1024 or 1024x64, got '8x' in 'map:8x:none:x.npy'"),
        ("map:8:16B:x.npy", "must have a swizzle of none, 32B, 64B, 128B, got '16B' in 'map:8:16B:x.npy'"),
        (
            "texture:2d,liner:x.npy",
            "must be texture:KIND,WORDS:ARRAY with words of 1d, 2d, 3d, a1d, a2d, cube, acube, "
            "point, linear, clamp, border, wrap, mirror, normalized, fractions, one for each "
            "property, got 'liner' in 'texture:2d,liner:x.npy'; did you mean 'linear'?",
        ),
        ("texture:2d:i32:4", "must end in an array such as x.npy or zeros:f32:64x64, got 'texture:2d:i32:4'"),
        (
            "surface:cube:x.npy",
            "must be surface:KIND:ARRAY with a kind of 1d, 2d, 3d, a1d, a2d, got 'surface:cube:x.npy'",
        ),
    ],
)
def test_a_wrong_argument_is_2(argument: str, message: str, call: Command) -> None:
    assert call.usage(*LAUNCH, "--arg", argument) == f"argument --arg: {message}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: FILE"),
        (["saxpy.ptx", "--entry", "saxpy", "--grid", "1"], "--entry needs --grid and --block"),
        (["saxpy.ptx", "--grid", "1"], "--grid needs --entry"),
        (["saxpy.ptx", "--dynamic-smem", "8"], "--dynamic-smem needs --entry"),
        (["saxpy.ptx", "--counters"], "--counters needs --entry"),
        (
            [*LAUNCH[:-1], "0"],
            "argument --block: must be one to three numbers from 1, such as 4, 4,2 or 4x2x1, got '0'",
        ),
        (
            [*LAUNCH[:-1], "1,2,3,4"],
            "argument --block: must be one to three numbers from 1, such as 4, 4,2 or 4x2x1, got '1,2,3,4'",
        ),
        (
            [*LAUNCH, "--dynamic-smem", "-1"],
            "argument --dynamic-smem: must be a whole number of at least 0, got '-1'",
        ),
        ([*LAUNCH, "--symbol", "a"], "argument --symbol: must be NAME=VALUE, got 'a'"),
        (
            [*LAUNCH, "--symbol", "a=inout:x.npy"],
            "argument --symbol: a variable is not written to a file, got 'a=inout:x.npy'",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message


# --------------------------------------------------------------------------------------- CUDA C++


CUDA = """// sums
template <typename T> __global__ void sum(const T *x, T *y) {
  __shared__ T part[TILE];
  part[threadIdx.x] = x[threadIdx.x];
  for (int s = TILE / 2; s; s /= 2) {
    BARRIER;
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
  }
  if (!threadIdx.x) *y = part[0];
}
__global__ void saxpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""
SUM = words(
"sum.cu --instance sum<float> --define TILE=64 --entry sum<float> --grid 1 --block 64 "
"--arg x.npy --arg out:z.npy:f32:1"
)  # fmt: skip


@pytest.fixture
def source(nvrtc: None) -> Path:
    assert nvrtc is None
    path = Path("sum.cu")
    path.write_text(CUDA)
    return path


def test_a_cuda_file_is_compiled_and_run(source: Path) -> None:
    assert tool.main([*SUM, "--define", "BARRIER=__syncthreads()", "--target", "sm_90a"]) == 0
    assert np.load("z.npy").tolist() == [64 * 63 / 2]
    assert tool.main([str(source.resolve()), *LAUNCH[1:], *SAXPY_ARGS, "--define", "TILE", "--sanitize"]) == 0
    assert np.load("y.npy")[:3].tolist() == [1.0, 3.0, 5.0]
    Path("inner").mkdir()
    (Path("inner") / "other.h").write_text('extern "C" __global__ void other() {}')
    source.write_text("#include <other.h>\nstatic_assert(YES == 1);\n")
    assert tool.main([str(source), "--include", "inner", "--define", "YES"]) == 0


def test_the_entries_of_a_cuda_file_have_its_names(source: Path, call: Command) -> None:
    assert call.out(str(source), "--nvrtc=-use_fast_math").splitlines()[2:9] == [
        *("saxpy", "  block     any", "  shared    0 bytes", "  arg 0     n: u32, 4 bytes"),
        *("  arg 1     a: f32, 4 bytes", "  arg 2     x: u64, 8 bytes", "  arg 3     y: u64, 8 bytes"),
    ]


def test_a_finding_in_a_cuda_file_is_at_its_line(
    source: Path, call: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = call(*SUM, "--define", "BARRIER=", "--sanitize", "--json")
    assert shown.code == 1
    (report,) = {report["source"]["line"]: report for report in json.loads(shown.out)["reports"]}.values()
    assert report["source"]["text"] == "if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];"
    assert report["source"]["file"] == str(source.resolve())
    assert "(sum.cu:7: if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];)" in shown.err
    assert not Path("z.npy").exists()
    short = ["--arg", "x.npy", "--arg", "zeros:f32:9"]
    assert tool.main([str(source), *LAUNCH[1:], "--define", "TILE", *SAXPY_ARGS[:4], *short]) == 1
    assert "(sum.cu:13: if (i < n) y[i] = a * x[i] + y[i];): thread (9, 0, 0)" in capsys.readouterr().err


def test_a_cuda_file_with_a_mistake_is_1(source: Path, call: Command) -> None:
    source.write_text("__global__ void k() { q(); }\n")
    message = refused([str(source)], 1, call)
    assert message.startswith("sum.cu cannot be compiled:\nsum.cu(1): error: identifier")


def test_an_array_of_another_type_than_the_pointer_is_2(source: Path, call: Command) -> None:
    argv = [str(source), *LAUNCH[1:], *SAXPY_ARGS[:4], "--arg", "zeros:f64:1000", "--arg", "zeros:f32:1000"]
    wanted = "saxpy: argument 2 (x) must be float32 (float*), got float64; convert it"
    assert refused(argv, 2, call) == wanted


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--target=sm_90", "--target is for CUDA C++ (.cu), and saxpy.ptx is PTX; leave it out"),
        ("--define=A", "--define is for CUDA C++ (.cu), and saxpy.ptx is PTX; leave it out"),
    ],
)
def test_options_of_a_compilation_are_not_for_ptx(option: str, message: str, call: Command) -> None:
    assert refused(["saxpy.ptx", option], 2, call) == message


def test_a_line_of_the_source_of_ptx_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Path("race.cu").write_text("\n\n  *word = i;  // all\n")
    located = RACE.replace("\tst.shared", "\t.loc 1 3 1\n\tst.shared") + '.file 1 "race.cu"\n'
    Path("race.ptx").write_text(located)
    argv = words("race.ptx --entry race --grid 1 --block 64 --arg zeros:u32:1 --sanitize")
    assert tool.main(argv) == 1
    assert "(race.cu:3: *word = i;  // all)" in capsys.readouterr().err


# --------------------------------------------------------------------------- help and the terminal


def test_the_examples_of_the_help_work(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = call.help()
    for code in range(3):
        assert f"\n  {code}  " in shown
    for line in shown.splitlines():  # an example of two lines says so at the end of the first
        assert "       --" not in line.lstrip(), line
    text = shown.replace("\\\n", "").split("examples:\n")[1].split("\n\n")[0]
    examples = [line.split("   list ")[0].split(" < ")[0].split()[2:] for line in text.splitlines()]
    assert len(examples) == 5
    Path("saxpy.ptx").rename("file.ptx")
    Path("textures.ptx").write_text(TEXTURES.read_text())
    plain = RACE.replace("race", "k").replace("\tst.shared.u32 [word], %r0;\n", "")
    Path("k.ptx").write_text(plain)
    with Path("k.ptx").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        for argv in examples:
            assert tool.main(argv) == 0


def test_a_terminal_gets_a_bar_that_goes_away(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    printed = call(*LAUNCH, *SAXPY_ARGS)
    assert (printed.code, printed.out) == (0, "")
    assert "CTAs" not in printed.err.splitlines()


def test_a_terminal_without_rich_gets_a_line_once_in_a_while(
    call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = iter(range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    argv = ["structure.ptx", "--entry", "nothing", "--grid", "9000", "--block", "64"]
    assert call(*argv) == (
        0,
        "",
        "ptxgen run: nothing: 4096 of 9000 CTAs\nptxgen run: nothing: 8192 of 9000 CTAs\n",
    )


@pytest.mark.slow
def test_a_reader_may_have_seen_enough() -> None:
    command = f"{sys.executable} {SCRIPT} many.ptx | head -1; exit ${{PIPESTATUS[0]}}"
    Path("many.ptx").write_text(
        # Names that fill more than a pipe holds.
        HEAD + "".join(f".visible .entry {'k' * 300}{n}()\n{{\n\tret;\n}}\n" for n in range(400))
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "PTX 7.0 for sm_80\n", "")


def test_sanitizers_are_chosen_by_name(call: Command, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["race.ptx", "--entry", "race", "--grid", "1", "--block", "64", "--arg"]
    launch.append("zeros:u32:64")
    assert tool.main([*launch, "--sanitize", "init,sync"]) == 0
    assert tool.main([*launch, "--sanitize", "race"]) == 1
    capsys.readouterr()
    assert call.error(*launch, "--sanitize", "races") == (
        2,
        "sanitize must be True, False or names among bounds, init, race, sync, "
        "proxy, mbarrier_init, determinism, tensor_fence, tensor_order, all, got 'races'; did you mean "
        "'race'?",
    )
