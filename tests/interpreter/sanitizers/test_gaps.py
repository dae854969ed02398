"""What the sanitizers find of local memory, mbarriers, memory from `malloc`, counted barriers and
registers; all programs run by generated code and instruction by instruction.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import line_of, ptx

from ptxgen.errors import AssemblerError, TrapError
from ptxgen.interpreter import DeviceArena, run
from ptxgen.interpreter.machine.registers import registers_at_entry
from ptxgen.interpreter.schedule import policies
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler


def messages(text: str, args: list[Any], **how: Any) -> list[str]:
    """What all sanitizers report, in order."""
    how = {"grid": 1, "block": 32, "raise_on_report": False, **how}
    return [r.message for r in run_both_ways(text, args=args, **how).reports]


def trap(text: str, args: list[Any], **how: Any) -> str:
    with pytest.raises(TrapError) as caught:
        run_both_ways(text, args=args, **{"grid": 1, "block": 32, **how})
    return str(caught.value)


def at(text: str, instruction: str, thread: int = 0, nth: int = 0) -> str:
    """How a message begins that is about an instruction of `text`, found by a part of it."""
    number = line_of(text, instruction, nth)
    whole = text.splitlines()[number - 1].strip()
    return f"kernel k: {whole} (line {number}): thread ({thread}, 0, 0) of CTA (0, 0, 0): "


# ---- local memory that was never written --------------------------------------------------------


def test_a_local_variable_that_only_some_threads_have_written_is_named() -> None:
    text = ptx("""
    .local .align 8 .b8 first[8];
    .local .align 8 .b8 second[16];
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 5;
    st.local.u32 [second], %r0;
    @%p0 st.local.u32 [second+4], %r0;
    ld.local.v2.u32 {%r1, %r2}, [second];
    add.u32 %r1, %r1, %r2;
    ret;
    """)
    assert messages(text, []) == [
        at(text, "ld.local", 5)
        + "uninitialised: local address 0x10000c (second) is read before it was written"
    ]
    assert messages(text.replace("@%p0 ", ""), []) == []


def test_each_byte_of_local_memory_counts_and_generic_addresses_reach_it() -> None:
    body = """
    .local .align 8 .b8 own[8];
    .local .align 8 .b8 other[8];
    st.local.u16 [own], 1;
    st.local.u8 [own+{byte}], 2;
    cvta.local.u64 %rd0, own;
    ld.u32 %r0, [%rd0];
    add.u32 %r0, %r0, 1;
    ret;
    """
    text = ptx(body.format(byte=3))
    assert messages(text, []) == [
        at(text, "ld.u32") + "uninitialised: local address 0x100002 (own) is read before it was written"
    ]
    text = ptx(body.format(byte=3).replace("ld.u32", "st.u8 [%rd0+2], 9;\n    ld.u32"))
    assert messages(text, []) == []


STACK = """
    .func (.reg .u32 out) f(.reg .u32 n)
    {
        .reg .pred p;
        .local .align 4 .b32 stack[2];
        setp.eq.u32 p, n, 0;
        @p st.local.u32 [stack+4], n;
        ld.local.u32 out, [stack+4];
        ret;
    }
    """


@pytest.mark.parametrize("recursive", [False, True])
def test_the_frame_of_a_function_is_fresh_at_each_call(recursive: bool) -> None:
    function = STACK
    if recursive:
        again = "@p bra $end;\n        sub.u32 n, n, 9;\n        call (out), f, (n);\n$end:\n"
        again = f"        setp.lt.u32 p, n, 9;\n{again}        ret;"
        function = STACK.replace("        ret;", again)
    text = ptx("""
    call (%r1), f, (0);
    call (%r2), f, (1);
    ret;
    """).replace(".visible", function + ".visible")
    address = {False: 0x100004, True: 0x100024}[recursive]
    assert messages(text, []) == [
        at(text, "ld.local")
        + f"uninitialised: local address {address:#x} (stack) is read before it was written"
    ]
    assert messages(text.replace("@p st", "st"), []) == []


BY_VALUE = """
    .func (.param .align 4 .b8 out[8]) f(.param .align 4 .b8 in[8])
    {
        .reg .u32 n;
        ld.param.u32 n, [in];
        st.param.u32 [out], n;
        {read}
        add.u32 n, n, 1;
        ret;
    }
    """
CALL = """
    .param .align 4 .b8 given[8];
    .param .align 4 .b8 got[8];
    st.param.u32 [given], 7;
    {more}
    call (got), f, (given);
    ld.param.u32 %r0, [got];
    ld.param.u32 %r1, [got+4];
    add.u32 %r1, %r1, %r0;
    ret;
    """


def by_value(*, read: str = "", more: str = "") -> str:
    """A structure goes through function `f`, of which the second word may be missing."""
    function = BY_VALUE.replace("{read}", read)
    return ptx(CALL.format(more=more)).replace(".visible", function + ".visible")


def test_a_structure_is_as_written_in_the_function_as_its_caller_left_it() -> None:
    both = "ld.param.u32 n, [in+4];\n        st.param.u32 [out+4], n;"
    text = by_value()
    assert messages(text, []) == [
        at(text, "[got+4]") + "uninitialised: local address 0x10000c (got) is read before it was written"
    ]
    text = by_value(read=both)
    assert messages(text, []) == [
        at(text, "[in+4]") + "uninitialised: local address 0x10002c (in) is read before it was written"
    ]
    assert messages(by_value(read=both, more="st.param.u32 [given+4], 8;"), []) == []


COPY = """
    .local .align 8 .b8 one[8];
    .local .align 8 .b8 two[8];
    st.local.u32 [one], 7;
    st.local.u8 [one+4], 7;
    ld.local.v2.u32 {{%r0, %r1}}, [one];
    st.local.v2.u32 [two], {{%r0, %r1}};
    ld.local.u32 %r3, [two];
    {read}
    ld.param.u64 %rd0, [x];
    {store}
    ret;
    """


def test_copies_of_structures_with_gaps_are_let_pass_until_a_gap_is_used() -> None:
    def found(read: str, store: str) -> list[str]:
        text = ptx(COPY.format(read=read, store=store), "u64 x")
        return [m.removeprefix(at(text, "ld.local.", nth=2)) for m in messages(text, [x])]

    x = np.zeros(4, np.uint32)
    add = "\n    add.u32 %r4, %r4, %r3;"
    assert found("ld.local.u8 %r4, [two+4];" + add, "") == []
    assert found("ld.local.u32 %r4, [two+4];", "st.global.u32 [%rd0], %r4;") == []
    assert found("ld.local.u8 %r4, [two+5];", "st.global.u8 [%rd0], %r4;") == []
    assert found("ld.local.u8 %r4, [two+4];", "st.global.v2.u32 [%rd0], {%r4, %r4};") == []
    assert found("ld.local.u32 %r4, [two+4];" + add, "") == [
        "uninitialised: local address 0x10000d (two) is read before it was written"
    ]
    assert found("ld.local.u16 %rs4, [two+6];", "st.global.u16 [%rd0], %rs4;") == [
        "uninitialised: local address 0x10000e (two) is read before it was written"
    ]


def test_copies_with_gaps_pass_behind_other_functions_as_well() -> None:
    store = "st.global.u32 [%rd0], %r4;"
    body = COPY.format(read="call used, (%r3);\n    ld.local.u32 %r4, [two+4];", store=store)
    used = """
    .func used(.reg .u32 n)
    {
        .reg .u32 m;
        add.u32 m, n, 1;
        xor.b32 m, m, n;
        ret;
    }
    """
    text = ptx(body, "u64 x").replace(".visible", used + ".visible")
    assert messages(text, [np.zeros(4, np.uint32)]) == []


# ---- mbarriers ----------------------------------------------------------------------------------

MBARRIER = """
    .shared .align 8 .b64 bars[2];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 3;
    @%p0 mbarrier.init.shared.b64 [bars+8], 1;
    bar.sync 0;
    {use}
    bar.sync 0;
    {after}
    ret;
    """
ARRIVE = "@%p0 mbarrier.arrive.shared.b64 %rd2, [bars+8];"


def mbarrier(use: str, after: str = "", params: str = "") -> str:
    return ptx(MBARRIER.format(use=use, after=after), params, version="8.0", target="sm_90a")


def sync_lines(text: str, args: list[Any]) -> list[str]:
    """What the sanitizer `sync` reports, whether or not the kernel is stopped in the end."""
    try:
        found = messages(text, args)
    except TrapError as error:
        found = [line.strip() for line in str(error).splitlines()]
    return [line for line in found if ": sync: " in line]


def about_mbarrier(text: str, instruction: str, why: str, *, made: bool = True) -> str:
    line = line_of(text, "mbarrier.init")
    maker = text.splitlines()[line - 1].strip()
    by = f"; it was initialised by {maker} (line {line})" if made else ""
    return at(text, instruction, 3) + f"sync: shared address 0x8 (bars): {why}{by}"


@pytest.mark.parametrize(
    "use",
    [
        "@%p0 st.shared.u8 [bars+15], 1;",
        "@%p0 st.shared.v2.b64 [bars], {%rd8, %rd8};",
        "@%p0 atom.shared.add.u32 %r2, [bars+8], 0;",
        "@%p0 cp.async.ca.shared.global [bars+8], [%rd1], 8;",
    ],
)
def test_what_writes_over_an_mbarrier_is_found_and_ends_it(use: str) -> None:
    body = "mov.u64 %rd8, 5;\n    ld.param.u64 %rd1, [x];\n    " + use
    over = "writes over an mbarrier; mbarrier.inval must come first"
    text = mbarrier(body, "cp.async.wait_all;", params="u64 x")
    x = np.zeros(2, np.uint64)
    assert sync_lines(text, [x]) == [about_mbarrier(text, use[5:], over)]
    again = mbarrier(body, "cp.async.wait_all;\n    " + ARRIVE, params="u64 x")
    line = line_of(again, use[5:])
    gone = f"there is no mbarrier: {use} (line {line}) has written over it"
    assert sync_lines(again, [x]) == [
        about_mbarrier(again, use[5:], over),
        about_mbarrier(again, "arrive", gone, made=False),
    ]
    before = "@%p0 mbarrier.inval.shared.b64 [bars+8];\n    "
    text = mbarrier(before + body, "cp.async.wait_all;", params="u64 x")
    assert sync_lines(text, [x]) == []


def test_bytes_beside_an_mbarrier_are_free() -> None:
    text = mbarrier("@%p0 st.shared.b64 [bars], 5;\n    @%p0 ld.shared.b64 %rd3, [bars];")
    assert messages(text, []) == []


def test_an_ordinary_load_of_an_mbarrier_is_found() -> None:
    text = mbarrier("@%p0 ld.shared.u32 %r2, [bars+12];")
    assert messages(text, []) == [
        about_mbarrier(text, "ld.shared", "reads an mbarrier, whose contents are not defined")
    ]


def test_a_bulk_copy_over_an_mbarrier_is_found() -> None:
    text = mbarrier(
        """ld.param.u64 %rd1, [x];
    fence.proxy.async;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 %rd2, [bars+8], 16;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [bars], [%rd1], 16, """
        "[bars+8];",
        "@%p0 mbarrier.test_wait.parity.shared.b64 %p1, [bars+8], 0;",
        params="u64 x",
    )
    line = line_of(text, "bulk")
    copy = text.splitlines()[line - 1].strip()
    gone = f"there is no mbarrier: {copy} (line {line}) has written over it"
    found = [x for x in sync_lines(text, [np.zeros(2, np.uint64)]) if "(bars)" in x]
    assert found == [
        about_mbarrier(text, "bulk", "writes over an mbarrier; mbarrier.inval must come first"),
        about_mbarrier(text, "bulk", gone, made=False),
    ]


def test_an_mbarrier_that_was_ended_is_used_no_more() -> None:
    end = "@%p0 mbarrier.inval.shared.b64 [bars+8];"
    text = mbarrier(end, ARRIVE)
    assert [m.strip() for m in trap(text, []).splitlines()] == [
        at(text, "arrive", 3) + "there is no mbarrier: mbarrier.init must come first",
        "before that, kernel k: the sanitizer reports 1 problem:",
        about_mbarrier(
            text,
            "arrive",
            f"there is no mbarrier: {end} (line {line_of(text, 'inval')}) has ended it",
            made=False,
        ),
    ]
    again = mbarrier(end, "@%p0 mbarrier.init.shared.b64 [bars+8], 2;\n    " + ARRIVE)
    assert messages(again, []) == []


def test_a_word_that_only_looks_like_an_mbarrier_is_none() -> None:
    word = 1 << 61 | 1 << 60 | 2 << 20 | 2  # as `ptxgen.isa.mbarrier_word` packs it
    text = mbarrier(f"@%p0 st.shared.b64 [bars], {word};", "@%p0 mbarrier.arrive.shared.b64 %rd2, [bars];")
    assert messages(text, []) == [
        at(text, "arrive", 3) + "sync: shared address 0x0 (bars): there is no mbarrier: "
        "mbarrier.init must come first"
    ]


def test_an_mbarrier_is_not_made_again_while_it_is_one() -> None:
    text = mbarrier("@%p0 mbarrier.init.shared.b64 [bars+8], 2;")
    assert messages(text, []) == [
        about_mbarrier(
            text,
            "[bars+8], 2",
            "the mbarrier at 0x8 is initialised again while it is valid; mbarrier.inval must come first",
        )
    ]


# ---- barriers with counts -----------------------------------------------------------------------


def in_warps(*bodies: str) -> str:
    """Each warp runs a body of its own; then all write what is in %r4 to their word of x."""
    text = ["mov.u32 %r0, %tid.x;", "shr.u32 %r1, %r0, 5;", "mov.u32 %r4, 0;"]
    for n, body in enumerate(bodies):
        text += [f"setp.ne.u32 %p0, %r1, {n};", f"@%p0 bra $next{n};", body, f"$next{n}:"]
    store = "mul.wide.u32 %rd1, %r0, 4;\nadd.u64 %rd0, %rd0, %rd1;\nst.global.u32 [%rd0], %r4;"
    return ptx("\n".join([*text, "ld.param.u64 %rd0, [x];", store, "ret;"]), "u64 x")


def deadlock(text: str, *groups: tuple[int, str, str], ended: str) -> str:
    """What is said where threads of warps, by the first, wait for something in an instruction."""
    waits = "; ".join(
        f"32 threads ({', '.join(f'({n}, 0, 0)' for n in range(first, first + 4))} and 28 more) "
        f"wait at {what} in {instr} (line {line_of(text, instr)})"
        for first, what, instr in groups
    )
    return f"kernel k: deadlock in CTA (0, 0, 0): {waits}; {ended} threads have exited"


def test_each_warp_may_use_one_barrier_by_itself() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 63;
    setp.lt.u32 %p0, %r1, 40;
    bar.red.popc.u32 %r4, 1, 32, %p0;
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r4;
    ret;
    """
    x = np.zeros(128, np.uint32)
    assert messages(ptx(body, "u64 x"), [x], block=128) == []
    assert x.tolist() == [32] * 32 + [8] * 32 + [32] * 32 + [8] * 32


