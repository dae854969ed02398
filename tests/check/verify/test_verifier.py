from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from finding_tables import cases
from hypothesis import HealthCheck, assume, given, settings
from messages import message as message_of
from random_kernels import MODULES, REGISTERS
from random_programs import Program, programs

from ptxgen.check.problems import Problem
from ptxgen.check.verify import definition_paths, require_valid, verify
from ptxgen.errors import VerifyError
from ptxgen.ir import (
    Address,
    FloatImm,
    Function,
    Guard,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Origin,
    Param,
    Pragma,
    Reg,
    Region,
    RegisterRange,
    Shared,
    Special,
)
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import REGISTER_PREFIX

FIRST_LINE = 13
DEFINED = (
    "mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.b64 %rd1, 0; mov.f32 %f1, 0f00000000; "
    "mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1; setp.eq.u32 %p1, %r1, 0;\n"
)
SM80 = "sm_80"
ZEROS = {"f32": FloatImm(0, 32), "f64": FloatImm(0, 64)}


def module(body: str, *, target: str = SM80, version: str = "7.8", maxntid: str = "") -> Module:
    """A kernel whose body starts at `FIRST_LINE`, after registers 1 to 4 have been written."""
    return parse(
        f".version {version}\n.target {target}\n.address_size 64\n"
        ".extern .shared .align 16 .b8 smem[];\n"
        f".entry k(.param .u64 Q, .param .u32 n) {maxntid}\n"
        "{\n.reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        ".reg .f32 %f<9>; .reg .f64 %fd<9>; .shared .align 16 .b8 scratch[64];\n"
        f"{DEFINED}{body}\n}}\n"
    )


def problems(body: str, end: str = "\nret;", **options: str) -> tuple[Problem, ...]:
    return verify(module(body + end, **options))


def complaint(body: str, end: str = "\nret;", **options: str) -> tuple[str, str]:
    """Kind and message of the only problem."""
    (problem,) = problems(body, end, **options)
    return problem.kind, problem.message


def with_kernel(**changes: object) -> tuple[Problem, ...]:
    sound = module("ret;")
    return verify(replace(sound, kernels=(replace(sound.kernels[0], **changes),), variables=()))


def hand_made(*instrs: Instr, target: str = SM80) -> tuple[Problem, ...]:
    """Instructions that text cannot say, with registers `%r0` to `%r3`."""
    registers = (RegisterRange("%r", "b32", 4), RegisterRange("%p", "pred", 2))
    body = (*instrs, Instr("ret"))
    return verify(Module((7, 8), target, (Kernel("k", (), registers, body),)))


R = [Reg(f"%r{i}", "b32") for i in range(9)]
ZERO = Instr("mov.u32", (R[0], IntImm(0)))


def test_a_right_module_has_no_problems():
    body = """
    ld.param.u64 %rd2, [Q];
    cvta.to.global.u64 %rd3, %rd2;
    ld.param.u32 %r3, [n];
    mov.u32 %r4, smem;
    mad.lo.u32 %r5, %r1, 16, %r4;
$loop:
    ld.global.v4.f32 {%f5, %f6, %f7, %f8}, [%rd3+16];
    st.shared.v4.f32 [%r5], {%f5, %f6, %f7, %f8};
    st.shared.v4.f32 [scratch+48], {%f5, 0f00000000, %f7, %f8};
    cp.async.cg.shared.global [%r5], [%rd3], 16;
    bar.sync 0;
    bar.sync 15, 64;
    shl.b32 %r6, %r1, 31;
    shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;
    mov.b32 %f5, %r7;
    mov.pred %p3, 1;
    add.u32 %r2, %r2, 4294967295;
    setp.lt.u32 %p4, %r2, %r3;
    @%p4 bra $loop;
    """
    assert problems(body, maxntid=".maxntid 128") == ()


# ------------------------------------------------------------------------------------ its words


def test_a_problem_says_where_it_came_from():
    (problem,) = problems("\nadd.u32 %r3, %r1, %f1;")
    assert problem == Problem(
        kind="operand",
        message="operand b of add must be u32, got %f1 of class f32 (syntax: add.type d, a, b)",
        kernel="k",
        instr="add.u32 %r3, %r1, %f1;",
        where=f"line {FIRST_LINE + 1} of the PTX text",
    )


def test_generated_code_is_traced_to_python():
    def author() -> None:
        pass

    origin = Origin(author.__code__, 7)
    bad = Instr("add.u32", (R[1], R[0], R[2]), None, origin)
    (problem,) = hand_made(ZERO, bad)
    assert str(problem) == (
        "kernel k: %r2 is read but never written; write it on every path before\n"
        "    in add.u32 %r1, %r0, %r2;\n"
        f"    from {author.__code__.co_filename}:7, in {author.__code__.co_qualname}"
    )


def test_all_problems_are_raised_at_once():
    with pytest.raises(VerifyError) as caught:
        require_valid(module("add.u32 %r3, %r1, %rd1;\nbra $nowhere;"))
    assert str(caught.value) == (
        "the module has 2 problems:\n"
        "1. kernel k: operand b of add must be u32, got %rd1 of class b64 "
        "(syntax: add.type d, a, b)\n"
        "    in add.u32 %r3, %r1, %rd1;\n"
        f"    from line {FIRST_LINE} of the PTX text\n"
        "2. kernel k: no label '$nowhere' in this kernel\n"
        "    in bra $nowhere;\n"
        f"    from line {FIRST_LINE + 1} of the PTX text"
    )
    assert caught.value.problems == verify(module("add.u32 %r3, %r1, %rd1;\nbra $nowhere;"))


def test_an_error_shows_twenty_problems_and_counts_the_rest():
    lines = message_of(
        lambda: require_valid(module("".join(f"bra $l{i};\n" for i in range(25)))), VerifyError
    ).splitlines()
    assert lines[0] == "the module has 25 problems:"
    assert lines[-1] == "… and 5 more"
    assert sum(line.startswith("20. ") for line in lines) == 1
    assert sum(line.startswith("21. ") for line in lines) == 0


