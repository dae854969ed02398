"""Tensors that ranks of a group send to each other, counted; and errors that name the peer."""

from __future__ import annotations

import copy
import datetime
import functools
import math
import queue
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flash.distributed.background import error_of, in_background, short_message
from flash.distributed.notices import Notice, Notices
from ptxgen.errors import LaunchError, PeerError

# gloo keeps messages with other tags, such as those of the program, apart from these. NCCL has no tags.
_TAG: Final = 0xF1A5
_LOOK_S: Final = 0.2  # seconds after which a rank that waits looks for notices of others
# By this much the messages of a step outlive the wait for them: gloo closes the connections to all ranks
# when it gives a message up, and before that the other ranks must know which rank is lost.
_LATER: Final = datetime.timedelta(seconds=5)

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


class _Failure(NamedTuple):
    """The error that ended a call with messages under way, and the lost rank, which is this rank if its call
    failed.
    """

    message: str
    peer: int | None


@dataclass
class _Calls:
    """The calls of this process on a group: how many all ranks have agreed on, whether one has messages under
    way, and the failure that ended such a call.
    """

    agreed: int = 0
    sending: bool = False
    failed: _Failure | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


# PyTorch holds a group until it is destroyed; another strong reference would keep its connections open.
_CALLS: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, _Calls]] = weakref.WeakKeyDictionary()
_NOTICES: Final[weakref.WeakKeyDictionary[dist.ProcessGroup, Notices]] = weakref.WeakKeyDictionary()


