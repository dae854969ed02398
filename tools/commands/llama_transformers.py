"""The Llama of `tools/commands/llama_model.py` in Hugging Face's transformers, with attention to a
`flash.KVCache` by `flash.adapters.transformers`. Needs torch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

import flash
from flash.adapters.transformers import FlashCache, register
from ptxgen.commands.parts.progress import Progress
from tools.commands.llama_model import NORM_EPSILON, Weights

Array = NDArray[Any]

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
    how = {}
    if cache is not None:
        register(model)
        how["cache"] = FlashCache(cache)
    mask = np.arange(rows.shape[1]) >= np.array(leftpad)[:, None]
    with torch.inference_mode():
        output = model.generate(
            torch.from_numpy(rows).to(where),
            attention_mask=torch.from_numpy(mask.astype(np.int64)).to(where),
            max_new_tokens=tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            streamer=_Streamer(tokens, begin),
            **how,
        )
    logits: Array = torch.stack(output.logits, dim=1).cpu().numpy()
    return logits


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
