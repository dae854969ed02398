"""What a report says about kernels that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report.kernels import BARRIER, CONFLICTS, HEAD, RACE, report_on, softmax_report, softmax_subject

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.errors import LaunchError, ParseError
from ptxgen.report import STEPS, Launch, Subject, collect, subject_of_function
from ptxgen.report.arguments import copies, words_of
from ptxgen.report.data import ERROR, PtxLine, SourceLine
from ptxgen.report.machine_code import with_lines
from ptxgen.tensormap import TensorMap


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def sources() -> dict[int, SourceLine]:
    return {line.id: line for file in softmax_report().sources for line in file.lines}


def lines(part: str) -> list[PtxLine]:
    return [line for line in softmax_report().ptx if part in line.text]


# ------------------------------------------------------------------------------------------- origins


def test_each_instruction_has_the_python_line_that_emitted_it() -> None:
    shown = sources()
    emitted = [line for line in softmax_report().ptx if line.kind == "instruction"]
    assert len(emitted) > 50
    assert all(line.source for line in emitted if line.text.strip() != "ret;")
    assert {shown[line.source].text.strip() for line in lines("ex2.approx")} == {
        "total.set(total + k.exp(x[i]))",
        "y[i] = k.exp(x[i]) * weight",
    }
    assert {shown[line.source].text.strip() for line in lines("bar.sync")} == {
        "weight = 1 / k.block.sum(total)"
    }


def test_parameters_belong_to_the_users_function() -> None:
    shown = sources()
    assert {shown[line.source].text.strip() for line in lines("ld.param")} == {"@px.kernel(threads=64)"}
    assert [file.name for file in softmax_report().sources] == ["kernels.py"]


def test_source_lines_count_their_instructions_and_what_ran() -> None:
    result = next(line for line in sources().values() if line.text and "total.set" in line.text)
    here = [line for line in softmax_report().ptx if line.source == result.id]
    assert result.instructions == len([line for line in here if line.kind == "instruction"]) > 0
    assert result.warps == sum(line.warps or 0 for line in here) > 0


LOC = CONFLICTS.replace("\tst.shared.u32", "\t.loc 1 7 3\n\tst.shared.u32").replace(
    "\tbar.sync", "\t.loc 1 9 0\n\tbar.sync"
)
LOC += '.file 1 "/somewhere/else/kernel.cu"\n'


def test_loc_directives_give_the_source_lines() -> None:
    source = [f"// source line {n}" for n in range(1, 13)]
    result = collect(Subject(LOC, sources={"kernel.cu": source}, assemble=False))
    shown = {line.id: line for file in result.sources for line in file.lines}
    at = {line.number: line.source for line in result.ptx}
    assert [file.name for file in result.sources] == ["kernel.cu"]
    assert shown[at[line_of(LOC, "st.shared")]].text == "// source line 7"
    assert shown[at[line_of(LOC, "bar.sync")]].number == 9
    assert at[line_of(LOC, "ld.param")] == 0


def test_a_file_that_a_text_names_is_not_read(tmp_path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret\n" * 20)
    result = collect(Subject(LOC.replace("/somewhere/else/kernel.cu", str(secret)), assemble=False))
    assert [line.text for file in result.sources for line in file.lines] == [None, None]


# ------------------------------------------------------------------------------------------ registers


def test_live_registers_are_counted_at_each_line() -> None:
    result = report_on(CONFLICTS)
    live = {line.text.strip(): line.registers for line in result.ptx if line.registers is not None}
    assert live["ld.param.u64 %rd0, [out];"] == 2
    assert live["mov.u32 %r0, %tid.x;"] == 3
    assert live["mad.lo.u32 %r2, %r0, 128, %r1;"] == 5  # %rd0 is two, then %r0, %r1, %r2
    assert live["st.global.u32 [%rd2], %r4;"] == 3
    assert live["ret;"] == 0
    assert max(live.values()) == result.live_registers


# ------------------------------------------------------------------------------------- shared memory


def test_conflicts_of_banks_are_counted() -> None:
    store, load = report_on(CONFLICTS).shared.accesses
    assert (store.opcode, load.opcode) == ("st.shared.u32", "ld.shared.u32")
    assert (store.requests, store.wavefronts, store.least, store.degree) == (1, 32, 1, 32)
    assert store.banks == (32, *[0] * 31)
    assert (store.first, store.last, store.region) == (0, 31 * 128 + 3, "words")
    assert store.line == line_of(CONFLICTS, "st.shared")


def test_accesses_without_conflicts_have_degree_one() -> None:
    store, _ = report_on(CONFLICTS.replace(", 128, %r1", ", 4, %r1")).shared.accesses
    assert (store.wavefronts, store.degree, store.banks) == (1, 1, (1,) * 32)
    assert store.last == 127


def test_accesses_of_one_source_line_are_added_up() -> None:
    loads = [a for a in softmax_report().shared.accesses if a.opcode.startswith("ld")]
    assert sum(a.requests for a in loads) == 3 * 2  # CTAs, and warps of each
    assert {sources()[a.source].text.strip() for a in loads} == {"weight = 1 / k.block.sum(total)"}


def test_the_costliest_accesses_come_first() -> None:
    result = report_on(CONFLICTS.replace("mad.lo.u32 %r2, %r0, 128", "mad.lo.u32 %r2, %r0, 4")).shared
    assert [access.opcode for access in result.accesses] == ["ld.shared.u32", "st.shared.u32"]


def test_the_banks_shown_are_those_of_the_costliest_access() -> None:
    both = CONFLICTS.replace(
        "\tst.shared.u32 [%r2], %r0;",
        "\t.loc 1 7 0\n\tst.shared.u32 [%r2], %r0;\n\tst.shared.u32 [%r1], %r0;",
    )
    store = next(a for a in report_on(both + '.file 1 "k.cu"\n').shared.accesses if a.opcode.startswith("st"))
    assert (store.lines, store.requests, store.wavefronts, store.least) == (2, 2, 33, 2)
    assert store.banks == (32, *[0] * 31)


# ------------------------------------------------------------------------------------------ findings


def test_a_race_is_found_at_its_line() -> None:
    result = report_on(RACE)
    races = [f for f in result.findings if f.kind == "sanitizer, race"]
    assert {f.line for f in races} <= {line_of(RACE, "ld.shared"), line_of(RACE, "st.shared")}
    assert races
    assert result.wrong
    assert not result.run.clean


def test_a_module_with_problems_is_reported_and_not_run() -> None:
    wrong = CONFLICTS.replace("mov.u32 %r0, %tid.x;", "mov.u32 %r0, %rd0;")
    result = report_on(wrong)
    assert result.run is None
    assert result.findings[0].severity == ERROR
    assert result.findings[0].line == line_of(wrong, "mov.u32 %r0")
    assert dict(result.missing)["run"] == "the verifier refuses the module"


def test_a_run_that_fails_is_a_finding() -> None:
    result = collect(Subject(CONFLICTS, launch=Launch((1,), [np.zeros(8, np.uint8)]), assemble=False))
    assert [f.kind for f in result.findings if f.severity == ERROR] == ["run"]
    assert result.findings[0].line == line_of(CONFLICTS, "st.global")
    assert dict(result.missing)["pipeline"].startswith("the run failed: st.global.u32")


# CTA 0 waits until CTA 1 has stored.
APART = (
    HEAD
    + """\
