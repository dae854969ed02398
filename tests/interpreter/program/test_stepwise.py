"""Each instruction by itself, through its row's own function, gives the bits of generated code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.both_paths import assert_same_bits
from interpreter.programs import on_elements, ptx
from kernel_runs import Problem, run_forward

from flash.problem.config import AttentionConfig
from ptxgen import ir
from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.interpreter.program.blocks import compile_program
from ptxgen.interpreter.program.linking import link
from ptxgen.parse import parse

CONFIGS: list[dict[str, Any]] = [
    {"head_dim": 16},
    {"head_dim": 32, "causal": True, "return_lse": True},
    {"head_dim": 24, "head_dim_v": 8, "causal": "bottom_right", "return_lse": True},
]


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("options", CONFIGS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("sanitize", [False, True])
def test_the_attention_kernel_gives_the_same_bits_both_ways(options: dict[str, Any], sanitize: bool) -> None:
    config = AttentionConfig(**options)
    problem = Problem(40, 70, config.head_dim, config.head_dim_v or config.head_dim, heads=2)
    result = [
        run_forward(config, problem.arrays(), stepwise=stepwise, sanitize=sanitize)
        for stepwise in (False, True)
    ]
    for got, want in zip(*result, strict=True):
        if isinstance(got, np.ndarray):
            assert_same_bits(got, want)
        else:
            assert got.counters == want.counters
    assert np.isfinite(result[0][0]).all()


def test_no_code_is_generated() -> None:
    module = parse(ptx("add.u32 %r0, 1, 2;"))
    program = compile_program(link(module, module.kernels[0], 0, {}), stepwise=True)
    assert "".join(program.sources) == ""
    assert "def block" in compile_program(program.linked).sources[0]


UNWRITTEN = """
    setp.lt.u32 %p0, %r0, 5;
    @%p0 mov.u32 %r5, 1;
    @%p0 add.u32 %r6, %r5, %r5;
    @!%p0 mov.u32 %r6, 3;
    add.u32 %r7, %r5, %r6;
    st.global.u32 [%rd0], %r7;
"""


@pytest.mark.parametrize("stepwise", [False, True])
def test_reads_of_registers_that_were_not_written_are_reported(stepwise: bool) -> None:
    x = np.zeros(32, np.uint32)
    result = run(
        on_elements(UNWRITTEN),
        grid=1,
        block=32,
        args=[x],
        sanitize=True,
        stepwise=stepwise,
        raise_on_report=False,
    )
    assert [str(report) for report in result.reports] == [
        "kernel k: st.global.u32 [%rd0], %r7; (line 26): thread (5, 0, 0) of CTA (0, 0, 0): undefined: byte "
        "20 of x when the kernel ends depends on %r5, which it has not written; it was read by add.u32 %r7, "
        "%r5, %r6; (line 25)"
    ]
    assert (x[:5] == 3).all()


@pytest.mark.parametrize("stepwise", [False, True])
def test_an_operand_that_does_not_fit_is_refused(stepwise: bool) -> None:
    narrow, wide = ir.Reg("%r0", "b32"), ir.Reg("%rd0", "b64")
    registers = (ir.RegisterRange("%r", "b32", 1), ir.RegisterRange("%rd", "b64", 1))
    body = (ir.Instr("add.u64", (wide, narrow, ir.IntImm(1))), ir.Instr("ret"))
    module = ir.Module((7, 0), "sm_80", (ir.Kernel("k", (), registers, body),))
    with pytest.raises(TypeMismatchError) as caught:
        run(module, grid=1, block=1, args=[], stepwise=stepwise)
    assert str(caught.value) == (
        "the interpreter: add.u64 %rd0, %r0, 1;: the operand a cannot be %r0, a .b32"
    )
