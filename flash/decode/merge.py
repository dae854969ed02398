"""The merge of attention results for parts of the keys to the result for all keys."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.calls.backend import choose, stream_without_gpu
from flash.calls.gpu import launcher_of
from flash.calls.memory import ALIGNED, Memory
from flash.calls.operation import Operation, Result
from flash.calls.step import Step
from flash.families.request import MAX_HEAD_DIM_V
from flash.host import results
from flash.host.caller import Caller, raise_problems
from flash.kernels.merge import MAX_ROWS
from flash.launch.arguments import Argument, out_problems, sharing_problems
from flash.launch.merge_launch import MergeArguments, merging
from flash.operands.dtype_names import A, AnyArray, Backend
from flash.operands.dtypes import DTYPES, F32, OF_ARRAYS, DType
from flash.problem.config import ALIGNMENTS, DEFAULT_TARGET
from flash.problem.features import MAX_SPLITS
from ptxgen.arguments import number
from ptxgen.arrays import streams
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, ArrayView, host_array, view
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS
from ptxgen.target import target as find_target

Array = NDArray[Any]

_CALLER: Final = "merge_partials"


def merge_partials(
    outs: A | Sequence[A],
    lses: AnyArray | Sequence[AnyArray],
    *,
    out: AnyArray | None = None,
    empty_lse: float = -math.inf,
    backend: Backend = AUTO,
    stream: object = None,
) -> tuple[A, A]:
    """Merge attention results for parts of the keys to the result for all keys: (out, lse).

    `outs` is [splits, ..., seq_q, head_dim_v], or a list or tuple of the parts; `lses` likewise has
    the LSE (natural logarithm) of each part, float32 [splits, ..., seq_q]. Parts are float32,
    float16 or bfloat16, of any strides. Then lse = log Σ exp(lse_i), and out = Σ exp(lse_i - lse)
    out_i, summed in f32 in the order of the parts and rounded once: to the dtype of the parts, or
    to that of `out`, which may be another of the three. Results are arrays of the first part's
    library.

    A part whose lse is -inf has no key and adds nothing, whatever its output is; if all parts are
    so, out is 0 and lse -inf. A row that has an lse of NaN or +inf, which non-finite scores give,
    is NaN, as attention to all keys would be. With `empty_lse=math.inf`, for parts of flash-attn 2, a part
    whose lse is +inf has no key, either; the results still say -inf.

    `backend`: "cpu" and "compiled", which are numpy; "interpreter", which runs the kernel's PTX;
    "cuda", for arrays on a GPU; or "auto", which is the value of PTXGEN_BACKEND, else "cuda" for arrays
    on a GPU and "cpu" for arrays on the host. There are up
    to 32768 parts, and for kernels up to 512 columns. On the host, arrays with a layout that the kernel
    cannot read are copied. On a GPU the parts must be one array, with dense columns, and rows that fold
    into three dimensions; the rows of `lses` must fold into one. On a GPU the work is put on `stream`, by
    default the current one of the parts' library.

    Raises `LaunchError` with every problem of the arguments, `ConfigError` for an unknown backend,
    `BackendError` if the backend fails.
    """
    check_backend(backend, _CALLER)  # before any array is read
    plus_is_empty = _plus_is_empty(empty_lse)
    sides: dict[str, object] = {"outs": outs, "lses": lses}
    named = {name: array for key, parts in sides.items() for name, array in _named(key, parts)}
    merge = _operation(cuda_backend())
    explicit = None if stream is None else streams.stream_handle(stream, _CALLER)
    views = merge.read(named | ({} if out is None else {"out": out}), explicit)
    on_gpu = (array for array in views.values() if array.device != HOST)
    like = next(on_gpu, next(iter(views.values())))
    chosen = choose(backend, like, merge.gpu.backend, _CALLER, copies_to_gpu=False)[0]
    if stream is not None and chosen != "cuda":
        raise stream_without_gpu(_CALLER, chosen)
    if chosen == "cuda":
        merge.require_located(views.values())
    of_outs, of_lses = (_Parts.of(name, parts, views) for name, parts in sides.items())
    problems = [*_device_problems(views, chosen), *_type_problems(views)]
    raise_problems([*problems, *_shape_problems(of_outs, of_lses)], _CALLER)
    shape = of_outs.shapes[0]
    raise_problems([*out_problems(views.get("out"), shape), *sharing_problems(("out",), views)], _CALLER)
    raise_problems(_size_problems(of_outs.number, shape, chosen), _CALLER)
    if chosen == "cuda":
        raise_problems(_stack_problems(of_outs, of_lses), _CALLER)
        raise_problems(_layout_problems(views, shape), _CALLER)

    like = next(iter(views.values()))
    declared = [Result("out", like, shape, OF_ARRAYS[like.dtype])] if out is None else []
    arrays, new = merge.new([*declared, Result("lse", like, shape[:-1], F32)], explicit)
    into = new["out"] if out is None else views["out"]
    call = _MergeOfParts(of_outs, of_lses, into, new["lse"], plus_is_empty)
    if chosen in WITHOUT_KERNELS or 0 not in shape:
        there = call.readable() if chosen == "interpreter" else call
        merge.run(there, chosen, like, explicit)
        if there.out is not call.out:
            host_array(into)[...] = host_array(there.out)
    merged: Any = out if out is not None else results.deliver(arrays["out"], like)
    of_rows: Any = results.deliver(arrays["lse"], like)
    return merged, of_rows


def _plus_is_empty(empty_lse: object) -> bool:
    """Whether an lse of +inf says that a part has no key. Raises `LaunchError` for another number."""
    if number(empty_lse) not in (-math.inf, math.inf):
        raise LaunchError(
            f"{_CALLER}: empty_lse must be -math.inf, or math.inf for parts of flash-attn 2, got "
            f"{shown(empty_lse)}"
        )
    return empty_lse == math.inf


def _in_minus(lses: Array) -> Array:
    """The LSE of partial results, with -inf in place of +inf for a part without keys."""
    return np.where(np.isposinf(lses), -np.float32(math.inf), lses)


class _Parts(NamedTuple):
    """The argument `outs` or `lses`: one array of all parts (`stacked`), or one array for each part."""

    name: str
    views: list[ArrayView]
    stacked: bool

    @classmethod
    def of(cls, name: str, parts: object, views: Mapping[str, ArrayView]) -> _Parts:
        """The partial results that the argument `name` (`outs` or `lses`) holds, with their views."""
        return cls(name, [views[key] for key, _ in _named(name, parts)], not isinstance(parts, list | tuple))

    @property
    def number(self) -> int:
        """The number of partial results that the call merges."""
        if not self.stacked:
            return len(self.views)
        shape = self.views[0].shape
        return shape[0] if shape else 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each partial result; for a stacked array, their common shape once."""
        if not self.stacked:
            return [tuple(array.shape) for array in self.views]
        return [tuple(self.views[0].shape[1:])] if self.number else []

    def stack(self) -> Array:
        """The partial results as one numpy array; copied if they are separate arrays."""
        return host_array(self.views[0]) if self.stacked else np.stack(self.arrays())

    def arrays(self) -> list[Array]:
        """The partial results, `outs` or `lses`, as numpy arrays."""
        arrays = [host_array(array) for array in self.views]
        return list(arrays[0]) if self.stacked else arrays


