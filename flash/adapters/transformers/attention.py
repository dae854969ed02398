"""The attention that models of transformers call, and its registration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Unpack

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils.output_capturing import _active_collector

from flash.adapters.torch import attention, attention_varlen
from flash.adapters.torch.tensors import tracked
from flash.adapters.transformers.cache import NewRows
from flash.adapters.transformers.masks import CALLER, OTHERS, Mask, Seen, read_mask
from flash.gradients.weights import attention_weights
from flash.launch.options import CACHED, DEFAULTS, MEANINGS, OPTIONS, ModelOptions, Option, checked_options
from flash.scores.feature import ScoreFeature
from flash.scores.features import SCORES, require_known, takes
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.settings import AUTO

# transformers looks for a name with "flash" in it on the hub.
NAME: Final = "ptxgen"

# What models pass to attention that changes nothing here: positions are in the rows, windows in the mask.
_NO_MATTER: Final = frozenset(
    (
        "cache_position",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    )
)
_OPTIONS: Final = tuple(option for option in OPTIONS if option.name in ModelOptions.__annotations__)
_FEATURES: Final = tuple(feature for feature in SCORES if feature.in_transformers)
_WEIGHTS: Final = "attentions"  # the end of the names of outputs that are weights


@takes(ModelOptions, MEANINGS, **DEFAULTS)
def register(model: Any = NAME, **options: Unpack[ModelOptions]) -> str:
    """Let a model attend by `flash`, or only make this attention known by a name. Returns the name.

    model: a `PreTrainedModel`, whose attention is set; or a name, to be used as
        `attn_implementation`. Any number of models may use one name, each with caches of its own.

    The name of a model's attention is "ptxgen" and a word for each option that is not the default: its value,
    its name and number, or that it is not so, such as "ptxgen_interpreter_non_deterministic".

    Attention has the masks, softcap, sinks and biases of positions of the model, over keys of no cache, of
    one of transformers, or of a `FlashCache`. Without a `FlashCache` models train, with attention dropout
    as `flash.adapters.torch.attention` has it. What it cannot do is refused, each by name, when it is
    called.

    Raises `ConfigError` for options that no call has, for a name that has "flash" in it or is that of another
    attention, and for models without exchangeable attention.
    """
    require_known("register", options, ModelOptions, register)
    check_backend(options.get("backend", AUTO), "register")
    how = checked_options("register", options, ModelOptions)
    if isinstance(model, str):
        _make_known(model, how)
        return model
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"register: model must be a PreTrainedModel of transformers, or a name, got {shown(model)}; call "
            "register(model) with what from_pretrained returns"
        )
    name = "_".join((NAME, *(_word(n, x) for n, x in how.items() if x != DEFAULTS[n])))
    _make_known(name, how)
    if not model._can_set_attn_implementation():  # transformers only warns
        raise ConfigError(
            f"register: {type(model).__name__} has no exchangeable attention, because it does not use "
            "transformers.AttentionInterface; use another model class"
        )
    model.set_attn_implementation(name)
    return name


def _word(name: str, value: Any) -> str:
    """The word for an option that is not the default, in the name of a model's attention."""
    if value is False:
        return f"non_{name}"
    return value if isinstance(value, str) else f"{name}{value}"


