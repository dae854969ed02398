"""What the sanitizers find of local memory that was never written."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import at, located, ptx
from interpreter.reported import messages

USE = """
    setp.lt.u32 %p9, {register}, 0x10000000;
    @%p9 bra $used;
$used:
"""


def used(text: str, load: str, address: int, variable: str, thread: int = 0, nth: int = 0) -> str:
    """The message about the branch behind `USE`, which depends on local memory that `load` has read."""
    return at(text, "@%p9", thread) + (
        f"uninitialised: its guard %p9 depends on local address {address:#x} ({variable}), which nothing "
        f"has written; it was read by {located(text, load, nth)}"
    )


def test_a_local_variable_that_only_some_threads_have_written_is_named() -> None:
    text = ptx(
        """
    .local .align 8 .b8 first[8];
    .local .align 8 .b8 second[16];
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 5;
    st.local.u32 [second], %r0;
    @%p0 st.local.u32 [second+4], %r0;
    ld.local.v2.u32 {%r1, %r2}, [second];
    add.u32 %r1, %r1, %r2;
    """
        + USE.format(register="%r1")
        + "ret;"
    )
    assert messages(text) == [used(text, "ld.local", 0x10000C, "second", 5)]
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
    setp.lt.u32 %p9, %r0, 0x02800000;
    @%p9 bra $used;
$used:
    """
    text = ptx(body.format(byte=3))
    assert messages(text) == [used(text, "ld.u32", 0x100002, "own")]
    text = ptx(body.format(byte=3).replace("ld.u32", "st.u8 [%rd0+2], 9;\n    ld.u32"))
    assert messages(text) == []


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
    body = f"""
    call (%r1), f, (0);
    call (%r2), f, (1);
    {USE.format(register="%r2")}
    """
    text = ptx(body, before=function)
    address = {False: 0x100004, True: 0x100024}[recursive]
    assert messages(text) == [used(text, "ld.local", address, "stack")]
    assert messages(text.replace("@p st", "st"), []) == []


BY_VALUE = """
    .func (.param .align 4 .b8 out[8]) f(.param .align 4 .b8 in[8])
    {
        .reg .u32 n;
        .reg .pred %p9;
        ld.param.u32 n, [in];
        st.param.u32 [out], n;
        {read}
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
    """


def by_value(*, read: str = "", more: str = "") -> str:
    """A structure goes through function `f`, of which the second word may be missing."""
    function = BY_VALUE.replace("{read}", read)
    body = CALL.format(more=more) + ("" if "@%p9" in read else USE.format(register="%r1")) + "ret;"
    return ptx(body, before=function)


def test_a_structure_is_as_written_in_the_function_as_its_caller_left_it() -> None:
    both = "ld.param.u32 n, [in+4];\n        st.param.u32 [out+4], n;"
    text = by_value()
    assert messages(text) == [used(text, "[got+4]", 0x10000C, "got")]
    text = by_value(read=both)
    (message,) = messages(text)
    assert "local address 0x10002c (in), which nothing has written; it was read by ld.param" in message
    text = by_value(read=both + USE.format(register="n"))
    assert messages(text) == [used(text, "[in+4]", 0x10002C, "in")]
    assert messages(by_value(read=both, more="st.param.u32 [given+4], 8;")) == []


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
    """


def test_copies_of_structures_with_gaps_are_let_pass_until_a_gap_is_used() -> None:
    def found(read: str, store: str) -> list[str]:
        text = ptx(COPY.format(read=read, store=store))
        return [m.partition("depends on ")[2].partition(";")[0] for m in messages(text, [x])]

    x = np.zeros(4, np.uint32)
    use = USE.format(register="%r4")
    assert found("ld.local.u8 %r4, [two+4];" + use, "") == []
    assert found("ld.local.u32 %r4, [two+4];", "st.global.u32 [%rd0], %r4;") == []
    assert found("ld.local.u8 %r4, [two+5];", "st.global.u8 [%rd0], %r4;") == []
    assert found("ld.local.u8 %r4, [two+4];", "st.global.v2.u32 [%rd0], {%r4, %r4};") == []
    assert found("ld.local.u32 %r4, [two+4];\nshr.u32 %r4, %r4, 1;" + use, "") == [
        "local address 0x100005 (one), which nothing has written"
    ]
    assert found("ld.local.u16 %rs4, [two+6];", "st.global.u16 [%rd0], %rs4;") == [
        "local address 0x100005 (one), which nothing has written"
    ]


def test_a_gap_passes_through_the_arguments_of_other_functions_as_well() -> None:
    store = "st.global.u32 [%rd0], %r4;"
    body = COPY.format(read="call (%r5), used, (%r3);\n    ld.local.u32 %r4, [two+4];", store=store)
    used = """
    .func (.reg .u32 out) used(.reg .u32 n)
    {
        .reg .u32 m;
        add.u32 m, n, 1;
        xor.b32 out, m, n;
        ret;
    }
    """
    text = ptx(body, before=used)
    assert messages(text, [np.zeros(4, np.uint32)]) == []


def test_an_undefined_argument_and_result_of_a_function_in_registers_keep_their_origin() -> None:
    function = """
    .func (.reg .u32 out) next(.reg .u32 n)
    {
        add.u32 out, n, 1;
        ret;
    }
    """
    body = """
    .local .align 8 .b8 one[8];
    ld.local.u32 %r3, [one+4];
    call (%r5), next, (%r3);
    """
    text = ptx(body + USE.format(register="%r5") + "ret;", before=function)
    assert messages(text) == [used(text, "ld.local", 0x100004, "one")]
