from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gradient_judge import assert_gradients_are_accurate
from jax_arrays import BATCH, DIM, DIM_V, DTYPES, HEADS, KV_HEADS, SEQ_K, SEQ_Q, Array, bits, matrices, normal
from judge import assert_attention_is_accurate

import flash
from flash.gradients.kernel import Gradients
from ptxgen.errors import ConfigError, LaunchError

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"causal": "top_left", "window": (3, 0)},
    "softcap": {"softcap": 2.0, "softmax_scale": 0.7},
    "dropout": {"dropout": 0.25, "dropout_seed": 3},
    "alibi_slopes": {"causal": True},
    "bias": {},
    "key_bias": {},
    "mask": {},
    "sink": {"causal": True},
}
SHAPES: dict[str, tuple[int, ...]] = {
    "alibi_slopes": (HEADS,),
    "bias": (HEADS, 1, SEQ_K),
    "key_bias": (BATCH, 1, SEQ_K),
    "mask": (BATCH, 1, SEQ_Q, SEQ_K),
    "sink": (BATCH, HEADS),
}


@pytest.fixture
def adapter(jax: ModuleType) -> ModuleType:  # jax is needed
    import flash.adapters.jax as found

    return found


def inputs(features: str = "plain", dtype: Any = np.float32) -> dict[str, Array]:
    """q, k and v, and the array of the features, if they have one."""
    result = matrices(dtype)
    if features == "mask":
        result["mask"] = normal(*SHAPES["mask"], seed=3) > -0.5
    elif features in SHAPES:
        result[features] = normal(*SHAPES[features], seed=3)
    return result


def of_arrays(adapter: ModuleType, **settings: Any) -> Callable[[dict[str, Any]], Any]:
    """attention as a function of its arrays by name."""
    return lambda arrays: adapter.attention(**arrays, **settings)


# ------------------------------------------------------------------------------------ values

FEW = [("f32", "causal", "bhsd"), ("bf16", "bias", "bshd")]
ALL = itertools.product(DTYPES, FEATURES, ("bhsd", "bshd"))


def few_and_slow(few: list[Any], every: Any) -> list[Any]:
    """`few` cases, and all others, of which `.ci/run` has every fifth."""
    others = [case for case in every if case not in few]
    marks = itertools.cycle([pytest.mark.slow, *[pytest.mark.nightly] * 4])
    return [*few, *(pytest.param(*case, marks=mark) for case, mark in zip(others, marks, strict=False))]


@pytest.mark.judged
@pytest.mark.parametrize(("dtype", "features", "layout"), few_and_slow(FEW, ALL))
def test_a_traced_call_is_the_call(
    dtype: str, features: str, layout: str, jax: ModuleType, adapter: ModuleType
) -> None:
    """Under jit the bits are those of an eager call and of flash.attention on numpy arrays, which are
    close to float64.
    """
    arrays, settings = inputs(features, DTYPES[dtype]), FEATURES[features]
    arguments = dict(arrays)
    if layout == "bshd":
        arguments |= {name: arrays[name].swapaxes(1, 2) for name in "qkv"}
    there = jax.tree.map(jax.numpy.asarray, arguments)
    call = of_arrays(adapter, return_lse=True, layout=layout, **settings)
    eager, traced = call(there), jax.jit(call)(there)
    assert all(isinstance(x, jax.Array) for x in (*eager, *traced))
    assert bits(eager) == bits(traced)
    own = flash.attention(**arguments, return_lse=True, layout=layout, backend="cpu", **settings)
    assert bits(own) == bits(eager)
    out, lse = map(np.asarray, eager)
    of_reference = {"softmax_scale": None, **settings, **{n: x for n, x in arrays.items() if n not in "qkv"}}
    out = out.swapaxes(1, 2) if layout == "bshd" else out
    assert_attention_is_accurate(out, lse, *(arrays[name] for name in "qkv"), **of_reference)


