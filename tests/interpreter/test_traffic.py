from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from interpreter.programs import ptx

from ptxgen.errors import TrapError
from ptxgen.interpreter import Counters, MemoryTraffic, run

SHARED_BYTES = 16384
IDLE = 0xFFFFFFFF  # the place of a lane that does nothing

# Each thread takes its place from p[thread] and does `access` there: in shared memory at %r5, in
# global memory at %rd5.
AT_PLACES = """
    ld.param.u64 %rd0, [p];
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r0, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd3, %rd0, %rd2;
    ld.global.u32 %r4, [%rd3];
    mov.u32 %r5, buf;
    add.u32 %r5, %r5, %r4;
    cvt.u64.u32 %rd4, %r4;
    add.u64 %rd5, %rd1, %rd4;
    cvta.shared.u64 %rd6, 0;
    cvt.u64.u32 %rd7, %r5;
    add.u64 %rd6, %rd6, %rd7;
    setp.ne.u32 %p0, %r4, -1;
    {access}
"""


def traffic(access: str, places: Sequence[int]) -> MemoryTraffic:
    """What an access costs when thread t does it at `places[t]`."""
    guarded = "" if "sync.aligned" in access or access.startswith("@") else "@%p0 "
    text = ptx(AT_PLACES.format(access=f"{guarded}{access};"), shared=SHARED_BYTES)
    x = np.zeros(SHARED_BYTES, np.uint8)
    args = [np.array(places, np.uint32), x]
    counters = run(text, grid=1, block=len(places), args=args, profile=True).counters
    assert counters.memory_by_instruction is not None
    result = [t for t in counters.memory_by_instruction.values() if access in t.where]
    return result[0] if result else MemoryTraffic("")


def shared(access: str, places: Sequence[int]) -> tuple[int, int, int]:
    """Requests, wavefronts, conflicts."""
    result = traffic(access, places)
    assert result.global_requests == 0
    return result.shared_requests, result.shared_wavefronts, result.shared_conflicts


def sectors(access: str, places: Sequence[int]) -> tuple[int, int, int, int]:
    """Requests, sectors read, sectors written, sectors beyond the least."""
    result = traffic(access, places)
    assert result.shared_requests == 0
    return result.global_requests, result.sectors_read, result.sectors_written, result.sectors_excess


LD = "ld.shared.u32 %r6, [%r5]"
LD64 = "ld.shared.v2.u32 {%r6, %r7}, [%r5]"
LD128 = "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5]"
ST = "st.shared.u32 [%r5], %r6"
LDG = "ld.global.u32 %r6, [%rd5]"
LDG128 = "ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd5]"
STG = "st.global.u32 [%rd5], %r6"

# ------------------------------------------------------------------------------------ shared memory


@pytest.mark.parametrize("access", [LD, ST])
@pytest.mark.parametrize(
    ("stride", "wavefronts"), [(1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1), (64, 32)]
)
def test_words_at_a_stride_take_as_many_wavefronts_as_fall_into_one_bank(
    access: str, stride: int, wavefronts: int
) -> None:
    places = [4 * stride * lane for lane in range(32)]
    assert shared(access, places) == (1, wavefronts, wavefronts - 1)