def test_one_problem_is_one_problem():
    with pytest.raises(VerifyError, match=r"^the module has 1 problem:\n1\. "):
        require_valid(module("st.shared.u32 [scratch], %r5;\nret;"))


def test_a_right_module_is_required_in_silence():
    require_valid(module("ret;"))


# ------------------------------------------------------------------------------------ operands


def test_an_unknown_opcode_is_reported():
    (problem,) = hand_made(Instr("frobnicate.u32", (R[0],)))
    assert (problem.kind, problem.message) == ("opcode", "no instruction prints the opcode 'frobnicate.u32'")


OPERANDS = """
ld.param.u64 %rd2, [Q]; txq.width.b32 %r3, [%rd2+16];
=> operand: operand addr of txq takes no offset, got [%rd2+16]
ld.param.u64 %rd2, [Q]; txq.width.b32 %r3, [%rd2];
=> right
ld.param.u64 %rd2, [Q]; suld.b.1d.b32.trap %r3, [%rd2+8, {%r1}];
=> operand: operand surf of suld_1d takes no offset, got [%rd2+8, {%r1}]
ld.param.u64 %rd2, [Q]; suld.b.1d.b32.trap %r3, [%rd2, {%r1}];
=> right
ld.global.v2.b32 {%r3, %rd3}, [%rd1];
=> operand: operand d of ld must have registers of one size, got {%r3, %rd3} (syntax:
   ld.space{.cop}{.vec}.type d*vec, [addr:u64])
add.u32 %r3, %r1;
=> operand: add takes 3 operands, got 2 (syntax: add.type d, a, b)
bar.sync 0, 32, 32;
=> operand: bar_sync takes 1 to 2 operands, got 3 (syntax: bar.sync a:u32{, b:u32})
add.u32 %r3, %r1, %f1;
=> operand: operand b of add must be u32, got %f1 of class f32 (syntax: add.type d, a, b)
add.u32 %f5, %r1, %r1;
=> operand: operand d of add must be u32, got %f5 of class f32 (syntax: add.type d, a, b)
add.u32 5, %r1, %r1;
=> operand: operand d of add is written, so it must be a register, got 5 (syntax: add.type d, a, b)
add.u32 %r3, %r1, %tid.x;
=> operand: operand b of add must be u32, got %tid.x; only mov reads special registers (syntax: add.type d,
   a, b)
add.u32 %r3, %r1, 0f00000000;
=> operand: operand b of add must be u32, got 0f00000000 (syntax: add.type d, a, b)
mov.u32 %r3, %clock64;
=> operand: operand a of mov must be u32, got %clock64 (syntax: mov.type d, a)
bra %r1;
=> operand: operand target of bra must be a label, got %r1 of class b32 (syntax: bra{.uni} target:label)
cp.async.wait_group %r1;
=> operand: operand n of cp_async_wait_group must be an integer literal, got %r1 of class b32 (syntax:
   cp.async.wait_group n:imm)
mov.b32 %r3, %f1; mov.b32 %f5, %r1; mov.b32 %f5, 0f00000000;
=> right
mov.f64 %fd1, 0f3F800000;
=> operand: operand a of mov must be f64, got 0f3F800000 (syntax: mov.type d, a)
ld.global.f32 %f5, [%r1];
=> operand: operand addr of ld must be an address in a register of class b64, got %r1 of class b32 (syntax:
   ld.space{.cop}{.vec}.type d*vec, [addr:u64])
ld.shared.f32 %f5, [%r1]; ld.shared.f32 %f5, [%rd1];
=> right
ld.shared.f32 %f5, [%f1];
=> operand: operand addr of ld must be an address in a register of class b32 or b64, got %f1 of class f32
   (syntax: ld.space{.cop}{.vec}.type d*vec, [addr:u64])
ld.shared.v4.f32 {%f5, %f6}, [%r1];
=> operand: operand d of ld must be a vector of 4, got {%f5, %f6} (syntax: ld.space{.cop}{.vec}.type d*vec,
   [addr:u64])
mov.u32 %r3, 4294967296;
=> operand: wanted an integer of 32 bits, got 4294967296
mov.s16 %rs1, -32769;
=> operand: wanted an integer of 16 bits, got -32769
shl.b32 %r3, %r1, 32;
=> operand: wanted a shift by less than the 32 bits of a b32, got 32
shr.u64 %rd2, %rd1, 64;
=> operand: wanted a shift by less than the 64 bits of a u64, got 64
cp.async.ca.shared.global [%r1], [%rd1], 12;
=> operand: wanted 4, 8 or 16 bytes, got 12
cp.async.cg.shared.global [%r1], [%rd1], 8;
=> operand: wanted 16, got 8
mov.pred %p2, 2;
=> operand: wanted 0 or 1, got 2
bar.sync 16;
=> barrier: wanted a barrier from 0 to 15, got 16
bar.sync 0, 48;
=> barrier: wanted a number of threads that is a multiple of 32, up to 1024, got 48
bar.sync 1, 256;
=> right
$loop_1: bra $lop_1;
=> label: no label '$lop_1' in this kernel; did you mean '$loop_1'?
$unused:
=> right
ld.param.u64 %rd2, [QQ];
=> symbol: no parameter 'QQ'; did you mean 'Q'?
ld.param.u64 %rd2, [n];
=> symbol: bytes 0 to 8 of 'n' are accessed, but it has 4
ld.param.u32 %r3, [Q+8];
=> symbol: bytes 8 to 12 of 'Q' are accessed, but it has 8
ld.shared.f32 %f5, [scrath];
=> symbol: no variable in shared memory 'scrath'; did you mean 'scratch'?
ld.shared.f32 %f5, [scratch+64];
=> symbol: bytes 64 to 68 of 'scratch' are accessed, but it has 64
st.shared.f32 [scratch+-4], %f1;
=> symbol: bytes -4 to 0 of 'scratch' are accessed, but it has 64
mov.u32 %r3, scrath;
=> symbol: no variable 'scrath'; did you mean 'scratch'?
cp.async.ca.shared.global [scratch], [%rd1], 4, -1;
=> operand: reads -1 bytes to write 4; read 0 to 4
cp.async.ca.shared.global [scratch], [%rd1], 4, 5;
=> operand: reads 5 bytes to write 4; read 0 to 4
cp.async.ca.shared.global [scratch], [%rd1], 4, 4;
=> right
"""


