"""Others who look at the same programs: sentryward, a static verifier of synchronisation and races,
and ptxas. Each case says what both find, and where they disagree, why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper

from ptxgen import ir
from ptxgen.check.verify import verify
from ptxgen.errors import AssemblerError, TrapError
from ptxgen.interpreter import Result, run
from ptxgen.mutation.operators import Mutant
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from tools.campaign.judging import mutants_of
from tools.campaign.kernels import subjects
from tools.campaign.problems import Problem

# --------------------------------------------------------------------------------------- sentryward

THREADS = 64
SIMPLE = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry simple(.param .u64 out)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 mine[256];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd1, %rd0, %rd1;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, mine;
    add.u32 %r2, %r2, %r1;
    mov.u32 %r3, full;
    xor.b32 %r4, %r1, {other};
    mov.u32 %r5, mine;
    add.u32 %r4, %r4, %r5;
    setp.eq.u32 %p0, %r0, 0;
    setp.lt.u32 %p1, %r0, 32;
    {body}
    ret;
}}
"""
OTHER_WARP, OTHER_LANE = 252, 4  # xor with the offset of a thread's own element
WRITE = "st.shared.u32 [%r2], %r0;"
READ = "ld.shared.u32 %r6, [%r4]; st.global.u32 [%rd1], %r6;"
INIT = "@%p0 mbarrier.init.shared.b64 [%r3], {count}; bar.sync 0;"
ARRIVE = "mbarrier.arrive.shared.b64 %rd2, [%r3];"
AWAIT = "$wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra $wait;"
COPY = "cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.commit_group;"
READ_OWN = "ld.shared.u32 %r6, [%r2]; st.global.u32 [%rd1+1024], %r6;"

PROGRAMS = {
    "barrier": f"{WRITE} bar.sync 0; {READ}",
    "no barrier": f"{WRITE} {READ}",
    "half at the barrier": "@%p1 bar.sync 1, 64;",
    "several write one value": "mov.u32 %r6, 7; st.shared.u32 [%r5], %r6;",
    "several write their values": "st.shared.u32 [%r5], %r0;",
    "several write in global memory": "st.global.u32 [%rd0], %r0;",
    "outside of shared memory": "st.shared.u32 [%r2+512], %r0;",
    "not written before": READ_OWN,
    "atomic": "atom.global.add.u32 %r6, [%rd0], 1;",
    "copy": f"{COPY} cp.async.wait_group 0; {READ_OWN}",
    "copy without a wait": f"{COPY} {READ_OWN}",
    "mbarrier": f"{INIT.format(count=64)} {WRITE} {ARRIVE} {AWAIT} {READ}",
    "mbarrier of too many": f"{INIT.format(count=65)} {WRITE} {ARRIVE} {AWAIT} {READ}",
    "mbarrier without a barrier": "@%p0 mbarrier.init.shared.b64 [%r3], 64; " + ARRIVE,
}
LANES = {"lanes without a barrier": f"{WRITE} {READ}", "lanes": f"{WRITE} bar.warp.sync 0xffffffff; {READ}"}
PROGRAM_TEXTS = {
    name: SIMPLE.format(other=other, body=body)
    for other, bodies in ((OTHER_WARP, PROGRAMS), (OTHER_LANE, LANES))
    for name, body in bodies.items()
}


@dataclass(frozen=True)
class Case:
    """A program, or a kernel of the mutation campaign with one of its mutants, whose name begins
    with `mutant`; what both say, and why they do not agree.
    """

    program: str
    theirs: str
    ours: str
    why: str = ""
    mutant: str = ""
    number: int = 0

    @property
    def name(self) -> str:
        return f"{self.program}, {self.mutant} {self.number}" if self.mutant else self.program


