"""Tensor maps that kernels change, and values sent to the shared memory of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways

from ptxgen.check.prove.program.global_accesses import global_touches
from ptxgen.check.prove.program.shared_accesses import touches
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, DeviceArena, run
from ptxgen.interpreter.machine.boxes import loaded
from ptxgen.ir import Address, Instr
from ptxgen.parse import parse
from ptxgen.tensormap import ALIGN, NBYTES, TensorMap

COUNTED = "mbarrier::complete_tx::bytes"
REPLACE = "tensormap.replace.tile"


def kernel(body: str, params: str) -> str:
    named = ", ".join(f".param .u64 {name}" for name in params.split())
    loads = "".join(f"    ld.param.u64 %{name}, [{name}];\n" for name in params.split())
    registers = "".join(f"    .reg .b64 %{name};\n" for name in params.split())
    return f"""
.version 8.3
.target sm_90a
.address_size 64
.visible .entry k({named})
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .shared .align 128 .b8 tile[128];
    .shared .align 128 .b8 held[128];
    .shared .align 8 .b64 bar;
{registers}{loads}
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd0, %r0, 4;
    mov.u32 %r1, tile;
    mov.u32 %r2, held;
    mov.u32 %r3, bar;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r1, %r4;
    add.u32 %r6, %r2, %r4;
    setp.eq.u32 %p0, %r0, 0;
{body}
    ret;
}}
"""


# One thread loads the box at (4, 2) of the map at %map; all write what came.
LOAD = f"""
    @!%p0 bra $wait;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mov.b32 %r7, 4;
    mov.b32 %r8, 2;
    fence.proxy.tensormap::generic.acquire.gpu [%map], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.{COUNTED} [%r1], [%map, {{%r7, %r8}}], [%r3];
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
$wait:
    bar.sync 0;
$again:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;
    @!%p1 bra $again;
    ld.shared.b32 %r9, [%r5];
    add.u64 %rd1, %out, %rd0;
    st.global.b32 [%rd1], %r9;
"""


class Tensors:
    """Two tensors of one element type on the device, and a map of the first."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.arena = DeviceArena()
        self.x = rng.random((8, 12)).astype(np.float32)
        self.y = rng.random((10, 20)).astype(np.float32)
        self.at = [self.arena.place(a) for a in (self.x, self.y)]
        self.map = np.zeros((2, NBYTES), np.uint8)
        built = TensorMap(self.x, box=(4, 4)).encode(self.at[0])
        self.map[0] = np.frombuffer(built, np.uint8)
        self.out = np.zeros(32, np.float32)

    def run(self, body: str, **how: Any) -> np.ndarray:
        text = kernel(body, "map y out")
        args = [self.map, self.y, self.out]
        run_both_ways(text, grid=1, block=32, args=args, arena=self.arena, **how)
        return self.out.reshape(8, 4)


@pytest.fixture
def tensors() -> Tensors:
    return Tensors(np.random.default_rng(5))


def replaced(at: str, space: str) -> str:
    """The map at an address becomes one of y, a tensor of 20 x 10 with a box of 4 x 8."""
    return f"""
    {REPLACE}.global_address.{space}.b1024.b64 [{at}], %y;
    mov.b32 %r10, 20;
    {REPLACE}.global_dim.{space}.b1024.b32 [{at}], 0, %r10;
    {REPLACE}.global_dim.{space}.b1024.b32 [{at}], 1, 10;
    {REPLACE}.global_stride.{space}.b1024.b64 [{at}], 0, 80;
    {REPLACE}.box_dim.{space}.b1024.b32 [{at}], 1, 8;
    {REPLACE}.element_stride.{space}.b1024.b32 [{at}], 1, 1;
    {REPLACE}.rank.{space}.b1024.b32 [{at}], 1;
    {REPLACE}.swizzle_mode.{space}.b1024.b32 [{at}], 0;
    {REPLACE}.fill_mode.{space}.b1024.b32 [{at}], 0;
    {REPLACE}.interleave_layout.{space}.b1024.b32 [{at}], 0;
    {REPLACE}.elemtype.{space}.b1024.b32 [{at}], 7;
"""


