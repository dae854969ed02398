"""On which device a tensor of the host says that it is: a mark on its storage, which all its views share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ptxgen.frontends.emulated.refusal import refusal

_MARK: Final = "_ptxgen_cuda"
_PINNED: Final = "_ptxgen_pinned"
_ROUNDING: Final = 512  # bytes: PyTorch's caching allocator hands out multiples of this
CUDA: Final = torch.device("cuda", 0)
CPU: Final = torch.device("cpu")


class Memory:
    """The bytes of the emulated GPU's memory that storages hold, and the most that they held."""

    def __init__(self) -> None:
        self.allocated = 0
        self.peak = 0

    def hold(self, nbytes: int) -> Allocation:
        """Count the memory of a storage until the result is deleted."""
        allocation = Allocation(self, -(-nbytes // _ROUNDING) * _ROUNDING)
        self.allocated += allocation.nbytes
        self.peak = max(self.peak, self.allocated)
        return allocation


class Allocation:
    """The memory of one storage on the emulated GPU."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes

    def __del__(self) -> None:
        self.memory.allocated -= self.nbytes


MEMORY: Final = Memory()


def on_cuda(tensor: torch.Tensor) -> bool:
    """Whether a tensor says that it is on CUDA."""
    storage = storage_of(tensor)
    return storage is not None and marked(storage)


def marked(storage: Any) -> bool:
    """Whether a storage says that it is on CUDA."""
    return getattr(storage, _MARK, None) is not None


def mark(tensor: torch.Tensor, cuda: bool) -> None:
    """Let a tensor, and all views of its memory, say that they are on CUDA, or on the host. Raises
    `BackendError` for a tensor without a storage.
    """
    storage = storage_of(tensor)
    if storage is None:
        if cuda and tensor.device.type == "cpu":
            raise refusal(f"a tensor of layout {tensor.layout} on CUDA", "its memory is not one storage")
    elif cuda != marked(storage):
        setattr(storage, _MARK, MEMORY.hold(storage.nbytes()) if cuda else None)


def pin(tensor: torch.Tensor) -> None:
    """Let a tensor of the host say that its memory is pinned."""
    setattr(storage_of(tensor), _PINNED, True)


def pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the host says that its memory is pinned."""
    return getattr(storage_of(tensor), _PINNED, False)


def storage_of(tensor: torch.Tensor) -> Any:
    """The storage of a tensor of the host, inside the wrappers of `torch.func`, or None."""
    functorch = torch._C._functorch
    with torch._C.DisableTorchFunction():
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return None
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # of a subclass that wraps others
            return None


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among the values of a call, also in lists, tuples and mappings."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from tensors(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors(value)


def storages(values: Iterable[torch.Tensor]) -> set[int]:
    """The identities of the storages of tensors."""
    return {storage._cdata for storage in map(storage_of, values) if storage is not None}


def wants_cuda(device: Any) -> bool:
    """Whether a device, as PyTorch's functions take it, is CUDA. Raises RuntimeError for one that is not
    there.
    """
    of = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if of.type == "cuda" and of.index not in (None, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal ({of}; the interpreter is one GPU, cuda:0)")
    return bool(of.type == "cuda")
