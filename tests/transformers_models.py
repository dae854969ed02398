"""Small models of transformers with random weights, and what tests ask of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.errors import LaunchError

VOCABULARY, LAYERS, KV_HEADS, DIM, WINDOW = 61, 2, 2, 8, 5
PROMPT, NEW = 11, 8  # tokens; the prompt is longer than the window
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 4 * DIM,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,  # so large that a wrong mask or scale gives other tokens
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT_OSS: dict[str, Any] = {
    "head_dim": DIM,
    "sliding_window": WINDOW,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
# Class, and what its configuration says beside SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"head_dim": DIM}),
    "qwen2": ("Qwen2", {}),
    "mistral": ("Mistral", {"head_dim": DIM, "sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": DIM,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 5,  # the scale is not 1 / sqrt(head_dim)
        },
    ),
    "gpt_oss": ("GptOss", GPT_OSS),
}


@functools.cache
def weights_of(name: str, seed: int, **more: Any) -> Any:
    import torch
    import transformers

    kind, settings = MODELS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter, values in model.named_parameters():
            if parameter.endswith("sinks"):
                values.normal_()
    return model.state_dict()


def model_of(name: str, seed: int = 0, **more: Any) -> Any:
    """A small model with random weights and the "eager" attention."""
    import transformers

    kind, settings = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.load_state_dict(weights_of(name, seed, **more))
    return model


def prompts(items: int, length: int = PROMPT) -> dict[str, Any]:
    """Random tokens; item i has 3 i tokens of padding on the left."""
    import torch

    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (items, length), generator=random)
    mask = torch.ones_like(tokens)
    for item in range(items):
        tokens[item, : 3 * item] = mask[item, : 3 * item] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def logits(model: Any, tokens: Any, **how: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(tokens, **how).logits


OTHERS = "use attn_implementation='sdpa' or 'eager' for this model"


def refused(act: Callable[[], object], error: type[Exception] = LaunchError) -> str:
    with pytest.raises(error) as caught:
        act()
    return str(caught.value).replace("flash.adapters.transformers", "adapter")
