"""Products of `tcgen05.mma` that run, against float64: kinds, shapes, majors, A in tensor memory, masks."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from interpreter.tensor_texts import (
    LANES,
    MBARRIERS,
    TENSOR,
    Array,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
    moved,
    ran,
    result,
    rows_of_128_bytes,
    wait,
)

from ptxgen.interpreter.machine.memory import POISON

KINDS: Final = {
    "f16": ("f16", np.float16),
    "bf16": ("f16", ml_dtypes.bfloat16),
    "tf32": ("tf32", np.float32),
    "e4m3": ("f8f6f4", ml_dtypes.float8_e4m3fn),
    "e5m2": ("f8f6f4", ml_dtypes.float8_e5m2),
    "s8": ("i8", np.int8),
    "u8": ("i8", np.uint8),
}
ROW: Final = 128  # bytes of a row of A and B


def drawn(type: str, rows: int, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    dtype = KINDS[type][1]
    if type in ("s8", "u8"):
        return rng.integers(-128 if type == "s8" else 0, 128, (rows, ROW)).astype(dtype)
    return rng.standard_normal((rows, ROW // np.dtype(dtype).itemsize)).astype(dtype)


def exact(matrix: Array, type: str) -> Array:
    if type == "tf32":
        matrix = (matrix.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return matrix.astype(np.float64)


def steps(
    kind: str,
    idesc: int,
    *,
    count: int = 4,
    group: int = 1,
    b_at: int = 1 << 15,
    more: str = "",
    d: str = TENSOR,
) -> list[str]:
    """Products of 32 bytes along K each, of A and B that are K-major."""
    lines = [f"mov.u32 %r5, {idesc:#x};"]
    for n in range(count):
        lines += [descriptor("%rd1", 32 * n), descriptor("%rd2", b_at + 32 * n)]
        lines.append(f"setp.ne.u32 %p1, {n}, 0;" if n else "setp.ne.u32 %p1, %r5, %r5;")
        lines.append(f"tcgen05.mma.cta_group::{group}.kind::{kind} [{d}], %rd1, %rd2, %r5, {more}%p1;")
    return lines


def held_at(column: int, lines: list[str]) -> list[str]:
    """The products of `steps` with A in tensor memory, 8 columns for each of four."""
    addresses = [f"add.u32 %r{20 + n}, {TENSOR}, {column + 8 * n};" for n in range(4)]
    return addresses + [
        line.replace("], %rd1,", f"], [%r{20 + (i - 1) // 4}],") for i, line in enumerate(lines)
    ]


def image(a: Array, b: Array, b_at: int = 1 << 15, nbytes: int = 1 << 16) -> Array:
    whole = np.zeros(nbytes, np.uint8)
    for matrix, at in ((a, 0), (b, b_at)):
        octets = rows_of_128_bytes(matrix)
        whole[at : at + len(octets)] = octets
    return whole


def product(a: Array, b: Array, kind: str, idesc: int, columns: int, **how: Any) -> Array:
    text = kernel(
        by_one_thread([*steps(kind, idesc), commit()]) + "\n" + wait() + "\n" + moved(0, columns, to="out"),
        nbytes=1 << 16,
    )
    return ran(text, image(a, b), (LANES, columns), **how)


def rows_of_d(m: int) -> Array:
    """The lane of each row of D in one CTA."""
    row = np.arange(m)
    return row if m == 128 else row // 16 * 32 + row % 16


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("type", KINDS)
def test_a_product_of_each_type_is_right(type: str, m: int) -> None:
    kind, n = KINDS[type][0], 96
    a, b = drawn(type, m), drawn(type, n, 2)
    d = "s32" if kind == "i8" else "f32"
    got = product(a, b, kind, instruction(m, n, type, d=d), n)[rows_of_d(m)]
    want = exact(a, type) @ exact(b, type).T
    if d == "s32":
        assert (got.view(np.int32) == want).all()
    else:
        assert np.abs(got.view(np.float32) - want).max() < 1e-4 * np.abs(want).max()


MORE: Final = 1 << 16  # bytes of x before what is stored to tensor memory


@pytest.mark.sample(2)
@pytest.mark.parametrize(("m", "lane"), [(128, 0), (64, 16)])
def test_d_may_begin_at_a_later_column_and_in_the_middle_of_quarters(m: int, lane: int) -> None:
    """Shared memory has a size that is no multiple of the words of a matrix."""
    n, a, b = 32, drawn("f16", m), drawn("f16", 32, 2)
    lines = [line.replace("[%r90]", "[%r20]") for line in steps("f16", instruction(m, n, "f16"))]
    start = by_one_thread([f"add.u32 %r20, {TENSOR}, {lane << 16 | 64};", *lines, commit()])
    text = kernel("\n".join([start, wait(), moved(64, n, to="out")]), nbytes=1 << 16)
    nbytes = MBARRIERS + (1 << 16)
    text = text.replace(f"buf[{nbytes}]", f"buf[{nbytes + 4}]")
    got = ran(text, image(a, b), (LANES, n)).view(np.float32)[lane + rows_of_d(m)]
    assert np.abs(got - exact(a, "f16") @ exact(b, "f16").T).max() < 1e-4


def test_a_commit_is_for_the_products_before_it() -> None:
    n, a, b = 32, drawn("f16", 128), drawn("f16", 32, 2)
    lines = steps("f16", instruction(128, n, "f16"))
    later = [line.replace("[%r90]", "[%r20]") for line in lines]
    second = commit().replace("[%r92]", "[%r92+8]")
    start = [f"add.u32 %r20, {TENSOR}, 64;", *lines, commit(), *later, second]
    other = wait().replace("[%r92]", "[%r92+8]").replace("$wait0", "$other")
    init = "@%p8 mbarrier.init.shared.b64 [%r92+8], 1;\nbar.sync 0;"
    for column in (0, 64):
        body = [init, by_one_thread(start), wait(), moved(column, n, to="out"), other]
        got = ran(kernel("\n".join(body), nbytes=1 << 16), image(a, b), (LANES, n))
        if column:
            assert (got == POISON).all()
        else:
            assert np.abs(got.view(np.float32) - exact(a, "f16") @ exact(b, "f16").T).max() < 1e-4


def with_rows(whole: Array, rows: Array) -> Array:
    """x: an image of shared memory, and rows of words for the lanes of tensor memory."""
    return np.concatenate([whole.view(np.uint32), np.ascontiguousarray(rows).view(np.uint32).ravel()])


def stored(first: int, count: int) -> str:
    return f"add.u64 %rd90, %rd90, {MORE};\n" + moved(first, count, to="tensor")


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("type", ["f16", "bf16", "tf32", "e4m3", "s8"])
def test_a_matrix_in_tensor_memory_is_a_factor(type: str, m: int) -> None:
    kind, n, d = KINDS[type][0], 64, "s32" if type == "s8" else "f32"
    a, b = drawn(type, m), drawn(type, n, 2)
    rows = np.zeros((LANES, ROW), np.uint8)
    rows[rows_of_d(m)] = a.view(np.uint8)
    lines = steps(kind, instruction(m, n, type, d=d))
    body = [stored(256, 32), by_one_thread([*held_at(256, lines), commit()]), wait(), moved(0, n, to="out")]
    text = kernel("\n".join(body), nbytes=1 << 16)
    got = ran(text, with_rows(image(b, b), rows), (LANES, n))[rows_of_d(m)]
    want = exact(a, type) @ exact(b, type).T
    if d == "s32":
        assert (got.view(np.int32) == want).all()
    else:
        assert np.abs(got.view(np.float32) - want).max() < 1e-4 * np.abs(want).max()


def test_a_product_is_added_to_what_d_holds_and_masked_lanes_keep_it() -> None:
    n = 32
    a, b = drawn("f16", 128), drawn("f16", n, 2)
    old = np.random.default_rng(3).standard_normal((LANES, n)).astype(np.float32)
    lines = steps("f16", instruction(128, n, "f16"), count=1, more="{%r20, %r21, %r22, %r23}, ")
    lines = ["setp.eq.u32 %p1, %r5, %r5;" if "setp" in line else line for line in lines]
    masks = [f"mov.u32 %r{20 + q}, {mask:#x};" for q, mask in enumerate((0, 1, 0x80000000, 0xFFFFFFFF))]
    body = [stored(0, n), by_one_thread([*masks, *lines, commit()]), wait(), moved(0, n, to="out")]
    got = ran(kernel("\n".join(body), nbytes=1 << 16), with_rows(image(a, b), old), (LANES, n)).view(
        np.float32
    )
    masked = np.zeros(LANES, np.bool_)
    masked[[32, 95, *range(96, 128)]] = True
    assert (got[masked] == old[masked]).all()
    want = old + a[:, :16].astype(np.float64) @ b[:, :16].astype(np.float64).T
    assert np.abs(got - want)[~masked].max() < 1e-5


@pytest.mark.parametrize("scale", [0, 3, 15])
def test_d_is_divided_by_a_power_of_two_first(scale: int) -> None:
    n = 32
    a, b = drawn("f16", 128), drawn("f16", n, 2)
    old = np.random.default_rng(3).standard_normal((LANES, n)).astype(np.float32)
    lines = steps("f16", instruction(128, n, "f16"), count=1)
    lines = [
        "setp.eq.u32 %p1, %r5, %r5;" if "setp" in line else line.replace("%p1;", f"%p1, {scale};")
        for line in lines
    ]
    body = [stored(0, n), by_one_thread([*lines, commit()]), wait(), moved(0, n, to="out")]
    got = ran(kernel("\n".join(body), nbytes=1 << 16), with_rows(image(a, b), old), (LANES, n)).view(
        np.float32
    )
    want = old.astype(np.float64) / 2**scale + a[:, :16].astype(np.float64) @ b[:, :16].astype(np.float64).T
    assert np.abs(got - want).max() < 1e-5


def test_the_bits_of_the_descriptor_negate_saturate_and_round() -> None:
    n = 32
    a, b = drawn("f16", 128), drawn("f16", n, 2)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    for flags, sign in ((1 << 13, -1), (1 << 14, -1), (3 << 13, 1)):
        got = product(a, b, "f16", instruction(128, n, "f16", flags=flags), n).view(np.float32)
        assert np.abs(got - sign * want).max() < 1e-4
    got = product(a, b, "f16", instruction(128, n, "f16", d="f16"), n)
    assert np.abs(got.astype(np.uint16).view(np.float16) - want).max() < 0.1
    assert (got < 1 << 16).all()  # an element has the lower half of its column
    same = np.full((128, ROW), 127, np.int8)
    got = product(same, same[:n], "i8", instruction(128, n, "s8", d="s32", flags=1 << 3), n)
    assert (got == 128 * 127 * 127).all()


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_rows_along_m_and_n_are_factors(type: str) -> None:
    """A is [K, M] and B is [K, N] in shared memory, 64 elements of a row of k beside each other."""
    m, n, k = 128, 192, 16
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((k, x)).astype(KINDS[type][1]) for x in (m, n))
    whole = np.zeros(1 << 16, np.uint8)
    for matrix, at in ((a, 0), (b, 1 << 15)):
        for first in range(0, matrix.shape[1], 64):
            octets = rows_of_128_bytes(matrix[:, first : first + 64])
            start = at + first // 64 * len(octets)
            whole[start : start + len(octets)] = octets
    lines = [
        f"mov.u32 %r5, {instruction(m, n, type, flags=3 << 15):#x};",
        descriptor("%rd1", 0, lbo=2048, sbo=1024),
        descriptor("%rd2", 1 << 15, lbo=2048, sbo=1024),
        "setp.ne.u32 %p1, %r5, %r5;",
        f"tcgen05.mma.cta_group::1.kind::f16 [{TENSOR}], %rd1, %rd2, %r5, %p1;",
        commit(),
    ]
    body = [by_one_thread(lines), wait(), moved(0, n, to="out")]
    got = ran(kernel("\n".join(body), nbytes=1 << 16), whole, (LANES, n)).view(np.float32)
    want = a.astype(np.float64).T @ b.astype(np.float64)
    assert np.abs(got - want).max() < 1e-5


@pytest.mark.parametrize(("type", "bits"), [("e2m3", 6), ("e3m2", 6), ("e2m1", 4)])
def test_narrow_types_lie_packed_with_padding(type: str, bits: int) -> None:
    n = 32
    dtype: Any = {
        "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn,
        "e2m1": ml_dtypes.float4_e2m1fn,
    }[type]
    codes = [
        np.random.default_rng(s).integers(0, 1 << bits, (rows, ROW)).astype(np.uint8)
        for s, rows in ((1, 128), (2, n))
    ]
    packed = []
    for code in codes:
        lines = np.zeros((len(code), ROW // 16, 128), np.uint8)
        unpacked = np.unpackbits(code[..., None], axis=2, bitorder="little")[..., :bits]
        lines[..., : 16 * bits] = unpacked.reshape(len(code), ROW // 16, 16 * bits)
        packed.append(np.packbits(lines, axis=2, bitorder="little").reshape(len(code), ROW))
    a, b = (code.view(dtype).astype(np.float64) for code in codes)
    got = product(*packed, "f8f6f4", instruction(128, n, type), n).view(np.float32)
    assert np.abs(got - a @ b.T).max() < 1e-3


# ---------------------------------------- pairs


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("held", [False, True])
def test_a_pair_of_ctas_computes_one_product(m: int, held: bool) -> None:
    n, rows = 64, m // 2
    a, b = drawn("bf16", m), drawn("bf16", n, 2)
    lines = steps("f16", instruction(m, n, "bf16"), group=2)
    whole = [image(a[rows * r : rows * (r + 1)], b[n // 2 * r : n // 2 * (r + 1)]) for r in range(2)]
    x = np.concatenate(whole)
    body = [by_one_thread([*lines, commit(pair=True, mask=3)], pair=True), wait(), moved(0, n, to="out")]
    if held:
        body[0] = by_one_thread([*held_at(256, lines), commit(pair=True, mask=3)], pair=True)
        store = stored(256, 32).replace(f", {MORE};", f", {2 * MORE};", 1)
        body = [store, "barrier.cluster.arrive;", "barrier.cluster.wait;", *body]
        copies = [np.tile(a[rows * r : rows * (r + 1)], (256 // m, 1)) for r in range(2)]
        x = np.concatenate([x, np.concatenate(copies).view(np.uint8).ravel()])
    out = np.zeros((2 * LANES, n), np.uint32)
    text = kernel("\n".join(body), nbytes=1 << 16, pair=True)
    for seed in (None, 1, 2):
        out = ran(
            text, x, (2 * LANES, n), ctas=2, cluster=2, schedule="lockstep" if seed is None else f"pct:{seed}"
        )
        got = out.view(np.float32)
        if m == 128:  # the right half of the columns lies in lanes 64 to 127
            halves = got.reshape(2, 2, 64, n)[..., : n // 2]
            got = np.concatenate([halves[:, 0], halves[:, 1]], axis=2).reshape(128, n)
        want = exact(a, "bf16") @ exact(b, "bf16").T
        assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_each_half_of_the_columns_of_a_pair_has_its_copy_of_a() -> None:
    n, b, a = 64, drawn("bf16", 64, 2), drawn("bf16", 256)
    whole = [image(b, b[32 * rank : 32 * rank + 32]) for rank in range(2)]
    start = [*held_at(256, steps("f16", instruction(128, n, "bf16"), group=2)), commit(pair=True, mask=3)]
    store = stored(256, 32).replace(f", {MORE};", f", {2 * MORE};", 1)
    body = [
        *(store, "barrier.cluster.arrive;", "barrier.cluster.wait;"),
        *(by_one_thread(start, pair=True), wait(), moved(0, n, to="out")),
    ]
    text = kernel("\n".join(body), nbytes=1 << 16, pair=True)
    x = np.concatenate([*whole, a.view(np.uint8).ravel()])
    got = ran(text, x, (2, 2, 64, n), ctas=2, cluster=2).view(np.float32)[..., : n // 2]
    copies, halves = exact(a, "bf16").reshape(2, 2, 64, -1), exact(b, "bf16").reshape(2, 32, -1)
    for rank in range(2):
        for half in range(2):
            want = copies[rank, half] @ halves[half].T
            assert np.abs(got[rank, half] - want).max() < 1e-4 * np.abs(want).max()


def test_the_odd_cta_may_issue_for_its_pair() -> None:
    n, a, b = 64, drawn("bf16", 256), drawn("bf16", 64, 2)
    whole = [image(a[128 * r : 128 * r + 128], b[32 * r : 32 * r + 32]) for r in range(2)]
    start = [*steps("f16", instruction(256, n, "bf16"), group=2), commit(pair=True, mask=3)]
    issued = by_one_thread(start, pair=True).replace(
        "setp.eq.and.u32 %p8, %r3, 0,", "setp.eq.and.u32 %p8, %r3, 1,"
    )
    text = kernel("\n".join([issued, wait(), moved(0, n, to="out")]), nbytes=1 << 16, pair=True)
    got = ran(text, np.concatenate(whole), (256, n), ctas=2, cluster=2).view(np.float32)
    want = exact(a, "bf16") @ exact(b, "bf16").T
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_the_multiply_adds_of_products_are_counted_and_a_copy_has_none() -> None:
    copy = "tcgen05.cp.cta_group::1.128x256b [%r90], %rd1;"
    lines = [*steps("f16", instruction(128, 32, "f16")), copy, commit()]
    text = kernel(by_one_thread(lines) + "\n" + wait(), nbytes=1 << 16)
    counted = result(text, np.zeros(1 << 16, np.uint8), np.zeros(4, np.uint32)).counters.tensor_memory_macs
    assert dict(counted) == {"tcgen05.mma.cta_group::1.kind::f16": 4 * 128 * 32 * 16}
