"""The f32 forward kernel where indices, strides and numbers are extreme, on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, run_forward, with_place

from flash.contract.catalogue import emit
from flash.problem.config import AttentionConfig
from flash.problem.limits import MAX_CTAS, MAX_SEQ
from flash.reference import attention_reference
from ptxgen.interpreter import run
from ptxgen.interpreter.machine.arena import DeviceArena

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, np.dtype[Any]]
FAR = 1 << 40  # bytes between the matrices of the placed problems
ARCHITECTURES = ("sm_75", "sm_80")  # copies through registers, and asynchronous ones


def small(name: str = "sm_80", head_dim: int = 8, **how: Any) -> AttentionConfig:
    return AttentionConfig(head_dim, tile=16, block_q=16, return_lse=True, target=name, **how)


class Placed:
    """A kernel launch whose matrices are placed row by row, so that strides may be of any size."""

    def __init__(self, config: AttentionConfig) -> None:
        self.config = config
        self.arena = DeviceArena()
        self.next = 1 << 50
        self.kept: list[Array] = []

    def matrix(self, rows: Array, strides: tuple[int, int, int], first_row: int = 0) -> int:
        """Put the rows of [batch, heads, rows, columns] where the element strides say.

        Returns the address of element 0. Row 0 of the array is row `first_row` of the matrix.
        """
        self.next += FAR * 256
        for b, h, r in np.ndindex(rows.shape[:3]):
            row = rows[b, h, r]
            steps = b * strides[0] + h * strides[1] + (first_row + r) * strides[2]
            self.put(row, self.next + 4 * steps)
        return self.next

    def put(self, array: Array, at: int) -> None:
        # The host address of a row is a multiple of 16 as its device address is: a copy of its own.
        own = np.empty(array.size + 4, array.dtype)
        skip = -own.ctypes.data % 16 // array.itemsize
        own = own[skip : skip + array.size]
        own[:] = array
        self.kept.append(own)
        self.arena.place(own, at=at)

    def attend(
        self,
        arrays: tuple[Array, ...],
        strides: list[tuple[int, int, int]],
        sizes: tuple[int, int, int, int],
        grid: int = 1,
        *,
        block_id: int | None = None,
        first_row: int = 0,
        before: tuple[int, ...] = (0, 0, 0, 0),
        first_sum: int = 0,
    ) -> tuple[Array, Array]:
        """O and LSE, a row for each of Q, of `grid` CTAs, or of the one with number `block_id` of the grid
        for these sizes. The rows of Q and O begin with row `first_row` of matrices that begin `before` bytes
        before their pointers, and their sums with number `first_sum`.
        """
        kernel, pointers, begin = self.config.kernel(), [], 0
        matrices = (*arrays, np.full_like(arrays[0], np.nan))
        for matrix, steps, row, nbytes in zip(
            matrices, strides, (first_row, 0, 0, first_row), before, strict=True
        ):
            begin = len(self.kept)
            pointers.append(self.matrix(matrix, steps, row) - nbytes)
        lse = np.full(arrays[0].shape[:3], np.nan, np.float32)
        pointers.append(self.arena.place(lse, at=1 << 60) - 4 * first_sum)
        module = emit(kernel)
        if block_id is not None:
            ctas = -(-sizes[0] // kernel.tiling.block_q) * sizes[2]
            module = with_place(module, block_id, ctas)
        section = [sizes[2]] if kernel.causal else []
        flat = [step for three in strides for step in three]
        run(
            module,
            grid=(grid, 1, 1),
            block=(kernel.tiling.threads, 1, 1),
            args=[*pointers, *flat, *sizes, np.float32(self.config.scale), *section],
            dynamic_smem=module.kernels[0].dynamic_shared_bytes,
            arena=self.arena,
            sanitize=True,
        )
        return np.stack(self.kept[begin:]).reshape(matrices[3].shape), lse


def assert_close(found: tuple[Array, Array], wanted: tuple[Array, Array]) -> None:
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


# ------------------------------------------------------------------------------------------ strides


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rows_and_heads_may_lie_2_to_the_31_elements_apart(name: str) -> None:
    far = (1 << 31) + 4  # elements; cut to 32 bits, rows would lie 4 elements apart
    strides = [
        (-far * 64, far * 16, far),
        (far * 64, far * 32, -far),
        (far * 40, far * 20, far),
        (far * 77, far * 9, far),
    ]
    arrays = Problem(3, 5, 8, 8, batch=2, heads=2, kv_heads=1).arrays()
    result = Placed(small(name)).attend(arrays, strides, (3, 5, 2, 2), grid=4)
    assert_close(result, attention_reference(*arrays))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_strides_may_be_negative_or_zero(name: str) -> None:
    q, k, v = Problem(19, 35, 8, 8, batch=2, heads=2, kv_heads=2).arrays()
    backwards = q[::-1, :, ::-1], k[:, ::-1, ::-1], v[:, ::-1]
    shared = q, *(np.broadcast_to(a[:1, :1], a.shape) for a in (k, v))
    one_row = q, *(np.broadcast_to(a[:, :, :1], a.shape) for a in (k, v))
    for arrays in (backwards, shared, one_row):
        config = small(name, causal=True)
        out, lse, _ = run_forward(config, arrays, sanitize=True)
        assert_attention_is_accurate(out, lse, *arrays, causal=True)


def test_what_lies_behind_the_last_key_is_never_looked_at() -> None:
    q, k, v = Problem(19, 48, 8, 8).arrays()
    k[:, :, 21:], v[:, :, 21:] = np.nan, np.inf
    arrays = q, k[:, :, :21], v[:, :, :21]
    for causal in (False, "bottom_right", "top_left"):
        out, lse, _ = run_forward(small(causal=causal), arrays, sanitize=True)
        assert_attention_is_accurate(out, lse, *arrays, causal=causal)


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
def test_the_last_rows_of_the_longest_sequence_are_right(causal: str) -> None:
    # Causal kernels begin with the last rows, so CTA 0 has them. Top-left, these rows see every key.
    first = MAX_SEQ - 16
    arrays = Problem(16, 40, 8, 8).arrays()
    seen: Any = causal if causal == "bottom_right" else False
    how: Any = {"block_id": 0, "first_row": first, "first_sum": first}
    result = Placed(small(causal=causal)).attend(arrays, [(0, 0, 16)] * 4, (MAX_SEQ, 40, 1, 1), **how)
    assert_close(result, attention_reference(*arrays, causal=seen))


LAST_BLOCK = -(-MAX_SEQ // 16) - 1


def test_rows_far_before_the_first_key_see_nothing() -> None:
    # Bottom-right with the longest queries: row 0 would see the keys up to 40 - MAX_SEQ.
    placed, sizes = Placed(small(causal=True)), (MAX_SEQ, 40, 1, 1)
    out, lse = placed.attend(Problem(16, 40, 8, 8).arrays(), [(0, 0, 16)] * 4, sizes, block_id=LAST_BLOCK)
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(lse, -np.inf)


@pytest.mark.parametrize("causal", ["bottom_right", "top_left"])
def test_the_first_rows_of_the_longest_sequences_read_only_the_keys_they_see(causal: str) -> None:
    # Memory ends with the first tile: reading the second one would trap.
    arrays, sizes = Problem(16, 16, 8, 8).arrays(), (MAX_SEQ, MAX_SEQ, 1, 1)
    result = Placed(small(causal=causal)).attend(arrays, [(0, 0, 16)] * 4, sizes, block_id=LAST_BLOCK)
    assert_close(result, attention_reference(*arrays, causal="top_left"))


def test_a_cta_deep_in_the_grid_finds_its_rows() -> None:
    # 15 heads of the longest sequence lie before this one: rows are numbered beyond 2**34.
    rows, head = 16, 15
    number = head * (LAST_BLOCK + 1) + LAST_BLOCK
    assert number < MAX_CTAS
    strides, first = (0, 1 << 37, 16), MAX_SEQ - rows
    arrays = Problem(rows, 21, 8, 8).arrays()
    how: Any = {"block_id": number, "first_row": first, "first_sum": head * MAX_SEQ + first}
    how["before"] = (head * strides[1] * 4,) * 4
    result = Placed(small()).attend(arrays, [strides] * 4, (MAX_SEQ, 21, 16, 1), **how)
    assert_close(result, attention_reference(*arrays))


@pytest.mark.parametrize(("batch", "heads"), [(1, MAX_CTAS), (MAX_CTAS, 1), (3, MAX_CTAS // 3)])
def test_the_last_of_very_many_heads_is_found(batch: int, heads: int) -> None:
    group = 7 if heads % 7 == 0 else 1
    strides = (1 << 40, 8, 8) if heads > 1 else (8, 0, 8)
    arrays = Problem(1, 1, 8, 8).arrays()
    kv = heads // group - 1
    ends = ((batch - 1) * strides[0] + n * strides[1] for n in (heads - 1, kv, kv, heads - 1))
    last = batch * heads - 1
    how: Any = {"block_id": last, "first_sum": last, "before": tuple(4 * end for end in ends)}
    out, lse = Placed(small()).attend(arrays, [strides] * 4, (1, 1, heads, group), **how)
    np.testing.assert_array_equal(out, arrays[2])  # one key has all the weight
    np.testing.assert_allclose(lse, attention_reference(*arrays)[1], rtol=1e-5)


def test_no_key_at_all_gives_zero_though_the_arrays_have_no_memory() -> None:
    arrays = Problem(17, 0, 8, 8).arrays()
    for causal in (False, "bottom_right", "top_left"):
        out, lse, _ = run_forward(small(causal=causal), arrays, sanitize=True)
        np.testing.assert_array_equal(out, 0)
        np.testing.assert_array_equal(lse, -np.inf)


# ------------------------------------------------------------------------------------------ numbers


def like_dense_numpy(config: AttentionConfig, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """(out, lse), after checking that NaN and infinities are where dense f32 numpy has them."""
    out, lse, _ = run_forward(config, arrays, sanitize=True)
    how: Any = {"softmax_scale": config.scale, "causal": config.causal, "dtype": np.float32}
    for got, wanted in zip((out, lse), attention_reference(*arrays, **how), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)  # NaN equals NaN here
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_bad_query_spoils_only_its_own_row(bad: float, causal: bool) -> None:
    q, k, v = Problem(20, 37, 8, 8).arrays()
    q[0, 0, 5, 3] = bad
    out, _ = like_dense_numpy(small(causal=causal), (q, k, v))
    assert np.isfinite(np.delete(out, 5, axis=2)).all()


@pytest.mark.parametrize("head_dim", [8, 40])
@pytest.mark.parametrize("first_bad", [0, 16, 20])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_infinite_scores_are_what_dense_numpy_makes_of_them(
    sign: float, first_bad: int, head_dim: int
) -> None:
    # -inf is a weight of 0, in the first tile, in the last one or in between; +inf is NaN.
    q, k, v = Problem(5, 37, head_dim, 8).arrays()
    q[..., 0] = 1
    k[:, :, first_bad : first_bad + 17, 0] = sign * np.inf
    config = AttentionConfig(head_dim, 8, tile=16, block_q=16, return_lse=True)
    out, _ = like_dense_numpy(config, (q, k, v))
    assert np.isnan(out).all() == (sign > 0)


def test_a_row_whose_scores_are_all_minus_infinity_gives_zero() -> None:
    q, k, v = Problem(5, 37, 8, 8).arrays()
    q[..., 0], k[..., 0] = 1, -np.inf
    out, lse = like_dense_numpy(small(), (q, k, v))
    np.testing.assert_array_equal(out, 0)
    np.testing.assert_array_equal(lse, -np.inf)


def test_scores_below_any_finite_stand_in_for_minus_infinity_survive() -> None:
    q, k, v = Problem(5, 37, 8, 8).arrays()
    q[...], k[...] = 0, 0
    q[..., 0], k[..., 0] = 1, -1e30
    k[:, :, 20, 0] = -0.9e30
    out, _ = like_dense_numpy(small(softmax_scale=1.0, causal=False), (q, k, v))
    np.testing.assert_array_equal(out, np.broadcast_to(v[:, :, 20:21], out.shape))
    like_dense_numpy(small(softmax_scale=1.0, causal=True), (q, k, v))


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-45, 1e-39, 1e20, -1e20, 1e37])
def test_scales_from_nothing_to_huge_agree_with_dense_numpy(scale: float) -> None:
    arrays = Problem(20, 37, 8, 8).arrays()
    like_dense_numpy(small(softmax_scale=scale, causal=True), arrays)


def test_products_that_overflow_are_what_dense_numpy_makes_of_them() -> None:
    q, k, v = Problem(20, 37, 8, 8).arrays()
    like_dense_numpy(small(), (q * np.float32(1e20), k * np.float32(1e19), v))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_spoil_only_their_own_column(bad: float) -> None:
    q, k, v = Problem(20, 37, 8, 8).arrays()
    v[0, 0, 30, 2] = bad
    out, _ = like_dense_numpy(small(), (q, k, v))
    assert np.isfinite(np.delete(out, 2, axis=3)).all()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_later_tile_with_a_larger_maximum_rescales_the_earlier_ones(name: str) -> None:
    # Tiles of rising, falling and equal maxima, far enough apart for weights to vanish.
    q, k, v = Problem(3, 16 * 6, 8, 8).arrays()
    q[...], q[..., 0] = 0, 1
    k[0, 0, :, 0] = np.repeat([0.0, 300.0, -300.0, 300.0, 310.0, 0.0], 16)
    _, lse = like_dense_numpy(small(name, softmax_scale=1.0), (q, k, v))
    np.testing.assert_allclose(lse, 310 + np.log(16 + 32 * np.exp(-10.0)), rtol=1e-6)