def test_more_warps_than_a_barrier_counts_are_found_and_the_first_go_on() -> None:
    text = ptx("bar.sync 1, 64;\nret;")
    open_ = "threads have come to barrier 1 at once, which waits for 64: which of them go on together"
    assert messages(text, [], block=128) == [at(text, "bar", 127) + f"sync: 128 {open_} is open"]
    stuck = deadlock(
        text, (64, "barrier 1 (32 of 64 threads have come)", "bar.sync 1, 64;"), ended="64 of 96"
    )
    assert [line.strip() for line in trap(text, [], block=96).splitlines()] == [
        stuck,
        "before that, kernel k: the sanitizer reports 1 problem:",
        at(text, "bar", 95) + f"sync: 96 {open_} is open",
    ]


def test_fewer_warps_than_a_barrier_counts_wait_for_ever() -> None:
    text = in_warps("bar.sync 2, 96;", "bar.arrive 2, 96;", "")
    assert trap(text, [np.zeros(96, np.uint32)], block=96) == deadlock(
        text, (0, "barrier 2 (64 of 96 threads have come)", "bar.sync 2, 96;"), ended="64 of 96"
    )


@pytest.mark.parametrize("second", ["bar.arrive 1, 96;", "bar.sync 1, 96;"])
def test_a_warp_that_comes_twice_to_a_barrier_is_found(second: str) -> None:
    text = in_warps("bar.arrive 1, 96;\nmov.u32 %r4, 7;\n" + second, "bar.sync 1, 96;")
    x = np.zeros(64, np.uint32)
    assert messages(text, [x], block=64) == [
        at(text, second, nth=1 if "arrive" in second else 0)
        + "sync: comes to barrier 1 again before the others have: it counts twice"
    ]
    assert x.tolist() == [7] * 32 + [0] * 32


