"""Objects of a group that the program has destroyed, as after the loss of a rank."""

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


def _destroyed(who: str) -> str:
    return (
        f"LaunchError: {who}: the process group of {_WORLD} ranks with which this object was made has been "
        "destroyed; make a new ContextParallel for the group that there is now, and new caches: of the "
        "tokens of the old ones each rank has its part only"
    )


def test_objects_of_a_group_that_was_made_anew_with_fewer_ranks_are_refused(
    torch: ModuleType,  # noqa: ARG001
    tmp_path: Path,
) -> None:
    ranks = Ranks(_WORLD, _TIMEOUT)
    try:
        ranks.start("distributed_losses.restarted", str(tmp_path / "meeting"), _VICTIM)
        found = [ranks.result(rank) for rank in range(_WORLD) if rank != _VICTIM]
    finally:
        ranks.close()
    for without, old, lengths, works in found:
        assert without == _destroyed("ShardedKVCache.attention")
        assert old == {who: _destroyed(who) for who in old}
        assert len(old) == 8
        assert lengths == [[20]]
        assert works
