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
    found: Any = getattr(abstract, _TYPE, frozenset())
    axes: frozenset[Any] = getattr(found, "varying", found)
    return axes


def alike(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays, all varying over the axes over which one of them does. The gradient of one that did not is
    the sum over these axes.
    """
    traced = {name: varying(array) for name, array in arrays.items() if isinstance(array, Tracer)}
    axes = frozenset[Any]().union(*traced.values())
    found = dict(arrays)
    for name, array in arrays.items():
        missing = axes - traced.get(name, frozenset())
        if missing:
            found[name] = _let_vary(array, tuple(missing))
    return found


def result(shape: Sequence[int], dtype: Any, *given: Any) -> ShapedArray:
    """The abstract value of a result of abstract values that are `alike`."""
    if not varying(given[0]):
        return ShapedArray(shape, dtype)
    whole = NamedSharding(given[0].sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return ShapedArray(shape, dtype, sharding=whole, **{_TYPE: getattr(given[0], _TYPE)})


def is_eager(arrays: Mapping[str, Any]) -> bool:
    """Whether `jax.shard_map` runs a function of these arrays outside of `jax.jit`, where it refuses
    functions whose derivatives depend on what is differentiated.
    """
    return any(_in_eager(array) for array in arrays.values())


def _in_eager(array: Any) -> bool:
    """Whether a tracer of `jax.shard_map` is an array, or below what other transforms make of it."""
    while isinstance(array, Tracer):
        if type(array).__module__ == _EAGER:
            return True
        array = getattr(array, "primal", getattr(array, "val", None))  # of jax.jvp, of jax.vmap
    return False
