"""Tensor copies of Blackwell: rows that are gathered and scattered, mbarriers of a pair of CTAs,
packed elements, im2col.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from error_texts import refused
from interpreter.both_paths import run_both_ways

from ptxgen.check.prove import UNKNOWN, prove
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.errors import LaunchError, TrapError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import Assembler
from ptxgen.tensormap import TensorMap, swizzled

COUNTED: Final = "mbarrier::complete_tx::bytes"
GATHER: Final = f"cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.{COUNTED}"
SCATTER: Final = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
SPANS: Final = {"none": 64, "32B": 32, "64B": 64, "128B": 128}  # bytes of a row of the box
STORE: Final = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
AT: Final = "{%r4, %r5, %r6, %r7, %r8}"


def kernel(params: str, body: str) -> str:
    declared = [
        f".param .align 64 .b8 {name}[128]" if type == "tm" else f".param .{type} {name}"
        for type, name in (param.split() for param in params.split(", "))
    ]
    return f""".version 9.0
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({", ".join(declared)})
{{
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<64>; .reg .b64 %rd<64>;
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, smem;
    add.u32 %r2, %r1, 1024;
{body}
    ret;
}}
"""


MAP: Final = "mov.b64 %rd1, map;\ncvta.param.u64 %rd1, %rd1;\n"
READY: Final = """
    @%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
WAIT: Final = """
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
"""
WORDS: Final = tuple(range(0, 512, 128))
OUT: Final = "    ld.param.u64 %rd2, [out];\n    mad.wide.u32 %rd2, %r12, 4, %rd2;\n"


def write(nbytes: int) -> str:
    """The threads write the bytes behind the mbarrier to `out`, from word %r12 on for thread 0."""
    return f"{OUT}    shl.b32 %r3, %r0, 2;\n    add.u32 %r3, %r3, %r2;\n" + "".join(
        f"    ld.shared.b32 %r20, [%r3+{n}];\n    st.global.b32 [%rd2+{n}], %r20;\n"
        for n in WORDS
        if n < nbytes
    )


def coordinates(column: int, rows: tuple[int, ...]) -> str:
    return "".join(f"    mov.b32 %r{4 + n}, {value};\n" for n, value in enumerate((column, *rows)))


def gather(column: int, rows: tuple[int, ...], nbytes: int) -> str:
    return kernel(
        "tm map, u64 out",
        f"{READY}{MAP}{coordinates(column, rows)}"
        f"    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {nbytes};\n"
        f"    @%p0 {GATHER} [%r2], [%rd1, {AT}], [%r1];\n{WAIT}    mov.b32 %r12, %r0;\n{write(nbytes)}",
    )


def matrix() -> np.ndarray:
    return np.arange(1, 16 * 64 + 1, dtype=np.float32).reshape(16, 64)