def _make_known(name: str, how: Mapping[str, Any]) -> None:
    attention, masks = AttentionInterface().get(name), AttentionMaskInterface().get(name)
    is_ours = masks is read_mask and getattr(attention, "func", None) is attend
    if "flash" in name or not (is_ours or attention is masks is None):
        raise ConfigError(
            f"register: the name must be new and without 'flash', which transformers looks for on its hub, "
            f"got {name!r}; use {NAME!r}"
        )
    AttentionInterface.register(name, functools.partial(attend, **how))
    AttentionMaskInterface.register(name, read_mask)


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    position_bias: Any = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Any, torch.Tensor | None]:
    """Attention with the arguments that transformers gives: query [items, heads, n, head_dim], key
    and value [items, kv_heads, m, ...] or the rows of a `FlashCache`, a mask of `read_mask` or [items, 1 or
    heads, n, m], `position_bias` [1 or items, heads, n, m], which is added to scores, and what features of
    scores have `in_transformers`, such as sinks `s_aux` [heads]; the options are those of `register`, unless
    a call of the model gives them. Without a mask, all keys are seen if `is_causal`, of the call or else the
    module, is False. Returns [items, n, heads, head_dim_v], dense, and None, or if the model asks for
    `output_attentions` the weights of `flash.attention_weights`, [items, heads, n, m], without gradients and
    dropout.

    Raises `LaunchError` for what it cannot do, and what `flash.adapters.torch.attention` and
    `flash.attention_with_kvcache` raise.
    """
    options = {option: others.pop(option.name, option.default) for option in _OPTIONS}
    arguments = {feature: others.pop(feature.in_transformers, None) for feature in _FEATURES}
    is_asked = _asks_weights(others.pop("output_attentions", None))
    _refuse_others(module, others)
    rows = key if isinstance(key, NewRows) else None
    keys = rows.length if rows is not None else key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    seen = _seen(module, attention_mask, query, keys, is_causal=is_causal, position_bias=position_bias)
    scores: dict[str, Any] = {"softmax_scale": scaling, "window": seen.window}
    scores |= {f.argument: f.default if x is None else _converted(f, x) for f, x in arguments.items()}
    if is_asked and (rows is not None or seen.starts is not None):
        of = "a FlashCache" if rows is not None else "packed sequences"
        raise LaunchError(
            f"{CALLER}: {type(module).__name__} asks for output_attentions, but attention over {of} returns "
            f"no weights; {OTHERS}"
        )
    if rows is not None:
        new_k, new_v = rows.tensors
        arrays = {feature.argument: x for feature, x in arguments.items() if feature.axes}
        absent = {f.argument: scores.pop(f.argument) for f in _FEATURES if not f.in_cache}
        _refuse_training(absent, {"query": query, "key": new_k, "value": new_v, **arrays})
        scores |= {option.name: x for option, x in options.items() if CACHED in option.functions}
        del scores["backend"]  # it is that of the cache
        return rows.attend(query, seen, **scores), None
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if seen.starts is not None:
        scores |= {of.name: x if of.packed is None else of.packed(x) for of, x in options.items()}
        return _attend_each(q, k, v, seen.starts, scores | {"causal": seen.causal}), None
    out = attention(
        q,
        k[:, : seen.keys],
        v[:, : seen.keys],
        causal=seen.causal,
        mask=seen.mask,
        bias=seen.bias,
        layout="bshd",
        **{option.name: x for option, x in options.items()},
        **scores,
    )
    return out, _weights(q, k, seen, options, scores) if is_asked else None


def _weights(
    q: Any, k: Any, seen: Seen, options: Mapping[Option, Any], scores: Mapping[str, Any]
) -> torch.Tensor:
    """The weights of a call of `attention`, [items, heads, n, m], of the type of q; without gradients, before
    dropout, and 0 for keys beyond those that are `seen`.
    """
    names = inspect.signature(attention_weights).parameters
    how = {option.name: x for option, x in options.items()} | dict(scores)
    how |= {"causal": seen.causal, "mask": seen.mask, "bias": seen.bias, "layout": "bshd"}
    of_call = {n: x.detach() if isinstance(x, torch.Tensor) else x for n, x in how.items() if n in names}
    weights: torch.Tensor = attention_weights(q.detach(), k[:, : seen.keys].detach(), **of_call)
    return torch.nn.functional.pad(weights, (0, k.shape[1] - seen.keys)).to(q.dtype)


def _attend_each(q: Any, k: Any, v: Any, starts: Any, scores: Mapping[str, Any]) -> Any:
    """Attention of several sequences one after another in q, k and v [items, n, heads, d], which begin at
    `starts`, int32 [sequences + 1], among the tokens of all items.
    """
    longest, rows = int(starts.diff().max()), q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out = attention_varlen(q, k, v, starts, starts, max_seqlen_q=longest, max_seqlen_k=longest, **scores)
    return out.unflatten(0, rows)