class _MergeOfParts(NamedTuple):
    """A checked call of `merge_partials`. If `plus_is_empty`, a part whose lse is +inf has no key."""

    outs: _Parts
    lses: _Parts
    out: ArrayView
    lse: ArrayView
    plus_is_empty: bool

    @property
    def arrays(self) -> MergeArguments:
        """The arrays of a merge whose partial results are stacked in one array."""
        return MergeArguments(self.outs.views[0], self.lses.views[0], self.out, self.lse)

    def readable(self) -> _MergeOfParts:
        """The call on arrays on the host whose layout the kernel can read: dense copies if needed."""
        stacked = self._over([parts.stack() for parts in (self.outs, self.lses)], self.out)
        if not any(stacked.arrays.problems()):
            return stacked
        out = np.empty(self.out.shape, OF_ARRAYS[self.out.dtype].numpy)
        dense = [np.array(parts.stack(), order="C") for parts in (self.outs, self.lses)]
        return self._over(dense, view(out, "out"))

    def _over(self, stacks: Sequence[Array], out: ArrayView) -> _MergeOfParts:
        outs, lses = (_Parts(n, [view(a, n)], True) for n, a in zip(("outs", "lses"), stacks, strict=True))
        return self._replace(outs=outs, lses=lses, out=out)


class _Merge(Operation[_MergeOfParts]):
    """The operation that merges attention results for parts of the keys."""

    def arrays(self, call: _MergeOfParts) -> dict[str, ArrayView]:
        """See `Operation.arrays`."""
        return call.arrays._asdict()

    def over(self, call: _MergeOfParts, arrays: Mapping[str, ArrayView]) -> _MergeOfParts:
        """See `Operation.over`."""
        outs, lses = (getattr(call, name)._replace(views=[arrays[name]]) for name in ("outs", "lses"))
        return call._replace(outs=outs, lses=lses, out=arrays["out"], lse=arrays["lse"])

    def key(self, call: _MergeOfParts, ordinal: int) -> tuple[object, ...]:
        """See `Operation.key`."""
        layouts = [(a.shape, a.strides, a.dtype, a.pointer % ALIGNED) for a in call.arrays]
        return *layouts, call.plus_is_empty, ordinal

    def steps(self, call: _MergeOfParts, ordinal: int | None, memory: Memory) -> Iterator[Step]:  # noqa: ARG002
        """See `Operation.steps`."""
        target = find_target(DEFAULT_TARGET) if ordinal is None else self.target(ordinal)
        yield merging(call.arrays.call(), target, plus_is_empty=call.plus_is_empty)

    def on_cpu(self, call: _MergeOfParts, backend: str) -> None:  # noqa: ARG002  # numpy alone merges
        """See `Operation.on_cpu`."""
        rows = [_in_minus(part) if call.plus_is_empty else part for part in call.lses.arrays()]
        _merge(call.outs.arrays(), rows, host_array(call.out), host_array(call.lse))


