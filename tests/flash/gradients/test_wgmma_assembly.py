"""The order of instructions that the assembler gives the main loops of gradients for Hopper."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_runs import main_loop_of, nightly

from flash.contract.gradients import gradient_build
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, QUERIES
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = [pytest.mark.ptxas, pytest.mark.slow]

_ON = "sm_90a"
_LONGEST = {(KEYS, 64): 370, (KEYS, 128): 300, (QUERIES, 64): 385, (QUERIES, 128): 410}
_WORDS = {"HGMMA": "product", "MUFU": "exp2", "BAR": "barrier"}
_NAMED = {"WARPGROUP.DEPBAR": "wait"}


def course(owner: str, head_dim: int, assembler: Assembler, **how: Any) -> tuple[list[tuple[str, int]], int]:
    """The products, exponentials, waits and barriers of a main loop in their order, each with how many follow
    one another; and the instructions of an iteration.
    """
    config = AttentionConfig(head_dim, dtype="f16", target=_ON)
    built = gradient_build(gradient_config(config, owner, target(_ON), 16, **how))
    path = main_loop_of(built, assembler).path
    result: list[tuple[str, int]] = []
    for one in path:
        word = _WORDS.get(one.name) or next((w for of, w in _NAMED.items() if one.opcode.startswith(of)), "")
        if result and result[-1][0] == word:
            result[-1] = word, result[-1][1] + 1
        elif word:
            result.append((word, 1))
    return result, len(path)


@pytest.mark.parametrize("head_dim", [128, nightly(64)])
def test_dv_starts_before_gradients_of_scores_and_dk_after_them(head_dim: int, assembler: Assembler) -> None:
    words, instructions = course(KEYS, head_dim, assembler)
    tile = 64 if head_dim > 64 else 96
    scores, sums = 2 * head_dim // 16, tile // 16
    assert words == [
        ("product", scores),  # S and dP
        ("wait", 1),  # for S
        ("exp2", tile // 2),
        ("product", sums),  # dV
        ("wait", 1),  # for dP
        ("product", sums),  # dK
        ("wait", 1),
    ]
    assert instructions <= _LONGEST[KEYS, head_dim]


@pytest.mark.parametrize("head_dim", [128, nightly(64)])
def test_exponentials_of_queries_are_computed_while_dp_is_under_way(
    head_dim: int, assembler: Assembler
) -> None:
    words, instructions = course(QUERIES, head_dim, assembler)
    assert words[0] == ("product", 2 * head_dim // 16)
    assert words[1] == ("wait", 1)
    assert words[-2:] == [("product", 128 // 16), ("wait", 1)]  # dQ
    assert sum(count for word, count in words if word == "exp2") == 64
    assert sum(word == "wait" for word, _ in words) == 3
    assert instructions <= _LONGEST[QUERIES, head_dim]


@pytest.mark.parametrize("in_order", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_in_one_sweep_dk_runs_while_dq_leaves(in_order: bool, assembler: Assembler) -> None:
    words, _ = course(KEYS, 128, assembler, one_sweep=True, in_order=in_order)
    assert words == [
        ("product", 16),  # S and dP
        ("wait", 1),
        ("exp2", 32),
        ("product", 4),  # dV
        ("wait", 1),
        ("product", 12),  # dQ, and dK
        ("wait", 1),  # for dQ, which is written to shared memory then
        ("barrier", 1),
        ("wait", 1),
    ]
