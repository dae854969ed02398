"""`FlashCache`: a cache of transformers whose keys and values are in a `flash.KVCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, get_layer_types_and_kwargs

import flash
from flash.adapters.transformers.masks import CALLER, OTHERS, Seen
from flash.operands.dtype_names import InputDTypeLike
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, LaunchError

PAGE_SIZE: Final = 16  # tokens; pages let beams share the tokens that they have in common
_KINDS: Final = ("full_attention", "sliding_attention")  # of layers whose keys are all stored
_NONE: Final = "dummy"  # the kind of layers that keep no keys, such as those that attend to keys of another


class FlashCache(Cache):  # type: ignore[misc]  # transformers is not analysed
    """Keys and values in `flash.KVCache`s, as `cache` of a model whose attention is registered by `register`.
    Item i of a batch is sequence i of each; the batch may be smaller than theirs.

    kv: a `flash.KVCache` with the layers of the model; or for each layer of the model a pair of a
        `flash.KVCache` and the number of its layer, or None for a layer that keeps no keys of its own:
        layers of other head sizes need caches of their own.

    Tokens are cut for prompt lookup and assisted generation. Beams need pages. A layer with a sliding
    window keeps all its tokens. Queries, keys and values are converted to the dtype of their cache, and
    results back; caches of fp8 take them as they are. `copy.deepcopy` and `pickle` copy the
    tokens, too, as for going on from one prompt several times.

    Raises `ConfigError` for any other `kv`.
    """

    def __init__(self, kv: flash.KVCache | Sequence[tuple[flash.KVCache, int] | None]) -> None:
        pairs = [(kv, n) for n in range(kv.layers)] if isinstance(kv, flash.KVCache) else _pairs(kv)
        super().__init__(layers=[DummyLayer() if of is None else _Layer(*of) for of in pairs])
        self.kvs = tuple({id(of[0]): of[0] for of in pairs if of is not None}.values())

    @property
    def kv(self) -> flash.KVCache:
        """The only cache of `kvs`. Raises `LaunchError` if there are several."""
        if len(self.kvs) > 1:
            raise LaunchError(
                f"FlashCache.kv: the layers of this model are in {len(self.kvs)} caches; use FlashCache.kvs"
            )
        return self.kvs[0]

    def __repr__(self) -> str:
        return f"FlashCache({', '.join(map(repr, self.kvs))})"

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens of each sequence that has any, in all layers.

        Raises `LaunchError` for a positive number, which was transformers' former meaning, and for more
        tokens than a sequence has.
        """
        if tokens_to_remove > 0:
            raise LaunchError(
                f"FlashCache.crop: tokens_to_remove must be 0 or negative, got {tokens_to_remove}; crop(-n) "
                "removes n tokens"
            )
        lengths = self._lengths().min(axis=0)
        used = [int(sequence) for sequence in lengths.nonzero()[0]]
        if tokens_to_remove and used:
            left = [int(lengths[sequence]) + tokens_to_remove for sequence in used]
            if min(left) < 0:
                raise LaunchError(
                    f"FlashCache.crop: {-tokens_to_remove} tokens are to be removed, but a sequence has "
                    f"{int(lengths[used].min())}; remove at most as many"
                )
            for kv in self.kvs:
                kv.truncate(left, used)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let item i go on from item `beam_idx[i]`, in all layers. No key is copied.

        Raises `LaunchError` for caches without pages.
        """
        self._reorder(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Make `repeats` items of each item, side by side. Raises `LaunchError` for more items than
        there are sequences.
        """
        items, batch = self._items(), min(kv.batch for kv in self.kvs)
        if items * repeats > batch:
            raise LaunchError(
                f"FlashCache.batch_repeat_interleave: {items} items become {items * repeats}, but the cache "
                f"has {batch} sequences; make it with batch={items * repeats}"
            )
        self._reorder([n // repeats for n in range(items * repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the items `indices`, in this order."""
        sources, items = torch.arange(self._items(), device="cpu")[indices.cpu()].tolist(), self._items()
        self._reorder(sources)
        for kv in self.kvs:
            kv.truncate(0, range(len(sources), max(items, len(sources))))

    def reset(self) -> None:
        """Remove all tokens of all sequences."""
        for kv in self.kvs:
            kv.reset()

    def _lengths(self) -> NDArray[np.int32]:
        """The tokens of each sequence in each layer that keeps any, int32 [layers, sequences]."""
        batch = min(kv.batch for kv in self.kvs)
        return np.concatenate([kv.lengths[:, :batch] for kv in self.kvs])

    def _items(self) -> int:
        """The number of items of a batch: sequences up to the last with tokens."""
        used = self._lengths().max(axis=0).nonzero()[0]
        return int(used[-1]) + 1 if used.size else 0

    def _reorder(self, sources: Sequence[int]) -> None:
        """Let item i hold what item `sources[i]` held. If one cache refuses, none has changed."""
        for kv in sorted(
            self.kvs, key=lambda kv: kv.page_size is not None
        ):  # those without pages, which may refuse, first
            kv.reorder(sources, range(len(sources)))


def _pairs(kv: Any) -> list[tuple[flash.KVCache, int] | None]:
    """`kv` as a list with a cache and the number of a layer in it, or None, for each layer of a model. Raises
    `ConfigError` for anything else.
    """
    pairs = list(kv) if isinstance(kv, (list, tuple)) else []
    for pair in pairs:
        if pair is not None and not (
            isinstance(pair, tuple)
            and len(pair) == len(("cache", "layer"))
            and isinstance(pair[0], flash.KVCache)
            and integer(pair[1], 0, pair[0].layers - 1) is not None
        ):
            pairs = []
    if not any(pairs):
        raise ConfigError(
            "FlashCache: kv must be a flash.KVCache, or a list with (flash.KVCache, layer) or None for each "
            f"layer of the model, got {type(kv).__name__}; make one with flash.KVCache(layers, batch, "
            "kv_heads, head_dim, capacity), or use cache_for(model, ...)"
        )
    return pairs


def cache_for(
    model: Any,
    batch: int,
    capacity: int,
    *,
    dtype: InputDTypeLike | None = None,
    page_size: int | None = PAGE_SIZE,
    **options: Any,
) -> FlashCache:
    """A cache for `model`: for batches of up to `batch` items, with beams `batch * num_beams`, of up
    to `capacity` tokens each, prompt included. dtype is by default the model's. `page_size` and
    `options` are those of `flash.KVCache`, such as `pages`, `backend` and `device`. Layers of other head
    sizes have a `flash.KVCache` of their own, each made so; layers that attend to the keys of another have
    none.

    Raises `ConfigError` for layers that keep something else than all their keys and values, and for
    arguments that `flash.KVCache` refuses.
    """
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"cache_for: models must be decoders only, but {type(config).__name__} has an encoder, and "
            "layers that keep the keys of its tokens; leave cache out, and generate makes one"
        )
    kinds, _ = get_layer_types_and_kwargs(config)
    others = sorted({*kinds} - {*_KINDS, _NONE})
    if getattr(config, "kv_lora_rank", None) is not None:
        others.append("latents")
    if others:
        raise ConfigError(
            f"cache_for: layers must be {' or '.join(_KINDS)}, but {type(model).__name__} has "
            f"{', '.join(others)}; {OTHERS}"
        )
    sizes = [
        None if kind == _NONE else _sizes(of) for kind, of in zip(kinds, config.per_layer_config, strict=True)
    ]
    caches = {
        of: flash.KVCache(
            sizes.count(of),
            batch,
            of.heads,
            of.dim,
            capacity,
            dtype=dtype or model.dtype,
            page_size=page_size,
            **options,
        )
        for of in dict.fromkeys(sizes)
        if of is not None
    }
    if len(caches) == 1 and None not in sizes:
        return FlashCache(*caches.values())
    return FlashCache(
        [None if of is None else (caches[of], sizes[:n].count(of)) for n, of in enumerate(sizes)]
    )


class _Sizes(NamedTuple):
    """The heads of keys and values of a layer, and the elements of a head."""

    heads: int
    dim: int


def _sizes(layer: Any) -> _Sizes:
    """The sizes of a layer by its configuration."""
    heads = layer.num_attention_heads
    dim = getattr(layer, "head_dim", None) or layer.hidden_size // heads
    return _Sizes(getattr(layer, "num_key_value_heads", None) or heads, dim)


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not analysed
    """A layer of a `flash.KVCache`. transformers sees only its length: new keys and values go to
    attention, which appends them.
    """

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, kv: flash.KVCache, number: int) -> None:
        super().__init__()
        self._kv, self._number = kv, number
        self.is_initialized = True

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Do nothing: the memory of the cache exists from the start."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The new keys and values as `NewRows`, which the attention that gets them appends."""
        rows = NewRows(self._kv, self._number, key_states, value_states)
        return rows, rows

    def get_seq_length(self) -> int:
        """The number of tokens of each sequence, padding included."""
        return int(self._kv.lengths[self._number].max())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys after a call with `query_length` queries, and the index of the first."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """The most tokens of a sequence."""
        return self._kv.capacity


class NewRows:
    """New keys and values on their way from a `FlashCache` to the attention that appends them. An
    attention that is not of `register` takes them as a tensor of all keys, and is refused.
    """

    def __init__(self, kv: flash.KVCache, layer: int, keys: Any, values: Any) -> None:
        self._of = kv, layer, keys, values
        self._appended = False

    def attend(self, query: Any, seen: Seen, **scores: Any) -> Any:
        """Append the rows to the cache, the first time, and attend with `query` [items, heads, n, head_dim]
        to all keys of the layer that are `seen`: [items, n, heads, head_dim_v], dense, of the query's dtype.
        `scores` are further arguments of `flash.attention_with_kvcache`.

        Raises what `flash.attention_with_kvcache` raises, and `LaunchError` for a batch that is
        larger than the cache's, and for biases.
        """
        kv, layer, keys, values = self._of
        items, heads, n, _ = query.shape
        if items > kv.batch:
            raise LaunchError(
                f"{CALLER}: the batch has {items} items, beams included, but the cache has {kv.batch} "
                f"sequences; make it with batch={items}"
            )
        if seen.bias is not None:
            raise LaunchError(
                f"{CALLER}: attention over a FlashCache has no bias of each score, as a float mask and "
                "position_bias are; give attention_mask as [items, tokens] or of bool, or use a DynamicCache"
            )
        rows: tuple[Any, ...] = (query, None, None) if self._appended else (query, keys, values)
        if not kv.element.is_narrow:
            dtype = getattr(torch, kv.element.array_name)
            rows = tuple(x if x is None else x.to(dtype) for x in rows)
        out = rows[0].new_empty((items, n, heads, kv.head_dim_v))
        flash.attention_with_kvcache(
            rows[0],
            kv,
            rows[1],
            rows[2],
            layer=layer,
            causal=seen.causal,
            cache_batch_idx=range(items),
            leftpad=seen.leftpad,
            mask=None if seen.leftpad is not None else seen.mask,
            out=out.transpose(1, 2),
            backend=kv.backend,
            **scores,
        )
        self._appended = True
        return out.to(query.dtype)

    @property
    def tensors(self) -> tuple[Any, Any]:
        """The new keys and values as tensors [items, kv_heads, n, head_dim or head_dim_v]."""
        return self._of[2:]

    @property
    def length(self) -> int:
        """The number of keys of the layer, the new ones included."""
        kv, layer, keys, _ = self._of
        before = int(kv.lengths[layer, : keys.shape[0]].max(initial=0))
        return before if self._appended else before + int(keys.shape[2])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __getitem__(self, _: object) -> NoReturn:
        self._refuse()

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise LaunchError(
            f"{CALLER}: keys and values of a FlashCache are appended and read by our attention, but the "
            "model uses another, or computes with them before; call register(model), or use a DynamicCache"
        )
