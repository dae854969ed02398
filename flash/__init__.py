"""Attention on numpy, torch, CuPy, JAX and other arrays, by kernels that are generated for each problem.

Functions, which make a kernel for the arrays of a call and keep it:

    attention(q, k, v)               of a batch of sequences of one length
    attention_varlen(q, k, v, …)     of packed sequences, each of its own length
    attention_backward(dout, …)      gradients of attention, from what it returned
    attention_varlen_backward(…)     those of attention_varlen
    attention_weights(q, k)          the softmax of the scores, of all queries or a slice of them
    attention_with_kvcache(q, cache) of new queries to the keys of a KVCache, after appending new ones
    merge_partials(outs, lses)       of attentions to parts of the keys
    lse_to_log2, lse_from_log2       the log-sum-exp in base 2, of tokens by heads, and back
    block_table_from_csr(…)          a page table from one in compressed rows
    rotary_tables(positions, dim)    cos and sin of rotary position embedding
    quantize_mx(x)                   numbers as fp8 in blocks with scales (MXFP8)
    quantize_nvfp4(x)                numbers of four bits in blocks with scales (NVFP4)
    quantize_rows(x, dtype)          rows of a KV cache of fp8, int8, q8_0 or q4_0
    to_device(array)                 a copy on a GPU, where no library has arrays there

Classes:

    AttentionConfig                  a problem, and how to compute it
    AttentionGradient                its gradients, for batches and packed sequences
    AttentionKernel, DecodeKernel    its kernel, for batches and packed sequences, and for caches
    KVCache                          keys and values of sequences, contiguous or in pages
    DecodeStep                       attention_with_kvcache, repeated with little work for the host

`help(flash.attention)` has all arguments. Modules that are not named here are the inside of the package.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final

from ptxgen import __version__ as __version__

__distribution__: Final = "ptxgen"  # by which a module of this name is known to be ours

if TYPE_CHECKING:
    from flash.cache.attention import DecodeStep, attention_with_kvcache
    from flash.cache.cache import KVCache
    from flash.decode.kernel import DecodeKernel
    from flash.decode.merge import merge_partials
    from flash.functions import attention, attention_varlen
    from flash.gradients.functions import attention_backward, attention_varlen_backward
    from flash.gradients.kernel import AttentionGradient
    from flash.gradients.weights import attention_weights
    from flash.host.log_sums import lse_from_log2, lse_to_log2
    from flash.host.transfer import to_device
    from flash.kernel import AttentionKernel
    from flash.pages.csr import block_table_from_csr
    from flash.problem.config import AttentionConfig
    from flash.problem.rotary import rotary_tables
    from flash.quantization import quantize_mx, quantize_nvfp4, quantize_rows

__all__ = [
    "AttentionConfig",
    "AttentionGradient",
    "AttentionKernel",
    "DecodeKernel",
    "DecodeStep",
    "KVCache",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "attention_weights",
    "attention_with_kvcache",
    "block_table_from_csr",
    "lse_from_log2",
    "lse_to_log2",
    "merge_partials",
    "quantize_mx",
    "quantize_nvfp4",
    "quantize_rows",
    "rotary_tables",
    "to_device",
]

_HOME: Final = {
    "AttentionConfig": "problem.config",
    "AttentionGradient": "gradients.kernel",
    "AttentionKernel": "kernel",
    "DecodeKernel": "decode.kernel",
    "DecodeStep": "cache.attention",
    "KVCache": "cache.cache",
    "attention": "functions",
    "attention_backward": "gradients.functions",
    "attention_varlen": "functions",
    "attention_varlen_backward": "gradients.functions",
    "attention_weights": "gradients.weights",
    "attention_with_kvcache": "cache.attention",
    "block_table_from_csr": "pages.csr",
    "lse_from_log2": "host.log_sums",
    "lse_to_log2": "host.log_sums",
    "merge_partials": "decode.merge",
    "quantize_mx": "quantization",
    "quantize_nvfp4": "quantization",
    "quantize_rows": "quantization",
    "rotary_tables": "problem.rotary",
    "to_device": "host.transfer",
}


# Another distribution has a top-level module of this name. What it has put into this folder is seen
# here; where it has overwritten this file, flash.operands and the program `ptxgen` say so.
_FILES: Final = frozenset(
    [
        "__init__.py",
        "__pycache__",
        "adapters",
        "cache",
        "cache_kernels.py",
        "calls",
        "commands",
        "contract",
        "cpu",
        "decode",
        "device",
        "distributed",
        "error_bound.py",
        "families",
        "functions.py",
        "gradient_kernels.py",
        "gradients",
        "host",
        "kernel.py",
        "kernels",
        "launch",
        "mods",
        "no_columns.py",
        "operands",
        "pages",
        "problem",
        "py.typed",
        "quantization.py",
        "reference.py",
        "score_errors.py",
        "scores",
        "silicon",
    ]
)


def _unknown() -> set[str]:
    """The names in this folder that are not of this distribution."""
    try:
        return set(os.listdir(__path__[0])) - _FILES
    except OSError:  # imported from an archive
        return set()


if _others := _unknown():
    importlib.import_module("ptxgen.distribution").warn_if_shared(__path__[0], _others, __distribution__)


def _public(name: str) -> object:
    """Import a public name when it is first used: a program that only makes configs needs no
    kernel.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'flash' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"flash.{_HOME[name]}"), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # for a type checker, any name would exist
    __getattr__ = _public


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
