from __future__ import annotations

import re

import numpy as np
import pytest
from interpreter.programs import at, located, on_elements, ptx, refused

from ptxgen.errors import LaunchError
from ptxgen.interpreter import DeviceArena, launch, run
from ptxgen.parse import parse

SAXPY = ptx("""
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.f32 %f0, [a];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p0, %r4, %r0;
    @%p0 bra $done;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd0, %rd2;
    add.u64 %rd4, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    ld.global.f32 %f2, [%rd4];
    fma.rn.f32 %f3, %f0, %f1, %f2;
    st.global.f32 [%rd4], %f3;
$done:
""")
ADD_ONE = on_elements("""
    ld.global.u32 %r4, [%rd0];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
""")


def test_a_module_and_its_text_give_the_same_bits_and_counters() -> None:
    results = []
    for program in (SAXPY, parse(SAXPY)):
        x, y = np.arange(500, dtype=np.float32), np.ones(500, np.float32)
        results.append((run(program, "k", grid=4, block=128, args=[x, y, 0.1, 500]), y))
    assert (results[0][1] == results[1][1]).all()
    assert results[0][0] == results[1][0]


def test_counters_count_warps_threads_and_dispatched_instructions() -> None:
    x, y = np.zeros(40, np.float32), np.zeros(40, np.float32)
    counters = run(SAXPY, grid=1, block=64, args=[x, y, 1.0, 40]).counters
    # Ten instructions by both warps, seven by 40 threads of both, `ret` by all.
    assert counters.by_opcode["fma.rn.f32"] == 2
    assert counters.by_opcode["mov.u32"] == 6
    assert counters.warp_instructions == 2 * 18
    assert counters.thread_instructions == 64 * 10 + 40 * 7 + 64
    assert counters.dispatched == 18


def test_a_strided_view_is_reached_through_the_address_of_its_first_element() -> None:
    whole = np.zeros((4, 8), np.uint32)
    run(ADD_ONE, grid=1, block=8, args=[whole[::-2]])  # its first element is row 3
    assert whole.sum(axis=1).tolist() == [0, 0, 0, 8]


def test_addresses_may_lie_beyond_4_gib_of_each_other() -> None:
    arena = DeviceArena()
    near, far = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    base = arena.place(near, at=1 << 34, name="near")
    arena.place(far, at=(1 << 34) + (3 << 32), name="far")
    text = on_elements("""
    mov.u32 %r4, %tid.x;
    and.b32 %r4, %r4, 1;
    mul.wide.u32 %rd3, %r4, 2147483648;
    mul.lo.u64 %rd3, %rd3, 6;
    add.u64 %rd0, %rd0, %rd3;
    st.global.u32 [%rd0], 7;
    """)
    run(text, grid=1, block=64, args=[base], arena=arena)
    assert near.tolist() == [7, 0] * 32
    assert far.tolist() == [0, 7] * 32


def test_the_same_array_keeps_its_address_in_an_arena() -> None:
    arena = DeviceArena()
    x = np.zeros(64, np.uint32)
    first = arena.place(x)
    assert arena.place(x[16:]) == first + 64
    run(ADD_ONE, grid=1, block=64, args=[x], arena=arena)
    assert arena.place(x) == first
    assert len(arena.buffers) == 1


def test_a_taken_address_is_refused() -> None:
    arena = DeviceArena()
    arena.place(np.zeros(4, np.uint32), at=1 << 34, name="x")
    taken = "0x400000008 to 0x400000018 is taken by x (0x400000000 to 0x400000010); ask for another address"
    with pytest.raises(LaunchError, match=re.escape(f"y: {taken}") + "$"):
        arena.place(np.zeros(4, np.uint32), at=(1 << 34) + 8, name="y")
    assert [b.name for b in arena.buffers] == ["x"]