@pytest.mark.parametrize("threads", [32, 64, 96])
def test_warps_may_arrive_at_a_barrier_and_wait_there_if_all_that_come_do(threads: int) -> None:
    count = 2 * threads
    text = ptx(f"bar.arrive 1, {count};\nbar.sync 1, {count};\nret;")
    assert messages(text, [], block=threads) == []


def test_a_warp_may_let_itself_begin_to_take_turns() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bar.arrive 1, 64;
$again:
    @%p0 bar.sync 1, 64;
    @%p0 bar.arrive 2, 64;
    @!%p0 bar.sync 2, 64;
    @!%p0 bar.arrive 1, 64;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra $again;
    ret;
    """)
    assert messages(text, [], block=64) == []


def test_arrivals_complete_a_barrier_that_nobody_waits_at() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 32;
    bar.arrive 1, 64;
    @%p0 bar.arrive 1, 64;
    @!%p0 bar.sync 1, 64;
    ret;
    """)
    assert messages(text, [], block=64) == []


def test_two_warps_may_hand_over_to_each_other_again_and_again() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
    setp.lt.u32 %p0, %r0, 32;
$again:
    @%p0 bar.arrive 1, 64;
    @!%p0 bar.sync 1, 64;
    @!%p0 bar.arrive 2, 64;
    @%p0 bar.sync 2, 64;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra $again;
    ret;
    """)
    assert messages(text, [], block=64) == []


def test_a_barrier_is_not_used_with_another_count_while_some_wait_there() -> None:
    text = in_warps("bar.sync 1, 64;", "bar.arrive 1, 96;", "bar.sync 1;")
    assert trap(text, [np.zeros(64, np.uint32)], block=64) == (
        at(text, "bar.arrive", 32)
        + "comes to barrier 1 for 96 threads, but others have come to it for 64 threads"
    )
    text = in_warps("bar.sync 1, 64;", "bar.sync 1;")
    assert trap(text, [np.zeros(64, np.uint32)], block=64) == (
        at(text, "bar.sync 1;", 32)
        + "comes to barrier 1 for all threads, but others have come to it for 64 threads"
    )


# ---- registers ----------------------------------------------------------------------------------

PRODUCER_AND_CONSUMER = """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 128;
    @%p0 bra $consumer;
    {producer}
    bra $end;
