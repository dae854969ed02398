"""What the sanitizers find of memory from `malloc`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.programs import at, located, ptx
from interpreter.reported import trap

from ptxgen.interpreter import DeviceArena, run

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
    """
    return ptx(body, before=HEAP)


READ_BACK = ptx("""
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd2, [x];
    mul.wide.u32 %rd3, %r0, 8;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.u64 %rd1, [%rd2];
    ld.global.u32 %r1, [%rd1+8];
    st.global.u64 [%rd2], 0;
    setp.lt.u32 %p0, %r1, 0x10000;
    @%p0 bra $used;
$used:
""")


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
    actual = [r.message for r in result.reports]
    wanted = at(READ_BACK, "bra $used") + (
        f"uninitialised: its guard %p0 depends on global address {pointer + 10:#x} (malloc of thread "
        "(0, 0, 0) of CTA (0, 0, 0)), which nothing has written; it was read by "
        f"{located(READ_BACK, '[%rd1+8]')}"
    )
    assert actual == ([] if clean else [wanted])


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
    """
    text = ptx(body.format(access=access), before=HEAP)
    # Each thread's memory begins a red zone of 1 MiB behind the one before.
    base = (1 << 33) + (1 << 20) + 256
    assert trap(text, [], block=2) == (
        at(text, access, 1)[:-2] + f" wants to {verb} memory at {base + 8:#x}, at byte 8 of malloc "
        f"of thread (1, 0, 0) of CTA (0, 0, 0) ({base:#x}, 24 bytes), which thread (1, 0, 0) of "
        f"CTA (0, 0, 0) in {located(text, 'call free')} has freed"
    )
