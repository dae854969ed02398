"""Gradients of attention by others: PyTorch's autograd, and differences of the forward reference."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flash.scores.philox import STEPS, keep_mask, threshold
from flash.scores.window import causal_offset, position_offset

Array = NDArray[Any]
Operands = dict[str, Array]  # q, k, v and arrays of scores, by name


Product = Callable[[Any, Any], Any]


def torch_gradients(
    torch: ModuleType, dout: Array, dlse: Array | None, operands: Operands, how: Mapping[str, Any]
) -> Operands:
    """The gradients of `operands` by autograd, through attention as it is written in books, in
    float64. `how` are the other arguments of the reference, `mask` among them.
    """
    of = {name: torch.tensor(np.float64(x), requires_grad=True) for name, x in operands.items()}
    return _backward(torch, dout, dlse, of, how, operator.matmul)


def torch_gradients_in(
    torch: ModuleType, kind: str, dout: Array, dlse: Array | None, operands: Operands, how: Mapping[str, Any]
) -> Operands:
    """The gradients of `operands` by autograd, with the roundings of PyTorch for q, k, v and dout of a
    `kind`: with "f16" and "bf16" the factors of matrix products are rounded to that type, and so are the
    products, and all else is f32, as under `torch.autocast`; with "tf32" the factors are f32 rounded to
    tf32, as under `torch.backends.cuda.matmul.allow_tf32`; with "f32" all is f32. Arguments are those of
    `torch_gradients`; gradients of q, k and v are returned in the type of q, others as f32.
    """
    half = {"f16": torch.float16, "bf16": torch.bfloat16}.get(kind)
    of = {name: torch.tensor(np.float32(x), requires_grad=True) for name, x in operands.items()}
    product = operator.matmul
    if half is not None:
        product = functools.partial(_half_product, half)
    elif kind == "tf32":
        product = _tf32_product(torch).apply
    result = _backward(torch, dout, dlse, of, how, product)
    to = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}.get(kind, np.float32)
    return {name: x.astype(to) if name in "qkv" else x for name, x in result.items()}


def _half_product(half: Any, a: Any, b: Any) -> Any:
    return (a.to(half) @ b.to(half)).float()


def _tf32_product(torch: ModuleType) -> Any:
    """Products of factors that are rounded to the 11 significant bits of tf32."""

    def rounded(x: Any) -> Any:
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)

    class Tf32Product(torch.autograd.Function):  # type: ignore[misc,name-defined]  # torch has no types here
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return rounded(a) @ rounded(b)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            by = rounded(grad)
            return by @ rounded(b).transpose(2, 3), rounded(a).transpose(2, 3) @ by

    return Tf32Product


def _backward(
    torch: ModuleType,
    dout: Array,
    dlse: Array | None,
    of: Mapping[str, Any],
    how: Mapping[str, Any],
    product: Product,
) -> Operands:
    """The gradients of the tensors `of`, in their type."""
    out, lse = _attention(torch, of, product=product, **how)
    loss = (out * torch.tensor(dout.astype(np.float64)).to(out.dtype)).sum()
    if dlse is not None:
        some = torch.isfinite(lse.detach())
        loss = loss + (torch.where(some, lse, 0.0) * torch.tensor(np.float64(dlse)).to(lse.dtype)).sum()
    loss.backward()
    return {
        name: np.zeros(x.shape) if x.grad is None else np.asarray(x.grad.numpy()) for name, x in of.items()
    }


def _attention(
    torch: ModuleType,
    of: Mapping[str, Any],
    *,
    product: Product,
    softmax_scale: float | None = None,
    causal: Any = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    mask: Array | None = None,
    dropout: float = 0.0,
    dropout_seed: int = 0,
) -> tuple[Any, Any]:
    """O and LSE as tensors."""
    q, k, v = of["q"], of["k"], of["v"]
    (batch, heads, seq_q, d), seq_k = q.shape, k.shape[2]
    group = heads // k.shape[1] if k.shape[1] else 1
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    score = (d**-0.5 if softmax_scale is None else softmax_scale) * product(q, k.transpose(2, 3))
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    rows, keys = np.arange(seq_q)[:, None], np.arange(seq_k)
    distance = rows + position_offset(causal, seq_q, seq_k) - keys
    if "alibi_slopes" in of:
        slopes = of["alibi_slopes"].expand(batch, heads)[..., None, None]
        score = score - slopes * torch.tensor(np.abs(distance))
    if "bias" in of:
        score = score + of["bias"]
    if "key_bias" in of:
        score = score + of["key_bias"].expand(batch, heads, seq_k)[..., None, :]
    seen = np.broadcast_to(keys <= rows + causal_offset(causal, seq_q, seq_k), score.shape)
    before, behind = window or (None, None)
    seen = seen & (True if before is None else distance <= before)
    seen = seen & (True if behind is None else -distance <= behind)
    seen = torch.tensor(seen & (True if mask is None else mask))
    score = score.masked_fill(~seen, -torch.inf)
    values = v
    if "sink" in of:  # one more key, whose value is 0
        column = of["sink"].expand(batch, heads)[..., None, None].expand(batch, heads, seq_q, 1)
        score = torch.cat([score, column], dim=3)
        values = torch.cat([v, torch.zeros_like(v[:, :, :1])], dim=2)
    if score.shape[3] == 0:
        return 0 * (q @ torch.zeros(d, v.shape[3], dtype=q.dtype)), torch.full(q.shape[:3], -torch.inf)
    empty = torch.isneginf(score).all(dim=3)
    weight = torch.softmax(torch.where(empty[..., None], 0.0, score), dim=3)
    lse = torch.where(empty, -torch.inf, torch.logsumexp(score.masked_fill(empty[..., None], 0.0), dim=3))
    if dropout:
        numbers = np.arange(batch * heads)
        some = keep_mask(dropout, dropout_seed, numbers, np.arange(seq_q), np.arange(score.shape[3]))
        factor = some * (STEPS / threshold(dropout))
        weight = weight * torch.tensor(factor.reshape(weight.shape)).to(weight.dtype)
    return torch.where(empty[..., None], 0.0, product(weight, values)), lse


def difference(
    attention: Callable[..., tuple[Array, Array]],
    dout: Array,
    dlse: Array,
    operands: Operands,
    name: str,
    step: float = 1e-5,
) -> Array:
    """The gradient of one operand by differences of `attention` at four points for each element,
    whose error falls with the fourth power of `step`.
    """
    result = np.zeros_like(operands[name])

    def loss(at: tuple[int, ...], by: float) -> float:
        moved = operands[name].copy()
        moved[at] += by
        out, lse = attention(**{**operands, name: moved})
        return float((out * dout).sum() + (np.where(np.isneginf(lse), 0, lse) * dlse).sum())

    for at in np.ndindex(result.shape):
        near = loss(at, step) - loss(at, -step)
        far = loss(at, 2 * step) - loss(at, -2 * step)
        result[at] = (8 * near - far) / (12 * step)
    return result


def broadcasts(*sizes: int) -> list[tuple[int, ...]]:
    """Each shape of 1 or the whole of each axis, and those without the first axes."""
    full = [shape for n in range(len(sizes) + 1) for shape in itertools.product(*((1, s) for s in sizes[n:]))]
    return list(dict.fromkeys(full))