$consumer:
    {consumer}
$end:
    bar.sync 0;
    ret;
    """
DEC_40 = "setmaxnreg.dec.sync.aligned.u32 40;"
INC_216 = "setmaxnreg.inc.sync.aligned.u32 216;"


def specialised(producer: str, consumer: str, directives: str = ".maxnreg 128") -> str:
    body = PRODUCER_AND_CONSUMER.format(producer=producer, consumer=consumer)
    text = ptx(body, version="8.0", target="sm_90a")
    return text.replace("\n)\n{", f"\n) {directives}\n{{")


@pytest.mark.parametrize("directives", [".maxnreg 128", ".maxnreg 121", ".reqntid 256 .minnctapersm 2"])
def test_a_warpgroup_gets_the_registers_that_another_gives_back(directives: str) -> None:
    assert messages(specialised(DEC_40, INC_216, directives), [], block=256) == []
    assert messages(specialised(INC_216, DEC_40, directives), [], block=256) == []


def test_registers_that_nobody_gives_back_are_waited_for_for_ever() -> None:
    text = specialised("", INC_216)
    inc, bar = line_of(text, "setmaxnreg"), line_of(text, "bar.sync")
    assert trap(text, [], block=256) == (
        "kernel k: deadlock in CTA (0, 0, 0): 128 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), "
        "(3, 0, 0) and 124 more) wait at the CTA's pool of registers (2816 wanted for its warp, 0 "
        f"free) in {INC_216} (line {inc}); 128 threads ((128, 0, 0), (129, 0, 0), (130, 0, 0), "
        f"(131, 0, 0) and 124 more) wait at barrier 0 in bar.sync 0; (line {bar}); 0 of 256 "
        "threads have exited"
    )


def test_registers_of_warps_that_have_ended_are_free() -> None:
    text = specialised("exit;", INC_216.replace("216", "240"))
    assert messages(text, [], block=256) == []


def test_a_kernel_says_how_many_registers_it_begins_with() -> None:
    for directives in ("", ".maxntid 256", ".reqntid 256"):
        text = specialised(DEC_40, "", directives)
        assert messages(text, [], block=256) == [
            at(text, "setmaxnreg", 128) + "sync: the assembler ignores it, as it does not know the "
            "registers at entry; give the kernel .maxnreg, or .maxntid and .minnctapersm"
        ]


def test_all_warps_of_a_warpgroup_change_their_registers_alike() -> None:
    some = f"and.b32 %r1, %r0, 96;\n    setp.eq.u32 %p1, %r1, 64;\n    @%p1 {{}}\n    {DEC_40}"
    text = specialised(some.replace("{}", "bra $skip;") + "\n$skip:", "")
    assert messages(text, [], block=256) == [
        at(text, "setmaxnreg", 128) + "sync: all warps of a warpgroup execute it, but warp 6 has not"
    ]
    other = DEC_40.replace("40", "48")
    text = specialised(some.replace("{}", "bra $other;") + f"\n    bra $end;\n$other:\n    {other}", "")
    assert messages(text, [], block=256) == [
        at(text, DEC_40, 128) + "sync: all warps of a warpgroup execute the same, but warp 6 has "
        "executed setmaxnreg.dec to 48"
    ]
    text = specialised(DEC_40, "")
    assert messages(text, [], block=224) == [
        at(text, "setmaxnreg", 128) + "sync: all 4 warps of a warpgroup execute it, but the CTA ends with 3"
    ]


def test_registers_go_the_way_that_is_said_to_multiples_of_8() -> None:
    for to, count in (("dec", 136), ("inc", 120)):
        text = specialised(f"setmaxnreg.{to}.sync.aligned.u32 {count};", "")
        assert messages(text, [], block=256) == [
            at(text, "setmaxnreg", 128)
            + f"sync: setmaxnreg.{to} to {count}, but a thread has 128 registers at this point"
        ]
        same = text.replace(str(count) + ";", "128;")
        assert messages(same, [], block=256) == []
    for count in (16, 44, 264):
        text = specialised(DEC_40.replace("40", str(count)), "")
        assert trap(text, [], block=256) == (
            at(text, "setmaxnreg", 128) + f"setmaxnreg takes a multiple of 8 from 24 to 256, got {count}"
        )


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "directives",
    [
        "",
        ".maxnreg 168",
        ".maxntid 384",
        ".maxntid 384 .minnctapersm 1",
        ".minnctapersm 1",
        ".reqntid 96,4 .minnctapersm 1",
        ".maxntid 1024 .minnctapersm 1",
        ".reqntid 256",
        ".maxntid 384 .minnctapersm 2",
        ".maxntid 384 .maxnreg 128 .minnctapersm 1",
        ".maxntid 100 .minnctapersm 5",
        ".maxntid 128 .minnctapersm 1",
    ],
)
def test_registers_at_entry_are_those_of_ptxas(assembler: Assembler, directives: str) -> None:
    text = specialised("", DEC_40.replace("40", "24"), directives)
    (kernel,) = parse(text).kernels
    count = registers_at_entry(kernel)
    if count:
        assert assembler.assemble(text, "sm_90a").kernel("k").registers == count
    else:
        with pytest.raises(AssemblerError, match="unable to determine register count at entry"):
            assembler.assemble(text, "sm_90a")


# ---- threads that poll for ever -----------------------------------------------------------------

SPIN = """
    .shared .align 8 .b64 bars[2];
    mov.u32 %r0, %tid.x;
    mov.u32 %r3, 0;
    mov.u32 %r4, %clock;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [bars], 1;
    @%p0 mbarrier.init.shared.b64 [bars+8], 1;
    bar.sync 0;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra $other;
