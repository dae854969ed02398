"""Rows of Blackwell without a meaning: texts are read, verified, printed and assembled; the interpreter
refuses them by name.
"""

from __future__ import annotations

from typing import Final

import pytest
from error_texts import refused

from ptxgen.check.verify import verify
from ptxgen.errors import LaunchError
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

F = "{%f1, %f2, %f3, %f4}"
TYPES: Final = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
RANDOM: Final = (
    *(
        f"cvt.rs{limits}.{type}.f32 %r1, %f1, %f2, %r2;"
        for type in ("f16x2", "bf16x2")
        for limits in ("", ".relu", ".satfinite", ".relu.satfinite")
    ),
    *(
        f"cvt.rs{relu}.satfinite.{type}x4.f32 %{'h' if type == 'e2m1' else 'r'}1, {F}, %r2;"
        for type in TYPES
        for relu in ("", ".relu")
    ),
)
GROUPS: Final = {"sm_103a": (("the bits that its random bits round to are not known", RANDOM),)}
LINES: Final = [
    (target, why, line) for target, groups in GROUPS.items() for why, lines in groups for line in lines
]


def kernel(target: str, *lines: str) -> str:
    return "\n".join(
        [
            f".version 9.0\n.target {target}\n.address_size 64\n.visible .entry k()\n{{",
            ".reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>;",
            *(f"mov.b16 %h{n}, 0;" for n in range(8)),
            *(f"mov.b32 %r{n}, 0;" for n in range(16)),
            *(f"mov.f32 %f{n}, 0f00000000;" for n in range(8)),
            *lines,
            "ret;\n}\n",
        ]
    )


@pytest.mark.parametrize("target", GROUPS)
def test_every_text_is_read_verified_and_printed(target: str) -> None:
    lines = [line for of, _, line in LINES if of == target]
    module = parse(kernel(target, *lines))
    assert verify(module) == ()
    printed = render(module)
    assert [x.strip() for x in printed.splitlines() if x.strip().startswith("cvt")] == lines
    assert parse(printed) == module


@pytest.mark.ptxas
@pytest.mark.parametrize("target", GROUPS)
def test_the_assembler_takes_every_text(target: str, assembler: Assembler) -> None:
    assembler.assemble(kernel(target, *(line for of, _, line in LINES if of == target)), target, opt_level=0)


ONE_OF_EACH: Final = tuple({why: (target, why, line) for target, why, line in LINES}.values())


@pytest.mark.parametrize(("target", "why", "line"), ONE_OF_EACH)
def test_a_kernel_with_one_is_refused_by_name(target: str, why: str, line: str) -> None:
    text = kernel(target, line)
    number = text.splitlines().index(line) + 1
    message = (
        f"k does not run on the interpreter: it has {line.split()[0]} (line {number} of the PTX text), "
        f"and {why}; run it on a GPU"
    )
    with refused(LaunchError, message):
        run(text, grid=1, block=32, args=[])


@pytest.mark.parametrize(
    ("line", "target", "needs"), [(RANDOM[0], "sm_110a", "sm_100a or sm_103a / PTX 8.7")]
)
def test_a_target_without_it_is_a_problem(line: str, target: str, needs: str) -> None:
    message = f"{line.split()[0]} needs {needs}, but the module targets {target} / PTX 9.0"
    assert [p.message for p in verify(parse(kernel(target, line)))] == [message]
