from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import Problem, run_forward, with_place

from flash.contract.catalogue import build
from flash.launch.key_splits import Division, Merging
from flash.operands.dtypes import INPUT_DTYPES
from flash.problem.config import AttentionConfig
from tools import cta_order as tool
from tools.cta_order import ORDERS, Launch, simulated

BLOCK_Q = 32


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize(
    ("causal", "packed", "order"),
    [(True, False, tool.sections), (True, True, tool.sections), (False, False, tool.by_head_from_first)],
)
def test_the_order_of_the_kernels_is_that_of_the_model(causal: bool, packed: bool, order: tool.Order) -> None:
    config = AttentionConfig(16, dtype="f16", causal=causal, tile=16, block_q=BLOCK_Q, pack_gqa=packed)
    arrays = Problem(2 * BLOCK_Q + 3, 20, 16, 16, 2, 3, 3).arrays(dtype=np.float16)
    module = build(config.kernel()).module
    written: list[tool.Cta] = []
    for number in range(3 * 6):
        out, _, _ = run_forward(config, arrays, with_place(module, number, 3 * 6), section=4, ctas=1)
        rows = ~np.isnan(out.astype(np.float32)).all(axis=3).reshape(6, -1)
        written += [(head, block) for head in range(6) for block in range(3) if rows[head, 32 * block]]
    assert written == order(Launch(6, 1, (1, 1, 1), 4))


@pytest.mark.parametrize("section", [1, 2, 5, 6, 7, 2**31 - 1])
def test_results_do_not_depend_on_the_section(section: int) -> None:
    config = AttentionConfig(16, dtype="f16", causal=True, tile=16, block_q=BLOCK_Q)
    arrays = Problem(2 * BLOCK_Q + 3, 20, 16, 16, 2, 3, 1).arrays(dtype=np.float16)
    wanted, arguments = (run_forward(config, arrays, section=n)[0] for n in (3, section))
    np.testing.assert_array_equal(arguments, wanted)


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize(("heads", "section"), [(1, 1), (6, 4), (6, 6), (7, 2)])
def test_every_order_has_every_cta_once(order: tool.Order, heads: int, section: int) -> None:
    result = order(Launch(heads, 1, (1, 2, 3), section))
    assert sorted(result) == [(head, block) for head in range(heads) for block in range(3)]


def test_a_section_begins_with_the_last_blocks_of_all_its_heads() -> None:
    assert tool.sections(Launch(3, 1, (1, 2), 2)) == [(0, 1), (1, 1), (0, 0), (1, 0), (2, 1), (2, 0)]


@pytest.mark.parametrize(
    ("order", "heads", "tiles", "time", "live"),
    [
        # Blocks take 4, 3 and 2: two at a time are done after 5, and one head is live.
        (tool.by_head, 1, (1, 2, 3), 1.0, 1.0),
        # 2 and 3 begin, 4 begins after 2 and ends at 6.
        (tool.by_head_from_first, 1, (1, 2, 3), 6 / 5, 1.0),
        # 4 and 2 of the first head, 2 and 4 of the other: 4 ends at 4, 2 at 2, 4 at 6, 2 at 6.
        (tool.by_head, 2, (1, 3), 1.0, (2 * 1 + 2 * 2 + 2 * 1) / 6),
        (tool.all_heads, 2, (1, 3), 1.0, 2.0),
        # Four blocks of 3, two at a time.
        (tool.by_head, 4, (2,), 1.0, 2.0),
        # No fewer than the longest takes.
        (tool.by_head, 1, (9, 0), 1.0, 1.0),
    ],
)
def test_a_launch_takes_as_long_as_by_hand(
    order: tool.Order, heads: int, tiles: tuple[int, ...], time: float, live: float
) -> None:
    result = simulated(Launch(heads, 1, tiles, 1), order, 2)
    assert result == pytest.approx((time, live))


def test_heads_that_share_keys_count_once() -> None:
    assert simulated(Launch(4, 2, (2,), 1), tool.by_head, 2)[1] == 1.0
    assert simulated(Launch(4, 1, (2,), 1), tool.by_head, 2)[1] == 2.0


def test_with_causality_the_last_block_first_is_better_than_the_first() -> None:
    for heads, blocks in ((8, 64), (32, 64), (32, 33), (1, 300)):
        launch = Launch(heads, 1, tuple(range(1, blocks + 1)), 1)
        last, first = (simulated(launch, o, 132) for o in (tool.by_head, tool.by_head_from_first))
        assert last[0] <= first[0]
        assert last[1] <= first[1]


