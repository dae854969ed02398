"""Arrays in `jax.shard_map`: over which axes of its mesh they vary, which JAX checks (`check_vma`)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
from jax.core import ShapedArray, Tracer
from jax.sharding import NamedSharding, PartitionSpec

_TYPE: Final = "manual_axis_type" if hasattr(ShapedArray, "manual_axis_type") else "vma"  # JAX before 0.10
_let_vary: Final[Any] = (
    functools.partial(jax.lax.pcast, to="varying")
    if hasattr(jax.lax, "pcast")
    else jax.lax.pvary  # before 0.8.2
)
_EAGER: Final = "jax._src.shard_map"  # the module of its tracers outside of jax.jit


def varying(array: Any) -> frozenset[Any]:
    """The axes of meshes over which an array of JAX, or its abstract value, varies."""
    abstract = array if isinstance(array, ShapedArray) else jax.typeof(array)
    axes: Any = getattr(abstract, _TYPE, frozenset())
    varying_axes: frozenset[Any] = getattr(axes, "varying", axes)
    return varying_axes


def alike(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays, all of them varying over each axis over which one of them does. The gradient of an array
    that did not vary over an axis is the sum over that axis.
    """
    traced = {name: varying(array) for name, array in arrays.items() if isinstance(array, Tracer)}
    axes = frozenset[Any]().union(*traced.values())
    results = dict(arrays)
    for name, array in arrays.items():
        missing = axes - traced.get(name, frozenset())
        if missing:
            results[name] = _let_vary(array, tuple(missing))
    return results


def result(shape: Sequence[int], dtype: Any, *operands: Any) -> ShapedArray:
    """The abstract value of a result whose `operands`, abstract values too, all vary over the same axes."""
    if not varying(operands[0]):
        return ShapedArray(shape, dtype)
    whole = NamedSharding(operands[0].sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return ShapedArray(shape, dtype, sharding=whole, **{_TYPE: getattr(operands[0], _TYPE)})


def is_eager(arrays: Mapping[str, Any]) -> bool:
    """Whether `jax.shard_map` runs a function of these arrays outside of `jax.jit`, where it refuses
    functions whose derivatives depend on what is differentiated.
    """
    return any(_in_eager(array) for array in arrays.values())


def _in_eager(array: Any) -> bool:
    """Whether an array is a tracer of `jax.shard_map`, or another transform's tracer around one."""
    while isinstance(array, Tracer):
        if type(array).__module__ == _EAGER:
            return True
        array = getattr(array, "primal", getattr(array, "val", None))  # of jax.jvp, of jax.vmap
    return False
