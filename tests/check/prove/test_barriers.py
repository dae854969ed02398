"""The proof of barriers in roles: the right kernel is proved and its wrong twins are not, and what is
proved of random kernels runs clean on the interpreter, under several schedules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from role_kernels import RandomRoles, arrive, loop, only_if, outcome, sync, text

from ptxgen.check.prove import prove_shared
from ptxgen.check.prove.barriers import barrier_simulation
from ptxgen.check.prove.barriers.teams import teams
from ptxgen.check.prove.verdicts import Proof, Verdict

WARP = 32
LAUNCHES = ((0, 0, 0), (1, 3, 1), (3, 3, 1), (3, 4, 0), (4, 1, 1))  # n, m, and what memory holds


@dataclass(frozen=True)
class Roles:
    """A kernel of roles: the warps and the code of each, and what all threads do before and after."""

    roles: tuple[tuple[int, str], ...]
    before: str = ""
    after: str = ""

    @property
    def block(self) -> int:
        """The number of threads."""
        return WARP * sum(warps for warps, _ in self.roles)

    @property
    def ptx(self) -> str:
        """The kernel's text."""
        return text(*self.roles, before=self.before, after=self.after)

    def proof(self) -> Proof:
        """The proof of its barriers."""
        return prove_shared(self.ptx, block=self.block)

    def outcomes(self) -> set[str]:
        """What its launches come to on the interpreter; "" for a clean one."""
        return {outcome(self.ptx, self.block, *launch) for launch in LAUNCHES}


def roles(*each: tuple[int, str], before: str = "", after: str = "") -> Roles:
    """A kernel of roles."""
    return Roles(each, before, after)


LANE = "setp.eq.u32 %p9, %r5, 0;"
MEMORY = "setp.eq.u32 %p9, %r6, 1;"
FLAG = "setp.gt.u32 %p9, %r2, 2;"
TAKE, GIVE = sync(1, 96) + arrive(2, 96), arrive(1, 96) + sync(2, 96)
TURN = "add.u32 %r9, %r4, 1; sub.u32 %r10, 2, %r4;\n"  # the barriers of a warp and of the other one
# Two warps take turns: each waits at its barrier, and the other one arrives there when it is done.
PING_PONG = TURN + "setp.eq.u32 %p9, %r4, 1;\n@%p9 bar.arrive 1, 64;\n"
PING_PONG += loop("bar.sync %r9, 64;\nbar.arrive %r10, 64;\n")
UNCHANGED = "mov.u32 %r9, 1; setp.gt.u32 %p9, %r4, 9; @%p9 mov.u32 %r9, %r6;\n"
# A loop that ends when memory says so, and so often was %r20 counted.
COUNTED = "mov.u32 %r20, 0;\nmore:\nadd.u32 %r20, %r20, 1; setp.lt.u32 %p9, %r20, %r6; @%p9 bra more;\n"
GROWING = "mov.u32 %r30, 1;\n" + loop(sync(1, 64) + "add.u32 %r30, %r30, 1;\n", step="%r30")

