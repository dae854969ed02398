"""Kernels of Liger-Kernel, launched by its host code through PyTorch's autograd."""

from __future__ import annotations

import importlib
from typing import Any, Final

from tools.public.gradients import compare
from tools.public.rows import REPORTED, Source
from tools.public.trial import Trial

LIGER: Final = Source("Liger-Kernel", package="liger-kernel==0.8.5")
_ROWS, _COLUMNS = 6, 100  # no power of two, so that masks have an edge
_X: Final = (_ROWS, _COLUMNS)
_W: Final = (_COLUMNS,)


def _ops() -> Any:
    return importlib.import_module("liger_kernel.transformers.functional")


def _f() -> Any:
    return importlib.import_module("torch.nn.functional")


def _torch() -> Any:
    return importlib.import_module("torch")


def _labels() -> Any:
    return _torch().arange(_ROWS) * 7


def _normed(x: Any, w: Any) -> Any:
    return _ops().liger_rms_norm(x, w, 1e-6)


@LIGER.row()
def rms_norm(trial: Trial) -> None:
    """RMSNorm, forward and backward."""
    compare(trial, _normed, lambda x, w: _f().rms_norm(x, _W, w, 1e-6), [_X, _W])


@LIGER.row(
    REPORTED,
    "Triton fuses a product into the sum over lanes, whose last bits then differ, and all lanes store theirs "
    "to one word: which is kept is not determined",
    says="race: shared address",
)
def rms_norm_fused(trial: Trial) -> None:
    """`rms_norm` as Triton compiles it by default, with `enable_fp_fusion`."""
    wanted = lambda x, w: _f().rms_norm(x, _W, w, 1e-6)  # noqa: E731
    compare(trial, _normed, wanted, [_X, _W], fusion=True)


@LIGER.row()
def fused_add_rms_norm(trial: Trial) -> None:
    """RMSNorm of a sum, forward and backward."""
    compare(
        trial,
        lambda x, r, w: _ops().liger_fused_add_rms_norm(x, r, w, 1e-6)[0],
        lambda x, r, w: _f().rms_norm(x + r, _W, w, 1e-6),
        [_X, _X, _W],
    )


@LIGER.row()
def layer_norm(trial: Trial) -> None:
    """LayerNorm, forward and backward."""
    compare(
        trial,
        lambda x, w, b: _ops().liger_layer_norm(x, w, b, 1e-5),
        lambda x, w, b: _f().layer_norm(x, _W, w, b, 1e-5),
        [_X, _W, _W],
    )


@LIGER.row()
def group_norm(trial: Trial) -> None:
    """GroupNorm, forward and backward."""
    module = importlib.import_module("liger_kernel.ops.group_norm").LigerGroupNormFunction
    compare(
        trial,
        lambda x, w, b: module.apply(x, w, b, 8, 4, 1e-5),
        lambda x, w, b: _f().group_norm(x, 4, w, b, 1e-5),
        [(2, 8, 30), (8,), (8,)],
    )


@LIGER.row()
def softmax(trial: Trial) -> None:
    """Softmax of rows, forward and backward."""
    compare(trial, _ops().liger_softmax, lambda x: x.softmax(-1), [_X])


@LIGER.row()
def sparsemax(trial: Trial) -> None:
    """Sparsemax of rows, forward and backward."""
    compare(trial, lambda x: _ops().liger_sparsemax(x, -1), _sparsemax, [_X])


def _sparsemax(x: Any) -> Any:
    """The projection of rows onto the simplex (Martins and Astudillo 2016, algorithm 1)."""
    torch = _torch()
    ordered = x.sort(-1, descending=True).values
    sums = ordered.cumsum(-1)
    counts = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (1 + counts * ordered > sums).sum(-1, keepdim=True)
    return (x - (sums.gather(-1, support - 1) - 1) / support).clamp(min=0)


@LIGER.row()
def cross_entropy(trial: Trial) -> None:
    """Cross entropy, which writes the gradient over the logits."""
    compare(
        trial,
        lambda x: _ops().liger_cross_entropy(x, _labels()),
        lambda x: _f().cross_entropy(x, _labels()),
        [_X],
    )


