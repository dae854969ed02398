"""Kernels of flash-linear-attention (package fla-core), launched by its host code."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Final

from tools.public.rows import Source
from tools.public.trial import Trial

FLA: Final = Source("flash-linear-attention", package="fla-core==0.6.0", needs=("einops",))
_B, _T, _H, _D = 1, 64, 2, 32  # batch, tokens, heads, elements of a head


def _module(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no GPU
        return importlib.import_module(f"fla.{name}")


def _torch() -> Any:
    return importlib.import_module("torch")


def _f() -> Any:
    return importlib.import_module("torch.nn.functional")


def _x(*shape: int, seed: int = 1) -> Any:
    torch = _torch()
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _heads(dtype: str = "float32") -> list[Any]:
    return [_x(_B, _T, _H, _D, seed=seed).to(getattr(_torch(), dtype)) for seed in (1, 2, 3)]


@FLA.row()
def rms_norm(trial: Trial) -> None:
    """RMSNorm."""
    x, w = _x(6, 100), _x(100, seed=2)
    function = _module("modules.layernorm").rms_norm
    with trial.triton():
        got = function(x, w, None, eps=1e-5)
    trial.close("the result", got, _f().rms_norm(x.double(), (100,), w.double(), 1e-5), 1e-5)


@FLA.row()
def causal_conv1d(trial: Trial) -> None:
    """A causal convolution of four taps, then SiLU."""
    x, w = _x(1, 20, 32), _x(32, 4, seed=2)
    function = _module("modules.conv").causal_conv1d
    with trial.triton():
        got = function(x, w, activation="silu")[0]
    padded = _f().pad(x.double().transpose(1, 2), (3, 0))
    wanted = _f().silu(_f().conv1d(padded, w.double()[:, None], groups=32)).transpose(1, 2)
    trial.close("the result", got.reshape(wanted.shape), wanted, 1e-5)


@FLA.row()
def rotary_embedding(trial: Trial) -> None:
    """Rotary embedding."""
    x, angles = _x(1, 20, 2, 32), _x(20, 16, seed=2)
    cos, sin = angles.cos(), angles.sin()
    function = _module("modules.rotary").rotary_embedding
    with trial.triton():
        got = function(x, cos, sin)
    low, high = x.double().chunk(2, -1)
    c, s = cos.double()[None, :, None], sin.double()[None, :, None]
    wanted = _torch().cat([low * c - high * s, low * s + high * c], -1)
    trial.close("the result", got, wanted, 1e-5)


@FLA.row()
def cross_entropy(trial: Trial) -> None:
    """Cross entropy of each row."""
    x, labels = _x(6, 100), _torch().arange(6)
    function = _module("modules.fused_cross_entropy").cross_entropy_loss
    with trial.triton():
        got = function(x, labels)[0]
    trial.close("the result", got, _f().cross_entropy(x.double(), labels, reduction="none"), 1e-5)


@FLA.row()
def parallel_attn(trial: Trial) -> None:
    """Causal attention in float16."""
    inputs = _heads("float16")
    function = _module("ops.attn").parallel_attn
    with trial.triton():
        got = function(*inputs)
    q, k, v = (tensor.double().transpose(1, 2) for tensor in inputs)
    wanted = _f().scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    trial.close("the result", got, wanted, 2e-3)


def _recurrent(q: Any, k: Any, v: Any, decay: Any = None) -> Any:
    """Linear attention a token at a time: the state decays, then takes up a key and a value."""
    torch = _torch()
    q, k, v = (tensor.double() for tensor in (q, k, v))
    state = torch.zeros(_B, _H, _D, _D, dtype=torch.float64)
    out = []
    for t in range(_T):
        if decay is not None:
            state = state * decay[:, t].double().exp()[..., None]
        state = state + k[:, t][..., None] * v[:, t][:, :, None]
        out.append((q[:, t][..., None] * _D**-0.5 * state).sum(-2))
    return torch.stack(out, 1)


@FLA.row()
def chunk_linear_attn(trial: Trial) -> None:
    """Linear attention, a chunk of tokens at a time; products in TF32."""
    q, k, v = _heads()
    function = _module("ops.linear_attn").chunk_linear_attn
    with trial.triton():
        got, _ = function(q, k, v, normalize=False)
    trial.close("the result", got, _recurrent(q, k, v), 3e-3)


@FLA.row()
def chunk_gla(trial: Trial) -> None:
    """Gated linear attention, a chunk of tokens at a time; products in TF32."""
    q, k, v = _heads()
    decay = _f().logsigmoid(_x(_B, _T, _H, _D, seed=4))
    function = _module("ops.gla").chunk_gla
    with trial.triton():
        got, _ = function(q, k, v, decay)
    trial.close("the result", got, _recurrent(q, k, v, decay), 3e-3)


@FLA.row()
def chunk_delta_rule(trial: Trial) -> None:
    """The delta rule, a chunk of tokens at a time, in float16."""
    torch = _torch()
    q, k, v = _heads()
    k = _f().normalize(k, dim=-1)
    rates = torch.rand(_B, _T, _H, generator=torch.Generator().manual_seed(4))
    inputs = [tensor.half() for tensor in (q, k, v, rates)]
    function = _module("ops.delta_rule").chunk_delta_rule
    with trial.triton():
        got, _ = function(*inputs)
    q, k, v, rates = (tensor.double() for tensor in inputs)
    state = torch.zeros(_B, _H, _D, _D, dtype=torch.float64)
    out = []
    for t in range(_T):
        known = (k[:, t][..., None] * state).sum(-2)
        change = (v[:, t] - known) * rates[:, t][..., None]
        state = state + k[:, t][..., None] * change[:, :, None]
        out.append((q[:, t][..., None] * _D**-0.5 * state).sum(-2))
    trial.close("the result", got, torch.stack(out, 1), 3e-3)