RIGHT = {
    "a barrier of one role": roles((4, ""), (2, sync(1, 64) + sync(1, 64))),
    "barriers of two roles": roles((2, sync(1, 64)), (1, sync(2, 32))),
    "one barrier of three roles, in code of their own": roles(
        (2, sync(3, 128)), (1, sync(3, 128)), (1, sync(3, 128))
    ),
    "one waits, one arrives": roles((1, arrive(1, 96)), (2, sync(1, 96))),
    "a loop of the launch": roles((1, loop(sync(1, 64))), (1, loop(sync(1, 64)))),
    "a loop that gives and takes": roles((1, loop(GIVE)), (2, loop(TAKE))),
    "loops in a loop": roles((1, loop(loop(GIVE, "%r2", 21))), (2, loop(loop(TAKE, "%r2", 21)))),
    "loops of numbers": roles((1, loop(sync(1, 64), "3")), (1, loop(sync(1, 64), "6", 20, 2))),
    "turns": roles((2, PING_PONG)),
    "a condition of the launch": roles((1, only_if(FLAG, sync(1, 64))), (1, only_if(FLAG, sync(1, 64)))),
    "a number from memory that decides nothing": roles(
        (2, only_if(MEMORY, "mov.u32 %r8, 1;\n") + sync(1, 64))
    ),
    "one lane does something else": roles((2, only_if(LANE, "mov.u32 %r8, 1;\n") + sync(1, 64))),
    "a role that ends": roles((1, "exit;"), (2, sync(1, 64))),
    "a role that ends, and a barrier of all threads": roles((1, "exit;"), (2, sync(1, 64) + "bar.sync 0;")),
    "a barrier of all threads when others have ended": roles(
        (1, "exit;"), (2, "bar.sync 0;" + loop("bar.sync 0;"))
    ),
    "lanes that end": roles((2, ""), before=f"{LANE} @%p9 exit;", after="bar.sync 0;\nbar.sync 0;"),
    "threads that the launch ends": roles(
        (2, ""), before="setp.gt.u32 %p9, %r3, %r2; @%p9 ret;", after="bar.sync 0;"
    ),
    "roles meet again": roles((1, ""), (2, sync(1, 64)), after="bar.sync 0;"),
    "the same number once for a role and once for all": roles(
        (2, sync(1, 64)), (1, ""), after="bar.sync 0;\nbar.sync 1;"
    ),
    "a reduction": roles((1, ""), (2, "bar.red.popc.u32 %r8, 1, 64, %p0;")),
    "arrivals that nobody waits for": roles((1, arrive(1, 64)), (1, "")),
    "some warps of a role": roles((3, only_if("setp.lt.u32 %p9, %r4, 2;", sync(1, 64)))),
    "a number that no thread changes": roles((1, ""), (2, UNCHANGED + "bar.sync %r9, 64;\n")),
}

