"""Calls over caches of keys and values in compiled code: operators that torch.compile does not look into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from flash.adapters.flash_attn.calls import chosen_backend, using_backend
from flash.adapters.torch import flops, library

_SCHEMA: Final = (
    "(Tensor q, Tensor{0} k_cache, Tensor{1} v_cache, Tensor? k, Tensor? v, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? lengths, SymInt? length, Tensor? cache_batch_idx, Tensor? cache_leftpad, "
    "Tensor? block_table, float? softmax_scale, bool causal, SymInt[]? window_size, float? softcap, "
    "bool rotary_interleaved, Tensor? alibi_slopes, SymInt num_splits, bool return_softmax_lse, "
    "Tensor? rotary_seqlens, Tensor? k_descale, Tensor? v_descale, str backend) "
    "-> (Tensor, Tensor)"
)
# The positions of arguments of the function: k, cache_seqlens, which is an integer or a tensor,
# window_size and return_softmax_lse.
_NEW: Final = 3
_LENGTHS: Final = 7
_WINDOW: Final = 13
_WITH_LSE: Final = 18
_NO_GRADIENTS: Final = "there is no backward pass of attention over a KV cache"


class CacheOperators:
    """The operators of a function `caller` over caches, which `attend` computes: `ptxgen_flash::caller`
    writes new rows to the caches, and `ptxgen_flash::caller_read` only reads them.
    """

    def __init__(self, caller: str, attend: Callable[..., Any]) -> None:
        self._attend = attend
        self._write = library.declare(caller, _SCHEMA.format("(a!)", "(b!)"), self._run, _fake)
        self._read = library.declare(f"{caller}_read", _SCHEMA.format("", ""), self._run, _fake)
        for operator in (self._write, self._read):
            flops.count(operator, flops.pairs_of_caches)
        library.refuse_gradients(self._write, caller, _NO_GRADIENTS, written=(1, 2))
        library.refuse_gradients(self._read, caller, _NO_GRADIENTS, written=())

    def call(self, arguments: tuple[Any, ...]) -> Any:
        """The results of `attend(*arguments)`, by an operator that torch.compile does not look into."""
        lengths = arguments[_LENGTHS]
        both = (lengths, None) if isinstance(lengths, Tensor) else (None, lengths)
        window = arguments[_WINDOW]
        sides = None if window is None else [-1 if side is None else side for side in window]
        operator = self._read if arguments[_NEW] is None else self._write
        between, after = arguments[_LENGTHS + 1 : _WINDOW], arguments[_WINDOW + 1 :]
        out, lse = operator(*arguments[:_LENGTHS], *both, *between, sides, *after, chosen_backend())
        return (out, lse) if arguments[_WITH_LSE] else out

    def _run(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        *most, backend = arguments
        lengths, length = most[_LENGTHS : _LENGTHS + 2]
        most[_LENGTHS : _LENGTHS + 2] = [length if lengths is None else lengths]
        with using_backend(backend):
            results = self._attend(*most)
        if most[_WITH_LSE]:
            return results  # type: ignore[no-any-return]
        return results, results.new_empty((0,), dtype=torch.float32)


def _fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    batch, rows, heads, _ = q.shape
    lse = (batch, heads, rows) if arguments[_WITH_LSE - 2] else (0,)
    return q.new_empty((batch, rows, heads, v_cache.shape[-1])), q.new_empty(lse, dtype=torch.float32)