def _seen(module: Any, mask: Any, query: Any, keys: int, *, is_causal: bool, position_bias: Any) -> Seen:
    """Which of `keys` keys queries [items, heads, n, head_dim] see, and what is added to their scores.
    Raises `LaunchError` for masks of other shapes, and for no mask where attention is causal.
    """
    caller, queries = type(module).__name__, query.shape[2]
    if isinstance(mask, Mask):
        seen, wanted = mask.seen, (mask.seen.queries, mask.keys)
        if wanted != (queries, keys):
            raise LaunchError(
                f"{CALLER}: the mask is for {wanted[0]} queries and {wanted[1]} keys, got {queries} and "
                f"{keys}; {OTHERS}"
            )
    elif isinstance(mask, torch.Tensor):
        seen = _of_elements(caller, mask, query, keys)
    elif mask is None and (not is_causal or (queries, keys) == (1, 1)):
        seen = Seen(queries, keys)
    else:
        got = "none" if mask is None else f"a {type(mask).__name__}"
        raise LaunchError(
            f"{CALLER}: {caller} needs a mask of transformers.masking_utils, got {got}; give attention_mask "
            f"as [items, tokens], or {OTHERS}"
        )
    if position_bias is None:
        return seen
    if seen.starts is not None:  # sequences of different lengths, which have no common bias
        seen = Seen(queries, keys, mask=mask.elements)
    bias = position_bias if seen.bias is None else position_bias + seen.bias
    return replace(seen, bias=bias[..., : seen.keys])


def _of_elements(caller: str, mask: Any, query: Any, keys: int) -> Seen:
    """The keys that a given mask shows: bool, or float, which is added to scores. Raises `LaunchError` for
    other types.
    """
    items, heads, queries, _ = query.shape
    wanted = (items, heads, queries, keys)
    fits = mask.dim() == len(wanted) and all(n in (1, m) for n, m in zip(mask.shape, wanted, strict=True))
    if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise LaunchError(
            f"{CALLER}: {caller} needs a mask of bool or float {list(wanted)} or 1 for any of these, got one "
            f"of {mask.dtype} {list(mask.shape)}; give attention_mask as [items, tokens], or {OTHERS}"
        )
    if mask.dtype == torch.bool:
        return Seen(queries, keys, mask=mask)
    return Seen(queries, keys, bias=mask if mask.dtype == query.dtype else mask.float())


def _asks_weights(asked: object) -> bool:
    """Whether a model asks for weights: by its argument `output_attentions`, or by the collector of outputs
    of transformers, which reads what the attention returns.
    """
    collected = () if torch.compiler.is_compiling() else _active_collector.get() or ()
    return bool(asked) or any(name.endswith(_WEIGHTS) for name in collected)


def _refuse_others(module: Any, others: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for arguments that would be ignored although they change the result."""
    arguments = {
        name: value for name, value in others.items() if name not in _NO_MATTER and value is not None
    }
    lost = {name for name, value in arguments.items() if value is not False}
    if lost:
        raise LaunchError(
            f"{CALLER}: {type(module).__name__} gives {', '.join(sorted(lost))}, which this attention cannot "
            f"take into account; {OTHERS}"
        )


def _converted(feature: type[ScoreFeature], argument: Any) -> Any:
    """An argument of a feature as `flash` takes it: arrays of the type that it declares."""
    dtype = feature.array_dtype
    return argument if dtype is None else argument.to(getattr(torch, dtype.array_name))


def _refuse_training(absent: Mapping[str, Any], tensors: dict[str, Any]) -> None:
    """Raise `LaunchError` for gradients, and for features that attention over a `FlashCache` has not."""
    lost = tracked(tensors)
    if lost:
        verb = "requires" if len(lost) == 1 else "require"
        raise LaunchError(
            f"{CALLER}: {', '.join(lost)} {verb} gradients, but attention over a FlashCache has none; call "
            "inside torch.no_grad(), or train without a cache"
        )
    for name, value in absent.items():
        if value:
            raise LaunchError(
                f"{CALLER}: {name} must be 0 with a FlashCache, got {value}, because the model is in "
                "training mode; call model.eval(), or train without a cache"
            )