@pytest.mark.slow
def test_a_traced_call_runs_the_kernel(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = jax.tree.map(jax.numpy.asarray, inputs("sink"))
    call = of_arrays(adapter, causal=True, backend="interpreter", return_lse=True)
    result, own = jax.jit(call)(arrays), flash.attention(**inputs("sink"), causal=True, return_lse=True)
    for got, wanted in zip(result, own, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_functions_of_scores_index_traced_arrays(jax: ModuleType, adapter: ModuleType) -> None:
    slopes, mod = normal(HEADS), lambda score, _, h, i, j, slopes: score + slopes[h] * (j - i)

    arrays = jax.tree.map(jax.numpy.asarray, {**inputs(), "aux": {"slopes": slopes}})
    call = of_arrays(adapter, score_mod=mod)
    wanted = flash.attention(**inputs(), score_mod=mod, aux={"slopes": slopes}, backend="cpu")
    assert bits([jax.jit(call)(arrays)]) == bits([wanted])


def test_functions_of_scores_index_arrays_of_numpy_that_they_close_over(
    jax: ModuleType, adapter: ModuleType
) -> None:
    documents, arguments = np.arange(64) // 3, inputs()  # int64, which JAX has as int32

    def mask_mod(_b: Any, _h: Any, i: Any, j: Any, other: Any) -> Any:
        return (documents[i] == documents[j]) | (other[i] == j)

    how = {"mask_mod": mask_mod, "aux": {"other": np.arange(64)}}
    wanted = flash.attention(**arguments, **how, backend="cpu")
    plain = functools.partial(adapter.attention, **how)
    assert bits([plain(**arguments), jax.jit(plain)(**arguments)]) == bits([wanted] * 2)


def test_a_seed_may_be_traced(jax: ModuleType, adapter: ModuleType) -> None:
    arrays, jnp = inputs(), jax.numpy
    call = jax.jit(lambda seed: adapter.attention(**arrays, dropout=0.5, dropout_seed=seed))
    result = [call(jnp.uint32(seed)) for seed in (3, 4)]
    wanted = [flash.attention(**arrays, dropout=0.5, dropout_seed=n, backend="cpu") for n in (3, 4)]
    assert bits(result) == bits(wanted)


def test_a_function_is_traced_once_for_arrays_of_one_shape(jax: ModuleType, adapter: ModuleType) -> None:
    traces = []

    @jax.jit
    def call(q: Any, k: Any, v: Any) -> Any:
        traces.append(q.shape)
        return adapter.attention(q, k, v, causal=True)

    for seed in range(3):
        q, k, v = (normal(1, 2, 3, 4, seed=seed + n) for n in range(3))
        assert bits([call(q, k, v)]) == bits([flash.attention(q, k, v, causal=True, backend="cpu")])
    assert traces == [(1, 2, 3, 4)]
    assert call._cache_size() == 1


@pytest.mark.slow
def test_calls_in_a_loop_of_the_program(jax: ModuleType, adapter: ModuleType) -> None:
    q = jax.numpy.asarray(normal(3, 1, 2, 4, 8))
    result = jax.lax.map(jax.checkpoint(lambda x: adapter.attention(x, x, x)), q)
    assert bits(result) == bits(flash.attention(x, x, x, backend="cpu") for x in np.asarray(q))


# -------------------------------------------------------------------------------------- vmap

NAMES = ("q", "k", "v", *SHAPES)
MAPPED = [("q", False), ("bias", True)]


@pytest.mark.parametrize(("name", "rank3"), few_and_slow(MAPPED, itertools.product(NAMES, (False, True))))
def test_each_argument_may_be_mapped(name: str, rank3: bool, jax: ModuleType, adapter: ModuleType) -> None:
    """vmap over one argument, along its last axis, gives what separate calls give; inside of another
    over all arguments, too.
    """
    arrays = {n: x for f in ("plain", *SHAPES) for n, x in inputs(f).items() if n in "qkv" or n == name}
    if rank3:  # the first item of the batch alone
        arrays = {n: x[0] if n in "qkv" else x[-1:] if x.shape[0] == BATCH else x for n, x in arrays.items()}
    others = (normal(*arrays[name].shape, seed=n) for n in (7, 8))
    items = [arrays[name], *(x > 0 if name == "mask" else x for x in others)]
    mapped = {**arrays, name: np.stack(items, axis=-1)}
    axes = {n: -1 if n == name else None for n in arrays}
    call = of_arrays(adapter, softcap=3.0, return_lse=True)
    result = jax.vmap(call, (axes,))(mapped)
    wanted = [
        flash.attention(**{**arrays, name: x}, softcap=3.0, return_lse=True, backend="cpu") for x in items
    ]
    for got, right in zip(result, zip(*wanted, strict=True), strict=True):
        np.testing.assert_allclose(got, np.stack(right), rtol=1e-5, atol=1e-5)
    both = {n: np.stack([x, x]) for n, x in mapped.items()}
    twice = jax.jit(jax.vmap(jax.vmap(call, (axes,))))(both)
    for got, right in zip(twice, result, strict=True):
        np.testing.assert_allclose(got, np.stack([right, right]), rtol=1e-5, atol=1e-5)


def test_mapped_items_are_items_of_one_batch(
    jax: ModuleType, adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    right = flash.attention

    def noted(**how: Any) -> Any:
        calls.append((how["q"].shape, how["bias"].shape))
        return right(**how)

    monkeypatch.setattr(flash, "attention", noted)
    arrays = inputs("bias")
    wide = {**arrays, "q": np.stack([arrays["q"]] * 3)}
    axes = {"q": 0, "k": None, "v": None, "bias": None}
    jax.vmap(of_arrays(adapter), (axes,))(wide)
    assert calls == [((3 * BATCH, HEADS, SEQ_Q, DIM), (1, HEADS, 1, SEQ_K))]


ALONE: dict[str, dict[str, Any]] = {
    "dropout": {"dropout": 0.5, "dropout_seed": 1},
    "mask_mod": {"mask_mod": lambda b, _, i, j: j <= i + b},
    "score_mod": {"score_mod": lambda score, b, _, i, j: score + b * (i - j)},
}


@pytest.mark.parametrize("name", ALONE)
def test_a_mapped_item_does_not_know_its_place(name: str, jax: ModuleType, adapter: ModuleType) -> None:
    """Weights that are dropped and functions of scores depend on the index in the batch alone."""
    q, how = normal(3, BATCH, 2, 4, 8), ALONE[name]
    result = jax.vmap(lambda x: adapter.attention(x, x, x, **how))(q)
    assert bits(result) == bits(flash.attention(x, x, x, **how, backend="cpu") for x in q)


# ---------------------------------------------------------------------------------- gradients


def plain(jnp: Any, arrays: dict[str, Any], causal: bool, softcap: float) -> tuple[Any, Any]:
    """Attention written with jax.numpy."""
    k, v = (jnp.repeat(arrays[name], HEADS // KV_HEADS, axis=1) for name in "kv")
    scores = jnp.einsum("bhid,bhjd->bhij", arrays["q"], k) / np.sqrt(DIM)
    scores = softcap * jnp.tanh(scores / softcap) + arrays["bias"]
    if causal:
        seen = jnp.arange(SEQ_K) <= jnp.arange(SEQ_Q)[:, None] + SEQ_K - SEQ_Q
        scores = jnp.where(seen, scores, -jnp.inf)
    top = scores.max(axis=3, keepdims=True)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=3)
    return weights @ v / total[..., None], jnp.log(total) + top[..., 0]


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True])
def test_gradients_are_those_of_plain_jax(mapped: bool, jax: ModuleType, adapter: ModuleType) -> None:
    jnp, arrays = jax.numpy, jax.tree.map(jax.numpy.asarray, inputs("bias"))
    call = of_arrays(adapter, causal=True, softcap=2.0, return_lse=True)

    def loss(function: Callable[..., Any], arrays: dict[str, Any]) -> Any:
        out, lse = function(arrays)
        return (out**2).sum() + jnp.sin(lse).sum()

    ours, theirs = (
        functools.partial(loss, f) for f in (call, lambda x: plain(jnp, x, causal=True, softcap=2.0))
    )
    gradients = [jax.grad(loss) for loss in (ours, theirs)]
    if mapped:  # q and k
        axes = {name: 0 if name in "qk" else None for name in arrays}
        arrays = {name: jnp.stack([x, 2 * x]) if name in "qk" else x for name, x in arrays.items()}
        gradients = [jax.vmap(gradient, (axes,)) for gradient in gradients]
    result, wanted = (jax.jit(gradient)(arrays) for gradient in gradients)
    for name, gradient in result.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-4, atol=1e-5)
    assert bits(gradients[0](arrays).values()) == bits(result.values())


@pytest.mark.judged
@pytest.mark.parametrize(
    ("dtype", "features", "layout"),
    few_and_slow(
        [("f32", "sink", "bhsd"), ("f16", "dropout", "bshd")], itertools.product(DTYPES, FEATURES, ["bhsd"])
    ),
)
def test_gradients_are_those_of_float64(
    dtype: str, features: str, layout: str, jax: ModuleType, adapter: ModuleType
) -> None:
    arrays, settings = inputs(features, DTYPES[dtype]), FEATURES[features]
    arguments = dict(arrays)
    if layout == "bshd":
        arguments |= {name: arrays[name].swapaxes(1, 2) for name in "qkv"}
    mask = {"mask": arguments.pop("mask")} if "mask" in arguments else {}
    call = of_arrays(adapter, return_lse=True, layout=layout, **mask, **settings)
    (out, lse), pull = jax.vjp(call, jax.tree.map(jax.numpy.asarray, arguments))
    dout, dlse = normal(*out.shape, seed=5, dtype=out.dtype), normal(*lse.shape, seed=6)
    (result,) = pull((jax.numpy.asarray(dout), jax.numpy.asarray(dlse)))
    assert {n: (x.shape, x.dtype) for n, x in result.items()} == {
        n: (x.shape, x.dtype) for n, x in arguments.items()
    }
    got = {name: np.asarray(x) for name, x in result.items()}
    if layout == "bshd":
        got |= {name: got[name].swapaxes(1, 2) for name in "qkv"}
        out, dout = out.swapaxes(1, 2), dout.swapaxes(1, 2)
    of_scores = {name: x for name, x in arguments.items() if name not in "qkv"}
    assert_gradients_are_accurate(
        got,
        np.asarray(out),
        dout,
        dlse,
        *(arrays[name] for name in "qkv"),
        of_scores,
        **{"softmax_scale": None, **mask, **settings},
    )


def test_only_what_is_differentiated_has_a_gradient(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = jax.tree.map(jax.numpy.asarray, inputs("sink"))
    both = jax.jit(jax.grad(lambda x: adapter.attention(**x).sum()))(arrays)
    one = jax.grad(lambda v: adapter.attention(**{**arrays, "v": v}).sum())(arrays["v"])
    assert bits([one]) == bits([both["v"]])
    of_lse = jax.grad(lambda x: adapter.attention(**x, return_lse=True)[1].sum())(arrays)
    assert not np.asarray(of_lse["v"]).any()
    assert np.asarray(of_lse["k"]).any()


def test_auto_is_numpy_for_gradients(
    jax: ModuleType, adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**how: Any) -> Any:
            backends.append((function.__name__, how["backend"]))
            return function(**how)

        return call

    for function in (flash.attention, flash.attention_backward):
        monkeypatch.setattr(flash, function.__name__, noted(function))
    arrays = jax.tree.map(jax.numpy.asarray, inputs())
    jax.grad(lambda x: adapter.attention(**x).sum())(arrays)
    assert backends == [("attention", "auto"), ("attention_backward", "cpu")]


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1, 60])
def test_gradients_of_the_kernels(jax: ModuleType, adapter: ModuleType, times: int) -> None:
    """The interpreter has those of numpy, by other roundings, also of rows of `times` as many columns."""
    arrays = jax.tree.map(jax.numpy.asarray, inputs("bias"))
    for name in "qkv":  # products of rows stay as large as they are
        arrays[name] = jax.numpy.tile(arrays[name], times) / times**0.5
    result, wanted = (
        jax.grad(lambda x, b=backend: (adapter.attention(**x, causal=True, backend=b) ** 2).sum())(arrays)
        for backend in ("interpreter", "cpu")
    )
    assert bits(result.values()) != bits(wanted.values())
    for name, gradient in result.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------- varlen

