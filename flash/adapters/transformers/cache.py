"""`FlashCache`: a cache of transformers whose keys and values are in a `flash.KVCache`."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

import flash
from flash.adapters.transformers.masks import OTHERS, WHO, Seen
from flash.operands.words import CacheDTypeLike
from ptxgen.errors import ConfigError, LaunchError

PAGE_SIZE: Final = 16  # tokens; pages let beams share the tokens that they have in common
_KINDS: Final = ("full_attention", "sliding_attention")  # of layers whose keys are all kept


class FlashCache(Cache):  # type: ignore[misc]  # transformers is not analysed
    """The layers of `kv`, as `cache` of a model whose attention is registered by
    `register`. Item i of a batch is sequence i of `kv`; the batch may be smaller than that of `kv`.

    Tokens are cut for prompt lookup and assisted generation. Beams need a `kv` with pages. A layer
    with a sliding window keeps all its tokens. Queries, keys and values are converted to the dtype
    of `kv`, and results back; a `kv` of "e4m3" or "e5m2" takes them as they are.

    Raises `ConfigError` if `kv` is no `flash.KVCache`.
    """

    def __init__(self, kv: flash.KVCache) -> None:
        if not isinstance(kv, flash.KVCache):
            raise ConfigError(
                f"FlashCache: kv must be a flash.KVCache, got {type(kv).__name__}; make one with "
                "flash.KVCache(layers, batch, kv_heads, head_dim, capacity), or use cache_for(model, ...)"
            )
        super().__init__(layers=[_Layer(kv, number) for number in range(kv.layers)])
        self.kv = kv

    def __repr__(self) -> str:
        return f"FlashCache({self.kv!r})"

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` tokens of each sequence that has any, in all layers.

        Raises `LaunchError` for a positive number, which is no longer transformers' way, and for
        more tokens than there are.
        """
        if tokens_to_remove > 0:
            raise LaunchError(
                f"FlashCache.crop: tokens_to_remove must be 0 or negative, got {tokens_to_remove}; crop(-n) "
                "removes n tokens"
            )
        lengths = self.kv.lengths.min(axis=0)
        used = [int(sequence) for sequence in lengths.nonzero()[0]]
        if tokens_to_remove and used:
            left = [int(lengths[sequence]) + tokens_to_remove for sequence in used]
            if min(left) < 0:
                raise LaunchError(
                    f"FlashCache.crop: {-tokens_to_remove} tokens are to be removed, but a sequence has "
                    f"{int(lengths[used].min())}; remove at most as many"
                )
            self.kv.truncate(left, used)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let item i go on from item `beam_idx[i]`, in all layers. No key is copied.

        Raises `LaunchError` for a `kv` without pages.
        """
        sources = beam_idx.tolist()
        self.kv.reorder(sources, range(len(sources)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Make `repeats` items of each item, side by side. Raises `LaunchError` for more items than
        `kv` has sequences.
        """
        items = self._items()
        if items * repeats > self.kv.batch:
            raise LaunchError(
                f"FlashCache.batch_repeat_interleave: {items} items become {items * repeats}, but the cache "
                f"has {self.kv.batch} sequences; make it with batch={items * repeats}"
            )
        self.kv.reorder([n // repeats for n in range(items * repeats)], range(items * repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these items, in this order."""
        sources, items = torch.arange(self._items())[indices.cpu()].tolist(), self._items()
        self.kv.reorder(sources, range(len(sources)))
        self.kv.truncate(0, range(len(sources), max(items, len(sources))))

    def reset(self) -> None:
        """Remove all tokens."""
        self.kv.reset()

    def _items(self) -> int:
        """The number of items of a batch: sequences up to the last with tokens."""
        used = self.kv.lengths.max(axis=0).nonzero()[0]
        return int(used[-1]) + 1 if used.size else 0


def cache_for(
    model: Any,
    batch: int,
    capacity: int,
    *,
    dtype: CacheDTypeLike | None = None,
    page_size: int | None = PAGE_SIZE,
    **options: Any,
) -> FlashCache:
    """A cache for `model`: for batches of up to `batch` items, with beams `batch * num_beams`, of up
    to `capacity` tokens each, prompt included. dtype is by default the model's. `page_size` and
    `options` are those of `flash.KVCache`, such as `pages`, `backend` and `device`.

    Raises `ConfigError` for layers that keep something else than all their keys and values, and for
    arguments that `flash.KVCache` refuses.
    """
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"cache_for: models must be decoders only, but {type(config).__name__} has an encoder, and "
            "layers that keep the keys of its tokens; leave cache out, and generate makes one"
        )
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - set(_KINDS))
    if getattr(config, "attention_chunk_size", None) is not None:
        kinds.append("chunked_attention")
    if getattr(config, "num_kv_shared_layers", 0):
        kinds.append("layers that share keys")
    if kinds:
        raise ConfigError(
            f"cache_for: layers must be {' or '.join(_KINDS)}, but {type(model).__name__} has "
            f"{', '.join(kinds)}; {OTHERS}"
        )
    heads = config.num_attention_heads
    return FlashCache(
        flash.KVCache(
            config.num_hidden_layers,
            batch,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            capacity,
            dtype=dtype or model.dtype,
            page_size=page_size,
            **options,
        )
    )


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
        """Do nothing: the memory is there."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """New keys and values for `attend`, which appends them."""
        rows = NewRows(self._kv, self._number, key_states, value_states)
        return rows, rows

    def get_seq_length(self) -> int:
        """The number of tokens of each sequence, padding included."""
        return int(self._kv.lengths[self._number].max())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys after a call with so many queries, and the index of the first."""
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

    def attend(self, query: Any, seen: Seen, **scores: Any) -> Any:
        """Append the rows to the cache, and attend with `query` [items, heads, n, head_dim] to all
        keys of the layer that are `seen`: [items, n, heads, head_dim_v], dense, of the query's dtype.
        `scores` are further arguments of `flash.attention_with_kvcache`.

        Raises what `flash.attention_with_kvcache` raises, and `LaunchError` for a batch that is
        larger than the cache's, and for biases.
        """
        kv, layer, keys, values = self._of
        items, heads, n, _ = query.shape
        if items > kv.batch:
            raise LaunchError(
                f"{WHO}: the batch has {items} items, beams included, but the cache has {kv.batch} "
                f"sequences; make it with batch={items}"
            )
        if seen.bias is not None:
            raise LaunchError(
                f"{WHO}: attention over a FlashCache has no bias of each score, as a float mask and "
                "position_bias are; give attention_mask as [items, tokens] or of bool, or use a DynamicCache"
            )
        rows = (query, keys, values)
        if not kv.element.is_narrow:
            dtype = getattr(torch, kv.element.array_name)
            rows = tuple(x.to(dtype) for x in rows)
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
        return out.to(query.dtype)

    @property
    def tensors(self) -> tuple[Any, Any]:
        """The new keys and values, [items, kv_heads, n, head_dim or head_dim_v]."""
        return self._of[2:]

    @property
    def length(self) -> int:
        """The number of keys of the layer, the new ones included."""
        kv, layer, keys, _ = self._of
        return int(kv.lengths[layer, : keys.shape[0]].max(initial=0)) + int(keys.shape[2])

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
            f"{WHO}: keys and values of a FlashCache are appended and read by our attention, but the model "
            "uses another, or computes with them before; call register(model), or use a DynamicCache"
        )
