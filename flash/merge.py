"""Attention to all keys from attentions to parts of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash import results
from flash.arrays import HOST, ArrayView, host_array, view
from flash.dtypes import DTYPES, F32, OF_ARRAYS, DType
from flash.launch import conversion, out_problems, raise_problems, views_of
from flash.overlap import may_share_elements
from ptxgen.errors import ConfigError, did_you_mean
from ptxgen.runtime.settings import AUTO

Array = NDArray[Any]

_WHO: Final = "merge_partials"
_BACKENDS: Final = (AUTO, "cpu")


def merge_partials(
    outs: object, lses: object, *, out: object = None, backend: str = AUTO
) -> tuple[Any, Any]:
    """Attention to all keys, from its results for parts of the keys: (out, lse).

    `outs` is [splits, ..., seq_q, head_dim_v], or a list or tuple of the parts; `lses` likewise the
    natural logarithms of their sums, float32 [splits, ..., seq_q]. Parts are float32, float16 or
    bfloat16, of any strides, on the host. Then lse = log Σ exp(lse_i), and out = Σ exp(lse_i - lse)
    out_i, summed in f32 in the order of the parts and rounded once: to the type of the parts, or to
    that of `out`, which may be another of the three. Results are of the kind of the first part.

    A part whose lse is -inf has no key and adds nothing, whatever its output is; if all are, out is
    0 and lse -inf. A row that has an lse of NaN or +inf, as scores that are not finite give, is
    NaN, as attention to all keys would be.

    Raises `LaunchError` with every problem of the arguments, `ConfigError` for an unknown backend.
    """
    if backend not in _BACKENDS:
        raise ConfigError(
            f"{_WHO}: backend must be one of {', '.join(_BACKENDS)}, got {backend!r}"
            f"{did_you_mean(str(backend), _BACKENDS)}"
        )
    given = {"outs": outs, "lses": lses} | ({} if out is None else {"out": out})
    named = {name: array for key, arrays in given.items() for name, array in _named(key, arrays)}
    views = views_of(named, _WHO)
    of_outs, of_lses = (_Parts.of(name, given[name], views) for name in ("outs", "lses"))
    raise_problems([*_type_problems(views), *_shape_problems(of_outs, of_lses)], _WHO)
    shape = of_outs.shapes[0]
    raise_problems(_out_problems(views, shape), _WHO)

    like = next(iter(views.values()))
    made = results.empty(like, shape, OF_ARRAYS[like.dtype]) if out is None else out
    lse = results.empty(like, shape[:-1], F32)
    _merge(
        of_outs.arrays(), of_lses.arrays(), host_array(view(made, "out")), host_array(view(lse, ""))
    )
    return made if out is not None else results.deliver(made, like), results.deliver(lse, like)


class _Parts(NamedTuple):
    """An argument with parts: one array of all, or one for each."""

    name: str
    views: list[ArrayView]
    stacked: bool

    @classmethod
    def of(cls, name: str, given: object, views: Mapping[str, ArrayView]) -> _Parts:
        """The parts of the argument `name`."""
        return cls(
            name,
            [views[key] for key, _ in _named(name, given)],
            not isinstance(given, list | tuple),
        )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """That of each part."""
        if not self.stacked:
            return [tuple(array.shape) for array in self.views]
        (whole,) = self.views
        return [tuple(whole.shape[1:])] * (whole.shape[0] if whole.shape else 0)

    def arrays(self) -> list[Array]:
        """The parts in numpy."""
        arrays = [host_array(array) for array in self.views]
        return list(arrays[0]) if self.stacked else arrays


def _named(name: str, given: object) -> list[tuple[str, object]]:
    """The arrays of an argument, as messages call them."""
    if not isinstance(given, list | tuple):
        return [(name, given)]
    return [(f"{name}[{n}]", array) for n, array in enumerate(given)]


def _type_problems(views: Mapping[str, ArrayView]) -> Iterator[str]:
    of_outs: DType | None = None
    for name, array in views.items():
        if array.device != HOST:
            yield f"{name} must be on the host, got {array.device_name}; copy it there"
        taken: tuple[DType, ...] = tuple(DTYPES.values())
        if name.startswith("lses"):
            taken = (F32,)
        elif name != "out":
            taken = taken if of_outs is None else (of_outs,)
        names = [dtype.array_name for dtype in taken]
        if array.dtype not in names:
            yield (
                f"{name} must be {'one of ' if len(names) > 1 else ''}{', '.join(names)}"
                f"{', as outs[0] is' if taken == (of_outs,) else ''}, got {array.dtype}; convert "
                f"with {conversion(name, array, taken[0])}"
            )
        elif of_outs is None:
            of_outs = OF_ARRAYS[array.dtype]


def _shape_problems(outs: _Parts, lses: _Parts) -> Iterator[str]:
    counts = len(outs.shapes), len(lses.shapes)
    if counts[0] != counts[1] or not counts[0]:
        yield (
            f"outs and lses must have equally many parts, at least one, got {counts[0]} and "
            f"{counts[1]}"
        )
        return
    shape = outs.shapes[0]
    if not shape:
        yield "outs must have parts of at least one dimension, head_dim_v, got none"
        return
    for parts, wanted, what in ((outs, shape, "outs[0]"), (lses, shape[:-1], "the rows of outs")):
        wrong = next((n for n, found in enumerate(parts.shapes) if found != wanted), None)
        if wrong is not None:
            yield (
                f"{parts.name}[{wrong}] must have the shape of {what}, {list(wanted)}, got "
                f"{list(parts.shapes[wrong])}"
            )


def _out_problems(views: Mapping[str, ArrayView], shape: tuple[int, ...]) -> list[str]:
    out = views.get("out")
    if out is None:
        return []
    shared = [
        f"out must not share memory with {name}; leave out=None, or pass an array of its own"
        for name, array in views.items()
        if name != "out" and may_share_elements(out, array)
    ]
    return out_problems(out, shape) + shared


def _merge(outs: Sequence[Array], lses: Sequence[Array], out: Array, lse: Array) -> None:
    """Write the merged parts to `out` and `lse`."""
    zero = np.float32(0)
    with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN and +inf in give NaN out
        top = functools.reduce(np.maximum, lses)
        shift = np.where(np.isneginf(top), zero, top)
        total = sum((np.exp(part - shift) for part in lses), zero)
        merged = np.zeros(out.shape, np.float32)
        for part, own in zip(outs, lses, strict=True):
            # Weights that add up to 1 before they meet outputs: of these, then, no sum overflows.
            weight = np.exp(own - shift) / total
            merged += np.where(np.isneginf(own)[..., None], zero, weight[..., None] * part)
        out[...] = merged
        lse[...] = shift + np.log(total)
