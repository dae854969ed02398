"""What `ptxgen bench --only loops` reads in machine code."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measure import static_decode as loops
from flash import cache_kernels
from flash.commands.measure.record import Goal, Measurement, Rows
from flash.commands.measure.static_quality import Assembled, Subject
from flash.families.mma import MMA
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.runtime.sass import Loop, SassInstr
from ptxgen.target import Target

PATH = (
    *[SassInstr("HMMA.16816.F32")] * 64,
    *[SassInstr("IMAD.WIDE.U32")] * 90,
    *[SassInstr("LDGSTS.E.BYPASS.128")] * 16,
    *[SassInstr("FADD")] * 30,
)


def figures(found: Rows) -> dict[str, float]:
    return {m.name: m.median for m in found if isinstance(m, Measurement)}


def test_instructions_are_set_beside_the_bytes_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(subject: Subject, target: Target) -> Assembled:
        assert (subject.entry[:25], target.name) == ("attention_forward_f16_d64", "sm_90")
        assert "page16" in subject.entry
        return Assembled(147, 0, 20480, 6, 0.2, 128, Loop(PATH, len(PATH)))

    monkeypatch.setattr(loops, "assembled", of)
    result = loops.loop_quality(loops.Stored(64, "f16", None, 16), "sm_90")
    assert figures(result) == {
        "registers": 147,
        "spilled": 0,
        "CTAs": 6,
        "instructions of a turn": 200,
        "integers of a turn": 90,
        # Two warps; a tile of 64 rows of K and one of V, of 128 bytes each.
        "instructions for 16 bytes of K and V": 2 * 200 / (2 * 64 * 128 / 16),
        # An H200 brings 18.4 bytes in a clock, in which four schedulers issue.
        "issue slots at the memory's rate": pytest.approx(100 * (400 / 16384) * 4800e9 / 132 / 1980e6 / 4),
        # Six CTAs with two stages have three tiles of K or V each in flight.
        "in flight": 6 * 3 * 64 * 128 / 1024,
    }
    (goal,) = (m.goal for m in result if isinstance(m, Measurement) and m.name == "in flight")
    assert str(goal) == str(Goal(">=", 4800e9 / 132 * 1.35e-6 / 1024))
    (settings,) = {tuple(m.config.items()) for m in result if isinstance(m, Measurement)}
    assert dict(settings) | {"target": "sm_90", "kv": "f16", "page": 16, "threads": 64} == dict(settings)


def test_a_byte_is_half_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loops, "assembled", lambda *_: Assembled(147, 0, 20480, 6, 0.2, 128, Loop(PATH, len(PATH)))
    )
    wide, narrow = (
        figures(loops.loop_quality(loops.Stored(64, "bf16", kv, 0), "sm_90")) for kv in (None, "e4m3")
    )
    name = "instructions for 16 bytes of K and V"
    assert narrow[name] == 2 * wide[name]
    assert 2 * narrow["in flight"] == wide["in flight"]


@pytest.mark.parametrize(
    ("target", "head_dim", "kv_dtype", "how", "stages"),
    [
        ("sm_90", 64, None, {}, 2),
        ("sm_90", 64, None, {"stages": 1}, 1),
        ("sm_90", 64, None, {"tile": 64}, 1),
        ("sm_90", 128, None, {}, 1),
        ("sm_90", 128, "e4m3", {}, 2),
        ("sm_90", 256, None, {}, 1),  # with two there would be one CTA
        ("sm_100", 128, None, {}, 2),
        ("sm_89", 64, "e4m3", {}, 1),
        ("sm_80", 64, "e5m2", {}, 2),
    ],
)
def test_a_cache_kernel_has_the_stages_that_keep_memory_busy(
    target: str, head_dim: int, kv_dtype: Any, how: dict[str, Any], stages: int
) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", causal=True, target=target, **how)
    cache = cache_kernels.CacheConfig(kv_dtype=kv_dtype)
    built = cache_kernels.decode(config, cache, splits=True, group=loops.GROUP)
    assert MMA.require(built.config.tiling).stages == stages


def test_without_the_tools_a_kernel_has_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> Assembled:
        raise BackendError("there is no assembler; get one")

    monkeypatch.setattr(loops, "assembled", none)
    (said,) = loops.loop_quality(loops.Stored(64, "f16", None, 0), "sm_90")
    assert str(said).endswith(" was not assembled: there is no assembler; get one")


def test_there_is_a_job_for_each_kernel_and_target_that_has_it() -> None:
    labels = [job.label for job in loops.loop_jobs(quick=False)]
    assert len(labels) == len(set(labels)) == (2 + 2 + 3 + 3 + 3 + 3) * 2 * 3
    assert "loops d=64 e4m3 page 16 sm_80" not in labels
    assert len(loops.loop_jobs(quick=True)) == 18
