"""Which tensors the operators take: plain ones, whose gradients are not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from ptxgen.errors import LaunchError

_DTENSOR: Final = ("torch.distributed.tensor", "DTensor")  # which is not imported for its name
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def require_plain(who: str, tensors: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for what is no tensor, and for tensors that are distributed or nested;
    None is passed over.
    """
    for name, tensor in tensors.items():
        if tensor is None or (type(tensor) in PLAIN and not tensor.is_nested):
            continue
        why = why_not_plain(name, tensor)
        if why:
            raise LaunchError(f"{who}: {why}")


def why_not_plain(name: str, given: Any) -> str:
    """Why an argument is refused that is no tensor, or is distributed or nested; "" if it is taken."""
    if type(given) in PLAIN and not given.is_nested:
        return ""
    if not isinstance(given, torch.Tensor):
        return (
            f"{name} must be a torch.Tensor, got {type(given).__name__}; convert it, or call the function "
            "of this name in flash, which takes arrays of any library"
        )
    if given.is_nested:
        return (
            f"{name} must be a plain tensor, got a nested one; pass {name}.values() and its offsets to "
            "flash.adapters.torch.attention_varlen"
        )
    if any(
        c.__name__ == "DTensor" and c.__module__.startswith("torch.distributed") for c in type(given).__mro__
    ):
        return (
            f"{name} must be a plain tensor, got a DTensor; where rows of sequences are sharded, pass it to "
            "flash.distributed.ContextParallel(group, layout='contiguous').attention, which attends to all "
            f"ranks' keys; where batch or heads are, pass {name}.to_local(); or pass {name}.full_tensor()"
        )
    return ""


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its last axis is dense, else a copy."""
    if tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


def tracked(tensors: Mapping[str, Any]) -> list[str]:
    """The names of the tensors whose gradients torch tracks now."""
    if not torch.is_grad_enabled():
        return []
    return [name for name, tensor in tensors.items() if tensor is not None and tensor.requires_grad]


def in_transform() -> bool:
    """Whether a transform of torch.func, such as grad or vmap, is active."""
    return torch._C._functorch.maybe_current_level() is not None


def require_no_tracking(who: str, names: list[str], missing: str) -> None:
    """Raise `LaunchError` if there are `names` of tensors that require gradients; `missing` says
    what is not computed.
    """
    if names:
        detached = ", ".join(f"{name}.detach()" for name in names)
        verb = "requires" if len(names) == 1 else "require"
        raise LaunchError(
            f"{who}: {', '.join(names)} {verb} gradients, but {missing}; call inside torch.no_grad(), or "
            f"pass {detached}"
        )
