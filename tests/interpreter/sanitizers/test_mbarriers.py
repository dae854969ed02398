"""What the sanitizers find of mbarriers and of what writes over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.programs import at, located, ptx
from interpreter.reported import messages, trap

from ptxgen.errors import TrapError

MBARRIER = """
    .shared .align 8 .b64 bars[2];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 3;
    @%p0 mbarrier.init.shared.b64 [bars+8], 1;
    bar.sync 0;
    {use}
    bar.sync 0;
    {after}
    """
ARRIVE = "@%p0 mbarrier.arrive.shared.b64 %rd2, [bars+8];"


def mbarrier(use: str, after: str = "", params: str = "") -> str:
    return ptx(MBARRIER.format(use=use, after=after), params)


def sync_lines(text: str, args: list[Any]) -> list[str]:
    """What the sanitizer `sync` reports, whether or not the kernel is stopped in the end."""
    try:
        result = messages(text, args)
    except TrapError as error:
        result = [line.strip() for line in str(error).splitlines()]
    return [line for line in result if ": sync: " in line]


def about_mbarrier(text: str, instruction: str, why: str, *, made: bool = True) -> str:
    by = f"; it was initialised by {located(text, 'mbarrier.init')}" if made else ""
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
    gone = f"there is no mbarrier: {located(again, use[5:])} has written over it"
    assert sync_lines(again, [x]) == [
        about_mbarrier(again, use[5:], over),
        about_mbarrier(again, "arrive", gone, made=False),
    ]
    before = "@%p0 mbarrier.inval.shared.b64 [bars+8];\n    "
    text = mbarrier(before + body, "cp.async.wait_all;", params="u64 x")
    assert sync_lines(text, [x]) == []


def test_bytes_beside_an_mbarrier_are_free() -> None:
    text = mbarrier("@%p0 st.shared.b64 [bars], 5;\n    @%p0 ld.shared.b64 %rd3, [bars];")
    assert messages(text) == []


def test_an_ordinary_load_of_an_mbarrier_is_found() -> None:
    text = mbarrier("@%p0 ld.shared.u32 %r2, [bars+12];")
    assert messages(text) == [
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
    gone = f"there is no mbarrier: {located(text, 'bulk')} has written over it"
    result = [x for x in sync_lines(text, [np.zeros(2, np.uint64)]) if "(bars)" in x]
    assert result == [
        about_mbarrier(text, "bulk", "writes over an mbarrier; mbarrier.inval must come first"),
        about_mbarrier(text, "bulk", gone, made=False),
    ]


def test_an_mbarrier_that_was_ended_is_used_no_more() -> None:
    end = "@%p0 mbarrier.inval.shared.b64 [bars+8];"
    text = mbarrier(end, ARRIVE)
    assert [m.strip() for m in trap(text).splitlines()] == [
        at(text, "arrive", 3) + "there is no mbarrier: mbarrier.init must come first",
        "before that, kernel k: the sanitizer reports 1 problem:",
        about_mbarrier(
            text, "arrive", f"there is no mbarrier: {located(text, 'inval')} has ended it", made=False
        ),
    ]
    again = mbarrier(end, "@%p0 mbarrier.init.shared.b64 [bars+8], 2;\n    " + ARRIVE)
    assert messages(again) == []


def test_a_word_that_only_looks_like_an_mbarrier_is_none() -> None:
    word = 1 << 61 | 1 << 60 | 2 << 20 | 2  # as `ptxgen.isa.mbarrier_word` packs it
    text = mbarrier(f"@%p0 st.shared.b64 [bars], {word};", "@%p0 mbarrier.arrive.shared.b64 %rd2, [bars];")
    assert messages(text) == [
        at(text, "arrive", 3) + "sync: shared address 0x0 (bars): there is no mbarrier: "
        "mbarrier.init must come first"
    ]


def test_an_mbarrier_is_not_made_again_while_it_is_one() -> None:
    text = mbarrier("@%p0 mbarrier.init.shared.b64 [bars+8], 2;")
    assert messages(text) == [
        about_mbarrier(
            text,
            "[bars+8], 2",
            "the mbarrier at 0x8 is initialised again while it is valid; mbarrier.inval must come first",
        )
    ]


@pytest.mark.parametrize(
    ("guard", "wait", "lane", "phases"),
    [
        ("@!%p1 ", "mbarrier.try_wait.parity.shared.b64 %p2, [bars], 0;\n    @!%p2 trap;", 4, 7),
        ("", "", 3, 8),
        ("@%p1 ", "mbarrier.try_wait.parity.shared.b64 %p2, [bars], 0;\n    @!%p2 trap;", 0, 1),
    ],
)
def test_a_warp_that_ends_several_phases_at_once_is_found(
    guard: str, wait: str, lane: int, phases: int
) -> None:
    """The mbarrier waits for four arrivals: 31 lanes of each warp arrive, or 32, or one. `lane` is the
    first that ends a phase.
    """
    text = ptx(f"""
    .shared .align 8 .b64 bars[1];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [bars], 4;
    bar.sync 0;
    and.b32 %r1, %r0, 31;
    setp.eq.u32 %p1, %r1, 0;
    {guard}mbarrier.arrive.shared.b64 %rd2, [bars];
    {wait}
    """)
    report = (
        f"sync: shared address 0x0 (bars): the lanes of a warp end {phases} phases of the mbarrier at once: "
        "who waits for the first of them may miss it; it was initialised by "
        f"{located(text, 'mbarrier.init')}"
    )
    expected = [at(text, "mbarrier.arrive", lane) + report] if phases > 1 else []
    assert messages(text, block=128) == expected
