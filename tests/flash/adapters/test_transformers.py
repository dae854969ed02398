from __future__ import annotations

import copy
import functools
import pickle
from types import ModuleType
from typing import Any

import pytest
from gradient_calls import interpreted_owners
from transformers_models import (
    DIM,
    KV_HEADS,
    LAYERS,
    MODELS,
    NEW,
    OTHERS,
    PROMPT,
    SIZES,
    VOCABULARY,
    WINDOW,
    logits,
    model_of,
    prompts,
    refused,
    weights_of,
)

import flash
from ptxgen.errors import CacheFullError, ConfigError


def text(model: Any, items: int, cache: Any = None, new: int = NEW, **how: Any) -> list[list[int]]:
    import torch

    with torch.inference_mode():
        result = model.generate(**prompts(items), max_new_tokens=new, do_sample=False, cache=cache, **how)
    tokens: list[list[int]] = result.tolist()
    return tokens


def assert_writes_the_same(model: Any, items: int, wanted: Any, **how: Any) -> None:
    """The tokens are those of `wanted`, which `generated` has returned, and the logits are close."""
    import torch

    result = generated(model, items, **how)
    assert result.sequences.tolist() == wanted.sequences.tolist()
    torch.testing.assert_close(result.logits, wanted.logits, rtol=1e-4, atol=1e-3)


def generated(model: Any, items: int, cache: Any = None, new: int = NEW) -> Any:
    """Tokens and logits of greedy decoding."""
    import torch

    how = {"max_new_tokens": new, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with torch.inference_mode():
        return model.generate(**prompts(items), cache=cache, **how)


# --------------------------------------------------------------------------------------- training


def losses_of(model: Any, steps: int) -> list[float]:
    """The losses of some steps of AdamW, which each learn the same two texts, of which one is padded."""
    import torch

    arguments = prompts(2)
    # No token is learned from padding, which sees no key: eager attention gives such rows a mean.
    seen = torch.nn.functional.pad(arguments["attention_mask"], (1, 0))[:, :-1]
    labels = arguments["input_ids"].masked_fill(seen == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    result = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**arguments, labels=labels).loss
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "gpt_oss"))]
)
def test_a_model_learns_as_with_eager_attention(name: str, adapter: ModuleType) -> None:
    """Losses differ by a few roundings of f32, which are 6e-8 of a loss."""
    wanted = losses_of(model_of(name), 5)
    model = model_of(name)
    adapter.register(model)
    assert losses_of(model, 5) == pytest.approx(wanted, rel=1e-5)
    assert wanted[-1] < wanted[0] / 2


