"""Elementwise maxima over the ranks of a group."""

from __future__ import annotations

import torch
from torch import Tensor

from flash.distributed.exchange import Form, Peers, Traffic


def largest(peers: Peers, values: Tensor, what: str, traffic: Traffic) -> Tensor:
    """The maximum of each element of `values` over the ranks, on every rank; NaN if one rank has NaN."""
    others = peers.others
    form = [Form(tuple(values.shape), values.dtype)]
    received = peers.start({p: [values] for p in others}, dict.fromkeys(others, form), what, values).wait(
        traffic
    )
    for peer in others:
        values = torch.maximum(values, received[peer][0])
    return values
