"""What the ranks of a group do in tests of `flash.distributed`."""

from __future__ import annotations

import functools
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import flash
import flash.adapters.torch
from flash.distributed import ContextParallel, ShardedKVCache
from flash.distributed.engine import Engine
from flash.distributed.local import TileAttention
from flash.distributed.tiles import Tile
from flash.mods import where
from ptxgen.errors import ConfigError, LaunchError, PeerError

_ARRAYS = ("bias", "key_bias", "sink", "alibi_slopes")


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


def closed_over(slopes: Any) -> Callable[..., Any]:
    """A function of scores that indexes a tensor of its closure."""

    def score_mod(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score - slopes[head] * (query - key).abs() + where(batch == 1, 0.25, 0.0)

    return score_mod


def mask_mod(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A function that hides some keys, of all indices."""
    return (query * 3 + key * 5 + head + batch) % 4 != 0


def _scores(words: tuple[str, ...], batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
    """The arguments that words name; "bias:1hqk" is an array with these axes, of the letter's size or 1."""
    make = torch.Generator().manual_seed(1)
    every: dict[str, Any] = {
        "bias": torch.randn((1, heads, queries, keys), generator=make),
        "key_bias": torch.randn((batch, 1, keys), generator=make),
        "mask": torch.rand((batch, 1, queries, keys), generator=make) < 0.7,
        "sink": torch.randn(heads, generator=make),
        "alibi_slopes": torch.rand(heads, generator=make),
        "softcap": 1.5,
        "score_mod": distance_mod,
        "closure": closed_over(torch.rand(heads, generator=torch.Generator().manual_seed(2))),
        "mask_mod": mask_mod,
        "dropout": 0.25,
        "softmax_scale": 0.3,
    }
    sizes = {"1": 1, "b": batch, "h": heads, "q": queries, "k": keys}
    result = {}
    for word in words:
        name, _, axes = word.partition(":")
        result[name] = every[name]
        if axes:
            array = torch.randn([sizes[axis] for axis in axes], generator=make)
            result[name] = array > -0.5 if name == "mask" else array
            if name == "alibi_slopes":  # of the usual sign and size
                result[name] = array.sigmoid()
    if "closure" in result:
        result["score_mod"] = result.pop("closure")
    elif "score_mod" in result:
        result["aux"] = {"slopes": torch.rand(heads, generator=make)}
    if "dropout" in result:
        result["dropout_seed"] = 7
    return result


def group_of_none(world: int) -> None:
    """Make the group of the first ranks."""
    group_of(world)


@dataclass(kw_only=True)
class Case:
    """A call of one device, and how it is shared out. `layout` and `scheme` are those of ContextParallel,
    `tensors` is the layout of tensors, `scores` the names of features, `most_scores` those of a tile, if
    dropout or gradients of slopes limit them.
    """

    layout: str
    scheme: str = "ring"
    degree: int | None = None
    queries: int = 70
    keys: int | None = None
    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    dim_v: int = 16
    dtype: str = "float32"
    causal: Any = False
    window: Any = None
    scores: tuple[str, ...] = ()
    tensors: str = "bhsd"
    backend: str = "auto"
    cuts: tuple[int, ...] | None = None
    most_scores: int | None = None

    def __post_init__(self) -> None:
        self.keys = self.queries if self.keys is None else self.keys
        sizes = self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.dim, self.dim_v
        self.q, self.k, self.v, self.dout = _inputs(*sizes, getattr(torch, self.dtype))
        items = self.batch if self.cuts is None else len(self.cuts) - 1
        self.given = _scores(self.scores, items, self.heads, self.queries, self.keys)
        self.settings: dict[str, Any] = {"causal": self.causal, "backend": self.backend}
        if self.window is not None:
            self.settings["window"] = self.window

    def moved(self, x: Tensor) -> Tensor:
        """A tensor like q between heads first and the layout of tensors, or packed documents."""
        if self.cuts is not None:
            return x[0].transpose(0, 1) if x.dim() == 4 else x.transpose(0, 1)[None]
        return x if self.tensors == "bhsd" else x.transpose(1, 2)

    def one_device(self) -> dict[str, Tensor]:
        """The results and all gradients."""
        q, k, v, dout = (self.moved(t) if self.cuts else t for t in (self.q, self.k, self.v, self.dout))
        wanted = [n for n in _ARRAYS if n in self.given]
        more, backward, forward = (), flash.attention_backward, flash.attention
        if self.cuts is not None:
            ends = torch.tensor(self.cuts, dtype=torch.int32)
            more, backward, forward = (ends, ends), flash.attention_varlen_backward, flash.attention_varlen
        out, lse, max_logit = forward(
            q, k, v, *more, return_lse=True, return_max_logit=True, **self.settings, **self.given
        )
        if self.cuts is not None:  # rows of no document are not written
            out[self.cuts[-1] :], lse[:, self.cuts[-1] :] = 0, -torch.inf
        self.dlse = torch.sin(torch.arange(lse.numel(), dtype=torch.float32)).reshape(lse.shape)
        self.dlse[lse == -torch.inf] = 0
        result = backward(
            dout, q, k, v, out, lse, *more, dlse=self.dlse, wanted=wanted, **self.settings, **self.given
        )
        arrays = {f"d{n}": result.arrays[n] for n in wanted}
        back = self.moved if self.cuts is not None else torch.Tensor.clone
        grads = {"dq": back(result.dq), "dk": back(result.dk), "dv": back(result.dv)}
        return {"out": back(out), "lse": lse, "max_logit": max_logit, **grads, **arrays}

    @property
    def has_rows(self) -> set[str]:
        """The arrays of scores of which a rank has its rows."""
        result = {n: self.given[n] for n in ("bias", "mask") if n in self.given}
        return {n for n, array in result.items() if array.dim() > 1 and array.shape[-2] > 1}

    def shards(self, cp: ContextParallel) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a rank that get gradients, q, k, v and arrays, and the arguments that it gives."""
        own = {n: cp.shard(t) if n in self.has_rows else t for n, t in self.given.items()}
        leaves = {n: self.moved(cp.shard(t)) for n, t in (("q", self.q), ("k", self.k), ("v", self.v))}
        leaves |= {n: own[n] for n in _ARRAYS if n in own}
        leaves = {n: t.detach().clone().requires_grad_() for n, t in leaves.items()}
        own |= {n: leaves[n] for n in _ARRAYS if n in own}
        if self.cuts is not None:
            own["cu_seqlens_q"] = torch.tensor(self.cuts)
        else:
            own["layout"] = self.tensors
        return leaves, own


def compare(world: int, **options: Any) -> dict[str, Any] | None:
    """The largest errors of out, lse and gradients against one device, relative to the largest element;
    the bytes sent and scores computed, against the plan's.
    """
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    case = Case(**options)
    if case.most_scores is None:
        return _compared(group, case)
    most = {"MOST_RANDOM_NUMBERS": case.most_scores, "MOST_SUMMED": case.most_scores}
    sizes, gradient = [0], TileAttention.gradient

    def counted(self: TileAttention, dout: Tensor, *more: Any) -> Any:
        tile = next(one for one in more if isinstance(one, Tile))
        sizes.append(math.prod((*dout.shape[:2], *tile.sizes)))
        return gradient(self, dout, *more)

    with (
        mock.patch.multiple("flash.distributed.engine", **most),
        mock.patch.object(TileAttention, "gradient", counted),
    ):
        return {**_compared(group, case), "tile": max(sizes)}


def _compared(group: Any, case: Case) -> dict[str, Any]:
    want = case.one_device()
    cp = ContextParallel(group, case.layout, case.scheme, degree=case.degree)
    leaves, own = case.shards(cp)
    out, lse = cp.attention(leaves["q"], leaves["k"], leaves["v"], return_lse=True, **case.settings, **own)
    result: dict[str, Any] = {
        "out": _error(cp.unshard(case.moved(out.detach())), want["out"]),
        "lse": _error(cp.unshard(lse.detach(), -1), want["lse"]),
    }
    plan, rank = cp.plan, cp.peers.rank
    result["bytes"] = cp.traffic.bytes, plan.bytes(rank)
    result["work"] = cp.traffic.scores, plan.scores(rank)
    arguments = [leaves[name].detach() for name in ("q", "k", "v")]
    with torch.no_grad():
        again, max_logit = cp.attention(*arguments, return_max_logit=True, **case.settings, **own)
    assert torch.equal(again, out)
    result["max_logit"] = _error(max_logit, want["max_logit"])
    finite = torch.where(lse == -torch.inf, 0.0, lse)
    loss = (out * case.moved(cp.shard(case.dout))).sum() + (finite * cp.shard(case.dlse, -1)).sum()
    loss.backward()
    result["gradient bytes"] = cp.gradient_traffic.bytes, plan.gradient_bytes(rank)
    for n in [name for name in want if name not in result]:
        grad = leaves[n[1:]].grad
        if n in ("dq", "dk", "dv") or n[1:] in case.has_rows:
            grad = cp.unshard(grad if n == "dbias" else case.moved(grad))
        else:
            cp.sum_gradients([leaves[n[1:]]])
        result[n] = _error(grad, want[n])
    return result


def _error(got: Tensor, want: Tensor) -> float:
    """The largest error, relative to the largest element; infinite if other elements are infinite."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0.0, (got.double() - want.double()).abs()).max().item() if want.numel() else 0.0
    finite = want[want.isfinite()]
    return error / max(finite.abs().max().item(), 1e-30) if finite.numel() else error


def decode(world: int, layout: str, prompt: int, steps: int, **options: Any) -> dict[str, Any] | None:
    """The largest errors of a prompt by the ring and of tokens decoded after it, against one cache, and
    whether all ranks have the same bits.
    """
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    batch, heads, kv_heads, dim = 2, 4, 2, 16
    pages: dict[str, Any] = options.pop("pages", {})
    merge, forks = options.pop("merge", "auto"), options.pop("forks", False)
    queries = options.pop("queries", 1)
    scores = _scores(options.pop("scores", ()), batch, heads, 1, 1)
    q, k, v, _ = _inputs(batch, heads, kv_heads, prompt + steps, prompt + steps, dim, dim, torch.float32)
    cp = ContextParallel(group, layout)
    room = prompt + steps
    one = flash.KVCache(1, batch + forks, kv_heads, dim, room, **pages)
    cache = ShardedKVCache(cp, 1, batch + forks, kv_heads, dim, room, block=8, **pages)
    first = list(range(batch))
    prompt_out = 0.0
    if prompt:
        of_prompt = [t[:, :, :prompt] for t in (q, k, v)]
        shards = [cp.shard(t) for t in of_prompt]
        got = cp.unshard(cp.attention(*shards, causal=True))
        prompt_out = _error(got, flash.attention(*of_prompt, causal=True))
        cache.append_shard(0, shards[1], shards[2], prompt, first)
        one.append(0, k[:, :, :prompt], v[:, :, :prompt], first)
    errors, bits = [], []
    for at in range(prompt, prompt + steps, queries):
        rows = slice(at, min(at + queries, prompt + steps))
        new = [t[:, :, rows] for t in (q, k, v)]
        if forks and at == prompt + steps // 2:
            assert cache.fork(1, batch) == one.fork(1, batch)
            first = [0, batch]
            cache.truncate(at - 3, [0])
            one.truncate(at - 3, [0])
        want = flash.attention_with_kvcache(
            *(new[0], one), *new[1:], layer=0, cache_batch_idx=first, return_lse=True, **options, **scores
        )
        got_out, got_lse = cache.attention(
            new[0], 0, *new[1:], sequences=first, return_lse=True, merge=merge, **options, **scores
        )
        errors.append(max(_error(got_out, want[0]), _error(got_lse, want[1])))
        bits.append(got_out)
    whole = torch.cat(bits, dim=2)
    others = [torch.empty_like(whole) for _ in range(world)]
    dist.all_gather(others, whole, group=group)
    return {
        "prompt": prompt_out,
        "error": max(errors),
        "same bits": all(torch.equal(o, whole) for o in others),
        "rows": [len(cache.positions(0, s)) for s in first],
        "lengths": cache.lengths[0, first].tolist() == one.lengths[0, first].tolist(),
        "sent": cache.traffic.bytes,
    }


class Layer(torch.nn.Module):
    """A layer of a transformer, whose attention is given."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * self.dim)
        self.out = torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: Tensor, attention: Any) -> Tensor:
        batch, rows, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).split(
            [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim], dim=-1
        )
        q, k, v = (t.reshape(batch, rows, -1, self.dim) for t in (q, k, v))
        x = x + self.out(attention(q, k, v).reshape(batch, rows, -1))
        return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))


def transformer(world: int, layout: str, scheme: str) -> dict[str, float] | None:
    """The errors of the loss and of the gradients of a two-layer transformer against one device."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    torch.manual_seed(3)
    width, length = 32, 48
    embedding = torch.nn.Embedding(50, width)
    layers = torch.nn.ModuleList([Layer(width, 4, 2) for _ in range(2)])
    tokens, labels = torch.randint(0, 50, (2, 2, length))
    parameters = [*embedding.parameters(), *layers.parameters()]

    def loss_of(words: Tensor, wanted: Tensor, attention: Any) -> Tensor:
        x = embedding(words)
        for layer in layers:
            x = layer(x, attention)
        logits = x @ embedding.weight.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")

    one = functools.partial(flash.adapters.torch.attention, causal=True, layout="bshd")
    want = loss_of(tokens, labels, one)
    want_grads = torch.autograd.grad(want, parameters)
    cp = ContextParallel(group, layout, scheme)
    own = functools.partial(cp.attention, causal=True, layout="bshd")
    loss = loss_of(cp.shard(tokens, 1), cp.shard(labels, 1), own)
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=group)
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    errors = [_error(p.grad, g) for p, g in zip(parameters, want_grads, strict=True)]
    return {"loss": abs(total.item() / want.item() - 1), "gradient": max(errors)}


def repeated(world: int, **options: Any) -> bool | None:
    """Whether two calls have the same bits, forward and backward, and all ranks the same sums of gradients of
    the arrays that all have.
    """
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    case = Case(**options)
    results: list[list[Tensor]] = []
    shared: list[Tensor] = []
    for _ in range(2):
        cp = ContextParallel(group, case.layout, case.scheme)
        leaves, own = case.shards(cp)
        out, lse = cp.attention(
            leaves["q"], leaves["k"], leaves["v"], return_lse=True, **case.settings, **own
        )
        (out.sum() + lse[lse.isfinite()].sum()).backward()
        shared = [leaves[n] for n in _ARRAYS if n in own and n not in case.has_rows]
        cp.sum_gradients(shared)
        results.append([out, lse, *(t.grad for t in leaves.values())])
    sums = torch.cat([torch.zeros(1), *(t.grad.reshape(-1) for t in shared)])
    every = [torch.empty_like(sums) for _ in range(world)]
    dist.all_gather(every, sums, group=group)
    same = [torch.equal(a, b) for a, b in zip(*results, strict=True)]
    return all(same) and all(torch.equal(sums, other) for other in every)


def refused(world: int, different: dict[int, dict[str, Any]], **options: Any) -> str | None:
    """The message of a call in which some ranks have other options, and that a right call works after it."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    cp = ContextParallel(group)
    own: dict[str, Any] = {"dtype": torch.float32, "rows": 8, "layout": "zigzag", **options}
    own |= different.get(cp.peers.rank, {})
    x = torch.ones(1, 2, own.pop("rows"), 8, dtype=own.pop("dtype"))
    try:
        ContextParallel(group, own.pop("layout")).attention(x, x, x, **own)
    except (LaunchError, ConfigError) as error:
        x = torch.ones(1, 2, 8, 8)
        torch.testing.assert_close(cp.attention(x, x, x), x)  # how a CPU rounds exp2 is its own affair
        return str(error)
    return "nothing was raised"


def refused_arrays(world: int) -> dict[str, str] | None:
    """The messages of calls with arrays that do not fit, by what is wrong with them."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    cp = ContextParallel(group)
    x, packed = torch.ones(1, 4, 8, 8), {"cu_seqlens_q": torch.tensor([0, 5, 32])}
    of_all, by = torch.ones(8, 32), torch.ones(4, requires_grad=True)
    rows = 1 if cp.peers.rank == 0 else 8
    calls: dict[str, dict[str, Any]] = {
        "bias of documents": {"bias": of_all, **packed},
        "mask of documents": {"mask": of_all.bool(), **packed},
        "key_bias of documents": {"key_bias": of_all[0], **packed},
        "rows of a bias": {"bias": of_all[:rows]},
        "heads of a mask": {"mask": of_all.bool().expand(1, 2, 8, 32)},
        "columns of a mask": {"mask": of_all.bool()[:, :8]},
        "type of a mask": {"mask": of_all},
        "type of slopes": {"alibi_slopes": by.detach().double()},
        "type of sinks": {"sink": by.detach().half()},
        "a bias and a key bias": {"bias": of_all, "key_bias": of_all[0]},
        "gradients of aux": {"score_mod": distance_mod, "aux": {"slopes": by}},
        "aux without names": {"aux": [1.0]},
    }
    rows_first = x[0].transpose(0, 1)
    return {n: _message(cp, rows_first if "cu_seqlens_q" in of else x, of) for n, of in calls.items()}


def _message(cp: ContextParallel, x: Tensor, arguments: dict[str, Any]) -> str:
    try:
        cp.attention(x, x, x, **arguments)
    except (LaunchError, ConfigError) as error:
        return str(error)
    return "nothing was raised"


def summed(world: int) -> dict[str, Any] | None:
    """Whether sums of gradients have the bits of sums in the order of ranks, and the messages of calls that
    differ.
    """
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    cp = ContextParallel(group)
    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((5, 3), torch.float32), ((), torch.float32), ((7,), torch.bfloat16), ((2, 2), torch.float64),
    ]  # fmt: skip
    leaves, want = [], []
    for number, (shape, dtype) in enumerate(shapes):
        each = [
            torch.randn(shape, generator=torch.Generator().manual_seed(10 * number + rank)).to(dtype)
            for rank in range(world)
        ]
        wide = torch.promote_types(dtype, torch.float32)
        want.append(sum((e.to(wide) for e in each[1:]), each[0].to(wide)).to(dtype))
        leaf = torch.zeros(shape, dtype=dtype, requires_grad=True)
        leaf.grad = each[cp.peers.rank]
        leaves.append(leaf)
    unused = torch.zeros(3, requires_grad=True)
    cp.sum_gradients([*leaves, unused])
    result: dict[str, Any] = {"sums": [torch.equal(t.grad, w) for t, w in zip(leaves, want, strict=True)]}
    said = {"differing": [leaves[1] if cp.peers.rank != 2 else unused], "none": []}
    for name, tensors in said.items():
        try:
            cp.sum_gradients(tensors)
            result[name] = "nothing was raised"
        except LaunchError as error:
            result[name] = str(error)
    return result


