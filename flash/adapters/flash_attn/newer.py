"""The arguments that flash-attn 3 and 4 add to those of flash-attn 2: their meaning, or their refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from flash.adapters.flash_attn.arguments import check_numbers, tuned
from flash.host.caller import flag, raise_problems
from flash.launch.options import OPTIONS
from flash.operands.declared import MAX_WINDOWED_SEQ
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, LaunchError, shown

_MOST_SMS: Final = 1024  # no GPU has more multiprocessors
_OF_FUNCTIONS: Final = (
    "it is read by functions in CuTe DSL alone; give flash.adapters.torch.attention tensors in aux"
)
_FUNCTION: Final = (
    "functions in CuTe DSL are not read; write it as docs/score-functions.md has it, and give it to "
    "flash.adapters.torch.attention"
)
_BLOCKS: Final = (
    "lists of blocks are not read; give flash.adapters.torch.attention a mask, or a mask_mod, by which whole "
    "blocks are skipped"
)
# Arguments that are refused, each with the call that computes its result.
_CURES: Final[Mapping[str, str]] = {
    "qv": "scores of two products are not added; where values are columns of keys, launch "
    "flash.AttentionKernel or flash.DecodeKernel with AttentionConfig(shared_kv=True, ...), else give q and "
    "qv as columns of one tensor, and keys likewise",
    "gather_kv_indices": "lists of keys are not read; gather the keys before the call, or give "
    "flash.adapters.torch.attention a mask",
    "cu_seqlens_k_new": "new rows are as many for each sequence; give k and v of [batch, n, kv_heads, "
    "head_dim], or append with flash.KVCache",
    "attention_chunk": "chunks of a cache are not hidden; give flash.adapters.torch.attention_varlen a "
    "mask_mod that compares query // chunk with key // chunk, and the cache as pages",
    "score_mod": _FUNCTION,
    "mask_mod": _FUNCTION,
    "score_mod_bwd": "derivatives of functions follow from the functions; leave it out",
    "aux_tensors": _OF_FUNCTIONS,
    "aux_scalars": _OF_FUNCTIONS,
    "block_sparse_tensors": _BLOCKS,
    "block_sparse_tensors_bwd": _BLOCKS,
    "q_descale": "it belongs to tensors of fp8; convert q, k and v, or leave it out",
    "k_descale": "it belongs to keys of fp8; convert them, or leave it out",
    "v_descale": "it belongs to values of fp8; convert them, or leave it out",
}


@contextmanager
def renaming(**names: str) -> Iterator[None]:
    """A context in which errors have the words of another interface: keys of `names` become values."""
    try:
        yield
    except (LaunchError, ConfigError) as error:
        message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise type(error)(message) from None


def require_absent(caller: str, *, default: object = None, **arguments: object) -> None:
    """Raise `LaunchError`, with the call that computes each result, for refused arguments that are neither
    None nor the number `default`.
    """
    raise_problems(
        [
            f"{name} must be {default}, got {_shown(value)}: {_CURES[name]}"
            for name, value in arguments.items()
            if value is not None and not (isinstance(value, int) and value == default)
        ],
        caller,
    )


def _shown(value: object) -> str:
    """A refused value as text, without the elements of tensors."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return f"a {type(value).__name__}" if callable(value) else shown(value)


def tuned_as_newer(
    caller: str,
    num_splits: object,
    pack_gqa: object,
    sm_margin: object = 0,
    scheduler_metadata: object = None,
    *,
    packed: bool = False,
) -> dict[str, Any]:
    """The options of `tuned`, if `packed` in the form for packed sequences. The other arguments, which in
    flash-attn choose a kernel or leave multiprocessors free, are checked and change nothing. Raises
    `LaunchError`.
    """
    if pack_gqa is not None:
        flag(caller, "pack_gqa", pack_gqa)
    if integer(sm_margin, 0, _MOST_SMS) is None:
        raise LaunchError(
            f"{caller}: sm_margin must be a number of multiprocessors from 0 to {_MOST_SMS}, got "
            f"{shown(sm_margin)}"
        )
    if scheduler_metadata is not None and not isinstance(scheduler_metadata, torch.Tensor | tuple):
        raise LaunchError(
            f"{caller}: scheduler_metadata must be what get_scheduler_metadata returns, or None, got "
            f"{shown(scheduler_metadata)}"
        )
    options = tuned(caller, num_splits)
    if not packed:
        return options
    return {of.name: of.packed(options[of.name]) for of in OPTIONS if of.name in options and of.packed}