def image_of(rows: np.ndarray, swizzle: str) -> np.ndarray:
    """The 512 bytes at a multiple of 1024 with four rows, as words; those without one are not a number."""
    image = np.full(128, np.nan, np.float32)
    at = SPANS[swizzle] * np.arange(4)[:, None] + 4 * np.arange(rows.shape[1])
    image[swizzled(at.reshape(-1), swizzle) // 4] = rows.reshape(-1)
    return image


@pytest.mark.parametrize("swizzle", SPANS)
def test_four_rows_are_gathered_one_after_another(swizzle: str) -> None:
    x, width = matrix(), SPANS[swizzle] // 4
    rows, column = (9, 2, 15, 2), 8
    out = np.zeros(128, np.float32)
    tensor_map = TensorMap(x, box=(width, 1), swizzle=swizzle)
    run_both_ways(
        gather(column, rows, 16 * width), grid=1, block=32, args=[tensor_map, out], dynamic_smem=2048
    )
    wanted = image_of(x[list(rows), column : column + width], swizzle)
    filled = ~np.isnan(wanted)
    np.testing.assert_array_equal(out[filled], wanted[filled])


def test_rows_and_columns_outside_of_the_matrix_are_zeros() -> None:
    x = matrix()
    out = np.zeros(128, np.float32)
    text = gather(56, (3, -1, 16, 0), 256)
    run_both_ways(text, grid=1, block=32, args=[TensorMap(x, box=(16, 1)), out], dynamic_smem=2048)
    wanted = np.zeros((4, 16), np.float32)
    wanted[0, :8], wanted[3, :8] = x[3, 56:], x[0, 56:]
    np.testing.assert_array_equal(out[:64].reshape(4, 16), wanted)


STORES: Final = "    shl.b32 %r3, %r0, 2;\n    add.u32 %r3, %r3, %r2;\n" + "".join(
    f"    add.u32 %r20, %r0, {n // 4};\n    st.shared.b32 [%r3+{n}], %r20;\n" for n in WORDS
)
SCATTERED: Final = kernel(
    "tm map",
    f"{STORES}    fence.proxy.async.shared::cta;\n    bar.sync 0;\n{MAP}{coordinates(4, (7, 30, 0, 3))}"
    f"    @%p0 {SCATTER} [%rd1, {AT}], [%r2];\n    @%p0 cp.async.bulk.commit_group;\n"
    "    @%p0 cp.async.bulk.wait_group 0;\n",
)


def test_four_rows_are_scattered_and_one_outside_is_not_written() -> None:
    x = np.zeros((8, 32), np.uint32)
    run_both_ways(SCATTERED, grid=1, block=32, args=[TensorMap(x, box=(16, 1))], dynamic_smem=2048)
    wanted = np.zeros((8, 32), np.uint32)
    for n, row in ((0, 7), (2, 0), (3, 3)):
        wanted[row, 4:20] = 16 * n + np.arange(16)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("how", [{"sanitize": True}, {"schedule": "pct:1"}])
def test_sanitizers_have_nothing_to_report_of_them(how: dict[str, Any]) -> None:
    text = gather(0, (3, 1, 2, 0), 256)
    run(
        text,
        grid=1,
        block=32,
        args=[TensorMap(matrix(), box=(16, 1)), np.zeros(128, np.float32)],
        dynamic_smem=2048,
        **how,
    )
    run(
        SCATTERED,
        grid=1,
        block=32,
        args=[TensorMap(np.zeros((8, 32), np.uint32), box=(16, 1))],
        dynamic_smem=2048,
        **how,
    )


def test_a_scattered_row_that_nothing_has_written_is_reported() -> None:
    last = f"    st.shared.b32 [%r3+{WORDS[1]}], %r20;\n"  # of the rows at 0 and 3 of the matrix
    text = SCATTERED.replace(last, "")
    x = np.zeros((8, 32), np.uint32)
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=[TensorMap(x, box=(16, 1))], dynamic_smem=2048, sanitize=True)
    assert "uninitialised: byte 16 of" in str(caught.value)
    assert "depends on shared address 0x480, which nothing has written" in str(caught.value)


@pytest.mark.parametrize("byte", [0, 252])
def test_a_byte_of_gathered_rows_is_read_after_the_wait_for_them(byte: int) -> None:
    text = gather(0, (3, 1, 2, 0), 256)
    args = [TensorMap(matrix(), box=(16, 1)), np.zeros(128, np.float32)]
    text = text.replace("$wait:", f"    @%p0 ld.shared.b32 %r20, [%r2+{byte}];\n$wait:")
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=args, dynamic_smem=2048, sanitize="race")
    assert f"shared address {1024 + byte:#x} may still be written by" in str(caught.value)


@pytest.mark.parametrize(("reduces", "reported"), [(False, False), (True, True)])
def test_a_box_is_stored_over_undefined_elements_or_added_to_them(reduces: bool, reported: bool) -> None:
    """An element of the array in global memory gets the value of a register that nothing has written."""
    copy = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group" if reduces else STORE
    first = "    ld.param.u64 %rd2, [out];\n    @%p0 st.global.b32 [%rd2+16], %r50;\n"
    text = SCATTERED.replace(SCATTER, copy).replace(AT, "{%r4, %r5}").replace("%r5, 7;", "%r5, 0;")
    text = text.replace("[128])", "[128], .param .u64 out)").replace(STORES, STORES + first)
    x = np.zeros((8, 32), np.uint32)
    args = [TensorMap(x, box=(16, 1)), x]
    if not reported:
        run(text, grid=1, block=32, args=args, dynamic_smem=2048, sanitize="init")
        return
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=args, dynamic_smem=2048, sanitize="init")
    assert "depends on %r50" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "to"), [(SCATTERED, []), (gather(0, (0, 1, 2, 3), 256), [np.zeros(128, np.float32)])]
)
def test_rows_lie_at_a_multiple_of_128_bytes(text: str, to: list[Any]) -> None:
    args = [TensorMap(np.zeros((8, 32), np.uint32), box=(16, 1)), *to]
    with pytest.raises(TrapError) as caught:
        run(text.replace("%r1, 1024;", "%r1, 1088;"), grid=1, block=32, args=args, dynamic_smem=2048)
    assert str(caught.value).endswith("a box lies at a multiple of 128 bytes of shared memory, got 0x440")


