"""Undefined bits are reported where they decide something, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import at, located, on_elements
from interpreter.reported import messages

from ptxgen.interpreter import DeviceArena, launch, run

NO_WRITE = "which it has not written"


def read_by(text: str, instruction: str, nth: int = 0) -> str:
    """The end of a message about undefined bits that an instruction has read."""
    return f"; it was read by {located(text, instruction, nth)}"


def kernel(body: str, shared: int = 256) -> str:
    """A kernel in which %r9 is never written."""
    return on_elements(body + "", shared=shared)


def found(body: str, threads: int = 32, shared: int = 256) -> list[str]:
    """What `init` and all others report, without the place of the use."""
    reports = messages(kernel(body, shared), [np.zeros(threads, np.uint32)], block=threads)
    return [m.partition("CTA (0, 0, 0): ")[2] for m in reports]


# ---------------------------------------- where a report comes


USES = [
    ("setp.eq.u32 %p1, %r9, 0;\n@%p1 bra $end;\n$end:", "@%p1 bra", "its guard %p1"),
    ("setp.eq.u32 %p1, %r9, 0;\n@%p1 ret;", "@%p1 ret", "its guard %p1"),
    ("setp.eq.u32 %p1, %r9, 0;\n@%p1 st.global.u32 [%rd0], 1;", "@%p1 st", "its guard %p1"),
    ("setp.eq.u32 %p1, %r9, 0;\n@%p1 bar.sync 0;", "@%p1 bar", "its guard %p1"),
    ("and.b32 %r4, %r9, 12;\nld.shared.u32 %r5, [%r4];", "ld.shared", "its address %r4"),
    ("and.b32 %r4, %r9, 12;\nst.shared.u32 [%r4], 5;", "st.shared", "its address %r4"),
    ("and.b32 %r4, %r9, 1;\nbar.sync %r4;", "bar.sync", "its operand %r4"),
    ("or.b32 %r4, %r9, -1;\nbar.warp.sync %r4;", "", ""),
    ("and.b32 %r4, %r9, 0;\nbar.sync %r4;", "", ""),
    ("add.u32 %r4, %r9, 1;\nmul.lo.u32 %r4, %r4, %r4;", "", ""),
    ("st.shared.u32 [buf], %r9;", "", ""),
    ("mov.b64 %rd5, {%r0, %r9};\nmov.b64 {%r4, %r5}, %rd5;\nst.global.u32 [%rd0], %r4;", "", ""),
    (
        "and.b32 %r4, %r9, 0xff;\nshl.b32 %r4, %r4, 8;\nand.b32 %r4, %r4, 0xff;\nst.global.u32 [%rd0], %r4;",
        "",
        "",
    ),
    ("prmt.b32 %r4, %r0, %r9, 0x3210;\nst.global.u32 [%rd0], %r4;", "", ""),
    ("setp.lt.u32 %p1, %r0, 99;\nselp.b32 %r4, %r0, %r9, %p1;\nst.global.u32 [%rd0], %r4;", "", ""),
    ("setp.lt.u32 %p1, %r0, 99;\n@!%p1 mov.u32 %r0, %r9;\nst.global.u32 [%rd0], %r0;", "", ""),
    ("setp.gt.u32 %p1, %r0, 99;\n@%p1 st.global.u32 [%rd0], %r9;", "", ""),
]


@pytest.mark.parametrize(("body", "use", "what"), USES)
def test_an_undefined_register_is_reported_where_it_decides_something(body: str, use: str, what: str) -> None:
    text = kernel(body)
    wanted = f"undefined: {what} depends on %r9, {NO_WRITE}" + read_by(text, body.splitlines()[0])
    reports = messages(text, [np.zeros(32, np.uint32)], sanitize="init")
    assert reports == ([at(text, use) + wanted] if use else [])


def test_undefined_bytes_of_an_array_are_reported_when_the_kernel_ends() -> None:
    text = kernel(
        "setp.ge.u32 %p1, %r0, 30;\n@!%p1 mov.u32 %r9, 1;\nadd.u32 %r4, %r9, 1;\nst.global.u32 [%rd0], %r4;"
    )
    assert messages(text, [np.zeros(32, np.uint32)]) == [
        at(text, "st.global", 30)
        + f"undefined: byte 120 of x when the kernel ends depends on %r9, {NO_WRITE}"
        + read_by(text, "add.u32 %r4")
    ]


def test_an_undefined_value_that_is_overwritten_in_an_array_is_right() -> None:
    again = "st.global.u32 [%rd0], %r9;\nst.global.u32 [%rd0], 7;"
    assert found(again) == []
    assert found("st.global.u32 [%rd0], %r9;\nst.global.u8 [%rd0], 7;") != []


def test_an_undefined_value_in_an_array_reaches_blocks_of_a_later_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_MAX_LANES", 32)
    text = kernel("""
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.global.u32 [%rd1], %r9;
    @%p1 bra $end;
    ld.global.u32 %r4, [%rd1];
    st.global.u32 [%rd1], 0;
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra $end;
$end:""")
    reports = messages(text, [np.zeros(64, np.uint32)], grid=2, sanitize="init")
    assert [m.replace("CTA (1, 0, 0)", "CTA (0, 0, 0)") for m in reports] == [
        at(text, "@%p2") + f"undefined: its guard %p2 depends on %r9, {NO_WRITE}" + read_by(text, "@%p1 st")
    ]


# ---------------------------------------- memory


def test_a_tail_that_is_stored_to_shared_memory_and_never_read_is_clean() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 30;
    @%p1 mov.u32 %r9, %r0;
    shl.b32 %r4, %r0, 2;
    mov.u32 %r5, buf;
    add.u32 %r4, %r4, %r5;
    st.shared.u32 [%r4], %r9;
    bar.sync 0;
    ld.shared.u32 %r6, [%r4];
    {guard}st.global.u32 [%rd0], %r6;
"""
    assert found(body.format(guard="@%p1 ")) == []
    text = kernel(body.format(guard=""))
    assert messages(text, [np.zeros(32, np.uint32)]) == [
        at(text, "st.global", 30)
        + f"undefined: byte 120 of x when the kernel ends depends on %r9, {NO_WRITE}"
        + read_by(text, "st.shared")
    ]