def starts_of(
    caller: str, name: str, starts: object, rows: int, batch: int, device: torch.device
) -> torch.Tensor:
    """cu_seqlens of `batch` sequences: `starts`, checked, or if it is None those of sequences of `rows`
    rows each.
    """
    if starts is not None:
        return check_numbers(caller, name, starts, (batch + 1,))
    return rows * torch.arange(batch + 1, dtype=torch.int32, device=device)


def used_of(caller: str, batch: int, **lengths: object) -> dict[str, torch.Tensor]:
    """The `lengths` that are not None, checked to be int32 tensors [batch]. Raises `LaunchError`."""
    return {n: check_numbers(caller, n, x, (batch,)) for n, x in lengths.items() if x is not None}


def rows_of(caller: str, name: str, value: object) -> int | None:
    """The argument `name`, a number of rows of a sequence, checked; None if it is left out."""
    rows = None if value is None else integer(value, 0, MAX_WINDOWED_SEQ)
    if rows is None and value is not None:
        raise LaunchError(
            f"{caller}: {name} must be a number of rows of a sequence, from 0 to {MAX_WINDOWED_SEQ}, or "
            f"None, got {shown(value)}"
        )
    return rows


def scales_of_fp8(
    caller: str, tensors: Sequence[torch.Tensor], batch: int, kv_heads: int, **descales: object
) -> dict[str, Any]:
    """The scales of q, k and v of fp8, [batch, kv_heads] each, by the names of `flash.attention`; 1 for
    None. Raises `LaunchError` for q, k and v of different types, and for scales of another type or shape.
    """
    types = [x.dtype for x in tensors]
    if len({*types}) > 1:
        names = ", ".join(map(str, types))
        raise LaunchError(f"{caller}: q, k and v must be of one type, got {names}; convert them")
    device = tensors[0].device
    return {
        f"{name}_scale": torch.ones(batch, kv_heads, device=device)
        if descales[f"{name}_descale"] is None
        else descale(caller, f"{name}_descale", descales[f"{name}_descale"], batch, kv_heads)
        for name in ("q", "k", "v")
    }


def descale(caller: str, name: str, scales: object, batch: int, kv_heads: int) -> torch.Tensor:
    """The argument `name`, checked to be a tensor float32 [batch, kv_heads]. Raises `LaunchError`."""
    if (
        not isinstance(scales, torch.Tensor)
        or scales.dtype != torch.float32
        or scales.shape != (batch, kv_heads)
    ):
        raise LaunchError(
            f"{caller}: {name} must be a tensor torch.float32 [batch={batch}, kv_heads={kv_heads}], got "
            f"{_shown(scales)}"
        )
    return scales


def in_chunks(
    caller: str, attention_chunk: object, before: torch.Tensor | int, batch: int, device: torch.device
) -> dict[str, Any]:
    """The mask by which a query sees the keys of its chunk alone, `attention_chunk` keys from a
    multiple of that many on: arguments of `flash.adapters.torch.attention`. `before`, int32 [batch] or one
    number, is how many more keys than queries a sequence has. Nothing for 0, which is no chunks. Raises
    `LaunchError` for anything but a number of keys.
    """
    chunk = integer(attention_chunk, 0, MAX_WINDOWED_SEQ)
    if chunk is None:
        raise LaunchError(
            f"{caller}: attention_chunk must be a number of keys from 0 to {MAX_WINDOWED_SEQ}, 0 for no "
            f"chunks, got {shown(attention_chunk)}"
        )
    if not chunk:
        return {}
    if isinstance(before, int):
        before = torch.full((batch,), before, dtype=torch.int32, device=device)
    return {"mask_mod": _mask_of_chunks(chunk), "aux": {"before": before}}


def _mask_of_chunks(chunk: int) -> Callable[..., Any]:
    """The function that hides the keys of other chunks of `chunk` keys from a query."""

    def is_of_its_chunk(batch: Any, head: Any, query: Any, key: Any, before: Any) -> Any:  # noqa: ARG001
        return (query + before[batch]) // chunk == key // chunk

    return is_of_its_chunk