def test_a_box_of_several_rows_is_not_gathered() -> None:
    text = gather(0, (0, 1, 2, 3), 256)
    args = [TensorMap(matrix(), box=(16, 4)), np.zeros(128, np.float32)]
    message = "copies single rows, so the tensor map's box must have 1 row, got the box (16, 4)"
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=args, dynamic_smem=2048)
    assert str(caught.value).endswith(message)


# ---------------------------------------- elements of 4 and 6 bits


def load_of_two_rows(column: int, counted: int) -> str:
    """Two rows of the map at (`column`, 1) come to shared memory, where the mbarrier counts so many bytes;
    `out` gets 256 bytes.
    """
    return kernel(
        "tm map, u64 out",
        f"{READY}{MAP}{coordinates(column, (1,))}"
        f"    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {counted};\n"
        f"    @%p0 {GATHER.replace('tile::gather4', 'tile')} [%r2], [%rd1, {{%r4, %r5}}], [%r1];\n"
        f"{WAIT}    mov.b32 %r12, %r0;\n{write(256)}",
    )


# By type: the bytes of 16 elements.
GROUPS: Final = {"b4x16": 8, "b4x16_p64": 8, "b6x16_p32": 12}


@pytest.mark.parametrize("dtype", GROUPS)
@pytest.mark.parametrize("swizzle", ["none", "128B"])
def test_packed_elements_are_loaded_in_groups_of_sixteen(dtype: str, swizzle: str) -> None:
    """A group of 4 bits without gaps has 8 bytes of shared memory, any other group 16."""
    group = GROUPS[dtype]
    spaced = dtype != "b4x16"
    rng = np.random.default_rng(3)
    memory = rng.integers(0, 256, (4, 16 * group), np.uint8)  # 256 elements
    count = 128 if spaced or swizzle == "none" else 256  # elements of a row of the box
    column = 128 if spaced or swizzle == "none" else 0
    tensor_map = TensorMap(memory, box=(count, 2), dtype=dtype, swizzle=swizzle)
    out = np.zeros(256, np.uint8)
    text = load_of_two_rows(column, tensor_map.box_bytes)
    run(text, grid=1, block=32, args=[tensor_map, out], dynamic_smem=2048)
    size = 16 if spaced else group
    first = column // 16
    wanted = memory.reshape(4, 16, group)[1:3, first : first + count // 16].reshape(-1, group)
    at = size * np.arange(len(wanted))[:, None] + np.arange(group)
    np.testing.assert_array_equal(out[swizzled(at, swizzle)], wanted)


def test_packed_elements_outside_of_the_tensor_are_zeros() -> None:
    memory = np.full((2, 64), 0xFF, np.uint8)
    out = np.ones(256, np.uint8)
    tensor_map = TensorMap(memory, box=(128, 2), dtype="b4x16")
    run(load_of_two_rows(32, 128), grid=1, block=32, args=[tensor_map, out], dynamic_smem=2048)
    wanted = np.zeros((2, 64), np.uint8)
    wanted[0, :48] = 0xFF
    np.testing.assert_array_equal(out[:128].reshape(2, 64), wanted)


def test_the_gaps_between_packed_elements_are_undefined() -> None:
    memory = np.zeros((4, 128), np.uint8)
    args = [TensorMap(memory, box=(128, 2), dtype="b4x16_p64"), np.zeros(256, np.uint8)]
    with pytest.raises(TrapError) as caught:
        run(load_of_two_rows(0, 128), grid=1, block=32, args=args, dynamic_smem=2048, sanitize=True)
    assert "uninitialised" in str(caught.value)
    assert "depends on shared address 0x408, which nothing has written" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "column", "step"), [("b4x16", 16, 32), ("b4x16_p64", 64, 128), ("b6x16_p32", 64, 128)]
)
def test_a_box_of_packed_elements_begins_where_the_manual_says(dtype: str, column: int, step: int) -> None:
    memory = np.zeros((4, 16 * GROUPS[dtype]), np.uint8)
    args = [TensorMap(memory, box=(128, 2), dtype=dtype), np.zeros(256, np.uint8)]
    message = (
        f"the innermost coordinate of a box must be a multiple of {step} elements of {dtype}, got {column}"
    )
    with pytest.raises(TrapError) as caught:
        run(load_of_two_rows(column, 128), grid=1, block=32, args=args, dynamic_smem=2048)
    assert str(caught.value).endswith(message)


