from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flash.launch import checks
from flash.operands.dtypes import BF16, F16, F32, DType
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.limits import MAX_SEQ
from flash.problem.outputs import LSE
from ptxgen.arrays import overlap
from ptxgen.arrays.views import ArrayView, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda_driver import DeviceProperties

CONFIG = AttentionConfig(head_dim=8, head_dim_v=4)
HALVES = pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
Q, K, V, OUT = (2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), (2, 6, 5, 4)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def arrays_of(dtype: DType, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    return [np.zeros(shape, dtype.numpy) for shape in shapes]


def check(
    q: Any, k: Any, v: Any, out: Any = None, layout: str = "bhsd", dtype: str = "f32"
) -> checks.Geometry:
    return checks.check(
        replace(CONFIG, dtype=dtype),
        view(q, "q"),
        view(k, "k"),
        view(v, "v"),
        None if out is None else view(out, "out"),
        layout=layout,
    )


def refused(*arrays: Any, layout: str = "bhsd", dtype: str = "f32") -> str:
    with pytest.raises(LaunchError) as caught:
        check(*arrays, layout=layout, dtype=dtype)
    return str(caught.value)


def views(*arrays: Any) -> tuple[ArrayView, ...]:
    return tuple(view(a, name) for a, name in zip(arrays, ("q", "k", "v", "out"), strict=False))


def placed(pointer: int, shape: tuple[int, ...]) -> ArrayView:
    return view(array(*shape), "a")._replace(pointer=pointer)


def addresses_refused(q: ArrayView, k: ArrayView, v: ArrayView) -> str:
    geometry = checks.check(CONFIG, q, k, v, None)
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(geometry, (q, k, v))
    return str(caught.value)


def test_sizes_and_strides_of_dense_arrays() -> None:
    result = check(array(*Q), array(*K), array(*V))
    assert (result.batch, result.heads, result.kv_heads, result.seq_q, result.seq_k) == (2, 6, 3, 5, 7)
    assert result.group == 2
    assert result.strides == ((240, 40, 8), (168, 56, 8), (84, 28, 4), (120, 20, 4))
    assert (result.out_shape, result.shape_of(LSE)) == (OUT, OUT[:3])
    assert result.stride_alignment == 16
    assert not result.is_empty


def test_the_layout_swaps_heads_and_positions() -> None:
    def swapped(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return array(shape[0], shape[2], shape[1], shape[3])

    result = check(swapped(Q), swapped(K), swapped(V), layout="bshd")
    assert (result.batch, result.heads, result.kv_heads, result.seq_q, result.seq_k) == (2, 6, 3, 5, 7)
    assert result.strides == ((240, 8, 48), (168, 8, 24), (84, 4, 12), (120, 4, 24))
    assert (result.out_shape, result.shape_of(LSE)) == ((2, 5, 6, 4), (2, 6, 5))


def test_three_dimensions_are_batch_times_heads() -> None:
    result = check(array(6, 5, 8), array(3, 7, 8), array(3, 7, 4))
    assert (result.batch, result.heads, result.kv_heads, result.group) == (1, 6, 3, 2)
    assert result.strides[:2] == ((0, 40, 8), (0, 56, 8))
    assert (result.out_shape, result.shape_of(LSE)) == ((6, 5, 4), (6, 5))


def test_strides_of_single_elements_do_not_matter() -> None:
    odd = np.lib.stride_tricks.as_strided(array(64), (1, 6, 1, 8), (4 * 3, 4 * 8, 4 * 5, 4))
    result = check(odd, array(1, 3, 7, 8), array(1, 3, 7, 4))
    assert result.strides[0] == (0, 8, 0)
    assert result.stride_alignment == 16


@pytest.mark.parametrize("step", [1, 2, 4])
def test_strides_decide_the_alignment(step: int) -> None:
    q = array(2, 6, 5, 8 + step)[..., :8]
    assert check(q, array(*K), array(*V)).stride_alignment == 4 * step


@HALVES
@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_strides_of_16_bit_elements_decide_the_alignment(dtype: DType, step: int) -> None:
    q, k, v = arrays_of(dtype, (2, 6, 5, 8 + step), K, (2, 3, 7, 8))
    result = checks.check(AttentionConfig(8, dtype=dtype.name), *views(q[..., :8], k, v), None)
    assert result.stride_alignment == 2 * step
    assert result.strides[0] == (30 * (8 + step), 5 * (8 + step), 8 + step)  # elements
    assert (result.nbytes, result.natural_alignment) == (2, 16)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=lambda dtype: dtype.name)
def test_the_reach_of_an_array_is_in_bytes_of_its_type(dtype: DType) -> None:
    result = check(*arrays_of(dtype, Q, K, V), dtype=dtype.name)
    assert [end for _, end in result.reach] == [
        dtype.nbytes * int(np.prod(shape)) for shape in (Q, K, V, OUT)
    ]


def test_strides_of_an_array_without_elements_do_not_matter() -> None:
    k, v = (placed(0, (2, 3, 0, d))._replace(strides=(27, 9, 9, 1)) for d in (8, 4))
    result = checks.check(CONFIG, view(array(*Q), "q"), k, v, None)
    assert result.strides[1] == (0, 0, 0)
    assert result.stride_alignment == 16


def frozen(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    out = array(*shape)
    out.flags.writeable = False
    return out


REFUSED: dict[str, tuple[Callable[[], str], str]] = {
    "unknown layout": (
        lambda: refused(array(*Q), array(*K), array(*V), layout="bshp"),
        "layout must be one of bhsd, bshd, got 'bshp'; did you mean 'bshd'?",
    ),
    "three dimensions in the second layout": (
        lambda: refused(array(6, 5, 8), array(*K), array(*V), layout="bshd"),
        "q must be [batch, seq, heads, dim], got shape [6, 5, 8]",
    ),
    "type": (
        lambda: refused(array(*Q), array(*K).astype(np.float16), array(*V)),
        "k must be float32, as the config says, got float16; convert with k.astype('float32')",
    ),
    "type that all arrays have": (
        lambda: refused(*arrays_of(F32, Q, K, V), dtype="f16"),
        "3 problems\n"
        + "\n".join(
            f"  {name} must be float16, as the config says, got float32; convert with "
            f"{name}.astype('float16'), or use AttentionConfig(dtype='f32', ...)"
            for name in "qkv"
        ),
    ),
    "type that no config has": (
        lambda: refused(*(array(*shape).astype(np.float64) for shape in (Q, K, V)), dtype="f16"),
        "3 problems\n"
        + "\n".join(
            f"  {name} must be float16, as the config says, got float64; convert with "
            f"{name}.astype('float16')"
            for name in "qkv"
        ),
    ),
    "sparse last dimension": (
        lambda: refused(array(2, 6, 5, 16)[..., ::2], array(*K), array(*V)),
        "q must be dense in its last dimension (stride 1), got strides [480, 80, 16, 2] for shape "
        "[2, 6, 5, 8]; copy it with q.copy()",
    ),
    "shape of out": (
        lambda: refused(array(*Q), array(*K), array(*V), array(2, 6, 5, 8)),
        "out must have shape [2, 6, 5, 4], got [2, 6, 5, 8]; leave out=None to have it made",
    ),
    "read-only out": (
        lambda: refused(array(*Q), array(*K), array(*V), frozen(OUT)),
        "out must be writable, got a read-only array; pass a writable one",
    ),
    "out that repeats elements": (
        lambda: refused(
            array(*Q), array(*K), array(*V), np.lib.stride_tricks.as_strided(array(200), OUT, (0, 80, 16, 4))
        ),
        "out must have an element of its own for each index, got strides [0, 20, 4, 1] for shape "
        "[2, 6, 5, 4]; copy it with out.copy()",
    ),
    "several problems": (
        lambda: refused(
            array(2, 6, 5, 16).astype(np.float64), array(*K), array(2, 3, 7, 8)[..., ::2], array(*OUT)
        ),
        "3 problems\n"
        "  q must be float32, as the config says, got float64; convert with q.astype('float32')\n"
        "  v must be dense in its last dimension (stride 1), got strides [168, 56, 8, 2] for shape "
        "[2, 3, 7, 4]; copy it with v.copy()\n"
        "  q must be [batch, heads, seq_q, head_dim] = [batch, heads, seq_q, 8], got [2, 6, 5, 16]; use "
        "AttentionConfig(head_dim=16, ...)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_cure(name: str) -> None:
    message, wanted = REFUSED[name]
    assert message() == f"launch: {wanted}"


def test_tensors_that_do_not_fit_are_refused_with_the_cure_of_torch(torch: ModuleType) -> None:
    q, k, v = (torch.zeros(shape) for shape in (Q, K, V))
    assert refused(q, k, v.bfloat16()) == (
        "launch: v must be float32, as the config says, got bfloat16; convert with v.float()"
    )
    assert refused(q, torch.zeros(2, 3, 8, 7).mT, v) == (
        "launch: k must be dense in its last dimension (stride 1), got strides [168, 56, 1, 7] "
        "for shape [2, 3, 7, 8]; copy it with k.clone(memory_format=torch.contiguous_format)"
    )
    assert refused(q, k, v, torch.zeros(OUT, requires_grad=True)) == (
        "launch: out must be writable, got a tensor that requires gradients; pass out.detach()"
    )


@pytest.mark.parametrize(
    ("dtype", "numpy_cure", "torch_cure"),
    [(F16, "astype('float16')", "half()"), (BF16, "astype(ml_dtypes.bfloat16)", "bfloat16()")],
    ids=["f16", "bf16"],
)
def test_the_cure_is_of_the_configs_type(
    dtype: DType, numpy_cure: str, torch_cure: str, torch: ModuleType
) -> None:
    q, k, v = arrays_of(dtype, Q, K, V)
    wanted = f"q must be {dtype.array_name}, as the config says, got float32; convert with"
    assert refused(array(*Q), k, v, dtype=dtype.name) == f"launch: {wanted} q.{numpy_cure}"
    of_torch = [torch.zeros(s, dtype=getattr(torch, dtype.array_name)) for s in (K, V)]
    message = refused(torch.zeros(Q), *of_torch, dtype=dtype.name)
    assert message == f"launch: {wanted} q.{torch_cure}"
    assert refused(q, k, v, array(*OUT), dtype=dtype.name) == (
        f"launch: out must be {dtype.array_name}, as the config says, got float32; "
        f"convert with out.{numpy_cure}"
    )


OF_HEADS = "the heads of q must be a multiple of those of k and v, got"
WRONG_SHAPES = {
    ((5, 8), K, V): "q must be [batch, heads, seq, dim] or [batch * heads, seq, dim], got shape [5, 8]",
    (Q, K, (7, 4, 1, 1, 1)): (
        "v must be [batch, kv_heads, seq_k, head_dim_v] = [2, 3, 7, 4], got [7, 4, 1, 1, 1]"
    ),
    (Q, K[1:], V): ("k must be [batch, kv_heads, seq_k, head_dim] = [2, kv_heads, seq_k, 8], got [3, 7, 8]"),
    ((2, 6, 5, 16), K, V): (
        "q must be [batch, heads, seq_q, head_dim] = [batch, heads, seq_q, 8], got [2, 6, 5, 16]; "
        "use AttentionConfig(head_dim=16, ...)"
    ),
    (Q, K, K): (
        "v must be [batch, kv_heads, seq_k, head_dim_v] = [2, 3, 7, 4], got [2, 3, 7, 8]; "
        "use AttentionConfig(head_dim_v=8, ...)"
    ),
    (Q, K, (2, 3, 6, 4)): "v must be [batch, kv_heads, seq_k, head_dim_v] = [2, 3, 7, 4], got [2, 3, 6, 4]",
    ((3, 6, 5, 8), K, V): (
        "k must be [batch, kv_heads, seq_k, head_dim] = [3, kv_heads, seq_k, 8], got [2, 3, 7, 8]"
    ),
    ((2, 4, 5, 8), K, V): f"{OF_HEADS} 4 and 3 (layout 'bhsd', shapes [2, 4, 5, 8] and [2, 3, 7, 8])",
    (Q, (2, 0, 7, 8), (2, 0, 7, 4)): (
        f"{OF_HEADS} 6 and 0 (layout 'bhsd', shapes [2, 6, 5, 8] and [2, 0, 7, 8])"
    ),
    (Q, K, V): f"{OF_HEADS} 5 and 7 (layout 'bshd', shapes [2, 6, 5, 8] and [2, 3, 7, 8])",
}


@pytest.mark.parametrize("shapes", WRONG_SHAPES)
def test_shapes_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    layout = "bshd" if shapes == (Q, K, V) else "bhsd"  # in which alone these do not fit
    message = refused(*(array(*shape) for shape in shapes), layout=layout)
    problem = message.removeprefix("launch: ").removeprefix("2 problems\n  ").split("\n  ")[0]
    assert problem == WRONG_SHAPES[shapes]


def test_inputs_may_repeat_and_share_elements() -> None:
    k = np.broadcast_to(array(1, 1, 7, 8), K)
    result = check(array(*Q), k, k[..., :4])
    assert result.strides[1:3] == ((0, 0, 8), (0, 0, 8))


def test_a_null_pointer_is_refused_unless_there_is_no_element() -> None:
    assert addresses_refused(placed(0x1000, Q), placed(0, K), placed(0x1000, V)) == (
        "launch: k must have memory, got a null pointer for shape [2, 3, 7, 8]"
    )
    empty = [placed(0, (2, 3, 0, d)) for d in (8, 4)]
    q = view(array(*Q), "q")
    checks.check_addresses(checks.check(CONFIG, q, *empty, None), (q, *empty))


def test_a_pointer_between_elements_is_refused() -> None:
    assert addresses_refused(placed(0x1000, Q), placed(0x1000, K), placed(0x1002, V)) == (
        "launch: v must begin at a multiple of 4 bytes, got address 0x1002; copy it with v.copy()"
    )


@HALVES
def test_a_pointer_between_16_bit_elements_is_refused(dtype: DType) -> None:
    config = AttentionConfig(head_dim=8, head_dim_v=4, dtype=dtype.name)
    q, k, v = views(*arrays_of(dtype, Q, K, V))
    geometry = checks.check(config, q, k, v, None)
    checks.check_addresses(geometry, (q._replace(pointer=0x1002), k, v))
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(geometry, (q._replace(pointer=0x1001), k, v))
    assert str(caught.value) == (
        "launch: q must begin at a multiple of 2 bytes, got address 0x1001; copy it with q.copy()"
    )


SHARES_Q = "launch: out must not share memory with q; leave out=None, or pass an array of its own"


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("rows", "of_out", "shares"),
    [
        (slice(0, 5), slice(4, 9), True),
        (slice(0, 5), slice(5, 10), False),
        (slice(0, 5), slice(0, 5), True),
        (slice(4, None, -1), slice(2, 7), True),
        (slice(4, None, -1), slice(5, None), False),
    ],
    ids=["one row shared", "next to it", "the same", "backwards", "next to backwards"],
)
def test_an_output_on_top_of_an_input_is_refused(
    dtype: DType, rows: slice, of_out: slice, shares: bool
) -> None:
    (buffer,) = arrays_of(dtype, (2, 6, 10, 4))
    others = arrays_of(dtype, (2, 6, 5, 4), (2, 6, 5, 4))
    arguments = views(buffer[:, :, rows], *others, buffer[:, :, of_out])
    geometry = checks.check(AttentionConfig(head_dim=4, dtype=dtype.name), *arguments)
    if not shares:
        checks.check_addresses(geometry, arguments)
        return
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(geometry, arguments)
    assert str(caught.value) == SHARES_Q


def test_an_output_between_the_rows_of_its_inputs_is_accepted() -> None:
    buffer = array(2, 5, 6, 32)  # [batch, seq, heads, q k v out]
    q, k, v, out = (buffer[..., 8 * n : 8 * n + 8] for n in range(4))
    square = AttentionConfig(head_dim=8)
    views = tuple(view(a, name) for a, name in ((q, "q"), (k, "k"), (v, "v"), (out, "out")))
    checks.check_addresses(checks.check(square, *views, layout="bshd"), views)
    shifted = (*views[:3], view(buffer[..., 23:31], "out"))
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(checks.check(square, *shifted, layout="bshd"), shifted)
    assert "out must not share memory with v;" in str(caught.value)


def test_overlap_that_is_too_hard_to_decide_counts_as_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object, **__: object) -> bool:
        raise np.exceptions.TooHardError

    a, b = view(array(3), "a"), view(array(3), "b")
    assert not overlap.may_share_elements(a, b)
    monkeypatch.setattr(np, "shares_memory", give_up)
    assert overlap.may_share_elements(a, b)
    assert not overlap.may_share_elements(a, view(array(0), "b"))


@pytest.mark.parametrize(
    ("shape", "strides", "repeats"),
    [
        *(((3, 4), (4, 1), False), ((3, 4), (1, 3), False), ((3, 4), (-4, 1), False)),
        *(((3, 4), (3, 1), True), ((3, 4), (0, 1), True), ((1, 4), (0, 1), False), ((0, 4), (0, 0), False)),
        ((2, 3, 4), (4, 8, 1), False),
    ],
)
def test_which_strides_repeat_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], repeats: bool
) -> None:
    assert overlap.may_overlap_itself(shape, strides) is repeats


