"""The arguments of flash-attn's functions, checked, and in the terms of `flash.attention`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import torch

from flash.host.caller import flag, raise_problems
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.operands.dtypes import DTYPES, config_name
from flash.problem.features import MAX_SPLITS
from flash.scores.options import is_scale
from flash.scores.window import Sides
from ptxgen.arguments import in_numbers, integer
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.settings import AUTO

_UNLIMITED: Final = -1  # a side of a window
_SIDES: Final = 2


class Scores(NamedTuple):
    """The arguments of a call about scores, by the names of `flash.attention`."""

    causal: bool
    softmax_scale: float | None
    window: Sides
    softcap: float | None
    alibi_slopes: torch.Tensor | None
    dropout: float = 0.0
    dropout_seed: torch.Tensor | None = None  # int64, one element on the CPU
    sink: torch.Tensor | None = None

    def of_kernels(self) -> dict[str, Any]:
        """The arguments that are not None, for functions of `flash` in a call without dropout."""
        arguments = self._asdict()
        del arguments["dropout"]
        return {name: value for name, value in arguments.items() if value is not None}


def scores_of(
    caller: str,
    softmax_scale: object,
    causal: object,
    window_size: object,
    softcap: object,
    alibi_slopes: object,
    dropout_p: object = 0.0,
) -> Scores:
    """The arguments of scores of the function `caller`, checked. Dropout takes its seed from PyTorch's
    generator of the CPU, so `torch.manual_seed` makes a call reproducible.

    Numbers may be of any class, and the window a list, a tuple or a tensor. Raises `LaunchError` for
    invalid arguments.
    """
    if softmax_scale is not None and not is_scale(softmax_scale):
        raise LaunchError(
            f"{caller}: softmax_scale must be a number, or None for 1/sqrt(head_dim), got "
            f"{shown(softmax_scale)}"
        )
    if softcap is not None and not is_scale(softcap):
        raise LaunchError(f"{caller}: softcap must be a number, 0.0 for none, got {shown(softcap)}")
    if not is_scale(dropout_p) or not 0 <= dropout_p < 1:  # type: ignore[operator]  # a number
        raise LaunchError(
            f"{caller}: dropout_p must be a probability from 0 to less than 1, got {shown(dropout_p)}"
        )
    if alibi_slopes is not None:
        tensor(caller, "alibi_slopes", alibi_slopes)
    cap, dropout, scale = (in_numbers(x) for x in (softcap, dropout_p, softmax_scale))
    slopes: Any = alibi_slopes
    return Scores(
        flag(caller, "causal", causal),
        scale,
        _window(caller, window_size),
        cap if cap is not None and cap > 0 else None,
        slopes,
        dropout,
        torch.randint(2**63 - 1, (), device="cpu") if dropout else None,
    )


def _window(caller: str, window: object) -> Sides:
    """The window with None for a side without a limit, or with one that no sequence reaches; None if
    neither side has one. None is taken for the window and its sides, as forks of flash-attn do.
    """
    if window is None:
        return None
    pair = in_numbers(window)
    sides = tuple(pair) if isinstance(pair, tuple | list) else ()
    counts = [_UNLIMITED if side is None else integer(side, _UNLIMITED) for side in sides]
    if len(counts) != _SIDES or None in counts:
        raise LaunchError(
            f"{caller}: window_size must be (left, right), each a number of keys, or -1 for no limit, got "
            f"{shown(window)}"
        )
    left, right = (
        count if count is not None and 0 <= count <= MAX_WINDOWED_SEQ else None for count in counts
    )
    return None if (left, right) == (None, None) else (left, right)


def tensor(caller: str, name: str, argument: object) -> torch.Tensor:
    """`argument`, if it is a PyTorch tensor. Raises `LaunchError` for anything else."""
    if not isinstance(argument, torch.Tensor):
        kind = f"{type(argument).__module__}.{type(argument).__qualname__}".removeprefix("builtins.")
        raise LaunchError(
            f"{caller}: {name} must be a PyTorch tensor, got {kind}; flash.attention and "
            "flash.attention_varlen take arrays of any library"
        )
    return argument


def check_tensors(
    caller: str, arguments: Mapping[str, tuple[object, str]], any_type: Collection[str] = ()
) -> Mapping[str, int]:
    """The sizes, by the names of their axes, of the tensors of a call of `caller`: for each name a
    tensor and its axes, such as "batch seqlen_q heads head_dim", where a number is the size itself.
    The types of those in `any_type` are not checked.

    Raises `LaunchError` with everything that is wrong with their shapes and types: another number
    of axes, different sizes of axes of one name, heads that are no multiple of kv_heads, element
    types that no kernel has or that differ.
    """
    tensors = {name: tensor(caller, name, one) for name, (one, _) in arguments.items()}
    types = {name: None if name in any_type else x.dtype for name, x in tensors.items()}
    # torch.compile follows the function itself, and warns where there is a cache around it.
    sizes_of = _sizes.__wrapped__ if torch.compiler.is_compiling() else _sizes
    sizes: Mapping[str, int] = sizes_of(
        caller, tuple([(name, arguments[name][1], x.shape, types[name]) for name, x in tensors.items()])
    )
    return sizes


@functools.lru_cache(maxsize=1024)  # of calls that fit; exceptions are not cached
def _sizes(
    caller: str, tensors: tuple[tuple[str, str, tuple[int, ...], torch.dtype | None], ...]
) -> Mapping[str, int]:
    """The sizes of tensors, each of which is its name, axes, shape and type, or None for any type."""
    sizes: dict[str, int] = {}
    problems = []
    for name, axes, shape, _ in tensors:
        wanted = axes.split()
        known = {axis: int(axis) if axis.isdigit() else sizes.get(axis) for axis in wanted}
        if len(shape) != len(wanted) or any(
            known[axis] is not None and known[axis] != size for axis, size in zip(wanted, shape, strict=True)
        ):
            expected = ", ".join(
                axis if axis.isdigit() or known[axis] is None else f"{axis}={known[axis]}" for axis in wanted
            )
            problems.append(f"{name} must be [{expected}], got shape {list(shape)}")
        else:
            sizes |= dict(zip(wanted, shape, strict=True))
    raise_problems(problems, caller)
    heads, kv_heads = sizes["heads"], sizes.get("kv_heads", 0)
    if kv_heads and heads % kv_heads:
        raise LaunchError(
            f"{caller}: heads must be a multiple of kv_heads, got heads={heads} and kv_heads={kv_heads}; "
            f"{tensors[0][0]} is [{tensors[0][1].replace(' ', ', ')}]"
        )
    _check_types(caller, {name: dtype for name, _, _, dtype in tensors if dtype is not None})
    return sizes


def _check_types(caller: str, dtypes: Mapping[str, torch.dtype]) -> None:
    if not dtypes:
        return
    first, *others = dtypes
    wanted = dtypes[first]
    if config_name(wanted) not in DTYPES:
        names = ", ".join(f"torch.{known.array_name}" for known in DTYPES.values())
        raise LaunchError(
            f"{caller}: {first} must be one of {names}, got {wanted}; convert it, such as with "
            f"{first}.to(torch.bfloat16)"
        )
    raise_problems(
        [
            f"{name} must be {wanted} as {first} is, got {dtypes[name]}; convert it with {name}.to({wanted})"
            for name in others
            if dtypes[name] != wanted
        ],
        caller,
    )


def check_numbers(
    caller: str, name: str, argument: object, shape: tuple[int | str, ...], otherwise: str = ""
) -> torch.Tensor:
    """`argument`, an int32 tensor of `shape`, in which a word is the name of any size. Raises
    `LaunchError`, in which `otherwise` says what the argument may be instead.
    """
    numbers = argument if isinstance(argument, torch.Tensor) else None
    if (
        numbers is None
        or numbers.dtype != torch.int32
        or numbers.dim() != len(shape)
        or any(isinstance(size, int) and size != of for size, of in zip(shape, numbers.shape, strict=True))
    ):
        got = shown(argument) if numbers is None else f"{numbers.dtype} of shape {list(numbers.shape)}"
        cure = ""
        if numbers is not None and numbers.dtype != torch.int32:
            cure = f"; convert it with {name}.to(torch.int32)"
        raise LaunchError(
            f"{caller}: {name} must be {otherwise}a tensor torch.int32 [{', '.join(map(str, shape))}], got "
            f"{got}{cure}"
        )
    return numbers


def tuned(caller: str, num_splits: object) -> dict[str, Any]:
    """The options of `flash.attention` that stand for flash-attn's arguments of tuning. Raises `LaunchError`
    for `num_splits` that is no number of splits.
    """
    splits = integer(num_splits, 0, MAX_SPLITS)
    if splits is None:
        raise LaunchError(
            f"{caller}: num_splits must be an integer from 0 to {MAX_SPLITS}, 0 for a choice by the number "
            f"of keys, got {shown(num_splits)}"
        )
    return {"splits": splits or AUTO}
