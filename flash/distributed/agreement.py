"""The comparison of the calls of a group's ranks before they exchange tensors, so that calls that do not fit
together are refused on every rank instead of hanging or mixing data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

import ptxgen
from flash.distributed.arrays import OF_ROWS
from flash.distributed.exchange import Form, Peers
from ptxgen.errors import CacheFullError, ConfigError, LaunchError, PtxGenError

T = TypeVar("T")

_STEP: Final = "comparison of calls"
_NUMBERS: Final = 2 + 2 * len(OF_ROWS)  # the most numbers of a call (`calls.Call.numbers`)
_DIGEST: Final = 32  # bytes of SHA-256
_SHOWN_DIGITS: Final = 8  # hexadecimal digits of a digest in messages
_SHOWN_ENDS: Final = 9  # numbers of a longer list are shown by their first and last ones
_FUNCTION: Final = "the function"
_VERSION: Final = "the version of ptxgen"  # by another one, equal calls may send other messages
_PROBLEM: Final = "problem"
_KIND: Final = "kind of problem"
# What all ranks raise if one of them does. For other errors of a rank, the others raise LaunchError.
_KINDS: Final = {kind.__name__: kind for kind in (CacheFullError, ConfigError, LaunchError)}


class RankCall(NamedTuple, Generic[T]):
    """The call of one rank: `value`, which stays on the rank; `words`, by the names of
    arguments, which must be the same on all ranks; and `numbers`, which may differ.
    """

    value: T
    words: Mapping[str, str]
    numbers: Sequence[int] = ()


def agreed(peers: Peers, read: Callable[[], RankCall[T]]) -> tuple[T, list[tuple[int, ...]]]:
    """The value of this rank's call and the numbers of each rank's, after all ranks have compared their
    calls.

    Raises on every rank if calls differ, `LaunchError` with the ranks and what each has; or if `read` raises
    on some rank: that rank raises the same error, the others one of its kind that names the rank. `PeerError`
    as `Transfer.wait` does.
    """
    call: RankCall[T] | None = None
    refused: Exception | None = None
    words = {_FUNCTION: peers.caller, _VERSION: ptxgen.__version__}
    try:
        call = read()
        words |= call.words
    except Exception as error:  # raised below, when the other ranks know it
        refused = error
        is_ptxgen_error = isinstance(error, PtxGenError)
        words |= {
            _PROBLEM: str(error).removeprefix(f"{peers.caller}: ")
            if is_ptxgen_error
            else f"{type(error).__name__}: {error}",
            _KIND: next((name for name, kind in _KINDS.items() if isinstance(error, kind)), ""),
        }
    every = _compared(peers, words, call.numbers if call is not None else (), refused)
    assert call is not None  # or the ranks would not have agreed
    peers.calls.agreed += 1
    count = len(call.numbers)
    return call.value, [tuple(of_rank[:count]) for of_rank in every]


def _compared(
    peers: Peers, words: dict[str, str], numbers: Sequence[int], refused: Exception | None
) -> list[list[int]]:
    text = json.dumps(words).encode()
    counts = [len(text), *numbers, *[0] * (_NUMBERS - len(numbers))]
    sizes = torch.tensor(counts, dtype=torch.int64, device="cpu")
    digest = torch.frombuffer(bytearray(hashlib.sha256(text).digest()), dtype=torch.uint8)
    every = _sent_to_all(peers, torch.cat([sizes.view(torch.uint8), digest]), None)
    headers = [t[:-_DIGEST].clone().view(torch.int64).tolist() for t in every]
    if refused is not None or any(not torch.equal(t[-_DIGEST:], every[0][-_DIGEST:]) for t in every):
        message = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        texts = _sent_to_all(peers, message, [size for size, *_ in headers])
        if refused is not None:
            raise refused
        raise _difference(peers, [json.loads(bytes(t.tolist())) for t in texts])
    return [of_rank for _, *of_rank in headers]


def _sent_to_all(peers: Peers, local: Tensor, sizes: Sequence[int] | None) -> list[Tensor]:
    """The bytes of every rank, on the host, after an all-gather; `sizes` are their lengths, None if all have
    that of `local`.
    """
    forms = {p: [Form((len(local) if sizes is None else sizes[p],), torch.uint8)] for p in peers.others}
    message = local.to(peers.device)
    received = peers.start({p: [message] for p in peers.others}, forms, _STEP, message).wait()
    peers.calls.sending = False
    return [local if p == peers.rank else received[p][0].cpu() for p in range(peers.world)]


def _difference(peers: Peers, calls: Sequence[Mapping[str, str]]) -> PtxGenError:
    """The error for calls that differ between ranks, or were refused by another rank."""
    functions = {call[_FUNCTION] for call in calls}
    for rank, call in enumerate(calls):
        if _PROBLEM in call and len(functions) == 1:
            kind = _KINDS.get(call[_KIND], LaunchError)
            return kind(
                f"{peers.caller}: rank {rank} refused its call, and nothing was sent: {call[_PROBLEM]}"
            )
    names = dict.fromkeys(name for call in calls for name in call) if len(functions) == 1 else [_FUNCTION]
    lines = []
    for name in names:
        ranks: dict[str, list[int]] = {}
        for rank, call in enumerate(calls):
            ranks.setdefault(call.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            values = ", but ".join(f"{value} on {_ranks(of)}" for value, of in ranks.items())
            lines.append(f"{name} is {values}")
    return LaunchError(
        f"{peers.caller}: all ranks must make the same call, and nothing was sent: {'; '.join(lines)}"
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


# ----------------------------------------------------------------------------------------- words


def array_words(array: Any, *, without: int | None = None) -> str:
    """An array that all ranks must have the same, as a word: its type, shape and a digest of its elements,
    wherever it is and whatever its strides. `without` is an axis whose length may differ: the word is then
    without elements, too.
    """
    if array is None:
        return "None"
    tensor = array.detach() if isinstance(array, Tensor) else torch.as_tensor(array, device="cpu")
    kind = str(tensor.dtype).removeprefix("torch.")
    if without is not None and tensor.dim() >= -without:
        shape = [n for axis, n in enumerate(tensor.shape) if axis != tensor.dim() + without]
        return f"{kind} {shape}"
    return f"{kind} {list(tensor.shape)} with digest {_digest(_elements(tensor))}"


def array_number(array: Tensor) -> int:
    """The digest of an array's elements, which `array_words` shows as text, as a number."""
    return int(_digest(_elements(array.detach())), 16)


def _elements(array: Tensor) -> Any:
    """The bytes of an array's elements, on the host, without gaps."""
    return array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def numbers_words(numbers: Sequence[int]) -> str:
    """A list of integers as a word: with many, the first and last ones and a digest."""
    if len(numbers) <= _SHOWN_ENDS:
        return str(list(numbers))
    few = ", ".join(map(str, numbers[: _SHOWN_ENDS - 1]))
    return f"[{few}, ..., {numbers[-1]}] of {len(numbers)} with digest {_digest(repr(numbers).encode())}"


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:_SHOWN_DIGITS]