DIFFER = "threads (0, 0, 0) and (32, 0, 0) differ in a condition on the way to it"
MAY_DIFFER = ("unknown", "a condition on the way to it may differ between the threads of a warp")
TOO_EARLY = ("unknown", "warp 1 may come to barrier 1 before it is complete for the arrivals before")
TOO_EARLY_2 = ("unknown", "warp 2 may come to barrier 1 before it is complete for the arrivals before")
WAITS_ALONE = (
    "unknown",
    "warp 1 waits at barrier 1 for 64 threads, but 32 have come and the others have ended",
)
NO_NUMBER = ("unknown", "which barrier it is is not known")
WRONG = {
    "a count too large": (
        roles((2, ""), (2, sync(1, 96))),
        "violation",
        "warp 2 waits at barrier 1 for 96 threads, but 64 have come and the others have ended",
    ),
    "a count too small": (
        roles((1, ""), (3, sync(1, 64))),
        "unknown",
        "warp 3 may come to barrier 1 before it is complete for the arrivals before",
    ),
    "two counts": (
        roles((1, sync(1, 64)), (2, sync(1, 96))),
        "unknown",
        "warp 1 comes to barrier 1 for 96 threads, but others have come to it for 64 threads",
    ),
    "a count that is no multiple of 32": (
        roles((1, ""), (2, sync(1, 48))),
        "unknown",
        "the number of threads that it waits for is 48, no multiple of 32",
    ),
    "a count of the launch": (
        roles((1, ""), (2, "bar.sync 1, %r1;")),
        "unknown",
        "the number of threads that it waits for is not known",
    ),
    "a number of the launch": (roles((1, ""), (2, "bar.sync %r1, 64;")), *NO_NUMBER),
    "a number of no barrier": (roles((1, ""), (2, "mov.u32 %r9, 16; bar.sync %r9, 64;")), *NO_NUMBER),
    "a role leaves it out for some launches": (
        roles((1, only_if(FLAG, sync(1, 64))), (1, sync(1, 64))),
        *WAITS_ALONE,
    ),
    "memory decides in a role": (roles((1, ""), (2, only_if(MEMORY, sync(1, 64)))), *MAY_DIFFER),
    "lanes differ": (roles((1, ""), (2, only_if(LANE, sync(1, 64)))), *MAY_DIFFER),
    "lanes differ at the instruction": (roles((1, ""), (2, f"{LANE} @%p9 bar.sync 1, 64;")), *MAY_DIFFER),
    "two roles with one number": (roles((2, sync(1, 64)), (2, sync(1, 64))), *TOO_EARLY_2),
    "loops of two bounds": (roles((1, loop(sync(1, 64))), (1, loop(sync(1, 64), "%r2"))), *WAITS_ALONE),
    "one iteration less": (roles((1, loop(sync(1, 64))), (1, loop(sync(1, 64), start="1"))), *WAITS_ALONE),
    "larger steps": (
        roles((1, loop(sync(1, 64))), (1, loop(sync(1, 64), step=2))),
        "unknown",
        "warp 0 waits at barrier 1 for 64 threads, but 32 have come and the others have ended",
    ),
    "loops of other numbers": (
        roles((1, loop(sync(1, 64), "3")), (1, loop(sync(1, 64), "4"))),
        "violation",
        "warp 1 waits at barrier 1 for 64 threads, but 32 have come and the others have ended",
    ),
    "an early exit": (roles((1, f"{FLAG} @%p9 exit;\n{sync(1, 64)}"), (1, sync(1, 64))), *WAITS_ALONE),
    "an early exit of lanes": (
        roles((1, f"{LANE} @%p9 exit;\n{sync(1, 64)}"), (1, sync(1, 64))),
        *MAY_DIFFER,
    ),
    "an arrival is missing": (
        roles((1, ""), (2, sync(1, 96))),
        "violation",
        f"{DIFFER}, so not all threads come to it",
    ),
    "nobody waits for the first arrivals": (
        roles((1, loop(arrive(1, 96))), (2, loop(sync(1, 96)))),
        "unknown",
        "warp 0 may come to barrier 1 before it is complete for the arrivals before",
    ),
    "only the first iteration is given": (
        roles((1, arrive(1, 96)), (2, loop(sync(1, 96)))),
        "unknown",
        "warp 1 waits at barrier 1 for 96 threads, but 64 have come and the others have ended",
    ),
    "roles in another order": (
        roles((1, sync(1, 64) + sync(2, 64)), (1, sync(2, 64) + sync(1, 64))),
        "violation",
        "warp 0 waits at barrier 1 for 64 threads, but 32 have come and the others wait at other barriers",
    ),
    "the barrier of all threads in a role": (
        roles((1, ""), (2, "bar.sync 0;"), after="mov.u32 %r8, 1;"),
        "unknown",
        f"{DIFFER}, and those that do not come to it go on without it",
    ),
    "the barrier of all threads in a role, and another one": (
        roles((1, ""), (2, "bar.sync 0;" + sync(1, 64)), after="mov.u32 %r8, 1;"),
        "unknown",
        "barrier 0 goes on without warps that do not come to it",
    ),
    "the barrier of all threads behind another one of some": (
        roles((1, sync(1, 64)), (1, "bar.sync 0;" + sync(1, 64)), (1, "exit;")),
        "violation",
        "warp 0 waits at barrier 1 for 64 threads, but 32 have come and the others have ended or wait at "
        "other barriers",
    ),
    "a reduction and a barrier": (
        roles((1, sync(1, 64)), (1, "bar.red.popc.u32 %r8, 1, 64, %p0;")),
        "unknown",
        "barrier 1 is reduced by some warps, and others come to it otherwise",
    ),
    "one warp twice instead of two": (
        roles((1, arrive(1, 96) + sync(1, 96)), (1, sync(1, 96)), (1, "")),
        "unknown",
        "warp 0 comes to barrier 1 2 times before the others have",
    ),
    "an arrival after its own, when others may wait": (
        roles((1, loop(sync(1, 96) + sync(1, 96))), (2, loop(sync(1, 96) + arrive(1, 96)))),
        *TOO_EARLY,
    ),
    # After the first loop, which all leave together, the counters of the second begin as those of the first.
    "a second loop that goes wrong in its second iteration": (
        roles(
            (1, loop(sync(2, 96)) + loop(sync(1, 96) + sync(1, 96))),
            (2, loop(sync(2, 96)) + loop(sync(1, 96) + arrive(1, 96))),
        ),
        *TOO_EARLY,
    ),
    "turns that nobody begins": (
        roles((2, PING_PONG.replace("@%p9 bar.arrive 1, 64;", ""))),
        "unknown",
        "warp 0 waits at barrier 1 for 64 threads, but 32 have come and the others wait at other barriers",
    ),
    "a completion that an earlier arrival does not know of": (
        roles(
            (1, sync(1, 64) + arrive(2, 64) + sync(1, 64)),
            (1, sync(1, 64) * 3),
            (1, sync(4, 64) + sync(2, 64) + sync(1, 64)),
            (1, sync(5, 64) + arrive(4, 64)),
            (1, arrive(5, 64)),
        ),
        *TOO_EARLY_2,
    ),
    "memory decides how often a loop runs": (
        roles((1, ""), (2, COUNTED + only_if("setp.eq.u32 %p9, %r20, 1;", sync(1, 64)))),
        *MAY_DIFFER,
    ),
    "memory decides about a condition of the launch": (
        roles((1, ""), (2, only_if(MEMORY, only_if(FLAG, sync(1, 64))))),
        *MAY_DIFFER,
    ),
    "a condition and its opposite": (
        roles(
            (1, only_if("setp.gt.u32 %p9|%p8, %r2, 2;", sync(1, 64))),
            (1, only_if("setp.gt.u32 %p8|%p9, %r2, 2;", sync(1, 64))),
            (1, ""),
        ),
        "unknown",
        "warp 0 waits at barrier 1 for 64 threads, but 32 have come and the others have ended",
    ),
    "steps that grow": (
        roles((1, GROWING), (1, "mov.u32 %r30, 1;\n" + loop(sync(1, 64), step="%r30")), (1, "")),
        "unknown",
        "more than 128 conditions in a row decide which barriers the warps come to",
    ),
    "a block of no whole warps": (
        roles((2, sync(1, 64)), (1, "")),
        "unknown",
        "warps are followed in blocks of whole warps of 32 threads only",
    ),
}


