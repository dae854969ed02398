"""Tensors that say they are on CUDA and live on the host: what PyTorch's functions do with them.

A mode of `torch.overrides` sees the calls of Python: it takes "cuda" out of their arguments, and answers
`device`, `is_cuda`, `to` and the like. A mode of the dispatcher sees the operators, those of a backward pass
included: it marks the results with their device, and refuses operands on two devices, as a GPU does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

from ptxgen.frontends.emulated.placement import (
    CPU,
    CUDA,
    mark,
    on_cuda,
    pin,
    pinned,
    storage_of,
    storages,
    tensors,
    wants_cuda,
)
from ptxgen.frontends.emulated.refusal import refusal

_T: Final = torch.Tensor
_OF_DATA: Final = (torch.tensor, torch.as_tensor, torch.asarray)  # numbers go to the default device
# Operators whose operands may be on two devices (ATen's native functions: copies, indices of the host).
_ACROSS: Final = ("copy", "copy_", "_to_copy", "_foreach_copy_", "set_", "is_same_size")
_BUILTIN: Final = ("aten", "prims")  # namespaces
_INDEXED: Final = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")


class _Here(threading.local):
    """The call of this thread: `on_cuda` is whether it asks for the GPU, None if its operands decide;
    `factories` whether tensors that have no operands are on CUDA; `inside` a function of PyTorch; `opaque`
    an operator of another library, which PyTorch runs without modes, so that its tensors say nothing.
    """

    on_cuda: bool | None = None
    factories = False
    inside = False
    opaque = False
    paused = False


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """The calls of PyTorch's functions, on the emulated GPU."""

    def __init__(self, here: _Here) -> None:
        super().__init__()
        self.here = here

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if self.here.paused:
            return func(*args, **named)
        with within(self.here, inside=True):
            answer = _ANSWERS.get(func)
            return self.call(func, args, named) if answer is None else answer(func, args, named)

    def call(self, func: Callable[..., Any], args: Any, named: dict[str, Any]) -> Any:
        """The result of a function on the host, marked with the device that it asks for."""
        asked = named.get("device")
        if asked is None and func in _device._device_constructors():
            asked = _device.CURRENT_DEVICE
        operands = [*tensors(args), *tensors(named)]
        pinning = named.pop("pin_memory", False)
        if asked is None and func in _OF_DATA and args and not isinstance(args[0], torch.Tensor):
            asked = CPU
        if func is _T.new_tensor and asked is None:
            asked = device_of(args[0])
        elsewhere = not isinstance(asked, int) and torch.device(asked or CPU).type not in ("cuda", "cpu")
        if asked is None or elsewhere:
            cuda = any(map(on_cuda, operands))
            _require_generator(named, cuda)
            with within(self.here, on_cuda=None, factories=cuda):
                result = func(*args, **named)
        else:
            cuda = wants_cuda(asked)
            _require_generator(named, cuda)
            with within(self.here, on_cuda=cuda, factories=cuda):
                result = func(*args, **named | {"device": CPU})
            result = self._marked(result, cuda, operands, func)
        if pinning:
            pin(result)
        return result

    def _marked(self, result: Any, cuda: bool, operands: list[torch.Tensor], func: Any) -> Any:
        """The result of a call that names its device: a copy if it has the memory of something elsewhere."""
        if not isinstance(result, torch.Tensor):
            return result
        shared = storages([result]) & storages(operands)
        if on_cuda(result) == cuda:
            return result
        if shared or (cuda and func in _OF_DATA[1:]):
            return moved(result, cuda)
        mark(result, cuda)
        return result


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """The operators that run, on the emulated GPU."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether the class is hidden from torch.compile, whose import takes seconds: none is in use."""
        return False

    def __init__(self, here: _Here) -> None:
        super().__init__()
        self.here = here

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.here.paused:
            return func(*args, **named)
        operands = [*tensors(args), *tensors(named)]
        there = [on_cuda(operand) for operand in operands]
        cuda = any(there) if operands else self.here.factories
        if self.here.on_cuda is not None:
            cuda = self.here.on_cuda
        elif cuda and not all(there):
            _require_one_device(func, args, operands, there)
        before = storages(operands)
        with within(self.here, opaque=getattr(func, "namespace", "aten") not in _BUILTIN):
            result = func(*args, **named)
        for tensor in tensors(result):
            storage = storage_of(tensor)
            if storage is None or storage._cdata not in before:
                mark(tensor, cuda)
        return result


