from __future__ import annotations

import re

import numpy as np
import pytest
from interpreter.programs import ELEMENT, line_of, ptx

from ptxgen.errors import LaunchError, TrapError
from ptxgen.interpreter import DeviceArena, launch, run
from ptxgen.parse import parse

SAXPY = ptx(
    """
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
    ret;
""",
    "u64 x, u64 y, f32 a, u32 n",
)
ADD_ONE = ptx(
    ELEMENT
    + """
    ld.global.u32 %r4, [%rd0];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
    ret;
""",
    "u64 x",
)


def refused(text: str, **launch: object) -> str:
    with pytest.raises(LaunchError) as caught:
        run(text, **launch)  # type: ignore[arg-type]
    return str(caught.value)


def trapped(text: str, **launch: object) -> str:
    with pytest.raises(TrapError) as caught:
        run(text, **launch)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("block", [32, 100, 128])
@pytest.mark.parametrize("n", [1, 31, 1000])
def test_saxpy_gives_what_numpy_gives(n: int, block: int) -> None:
    x = np.linspace(-1, 1, n, dtype=np.float32)
    y = np.arange(n, dtype=np.float32)
    want = np.float32(2) * x + y
    run(SAXPY, grid=-(-n // block), block=block, args=[x, y, 2.0, n], sanitize=True)
    np.testing.assert_allclose(y, want, rtol=1e-6)


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


def test_a_grid_larger_than_a_batch_runs_in_batches_and_reports_progress() -> None:
    x = np.zeros(2100 * 128, np.uint32)
    seen: list[tuple[int, int]] = []
    run(ADD_ONE, grid=2100, block=128, args=[x], progress=lambda *now: seen.append(now))
    assert (x == 1).all()
    assert seen == [(2048, 2100), (2100, 2100)]


def test_grid_and_block_of_three_dimensions_number_threads_x_fastest() -> None:
    registers = [f"%{kind}.{axis}" for kind in ("tid", "ctaid") for axis in "xyz"]
    body = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r0, 0;
    """
    for register, extent in zip(reversed(registers), (3, 2, 2, 2, 3, 5), strict=True):
        body += f"\n    mov.u32 %r1, {register};\n    mad.lo.u32 %r0, %r0, {extent}, %r1;"
    body += """
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd0, %rd1, %rd2;
    mov.u32 %r2, %laneid;
    st.global.u32 [%rd0], %r2;
    ret;
    """
    x = np.full(3 * 2 * 2 * 2 * 3 * 5, 99, np.uint32)
    run(ptx(body, "u64 x"), grid=(2, 2, 3), block=(5, 3, 2), args=[x])
    assert (x.reshape(12, 30) == np.arange(30)).all()


def test_arguments_that_share_memory_alias() -> None:
    whole = np.arange(100, dtype=np.float32)
    want = whole[:36] + 2 * whole[36:72]
    run(SAXPY, grid=1, block=64, args=[whole[36:], whole, 2.0, 36])
    assert (whole[:36] == want).all()


def test_a_strided_view_is_reached_through_the_address_of_its_first_element() -> None:
    whole = np.zeros((4, 8), np.uint32)
    run(ADD_ONE, grid=1, block=8, args=[whole[::-2]])  # its first element is row 3
    assert whole.sum(axis=1).tolist() == [0, 0, 0, 8]


def test_addresses_may_lie_beyond_4_gib_of_each_other() -> None:
    arena = DeviceArena()
    near, far = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    base = arena.place(near, at=1 << 34, name="near")
    arena.place(far, at=(1 << 34) + (3 << 32), name="far")
    text = ptx(
        ELEMENT
        + """
    mov.u32 %r4, %tid.x;
    and.b32 %r4, %r4, 1;
    mul.wide.u32 %rd3, %r4, 2147483648;
    mul.lo.u64 %rd3, %rd3, 6;
    add.u64 %rd0, %rd0, %rd3;
    st.global.u32 [%rd0], 7;
    ret;
    """,
        "u64 x",
    )
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
    with pytest.raises(LaunchError) as caught:
        arena.place(np.zeros(4, np.uint32), at=(1 << 34) + 8, name="y")
    assert str(caught.value) == (
        "y: 0x400000008 to 0x400000018 is taken by x (0x400000000 to 0x400000010); ask for another address"
    )
    assert [b.name for b in arena.buffers] == ["x"]


def test_a_view_that_starts_off_alignment_is_misaligned_on_the_device_too() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    ld.global.v2.u32 {%r0, %r1}, [%rd0];
    ret;
    """,
        "u64 x",
    )
    x = np.zeros(64, np.uint32)
    run(text, grid=1, block=32, args=[x[2:]])
    line = line_of(text, "ld.global")
    assert re.sub("0x[0-9a-f]+", "A", trapped(text, grid=1, block=32, args=[x[1:]])) == (
        f"kernel k: ld.global.v2.u32 {{%r0, %r1}}, [%rd0]; (line {line}): thread (0, 0, 0) of "
        "CTA (0, 0, 0) wants to read 8 bytes of global memory at A, which is not a multiple of 8"
    )


def test_an_access_after_a_buffer_names_thread_address_and_buffer() -> None:
    x = np.zeros(70, np.uint32)
    line = line_of(ADD_ONE, "ld.global")
    assert trapped(ADD_ONE, grid=2, block=64, args=[x]) == (
        f"kernel k: ld.global.u32 %r4, [%rd0]; (line {line}): thread (6, 0, 0) of CTA (1, 0, 0) "
        "wants to read 4 bytes of global memory at 0x200000118, "
        "0 bytes after the end of x (0x200000000, 280 bytes)"
    )


@pytest.mark.parametrize(
    ("address", "what"),
    [(0, "0x0, a null pointer"), (8, "0x8, a null pointer and 8 bytes"), (4096, "0x1000, no buffer exists")],
)
def test_a_null_pointer_is_outside_every_buffer(address: int, what: str) -> None:
    assert trapped(ADD_ONE, grid=1, block=1, args=[address]).endswith(
        f"wants to read 4 bytes of global memory at {what}"
    )


def test_a_write_to_a_read_only_array_is_refused() -> None:
    x = np.zeros(64, np.uint32)
    x.flags.writeable = False
    assert trapped(ADD_ONE, grid=1, block=64, args=[x]).endswith(
        "wants to write 4 bytes of global memory at 0x200000000, in a read-only array"
    )


def test_lanes_may_reach_several_buffers_in_one_instruction() -> None:
    text = ptx(
        ELEMENT
        + """
    ld.param.u64 %rd3, [y];
    add.u64 %rd3, %rd3, %rd2;
    setp.lt.u32 %p0, %r0, 20;
    selp.b64 %rd4, %rd0, %rd3, %p0;
    ld.global.u32 %r5, [%rd4];
    atom.global.add.u32 %r6, [%rd4], 5;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd4], %r5;
    ret;
    """,
        "u64 x, u64 y",
    )
    x, y = np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32) + 100
    run(text, grid=1, block=64, args=[x, y])
    assert x[:20].tolist() == [2 * i for i in range(20)]
    assert x[20:].tolist() == list(range(20, 64))
    assert y[20:].tolist() == [2 * (i + 100) for i in range(20, 64)]