class Peers:
    """The ranks of a process group, as peers of this one; `calls` counts the calls on the group, of all
    `Peers` of it, that ranks have agreed on. `group` None is the group of all processes when the object is
    made; the object does not follow a later one.
    """

    def __init__(self, group: dist.ProcessGroup | None, caller: str) -> None:
        if group == dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
            raise LaunchError(
                f"{caller}: process {dist.get_rank()} is not in the group; call on its processes only"
            )
        of: dist.ProcessGroup = dist.group.WORLD if group is None else group
        self._group = weakref.ref(of)
        self.caller = caller
        self.rank = int(dist.get_rank(of))
        self.world = int(dist.get_world_size(of))
        self.is_on_host = dist.get_backend(of) != "nccl"  # so that threads can wait for messages
        self.calls = _CALLS.setdefault(of, _Calls())
        if self.is_on_host and of not in _NOTICES:
            _NOTICES[of] = Notices(of, self.rank)

    def named(self, caller: str) -> Peers:
        """A copy of these peers whose errors name the function `caller`."""
        peers = copy.copy(self)
        peers.caller = caller
        return peers

    @property
    def others(self) -> list[int]:
        """The numbers of all other ranks of the group."""
        return [peer for peer in range(self.world) if peer != self.rank]

    @property
    def group(self) -> dist.ProcessGroup:
        """The group. Raises `LaunchError` if it has been destroyed."""
        group = self._group()
        try:
            exists = group is not None and dist.get_rank(group) == self.rank
        except (RuntimeError, ValueError):  # this group, or every group, has been destroyed
            exists = False
        if not exists:
            raise LaunchError(
                f"{self.caller}: the process group of {self.world} ranks with which this object was made has "
                "been destroyed; make a new ContextParallel for the group that there is now, and new caches: "
                "of the tokens of the old ones each rank has its part only"
            )
        return group

    @contextmanager
    def exclusive_call(self) -> Iterator[None]:
        """A call on the group, whose messages do not mix with those of others.

        Raises `LaunchError` if the group has been destroyed or another thread is in a call, `PeerError` if an
        earlier one ended before its last message.
        """
        _ = self.group  # raises if it has been destroyed
        if not self.calls.lock.acquire(blocking=False):
            raise LaunchError(
                f"{self.caller}: another thread is in a call on this group, and messages of two would mix; "
                "give each thread a group of its own (torch.distributed.new_group), or call in turn"
            )
        try:
            if self.calls.failed:
                raise PeerError(
                    f"{self.caller}: an earlier call on this group ended before its last message; there is "
                    f"no result; restart the group ({self.calls.failed.message})",
                    self.calls.failed.peer,
                )
            yield
            self.calls.sending = False
        except BaseException as error:
            if self.calls.sending and not self.calls.failed:
                self._fail(error)
            raise
        finally:
            self.calls.lock.release()

    def _fail(self, error: BaseException) -> None:
        """Note the error that ends a call with messages under way, and tell the others, which wait for this
        rank.
        """
        message = f"{type(error).__name__}: {error}"
        if isinstance(error, PeerError):  # reported already
            self.calls.failed = _Failure(message, error.peer)
        else:
            self.calls.failed = _Failure(message, self.rank)
            self._tell(Notice(self.rank, self.rank, f"it raised {message}"))

    def _tell(self, notice: Notice) -> None:
        group = self._group()
        if group in _NOTICES:
            _NOTICES[group].tell(group, notice, self.timeout)

    def reporting_rank(self) -> int | None:
        """A rank that has reported a lost rank; None if none has."""
        return next(iter(_NOTICES[self.group].received()), None)

    def lost(self, among: Collection[int], what: str, why: str = "") -> PeerError:
        """The error to raise when a peer is lost in the step `what`. `among` are the peers one of which is
        lost: several where the backend does not name it. If another rank has reported an earlier loss, the
        error is about that one; all ranks are notified.
        """
        if len(among) > 1:
            return self._error(None, f"one of the ranks {', '.join(map(str, sorted(among)))}", what, why)
        [peer] = among
        notice = Notice(peer, self.rank, why)
        if self.is_on_host:
            notice = _NOTICES[self.group].cause(notice)
        peer, by, why = notice
        if peer == self.rank:  # rank `by` has given this one up
            notice = Notice(peer, peer, f"rank {by} lost it: {why}")
            peer, why = by, f"it lost rank {peer}: {why}"
        elif by not in (self.rank, peer):
            why = f"as rank {by} noticed: {why}"
        self._tell(notice)
        return self._error(peer, f"rank {peer}", what, why)

    def _error(self, peer: int | None, names: str, what: str, why: str) -> PeerError:
        return PeerError(
            f"{self.caller}: rank {self.rank} of {self.world} lost {names} in the step {what!r}: it ended, "
            "or "
            f"did not answer within the timeout of the group; there is no result; restart the group ({why})",
            peer,
        )

    def start(
        self, sends: Messages, receives: Mapping[int, Sequence[Form]], what: str, like: Tensor
    ) -> Transfer:
        """Start to send tensors to peers, and to receive others from peers, each as one message. Peers with
        nothing to send or receive are skipped, by both sides. Received tensors are on the device of `like`.
        `what` names the step in errors.

        Raises `PeerError` if a peer cannot be reached.
        """
        self.calls.sending = True
        return Transfer(self, sends, receives, what, like)

    @property
    def timeout(self) -> datetime.timedelta:
        """How long the group waits for a message on the host."""
        timeout: datetime.timedelta = self.group._get_backend(torch.device("cpu")).options._timeout
        return timeout

    @property
    def device(self) -> torch.device:
        """The device on which tensors of the host must be to be sent."""
        if self.is_on_host:
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def require_device(self, name: str, x: Tensor) -> None:
        """Raise `LaunchError` if the group cannot send tensors of the device of `x`."""
        try:
            self.group._get_backend(x.device)
        except RuntimeError:
            raise LaunchError(
                f"{self.caller}: {name} is on {x.device}, from where a group of "
                f"{dist.get_backend(self.group)} "
                "sends nothing; move it, or make the group with a backend for this device"
            ) from None

    def number(self, rank: int) -> int:
        """The number, in the group of all processes, of rank `rank` of this group."""
        return int(dist.get_global_rank(self.group, rank))