class _Moved(torch.autograd.Function):  # type: ignore[misc]
    """A copy on the other device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, cuda: bool) -> torch.Tensor:
        """The copy."""
        ctx.cuda = cuda
        return _copied(tensor, cuda)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, on the device of the tensor."""
        return moved(gradient, not ctx.cuda), None


def moved(tensor: torch.Tensor, cuda: bool) -> torch.Tensor:
    """A copy of a tensor on the other device."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Moved.apply(tensor, cuda)
    return _copied(tensor, cuda)


def _copied(tensor: torch.Tensor, cuda: bool) -> torch.Tensor:
    copy = tensor.clone()
    mark(copy, cuda)
    return copy


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device that a tensor says it is on."""
    return CUDA if on_cuda(tensor) else tensor.device


@contextmanager
def within(here: _Here, **state: Any) -> Iterator[None]:
    """A part of a call in which the state of the thread differs."""
    before = {name: getattr(here, name) for name in state}
    vars(here).update(state)
    try:
        yield
    finally:
        vars(here).update(before)


def _require_generator(named: dict[str, Any], cuda: bool) -> None:
    generator = named.get("generator")
    wanted = "cuda" if cuda else "cpu"
    if generator is not None and generator.device.type != wanted:
        raise RuntimeError(
            f"Expected a '{wanted}' device type for generator but found '{generator.device.type}'"
        )


def _require_one_device(func: Any, args: Any, operands: list[torch.Tensor], there: list[bool]) -> None:
    """Raise the error of a GPU for operands on two devices; a number of the host may be with any."""
    name = func.__name__.partition(".")[0]
    if name in _ACROSS:
        return
    if name in _INDEXED and on_cuda(args[0]):  # the indices may be on the host
        operands = [args[0], *tensors(args[2:])]
        there = [on_cuda(operand) for operand in operands]
    if any(operand.dim() and not on for operand, on in zip(operands, there, strict=True)):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(in {func})"
        )


# ----------------------------------------------------------------------------------------- answers


def _to(func: Any, args: Any, named: dict[str, Any]) -> Any:
    tensor, *positional = args
    copy = named.pop("copy", False)
    if len(positional) > 1 and isinstance(positional[-1], bool) and isinstance(positional[-2], bool):
        copy = positional.pop()
    other = positional[0] if positional else named.pop("other", None)
    if isinstance(other, torch.Tensor):
        device, dtype, shape = device_of(other), other.dtype, None
    else:
        device, dtype, _, shape = torch._C._nn._parse_to(*positional, **named)
    cuda = on_cuda(tensor)
    wanted = cuda if device is None else wants_cuda(device)
    options = {} if shape is None else {"memory_format": shape}
    if device is not None and device.type not in ("cpu", "cuda"):
        return func(tensor, device, dtype or tensor.dtype, copy=copy, **options)
    result = func(tensor, dtype or tensor.dtype, copy=copy, **options)
    return result if wanted == cuda else moved(result, wanted)


def _cuda(func: Any, args: Any, named: dict[str, Any]) -> Any:
    tensor, device = args[0], named.get("device", args[1] if len(args) > 1 else None)
    if device is not None and not wants_cuda(device):
        raise ValueError(f"Tensor.cuda: device must be CUDA, got {device!r}")
    return tensor if on_cuda(tensor) else moved(tensor, True)


def _cpu(func: Any, args: Any, named: dict[str, Any]) -> Any:
    return moved(args[0], False) if on_cuda(args[0]) else args[0]


