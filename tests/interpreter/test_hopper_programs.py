"""Kernels for sm_90a in PTX text: tensor copies, mbarriers, wgmma and clusters against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interpreter.programs import at, deadlock, located, named

from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.tensormap import TensorMap

HEADER = """.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
INIT = """
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r1, smem;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
$ready:
    bar.sync 0;
"""
WAIT = """
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
"""


def kernel(params: str, body: str, extra: str = "") -> str:
    """A kernel `k`; `params` such as `tm a, u64 out`."""
    declared = []
    for param in params.split(", "):
        type, name = param.split()
        kinds = {"tm": f".param .align 64 .b8 {name}[128]"}
        declared.append(kinds.get(type, f".param .{type} {name}"))
    return f"""{HEADER}.visible .entry k({", ".join(declared)}){extra}
{{
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<128>;
    .reg .b32 %a<4>; .reg .b32 %c<128>;
{body}
    ret;
}}
"""


def address_of(register: str, tensor_map: str) -> str:
    return f"    mov.b64 {register}, {tensor_map};\n    cvta.param.u64 {register}, {register};\n"


def copy_to(at: int, register: str, *coordinates: int) -> str:
    """A box to byte `at` of shared memory, by thread 0."""
    dims = len(coordinates)
    return (
        f"    add.u32 %r2, %r1, {at};\n"
        + "".join(f"    mov.u32 %r{8 + n}, {c};\n" for n, c in enumerate(coordinates))
        + f"    cp.async.bulk.tensor.{dims}d.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[%r2], [{register}, {{{', '.join(f'%r{8 + n}' for n in range(dims))}}}], [%r1];\n"
    )


def expect(nbytes: int) -> str:
    return f"    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {nbytes};\n"


def failure(text: str, args: list[Any], **how: Any) -> str:
    """The error that ends a run by this module's `run`, which `interpreter.schedule.cases` replaces."""
    with pytest.raises(TrapError) as trapped:
        run(text, **{"grid": 1, "block": 32, "args": args, "dynamic_smem": 512, **how})
    return str(trapped.value)


# ---------------------------------------- images of boxes in shared memory


def image_kernel(box: TensorMap, coordinates: tuple[int, ...], words: int) -> str:
    """Loads one box to byte 1024 and writes so many words from there on to `out`."""
    return kernel(
        "tm map, u64 out",
        INIT
        + "    @%p0 bra $wait;\n"
        + address_of("%rd0", "map")
        + expect(box.box_bytes)
        + copy_to(1024, "%rd0", *coordinates)
        + WAIT
        + f"""
    ld.param.u64 %rd1, [out];
$next:
    setp.ge.u32 %p2, %r0, {words};
    @%p2 bra $end;
    shl.b32 %r3, %r0, 2;
    add.u32 %r4, %r1, %r3;
    ld.shared.u32 %r5, [%r4+1024];
    cvt.u64.u32 %rd2, %r3;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    add.u32 %r0, %r0, 32;
    bra $next;
$end:
""",
    )


def where(byte: int, swizzle: str) -> int:
    """The manual's drawing of the swizzles, on one address."""
    bits = {"none": 0, "32B": 1, "64B": 2, "128B": 3}[swizzle]
    low, high = byte >> 4 & 7, byte >> 7 & 7
    return byte & ~0x70 | (low ^ high & (1 << bits) - 1) << 4


