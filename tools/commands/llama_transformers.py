"""The Llama of `tools/commands/llama_model.py` in Hugging Face's transformers, with attention to a
`flash.KVCache`. Needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.streamers import BaseStreamer

import flash
from flash.commands.parts.progress import Progress
from ptxgen.errors import LaunchError
from tools.commands.llama_model import NORM_EPSILON, Weights

Array = NDArray[Any]

# The name under which attention and masks are registered. transformers would look for a name with
# "flash" in it on the hub.
NAME: Final = "ptxgen_kvcache"

_MATRICES: Final = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_NORMS: Final = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}


def generated(
    weights: Weights,
    rows: Array,
    leftpad: Sequence[int],
    tokens: int,
    cache: flash.KVCache | None,
    begin: Progress,
) -> Array:
    """Logits [items, tokens, vocab] of greedy decoding by transformers, for prompts `rows` [items,
    n] whose first `leftpad` tokens are padding. Attention is to `cache`, which must be empty, or,
    if it is None, the "eager" attention of transformers. The model is on the device of the cache.
    """
    where = "cuda" if cache is not None and cache.backend == "cuda" else "cpu"
    model = llama(weights).to(where)
    how = {} if cache is None else {"past_key_values": attach(model, cache)}
    mask = np.arange(rows.shape[1]) >= np.array(leftpad)[:, None]
    with torch.inference_mode():
        made = model.generate(
            torch.from_numpy(rows).to(where),
            attention_mask=torch.from_numpy(mask.astype(np.int64)).to(where),
            max_new_tokens=tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            streamer=_Streamer(tokens, begin),
            **how,
        )
    found: Array = torch.stack(made.logits, dim=1).cpu().numpy()
    return found


def llama(weights: Weights) -> Any:
    """A LlamaForCausalLM with these weights, "eager" attention, and no token that ends a text."""
    sizes = weights.sizes
    config = LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        rms_norm_eps=NORM_EPSILON,
        tie_word_embeddings=sizes.tied,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    state = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.norm,
        "lm_head.weight": weights.unembedding.T,
    }
    for number, layer in enumerate(weights.layers):
        before = f"model.layers.{number}."
        state |= {f"{before}{n}.weight": getattr(layer, ours).T for n, ours in _MATRICES.items()}
        state |= {f"{before}{n}.weight": getattr(layer, ours) for n, ours in _NORMS.items()}
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict({n: torch.tensor(np.ascontiguousarray(x)) for n, x in state.items()})
    return model


def attach(model: Any, cache: flash.KVCache) -> Any:
    """Let a model attend to `cache`: item i of a call attends to sequence i, which may have padding
    on the left. Returns the `past_key_values` to call the model with. This also works for other
    models whose attention is `NAME`.

    Two functions are registered, one for attention and one for masks. Without the latter,
    transformers makes no mask, and padding would be read as text.
    """

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **how: Any
    ) -> tuple[Any, None]:
        dtype = getattr(torch, cache.element.array_name)
        out = flash.attention_with_kvcache(
            query.to(dtype),
            cache,
            key.to(dtype),
            value.to(dtype),
            layer=module.layer_idx,
            softmax_scale=how["scaling"],
            leftpad=attention_mask,
            backend=cache.backend,
        )
        return out.to(query.dtype).transpose(1, 2), None

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, leftpad_of)
    model.set_attn_implementation(NAME)
    return Cache(layers=[_Layer(cache, number) for number in range(cache.layers)])


def leftpad_of(*_: Any, attention_mask: Any = None, **__: Any) -> list[int] | None:
    """The number of padding tokens on the left of each item of a mask [items, n], or None without a
    mask. transformers calls this instead of making a mask of all queries and keys.

    Raises `LaunchError` for a mask that is not padding on the left.
    """
    if attention_mask is None:
        return None
    padding = (~attention_mask).sum(dim=1)
    for item, n in enumerate(padding.tolist()):
        if not attention_mask[item, n:].all():
            raise LaunchError(
                f"{NAME}: padding must be on the left, but item {item} of attention_mask is "
                f"{attention_mask[item].int().tolist()}; make the tokenizer pad there"
            )
    found: list[int] = padding.tolist()
    return found


class _Layer(DynamicLayer):  # type: ignore[misc]  # transformers is not analysed
    """A layer of a `flash.KVCache` for a model of transformers, which sees only its length. New
    keys and values pass through; attention appends them.
    """

    is_croppable = False

    def __init__(self, cache: flash.KVCache, number: int) -> None:
        super().__init__()
        self._cache, self._number = cache, number

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return new keys and values unchanged; attention appends them to the cache."""
        return keys, values

    def get_seq_length(self) -> int:
        """The number of tokens of each sequence, padding included."""
        return int(self._cache.lengths[self._number].max())


class _Streamer(BaseStreamer):  # type: ignore[misc]  # transformers is not analysed
    """Reports the progress of decoding: the prompts, then each written token."""

    def __init__(self, tokens: int, begin: Progress) -> None:
        self._tokens, self._begin, self._done = tokens, begin, 0

    def put(self, _: Any) -> None:
        """Report the next step: the prompts, or one more token of each item."""
        self._done += 1
        if self._done <= self._tokens:
            self._begin("prompts" if self._done == 1 else f"token {self._done}")

    def end(self) -> None:
        """Do nothing: all steps are reported."""