def test_an_access_after_a_buffer_names_thread_address_and_buffer() -> None:
    x = np.zeros(70, np.uint32)
    assert refused(ADD_ONE, [x], grid=2, block=64) == (
        f"kernel k: {located(ADD_ONE, 'ld.global')}: thread (6, 0, 0) of CTA (1, 0, 0) "
        "wants to read 4 bytes of global memory at 0x200000118, "
        "0 bytes after the end of x (0x200000000, 280 bytes)"
    )


@pytest.mark.parametrize(
    ("address", "what"),
    [(0, "0x0, a null pointer"), (8, "0x8, a null pointer and 8 bytes"), (4096, "0x1000, no buffer exists")],
)
def test_a_null_pointer_is_outside_every_buffer(address: int, what: str) -> None:
    assert refused(ADD_ONE, [address], block=1).endswith(f"wants to read 4 bytes of global memory at {what}")


def test_a_write_to_a_read_only_array_is_refused() -> None:
    x = np.zeros(64, np.uint32)
    x.flags.writeable = False
    assert refused(ADD_ONE, [x], block=64).endswith(
        "wants to write 4 bytes of global memory at 0x200000000, in a read-only array"
    )


def test_lanes_may_reach_several_buffers_in_one_instruction() -> None:
    text = on_elements("""
    ld.param.u64 %rd3, [y];
    add.u64 %rd3, %rd3, %rd2;
    setp.lt.u32 %p0, %r0, 20;
    selp.b64 %rd4, %rd0, %rd3, %p0;
    ld.global.u32 %r5, [%rd4];
    atom.global.add.u32 %r6, [%rd4], 5;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd4], %r5;
    """)
    x, y = np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32) + 100
    run(text, grid=1, block=64, args=[x, y])
    assert x[:20].tolist() == [2 * i for i in range(20)]
    assert x[20:].tolist() == list(range(20, 64))
    assert y[20:].tolist() == [2 * (i + 100) for i in range(20, 64)]


def test_too_little_dynamic_shared_memory_is_refused() -> None:
    text = ptx("// region tile: offset 0, 512 bytes, align 16", dynamic=True)
    assert refused(text, error=LaunchError, dynamic_smem=256) == (
        "k needs 512 bytes of dynamic shared memory, got dynamic_smem=256"
    )


def test_trap_stops_the_kernel() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 5;
    @%p0 trap;
    """)
    assert refused(text) == at(text, "trap", 5) + "trap instruction"


def test_an_empty_kernel_runs() -> None:
    assert run(ptx("", returns=False), grid=2, block=32, args=[]).counters.dispatched == 0


def test_an_empty_array_has_an_address_and_no_bytes() -> None:
    x = np.zeros(64, np.uint32)
    text = ptx("""
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    sub.u64 %rd2, %rd1, %rd0;
    st.global.u64 [%rd0], %rd2;
    """)
    run(text, grid=1, block=1, args=[x, np.ndarray(0, np.uint32, buffer=x, offset=16)])
    assert x[:2].view(np.uint64)[0] == 16
    run(text, grid=1, block=1, args=[x, x[:0]])
    assert x[:2].view(np.uint64)[0] == 0
    assert refused(ADD_ONE, [np.zeros(0, np.uint32)], block=1).endswith(
        "wants to read 4 bytes of global memory at 0x200000000, "
        "0 bytes after the end of x (0x200000000, 0 bytes)"
    )


def test_local_memory_that_the_kernel_does_not_have_is_refused() -> None:
    text = ptx("    mov.u64 %rd0, 0;\n    ld.local.u32 %r1, [%rd0];")
    assert refused(text, block=1) == (
        at(text, "ld.local")[:-2] + " wants to read 4 bytes of local memory at 0x0, outside its 0 bytes"
    )


def test_clocks_count_what_is_executed() -> None:
    text = ptx("""
    ld.param.u64 %rd0, [x];
    mov.u64 %rd1, %clock64;
    mov.u32 %r0, 5;