def test_generic_addresses_reach_global_and_shared_memory() -> None:
    text = ptx(
        ELEMENT
        + """
    mov.u64 %rd3, buf;
    cvta.shared.u64 %rd3, %rd3;
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd3, %rd3, %rd4;
    st.u32 [%rd3], %r0;
    ld.u32 %r4, [%rd3];
    st.u32 [%rd0], %r4;
    ret;
    """,
        "u64 x",
        shared=256,
    )
    x = np.zeros(128, np.uint32)
    run(text, grid=2, block=64, args=[x], sanitize=True)
    assert (x == np.arange(128)).all()


def test_lanes_of_one_generic_access_may_reach_shared_and_global_memory() -> None:
    text = ptx(
        ELEMENT
        + """
    mov.u64 %rd3, buf;
    cvta.shared.u64 %rd3, %rd3;
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd3, %rd3, %rd4;
    setp.lt.u32 %p0, %r3, 9;
    selp.b64 %rd5, %rd3, %rd0, %p0;
    st.u32 [%rd5], %r0;
    ld.u32 %r4, [%rd5];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
    ret;
    """,
        "u64 x",
        shared=256,
    )
    x = np.zeros(128, np.uint32)
    run(text, grid=2, block=64, args=[x], sanitize=True)
    assert (x == np.arange(1, 129)).all()


