"""Inputs whose gradients torch is to track are refused by all that autograd does not go through."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import flash
from ptxgen.errors import LaunchError

Call = Callable[[Any], tuple[str, dict[str, Any], Callable[..., Any]]]


def _attention(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    arrays = {
        "q": t.zeros(1, 2, 3, 8),
        "k": t.zeros(1, 1, 4, 8),
        "v": t.zeros(1, 1, 4, 8),
        "alibi_slopes": t.zeros(2),
        "bias": t.zeros(3, 4),
        "sink": t.zeros(2),
    }
    return "attention", arrays, flash.attention


def _launch(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    _, arrays, _ = _attention(t)
    config = flash.AttentionConfig(8, alibi=True, bias="f32", sink=True)
    return "launch", arrays, flash.AttentionKernel(config).launch


def _explain(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    _, arrays, _ = _attention(t)
    config = flash.AttentionConfig(8, alibi=True, bias="f32", sink=True)
    return "launch", arrays, flash.AttentionKernel(config).explain


def _varlen(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    ends = t.tensor([0, 2, 6], dtype=t.int32)
    arrays = {"q": t.zeros(6, 2, 8), "k": t.zeros(6, 1, 8), "v": t.zeros(6, 1, 8)}
    return (
        "attention_varlen",
        arrays,
        lambda **given: flash.attention_varlen(**given, cu_seqlens_q=ends, cu_seqlens_k=ends),
    )


def _new_rows(t: Any) -> dict[str, Any]:
    return {
        "q": t.zeros(2, 2, 1, 8),
        "k": t.zeros(2, 1, 1, 8),
        "v": t.zeros(2, 1, 1, 8),
        "rotary_cos": t.ones(16, 4),
        "rotary_sin": t.ones(16, 4),
        "alibi_slopes": t.zeros(2),
        "sink": t.zeros(2),
    }


def _with_cache(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    return (
        "attention_with_kvcache",
        _new_rows(t),
        lambda **given: flash.attention_with_kvcache(**given, cache=flash.KVCache(1, 2, 1, 8, 16), layer=0),
    )


def _step(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    return (
        "DecodeStep",
        _new_rows(t),
        lambda **given: flash.DecodeStep(**given, cache=flash.KVCache(1, 2, 1, 8, 16), layer=0),
    )


def _decode(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    arrays = _new_rows(t) | {"k_cache": t.zeros(2, 1, 16, 8), "v_cache": t.zeros(2, 1, 16, 8)}
    kernel = flash.DecodeKernel(flash.AttentionConfig(8, alibi=True, sink=True))
    used = t.tensor([2, 3], dtype=t.int32)
    return "DecodeKernel.launch", arrays, lambda **given: kernel.launch(**given, seqused_k=used)


def _append(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    arrays = {"k": t.zeros(2, 1, 1, 8), "v": t.zeros(2, 1, 1, 8)}
    return ("KVCache.append", arrays, lambda **given: flash.KVCache(1, 2, 1, 8, 16).append(0, **given))


def _merge(t: Any) -> tuple[str, dict[str, Any], Callable[..., Any]]:
    return "merge_partials", {"outs": t.zeros(2, 3, 8), "lses": t.zeros(2, 3)}, flash.merge_partials


WITH_GRADIENTS = ("attention", "attention_varlen")  # in the adapter of torch
CALLS = [_attention, _launch, _explain, _varlen, _with_cache, _step, _decode, _append, _merge]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.strip("_"))
def test_an_input_that_requires_gradients_is_refused(call: Call, torch: ModuleType) -> None:
    caller, arrays, launch = call(torch)
    for name, array in arrays.items():
        given = arrays | {name: array.clone().requires_grad_()}
        with pytest.raises(LaunchError) as caught:
            launch(**given)
        cure = f"use flash.adapters.torch.{caller}, which computes them, "
        assert str(caught.value) == (
            f"{caller}: {name} requires gradients, which are not computed: they would be lost without "
            f"a word; {cure if caller in WITH_GRADIENTS else ''}call inside torch.no_grad(), or pass "
            f"{name}.detach()"
        )


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.strip("_"))
def test_without_grad_mode_and_detached_they_are_taken(call: Call, torch: ModuleType) -> None:
    _, arrays, launch = call(torch)
    read = {name: array.clone().requires_grad_() for name, array in arrays.items()}
    written = {name: arrays[name] for name in arrays if name.endswith("_cache")}
    with torch.no_grad():
        launch(**{**read, **written})
    launch(**{name: array.detach() for name, array in read.items()})


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
