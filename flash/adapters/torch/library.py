"""The operators of `ptxgen_flash` in PyTorch's dispatcher: declaration, autocast, fake results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from flash.adapters.torch.tensors import (
    FLOATS,
    PLAIN,
    autocast_lowers,
    in_transform,
    require_no_tangents,
    require_no_tracking,
    tracked,
)

NAMESPACE: Final = "ptxgen_flash"
LIBRARY: Final = torch.library.Library(NAMESPACE, "FRAGMENT")
_AUTOCAST_KEYS: Final = (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA"))


def declare(
    name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], lowered: Sequence[int] = ()
) -> Any:
    """The new operator `ptxgen_flash::name`. `run` computes it on plain tensors, `fake` returns
    tensors of the shapes, types and strides of its results. Under autocast, tensors at the positions
    `lowered` that are float32, float16 or bfloat16 become of the type of autocast, as those of
    `scaled_dot_product_attention` do.
    """
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    if lowered:
        for device, key in _AUTOCAST_KEYS:
            LIBRARY.impl(name, _in_lower_precision(operator, device, lowered), key, with_keyset=True)
    return operator


def refuse_gradients(operator: Any, caller: str, missing: str, written: Sequence[int] = (0,)) -> None:
    """Let an operator that writes to its arguments at the positions `written` raise `LaunchError` if
    torch tracks gradients of an argument; `missing` says what is not computed. `caller` is the function
    that the message names.
    """

    def call(keys: Any, *arguments: Any) -> Any:
        named = {name: t for name, t in _named(operator, arguments).items() if isinstance(t, torch.Tensor)}
        require_no_tracking(caller, tracked(named), missing)
        with torch._C._AutoDispatchBelowAutograd():
            results = operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)
        for at in written:
            if arguments[at] is not None:
                torch.autograd.graph.increment_version(arguments[at])
        return results

    differentiate(operator, caller, call)


def differentiate(operator: Any, caller: str, kernel: Callable[..., Any]) -> None:
    """Let `kernel` be the autograd kernel of an operator of the function `caller`. Tensors with tangents of
    forward-mode differentiation are refused before: modes of PyTorch, such as tracing and `FlopCounterMode`,
    take the tangents away from the operator.
    """

    def call(keys: Any, *arguments: Any) -> Any:
        require_no_tangents(caller, _named(operator, arguments))
        return kernel(keys, *arguments)

    name = operator._schema.name.partition("::")[2]
    LIBRARY.impl(name, call, "Autograd", with_keyset=True)


def _named(operator: Any, arguments: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a call of an operator, by name; those at the end that have defaults may be missing."""
    return dict(zip([a.name for a in operator._schema.arguments], arguments, strict=False))


def run(
    operator: Any,
    differentiated: Callable[..., Any],
    compute: Callable[..., tuple[Any, Any]],
    arguments: Sequence[Any],
    is_tracked: bool,
) -> Any:
    """The results of an operator with a backward pass; `is_tracked` says whether torch tracks gradients
    of an argument. `differentiated` is the operator for calls inside transforms of torch.func, `compute`
    what the operator does with plain tensors: it is called at once where nothing in PyTorch listens,
    because the dispatcher takes as long as all else that a call does on the host.
    """
    if torch.compiler.is_compiling():
        return operator(*arguments)
    if in_transform():
        return differentiated(*arguments)
    if is_tracked or _anything_listens(arguments):
        return operator(*arguments)
    return compute(*arguments)


def _anything_listens(arguments: Sequence[Any]) -> bool:
    """Whether a call must go through PyTorch's dispatcher: for subclasses of tensors and tensors without
    elements (q, k and v are the first arguments), modes, autocast, tracing and profiling.
    """
    q, k, v = arguments[:3]
    return bool(
        not (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN)
        or q.is_meta
        or torch._C._len_torch_dispatch_stack()
        or autocast_lowers(q)
        or torch._C._get_tracing_state()
        or torch.autograd._profiler_enabled()
    )


def _in_lower_precision(operator: Any, device: str, lowered: Sequence[int]) -> Callable[..., Any]:
    def call(_: object, *args: Any, **settings: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        arguments = list(args)
        for at in lowered:
            tensor = arguments[at] if at < len(arguments) else None
            if tensor is not None and tensor.device.type == device and tensor.dtype in FLOATS:
                arguments[at] = tensor.to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(_autocast_keys()):
            return operator(*arguments, **settings)

    return call


def _autocast_keys() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return keys | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
