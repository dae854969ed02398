"""Tensors that ranks of a group send to each other, counted; and errors that name the peer."""

from __future__ import annotations

import copy
import math
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ptxgen.errors import LaunchError, PeerError

Messages = Mapping[int, Sequence[Tensor]]


class Form(NamedTuple):
    """The shape and type of a tensor that is received."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(math.prod(self.shape) * self.dtype.itemsize)


class Event(NamedTuple):
    """What a rank did from `begin` to `end`, in seconds of `time.perf_counter`: "compute", "wait" for
    other ranks, or "transfer", from the start of a message to the end of the wait for it.
    """

    kind: str
    what: str
    begin: float
    end: float


@dataclass
class Traffic:
    """What a rank did in one call: the bytes that it sent, by the names of the steps, without the few
    that compare calls; the number of scores that it computed; and its events.
    """

    sent: dict[str, int] = field(default_factory=dict)
    scores: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """All bytes that the rank sent."""
        return sum(self.sent.values())


@dataclass
class _Calls:
    """The calls of this process on a group: how many all ranks have agreed on, whether one has messages under
    way, and what ended one that had.
    """

    agreed: int = 0
    sending: bool = False
    failed: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


_CALLS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, _Calls]] = weakref.WeakKeyDictionary()


class Peers:
    """The ranks of a process group, as peers of this one; `calls` counts the calls on the group, of all
    `Peers` of it, that ranks have agreed on. They stay those of `group`, None for that of all processes, also
    when another group of all processes replaces it.
    """

    def __init__(self, group: dist.ProcessGroup | None, who: str) -> None:
        if group == dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
            raise LaunchError(
                f"{who}: process {dist.get_rank()} is not in the group; call on its processes only"
            )
        self.group: dist.ProcessGroup = dist.group.WORLD if group is None else group
        self.who = who
        self.rank = int(dist.get_rank(self.group))
        self.world = int(dist.get_world_size(self.group))
        self.calls = _CALLS.setdefault(self.group, _Calls())

    def named(self, who: str) -> Peers:
        """These peers, for the calls of another function, which errors then name."""
        found = copy.copy(self)
        found.who = who
        return found

    def _require_group(self) -> None:
        """Raise `LaunchError` if the group has been destroyed."""
        try:
            is_there = dist.get_rank(self.group) == self.rank
        except (RuntimeError, ValueError):  # it is not registered any more, or no group is
            is_there = False
        if not is_there:
            raise LaunchError(
                f"{self.who}: the process group of {self.world} ranks with which this object was made has "
                "been destroyed; make a new ContextParallel for the group that there is now, and new caches: "
                "of the tokens of the old ones each rank has its part only"
            )

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A call on the group, whose messages do not mix with those of others.

        Raises `LaunchError` if the group has been destroyed or another thread is in a call, `PeerError` if an
        earlier one ended before its last message.
        """
        self._require_group()
        if not self.calls.lock.acquire(blocking=False):
            raise LaunchError(
                f"{self.who}: another thread is in a call on this group, and messages of two would mix; "
                "give each thread a group of its own (torch.distributed.new_group), or call in turn"
            )
        try:
            if self.calls.failed:
                raise PeerError(
                    f"{self.who}: an earlier call on this group ended before its last message; there is no "
                    f"result; restart the group ({self.calls.failed})"
                )
            yield
            self.calls.sending = False
        except BaseException as error:
            if self.calls.sending and not self.calls.failed:
                self.calls.failed = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.calls.lock.release()

    def start(
        self, sends: Messages, receives: Mapping[int, Sequence[Form]], what: str, like: Tensor
    ) -> Transfer:
        """Start to send tensors to peers, and to receive others from peers, each as one message. Peers
        with nothing to send or receive are passed over, as they do. Received tensors are on the device
        of `like`. `what` names the step in errors.

        Raises `PeerError` if a peer cannot be reached.
        """
        self.calls.sending = True
        return Transfer(self, sends, receives, what, like)

    @property
    def device(self) -> torch.device:
        """Where tensors of the host must be to be sent."""
        if dist.get_backend(self.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def require_device(self, name: str, x: Tensor) -> None:
        """Raise `LaunchError` if the group cannot send a tensor from where it is."""
        try:
            self.group._get_backend(x.device)
        except RuntimeError:
            raise LaunchError(
                f"{self.who}: {name} is on {x.device}, from where a group of {dist.get_backend(self.group)} "
                "sends nothing; move it, or make the group with a backend for this device"
            ) from None

    def number(self, rank: int) -> int:
        """The number of a rank of this group in the group of all processes."""
        return int(dist.get_global_rank(self.group, rank))


class Transfer:
    """Messages under way."""

    def __init__(
        self, peers: Peers, sends: Messages, receives: Mapping[int, Sequence[Form]], what: str, like: Tensor
    ) -> None:
        self._peers, self._what, self._forms = peers, what, receives
        self._begin = time.perf_counter()
        self._out = {peer: _packed(tensors) for peer, tensors in sends.items()}
        self._in = {
            peer: torch.empty(sum(form.nbytes for form in forms), dtype=torch.uint8, device=like.device)
            for peer, forms in receives.items()
        }
        of = {dist.irecv: self._in, dist.isend: self._out}
        found = [
            (call, peer, m) for call, messages in of.items() for peer, m in messages.items() if m.numel()
        ]
        self.sent = sum(m.numel() for m in self._out.values())
        self._from = [peer for _, peer, _ in found]
        self._works: list[Any] = []
        if found:
            ops = [dist.P2POp(call, m, peers.number(peer), peers.group) for call, peer, m in found]
            try:
                self._works = dist.batch_isend_irecv(ops)
            except RuntimeError as error:
                raise self._failed(self._from, error) from error

    def wait(self, traffic: Traffic | None = None) -> dict[int, list[Tensor]]:
        """The received tensors, by peer. `traffic` gets the bytes sent and the events.

        Raises `PeerError` if a peer ended or did not send or take its message within the timeout of the
        group.
        """
        begin = time.perf_counter()
        each = len(self._works) == len(self._from)
        for n, work in enumerate(self._works):
            try:
                work.wait()
            except RuntimeError as error:
                raise self._failed([self._from[n]] if each else self._from, error) from error
        end = time.perf_counter()
        if traffic is not None:
            traffic.sent[self._what] = traffic.sent.get(self._what, 0) + self.sent
            if self._works:
                traffic.events += [
                    Event("transfer", self._what, self._begin, end),
                    Event("wait", self._what, begin, end),
                ]
        return {peer: _unpacked(m, self._forms[peer]) for peer, m in self._in.items()}

    def _failed(self, peers: Sequence[int], error: Exception) -> PeerError:
        own, among = self._peers, sorted(set(peers))
        names = f"rank {among[0]}" if len(among) == 1 else f"one of the ranks {', '.join(map(str, among))}"
        said = str(error).strip().partition("\n")[0].partition(". ")[0]  # without advice
        return PeerError(
            f"{own.who}: rank {own.rank} of {own.world} lost {names} in the step {self._what!r}: it ended, "
            f"or did not answer within the timeout of the group; there is no result; restart the group "
            f"({said})",
            among[0] if len(among) == 1 else None,
        )


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors, one after another."""
    parts = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    if not parts:
        return torch.empty(0, dtype=torch.uint8)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _unpacked(message: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """The tensors of a message. Each begins at a multiple of its element's size, if the larger elements
    come first.
    """
    found, at = [], 0
    for form in forms:
        part = message[at : at + form.nbytes]
        found.append(
            part.view(form.dtype).reshape(form.shape)
            if form.nbytes
            else part.new_empty(form.shape, dtype=form.dtype)
        )
        at += form.nbytes
    return found
