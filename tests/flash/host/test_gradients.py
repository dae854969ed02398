"""Inputs whose gradients torch is to track are refused by all that autograd does not go through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import flash
from ptxgen.errors import LaunchError

Launch = Callable[..., Any]


def _attention(t: Any) -> dict[str, Any]:
    inputs = {"q": t.zeros(1, 2, 3, 8), "k": t.zeros(1, 1, 4, 8), "v": t.zeros(1, 1, 4, 8)}
    return {**inputs, "alibi_slopes": t.zeros(2), "bias": t.zeros(3, 4), "sink": t.zeros(2)}


def _packed(t: Any) -> dict[str, Any]:
    return {"q": t.zeros(6, 2, 8), "k": t.zeros(6, 1, 8), "v": t.zeros(6, 1, 8)}


def _new_rows(t: Any) -> dict[str, Any]:
    rows = {"q": t.zeros(2, 2, 1, 8), "k": t.zeros(2, 1, 1, 8), "v": t.zeros(2, 1, 1, 8)}
    angles = {"rotary_cos": t.ones(16, 4), "rotary_sin": t.ones(16, 4)}
    return {**rows, **angles, "alibi_slopes": t.zeros(2), "sink": t.zeros(2)}


def _with_cache(t: Any) -> dict[str, Any]:
    return {**_new_rows(t), "k_cache": t.zeros(2, 1, 16, 8), "v_cache": t.zeros(2, 1, 16, 8)}


def _kernel() -> flash.AttentionKernel:
    return flash.AttentionKernel(flash.AttentionConfig(8, alibi=True, bias="f32", sink=True))


def _cache() -> flash.KVCache:
    return flash.KVCache(1, 2, 1, 8, 16)


# By name: the function that messages name, its arrays, and a call with these.
CALLS: dict[str, tuple[str, Callable[[Any], dict[str, Any]], Callable[[Any], Launch]]] = {
    "attention": ("attention", _attention, lambda _: flash.attention),
    "launch": ("launch", _attention, lambda _: _kernel().launch),
    "explain": ("launch", _attention, lambda _: _kernel().explain),
    "varlen": (
        "attention_varlen",
        _packed,
        lambda t: functools.partial(
            flash.attention_varlen, **dict.fromkeys(ENDS, t.tensor([0, 2, 6], dtype=t.int32))
        ),
    ),
    "with_cache": (
        "attention_with_kvcache",
        _new_rows,
        lambda _: lambda **given: flash.attention_with_kvcache(**given, cache=_cache(), layer=0),
    ),
    "step": (
        "DecodeStep",
        _new_rows,
        lambda _: lambda **given: flash.DecodeStep(**given, cache=_cache(), layer=0),
    ),
    "decode": (
        "DecodeKernel.launch",
        _with_cache,
        lambda t: functools.partial(
            flash.DecodeKernel(flash.AttentionConfig(8, alibi=True, sink=True)).launch,
            seqused_k=t.tensor([2, 3], dtype=t.int32),
        ),
    ),
    "append": (
        "KVCache.append",
        lambda t: {"k": t.zeros(2, 1, 1, 8), "v": t.zeros(2, 1, 1, 8)},
        lambda _: lambda **given: _cache().append(0, **given),
    ),
    "merge": (
        "merge_partials",
        lambda t: {"outs": t.zeros(2, 3, 8), "lses": t.zeros(2, 3)},
        lambda _: flash.merge_partials,
    ),
}
ENDS = ("cu_seqlens_q", "cu_seqlens_k")
WITH_GRADIENTS = ("attention", "attention_varlen")  # in the adapter of torch


@pytest.mark.parametrize("name", CALLS)
def test_an_input_that_requires_gradients_is_refused(name: str, torch: ModuleType) -> None:
    caller, of, launch = CALLS[name]
    arrays = of(torch)
    for argument, array in arrays.items():
        arguments = arrays | {argument: array.clone().requires_grad_()}
        with pytest.raises(LaunchError) as caught:
            launch(torch)(**arguments)
        cure = f"use flash.adapters.torch.{caller}, which computes them, "
        assert str(caught.value) == (
            f"{caller}: {argument} requires gradients, which are not computed: they would be lost without "
            f"a word; {cure if caller in WITH_GRADIENTS else ''}call inside torch.no_grad(), or pass "
            f"{argument}.detach()"
        )


@pytest.mark.parametrize("name", CALLS)
def test_without_grad_mode_and_detached_they_are_taken(name: str, torch: ModuleType) -> None:
    _, of, launch = CALLS[name]
    arrays = of(torch)
    read = {name: array.clone().requires_grad_() for name, array in arrays.items()}
    written = {name: arrays[name] for name in arrays if name.endswith("_cache")}
    with torch.no_grad():
        launch(torch)(**{**read, **written})
    launch(torch)(**{name: array.detach() for name, array in read.items()})


def test_all_that_require_gradients_are_named(torch: ModuleType) -> None:
    weight = torch.nn.Parameter(torch.zeros(1, 1, 4, 8))
    cure = (
        "requires gradients, which are not computed: they would be lost without a word; use "
        "flash.adapters.torch.attention, which computes them, call inside torch.no_grad(), or "
        "pass "
    )
    with pytest.raises(LaunchError) as caught:
        flash.attention(weight, weight.detach(), weight * 2)
    assert str(caught.value) == (f"attention: 2 problems\n  q {cure}q.detach()\n  v {cure}v.detach()")


def test_scales_that_require_gradients_are_refused(torch: ModuleType) -> None:
    cache = flash.KVCache(1, 2, 1, 8, 16, dtype="e4m3")
    scale = torch.nn.Parameter(torch.ones(1, 1))
    with pytest.raises(LaunchError) as caught:
        cache.set_scales(scale, 1.0)
    assert str(caught.value) == (
        "KVCache.set_scales: k_scale requires gradients, which are not computed: they would be "
        "lost without a word; call inside torch.no_grad(), or pass k_scale.detach()"
    )
    with torch.no_grad():
        cache.set_scales(scale, scale)
    assert cache.scales is not None