def test_a_map_is_changed_in_global_memory(tensors: Tensors) -> None:
    want = np.zeros((8, 4), np.float32)
    want[:8] = tensors.y[2:10, 4:8]
    first = f"    @!%p0 bra $ready;\n{replaced('%map', 'global')}\n$ready:\n"
    assert (tensors.run(first + LOAD) == want).all()
    assert TensorMap.decode(tensors.map[0].tobytes()).dims == (20, 10)


def test_a_map_is_changed_in_shared_memory_and_copied(tensors: Tensors) -> None:
    body = f"""
    add.u64 %rd2, %map, %rd0;
    ld.global.b32 %r11, [%rd2];
    st.shared.b32 [%r6], %r11;
    bar.warp.sync -1;
    @!%p0 bra $ready;
{replaced("%r2", "shared::cta")}
$ready:
    bar.warp.sync -1;
    add.u64 %map, %map, 128;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%map], [%r2], 128;
{LOAD}"""
    before = tensors.map[0].copy()
    assert (tensors.run(body) == tensors.y[2:10, 4:8]).all()
    assert (tensors.map[0] == before).all()


ZEROED = """
    mov.b32 %r11, 0;
    st.shared.b32 [%r6], %r11;
    bar.warp.sync -1;
"""


def test_a_map_is_made_of_zeros(tensors: Tensors) -> None:
    body = f"""
{ZEROED}
    @!%p0 bra $ready;
{replaced("%r2", "shared::cta")}
    {REPLACE}.box_dim.shared::cta.b1024.b32 [%r2], 0, 4;
    {REPLACE}.element_stride.shared::cta.b1024.b32 [%r2], 0, 1;
$ready:
    bar.warp.sync -1;
    add.u64 %map, %map, 128;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
        [%map], [%r2], 128;
{LOAD}"""
    assert (tensors.run(body) == tensors.y[2:10, 4:8]).all()
    assert TensorMap.decode(tensors.map[1].tobytes()).box == (4, 8)


def test_zeros_with_one_other_byte_are_no_map(tensors: Tensors) -> None:
    other = "    @%p0 st.shared.b8 [%r2+127], 1;\n"
    with pytest.raises(TrapError, match="these bytes are no tensor map; copy one there first"):
        tensors.run(f"{ZEROED}{other}    @%p0 {REPLACE}.rank.shared::cta.b1024.b32 [%r2], 1;")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{REPLACE}.rank.global.b1024.b32 [%y], 1;", "these bytes are no tensor map; copy one there first"),
        (f"{REPLACE}.rank.global.b1024.b32 [%map+8], 1;", "a tensor map lies at a multiple of 64 bytes"),
        (
            f"{REPLACE}.global_stride.global.b1024.b64 [%map], 4, 16;",
            "global_stride of a tensor map has index 0 to 3, got 4",
        ),
        (
            f"{REPLACE}.interleave_layout.global.b1024.b32 [%map], 1;",
            "interleaved layouts are not modelled; give tensormap.replace 0",
        ),
        (
            f"{REPLACE}.box_dim.global.b1024.b32 [%map], 0, 70000;" + LOAD,
            "a tensor map's box must be from 1 to 256, got 65535 in (65535, 4) (index 0, innermost first)",
        ),
        (
            f"{REPLACE}.swizzle_mode.global.b1024.b32 [%map], 4;" + LOAD,
            "swizzle of a tensor map is one of 0 (none), 1 (32B), 2 (64B), 3 (128B), got 4",
        ),
        (
            f"{REPLACE}.fill_mode.global.b1024.b32 [%map], 2;" + LOAD,
            "oob_fill of a tensor map is one of 0 (zeros), 1 (nan), got 2",
        ),
    ],
)
def test_what_no_map_has_is_refused(tensors: Tensors, line: str, said: str) -> None:
    with pytest.raises(TrapError) as trapped:
        tensors.run(f"    {line}", sanitize=False)
    assert str(trapped.value).partition("CTA (0, 0, 0): ")[2].startswith(said)


@pytest.mark.parametrize(
    ("number", "name"), [(3, "s32"), (8, "f32.ftz"), (9, "f64"), (10, "bf16"), (12, "tf32.ftz")]
)
def test_types_have_the_numbers_of_the_manual(tensors: Tensors, number: int, name: str) -> None:
    tensors.run(f"    @%p0 {REPLACE}.elemtype.global.b1024.b32 [%map], {number};")
    assert tensors.map[0, 8] == TensorMap(0, (8,), name, (16,)).encode(0)[8]


