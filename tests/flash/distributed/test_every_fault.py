"""A fault at every step of every call: no rank waits for ever, none has a wrong result, and none goes on as
if nothing had been.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

WORLD = 2
VICTIM = 1
# What the other ranks may say of each fault of rank 1, behind who lost whom in which step.
SAID = {
    "dies": "Connection closed by peer",
    "raises": "Connection closed by peer|it raised MemoryError: no memory",
    "goes silent": "(it lost rank 0: )?(Timed out waiting for recv operation|Connection closed by peer)",
    "sends too little": r"op\.preamble\.length <= op\.nbytes",
    "does not start": "Connection closed by peer|it lost rank 0: Connection refused",
}


def calls_of(torch: Any, what: str) -> Callable[[int], tuple[Callable[[], Any], Callable[[], Any]]]:
    """For a rank: a call, which gives its result as lists, and what it must leave as it is if it fails."""
    from flash.distributed import ContextParallel, ShardedKVCache

    def of(rank: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        x = torch.arange(256, dtype=torch.float32).reshape(1, 2, 16, 8).sin() + rank
        if what in ("ring", "gather", "ulysses", "2d"):
            cp = ContextParallel(None, "zigzag", what, **({"degree": 2} if what == "2d" else {}))  # type: ignore[arg-type]
            return lambda: cp.attention(x, x, x, causal=True).tolist(), x.tolist
        cp = ContextParallel(None, "striped", "ring")
        if what == "unshard":
            return lambda: cp.unshard(x).tolist(), x.tolist
        cache = ShardedKVCache(cp, 1, 3, 2, 8, 64, page_size=4)
        token = torch.ones(1, 2, 1, 8)

        def state() -> list[Any]:
            table = cache.local.block_table
            assert table is not None
            lengths = cache.lengths.tolist(), cache.local.lengths.tolist()
            return [*lengths, cache.local.free_pages, table.tolist()]

        if what == "append":
            return lambda: [cache.append(0, token, token, [0]), *state()], state
        assert what == "decode"
        return lambda: cache.attention(token, 0, token, token, sequences=[0]).tolist(), state

    return of


def done(torch: Any, what: str, fault: Any = None) -> Any:
    """The ranks after a call, the second of a rank whose first has failed, with what was changed by that."""
    from thread_ranks import ThreadRanks

    of, kept = calls_of(torch, what), {}

    def call(rank: int) -> Any:
        run, state = of(rank)
        kept[rank] = run, state, state()
        return run()

    def after(rank: int) -> Any:
        run, state, before = kept[rank]
        assert state() == before, "changed"
        return run()

    ranks = ThreadRanks(WORLD, fault)
    return ranks.run(call, after)


def check(torch: Any, what: str, how: str) -> int:
    """How many steps the call has, at each of which the fault was tried."""
    from thread_ranks import Fault

    from ptxgen.errors import PeerError

    right = done(torch, what)
    assert [rank.error for rank in right] == [None] * WORLD
    want = [rank.gave for rank in right]
    step = 0
    while True:
        other, victim = done(torch, what, Fault(VICTIM, step, how))
        if not victim.met:
            assert [other.gave, victim.gave] == want
            return step
        at = f"{how} at step {step}"
        if other.error is None:  # it had all that it needed
            assert other.gave == want[0], at
        else:
            assert isinstance(other.error, PeerError), (at, other.error)
            assert re.fullmatch(
                r"(ContextParallel|ShardedKVCache)\.\w+: rank 0 of 2 lost rank 1 in the step '[\w ,]+': it "
                r"ended, or did not answer within the timeout of the group; there is no result; restart the "
                r"group "
                rf"\((?:{SAID[how]})\)",
                str(other.error),
            ), (at, str(other.error))
            assert other.error.peer == VICTIM
            assert re.match(
                r"PeerError: \w+\.\w+: an earlier call on this group ended before its last message; there is "
                r"no result; restart the group \(PeerError: ",
                other.later[0],
            ), (at, other.later)
        if victim.error is not None:
            assert victim.later[0].startswith("PeerError: "), (at, victim.later)
            assert "an earlier call on this group ended before its last message" in victim.later[0], at
        step += 1


@pytest.mark.sample(3, gate=8)
@pytest.mark.parametrize("how", SAID)
@pytest.mark.parametrize("what", ["ring", "gather", "ulysses", "2d", "unshard", "append", "decode"])
def test_no_fault_at_any_step_gives_a_wrong_result_or_a_rank_that_waits(
    torch: ModuleType, what: str, how: str
) -> None:
    from thread_ranks import one_thread

    with one_thread():
        assert check(torch, what, how) >= 2


def test_another_version_on_a_rank_is_refused_before_anything_is_sent(
    torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from thread_ranks import ThreadRanks

    import ptxgen
    from flash.distributed import agreement

    ranks = ThreadRanks(WORLD)
    own = threading.local()

    class Versions:
        @property
        def __version__(self) -> str:
            return own.version

    monkeypatch.setattr(agreement, "ptxgen", Versions())
    of = calls_of(torch, "ring")

    def call(rank: int) -> object:
        own.version = "0.0.1" if rank == VICTIM else ptxgen.__version__
        return of(rank)[0]()

    for rank in ranks.run(call):
        assert str(rank.error) == (
            "ContextParallel.attention: all ranks must make the same call, and nothing was sent: the version "
            f"of ptxgen is {ptxgen.__version__} on rank 0, but 0.0.1 on rank 1"
        )
