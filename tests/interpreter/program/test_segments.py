from __future__ import annotations

from interpreter.programs import ptx

from ptxgen.interpreter.program.segments import Segment, segments
from ptxgen.parse import parse


def parts(body: str) -> list[Segment]:
    return segments(parse(ptx(body, returns=False)).kernels[0])


def opcodes(segment: Segment) -> list[str]:
    return [s.instr.opcode for s in segment.steps]


def test_a_loops_body_comes_before_what_follows_the_loop() -> None:
    result = parts("""
    mov.u32 %r0, 0;
$head:
    setp.ge.u32 %p0, %r0, 5;
    @%p0 bra $done;
    setp.ge.u32 %p1, %r0, 3;
    @%p1 bra $next;
    xor.b32 %r1, %r0, 1;
$next:
    add.u32 %r0, %r0, 1;
    bra $head;
$done:
    sub.u32 %r1, %r1, 1;
    ret;
    """)
    assert [opcodes(s)[0] for s in result] == [
        *("mov.u32", "setp.ge.u32", "setp.ge.u32", "xor.b32", "add.u32", "sub.u32")
    ]
    assert [s.successors for s in result] == [(1,), (2, 5), (3, 4), (4,), (1,), ()]


def test_a_slow_path_out_of_line_comes_before_the_place_where_it_joins() -> None:
    result = parts("""
    setp.ge.u32 %p0, %r0, 5;
    @%p0 bra $slow;
$join:
    add.u32 %r0, %r0, 1;
    ret;
$slow:
    xor.b32 %r0, %r0, 1;
    bra $join;
    """)
    assert [opcodes(s)[0] for s in result] == ["setp.ge.u32", "xor.b32", "add.u32"]


def test_nested_loops_stay_contiguous() -> None:
    result = parts("""
$outer:
    mov.u32 %r0, 0;
$inner:
    add.u32 %r0, %r0, 1;
    setp.lt.u32 %p0, %r0, 5;
    @!%p0 bra $after;
    xor.b32 %r1, %r0, 1;
    bra $inner;
$after:
    sub.u32 %r2, %r2, 1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra $outer;
    or.b32 %r1, %r0, 1;
    ret;
    """)
    assert [opcodes(s)[0] for s in result] == ["mov.u32", "add.u32", "xor.b32", "sub.u32", "or.b32"]


def test_a_barrier_ends_a_segment() -> None:
    result = parts("mov.u32 %r0, 1;\n    bar.sync 0;\n    add.u32 %r1, %r0, 1;\n    bar.sync 0;")
    assert [(opcodes(s), s.after, s.waits) for s in result] == [
        (["mov.u32", "bar.sync"], 1, True),
        (["add.u32", "bar.sync"], 2, True),
        ([], -1, False),
    ]


def test_an_empty_kernel_has_no_segments_to_run() -> None:
    assert parts("") == []