@pytest.mark.parametrize(("body", "findings"), cases(OPERANDS))
def test_operands_and_names_have_their_whole_finding(body: str, findings: list[str]):
    assert [f"{p.kind}: {p.message}" for p in problems(body)] == findings


NEWER = """
mbarrier.arrive.shared::cluster.b64 %rd3, [%rd1];
=> operand: operand d of mbarrier_arrive must be _, as the mbarrier of another CTA gives no state, got %rd3
   of class b64 (syntax: mbarrier.arrive{.space}.b64 d:b64, [addr:u64])
mbarrier.arrive.noComplete.shared.b64 %rd3, [%r1], 0;
=> operand: wanted a count from 1 to 1048575, got 0
mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 2;
=> operand: wanted a parity of 0 or 1, got 2
createpolicy.range.global.L2::evict_last.b64 %rd3, [%rd1], 64, 32;
=> operand: wanted a size of at most the total, 32, got 64
createpolicy.fractional.L2::evict_last.b64 %rd3, 0f40000000;
=> operand: wanted a fraction from above 0 to 1, got 0f40000000
cp.async.ca.shared.global.L2::cache_hint [%r1], [%rd1], 8, 12, %rd1;
=> operand: reads 12 bytes to write 8; read 0 to 8
st.param.u32 [n], %r1;
=> symbol: 'n' is a parameter of the kernel, which cannot be written
{ .param .b32 give; @%p1 st.param.b32 [give], %r1; }
=> symbol: 'give$1' is an argument or a result of a call, which an access with a guard cannot reach
proto: .callprototype _ (); call 14, (), proto;
=> operand: operand f of call_indirect must be a register with a function's address, got 14 (syntax:
   call{.uni} f:u64, a:args, t:label)
"""


@pytest.mark.parametrize(("body", "findings"), cases(NEWER))
def test_what_the_assembler_would_refuse_is_reported(body: str, findings: list[str]):
    result = problems(body, target="sm_90", version="8.0")
    assert [f"{p.kind}: {p.message}" for p in result] == findings


@pytest.mark.parametrize("space", ["shared", "global", "local"])
def test_a_variable_that_has_a_generic_address_may_be_named_without_its_space(space):
    variable = f".{space} .align 4 .b8 own[8];"
    inside, outside = (variable, "") if space == "local" else ("", variable)
    text = render(module(f"{inside} st.{space}.u32 [own], 1; ld.u32 %r5, [own];\nret;"))
    if outside:
        text = text.replace(".extern", f"{outside}\n.extern", 1)
    assert verify(parse(text)) == ()


def test_a_barrier_cannot_wait_for_more_threads_than_there_are():
    assert complaint("bar.sync 1, 256;", maxntid=".maxntid 128") == (
        "barrier",
        "waits for 256 threads, but the block has 128; they would never arrive",
    )
    assert problems("bar.sync 1, 128;", maxntid=".maxntid 128") == ()


# ------------------------------------------------------------------------------------ names


def test_an_undeclared_register_is_reported_once():
    assert [(p.kind, p.message) for p in hand_made(Instr("mov.u32", (R[5], IntImm(0))))] == [
        ("register", "%r5 is not declared; add it to a .reg line")
    ]


def test_a_register_is_used_as_it_is_declared():
    wrong = Reg("%r0", "f32")
    result = hand_made(ZERO, Instr("add.rn.f32", (wrong, wrong, wrong)))
    assert [(p.kind, p.message) for p in result] == [("register", "%r0 is declared b32, but is used as f32")]


_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, "
_SUMS = ", {%f1, %f2, %f3, %f4};"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("add.s32 %r2, %r1, %r1;", "add.s32 %r2, %r1, %f1;"),
        ("add.s32 %r2, %r1, %r1;", "add.s32 %r2, %r1, %r5;"),
        ("add.s32 %r2, %r1, %r1;", "add.s32 %rd1, %r1, %r1;"),
        ("shl.b32 %r2, %r1, 31;", "shl.b32 %r2, %r1, 32;"),
        ("mov.u32 %r2, %tid.x;", "mov.u32 %r2, %clusterid.x;"),
        ("mov.u32 %r2, scratch;", "mov.u32 %r2, nothing;"),
        ("and.pred %p2, %p1, !%p1;", "and.pred %p2, %p1, !%p3;"),
        ("ld.shared.u32 %r2, [%r1];", "ld.shared.u32 %r2, [%f1];"),
        ("ld.shared.u32 %r2, [%r1];", "ld.shared.u32 %r2, [nothing];"),
        ("ld.shared.u32 %r2, [scratch];", "ld.shared.u32 %r2, [scratch+2];"),
        ("ld.shared.v2.u32 {%r2, %r3}, [scratch];", "ld.shared.v2.u32 {%r2, %f3}, [scratch];"),
        ("ld.shared.v2.u32 {%r2, %r3}, [scratch];", "ld.shared.v2.u32 {%r2, %r3, %r4}, [scratch];"),
        ("ld.shared.v2.u32 {%r2, _}, [scratch];", "ld.shared.v2.u32 {_, _}, [scratch];"),
        (
            f"{_MMA}{{%r1, %r2, %r1, %r2}}, {{%r1, %r2}}{_SUMS}",
            f"{_MMA}{{%r1, %r2}}, {{%r1, %r2, %r1, %r2}}{_SUMS}",
        ),
        ("@%p1 mov.u32 %r2, %r1;", "@%p3 mov.u32 %r2, %r1;"),
    ],
)
def test_an_instruction_is_checked_alike_behind_one_of_its_form(right: str, wrong: str):
    alone = {(p.kind, p.message) for p in problems(wrong)}
    assert alone
    assert not problems(right)
    assert {(p.kind, p.message) for p in problems(f"{right}\n{wrong}")} == alone


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (("add.s32", R[0], R[0], R[0]), ("add.s32", R[0], R[0], R[5])),
        (("add.s32", R[0], R[0], R[0]), ("add.s32", R[0], R[0], Reg("%r0", "b64"))),
        (("mov.u32", R[0], Special("%tid.x")), ("mov.u32", R[0], Special("%tid.w"))),
        (("mov.b32", R[0], FloatImm(0, 32)), ("mov.b32", R[0], FloatImm(0, 64))),
        (("mov.u32", R[0], R[0]), ("mov.u32", R[0], Reg("%q0", "b32"))),
    ],
)
def test_what_text_cannot_say_is_checked_alike_behind_one_of_its_form(
    right: tuple[Any, ...], wrong: tuple[Any, ...]
):
    first, second = (Instr(opcode, tuple(operands)) for opcode, *operands in (right, wrong))
    alone = {(p.kind, p.message) for p in hand_made(ZERO, second)}
    assert alone
    assert not hand_made(ZERO, first)
    assert {(p.kind, p.message) for p in hand_made(ZERO, first, second)} == alone


