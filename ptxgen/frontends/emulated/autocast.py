"""`torch.autocast("cuda")` of the emulated GPU: operators have the types that they have on a GPU.

PyTorch casts tensors on CUDA by kernels for a dispatch key of CUDA, which tensors on the host do not reach.
Here the same casts are kernels for the host's key. Which operators are cast how, is read from the tables of
the installed PyTorch, in its header `ATen/autocast_mode.h`.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from ptxgen.frontends.emulated.placement import on_cuda
from ptxgen.frontends.emulated.refusal import refusal

_Autocast: Final = torch.amp.autocast_mode.autocast
_ENTER: Final = _Autocast.__enter__
_EXIT: Final = _Autocast.__exit__
_KEY: Final = "AutocastCPU"
_BELOW: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
LOWER, FULL, FULL_SUM, PROMOTE, BANNED = "lower", "full", "full sum", "promote", "banned"
_TABLES: Final = {
    "LOWER_PRECISION_FP": LOWER,
    "FP32": FULL,
    "FP32_SET_OPT_DTYPE": FULL_SUM,
    "PROMOTE": PROMOTE,
}
# These have tables of their own: `norm` is computed in f32, and the last is refused.
_OTHERS: Final = {"norm.Scalar": FULL, "norm.ScalarOpt_dim": FULL, "binary_cross_entropy": BANNED}
_UNSAFE: Final = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


@functools.cache
def casts() -> Mapping[str, str]:
    """How the operands of each operator are cast, by its name without the namespace: to the LOWER type of the
    autocast; to f32 (FULL); summed up in f32, unless the call names a type (FULL_SUM); to the widest type of
    them (PROMOTE). Raises `BackendError` for a PyTorch without headers.
    """
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.is_file():
        raise refusal(
            "torch.autocast('cuda')", f"this PyTorch has no {header.name}, which says what it casts"
        )
    text = header.read_text(encoding="utf-8").replace("\\\n", " ")
    result = dict(_OTHERS)
    for table, kind in _TABLES.items():
        (rows,) = re.findall(rf"#define AT_FORALL_{table}\(_\)(.*)", text)
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", rows):
            result[f"{name}.{overload}" if overload else name] = kind
    return result


class _Kernels:
    """The kernels of the casts. Registering them takes long, so they stay registered until an autocast of the
    host is entered, or the GPU is no longer emulated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._library: Any = None

    def use(self) -> None:
        """Register the kernels for one more autocast of CUDA."""
        with self._lock:
            self._library = self._library or _registered()
            self._users += 1

    def leave(self) -> None:
        """Count one autocast of CUDA less."""
        with self._lock:
            self._users -= 1

    def drop(self) -> bool:
        """Remove the kernels; returns false if an autocast of CUDA uses them."""
        with self._lock:
            if self._users:
                return False
            if self._library is not None:
                self._library._destroy()
                self._library = None
            return True


KERNELS: Final = _Kernels()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.entered: list[Any] = []  # autocasts of CUDA


_OF_THREAD: Final = _OfThread()


def _registered() -> Any:
    """A library with a kernel for each operator that an autocast of the host or of CUDA knows; those that
    CUDA's does not know are left as they are.
    """
    library = torch.library.Library("aten", "IMPL")
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    of_host = {n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, _KEY)}
    known = set(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels of the host are replaced
        for name in sorted(of_host | ({f"aten::{n}" for n in casts()} & known)):
            short = name.removeprefix("aten::")
            kind = casts().get(short)
            kernel = torch.library.fallthrough_kernel if kind is None else _kernel(short, kind)
            library.impl(short, kernel, _KEY)
    return library


def _kernel(name: str, kind: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def run(*args: Any, **named: Any) -> Any:
        if torch.is_autocast_enabled("cuda"):
            args, named = _cast(kind, args, named, operator)
        with torch._C._ExcludeDispatchKeyGuard(_BELOW):
            return operator(*args, **named)

    return run


def _cast(kind: str, args: Any, named: dict[str, Any], operator: Any) -> tuple[Any, dict[str, Any]]:
    operands = [*_eligible(args), *_eligible(tuple(named.values()))]
    if not operands:
        return args, named
    lower = torch.get_autocast_dtype("cuda")
    if kind == BANNED:
        raise RuntimeError(_UNSAFE)
    if kind == FULL_SUM:
        at = [argument.name for argument in operator._schema.arguments].index("dtype")
        asked = named.get("dtype") if len(args) <= at else args[at]
        if asked is not None or not _eligible(args[:1]):
            return args, named
        return args[:at], named | {"dtype": torch.float32}
    wanted = torch.float32 if kind == FULL else lower
    if kind == PROMOTE:
        wanted = functools.reduce(torch.promote_types, [one.dtype for one in operands], lower)
    return _to(args, wanted), {name: _to(value, wanted) for name, value in named.items()}


def _eligible(values: Any) -> list[torch.Tensor]:
    """The tensors that an autocast casts: of floats on CUDA, but f64."""
    if isinstance(values, torch.Tensor):
        return [values] if _is_cast(values) else []
    return [one for value in values for one in _eligible(value)] if isinstance(values, tuple | list) else []


def _is_cast(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.dtype != torch.float64 and on_cuda(tensor))


def _to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if _is_cast(value) else value
    return type(value)(_to(one, dtype) for one in value) if isinstance(value, tuple | list) else value


def enter(context: Any) -> Any:
    """Enter an autocast; one of the host within one of CUDA, or the reverse, is refused, since both need the
    host's key.
    """
    if not context._enabled:
        return _ENTER(context)
    inside = "cuda" if _OF_THREAD.entered else "cpu" if torch.is_autocast_enabled("cpu") else context.device
    if inside != context.device or (context.device != "cuda" and not KERNELS.drop()):
        outer = "cpu" if context.device == "cuda" else "cuda"
        raise refusal(
            f"torch.autocast('{context.device}') within torch.autocast('{outer}')", "leave that first"
        )
    if context.device == "cuda":
        KERNELS.use()
        _OF_THREAD.entered.append(context)
    result = _ENTER(context)
    torch.set_autocast_enabled("cpu", True)  # so that the dispatcher looks at the key
    return result


def leave(context: Any, *error: Any) -> Any:
    """Leave an autocast."""
    result = _EXIT(context, *error)
    if _OF_THREAD.entered and _OF_THREAD.entered[-1] is context:
        _OF_THREAD.entered.pop()
        torch.set_autocast_enabled("cpu", bool(_OF_THREAD.entered))
        KERNELS.leave()
    return result


IN_CLASS: Final = {"__enter__": enter, "__exit__": leave}