$again:
    sub.u32 %r0, %r0, 1;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $again;
    mov.u64 %rd2, %clock64;
    sub.u64 %rd3, %rd2, %rd1;
    st.global.u64 [%rd0], %rd3;
    """)
    x = np.zeros(1, np.uint64)
    run(text, grid=1, block=1, args=[x])
    assert 15 <= x[0] < 30


def test_a_kernel_runs_again_whether_or_not_its_functions_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one() -> None:
        x = np.zeros(32, np.uint32)
        run(modules[0], grid=1, block=32, args=[x])
        assert (x == 1).all()

    modules = [parse(ADD_ONE) for _ in range(3)]
    built = []
    compiling = launch.compile_program
    monkeypatch.setattr(
        launch, "compile_program", lambda *given, **how: built.append(1) or compiling(*given, **how)
    )
    add_one()
    add_one()
    assert len(built) == 1
    monkeypatch.setattr(launch, "_CACHED_INSTRUCTIONS", 1)
    for module in modules[1:]:
        run(module, grid=1, block=32, args=[np.zeros(32, np.uint32)])
    add_one()
    assert len(built) == 4
    assert len(launch._programs) == 1


# ---- atomic operations that meet ----------------------------------------------------------------

MEETING = """
    ld.param.u64 %rd3, [y];
    {where}
    cvta.to.global.u64 %rd3, %rd3;
    setp.ne.u32 %p0, %r3, 7;
    mul.lo.u32 %r5, %r0, 2654435761;
    shr.u32 %r6, %r5, 20;
    mov.u32 %r4, 0;
    cvt.rn.f32.u32 %f1, %r6;
    @%p0 {operation}
    st.global.u32 [%rd0], %r4;
"""


@pytest.mark.parametrize("cells", [1, 3, 64])
@pytest.mark.parametrize(
    "operation",
    [
        "atom.global.add.u32 %r4, [%rd3], %r6;",
        "atom.min.s32 %r4, [%rd3], %r6;",
        "red.global.max.u32 [%rd3], %r6;",
        "atom.global.xor.b32 %r4, [%rd3], 5;",
        "atom.global.exch.b32 %r4, [%rd3], %r6;",
        "atom.global.inc.u32 %r4, [%rd3], 9;",
        "atom.global.dec.u32 %r4, [%rd3], %r3;",
        "atom.global.cas.b32 %r4, [%rd3], 0, %r6;",
        "atom.global.cas.b32 %r4, [%rd3], %r3, %r0;",
        "atom.global.add.f32 %f2, [%rd3], %f1;\n    mov.b32 %r4, %f2;",
    ],
)
def test_lanes_that_meet_at_an_address_take_turns(
    operation: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"rem.u32 %r7, %r0, {cells};\n    mul.wide.u32 %rd4, %r7, 4;\n    add.u64 %rd3, %rd3, %rd4;"
    text = on_elements(MEETING.format(where=where, operation=operation))
    result = []
    for scans in (True, False):
        if not scans:  # one lane of each address after the other
            monkeypatch.setattr("ptxgen.interpreter.machine.memory.Meetings.scan", lambda *_: False)
        x, y = np.zeros(128, np.uint32), np.zeros(64, np.uint32)
        run(text, grid=2, block=64, args=[x, y])
        result.append((x.tolist(), y.tolist()))
    assert result[0] == result[1]


@pytest.mark.parametrize("stepwise", [False, True])
def test_lanes_whose_guard_is_false_do_not_wait_for_lanes_that_go_elsewhere(stepwise: bool) -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 16;
    setp.ge.u32 %p1, %r0, 99;
    @%p0 bra $meet;
    @%p1 bar.warp.sync -1;
    @%p1 shfl.sync.bfly.b32 %r0, %r0, 1, 31, -1;
$meet:
    bar.sync 0;
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r0;
    """)
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x], stepwise=stepwise)
    assert x.tolist() == list(range(32))