RACE_FREE, POSSIBLE_RACE, STUCK = "race_free", "potential_race", "not_wellsynced"
UNSUPPORTED = "unsupported"
ONE_VALUE = "several threads store one value there, which is no race for us, and one for it"
ALIASES = "it loses track of which array a pointer in a register is of, and gives no verdict"
NO_ATOMICS = "it has no meaning for atomics"
SHARED_VALUES = "it wants the value of a word of shared memory that the missing barrier makes open"
OUT_OF_SIGHT = {"uninitialised", "undefined", "bounds", "trap", "value", "verifier"}  # for it

SPLIT = "f32-sm_75-causal-split"
CASES = (
    Case("barrier", RACE_FREE, ""),
    Case("no barrier", POSSIBLE_RACE, "race"),
    Case("half at the barrier", STUCK, "deadlock"),
    Case("several write one value", POSSIBLE_RACE, "", ONE_VALUE),
    Case("several write their values", POSSIBLE_RACE, "race"),
    Case("several write in global memory", POSSIBLE_RACE, "race"),
    Case("outside of shared memory", RACE_FREE, "trap"),
    Case("not written before", RACE_FREE, "uninitialised"),
    Case("atomic", UNSUPPORTED, "", NO_ATOMICS),
    Case("copy", RACE_FREE, ""),
    Case("copy without a wait", POSSIBLE_RACE, "pending"),
    Case("mbarrier", RACE_FREE, ""),
    Case("mbarrier of too many", STUCK, "deadlock"),
    Case("mbarrier without a barrier", STUCK, "race"),
    Case("lanes", RACE_FREE, ""),
    Case("lanes without a barrier", POSSIBLE_RACE, "race"),
    Case("f32-sm_75", RACE_FREE, ""),
    Case("f32-sm_80", RACE_FREE, ""),
    Case(SPLIT, UNSUPPORTED, "", ALIASES),
    Case("f32-sm_75", POSSIBLE_RACE, "race", mutant="barrier: deleted"),
    Case("f32-sm_75", UNSUPPORTED, "race", ALIASES, mutant="barrier: deleted", number=1),
    Case("f32-sm_80", POSSIBLE_RACE, "race", mutant="barrier: of each warp alone"),
    Case("f32-sm_80", POSSIBLE_RACE, "pending value", mutant="copy-wait: deleted"),
    Case("f32-sm_80", POSSIBLE_RACE, "pending value", mutant="copy-wait: of one group less"),
    Case("f32-sm_80", POSSIBLE_RACE, "pending value", mutant="copy-commit: deleted"),
    Case("f32-sm_80", RACE_FREE, "value", mutant="warp: of double distance"),
    # A block is one warp.
    Case(SPLIT, UNSUPPORTED, "", ALIASES, mutant="barrier: of each warp alone"),
    Case(SPLIT, UNSUPPORTED, "race", SHARED_VALUES, mutant="barrier: deleted"),
    Case(SPLIT, UNSUPPORTED, "verifier", ALIASES, mutant="shared-offset: operand 1 +4"),
)


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sentryward_agrees_or_it_is_known_why_not(case: Case, tmp_path: Path) -> None:
    sentryward = pytest.importorskip("sentryward", reason="sentryward is not installed")
    launch = program_launch(case) if case.program in PROGRAM_TEXTS else kernel_launch(case)
    (tmp_path / "kernel.ptx").write_text(launch.text)
    (tmp_path / "input.json").write_text(json.dumps(launch.described()))
    said = sentryward.verify(tmp_path / "kernel.ptx", input=tmp_path / "input.json", timeout_seconds=60)
    assert (said["result"], launch.ours) == (case.theirs, case.ours), said["diagnostics"]


def test_a_disagreement_has_a_reason_and_nothing_else_has() -> None:
    for case in CASES:
        result = set(case.ours.split()) - OUT_OF_SIGHT
        agree = case.theirs != UNSUPPORTED and (case.theirs != RACE_FREE) == bool(result)
        assert agree != bool(case.why), case