STORED: Final = SCATTERED.replace(SCATTER, STORE).replace(AT, "{%r4, %r5}").replace("%r4, 4;", "%r4, 32;")


def test_a_box_of_4_bits_is_stored() -> None:
    memory = np.zeros((16, 64), np.uint8)
    args = [TensorMap(memory, box=(64, 2), dtype="b4x16")]
    run_both_ways(STORED, grid=1, block=32, args=args, dynamic_smem=2048)
    wanted = np.zeros_like(memory)
    wanted[7:9, 16:48] = np.arange(16, dtype=np.uint32).view(np.uint8).reshape(2, 32)
    np.testing.assert_array_equal(memory, wanted)


@pytest.mark.parametrize(
    ("dtype", "copy", "why"),
    [
        (
            "b6x16_p32",
            STORE,
            "boxes of b6x16_p32 are loaded only; PTX stores none of b4x16_p64, and .b6p2x16 is not modelled",
        ),
        (
            "b4x16",
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group",
            "boxes of b4x16 are not reduced",
        ),
    ],
)
def test_boxes_of_packed_elements_that_are_not_stored(dtype: str, copy: str, why: str) -> None:
    args = [TensorMap(np.zeros((16, 96), np.uint8), box=(128, 2), dtype=dtype)]
    text = STORED.replace(STORE, copy).replace("%r4, 32;", "%r4, 0;")
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=32, args=args, dynamic_smem=2048)
    assert str(caught.value).endswith(why)


# ---------------------------------------- pairs of CTAs

LOAD: Final = f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{COUNTED}"


def paired(copy: str) -> str:
    """Each CTA executes `copy` with the mbarrier of CTA %r10 at %r11; even CTAs wait for 256 bytes."""
    return kernel(
        "tm map, u64 out",
        f"""
    mov.u32 %r9, %cluster_ctarank;
    and.b32 %r10, %r9, 0xFFFFFFFE;
    setp.eq.u32 %p3, %r9, %r10;
    mapa.shared::cluster.u32 %r11, %r1, %r10;
    shl.b32 %r4, %r9, 4;
    mov.b32 %r5, 0;
    mov.b16 %h1, 15;
{READY}{MAP}
    and.pred %p5, %p0, %p3;
    @%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
    @%p0 {copy};
    @!%p3 bra $over;
{WAIT}
$over:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r12, %ctaid.x;
    mad.lo.u32 %r12, %r12, 32, %r0;
{write(128)}""",
    )


BOX: Final = "[%r2], [%rd1, {%r4, %r5}], [%r11]"
PAIR: Final = paired(f"{LOAD}.cta_group::2 {BOX}")


def test_the_even_cta_of_a_pair_counts_the_bytes_of_both() -> None:
    x = matrix()
    out = np.zeros((4, 32), np.float32)
    args = [TensorMap(x, box=(8, 4)), out]
    run_both_ways(PAIR, grid=4, block=32, cluster=4, args=args, dynamic_smem=2048)
    for rank in range(4):
        np.testing.assert_array_equal(out[rank].reshape(4, 8), x[:4, 16 * rank : 16 * rank + 8])


