"""Splits of the keys of forward launches: the rule, and what the launches compute."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, interpreting, kernel_on, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import assert_attention_is_accurate, rounded_normal

import flash
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.kernel import AttentionKernel
from flash.launch import forward
from flash.launch import key_splits as rule
from flash.launch.checks import check
from flash.launch.key_splits import (
    Cost,
    Division,
    Grid,
    Merging,
    Slots,
    choose_division,
    time_at_least,
    time_at_most,
    time_divided,
)
from flash.operands.dtypes import DTYPES
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import view
from ptxgen.errors import ConfigError, LaunchError
from tools.cta_order import ORDERS, Launch, by_head_from_first, sections, simulated_division, time_of

Arrays = tuple[np.ndarray[Any, Any], ...]
H100 = Slots(132, 2)
CHEAP = Merging(1.0, 0.01, 0.05)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)


@pytest.fixture
def driver() -> FakeDriver:
    return interpreting(FakeDriver(FakeDevice()))


def problem(dtype: str = "f32", *, batch: int = 2, heads: int = 4, kv_heads: int = 2, d: int = 16) -> Arrays:
    rng, numpy = np.random.default_rng(0), DTYPES[dtype].numpy
    shapes = (batch, heads, 21, d), (batch, kv_heads, 75, d), (batch, kv_heads, 75, d)
    return tuple(rounded_normal(rng, shape, numpy) for shape in shapes)


def _by_key(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + key * 0.01


def _even(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return (query + key) % 2 == 0


# ------------------------------------------------------------------------------------------ the rule


def random_launches(count: int) -> list[tuple[Launch, Slots, Merging]]:
    """Grids of CTAs that cost the same, and of others, with any number of slots."""
    drawn, result = random.Random(5), []
    for _ in range(count):
        blocks, most = drawn.randint(1, 12), drawn.randint(1, 80)
        same = drawn.random() < 0.6
        tiles = (most,) * blocks if same else tuple(drawn.randint(1, most) for _ in range(blocks))
        slots = Slots(drawn.randint(1, 40), drawn.randint(1, 3))
        merging = Merging(drawn.uniform(0, 4), drawn.uniform(0, 1), drawn.uniform(0, 1))
        result.append((Launch(drawn.randint(1, 24), 1, tiles, drawn.randint(1, 8)), slots, merging))
    return result


def grid_of(launch: Launch) -> tuple[Grid, Cost]:
    tiles = launch.tiles
    return Grid(launch.heads, len(tiles)), Cost(max(tiles), float(np.mean(tiles)))


def test_no_grid_gets_slower_and_tails_get_faster() -> None:
    gains = []
    for launch, slots, merging in random_launches(300):
        grid, cost = grid_of(launch)
        division = choose_division(grid, slots, cost, merging)
        if division.splits > 1:
            plain = min(time_of(launch, order, slots.total) for order in (sections, by_head_from_first))
            time, _ = simulated_division(launch, division, slots.total, merging)
            assert time <= 0.9 * plain
            gains.append(plain / time)
    assert 30 < len(gains) < 240
    assert np.median(gains) > 1.3


def test_times_are_bounded_as_the_rule_says() -> None:
    for launch, slots, merging in random_launches(200):
        grid, cost = grid_of(launch)
        ctas = grid.units * grid.ctas
        least = time_at_least(ctas, slots, cost)
        assert all(least <= time_of(launch, order, slots.total) + 1e-9 for order in ORDERS.values())
        for splits in (1, 2, 5):
            taken = time_of(launch, by_head_from_first, slots.total, splits)
            assert taken <= time_at_most(ctas, slots, cost, splits) + 1e-9
            whole = launch.heads // 2 if cost.is_even else 0
            division = Division(whole, splits)
            time, _ = simulated_division(launch, division, slots.total, merging)
            assert time <= time_divided(grid, slots, cost, merging, division) + 1e-9


@pytest.mark.parametrize(
    ("grid", "tiles", "division"),
    [
        (Grid(8, 33), 64, Division(0, 1)),  # as many as there are slots
        (Grid(16, 33), 64, Division(0, 1)),
        (Grid(9, 32), 64, Division(8, 7)),  # a few more: the last head has 224 of 264 slots
        (Grid(17, 32), 64, Division(16, 6)),  # a few more than two waves
        (Grid(1, 32), 64, Division(0, 8)),  # far fewer
        (Grid(1, 32), 1, Division(0, 1)),  # one tile of keys
        (Grid(1, 132), 64, Division(0, 2)),  # one on each multiprocessor
    ],
)
def test_what_is_divided(grid: Grid, tiles: int, division: Division) -> None:
    assert choose_division(grid, H100, Cost(tiles, tiles), CHEAP) == division


def test_a_grid_of_many_waves_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "time_divided", None)
    for units in (330, 3001):
        assert choose_division(Grid(units, 32), H100, Cost(64, 64), CHEAP) == Division(0, 1)


def test_a_merge_that_costs_more_than_it_saves_is_not_done() -> None:
    grid, cost = Grid(9, 32), Cost(64, 64)
    assert choose_division(grid, H100, cost, Merging(40.0, 0.01, 0.05)) == Division(0, 1)
    assert choose_division(grid, H100, cost, Merging(1.0, 0.01, 30.0)) == Division(0, 1)


def test_partial_results_have_a_limit() -> None:
    grid, cost = Grid(1, 8), Cost(512, 512)
    assert choose_division(grid, H100, cost, CHEAP).splits > 20
    assert choose_division(grid, H100, cost, CHEAP, most=5).splits == 5
    assert choose_division(grid, H100, cost, CHEAP, most=0) == Division(0, 1)


NINE = (1, 9, 4096, 128)


def said_of(driver: FakeDriver, shape: tuple[int, ...], **how: Any) -> str:
    arrays = [np.zeros(shape, np.float16)] * 3
    config = AttentionConfig(shape[-1], dtype="f16", **{"target": "sm_90", **how})
    return kernel_on(driver, config).explain(*arrays, backend="cuda")


@pytest.mark.slow
def test_explain_says_what_is_divided(driver: FakeDriver) -> None:
    said = said_of(driver, NINE)
    assert "grid:     256 CTAs, then 192\n" in said
    assert "splits:   6 of the keys for the last 1 of 9 heads of K and V, merged; else 288 CTAs\n" in said
    assert "_splits_lse for sm_90, verified" in said
    said = said_of(driver, NINE, target="sm_90a")  # one CTA on each of 132 multiprocessors, 32 for a head
    assert "grid:     132 CTAs, to which 256 blocks of queries are dealt (static), then 96\n" in said
    assert "; else 132 CTAs, to which 288 blocks of queries are dealt (static)\n" in said
    assert "products: wgmma, with tiles copied by TMA\n" in said
    said = said_of(driver, (1, 1, 2048, 128), causal=True)
    assert re.search(r"grid: +\d+ CTAs\nsplits: +\d+ of the keys, merged; else 16 CTAs\n", said)


@pytest.mark.parametrize(
    "how",
    [
        {"splits": 1},
        {"tile": 64},
        {"block_q": 128},
        pytest.param({"mask_mod": _even}, marks=pytest.mark.slow),
    ],
)
def test_what_is_chosen_otherwise_is_not_divided(driver: FakeDriver, how: dict[str, Any]) -> None:
    assert "splits" not in said_of(driver, NINE, **how)


def test_heads_with_arrays_of_scores_are_divided_together_or_not() -> None:
    config = AttentionConfig(64, alibi=True)
    q, k, v = (view(array, "array") for array in problem(d=64))
    slopes = {"alibi_slopes": view(np.ones((2, 4), np.float32), "alibi_slopes")}
    g = check(config, q, k, v, None, layout="bhsd", operands=slopes)
    assert rule.units_of(config, g) == rule.units_of(AttentionConfig(64, dropout=0.1), g) == 1
    assert rule.units_of(AttentionConfig(64), g) == 2  # items
    assert rule.units_of(AttentionConfig(64), dataclasses.replace(g, batch=1)) == 2  # heads of K and V


# ------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize("splits", [0, -1, 32769, 2.0, True, "two", None])
def test_splits_that_no_launch_has_are_refused(splits: Any) -> None:
    message = f"AttentionConfig: splits must be 'auto' or an integer from 1 to 32768, got {splits!r}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AttentionConfig(64, splits=splits)


def test_sequences_of_their_own_lengths_are_not_divided() -> None:
    assert AttentionConfig(64, varlen=True, splits=1).splits == 1
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(64, varlen=True, splits=2)
    assert str(caught.value) == (
        "AttentionConfig: splits=2 is for batches of sequences of one length; of packed sequences keys are "
        "not divided: use splits=1 or 'auto'"
    )


def test_emitted_text_does_not_depend_on_splits() -> None:
    assert AttentionKernel(AttentionConfig(64, splits=7)).ptx == AttentionKernel(AttentionConfig(64)).ptx


# ------------------------------------------------------------------------------------------ results


def _named(how: dict[str, Any]) -> dict[str, Any]:
    """Settings for a name of a test, which must not have the address of a function."""
    return {name: getattr(value, "__name__", value) for name, value in how.items()}


@pytest.mark.judged
@pytest.mark.parametrize(
    ("dtype", "how", "splits"),
    [
        ("f16", {}, 7),
        pytest.param("f32", {"causal": True}, 2, marks=pytest.mark.slow),
        pytest.param("bf16", {"causal": True, "pack_gqa": True}, 2, marks=pytest.mark.slow),
        pytest.param("f32", {"precision": "f32_grade", "window": (9, 4)}, 2, marks=pytest.mark.slow),
        pytest.param("f32", {"precision": "tf32"}, 7, marks=pytest.mark.slow),
        pytest.param("f16", {"target": "sm_90a", "block_q": 64}, 3, marks=pytest.mark.slow),
        pytest.param("f32", {"causal": "top_left", "softcap": 2.0}, 7, marks=pytest.mark.nightly),
        pytest.param("bf16", {"score_mod": _by_key, "mask_mod": _even}, 7, marks=pytest.mark.nightly),
    ],
    ids=lambda given: str(_named(given) if isinstance(given, dict) else given),
)
def test_splits_are_as_accurate_as_one(dtype: str, how: dict[str, Any], splits: int) -> None:
    q, k, v = problem(dtype)
    how = {"tile": 16, "block_q": 32, **how}
    config = AttentionConfig(16, dtype=dtype, return_lse=True, splits=splits, **how)
    out, lse = AttentionKernel(config).launch(q, k, v, backend="interpreter")
    arithmetic = arithmetic_of_config(config, PARTS_OF_F32)
    scores = {
        name: getattr(config, name) for name in ("causal", "window", "softcap", "score_mod", "mask_mod")
    }
    scores = {name: value for name, value in scores.items() if value is not None}
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic, **scores)


@pytest.mark.judged
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_arrays_of_scores_go_with_splits(layout: str) -> None:
    q, k, v = problem()
    rng = np.random.default_rng(1)
    arrays: dict[str, Any] = {
        "sink": rng.standard_normal(4, np.float32),
        "bias": rng.standard_normal((2, 4, 21, 75), np.float32),
        "mask": rng.random((2, 4, 21, 75)) < 0.4,
    }
    config = AttentionConfig(
        16, tile=16, block_q=32, splits=3, return_lse=True, sink=True, bias="f32", mask=True
    )
    arguments = [x.swapaxes(1, 2) if layout == "bshd" else x for x in (q, k, v)]
    out, lse = AttentionKernel(config).launch(*arguments, **arrays, layout=layout, backend="interpreter")
    out = out.swapaxes(1, 2) if layout == "bshd" else out
    arithmetic = arithmetic_of_config(config, PARTS_OF_F32)
    assert_attention_is_accurate(out, lse, q, k, v, arithmetic=arithmetic, **arrays)


@pytest.mark.slow
def test_rows_without_a_key_and_calls_without_keys_give_zero() -> None:
    q, k, v = problem()
    config = AttentionConfig(16, causal=True, splits=3, return_lse=True)
    for keys in (4, 0):
        out, lse = AttentionKernel(config).launch(q, k[:, :, :keys], v[:, :, :keys], backend="interpreter")
        assert not out[:, :, : 21 - keys].any()
        assert np.isneginf(lse[:, :, : 21 - keys]).all()
        assert np.isfinite(lse[:, :, 21 - keys :]).all()


Divide = Callable[[Division], None]


@pytest.fixture
def divide(monkeypatch: pytest.MonkeyPatch) -> Divide:
    """Sets what a launch divides, so that a small problem has a tail."""
    return lambda division: monkeypatch.setattr(forward, "division_of", lambda *_: division)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("batch", "whole", "layout", "with_lse"),
    [
        (1, 2, "bshd", True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (3, 2, "bhsd", True),
                (2, 0, "bhsd", True),
                (1, 1, "bhsd", True),
                (3, 1, "bshd", True),
            )
        ),
        pytest.param(1, 1, "bhsd", False, marks=pytest.mark.nightly),
        pytest.param(2, 0, "bshd", False, marks=pytest.mark.nightly),
    ],
)
def test_a_gpu_divides_the_last_units_and_gives_the_bits_of_each_kernel(
    driver: FakeDriver, divide: Divide, batch: int, whole: int, layout: str, with_lse: bool
) -> None:
    divide(Division(whole, 3))
    arrays = problem("f16", batch=batch, heads=6, kv_heads=3)
    arguments = [x.swapaxes(1, 2).copy() if layout == "bshd" else x for x in arrays]
    how: dict[str, Any] = {"dtype": "f16", "causal": True, "target": "sm_90", "return_lse": with_lse}
    built = kernel_on(driver, AttentionConfig(16, **how))
    places = [on_device(driver, x) for x in arguments]
    for _ in range(2):  # the second launch is one that is prepared
        driver.launches.clear()
        result = built.launch(*places, layout=layout)
        assert len(driver.launches) == 2 + (whole > 0)
        got = result if with_lse else (result,)
        one, three = (
            AttentionKernel(AttentionConfig(16, **{**how, "return_lse": True}, splits=n)).launch(
                *arrays, backend="interpreter"
            )
            for n in (1, 3)
        )
        for device, plain, divided in zip(got, one, three, strict=False):
            want = divided.copy()
            if batch > 1:
                want[:whole] = plain[:whole]
            else:
                want[:, : 2 * whole] = plain[:, : 2 * whole]
            want = want.swapaxes(1, 2) if layout == "bshd" and want.ndim == 4 else want
            assert driver.fetch(device.pointer, np.empty(want.shape, want.dtype)).tobytes() == want.tobytes()


def test_explain_counts_the_ctas_of_each_launch(divide: Divide) -> None:
    divide(Division(2, 3))
    driver = FakeDriver(FakeDevice(multiprocessors=2))
    built = kernel_on(driver, AttentionConfig(16, dtype="f16", target="sm_90a", tile=16, block_q=128))
    arrays = [np.zeros((1, 3, 640, 16), np.float16)] * 3
    said = built.explain(*arrays, backend="cuda")
    built.launch(*arrays, backend="cuda")
    first, rest, _ = (launch.grid[0] for launch in driver.launches)
    assert (first, rest) == (2, 15)
    assert "grid:     2 CTAs, to which 10 blocks of queries are dealt (static), then 15\n" in said
    assert "; else 2 CTAs, to which 15 blocks of queries are dealt (static)\n" in said


@pytest.mark.slow
def test_operands_follow_the_results(driver: FakeDriver, divide: Divide) -> None:
    divide(Division(0, 2))
    q, k, v = problem()
    slopes = np.array([0.5, 0.25, 0.1, 0.7], np.float32)
    config = AttentionConfig(16, alibi=True, target="sm_90", return_lse=True)
    wanted = AttentionKernel(dataclasses.replace(config, splits=2)).launch(
        q, k, v, alibi_slopes=slopes, backend="interpreter"
    )
    places = [on_device(driver, x) for x in (q, k, v, slopes)]
    result = kernel_on(driver, config).launch(*places[:3], alibi_slopes=places[3])
    for got, want in zip(result, wanted, strict=True):
        assert driver.fetch(got.pointer, want).tobytes() == want.tobytes()


@pytest.mark.slow
def test_the_kernel_that_merges_suits_every_out_of_the_same_alignment(
    driver: FakeDriver, divide: Divide
) -> None:
    divide(Division(0, 2))
    q, k, v = problem()
    built = kernel_on(driver, AttentionConfig(16, target="sm_90"))
    room = on_device(driver, np.concatenate([np.zeros(2, np.float32), q.ravel()]))
    places = CudaArray(room.pointer + 8, q), on_device(driver, k), on_device(driver, v)
    aligned = built.launch(*places)
    want = driver.fetch(aligned.pointer, np.empty_like(q))
    assert driver.launches[-1].entry == "merge_partials_f32_d16_w2"
    room = on_device(driver, np.zeros(q.size + 2, np.float32))
    built.launch(*places, out=CudaArray(room.pointer + 8, q))
    assert driver.fetch(room.pointer + 8, want).tobytes() == want.tobytes()


@pytest.mark.slow
def test_host_arrays_and_functions_are_divided_too(driver: FakeDriver, divide: Divide) -> None:
    divide(Division(1, 2))
    arrays = problem("f16")
    out = kernel_on(driver, AttentionConfig(16, dtype="f16", target="sm_90")).launch(*arrays, backend="cuda")
    assert len(driver.launches) == 3
    assert_attention_is_accurate(
        out, None, *arrays, arithmetic=arithmetic_of_config(AttentionConfig(16, dtype="f16"), PARTS_OF_F32)
    )


@pytest.mark.slow
def test_the_workspace_is_kept_for_a_stream(driver: FakeDriver, divide: Divide) -> None:
    divide(Division(0, 3))
    built = kernel_on(driver, AttentionConfig(16, target="sm_90"))
    places = [on_device(driver, x) for x in problem()]
    counts = []
    for stream in (None, None, 1, 1):
        driver.calls.clear()
        built.launch(*places, stream=stream)
        counts.append(driver.names().count("cuMemAlloc"))
    assert counts == [2, 1, 2, 1]  # O, and once for each stream the parts


def test_a_grid_of_too_many_splits_is_refused(driver: FakeDriver) -> None:
    arrays = [on_device(driver, np.empty((1, 70000, 1, 1), np.float32))] * 3
    with pytest.raises(LaunchError, match="a grid has at most 2147483647 CTAs, this call needs 2293760000"):
        kernel_on(driver, AttentionConfig(1, splits=32768)).launch(*arrays)


def test_a_function_takes_splits_by_its_config() -> None:
    q, k, v = problem()
    assert flash.AttentionConfig(16, splits=2).splits == 2
    got = AttentionKernel(AttentionConfig(16, splits=2)).launch(q, k, v, backend="cpu")
    assert_attention_is_accurate(got, None, q, k, v)