class Transfer:
    """Messages to and from peers that are under way."""

    def __init__(
        self, peers: Peers, sends: Messages, receives: Mapping[int, Sequence[Form]], what: str, like: Tensor
    ) -> None:
        self._peers, self._what, self._forms = peers, what, receives
        self._begin = time.perf_counter()
        self._out = {peer: _packed(tensors, like) for peer, tensors in sends.items()}
        self._in = {
            peer: torch.empty(sum(form.nbytes for form in forms), dtype=torch.uint8, device=like.device)
            for peer, forms in receives.items()
        }
        self.sent = sum(m.numel() for m in self._out.values())
        self._is_on_host = like.device.type == "cpu"
        self._works: dict[int, list[Any]] = {}  # by peer
        of = {dist.irecv: self._in, dist.isend: self._out}
        messages = [(call, p, m) for call, each in of.items() for p, m in each.items() if m.numel()]
        for call, peer, message in messages if self._is_on_host else ():
            try:
                work = call(message, peers.number(peer), group=peers.group, tag=_TAG)
            except RuntimeError as error:
                raise peers.lost((peer,), what, short_message(error)) from error
            self._works.setdefault(peer, []).append(work)
        self._on_stream: list[Any] = []
        self._among = {peer for _, peer, _ in messages}
        if messages and not self._is_on_host:
            ops = [dist.P2POp(c, m, peers.number(p), peers.group, _TAG) for c, p, m in messages]
            try:
                self._on_stream = dist.batch_isend_irecv(ops)
            except RuntimeError as error:
                raise peers.lost(self._among, what, short_message(error)) from error

    def wait(self, traffic: Traffic | None = None) -> dict[int, list[Tensor]]:
        """The received tensors, by peer. `traffic` gets the bytes sent and the events.

        Raises `PeerError` if a peer ended or did not send or take its message within the timeout of the
        group, or if another rank has reported a loss.
        """
        begin = time.perf_counter()
        self._await_every_peer()
        if (error := error_of(self._on_stream)) is not None:
            raise self._peers.lost(self._among, self._what, error)
        end = time.perf_counter()
        if traffic is not None:
            traffic.sent[self._what] = traffic.sent.get(self._what, 0) + self.sent
            if self._among:
                traffic.events += [
                    Event("transfer", self._what, self._begin, end),
                    Event("wait", self._what, begin, end),
                ]
        return {peer: _unpacked(m, self._forms[peer]) for peer, m in self._in.items()}

    def _await_every_peer(self) -> None:
        """Wait for the messages on the host of all peers at once, so that a slow peer does not hide that
        another is lost.
        """
        peers, timeout = self._peers, self._peers.timeout if self._works else datetime.timedelta()
        ended: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        for peer, works in self._works.items():
            in_background(functools.partial(_put_end, ended, peer, works, timeout + _LATER))
        left, waited = set(self._works), 0.0
        while left:
            try:
                peer, error = ended.get(timeout=_LOOK_S)
            except queue.Empty:
                if (by := peers.reporting_rank()) is not None:
                    raise peers.lost((by,), self._what) from None
                waited += _LOOK_S  # not by the clock, which goes on while this process is stopped
                if waited >= timeout.total_seconds():
                    silent = f"no answer within {timeout.total_seconds():g} s"
                    raise peers.lost((min(left),), self._what, silent) from None
                continue
            if error is not None:
                raise peers.lost((peer,), self._what, error)
            left.discard(peer)


def _put_end(
    ended: queue.SimpleQueue[tuple[int, str | None]],
    peer: int,
    works: Sequence[Any],
    timeout: datetime.timedelta,
) -> None:
    """Wait for the messages of a peer, and put the peer and its error, or None, into the queue `ended`."""
    ended.put((peer, error_of(works, timeout)))


def _packed(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """The bytes of tensors, one after another; without any, on the device of `like`."""
    parts = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    if not parts:
        return like.new_empty(0, dtype=torch.uint8)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _unpacked(message: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """The tensors of a message. Each begins at a multiple of its element's size, if the larger elements
    come first.
    """
    tensors, at = [], 0
    for form in forms:
        part = message[at : at + form.nbytes]
        tensors.append(
            part.view(form.dtype).reshape(form.shape)
            if form.nbytes
            else part.new_empty(form.shape, dtype=form.dtype)
        )
        at += form.nbytes
    return tensors
