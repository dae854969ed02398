"""Three processes of which one is lost, and objects of a group that is destroyed after that."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import ModuleType

import pytest
from distributed_ranks import Ranks

pytestmark = pytest.mark.slow

_TIMEOUT = datetime.timedelta(seconds=60)
_VICTIM = 1
_WORLD = 3


def _destroyed(caller: str) -> str:
    return (
        f"LaunchError: {caller}: the process group of {_WORLD} ranks with which this object was made has "
        "been destroyed; make a new ContextParallel for the group that there is now, and new caches: of the "
        "tokens of the old ones each rank has its part only"
    )


def test_objects_of_a_group_that_was_made_anew_with_fewer_ranks_are_refused(
    torch: ModuleType,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    ranks = Ranks(_WORLD, _TIMEOUT)
    try:
        ranks.start("distributed_losses.restarted", str(tmp_path / "meeting"), _VICTIM)
        result = [ranks.result(rank) for rank in range(_WORLD) if rank != _VICTIM]
    finally:
        ranks.close()
    for without, old, lengths, works in result:
        assert without == _destroyed("ShardedKVCache.attention")
        assert old == {caller: _destroyed(caller) for caller in old}
        assert len(old) == 8
        assert lengths == [[20]]
        assert works


@pytest.mark.parametrize("how", ["SIGKILL", "destroyed", pytest.param("SIGSTOP", marks=pytest.mark.nightly)])
def test_a_lost_process_is_named_by_all_while_another_is_slow(
    torch: ModuleType,  # noqa: ARG001
    tmp_path: Path,
    how: str,
) -> None:
    timeout = datetime.timedelta(seconds=3) if how == "SIGSTOP" else _TIMEOUT
    ranks = Ranks(_WORLD, timeout)
    try:
        ranks.start("distributed_losses.lost_beside_a_slow_one", _VICTIM, 2, how, str(tmp_path))
        result = [ranks.result(rank) for rank in (0, 2)]
    finally:
        ranks.close()
    for rank, (said, peer, in_time) in zip((0, 2), result, strict=True):
        assert peer == _VICTIM, said
        assert said.startswith(
            f"ContextParallel.attention: rank {rank} of 3 lost rank 1 in the step 'comparison of calls': "
            "it ended, or did not answer within the timeout of the group; there is no result; restart the "
            "group ("
        )
        assert in_time or how == "SIGSTOP"


def test_messages_of_the_program_on_the_same_group_are_kept_apart(ranks: Ranks) -> None:
    assert ranks.run("distributed_losses.beside_messages_of_the_program") == [True] * 4
