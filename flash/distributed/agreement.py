"""What the ranks of a group tell each other before they exchange tensors, so that calls that do not fit
together are refused on every rank instead of hanging or mixing data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from flash.distributed.exchange import Form, Peers
from ptxgen.errors import LaunchError

_STEP: Final = "comparison of calls"
_DIGEST: Final = 32  # bytes of SHA-256
_ROWS: Final = 4  # the most numbers of rows of a call
_NUMBER: Final = 8  # bytes of a number of rows, and of the length of a text


def agreed_rows(
    peers: Peers, call: Mapping[str, str], rows: Sequence[int], problem: str, like: Tensor
) -> list[tuple[int, ...]]:
    """The numbers `rows` of each rank, at most `_ROWS` and as many on all, after all ranks have compared
    their calls, words by the names of arguments. `problem` is what this rank found wrong with its own call,
    or "".

    Raises `LaunchError` on every rank if the calls differ, with the ranks, or if a rank has a problem;
    `PeerError` as `Transfer.wait` does.
    """
    text = json.dumps({**call, **({"problem": problem} if problem else {})}).encode()
    padding = [0] * (_ROWS - len(rows))  # heads of other calls have as many bytes
    sizes = torch.tensor([*rows, *padding, len(text)], dtype=torch.int64).view(torch.uint8)
    own = torch.cat([sizes, torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.uint8)])
    others = [peer for peer in range(peers.world) if peer != peers.rank]
    own = own.to(like.device)
    form = Form(tuple(own.shape), own.dtype)
    heads = peers.start({p: [own] for p in others}, {p: [form] for p in others}, _STEP, like).wait()
    every = [own if p == peers.rank else heads[p][0] for p in range(peers.world)]
    found = [tensor.cpu() for tensor in every]
    numbers = [tensor[:-_DIGEST].clone().view(torch.int64).tolist() for tensor in found]
    if problem or any(not torch.equal(t[-_DIGEST:], found[0][-_DIGEST:]) for t in found):
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(like.device)
        wanted = {p: [Form((numbers[p][-1],), torch.uint8)] for p in others}
        texts = peers.start({p: [mine] for p in others}, wanted, _STEP, like).wait()
        said = [mine if p == peers.rank else texts[p][0] for p in range(peers.world)]
        raise _difference(peers, [json.loads(bytes(t.cpu().tolist())) for t in said])
    return [tuple(of_rank[: len(rows)]) for of_rank in numbers]


def _difference(peers: Peers, calls: list[dict[str, str]]) -> LaunchError:
    """The error for calls that differ, or of which some have problems."""
    if own := calls[peers.rank].get("problem"):
        return LaunchError(own)
    bad = {rank: call["problem"] for rank, call in enumerate(calls) if "problem" in call}
    if bad:
        rank = min(bad)
        return LaunchError(f"{peers.who}: rank {rank} refused its call, and nothing was sent: {bad[rank]}")
    names = [name for name in calls[0] if any(call.get(name) != calls[0][name] for call in calls)]
    lines = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, call in enumerate(calls):
            ranks.setdefault(call.get(name, "nothing"), []).append(rank)
        lines.append(f"{name} is " + ", but ".join(f"{value} on {_ranks(of)}" for value, of in ranks.items()))
    return LaunchError(
        f"{peers.who}: all ranks must make the same call, and nothing was sent: {'; '.join(lines)}"
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