def test_shared_memory_that_nothing_has_written_is_named() -> None:
    text = kernel("ld.shared.u32 %r4, [buf+8];\nst.global.u32 [%rd0], %r4;")
    assert messages(text, [np.zeros(32, np.uint32)], sanitize="init") == [
        at(text, "st.global")
        + "uninitialised: byte 0 of x when the kernel ends depends on shared address 0x8 (buf), which "
        "nothing has written" + read_by(text, "ld.shared")
    ]


@pytest.mark.parametrize(
    ("store", "defined"),
    [
        ("st.shared.u32 [buf+8], 0;", True),
        ("st.shared.u8 [buf+8], 0;", False),
        ("st.shared.v2.u32 [buf+8], {%r0, %r9};", True),
    ],
)
def test_each_byte_of_shared_memory_counts(store: str, defined: bool) -> None:
    reports = found(f"{store}\nld.shared.u32 %r4, [buf+8];\nst.global.u32 [%rd0], %r4;", threads=1)
    assert bool(reports) is not defined


def test_atomic_operations_on_unwritten_or_with_undefined_values_are_followed() -> None:
    use = "\nld.shared.u32 %r5, [buf];\nst.global.u32 [%rd0], %r5;"
    assert found("atom.shared.add.u32 %r4, [buf], 1;" + use, threads=1) != []
    assert found("st.shared.u32 [buf], 0;\natom.shared.add.u32 %r4, [buf], 1;" + use, threads=1) == []
    assert found("st.shared.u32 [buf], 0;\natom.shared.add.u32 %r4, [buf], %r9;" + use, threads=1) != []
    assert found("atom.shared.exch.b32 %r4, [buf], 1;" + use, threads=1) == []
    assert found("st.shared.u32 [buf], 0;\nred.shared.or.b32 [buf], %r9;" + use, threads=1) != []


@pytest.mark.parametrize("copied", ["4", "4, 0"])
def test_a_copy_between_memories_takes_undefined_bits_along(copied: str) -> None:
    """A copy of 0 bytes writes zeros."""
    text = kernel(f"""
    st.global.u32 [%rd0], %r9;
    mov.u32 %r5, buf;
    shl.b32 %r6, %r0, 2;
    add.u32 %r5, %r5, %r6;
    cp.async.ca.shared.global [%r5], [%rd0], {copied};
    cp.async.wait_all;
    st.global.u32 [%rd0], 0;
    ld.shared.u32 %r4, [%r5];
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra $end;
$end:""")
    wanted = at(text, "@%p1") + f"undefined: its guard %p1 depends on %r9, {NO_WRITE}"
    assert messages(text, [np.zeros(32, np.uint32)]) == (
        [wanted + read_by(text, "st.global")] if copied == "4" else []
    )


# ---------------------------------------- warps

HALVES = "setp.ge.u32 %p1, %r0, 16;\nselp.b32 %r5, 0xffff0000, 0xffff, %p1;\n"
ABSENT = "what a lane holds that does not take part, or is not in the membermask"