@pytest.mark.parametrize("access", [LD, ST])
def test_lanes_that_share_a_word_share_its_wavefront(access: str) -> None:
    assert shared(access, [400] * 32) == (1, 1, 0)
    assert shared(access, [4 * (lane // 2) for lane in range(32)]) == (1, 1, 0)
    # Two words of one bank.
    assert shared(access, [128 * (lane % 2) for lane in range(32)]) == (1, 2, 1)


def test_bytes_and_halves_of_one_word_share_its_wavefront() -> None:
    assert shared("ld.shared.u8 %rs1, [%r5]", range(32)) == (1, 1, 0)
    assert shared("st.shared.u16 [%r5], %rs1", range(0, 64, 2)) == (1, 1, 0)
    assert shared("ld.shared.u8 %rs1, [%r5]", range(0, 32 * 64, 64)) == (1, 16, 15)


def test_eight_bytes_go_by_halves_of_the_warp_and_sixteen_by_quarters() -> None:
    assert shared(LD64, range(0, 256, 8)) == (1, 2, 0)
    assert shared(LD128, range(0, 512, 16)) == (1, 4, 0)
    # Rows of 128 bytes: the 8 lanes of a quarter take the same four banks.
    assert shared(LD128, range(0, 4096, 128)) == (1, 32, 28)
    # Rows of 144 bytes: no two lanes of a quarter do.
    assert shared(LD128, range(0, 32 * 144, 144)) == (1, 4, 0)
    # Every 16 bytes: a half covers 256 bytes, each bank twice.
    assert shared(LD64, range(0, 512, 16)) == (1, 4, 2)
    # One place for all is one word or two in each part.
    assert shared(LD128, [256] * 32) == (1, 4, 0)


def test_a_swizzle_of_a_transposed_tile_takes_the_conflicts_away() -> None:
    rows, column = range(32), 3
    plain = [128 * row + 4 * column for row in rows]
    swizzled = [128 * row + 4 * (column ^ row) for row in rows]
    assert shared(LD, plain) == (1, 32, 31)
    assert shared(LD, swizzled) == (1, 1, 0)
    chunks = [128 * (lane % 8) + 16 * (lane // 8) for lane in rows]
    swizzled = [128 * (lane % 8) + 16 * (lane // 8 ^ lane % 8) for lane in rows]
    assert shared(LD128, chunks) == (1, 32, 28)
    assert shared(LD128, swizzled) == (1, 4, 0)


def test_lanes_that_do_nothing_count_for_nothing() -> None:
    assert shared(LD, [0] + [IDLE] * 31) == (1, 1, 0)
    assert shared(LD, [128 * lane if lane < 3 else IDLE for lane in range(32)]) == (1, 3, 2)
    assert shared(LD, [IDLE] * 32 + [4] * 32) == (1, 1, 0)
    assert shared(LD128, [IDLE] * 8 + [16 * lane for lane in range(24)]) == (1, 3, 0)
    assert shared(LD, [IDLE] * 32) == (0, 0, 0)
    assert shared(LD, [4 * lane for lane in range(40)]) == (2, 2, 0)


def test_words_of_two_blocks_of_a_cluster_share_the_bank_of_their_address() -> None:
    # Even lanes read buf + 4 * lane of the first block, odd ones that of the second, whose part of
    # the memory begins 32 bytes further with respect to the banks.
    access = """and.b32 %r7, %r3, 1;
    mapa.shared::cluster.u32 %r8, %r5, %r7;
    ld.shared::cluster.u32 %r6, [%r8]"""
    text = ptx(AT_PLACES.format(access=access + ";"), shared=SHARED_BYTES + 32)
    for places, wavefronts in (([64] * 32, 2), (range(0, 128, 4), 1), ([0, 32] * 16, 1)):
        args = [np.array([*places] * 2, np.uint32), np.zeros(64, np.uint8)]
        counters = run(text, grid=2, block=32, cluster=2, args=args, profile=True).counters
        assert (counters.shared_requests, counters.shared_wavefronts) == (2, 2 * wavefronts)


def test_generic_addresses_count_where_they_point_to() -> None:
    places = [8 * lane for lane in range(32)]
    assert shared("ld.u32 %r6, [%rd6]", places) == (1, 2, 1)
    assert sectors("ld.u32 %r6, [%rd5]", places) == (1, 8, 0, 4)


def test_atomic_operations_of_one_bank_take_turns_even_on_one_word() -> None:
    add = "atom.shared.add.u32 %r6, [%r5], 1"
    assert shared(add, range(0, 128, 4)) == (1, 1, 0)
    assert shared(add, [64] * 32) == (1, 32, 31)
    assert shared(add, [4 * (lane // 4) for lane in range(32)]) == (1, 4, 3)
    assert shared("red.shared.add.u32 [%r5], 1", [0, 128, *[IDLE] * 30]) == (1, 2, 1)


def test_looking_at_an_mbarrier_is_a_read_and_arriving_is_not() -> None:
    body = """
        mov.u32 %r1, %tid.x;
        setp.eq.u32 %p0, %r1, 0;
        @%p0 mbarrier.init.shared::cta.b64 [buf], 32;
        bar.warp.sync -1;
        mbarrier.arrive.shared::cta.b64 %rd1, [buf];
        mbarrier.try_wait.shared::cta.b64 %p1, [buf], %rd1;
        ret;
        """
    text = ptx(body, shared=16)
    counters = run(text, grid=1, block=32, args=[], profile=True).counters
    figures = {
        t.where.split(".")[1]: (t.shared_requests, t.shared_wavefronts, t.shared_conflicts)
        for _, t in counters.worst("shared_requests")
    }
    # Words of 8 bytes go by halves of the warp.
    assert figures == {"init": (1, 1, 0), "arrive": (1, 32, 30), "try_wait": (1, 2, 0)}


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix_and_stmatrix_take_a_wavefront_for_each_matrix_without_conflicts(matrices: int) -> None:
    registers = ", ".join(f"%r{10 + n}" for n in range(matrices))
    for access in (
        f"ldmatrix.sync.aligned.m8n8.x{matrices}.shared.b16 {{{registers}}}, [%r5]",
        f"stmatrix.sync.aligned.m8n8.x{matrices}.shared.b16 [%r5], {{{registers}}}",
    ):
        assert shared(access, range(0, 144 * 32, 144)) == (1, matrices, 0)
        assert shared(access, range(0, 128 * 32, 128)) == (1, 8 * matrices, 7 * matrices)


# ------------------------------------------------------------------------------------ global memory


def test_a_warp_that_reads_a_row_of_words_reads_four_sectors() -> None:
    assert sectors(LDG, range(0, 128, 4)) == (1, 4, 0, 0)
    assert sectors(STG, range(0, 128, 4)) == (1, 0, 4, 0)
    assert sectors(LDG128, range(0, 512, 16)) == (1, 16, 0, 0)
    assert sectors(LDG, range(0, 512, 4)) == (4, 16, 0, 0)


def test_a_row_that_begins_inside_a_sector_costs_one_more() -> None:
    assert sectors(LDG, range(4, 132, 4)) == (1, 5, 0, 1)
    assert sectors(LDG128, range(16, 528, 16)) == (1, 17, 0, 1)


@pytest.mark.parametrize(("stride", "read", "excess"), [(2, 8, 4), (8, 32, 28), (32, 32, 28)])
def test_words_at_a_stride_read_the_sectors_between_them(stride: int, read: int, excess: int) -> None:
    assert sectors(LDG, range(0, 128 * stride, 4 * stride)) == (1, read, 0, excess)


def test_one_place_for_all_lanes_is_one_sector() -> None:
    assert sectors(LDG, [4096] * 32) == (1, 1, 0, 0)
    assert sectors(STG, [64] * 64) == (2, 0, 2, 0)


def test_only_active_lanes_move_sectors() -> None:
    assert sectors(LDG, [IDLE] * 31 + [0]) == (1, 1, 0, 0)
    assert sectors(STG, [32 * lane if lane % 4 == 0 else IDLE for lane in range(32)]) == (1, 0, 8, 7)


def test_atomic_operations_read_and_write_their_sectors() -> None:
    assert sectors("atom.global.add.u32 %r6, [%rd5], 1", [32] * 32) == (1, 1, 1, 0)
    assert sectors("red.global.add.u32 [%rd5], 1", range(0, 2048, 64)) == (1, 32, 32, 56)


def test_lanes_that_reach_different_arrays_are_requests_of_their_own() -> None:
    # The odd lanes read from p instead of x.
    access = "@%p1 add.u64 %rd5, %rd0, %rd4;\n    ld.global.u32 %r6, [%rd5]"
    access = "and.b32 %r7, %r3, 1;\n    setp.eq.u32 %p1, %r7, 1;\n    " + access
    text = ptx(AT_PLACES.format(access=access + ";"), shared=16)
    args = [np.arange(0, 128, 4, dtype=np.uint32), np.zeros(128, np.uint8)]
    result = run(text, grid=1, block=32, args=args, profile=True).counters.memory_by_instruction
    assert result is not None
    last = result[max(result)]
    assert (last.global_requests, last.sectors_read, last.sectors_excess) == (2, 8, 4)


# ------------------------------------------------------------------------------------------- copies


def test_an_asynchronous_copy_reads_global_and_writes_shared_memory() -> None:
    access = "cp.async.cg.shared.global [%r5], [%rd5], 16"
    result = traffic(access, range(0, 512, 16))
    assert result == MemoryTraffic(result.where, 1, 4, 4, 1, 16, 0, 16, line=result.line)
    result = traffic(access, [128 * lane for lane in range(31)] + [IDLE])
    assert result == MemoryTraffic(result.where, 1, 31, 4, 1, 31, 0, 16, line=result.line)


def test_an_asynchronous_copy_reads_nothing_where_it_writes_zeros() -> None:
    access = "cp.async.cg.shared.global [%r5], [%rd5], 16, %r3"
    # Lane t copies min(t, 16) bytes and zeros; lane 0 none.
    text = ptx(AT_PLACES.format(access=f"min.u32 %r3, %r3, 16;\n    {access};"), shared=SHARED_BYTES)
    args = [np.arange(0, 1024, 32, dtype=np.uint32), np.zeros(1024, np.uint8)]
    result = run(text, grid=1, block=32, args=args, profile=True).counters.worst("sectors_read", 1)
    assert [t for _, t in result] == [
        MemoryTraffic(result[0][1].where, 1, 8, 4, 1, 31, 0, 16, line=result[0][1].line)
    ]


# -------------------------------------------------------------------------- against a plain counter


def slow_wavefronts(places: Sequence[int], nbytes: int, *, serialised: bool) -> tuple[int, int, int]:
    requests = wavefronts = least = 0
    for warp in range(0, len(places), 32):
        requests += any(p != IDLE for p in places[warp : warp + 32])
        size = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[nbytes]
        for first in range(warp, warp + 32, size):
            banks: dict[int, list[int]] = {}
            for location in places[first : first + size]:
                for byte in range(0, nbytes, 4):
                    if location != IDLE:
                        banks.setdefault((location + byte) // 4 % 32, []).append((location + byte) // 4)
            needed = [len(words) if serialised else len(set(words)) for words in banks.values()]
            wavefronts += max(needed, default=0)
            least += bool(banks)
    return requests, wavefronts, wavefronts - least


def slow_sectors(places: Sequence[int], nbytes: int) -> tuple[int, int, int]:
    requests = moved = least = 0
    for warp in range(0, len(places), 32):
        touched = {p + b for p in places[warp : warp + 32] if p != IDLE for b in range(nbytes)}
        requests += bool(touched)
        moved += len({byte // 32 for byte in touched})
        least += -(-len(touched) // 32)
    return requests, moved, moved - least


def random_places(seed: int, nbytes: int) -> list[int]:
    """Four warps whose places are scattered over more or less memory, some lanes idle."""
    random = np.random.default_rng(seed)
    span = int(random.choice([64, 256, 2048, SHARED_BYTES]))
    places = random.integers(0, span // nbytes, 128) * nbytes
    return np.where(random.random(128) < random.choice([0, 0.3, 0.9]), IDLE, places).tolist()


WIDTHS = {
    1: ("u8 %rs1", ".u8 [{}], %rs1"),
    2: ("u16 %rs1", ".u16 [{}], %rs1"),
    4: ("u32 %r6", ".u32 [{}], %r6"),
    8: ("u64 %rd8", ".u64 [{}], %rd8"),
    16: ("v2.u64 {%rd8, %rd9}", ".v2.u64 [{}], {%rd8, %rd9}"),
}


@pytest.mark.parametrize("nbytes", WIDTHS)
@pytest.mark.parametrize("seed", range(6))
def test_random_accesses_cost_what_a_plain_count_says(seed: int, nbytes: int) -> None:
    places = random_places(seed, nbytes)
    load, store = WIDTHS[nbytes][0], WIDTHS[nbytes][1]
    want = slow_wavefronts(places, nbytes, serialised=False)
    assert shared(f"ld.shared.{load}, [%r5]", places) == want
    assert shared("st.shared" + store.replace("{}", "%r5", 1), places) == want
    requests, moved, excess = slow_sectors(places, nbytes)
    assert sectors(f"ld.global.{load}, [%rd5]", places) == (requests, moved, 0, excess)
    stored = sectors("st.global" + store.replace("{}", "%rd5", 1), places)
    assert stored == (requests, 0, moved, excess)
    if nbytes in (4, 8):
        register = "%r6" if nbytes == 4 else "%rd8"
        atomic = f"atom.shared.exch.b{8 * nbytes} {register}, [%r5], {register}"
        assert shared(atomic, places) == slow_wavefronts(places, nbytes, serialised=True)


@pytest.mark.parametrize("offset", [1, 3, 4, 8, 36])
def test_constant_offsets_from_one_register_count_as_addresses_do(offset: int) -> None:
    places = random_places(7, 1)
    moved = [p if p == IDLE else p + offset for p in places]
    # The first access makes what the second might reuse.
    access = f"ld.global.u8 %rs2, [%rd5];\n    @%p0 ld.global.u8 %rs1, [%rd5+{offset}]"
    text = ptx(AT_PLACES.format(access=f"@%p0 {access};"), shared=16)
    args = [np.array(places, np.uint32), np.zeros(SHARED_BYTES + 64, np.uint8)]
    result = run(text, grid=1, block=128, args=args, profile=True).counters.memory_by_instruction
    assert result is not None
    first, second = [result[n] for n in sorted(result)][-2:]
    for got, want in ((first, slow_sectors(places, 1)), (second, slow_sectors(moved, 1))):
        assert (got.global_requests, got.sectors_read, got.sectors_excess) == want
    access = f"ld.shared.u8 %rs2, [%r5];\n    @%p0 ld.shared.u8 %rs1, [%r5+{offset}]"
    text = ptx(AT_PLACES.format(access=f"@%p0 {access};"), shared=SHARED_BYTES + 64)
    result = run(text, grid=1, block=128, args=args, profile=True).counters.memory_by_instruction
    assert result is not None
    first, second = [result[n] for n in sorted(result)][-2:]
    for got, at in ((first, places), (second, moved)):
        got_figures = got.shared_requests, got.shared_wavefronts, got.shared_conflicts
        assert got_figures == slow_wavefronts(at, 1, serialised=False)


# ----------------------------------------------------------------------------------------- counters


def counters_of(body: str, *, block: int = 32, profile: bool = False, **options: Any) -> Counters:
    text = ptx(body, "u64 x", shared=1024, **options)
    return run(text, grid=1, block=block, args=[np.zeros(256)], profile=profile).counters


TWO_PLACES = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 64;
    shl.b32 %r2, %r1, 4;
    mov.u32 %r3, buf;
    add.u32 %r2, %r2, %r3;
    add.u64 %rd1, %rd1, %rd2;
    st.shared.u32 [%r2], %r1;
    ld.shared.u32 %r4, [%r3];
    st.global.u32 [%rd1], %r4;
"""


SUMS = (
    *("shared_requests", "shared_wavefronts", "shared_conflicts", "global_requests"),
    *("global_sectors_read", "global_sectors_written", "global_sectors_excess"),
)


def test_the_sums_are_those_of_all_instructions_and_the_worst_come_first() -> None:
    counters = counters_of(TWO_PLACES, profile=True)
    result = counters.memory_by_instruction
    assert result is not None
    assert {n: t.where for n, t in result.items()} == {
        7: "st.shared.u32 [%r2], %r1; (line 21)",
        8: "ld.shared.u32 %r4, [%r3]; (line 22)",
        9: "st.global.u32 [%rd1], %r4; (line 23)",
    }
    assert [getattr(counters, name) for name in SUMS] == [2, 5, 3, 1, 0, 32, 28]
    assert counters.worst("shared_conflicts") == [(7, result[7])]
    assert counters.worst("shared_wavefronts") == [(7, result[7]), (8, result[8])]
    assert counters.worst("shared_wavefronts", 1) == [(7, result[7])]
    assert counters.worst("sectors_excess") == [(9, result[9])]


def test_without_profile_no_figure_of_memory_is_a_number() -> None:
    counters = counters_of(TWO_PLACES)
    assert counters.memory_by_instruction is None
    assert [getattr(counters, name) for name in SUMS] == [None] * 7
    assert counters.worst("shared_conflicts") == []


def test_profiling_changes_neither_results_nor_the_other_counters() -> None:
    plain, profiled = counters_of(TWO_PLACES), counters_of(TWO_PLACES, profile=True)
    profiled.memory_by_instruction = None
    assert plain == profiled


def test_figures_add_up_over_batches_of_blocks() -> None:
    text = ptx(TWO_PLACES, shared=1024)
    counters = run(text, grid=9000, block=32, args=[np.zeros(256)], profile=True).counters
    assert (counters.shared_wavefronts, counters.global_sectors_written) == (9000 * 5, 9000 * 32)


def test_param_and_local_memory_are_neither_shared_nor_global() -> None:
    body = """
    .local .align 4 .b8 own[16];
    mov.u32 %r1, %tid.x;
    st.local.u32 [own], %r1;
    ld.local.u32 %r2, [own];
    """
    assert counters_of(body, profile=True).memory_by_instruction == {}


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2 * 16 * 8 * 16),
        ("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", 2 * 16 * 8 * 4),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 2 * 8 * 8 * 4),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 4 * 2 * 8 * 8 * 4),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", 2 * 16 * 8 * 32),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 2 * 16 * 8 * 256),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 2 * 16 * 16 * 16),
        ("wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32", 2 * 8 * 8 * 128),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16", 2 * 64 * 256 * 16 // 4),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16", 0),
        ("wgmma.fence.sync.aligned", 0),
        ("ldmatrix.sync.aligned.m8n8.x4.b16", 0),
        ("fma.rn.f32", 0),
    ],
)
def test_matrix_instructions_count_two_operations_for_each_product(opcode: str, flops: int) -> None:
    counters = Counters()
    counters.by_opcode[opcode] = 12
    assert counters.tensor_flops == 12 * flops


def test_a_kernel_counts_its_matrix_instructions() -> None:
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    c = "{%f0, %f1, %f2, %f3}"
    body = "\n".join(
        [
            *(f"mov.u32 %r{n}, 0;" for n in range(6)),
            *(f"mov.f32 %f{n}, 0f00000000;" for n in range(4)),
            f"{opcode} {c}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}}, {c};",
            "ret;",
        ]
    )
    assert counters_of(body, block=96).tensor_flops == 3 * 4096


def test_what_no_figure_has_is_named() -> None:
    counters = Counters()
    named = [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16",
    ]
    seen = [
        *("cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "wgmma.fence.sync.aligned"),
        *("cp.async.cg.shared.global", "ld.global.u32", "cp.async.bulk.prefetch.L2.global"),
    ]
    counters.by_opcode.update([*named, *seen])
    assert counters.traffic_not_counted == tuple(named)


def test_a_profiled_access_out_of_bounds_is_still_refused() -> None:
    with pytest.raises(TrapError, match="wants to read 4 bytes of shared memory at 0x4000"):
        traffic(LD, [SHARED_BYTES])
