"""Traced calls on a GPU: XLA's FFI calls `flash` with the addresses of a program's arrays and its stream.

The handler is in Python, so that a program is run by the process that has traced it.
"""

from __future__ import annotations

import math
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

import flash
from flash.adapters.jax import xla_ffi
from flash.adapters.jax.call import SEED, Call
from flash.adapters.jax.host import as_a_batch, mapped_axes
from flash.host.results import ResultMaker
from ptxgen.arrays.elements import numpy_type
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import cuda_backend

TARGET: Final = "ptxgen_flash_attention"

Traced = Mapping[str, Any]


class Forward:
    """A call, the names of its arrays, and whether lse is wanted; `token` is its name in programs.

    Compiled programs keep it alive. Tokens are unlike those of other processes, so that programs
    that JAX keeps on disk are not taken for programs of this process.
    """

    def __init__(self, call: Call, ranks: Mapping[str, int], with_lse: bool) -> None:
        self.call = call
        self.ranks = ranks
        self.with_lse = with_lse
        self.token = uuid.uuid4().hex
        _FORWARDS[self.token] = self

    def traced(self, *given: Any) -> tuple[Any, ...]:
        """The results in a program for a platform that has the target."""
        arrays = dict(zip(self.ranks, given, strict=True))
        lead = mapped_axes(arrays, self.ranks)
        if not lead:
            return self._one(arrays)
        if self.call.items_are_alike:
            return as_a_batch(self._one, arrays, self.ranks, lead, jnp)
        return _each(self._one, arrays, self.ranks, lead)

    def _one(self, arrays: Traced) -> tuple[Any, ...]:
        shapes = self.call.shapes(arrays)
        types = (arrays["q"].dtype, jnp.float32)
        wanted = [jax.ShapeDtypeStruct(*of) for of in zip(shapes, types, strict=True)][: 1 + self.with_lse]
        # Rows of no sequence are not written by the kernel.
        filled = [jnp.full(w.shape, x, w.dtype) for w, x in zip(wanted, (0, -jnp.inf), strict=False)]
        initial = filled if self.call.is_varlen else []
        call = jax.ffi.ffi_call(
            TARGET, wanted, input_output_aliases={len(arrays) + i: i for i in range(len(initial))}
        )
        return tuple(call(*arrays.values(), *initial, token=self.token))


_FORWARDS: Final[weakref.WeakValueDictionary[str, Forward]] = weakref.WeakValueDictionary()


def _each(
    function: Callable[[Traced], tuple[Any, ...]],
    arrays: Traced,
    ranks: Mapping[str, int],
    lead: tuple[int, ...],
) -> tuple[Any, ...]:
    """The results of each mapped item alone, one after another."""
    items = {}
    for name, array in arrays.items():
        own = array.shape[array.ndim - ranks[name] :]
        items[name] = jnp.broadcast_to(array, lead + own).reshape(math.prod(lead), *own)
    return tuple(found.reshape(*lead, *found.shape[1:]) for found in jax.lax.map(function, items))


class _OnGpu(ResultMaker):
    """An array of a program in a GPU's memory; `lse` is the program's array for lse, if q is asked for it."""

    def __init__(self, buffer: xla_ffi.Buffer, lse: _OnGpu | None = None) -> None:
        self.shape = buffer.shape
        self._lse = lse
        self.__cuda_array_interface__ = {
            "data": (buffer.pointer, False),
            "shape": buffer.shape,
            "strides": None,
            "typestr": numpy_type(buffer.dtype).str,
            "stream": None,  # the program's work is in the order of the stream of the launch
            "version": 3,
        }

    def result(self) -> object:
        return self._lse


def execute(frame: xla_ffi.Frame) -> None:
    """Put the attention of a program's arrays on the program's stream."""
    forward = _FORWARDS.get(frame.attributes["token"])
    if forward is None:
        raise LaunchError(
            "attention: the program was traced by another process; trace it in this one, because the handler "
            "of its calls needs what was traced"
        )
    given = dict(zip(forward.ranks, frame.arguments, strict=False))  # behind them: the initial results
    arrays: dict[str, Any] = {name: _OnGpu(buffer) for name, buffer in given.items()}
    out, *lse = map(_OnGpu, frame.results)
    if lse:
        arrays["q"] = _OnGpu(given["q"], *lse)
    if SEED in given:
        arrays[SEED] = _scalar(given[SEED], frame.stream)
    function = flash.attention_varlen if forward.call.is_varlen else flash.attention
    function(
        **forward.call.arguments(arrays),
        out=out,
        return_lse=forward.with_lse,
        backend=forward.call.backend,
        stream=frame.stream,
    )


def _scalar(buffer: xla_ffi.Buffer, stream: int) -> int:
    """The integer in a GPU's memory, after the work on a stream that writes it."""
    cuda = cuda_backend()
    ordinal = cuda.device_of_pointer(buffer.pointer)
    assert ordinal is not None  # XLA's memory
    host = np.empty((), numpy_type(buffer.dtype))
    cuda.copy_to_host(host.ctypes.data, buffer.pointer, host.nbytes, stream, ordinal=ordinal)
    cuda.synchronize(stream, ordinal=ordinal)
    return int(host)


_HANDLER: Final = xla_ffi.handler(execute)
xla_ffi.register(TARGET, _HANDLER, "CUDA")