@dataclass
class Launched:
    """One launch of a kernel, and what we say of it."""

    text: str
    kernel: ir.Kernel
    how: Mapping[str, Any]
    ours: str = ""

    def described(self) -> dict[str, Any]:
        """As sentryward wants it: numbers are known, arrays are not."""
        arguments = zip(self.kernel.params, self.how["args"], strict=True)
        numbers = [(p, v) for p, v in arguments if not isinstance(v, np.ndarray)]
        return {
            "schema": "spverify.kernel-input/v1",
            "entry": self.kernel.name,
            "launch": {
                "grid_dim": [self.how["grid"], 1, 1],
                "block_dim": [self.how["block"], 1, 1],
                "cluster_dim": [1, 1, 1],
                "dynamic_shared_bytes": self.how["dynamic_smem"],
            },
            "arguments": [
                {"parameter": p.name, "type": p.type, "value": np.asarray(v).item()} for p, v in numbers
            ],
            # A term of O += P V is left out where P is 0, which only a run knows.
            "assumptions": {"representative_branches": True},
        }


def program_launch(case: Case) -> Launched:
    text = PROGRAM_TEXTS[case.program]
    module = parse(text)
    args = [np.zeros(512, np.uint32)]
    how: dict[str, Any] = {"grid": 1, "block": THREADS, "args": args, "dynamic_smem": 0}
    launched = Launched(text, module.kernels[0], how)
    launched.ours = judged(module, lambda: kinds(run(module, **how, **SANITIZED)))
    return launched


SANITIZED: dict[str, Any] = {"sanitize": True, "raise_on_report": False}


def kernel_launch(case: Case) -> Launched:
    """On one CTA, three tiles of keys: each buffer is used again. More CTAs are too much for
    sentryward, which then loses track of the arrays.
    """
    subject = subjects()[case.program]
    module = mutant(case).module if case.mutant else subject.module
    rows = subject.block * 2 if subject.block > 32 else 16
    launches: list[Launched] = []

    def recorded(module: ir.Module, entry: str, **how: Any) -> Result:
        launches.append(Launched(render(module), module.kernels[0], how))
        return run(subject.module, entry, **how)

    problem = Problem(rows, 2 * 16 + 8, heads=1)
    subject.run(module, problem, launch=recorded)

    def found() -> str:
        ran = subject.run(module, problem, sanitize=True, max_instructions=20_000)
        return " ".join([*sorted({r.kind for r in ran.reports}), *(["value"] if ran.wrong else [])])

    (launched,) = launches
    launched.ours = judged(module, found)
    return launched


def mutant(case: Case) -> Mutant:
    return [m for m in mutants_of(case.program) if m.name.startswith(case.mutant)][case.number]


def kinds(result: Result) -> str:
    return " ".join(sorted({r.kind for r in result.reports}))


def judged(module: ir.Module, found: Callable[[], str]) -> str:
    if verify(module):
        return "verifier"
    try:
        return found()
    except TrapError as error:
        return "deadlock" if "deadlock" in str(error) else "trap"


# -------------------------------------------------------------------------------------------- ptxas

FENCE = "wgmma.fence.sync.aligned;"
MULTIPLY = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd4, %rd5, 1, 1, 1, 0, 0;"
)
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
STORE = "st.global.v4.f32 [%rd1], {%f0, %f1, %f2, %f3};"
CHANGE = "add.f32 %f0, %f0, %f0;"
LEFT_BYTES = 64 * 16 * 2  # of A; B has 8 columns of as many halves
SHARED_BYTES = LEFT_BYTES + 16 * 8 * 2
DESCRIPTOR = hopper.descriptor(1024, 128, "none")