def told(proof: Proof) -> Verdict:
    """The verdict that is not `proved` and has the reason, not that of another barrier."""
    return next(v for v in proof.verdicts if v.verdict != "proved" and "at another barrier" not in v.reason)


@pytest.mark.parametrize("name", RIGHT)
def test_roles_that_come_together_are_proved_and_run(name: str) -> None:
    kernel = RIGHT[name]
    proof = kernel.proof()
    assert proof.complete, proof.report()
    assert proof.barriers
    assert kernel.outcomes() == {""}


@pytest.mark.parametrize("name", WRONG)
def test_roles_that_do_not_come_together_are_not_proved(name: str) -> None:
    kernel, verdict, reason = WRONG[name]
    block = kernel.block - (16 if "whole warps" in name else 0)
    result = told(prove_shared(kernel.ptx, block=block))
    assert (result.verdict, result.reason) == (verdict, reason)


# What runs on the interpreter in the launches that are tried, some in lockstep only, and some although
# PTX does not define it: threads that have ended are not waited for, and lanes count with their warp. A warp
# may arrive and then wait at one barrier, which counts it twice.
_RUNS = {
    *("a number of the launch", "a reduction and a barrier", "a block of no whole warps"),
    *("an early exit of lanes", "lanes differ", "lanes differ at the instruction"),
    "a completion that an earlier arrival does not know of",
    *("memory decides about a condition of the launch", "memory decides how often a loop runs"),
    *("memory decides in a role", "nobody waits for the first arrivals", "one warp twice instead of two"),
    *("the barrier of all threads in a role", "the barrier of all threads in a role, and another one"),
    "two roles with one number",
}


