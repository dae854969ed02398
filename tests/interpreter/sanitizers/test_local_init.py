"""What the sanitizers find of local memory that was never written."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import ptx
from interpreter.reported import at, messages


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
