"""Which tensors the operators take: plain ones, whose derivatives are not lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch
from torch.autograd import forward_ad

from flash.operands.dtype_names import Causal
from flash.operands.dtypes import DTYPES, FP8_DTYPES
from ptxgen.arrays.views import WITH_TANGENT, has_tangent, has_usual_functions, not_its_values
from ptxgen.errors import LaunchError

_MATRIX: Final = 2  # dimensions
_WITH_AUTOCAST: Final = ("cpu", "cuda")
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
FLOATS: Final = tuple(getattr(torch, t.array_name) for t in DTYPES.values())
FP8: Final = tuple(getattr(torch, t.array_name) for t in FP8_DTYPES.values())  # with scales


def require_plain(caller: str, tensors: Mapping[str, Any], required: Collection[str] = ()) -> None:
    """Raise `LaunchError` for values that are no tensors, and for distributed or nested tensors; None is
    passed over, unless it is one of the arguments `required`.
    """
    for name, tensor in tensors.items():
        if (tensor is None and name not in required) or (type(tensor) in PLAIN and not tensor.is_nested):
            continue
        why = why_not_plain(name, tensor)
        if why:
            raise LaunchError(f"{caller}: {why}")


def why_not_plain(name: str, value: Any) -> str:
    """Why the argument `name` is refused: no tensor, or a distributed or nested one; "" if accepted."""
    if type(value) in PLAIN and not value.is_nested:
        return ""
    if not isinstance(value, torch.Tensor):
        return (
            f"{name} must be a torch.Tensor, got {type(value).__name__}; convert it, or call the function "
            "of this name in flash, which takes arrays of any library"
        )
    if value.is_nested:
        return (
            f"{name} must be a plain tensor, got a nested one; pass {name}.values() and its offsets to "
            "flash.adapters.torch.attention_varlen"
        )
    if any(
        c.__name__ == "DTensor" and c.__module__.startswith("torch.distributed") for c in type(value).__mro__
    ):
        return (
            f"{name} must be a plain tensor, got a DTensor; where rows of sequences are sharded, pass it to "
            "flash.distributed.ContextParallel(group, layout='contiguous').attention, which attends to all "
            f"ranks' keys; where batch or heads are, pass {name}.to_local(); or pass {name}.full_tensor()"
        )
    if is_causal_bias(value):
        return (
            f"{name} is a CausalBias of {value.seq_len_q} queries and {value.seq_len_kv} keys, which is "
            "taken as a mask of so many queries and keys, and without another causality; make one of the "
            "sizes of query and key, and leave the other causality out"
        )
    kind: Any = type(value)
    return "" if has_usual_functions(kind) else f"{name} {not_its_values(value, name)}"


def causality_of(tensor: Any, query: torch.Tensor, key: torch.Tensor) -> Causal:
    """What `torch.nn.attention.bias.causal_upper_left` and `causal_lower_right` mean as a mask of the scores
    of query [..., seq_q, d] and key [..., seq_k, d]; False for anything else.
    """
    if not is_causal_bias(tensor) or min(query.dim(), key.dim()) < _MATRIX:
        return False
    if (tensor.seq_len_q, tensor.seq_len_kv) != (query.shape[-2], key.shape[-2]):
        return False
    return "top_left" if tensor.variant.name == "UPPER_LEFT" else True


def is_causal_bias(tensor: Any) -> bool:
    """Whether `torch.nn.attention.bias.causal_upper_left` or `causal_lower_right` made a tensor."""
    kind = type(tensor)  # by name: to import its module takes seconds
    return (kind.__module__, kind.__name__) == ("torch.nn.attention.bias", "CausalBias")


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its last axis is dense, else a copy."""
    if tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


def autocast_lowers(tensor: torch.Tensor) -> bool:
    """Whether autocast is on for the device of a tensor; False for devices without autocast."""
    device = tensor.device.type
    return bool(device in _WITH_AUTOCAST and torch.is_autocast_enabled(device))


def require_values(caller: str, q: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `LaunchError` for tensors on the meta device, which have no elements, unless q is there, too, as
    the result then is.
    """
    if q.device.type == "meta":
        return
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            raise LaunchError(
                f"{caller}: {name} is on the meta device and has no elements, but q is on {q.device}; give "
                "all of them with elements, or all without"
            )


def heads_alternate(tensor: torch.Tensor) -> bool:
    """Whether a tensor [..., heads, rows, d] has the heads of a row side by side in memory, as a projection
    of rows has them.
    """
    of_heads, of_rows = map(int, (tensor.stride(-3), tensor.stride(-2)))
    return 0 < of_heads < of_rows


def tracked(tensors: Mapping[str, Any]) -> list[str]:
    """The names of the tensors whose gradients torch tracks now."""
    if not torch.is_grad_enabled():
        return []
    return [name for name, tensor in tensors.items() if tensor is not None and tensor.requires_grad]


def require_no_tangents(caller: str, tensors: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for tensors with a tangent of forward-mode differentiation, also inside
    torch.func.jvp and under torch.func.vmap; what is no tensor is passed over.
    """
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise LaunchError(  # tensors do not say there whether they have tangents
            f"{caller}: forward-mode differentiation is not computed: the derivative would be 0 without a "
            "word; "
            "compile without torch.func.jvp and torch.autograd.forward_ad, or use reverse mode, such as "
            "torch.func.vjp"
        )
    for name in with_tangents(tensors):
        raise LaunchError(f"{caller}: {name} {WITH_TANGENT.format(name)}")


def in_forward_level() -> bool:
    """Whether a level of forward-mode differentiation is active, without which no tensor has a tangent."""
    return bool(forward_ad._current_level >= 0)


def with_tangents(tensors: Mapping[str, Any]) -> list[str]:
    """The names of the tensors that have a tangent of forward-mode differentiation; none while code is
    compiled.
    """
    if not in_forward_level() or torch.compiler.is_compiling():
        return []
    return [
        name
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor) and any(map(has_tangent, _unmapped(tensor)))
    ]


def _unmapped(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, and what torch.func's transforms have wrapped in it; but not tensors with a mapped axis,
    whose tangents are those of what they wrap.
    """
    functorch = torch._C._functorch
    while True:
        if not functorch.is_batchedtensor(tensor):
            yield tensor
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return
        tensor = functorch.get_unwrapped(tensor)


def in_transform() -> bool:
    """Whether a transform of torch.func, such as grad or vmap, is active."""
    return torch._C._functorch.maybe_current_level() is not None


def require_no_tracking(caller: str, names: list[str], missing: str) -> None:
    """Raise `LaunchError` if there are `names` of tensors that require gradients; `missing` says
    what is not computed.
    """
    if names:
        detached = ", ".join(f"{name}.detach()" for name in names)
        verb = "requires" if len(names) == 1 else "require"
        raise LaunchError(
            f"{caller}: {', '.join(names)} {verb} gradients, but {missing}; call inside torch.no_grad(), or "
            f"pass {detached}"
        )