@pytest.mark.parametrize(
    ("type", "argument", "bits"),
    [
        ("u32", 4294967295, 0xFFFFFFFF),
        ("s32", -1, 0xFFFFFFFF),
        ("s32", np.int64(-2), 0xFFFFFFFE),
        ("f32", 1, 0x3F800000),
        ("f32", np.float64(-2.0), 0xC0000000),
        ("b32", -1, 0xFFFFFFFF),
    ],
)
def test_numbers_take_the_parameters_type(type: str, argument: float, bits: int) -> None:
    text = ptx(
        f"""
    ld.param.u64 %rd0, [x];
    ld.param.{type} %{"f" if type == "f32" else "r"}0, [a];
    st.global.{type} [%rd0], %{"f" if type == "f32" else "r"}0;
    ret;
    """,
        f"u64 x, {type} a",
    )
    x = np.zeros(1, np.uint32)
    run(text, grid=1, block=1, args=[x, argument])
    assert x[0] == bits


def test_bad_launches_are_refused_before_anything_runs() -> None:
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    good = {"grid": 1, "block": 32, "args": [x, y, 1.0, 4]}
    assert refused(SAXPY, **{**good, "args": [x, y, 1.0]}) == (
        "k takes 4 arguments (x: u64, y: u64, a: f32, n: u32), got 3"
    )
    assert refused(SAXPY, **{**good, "args": [x, y, 1.0, 1 << 32]}) == (
        "k: argument 3 (n) must be from -2147483648 to 4294967295 for its type u32, got 4294967296"
    )
    assert refused(SAXPY, **{**good, "args": [x, y, 1.0, 2.5]}) == (
        "k: argument 3 (n) must be an integer for its type u32, got 2.5"
    )
    assert refused(SAXPY, **{**good, "args": [x, y, "1", 4]}) == (
        "k: argument 2 (a) must be a number for its type f32, got '1'"
    )
    assert refused(SAXPY, **{**good, "args": [x, y, x, 4]}) == (
        "k: argument 2 (a) must be a number for its type f32, got an array"
    )
    assert refused(SAXPY, **{**good, "args": [x, np.array([None]), 1.0, 4]}) == (
        "k: argument 1 (y) must be an array of numbers, got object"
    )
    assert refused(SAXPY, **{**good, "grid": (1, 0)}) == (
        "k: grid must be one to three numbers from 1, got (1, 0)"
    )
    assert refused(SAXPY, **{**good, "grid": (1, 70000)}) == (
        "k: grid must be at most (2147483647, 65535, 65535), got (1, 70000, 1)"
    )
    assert refused(SAXPY, **{**good, "block": (64, 32)}) == (
        "k: a block has at most 1024 threads, got (64, 32, 1), 2048 threads"
    )
    assert refused(SAXPY, **{**good, "schedule": "locksteps"}) == (
        "schedule must be 'lockstep', 'pct:SEED', 'pct:SEED:DEPTH' with numbers, or a PCT, got "
        "'locksteps'; did you mean 'lockstep'?"
    )
    assert refused(SAXPY, **{**good, "entry": "kk"}) == (
        "the module has no kernel 'kk'; did you mean 'k'? (it has k)"
    )
    assert not y.any()


def test_too_little_dynamic_shared_memory_is_refused() -> None:
    text = ptx("// region tile: offset 0, 512 bytes, align 16\n    ret;", dynamic=True)
    assert refused(text, grid=1, block=32, args=[], dynamic_smem=256) == (
        "k needs 512 bytes of dynamic shared memory, got dynamic_smem=256"
    )


def test_more_threads_than_promised_are_refused() -> None:
    text = ptx("ret;").replace(")\n{", ")\n.maxntid 64, 1, 1\n{")
    assert refused(text, grid=1, block=65, args=[]) == (
        "k promises at most 64 threads a block (.maxntid), got 65"
    )


def test_trap_stops_the_kernel() -> None:
    text = ptx(
        """
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 5;
    @%p0 trap;
    ret;
    """
    )
    assert trapped(text, grid=1, block=32, args=[]) == (
        f"kernel k: @%p0 trap; (line {line_of(text, 'trap')}): thread (5, 0, 0) of CTA (0, 0, 0): "
        "trap instruction"
    )


