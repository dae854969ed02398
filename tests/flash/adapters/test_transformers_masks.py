"""Masks of transformers' models, beside the models' own attention: "eager", or "sdpa" where eager attention
takes bool masks for numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from transformers_models import OTHERS, VOCABULARY, WINDOW, logits, model_of, prompts, refused

TOKENS = 11


def padding(torch: ModuleType, *, left: int = 0, right: int = 0) -> Any:
    """The attention_mask of two items, of which the second is padded."""
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, :left] = mask[1, TOKENS - right :] = 0
    return mask


def allowed(torch: ModuleType, shown: Any = None) -> Any:
    """A bool mask [items, 1, TOKENS, TOKENS]: causal, without the keys that are not shown."""
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[None, None]
    return causal if shown is None else causal & shown.bool()[:, None, None]


def added(torch: ModuleType, shown: Any) -> Any:
    """A mask that is added to scores."""
    return torch.where(shown, 0.0, torch.finfo(torch.float32).min)


def tokens(torch: ModuleType) -> Any:
    return torch.randint(1, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(2))


def agree(torch: ModuleType, found: Any, wanted: Any, shown: Any = None) -> None:
    """Logits or states [items, tokens, n] are the same for all tokens that are no padding."""
    kept = torch.ones(found.shape[:2], dtype=torch.bool) if shown is None else shown.bool()
    torch.testing.assert_close(found[kept], wanted[kept], rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


PACKED = [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]]
# What a call of a decoder says of keys, and which rows are compared.
GIVEN: dict[str, Callable[[Any], tuple[dict[str, Any], Any]]] = {
    "padding on the left": lambda t: ({"attention_mask": padding(t, left=4)}, padding(t, left=4)),
    "padding on the right": lambda t: ({"attention_mask": padding(t, right=4)}, None),
    "padding on both sides": lambda t: ({"attention_mask": padding(t, left=2, right=3)}, padding(t, left=2)),
    "packed": lambda t: ({"position_ids": t.tensor(PACKED), "use_cache": False}, None),
    "packed alike": lambda t: ({"position_ids": t.tensor(PACKED[:1]), "use_cache": False}, None),
    "ready, bool": lambda t: ({"attention_mask": allowed(t, padding(t, right=4))}, None),
    "ready, added": lambda t: ({"attention_mask": added(t, allowed(t, padding(t, right=4)))}, None),
    "ready, of one item": lambda t: ({"attention_mask": added(t, allowed(t))}, None),
    "ready, not causal": lambda t: ({"attention_mask": t.ones(2, 1, TOKENS, TOKENS, dtype=t.bool)}, None),
}


@pytest.mark.sample(10, gate=12)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_keys_are_seen_as_the_model_says(given: Any, name: str, adapter: ModuleType, torch: Any) -> None:
    how, rows = given(torch)
    model = model_of(name)
    mask = how.get("attention_mask")
    if mask is not None and mask.dtype == torch.bool and mask.dim() == 4:
        if name in ("gemma2", "gpt_oss"):
            how["attention_mask"] = added(torch, mask)  # models without "sdpa"
        else:
            model.set_attn_implementation("sdpa")
    wanted = logits(model, tokens(torch), **how)
    if mask is not None and mask.dim() == 4:
        how["attention_mask"] = mask
    adapter.register(model)
    agree(torch, logits(model, tokens(torch), **how), wanted, rows)


def test_sequences_in_a_row_see_nothing_of_each_other(adapter: ModuleType, torch: Any) -> None:
    model = model_of("mistral")
    adapter.register(model)
    result = logits(model, tokens(torch), position_ids=torch.tensor(PACKED), use_cache=False)
    for item, begin, end in ((0, 0, 4), (0, 4, TOKENS), (1, 0, 2), (1, 2, TOKENS)):
        alone = logits(model, tokens(torch)[item : item + 1, begin:end])
        agree(torch, result[item : item + 1, begin:end], alone)


@pytest.mark.parametrize("given", ["padding on the right", "packed", "ready, added"])
def test_models_learn_what_the_mask_shows(given: str, adapter: ModuleType, torch: Any) -> None:
    """The gradients of all parameters are those of eager attention."""
    how, shown = GIVEN[given](torch)[0], padding(torch, right=4 if "right" in given else 0)
    labels = tokens(torch).masked_fill(shown == 0, -100)
    gradients = []
    for of in ("eager", "ours"):
        model = model_of("mistral").train()
        if of == "ours":
            adapter.register(model)
        model(tokens(torch), labels=labels, **how).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for wanted, result in zip(*gradients, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("mistral", "static"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("llama", "static"), ("gemma2", "static"), ("mistral", "ours"), ("llama", "ours"))
        ),
    ],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_are_continued_as_by_eager(
    name: str, cache: str, side: str, adapter: ModuleType, torch: Any
) -> None:
    """With the keys of a static cache, which has rows for tokens to come and of windowed layers only some,
    and of ours.
    """
    model, new = model_of(name), 8
    how = {"max_new_tokens": new, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    arguments = {"input_ids": tokens(torch), "attention_mask": padding(torch, **{side: 4})}
    wanted = model.generate(**arguments, **how)
    adapter.register(model)
    if cache == "ours":
        result = model.generate(
            **arguments, **how, cache=adapter.cache_for(model, 2, TOKENS + new, page_size=4)
        )
    else:
        result = model.generate(**arguments, **how, cache_implementation="static")
    assert result.sequences.tolist() == wanted.sequences.tolist()
    torch.testing.assert_close(result.logits, wanted.logits, rtol=1e-4, atol=1e-3)


def test_a_cache_of_ours_takes_ready_masks_of_bool_alone(adapter: ModuleType, torch: Any) -> None:
    model = model_of("llama")
    model.set_attn_implementation("sdpa")
    mask = allowed(torch, padding(torch, right=4))
    wanted = logits(model, tokens(torch), attention_mask=mask)
    adapter.register(model)
    call = functools.partial(logits, model, tokens(torch))
    agree(torch, call(attention_mask=mask, cache=adapter.cache_for(model, 2, TOKENS)), wanted)
    assert refused(
        lambda: call(attention_mask=added(torch, mask), cache=adapter.cache_for(model, 2, TOKENS))
    ) == (
        "adapter: attention over a FlashCache has no bias of each score, as a float mask and position_bias "
        "are; give attention_mask as [items, tokens] or of bool, or use a DynamicCache"
    )


# ---------------------------------------------------------------------------------- other models

WIDTH = 32
OF_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WITH_HEADS = OF_TEXT | {"head_dim": 8, "sliding_window": WINDOW}
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
T5 = {
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
}
TWO_PARTS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
    "init_std": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
OF_SOUND = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32}
OF_IMAGES = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
SEPARATORS = {"cls_token_id": 1, "sep_token_id": 2}
# Class, configuration, and what the model is given: on which side tokens are padded, or other things.
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "encoder": ("BertModel", "BertConfig", OF_TEXT, "right"),
    "encoder with windows": (
        "ModernBertModel",
        "ModernBertConfig",
        OF_TEXT | SEPARATORS | {"local_attention": 6, "global_attn_every_n_layers": 2},
        "right",
    ),
    "biases of positions": ("T5ForConditionalGeneration", "T5Config", T5, "decoder"),
    "cross-attention": ("BartForConditionalGeneration", "BartConfig", TWO_PARTS, "decoder"),
    "sound": ("WhisperForConditionalGeneration", "WhisperConfig", TWO_PARTS | OF_SOUND, "sound"),
    "images": ("ViTModel", "ViTConfig", OF_IMAGES, "image"),
    "a mask that the model reads": ("DogeForCausalLM", "DogeConfig", WITH_HEADS, "left"),
    "a view of the result": (
        "AfmoeForCausalLM",
        "AfmoeConfig",
        WITH_HEADS | EXPERTS | MIXED | {"num_dense_layers": 1},
        "left",
    ),
    "a view of several results": (
        "JetMoeForCausalLM",
        "JetMoeConfig",
        OF_TEXT | EXPERTS | {"kv_channels": 8},
        "left",
    ),
    "chunks": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        WITH_HEADS
        | EXPERTS
        | {"attention_chunk_size": 4, "interleave_moe_layer_step": 10, "intermediate_size_mlp": 48},
        "left",
    ),
    "longer rows of queries than of values": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        OF_TEXT
        | {"num_experts_per_tok": 1, "moe_intermediate_size": 16, "num_key_value_heads": 4}
        | {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8}
        | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "n_routed_experts": 4, "n_group": 2}
        | {"topk_group": 1, "first_k_dense_replace": 1},
        "left",
    ),
}
FEW = ("encoder with windows", "biases of positions", "a mask that the model reads", "a view of the result")


def other_model(transformers: ModuleType, torch: Any, name: str) -> tuple[Any, dict[str, Any], Any]:
    """A model with the "eager" attention, what it is given, and which rows are compared."""
    kind, config_kind, settings, arguments = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_kind)(**settings)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).eval()
    text = {"input_ids": tokens(torch), "attention_mask": padding(torch, right=4)}
    if arguments == "image":
        return model, {"pixel_values": torch.randn(2, 3, 16, 16)}, None
    if arguments == "sound":
        return model, {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": tokens(torch)}, None
    if arguments == "decoder":
        return model, text | {"decoder_input_ids": tokens(torch).flip(1)}, None
    text["attention_mask"] = padding(torch, **{arguments: 4})
    return model, text, text["attention_mask"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.slow) for n in MODELS]
)
def test_other_models_compute_as_by_eager(
    name: str, adapter: ModuleType, transformers: ModuleType, torch: Any
) -> None:
    model, arguments, shown = other_model(transformers, torch, name)

    def result(**how: Any) -> Any:
        with torch.no_grad():
            actual = model(**arguments, **how)
        return actual.logits if "logits" in actual else actual.last_hidden_state, actual

    wanted, whole = result(output_attentions=True)
    adapter.register(model)
    agree(torch, result()[0], wanted, shown)
    _, got = result(output_attentions=True)
    layers = [name for name in whole if name.endswith("attentions") and whole[name]]
    assert layers
    for name in layers:
        for ours, eager in zip(got[name], whole[name], strict=True):
            agree(torch, ours.transpose(1, 2), eager.transpose(1, 2), shown)


def test_biases_of_positions_are_learned(adapter: ModuleType, transformers: ModuleType, torch: Any) -> None:
    model, arguments, _ = other_model(transformers, torch, "biases of positions")

    def gradients() -> list[Any]:
        model.zero_grad()
        model(**arguments).logits.square().mean().backward()
        return [
            part.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad
            for part in (model.encoder, model.decoder)
        ]

    wanted = gradients()
    adapter.register(model)
    for a, b in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 * float(b.abs().max()) + 1e-9)
        assert b.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["biases of positions", "cross-attention", "sound"])
def test_models_with_an_encoder_write_as_by_eager(
    name: str, adapter: ModuleType, transformers: ModuleType, torch: Any
) -> None:
    model, arguments, _ = other_model(transformers, torch, name)
    del arguments["decoder_input_ids"]
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": 2, "do_sample": False}
    wanted = model.generate(**arguments, **how).tolist()
    adapter.register(model)
    assert model.generate(**arguments, **how).tolist() == wanted


# ------------------------------------------------------------------------------------ one by one


def mask_of(function: Any, **how: Any) -> Any:
    from flash.adapters.transformers.masks import read_mask

    return read_mask(**{"q_length": 3, "kv_length": 3, "mask_function": function} | how)


def test_masks_are_read_by_their_meaning(transformers: ModuleType, torch: Any) -> None:
    """All others are taken by their elements."""
    masks = transformers.masking_utils
    causal, positions = masks.causal_mask_function, torch.tensor([[0, 1, 0]])
    packed = masks.packed_sequence_mask_function(masks.find_packed_sequence_indices(positions))
    result = {
        causal: (True, None),
        masks.sliding_window_causal_mask_function(2): (True, (1, 0)),
        masks.bidirectional_mask_function: (False, None),
        masks.sliding_window_bidirectional_mask_function(2): (False, (2, 2)),
        masks.and_masks(masks.remap_positions_for_packed_sequence(causal, positions), packed): (True, None),
    }
    for function, (is_causal, window) in result.items():
        seen = mask_of(function).seen
        assert (seen.causal, seen.window, seen.mask) == (is_causal, window, None)
    assert seen.starts.tolist() == [0, 2, 3]
    for function in (
        masks.chunked_causal_mask_function(2, torch.zeros(1, dtype=int)),
        masks.or_masks(causal, masks.blockwise_overlay(torch.zeros(1, 3, dtype=int))),
        masks.and_masks(masks.remap_positions_for_packed_sequence(causal, torch.tensor([[0, 0, 1]])), packed),
        masks.and_masks(masks.remap_positions_for_packed_sequence(causal, positions), packed, causal),
        masks.and_masks(causal, packed),
        lambda batch, head, query, key: key < query,
    ):
        mask = mask_of(function)
        wanted = masks.sdpa_mask(1, 3, 3, mask_function=function, allow_is_causal_skip=False)
        assert mask.seen.mask is not None
        assert torch.equal(mask.seen.mask, wanted)
        assert torch.equal(mask, wanted)


def test_rows_of_a_static_cache_behind_those_of_tokens_are_left_out(transformers: ModuleType) -> None:
    masks = transformers.masking_utils
    how = {"q_length": 2, "q_offset": 3, "kv_length": 8}
    for function, window in (
        (masks.causal_mask_function, None),
        (masks.sliding_window_causal_mask_function(4), (3, 0)),
    ):
        seen = mask_of(function, **how).seen
        assert (seen.keys, seen.causal, seen.window, seen.mask) == (5, True, window, None)
    seen = mask_of(masks.sliding_window_bidirectional_mask_function(4), **how).seen
    assert (seen.keys, seen.window, seen.mask.shape) == (8, None, (1, 1, 2, 8))


def test_a_mask_is_the_tensor_that_transformers_makes(transformers: ModuleType, torch: Any) -> None:
    masks = transformers.masking_utils
    shown = torch.tensor([[False, True, True], [True, True, False]])
    how = {"q_length": 2, "q_offset": 1, "batch_size": 2, "attention_mask": shown}
    mask = mask_of(masks.causal_mask_function, **how)
    wanted = masks.sdpa_mask(**how, kv_length=3, allow_is_causal_skip=False)
    assert isinstance(mask, torch.Tensor)
    assert (mask.shape, mask.dtype, mask.device) == (wanted.shape, wanted.dtype, wanted.device)
    assert torch.equal(~mask, ~wanted)
    assert torch.equal(mask[:, :, -1:] == 0, wanted[:, :, -1:] == 0)
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(wanted, 0.0, -1.0))
    assert torch.equal(mask.to(torch.float32) + 1, wanted + 1.0)


def test_padding_is_read_from_the_tokens_of_each_item(transformers: ModuleType, torch: Any) -> None:
    causal = transformers.masking_utils.causal_mask_function
    mask = torch.tensor([[False, True, True], [True, True, False]])
    assert mask_of(causal, attention_mask=mask[:1]).seen.leftpad == [1]
    assert mask_of(causal, attention_mask=mask[:1] | True).seen.mask is None
    seen = mask_of(causal, attention_mask=mask).seen
    assert seen.leftpad is None
    assert torch.equal(seen.mask[:, 0, 0], mask)
    assert refused(lambda: mask_of(causal, attention_mask=mask[:, :2])) == (
        "adapter: attention_mask must have a column for each of 3 tokens, got [2, 2]; give one for all "
        "tokens of each item, those in the cache included"
    )


def test_attention_without_a_mask_says_whether_it_is_causal(adapter: ModuleType, torch: Any) -> None:
    from flash.adapters.transformers.attention import attend

    module, (q, k) = torch.nn.Identity(), torch.randn(2, 1, 2, 3, 8)
    call = functools.partial(attend, module, q, k, k, None, backend="cpu")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, k).transpose(1, 2)
    torch.testing.assert_close(call(is_causal=False)[0], wanted)
    message = (
        "adapter: Identity needs a mask of transformers.masking_utils, got none; give attention_mask as "
        f"[items, tokens], or {OTHERS}"
    )
    assert refused(call) == refused(lambda: call(is_causal=True)) == message
    assert refused(functools.partial(attend, module, q, k, k, "all", backend="cpu")) == message.replace(
        "none", "a str"
    )
    module.is_causal = False
    torch.testing.assert_close(call()[0], wanted)


def test_arguments_that_do_not_belong_together_are_refused(transformers: ModuleType, torch: Any) -> None:
    from flash.adapters.transformers.attention import attend

    mask = mask_of(transformers.masking_utils.causal_mask_function)
    module, (q, k) = torch.nn.Identity(), torch.zeros(2, 1, 2, 3, 8)
    call = functools.partial(attend, module, q, k, k, mask, backend="cpu")
    assert call(is_causal=True, output_attentions=False, position_ids=q)[0].shape == (1, 3, 2, 8)
    weights = call(is_causal=True, output_attentions=True)[1]
    torch.testing.assert_close(
        weights, torch.ones(3, 3).tril().div(torch.arange(1, 4)[:, None]).expand(1, 2, 3, 3)
    )
    for name, value in (("cu_seq_lens_q", q), ("indices", q)):
        assert refused(functools.partial(call, **{name: value})) == (
            f"adapter: Identity gives {name}, which this attention cannot take into account; {OTHERS}"
        )
    assert refused(lambda: attend(module, q[:, :, :1], k, k, mask, backend="cpu")) == (
        f"adapter: the mask is for 3 queries and 3 keys, got 1 and 3; {OTHERS}"
    )
    for ready in (torch.zeros(1, 3, 3), torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 3, dtype=torch.int64)):
        assert refused(functools.partial(attend, module, q, k, k, ready, backend="cpu")) == (
            f"adapter: Identity needs a mask of bool or float [1, 2, 3, 3] or 1 for any of these, got one of "
            f"{ready.dtype} {list(ready.shape)}; give attention_mask as [items, tokens], or {OTHERS}"
        )


def test_weights_are_made_for_models_that_keep_the_wish_to_themselves(
    adapter: ModuleType, torch: Any
) -> None:
    """A model may pass `output_attentions` to its attention, or leave it to transformers, which reads what
    the attention returns.
    """
    model = model_of("llama")
    adapter.register(model)
    for layer in model.model.layers:
        attention = layer.self_attn
        whole = attention.forward

        def silent(*args: Any, whole: Any = whole, output_attentions: Any = None, **how: Any) -> Any:
            return whole(*args, **how)

        attention.forward = silent
    assert model(prompts(1)["input_ids"]).attentions is None
    tokens = prompts(1)["input_ids"]
    for weights in model(tokens, output_attentions=True).attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    packed = {"position_ids": torch.arange(tokens.shape[1])[None] % 5, "use_cache": False}
    assert refused(lambda: model(tokens, **packed, output_attentions=True)) == (
        "adapter: LlamaAttention asks for output_attentions, but attention over packed sequences returns "
        f"no weights; {OTHERS}"
    )
    cached = {"cache": adapter.cache_for(model, 1, 32)}
    assert refused(lambda: model(tokens, **cached, output_attentions=True)) == (
        "adapter: LlamaAttention asks for output_attentions, but attention over a FlashCache returns no "
        f"weights; {OTHERS}"
    )