@LIGER.row()
def fused_linear_cross_entropy(trial: Trial) -> None:
    """A projection and cross entropy, a chunk of rows at a time."""
    compare(
        trial,
        lambda x, w: _ops().liger_fused_linear_cross_entropy(x, w, _labels()),
        lambda x, w: _f().cross_entropy(x @ w.T, _labels()),
        [(_ROWS, 32), (_COLUMNS, 32)],
    )


def _uniform(dtype: Any = None) -> Any:
    return _torch().full(_X, 1 / _COLUMNS, dtype=dtype)


@LIGER.row()
def kl_div(trial: Trial) -> None:
    """The Kullback-Leibler divergence, forward and backward."""
    log_softmax = _f().log_softmax
    compare(
        trial,
        lambda x: _ops().liger_kl_div(log_softmax(x, -1), _uniform(), reduction="batchmean"),
        lambda x: _f().kl_div(log_softmax(x, -1), _uniform(x.dtype), reduction="batchmean"),
        [_X],
    )


@LIGER.row()
def jsd(trial: Trial) -> None:
    """The Jensen-Shannon divergence, forward and backward."""
    log_softmax = _f().log_softmax

    def wanted(x: Any) -> Any:
        p, q = _uniform(x.dtype), x.softmax(-1)
        mean = (p + q) / 2
        terms = p * (p.log() - mean.log()) + q * (q.log() - mean.log())
        return terms.sum() / 2 / _ROWS

    compare(trial, lambda x: _ops().liger_jsd(log_softmax(x, -1), _uniform().log()), wanted, [_X])


@LIGER.row()
def tvd(trial: Trial) -> None:
    """The total variation distance, forward and backward."""
    compare(
        trial,
        lambda x: _ops().liger_tvd(x.softmax(-1), _uniform(), reduction="batchmean"),
        lambda x: (x.softmax(-1) - _uniform(x.dtype)).abs().sum() / 2 / _ROWS,
        [_X],
    )


@LIGER.row()
def swiglu(trial: Trial) -> None:
    """SwiGLU, whose backward pass writes over its arguments."""
    compare(trial, _ops().liger_swiglu, lambda a, b: _f().silu(a) * b, [_X, _X])


@LIGER.row()
def geglu(trial: Trial) -> None:
    """GeGLU, whose backward pass writes over its arguments."""
    compare(trial, _ops().liger_geglu, lambda a, b: _f().gelu(a, approximate="tanh") * b, [_X, _X])


@LIGER.row()
def relu_squared(trial: Trial) -> None:
    """Squared ReLU, forward and backward."""
    module = importlib.import_module("liger_kernel.ops").LigerReLUSquaredFunction
    compare(trial, module.apply, lambda a: _f().relu(a) ** 2, [_X])


@LIGER.row()
def dynamic_tanh(trial: Trial) -> None:
    """A scaled tanh in place of a norm (DyT), forward; the host code of backward asks the GPU."""
    torch = _torch()
    forward = importlib.import_module("liger_kernel.ops.dyt").liger_dyt_fwd
    chance = torch.Generator().manual_seed(2)
    x, alpha, gamma, beta = (torch.randn(s, generator=chance) for s in (_X, (1,), _W, _W))
    with trial.triton():
        got = forward(x, alpha, gamma, beta)
    trial.close("the result", got, gamma.double() * (alpha * x).double().tanh() + beta.double(), 1e-5)


@LIGER.row()
def rope(trial: Trial) -> None:
    """Rotary embedding of queries and keys in place, forward and backward."""
    torch = _torch()
    angles = torch.arange(12).outer(10.0 ** -torch.arange(0, 2, 0.25)).repeat(1, 2)[None]
    cos, sin = angles.cos(), angles.sin()

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]

    compare(
        trial,
        lambda q, k: torch.cat(_ops().liger_rope(q, k, cos, sin), 1),
        lambda q, k: torch.cat([rotated(x, cos.double(), sin.double()) for x in (q, k)], 1),
        [(2, 4, 12, 16), (2, 2, 12, 16)],
    )
