"""A small transformer learns with this attention as with PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

VOCABULARY, LENGTH, BATCH = 13, 12, 2
LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 4
WIDTH = HEADS * DIM


@pytest.fixture
def ours(torch: Any) -> Iterator[Any]:
    """The adapter. The model is too small for torch's threads, which wait for each other longer than they
    compute.
    """
    import flash.adapters.torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield flash.adapters.torch
    torch.set_num_threads(threads)


def parameters(torch: Any, dtype: Any) -> dict[str, Any]:
    """The weights of a decoder with a bias of scores for each layer, the same in each type."""
    random = torch.Generator().manual_seed(3)

    def weight(*shape: int) -> Any:
        scale = 1 / math.sqrt(shape[-1])
        return (scale * torch.randn(shape, generator=random)).to(dtype).requires_grad_()

    result = {"embedding": weight(VOCABULARY, WIDTH), "position": weight(LENGTH, WIDTH)}
    for n in range(LAYERS):
        result[f"{n}.qkv"] = weight((HEADS + 2 * KV_HEADS) * DIM, WIDTH)
        result[f"{n}.bias"] = weight(HEADS, LENGTH, LENGTH)
        result[f"{n}.out"] = weight(WIDTH, WIDTH)
        result[f"{n}.up"] = weight(2 * WIDTH, WIDTH)
        result[f"{n}.down"] = weight(WIDTH, 2 * WIDTH)
    return result | {"head": weight(VOCABULARY, WIDTH)}


def loss_of(torch: Any, given: dict[str, Any], tokens: Any, attend: Callable[..., Any]) -> Any:
    """The cross entropy of each next token. `attend` is causal attention of q, k, v and bias."""
    functional = torch.nn.functional

    def normed(x: Any) -> Any:
        return functional.rms_norm(x, (WIDTH,))

    x = given["embedding"][tokens[:, :-1]] + given["position"]
    for n in range(LAYERS):
        rows = normed(x) @ given[f"{n}.qkv"].T
        q, k, v = rows.unflatten(-1, (-1, DIM)).transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1)
        x = x + attend(q, k, v, given[f"{n}.bias"]).transpose(1, 2).flatten(2) @ given[f"{n}.out"].T
        x = x + functional.gelu(normed(x) @ given[f"{n}.up"].T) @ given[f"{n}.down"].T
    logits = normed(x) @ given["head"].T
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def losses(torch: Any, steps: int, dtype: str, attend: Callable[..., Any]) -> list[float]:
    """The losses of steps of AdamW, each on new sequences, in which a token is one more than that before
    the last.
    """
    arguments = parameters(torch, getattr(torch, dtype))
    optimizer = torch.optim.AdamW(arguments.values(), lr=0.01)
    random = torch.Generator().manual_seed(4)
    result = []
    for _ in range(steps):
        first = torch.randint(VOCABULARY, (BATCH, 2), generator=random)
        tokens = [first[:, 0], first[:, 1]]
        while len(tokens) <= LENGTH:
            tokens.append((tokens[-2] + 1) % VOCABULARY)
        optimizer.zero_grad()
        loss = loss_of(torch, arguments, torch.stack(tokens, 1), attend)
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def in_torch(torch: Any) -> Callable[..., Any]:
    """PyTorch's attention, with causality in the bias."""

    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        masked = bias.masked_fill(hidden, -torch.inf)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return sdpa(q, k, v, masked[None].expand(len(q), -1, -1, -1), enable_gqa=True)

    return attend


def assert_learns_as_pytorch_does(torch: Any, ours: Any, steps: int, backend: str) -> list[float]:
    """The losses, which are those of PyTorch in float64 to rounding: training lets roundings grow, so each
    may be off by 4 times the most that PyTorch's own float32 was until then, whose roundings are others.
    """

    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return ours.attention(q, k, v, bias=bias, causal=True, backend=backend)

    exact, theirs = (losses(torch, steps, dtype, in_torch(torch)) for dtype in ("float64", "float32"))
    result, allowed = losses(torch, steps, "float32", attend), 2.0**-21  # an f32 from 2 to 4 rounds to that
    for step, (a, b, right) in enumerate(zip(result, theirs, exact, strict=True)):
        allowed = max(allowed, 4 * abs(b - right))
        assert abs(a - right) <= allowed, step
    assert allowed < 1e-4
    return result


@pytest.mark.slow
def test_200_steps_by_numpy(ours: Any, torch: Any) -> None:
    result = assert_learns_as_pytorch_does(torch, ours, 200, "cpu")
    assert result[-1] < result[0] / 4


@pytest.mark.slow
def test_3_steps_by_the_kernels(ours: Any, torch: Any) -> None:
    assert_learns_as_pytorch_does(torch, ours, 3, "interpreter")