def wanted_image(box: TensorMap, tensor: np.ndarray, corner: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """The image of a box, element by element; bytes that no element lies in are poison."""
    width = tensor.itemsize
    pitch = box.box[0] * width if box.swizzle == "none" else SPANS[box.swizzle]
    counts = [box.box[0]] + [-(-b // s) for b, s in zip(box.box[1:], box.element_strides[1:], strict=True)]
    steps = [1, *box.element_strides[1:]]
    rows = int(np.prod(counts[1:]))
    image = np.resize(np.array([0x7FC0DEAD], np.uint32).view(np.uint8), rows * pitch)
    bits = tensor.view(f"u{width}")
    for n in range(rows * counts[0]):
        rest, location = n, []
        for count, step, c in zip(counts, steps, corner, strict=True):
            location.append(c + rest % count * step)
            rest //= count
        inside = all(0 <= p < d for p, d in zip(location, tensor.shape[::-1], strict=True))
        value = int(bits[tuple(location[::-1])]) if inside else fill
        at = where(1024 + n // counts[0] * pitch + n % counts[0] * width, box.swizzle) - 1024
        image[at : at + width] = list(value.to_bytes(width, "little"))
    return image


def loaded_image(box: TensorMap, corner: tuple[int, ...], nbytes: int) -> np.ndarray:
    out = np.zeros(nbytes // 4, np.uint32)
    text = image_kernel(box, corner, len(out))
    run(text, grid=1, block=32, args=[box, out], dynamic_smem=1024 + nbytes)
    return out.view(np.uint8)


def counting(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape)).astype(dtype).reshape(shape)


BOXES = [
    ((64,), (64,), np.float32, (1,), (16,)),
    ((20, 64), (64, 8), np.float16, (1, 1), (0, 3)),
    ((20, 64), (64, 8), np.float16, (1, 1), (-8, 15)),
    ((20, 64), (64, 16), np.uint8, (1, 1), (16, -3)),
    ((9, 10, 32), (32, 4, 2), np.int32, (1, 1, 1), (0, 8, -1)),
    ((9, 10, 32), (32, 8, 3), np.uint16, (1, 3, 2), (8, 1, 2)),
    ((3, 4, 5, 16), (8, 2, 3, 2), np.float64, (1, 1, 1, 1), (2, -1, 2, 1)),
    ((2, 3, 4, 3, 16), (16, 2, 2, 2, 1), np.float32, (1, 1, 2, 1, 1), (0, 1, 0, 2, 1)),
]


@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize(("shape", "box", "dtype", "steps", "corner"), BOXES)
def test_a_box_lies_in_shared_memory_as_the_swizzle_says(
    shape: tuple[int, ...],
    box: tuple[int, ...],
    dtype: Any,
    steps: tuple[int, ...],
    corner: tuple[int, ...],
    swizzle: str,
) -> None:
    tensor = counting(shape, dtype)
    span = SPANS[swizzle] if swizzle != "none" else 256
    box = (min(box[0], span // tensor.itemsize), *box[1:])
    of = TensorMap(tensor, box=box, swizzle=swizzle, element_strides=steps)
    want = wanted_image(of, tensor, corner)
    assert np.array_equal(loaded_image(of, corner, want.nbytes), want)


def test_what_lies_outside_is_nan_if_asked_for() -> None:
    tensor = counting((4, 8), ml_dtypes.bfloat16)
    of = TensorMap(tensor, box=(8, 4), oob_fill="nan")
    for corner in ((0, 2), (-8, 0)):
        want = wanted_image(of, tensor, corner, fill=0x7FF7)  # what fma.oob takes for 0
        assert np.array_equal(loaded_image(of, corner, want.nbytes), want)


@pytest.mark.parametrize(
    ("dtype", "wrong", "right", "size"),
    [
        (np.uint8, (8, -8, 4, 1), (16, -16, 0), "16 elements of u8"),
        (np.float16, (4, -4, 1), (8, -8, 16, 0), "8 elements of f16"),
        (np.float32, (1, -2), (4, -4, 8, 0), "4 elements of f32"),
        (np.float64, (1, -1), (2, -2, 0), "2 elements of f64"),
    ],
)
def test_a_box_begins_at_a_multiple_of_16_bytes(
    dtype: Any, wrong: tuple[int, ...], right: tuple[int, ...], size: str
) -> None:
    """The innermost coordinate; the others may be any."""
    tensor = counting((4, 64), dtype)
    of = TensorMap(tensor, box=(16, 2))
    for first in right:
        for row in (-1, 3):
            want = wanted_image(of, tensor, (first, row))
            assert np.array_equal(loaded_image(of, (first, row), want.nbytes), want)
    for first in wrong:
        text, nbytes = image_kernel(of, (first, 0), 8 * tensor.itemsize), 32 * tensor.itemsize
        assert failure(text, [of, np.zeros(nbytes // 4, np.uint32)], dynamic_smem=1024 + nbytes) == (
            f"{at(text, 'cp.async.bulk.tensor')}the innermost coordinate of a box must be a multiple of 16 "
            f"bytes, "
            f"{size}, got {first}"
        )


def test_tf32_is_rounded_on_the_way() -> None:
    tensor = np.array([1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, 3.0], np.float32)
    image = loaded_image(TensorMap(tensor, box=(4,), dtype="tf32"), (0,), 16).view(np.float32)
    assert image.tolist() == [1 + 2.0**-10, 1.0, -1 - 2.0**-10, 3.0]


# ---------------------------------------- wgmma on what tensor copies have written


def descriptor(lbo: int, sbo: int, swizzle: str) -> int:
    return (lbo >> 4) << 16 | (sbo >> 4) << 32 | MODES[swizzle] << 62


def operand(register: str, at: str, fields: int) -> str:
    """A descriptor of what lies at a register's address of shared memory."""
    return (
        f"    shr.u32 %r20, {at}, 4;\n    cvt.u64.u32 {register}, %r20;\n"
        f"    or.b64 {register}, {register}, {fields};\n"
    )


def store_result(n: int, out: str = "%rd1") -> str:
    """D, 64 x n in f32, to global memory."""
    lines = [
        f"    ld.param.u64 {out}, [out];",
        "    mov.u32 %r0, %tid.x;\n    shr.u32 %r30, %r0, 5;\n    and.b32 %r31, %r0, 31;",
        "    shr.u32 %r32, %r31, 2;\n    and.b32 %r33, %r31, 3;\n    shl.b32 %r34, %r30, 4;",
        f"    add.u32 %r34, %r34, %r32;\n    mul.lo.u32 %r34, %r34, {4 * n};",
        "    shl.b32 %r35, %r33, 3;\n    add.u32 %r34, %r34, %r35;",
        f"    cvt.u64.u32 %rd2, %r34;\n    add.u64 %rd2, %rd2, {out};",
    ]
    for i in range(n // 2):
        at = 4 * (n * 8 * (i >> 1 & 1) + 8 * (i >> 2) + (i & 1))
        lines.append(f"    st.global.f32 [%rd2+{at}], %f{i};")
    return "\n".join(lines) + "\n"


class Panels:
    """A matrix in shared memory as boxes of one swizzle width each, side by side."""

    def __init__(self, at: int, rows: int, columns: int, swizzle: str) -> None:
        self.at, self.rows, self.swizzle = at, rows, swizzle
        self.span = SPANS[swizzle]
        self.count = columns * 2 // self.span
        self.nbytes = rows * columns * 2

    def loads(self, register: str) -> str:
        size = self.rows * self.span
        return "".join(
            copy_to(self.at + n * size, register, n * self.span // 2, 0) for n in range(self.count)
        )

    def k_major(self, step: int) -> tuple[int, int]:
        """Where step k16 begins, and the descriptor's other fields."""
        size = self.rows * self.span
        panel, inside = divmod(32 * step, self.span)
        return self.at + panel * size + inside, descriptor(size, 8 * self.span, self.swizzle)

    def mn_major(self, step: int) -> tuple[int, int]:
        """The same where the rows are K."""
        size, group = self.rows * self.span, 8 * self.span
        lbo, sbo = (group, size) if self.swizzle == "none" else (size, group)
        return self.at + 16 * self.span * step, descriptor(lbo, sbo, self.swizzle)


def product_kernel(a: Panels, b: Panels, n: int, steps: int, *, ta: bool, tb: bool, type: str) -> str:
    body = INIT + "    @%p0 bra $wait;\n" + address_of("%rd10", "a") + address_of("%rd11", "b")
    body += expect(a.nbytes + b.nbytes) + a.loads("%rd10") + b.loads("%rd11") + WAIT
    body += "    wgmma.fence.sync.aligned;\n    mov.pred %p3, 0;\n"
    registers = ", ".join(f"%f{i}" for i in range(n // 2))
    for step in range(steps):
        for register, panels, turned in (("%rd4", a, ta), ("%rd5", b, tb)):
            at, fields = panels.mn_major(step) if turned else panels.k_major(step)
            body += f"    add.u32 %r21, %r1, {at};\n" + operand(register, "%r21", fields)
        body += (
            f"    wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {{{registers}}}, "
            f"%rd4, %rd5, %p3, 1, 1, {int(ta)}, {int(tb)};\n    setp.eq.u32 %p3, 0, 0;\n"
        )
    body += "    wgmma.commit_group.sync.aligned;\n    wgmma.wait_group.sync.aligned 0;\n"
    return kernel("tm a, tm b, u64 out", body + store_result(n))


def small_integers(shape: tuple[int, ...], seed: int, dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, swizzles: tuple[str, str], *, ta: bool, tb: bool) -> np.ndarray:
    """A (or its transpose, if `ta`) times B's transpose (or B, if `tb`) by tensor copies and
    wgmma.
    """
    type = "bf16" if a.dtype == ml_dtypes.bfloat16 else "f16"
    steps = (a.shape[0] if ta else a.shape[1]) // 16
    n = b.shape[1] if tb else b.shape[0]
    left = Panels(1024, *a.shape, swizzles[0])
    right = Panels(1024 + -(-left.nbytes // 1024) * 1024, *b.shape, swizzles[1])
    text = product_kernel(left, right, n, steps, ta=ta, tb=tb, type=type)
    maps = [
        TensorMap(x, box=(SPANS[s] // 2, x.shape[0]), swizzle=s)
        for x, s in zip((a, b), swizzles, strict=True)
    ]
    out = np.full((64, n), np.nan, np.float32)
    run(text, grid=1, block=128, args=[*maps, out], dynamic_smem=right.at + right.nbytes)
    return out


@pytest.mark.sample(12)
@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("rows", [64, 80, 128, 176])
def test_scores_and_outputs_of_attention_agree_with_numpy(rows: int, d: int, swizzle: str) -> None:
    q = small_integers((64, d), 1, np.float16)
    k = small_integers((rows, d), 2, np.float16)
    scores = product(q, k, (swizzle, swizzle), ta=False, tb=False)
    assert np.array_equal(scores, q.astype(np.float32) @ k.astype(np.float32).T)
    p = small_integers((64, rows), 3, ml_dtypes.bfloat16)
    v = small_integers((rows, d), 4, ml_dtypes.bfloat16)
    outputs = product(p, v, ("32B", swizzle), ta=False, tb=True)
    assert np.array_equal(outputs, p.astype(np.float32) @ v.astype(np.float32))


@pytest.mark.parametrize("swizzle", SPANS)
def test_a_may_be_stored_with_m_along_rows(swizzle: str) -> None:
    a = small_integers((48, 64), 5, np.float16)
    b = small_integers((48, 64), 6, np.float16)
    got = product(a, b, (swizzle, swizzle), ta=True, tb=True)
    assert np.array_equal(got, a.astype(np.float32).T @ b.astype(np.float32))


# ---------------------------------------- stores and reductions of boxes


def round_trip(store: str) -> str:
    """Loads a box of `a`, waits, and has thread 0 store or reduce it into `b`."""
    return kernel(
        "tm a, tm b, u32 x, u32 y",
        INIT
        + "    @%p0 bra $wait;\n"
        + address_of("%rd0", "a")
        + address_of("%rd1", "b")
        + expect(512)
        + copy_to(1024, "%rd0", 0, 0)
        + WAIT
        + f"""
    @%p0 bra $end;
    fence.proxy.async.shared::cta;
    ld.param.u32 %r4, [x];
    ld.param.u32 %r5, [y];
    add.u32 %r2, %r1, 1024;
    {store} [%rd1, {{%r4, %r5}}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
$end:
""",
    )


STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"


@pytest.mark.parametrize("swizzle", ["none", "64B"])
@pytest.mark.parametrize("corner", [(0, 0), (24, 5), (-4, -3), (100, 0)])
def test_a_stored_box_ends_where_the_tensor_does(corner: tuple[int, int], swizzle: str) -> None:
    a = counting((8, 16), np.float32)
    b = np.zeros((10, 32), np.float32)
    maps = [TensorMap(x, box=(16, 8), swizzle=swizzle) for x in (a, b)]
    args = [*maps, *(c % 2**32 for c in corner)]
    run(round_trip(STORE), grid=1, block=32, args=args, dynamic_smem=2048)
    want = np.zeros((30, 200), np.float32)
    x, y = corner
    want[10 + y : 18 + y, 10 + x : 26 + x] = a
    assert np.array_equal(b, want[10:20, 10:42])


@pytest.mark.parametrize("store", [STORE, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"])
def test_a_box_is_stored_at_a_multiple_of_16_bytes(store: str) -> None:
    a, b = counting((8, 16), np.float32), np.zeros((10, 32), np.float32)
    maps = [TensorMap(x, box=(16, 8)) for x in (a, b)]
    why = "the innermost coordinate of a box must be a multiple of 16 bytes, 4 elements of f32, got 2"
    text = round_trip(store)
    assert failure(text, [*maps, 2, 1], dynamic_smem=2048) == at(text, store) + why
    assert not b.any()


@pytest.mark.parametrize(("op", "function"), [("add", np.add), ("max", np.maximum)])
def test_a_box_is_reduced_into_a_tensor(op: str, function: Any) -> None:
    a = counting((8, 32), np.float16)
    b = counting((8, 32), np.float16)[::-1].copy()
    want = b.copy()
    want[2:, 8:] = function(b[2:, 8:], a[:6, :24])
    reduce = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.bulk_group"
    maps = [TensorMap(x, box=(32, 8), swizzle="64B") for x in (a, b)]
    run(round_trip(reduce), grid=1, block=32, args=[*maps, 8, 2], dynamic_smem=2048)
    assert np.array_equal(b, want)


BYTES = """
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    mov.u32 %r2, smem;
    add.u32 %r3, %r2, 64;
    @%p0 bra $wait;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 256, [%r1];
"""


def bulk_kernel(store: str, *, waits: str = "cp.async.bulk.wait_group 0;") -> str:
    return kernel(
        "u64 x, u64 y",
        INIT
        + BYTES
        + WAIT
        + f"""
    @%p0 bra $end;
    {store} [%rd1], [%r3], 256;
    cp.async.bulk.commit_group;
    {waits}
$end:
""",
    )


def test_bytes_are_copied_there_and_back() -> None:
    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    text = bulk_kernel("cp.async.bulk.global.shared::cta.bulk_group")
    run(text, grid=1, block=32, args=[x, y], dynamic_smem=512)
    assert np.array_equal(y, x)


def test_bulk_reductions_combine_values_of_their_type() -> None:
    x, y = np.arange(64, dtype=np.float32), np.full(64, 0.5, np.float32)
    text = bulk_kernel("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32")
    run(text, grid=1, block=32, args=[x, y], dynamic_smem=512)
    assert np.array_equal(y, x + 0.5)
    x, y = (np.arange(32, dtype=np.uint64) * 2**33 for _ in range(2))
    y = y[::-1].copy()
    want = np.minimum(x, y)
    text = bulk_kernel("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.u64")
    run(text, grid=1, block=32, args=[x, y], dynamic_smem=512)
    assert np.array_equal(y, want)


def test_a_store_that_nobody_waits_for_reads_shared_memory_late() -> None:
    store = "cp.async.bulk.global.shared::cta.bulk_group"
    overwrite = "mov.u32 %r5, 7;\n    st.shared.u32 [%r3], %r5;"
    for waits, first in ((f"cp.async.bulk.wait_group.read 0;\n    {overwrite}", 1), (overwrite, 7)):
        x, y = np.arange(1, 65, dtype=np.uint32), np.zeros(64, np.uint32)
        text = bulk_kernel(store, waits=waits)
        run(text, grid=1, block=32, args=[x, y], dynamic_smem=512)
        assert (y[0], y[1], y[63]) == (first, 2, 64)


def test_what_is_read_before_the_wait_is_not_there_yet() -> None:
    text = kernel(
        "u64 x, u64 y",
        INIT
        + BYTES
        + """
    ld.shared.u32 %r5, [%r3];
    st.global.u32 [%rd1], %r5;
"""
        + WAIT,
    )
    x, y = np.arange(64, dtype=np.uint32), np.zeros(1, np.uint32)
    run(text, grid=1, block=32, args=[x, y], dynamic_smem=512)
    assert y[0] == 0x7FC0DEAD


# ---------------------------------------- clusters

CLUSTER_SUM = """
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r1, smem;
    mov.u32 %r2, %cluster_ctarank;
    ld.param.u64 %rd0, [out];
    mov.u32 %r10, %ctaid.x;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 4;
    fence.mbarrier_init.release.cluster;
$ready:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    setp.ge.u32 %p2, %r0, 4;
    @%p2 bra $wait;
    mapa.shared::cluster.u32 %r3, %r1, %r0;
    shl.b32 %r4, %r2, 2;
    add.u32 %r5, %r3, %r4;
    st.shared::cluster.u32 [%r5+16], %r10;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
    getctarank.shared::cluster.u32 %r6, %r3;
    setp.ne.u32 %p3, %r6, %r0;
    @%p3 trap;
$wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    @%p2 bra $end;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r1, %r4;
    ld.shared.u32 %r7, [%r5+16];
    shl.b32 %r8, %r10, 2;
    add.u32 %r8, %r8, %r0;
    mul.wide.u32 %rd1, %r8, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r7;
$end:
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
"""


def test_ctas_of_a_cluster_write_into_each_others_memory() -> None:
    out = np.zeros((8, 4), np.uint32)
    run(kernel("u64 out", CLUSTER_SUM), grid=8, block=32, cluster=4, args=[out], dynamic_smem=64)
    assert out.tolist() == [[4 * (cta // 4) + n for n in range(4)] for cta in range(8)]


def test_shared_memory_of_another_cta_is_in_the_space_of_the_cluster_only() -> None:
    body = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %rd1, %r0, 16;
    add.u64 %rd0, %rd0, %rd1;
    cvta.shared.u64 %rd1, smem;
"""
    for n, address in enumerate(("own", 0, 1, 2)):
        body += f"""
    {"mov.u64 %rd2, %rd1;" if address == "own" else f"mapa.u64 %rd2, %rd1, {address};"}
    isspacep.shared::cta %p0, %rd2;
    isspacep.shared::cluster %p1, %rd2;
    selp.u32 %r1, 1, 0, %p0;
    selp.u32 %r2, 2, 0, %p1;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd0+{4 * n}], %r1;
"""
    out = np.zeros((3, 4), np.uint32)
    run(kernel("u64 out", body), grid=3, block=1, cluster=3, args=[out], dynamic_smem=64)
    assert out.tolist() == [[3, 3, 2, 2], [3, 2, 3, 2], [3, 2, 2, 3]]


def multicast_kernel(copy: str) -> str:
    """CTA 1 of each cluster copies 256 bytes to all CTAs of the mask; each writes what it got."""
    return kernel(
        "tm map, u64 x, u64 out, u16 mask",
        INIT.replace("bar.sync 0;", "barrier.cluster.arrive;\n    barrier.cluster.wait;")
        + address_of("%rd5", "map")
        + """
    ld.param.u64 %rd6, [x];
    ld.param.u16 %h0, [mask];
    ld.param.u64 %rd0, [out];
    mov.u32 %r2, %cluster_ctarank;
    add.u32 %r3, %r1, 128;
    cvt.u32.u16 %r4, %h0;
    shr.u32 %r4, %r4, %r2;
    and.b32 %r4, %r4, 1;
    setp.eq.u32 %p4, %r4, 0;
    @%p4 bra $mine;
    @%p0 bra $mine;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
$mine:
    setp.ne.or.u32 %p2, %r2, 1, %p0;
    mov.u32 %r5, 4;
    mov.u32 %r6, 1;
"""
        + f"    @!%p2 {copy};\n    @%p4 bra $end;\n"
        + WAIT
        + """
    mov.u32 %r7, %ctaid.x;
    shl.b32 %r8, %r7, 6;
    add.u32 %r8, %r8, %r0;
    mul.wide.u32 %rd1, %r8, 4;
    add.u64 %rd0, %rd0, %rd1;
    shl.b32 %r9, %r0, 2;
    add.u32 %r9, %r9, %r3;
    ld.shared.u32 %r10, [%r9];
    st.global.u32 [%rd0], %r10;
$end:
    barrier.cluster.arrive;
    barrier.cluster.wait;
""",
    )


MULTICAST = "mbarrier::complete_tx::bytes.multicast::cluster"
MULTICASTS = [
    f"cp.async.bulk.shared::cluster.global.{MULTICAST} [%r3], [%rd6], 256, [%r1], %h0",
    f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{MULTICAST} "
    "[%r3], [%rd5, {%r5, %r6}], [%r1], %h0",
]


@pytest.mark.parametrize("copy", MULTICASTS, ids=["bytes", "box"])
@pytest.mark.parametrize("mask", [0b1111, 0b0110, 0b1000])
def test_a_multicast_reaches_the_ctas_of_its_mask(copy: str, mask: int) -> None:
    x = counting((8, 64), np.uint32)
    tensor = TensorMap(x, box=(32, 2))
    out = np.zeros((8, 64), np.uint32)
    args = [tensor, x, out, mask]
    run(multicast_kernel(copy), grid=8, block=64, cluster=4, args=args, dynamic_smem=512)
    got = x[1:3, 4:36].reshape(-1) if "tensor" in copy else x[0]
    for cta in range(8):
        assert np.array_equal(out[cta], got if mask >> cta % 4 & 1 else 0 * got)


def test_a_multicast_to_a_cta_that_does_not_exist_is_refused() -> None:
    x = counting((8, 64), np.uint32)
    args = [TensorMap(x, box=(32, 2)), x, np.zeros((8, 64), np.uint32), 0b10010]
    assert failure(multicast_kernel(MULTICASTS[0]), args, grid=4, block=64, cluster=4).endswith(
        "thread (0, 0, 0) of CTA (1, 0, 0): multicasts to the CTAs of mask 0x0012 in a cluster of 4"
    )


@pytest.mark.parametrize("op", ["", ".add.u32", ".max.s32", ".xor.b32"])
def test_shared_memory_is_sent_to_another_cta(op: str) -> None:
    head = "cp.reduce.async" if op else "cp.async"
    text = kernel(
        "u64 out",
        INIT.replace("bar.sync 0;", "")
        + f"""
    mov.u32 %r2, %cluster_ctarank;
    ld.param.u64 %rd0, [out];
    add.u32 %r3, %r1, 64;
    shl.b32 %r7, %r0, 2;
    add.u32 %r8, %r3, %r7;
    mad.lo.u32 %r9, %r2, 100, %r0;
    setp.lt.u32 %p5, %r0, 16;
    @%p5 st.shared.u32 [%r8], %r9;
    setp.ne.or.u32 %p2, %r2, 1, %p0;
    @!%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    fence.proxy.async;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    setp.ne.or.u32 %p2, %r2, 0, %p0;
    mov.u32 %r4, 1;
    mapa.shared::cluster.u32 %r5, %r3, %r4;
    mapa.shared::cluster.u32 %r6, %r1, %r4;
    @!%p2 {head}.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{op}
        [%r5], [%r3], 64, [%r6];
    setp.ne.u32 %p6, %r2, 1;
    @%p6 bra $end;
"""
        + WAIT
        + """
    cvt.u64.u32 %rd1, %r7;
    add.u64 %rd0, %rd0, %rd1;
    @!%p5 bra $end;
    ld.shared.u32 %r10, [%r8];
    st.global.u32 [%rd0], %r10;
$end:
    barrier.cluster.arrive;
    barrier.cluster.wait;
""",
    )
    out = np.zeros(16, np.uint32)
    run(text, grid=2, block=32, cluster=2, args=[out], dynamic_smem=128)
    sent, there = np.arange(16, dtype=np.uint32), np.arange(100, 116, dtype=np.uint32)
    wants = {"": sent, ".add.u32": sent + there, ".max.s32": there, ".xor.b32": sent ^ there}
    assert np.array_equal(out, wants[op])


# ---------------------------------------- mbarriers

COPY_ASYNC = """
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    shl.b32 %r3, %r0, 4;
    add.u32 %r4, %r1, %r3;
    cvt.u64.u32 %rd2, %r3;
    add.u64 %rd0, %rd0, %rd2;
    cp.async.cg.shared.global [%r4+64], [%rd0], 16;
    ARRIVE
"""
AFTER_COPY = """
    xor.b32 %r3, %r3, 16;
    add.u32 %r4, %r1, %r3;
    ld.shared.v2.u64 {%rd3, %rd4}, [%r4+64];
    add.u64 %rd1, %rd1, %rd2;
    st.global.v2.u64 [%rd1], {%rd3, %rd4};
"""


@pytest.mark.parametrize(
    ("count", "arrive"),
    [
        (32, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];"),
        (32, "cp.async.mbarrier.arrive.shared.b64 [%r1];\n    mbarrier.arrive.shared.b64 %rd9, [%r1];"),
    ],
)
def test_an_mbarrier_waits_for_copies_of_single_threads(count: int, arrive: str) -> None:
    init = INIT.replace("[%r1], 1;", f"[%r1], {count};")
    text = kernel("u64 x, u64 y", init + COPY_ASYNC.replace("ARRIVE", arrive) + WAIT + AFTER_COPY)
    x, y = np.arange(64, dtype=np.uint64).reshape(32, 2), np.zeros((32, 2), np.uint64)
    run(text, grid=1, block=32, args=[x, y], dynamic_smem=1024)
    assert np.array_equal(y.reshape(16, 2, 2), x.reshape(16, 2, 2)[:, ::-1])


PIPELINE = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.init.shared::cta.b64 [%r1+8], 1;
    mbarrier.init.shared::cta.b64 [%r1+16], 32;
    mbarrier.init.shared::cta.b64 [%r1+24], 32;
    fence.mbarrier_init.release.cluster;
$ready:
    bar.sync 0;
    mov.u32 %r2, 0;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra $consumer;
    @%p0 bra $end;
$produce:
    and.b32 %r3, %r2, 1;
    shl.b32 %r4, %r3, 3;
    add.u32 %r5, %r1, %r4;
    shr.u32 %r6, %r2, 1;
    xor.b32 %r6, %r6, 1;
    and.b32 %r6, %r6, 1;
$empty:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5+16], %r6, 1000;
    @!%p2 bra $empty;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;
    shl.b32 %r7, %r3, 7;
    add.u32 %r7, %r7, %r1;
    add.u32 %r7, %r7, 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd0], 128, [%r5];
    add.u64 %rd0, %rd0, 128;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p3, %r2, 7;
    @%p3 bra $produce;
    bra $end;
$consumer:
    and.b32 %r8, %r0, 31;
    shl.b32 %r8, %r8, 2;
    cvt.u64.u32 %rd2, %r8;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r9, 0;
$consume:
    and.b32 %r3, %r2, 1;
    shl.b32 %r4, %r3, 3;
    add.u32 %r5, %r1, %r4;
    shr.u32 %r6, %r2, 1;
    and.b32 %r6, %r6, 1;
$full:
    mbarrier.TEST.parity.shared::cta.b64 %p2, [%r5], %r6;
    @!%p2 bra $full;
    shl.b32 %r7, %r3, 7;
    add.u32 %r7, %r7, %r1;
    add.u32 %r7, %r7, %r8;
    ld.shared.u32 %r10, [%r7+128];
    mad.lo.u32 %r9, %r9, 3, %r10;
    mbarrier.arrive.shared::cta.b64 _, [%r5+16];
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p3, %r2, 7;
    @%p3 bra $consume;
    st.global.u32 [%rd1], %r9;
$end:
"""


@pytest.mark.parametrize("test", ["try_wait", "test_wait"])
def test_a_producer_and_a_consumer_share_two_stages(test: str) -> None:
    x = np.random.default_rng(1).integers(0, 100, (7, 32)).astype(np.uint32)
    y = np.zeros(32, np.uint32)
    text = kernel("u64 x, u64 y", PIPELINE.replace("TEST", test))
    run(text, grid=1, block=64, args=[x, y], dynamic_smem=512)
    want = np.zeros(32, np.uint32)
    for row in x:
        want = want * np.uint32(3) + row
    assert np.array_equal(y, want)


GENERIC = """
    cvt.u64.u32 %rd7, %r1;
    cvta.shared.u64 %rd8, %rd7;
    @!%p0 mbarrier.arrive.expect_tx.b64 %rd9, [%rd8], 16;
"""


@pytest.mark.parametrize(
    ("use", "left"),
    [
        (GENERIC, "waits for 16 bytes more"),
        ("", "waits for 1 arrival more"),
        (
            "    @!%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 272;\n"
            "    @!%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+256], "
            "[%rd0], 256, [%r1];\n",
            "waits for 1 arrival and 16 bytes more",
        ),
        (
            "    @!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 240;\n"
            "    @!%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+256], "
            "[%rd0], 256, [%r1];\n",
            "waits for nothing more and has got 16 bytes more than it expects",
        ),
    ],
)
def test_a_deadlock_says_what_an_mbarrier_still_waits_for(use: str, left: str) -> None:
    text = kernel("u64 x", INIT + "    ld.param.u64 %rd0, [x];\n" + use + WAIT)
    phase = f"the end of a phase of parity 0 of the mbarrier at 0x0, whose phase {left}"
    wait = f"{named(0, 32)} wait at {phase}, in {located(text, 'try_wait')}"
    assert failure(text, [np.zeros(64, np.uint32)]) == deadlock([wait], 0, 32)


def test_threads_that_wait_for_different_mbarriers_are_told_apart() -> None:
    body = """
    setp.lt.u32 %p3, %r0, 16;
    @!%p0 mbarrier.init.shared::cta.b64 [%r1+8], 3;
    bar.sync 0;
    shr.u32 %r2, %r0, 4;
    shl.b32 %r2, %r2, 3;
    add.u32 %r1, %r1, %r2;
"""
    message = failure(kernel("u64 x", INIT + body + WAIT), [0])
    assert (
        "(3, 0, 0) and 12 more) wait at the end of a phase of parity 0 of the mbarrier at 0x0, "
        "whose phase waits for 1 arrival more, in" in message
    )
    assert (
        "(19, 0, 0) and 12 more) wait at the end of a phase of parity 0 of the mbarrier at 0x8,"
        " whose phase waits for 3 arrivals more, in" in message
    )


def test_too_many_arrivals_stop_the_kernel() -> None:
    text = kernel("u64 x", INIT + "    mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r1], 16;")
    why = "1 arrival at an mbarrier whose phase waits for none more; its count is 1"
    assert failure(text, [0]) == at(text, "arrive.expect") + why


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (
            250,
            "a bulk copy's addresses and size are multiples of 16 bytes, got 250 bytes and the global "
            "address 0x200000000",
        ),
        (512, "copies 512 bytes at shared address 0x40, outside its 512 bytes"),
        (
            272,
            "wants to read 272 bytes of global memory at 0x200000000, at byte 0 of x (0x200000000, 256 "
            "bytes)",
        ),
    ],
)
def test_bulk_copies_that_reach_too_far_are_refused(size: int, why: str) -> None:
    text = bulk_kernel("cp.async.bulk.global.shared::cta.bulk_group")
    text = text.replace("[%rd0], 256", f"[%rd0], {size}")
    assert failure(text, [np.zeros(64, np.uint32), 0]) == at(text, f"[%rd0], {size}") + why


def tensor_failure(copy: str, args: list[Any]) -> str:
    text = kernel("tm map, u64 out", INIT + "    @%p0 bra $wait;\n" + address_of("%rd0", "map") + copy + WAIT)
    return failure(text, args).partition("of CTA (0, 0, 0): ")[2]


def test_tensor_copies_want_a_map_an_aligned_image_and_all_coordinates() -> None:
    out = np.zeros(4, np.uint32)
    of = TensorMap(counting((8, 32), np.float32), box=(32, 2))
    no_map = "these bytes are no tensor map: give the kernel a TensorMap as its argument"
    for address, corner, map, why in (
        (128, (0, 0, 0), of, "gives 3 coordinates for a tensor map of 2 dimensions"),
        (64, (0, 0), of, "a box lies at a multiple of 128 bytes of shared memory, got 0x40"),
        (384, (0, 0), of, "copies 256 bytes at shared address 0x180, outside its 512 bytes"),
        (128, (0, 0), bytes(128), no_map),
    ):
        assert tensor_failure(copy_to(address, "%rd0", *corner), [map, out]) == why


def test_a_matrix_outside_shared_memory_is_refused() -> None:
    a = np.zeros((64, 16), np.float16)
    left, right = Panels(1024, 64, 16, "32B"), Panels(1 << 16, 64, 16, "32B")
    text = product_kernel(left, right, 64, 1, ta=False, tb=False, type="f16")
    text = text.replace(f"add.u32 %r2, %r1, {1 << 16};", "add.u32 %r2, %r1, 4096;")
    maps = [TensorMap(a, box=(16, 64), swizzle="32B")] * 2
    message = failure(text, [*maps, np.zeros((64, 64), np.float32)], block=128, dynamic_smem=8192)
    assert message.endswith(
        "the matrix reaches from 0x10000 to 0x10800, outside the 8192 bytes of shared memory"
    )