$first:
    mbarrier.test_wait.parity.shared.b64 %p2, [bars+8], 0;
    {more}
    @!%p2 bra $first;
    mbarrier.arrive.shared.b64 %rd0, [bars];
    ret;
$other:
    {other}
    ret;
    """
OTHER = """
$second:
    mbarrier.test_wait.parity.shared.b64 %p2, [bars], 0;
    @!%p2 bra $second;
    mbarrier.arrive.shared.b64 %rd0, [bars+8];
    """


def spinning(more: str = "", other: str = "") -> str:
    return ptx(SPIN.format(more=more, other=other), version="8.0", target="sm_90a")


def polls(text: str, first: int, last: int, address: str, *, threads: str) -> str:
    line = line_of(text, f"test_wait.parity.shared.b64 %p2, [bars{'+8' * (address == '0x8')}]")
    instr = text.splitlines()[line - 1].strip()
    return (
        f"{threads} threads ({', '.join(f'({n}, 0, 0)' for n in range(first, first + 4))} and "
        f"{last - first - 4} more) poll the mbarrier at {address} (bars), "
        f"whose phase waits for 1 arrival more, in {instr} (line {line})"
    )


@pytest.mark.parametrize("more", ["", "nanosleep.u32 20;", "ld.shared.u32 %r9, [%r3+8];"])
def test_a_poll_that_nobody_can_end_is_a_deadlock(more: str) -> None:
    text = spinning(more)
    found = trap(text, [], block=64).splitlines()
    assert found[0] == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; 32 of 64 threads have exited"
    )


@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_two_warps_that_poll_for_each_other_are_a_deadlock(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_PATIENCE", 2000)  # each has its turn sooner
    text = spinning(other=OTHER)
    assert trap(text, [], block=64, schedule=schedule) == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; "
        + polls(text, 0, 32, "0x0", threads="32")
        + "; 0 of 64 threads have exited"
    )


def test_others_that_wait_are_named_with_those_that_poll() -> None:
    text = spinning(other="bar.sync 1, 64;")
    bar = line_of(text, "bar.sync 1")
    assert trap(text, [], block=64) == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; 32 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0) and 28 more) wait at barrier 1 "
        f"(32 of 64 threads have come) in bar.sync 1, 64; (line {bar}); 0 of 64 threads have exited"
    )


COUNTER = """red.shared.add.u32 [count], 1;
    ld.shared.u32 %r5, [count];
    shr.u32 %r5, %r5, 13;
    setp.ne.or.u32 %p2, %r5, 0, %p2;"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "more",
    [
        "add.u32 %r3, %r3, 1;\n    setp.gt.or.u32 %p2, %r3, 256, %p2;",
        "mov.u32 %r5, %clock;\n    sub.u32 %r5, %r5, %r4;\n    shr.u32 %r5, %r5, 11;\n"
        "    setp.ne.or.u32 %p2, %r5, 0, %p2;",
        COUNTER,
    ],
    ids=["counter", "clock", "memory"],
)
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_polls_that_give_up_in_the_end_are_left_alone(more: str, schedule: str) -> None:
    text = spinning(more).replace("bars[2];", "bars[2];\n    .shared .b32 count;\n", 1)
    text = text.replace("bar.sync 0;", "st.shared.u32 [count], 0;\n    bar.sync 0;", 1)
    run_both_ways(text, grid=1, block=64, args=[], schedule=schedule, sanitize="sync")


