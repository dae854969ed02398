"""Kernels that a proof could get lost in: each has a verdict after a bounded number of steps, and
none ends in a `RecursionError`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from check.prove.test_sound import CONTRACT, kernel
from kernel_runs import nightly

from ptxgen.check.prove import prove

STORES = (
    "and.b32 %r5, %r5, 7; mad.lo.u32 %r9, %r5, 4, %r8; st.shared.u32 [%r9], %r0;"
    "mad.wide.u32 %rd3, %r5, 4, %rd1; st.global.u32 [%rd3], %r0;"
)


def loops(depth: int, turns: int) -> str:
    """Loops in loops, and an access that all of their counters decide."""
    opened = "".join(f"mov.u32 %r{20 + n}, 0;\nL{n}:\n" for n in range(depth))
    summed = "mov.u32 %r5, 0;" + "".join(f"mad.lo.u32 %r5, %r5, {turns}, %r{20 + n};" for n in range(depth))
    closed = "".join(
        f"add.u32 %r{20 + n}, %r{20 + n}, 1; setp.lt.u32 %p1, %r{20 + n}, {turns};@%p1 bra L{n};\n"
        for n in reversed(range(depth))
    )
    many = summed + "shr.u32 %r6, %r5, 14; mad.lo.u32 %r9, %r6, 4, %r8;"
    return f"{opened}{many} st.shared.u32 [%r9], %r0; {STORES}{closed}"


def joins(count: int, test: str, changed: str) -> str:
    """Values that meet again and again."""
    ways = "".join(f"{test.format(n)} @%p1 bra L{n}; {changed}\nL{n}:\n" for n in range(count))
    return f"mov.u32 %r5, 0;\n{ways}{STORES}"


def of_memory(count: int) -> str:
    test = "ld.global.u32 %r4, [%rd0]; setp.eq.u32 %p1, %r4, {};"
    return joins(count, test, "add.u32 %r5, %r5, 1;")


def of_threads(count: int) -> str:
    return joins(count, "setp.eq.u32 %p1, %r0, {};", "add.u32 %r5, %r5, 1;")


def of_pointers(count: int) -> str:
    changed = "add.u32 %r8, %r8, 4; add.u64 %rd1, %rd1, 4;"
    return joins(count, "setp.eq.u32 %p1, %r1, {};", changed)


def exits(count: int) -> str:
    """Branches that all lead to the end."""
    test = "ld.global.u32 %r4, [%rd0]; setp.eq.u32 %p1, %r4, {0}; @%p1 bra end; add.u32 %r5, %r5, 1;"
    return "mov.u32 %r5, 0;" + "".join(test.format(n) for n in range(count)) + "end:" + STORES


def choices(count: int) -> str:
    """A choice of a choice, and so on."""
    built = "setp.eq.u32 %p1, %r1, {}; add.u32 %r4, %r5, 1; selp.u32 %r5, %r4, %r5, %p1;"
    return "mov.u32 %r5, 0;" + "".join(built.format(n) for n in range(count)) + STORES


def powers(count: int) -> str:
    """A polynomial of a degree that no memory holds."""
    return "mov.u32 %r5, %r1;" + "mad.lo.u32 %r5, %r5, %r5, %r1;" * count + STORES


BODIES: dict[str, tuple[Callable[[], str], str]] = {
    "loops": (lambda: loops(3, 100), "proved"),
    "joins that memory decides": (lambda: of_memory(600), "unknown"),
    "joins that the thread decides": (lambda: of_threads(600), "unknown"),
    "joins of pointers": (lambda: of_pointers(600), "unknown"),
    "exits": (lambda: exits(600), "unknown"),
    "choices": (lambda: choices(600), "unknown"),
    "powers": (lambda: powers(1600), "proved"),
}
FEW: dict[str, tuple[Callable[[], str], str]] = {
    "loops": (lambda: loops(3, 5), "proved"),
    "joins": (lambda: of_threads(8), "proved"),
    "powers": (lambda: powers(60), "proved"),
}


def verdict_of(body: str) -> str:
    result = prove(kernel(body, 64), block=32, contract=CONTRACT)
    assert result.global_memory is not None
    return result.shared.accesses[-1].verdict


@pytest.mark.parametrize("name", FEW)
def test_a_search_of_few_has_a_verdict(name: str) -> None:
    body, verdict = FEW[name]
    assert verdict_of(body()) == verdict


def test_many_joins_do_not_go_as_deep_as_the_stack() -> None:
    (result,) = prove(kernel(of_pointers(250), 64), block=32).shared.accesses
    assert result.verdict == "unknown"


@pytest.mark.parametrize("name", [nightly(name) for name in BODIES])
def test_a_search_of_many_has_a_verdict(name: str) -> None:
    body, verdict = BODIES[name]
    assert verdict_of(body()) == verdict


def test_a_search_that_is_given_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.check.prove.shared_memory._STEPS_OF_ACCESS", 10)
    (first, _) = prove(kernel(loops(3, 5), 64), block=32).shared.accesses
    assert first.verdict == "unknown"
    assert first.reason == "listing its address takes more than 80000 steps"