.visible .entry apart(
	.param .u64 flag
)
.maxntid 32, 1, 1
{
	.reg .pred %p<1>;
	.reg .b32 %r<3>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd0, [flag];
	cvta.to.global.u64 %rd1, %rd0;
	mov.u32 %r0, %ctaid.x;
	setp.eq.u32 %p0, %r0, 0;
	@%p0 bra $wait;
	mov.u32 %r1, 1;
	st.release.gpu.global.u32 [%rd1], %r1;
	ret;
$wait:
	ld.acquire.gpu.global.u32 %r2, [%rd1];
	setp.eq.u32 %p0, %r2, 0;
	@%p0 bra $wait;
	ret;
}
"""
)


def test_a_cta_that_cannot_end_alone_leaves_out_the_timeline() -> None:
    result = collect(Subject(APART, launch=Launch((2,), [np.zeros(1, np.uint32)]), assemble=False))
    assert result.pipeline is None
    assert result.run is not None
    assert dict(result.missing)["pipeline"].startswith("the recording of the first CTA alone failed: ")
    assert not result.wrong
    assert next(line.warps for line in result.ptx if "st.release" in line.text) == 1


def test_proofs_are_for_all_launches_of_these_shapes() -> None:
    proved = {p.kind: p for p in softmax_report().proved}
    assert all(p.proved == p.total > 0 for p in proved.values())
    assert proved["global memory"].holds_for == "every launch with X[grid, columns], Y[grid, columns]"


def test_proofs_for_these_sizes_are_taken_where_others_would_need_more() -> None:
    @px.kernel(threads=64)
    def unguarded(k, X: Pointer[f32], n: u32):
        i = k.thread_id()
        X[i] = X[i] + n.as_(f32)

    subject = subject_of_function(unguarded, (1,), (np.zeros(64, np.float32), 64))
    result = collect(replace(subject, assemble=False))
    proved = {p.kind: p for p in result.proved}["global memory"]
    assert (proved.proved, proved.total) == (2, 2)
    assert proved.holds_for == "launches with arrays and numbers of these sizes"
    assert not result.wrong


def test_without_a_contract_global_memory_is_not_proved() -> None:
    proved = {p.kind: p for p in report_on(CONFLICTS).proved}
    assert proved["shared memory"].proved == 2
    assert proved["global memory"].why_not == "no contract says which arrays the kernel may access"


# -------------------------------------------------------------------------------------- mix and limits


def test_the_mix_adds_up_to_what_ran() -> None:
    run = softmax_report().run
    assert sum(count for _, count in run.mix) == run.warp_instructions
    assert sum(line.warps or 0 for line in softmax_report().ptx) == run.warp_instructions


def test_the_issue_model_divides_work_by_rates() -> None:
    result = report_on(CONFLICTS).limits
    cycles = {bound.unit: bound.cycles for bound in result.bounds}
    assert cycles["issue"] == 13 / 4  # instructions, of four schedulers
    assert cycles["shared memory"] == 64
    assert cycles["integers"] == 8 / 2  # warps of 32 on 64 lanes; the rest is memory, a barrier, ret
    assert cycles["global memory"] == pytest.approx(128 / (1555e9 / (108 * 1410e6)))
    assert result.bounds[0].unit == "shared memory"


def test_work_is_that_of_one_cta() -> None:
    run = softmax_report().run
    bounds = {bound.unit: bound.amount for bound in softmax_report().limits.bounds}
    assert bounds["issue"] == run.warp_instructions / 3
    assert bounds["shared memory"] == dict(run.counters)["shared wavefronts"] / 3


def test_a_roofline_needs_operations_and_bytes() -> None:
    assert report_on(CONFLICTS).limits.roofline is None
    roofline = softmax_report().limits.roofline
    assert roofline.nbytes == 3 * 128 * 4  # X twice, Y once
    assert roofline.peak == 128


def test_occupancy_names_its_limit() -> None:
    result = softmax_report().limits
    assert (result.ctas_per_sm, result.warps_per_sm, result.limited_by) == (32, 64, "its warps or CTAs")


# -------------------------------------------------------------------------------------------- inputs


def test_the_arguments_keep_their_values() -> None:
    out = np.zeros(128, np.uint8)
    collect(Subject(CONFLICTS, launch=Launch((1,), [out]), assemble=False))
    assert not out.any()


def test_copies_keep_strides_and_shared_memory() -> None:
    whole = np.arange(32, dtype=np.float32).reshape(4, 8)
    left, right = whole[::-1, :3], whole[:, 3:]
    frozen = np.ones(3)
    frozen.setflags(write=False)
    built = copies([left, right, 5, TensorMap(whole, box=(4, 2)), frozen])
    assert [built[n].strides for n in (0, 1)] == [left.strides, right.strides]
    assert built[1].ctypes.data - built[0].ctypes.data == right.ctypes.data - left.ctypes.data
    built[0][...] = -1
    assert whole.min() == 0
    assert built[3].base.min() == -1
    assert not built[4].flags.writeable


def test_arguments_are_named_without_addresses() -> None:
    array = np.zeros((2, 3), np.float16)
    arguments = [array, 7, b"abc", TensorMap(np.zeros((2, 12), np.float32), box=(4, 2))]
    assert list(map(words_of, arguments)) == [
        "float16 [2, 3]",
        "7",
        "3 bytes",
        "tensor map of float32 [2, 12]",
    ]


@pytest.mark.parametrize(
    ("subject", "error", "message"),
    [
        (Subject("nonsense"), ParseError, "line 1"),
        (
            Subject(CONFLICTS, "conflict"),
            LaunchError,
            "report: the module has the kernels conflicts; there is no 'conflict'; did you mean 'conflicts'?",
        ),
        (Subject(HEAD), LaunchError, "report: the module has the kernels (none); say which with entry="),
        (
            Subject(CONFLICTS.replace(".maxntid 32, 1, 1\n", "")),
            LaunchError,
            "report: conflicts does not say how many threads a block has; give block=",
        ),
    ],
)
def test_wrong_subjects_are_refused(subject: Subject, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        collect(subject)
    assert message in str(raised.value)


def test_progress_is_told_each_step() -> None:
    said: list[str] = []
    collect(replace(softmax_subject(), assemble=False), said.append)
    assert len(said) == STEPS
    assert said[0] == "reading"


# -------------------------------------------------------------------------------------- machine code


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
def test_machine_code_is_mapped_to_lines_of_ptx() -> None:
    result = softmax_report()
    assert result.code is not None
    text = {line.number: line.text for line in result.ptx}
    rows = [row for row in result.code.rows if "MUFU.EX2" in row.text]
    assert rows
    assert all("ex2.approx" in text[row.line] for row in rows)
    stores = [row for row in result.code.rows if row.text.partition(" ")[0].startswith("STG")]
    assert stores
    assert all("st.global" in text[row.line] for row in stores)
    assert any(row.loop for row in rows)


@pytest.mark.ptxas
def test_a_line_table_changes_no_instruction(assembler, disassembler) -> None:
    text = "\n".join(line.text for line in softmax_report().ptx) + "\n"
    numbers = [line.number for line in softmax_report().ptx if line.kind == "instruction"]
    plain = assembler.assemble(text, "sm_80")
    lined = assembler.assemble(with_lines(text, numbers), "sm_80", line_info=True)
    assert plain.kernels == lined.kernels
    assert disassembler.instructions(plain.cubin) == disassembler.instructions(lined.cubin)
    assert {row.source for row in disassembler.listing(lined.cubin, "softmax")} <= {0, *numbers}


def test_slots_of_waiting_are_in_the_timeline() -> None:
    late = CONFLICTS.replace(".maxntid 32", ".maxntid 64").replace("words[4096]", "words[8192]")
    more = "\tsetp.lt.u32 %p0, %r0, 32;\n\t@%p0 bra $here;\n" + 5 * "\tadd.u32 %r5, %r0, 1;\n" + "$here:\n"
    late = late.replace("\tbar.sync 0;", f"{more}\tbar.sync 0;")
    lanes = report_on(late.replace(".reg .b32", ".reg .pred %p<1>;\n\t.reg .b32")).pipeline.lanes
    first, second = (dict.fromkeys(value for value, _, _ in lane.runs) for lane in lanes)
    assert (-1 in first, -1 in second) == (True, False)
    assert [(lane.warps, lane.waits[0][1]) for lane in lanes] == [((0,), 5), ((1,), 0)]


def test_the_line_of_the_barrier_is_marked_in_the_timeline() -> None:
    lane = report_on(CONFLICTS).pipeline.lanes[0]
    assert [(start, slots, line, kind) for start, slots, line, kind in lane.waits] == [
        (6, 0, BARRIER, "barrier")
    ]