def test_a_guard_must_be_a_predicate():
    result = hand_made(ZERO, Instr("mov.u32", (R[0], IntImm(1)), Guard(R[0])))
    assert [(p.kind, p.message) for p in result] == [
        ("operand", "a guard must be of class pred, got %r0 of class b32")
    ]


def test_a_special_register_that_does_not_exist_is_reported():
    result = hand_made(Instr("mov.u32", (R[0], Special("%tid.w"))))
    assert [(p.kind, p.message) for p in result] == [
        (
            "operand",
            "operand a of mov must be u32, got %tid.w, which is no special register (syntax: mov.type d, a)",
        )
    ]


# ------------------------------------------------------------------------------------ definitions

DEFINITIONS = """
# a register that is never written is reported once
add.u32 %r3, %r4, 1; add.u32 %r3, %r4, 2;
=> %r4 is read but never written
# a write on one path is not enough
@%p1 bra $skip; mov.u32 %r3, 1; $skip: add.u32 %r4, %r3, 1;
=> %r3 may be read before it is written: a path to here does not write it
# a write on both paths is enough
@%p1 bra $else; mov.u32 %r3, 1; bra $join; $else: mov.u32 %r3, 2; $join: add.u32 %r4, %r3, 1;
=> right
# a loop reads what only its end writes
$loop: add.u32 %r3, %r4, 1; mov.u32 %r4, 1; @%p1 bra $loop;
=> %r4 may be read before it is written: a path to here does not write it
# a loop reads what is written before it
mov.u32 %r4, 0; $loop: add.u32 %r4, %r4, 1; @%p1 bra $loop; add.u32 %r3, %r4, 1;
=> right
# both paths in a loop write
$loop: @%p1 bra $b; mov.u32 %r3, 1; bra $c;
$b: mov.u32 %r3, 2; $c: add.u32 %r4, %r3, 1; @%p1 bra $loop;
=> right
# a guarded write alone does not count
@%p1 mov.u32 %r3, 1; add.u32 %r4, %r3, 1;
=> %r3 is written only under a guard that may be false
# a guarded write after another is fine
mov.u32 %r3, 0; @%p1 mov.u32 %r3, 1; add.u32 %r4, %r3, 1;
=> right
# writes under opposite guards count
@%p1 mov.u32 %r3, 1; @!%p1 mov.u32 %r3, 2; add.u32 %r4, %r3, 1;
=> right
# a read under the guard of the write
@%p1 mov.u32 %r3, 1; @%p1 add.u32 %r4, %r3, 1;
=> right
# a read under the opposite guard
@%p1 mov.u32 %r3, 1; @!%p1 add.u32 %r4, %r3, 1;
=> %r3 is written only under a guard that may be false
# opposite guards of which one changed
@%p1 mov.u32 %r3, 1; setp.eq.u32 %p1, %r1, 1; @!%p1 mov.u32 %r3, 2; add.u32 %r4, %r3, 1;
=> %r3 is written only under a guard that may be false
# a read after the branch that the write is after
@%p1 bra $a; bra $b; $a: mov.u32 %r3, 1;
$b: @!%p1 bra $c; st.shared.u32 [scratch], %r3; $c: mov.u32 %r4, 0;
=> right
# a read after the branch that the write is after, negated
@!%p1 bra $a; bra $b; $a: mov.u32 %r3, 1;
$b: @%p1 bra $c; st.shared.u32 [scratch], %r3; $c: mov.u32 %r4, 0;
=> right
# a read after the other side of the branch
@%p1 bra $a; bra $b; $a: mov.u32 %r3, 1;
$b: @%p1 bra $c; st.shared.u32 [scratch], %r3; $c: mov.u32 %r4, 0;
=> %r3 may be read before it is written: a path to here does not write it
# a read after the other side of the branch, negated
@!%p1 bra $a; bra $b; $a: mov.u32 %r3, 1;
$b: @!%p1 bra $c; st.shared.u32 [scratch], %r3; $c: mov.u32 %r4, 0;
=> %r3 may be read before it is written: a path to here does not write it
# a read after a branch whose predicate changed
@%p1 bra $a; bra $b; $a: mov.u32 %r3, 1;
$b: setp.eq.u32 %p1, %r1, 1; @!%p1 bra $c; st.shared.u32 [scratch], %r3; $c: mov.u32 %r4, 0;
=> %r3 may be read before it is written: a path to here does not write it
# a guarded write reaches a guarded read in another block
setp.eq.u32 %p2, %r1, 1; @%p1 mov.u32 %r3, 1; @%p2 bra $skip; mov.u32 %r4, 1;
$skip: @%p1 st.shared.u32 [scratch], %r3;
=> right
# a guarded write does not reach a read under the opposite guard in another block
setp.eq.u32 %p2, %r1, 1; @%p1 mov.u32 %r3, 1; @%p2 bra $skip; mov.u32 %r4, 1;
$skip: @!%p1 st.shared.u32 [scratch], %r3;
=> %r3 is written only under a guard that may be false
# a branch to the next instruction decides nothing
@%p1 bra $next; $next: @%p1 mov.u32 %r3, 1; st.shared.u32 [scratch], %r3;
=> %r3 is written only under a guard that may be false
# a loop forgets the guard of the iteration before
$loop: @%p1 mov.u32 %r3, 1; setp.eq.u32 %p1, %r1, 1; @%p1 st.shared.u32 [scratch], %r3; @%p1 bra $loop;
=> %r3 is written only under a guard that may be false
# a guard that stays the same in a loop
@%p1 mov.u32 %r3, 1;
$loop: @%p1 st.shared.u32 [scratch], %r3; setp.eq.u32 %p2, %r1, 1; @%p2 bra $loop;
=> right
# a guard that changes in a loop
@%p1 mov.u32 %r3, 1;
$loop: @%p1 st.shared.u32 [scratch], %r3; setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 1; @%p2 bra $loop;
=> %r3 is written only under a guard that may be false
# a copy of an undefined register
mov.u32 %r3, %r5;
=> right
# a copy of a copy
mov.u32 %r3, %r5; mov.b64 %rd2, {%r3, %r1}; mov.b64 {%r6, %r7}, %rd2;
=> right
# a copy that is overwritten
mov.u32 %r3, %r5; mov.u32 %r3, 1; st.shared.u32 [scratch], %r3;
=> right
# a copy that is overwritten on the path of the read
mov.u32 %r3, %r5; @%p1 bra $c; mov.u32 %r3, 1; $c: @!%p1 st.shared.u32 [scratch], %r3;
=> right
# a copy that is overwritten under the guard of the read
mov.u32 %r3, %r5; @%p1 mov.u32 %r3, 1; @%p1 st.shared.u32 [scratch], %r3;
=> right
# a copy that is stored
mov.u32 %r3, %r5; st.shared.u32 [scratch], %r3;
=> %r5 is read but never written
# a copy of a copy that is stored
mov.u32 %r3, %r5; mov.b64 %rd2, {%r3, %r1}; st.shared.u64 [scratch], %rd2;
=> %r5 is read but never written
# a guarded copy that is stored
mov.u32 %r3, 1; @%p1 mov.u32 %r3, %r5; st.shared.u32 [scratch], %r3;
=> %r5 is read but never written
# a guarded copy that is stored under its guard
@%p1 mov.u32 %r3, 1; @!%p1 mov.u32 %r3, %r5; @!%p1 st.shared.u32 [scratch], %r3;
=> %r5 is read but never written
# the guard itself must be written
@%p3 mov.u32 %r2, 1;
=> %p3 is read but never written
# a store and a vector read their registers
st.shared.v2.f32 [%r3], {%f1, %f5};
=> %r3 is read but never written
=> %f5 is read but never written
# a load and a pair write theirs
ld.shared.v2.f32 {%f5, %f6}, [%r1]; add.rn.f32 %f7, %f5, %f6;
shfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31, -1; @%p2 mov.u32 %r1, %r3;
=> right
# code that cannot be reached reads what it likes
bra $end; add.u32 %r3, %r4, 1; $end:
=> right
"""


