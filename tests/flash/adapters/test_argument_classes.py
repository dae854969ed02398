"""Numbers of other classes than Python's mean the same in each function: numpy's scalars, tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flash

OURS: dict[str, Any] = {"softmax_scale": 0.25, "softcap": 3.0, "window": (2, 0)}
THEIRS: dict[str, Any] = {"softmax_scale": 0.25, "softcap": 3.0, "window_size": (2, 0)}
NUMPY = np.float32(0.25), np.float16(3.0)
Call = Callable[..., Any]


def calls(torch: ModuleType, flash_attn: Any) -> dict[str, tuple[Call, dict[str, Any]]]:
    """A call of each function, which takes its arguments about scores, and these as numbers of Python."""
    from flash.adapters import torch as ours

    rows = torch.randn(1, 5, 2, 16, generator=torch.Generator().manual_seed(0))
    tracked = rows.clone().requires_grad_()
    cu = torch.tensor([0, 5], dtype=torch.int32)
    packed, most = rows[0], {"max_seqlen_q": 5}
    theirs = functools.partial

    def cached(**how: Any) -> Any:
        cache = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=16, capacity=8)
        heads = [rows.transpose(1, 2)] * 3
        return ours.attention_with_kvcache(heads[0], cache, *heads[1:], layer=0, **how)

    def of_config(**how: Any) -> Any:
        config = flash.AttentionConfig(head_dim=16, **how)
        return flash.AttentionKernel(config).launch(rows, rows, rows, layout="bshd")

    return {
        "flash.attention": (theirs(flash.attention, rows, rows, rows, layout="bshd"), OURS),
        "flash.attention_varlen": (
            theirs(flash.attention_varlen, packed, packed, packed, cu, cu, **most),
            OURS,
        ),
        "AttentionConfig": (of_config, OURS),
        "attention": (theirs(ours.attention, rows, rows, rows, layout="bshd"), OURS),
        "with gradients": (theirs(ours.attention, tracked, rows, rows, layout="bshd"), OURS),
        "attention_with_kvcache": (cached, OURS),
        "flash_attn_func": (theirs(flash_attn.flash_attn_func, rows, rows, rows), THEIRS),
        "flash_attn_varlen_func": (
            theirs(flash_attn.flash_attn_varlen_func, packed, packed, packed, cu, cu, 5, 5),
            THEIRS,
        ),
        "flash_attn_with_kvcache": (theirs(flash_attn.flash_attn_with_kvcache, rows, rows, rows), THEIRS),
    }


NAMES = (
    "flash.attention",
    "flash.attention_varlen",
    "AttentionConfig",
    "attention",
    "with gradients",
    "attention_with_kvcache",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
)


@pytest.mark.parametrize("kind", ["tensor", "array", "list of tensors"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_any_class_are_taken(torch: ModuleType, flash_attn: Any, name: str, kind: str) -> None:
    call, how = calls(torch, flash_attn)[name]
    windows: dict[str, Any] = {
        "tensor": torch.tensor([2, 0]),
        "array": np.array([2, 0]),
        "list of tensors": [torch.tensor(2), np.int64(0)],
    }
    given = dict(zip(how, (*NUMPY, windows[kind]), strict=True))
    assert torch.equal(call(**given), call(**how))


def test_a_window_that_changes_in_place_is_read_in_each_call(torch: ModuleType) -> None:
    rows = torch.randn(1, 2, 5, 16)
    window = torch.tensor([2, 0])
    flash.attention(rows, rows, rows, window=window)
    window[0] = 1
    found = flash.attention(rows, rows, rows, window=window)
    assert torch.equal(found, flash.attention(rows, rows, rows, window=(1, 0)))


def test_jax_takes_them() -> None:
    jnp = pytest.importorskip("jax.numpy")
    from flash.adapters import jax as ours

    rows = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 5, 16), dtype=np.float32))
    given = dict(zip(OURS, (*NUMPY, jnp.array([2, 0])), strict=True))
    assert (ours.attention(rows, rows, rows, **given) == ours.attention(rows, rows, rows, **OURS)).all()
