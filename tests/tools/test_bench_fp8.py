"""What `ptxgen bench --only fp8` measures."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from benchmarks.measure.fp8_error import Numbers, drawn, fp8_jobs, one_sum, product, relative_error
from benchmarks.measure.fp8_scale_error import error_of_rows, fp8_scale_jobs, narrowed
from benchmarks.measure.mx_error import mx_jobs
from flash.commands.measure.record import Measurement
from flash.reference import attention_reference, scaled_numbers

FLAT = Numbers("flat", 0.02, 1.0)


def test_both_methods_are_attention_and_ours_errs_less_where_scores_are_alike() -> None:
    jobs = {job.label: job for job in fp8_jobs(quick=True)}
    result = jobs["fp8 d=64 keys=512 flat"].run()
    ours, theirs, ratio = (one.median for one in result if isinstance(one, Measurement))
    # A weight errs by up to 2^-4 of itself.
    assert 0 < ours < 2.0**-9
    assert ours < theirs < 2.0**-4
    assert ratio == ours / theirs


@pytest.mark.slow
def test_scales_of_weights_err_no_less_than_the_kernel_and_a_sum_of_other_weights_more() -> None:
    jobs = {job.label: job for job in mx_jobs(quick=True)}
    result = jobs["mxfp8 keys=512 V of mean 1"].run()
    ours, blocks, unrounded, of_inputs, ratio = (m.median for m in result if isinstance(m, Measurement))
    assert ours < 1.1 * blocks < unrounded < of_inputs < 2.0**-7
    assert ratio == ours / blocks


@pytest.mark.slow
def test_weights_of_fp8_err_less_than_those_of_four_bits_with_q_and_k_of_four_bits() -> None:
    jobs = {job.label: job for job in mx_jobs(quick=True)}
    result = jobs["nvfp4 keys=512 normal"].run()
    ours, of_inputs, in_all, of_four_bits = (m.median for m in result if isinstance(m, Measurement))
    assert ours < 2.0**-5 < of_inputs < in_all < 0.9 * of_four_bits < 0.25


def test_one_sum_over_more_keys_errs_more() -> None:
    errors = []
    for keys in (256, 8192):
        q, k, v = drawn(64, keys, FLAT)
        exact, _ = attention_reference(*(x.astype(np.float64) for x in (q, k, v)))
        errors.append(relative_error(one_sum(q[0, 0], k[0, 0], v[0, 0], 128), exact[0, 0]))
    assert errors[1] > 2 * errors[0]


def test_a_product_keeps_14_bits_of_its_sum() -> None:
    of = ml_dtypes.float8_e4m3fn
    a, b = np.full((1, 32), 1, of), np.zeros((32, 1), of)
    b[0] = 1
    # Halves of the last bit that is kept are cut.
    c = np.array([[1 + 2.0**-13]], np.float32)
    np.testing.assert_array_equal(product(a, b, np.zeros((1, 1), np.float32)), [[1]])
    np.testing.assert_array_equal(product(a, b, c), [[2.0]])


@pytest.mark.slow
def test_scales_of_blocks_err_less_where_rows_of_v_become_small() -> None:
    (job,) = fp8_scale_jobs(quick=True)
    heads, *blocks = (one.median for one in job.run() if isinstance(one, Measurement))
    assert len(blocks) == 6
    for with_blocks, ratio in zip(blocks[::2], blocks[1::2], strict=True):
        assert 0 < with_blocks < 2.0**-4 < heads
        assert ratio == with_blocks / heads


def test_numbers_over_their_scales_are_those_within_half_a_unit() -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 256, 16)).astype("f4")
    x[:, :, 64:128] *= 2.0**-20
    for block in (None, 64):
        result = scaled_numbers(*narrowed(x, block), block)
        error = np.abs(result - x) / np.abs(x).max(axis=(2, 3) if block is None else 3, keepdims=True)
        assert error.max() <= 2.0**-4


def test_the_error_of_rows_counts_each_row_alike() -> None:
    exact = np.array([[3.0, 4.0], [3e-6, 4e-6]])
    assert error_of_rows(exact * [[1.0], [1.5]], exact) == np.sqrt(0.5**2 / 2)