@pytest.mark.nightly
def test_a_model_learns_by_the_kernels(adapter: ModuleType) -> None:
    wanted = losses_of(model_of("llama"), 2)
    model = model_of("llama")
    adapter.register(model, backend="interpreter")
    assert losses_of(model, 2) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_a_model_chooses_the_sweeps_of_gradients(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its registration, and for one call by a word of the call. With at most 64 columns two sweeps would
    be faster on sm_80.
    """
    import torch

    launched, model = interpreted_owners(monkeypatch), model_of("llama", head_dim=72).to(torch.bfloat16)
    two, one = ["queries", "keys"] * LAYERS, ["deltas", "keys", "sums"] * LAYERS
    tokens = prompts(1)["input_ids"][:, :4]
    for deterministic, word, owners in (
        (True, {}, two),
        (False, {}, one),
        (False, {"deterministic": True}, two),
    ):
        name = adapter.register(model, backend="interpreter", deterministic=deterministic)
        assert name.endswith("_non_deterministic") is not deterministic
        model(tokens, labels=tokens, **word).loss.backward()
        assert launched == owners
        launched.clear()
    assert refused(lambda: adapter.register(model, deterministic=1)) == (
        "register: deterministic must be True or False, got 1"
    )


def test_dropout_of_attention_follows_the_seed(adapter: ModuleType) -> None:
    import torch

    model = model_of("llama", attention_dropout=0.5).train()
    adapter.register(model)
    tokens, result = prompts(1)["input_ids"], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        result.append(model(tokens).logits)
    assert torch.equal(result[0], result[1])
    assert not torch.equal(result[0], result[2])


# ------------------------------------------------------------------------------------ the same text


@pytest.mark.parametrize(
    ("name", "page_size"),
    [
        ("gemma2", 4),
        *(
            pytest.param(name, size, marks=pytest.mark.slow if (n + m) % 3 == 0 else pytest.mark.nightly)
            for n, name in enumerate(MODELS)
            for m, size in enumerate((0, None, 4))
            if (name, size) != ("gemma2", 4)
        ),
    ],
)
def test_a_left_padded_batch_is_continued_as_by_eager(
    name: str, page_size: int | None, adapter: ModuleType
) -> None:
    model = model_of(name)
    wanted = generated(model, 3)
    adapter.register(model, backend="cpu")
    cache = None if page_size == 0 else adapter.cache_for(model, 3, PROMPT + NEW, page_size=page_size)
    assert_writes_the_same(model, 3, wanted, cache=cache)
    if cache is not None:
        assert cache.kv.lengths.tolist() == [[PROMPT + NEW - 1] * 3] * LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["prompt lookup", "assisted"])
def test_guesses_are_cut_where_they_are_wrong(name: str, how: str, adapter: ModuleType) -> None:
    model = model_of(name)
    guess: dict[str, Any] = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1}
    if how == "assisted":
        guess = {"assistant_model": model_of("llama", seed=5)}
    wanted = text(model, 1, **guess)
    for one in (model, *(guess[n] for n in guess if n == "assistant_model")):
        adapter.register(one, backend="cpu")
    cache = adapter.cache_for(model, 2, 40)  # guesses need room; the batch is larger than that of the call
    cut = noted(cache, "crop")
    assert text(model, 1, cache, **guess) == wanted
    assert min(cut)[0] < 0
    assert cache.kv.lengths.tolist() == [[PROMPT + NEW - 1, 0]] * LAYERS


def noted(cache: Any, method: str) -> list[tuple[Any, ...]]:
    """The arguments of later calls of a method."""
    calls: list[tuple[Any, ...]] = []
    right = getattr(cache, method)

    def note(*arguments: Any) -> None:
        calls.append(arguments)
        right(*arguments)

    setattr(cache, method, note)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_beams_are_those_of_eager(name: str, adapter: ModuleType) -> None:
    model = model_of(name)
    wanted = text(model, 2, num_beams=3, num_return_sequences=2)
    adapter.register(model, backend="cpu")
    cache = adapter.cache_for(model, 6, PROMPT + NEW, page_size=4)
    orders = noted(cache, "reorder_cache")
    assert text(model, 2, cache, num_beams=3, num_return_sequences=2) == wanted
    assert any(order.tolist() != list(range(6)) for (order,) in orders)


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_the_kernels_write_what_eager_does(name: str, adapter: ModuleType) -> None:
    model = model_of(name)
    wanted = generated(model, 2, new=3)
    assert adapter.register(model, backend="interpreter") == "ptxgen_interpreter"
    cache = adapter.cache_for(model, 2, PROMPT + 3, page_size=4, backend="interpreter")
    assert_writes_the_same(model, 2, wanted, cache=cache, new=3)


@pytest.mark.slow
def test_the_kernels_attend_to_keys_of_a_dynamic_cache(adapter: ModuleType) -> None:
    model = model_of("mistral")
    wanted = generated(model, 2, new=2)
    adapter.register(model, backend="interpreter")
    assert_writes_the_same(model, 2, wanted, new=2)


@pytest.mark.slow
def test_a_cache_may_keep_16_bits(adapter: ModuleType) -> None:
    model = model_of("llama")
    tokens = prompts(1)["input_ids"]
    exact = logits(model, tokens)
    adapter.register(model)
    result = {}
    for dtype in ("f32", "bf16", "e4m3"):
        cache = adapter.cache_for(model, 1, PROMPT, dtype=dtype, page_size=None)
        got = logits(model, tokens, cache=cache)
        assert got.dtype == exact.dtype
        assert cache.kv.dtype == dtype
        result[dtype] = float((got - exact).abs().max())
    assert result["f32"] < 1e-4 < 1e-3 < result["bf16"] < 1 < result["e4m3"] < 20


# ------------------------------------------------------------------------------ several at once


def test_models_attend_side_by_side(adapter: ModuleType) -> None:
    """Two models take turns, a token each, and each keeps to its own cache, window and softcap."""
    import torch

    tokens = prompts(1)["input_ids"]
    models = [model_of(name) for name in ("llama", "gemma2", "llama")]
    models[2].load_state_dict(weights_of("llama", seed=5))
    wanted = [logits(model, tokens) for model in models]
    caches = []
    for model in models:
        assert adapter.register(model) == "ptxgen"
        caches.append(adapter.cache_for(model, 1, PROMPT, page_size=4))
    parts = [
        [logits(m, tokens[:, a:b], cache=c) for m, c in zip(models, caches, strict=True)]
        for a, b in ((0, 7), (7, 8), (8, PROMPT))
    ]
    for result, right in zip(zip(*parts, strict=True), wanted, strict=True):
        assert torch.cat(result, dim=1).sub(right).abs().max() < 1e-4
    assert [cache.get_seq_length() for cache in caches] == [PROMPT] * 3


def test_a_name_is_registered_for_models_to_come(adapter: ModuleType, transformers: ModuleType) -> None:
    assert adapter.register("mine", backend="cpu") == "mine"
    more = MODELS["llama"][1]
    config = transformers.LlamaConfig(**SIZES, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="mine")
    eager = model_of("llama")
    model.load_state_dict(eager.state_dict())
    tokens = prompts(1)["input_ids"]
    assert logits(model.eval(), tokens).sub(logits(eager, tokens)).abs().max() < 1e-4
    assert adapter.register("mine") == "mine"  # again, with another backend


# ------------------------------------------------------------------------------------ the cache


def test_items_of_a_cache_are_selected_repeated_and_reset(adapter: ModuleType) -> None:
    import torch

    kv = flash.KVCache(1, 4, 1, 2, 6, page_size=2)
    cache = adapter.FlashCache(kv)
    for sequence in range(2):
        rows = torch.full((1, 1, 3, 2), float(sequence + 1))
        kv.append(0, rows, rows, [sequence])

    def first() -> list[float]:
        return [float(kv.keys(0, n)[0, 0, 0]) for n in range(4) if kv.lengths[0, n]]

    cache.batch_repeat_interleave(2)
    assert first() == [1, 1, 2, 2]
    cache.batch_select_indices(torch.tensor([False, True, True, False]))
    assert first() == [1, 2]
    cache.batch_select_indices(torch.tensor([1]))
    assert first() == [2]
    cache.crop(0)
    cache.crop(-2)
    assert kv.lengths.tolist() == [[1, 0, 0, 0]]
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.is_croppable
    assert repr(cache).startswith("FlashCache(<KVCache(1, 4, 1, 2, 6, ")


GEMMA_4: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 6,
    "head_dim": DIM,
    "global_head_dim": 2 * DIM,
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": DIM,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}


@pytest.mark.parametrize(
    ("shared", "how"),
    [(2, {"num_beams": 2}), *(pytest.param(n, {}, marks=pytest.mark.slow) for n in (0, 2))],
    ids=str,
)
def test_layers_of_other_sizes_have_caches_of_their_own(
    shared: int, how: dict[str, Any], adapter: ModuleType, transformers: ModuleType
) -> None:
    """Gemma 4 has longer rows in layers without a window, and layers that attend to the keys of others."""
    import torch

    torch.manual_seed(0)
    config = transformers.Gemma4TextConfig(**GEMMA_4, num_kv_shared_layers=shared)
    config._attn_implementation = "eager"
    model = transformers.Gemma4ForCausalLM(config).eval()
    wanted = text(model, 2, min_new_tokens=NEW, **how)
    adapter.register(model)
    cache = adapter.cache_for(model, 2 * how.get("num_beams", 1), PROMPT + NEW, page_size=4)
    assert [(kv.layers, kv.head_dim) for kv in cache.kvs] == [
        (3 - shared // 2, DIM),
        (3 - shared // 2, 2 * DIM),
    ]
    assert text(model, 2, cache, min_new_tokens=NEW, **how) == wanted
    cache.crop(-NEW)
    assert {int(kv.lengths.max()) for kv in cache.kvs} == {PROMPT - 1}
    assert refused(lambda: cache.kv) == (
        "FlashCache.kv: the layers of this model are in 2 caches; use FlashCache.kvs"
    )


@pytest.mark.parametrize("kind", ["deepcopy", "pickle"])
def test_a_prompt_is_continued_several_times(kind: str, adapter: ModuleType) -> None:
    import torch

    model = model_of("mistral")
    adapter.register(model)
    tokens = prompts(1)["input_ids"]
    cache = adapter.cache_for(model, 1, PROMPT + NEW, page_size=4)
    logits(model, tokens[:, :-2], cache=cache)
    for last in (tokens, tokens.flip(1)):
        whole = torch.cat([tokens[:, :-2], last[:, -2:]], dim=1)
        wanted = model.generate(whole, max_new_tokens=3, do_sample=False)
        own = copy.deepcopy(cache) if kind == "deepcopy" else pickle.loads(pickle.dumps(cache))
        assert torch.equal(model.generate(whole, max_new_tokens=3, do_sample=False, cache=own), wanted)
        assert cache.kv.lengths.tolist() == [[PROMPT - 2]] * LAYERS


def test_a_cache_is_made_in_the_sizes_of_a_model(adapter: ModuleType) -> None:
    import torch

    kv = adapter.cache_for(model_of("qwen2").to(torch.bfloat16), 3, 20).kv
    assert (kv.layers, kv.batch, kv.kv_heads, kv.head_dim, kv.capacity) == (LAYERS, 3, KV_HEADS, DIM, 20)
    assert (kv.dtype, kv.page_size) == ("bf16", 16)


# ------------------------------------------------------------------------------------- refused


def test_gradients_and_dropout_are_never_lost_silently(adapter: ModuleType) -> None:
    import torch

    model = model_of("llama", attention_dropout=0.25)
    adapter.register(model)
    call = functools.partial(model, prompts(1)["input_ids"], cache=adapter.cache_for(model, 1, 20))
    assert refused(call) == (
        "adapter: query, key, value require gradients, but attention over a FlashCache has none; call inside "
        "torch.no_grad(), or train without a cache"
    )
    model.train()
    with torch.no_grad():
        assert refused(call) == (
            "adapter: dropout must be 0 with a FlashCache, got 0.25, because the model is in training mode; "
            "call model.eval(), or train without a cache"
        )


def test_a_cache_of_ours_is_refused_to_another_attention(adapter: ModuleType) -> None:
    message = (
        "adapter: keys and values of a FlashCache are appended and read by our attention, but the model "
        "uses another, or computes with them before; call register(model), or use a DynamicCache"
    )
    tokens = prompts(1)["input_ids"]
    for attention, name in (("eager", "llama"), ("sdpa", "llama"), ("eager", "gpt_oss")):
        model = model_of(name)
        model.set_attn_implementation(attention)
        cache = adapter.cache_for(model, 1, 20)
        assert refused(functools.partial(logits, model, tokens, cache=cache)) == message
        assert not cache.kv.lengths.any()


def test_a_cache_that_is_too_small_is_named(adapter: ModuleType) -> None:
    model = model_of("llama")
    adapter.register(model)
    cache = adapter.cache_for(model, 2, 20)
    tokens = prompts(3)["input_ids"]
    assert refused(lambda: logits(model, tokens, cache=cache)) == (
        "adapter: the batch has 3 items, beams included, but the cache has 2 sequences; make it with batch=3"
    )
    short = adapter.cache_for(model, 1, 4)
    said = refused(lambda: logits(model, tokens[:1], cache=short), CacheFullError)
    assert said.startswith("attention_with_kvcache: sequence 0 has 0 of 4 tokens in layer 0, ")


def test_what_a_cache_cannot_do_is_said(adapter: ModuleType) -> None:
    import torch

    kv = flash.KVCache(1, 2, 1, 2, 6)
    cache = adapter.FlashCache(kv)
    rows = torch.zeros(2, 1, 3, 2)
    kv.append(0, rows, rows)
    assert refused(lambda: cache.crop(1)) == (
        "FlashCache.crop: tokens_to_remove must be 0 or negative, got 1; crop(-n) removes n tokens"
    )
    assert refused(lambda: cache.crop(-4)) == (
        "FlashCache.crop: 4 tokens are to be removed, but a sequence has 3; remove at most as many"
    )
    assert refused(lambda: cache.batch_repeat_interleave(2)) == (
        "FlashCache.batch_repeat_interleave: 2 items become 4, but the cache has 2 sequences; make it with "
        "batch=4"
    )
    assert refused(lambda: cache.reorder_cache(torch.tensor([1, 1]))) == (
        "KVCache.reorder: sequences of contiguous memory cannot share rows, but [0, 1] shall hold what "
        "[1, 1] hold; make the cache with page_size, such as page_size=16"
    )
    assert refused(lambda: adapter.FlashCache([kv]), ConfigError) == (
        "FlashCache: kv must be a flash.KVCache, or a list with (flash.KVCache, layer) or None for each "
        "layer of the model, got list; make one with flash.KVCache(layers, batch, kv_heads, head_dim, "
        "capacity), or use cache_for(model, ...)"
    )


def test_caches_are_of_decoders_whose_layers_keep_all_keys(
    adapter: ModuleType, transformers: ModuleType
) -> None:
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=8)
    )
    assert refused(lambda: adapter.cache_for(t5, 1, 8), ConfigError) == (
        "cache_for: models must be decoders only, but T5Config has an encoder, and layers that keep the keys "
        "of its tokens; leave cache out, and generate makes one"
    )
    for name, kind in (("attention_chunk_size", "chunked_attention"), ("kv_lora_rank", "latents")):
        model = model_of("llama")
        setattr(model.config, name, 4)
        assert refused(functools.partial(adapter.cache_for, model, 1, 8), ConfigError) == (
            "cache_for: layers must be full_attention or sliding_attention, but LlamaForCausalLM has "
            f"{kind}; {OTHERS}"
        )


def test_names_and_backends_are_checked(adapter: ModuleType) -> None:
    for name in ("flashy", "eager"):
        assert refused(functools.partial(adapter.register, name), ConfigError) == (
            "register: the name must be new and without 'flash', which transformers looks for on its hub, "
            f"got '{name}'; use 'ptxgen'"
        )
    assert refused(lambda: adapter.register(3), ConfigError) == (
        "register: model must be a PreTrainedModel of transformers, or a name, got 3; call "
        "register(model) with what from_pretrained returns"
    )
    assert refused(lambda: adapter.register("mine", backend="cud"), ConfigError).startswith("register: ")
    fixed = model_of("llama")
    fixed._can_set_attn_implementation = lambda: False
    assert refused(lambda: adapter.register(fixed), ConfigError) == (
        "register: LlamaForCausalLM has no exchangeable attention, because it does not use "
        "transformers.AttentionInterface; use another model class"
    )
