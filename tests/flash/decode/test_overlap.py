"""The merge of parts begins before the kernel that writes them has ended, from sm_90 on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import flash
from flash import cache_kernels
from flash.calls.memory import HostMemory
from flash.calls.step import Step
from flash.decode.plan import CacheCall, kernel_of, steps_of
from ptxgen import ir
from ptxgen.arrays.views import view
from ptxgen.contract.stub import LANGUAGES, stub
from ptxgen.target import target

WAIT, BEGIN = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
SPLITS = 3


def steps(name: str, dtype: str = "f16") -> list[Step]:
    """The launches of a call with several parts, and with arrays on the host."""
    config = flash.AttentionConfig(16, dtype=dtype, causal=True)
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(shape).astype(config.element.numpy)
        for shape in ((1, 2, 1, 16), (1, 1, 100, 16), (1, 1, 100, 16))
    )
    out, lse = np.zeros_like(q), np.zeros(q.shape[:3], np.float32)
    used = view(np.array([100], np.int32), "used")
    *views, of_rows = (view(array, "array") for array in (q, k, v, out, lse))
    call = CacheCall(config, *views, {"lse": of_rows}, {"seqused_k": used}, 0, 100, 0.25)
    return steps_of(call, kernel_of(call, target(name), SPLITS), SPLITS, HostMemory())


def opcodes(step: Step) -> list[str]:
    return [x.opcode for x in step.build.kernel.body if isinstance(x, ir.Instr)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_the_parts_are_waited_for_before_memory_is_accessed(dtype: str) -> None:
    attending, merging = steps("sm_90", dtype)
    assert opcodes(attending).count(BEGIN) == 1
    assert next(x for x in opcodes(merging) if x == WAIT or x.startswith(("ld.global", "st.global"))) == WAIT
    assert merging.plan.attributes.programmatic
    assert not attending.plan.attributes.programmatic
    for step in (attending, merging):
        assert step.build.proofs.complete
        step.interpret(sanitize=True)


@pytest.mark.slow
def test_a_merge_that_does_not_wait_is_reported() -> None:
    attending, merging = steps("sm_90")
    attending.interpret()
    kernel = merging.build.kernel
    body = tuple(x for x in kernel.body if not (isinstance(x, ir.Instr) and x.opcode == WAIT))
    broken = replace(merging.build.module, kernels=(replace(kernel, body=body),))
    result = merging.interpret(broken, sanitize="race", raise_on_report=False)
    regions = {name for report in result.reports for name in ("LSES", "PARTS") if f"({name})" in str(report)}
    assert regions == {"LSES", "PARTS"}


@pytest.mark.slow
def test_older_targets_run_one_after_another() -> None:
    for step in steps("sm_89"):
        assert not {WAIT, BEGIN} & set(opcodes(step))
        assert not step.plan.attributes.programmatic
        assert not step.in_flight
        assert "programmatic" not in step.build.contract


def test_the_contract_says_that_a_launch_may_begin_early() -> None:
    built = cache_kernels.merge(64, target="sm_90")
    assert built.contract["programmatic"] is True
    assert any(WAIT in said for said in built.contract["constraints"])
    assert "programmatic" not in cache_kernels.merge(64).contract


@pytest.mark.parametrize("language", LANGUAGES)
def test_stubs_launch_it_with_the_attribute(language: str) -> None:
    built = cache_kernels.merge(64, target="sm_90")
    text = stub(built.contract, built.text, language)
    assert "cuLaunchKernelEx(" in text
    assert "cuLaunchKernel(" not in text
