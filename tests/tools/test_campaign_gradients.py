"""The kernels of gradients in the mutation campaign: what is right, and who notices a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gradient_runs import case

from flash.scores.philox import keep_mask
from ptxgen import interpreter
from ptxgen.interpreter import Result
from tools.campaign.gradient_bound import GradientInputs
from tools.campaign.judging import judge, judge_of, mutants_of
from tools.campaign.kernels import subjects

VARLEN = "bf16-sm_80-dq-varlen"
OF_KEYS = "bf16-sm_80-dkv-varlen"
OF_BIAS = "f16-sm_80-dbias"
SUM = "bf16-sm_80-sum"
BY_QUERIES = "f16-sm_90a-dq"  # kernels with wgmma
BY_KEYS = "f16-sm_90a-dkv"
SPLIT = "f16-sm_90a-dkv-split"
ORDERED = "f16-sm_90a-dkv-ordered"
WINDOW = "bf16-sm_90a-dkv-varlen"


def test_what_rows_and_keys_add_is_the_gradient_of_an_array() -> None:
    arrays = {
        "alibi_slopes": np.array([0.5, 0.25], np.float32),
        "sink": np.array([0.1, -0.3], np.float32),
        "key_bias": np.linspace(-1, 1, 19, dtype=np.float32)[None],
    }
    of = case(
        13, 19, 8, heads=2, kv_heads=1, causal=True, alibi=True, sink=True, key_bias="f32", arrays=arrays
    )
    call = GradientInputs(of.config, of.dout, of.q, of.k, of.v, *of.forward(), of.dlse, of.given)
    bounds = call.bounds(of.wanted)
    terms = {"alibi_slopes": "row_alibi_slopes", "sink": "row_sink", "key_bias": "key_key_bias"}
    for name, of_terms in terms.items():
        whole = bounds[of_terms].gradient.sum(axis=(0, 1) if name == "key_bias" else (0, 2))
        np.testing.assert_allclose(whole, bounds[name].gradient.reshape(whole.shape), atol=1e-5)
        assert (bounds[of_terms].error > 0).all()


@pytest.mark.parametrize(
    ("kernel", "nth", "message"),
    [
        (VARLEN, 5, "dQ is written outside its rows and columns"),
        (OF_KEYS, 4, "dK is written outside its rows and columns"),
    ],
)
def test_a_write_outside_of_the_rows_of_a_gradient_is_wrong(kernel: str, nth: int, message: str) -> None:
    subject = subjects()[kernel]

    def meddling(*given: Any, args: Any, **how: Any) -> Result:
        done = interpreter.run(*given, args=args, **how)
        args[nth].base[0, 0, -1, -1] = 0  # in its margins
        return done

    problem = subject.problems[-1]
    assert subject.run(subject.module, problem).wrong == ""
    assert subject.run(subject.module, problem, launch=meddling).wrong == message


@pytest.mark.parametrize("kernel", ["f16-sm_80-dq-features", "f16-sm_80-dkv-features"])
def test_in_each_place_of_a_fragment_a_number_that_counts_is_the_threshold(kernel: str) -> None:
    result: set[int] = set()
    for problem in subjects()[kernel].problems:
        if problem.dropout_seed >= 1 << 32:
            continue
        queries, keys = np.arange(problem.seq_q), np.arange(problem.seq_k)
        rows, columns = (keys[None], queries[:, None]) if "dkv" in kernel else (queries[:, None], keys[None])
        location = 4 * (rows % 16 // 8) + columns % 16 // 8 * 2 + columns % 2
        args = subjects()[kernel].prepare(problem).how["args"]
        (mask,) = (a for a in args if isinstance(a, np.ndarray) and a.dtype == np.bool_)
        distance = queries[:, None] - keys
        counts = mask[0, 0] & (distance >= 0) & (distance <= 3)
        kept_now, kept_more = (
            keep_mask(dropout, problem.dropout_seed, np.zeros(1, int), queries, keys)[0]
            for dropout in (0.3, 0.3 - 2**-16)
        )
        result |= set(location[(kept_now != kept_more) & counts].tolist())
    assert result == set(range(8))


@pytest.mark.parametrize(
    ("kernel", "nth", "row", "number", "message"),
    [
        # A row of dQ that sees no key, one that has NaN itself, and one that has none and sees keys.
        (VARLEN, 5, 0, np.nan, "dQ[0, 0, 0, 0] is nan, wanted 0"),
        (VARLEN, 5, 28, 1.0, "dQ[0, 0, 28, 0] is 1, wanted nan"),
        (VARLEN, 5, 28, np.inf, ""),
        (VARLEN, 5, 31, np.inf, "dQ[0, 0, 31, 0] is inf, wanted "),
        # Keys that an odd row sees, and one that none sees; dV may have what dK has.
        (OF_KEYS, 4, 3, 1.0, "dK[0, 0, 3, 0] is 1, wanted nan"),
        (OF_KEYS, 4, 31, np.nan, "dK[0, 0, 31, 0] is nan, wanted "),
        (OF_KEYS, 5, 3, np.nan, ""),
        (OF_KEYS, 5, 31, np.nan, "dV[0, 0, 31, 0] is nan, wanted "),
    ],
)
def test_what_is_not_finite_is_right_where_the_exact_gradient_is_not(
    kernel: str, nth: int, row: int, number: float, message: str
) -> None:
    subject = subjects()[kernel]
    problem = [p for p in subject.problems if p.odd][kernel == OF_KEYS]

    def meddling(*given: Any, args: Any, **how: Any) -> Result:
        done = interpreter.run(*given, args=args, **how)
        args[nth][row, 0, 0] = number
        return done

    result = subject.run(subject.module, problem, launch=meddling).wrong
    assert result.startswith(message)
    assert bool(result) == bool(message)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kernel", "kind", "change", "function", "catcher"),
    [
        (SUM, "loop-bound", "lt to le", "sum_kernel", "value"),
        (OF_BIAS, "barrier", "deleted", "gradient_of_scores", "sanitizer"),
        (VARLEN, "mask", "inverted", "_Cta.clear_keys", "value"),  # NaN that a row does not see
        # NaN and infinity of a row, and keys that it does not see; the row before an empty sequence.
        pytest.param(OF_BIAS, "mask", "always the second", "tamed", "value", marks=pytest.mark.slow),
        pytest.param(OF_BIAS, "bound", "lt to le", "is_nonfinite", "value", marks=pytest.mark.slow),
        pytest.param(VARLEN, "bound", "ge to gt", "RowsPart.of", "trap", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_in_a_kernel_of_gradients_is_noticed(
    kernel: str, kind: str, change: str, function: str, catcher: str
) -> None:
    at = [
        n
        for n, m in enumerate(mutants_of(kernel))
        if m.name.startswith(f"{kind}: {change}") and m.where.endswith(function)
    ]
    result = judge(kernel, at[-1])
    assert result.caught_by == catcher, result


HOPPER = [name for name in subjects() if "-sm_90a-d" in name]


@pytest.mark.parametrize("kernel", HOPPER)
def test_problems_of_kernels_with_wgmma_have_tensor_maps_and_fill_rings_again(kernel: str) -> None:
    subject = subjects()[kernel]
    assert "_wgmma_" in subject.entry
    names = [param.name for param in subject.module.kernels[0].params]
    assert [*subject.params] == [name for name in names if name.endswith("_map")] != []
    by_keys = "-dkv" in kernel
    for problem in subject.problems:
        assert sum(q for q, _ in problem.sequences) > 0
        assert sum(k for _, k in problem.sequences) > 0
        assert (problem.reverse, problem.alike) == (False, False)
    walked = max(rows[0] if by_keys else rows[1] for p in subject.problems for rows in p.sequences)
    assert walked >= 18 * 16  # tiles, more than the eight arrivals at a barrier of each of two stages


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("kernel", "kind", "change", "function", "catcher"),
    [
        (BY_QUERIES, "mbarrier", "-16", "_load", "trap"),  # bytes of the copies of a stage
        (BY_QUERIES, "mbarrier", "not waited for", "_load", "sanitizer"),
        (BY_QUERIES, "phase", "begins with the other", "wgmma_gradient_of_queries", "trap"),
        (BY_QUERIES, "tensor-copy", "coordinates 1 and 2 swapped", "GradientPipeline.load", "value"),
        (BY_KEYS, "copy-wait", "deleted", "store_rows", "sanitizer"),  # of the store of dV
        (BY_KEYS, "fence", "of the generic proxy alone", "store_rows", "sanitizer"),
        (BY_KEYS, "phase", "of the other phase", "_Consumer.run", "sanitizer"),
        (BY_KEYS, "copy-wait", "deleted", "_Consumer._add_queries", "sanitizer"),
        (SPLIT, "barrier", "deleted", "_Consumer._store", "sanitizer"),  # both warpgroups read all keys
        (SPLIT, "descriptor", "stride offset +1", "_Consumer._add_queries", "sanitizer"),
        # The order in which CTAs add to dQ: no other sanitizer, and no result, shows that it is missing.
        (ORDERED, "memory-order", "made relaxed", "WgmmaQuerySums._finish_reduction", "sanitizer"),
        (ORDERED, "fence", "deleted", "WgmmaQuerySums._await", "sanitizer"),
    ],
)
def test_a_mistake_in_a_kernel_of_gradients_with_wgmma_is_noticed(
    kernel: str, kind: str, change: str, function: str, catcher: str
) -> None:
    at = [
        n
        for n, m in enumerate(mutants_of(kernel))
        if m.name.startswith(f"{kind}: {change} @") and m.where.endswith(function)
    ]
    result = judge(kernel, at[-1])
    assert result.caught_by == catcher, result


@pytest.mark.slow
def test_each_instruction_of_the_three_loops_of_a_windowed_kernel_is_executed() -> None:
    """Tiles before those of which all rows see all keys of the CTA, these, and tiles after them."""
    judge_ = judge_of(WINDOW)
    executed = np.any([judge_.reach(problem).executed for problem in subjects()[WINDOW].problems], axis=0)
    assert [m.name for m, ran in zip(judge_.mutants, executed, strict=True) if not ran] == []