@pytest.mark.parametrize("name", sorted(set(WRONG) - _RUNS))
def test_what_is_not_proved_goes_wrong(name: str) -> None:
    kernel, verdict, _ = WRONG[name]
    outcomes = kernel.outcomes()
    assert outcomes != {""}
    if verdict == "violation":
        assert "" not in outcomes


def test_a_barrier_of_all_threads_that_some_come_to_twice_is_not_proved() -> None:
    kernel = roles((1, ""), (2, "bar.sync 0;"), after="bar.sync 0;")
    reasons = [(verdict.verdict, verdict.reason) for verdict in kernel.proof().barriers]
    assert reasons == [
        ("unknown", "at another barrier, barrier 0 goes on without warps that do not come to it"),
        ("proved", ""),
    ]


# How threads end, and how many instructions wait for those that have not ended.
ENDS = {"a branch to the end": "@%p9 bra join;", "a return": "@%p9 ret;", "an exit": "@%p9 exit;"}


@pytest.mark.parametrize("condition", ["setp.ge.u32 %p9, %r3, 32;", "setp.ge.u32 %p9, %r3, 5;"])
@pytest.mark.parametrize("how", ENDS)
def test_a_barrier_does_not_wait_for_threads_that_have_ended_however_they_do(
    how: str, condition: str
) -> None:
    before = f"{condition} {ENDS[how]} bar.sync 0;"
    kernel = roles((2, ""), before=before)
    (result,) = kernel.proof().barriers
    assert (result.verdict, result.reason) == ("proved", "")
    assert kernel.outcomes() == {""}
    counted = roles((2, ""), before=before.replace("sync 0", "sync 0, 64"))
    assert not counted.proof().complete
    assert "" not in counted.outcomes() or "5;" in condition  # lanes count with their warp


def test_a_barrier_elsewhere_is_named_where_it_is() -> None:
    kernel = roles((1, sync(2, 32)), (2, sync(1, 96)), (1, ""))
    other, wrong = kernel.proof().barriers
    assert (other.verdict, wrong.verdict) == ("unknown", "violation")
    assert (
        wrong.reason == "warp 1 waits at barrier 1 for 96 threads, but 64 have come and the others have ended"
    )
    assert other.reason == f"at another barrier, {wrong.reason}"


def test_a_barrier_of_all_threads_is_proved_beside_a_wrong_one() -> None:
    kernel = roles((1, ""), (2, sync(1, 64)), (1, arrive(1, 64)), before="bar.sync 0;")
    assert [v.verdict for v in kernel.proof().barriers] == ["proved", "unknown", "unknown"]
    named = roles((1, ""), (2, sync(1, 64)), (1, arrive(1, 64)), before="bar.sync 1;")
    assert [v.verdict for v in named.proof().barriers] == ["unknown", "unknown", "unknown"]


def test_a_number_in_a_register_may_be_that_of_a_barrier_of_all_threads() -> None:
    kernel = roles((1, "mov.u32 %r9, 1; bar.arrive %r9, 96;"), (2, ""), after="bar.sync 1;")
    assert [v.verdict for v in kernel.proof().barriers] == ["unknown", "unknown"]


def test_a_barrier_for_some_threads_is_not_proved_because_all_come_to_it() -> None:
    kernel = roles((1, ""), (1, ""), before="bar.sync 1, 32;")
    assert (
        told(kernel.proof()).reason
        == "warp 1 may come to barrier 1 before it is complete for the arrivals before"
    )
    assert roles((1, ""), (1, ""), before="bar.sync 1, 64;").proof().complete


def test_a_loop_without_barriers_takes_no_effort() -> None:
    assert roles((1, ""), (2, loop("", "1000000", 30) + sync(1, 64))).proof().complete


