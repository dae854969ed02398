"""Which keys a mask_mod may show to some of a range of queries: never too few."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flash.mods import where
from flash.mods.evaluate import Evaluation
from flash.mods.operations import OPERATIONS
from flash.mods.reach import (
    Interval,
    Range,
    bounds_keys,
    factor_of_key,
    has_gaps,
    hiding_bounds,
    key_bounds,
    ranges,
    seen_ranges,
    shows_tiles,
)
from flash.mods.record import traced
from flash.mods.tile_bounds import OnHost
from flash.mods.trace import AuxArray, Trace
from flash.operands.dtypes import I32, I64
from ptxgen.errors import ConfigError

LENGTHS = np.array([5, 40], np.int32)


def trace_of(function: Any) -> Trace:
    return traced("mask_mod", function, [AuxArray("lengths", I32, 1)])


def bounds(function: Any, queries: tuple[int, int], batch: tuple[int, int] = (0, 1)) -> tuple[Any, Any]:
    indices = {"batch": Interval(*batch), "head": Interval(0, 3), "query": Interval(*queries)}
    return tuple(key_bounds(trace_of(function), OnHost(indices, {"lengths": LENGTHS})))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda b, h, q, k: q >= k, (None, 31)),
        (lambda b, h, q, k: k > q, (21, None)),
        (lambda b, h, q, k: (q >= k) & (q - k < 8), (13, 31)),
        (lambda b, h, q, k: abs(q - k) < 8, (13, 38)),
        (lambda b, h, q, k: abs(q - k) > 8, (None, None)),
        (lambda b, h, q, k: abs(q - k) // 4 < 2, (13, 38)),
        (lambda b, h, q, k, lengths: abs(q - k) < lengths[1], (None, None)),
        (lambda b, h, q, k: (k - q <= 4) & (k - q >= -8), (12, 35)),
        (lambda b, h, q, k: q // 16 == k // 16, (16, 31)),
        (lambda b, h, q, k: (q + 3) // 16 >= (k + 5) // 16, (None, 42)),
        (lambda b, h, q, k, lengths: k < lengths[b], (None, 39)),
        (lambda b, h, q, k, lengths: (q >= k) | (k < lengths[b]), (None, 39)),
        (lambda b, h, q, k, lengths: (k < lengths[0]) & (k >= 2), (2, 4)),
        (lambda b, h, q, k, lengths: lengths[k] == lengths[q], (None, None)),
        (lambda b, h, q, k: ~(k > q), (None, 31)),
        (lambda b, h, q, k: 2 * k < q, (None, None)),
        (lambda b, h, q, k: k < 2 * q + 3, (None, 64)),
        (lambda b, h, q, k: k - 2 * q < 3, (None, None)),
        (lambda b, h, q, k: where(q > 4, q >= k, k < 3), (None, None)),
        (lambda b, h, q, k: k <= where(b > 0, q, 2 * q), (None, 62)),
        (lambda b, h, q, k: q * q >= k, (None, None)),
        (lambda b, h, q, k: k % 4 == 0, (None, None)),
        (lambda b, h, q, k: k * 1.5 < 4, (None, None)),
    ],
)
def test_bounds_follow_from_comparisons(function: Any, wanted: tuple[Any, Any]) -> None:
    assert bounds(function, (20, 31)) == wanted
    assert bounds_keys(trace_of(function)) == (wanted != (None, None))


_NUMBERS = st.integers(-9, 9)
_LEAVES = st.sampled_from(["q", "k", "h", "n[b]", "n[q]"]) | _NUMBERS.map(str)


_BY_CONSTANTS = ["// -3", "% 5", "% -4", ">> 1", "<< 2", "& 6", "| 9", "^ 5"]


def _larger(inside: Any) -> Any:
    pair = st.tuples(inside, inside)
    return (
        pair.map(lambda p: f"({p[0]} + {p[1]})")
        | pair.map(lambda p: f"({p[0]} - {p[1]})")
        | st.tuples(inside, st.integers(1, 9)).map(lambda p: f"({p[0]} // {p[1]})")
        | st.tuples(inside, st.sampled_from(_BY_CONSTANTS)).map(lambda p: f"({p[0]} {p[1]})")
        | st.tuples(inside, _NUMBERS).map(lambda p: f"({p[0]} * {p[1]})")
        | pair.map(lambda p: f"least({p[0]}, {p[1]})")
        | pair.map(lambda p: f"({p[0]} // (0 * q + {p[1]}))")
        | inside.map(lambda x: f"-abs({x})")
    )


_INTEGERS = st.recursive(_LEAVES, _larger, max_leaves=6)
_COMPARED = st.tuples(_INTEGERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _INTEGERS).map(
    lambda c: f"({c[0]} {c[1]} {c[2]})"
)
_CONDITIONS = st.recursive(
    _COMPARED,
    lambda inside: (
        st.tuples(inside, st.sampled_from("&|"), inside).map(lambda c: f"({c[0]} {c[1]} {c[2]})")
        | inside.map(lambda c: f"~{c}")
    ),
    max_leaves=4,
)


def _function(text: str) -> Any:
    """The function of a text. What is compared is a value of the trace, even if it is a number."""
    names = {"least": lambda x, y: where(x < y, x, y) if not isinstance(x + y, int) else min(x, y)}
    return eval(f"lambda b, h, q, k, n: (q == q + 0 * k) & {text}", names)


def test_bounds_hold_for_lengths_that_are_farther_than_any_key() -> None:
    for length, wanted in ((2**31 - 1, 2**30), (-(2**31), -1)):
        indices = {name: Interval(0, 0) for name in ("batch", "head", "query")}
        call = OnHost(indices, {"lengths": np.array([length], np.int32)})
        last = key_bounds(trace_of(lambda b, h, q, k, lengths: k < lengths[b]), call).last
        assert last >= wanted if wanted > 0 else last <= wanted


def test_what_may_wrap_has_no_range() -> None:
    trace = trace_of(lambda b, h, q, k, lengths: q * k + lengths[b] > lengths[q] - k)
    known = dict(zip(map(str, trace.steps), ranges(trace), strict=True))
    wrapping = [text for text, one in known.items() if one is None and ".s32" in text]
    assert len(wrapping) == 3
    assert all(text.startswith(("mul", "add", "sub")) for text in wrapping)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda b, h, q, k: q >= k, 1),
        (lambda b, h, q, k: k + 3 < q, 1),
        (lambda b, h, q, k: q - k < 8, -1),
        (lambda b, h, q, k: q < 2 * k, 0),
        (lambda b, h, q, k: k // 2 < q, 0),
        (lambda b, h, q, k: q < h, 0),
        (lambda b, h, q, k: k - q < k, 0),
    ],
)
def test_comparisons_grow_from_key_to_key(function: Any, wanted: int) -> None:
    trace = trace_of(function)
    step = trace.steps[-1]
    assert abs(factor_of_key(trace, *step.args)) == abs(wanted)


def test_every_pair_of_signs_is_narrowed_alike() -> None:
    for a, b in itertools.product((1, -1), repeat=2):
        result = bounds(lambda _b, h, q, k, a=a, b=b: (a * q + b * k <= 4) & (k <= 60), (20, 31))
        expected = {(1, 1): (None, -16), (1, -1): (16, 60), (-1, 1): (None, 35), (-1, -1): (-35, 60)}
        assert result == expected[a, b]


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.filterwarnings("ignore:Bitwise inversion")  # of a comparison of numbers, which Python computed
@given(text=_CONDITIONS, first=st.integers(0, 30), rows=st.integers(1, 9), batch=st.integers(0, 1))
def test_no_key_is_hidden_or_seen_beyond_the_bounds_and_ranges(
    text: str, first: int, rows: int, batch: int
) -> None:
    try:
        trace = traced("mask_mod", _function(text), [AuxArray("n", I32, 1)])
    except (TypeError, ConfigError):  # of two numbers, which Python computed
        return
    table = {"n": LENGTHS}
    indices = {
        "batch": Interval(batch, batch),
        "head": Interval(0, 2),
        "query": Interval(first, first + rows - 1),
    }
    call = OnHost(indices, table)
    low, high = key_bounds(trace, call)
    hiding, seen = hiding_bounds(trace, call), seen_ranges(trace, call)
    inputs = {
        "batch": np.array(batch),
        "head": np.arange(3)[:, None, None],
        "query": np.arange(first, first + rows)[:, None],
        "key": np.arange(80),
    }
    shown = np.broadcast_to(Evaluation(trace, inputs, table, np.dtype(np.float32)).result, (3, rows, 80))
    visible = np.flatnonzero(shown.any(axis=(0, 1)))
    if visible.size:
        assert low is None or visible.min() >= low
        assert high is None or visible.max() <= high
    for keys, within in ((~shown.all(axis=(0, 1)), hiding), (shown.any(axis=(0, 1)), seen)):
        for key in np.flatnonzero(keys) if within is not None else ():
            assert any((low is None or key >= low) and (high is None or key <= high) for low, high in within)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda b, h, q, k: q >= k, [(21, None)]),
        (lambda b, h, q, k: (q >= k) & (q - k < 8), [(21, None), (None, 23)]),
        (lambda b, h, q, k, lengths: k < lengths[b], [(5, None)]),
        (lambda b, h, q, k, lengths: (q >= k) | (k < lengths[b]), [(21, None)]),
        (lambda b, h, q, k: ~((q < k) | (k == 3)), [(21, None), (3, 3)]),
        (lambda b, h, q, k: (q >= k) & (k % 2 == 0), None),
        (lambda b, h, q, k: q // 16 == k // 16, None),
    ],
)
def test_tiles_that_are_seen_as_a_whole_follow_from_comparisons(function: Any, wanted: Any) -> None:
    trace = trace_of(function)
    indices = {"batch": Interval(0, 0), "head": Interval(0, 3), "query": Interval(20, 31)}
    result = hiding_bounds(trace, OnHost(indices, {"lengths": LENGTHS}))
    assert (result if result is None else [tuple(one) for one in result]) == wanted
    assert shows_tiles(trace) == (wanted is not None)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda b, h, q, k: (q >= k) & ((q - k < 8) | (k < 4)), [(13, 31), (None, 3)]),
        (lambda b, h, q, k: (k < 4) | (k == 9) | (k > q), [(None, 3), (9, 9), (21, None)]),
        (lambda b, h, q, k: (q >= k) & (q - k < 8), None),
        (lambda b, h, q, k: (k < 4) | (k % 2 == 0), None),
        (lambda b, h, q, k: (k < 1) | (k == 9) | (k == 19) | (k == 29) | (k == 39), None),
    ],
)
def test_ranges_with_gaps_follow_from_alternatives(function: Any, wanted: Any) -> None:
    trace = trace_of(function)
    indices = {"batch": Interval(0, 0), "head": Interval(0, 3), "query": Interval(20, 31)}
    result = seen_ranges(trace, OnHost(indices, {"lengths": LENGTHS}))
    assert (result if result is None else [tuple(one) for one in result]) == wanted
    assert has_gaps(trace) == (wanted is not None)


def test_bounds_of_integers_of_64_bits_are_those_of_what_a_kernel_reads() -> None:
    indices = {name: Interval(0, 0) for name in ("batch", "head", "query")}
    call = OnHost(indices, {"far": np.array([2**40])})
    trace = traced("mask_mod", lambda b, h, q, k, far: k >= far[b] // 2**20, [AuxArray("far", I64, 1)])
    assert key_bounds(trace, call).first == (2**31 - 1) // 2**20


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=_INTEGERS, seed=st.integers(0, 2**20))
def test_integers_are_within_their_ranges(text: str, seed: int) -> None:
    try:
        trace = traced("mask_mod", _function(f"({text} > 0)"), [AuxArray("n", I32, 1)])
    except (TypeError, ConfigError):  # of two numbers, which Python computed
        return
    random = np.random.default_rng(seed)
    inputs = {name: random.integers(0, 2**30 - 256, 50) for name in ("batch", "head", "query", "key")}
    inputs["query"] -= 2**29 - 128
    for values in inputs.values():
        values[::2] >>= 25
    of = Evaluation(trace, inputs, {"n": random.integers(-(2**31), 2**31, 9)}, np.dtype(np.float32))
    for known, value in zip(ranges(trace), of.values, strict=True):
        assert known is None or (known.low <= value.min() and value.max() <= known.high)


_OF_INTEGERS = {
    "add": 2, "sub": 2, "mul": 2, "neg": 1, "abs": 1, "min": 2, "max": 2, "and": 2, "or": 2, "xor": 2,
    "not": 1, "shl": 2, "shr": 2, "quotient": 2, "floordiv": 1, "mod": 1,
}  # fmt: skip


@pytest.mark.parametrize("op", _OF_INTEGERS)
def test_the_ends_of_an_operation_are_around_all_results(op: str) -> None:
    random, of = np.random.default_rng(2), OPERATIONS[op]
    for _ in range(40):
        ends = np.sort(random.integers(-40, 41, (_OF_INTEGERS[op], 2)), axis=1)
        by = int(random.integers(1, 9)) if op in ("floordiv", "mod") else None
        operands = np.meshgrid(*[np.arange(low, high + 1, dtype=np.int32) for low, high in ends])
        results = of.numpy(*operands, *([] if by is None else [np.int32(by)]))
        result = of.ends([(int(low), int(high)) for low, high in ends], by)
        if result is not None and Range(*result).fits:  # else it may wrap
            assert result[0] <= results.min()
            assert results.max() <= result[1]
