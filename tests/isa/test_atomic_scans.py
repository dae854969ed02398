"""Atomic operations of many lanes at one address at once, against going lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.isa import atomics
from ptxgen.isa.atomic_scans import scan_of, swapped
from ptxgen.types import TYPES, ScalarType

Array = np.ndarray[Any, np.dtype[Any]]

CASES = [
    *[("add", name) for name in ("u32", "s32", "u64", "f32", "f64")],
    *[(op, name) for op in ("min", "max") for name in ("u32", "s32", "u64", "s64")],
    *[(op, name) for op in ("and", "or", "xor") for name in ("b32", "b64")],
    *[("exch", name) for name in ("b32", "b64")],
    ("inc", "u32"),
    ("dec", "u32"),
]
LENGTHS = ([7], [5, 1, 1, 33, 2], [300, 17])


def lane_by_lane(update: Any, first: Array, lengths: list[int], operands: tuple[Array, ...]) -> Any:
    """What each lane finds, and what each group leaves."""
    old, last = np.empty_like(operands[0]), first.copy()
    lane = 0
    for group, length in enumerate(lengths):
        for _ in range(length):
            old[lane] = last[group]
            here = slice(lane, lane + 1)
            last[group : group + 1] = update(old[here], *(x[here] for x in operands))
            lane += 1
    return old, last


def starts_of(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths[:-1]])


def bits(x: Array) -> list[int]:
    return x.view(f"u{x.itemsize}").tolist()


def random(rng: np.random.Generator, type: ScalarType, count: int) -> Array:
    if type.is_float:  # of all sizes, so that every sum is rounded
        return (rng.normal(size=count) * 10.0 ** rng.integers(-9, 9, count)).astype(type.dtype)
    raw = rng.integers(0, 256, count * type.nbytes, dtype=np.uint8)
    return raw.view(type.dtype)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("op", "name"), CASES)
def test_a_scan_gives_the_bits_of_going_lane_by_lane(op: str, name: str, lengths: list[int]) -> None:
    rng, type = np.random.default_rng(len(lengths)), TYPES[name]
    scan, update = scan_of(op, type), atomics._updated(op, type)
    assert scan is not None
    first, b = random(rng, type, len(lengths)), random(rng, type, sum(lengths))
    if op in ("inc", "dec"):  # small limits, the same in a group; some values are beyond
        first = first % np.uint32(9)
        b = np.repeat(rng.integers(0, 7, len(lengths), dtype=np.uint32), lengths)
    result = scan(first, starts_of(lengths), (b,))
    if type.is_float and len(lengths) > max(lengths):
        assert result is None
        return
    assert result is not None
    wanted = lane_by_lane(update, first, lengths, (b,))
    assert [bits(x) for x in result] == [bits(x) for x in wanted]
    assert all(x.dtype == type.dtype for x in result)


@pytest.mark.parametrize("b", [0, 1, 5, 2**32 - 1])
@pytest.mark.parametrize("first", [0, 1, 4, 5, 6, 7, 2**32 - 1])
@pytest.mark.parametrize("op", ["inc", "dec"])
def test_counters_go_round_from_any_value(op: str, first: int, b: int) -> None:
    scan, update = scan_of(op, TYPES["u32"]), atomics._updated(op, TYPES["u32"])
    assert scan is not None
    begin, limits = np.array([first], np.uint32), np.full(20, b, np.uint32)
    result = scan(begin, np.array([0]), (limits,))
    assert result is not None
    wanted = lane_by_lane(update, begin, [20], (limits,))
    assert [bits(x) for x in result] == [bits(x) for x in wanted]


def test_counters_with_several_limits_and_sums_of_nan_go_lane_by_lane() -> None:
    scan = scan_of("inc", TYPES["u32"])
    assert scan is not None
    limits = np.array([3, 4], np.uint32)
    assert scan(np.zeros(1, np.uint32), np.array([0]), (limits,)) is None
    scan = scan_of("add", TYPES["f64"])
    assert scan is not None
    assert scan(np.zeros(1), np.array([0]), (np.array([1.0, np.nan]),)) is None
    assert scan(np.array([np.nan]), np.array([0]), (np.array([1.0, 2.0]),)) is None


def test_sums_keep_the_order_of_the_lanes_and_infinities() -> None:
    scan = scan_of("add", TYPES["f32"])
    assert scan is not None
    b = np.array([1, 2.0**24, -(2.0**24), np.inf, -np.inf, 5], np.float32)
    result = scan(np.ones(1, np.float32), np.array([0]), (b,))
    assert result is not None
    nan = 0x7FFFFFFF
    wanted = np.array([1, 2, 2.0**24 + 2, 2, np.inf], np.float32)
    assert bits(result[0]) == [*bits(wanted), nan]
    assert bits(result[1]) == [nan]


@pytest.mark.parametrize("seed", range(20))
def test_swaps_are_those_of_going_lane_by_lane(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, 6).tolist()
    # Few values, so that some meet, and many, so that few do.
    most = 2 + seed
    first, wanted, arguments = (
        rng.integers(0, most, n, dtype=np.uint32) for n in (6, sum(lengths), sum(lengths))
    )
    result = swapped(first, starts_of(lengths), (wanted, arguments))
    slow = lane_by_lane(atomics._exchanged_if_equal, first, lengths, (wanted, arguments))
    if result is not None:
        assert [bits(x) for x in result] == [bits(x) for x in slow]
    else:  # one address changes more often than the scan follows
        changes = [
            len(np.flatnonzero(np.diff(part)))
            for part in np.split(slow[0].astype(np.int64), starts_of(lengths)[1:])
        ]
        assert max(changes) >= 7


def test_a_lock_is_taken_by_the_first_lane() -> None:
    zeros, ones = np.zeros(32, np.uint32), np.ones(32, np.uint32)
    result = swapped(np.zeros(1, np.uint32), np.array([0]), (zeros, ones))
    assert result is not None
    assert (result[0].tolist(), result[1].tolist()) == ([0] + [1] * 31, [1])


def test_operations_without_a_scan_say_so() -> None:
    for op, name in (("add", "f16"), ("add", "bf16x2"), ("min", "f16"), ("add", "f16x2")):
        assert scan_of(op, TYPES[name]) is None
