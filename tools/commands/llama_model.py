"""A small Llama with random weights, in numpy, and its two attentions: attention to a KV cache, and
dense attention that keeps nothing.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", section 2.2: RMSNorm before
each part, rotary position embedding, SwiGLU; and heads that share keys and values, as in Llama 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

import flash
from flash.problem.rotary import rotary_tables
from flash.reference import attention_reference

Array = NDArray[Any]
# A function of a layer's index and its new queries, keys and values, [items, heads or kv_heads, n,
# head_dim], not rotated yet. It returns their attention, [items, heads, n, head_dim].
Attend = Callable[[int, Array, Array, Array], Array]

NORM_EPSILON: Final = 1e-6  # added to the mean of squares
ROTARY_BASE: Final = 10000.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a Llama: `heads` is a multiple of `kv_heads`, `head_dim` even; `intermediate` is
    the width of SwiGLU. `tied`: logits use the embedding as unembedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of a layer: vectors of RMSNorm, and matrices [in, out]."""

    attention_norm: Array
    q: Array
    k: Array
    v: Array
    o: Array
    mlp_norm: Array
    gate: Array
    up: Array
    down: Array


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model, all of one dtype: embedding [vocab, hidden], unembedding [hidden,
    vocab], and layers.
    """

    sizes: Sizes
    embedding: Array
    layers: tuple[LayerWeights, ...]
    norm: Array
    unembedding: Array


def random_weights(sizes: Sizes, seed: int) -> Weights:
    """Weights in float32, scaled so that products of normalised rows have a variance near 1. Scores
    then differ between keys, and a wrong position or a missing key changes the logits.
    """
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        normal = random.standard_normal((rows, columns), dtype=np.float32)
        scaled: Array = normal / np.float32(rows**0.5)
        return scaled

    def norm() -> Array:
        weights: Array = random.uniform(0.5, 1.5, sizes.hidden).astype(np.float32)
        return weights

    def layer() -> LayerWeights:
        hidden, rows = sizes.hidden, sizes.heads * sizes.head_dim
        rows_kv = sizes.kv_heads * sizes.head_dim
        return LayerWeights(
            norm(),
            matrix(hidden, rows),
            matrix(hidden, rows_kv),
            matrix(hidden, rows_kv),
            matrix(rows, hidden),
            norm(),
            matrix(hidden, sizes.intermediate),
            matrix(hidden, sizes.intermediate),
            matrix(sizes.intermediate, hidden),
        )

    unembedding = matrix(sizes.hidden, sizes.vocab)
    embedding = unembedding.T if sizes.tied else matrix(sizes.hidden, sizes.vocab).T
    layers = tuple(layer() for _ in range(sizes.layers))
    return Weights(sizes, embedding, layers, norm(), unembedding)


def forward(weights: Weights, tokens: Array, attend: Attend, dtype: DTypeLike) -> Array:
    """Logits [items, n, vocab] of tokens [items, n]; all but attention is computed in `dtype`."""
    sizes = weights.sizes

    def heads(x: Array, count: int) -> Array:
        apart: Array = x.reshape(*x.shape[:2], count, sizes.head_dim).transpose(0, 2, 1, 3)
        return apart

    def product(x: Array, matrix: Array) -> Array:
        result: Array = x @ matrix.astype(dtype, copy=False)
        return result

    x = weights.embedding[tokens].astype(dtype, copy=False)
    for number, layer in enumerate(weights.layers):
        rows = _normed(x, layer.attention_norm)
        out = attend(
            number,
            heads(product(rows, layer.q), sizes.heads),
            heads(product(rows, layer.k), sizes.kv_heads),
            heads(product(rows, layer.v), sizes.kv_heads),
        )
        flat = out.astype(dtype, copy=False).transpose(0, 2, 1, 3).reshape(*tokens.shape, -1)
        x = x + product(flat, layer.o)
        rows = _normed(x, layer.mlp_norm)
        gate = product(rows, layer.gate)
        x = x + product(gate / (1 + np.exp(-gate)) * product(rows, layer.up), layer.down)
    return product(_normed(x, weights.norm), weights.unembedding)


def _normed(x: Array, weight: Array) -> Array:
    """RMSNorm: Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(mean + x.dtype.type(NORM_EPSILON)) * weight.astype(x.dtype)
    return normed


# -------------------------------------------------------------------------------------- attentions


class CachedAttention:
    """Attention that appends new keys and values to a cache and attends to all its keys, in the
    cache's dtype and on its device.

    The items of a call are `sequences` of the cache, by default all; the first `leftpad` tokens of
    each sequence are padding.
    """

    def __init__(
        self,
        cache: flash.KVCache,
        sequences: Sequence[int] | None = None,
        leftpad: Sequence[int] | None = None,
    ) -> None:
        self.cache = cache
        self.sequences = sequences
        self.leftpad = leftpad
        self._to_backend: Callable[[Array], Any] = flash.to_device if cache.backend == "cuda" else np.asarray
        tables = rotary_tables(cache.capacity, cache.head_dim, ROTARY_BASE)
        self._tables = tuple(self._to_backend(table) for table in tables)

    def __call__(self, layer: int, q: Array, k: Array, v: Array) -> Array:
        """See `Attend`."""
        here = (x.astype(self.cache.element.numpy) for x in (q, k, v))
        queries, keys, values = map(self._to_backend, here)
        out = flash.attention_with_kvcache(
            queries,
            self.cache,
            keys,
            values,
            layer=layer,
            cache_batch_idx=self.sequences,
            leftpad=self.leftpad,
            rotary_cos=self._tables[0],
            rotary_sin=self._tables[1],
            backend=self.cache.backend,
        )
        return out.numpy() if self.cache.backend == "cuda" else np.asarray(out)


def dense_attention(dtype: DTypeLike, stored: DTypeLike) -> Attend:
    """Causal attention computed in `dtype`, for calls with whole sequences; queries, keys, values
    and results are rounded to dtype `stored`, as with a cache of this dtype.
    """

    def rounded(x: Array) -> Array:
        return x.astype(stored).astype(dtype)

    def attend(_: int, q: Array, k: Array, v: Array) -> Array:
        q, k = (rounded(_rotated(rounded(x))) for x in (q, k))
        out, _lse = attention_reference(q, k, rounded(v), causal=True, dtype=dtype)
        return rounded(out)

    return attend


def _rotated(x: Array) -> Array:
    """Rows rotated by their row index, in their dtype: columns i and i + head_dim / 2 are the real
    and imaginary part of a complex number (RoFormer, equation 13).
    """
    first, second = np.split(x, 2, axis=-1)
    half = first.shape[-1]
    angles = np.arange(x.shape[2])[:, None] * ROTARY_BASE ** (-np.arange(half) / half)
    rotation = np.exp(1j * angles).astype(np.result_type(x.dtype, np.complex64))
    rotated = (first + 1j * second) * rotation
    return np.concatenate([rotated.real, rotated.imag], axis=-1)