def dtensors(world: int) -> list[float] | None:
    """The errors of DTensors in and out, and of the gradient of a replicated one."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = DeviceMesh.from_group(group, "cpu")
    case = Case(layout="zigzag", causal=True, queries=64)
    want = case.one_device()
    cp = ContextParallel(group)
    whole = [DTensor.from_local(t, mesh, [Replicate()], run_check=False) for t in (case.q, case.k, case.v)]
    q, k, v = (cp.shard(t).detach().requires_grad_() for t in whole)
    out = cp.attention(q, k, v, causal=True)
    assert isinstance(out, DTensor)
    assert out.placements[0].is_shard(2)
    assert tuple(out.shape) == tuple(case.q.shape)
    result = cp.unshard(out)
    assert result.placements[0].is_replicate()
    (result.to_local() * case.dout).sum().backward()
    one = flash.attention_backward(case.dout, case.q, case.k, case.v, want["out"], want["lse"], causal=True)
    return [_error(result.to_local().detach(), want["out"]), _error(cp.unshard(q.grad).to_local(), one.dq)]


def lost(victim: int, how: str, after: int) -> tuple[str, int | None, float] | None:
    """What a rank says when another ends, or stops, after some calls, and after how many seconds. The
    victim does not return.
    """
    cp = ContextParallel(None, "striped", "ring")
    x = torch.ones(1, 2, 64, 8)
    if cp.peers.rank == victim:
        for _ in range(after):
            cp.attention(x, x, x)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "killed between messages":
            _die_in_step(1)
            cp.attention(x, x, x)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.perf_counter()
    try:
        for _ in range(after + 1):
            begin = time.perf_counter()
            cp.attention(x, x, x)
    except PeerError as error:
        return str(error), error.peer, time.perf_counter() - begin
    return "nothing was raised", None, 0.0


def _die_in_step(step: int) -> None:
    """Let this process end when it would ask for keys of a step."""
    ask = Engine._ask

    def dying(self: Engine, at: int, k: Tensor, v: Tensor) -> Any:
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return ask(self, at, k, v)

    Engine._ask = dying  # type: ignore[method-assign]


def slow(seconds: float) -> bool:
    """Whether a call is right when a rank comes late."""
    cp = ContextParallel(None, "striped", "ring")
    x = torch.ones(1, 2, 64, 8)
    if cp.peers.rank == 1:
        time.sleep(seconds)
    return torch.allclose(cp.attention(x, x, x), x)


def explained(world: int, scheme: str) -> str | None:
    """The text of `explain`."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    x = torch.ones(1, 4, 512, 64)
    return ContextParallel(group, scheme=scheme).explain(x, x[:, :2], x[:, :2], causal=True)


def pytorchs_ring(world: int, causal: bool, balanced: bool) -> list[float] | None:
    """The differences of out and LSE from those of PyTorch's ring with its operator for CPUs."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as theirs

    group = group_of(world)
    if dist.get_rank() >= world:
        return None
    case = Case(layout="zigzag" if balanced else "contiguous", queries=64, kv_heads=4)
    theirs._cp_options.enable_load_balance = balanced
    cp = ContextParallel(group, case.layout)
    q, k, v = (cp.shard(t) for t in (case.q, case.k, case.v))
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    want = theirs._templated_ring_attention(group, 2, operator, q, k, v, is_causal=causal)
    out, lse = cp.attention(q, k, v, causal=causal, return_lse=True)
    return [_error(out, want[0]), _error(lse, want[1])]
