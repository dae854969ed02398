"""The first failure of a call on a group, which its ranks tell each other by the store of the group."""

from __future__ import annotations

import functools
import json
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from flash.distributed.background import in_background

_KEY: Final = "flash.distributed/loss"
_LOOK_S: Final = 0.2  # between two looks for what other ranks have noticed
_ANSWER_S: Final = 1.0  # that a rank with an error waits for the store, which may be lost, too


class Loss(NamedTuple):
    """Rank `lost` ended or did not answer, or its call failed, as rank `by` noticed after `calls` calls on
    which all ranks had agreed.
    """

    lost: int
    by: int
    calls: int
    why: str


class Losses:
    """What the ranks of a group know of losses: of all that they notice, the first. Without a store that
    answers, a rank knows what it has noticed itself.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def first(self, own: Loss) -> Loss:
        """The first loss of the group, which is this one if none was told before."""
        found: queue.SimpleQueue[Loss] = queue.SimpleQueue()
        in_background(lambda: found.put(self._told(own)))
        try:
            return found.get(timeout=_ANSWER_S)
        except queue.Empty:
            return own

    def watched(self, calls: int, tell: Callable[[Loss], object]) -> threading.Event:
        """Look again and again whether a rank has told a loss in a call beside number `calls`, and `tell` it;
        until the event is set.
        """
        ended = threading.Event()
        in_background(functools.partial(self._watch, calls, tell, ended))
        return ended

    def _watch(self, calls: int, tell: Callable[[Loss], object], ended: threading.Event) -> None:
        while not ended.wait(_LOOK_S):
            try:
                loss = _read(self._store.get(_KEY)) if self._store.check([_KEY]) else None
            except RuntimeError:  # the rank with the store has ended: its messages say so
                return
            if loss is not None and _is_of(loss, calls):
                tell(loss)
                return

    def _told(self, own: Loss) -> Loss:
        try:
            first = _read(self._store.compare_set(_KEY, "", json.dumps(own)))
        except RuntimeError:
            return own
        return first if _is_of(first, own.calls) else own


def _read(text: bytes) -> Loss:
    return Loss(*json.loads(text))


def _is_of(loss: Loss, calls: int) -> bool:
    """Whether a loss is one of the call that follows `calls` others, or of a neighbour: a rank that has lost
    another makes no call, and those that wait for it are one call ahead or behind at most. A store may have
    older ones, of a group with the same name.
    """
    return abs(loss.calls - calls) <= 1