@pytest.mark.parametrize(("body", "findings"), cases(DEFINITIONS))
def test_a_register_is_written_on_every_path_before_it_is_read(body: str, findings: list[str]):
    assert [f"{p.kind}: {p.message}" for p in problems(body)] == [
        f"undefined: {finding}; write it on every path before" for finding in findings
    ]


def test_what_a_wrong_instruction_would_write_is_no_second_problem():
    body = "@%p1 bra $c; add.u32 %r3, %f1, 1; $c: @!%p1 st.shared.u32 [scratch], %r3;"
    assert [p.kind for p in problems(body)] == ["operand"]


def test_the_first_read_is_reported_where_paths_are_too_many(monkeypatch):
    monkeypatch.setattr(definition_paths, "_MOST_FACTS", 0)
    (problem,) = problems("st.shared.u32 [scratch], %r5; st.shared.u32 [scratch+4], %r5;")
    assert "[scratch], %r5" in str(problem)
    assert problems("setp.eq.u32 %p3, %r1, 1; @%p3 mov.u32 %r4, 1;") == ()


# ------------------------------------------------------------------------------------ targets


def test_an_instruction_newer_than_the_target_is_reported_once():
    body = "cp.async.wait_all; cp.async.wait_all;"
    assert complaint(body, target="sm_75") == (
        "gate",
        "cp.async.wait_all needs sm_80 / PTX 7.0, but the module targets sm_75 / PTX 7.8",
    )


def test_an_instruction_newer_than_the_version_is_reported():
    result = problems("activemask.b32 %r3;", target="sm_75", version="6.1")
    assert [(p.kind, p.message) for p in result] == [
        ("target", "sm_75 needs PTX 6.3, but the module says PTX 6.1; raise its version"),
        ("gate", "activemask.b32 needs sm_30 / PTX 6.2, but the module targets sm_75 / PTX 6.1"),
    ]


def test_an_unknown_target_is_one_problem_and_the_rest_is_checked():
    result = problems("bra $nowhere;", target="sm_81")
    assert [p.kind for p in result] == ["target", "label"]
    assert result[0].message.startswith("unknown target 'sm_81'")


# ------------------------------------------------------------------------------------ alignment


def far(nbytes: int, past: int) -> str:
    return (
        f"the address must be a multiple of {nbytes} bytes, but it is {past} more than one; "
        "change the offset, or access fewer bytes at a time"
    )


LOAD = "ld.shared.v4.f32 {%f5, %f6, %f7, %f8},"
POINTER = "ld.param.u64 %rd2, [Q]; cvta.to.global.u64 %rd3, %rd2;"
GLOBAL_LOAD = "ld.global.v4.f32 {%f5, %f6, %f7, %f8},"
COPY = "cp.async.ca.shared.global"
LOOP = f"mov.u32 %r3, smem; $loop: {LOAD} [%r3+OFFSET]; add.u32 %r3, %r3, STEP; @%p1 bra $loop;"
# The step of %r2 comes to %r4 in the third iteration only.
ROTATED = (
    f"mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0; $loop: {LOAD} [%r4+8]; "
    "mov.u32 %r4, %r3; mov.u32 %r3, %r2; add.u32 %r2, %r2, STEP; @%p1 bra $loop;"
)


