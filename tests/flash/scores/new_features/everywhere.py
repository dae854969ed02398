"""Two features that are a file each and their lines in `features.py`, on every backend, in every adapter and
across ranks. `tests/flash/scores/test_new_features.py` runs this in a process whose `flash` has them.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import flash
from flash.adapters import torch as of_torch
from flash.distributed import ContextParallel, ShardedKVCache
from flash.reference import attention_reference
from flash.scores.features import ScoreArguments

HEADS, DIM, ROWS = 2, 8, 16
RNG = np.random.default_rng(5)
Q, K, V, DOUT = (RNG.standard_normal((2, HEADS, ROWS, DIM), dtype=np.float32) for _ in range(4))
SCORES = {
    "drift": np.array([0.125, -0.0625], np.float32),
    "temperature": np.array([[0.5, 1.25], [0.75, 1.5]], np.float32),
}
HOW: dict[str, Any] = {"causal": True, **SCORES}


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), atol=2e-5, rtol=2e-5)


def exact() -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """The results in float64 without a line of the features, and the gradients by differences."""

    def attend(q: Any, k: Any, v: Any, drift: Any) -> Any:
        at = np.arange(ROWS)
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(DIM) * SCORES["temperature"][..., None, None]
        scores = scores + drift[:, None, None] * (at - at[:, None])
        scores = np.where(at > at[:, None], -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v)

    arguments = {
        n: x.astype(np.float64) for n, x in {"q": Q, "k": K, "v": V, "drift": SCORES["drift"]}.items()
    }
    gradients, step = {}, 1e-6
    for name, array in arguments.items():
        gradients[name] = np.zeros_like(array)
        for at in np.ndindex(array.shape):
            more, less = array.copy(), array.copy()
            more[at] += step
            less[at] -= step
            ahead, behind = (attend(**{**arguments, name: x}) for x in (more, less))
            gradients[name][at] = ((ahead - behind) * DOUT).sum() / (2 * step)
    return attend(**arguments), gradients


def on_backends(wanted: Any, gradients: Any) -> None:
    for backend in ("cpu", "compiled", "interpreter"):
        out, lse = flash.attention(Q, K, V, **HOW, return_lse=True, backend=backend)
        near(out, wanted)
        result = flash.attention_backward(DOUT, Q, K, V, out, lse, **HOW, wanted=["drift"], backend=backend)
        for name, array in {"q": result.dq, "k": result.dk, "v": result.dv, **result.arrays}.items():
            near(array, gradients[name])
        cache = flash.KVCache(
            1, 2, HEADS, DIM, ROWS, backend="interpreter" if backend == "interpreter" else "cpu"
        )
        near(flash.attention_with_kvcache(Q, cache, K, V, layer=0, **HOW, backend=backend), wanted)
    near(attention_reference(Q, K, V, **HOW)[0], wanted)


def in_torch(wanted: Any, gradients: Any) -> None:
    tensors = {n: torch.tensor(x, requires_grad=True) for n, x in {"q": Q, "k": K, "v": V}.items()}
    drift = torch.tensor(SCORES["drift"], requires_grad=True)
    temperature = torch.tensor(SCORES["temperature"])

    def attend(*arrays: Any) -> Any:
        q, k, v, drift = arrays
        return of_torch.attention(q, k, v, causal=True, drift=drift, temperature=temperature)

    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        out = function(*tensors.values(), drift)
        near(out.detach(), wanted)
        result = torch.autograd.grad(out, (*tensors.values(), drift), torch.tensor(DOUT))
        for name, array in zip(("q", "k", "v", "drift"), result, strict=True):
            near(array, gradients[name])
    plain = [x.detach() for x in (*tensors.values(), drift)]
    each = torch.func.vmap(
        lambda q, k, v, t: of_torch.attention(q, k, v, causal=True, drift=plain[3], temperature=t)
    )
    near(each(*plain[:3], temperature), wanted)
    cache = flash.KVCache(1, 2, HEADS, DIM, ROWS)
    how = {"drift": plain[3], "temperature": temperature}
    near(of_torch.attention_with_kvcache(plain[0], cache, *plain[1:3], layer=0, **how), wanted)
    ends = torch.arange(3, dtype=torch.int32) * ROWS
    rows = [x.transpose(1, 2).flatten(0, 1) for x in plain[:3]]
    packed = of_torch.attention_varlen(*rows, ends, ends, causal=True, **how)
    near(packed.unflatten(0, (2, ROWS)).transpose(1, 2), wanted)


def in_transformers() -> None:
    from flash.adapters.transformers.attention import attend

    q, k, v = map(torch.tensor, (Q, K, V))
    ones = torch.ones(2, 1, ROWS, ROWS, dtype=torch.bool).tril()
    drift = torch.tensor(SCORES["drift"]).bfloat16()  # a parameter of the model's type
    result, _ = attend(torch.nn.Module(), q, k, v, ones, drift=drift)
    near(result, np.moveaxis(flash.attention(Q, K, V, causal=True, drift=SCORES["drift"]), 1, 2))


def in_jax(wanted: Any, gradients: Any) -> None:
    import jax

    from flash.adapters.jax import attention

    def loss(arrays: Any) -> Any:
        out = attention(**arrays, causal=True, temperature=SCORES["temperature"])
        return (out * DOUT).sum(), out

    arrays = {"q": Q, "k": K, "v": V, "drift": SCORES["drift"]}
    result, out = jax.jit(jax.grad(loss, has_aux=True))({n: jax.numpy.asarray(x) for n, x in arrays.items()})
    near(out, wanted)
    for name, array in result.items():
        near(array, gradients[name])
    near(
        jax.vmap(lambda q, k, v, t: attention(q, k, v, causal=True, drift=SCORES["drift"], temperature=t))(
            Q, K, V, SCORES["temperature"]
        ),
        wanted,
    )


def rank(number: int, world: int, meeting: str, wanted: Any, gradients: Any) -> None:
    """What each rank does."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=world)
    temperature = torch.tensor(SCORES["temperature"])
    for scheme in ("ring", "ulysses"):
        cp = ContextParallel(scheme=scheme)
        shards = {n: cp.shard(torch.tensor(x)).requires_grad_() for n, x in {"q": Q, "k": K, "v": V}.items()}
        drift = torch.tensor(SCORES["drift"], requires_grad=True)
        out = cp.attention(**shards, causal=True, drift=drift, temperature=temperature)
        near(cp.unshard(out.detach()), wanted)
        out.backward(cp.shard(torch.tensor(DOUT)))
        for name, shard in shards.items():
            near(cp.unshard(shard.grad), gradients[name])
        cp.sum_gradients([drift])
        near(drift.grad, gradients["drift"])
    cp = ContextParallel()
    ends = torch.arange(3, dtype=torch.int32) * ROWS
    rows = [cp.shard(torch.tensor(x).transpose(1, 2).flatten(0, 1), 0) for x in (Q, K, V)]
    how = {"drift": drift.detach(), "temperature": temperature}
    packed = cp.unshard(cp.attention(*rows, cu_seqlens_q=ends, causal=True, **how), 0)
    near(packed.unflatten(0, (2, ROWS)).transpose(1, 2), wanted)
    cache = ShardedKVCache(cp, 1, 2, HEADS, DIM, ROWS, block=4)
    near(cache.attention(*(torch.tensor(x) for x in (Q,)), 0, *map(torch.tensor, (K, V)), **how), wanted)
    dist.destroy_process_group()


def across_ranks(folder: Path, wanted: Any, gradients: Any) -> None:
    context = multiprocessing.get_context("spawn")
    more = (2, str(folder / "meeting"), wanted, gradients)
    ranks = [context.Process(target=rank, args=(n, *more)) for n in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0]


if __name__ == "__main__":
    assert {"drift", "temperature"} <= ScoreArguments.__annotations__.keys()
    results = exact()
    on_backends(*results)
    in_torch(*results)
    in_transformers()
    in_jax(*results)
    across_ranks(Path(sys.argv[1]), *results)