@pytest.mark.parametrize("poll", [0, 1000])
def test_threads_that_have_not_had_their_turn_may_end_a_poll(
    poll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_POLL", poll)  # 0: those that poll are served for long
    monkeypatch.setattr(policies, "_PATIENCE", 2000)
    arrive = "mbarrier.arrive.shared.b64 %rd0, [bars];"
    early = spinning(other=f"@%p0 {arrive.replace('bars', 'bars+8')}").replace(f"    {arrive}", "")
    run_both_ways(early, grid=1, block=64, args=[], sanitize=False)
    first = "mbarrier.test_wait.parity.shared.b64 %p2, [bars+8], 0;"
    one = f"setp.eq.u32 %p3, %r0, 32;\n    @%p3 {arrive}"
    late = spinning(other=OTHER[: OTHER.rindex("mbarrier")]).replace(arrive, one)
    late = late.replace(first, "setp.ne.u32 %p2, %r0, 0;")
    run_both_ways(late, grid=1, block=64, args=[], sanitize=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_is_late_may_end_a_poll(seed: int) -> None:
    text = ptx(
        """
    .shared .align 16 .b8 tile[16];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [x];
    mbarrier.init.shared.b64 [bar], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 %rd1, [bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0], 16, [bar];
$wait:
    mbarrier.test_wait.shared.b64 %p0, [bar], %rd1;
    @!%p0 bra $wait;
    ld.shared.u32 %r1, [tile];
    st.global.u32 [%rd0+4], %r1;
    ret;
    """,
        "u64 x",
        version="8.0",
        target="sm_90a",
    )
    x = np.array([7, 0, 0, 0], np.uint32)
    assert messages(text, [x], block=1, schedule=f"pct:{seed}") == []
    assert x[1] == 7


def test_a_poll_that_changes_and_never_ends_is_named_at_the_cap() -> None:
    text = spinning("add.u32 %r3, %r3, 1;")
    line = line_of(text, "test_wait")
    instr = text.splitlines()[line - 1].strip()
    assert trap(text, [], block=64, max_instructions=2500) == (
        f"kernel k: still running after 2500 instructions in a row, at {instr} (line {line}): "
        "thread (32, 0, 0) of CTA (0, 0, 0) and 31 others; if it is not an endless loop, raise "
        f"max_instructions; (32, 0, 0) polls the mbarrier at 0x8 (bars), whose phase waits for 1 "
        f"arrival more, in {instr} (line {line})"
    )


# ---- memory from malloc --------------------------------------------------------------------------

HEAP = """
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func free(.param .b64 pointer);
"""


def make_and_write(nbytes: int) -> str:
    """Each thread gets 24 bytes, writes some of them, and keeps the pointer in its element of x."""
    body = f"""
    .param .b64 p;
    .param .b64 q;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd2, [x];
    mul.wide.u32 %rd3, %r0, 8;
    add.u64 %rd2, %rd2, %rd3;
    st.param.b64 [p], 24;
    call (q), malloc, (p);
    ld.param.b64 %rd1, [q];
    st.global.u64 [%rd2], %rd1;
    st.global.u{8 * nbytes} [%rd1+8], 1;
    ret;
    """
    return ptx(body, "u64 x").replace(".visible", HEAP + ".visible")


READ_BACK = ptx(
    """
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd2, [x];
    mul.wide.u32 %rd3, %r0, 8;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.u64 %rd1, [%rd2];
    ld.global.u32 %r1, [%rd1+8];
    st.global.u64 [%rd2], 0;
    ret;
""",
    "u64 x",
)


@pytest.mark.parametrize(
    ("nbytes", "watched", "clean"),
    [(4, "all", True), (8, "all", True), (2, "all", False), (2, False, True), (2, "bounds", True)],
)
def test_what_a_launch_has_written_of_memory_from_malloc_the_next_one_may_read(
    nbytes: int, watched: Any, clean: bool
) -> None:
    x, arena = np.zeros(32, np.uint64), DeviceArena()
    run(make_and_write(nbytes), grid=1, block=32, args=[x], arena=arena, sanitize=watched)
    pointer = int(x[0])
    result = run(READ_BACK, grid=1, block=32, args=[x], arena=arena, sanitize="all", raise_on_report=False)
    found = [r.message for r in result.reports]
    wanted = at(READ_BACK, "[%rd1+8]") + (
        f"uninitialised: global address {pointer + 8:#x} (malloc of thread (0, 0, 0) of CTA "
        "(0, 0, 0)) is read before it was written"
    )
    assert found == ([] if clean else [wanted])


@pytest.mark.parametrize(
    ("access", "verb"),
    [
        ("ld.u32 %r1, [%rd1+8];", "read 4 bytes of generic"),
        ("st.global.u32 [%rd1+8], 1;", "write 4 bytes of global"),
        ("atom.global.add.u32 %r1, [%rd1+8], 1;", "update 4 bytes of global"),
    ],
)
def test_memory_that_was_freed_is_called_so_and_never_given_again(access: str, verb: str) -> None:
    body = """
    .param .b64 p;
    .param .b64 q;
    mov.u32 %r0, %tid.x;
    st.param.b64 [p], 24;
    call (q), malloc, (p);
    ld.param.b64 %rd1, [q];
    setp.ne.u32 %p0, %r0, 1;
    @%p0 bra $more;
    st.param.b64 [p], %rd1;
    call free, (p);
$more:
    st.param.b64 [p], 24;
    call (q), malloc, (p);
    {access}
    ret;
    """
    text = ptx(body.format(access=access)).replace(".visible", HEAP + ".visible")
    # Each thread's memory begins a red zone of 1 MiB behind the one before.
    base = (1 << 33) + (1 << 20) + 256
    assert trap(text, [], block=2) == (
        at(text, access, 1)[:-2] + f" wants to {verb} memory at {base + 8:#x}, at byte 8 of malloc "
        f"of thread (1, 0, 0) of CTA (0, 0, 0) ({base:#x}, 24 bytes), which thread (1, 0, 0) of "
        f"CTA (0, 0, 0) in call free, (p); (line {line_of(text, 'call free')}) has freed"
    )


# ---- registers that were never written ----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("mov.u32 %r3, %r5;", []),
        ("mov.u32 %r3, %r5;\nmov.b64 %rd2, {%r3, %r0};\nmov.b64 {%r6, %r7}, %rd2;", []),
        ("mov.u32 %r3, %r5;\n@%p0 mov.u32 %r3, 1;\n@%p0 st.shared.u32 [buf], %r3;", []),
        ("mov.u32 %r3, 1;\nmov.u32 %r3, %r5;\nadd.u32 %r4, %r3, 1;", [("add.u32", "%r3", 0)]),
        ("mov.u32 %r3, 1;\n@%p0 mov.u32 %r3, %r5;\nadd.u32 %r4, %r3, 1;", [("add.u32", "%r3", 0)]),
        ("mov.u32 %r3, 1;\n@!%p0 mov.u32 %r3, %r5;\nadd.u32 %r4, %r3, 1;", [("add.u32", "%r3", 1)]),
        (
            "mov.u32 %r3, %r5;\nmov.b64 %rd2, {%r0, %r3};\nst.shared.u64 [buf], %rd2;",
            [("st.shared.u64", "%rd2", 0)],
        ),
        (
            "mov.u32 %r3, %r5;\nbar.sync 0;\nmov.u32 %r4, %r3;\nbar.sync 0;\nadd.u32 %r4, %r4, 1;",
            [("add.u32", "%r4", 0)],
        ),
        ("add.u32 %r4, %r5, 1;", [("add.u32", "%r5", 0)]),
    ],
)
def test_an_undefined_register_is_reported_where_it_is_used_and_not_where_it_is_copied(
    body: str, found: list[tuple[str, str, int]]
) -> None:
    head = "mov.u32 %r0, %tid.x;\nsetp.eq.u32 %p0, %r0, 0;\n"
    text = ptx(f"{head}{body}\nret;", shared=8)
    assert messages(text, [], sanitize="init") == [
        at(text, line, thread) + f"undefined: reads {register}, which it has not written"
        for line, register, thread in found
    ]