def test_a_multicast_of_pairs_signals_the_even_or_the_odd_ctas() -> None:
    """CTA 1 sends a box to all four CTAs; the mbarriers of CTAs 0 and 2 count that of their pair."""
    x = matrix()
    out = np.zeros((4, 32), np.float32)
    copy = f"{LOAD}.multicast::cluster.cta_group::2 {BOX}, %h1"
    text = (
        paired(copy)
        .replace("@%p0 cp.async", "@%p6 cp.async")
        .replace("and.pred %p5", "setp.eq.and.u32 %p6, %r9, 1, %p0;\n    and.pred %p5")
    )
    args = [TensorMap(x, box=(8, 4)), out]
    run_both_ways(text, grid=4, block=32, cluster=4, args=args, dynamic_smem=2048)
    for rank in range(4):
        np.testing.assert_array_equal(out[rank].reshape(4, 8), x[:4, 16:24])


FAR: Final = (
    ("", "0", "that the box goes to"),
    (".cta_group::1", "0", "that the box goes to"),
    (".cta_group::2", "2", "of its pair, 2 or 3"),
)


@pytest.mark.parametrize(("group", "rank", "wanted"), FAR)
def test_an_mbarrier_of_a_cta_further_off_does_not_count(group: str, rank: str, wanted: str) -> None:
    text = paired(f"{LOAD}{group} {BOX}")
    text = text.replace("and.b32 %r10, %r9, 0xFFFFFFFE;", "and.b32 %r10, %r9, 0xFFFFFFFC;")
    args = [TensorMap(matrix(), box=(8, 4)), np.zeros((4, 32), np.float32)]
    to = int(rank) or 1
    with pytest.raises(TrapError) as caught:
        run(text, grid=4, block=32, cluster=4, args=args, dynamic_smem=2048)
    assert str(caught.value).endswith(
        f"copies a box to the CTA of rank {to} and wants the CTA of rank 0 to count its bytes; "
        f"the mbarrier must be in the CTA {wanted}"
    )


# ---------------------------------------- what is not modelled, and what proofs say

IM2COL: Final = (
    f"cp.async.bulk.tensor.3d.shared::cta.global.im2col.{COUNTED} "
    "[%r2], [%rd1, {%r4, %r5, %r6}], [%r1], {%h1};",
    f"cp.async.bulk.tensor.4d.shared::cluster.global.im2col::w.{COUNTED}.cta_group::2 "
    "[%r2], [%rd1, {%r4, %r5, %r6, %r7}], [%r1], {%h1, %h2};",
    f"cp.async.bulk.tensor.5d.shared::cluster.global.im2col::w::128.{COUNTED}.multicast::cluster "
    "[%r2], [%rd1, {%r4, %r5, %r6, %r7, %r8}], [%r1], {%h1, %h2}, %h3;",
    "cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {%r4, %r5, %r6}], [%r2];",
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.im2col_no_offs.bulk_group "
    "[%rd1, {%r4, %r5, %r6}], [%r2];",
    "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [%rd1, {%r4, %r5, %r6}], {%h1, %h2};",
)


@pytest.mark.parametrize("line", IM2COL)
def test_a_copy_for_a_convolution_is_refused_by_name(line: str) -> None:
    text = kernel("tm map", line)
    number = text.splitlines().index(line) + 1
    message = (
        f"k does not run on the interpreter: it has {line.split()[0]} (line {number} of the PTX text), and "
        "tensor maps for im2col are not modelled; run it on a GPU"
    )
    with refused(LaunchError, message):
        run(text, grid=1, block=32, args=[TensorMap(matrix(), box=(16, 4))])


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "text", [kernel("tm map", "\n".join(IM2COL)), gather(0, (0, 1, 2, 3), 256), SCATTERED, PAIR]
)
def test_the_assembler_takes_these_texts(text: str, assembler: Assembler) -> None:
    assembler.assemble(text, "sm_100a", opt_level=0)


@pytest.mark.parametrize("text", [gather(0, (0, 1, 2, 3), 256), SCATTERED])
def test_a_proof_does_not_follow_rows_that_are_not_neighbours(text: str) -> None:
    proofs = prove(text, block=32, contract=GlobalContract((), (), {}, (1, 1, 1)), dynamic_smem=2048)
    assert proofs.global_memory is not None
    for proof in (proofs.shared, proofs.global_memory):
        assert ("the rows that a tensor copy gathers or scatters are not followed", UNKNOWN) in [
            (v.reason, v.verdict) for v in proof.accesses
        ]
        assert not proof.complete
