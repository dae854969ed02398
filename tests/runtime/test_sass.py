from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from messages import message as message_of

from ptxgen.errors import BackendError
from ptxgen.runtime import sass
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.sass import (
    Control,
    Disassembler,
    SassInstr,
    find_disassembler,
    loops,
    main_loop,
    mix,
    parse_sass,
)

# As nvdisasm -c prints: two loops, of which the first does more for each turn (a mask), and in each
# a step that is rare and copies that are not started in the last turn.
LISTING = """\
\t.target\tsm_80
//--------------------- .text.k --------------------------
k:
.text.k:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0030*/                   LDGSTS.E.BYPASS.128 [R3], [R10.64] ;
        /*0034*/                   FSEL R8, R8, -INF , P0 ;
        /*0035*/                   FSEL R9, R9, -INF , P0 ;
        /*0036*/                   FSEL R10, R10, -INF , P0 ;
        /*0037*/                   FSEL R11, R11, -INF , P0 ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0050*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0060*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/                   FMUL R8, R8, R0 ;
        /*0090*/                   FMUL R9, R9, R0 ;
.L_x_3:
        /*00a0*/               @P2 BRA `(.L_x_4) ;
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R3], [R10.64] ;
.L_x_4:
        /*00c0*/                   BRA.DIV ~URZ, `(.L_x_6) ;
.L_x_5:
        /*00d0*/               @P1 BRA `(.L_x_2) ;
        /*00e0*/                   EXIT ;
.L_x_6:
        /*00f0*/                   IMAD.MOV.U32 R2, RZ, RZ, 0x1 ;
        /*0100*/                   BRA `(.L_x_5) ;
.L_x_7:
        /*0110*/                   BRA `(.L_x_7) ;
        /*0120*/                   NOP ;
"""


def test_instructions_and_jumps_are_read() -> None:
    result = parse_sass(LISTING)
    assert len(result) == 23
    assert result[0] == SassInstr("MOV", operands="R1, c[0x0][0x28]")
    assert result[8] == SassInstr("BRA", 1, True, "`(.L_x_1)")
    assert result[16] == SassInstr("BRA.DIV", 19, True, "~URZ, `(.L_x_6)")
    assert result[18] == SassInstr("EXIT", None, False)
    assert result[20] == SassInstr("BRA", 17, False, "`(.L_x_5)")


def test_the_words_of_an_instruction_say_when_the_next_may_be_issued() -> None:
    printed = """
        /*0040*/                   LDSM.16.M88.4 R4, [R8+0x10] ;   /* 0x000010000804783b */
                                                                   /* 0x002e280000000200 */
        /*0050*/                   FADD R0, R1, R2 ;               /* 0x0000000201007221 */
                                                                   /* 0x044fca0000000000 */
"""
    read, add = parse_sass(printed)
    assert read == SassInstr("LDSM.16.M88.4", operands="R4, [R8+0x10]", control=Control(4, (1,), 0, None))
    assert add.control == Control(5, (2,), None, None)


def test_the_main_loop_has_no_mask_and_takes_copies_but_not_the_rare_step() -> None:
    loop = main_loop(parse_sass(LISTING))
    assert loop is not None
    assert [instr.name for instr in loop.path] == ["LDSM", "HMMA", "BRA", "BRA", "LDGSTS", "BRA", "BRA"]
    assert loop.size == 11  # with the step, and what lies behind the exit
    assert (loop.products, loop.macs) == (1, 16 * 8 * 16)


def test_beside_products_a_rare_step_with_multiply_adds_is_left_out_too() -> None:
    loop = main_loop(parse_sass(LISTING.replace("FMUL R8, R8, R0 ;", "FFMA R8, R8, R0, R2 ;")))
    assert loop is not None
    assert [instr.name for instr in loop.path] == ["LDSM", "HMMA", "BRA", "BRA", "LDGSTS", "BRA", "BRA"]


def test_without_products_the_way_with_multiply_adds_counts() -> None:
    text = LISTING.replace("FMUL R8, R8, R0 ;", "FFMA R8, R8, R0, R2 ;").replace("HMMA.16816.F32", "FADD")
    second = list(loops(parse_sass(text)))[1]
    assert "FFMA" in [instr.name for instr in second.path]


