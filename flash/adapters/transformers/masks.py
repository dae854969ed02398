"""Masks of transformers as arguments of `flash`: which keys a query sees, without a tensor of elements."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import masking_utils
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from ptxgen.errors import LaunchError

CALLER: Final = "flash.adapters.transformers"
OTHERS: Final = "use attn_implementation='sdpa' or 'eager' for this model"  # the cure for what is refused

_NO_TOKENS: Final = torch.zeros(1, 0, dtype=torch.int64, device="cpu")
# transformers makes masks of nested functions: all that one function returns have one code object.
_AND: Final = masking_utils.and_masks(causal_mask_function).__code__
_WINDOW: Final = masking_utils.sliding_window_overlay(1).__code__
_WINDOW_OF_BOTH: Final = masking_utils.sliding_window_bidirectional_overlay(1).__code__
_REMAPPED: Final = masking_utils.remap_positions_for_packed_sequence(
    causal_mask_function, _NO_TOKENS
).__code__
_PACKED: Final = masking_utils.packed_sequence_mask_function(_NO_TOKENS).__code__


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees, apart from padding: with `causal` none after it; with `window` none that is
    further to its left or right than these numbers of tokens (None: no limit); with `sequences`, int [items,
    tokens], the number of the sequence of each token in ascending order, only keys of its sequence.
    """

    causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    sequences: torch.Tensor | None = None


@dataclass(frozen=True)
class Seen:
    """A mask as arguments of `flash`, of `queries` queries and the first `keys` keys; none sees later keys.
    `causal` and `window` are those of `flash.attention`, from the last query and key on; `mask`, bool, and
    `bias`, float, broadcast to [items, heads, queries, keys]; `starts`, int32 [sequences + 1], are the
    `cu_seqlens` of sequences one after another, of which none sees tokens of another.
    """

    queries: int
    keys: int
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    starts: torch.Tensor | None = None

    @functools.cached_property
    def leftpad(self) -> list[int] | None:
        """How many first keys of each item `mask` hides; None if it hides others, too, or is None."""
        if self.mask is None or self.mask.shape[1:3] != (1, 1):
            return None
        shown = self.mask[:, 0, 0]
        hidden = (~shown).sum(dim=1)
        columns = torch.arange(shown.shape[1], device=shown.device)
        if not torch.equal(shown, columns >= hidden[:, None]):
            return None
        counts: list[int] = hidden.tolist()
        return counts