@pytest.mark.parametrize(
    ("body", "threads", "wrong"),
    [
        ("shfl.sync.bfly.b32 %r4, %r0, 16, 31, -1;", 32, None),
        ("shfl.sync.bfly.b32 %r4, %r0, 16, 31, -1;", 48, 32),  # the block ends in the middle of a warp
        ("setp.ge.u32 %p1, %r0, 20;\n@%p1 exit;\nshfl.sync.down.b32 %r4, %r0, 1, 31, -1;", 32, 19),
        ("setp.ge.u32 %p1, %r0, 8;\n@%p1 exit;\nshfl.sync.idx.b32 %r4, %r0, 10, 31, 255;", 32, 0),
        ("setp.ge.u32 %p1, %r0, 8;\n@%p1 exit;\nshfl.sync.idx.b32 %r4, %r0, 3, 31, 0xff;", 32, None),
        (HALVES + "shfl.sync.idx.b32 %r4, %r0, 3, 31, %r5;", 32, 16),
    ],
)
def test_a_shuffle_from_a_lane_that_does_not_take_part_is_reported_when_it_is_used(
    body: str, threads: int, wrong: int | None
) -> None:
    text = kernel(body + "\nst.global.u32 [%rd0], %r4;")
    reports = messages(text, [np.zeros(threads, np.uint32)], block=threads)
    assert messages(kernel(body), [np.zeros(threads, np.uint32)], block=threads) == []
    assert reports == (
        []
        if wrong is None
        else [
            at(text, "st.global", wrong)
            + f"undefined: byte {4 * wrong} of x when the kernel ends depends on {ABSENT}"
            + read_by(text, "shfl")
        ]
    )


def test_the_predicate_of_a_shuffle_is_defined_and_the_value_keeps_its_origin() -> None:
    body = """
    setp.lt.u32 %p2, %r0, 31;
    @%p2 mov.u32 %r9, 1;
    shfl.sync.up.b32 %r4|%p1, %r9, 1, 0, -1;
    @%p1 add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
"""
    assert found(body) == []  # lane 31 gives its value to nobody
    (report,) = found(
        body.replace("shfl.sync.up.b32 %r4|%p1, %r9, 1, 0", "shfl.sync.down.b32 %r4|%p1, %r9, 1, 31")
    )
    assert f"byte 120 of x when the kernel ends depends on %r9, {NO_WRITE}; it was read by shfl" in report


@pytest.mark.parametrize(
    ("vote", "wrong"),
    [
        ("vote.sync.any.pred %p2, %p1, -1;", False),  # another lane says yes
        ("vote.sync.all.pred %p2, %p1, -1;", True),
        ("vote.sync.uni.pred %p2, %p1, -1;", True),
        ("vote.sync.ballot.b32 %r5, %p1, -1;\nand.b32 %r5, %r5, 0xff;\nsetp.ne.u32 %p2, %r5, 0;", False),
        ("vote.sync.ballot.b32 %r5, %p1, -1;\nsetp.lt.u32 %p2, %r5, 0x80000000;", True),
        ("match.any.sync.b32 %r5, %r4, -1;\nsetp.ne.u32 %p2, %r5, 0;", True),
        ("redux.sync.add.u32 %r5, %r4, -1;\nsetp.ne.u32 %p2, %r5, 0;", True),
    ],
)
def test_words_of_a_warp_are_defined_if_the_undefined_lanes_decide_nothing(vote: str, wrong: bool) -> None:
    body = f"""
    setp.ne.u32 %p3, %r0, 31;
    @%p3 mov.u32 %r9, 1;
    add.u32 %r4, %r9, 0;
    setp.eq.u32 %p1, %r4, 1;
    {vote}
    @%p2 bra $end;
$end:"""
    assert bool(found(body)) is wrong


# ---------------------------------------- products of matrices

PRODUCT = """
    mov.u32 %r10, 0;
    mov.u32 %r11, 0;
    mov.u32 %r12, 0;
    mov.u32 %r13, 0;
    mov.u32 %r20, 0;
    mov.u32 %r21, 0;
    mov.f32 %f0, 0f00000000;
    mov.f32 %f1, %f0;
    mov.f32 %f2, %f0;
    mov.f32 %f3, %f0;
    setp.eq.u32 %p1, %r0, 4;
    {change}
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f0, %f1, %f2, %f3}}, {{%r10, %r11, %r12, %r13}},
        {{%r20, %r21}}, {{%f0, %f1, %f2, %f3}};
    mov.b32 %r4, %f{part};
    st.global.u32 [%rd0], %r4;
"""