def test_the_reach_of_an_array_includes_what_lies_before_its_pointer() -> None:
    assert overlap.reach((3, 4), (-10, 1), 4) == (-80, 16)
    assert overlap.reach((3, 4), (10, 1), 4) == (0, 96)
    assert overlap.reach((0, 4), (10, 1), 4) == (0, 0)


def geometry_of(seq_q: int, seq_k: int, batch: int = 1, heads: int = 1) -> checks.Geometry:
    return checks.Geometry(
        batch, heads, heads, seq_q, seq_k, ((0, 0, 0),) * 4, 16, ((0, 0),) * 4, (), (), 4, 16
    )


KERNEL = AttentionConfig(8, 4, block_q=16).kernel()
SLICED = AttentionConfig(64, 512, block_q=16).kernel()  # two slices of head_dim_v
DEVICE = DeviceProperties(0, "Fake H100", 9, 0, 132, 48 << 10, 227 << 10, 228 << 10, 50 << 20, (13, 0))
TIGHT = replace(DEVICE, shared_per_block_optin=KERNEL.tiling.shared_bytes - 1)
MOST_CTAS = "launch: a grid has at most 2147483647 CTAs, this call needs 2147483648 "


@pytest.mark.parametrize(
    ("kernel", "fits", "exceeds", "message"),
    [
        (
            KERNEL,
            [(16 * 127, 1, 2**31 // 127 // 8, 8), (16, 1, 1, 2**31 - 1), (1, 1, 70_000, 70)],
            (17, 1, 2**20, 2**10),
            f"{MOST_CTAS}(ceil(17 / 16) query blocks * 1024 heads * 1048576 batch); split the batch or use a "
            "larger block_q",
        ),
        (
            SLICED,
            [(16, 1, 2**20, 2**10 - 1)],
            (16, 1, 2**20, 2**10),
            f"{MOST_CTAS}(ceil(16 / 16) query blocks * 1024 heads * 1048576 batch * 2 slices of head_dim_v); "
            "split the batch or use a larger block_q",
        ),
    ],
    ids=["heads", "slices of wide values"],
)
def test_a_grid_may_be_as_large_as_the_device_allows_and_no_larger(
    kernel: KernelConfig, fits: list[tuple[int, ...]], exceeds: tuple[int, ...], message: str
) -> None:
    for sizes in fits:
        checks.check_limits(geometry_of(*sizes), kernel, DEVICE)
    with pytest.raises(LaunchError) as caught:
        checks.check_limits(geometry_of(*exceeds), kernel, DEVICE)
    assert str(caught.value) == message


def test_too_little_shared_memory_is_refused() -> None:
    longest = geometry_of(MAX_SEQ, MAX_SEQ)
    checks.check_limits(longest, KERNEL, replace(TIGHT, shared_per_block_optin=4864))
    with pytest.raises(LaunchError) as caught:
        checks.check_limits(longest, KERNEL, TIGHT)
    assert str(caught.value) == (
        "launch: the kernel needs 4864 bytes of shared memory per block, but device 0 (Fake H100, sm_90) "
        "allows 4863; use a smaller tile or block_q"
    )


@pytest.mark.parametrize(("pointer", "wanted"), [(0x1000, 16), (0x1008, 8), (0x1004, 4)])
def test_the_worst_pointer_decides_the_alignment(pointer: int, wanted: int) -> None:
    geometry = check(array(*Q), array(*K), array(*V))
    assert checks.alignment(CONFIG, geometry, 0x1000, 0x2000, 0x3000, pointer) == wanted


@HALVES
@pytest.mark.parametrize(
    ("head_dim", "pointer", "wanted"),
    [
        *((8, 0x1000, 16), (8, 0x1008, 8), (8, 0x1004, 4), (8, 0x1002, 2), (4, 0x1000, 8), (6, 0x1000, 4)),
        (7, 0x1000, 2),
    ],
)
def test_16_bit_elements_are_read_two_bytes_at_once_where_nothing_more_goes(
    dtype: DType, head_dim: int, pointer: int, wanted: int
) -> None:
    config = AttentionConfig(head_dim, dtype=dtype.name)
    arrays = arrays_of(dtype, *[(1, 1, 3, head_dim)] * 3)
    geometry = checks.check(config, *views(*arrays), None)
    assert checks.alignment(config, geometry, pointer) == wanted


def test_alignment_is_no_more_than_head_dim_lets_a_kernel_use() -> None:
    config = AttentionConfig(head_dim=6)
    one_row = [view(array(1, 1, 1, 6), name) for name in "qkv"]
    geometry = checks.check(config, *one_row, None)
    assert geometry.stride_alignment == 16
    assert checks.alignment(config, geometry, 0x1000) == 8


def test_a_promised_alignment_is_kept_or_refused() -> None:
    geometry = check(array(*Q), array(*K), array(*V))
    promise = AttentionConfig(head_dim=8, head_dim_v=4, alignment=8)
    assert checks.alignment(promise, geometry, 0x1000) == 8
    with pytest.raises(LaunchError) as caught:
        checks.alignment(promise, geometry, 0x1004)
    assert str(caught.value) == (
        "launch: the config promises pointers and strides that are multiples of 8 bytes, these are "
        "multiples of 4; use alignment='auto'"
    )


def test_the_scale_of_a_call_replaces_that_of_the_config() -> None:
    assert checks.scale(CONFIG, None) == 8**-0.5
    assert checks.scale(CONFIG, 0) == 0.0
    assert checks.scale(AttentionConfig(8, softmax_scale=3), None) == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", True])
def test_a_scale_that_is_no_finite_number_is_refused(bad: object) -> None:
    with pytest.raises(LaunchError) as caught:
        checks.scale(CONFIG, bad)
    assert str(caught.value) == (
        "launch: softmax_scale must be a number of at most 1.70141e+38 either way, or None for "
        "the config's 0.353553, "
        f"got {bad!r}"
    )


# ------------------------------------------------------------------------------------------
# operands


WITH_ALL = replace(CONFIG, alibi=True, bias="f32", mask=True, sink=True)


def operands_of(**changed: Any) -> dict[str, ArrayView]:
    whole = {
        "alibi_slopes": array(2, 6),
        "bias": array(2, 6, 5, 7),
        "mask": np.ones((2, 6, 5, 7), bool),
        "sink": array(2, 6),
    }
    return {name: view(a, name) for name, a in {**whole, **changed}.items()}


def check_operands(**changed: Any) -> checks.Geometry:
    q, k, v = views(array(*Q), array(*K), array(*V))
    return checks.check(WITH_ALL, q, k, v, None, operands=operands_of(**changed))


def operands_refused(**changed: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        check_operands(**changed)
    return str(caught.value)


def test_the_strides_of_operands_are_zero_where_they_are_broadcast() -> None:
    result = check_operands(
        alibi_slopes=array(6),
        bias=array(6, 1, 7)[:, :, ::-1],
        mask=np.ones((2, 1, 7, 5), bool).swapaxes(2, 3),
        sink=array(2, 1),
    )
    assert result.operand_strides == ((0, 1), (0, 7, 0, -1), (35, 0, 1, 5), (1, 0))
    assert check_operands(sink=array()).operand_strides[3] == (0, 0)


def test_operands_that_do_not_fit_are_refused_together() -> None:
    assert operands_refused(
        alibi_slopes=array(2, 3), bias=array(5, 8), mask=np.ones((5, 7), np.uint8), sink=array(1, 2, 6)
    ) == (
        "launch: 4 problems\n"
        "  alibi_slopes must be [batch, heads] = [2, 6], or of a shape that broadcasts to it, got "
        "[2, 3]\n"
        "  bias must be [batch, heads, seq_q, seq_k] = [2, 6, 5, 7], or of a shape that broadcasts "
        "to it, got [5, 8]\n"
        "  mask must be bool, got uint8; convert with mask.astype('bool')\n"
        "  sink must be [batch, heads] = [2, 6], or of a shape that broadcasts to it, got [1, 2, 6]"
    )


def test_operands_of_another_type_are_refused() -> None:
    assert operands_refused(bias=array(5, 7).astype(np.float16)) == (
        "launch: bias must be float32, got float16; convert with bias.astype('float32')"
    )


def test_operands_on_another_device_are_refused() -> None:
    q, k, v = views(array(*Q), array(*K), array(*V))
    operands = operands_of()
    operands["mask"] = operands["mask"]._replace(device=("cuda", 0))
    with pytest.raises(LaunchError) as caught:
        checks.check(WITH_ALL, q, k, v, None, operands=operands)
    assert str(caught.value).startswith("launch: all arrays must be on one device, got q on ")
    assert "mask on cuda:0" in str(caught.value)


def test_an_output_that_is_an_operand_is_refused() -> None:
    config = replace(CONFIG, bias="f32")
    out = array(2, 6, 5, 4)
    q, k, v, into = views(array(*Q), array(*K), array(*V), out)
    operands = {"bias": view(out[..., :1], "bias")}
    geometry = checks.check(config, q, k, v, into, operands=operands)
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(geometry, (q, k, v, into), operands)
    assert str(caught.value) == (
        "launch: out must not share memory with bias; leave out=None, or pass an array of its own"
    )


def test_operands_without_an_address_are_refused() -> None:
    q, k, v = views(array(*Q), array(*K), array(*V))
    operands = operands_of()
    operands["sink"] = operands["sink"]._replace(pointer=0)
    operands["bias"] = operands["bias"]._replace(pointer=operands["bias"].pointer + 2)
    geometry = checks.check(WITH_ALL, q, k, v, None, operands=operands)
    with pytest.raises(LaunchError) as caught:
        checks.check_addresses(geometry, (q, k, v), operands)
    assert str(caught.value) == (
        "launch: 2 problems\n"
        f"  bias must begin at a multiple of 4 bytes, got address {operands['bias'].pointer:#x}; "
        "copy it with bias.copy()\n"
        "  sink must have memory, got a null pointer for shape [2, 6]"
    )


def test_sequences_with_a_window_are_shorter() -> None:
    assert checks.max_seq(CONFIG.features) == 2**31 - 256
    assert checks.max_seq(replace(CONFIG, window=(5, None)).features) == 2**30 - 256
