"""Masks of transformers, read instead of made: which keys a query sees, as `flash` is told it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from transformers.masking_utils import and_masks, causal_mask_function, or_masks, sliding_window_overlay

from ptxgen.errors import LaunchError

WHO: Final = "flash.adapters.transformers"
OTHERS: Final = "use attn_implementation='sdpa' or 'eager' for this model"  # the cure for what is refused

# transformers makes masks of nested functions: two of one origin have one code object.
_AND: Final = and_masks(causal_mask_function).__code__
_OR: Final = or_masks(causal_mask_function).__code__
_WINDOW: Final = sliding_window_overlay(1).__code__


@dataclass(frozen=True, slots=True)
class Mask:
    """A causal mask of `queries` queries and `keys` keys, the last ones of a sequence, whose first
    key has index `first_key`. A query sees `window` keys, itself included; None is all. The first
    `leftpad[b]` keys of item b, counted from index 0, are padding; None is no padding.
    """

    queries: int
    keys: int
    first_key: int
    window: int | None
    leftpad: list[int] | None


def read_mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Any = None,
    **_: Any,
) -> Mask:
    """What transformers' mask says. It is registered as the function that makes masks and has the
    arguments of these functions; the result reaches attention as its `attention_mask`.

    Raises `LaunchError` for masks that are neither causal nor causal with a sliding window, for
    padding that is not on the left, and for keys behind the last query, as static caches have them.
    """
    window = _window(mask_function)
    first, end = int(kv_offset), int(kv_offset) + int(kv_length)
    if int(q_offset) + q_length != end:
        raise LaunchError(
            f"{WHO}: the last key must be that of the last query, but queries end at "
            f"{int(q_offset) + q_length} and keys at {end}, as in a static cache; use a FlashCache or a "
            "DynamicCache"
        )
    return Mask(q_length, int(kv_length), first, window, _leftpad(attention_mask, end))


def _window(mask_function: Callable[..., Any]) -> int | None:
    """The keys that a query sees. Raises `LaunchError` for any other function."""
    if mask_function is causal_mask_function:
        return None
    if (parts := _parts(mask_function, _AND)) and len(parts) == 2 and parts[1] is causal_mask_function:
        window = _inside(parts[0], _WINDOW).get("sliding_window")
        if window is not None:
            return int(window)
    raise LaunchError(
        f"{WHO}: masks must be causal, with or without a sliding window, but this model's is "
        f"{_described(mask_function)}; {OTHERS}"
    )


def _inside(function: Callable[..., Any], code: Any) -> dict[str, Any]:
    """The variables that a nested function of this code has from outside; empty for others."""
    if getattr(function, "__code__", None) is not code:
        return {}
    return dict(inspect.getclosurevars(function).nonlocals)


def _parts(function: Callable[..., Any], code: Any) -> tuple[Callable[..., Any], ...]:
    parts: tuple[Callable[..., Any], ...] = _inside(function, code).get("mask_functions", ())
    return parts


def _described(function: Callable[..., Any]) -> str:
    """The functions that a mask is made of, by the names that transformers gives them."""
    for code, word in ((_AND, " and "), (_OR, " or ")):
        if parts := _parts(function, code):
            return f"({word.join(map(_described, parts))})"
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.partition(".<locals>")[0]


def _leftpad(attention_mask: Any, end: int) -> list[int] | None:
    """The padding of each item of a mask [items, n], bool; None if there is none."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    if attention_mask.shape[1] != end:
        raise LaunchError(
            f"{WHO}: attention_mask must have a column for each of {end} tokens, got "
            f"{list(attention_mask.shape)}; give one for all tokens of each item, those in the cache included"
        )
    padding: list[int] = (~attention_mask).sum(dim=1).tolist()
    for item, n in enumerate(padding):
        if not attention_mask[item, n:].all():
            raise LaunchError(
                f"{WHO}: padding must be on the left, but item {item} of attention_mask is "
                f"{attention_mask[item].int().tolist()}; make the tokenizer pad there"
            )
    return padding