# ---- reads of several CTAs ----------------------------------------------------------------------


def test_a_read_that_was_looked_at_before_is_not_forgotten_at_the_next_look() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r3, 0;
    @%p0 bra $reads;
$waits:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 50;
    @%p1 bra $waits;
    st.global.u32 [%rd0], 7;
    ret;
$reads:
    ld.global.u32 %r1, [%rd0];
    st.global.u32 [%rd0+4], %r1;
    ld.global.u32 %r2, [%rd0+8];
    ret;
    """,
        "u64 x",
    )
    (found,) = messages(text, [np.zeros(4, np.uint32)], grid=2, block=1)
    assert found.startswith(at(text, "[%rd0], 7;")), found
    assert "was read by thread (0, 0, 0) of CTA (1, 0, 0)" in found


@pytest.mark.parametrize(
    ("release", "acquire", "raced"),
    [
        ("st.release.gpu", "ld.acquire.gpu", []),
        ("st.release.cluster", "ld.acquire.gpu", ["data"]),
        ("st.release.cta", "ld.acquire.gpu", ["data"]),
        ("st.release.gpu", "ld.relaxed.gpu", ["data"]),
        ("st.release.gpu", "ld", ["flag", "data"]),
    ],
)
def test_data_is_handed_from_cta_to_cta_by_release_and_acquire_of_the_gpu_only(
    release: str, acquire: str, raced: list[str]
) -> None:
    text = ptx(
        f"""
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r3, 0;
    @%p0 bra $gives;
$waits:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 50;
    @%p1 bra $waits;
    {acquire}.global.u32 %r1, [%rd0];
    ld.global.u32 %r2, [%rd0+4];
    ret;
$gives:
    st.global.u32 [%rd0+4], 1;
    {release}.global.u32 [%rd0], 1;
    ret;
    """,
        "u64 x",
        version="8.0",
        target="sm_90",
    )
    found = messages(text, [np.zeros(2, np.uint32)], grid=2, block=1)
    places = {"flag": "[%rd0];", "data": "[%rd0+4];"}
    assert [m[: len(at(text, places[p]))] for m, p in zip(found, raced, strict=True)] == [
        at(text, places[p]) for p in raced
    ]


def test_an_error_shows_ten_reports_and_counts_the_rest() -> None:
    loads = "\n".join(f"    ld.shared.u32 %r{n}, [buf+{4 * n}];" for n in range(13))
    text = ptx(f"{loads}\n    ret;", shared=64)
    message = trap(text, [], sanitize="init")
    assert message.startswith("kernel k: the sanitizer reports 13 problems:\n  kernel k: ld.shared")
    assert message.endswith("\n  and 3 more")
    assert message.count("\n") == 11


def test_a_copy_must_not_read_more_than_it_writes() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, 12;
    cp.async.ca.shared.global [buf], [%rd0], 8, %r0;
    cp.async.wait_all;
    ret;
    """,
        "u64 x",
        shared=16,
    )
    assert trap(text, [np.zeros(4, np.uint32)], block=1).endswith("copies 12 bytes into 8")


