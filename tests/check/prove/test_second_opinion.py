"""z3 looks for counterexamples to what is proved of kernels that calls with default settings launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("z3", reason="z3 is not installed: pip install z3-solver")

from z3_opinion import AGREED, REFUTED, counted, opinion

from ptxgen.check.prove import prove_shared
from ptxgen.check.prove.proof import Proof
from ptxgen.parse import parse
from tools.commands.shipped_kernels import Shipped, shipped

pytestmark = pytest.mark.nightly

PER_FAMILY = 2
TARGET = "sm_80"  # the questions about the rings of sm_90a take minutes each, and many are left unsure

DIVERGENT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k()
.maxntid 128, 1, 1
{
.reg .pred %p<2>;
.reg .b32 %r<2>;
mov.u32 %r0, %tid.x;
setp.lt.u32 %p0, %r0, 64;
@!%p0 bra $end_1;
bar.sync 0;
$end_1:
ret;
}
"""


def some_shipped() -> list[Shipped]:
    """The first kernels of each family that use shared memory."""
    by_family: dict[str, list[Shipped]] = {}
    for kernel in shipped((TARGET,)):
        by_family.setdefault(kernel.family, []).append(kernel)
    chosen = [kernel for of in by_family.values() for kernel in of[:PER_FAMILY]]
    return [kernel for kernel in chosen if "append" not in kernel.name]


def proof_of(text: str) -> Proof:
    kernel = parse(text).kernels[0]
    return prove_shared(text, block=kernel.threads)


def blind(text: str) -> Proof:
    """The verdicts of a prover that calls everything proved."""

    def proved(verdicts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(replace(verdict, verdict="proved") for verdict in verdicts)

    proof = proof_of(text)
    return replace(proof, accesses=proved(proof.accesses), barriers=proved(proof.barriers))


@pytest.mark.parametrize("kernel", some_shipped(), ids=lambda kernel: kernel.words)
def test_no_proof_of_a_shipped_kernel_has_a_counterexample(kernel: Shipped) -> None:
    text = kernel.text()
    counts = counted(opinion(text, proof_of(text)))
    assert set(counts) == {("access", AGREED), ("barrier", AGREED)}
    assert counts["access", AGREED] > 100


@pytest.mark.parametrize(
    ("found", "planted"),
    [
        ("[%r64+22528], ", "[%r64+30721], "),  # a cp.async into the tile of K
        ("mul.lo.s32 %r", "mul.lo.s32 %r"),  # nothing changes
        ("shr.u32 %r29, %r28, 5;", "shr.u32 %r29, %r28, 4;"),  # the number of the warp
    ],
)
def test_a_prover_that_calls_a_mistake_proved_is_noticed(found: str, planted: str) -> None:
    kernel = next(shipped((TARGET,)))
    text = kernel.text()
    assert found in text
    answers = opinion(text.replace(found, planted), blind(text.replace(found, planted)))
    assert (REFUTED in answers.values()) == (found != planted)


def test_a_barrier_to_which_half_of_the_threads_come_is_noticed() -> None:
    assert opinion(DIVERGENT, blind(DIVERGENT)) == {("barrier", 12): REFUTED}
