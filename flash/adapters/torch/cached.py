"""`attention_with_kvcache` of torch tensors, as an operator of PyTorch's dispatcher.

A KV cache is no tensor. The operator is given a tensor instead, int64 [2] on the host, with the
number of the cache and how often the operator was called with it: the operator writes to it, so that
torch keeps calls, and their order, that write to a cache whose memory it does not see.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack

import torch
from torch import Tensor

import flash
from flash.adapters.torch import flops, library
from flash.adapters.torch.functions import functions_of
from flash.adapters.torch.settings import Schema, or_empty, shape_of, spread
from flash.adapters.torch.tensors import (
    require_no_tangents,
    require_no_tracking,
    require_plain,
    require_values,
    tracked,
)
from flash.adapters.torch.vmap import MATRICES
from flash.cache.cache import KVCache
from flash.cache.call import DEFAULTS, CachedArguments
from flash.launch.options import CACHED
from flash.launch.shapes import LAYOUTS
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.mods.trace import AUX
from flash.problem.features import ANGLES
from flash.problem.outputs import OUTPUTS
from flash.scores.features import CacheArguments, require_known, takes
from ptxgen.errors import LaunchError

_CALLER: Final = CACHED
_STATE: Final = "_torch_state"  # the attribute of a cache: torch.compile follows attributes
_CACHES: Final = weakref.WeakValueDictionary[int, KVCache]()
_NUMBERS: Final = itertools.count()
_OF_SEQUENCES: Final = ("cache_batch_idx", "leftpad")  # integers of each batch item
_NO_GRADIENTS: Final = "there is no backward pass of attention over a KV cache"
_SETTINGS: Final = Schema(_CALLER, CacheArguments, (("layer", "SymInt"), ("head_dim_v", "int")))
_ARRAYS: Final = (*ANGLES, *_SETTINGS.arrays)
_TENSORS: Final = ("state", "out", *MATRICES, *_OF_SEQUENCES, *_ARRAYS)


@takes(CachedArguments, **DEFAULTS)
def attention_with_kvcache(
    q: Tensor,
    cache: KVCache,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    layer: int,
    **arguments: Unpack[CachedArguments],
) -> Any:
    """`flash.attention_with_kvcache` of torch tensors, as the operator
    `ptxgen_flash::attention_with_kvcache`, which torch.compile knows.

    All arguments, shapes and results are those of `flash.attention_with_kvcache`, and so are the
    exceptions. A cache that was never used here is given to `track` before code with it is compiled.
    Under autocast q, k and v become of the type of autocast, which must then be that of the cache.

    Raises `LaunchError` for tensors that require gradients, which are not computed; for distributed
    and nested tensors; under torch.func.vmap; and under torch.export, because a cache belongs to its
    process.
    """
    require_known(_CALLER, arguments, CachedArguments, attention_with_kvcache)
    options: dict[str, Any] = {**DEFAULTS, **arguments, "layer": layer}
    out, inputs = options.get("out"), {"q": q, "k": k, "v": v}
    arrays = {name: options.get(name) for name in _ARRAYS}
    named = {**inputs, **arrays, "out": out}
    require_plain(_CALLER, named, ("q",))
    require_no_tangents(_CALLER, named)
    require_no_tracking(_CALLER, tracked(named), _NO_GRADIENTS)
    if torch.compiler.is_exporting():
        raise LaunchError(
            f"{_CALLER}: torch.export cannot export a call with a KV cache, which belongs to its process; "
            "export flash.adapters.torch.attention of all keys, or compile with torch.compile"
        )
    state = track(cache)
    functions = functions_of(_CALLER, *(options.get(name) for name in (SCORE_MOD, MASK_MOD, AUX)))
    asked = _SETTINGS.checked({**options, "head_dim_v": cache.head_dim_v})
    sequences = [_integers(options.get(name)) for name in _OF_SEQUENCES]
    if asked is None or not all(x is None or isinstance(x, Tensor) for x in sequences):
        _refuse({"cache": cache, **inputs, **options})
        raise AssertionError(f"flash.{_CALLER} takes arguments that no schema has")
    plain = _SETTINGS.plain(asked, functions)
    result, *others = _OPERATOR(state, out, q, k, v, *sequences, *arrays.values(), functions.tensors, *plain)
    result = result if out is None else out
    wanted = [x for output, x in zip(OUTPUTS, others, strict=True) if asked[output.option]]
    return (result, *wanted) if wanted else result


def track(cache: KVCache) -> Tensor:
    """The tensor that represents a cache in operators, made at the first call. Compiled code needs it to
    exist: call `track(cache)` before.

    Raises `LaunchError` if `cache` is no `flash.KVCache`.
    """
    state = getattr(cache, _STATE, None)
    if state is None:
        state = _new_state(cache)
    return state


def _new_state(cache: KVCache) -> Tensor:
    if torch.compiler.is_compiling():
        raise LaunchError(
            f"{_CALLER}: a cache in compiled code must be known before it is compiled; call "
            "flash.adapters.torch.track(cache) once"
        )
    if not isinstance(cache, KVCache):
        raise LaunchError(f"{_CALLER}: cache must be a flash.KVCache, got {type(cache).__name__}")
    number = next(_NUMBERS)
    _CACHES[number] = cache
    state = torch.tensor([number, 0], device="cpu")  # whatever the default device is
    setattr(cache, _STATE, state)
    return state


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _refuse(arguments: Mapping[str, Any]) -> None:
    """Raise the error of `flash.attention_with_kvcache` for arguments of types that no schema has."""
    flash.attention_with_kvcache(**arguments)


def _integers(argument: Any) -> Any:
    """An argument as a tensor, if it is a list or an array of numbers; unchanged if it is neither."""
    if argument is None or isinstance(argument, Tensor):
        return argument
    try:
        return torch.as_tensor(argument, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return argument


def _read(arguments: Sequence[Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """The tensors of the operator by name, those of aux, and its other arguments."""
    count = len(_TENSORS)
    tensors = dict(zip(_TENSORS, arguments, strict=False))
    return tensors, arguments[count], _SETTINGS.read(arguments[count + 1 :])


def _run(*arguments: Any) -> tuple[Tensor, ...]:
    tensors, aux, asked = _read(arguments)
    state, q, out = tensors.pop("state"), tensors["q"], tensors["out"]
    state[1] += 1
    results = flash.attention_with_kvcache(
        cache=_CACHES[int(state[0])],
        layer=asked["layer"],
        **tensors,
        **_SETTINGS.scores(asked, None, aux),
        **_SETTINGS.of_results(asked),
    )
    result, *others = spread(results, asked)
    return (result if out is None else q.new_empty((0,)), *[or_empty(x, q) for x in others])


def _fake(*arguments: Any) -> tuple[Tensor, ...]:
    tensors, _, asked = _read(arguments)
    q = tensors["q"]
    require_values(_CALLER, q, {name: x for name, x in tensors.items() if x is not None})
    rows = tuple(q.shape[:-1])
    shapes = [shape_of(o, q, LAYOUTS[0]) if asked[o.option] else (0,) for o in OUTPUTS]
    return (
        q.new_empty((*rows, asked["head_dim_v"]) if tensors["out"] is None else (0,)),
        *[q.new_empty(shape, dtype=torch.float32) for shape in shapes],
    )


def _pairs(arguments: flops.Arguments) -> int:
    """The pairs of queries and keys of a call that has appended its keys."""
    cache, sequences = _CACHES[int(arguments["state"][0])], arguments["cache_batch_idx"]
    lengths = cache.lengths[arguments["layer"]].tolist()
    if sequences is not None:
        lengths = [lengths[n] for n in sequences.tolist()]
    _, heads, rows, _ = arguments["q"].shape
    return int(heads * rows * sum(lengths))


def _refuse_vmap(*_: Any, **__: Any) -> Any:
    raise LaunchError(
        f"{_CALLER}: torch.func.vmap cannot map over calls that write to one KV cache; give the sequences "
        "as the batch of one call"
    )


_TYPES: Final = {"state": "Tensor(a!)", "out": "Tensor(b!)?", "q": "Tensor"}
_SCHEMA: Final = ", ".join(f"{_TYPES.get(name, 'Tensor?')} {name}" for name in _TENSORS)
_OPERATOR: Final = library.declare(
    _CALLER,
    f"({_SCHEMA}, Tensor[]? aux, {_SETTINGS.text}) -> ({', '.join(['Tensor'] * (1 + len(OUTPUTS)))})",
    _run,
    _fake,
    tuple(map(_TENSORS.index, MATRICES)),
)
flops.count(_OPERATOR, _pairs)
library.refuse_gradients(_OPERATOR, _CALLER, _NO_GRADIENTS, written=(0, 1))
torch.library.register_vmap(f"{library.NAMESPACE}::{_CALLER}", _refuse_vmap, lib=library.LIBRARY)
