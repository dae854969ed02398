"""The attention that models of transformers call, and its registration."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from flash.adapters.torch import attention
from flash.adapters.torch.tensors import tracked
from flash.adapters.transformers.cache import NewRows, require_decoder
from flash.adapters.transformers.masks import OTHERS, WHO, Mask, read_mask
from flash.host.caller import flag
from flash.operands.words import Auto, Backend
from flash.problem.splits import splits_of
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
_CHANGES_NOTHING: Final = {"is_causal": True}  # beside None; of all other arguments it is False


def register(
    model: Any = NAME, *, backend: Backend = AUTO, deterministic: bool = True, splits: int | Auto = AUTO
) -> str:
    """Let a model attend by `flash`, or only make this attention known by a name. Returns the name.

    model: a `PreTrainedModel`, whose attention is set; or a name, to be used as
        `attn_implementation`. Any number of models may use one name, each with caches of its own.
    backend: as in `flash.attention`, for calls without a `FlashCache`, whose backend is its own. The
        name of a model's attention is "ptxgen", or with a backend such as "ptxgen_interpreter".
    deterministic: of gradients, as in `flash.adapters.torch.attention`. If it is False, the name of a
        model's attention ends with "_non_deterministic".
    splits: of the keys, as in `flash.attention`, and over a `FlashCache` as in
        `flash.attention_with_kvcache`: with a number the bits of an item do not depend on the batch. The
        name of a model's attention then ends with "_splits" and the number.

    Attention is causal, with sliding windows, softcap and sinks as the model has them, over keys of
    no cache, of a `DynamicCache`, or of a `FlashCache`; padding is on the left. Without a `FlashCache`
    models train, with attention dropout as `flash.adapters.torch.attention` has it. What it cannot do
    is refused, each by name, when it is called.

    Raises `ConfigError` for an unknown backend, for splits that no call has, for a name that has "flash"
    in it or is that of another attention, and for models with an encoder or without exchangeable attention.
    """
    check_backend(backend, "register")
    number = splits_of("register", splits, ConfigError)
    how = {
        "backend": backend,
        "deterministic": flag("register", "deterministic", deterministic),
        "splits": number or AUTO,
    }
    if isinstance(model, str):
        _make_known(model, how)
        return model
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"register: model must be a PreTrainedModel of transformers, or a name, got {shown(model)}; call "
            "register(model) with what from_pretrained returns"
        )
    require_decoder("register", model.config)
    name = NAME if backend == AUTO else f"{NAME}_{backend}"
    if not deterministic:
        name += "_non_deterministic"
    if number is not None:
        name += f"_splits{number}"
    _make_known(name, how)
    if not model._can_set_attn_implementation():  # transformers only warns
        raise ConfigError(
            f"register: {type(model).__name__} has no exchangeable attention, because it does not use "
            "transformers.AttentionInterface; use another model class"
        )
    model.set_attn_implementation(name)
    return name


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
    backend: Backend,
    deterministic: bool = True,
    splits: int | Auto = AUTO,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """Attention with the arguments that transformers gives: query [items, heads, n, head_dim], key
    and value [items, kv_heads, m, ...] or the rows of a `FlashCache`, sinks `s_aux` [heads]; `backend`
    is that of `register`, and so are `deterministic` and `splits`, unless a call of the model gives them.
    Returns [items, n, heads, head_dim_v], and None for the weights, which are not made.

    Raises `LaunchError` for what it cannot do, and what `flash.adapters.torch.attention` and
    `flash.attention_with_kvcache` raise.
    """
    mask = _checked_mask(module, attention_mask)
    _refuse_others(module, others)
    keys = key.length if isinstance(key, NewRows) else key.shape[2]
    if (query.shape[2], keys) != (mask.queries, mask.keys):
        raise LaunchError(
            f"{WHO}: the mask is for {mask.queries} queries and {mask.keys} keys, got {query.shape[2]} and "
            f"{keys}; {OTHERS}"
        )
    scores: dict[str, Any] = {
        "softmax_scale": scaling,
        "window": None if mask.window is None else (mask.window - 1, 0),
        "softcap": softcap,
        "sink": None if s_aux is None else s_aux.float(),
        "splits": splits,
    }
    if isinstance(key, NewRows):
        new_k, new_v = key.tensors
        _refuse_training(dropout, {"query": query, "key": new_k, "value": new_v, "sinks": s_aux})
        out = key.attend(query, mask, **scores)
    else:
        scores |= {"mask": _seen(mask, query), "dropout": dropout}
        scores |= {"backend": backend, "deterministic": deterministic}
        out = attention(query, key, value, causal="bottom_right", **scores)
    return out.transpose(1, 2), None


def _seen(mask: Mask, query: Any) -> Any:
    """Which keys are no padding, bool [items, 1, 1, keys]; None if all are tokens."""
    if mask.leftpad is None:
        return None
    first = torch.tensor(mask.leftpad, device=query.device) - mask.first_key
    return (torch.arange(mask.keys, device=query.device) >= first[:, None])[:, None, None]


def _checked_mask(module: Any, mask: Any) -> Mask:
    """The mask that `read_mask` made. Raises `LaunchError` for any other, and for none."""
    if getattr(module, "is_causal", True) is False:
        raise LaunchError(
            f"{WHO}: {type(module).__name__} is not causal, as cross-attention and encoders are; {OTHERS}"
        )
    if isinstance(mask, Mask):
        return mask
    kind = "none" if mask is None else f"one of shape {list(getattr(mask, 'shape', ()))}"
    raise LaunchError(
        f"{WHO}: {type(module).__name__} needs a mask of transformers.masking_utils, got {kind}; give "
        f"attention_mask as [items, tokens], or {OTHERS}"
    )


def _refuse_others(module: Any, others: dict[str, Any]) -> None:
    """Raise `LaunchError` for arguments whose meaning would be lost."""
    given = {name: value for name, value in others.items() if name not in _NO_MATTER and value is not None}
    lost = [name for name, value in given.items() if value is not _CHANGES_NOTHING.get(name, False)]
    if lost:
        raise LaunchError(
            f"{WHO}: {type(module).__name__} gives {', '.join(sorted(lost))}, which this attention cannot "
            f"take into account; {OTHERS}"
        )


def _refuse_training(dropout: float, tensors: dict[str, Any]) -> None:
    """Raise `LaunchError` for dropout and gradients, which attention over a `FlashCache` has not."""
    lost = tracked(tensors)
    if lost:
        verb = "requires" if len(lost) == 1 else "require"
        raise LaunchError(
            f"{WHO}: {', '.join(lost)} {verb} gradients, but attention over a FlashCache has none; call "
            "inside torch.no_grad(), or train without a cache"
        )
    if dropout:
        raise LaunchError(
            f"{WHO}: dropout must be 0 with a FlashCache, got {dropout}, because the model is in training "
            "mode; call model.eval(), or train without a cache"
        )