def test_the_provers_see_accesses_to_maps() -> None:
    text = kernel(
        f"    {REPLACE}.rank.global.b1024.b32 [%map], 1;\n"
        f"    {REPLACE}.rank.shared::cta.b1024.b32 [%r2], 1;\n"
        "    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        " [%map], [%r2], 128;",
        "map",
    )
    result = [i for i in parse(text).kernels[0].body if isinstance(i, Instr)]
    maps = [i for i in result if i.opcode.startswith("tensormap")]
    assert [[t.nbytes for t in global_touches(i)] for i in maps] == [[NBYTES], [], [NBYTES]]
    shared = [[(t.fixed, t.align) for t in touches(i)] for i in maps]
    assert shared == [[], [(NBYTES, ALIGN)], [(NBYTES, ALIGN)]]
    assert all(isinstance(i.operands[0], Address) for i in maps)


# ------------------------------------------------------------------------------- registers

SENT = """
    @%p0 mbarrier.init.shared.b64 [%r3], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    setp.lt.u32 %p2, %r0, 8;
    mov.b32 %r9, 100;
    st.shared.b32 [%r5], %r9;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r10, %cluster_ctarank;
    xor.b32 %r10, %r10, 1;
    mapa.shared::cluster.u32 %r11, %r5, %r10;
    mapa.shared::cluster.u32 %r12, %r3, %r10;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {nbytes};
    mov.u32 %r13, %ctaid.x;
    mad.lo.u32 %r13, %r13, 1000, %r0;
    {send}
$again:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;
    @!%p1 bra $again;
    ld.shared.b32 %r9, [%r5];
    mov.u32 %r14, %ctaid.x;
    mad.lo.u32 %r14, %r14, 32, %r0;
    mul.wide.u32 %rd1, %r14, 4;
    add.u64 %rd1, %out, %rd1;
    st.global.b32 [%rd1], %r9;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
RED = f"red.async.relaxed.cluster.shared::cluster.{COUNTED}"
STORE = f"st.async.weak.shared::cluster.{COUNTED}"


def sent(send: str, nbytes: int, **how: Any) -> np.ndarray:
    out = np.zeros(64, np.uint32)
    text = kernel(SENT.format(send=send, nbytes=nbytes), "out")
    run_both_ways(text, grid=2, block=32, cluster=2, args=[out], **how)
    return out.reshape(2, 32)


@pytest.mark.parametrize(
    ("op", "make"),
    [
        ("add.u32", lambda a, b: a + b),
        ("max.s32", np.maximum),
        ("and.b32", lambda a, b: a & b),
        ("inc.u32", lambda a, b: np.where(a >= b, 0, a + 1)),
    ],
)
def test_values_are_combined_in_the_other_cta(op: str, make: Any) -> None:
    arguments = 1000 * np.array([[1], [0]]) + np.arange(32)
    got = sent(f"{RED}.{op} [%r11], %r13, [%r12];", 128)
    assert (got == make(np.full((2, 32), 100), arguments)).all()


def test_values_are_stored_in_the_other_cta() -> None:
    got = sent(f"@%p2 {STORE}.b32 [%r11], %r13, [%r12];", 32)
    want = np.full((2, 32), 100)
    want[:, :8] = 1000 * np.array([[1], [0]]) + np.arange(8)
    assert (got == want).all()


def test_vectors_are_stored_in_the_other_cta() -> None:
    send = f"@%p0 {STORE}.v4.b32 [%r11], {{%r13, %r13, %r0, %r13}}, [%r12];"
    assert sent(send, 16)[:, :5].tolist() == [[1000, 1000, 0, 1000, 100], [0, 0, 0, 0, 100]]


@pytest.mark.parametrize("seed", range(3))
def test_they_arrive_under_any_schedule(seed: int) -> None:
    out = np.zeros(64, np.uint32)
    send = f"@%p2 {STORE}.b32 [%r11], %r13, [%r12];"
    text = kernel(SENT.format(send=send, nbytes=32), "out")
    run(text, grid=2, block=32, cluster=2, args=[out], schedule=PCT(seed=seed), sanitize=True)
    assert out[:8].tolist() == list(range(1000, 1008))


def test_a_value_that_was_not_waited_for_is_reported() -> None:
    text = kernel(SENT.format(send=f"{STORE}.b32 [%r11], %r13, [%r12];", nbytes=128), "out")
    early = text.replace("$again:\n", "    ld.shared.b32 %r9, [%r5];\n$again:\n")
    out = np.zeros(64, np.uint32)
    how: dict[str, Any] = {"grid": 2, "block": 32, "cluster": 2, "args": [out]}
    result = run(early, **how, sanitize="race", raise_on_report=False)
    assert [report.kind for report in result.reports]
    assert "ld.shared.b32" in str(result.reports[0])


@pytest.mark.parametrize(("opcode", "seen"), [(f"{STORE}.b32", 0x7FC0DEAD), (f"{RED}.add.u32", 100)])
def test_a_value_that_was_not_waited_for_is_not_there_yet(opcode: str, seen: int) -> None:
    load = "    ld.shared.b32 %r9, [%r5];\n"
    text = kernel(SENT.format(send=f"{opcode} [%r11], %r13, [%r12];", nbytes=128), "out")
    early = text.replace(load, "").replace("$again:\n", load + "$again:\n")
    out = np.zeros(64, np.uint32)
    run(early, grid=2, block=32, cluster=2, args=[out])
    assert out.tolist() == [seen] * 64


@pytest.mark.parametrize(
    ("shift", "why"),
    [
        (1, "0x1000101, which is not a multiple of 8"),
        (4, "0x1000104, which is not a multiple of 8"),
        (8, "0x1000108, outside its 264 bytes"),
    ],
)
def test_an_mbarrier_that_counts_values_is_a_word_of_shared_memory(shift: int, why: str) -> None:
    send = f"@%p0 {STORE}.b32 [%r11], %r13, [%r12+{shift}];"
    with pytest.raises(TrapError) as caught:
        sent(send, 4)
    assert str(caught.value).partition("): ")[2] == (
        f"thread (0, 0, 0) of CTA (0, 0, 0) wants to access 8 bytes of shared memory at {why}"
    )


def bounds_reports(body: str, **how: Any) -> list[str]:
    out = np.zeros(64, np.uint32)
    asked: dict[str, Any] = {"sanitize": "bounds", "raise_on_report": False}
    result = run(kernel(body, "out"), block=32, args=[out], **{"grid": 1, **asked, **how})
    return [str(report).partition("shared address ")[2] for report in result.reports]


def test_a_map_behind_the_variable_of_its_address_is_reported() -> None:
    built = TensorMap(0, (8,), "f32", (16,)).encode(0)
    words = np.frombuffer(built, np.uint32)
    copy = "".join(f"    st.shared.u32 [%r2+{4 * n}], {word};\n" for n, word in enumerate(words))
    line = f"    {REPLACE}.rank.shared::cta.b1024.b32 [%r1{{}}], 0;"
    assert bounds_reports(copy + line.replace("%r1", "%r2").format("")) == []
    assert bounds_reports(copy + line.format("+128")) == [
        "0x80 (held): its address is computed from tile, at 0x0 to 0x7f"
    ]


@pytest.mark.parametrize("opcode", [f"{STORE}.b32", f"{RED}.add.u32"])
def test_a_value_sent_behind_the_variable_of_its_address_is_reported(opcode: str) -> None:
    send = f"@%p0 {opcode} [%r11{{}}], %r13, [%r12];"
    how: dict[str, Any] = {"grid": 2, "cluster": 2}
    assert bounds_reports(SENT.format(send=send.format("+124"), nbytes=4), **how) == []
    assert bounds_reports(SENT.format(send=send.format("+128"), nbytes=4), **how) == [
        "0x80 (held): its address is computed from tile, at 0x0 to 0x7f"
    ]


@pytest.mark.parametrize(("dtype", "kept"), [("tf32", True), ("tf32.ftz", False), ("f32", True)])
def test_only_ftz_flushes_small_numbers(dtype: str, kept: bool) -> None:
    small = np.array([2.0**-130], np.float32)
    of = TensorMap(0, (16,), dtype, (16,))
    assert loaded(of, small.view(np.uint32)).view(np.float32).tolist() == [small[0] * kept]