@pytest.mark.parametrize(
    ("body", "nbytes", "past"),
    [
        (f"{LOAD} [scratch+4];", 16, 4),
        ("ld.shared.f32 %f5, [scratch+2];", 4, 2),
        (f"mad.lo.u32 %r3, %r1, 4, 2; {LOAD} [%r3];", 16, 2),
        (f"{POINTER} {GLOBAL_LOAD} [%rd3+4];", 16, 4),
        (f"{POINTER} mad.wide.u32 %rd3, %r1, 32, %rd3; {GLOBAL_LOAD} [%rd3+4];", 16, 4),
        (LOOP.replace("OFFSET", "8").replace("STEP", "32"), 16, 8),
        (ROTATED.replace("STEP", "16"), 16, 8),
        (f"{POINTER} {COPY} [scratch], [%rd3+8], 16;", 16, 8),
        (f"{POINTER} {COPY} [scratch+4], [%rd3+8], 8;", 8, 4),
    ],
)
def test_an_address_that_is_never_aligned_is_reported(body: str, nbytes: int, past: int):
    assert complaint(body) == ("alignment", far(nbytes, past))


@pytest.mark.parametrize(
    "body",
    [
        f"{LOAD} [scratch+16];",
        f"{LOAD} [%r1];",
        f"mad.lo.u32 %r3, %r1, 4, 8; {LOAD} [%r3];",
        f"and.b32 %r3, %r1, 15; {LOAD} [%r3];",
        f"{POINTER} {GLOBAL_LOAD} [%rd3+32];",
        LOOP.replace("OFFSET", "0").replace("STEP", "32"),
        LOOP.replace("OFFSET", "8").replace("STEP", "8"),
        ROTATED.replace("STEP", "8"),
        f"{POINTER} {COPY} [scratch], [%rd3+8], 8;",
        # The verifier does not follow an address through saturation or masks, which are not linear.
        f"add.sat.s32 %r4, %r2, 16; {LOAD} [%r4+4];",
        f"and.b32 %r4, %r1, 15; {LOAD} [%r4+4];",
        f"cvt.rn.f16x2.f32 %r4, %f1, %f2; {LOAD} [%r4+4];",
        f"mov.u32 %r3, 48; add.rn.f16x2 %r4, %r3, %r3; {LOAD} [%r4+4];",
        f"mov.u32 %r3, 48; mul.hi.u32 %r4, %r3, %r3; {LOAD} [%r4+4];",
        f"mov.b32 {{%rs1, %rs2}}, %r1; mov.b32 %r4, {{%rs1, %rs2}}; {LOAD} [%r4+4];",
    ],
)
def test_an_address_that_may_be_aligned_is_not_reported(body: str):
    assert problems(body) == ()


@pytest.mark.parametrize(
    "chain",
    [
        "mov.u32 %r3, smem; add.u32 %r4, %r3, 8;",
        "mov.u32 %r3, smem; mad.lo.u32 %r5, %r1, 16, %r3; add.u32 %r4, %r5, 8;",
        "shl.b32 %r3, %r1, 5; sub.u32 %r4, %r3, 8;",
        "and.b32 %r3, %r1, -16; add.u32 %r4, %r3, 8;",
        "mul.lo.u32 %r3, %r1, 48; xor.b32 %r4, %r3, 8;",
        "mul.lo.u32 %r3, %r1, 48; or.b32 %r4, %r3, 8;",
    ],
)
def test_a_known_address_is_followed_through_arithmetic(chain: str):
    assert complaint(f"{chain} {LOAD} [%r4];") == ("alignment", far(16, 8))
    assert problems(f"{chain} {LOAD} [%r4+8];") == ()


def test_regions_of_small_alignment_do_not_lower_that_of_their_array():
    loading = module(f"{LOAD} [smem+4];\nret;")
    regions = (Region("first", 0, 64, 4),)
    kernel = replace(loading.kernels[0], regions=regions)
    assert [p.message for p in verify(replace(loading, kernels=(kernel,)))] == [far(16, 4)]


# ------------------------------------------------------------------------------------ declarations


def only(found: tuple[Problem, ...]) -> tuple[str, str]:
    (problem,) = found
    return problem.kind, problem.message


SOUND = module("ret;").kernels[0]
K, V = Region("K", 0, 64, 16), Region("V", 64, 64, 16)
GAP = (Shared("a", 1, 1), Shared("b", 49_152 - 16, 16))  # between them are 15 bytes


def registers(*added: RegisterRange) -> dict[str, object]:
    return {"registers": (*SOUND.registers, *added)}


def shared(*variables: Shared) -> dict[str, object]:
    return {"shared": variables}


