"""Gradients of tensors that every rank has, summed over the ranks in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor

from flash.distributed.agreement import RankCall, agreed
from flash.distributed.exchange import Form, Peers
from ptxgen.errors import LaunchError

_PARTS: Final = "parts of gradients"
_SUMS: Final = "sums of gradients"


def sum_gradients(peers: Peers, tensors: Iterable[Tensor]) -> None:
    """Replace the gradients of those tensors that have one by their sums over the ranks. Rank r sums a W-th
    of all elements, for W ranks, in the order of the ranks, in f32 or f64, and sends the sums to all: a rank
    sends 2 (W - 1) / W of its gradients' bytes.

    Raises `LaunchError` on every rank if tensors or gradients differ between ranks in number, shape or
    type, `PeerError` if a rank is lost.
    """
    listed = list(tensors)
    gradients = [t.grad.detach() for t in listed if t.grad is not None]

    def read() -> RankCall[None]:
        kinds = sorted({type(t).__name__ for t in gradients if type(t) is not Tensor})
        if kinds:
            raise LaunchError(f"{peers.caller}: gradients must be plain tensors, got {', '.join(kinds)}")
        words = {"number of tensors": str(len(listed))}
        for number, grad in enumerate(t.grad for t in listed):
            kind = None if grad is None else f"{str(grad.dtype).removeprefix('torch.')} {list(grad.shape)}"
            words[f"gradient of tensor {number}"] = str(kind)
        return RankCall(None, words)

    with peers.exclusive_call():
        agreed(peers, read)
        if peers.world == 1:
            return
        for dtype in sorted({t.dtype for t in gradients}, key=str):
            _sum(peers, [t for t in gradients if t.dtype == dtype])


def _sum(peers: Peers, gradients: Sequence[Tensor]) -> None:
    """Sum gradients of one type in place."""
    flat = torch.cat([t.reshape(-1) for t in gradients])
    ends = [len(flat) * rank // peers.world for rank in range(peers.world + 1)]
    parts = [flat[begin:end] for begin, end in itertools.pairwise(ends)]
    local = parts[peers.rank]
    form = Form(tuple(local.shape), local.dtype)
    sends = {p: [parts[p]] for p in peers.others}
    received = peers.start(sends, {p: [form] for p in peers.others}, _PARTS, flat).wait()
    total = torch.zeros_like(local, dtype=torch.promote_types(local.dtype, torch.float32))
    for rank in range(peers.world):
        total += local if rank == peers.rank else received[rank][0]
    local.copy_(total)
    forms = {p: [Form(tuple(parts[p].shape), local.dtype)] for p in peers.others}
    sums = peers.start({p: [local] for p in peers.others}, forms, _SUMS, flat).wait()
    for p in peers.others:
        parts[p].copy_(sums[p][0])
    at = 0
    for tensor in gradients:
        tensor.copy_(flat[at : at + tensor.numel()].reshape(tensor.shape))
        at += tensor.numel()
