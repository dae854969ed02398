"""A function of scores is traced once: its canonical text, what it may do, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flash.mods import div, exp, gelu, log, maximum, minimum, sqrt, tanh, where
from flash.mods.evaluate import Evaluation
from flash.mods.record import traced
from flash.mods.trace import AuxArray, Trace
from flash.operands.dtypes import BOOL, F16, F32, I32, U8
from ptxgen.errors import ConfigError, PtxGenError, TypeMismatchError

SLOPES = AuxArray("slopes", F32, 1)
TABLE = AuxArray("table", F16, 2)
LENGTHS = AuxArray("lengths", I32, 1)
KINDS = AuxArray("kinds", U8, 1)
FLAGS = AuxArray("flags", BOOL, 1)
EVERY = (SLOPES, TABLE, LENGTHS, KINDS, FLAGS)


def score(function: Any) -> Trace:
    return traced("score_mod", function, EVERY)


def mask(function: Any) -> Trace:
    return traced("mask_mod", function, EVERY)


def value(trace: Trace, **inputs: Any) -> Any:
    """The function for one score, in float64."""
    arrays = {
        "slopes": np.array([0.5, 0.25], np.float32),
        "table": np.arange(6, dtype=np.float16).reshape(2, 3),
        "lengths": np.array([3, 9], np.int32),
        "kinds": np.array([200, 7], np.uint8),
        "flags": np.array([True, False]),
    }
    arguments = {"score": 0.0, "batch": 0, "head": 0, "query": 0, "key": 0, **inputs}
    result = Evaluation(trace, {n: np.asarray(x) for n, x in arguments.items()}, arrays, np.dtype(np.float64))
    return result.result.item()


def test_the_canonical_text_says_arrays_and_steps() -> None:
    result = score(lambda score, batch, head, query, key, slopes: score - slopes[head] * (query - key))
    assert result.text == "\n".join(
        [
            *("score_mod", "slopes: f32[1]", "%0 = input.f32 score", "%1 = input.s32 head"),
            *("%2 = load.f32 slopes %1", "%3 = input.s32 query", "%4 = input.s32 key"),
            *("%5 = sub.s32 %3 %4", "%6 = float.f32 %5", "%7 = mul.f32 %2 %6", "%8 = sub.f32 %0 %7"),
        ]
    )


def test_functions_that_compute_the_same_are_equal_whatever_they_are_called() -> None:
    def one(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        exp(score)  # not used
        far = query - key
        return where(far > 8, score, score * 2)

    first = score(one)
    other = score(lambda s, b, h, q, k: where(q - k > 8, s, s * 2))
    assert first == other
    assert hash(first) == hash(other)
    assert first.digest == other.digest
    assert first != score(lambda s, b, h, q, k: where(q - k > 9, s, s * 2))
    assert first != score(lambda s, b, h, q, k: where(q - k >= 8, s, s * 2))
    for again in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert again == first


def test_zeros_of_both_signs_are_different_constants() -> None:
    assert score(lambda s, b, h, q, k: where(s > 0, s, 0.0)) != score(
        lambda s, b, h, q, k: where(s > 0, s, -0.0)
    )


@pytest.mark.parametrize(
    ("function", "inputs", "wanted"),
    [
        (lambda s, b, h, q, k: s * 2 + 1, {"score": 3.0}, 7.0),
        (lambda s, b, h, q, k: 1 - s / 4, {"score": 3.0}, 0.25),
        (lambda s, b, h, q, k: 6 / s, {"score": 3.0}, 2.0),
        (lambda s, b, h, q, k: q / 8, {"query": 3}, 0.375),
        (lambda s, b, h, q, k: -abs(q - k), {"query": 3, "key": 9}, -6.0),
        (lambda s, b, h, q, k: (q - k) // 4, {"query": 3, "key": 9}, -2.0),
        (lambda s, b, h, q, k: (q - k) % 4, {"query": 3, "key": 9}, 2.0),
        (lambda s, b, h, q, k: (q - k) // 7, {"query": 3, "key": 11}, -2.0),
        (lambda s, b, h, q, k: (q - k) % 7, {"query": 3, "key": 11}, 6.0),
        (lambda s, b, h, q, k: q * k - b, {"query": 3, "key": 9, "batch": 2}, 25.0),
        (lambda s, b, h, q, k: minimum(q, k) + maximum(s, 2.5), {"query": 3, "key": 9}, 5.5),
        (lambda s, b, h, q, k: exp(s) + log(s) + sqrt(s) + tanh(s), {"score": 1.0}, np.e + 1 + np.tanh(1.0)),
        (lambda s, b, h, q, k: where((q > k) & ~(q == 4) | (k != 0) ^ True, 1, 0), {"query": 3}, 1.0),
        (lambda s, b, h, q, k: where(True, s, 2), {"score": 5.0}, 5.0),
        (lambda s, b, h, q, k: where(where(q > 1, k > 1, k < 1), 3, 4), {"query": 3, "key": 2}, 3.0),
        (lambda s, b, h, q, k, slopes: slopes[h], {"head": 1}, 0.25),
        (lambda s, b, h, q, k, slopes: slopes[h - 3], {"head": 1}, 0.5),
        (lambda s, b, h, q, k, table: table[h, q - k], {"head": 1, "query": 9, "key": 1}, 5.0),
        (lambda s, b, h, q, k, table: table[1, q], {"query": 1}, 4.0),
        (lambda s, b, h, q, k, lengths: lengths[b] - k, {"batch": 1, "key": 4}, 5.0),
        (lambda s, b, h, q, k, kinds: kinds[b] + 100, {}, 300.0),
        (lambda s, b, h, q, k, flags: where(flags[b], s, -s), {"batch": 1, "score": 2.0}, -2.0),
        (lambda s, b, h, q, k: s + np.float32(0.5) + np.array(1.0), {"score": 2.0}, 3.5),
        (lambda s, b, h, q, k: np.float64(0.5) * s, {"score": 2.0}, 1.0),
        (lambda s, b, h, q, k, scale=4.0: s * scale, {"score": 2.0}, 8.0),
        (lambda s, b, h, q, k: q * 2**20 * 2**20, {"query": 1}, 0.0),
        (lambda s, b, h, q, k: 7, {}, 7.0),
        (lambda s, b, h, q, k: 2.0**s + s**2 + s**-1 + s**0.5, {"score": 4.0}, 34.25),
        (lambda s, b, h, q, k: (s - 6) ** q + s**0 + q**0, {"score": 4.0, "query": 3}, -6.0),
        (lambda s, b, h, q, k: (s - 4) ** q, {"score": 4.0}, 1.0),
        (lambda s, b, h, q, k: 2**q + q**2, {"query": 3}, 17.0),
        (lambda s, b, h, q, k: (k - q) // -3 * 10 + (k - q) % -3, {"query": 7}, 20.0 - 1),
        (lambda s, b, h, q, k: (k - q) // (k + 3) * 10 + (k - q) % (k + 3), {"query": 7}, -30.0 + 2),
        (lambda s, b, h, q, k: q // k + q % k, {"query": 7}, 7.0),
        (lambda s, b, h, q, k: s // 2 + s % 2, {"score": -3.5}, -2 + 0.5),
        (lambda s, b, h, q, k: div(k - q, 3, rounding_mode="trunc"), {"query": 7}, -2.0),
        (lambda s, b, h, q, k: div(s, 3, rounding_mode="trunc"), {"score": -7.0}, -2.0),
        (
            lambda s, b, h, q, k: (q << 3) + (q >> 1) + (q & 6) * 100 + (q | 8) - (q ^ 1) + ~q,
            {"query": 7},
            660.0,
        ),
        (lambda s, b, h, q, k: (1 << q) + (100 >> q), {"query": 5}, 35.0),
        (lambda s, b, h, q, k: where((q > 1) == (k > 1), 1, 2) + ((q > 1) != (k > 1)), {"query": 3}, 3.0),
        (lambda s, b, h, q, k: s * (q > 1) + (k > 1) * 5, {"query": 3, "score": 2.0}, 2.0),
        (lambda s, b, h, q, k: ((q > 1) + (k > 1)) * 3, {"query": 3}, 3.0),
        (
            lambda s, b, h, q, k: q.clamp(2, 5) + q.clamp(max=4) + s.clamp(min=0),
            {"query": 9, "score": -1.0},
            9.0,
        ),
        (lambda s, b, h, q, k: (k - q).abs().float().exp2(), {"query": 3}, 8.0),
        (
            lambda s, b, h, q, k: s.to(int) + s.long() * 10 + q.bool().float() * 100,
            {"score": -2.5, "query": 4},
            78.0,
        ),
        (lambda s, b, h, q, k: s.to("cpu").to(np.float16).to(s) + s.type(np.int64), {"score": 1.5}, 2.5),
        (lambda s, b, h, q, k: s.new_ones(()) + q.new_zeros((), dtype=float) + s.new_full((), 3), {}, 4.0),
        (lambda s, b, h, q, k: where(q.new_ones((), dtype=bool) & (q > k), 1, 2), {"query": 1}, 1.0),
        (
            lambda s, b, h, q, k: s.where(q > k, 9.0) + s.masked_fill(q > k, 5.0),
            {"query": 1, "score": 2.0},
            7.0,
        ),
        (
            lambda s, b, h, q, k: np.exp(s) + np.where(q > k, np.abs(s), 0),
            {"score": 1.0, "query": 1},
            np.e + 1,
        ),
        (lambda s, b, h, q, k: np.float32(3) - s + (np.float32(3) > s), {"score": 1.0}, 3.0),
        (
            lambda s, b, h, q, k, table: table[h][q] + table[:, q][h] + table[..., q][h],
            {"head": 1, "query": 2},
            15.0,
        ),
        (lambda s, b, h, q, k, slopes: slopes[where(q > 3, 1, 0)], {"query": 4}, 0.25),
    ],
)
def test_a_function_means_what_python_means(
    function: Callable[..., Any], inputs: dict[str, Any], wanted: float
) -> None:
    assert value(score(function), **inputs) == pytest.approx(wanted, rel=1e-15)


def test_functions_of_pytorch_are_those_of_values(torch: Any) -> None:
    ours = score(lambda s, b, h, q, k: where(q >= k, tanh(s / 20) * 20, float("-inf")))
    theirs = score(lambda s, b, h, q, k: torch.where(q >= k, torch.tanh(s / 20) * 20, -torch.inf))
    assert theirs == ours
    assert mask(lambda b, h, q, k: torch.logical_and(q >= k, k < 8)) == mask(
        lambda b, h, q, k: (q >= k) & (k < 8)
    )
    assert score(lambda s, b, h, q, k: torch.abs(q - k) * torch.tensor(0.5)) == score(
        lambda s, b, h, q, k: abs(q - k) * 0.5
    )


def _branches(b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > k:
        return q > k
    return k > q


NUMBER, INTEGER, CONDITION = "a number (f32)", "an integer (s32)", "a condition"
FUNCTIONS = (
    "where, minimum, maximum, clamp, abs, exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, erf, sin, cos, "
    "floor and those made of them (docs/score-functions.md)"
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            _branches,
            f"Python cannot branch on {CONDITION} that is known only in the kernel; "
            f"use where(condition, a, b) "
            "instead of if, & and | instead of and and or, minimum and maximum "
            "instead of min and max, and two "
            "comparisons instead of a chain",
        ),
        (
            lambda b, h, q, k: q.sine() > 0,
            f"{INTEGER} of a traced function has no attribute 'sine'; did you mean 'sin'?; the functions are "
            f"{FUNCTIONS}",
        ),
        (
            lambda b, h, q, k: 3**q > 0,
            "** of two integers needs a constant exponent of 0 to 64, or the base 2; write a base as a float",
        ),
        (lambda b, h, q, k: q % 0 == 0, "// and % divide by a number that is not 0, got 0"),
        (lambda b, h, q, k: q // 0 == 0, "// and % divide by a number that is not 0, got 0"),
        (lambda b, h, q, k: (q > k) - (k > 3) == 0, f"- is for numbers, got {CONDITION} and {CONDITION}"),
        (lambda b, h, q, k: -(q > k) == 0, f"neg is for numbers, got {CONDITION}"),
        (
            lambda b, h, q, k: (q / 2) & k,
            f"& is for conditions and integers, got {NUMBER}; put comparisons in parentheses: "
            "(query >= key) & (key < 8)",
        ),
        (lambda b, h, q, k: ~(q / 2), f"~ is for conditions and integers, got {NUMBER}"),
        (lambda b, h, q, k: q << 32, "<< and >> shift by 0 to 31 bits, got 32"),
        (lambda b, h, q, k: q >> -1, "<< and >> shift by 0 to 31 bits, got -1"),
        (lambda b, h, q, k: (q / 2) >> 1, f"<< and >> are for integers, got {NUMBER}"),
        (
            lambda b, h, q, k: q.to("complex64") > 0,
            "a value of a traced function is a float, int32 or int64, or bool, not 'complex64'",
        ),
        (
            lambda b, h, q, k: q.new_ones((2, 3)) > 0,
            "a value of a traced function has no axes: size must be (), got (2, 3)",
        ),
        (
            lambda b, h, q, k: q.clamp(low=0) > 0,
            ".clamp of a traced function: got an unexpected keyword argument 'low'",
        ),
        (
            lambda b, h, q, k: div(q, 3, rounding_mode="up") > 0,
            'div: rounding_mode must be None, "floor" or "trunc", got \'up\'',
        ),
        (
            lambda b, h, q, k: gelu(q, approximate="erf") > 0,
            'gelu: approximate must be "none" or "tanh", got \'erf\'',
        ),
        (
            lambda b, h, q, k: where(q, q > k, q < k),
            f"where: the first operand must be a condition, got {INTEGER}",
        ),
        (
            lambda b, h, q, k: q > "k",
            "an operand must be a value of the traced function or a number, got "
            "'k'; arrays are given as aux, "
            "and indexed",
        ),
        (lambda b, h, q, k: q > 2**40, "an integer must fit 32 bits, got 1099511627776; write it as a float"),
        (
            lambda b, h, q, k: [1, 2][q] > 0,
            f"Python cannot index with {INTEGER} that is known only in the kernel; "
            "only arrays of aux, of numpy and of PyTorch can be indexed by it",
        ),
        (
            lambda b, h, q, k: float(q) > 0,
            f"Python cannot compute with {INTEGER} that is known only in the kernel; use the functions of "
            f"flash.mods: {FUNCTIONS}",
        ),
        (
            lambda b, h, q, k, table: table[q] > 0,
            "an operand must be a single value, got table with 1 of its 2 axes not indexed",
        ),
        (
            lambda b, h, q, k, table: k < table,
            "an operand must be a single value, got table with 2 of its 2 axes not indexed",
        ),
        (lambda b, h, q, k, table: table[q][k, 0] > 0, "table has 2 axes: an element has 2 indices, got 3"),
        (
            lambda b, h, q, k, table: table[:2, q] > 0,
            "an axis of table is indexed by an integer, or by :, got a slice",
        ),
        (
            lambda b, h, q, k, slopes: slopes[-1] > 0,
            "an index of slopes must not be negative, got -1; count from the first element",
        ),
        (
            lambda b, h, q, k, slopes: slopes[q / 2] > 0,
            f"the indices of slopes must be integers, got {NUMBER}",
        ),
        (
            lambda b, h, q, k, slopes: slopes.sum() > 0,
            "slopes is an array: index an element, such as slopes[query]; it has no attribute 'sum'",
        ),
        (
            lambda b, h, q, k: exp(2.0) > q,
            "exp is for values of a traced function, got 2.0; compute numbers with Python",
        ),
    ],
)
def test_what_cannot_be_traced_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeMismatchError) as error:
        mask(function)
    assert str(error.value) == message


def test_unknown_functions_of_pytorch_are_refused(torch: Any) -> None:
    with pytest.raises(TypeMismatchError) as error:
        score(lambda s, b, h, q, k: torch.cumsum(s, 0))
    assert str(error.value) == (
        f"torch.cumsum is no operation of a traced function; the functions are {FUNCTIONS}"
    )


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        (
            "score_mod",
            "tanh",
            "score_mod must be a function (score, batch, head, query, key), or None, got 'tanh'",
        ),
        (
            "score_mod",
            lambda s, b, h, q: s,
            "score_mod must take (score, batch, head, query, key) and the names of arrays of aux, got "
            "parameters (s, b, h, q)",
        ),
        (
            "mask_mod",
            lambda *given: given[0],
            "mask_mod must take (batch, head, query, key) and the names of arrays of aux, got parameters "
            "(*given)",
        ),
        (
            "score_mod",
            lambda s, b, h, q, k, bias: s + bias[q],
            "score_mod takes bias, which aux does not have; aux has slopes, table, "
            "lengths, kinds, flags: give "
            "aux={'bias': array}",
        ),
        (
            "mask_mod",
            lambda s, b, h, q, k: s > 0,
            "mask_mod takes k, which aux does not have; aux has slopes, table, lengths, kinds, flags: give "
            "aux={'k': array}",
        ),
        (
            "score_mod",
            lambda s, b, h, q, k: q >= k,
            "score_mod must return the new score, a number, got <a condition of a traced function>; use "
            "where(condition, score, float('-inf'))",
        ),
        (
            "mask_mod",
            lambda b, h, q, k: q - k,
            "mask_mod must return a condition: whether the query sees the key, got <an integer (s32) of a "
            "traced function>; compare it, as in x > 0",
        ),
        (
            "mask_mod",
            lambda b, h, q, k: None,
            "mask_mod must return a condition: whether the query sees the key, got None",
        ),
        (
            "score_mod",
            mask(lambda b, h, q, k: q >= k),
            "score_mod must be a function (score, batch, head, query, key), got a traced mask_mod",
        ),
    ],
)
def test_functions_that_do_not_fit_are_refused(name: str, function: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        traced(name, function, EVERY)
    assert str(error.value) == message


def test_a_trace_is_refused_with_arrays_of_other_types() -> None:
    result = score(lambda s, b, h, q, k, slopes: s * slopes[h])
    assert traced("score_mod", result, [SLOPES]) is result
    with pytest.raises(ConfigError) as error:
        traced("score_mod", result, [AuxArray("slopes", F16, 1)])
    assert str(error.value) == "score_mod was traced with aux slopes: f32[1], got slopes: f16[1]"
    with pytest.raises(ConfigError) as missing:
        traced("score_mod", result, [])
    assert str(missing.value) == "score_mod was traced with aux slopes: f32[1], got no such array"
    assert issubclass(ConfigError, PtxGenError)
