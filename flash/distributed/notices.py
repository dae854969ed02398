"""Notices of lost ranks: which rank a rank has lost, and why, sent to the others before it raises."""

from __future__ import annotations

import datetime
import functools
import queue
import struct
import time
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from flash.distributed.background import error_of, in_background

_TAG: Final = 0xF1A6
# Bytes of a notice: a checksum of what follows, the rank, and the reason in UTF-8, padded with zeros.
_BYTES: Final = 256
_CHECK: Final = struct.Struct("<I")
_RANK: Final = struct.Struct("<q")
_TAKEN_S: Final = 0.5  # seconds that a rank with an error waits for others to take its notice


class Notice(NamedTuple):
    """Rank `lost` has ended or does not answer, as rank `by` has noticed; both are the same rank if its call
    failed.
    """

    lost: int
    by: int
    why: str


class Notices:
    """The notices of the other ranks of a group. Memory for each is ready from the start, so that a notice
    arrives also while this rank does something else. A rank sends at most one, before it raises.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self._awaited: dict[int, tuple[Tensor, Any]] = {}
        for peer in range(dist.get_world_size(group)):
            if peer == rank:
                continue
            memory = torch.zeros(_BYTES, dtype=torch.uint8, device="cpu")
            try:
                work = dist.irecv(memory, dist.get_global_rank(group, peer), group=group, tag=_TAG)
            except RuntimeError:  # it has ended, which the messages of the next call notice
                continue
            self._awaited[peer] = memory, work

    def received(self) -> Mapping[int, Notice]:
        """The notices that have arrived, by the ranks that have sent them."""
        each = {peer: _read(memory, peer) for peer, (memory, _) in self._awaited.items()}
        return {peer: notice for peer, notice in each.items() if notice is not None}

    def cause(self, notice: Notice) -> Notice:
        """The first loss of which `notice` is a consequence: a rank raises, and so is lost to others, because
        of the loss that it has reported.
        """
        received, seen = self.received(), {notice.by}
        while notice.lost in received and notice.lost not in seen:
            seen.add(notice.lost)
            notice = received[notice.lost]
        return notice

    def tell(self, group: dist.ProcessGroup, notice: Notice, timeout: datetime.timedelta) -> None:
        """Send a notice to the other ranks, and wait up to `_TAKEN_S` for them to receive it; `timeout` is
        that of the group.
        """
        text = _RANK.pack(notice.lost) + notice.why.encode()[: _BYTES - _CHECK.size - _RANK.size]
        text = text.ljust(_BYTES - _CHECK.size, b"\0")
        message = torch.frombuffer(bytearray(_CHECK.pack(zlib.crc32(text)) + text), dtype=torch.uint8)
        taken: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        sends = []
        for peer in self._awaited:  # the lost one, too: it may be alive, and wait for this rank
            try:
                sends.append(dist.isend(message, dist.get_global_rank(group, peer), group=group, tag=_TAG))
            except (RuntimeError, ValueError):  # it has ended, or the group is destroyed
                continue
        for send in sends:
            in_background(functools.partial(_put, taken, send, timeout))
        last = time.monotonic() + _TAKEN_S
        try:
            for _ in sends:
                taken.get(timeout=max(0.0, last - time.monotonic()))
        except queue.Empty:
            return


def _put(taken: queue.SimpleQueue[str | None], send: Any, timeout: datetime.timedelta) -> None:
    """Wait for a send, and put its error, or None, into the queue `taken`."""
    taken.put(error_of([send], timeout))


def _read(memory: Tensor, by: int) -> Notice | None:
    """The notice in memory; None if it has not arrived, or not all of it."""
    message = memory.numpy().tobytes()
    (check,), text = _CHECK.unpack_from(message), message[_CHECK.size :]
    if check == 0 or check != zlib.crc32(text):
        return None
    (lost,) = _RANK.unpack_from(text)
    return Notice(lost, by, text[_RANK.size :].rstrip(b"\0").decode(errors="ignore"))