def test_heads_that_fit_the_cache_end_evenly_and_keep_little_live() -> None:
    launch = Launch(32, 1, tuple(range(1, 65)), 8)
    head_by_head, together, fitting = (
        simulated(launch, o, 132) for o in (tool.by_head, tool.all_heads, tool.sections)
    )
    assert fitting[0] < 1.02 < head_by_head[0]
    assert head_by_head[1] < fitting[1] < 16 < 2 * together[1]


def test_the_table_has_a_line_for_each_order(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--head-dim", "64", "--causal", "--seq", "512", "--heads", "4", "--kv-heads", "2"]
    assert tool.main([*argv, "--multiprocessors", "3"]) == tool.OK
    first, header, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("attention_forward_f16_d64_m128_n64_bottom_right, 16 CTAs, ")
    assert header.split() == ["order", "time", "/", "even", "live", "K,", "V"]
    assert [line[:32].strip() for line in lines] == list(ORDERS)
    # K and V of both heads are 2 * 2 * 512 * 64 * 2 bytes.
    assert all(float(line.split()[-2]) <= 0.3 for line in lines)


def test_each_number_of_heads_has_a_line_with_what_is_divided(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--target", "sm_80", "--multiprocessors", "108", "--seq", "4096", "--heads", "7", "--splits"]
    assert tool.main(argv) == tool.OK
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "attention_forward_f16_d128_m128_n64, 216 CTAs at a time; times in tiles of keys"
    assert [line.split()[:4] for line in lines[:3]] == [
        ["1", "32", "1", "6"], ["2", "64", "2", "3"], ["3", "96", "0", "1"]
    ]  # fmt: skip
    heads, ctas, divided, splits, without, taken, merging, gain = map(float, lines[-1].split())
    assert (heads, ctas, divided, splits, without) == (7, 224, 1, 5, 130)
    # 192 CTAs of 65; then 160 of 13 and 1; 4 us are a few tiles, and so is what is written and read.
    assert taken == pytest.approx(65 + 14 + merging, abs=0.11)
    assert gain == pytest.approx(130 / taken, abs=0.01)


def test_schedulers_take_as_long_as_by_hand() -> None:
    launch, order = Launch(1, 1, (5, 3, 2, 1), 1), tool.by_head_from_first

    def times(slots: int, hidden: float) -> list[float]:
        return list(tool.times_of_schedulers(launch, order, slots, hidden).values())

    # Blocks cost 6, 4, 3, 2. A grid of two: 6 + 2, 4 + 3. In turn 6 + 3, 4 + 2, mirrored 6 + 2, 4 + 3.
    assert times(2, 0.0) == [8, 9, 8]
    assert times(2, 0.5) == [8, 8.5, 7.5]
    assert times(1, 0.5) == [15, 13.5, 13.5]
    assert times(9, 0.5) == [6, 6, 6]


def test_schedulers_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--target", "sm_90a", "--seq", "1024", "--batch", "16", "--schedulers"]
    assert tool.main(argv) == tool.OK
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.endswith("4096 blocks, 132 at a time; times in tiles")
    assert [line.split() for line in lines] == [
        ["grid", "288.0", "1.000", "288.0", "1.000"],
        ["static", "288.0", "1.000", "272.5", "1.057"],
        ["mirrored", "288.0", "1.000", "272.5", "1.057"],
    ]


def test_splits_take_as_long_as_by_hand() -> None:
    launch = Launch(3, 1, (5, 2), 1)
    # 3, 2 and 1, 1 of each head, and 1 more of each: 4, 3, 2, 2, two at a time.
    assert tool.time_of(launch, tool.by_head_from_first, 2, 2) == 17
    assert tool.time_of(launch, tool.by_head_from_first, 100, 2) == 4
    merging = Merging(10.0, 1.0, 0.5)
    # One head alone takes 6; then 10 of a launch, and 10 of another, 2 * (1 + 2 * 0.5), and 4.
    assert tool.simulated_division(launch, Division(1, 2), 100, merging) == (6 + 4 + 24, 24)
    assert tool.simulated_division(launch, Division(0, 2), 100, merging) == (4 + 16, 16)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dtype", "f8"], f"dtype must be one of {', '.join(map(repr, INPUT_DTYPES))}, got 'f8'"),
        (["--head-dim", "0"], "head_dim must be an integer from 1 to 576, got 0"),
    ],
)
def test_what_no_kernel_can_do_is_refused(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert tool.main(argv) == tool.UNSUPPORTED
    said = capsys.readouterr().err
    assert said.startswith(f"cta_order.py: error: AttentionConfig: {message}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--heads", "6", "--kv-heads", "4"], "--heads must be a multiple of --kv-heads, got 6"),
        (["--seq", "0"], "argument --seq: must be a whole number of at least 1, got '0'"),
    ],
)
def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"cta_order.py: error: {message}\n")