@pytest.mark.parametrize(
    ("change", "part", "lanes"),
    [
        ("", 0, []),
        ("@%p1 mov.b32 %r10, %r9;", 0, [4, 5, 6, 7]),  # row 1 of A: row 1 of D
        ("@%p1 mov.b32 %r10, %r9;", 2, []),  # rows 8 to 15
        ("@%p1 mov.b32 %r11, %r9;", 2, [4, 5, 6, 7]),
        ("@%p1 mov.b32 %r20, %r9;", 0, []),  # column 1 of B: the second element of lanes 0, 4, 8, …
        ("@%p1 mov.b32 %r20, %r9;", 1, [*range(0, 32, 4)]),
        ("@%p1 mov.b32 %f1, %r9;", 1, [4]),
        ("@%p1 mov.b32 %f1, %r9;", 0, []),
    ],
)
def test_a_product_is_undefined_in_the_rows_and_columns_of_undefined_elements(
    change: str, part: int, lanes: list[int]
) -> None:
    text = kernel(PRODUCT.format(change=change, part=part))
    # each lane that has an undefined element in turn overwrites nothing else
    x = np.zeros(32, np.uint32)
    reports = run_both_ways(text, args=[x], grid=1, block=32, raise_on_report=False).reports
    assert [r.threads[0] for r in reports] == lanes[:1]
    if lanes:
        kept = " ".join(f"setp.eq.or.u32 %p2, %r0, {lane}, %p2;" for lane in lanes)
        cut = f"setp.ne.u32 %p2, %r0, %r0;\n{kept}\n@%p2 mov.u32 %r4, 0;\n    st.global"
        assert messages(text.replace("st.global", cut), [x]) == []


def test_accumulators_that_nothing_has_written_are_reported() -> None:
    missing = PRODUCT.format(change="", part=0).replace("    mov.f32 %f0, 0f00000000;\n", "")
    (report,) = found(missing)
    assert "depends on %f0, which it has not written; it was read by m" in report


def test_matrices_in_shared_memory_are_followed_element_by_element() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 7;
    shl.b32 %r4, %r0, 4;
    mov.u32 %r5, buf;
    add.u32 %r4, %r4, %r5;
    @%p1 st.shared.v4.u32 [%r4], {%r0, %r0, %r0, %r0};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r4];
    setp.lt.u32 %p2, %r0, 28;
    @%p2 st.global.u32 [%rd0], %r6;
"""
    assert found(body, shared=512) == []  # lanes 28 to 31 hold row 7, which is not written
    (report,) = found(body.replace("28;", "29;"), shared=512)
    assert (
        "depends on shared address 0x70 (buf), which nothing has written; it was read by ldmatrix" in report
    )


# ---------------------------------------- other


def test_the_carry_flag_is_followed() -> None:
    add = "add.cc.u32 %r4, {}, 1;\naddc.u32 %r5, %r0, 0;\nst.global.u32 [%rd0], %r5;"
    assert found(add.format("%r9")) != []
    assert found(add.format("%r0")) == []
    assert found("add.cc.u32 %r4, %r9, 1;\n" + add.format("%r0")) == []


def test_memory_that_launches_share_may_be_undefined_between_them() -> None:
    x, arena = np.zeros(32, np.uint32), DeviceArena()
    text = kernel("st.global.u32 [%rd0], %r0;")
    for _ in range(2):
        assert run(text, grid=1, block=32, args=[x], arena=arena, sanitize="init").reports == ()


def test_what_a_kernel_prints_is_defined() -> None:
    functions = ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 buffer);\n"
    functions += ".global .align 1 .b8 format[4] = {37, 100, 10, 0};\n"
    body = """
    .local .align 8 .b8 buffer[8];
    .param .b64 p;
    .param .b64 q;
    .param .b32 r;
    {store}
    mov.u64 %rd3, format;
    cvta.global.u64 %rd3, %rd3;
    cvta.local.u64 %rd4, buffer;
    st.param.b64 [p], %rd3;
    st.param.b64 [q], %rd4;
    call (r), vprintf, (p, q);
"""
    text = kernel(body).replace(".visible", functions + ".visible")
    texts = [text.replace("{store}", store) for store in ("", "st.local.u32 [buffer], 5;")]
    x = np.zeros(1, np.uint32)
    missing, right = (messages(text, [x], block=1) for text in texts)
    assert right == []
    assert missing == [
        at(texts[0], "call (r)")
        + "uninitialised: what it prints depends on local address 0x100000 (buffer), "
        "which nothing has written"
    ]
