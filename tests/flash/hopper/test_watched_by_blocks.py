"""The sanitizers judge tiles by blocks of shared memory; they report the same as by units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_runs import run_forward, without

from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen import ir
from ptxgen.errors import TrapError
from ptxgen.interpreter.sanitizers.shared_blocks import Blocks
from ptxgen.interpreter.sanitizers.shared_race import RaceDetector

CONFIG = AttentionConfig(64, dtype="f16", target="sm_90a")
ORDERING = (
    "mbarrier.try_wait",
    "fence.proxy.async",
    "wgmma.wait_group",
    "cp.async.bulk.wait_group",
    "bar.sync",
)
SHORT_CUTS = ("copy_is_after_writes", "product_is_after_writes", "is_after_reads", "land")


def arrays() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = (1, 1, 64, 64), (1, 1, 320, 64), (1, 1, 320, 64)
    return tuple(rng.standard_normal(shape).astype(np.float16) for shape in shapes)


def outcome(module: ir.Module) -> list[Any]:
    """The reports of a launch, without addresses in global memory; or its error."""
    try:
        result = run_forward(CONFIG, arrays(), module, sanitize="all", raise_on_report=False)[2]
    except TrapError as error:
        return [str(error).partition("\n")[0]]
    shared = [r.message for r in result.reports if r.space == "shared"]
    return [*shared, *((r.kind, r.instr, r.other, r.threads) for r in result.reports)]


@pytest.mark.interpreter
def test_kernels_that_lack_an_order_have_the_same_reports_by_units(monkeypatch: pytest.MonkeyPatch) -> None:
    module = build(CONFIG.kernel()).module
    body = module.kernels[0].body or ()
    lacking = [
        # A wait is a loop: without its branch, nothing may stay of it.
        without(without(module, n + 1), n) if "try_wait" in s.opcode else without(module, n)
        for n, s in enumerate(body)
        if isinstance(s, ir.Instr) and s.opcode.startswith(ORDERING)
    ]
    by_blocks = [outcome(one) for one in lacking]
    for name in SHORT_CUTS:
        monkeypatch.setattr(Blocks, name, lambda *_: False)
    assert [outcome(one) for one in lacking] == by_blocks
    kinds = {r[0] for reports in by_blocks for r in reports if isinstance(r, tuple)}
    assert {"race", "proxy", "sync"} <= kinds


@pytest.mark.interpreter
def test_products_of_whole_tiles_need_no_look_at_units(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(RaceDetector, "_settled", refused)
    run_forward(CONFIG, arrays(), sanitize="all")