@functools.lru_cache(maxsize=16)
def _operation(backend: CudaBackend) -> _Merge:
    return _Merge(launcher_of(backend), Caller(_CALLER, has_config=False))


def _named(name: str, parts: object) -> list[tuple[str, object]]:
    """The arrays of an argument such as `outs`, each with its name in error messages."""
    if not isinstance(parts, list | tuple):
        return [(name, parts)]
    return [(f"{name}[{n}]", array) for n, array in enumerate(parts)]


def _device_problems(views: Mapping[str, ArrayView], backend: str) -> Iterator[str]:
    if backend != "cuda":
        yield from (
            f"{name} must be on the host, got {array.device_name}; copy it there"
            for name, array in views.items()
            if array.device != HOST
        )
        return
    where = next((array for array in views.values() if array.device != HOST), None)
    if where is None:
        yield "backend 'cuda' merges parts on a GPU, got cpu; copy them there, or use backend='cpu'"
        return
    yield from (
        f"{name} must be on {where.device_name}, as others are, got {array.device_name}; copy it there"
        for name, array in views.items()
        if array.device != where.device and array.size
    )


def _size_problems(splits: int, shape: tuple[int, ...], backend: str) -> Iterator[str]:
    """Say what is wrong with the numbers of columns, parts and rows."""
    for what, got, least, most in (
        ("head_dim_v", shape[-1], 1, MAX_HEAD_DIM_V),
        ("parts", splits, 1, MAX_SPLITS),
        ("rows", math.prod(shape[:-1]), 0, MAX_ROWS),
    ):
        if what == "head_dim_v" and backend in WITHOUT_KERNELS:
            continue
        if not least <= got <= most:
            yield f"{what} must be {least} to {most} on the backend {backend!r}, got {got}"


def _stack_problems(*sides: _Parts) -> Iterator[str]:
    for parts in sides:
        if not parts.stacked:
            yield (
                f"{parts.name} must be one array on a GPU, [splits, ...], got a list of "
                f"{len(parts.views)}; stack them"
            )


def _layout_problems(views: Mapping[str, ArrayView], shape: tuple[int, ...]) -> Iterator[str]:
    """Why the kernel cannot read or write arrays with these addresses and strides."""
    outs, lses = views["outs"], views["lses"]
    new = outs._replace(pointer=ALIGNMENTS[0], shape=shape, strides=dense_strides(shape))
    yield from MergeArguments(outs, lses, views.get("out", new), new).problems()


def _type_problems(views: Mapping[str, ArrayView]) -> Iterator[str]:
    of_outs: DType | None = None
    for name, array in views.items():
        taken, why = tuple(DTYPES.values()), ""
        if name.startswith("lses"):
            taken = (F32,)
        elif name != "out" and of_outs is not None:
            taken, why = (of_outs,), "as outs[0] is"
        problems = list(Argument(name, (), taken, why).type_problems(array))
        yield from problems
        if of_outs is None and not problems:
            of_outs = OF_ARRAYS[array.dtype]


def _shape_problems(outs: _Parts, lses: _Parts) -> Iterator[str]:
    counts = outs.number, lses.number
    if counts[0] != counts[1] or not counts[0]:
        yield (f"outs and lses must have equally many parts, at least one, got {counts[0]} and {counts[1]}")
        return
    shape = outs.shapes[0]
    if not shape:
        yield "outs must have parts of at least one dimension, head_dim_v, got none"
        return
    for parts, wanted, what in ((outs, shape, "outs[0]"), (lses, shape[:-1], "the rows of outs")):
        wrong = next((n for n, shape in enumerate(parts.shapes) if shape != wanted), None)
        if wrong is not None:
            yield (
                f"{parts.name}[{wrong}] must have the shape of {what}, {list(wanted)}, got "
                f"{list(parts.shapes[wrong])}"
            )


def _merge(outs: Sequence[Array], lses: Sequence[Array], out: Array, lse: Array) -> None:
    """Merge the partial results with numpy and write them to `out` and `lse`."""
    zero = np.float32(0)
    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN and +inf in give NaN out
        top = functools.reduce(np.maximum, lses)
        shift = np.where(np.isneginf(top), zero, top)
        total = sum((np.exp(part - shift) for part in lses), zero)
        merged = np.zeros(out.shape, np.float32)
        for part, of_part in zip(outs, lses, strict=True):
            # Weights are divided by their sum before they multiply outputs, so no sum overflows.
            weight = np.exp(of_part - shift) / total
            merged += np.where(np.isneginf(of_part)[..., None], zero, weight[..., None] * part)
        out[...] = merged
        lse[...] = shift + np.log(total)
