"""Where mutants of the campaign are told from their kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen import interpreter
from ptxgen.ir import Module
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Ran
from ptxgen.mutation.operators import KINDS, mutants
from ptxgen.mutation.reachability import probed, reach
from ptxgen.parse import parse
from tools.campaign.judging import judge, mutants_of
from tools.campaign.kernels import subjects

SMALL = "f32-sm_75-causal-split"
GRADIENT = "f16-sm_80-dbias"

# Of 40 threads, the 32 before thread 32 store to shared memory; threads 0 to 7 load what they stored.
TEXT = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p, %q, %all;
.reg .b32 %r<6>;
.reg .b64 %rd<3>;
.shared .align 16 .b8 tile[1024];
mov.u32 %r0, %tid.x;
setp.lt.u32 %p, %r0, 32;
setp.lt.u32 %all, %r0, 64;
shl.b32 %r1, %r0, 2;
mov.u32 %r2, tile;
add.u32 %r2, %r2, %r1;
@%p st.shared.u32 [%r2], %r0;
bar.sync 0;
setp.lt.u32 %q, %r0, 8;
selp.u32 %r3, 1, 1, %q;
selp.u32 %r4, 1, 2, %q;
@!%q bra done;
@%all ld.shared.u32 %r5, [%r2];
ld.param.u64 %rd0, [out];
mad.wide.u32 %rd1, %r0, 4, %rd0;
st.global.u32 [%rd1], %r5;
done:
ret;
}
"""
BEHIND = TEXT.replace("32;", "41;").replace("lt.u32 %q, %r0, 8", "lt.u32 %q, %r0, 48")


def told(text: str) -> dict[tuple[str, str], bool]:
    """By instruction and change, whether 40 threads tell the mutant."""
    module = parse(text)
    every = mutants(module, "k")
    notes = np.zeros(2 * len(every), np.uint8)
    out = np.zeros(64, np.uint32)
    watched = probed(module, "k", every)
    interpreter.run(watched, "k", grid=1, block=40, args=[out, notes])
    assert out[:8].tolist() == list(range(8))  # the probes change nothing
    changes = [(m.before, m.name.partition(" @")[0]) for m in every]
    return dict(zip(changes, (notes[: len(every)] != 0).tolist(), strict=True))


def test_another_result_is_told_and_the_same_one_is_not() -> None:
    result = told(TEXT)
    of_32 = "setp.lt.u32 %p, %r0, 32;"
    assert result[of_32, "bound: +1"]  # thread 32
    assert result[of_32, "bound: -1"]  # thread 31
    of_64 = "setp.lt.u32 %all, %r0, 64;"
    assert not result[of_64, "bound: +1"]
    assert not result[of_64, "bound: -1"]
    assert not result["selp.u32 %r3, 1, 1, %q;", "mask: always the first"]
    assert result["selp.u32 %r4, 1, 2, %q;", "mask: always the first"]
    assert result["shl.b32 %r1, %r0, 2;", "shared-address: operand 2 +1"]


def test_a_condition_is_told_by_threads_that_it_keeps_out() -> None:
    result = told(TEXT)
    store, load = "@%p st.shared.u32 [%r2], %r0;", "@%all ld.shared.u32 %r5, [%r2];"
    assert result[store, "mask: dropped"]
    assert result[store, "mask: inverted"]
    assert not result[load, "mask: dropped"]
    assert result[load, "mask: inverted"]
    assert result["@!%q bra done;", "mask: dropped"]
    assert result["bar.sync 0;", "barrier: deleted"]
    every = told(BEHIND)
    assert not every[store, "mask: dropped"]
    assert every[store, "shared-offset: operand 0 +4"]
    assert not every["@!%q bra done;", "mask: dropped"]


def test_what_no_thread_executes_is_not_told() -> None:
    nobody = told(TEXT.replace("@%all ld", "@!%all ld").replace("%r5;\ndone", "%r0;\ndone"))
    load = "@!%all ld.shared.u32 %r5, [%r2];"
    assert not nobody[load, "shared-offset: operand 1 +4"]
    assert nobody[load, "mask: dropped"]


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", [pytest.param(SMALL, marks=pytest.mark.nightly), GRADIENT])
def test_the_run_of_a_mutant_that_is_not_told_is_that_of_the_kernel(kernel: str) -> None:
    subject, every = subjects()[kernel], mutants_of(kernel)
    watched = probed(subject.module, subject.entry, every)
    checked = set()
    for problem in subject.problems[2:5]:
        where = reach(subject, watched, every, problem).infected
        right = subject.run(subject.module, problem, sanitize=True)
        assert 0 < where.mean() < 1
        for kind in KINDS:
            of_kind = [m for m, is_told in zip(every, where, strict=True) if m.kind == kind and not is_told]
            for mutant in of_kind[:: max(len(of_kind) // 2, 1)]:
                ran = subject.run(mutant.module, problem, sanitize=True)
                assert (ran.reports, ran.wrong, ran.results) == ((), "", right.results), mutant.name
                checked.add(mutant.name)
    assert len(checked) > 10


@pytest.mark.slow
def test_a_mutant_is_run_only_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, every = subjects()[GRADIENT], mutants_of(GRADIENT)
    watched = probed(subject.module, subject.entry, every)
    where = np.array([reach(subject, watched, every, p).infected for p in subject.problems])
    late = next(n for n, m in enumerate(every) if m.where.endswith("is_nonfinite") and m.kind == "bound")
    never = next(n for n, m in enumerate(every) if m.kind == "bound" and not where[:, n].any())
    run, ran = KernelUnderTest.run, list[Any]()

    def noted(self: KernelUnderTest, module: Module, problem: Any, **how: Any) -> Ran:
        if module is not subject.module and "launch" not in how:
            ran.append(problem)
        return run(self, module, problem, **how)

    monkeypatch.setattr(KernelUnderTest, "run", noted)
    assert judge(GRADIENT, never).what.startswith("proved")
    assert ran == [subject.problems[0]]  # every mutant runs once: sanitizers also read the text
    ran.clear()
    result = judge(GRADIENT, late)
    assert result.caught_by == "value"
    told = [p for p, is_told in zip(subject.problems, where[:, late], strict=True) if is_told]
    assert ran == [subject.problems[0], told[0]]
    assert told[0] == subject.problems[result.problem] != subject.problems[0]