def regions(*regions: Region, array: str = "smem") -> dict[str, object]:
    return {"dynamic_shared": array, "regions": regions}


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        (
            shared(Shared("a", 49_153, 16)),
            "shared: 49153 bytes of static shared memory, but at most 49152 (48 KiB) can be static; make it"
            " dynamic",
        ),
        (
            shared(*GAP, Shared("c", 1, 1)),
            "shared: 49153 bytes of static shared memory, but at most 49152 (48 KiB) can be static; make it"
            " dynamic",
        ),
        (
            regions(Region("K", 0, 400_000, 16)),
            "shared: 400064 bytes of shared memory (64 static, 400000 dynamic), but a block has at most "
            "166912 (163 KiB) on sm_80; use smaller tiles",
        ),
        (
            regions(K, Region("V", 48, 64, 16)),
            "shared: region V begins at byte 48, inside region K, which ends at byte 64; move it or shrink K",
        ),
        (
            regions(Region("K", 24, 64, 16)),
            "shared: region K begins at byte 24, which is no multiple of its alignment 16; begin at 32",
        ),
        (regions(Region("K", 0, 64, 24)), "shared: K: the alignment must be a power of two, got 24"),
        (regions(K, Region("K", 64, 64, 16)), "shared: 2 regions are called 'K'; rename all but one"),
        (
            regions(K, array=""),
            "shared: regions are declared, but no dynamic shared array to hold them; set dynamic_shared",
        ),
        (regions(Region("K", 0, -1, 16)), "shared: K must have 0 or more bytes, got -1"),
        (regions(Region("K", -16, 16, 16)), "shared: region K must begin at byte 0 or later, got -16"),
        (shared(Shared("a", 0, 4)), "shared: a must have 1 or more bytes, got 0"),
        (
            shared(Shared("a", 4, 2**32)),
            "shared: a: the alignment must be at most 2147483648, got 4294967296",
        ),
        (shared(Shared("scratch", 64, 0)), "shared: scratch: the alignment must be a power of two, got 0"),
        (
            {"threads": 1025},
            "threads: .maxntid is 1025, but a block has 1 to 1024 threads on sm_80; use fewer threads",
        ),
        (
            {"reqntid": (205, 5, 1)},
            "threads: .reqntid is 1025 threads, but a block has 1 to 1024 on sm_80; use fewer",
        ),
        (
            {"min_ctas": 33},
            "threads: .minnctapersm is 33, but an SM has 1 to 32 CTAs on sm_80; ask for fewer",
        ),
        (
            {"min_ctas": -1},
            "threads: .minnctapersm is -1, but an SM has 1 to 32 CTAs on sm_80; ask for fewer",
        ),
        (
            registers(*[RegisterRange("%q", "f32", 2)] * 2),
            "register: 2 registers are called '%q'; rename all but one",
        ),
        (
            registers(RegisterRange("%rd1", "b32", 0)),
            "register: '%rd1' is declared by '%rd1' and by '%rd'; rename one",
        ),
        (
            registers(RegisterRange("%q", "u32", 1)),
            "register: registers '%q' must be one of pred, b8, b16, b32, b64, b128, f32, f64, got 'u32'",
        ),
        (
            registers(RegisterRange("%q", "b32", -1)),
            "register: registers '%q' must have a count of 1 or more, or 0 for one without a number, got -1",
        ),
        (
            {"params": (*SOUND.params, SOUND.params[0])},
            "symbol: 2 parameters are called 'Q'; rename all but one",
        ),
        (
            {"name": "smem", "dynamic_shared": "smem"},
            "symbol: 'smem' is a kernel and a dynamic shared array; rename one",
        ),
        (shared(Shared("n", 4, 4)), "symbol: 'n' is a parameter and a shared variable; rename one"),
        ({"body": (Label("n"), Instr("ret"))}, "symbol: 'n' is a parameter and a label; rename one"),
        (shared(Shared("%r8", 4, 4)), "symbol: '%r8' is a shared variable and a register; rename one"),
        (
            {"body": (Label("$a"), Label("$a"), Instr("ret"))},
            "label: 2 labels are called '$a'; rename all but one",
        ),
    ],
)
def test_a_kernel_that_cannot_be_is_reported(changes: dict[str, object], finding: str):
    assert ": ".join(only(with_kernel(**changes))) == finding


@pytest.mark.parametrize(
    "changes",
    [
        shared(Shared("a", 49_152, 16)),
        shared(*GAP),
        shared(Shared("k", 4, 4)),  # as the kernel is called
        regions(Region("K", 0, 166_912 - 64, 16)),
        regions(K, V),
        {"threads": 1024},
        {"reqntid": (256, 4, 1)},
        {"min_ctas": 32},
        registers(RegisterRange("%r1", "b32", 3)),  # %r10 to %r12, where %r ends at %r8
    ],
    ids=str,
)
def test_a_kernel_at_its_limits_has_no_problems(changes: dict[str, object]):
    assert with_kernel(**changes) == ()


def test_two_kernels_of_one_name_are_reported():
    twice = replace(module("ret;"), kernels=(SOUND, SOUND))
    assert only(verify(twice)) == ("symbol", "2 kernels have this name; rename all but one")


@pytest.mark.parametrize("name", ["1st", "a b", "_", "$", "a.b", "é", "WARP_SZ", "%tid", "%laneid"])
def test_a_name_must_be_one_that_ptx_can_have(name):
    wanted = "use letters, digits, _ and $, begin with a letter, and avoid PTX's own names"
    assert with_kernel(name=name) == (
        Problem("symbol", f"a kernel cannot be called {name!r}; {wanted}", name),
    )
    assert only(with_kernel(params=(*SOUND.params, Param(name, "u32")))) == (
        "symbol",
        f"a parameter cannot be called {name!r}; {wanted}",
    )
    assert only(with_kernel(shared=(*SOUND.shared, Shared(name, 4, 4)))) == (
        "symbol",
        f"a shared variable cannot be called {name!r}; {wanted}",
    )
    assert only(with_kernel(body=(Label(name), *SOUND.body))) == (
        "symbol",
        f"a label cannot be called {name!r}; {wanted}",
    )
    assert only(with_kernel(registers=(*SOUND.registers, RegisterRange(name, "b32", 0)))) == (
        "register",
        f"a register cannot be called {name!r}; {wanted}",
    )


def test_no_name_is_no_name():
    wanted = "use letters, digits, _ and $, begin with a letter, and avoid PTX's own names"
    assert only(with_kernel(name="")) == ("symbol", f"a kernel cannot be called ''; {wanted}")


def test_a_range_and_a_register_without_a_number_may_be_called_alike():
    alike = RegisterRange("%q", "b32", 100_000), RegisterRange("%q", "f32", 0)
    used = (
        Instr("mov.f32", (Reg("%q", "f32"), FloatImm(1.0, 32))),
        Instr("mov.u32", (Reg("%q99999", "b32"), IntImm(1))),
        *SOUND.body,
    )
    for both in (alike, alike[::-1]):
        assert with_kernel(registers=(*SOUND.registers, *both), body=used) == ()
    for name, message in (
        ("%q", "2 registers are called '%q'; rename all but one"),
        ("%q3", "'%q3' is declared by '%q3' and by '%q'; rename one"),
    ):
        more = RegisterRange(name, "f32", 0)
        result = with_kernel(registers=(*SOUND.registers, *alike, more))
        assert only(result) == ("register", message)
    label = with_kernel(registers=(*SOUND.registers, *alike), body=(Label("%q2"), *SOUND.body))
    assert only(label) == ("symbol", "'%q2' is a label and a register; rename one")