def product(*body: str) -> str:
    """A tile of A and one of B are written and multiplied by 128 threads, as `body` says."""
    return hopper.kernel(
        "u64 out",
        f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    shl.b32 %r2, %r0, 4;
    add.u32 %r2, %r2, %r1;
    mov.u32 %r3, 0;
    st.shared.v4.u32 [%r2], {{%r3, %r3, %r3, %r3}};
    setp.lt.u32 %p0, %r0, 16;
    @%p0 st.shared.v4.u32 [%r2+{LEFT_BYTES}], {{%r3, %r3, %r3, %r3}};
    fence.proxy.async;
    bar.sync 0;
{hopper.operand("%rd4", "%r1", DESCRIPTOR)}
    add.u32 %r4, %r1, {LEFT_BYTES};
{hopper.operand("%rd5", "%r4", hopper.descriptor(128, 256, "none"))}
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r0, 16;
    add.u64 %rd1, %rd1, %rd2;
    mov.f32 %f0, 0f00000000;
    mov.f32 %f1, 0f00000000;
    mov.f32 %f2, 0f00000000;
    mov.f32 %f3, 0f00000000;
{"".join(f"    {line}{chr(10)}" for line in body)}
""",
    )


@dataclass(frozen=True)
class Misuse:
    """A use of wgmma; the numbers of the advisories of ptxas by its version, and a part of what the
    sanitizer says, empty if both find nothing.
    """

    body: tuple[str, ...]
    advisories: Mapping[str, tuple[str, ...]]
    ours: str


NOBODY = {"13.0": (), "13.5": ()}
MISUSES = {
    "right": Misuse((FENCE, MULTIPLY, COMMIT, WAIT, STORE), NOBODY, ""),
    # The assembler of 13.5 mends it without a word.
    "no fence": Misuse(
        (MULTIPLY, COMMIT, WAIT, STORE), {"13.0": ("C7519",), "13.5": ()}, "no wgmma.fence comes before it"
    ),
    "no wait": Misuse(
        (FENCE, MULTIPLY, COMMIT, STORE),
        {"13.0": ("C7517",), "13.5": ("C7517",)},
        "may still use: nothing has waited for it",
    ),
    # From here on only the sanitizer sees anything.
    "no group": Misuse(
        (FENCE, MULTIPLY, WAIT, STORE), NOBODY, "may still use: it is in no group, so no wait covers it"
    ),
    "a change after the fence": Misuse(
        (FENCE, CHANGE, MULTIPLY, COMMIT, WAIT, STORE),
        NOBODY,
        "no wgmma.fence comes between it and what wrote %f0",
    ),
    "a change under way": Misuse(
        (FENCE, MULTIPLY, COMMIT, "mov.f32 %f0, 0f3F800000;", WAIT, STORE),
        NOBODY,
        "may still use: nothing has waited for it",
    ),
}


@pytest.mark.ptxas
@pytest.mark.parametrize("name", MISUSES)
def test_what_ptxas_sees_of_a_misused_wgmma(name: str, assembler: Assembler) -> None:
    version = ".".join(assembler.version.split(".")[:2])
    if assembler.name != "ptxas" or version not in NOBODY:
        pytest.skip(f"known for ptxas {' and '.join(NOBODY)}, here is {assembler.name} {version}")
    wanted = MISUSES[name].advisories[version]
    text = product(*MISUSES[name].body)
    if not wanted:
        assert assembler.assemble(text, "sm_90a").advisories == ()
        return
    with pytest.raises(AssemblerError) as refused:
        assembler.assemble(text, "sm_90a")
    assert all(code in str(refused.value) for code in wanted), refused.value


@pytest.mark.parametrize("name", MISUSES)
def test_the_sanitizer_sees_every_misused_wgmma(name: str) -> None:
    out = np.zeros((128, 4), np.float32)
    result = run(
        product(*MISUSES[name].body), grid=1, block=128, args=[out], dynamic_smem=SHARED_BYTES, **SANITIZED
    )
    wanted = MISUSES[name].ours
    assert [r.kind for r in result.reports] == (["sync"] if wanted else [])
    assert all(wanted in r.message for r in result.reports)