def _type(func: Any, args: Any, named: dict[str, Any]) -> Any:
    if len(args) + len(named) == 1:
        name = str(func(*args))
        return name.replace("torch.", "torch.cuda.", 1) if on_cuda(args[0]) else name
    wanted = args[1] if len(args) > 1 else named.get("dtype")
    if isinstance(wanted, torch.dtype):
        return func(*args, **named)
    raise refusal(f"Tensor.type({wanted!r})", "it names a class of tensors; use Tensor.to")


def _shown(func: Any, args: Any, named: dict[str, Any]) -> str:
    text = str(func(*args, **named))
    return f"{text[:-1]}, device='{CUDA}')" if on_cuda(args[0]) else text


def _numpy(func: Any, args: Any, named: dict[str, Any]) -> Any:
    if on_cuda(args[0]):
        raise TypeError(
            f"can't convert {CUDA} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    return func(*args, **named)


def _exported(func: Any, args: Any, named: dict[str, Any]) -> Any:
    if on_cuda(args[0]):
        name = getattr(func, "__name__", "")
        name = "__cuda_array_interface__" if name == "__get__" else name
        raise refusal(
            f"Tensor.{name}", "the memory is on the host, where no other library reads an array of CUDA"
        )
    return func(*args, **named)


def _pin_memory(func: Any, args: Any, named: dict[str, Any]) -> Any:
    if on_cuda(args[0]):
        raise RuntimeError("a tensor on CUDA cannot be pinned: only dense CPU tensors can be pinned")
    copy = args[0].clone()
    pin(copy)
    return copy


_ANSWERS: Final[dict[Any, Callable[[Any, Any, dict[str, Any]], Any]]] = {
    _T.device.__get__: lambda func, args, named: device_of(args[0]),
    _T.is_cuda.__get__: lambda func, args, named: on_cuda(args[0]),
    _T.is_cpu.__get__: lambda func, args, named: not on_cuda(args[0]) and func(args[0]),
    _T.get_device: lambda func, args, named: 0 if on_cuda(args[0]) else func(args[0]),
    torch.get_device: lambda func, args, named: 0 if on_cuda(args[0]) else func(args[0]),
    _T.is_pinned: lambda func, args, named: pinned(args[0]),
    _T.record_stream: lambda *_: None,
    _T.to: _to,
    _T.cuda: _cuda,
    _T.cpu: _cpu,
    _T.type: _type,
    _T.pin_memory: _pin_memory,
    _T.__repr__: _shown,
    _T.numpy: _numpy,
    _T.__array__: _numpy,
    _T.__dlpack__: _exported,
    _T.__dlpack_device__: _exported,
    _T.__cuda_array_interface__.__get__: _exported,
}


# ------------------------------------------------------------------------------------------- modes


class Modes:
    """Both modes, in every thread that starts while they are on."""

    def __init__(self) -> None:
        self.here = _Here()
        self.functions = Functions(self.here)
        self.operators = Operators(self.here)

    @contextmanager
    def on(self) -> Iterator[None]:
        """The modes, in this thread."""
        with self.operators, self.functions:
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A part in which tensors say that they are on the host, for kernels on the interpreter."""
        with within(self.here, paused=True):
            yield

    def engine(self, engine: Any) -> Any:
        """PyTorch's engine of backward passes, which runs functions of the user with the modes on."""
        return _Engine(engine, self)


class _Engine:
    def __init__(self, engine: Any, modes: Modes) -> None:
        self._engine = engine
        self._modes = modes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, roots: Any, *args: Any, **named: Any) -> Any:
        """Run a backward pass; gradients that PyTorch makes of nothing are where the roots are."""
        here = self._modes.here
        if not here.inside:
            return self._engine.run_backward(roots, *args, **named)
        cuda = any(map(on_cuda, tensors(tuple(roots))))
        with within(here, inside=False, on_cuda=None, factories=cuda), self._modes.functions:
            return self._engine.run_backward(roots, *args, **named)