ENDS_Q, ENDS_K = np.array([0, 3, 3, 7], np.int32), np.array([0, 4, 6, 13], np.int32)


def varlen_inputs() -> dict[str, Array]:
    result = {"q": normal(9, HEADS, DIM), "k": normal(14, KV_HEADS, DIM), "v": normal(14, KV_HEADS, DIM_V)}
    return {
        **result,
        "cu_seqlens_q": ENDS_Q,
        "cu_seqlens_k": ENDS_K,
        "seqused_k": np.array([2, 2, 7], np.int32),
    }


def test_packed_sequences_are_traced_with_their_lengths(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = {**varlen_inputs(), "sink": normal(HEADS)}
    call = lambda x: adapter.attention_varlen(**x, causal=True, return_lse=True)  # noqa: E731
    eager, traced = call(jax.tree.map(jax.numpy.asarray, arrays)), jax.jit(call)(arrays)
    assert bits(eager) == bits(traced)
    out, lse = map(np.asarray, traced)
    wanted = flash.attention_varlen(**arrays, causal=True, return_lse=True, backend="cpu")
    assert out[:7].tobytes() == wanted[0][:7].tobytes()
    assert lse[:, :7].tobytes() == wanted[1][:, :7].tobytes()
    assert not out[7:].any()  # rows of no sequence
    assert np.isneginf(lse[:, 7:]).all()
    halves = {**arrays, "q": np.stack([arrays["q"], arrays["q"] / 2])}
    mapped = jax.vmap(call, ({name: 0 if name == "q" else None for name in arrays},))(halves)
    assert bits([mapped[0][0], mapped[1][0]]) == bits(eager)
    assert bits([mapped[0][1]]) == bits([call({**arrays, "q": arrays["q"] / 2})[0]])


def paged_inputs() -> dict[str, Array]:
    """Packed queries, and keys of two sequences in pages."""
    return {
        "q": normal(9, HEADS, DIM),
        "k": normal(6, 4, KV_HEADS, DIM),
        "v": normal(6, 4, KV_HEADS, DIM_V),
        "cu_seqlens_q": np.array([0, 2, 7], np.int32),
        "block_table": np.array([[4, 1, 3], [0, 5, 2]], np.int32),
        "seqused_k": np.array([7, 9], np.int32),
    }


def test_keys_in_pages_are_traced(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = paged_inputs()

    def call(x: dict[str, Any], **how: Any) -> Any:
        return adapter.attention_varlen(**x, causal=True, return_lse=True, **how)

    traced = jax.jit(call)(arrays)
    assert bits(traced) == bits(call(jax.tree.map(jax.numpy.asarray, arrays)))
    wanted = flash.attention_varlen(**arrays, causal=True, return_lse=True, backend="cpu")
    assert np.asarray(traced[0])[:7].tobytes() == wanted[0][:7].tobytes()
    assert np.asarray(traced[1])[:, :7].tobytes() == wanted[1][:, :7].tobytes()
    by_head = {**arrays, **{name: arrays[name].swapaxes(1, 2) for name in "kv"}}
    assert bits(jax.jit(functools.partial(call, kv_layout="HND"))(by_head)) == bits(traced)
    assert message(lambda: call(arrays, kv_layout="nhd")) == (
        "attention_varlen: kv_layout must be one of NHD, HND, got 'nhd'; did you mean 'NHD'?"
    )
    assert message(lambda: jax.grad(lambda q: call({**arrays, "q": q})[0].sum())(arrays["q"])) == (
        "attention_varlen: keys in pages have no gradients, but q must be differentiated; use "
        "jax.lax.stop_gradient on the arrays of the call, or pass the keys packed"
    )


def test_queries_of_keys_in_pages_are_rotated(jax: ModuleType, adapter: ModuleType) -> None:
    cos, sin = flash.rotary_tables(positions=9, rotary_dim=4)
    arrays = {**paged_inputs(), "rotary_cos": cos, "rotary_sin": sin}

    def call(x: dict[str, Any], **how: Any) -> Any:
        return adapter.attention_varlen(**x, causal=True, rotary_interleaved=True, **how)

    wanted = flash.attention_varlen(**arrays, causal=True, rotary_interleaved=True, backend="cpu")[:7]
    assert np.asarray(jax.jit(call)(arrays))[:7].tobytes() == wanted.tobytes()
    assert np.asarray(call(jax.tree.map(jax.numpy.asarray, arrays)))[:7].tobytes() == wanted.tobytes()
    few = {**arrays, "rotary_cos": cos[:8], "rotary_sin": sin[:8]}
    assert message(lambda: call(few)) == (
        "attention_varlen: rotary_cos and rotary_sin must have a row for each of 9 positions, got 8"
    )
    assert message(lambda: jax.jit(call)({**arrays, "rotary_sin": None})) == (
        "attention_varlen: rotary_cos is given without rotary_sin; give both, or neither"
    )


@pytest.mark.slow
def test_gradients_of_packed_sequences_are_those_of_each_alone(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = {name: x for name, x in varlen_inputs().items() if name != "seqused_k"}
    arrays["alibi_slopes"] = normal(HEADS)
    lengths = {name: arrays.pop(name) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    weights = normal(9, HEADS, DIM_V, seed=8)
    weights[7:] = 0

    def packed(x: dict[str, Any]) -> Any:
        mod = {"score_mod": lambda score, b, _, i, j: score * (b + 1)}
        return (adapter.attention_varlen(**x, **lengths, **mod, causal=True) * weights).sum()

    def alone(x: dict[str, Any]) -> Any:
        total = 0.0
        for b in range(3):
            rows, keys = slice(*ENDS_Q[b : b + 2]), slice(*ENDS_K[b : b + 2])
            parts = (a.swapaxes(0, 1)[None] for a in (x["q"][rows], x["k"][keys], x["v"][keys]))
            scale = (b + 1) / np.sqrt(DIM)
            out = adapter.attention(
                *parts, causal=True, alibi_slopes=x["alibi_slopes"], softmax_scale=float(scale)
            )
            total += (out[0].swapaxes(0, 1) * weights[rows]).sum()
        return total

    result, wanted = (jax.jit(jax.grad(f))(arrays) for f in (packed, alone))
    for name, gradient in result.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-5, atol=1e-6)
    assert not np.asarray(result["q"][7:]).any()


@pytest.mark.slow
def test_one_token_after_another_over_a_cache_of_a_fixed_size(jax: ModuleType, adapter: ModuleType) -> None:
    batch, capacity = 2, 6
    jnp, traces = jax.numpy, []
    ends = {"cu_seqlens_q": np.arange(batch + 1, dtype=np.int32)}
    ends["cu_seqlens_k"] = capacity * ends["cu_seqlens_q"]

    @jax.jit
    def step(q: Any, k: Any, v: Any, cache: Any, used: Any) -> Any:
        traces.append(q.shape)
        rows = jnp.arange(batch) * capacity + used
        cache = tuple(c.at[rows].set(x) for c, x in zip(cache, (k, v), strict=True))
        return cache, adapter.attention_varlen(q, *cache, **ends, seqused_k=used + 1, causal=True)

    cache = tuple(jnp.full((batch * capacity, KV_HEADS, DIM), jnp.nan) for _ in "kv")
    ours = flash.KVCache(1, batch, KV_HEADS, DIM, capacity)
    for token in range(4):
        q, k, v = (normal(batch, h, DIM, seed=token + n) for n, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
        cache, out = step(q, k, v, cache, jnp.full(batch, token, jnp.int32))
        wanted = flash.attention_with_kvcache(q[:, :, None], ours, k[:, :, None], v[:, :, None], layer=0)
        np.testing.assert_allclose(out, wanted[:, :, 0], rtol=1e-5, atol=1e-6)
    assert len(traces) == 1


# ------------------------------------------------------------------------------------ refused


def message(act: Callable[[], object], error: type[Exception] = LaunchError) -> str:
    with pytest.raises(error) as caught:
        act()
    return str(caught.value)


WRONG: dict[str, tuple[type[Exception], Callable[[Any, dict[str, Any]], Any], str]] = {
    "shape": (
        LaunchError,
        lambda f, x: f(x["q"], x["k"][..., :4], x["v"][:1]),
        "attention: 2 problems\n"
        "  k must be [batch, kv_heads, seq_k, head_dim] = [2, kv_heads, seq_k, 8], got [2, 2, 9, 4]\n"
        "  v must be [batch, kv_heads, seq_k, head_dim_v] = [2, kv_heads, seq_k, 6], got [1, 2, 9, 6]",
    ),
    "dtype": (
        LaunchError,
        lambda f, x: f(x["q"].astype("int32"), x["k"], x["v"]),
        "attention: q must be one of float32, float16, bfloat16, got int32; convert q, k and v, such as with "
        "q.astype('float32')",
    ),
    "dtypes": (
        LaunchError,
        lambda f, x: f(x["q"], x["k"].astype("float16"), x["v"]),
        "attention: k must be float32, as q is, got float16; convert with k.astype('float32')",
    ),
    "array": (
        LaunchError,
        lambda f, x: f(x["q"], [1.0], x["v"]),
        "attention: k must be a jax.Array, got list; convert it with jax.numpy.asarray(k)",
    ),
    "nothing": (
        LaunchError,
        lambda f, x: f(None, x["k"], x["v"]),
        "attention: q must be a jax.Array, got NoneType; convert it with jax.numpy.asarray(q)",
    ),
    "bias": (
        LaunchError,
        lambda f, x: f(**x, bias=x["q"]),
        "attention: bias must be [batch, heads, seq_q, seq_k] = [2, 4, 5, 9], or of a shape that broadcasts "
        "to it, got [2, 4, 5, 8]",
    ),
    "seed": (
        LaunchError,
        lambda f, x: f(**x, dropout=0.5, dropout_seed=x["q"]),
        "attention: dropout_seed must be an integer, or an array of one without axes, got float32 of shape "
        "[2, 4, 5, 8]; make one with jax.random.randint(key, (), 0, 2**31 - 1)",
    ),
    "key": (
        LaunchError,
        lambda f, x: f(**x, dropout=0.5, dropout_seed=pytest.importorskip("jax").random.key(0)),
        "attention: dropout_seed must be an integer, or an array of one without axes, got key<fry> of shape "
        "[]; make one with jax.random.randint(key, (), 0, 2**31 - 1)",
    ),
    "layout": (
        LaunchError,
        lambda f, x: f(**x, layout="bsdh"),
        "attention: layout must be one of bhsd, bshd, got 'bsdh'; did you mean 'bshd'?",
    ),
    "window": (
        ConfigError,
        lambda f, x: f(**x, window=(3,)),
        "attention: window must be (left, right), each a number of keys from 0 to 1073741568, or None or -1 "
        "for no limit, got (3,)",
    ),
    "not hashable": (
        ConfigError,
        lambda f, x: f(**x, window=[3, 0, 0]),
        "attention: window must be (left, right), each a number of keys from 0 to 1073741568, or None or -1 "
        "for no limit, got [3, 0, 0]",
    ),
    "backend": (
        ConfigError,
        lambda f, x: f(**x, backend="cpus"),
        "attention: backend must be one of auto, cuda, interpreter, cpu, compiled, "
        "got 'cpus'; did you mean 'cpu'?",
    ),
    "return_lse": (
        LaunchError,
        lambda f, x: f(**x, return_lse=1),
        "attention: return_lse must be True or False, got 1",
    ),
    "word": (
        TypeError,
        lambda f, x: f(**x, softcaps=1.0),
        "attention() got an unexpected keyword argument 'softcaps'; did you mean 'softcap'?",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_raised_when_a_call_is_traced(name: str, jax: ModuleType, adapter: ModuleType) -> None:
    error, act, said = WRONG[name]
    arrays = jax.tree.map(jax.numpy.asarray, inputs())
    abstract = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in arrays.items()}
    assert message(lambda: act(adapter.attention, arrays), error) == said
    assert message(lambda: jax.eval_shape(lambda x: act(adapter.attention, x), abstract), error) == said


def test_traced_settings_are_refused(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = inputs()
    call = jax.jit(lambda scale: adapter.attention(**arrays, softmax_scale=scale))
    assert message(lambda: call(0.5)) == (
        "attention: softmax_scale must be a value of Python, which is part of the kernel or its launch, got "
        "a traced float32; close over it, or name it in static_argnames of jax.jit"
    )


def test_packed_sequences_are_checked_when_they_are_traced(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = {**varlen_inputs(), "v": normal(14, DIM)}
    call = lambda x: adapter.attention_varlen(**x)  # noqa: E731
    for act in (call, jax.jit(call)):
        assert message(functools.partial(act, arrays)) == (
            "attention_varlen: v must be [total_k, kv_heads, head_dim_v] = [14, 2, 8], got [14, 8]"
        )


def test_lengths_are_checked_when_a_call_is_computed(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = {**varlen_inputs(), "cu_seqlens_k": np.array([0, 4, 6, 15], np.int32)}
    call = lambda x: adapter.attention_varlen(**x)  # noqa: E731
    said = "cu_seqlens_k[3] must be from 6, which is cu_seqlens_k[2], to 14, the rows of k, got 15"
    assert said in message(lambda: call(arrays))
    assert said in message(lambda: jax.block_until_ready(jax.jit(call)(arrays)), Exception)


def test_gradients_that_are_not_computed_are_refused(jax: ModuleType, adapter: ModuleType) -> None:
    arrays = jax.tree.map(jax.numpy.asarray, inputs())
    q, aux = arrays.pop("q"), {"x": jax.numpy.ones(HEADS)}

    def loss(q: Any, **how: Any) -> Any:
        return adapter.attention(q, **arrays, **how).sum()

    def scaled(score: Any, b: Any, h: Any, i: Any, j: Any, x: Any) -> Any:
        return score * x[h]

    mod = {"score_mod": scaled}
    assert np.asarray(jax.grad(lambda x: loss(x, **mod, aux=aux))(q)).any()
    hiding = {"mask_mod": lambda b, h, i, j, x: x[h] > j}
    assert message(lambda: jax.grad(lambda aux: loss(q, **hiding, aux=aux))(aux)) == (
        "attention: arrays of aux that score_mod does not read have no gradients, but aux_x must be "
        "differentiated; use jax.lax.stop_gradient on them"
    )
    step, x = 2.0**-6, aux["x"]
    for how in (lambda f: f, jax.jit):
        slope = how(jax.grad(lambda x: loss(q, **mod, aux={"x": x}).sum()))(x)
        change = [loss(q, **mod, aux={"x": x + sign * step * slope}) for sign in (1, -1)]
        np.testing.assert_allclose(change[0] - change[1], 2 * step * (slope**2).sum(), rtol=1e-2)
    for twice in (jax.hessian(loss), jax.jit(jax.grad(lambda x: jax.grad(loss)(x).sum()))):
        assert message(functools.partial(twice, q)) == (
            "attention: second derivatives are not computed, because the backward pass has none of its own; "
            "differentiate once, or write this attention with jax.numpy"
        )
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (q,), (q,))


ON_THE_CPU_ONLY = (
    "attention: backends 'cpu', 'compiled' and 'interpreter' are computed on the CPU only, others there and "
    "on NVIDIA GPUs, but the program that is compiled is for another platform; use backend='cuda' on an "
    "NVIDIA GPU, or compile for the CPU, such as inside jax.default_device(jax.devices('cpu')[0])"
)


def test_what_is_computed_on_the_cpu_only_is_refused_when_it_is_compiled(
    jax: ModuleType, adapter: ModuleType
) -> None:
    arrays = jax.tree.map(jax.numpy.asarray, inputs())
    for function, platform in (
        (of_arrays(adapter, backend="cpu"), "cuda"),
        (of_arrays(adapter, backend="interpreter"), "cuda"),
        (jax.grad(lambda x: adapter.attention(**x, backend="cpu").sum()), "cuda"),
        (of_arrays(adapter), "tpu"),
        (jax.grad(lambda x: adapter.attention(**x).sum()), "tpu"),
    ):
        traced = jax.jit(function).trace(arrays)
        traced.lower(lowering_platforms=("cpu",))
        assert message(lambda t=traced, p=platform: t.lower(lowering_platforms=(p,))) == ON_THE_CPU_ONLY


@pytest.mark.usefixtures("adapter")
def test_the_device_of_arrays_is_found(jax: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from flash.adapters.jax.functions import _device_of

    assert _device_of(jax.tree.map(jax.numpy.asarray, inputs())) is None

    class OnGpu:
        def devices(self) -> list[Any]:
            return [SimpleNamespace(platform="gpu", id=3)]

    monkeypatch.setattr(jax, "Array", OnGpu)
    assert _device_of({"q": normal(1), "k": OnGpu()}) == "gpu:3"


def test_arrays_on_a_gpu_are_attended_to_in_place(
    jax: ModuleType, adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU: the adapter is told that arrays are on one, and hands them to flash.attention."""
    from flash.adapters.jax import functions

    monkeypatch.setattr(functions, "_device_of", lambda _: "cuda:0")
    arrays, calls = jax.tree.map(jax.numpy.asarray, inputs("sink")), []

    def attended(**how: Any) -> Any:
        calls.append(how)
        return (how["q"], how["q"][..., 0]) if how["return_lse"] else "out"

    def differentiated(**how: Any) -> Any:
        calls.append(how)
        return Gradients(how["q"], how["k"], how["v"], {"sink": how["sink"]})

    monkeypatch.setattr(flash, "attention", attended)
    monkeypatch.setattr(flash, "attention_backward", differentiated)
    assert adapter.attention(**arrays, causal=True) == "out"
    (how,) = calls
    assert all(how[name] is array for name, array in arrays.items())
    settings = {"causal": True, "layout": "bhsd", "backend": "auto"}
    of_results = {"splits": "auto", "return_lse": False, "return_max_logit": False}
    assert {n: x for n, x in how.items() if n not in arrays} == {**settings, **of_results}
    result = jax.grad(lambda x: adapter.attention(**x, causal=True).sum())(arrays)
    *_, how = calls
    assert all(how[name] is array and result[name] is array for name, array in arrays.items())
    assert how["out"] is arrays["q"]
    assert {n: x for n, x in how.items() if n not in (*arrays, "out", "lse", "dout")} == {
        **settings,
        "deterministic": True,
        "needed": ["q", "k", "v"],
        "wanted": ["sink"],
    }
