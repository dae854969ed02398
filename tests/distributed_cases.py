"""What the ranks of a group do in tests of `flash.distributed`."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import flash
from flash.distributed import ContextParallel
from flash.mods import where

_ARRAYS = ("bias", "key_bias", "sink")


@functools.cache
def group_of(world: int) -> Any:
    """The group of the first ranks. All ranks must ask for a size the first time."""
    return dist.new_group(list(range(world)))


def _inputs(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int, dim_v: int, dtype: Any
) -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = (
        (batch, heads, queries, dim),
        (batch, kv_heads, keys, dim),
        (batch, kv_heads, keys, dim_v),
        (batch, heads, queries, dim_v),
    )
    return [torch.randn(shape, generator=make).to(dtype) for shape in shapes]


def distance_mod(score: Any, batch: Any, head: Any, query: Any, key: Any, slopes: Any) -> Any:
    """A function of scores of all indices."""
    return score - slopes[head] * abs(query - key) + where(batch == 1, 0.25, 0.0)


def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A function that hides some keys, of all indices."""
    return (query * 3 + key * 5 + head + batch) % 4 != 0


def _scores(words: tuple[str, ...], batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    make = torch.Generator().manual_seed(1)
    every: dict[str, Any] = {
        "bias": torch.randn((1, heads, queries, keys), generator=make),
        "key_bias": torch.randn((batch, 1, keys), generator=make),
        "mask": torch.rand((batch, 1, queries, keys), generator=make) < 0.7,
        "sink": torch.randn(heads, generator=make),
        "alibi_slopes": torch.rand(heads, generator=make),
        "softcap": 1.5,
        "score_mod": distance_mod,
        "mask_mod": mask_mod,
        "dropout": 0.25,
        "softmax_scale": 0.3,
    }
    found = {word: every[word] for word in words}
    if "score_mod" in found:
        found["aux"] = {"slopes": torch.rand(heads, generator=make)}
    if "dropout" in found:
        found["dropout_seed"] = 7
    return found


def group_of_none(world: int) -> None:
    """Make the group of the first ranks."""
    group_of(world)


def compare(
    world: int,
    layout: str,
    scheme: str,
    *,
    queries: int = 70,
    keys: int | None = None,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    dim_v: int = 16,
    dtype: str = "float32",
    causal: Any = False,
    window: Any = None,
    scores: tuple[str, ...] = (),
    gradients: bool = True,
    degree: int | None = None,
    tensors: str = "bhsd",
    backend: str = "auto",
) -> dict[str, Any] | None:
    """The largest errors of out, lse and gradients against one device, relative to the largest element,
    and the bytes sent against the plan's.
    """
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    keys = queries if keys is None else keys
    q, k, v, dout = _inputs(batch, heads, kv_heads, queries, keys, dim, dim_v, getattr(torch, dtype))
    given = _scores(scores, batch, heads, queries, keys)
    settings: dict[str, Any] = {"causal": causal, "backend": backend}
    if window is not None:
        settings["window"] = window
    one_out, one_lse = flash.attention(q, k, v, return_lse=True, **settings, **given)
    dlse = torch.sin(torch.arange(one_lse.numel(), dtype=torch.float32)).reshape(one_lse.shape)
    dlse[one_lse == -torch.inf] = 0

    cp = ContextParallel(group, layout, scheme, degree=degree)
    own = {**given}
    for name in ("bias", "mask"):
        if name in own:
            own[name] = cp.shard(own[name])
    parts = {"q": cp.shard(q), "k": cp.shard(k), "v": cp.shard(v)}
    if tensors == "bshd":
        parts = {n: t.transpose(1, 2) for n, t in parts.items()}
    leaves = parts | {n: own[n] for n in _ARRAYS if n in own}
    for n, t in leaves.items():
        leaves[n] = t.detach().requires_grad_(gradients)
    own |= {n: leaves[n] for n in _ARRAYS if n in own}
    out, lse = cp.attention(
        leaves["q"], leaves["k"], leaves["v"], return_lse=True, layout=tensors, **settings, **own
    )
    rows = 2 if tensors == "bhsd" else 1
    whole = cp.unshard(out.detach(), rows)
    whole = whole if tensors == "bhsd" else whole.transpose(1, 2)
    found = {"out": _error(whole, one_out), "lse": _error(cp.unshard(lse.detach(), 2), one_lse)}
    plan = cp._plan_of_last_call
    found["bytes"] = (cp.traffic.bytes, plan.bytes(cp.peers.rank))
    found["scores"] = (cp.traffic.scores, plan.scores(cp.peers.rank))
    if not gradients:
        return found
    own_dout = cp.shard(dout)
    loss = (out * (own_dout if tensors == "bhsd" else own_dout.transpose(1, 2))).sum()
    lse = torch.where(lse == -torch.inf, 0.0, lse)
    (loss + (lse * cp.shard(dlse, 2)).sum()).backward()
    found["gradient_bytes"] = (cp.gradient_traffic.bytes, plan.gradient_bytes(cp.peers.rank))
    wanted = [n for n in _ARRAYS if n in given]
    want = flash.attention_backward(
        dout, q, k, v, one_out, one_lse, dlse=dlse, wanted=wanted, **settings, **given
    )
    for n in "qkv":
        grad = cp.unshard(leaves[n].grad, rows)
        found[f"d{n}"] = _error(grad if tensors == "bhsd" else grad.transpose(1, 2), getattr(want, f"d{n}"))
    for n in wanted:
        grad = leaves[n].grad
        if n == "bias":
            grad = cp.unshard(grad)
        else:
            dist.all_reduce(grad, group=group)
        found[f"d{n}"] = _error(grad, want.arrays[n])
    return found


def _error(got: Tensor, want: Tensor) -> float:
    """The largest error, relative to the largest element; infinite if other elements are infinite."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0.0, (got.double() - want.double()).abs()).max().item() if want.numel() else 0.0
    finite = want[want.isfinite()]
    return error / max(finite.abs().max().item(), 1e-30) if finite.numel() else error
