"""The kernels for Hopper in the mutation campaign: the problems that only they have."""

from __future__ import annotations

import numpy as np
import pytest

from flash.problem.config import AttentionConfig
from ptxgen.errors import TrapError
from tools.campaign.arrays import Arrays, arrays_of
from tools.campaign.judging import mutants_of
from tools.campaign.kernels import subjects
from tools.campaign.problems import LARGEST

FP8 = "e4m3-sm_90a-causal"
PAIRS = "f32_grade-sm_90a"
STATIC = "bf16-sm_90a-static"
TURNS = "f16-sm_90a-turns-causal"


def test_problems_of_fp8_have_numbers_alone_in_queries_and_keys() -> None:
    problems = subjects()[FP8].problems
    by_scores = {p.scores: p for p in problems}
    assert set(by_scores) == {"random", "growing", "falling", "parting in fp8", "peaks in fp8"}
    config = AttentionConfig(64, dtype="e4m3", causal=True)
    for scores, longest in ((s, max(p.seq_k for p in problems if p.scores == s)) for s in by_scores):
        (problem, *_) = (p for p in problems if (p.scores, p.seq_k) == (scores, longest))
        arguments = arrays_of(config, problem)
        assert np.isfinite(arguments.q.astype(np.float32)).all()
        assert np.isfinite(arguments.k.astype(np.float32)).all()


def test_scores_that_part_in_fp8_differ_alike_from_key_to_key() -> None:
    (problem,) = (p for p in subjects()[FP8].problems if p.scores == "parting in fp8" and p.times == 1)
    arguments = arrays_of(AttentionConfig(64, dtype="e4m3"), problem)
    scores = arguments.q[0, 0].astype(np.float64)[:, :3] @ arguments.k[0, 0].astype(np.float64)[:, :3].T
    steps = np.diff(scores, axis=1)
    assert (steps == steps[:, :1]).all()
    assert set(steps[:, 0]) == {-48.0, 0.0, 48.0}


def test_peaks_in_fp8_are_of_the_first_keys_of_tiles_and_rise_from_tile_to_tile() -> None:
    (problem,) = (p for p in subjects()[FP8].problems if p.scores == "peaks in fp8")
    arguments = arrays_of(AttentionConfig(64, dtype="e4m3"), problem)
    peaks = arguments.k[0, 0, :, 0].astype(np.float64)
    assert np.flatnonzero(peaks).tolist() == list(range(0, len(peaks), 64))
    assert len(peaks) > 64
    assert (np.diff(peaks[::64]) < 0).all()  # tiles are taken from the last to the first


def test_every_other_scale_is_negative() -> None:
    (problem, *_) = (p for p in subjects()[FP8].problems if p.batch == 2)
    arguments = arrays_of(AttentionConfig(64, dtype="e4m3"), problem)
    for name in ("q_scale", "k_scale", "v_scale"):
        assert np.sign(arguments.operands[name]).tolist() == [[1], [-1]]


def given_pairs(scores: str) -> Arrays:
    """The arrays of the problem with these scores for the kernel that splits elements into pairs."""
    (problem, *_) = (p for p in subjects()[PAIRS].problems if p.scores == scores)
    return arrays_of(AttentionConfig(64, precision="f32_grade"), problem)


def test_infinity_is_in_every_element_of_a_thread_with_and_without_a_weight() -> None:
    arguments = given_pairs("infinite panels")
    key, column = np.nonzero(np.isinf(arguments.v[0, 0]))
    assert np.argwhere(np.isinf(arguments.v[0, 1:])).tolist() == [[0, 0, 0], [1, 16, 0], [1, 70, 1]]
    for weighs in (False, True):
        of_tile = (key < 16) & ((arguments.k[0, 0, key, 0] > -16) == weighs)
        assert column[of_tile].tolist() == [0, 1, 2, 3, 32, 33, 34, 35]


def test_infinity_is_in_both_panels_of_queries_and_keys() -> None:
    arguments = given_pairs("infinite")
    for x, first in ((arguments.q, 0), (arguments.k, 4)):
        row, column = np.nonzero(np.isinf(x[0, 0]))
        for panel in range(2):
            assert set(column[row % 3 == panel]) == {32 * panel + first + n for n in range(4)}
        assert not (row % 3 == 2).any()


def test_each_turn_of_queries_needs_factors_in_a_head_of_its_own() -> None:
    q = given_pairs("turns uneven").q[0]
    largest = np.abs(q).max(axis=-1)
    needs = (largest < 2.0**-7) | (largest >= 2.0**7)
    assert needs.reshape(5, 4, 32).any(axis=-1).tolist() == np.eye(5, 4, dtype=bool).tolist()


def test_ctas_of_a_persistent_kernel_take_three_blocks_each() -> None:
    subject = subjects()[STATIC]
    (first, *_) = subject.problems
    blocks = first.batch * first.heads * -(-first.seq_q // 64)
    assert (subject.prepare(first).how["grid"], blocks) == (2, 6)


@pytest.mark.slow
def test_a_barrier_that_waits_for_one_arrival_less_is_noticed_with_many_tiles() -> None:
    subject = subjects()[FP8]
    (mutant, *_) = (
        m
        for m in mutants_of(FP8)
        if m.name.startswith("mbarrier: -1 ") and m.before.endswith("[%r5+16912], 8;")
    )
    assert subject.run(mutant.module, subject.problems[0]).wrong == ""
    with pytest.raises(TrapError, match="deadlock in CTA"):
        subject.run(mutant.module, max(subject.problems, key=lambda p: p.seq_k))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scores", "change", "function"),
    [("falling", "dropped", "rescale"), ("parting", "and for or", "_note_rests")],
)
def test_what_is_wrong_behind_the_first_tile_shows_whether_the_mask_cuts_a_tile_or_not(
    scores: str, change: str, function: str
) -> None:
    subject = subjects()[TURNS]
    (problem,) = (p for p in subject.problems if (p.scores, p.times) == (scores, LARGEST))
    *_, cut, whole = (
        m
        for m in mutants_of(TURNS)
        if m.name.startswith(f"mask: {change} ") and m.where.endswith(f"in OverlappedSoftmax.{function}")
    )
    for mutant in (cut, whole):
        assert subject.run(mutant.module, problem).wrong != ""