def test_one_lane_whose_copy_is_under_way_is_found_among_those_that_have_none() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, buf;
    mad.lo.u32 %r1, %r0, 4, %r1;
    st.shared.u32 [%r1], %r0;
    setp.eq.u32 %p0, %r0, 3;
    @%p0 cp.async.ca.shared.global [%r1], [%rd0], 4;
    ld.shared.u32 %r2, [%r1];
    ret;
    """,
        "u64 x",
        shared=128,
    )
    (found,) = messages(text, [np.zeros(4, np.uint32)])
    assert found.startswith(at(text, "ld.shared", 3) + "pending: shared address 0xc (buf)")


def test_shared_memory_that_the_system_reserves_holds_something() -> None:
    body = "mov.u32 %r1, %reserved_smem_offset_begin;\nld.shared.u32 %r2, [%r1];\nret;"
    text = ptx(body, shared=16, version="8.0", target="sm_90")
    assert messages(text, []) == []
    assert len(messages(text.replace("[%r1]", "[buf]"), [])) == 1


# ---- fences of the asynchronous proxy -----------------------------------------------------------


@pytest.mark.parametrize(("fence", "found"), [("", 1), (".shared::cta", 0), (".global", 1)])
def test_a_fence_of_the_asynchronous_proxy_shows_what_its_space_says(fence: str, found: int) -> None:
    text = (Path(__file__).parents[2] / "ptx" / "bugs" / "missing_proxy_fence.ptx").read_text()
    after = "st.shared.u32 [%r2], %r0;"
    if fence:
        text = text.replace(after, f"{after}\n    fence.proxy.async{fence};")
    y = np.zeros(128, np.uint32)
    reports = run(
        text, "send_tile", grid=1, block=128, args=[y], sanitize="proxy", raise_on_report=False
    ).reports
    assert len(reports) == found


SENT_TWICE = """
    ld.param.u64 %rd0, [y];
    mov.u32 %r1, buf;
    st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};
    st.shared.v4.u32 [%r1+16], {%r0, %r0, %r0, %r0};
    fence.proxy.async;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0+16], [%r1+16], 16;
    cp.async.bulk.commit_group;
    WAIT
    st.shared.u32 [%r1+AT], 7;
    cp.async.bulk.wait_group 0;
    ret;
"""


@pytest.mark.parametrize(
    ("wait", "place", "found"),
    [
        ("cp.async.bulk.wait_group.read 1;", 0, 0),
        ("cp.async.bulk.wait_group.read 1;", 16, 1),
        ("cp.async.bulk.wait_group.read 0;", 16, 0),
        ("cp.async.bulk.wait_group 1;", 0, 0),
        ("cp.async.bulk.wait_group 1;", 16, 1),
        ("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 1;", 16, 0),
    ],
)
def test_a_wait_for_bulk_groups_is_for_all_but_the_newest(wait: str, place: int, found: int) -> None:
    body = SENT_TWICE.replace("WAIT", wait).replace("AT", str(place))
    text = ptx("mov.u32 %r0, 1;\n" + body, "u64 y", shared=32, version="8.0", target="sm_90")
    assert len(messages(text, [np.zeros(8, np.uint32)], block=1)) == found


@pytest.mark.parametrize(
    ("wait", "found"),
    [
        ("cp.async.bulk.wait_group.read 0;", 1),
        ("cp.async.bulk.wait_group 0;", 0),
        ("cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;", 0),
    ],
)
def test_what_a_bulk_copy_writes_is_there_after_a_wait_for_more_than_its_reads(wait: str, found: int) -> None:
    body = SENT_TWICE.replace("WAIT", wait).replace("st.shared.u32 [%r1+AT], 7;", "")
    load = "    fence.proxy.async;\n    ld.global.u32 %r2, [%rd0];\n    cp.async.bulk.wait_group 0;"
    body = body.replace("    cp.async.bulk.wait_group 0;\n    ret;", f"{load}\n    ret;")
    text = ptx("mov.u32 %r0, 1;\n" + body, "u64 y", shared=32, version="8.0", target="sm_90")
    assert len(messages(text, [np.zeros(8, np.uint32)], block=1)) == found


def may_give_up(use: str = "") -> str:
    """A thread waits for an mbarrier, and then uses its predicate."""
    body = """
    mov.u32 %r0, buf;
    mbarrier.init.shared.b64 [%r0], 1;
    mbarrier.arrive.shared.b64 %rd0, [%r0];
    mbarrier.try_wait.shared.b64 %p0, [%r0], %rd0;
    {use}
    ret;
    """
    return ptx(body.format(use=use), shared=8, version="8.0", target="sm_90")


def test_a_wait_that_may_give_up_is_named() -> None:
    text = may_give_up()
    (found,) = messages(text, [], block=1)
    assert found.startswith(at(text, "mbarrier.try_wait")), found
    assert found.endswith("the wait may give up, and nothing looks at its predicate")


@pytest.mark.parametrize(
    "use",
    ["@!%p0 trap;", "not.pred %p1, %p0;", "setp.ne.and.u32 %p1, %r0, 0, !%p0;"],
    ids=["guard", "operand", "negated operand"],
)
def test_a_wait_whose_predicate_is_read_is_not_named(use: str) -> None:
    assert messages(may_give_up(use), [], block=1) == []


@pytest.mark.parametrize("barrier", [0, 15])
def test_a_cta_has_sixteen_barriers(barrier: int) -> None:
    text = ptx(f"bar.sync {barrier};\n    barrier.sync {barrier}, 64;\n    ret;")
    run_both_ways(text, grid=2, block=64, args=[])


@pytest.mark.parametrize(("depth", "changes"), [(1, 0), (2, 1), (3, 2)])
def test_a_depth_has_a_change_point_less_in_each_doubling_of_the_run(depth: int, changes: int) -> None:
    points = policies._changes(np.random.default_rng(0), depth)
    found = list(itertools.takewhile(lambda point: point < 1024, points))
    for start, end in ((0, 256), (256, 512), (512, 1024)):
        assert sum(start <= point < end for point in found) == changes
