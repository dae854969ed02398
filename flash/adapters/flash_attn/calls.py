"""The calls of `flash` that the functions of this package make, and the choice of their backend."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

import flash
from flash.adapters import torch as operators
from flash.adapters.flash_attn.arguments import Scores
from flash.operands.dtype_names import Backend
from flash.problem.config import config_of_call
from flash.scores.window import Sides
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.settings import AUTO

_CALLED: Final = re.compile(r"^(attention|attention_varlen|launch|DecodeKernel\.launch): ")


class _Chosen(threading.local):
    """The backend of the calls of this thread."""

    backend: Backend = AUTO


_CHOSEN: Final = _Chosen()


def _checked(name: Backend) -> Backend:
    check_backend(name, "using_backend")
    return name


@contextmanager
def using_backend(name: Backend) -> Iterator[None]:
    """A context in which the functions of this package compute by a backend: "cuda", "interpreter",
    which runs the kernels' PTX on the CPU, "cpu", which is numpy, "compiled", which is numpy with
    loops of Numba, or "auto", which is the value of PTXGEN_BACKEND, else "cuda" for tensors on a GPU
    or if a GPU opens, else "cpu". Caches are updated in place, so for `flash_attn_with_kvcache`
    "auto" is "cpu" for a cache on the CPU.

    The choice is that of the current thread. Raises `ConfigError` for an unknown name, `BackendError`
    for "compiled" without Numba.
    """
    before, _CHOSEN.backend = _CHOSEN.backend, _checked(name)
    try:
        yield
    finally:
        _CHOSEN.backend = before


def chosen_backend() -> Backend:
    """The backend that `using_backend` has chosen for calls of this thread."""
    return _CHOSEN.backend


def attend(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: Scores,
    *,
    deterministic: bool,
    return_lse: bool,
    **how: Any,
) -> Any:
    """O [batch, seqlen_q, heads, head_dim_v] of q, k and v [batch, seqlen, heads, dim], or (O, LSE
    [batch, heads, seqlen_q]) with `return_lse`. `deterministic` concerns gradients alone. `how` are the other
    arguments of `flash.adapters.torch.attention`. Raises what `flash.attention` raises, in the name of
    `caller`.
    """
    with _naming_caller(caller):
        return operators.attention(
            q,
            k,
            v,
            layout="bshd",
            deterministic=deterministic,
            return_lse=return_lse,
            backend=_CHOSEN.backend,
            **scores._asdict(),
            **how,
        )


def attend_varlen(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    scores: Scores,
    *,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    deterministic: bool,
    return_lse: bool,
    **how: Any,
) -> Any:
    """O [total_q, heads, head_dim_v] of packed sequences, or (O, LSE [heads, total_q]) with
    `return_lse`. `deterministic` and `max_seqlen_k` concern gradients alone; on the host keys are counted in
    place of `max_seqlen_k`. `how` are the other arguments of `flash.adapters.torch.attention_varlen`. Raises
    what `flash.attention_varlen` raises, in the name of `caller`.
    """
    with _naming_caller(caller):
        return operators.attention_varlen(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=None if q.device.type == "cpu" else max_seqlen_k,
            deterministic=deterministic,
            return_lse=return_lse,
            backend=_CHOSEN.backend,
            **scores._asdict(),
            **how,
        )


def attend_narrow(
    caller: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores, **how: Any
) -> Any:
    """`attend` of q, k and v of fp8, or with `cu_seqlens_q` `attend_varlen`: O of bfloat16. `how` are
    their scales and the other arguments of `flash.attention` and `flash.attention_varlen`.
    """
    call: Any = flash.attention_varlen if "cu_seqlens_q" in how else flash.attention
    more = {} if "cu_seqlens_q" in how else {"layout": "bshd"}
    with _naming_caller(caller):
        return call(
            q, k, v, out_dtype=torch.bfloat16, backend=_CHOSEN.backend, **scores.of_kernels(), **how, **more
        )


def attend_paged(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    scores: Scores,
    **how: Any,
) -> Any:
    """`attend_varlen` of keys and values in pages [pages, page_size, kv_heads, dim]; `how` are the
    other arguments of `flash.adapters.torch.attention_varlen`.
    """
    with _naming_caller(caller):
        return operators.attention_varlen(
            q, k, v, cu_seqlens_q, backend=_CHOSEN.backend, **scores._asdict(), **how
        )


def attend_cached(
    caller: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scores: Scores,
    *,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    return_lse: bool,
    **how: Any,
) -> Any:
    """O [batch, seqlen_q, heads, head_dim_v] of q and new rows k and v [batch, rows, heads, dim]
    and caches [sequences or pages, rows, kv_heads, dim], or (O, LSE [batch, heads, seqlen_q]) with
    `return_lse`. The caches are read, and the new rows written to them, in place. `how` are the
    other arguments of `DecodeKernel.launch`. Raises what it raises, in the name of `caller`.
    """
    kernel = _decode_kernel(
        caller,
        q.shape[-1],
        v_cache.shape[-1],
        q.dtype,
        scores.causal,
        scores.window,
        scores.softcap,
        scores.alibi_slopes is not None,
    )
    out = torch.empty((*q.shape[:3], v_cache.shape[-1]), dtype=q.dtype, device=q.device)
    arrays: Any = [None if x is None else x.transpose(1, 2) for x in (q, k_cache, v_cache, k, v)]
    with _naming_caller(caller):
        results = kernel.launch(
            *arrays,
            out=out.transpose(1, 2),
            return_lse=return_lse,
            softmax_scale=scores.softmax_scale,
            alibi_slopes=scores.alibi_slopes,
            backend=_CHOSEN.backend,
            **how,
        )
    return (out, results[1]) if return_lse else out


@contextmanager
def _naming_caller(caller: str) -> Iterator[None]:
    """A context in which errors of `flash` name `caller` as the function that was called."""
    try:
        yield
    except (ConfigError, LaunchError) as error:
        message = _CALLED.sub("", str(error)).replace("leftpad_k", "cache_leftpad")
        raise type(error)(f"{caller}: {message}") from None


@functools.lru_cache(maxsize=128)
def _decode_kernel(
    caller: str,
    head_dim: int,
    head_dim_v: int,
    dtype: torch.dtype,
    causal: bool,
    window: Sides,
    softcap: float | None,
    alibi: bool,
) -> flash.DecodeKernel:
    config = config_of_call(
        caller,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi=alibi,
    )
    return flash.DecodeKernel(config)