class Mask(torch.Tensor):  # type: ignore[misc]  # torch is not analysed
    """What `read_mask` returns to a model as its mask: a bool tensor [items, 1, queries, keys] whose elements
    are computed when something reads them; this package's attention reads `seen` instead.
    """

    seen: Seen
    keys: int
    _compute: Callable[[], torch.Tensor]
    _elements: torch.Tensor | None

    @classmethod
    def of(cls, seen: Seen, shape: tuple[int, ...], device: Any, compute: Callable[[], torch.Tensor]) -> Mask:
        """The mask with `seen` and this shape, whose elements `compute` returns."""
        mask: Mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.seen, mask.keys, mask._compute, mask._elements = seen, shape[-1], compute, None
        return mask

    @property
    def elements(self) -> torch.Tensor:
        """Whether each query sees each key, bool [items, 1, queries, keys]."""
        if self._elements is None:
            self._elements = self._compute()
        return self._elements

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator of torch with the elements."""
        plain, named = torch.utils._pytree.tree_map_only(
            Mask, lambda mask: mask.elements, (args, kwargs or {})
        )
        return func(*plain, **named)


def read_mask(
    *,
    q_length: int,
    kv_length: int,
    batch_size: int = 1,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Any = None,
    device: Any = "cpu",
    **others: Any,
) -> Mask:
    """The mask of a call of a model. It is registered as the function that makes masks and has the
    arguments of these functions; the result reaches attention as its `attention_mask`.

    Raises `LaunchError` for an `attention_mask` [items, tokens] without a column for each token.
    """
    elements = functools.partial(
        masking_utils.sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **{**others, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )
    pattern, first, keys = _pattern(mask_function), int(kv_offset), int(kv_length)
    end = int(q_offset) + q_length
    seen = None if pattern is None else _seen(pattern, q_length, end, first, keys, attention_mask)
    if seen is None:
        seen = Seen(q_length, keys, mask=elements())
    return Mask.of(seen, (batch_size, 1, q_length, keys), device, elements)


def _seen(
    pattern: Pattern, queries: int, end: int, first: int, keys: int, tokens: torch.Tensor | None
) -> Seen | None:
    """The arguments of `flash` for a pattern, `queries` queries, the last of which has index `end - 1` in its
    sequence, and `keys` keys from index `first` on, where `tokens`, bool [items, tokens], is False for
    padding. None if no arguments of `flash` mean that.
    """
    left, right = pattern.window
    if pattern.causal:
        keys = min(keys, end - first)  # a static cache has rows after those of tokens
        right = None if left is None else 0
    window = None if left is right is None else (left, right)
    if (pattern.causal or window) and end != first + keys:
        return None
    shown = None if tokens is None else _shown(tokens, first, first + keys)
    if pattern.sequences is None:
        return Seen(queries, keys, pattern.causal, window, None if shown is None else shown[:, None, None])
    if shown is not None or first or queries != keys:
        return None
    return Seen(queries, keys, pattern.causal, window, starts=_starts(pattern.sequences))


def _shown(tokens: torch.Tensor, begin: int, end: int) -> torch.Tensor | None:
    """Which of the tokens `begin` to `end` - 1 are not padding, bool [items, end - begin]; None if all."""
    if tokens.shape[1] < end:
        raise LaunchError(
            f"{CALLER}: attention_mask must have a column for each of {end} tokens, got "
            f"{list(tokens.shape)}; give one for all tokens of each item, those in the cache included"
        )
    shown = tokens[:, begin:end]
    return shown if shown.is_meta or not bool(shown.all()) else None


def _pattern(function: Callable[..., Any]) -> Pattern | None:
    """The pattern of a mask function of transformers; None for functions that are not known here."""
    if function is causal_mask_function:
        return Pattern(causal=True)
    if function is bidirectional_mask_function:
        return Pattern()
    inside = functools.partial(_inside, function)
    if window := inside(_WINDOW):  # counts the key of the query
        return Pattern(window=(int(window["sliding_window"]) - 1, None))
    if window := inside(_WINDOW_OF_BOTH):
        return Pattern(window=(int(window["sliding_window"]),) * 2)
    parts = inside(_AND).get("mask_functions", ())
    if len(parts) == 2 and (packed := _packed(*parts)):
        return packed
    known = [_pattern(part) for part in parts]
    return functools.reduce(_both, known) if known else None


def _packed(of_each: Callable[..., Any], together: Callable[..., Any]) -> Pattern | None:
    """The pattern of several sequences one after another: `of_each` is the mask by positions in a sequence,
    `together` says which tokens are of one sequence. None for other functions.
    """
    remapped, packed = _inside(of_each, _REMAPPED), _inside(together, _PACKED)
    if not (remapped and packed):
        return None
    pattern = _pattern(remapped["mask_function"])
    numbers = masking_utils.find_packed_sequence_indices(remapped["position_ids"])
    if pattern is None or numbers is None or not torch.equal(numbers, packed["packed_sequence_mask"]):
        return None
    return Pattern(pattern.causal, pattern.window, numbers)


def _both(a: Pattern | None, b: Pattern | None) -> Pattern | None:
    """The pattern of the keys that both patterns show; None if it is not known."""
    if a is None or b is None or a.sequences is not None or b.sequences is not None:
        return None
    left, right = (
        min([side for side in sides if side is not None], default=None)
        for sides in zip(a.window, b.window, strict=True)
    )
    return Pattern(a.causal or b.causal, (left, right))


def _inside(function: Callable[..., Any], code: Any) -> dict[str, Any]:
    """The variables that a nested function of this code has from outside; empty for others."""
    if getattr(function, "__code__", None) is not code:
        return {}
    return dict(inspect.getclosurevars(function).nonlocals)


def _starts(sequences: torch.Tensor) -> torch.Tensor:
    """Where sequences begin among the tokens of all items, and the last ends: int32 [sequences + 1]."""
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = begins.flatten().nonzero()[:, 0]
    return torch.nn.functional.pad(starts, (0, 1), value=sequences.numel()).int()
