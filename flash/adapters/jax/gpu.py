"""Traced calls on a GPU: XLA's FFI calls `flash` with the addresses of a program's arrays and its stream.

The handler is in Python, so that a program is run by the process that has traced it.
"""

from __future__ import annotations

import math
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from flash.adapters.jax import xla_ffi
from flash.adapters.jax.call import MATRICES, SEED, Call
from flash.adapters.jax.host import as_a_batch, mapped_axes
from flash.host.results import ResultMaker
from flash.problem.outputs import NOTHING, OUTPUTS, Output
from ptxgen.arrays.elements import numpy_type
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import cuda_backend

TARGET: Final = "ptxgen_flash_attention"

Traced = Mapping[str, Any]


class Work(ABC):
    """A computation of the arrays of a call in programs for a GPU; `ranks` are the names of the arrays and
    their axes without mapped ones, `token` is its name in programs.

    Compiled programs keep it alive. Tokens are unlike those of other processes, so that programs
    that JAX keeps on disk are not taken for programs of this process.
    """

    def __init__(self, call: Call, ranks: Mapping[str, int]) -> None:
        self.call = call
        self.ranks = ranks
        self.token = uuid.uuid4().hex
        _WORKS[self.token] = self

    def traced(self, *inputs: Any) -> tuple[Any, ...]:
        """The results in a program for a platform for which the handler is registered."""
        arrays = dict(zip(self.ranks, inputs, strict=True))
        lead = mapped_axes(arrays, self.ranks)
        return self.mapped(arrays, lead) if lead else self.one(arrays)

    def mapped(self, arrays: Traced, lead: tuple[int, ...]) -> tuple[Any, ...]:
        """The results of all mapped items, one after another; `lead` are the lengths of the mapped axes."""
        items = {}
        for name, array in arrays.items():
            shape = array.shape[array.ndim - self.ranks[name] :]
            items[name] = jnp.broadcast_to(array, lead + shape).reshape(math.prod(lead), *shape)
        return tuple(result.reshape(*lead, *result.shape[1:]) for result in jax.lax.map(self.one, items))

    def one(self, arrays: Traced) -> tuple[Any, ...]:
        """The results of arrays without mapped axes."""
        wanted, fills = self.results(arrays)
        # Rows of no sequence are not written by kernels.
        filled = [jnp.full(w.shape, x, w.dtype) for w, x in zip(wanted, fills, strict=False)]
        initial = filled if self.call.is_varlen else []
        call = jax.ffi.ffi_call(
            TARGET, wanted, input_output_aliases={len(arrays) + i: i for i in range(len(initial))}
        )
        inputs = [arrays[name] for name in self.ranks]  # `jax.lax.map` gives arrays in another order
        return tuple(call(*inputs, *initial, token=self.token))

    @abstractmethod
    def results(self, arrays: Traced) -> tuple[list[Any], tuple[float, ...]]:
        """The shapes and types of the results, and for the first of them the number in rows of no
        sequence.
        """

    @abstractmethod
    def launch(
        self, buffers: Mapping[str, xla_ffi.Buffer], results: Sequence[_OnGpu], seed: Any, stream: int
    ) -> None:
        """Put the work on a stream. `seed` holds the seed of dropout, if a program has one."""


class Forward(Work):
    """The results of a call: out and `outputs`."""

    def __init__(self, call: Call, ranks: Mapping[str, int], outputs: tuple[Output, ...]) -> None:
        super().__init__(call, ranks)
        self.outputs = outputs

    def mapped(self, arrays: Traced, lead: tuple[int, ...]) -> tuple[Any, ...]:
        """The results of all mapped items by one call, if no result depends on the index of its item."""
        if self.call.items_are_alike:
            return as_a_batch(self.one, arrays, self.ranks, lead, jnp)
        return super().mapped(arrays, lead)

    def results(self, arrays: Traced) -> tuple[list[Any], tuple[float, ...]]:
        """See `Work`."""
        return result_types(self.call, arrays, self.outputs), (0, *[NOTHING] * len(self.outputs))

    def launch(
        self, buffers: Mapping[str, xla_ffi.Buffer], results: Sequence[_OnGpu], seed: Any, stream: int
    ) -> None:
        """See `Work`."""
        out, *others = results
        arrays = {name: _OnGpu(buffer) for name, buffer in buffers.items()} | seed
        if others:
            arrays["q"] = _OnGpu(buffers["q"], *others)
        self.call.results(arrays, self.outputs, out=out, stream=stream)


def result_types(call: Call, arrays: Traced, outputs: Sequence[Output]) -> list[Any]:
    """The shapes and types of out and of these outputs."""
    out, *others = call.shapes(arrays)
    named = dict(zip(OUTPUTS, others, strict=True))
    extra = [jax.ShapeDtypeStruct(named[output], jnp.float32) for output in outputs]
    return [jax.ShapeDtypeStruct(out, arrays["q"].dtype), *extra]


class Backward(Work):
    """The gradients of the arrays called `names`, first those of q, k and v."""

    def __init__(self, call: Call, ranks: Mapping[str, int], names: Sequence[str]) -> None:
        super().__init__(call, ranks)
        self.names = tuple(names)

    def results(self, arrays: Traced) -> tuple[list[Any], tuple[float, ...]]:
        """See `Work`."""
        like = [arrays[name] for name in self.names]
        matrices = [name for name in self.names if name in MATRICES]
        return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like], (0,) * len(matrices)

    def launch(
        self, buffers: Mapping[str, xla_ffi.Buffer], results: Sequence[_OnGpu], seed: Any, stream: int
    ) -> None:
        """See `Work`."""
        outputs = dict(zip(self.names, results, strict=True))
        into = {f"d{name}": outputs.pop(name) for name in MATRICES if name in outputs}
        arrays = {n: _OnGpu(x, *([outputs[n]] if n in outputs else [])) for n, x in buffers.items()} | seed
        self.call.gradients(arrays, self.names, on_gpu=True, stream=stream, **into)


_WORKS: Final[weakref.WeakValueDictionary[str, Work]] = weakref.WeakValueDictionary()


class _OnGpu(ResultMaker):
    """An array of a program in a GPU's memory; `results` are the program's arrays that `flash` gets, in
    order, when it makes new arrays like this one: q for outputs other than out, an array of scores for its
    gradient.
    """

    def __init__(self, buffer: xla_ffi.Buffer, *results: _OnGpu) -> None:
        self.shape = buffer.shape
        self._results = iter(results)
        self.__cuda_array_interface__ = {
            "data": (buffer.pointer, False),
            "shape": buffer.shape,
            "strides": None,
            "typestr": numpy_type(buffer.dtype).str,
            "stream": None,  # the program's work is in the order of the stream of the launch
            "version": 3,
        }

    def result(self) -> object:
        return next(self._results)


def execute(frame: xla_ffi.Frame) -> None:
    """Put the computation that a program asks for on the program's stream."""
    work = _WORKS.get(frame.attributes["token"])
    if work is None:
        raise LaunchError(
            "attention: the program was traced by another process; trace it in this one, because the handler "
            "of its calls needs what was traced"
        )
    buffers = dict(zip(work.ranks, frame.arguments, strict=False))  # after them: the initial results
    seed = {SEED: _scalar(buffers[SEED], frame.stream)} if SEED in buffers else {}
    work.launch(buffers, list(map(_OnGpu, frame.results)), seed, frame.stream)


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