@pytest.mark.parametrize(
    "step",
    [
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UPT",
        "UTCOMMA.4X gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], tmem[UR12], UPT",
        "UTMALDG.2D [UR4], [UR10]",
        "SYNCS.ARRIVE.TRANS64 RZ, [UR4], R3",
        "SYNCS.ARRIVE.TRANS64.RED.A0TR RZ, [UR4], R3",
    ],
)
def test_the_way_of_the_thread_that_copies_or_multiplies_counts(step: str) -> None:
    listing = f"""\
.L_x_1:
        /*0000*/               @!P0 BRA `(.L_x_2) ;
        /*0010*/                   {step} ;
.L_x_2:
        /*0020*/               @P1 BRA `(.L_x_1) ;
        /*0030*/                   EXIT ;
"""
    (loop,) = loops(parse_sass(listing))
    assert step.startswith(loop.path[1].opcode)
    assert loop.body == loop.path
    only_arrives = listing.replace(step, "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4], RZ")
    (loop,) = loops(parse_sass(only_arrives))
    assert [instr.name for instr in loop.path] == ["BRA", "BRA"]
    assert [instr.name for instr in loop.body] == ["BRA", "SYNCS", "BRA"]


def test_every_loop_is_found() -> None:
    assert [len(loop.path) for loop in loops(parse_sass(LISTING))] == [8, 7, 1]


def test_a_branch_back_that_is_too_far_for_bra_closes_a_loop() -> None:
    listing = """\
.L_x_1:
        /*0000*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0010*/              @!P0 CALL.REL.NOINC `(.L_x_3) ;
        /*0020*/               @P1 EXIT ;
        /*0030*/                   CALL.REL.NOINC `(.L_x_1) ;
.L_x_3:
        /*0040*/                   MUFU.RCP R4, R4 ;
        /*0050*/                   RET.REL.NODEC R20 `(k) ;
"""
    instrs = parse_sass(listing)
    assert [instr.jumps_to for instr in instrs] == [None, None, None, 0, None, None]
    assert not instrs[3].falls_through
    result = main_loop(instrs)
    assert result is not None
    assert [instr.name for instr in result.path] == ["HMMA", "CALL", "EXIT", "CALL"]


def test_a_loop_without_products_is_not_the_main_loop() -> None:
    assert main_loop(parse_sass(".L_x_7:\n        /*0110*/   BRA `(.L_x_7) ;\n")) is None
    assert main_loop([]) is None


@pytest.mark.parametrize(
    ("opcode", "macs"),
    [("HMMA.16816.F32.BF16", 2048), ("HMMA.1688.F32.TF32", 1024), ("HMMA.1684", 512), ("FFMA", 0)],
)
def test_products_of_a_matrix_instruction(opcode: str, macs: int) -> None:
    assert SassInstr(opcode).macs == macs


def test_the_mix_names_what_there_is() -> None:
    assert mix(parse_sass(LISTING)[:9]) == {
        "products": 1,
        "shared": 1,
        "copies": 1,
        "f32": 4,
        "control": 1,
        "integers, moves": 1,
    }


def test_the_mix_knows_what_uses_tensor_memory() -> None:
    names = (
        *("UTCHMMA.2CTA", "UTCQMMA", "UTCOMMA.4X", "LDTM.x32", "STTM.x16", "UTCCP.T.S.4x32dp128bit"),
        "UTCBAR",
    )
    assert mix([SassInstr(name) for name in names]) == {"products": 3, "tensor memory": 4}


def test_without_nvdisasm_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sass, "_packaged", lambda: None)
    assert message_of(find_disassembler.__wrapped__, BackendError) == (
        "there is no nvdisasm; to get one: pip install nvidia-cuda-nvdisasm, or put a CUDA "
        "toolkit's nvdisasm on PATH"
    )


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            subprocess.CalledProcessError(1, "nvdisasm", stderr="fatal: bad file\nmore\n"),
            "/x/nvdisasm cannot read the cubin: fatal: bad file; use one of the assembler's "
            "version or later: pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit's nvdisasm "
            "on PATH",
        ),
        (
            OSError("not executable"),
            "/x/nvdisasm cannot be run: not executable; pip install nvidia-cuda-nvdisasm, or put a "
            "CUDA toolkit's nvdisasm on PATH",
        ),
    ],
)
def test_a_failing_nvdisasm_is_told(
    problem: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(subprocess, "run", run)
    assert (
        message_of(lambda: Disassembler(Path("/x/nvdisasm")).instructions(b"cubin"), BackendError) == message
    )


@pytest.mark.ptxas
def test_a_real_listing_is_read(assembler: Assembler, disassembler: Disassembler) -> None:
    text = (
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n)\n{\n"
        ".reg .b32 %r<4>;\n.reg .pred %p;\nld.param.u32 %r1, [n];\nloop:\n"
        "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r2, %r3}, {%r2, %r3}, {%r2}, {%r2, "
        "%r3};\nsub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p, %r1, 0;\n@%p bra loop;\n"
        "st.local.v2.u32 [0], {%r2, %r3};\nret;\n}\n"
    )
    loop = main_loop(disassembler.instructions(assembler.assemble(text, "sm_80").cubin))
    assert loop is not None
    assert loop.macs == 16 * 8 * 8 * loop.products