@pytest.mark.slow
def test_the_effort_is_bounded() -> None:
    conditions = "".join(
        only_if(f"and.b32 %r9, %r1, {1 << n}; setp.ne.u32 %p9, %r9, 0;", sync(1, 64)) for n in range(14)
    )
    assert (
        told(roles((1, ""), (2, conditions)).proof()).reason
        == "following the warps from barrier to barrier takes more than 50000 steps"
    )


def test_a_loop_without_a_counter_is_followed_so_far() -> None:
    growing = loop(sync(1, 64), start="1").replace("add.u32 %r20, %r20, 1", "mul.lo.u32 %r20, %r20, 3")
    assert told(roles((1, ""), (2, growing)).proof()).reason == (
        "more than 128 conditions in a row decide which barriers the warps come to"
    )


def test_barriers_in_a_function_that_is_not_followed_may_be_any() -> None:
    kernel = roles((1, ""), (2, sync(1, 64)))
    assert kernel.proof().complete
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    function = ".func f()\n{\ncall f, ();\nbar.sync 1;\nret;\n}\n"
    result = prove_shared(
        kernel.ptx.replace(head, head + function).replace("join:", "join:\ncall f, ();"), block=96
    )
    assert {v.verdict for v in result.barriers} == {"unknown"}
    assert result.barriers[0].reason == "a function that is called is not followed, and may come to barriers"


def judged(seed: int, launches: int, schedules: int) -> str:
    """The verdict on a random kernel, after it ran as the verdict says in so many launches, each in
    lockstep and in so many other schedules; "" for a kernel without barriers.
    """
    kernel = RandomRoles(seed)
    ptx = kernel.text()
    proof = prove_shared(ptx, block=kernel.block)
    if not proof.barriers:
        return ""
    if not proof.complete and not any("have come and" in v.reason for v in proof.violations):
        return (
            "unknown"  # or a barrier of all threads that not all come to, which the interpreter may let pass
        )
    for n, m, memory in ((3, 4, 1), (2, 2, 0), (3, 1, 1), (4, 5, 0), (0, 0, 0))[:launches]:
        for schedule in (None, 1, 2)[: schedules + 1]:
            result = outcome(ptx, kernel.block, n, m, memory, schedule)
            assert bool(result) != proof.complete, (seed, n, m, schedule, result, proof.report(), ptx)
    return "proved" if proof.complete else "violation"


def test_warps_that_are_followed_as_one_come_together_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether roles are proved does not depend on teams, which are most of the warps of these."""
    kernels = [RandomRoles(seed) for seed in range(12)]
    sizes: list[int] = []

    def told_sizes(control: Any, values: Any) -> list[list[int]]:
        result = teams(control, values)
        sizes.extend(map(len, result))
        return result

    def alone(_: Any, values: Any) -> list[list[int]]:
        return [[number] for number in range(len(values))]

    complete = []
    for of in (told_sizes, alone):
        monkeypatch.setattr(barrier_simulation, "teams", of)
        complete.append([prove_shared(kernel.text(), block=kernel.block).complete for kernel in kernels])
    assert complete[0] == complete[1]
    assert {True, False} <= {*complete[0]}
    assert max(sizes) > 1


def test_a_warp_that_is_told_apart_is_no_part_of_a_team() -> None:
    """Three warps do the same, but one of them may leave before the barrier of their role."""
    early = only_if("setp.eq.u32 %p9, %r4, 1;", "bra join;")
    assert roles((3, sync(1, 96)), (1, "")).proof().complete
    assert told(roles((3, early + sync(1, 96)), (1, "")).proof()).reason == (
        "warp 0 waits at barrier 1 for 96 threads, but 64 have come and the others have ended"
    )


@pytest.mark.slow
def test_random_roles_run_as_proved() -> None:
    result = Counter(judged(seed, 2, 1) for seed in range(12))
    assert result["proved"] > 5, result
    assert result["unknown"] > 3, result


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_more_random_roles_run_as_proved(first: int) -> None:
    result = Counter(judged(seed, 5, 2) for seed in range(first, first + 100))
    assert min(result[v] for v in ("proved", "violation", "unknown")) > 0, result
