"""Ranks of a group that are threads of this process, with messages by queues, so that a fault can be put at
every one of their steps in a second. They stand for `torch.distributed` of gloo in `flash.distributed`.
"""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from messages import outcome

from flash.distributed.notices import _TAG as NOTICES

_TIMEOUT: Final = 30.0  # seconds that a rank waits for a message, on a machine with other work
_SILENCE: Final = 0.2  # the same, behind the moment at which a rank went silent
_LOOK: Final = 0.02
_ENDED: Final = torch.empty(0, dtype=torch.uint8)  # what comes from a rank that has ended


class DeadError(BaseException):
    """Ends the thread of a rank, as a signal ends a process."""


class Fault(NamedTuple):
    """What happens to a rank at its n-th step, from 0 on, where a step starts to send or to receive one
    message: it "dies", "raises" `MemoryError`, "goes silent", "sends too little", or "does not start" because
    its peer cannot be reached.
    """

    rank: int
    step: int
    how: str


@dataclass(eq=False)
class Group:
    """The group as one rank has it."""

    rank: int
    steps: int = 0
    met: bool = False  # whether the fault has happened
    is_dead: bool = False
    silent: float = 0.0  # since when its messages are lost, seconds of the monotonic clock; 0 if they are not
    gave: Any = None
    error: Exception | None = None
    later: list[str] = field(default_factory=list)

    def _get_backend(self, device: torch.device) -> Any:
        assert device.type == "cpu"
        return mock.Mock(options=mock.Mock(_timeout=datetime.timedelta(seconds=_TIMEOUT)))


class _Work(NamedTuple):
    wait: Callable[[datetime.timedelta], None]


class ThreadRanks:
    """`world` ranks, of which one may have a fault. It has what `flash.distributed` uses of
    `torch.distributed`.
    """

    def __init__(self, world: int, fault: Fault | None = None) -> None:
        self.world, self.fault = world, fault
        self.queues = {(a, b): queue.Queue[torch.Tensor]() for a in range(world) for b in range(world)}
        self.notices: dict[tuple[int, int], torch.Tensor] = {}  # memory for those of the first to the second
        self.groups = [Group(rank) for rank in range(world)]
        self._own = threading.local()
        self.GroupMember = mock.Mock(NON_GROUP_MEMBER=object())

    def run(self, call: Callable[[int], Any], after: Callable[[int], Any] | None = None) -> list[Group]:
        """Let each rank do a call. A rank whose call ends by an error does `after`, whose error is kept, and
        ends.
        """
        threads = [threading.Thread(target=self._run, args=(g, call, after)) for g in self.groups]
        with (
            mock.patch("flash.distributed.exchange.dist", self),
            mock.patch("flash.distributed.notices.dist", self),
            mock.patch("flash.distributed.parallel.dist", self),
        ):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "a rank hangs"
        return self.groups

    def _run(self, group: Group, call: Callable[[int], Any], after: Callable[[int], Any] | None) -> None:
        self._own.group = group
        try:
            group.gave = call(group.rank)
        except DeadError:
            pass
        except Exception as error:
            group.error = error
            if after is not None:
                group.later.append(outcome(lambda: after(group.rank)))
        finally:
            if group.gave is None:  # or its messages are under way, and its process lives
                for peer in range(self.world):
                    self.queues[group.rank, peer].put(_ENDED)

    # ------------------------------------------------------------------------ torch.distributed

    @property
    def group(self) -> Any:
        """The group of all."""
        return mock.Mock(WORLD=self._own.group)

    ProcessGroup = Group

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_rank(self, group: Group | None = None) -> int:
        own: Group = self._own.group
        assert group is None or group is own
        return own.rank

    def get_world_size(self, _: Group | None = None) -> int:
        return self.world

    def get_global_rank(self, _: Group, rank: int) -> int:
        return rank

    def get_backend(self, _: Group | None = None) -> str:
        return "gloo"

    def isend(self, message: torch.Tensor, peer: int, *, group: Group, tag: int) -> _Work:
        if tag == NOTICES:
            memory = self.notices.get((group.rank, peer))
            if memory is not None and not group.is_dead and not group.silent:
                memory.copy_(message)
            return _Work(lambda _: None)
        assert tag
        how = self._step()
        if how == "sends too little":
            message = message[:-1]
        if not group.silent:
            self.queues[group.rank, peer].put(message.clone())
        return _Work(lambda _: None)

    def irecv(self, into: torch.Tensor, peer: int, *, group: Group, tag: int) -> _Work:
        if tag == NOTICES:
            self.notices[peer, group.rank] = into
            return _Work(lambda _: None)
        assert tag
        self._step()
        return _Work(lambda _: self._receive(self.queues[peer, group.rank], into))

    def _receive(self, box: queue.Queue[torch.Tensor], into: torch.Tensor) -> None:
        """What a wait for a message does, in any thread."""
        begin = time.monotonic()
        while True:
            try:
                result = box.get(timeout=_LOOK)
                break
            except queue.Empty:
                silent = [group.silent for group in self.groups if group.silent]
                end = silent[0] + _SILENCE if silent else begin + _TIMEOUT
                if time.monotonic() > end:
                    raise RuntimeError("Timed out waiting for recv operation") from None
        if result is _ENDED:
            box.put(_ENDED)
            raise RuntimeError("Connection closed by peer")
        if result.numel() != into.numel():
            raise RuntimeError(f"op.preamble.length <= op.nbytes. {result.numel()} vs {into.numel()}")
        into.copy_(result)

    def _step(self) -> str:
        """The fault of this step of this rank, "" if it has none."""
        own: Group = self._own.group
        number, own.steps = own.steps, own.steps + 1
        if self.fault is None or (own.rank, number) != self.fault[:2]:
            return ""
        own.met = True
        own.silent = time.monotonic() if self.fault.how == "goes silent" else 0.0
        if self.fault.how == "dies":
            own.is_dead = True
            raise DeadError
        if self.fault.how == "raises":
            raise MemoryError("no memory")
        if self.fault.how == "does not start":
            raise RuntimeError("Connection refused. This may help: restart")
        return self.fault.how


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread for each rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