def test_narrow_values_are_extended_by_their_sign_and_cut_when_stored() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    ld.global.s8 %rs0, [%rd0];
    ld.global.u8 %rs1, [%rd0];
    st.global.u16 [%rd0+2], %rs0;
    st.global.u16 [%rd0+4], %rs1;
    ld.global.s8 %r0, [%rd0];
    st.global.u32 [%rd0+8], %r0;
    st.global.u8 [%rd0+12], %r0;
    ret;
    """,
        "u64 x",
    )
    x = np.zeros(16, np.uint8)
    x[0] = 0x85
    run(text, grid=1, block=1, args=[x])
    assert x[2:6].view(np.uint16).tolist() == [0xFF85, 0x0085]
    assert x[8:12].view(np.uint32).tolist() == [0xFFFFFF85]
    assert x[12:].tolist() == [0x85, 0, 0, 0]


def test_an_empty_kernel_runs() -> None:
    assert run(ptx(""), grid=2, block=32, args=[]).counters.dispatched == 0


def test_an_empty_array_has_an_address_and_no_bytes() -> None:
    x = np.zeros(64, np.uint32)
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    sub.u64 %rd2, %rd1, %rd0;
    st.global.u64 [%rd0], %rd2;
    ret;
    """,
        "u64 x, u64 y",
    )
    run(text, grid=1, block=1, args=[x, np.ndarray(0, np.uint32, buffer=x, offset=16)])
    assert x[:2].view(np.uint64)[0] == 16
    run(text, grid=1, block=1, args=[x, x[:0]])
    assert x[:2].view(np.uint64)[0] == 0
    assert trapped(ADD_ONE, grid=1, block=1, args=[np.zeros(0, np.uint32)]).endswith(
        "wants to read 4 bytes of global memory at 0x200000000, "
        "0 bytes after the end of x (0x200000000, 0 bytes)"
    )


def test_local_memory_that_the_kernel_does_not_have_is_refused() -> None:
    text = ptx("    mov.u64 %rd0, 0;\n    ld.local.u32 %r1, [%rd0];\n    ret;")
    assert trapped(text, grid=1, block=1, args=[]) == (
        f"kernel k: ld.local.u32 %r1, [%rd0]; (line {line_of(text, 'ld.local')}): "
        "thread (0, 0, 0) of CTA (0, 0, 0) wants to read 4 bytes of local memory at 0x0, "
        "outside its 0 bytes"
    )


def test_clocks_count_what_is_executed() -> None:
    text = ptx(
        """
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
    ret;
    """,
        "u64 x",
    )
    x = np.zeros(1, np.uint64)
    run(text, grid=1, block=1, args=[x])
    assert 15 <= x[0] < 30


def test_a_kernel_runs_again_whether_or_not_its_functions_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one() -> None:
        x = np.zeros(32, np.uint32)
        run(modules[0], grid=1, block=32, args=[x])
        assert (x == 1).all()

    modules = [parse(ADD_ONE) for _ in range(3)]
    made = []
    compiling = launch.compile_program
    monkeypatch.setattr(
        launch, "compile_program", lambda *given, **how: made.append(1) or compiling(*given, **how)
    )
    add_one()
    add_one()
    assert len(made) == 1
    monkeypatch.setattr(launch, "_KEPT_INSTRUCTIONS", 1)
    for module in modules[1:]:
        run(module, grid=1, block=32, args=[np.zeros(32, np.uint32)])
    add_one()
    assert len(made) == 4
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
    ret;
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
    text = ptx(ELEMENT + MEETING.format(where=where, operation=operation), "u64 x, u64 y")
    found = []
    for scans in (True, False):
        if not scans:  # one lane of each address after the other
            monkeypatch.setattr("ptxgen.interpreter.machine.memory.Meetings.scan", lambda *_: False)
        x, y = np.zeros(128, np.uint32), np.zeros(64, np.uint32)
        run(text, grid=2, block=64, args=[x, y])
        found.append((x.tolist(), y.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("stepwise", [False, True])
def test_lanes_whose_guard_is_false_do_not_wait_for_lanes_that_go_elsewhere(stepwise: bool) -> None:
    text = ptx(
        """
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
    ret;
    """,
        "u64 x",
    )
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x], stepwise=stepwise)
    assert x.tolist() == list(range(32))
