"""Classes and decorators of PyTorch that an emulated GPU replaces, because no mode sees their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ptxgen.frontends.emulated.placement import CPU, CUDA, marked, wants_cuda
from ptxgen.frontends.emulated.refusal import refusal

_GENERATOR: Final[Any] = torch.Generator
_IS_CUDA: Final = torch.UntypedStorage.is_cuda
_DEVICE: Final = torch.UntypedStorage.device


class _Generators(type(_GENERATOR)):  # type: ignore[misc]
    """Generators that PyTorch itself makes are of the class, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _GENERATOR)


class Generator(_GENERATOR, metaclass=_Generators):  # type: ignore[misc]
    """A generator of random numbers of the host, which says on which device it is."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of a device."""
        generator = _GENERATOR.__new__(cls, CPU)
        generator._cuda = wants_cuda(device)
        return generator

    @property
    def device(self) -> torch.device:
        """The device that was asked for."""
        return CUDA if self._cuda else CPU


def eager(model: Callable[..., Any] | None = None, **_: Any) -> Any:
    """`torch.compile`: the function itself."""
    return model if model is not None else lambda function: function


def _device(storage: Any) -> torch.device:
    return CUDA if marked(storage) else _DEVICE.__get__(storage)


def _is_cuda(storage: Any) -> bool:
    return marked(storage)


def _transfer(storage: Any, *_: Any, **__: Any) -> Any:
    raise refusal("a copy of a storage to or from CUDA", "it has no tensor; copy the tensor")


OF_STORAGE: Final = {
    "device": property(_device),
    "is_cuda": property(_is_cuda),
    "cuda": _transfer,
    "cpu": _transfer,
}
