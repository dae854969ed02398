"""Waits that may give up: one whose predicate nothing reads is named."""

from __future__ import annotations

import pytest
from interpreter.programs import at, ptx
from interpreter.reported import messages


def may_give_up(use: str = "") -> str:
    """A thread waits for an mbarrier, and then uses its predicate."""
    body = """
    mov.u32 %r0, buf;
    mbarrier.init.shared.b64 [%r0], 1;
    mbarrier.arrive.shared.b64 %rd0, [%r0];
    mbarrier.try_wait.shared.b64 %p0, [%r0], %rd0;
    {use}
    """
    return ptx(body.format(use=use), shared=8)


def test_a_wait_that_may_give_up_is_named() -> None:
    text = may_give_up()
    (result,) = messages(text, block=1)
    assert result.startswith(at(text, "mbarrier.try_wait")), result
    assert result.endswith("the wait may give up, and nothing looks at its predicate")


@pytest.mark.parametrize(
    "use",
    ["@!%p0 trap;", "not.pred %p1, %p0;", "setp.ne.and.u32 %p1, %r0, 0, !%p0;"],
    ids=["guard", "operand", "negated operand"],
)
def test_a_wait_whose_predicate_is_read_is_not_named(use: str) -> None:
    assert messages(may_give_up(use), block=1) == []