@pytest.mark.parametrize("type", ["pred", "bf16", "f16x2", "bf16x2", "int"])
def test_a_parameter_has_a_type_that_memory_can_hold(type):
    assert only(with_kernel(params=(Param("a", type),))) == (
        "symbol",
        f"parameter 'a' cannot be of type {type!r}; use u32 or u64",
    )
    assert with_kernel(params=(Param("a", "f16"),)) == ()


@pytest.mark.parametrize("register", [False, True])
def test_a_parameter_of_a_function_has_a_type_that_there_is(register: bool):
    function = Function("f", params=(Param("a", "int", register=register),), body=(Instr("ret"),))
    assert only(verify(replace(module("ret;"), functions=(function,)))) == (
        "symbol",
        "parameter 'a' cannot be of type 'int'; use u32 or u64",
    )


@pytest.mark.parametrize("version", ["7.8", "8.0", "8.8", "9.0"])
def test_a_version_that_there_is_is_right(version):
    assert problems("", version=version) == ()


@pytest.mark.parametrize("version", [(7, 9), (8, 9), (9, -1)])
def test_a_version_that_never_was_is_reported(version):
    said = f"{version[0]}.{version[1]}"
    assert only(verify(replace(module("ret;"), version=version))) == (
        "target",
        f"there is no PTX {said}; use the version before or after it",
    )


# ------------------------------------------------------------------------------------ ends and text

OFF_THE_END = ("end", "control runs off the end of the kernel; end it with ret")


@pytest.mark.parametrize("end", ["", "$end:", "@%p1 ret;", "ret;\n$l: @%p1 bra $l;\nbra $m;\n$m:"])
def test_a_kernel_must_not_run_off_its_end(end):
    if end.startswith("ret"):
        assert problems("", end=end) == ()  # what follows cannot be reached
    else:
        assert complaint("", end=end) == OFF_THE_END


@pytest.mark.parametrize("end", ["ret;", "exit;", "trap;", "$l: bra $l;", "ret;\n$unreached:"])
def test_a_kernel_may_end_in_several_ways(end):
    assert problems("", end=end) == ()


def test_an_empty_kernel_runs_off_its_end():
    assert only(with_kernel(body=())) == OFF_THE_END


def test_comments_must_fit_a_line():
    assert only(with_kernel(body=(Note("a\nb"), Instr("ret")))) == (
        "text",
        r"the note 'a\nb' does not fit a comment line",
    )
    assert only(verify(replace(module("ret;"), header=("a ",)))) == (
        "text",
        "the header line 'a ' does not fit a comment line",
    )


@pytest.mark.parametrize(
    ("text", "fits"),
    [("nounroll", True), (r"a \" b", True), ('a " b', False), ("a\nb", False), ("a\\", False)],
)
def test_a_pragma_must_fit_between_quotes(text: str, fits: bool):
    result = [(p.kind, p.message) for p in with_kernel(body=(Pragma(text), Instr("ret")))]
    message = f"the pragma {text!r} does not fit between quotes"
    assert result == ([] if fits else [("text", message)])


def test_problems_come_in_the_order_of_the_text():
    wrong = "add.u32 %r3, %r5, 1;\nbra $x;\n$a:\n$b:\nld.shared.f32 %f5, [scratch+1];\nret;"
    body = module(wrong).kernels[0].body
    twice = tuple(Label("$a") if s == Label("$b") else s for s in body)
    result = with_kernel(body=twice)
    assert [p.kind for p in result] == ["label", "undefined", "label", "alignment"]


def test_addresses_may_be_registers_of_any_kernel_variable():
    assert hand_made(ZERO, Instr("ld.shared.u32", (R[1], Address(R[0], 4)))) == ()


# Whatever is accepted here, the assembler accepts.

WRITTEN = tuple(
    Instr("cvt.u8.u32" if declared == "b8" else f"mov.{declared}", (Reg(f"{prefix}{i}", declared), zero))
    for declared, prefix in REGISTER_PREFIX.items()
    for zero in [ZEROS.get(declared, IntImm(0))]
    for i in range(REGISTERS)
)


def assembled(instr: Instr) -> bool:
    """Whether the assembler needs no order of instructions around it."""
    return not instr.opcode.startswith(("wgmma", "setmaxnreg"))


FIXED = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def accepted_by_both(assembler: Assembler, module: Module) -> None:
    (kernel,) = module.kernels
    body = tuple(s for s in kernel.body if not isinstance(s, Instr) or assembled(s))
    initialised = replace(kernel, body=(*WRITTEN, *body))
    whole = replace(module, kernels=(initialised,))
    problems = verify(whole)
    assume(not any(problem.kind == "alignment" for problem in problems))  # literals as addresses
    assert problems == ()
    assembler.assemble(render(whole), whole.target, opt_level=0)


@pytest.mark.slow
@FIXED
@given(MODULES)
def test_the_assembler_accepts_what_is_verified(assembler: Assembler, module: Module):
    accepted_by_both(assembler, module)


@pytest.mark.nightly
@settings(FIXED, max_examples=2000)
@given(MODULES)
def test_the_assembler_accepts_many_modules_that_are_verified(assembler: Assembler, module: Module):
    accepted_by_both(assembler, module)


def branching_is_accepted_by_both(assembler: Assembler, program: Program) -> None:
    assert verify(parse(program.text)) == ()
    assembler.assemble(program.text, "sm_80", opt_level=0)


@pytest.mark.slow
@settings(FIXED, max_examples=20)
@given(programs(exact=False))
def test_the_assembler_accepts_verified_programs_that_branch(assembler: Assembler, program: Program):
    branching_is_accepted_by_both(assembler, program)


@pytest.mark.nightly
@settings(FIXED, max_examples=1000)
@given(programs(exact=False))
def test_the_assembler_accepts_many_verified_programs_that_branch(assembler: Assembler, program: Program):
    branching_is_accepted_by_both(assembler, program)
