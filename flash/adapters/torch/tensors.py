"""Which tensors the operators take: plain ones, whose gradients are not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from ptxgen.errors import LaunchError

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def require_plain(who: str, tensors: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for what is no tensor, and for tensors that are distributed or nested;
    None is passed over.
    """
    for name, tensor in tensors.items():
        if tensor is not None and (type(tensor) not in _PLAIN or tensor.is_nested):
            _require_tensor(who, name, tensor)


def _require_tensor(who: str, name: str, given: Any) -> None:
    if not isinstance(given, torch.Tensor):
        raise LaunchError(
            f"{who}: {name} must be a torch.Tensor, got {type(given).__name__}; "
            f"flash.{who} takes arrays of other libraries"
        )
    if given.is_nested:
        raise LaunchError(
            f"{who}: {name} must be a plain tensor, got a nested one; pass {name}.values() and its "
            "offsets to flash.adapters.torch.attention_varlen"
        )
    if any(
        c.__name__ == "DTensor" and c.__module__.startswith("torch.distributed") for c in type(given).__mro__
    ):
        raise LaunchError(
            f"{who}: {name} must be a plain tensor, got a DTensor, and attention over shards is not "
            f"computed; pass {name}.to_local() where batch or heads are sharded, or "
            f"{name}.full_tensor()"
        )


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
        which = f"{', '.join(names)} {'requires' if len(names) == 1 else 'require'} gradients"
        raise LaunchError(
            f"{who}: {which}, but {missing}; call inside torch.no_grad(), or pass "
            f"{', '.join(f'{name}.detach()' for name in names)}"
        )


def require_gradients_on(who: str, device: torch.device, names: list[str]) -> None:
    """Raise `LaunchError` if there are `names` of tensors that require gradients, on a device for
    which there is no backward pass.
    """
    if device.type != "cpu":
        require_no_tracking(
            who, names, f"there are no backward kernels for {device}: gradients are computed on the CPU only"
        )
