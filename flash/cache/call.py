"""A checked call of attention over a KV cache: the arguments of the call become a `Task`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flash.cache.cache import KVCache
from flash.cache.checks import (
    Rows,
    check_choices,
    config_of,
    problems_of_kernels,
    problems_of_others,
    problems_of_rotary,
    problems_of_rows,
    rows_of_call,
)
from flash.calls.operation import set_initial
from flash.decode.operation import Decode, append_to, decode_to
from flash.host import results
from flash.host.caller import Caller, outputs_of, raise_problems
from flash.launch.arguments import together_problems
from flash.launch.checks import scale as scale_of
from flash.mods.trace import AUX
from flash.operands.dtype_names import AnyArray, Auto, Backend, Causal
from flash.operands.dtypes import F32, OF_ARRAYS
from flash.problem.config import AttentionConfig
from flash.problem.features import ANGLES
from flash.problem.outputs import OUTPUTS, Output
from flash.problem.splits import splits_of
from flash.scores.aux_arrays import flattened, with_captured
from flash.scores.features import CACHE_ARRAYS, CacheArguments, require_known, settings_of_call
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView, view
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS


class CachedOptions(CacheArguments, total=False):
    """The arguments of `attention_with_kvcache` and `DecodeStep` that are given by name, beside
    `layer` and `return_lse`.
    """

    causal: Causal
    softmax_scale: float | None
    cache_batch_idx: AnyArray | Sequence[int] | None
    leftpad: AnyArray | Sequence[int] | None
    rotary_cos: AnyArray | None
    rotary_sin: AnyArray | None
    rotary_interleaved: bool
    out: AnyArray | None
    splits: int | Auto
    backend: Backend
    stream: object


class CachedArguments(CachedOptions, total=False):
    """All arguments that are given by name, beside `layer`."""

    return_lse: bool
    return_max_logit: bool


# The defaults that are not None.
DEFAULTS: Final[dict[str, Any]] = {
    "causal": True,
    "rotary_interleaved": False,
    **{output.option: False for output in OUTPUTS},
    "splits": AUTO,
    "backend": AUTO,
}
_NOT_COMPARED: Final = ("cache_batch_idx", "leftpad", "backend", "stream", AUX)
_ARRAYS: Final = ("out", *ANGLES, *CACHE_ARRAYS)
_OTHERS: Final = frozenset(("q", "k", "v", "out", *ANGLES))  # the arrays that no score depends on


class Results(NamedTuple):
    """The arrays that a call returns: out, and by name those of `OUTPUTS` that it asked for."""

    out: Any
    others: Mapping[str, Any]

    @property
    def returned(self) -> Any:
        """out, or a tuple of it and of what else was asked for."""
        return (self.out, *self.others.values()) if self.others else self.out


class Task(NamedTuple):
    """A checked call. `caller` is the name of the called function, for messages. `sequences` holds the
    sequence of each item, `padding` how many of its first rows are no keys, `views` the arrays of
    the call by name, `out` and `outputs` (by name) those that are written, and `results` the same as
    the caller gets them. `splits` None is "auto". `longest` is the most keys that a
    sequence may have. `stream` is None for the current stream of q's library. A task that `is_repeated`
    has memory of its own for its small arrays (lengths, indices); that of others may be reused by the
    next call.
    """

    caller: str
    cache: KVCache
    layer: int
    backend: str
    config: AttentionConfig
    decode: Decode
    scale: float
    sequences: list[int]
    padding: list[int]
    views: Mapping[str, ArrayView]
    interleaved: bool
    splits: int | None
    longest: int
    stream: int | None
    out: ArrayView
    outputs: Mapping[str, ArrayView]
    results: Results
    is_repeated: bool

    @property
    def new_rows(self) -> int:
        """The number of new rows of each item."""
        return self.views["k"].shape[2] if "k" in self.views else 0

    @property
    def rows(self) -> Rows:
        """The sequences of the items, with their current lengths in the cache and their padding."""
        after = self.cache.ledger.of(self.layer, self.sequences)
        return Rows(self.sequences, after, self.padding)

    @property
    def operands(self) -> dict[str, ArrayView]:
        """The arrays that change scores, by name."""
        return {name: array for name, array in self.views.items() if name not in _OTHERS}


def checked(
    function: Callable[..., Any],
    q: object,
    cache: KVCache,
    k: object,
    v: object,
    layer: int,
    given: CachedArguments,
    *,
    repeated: bool,
) -> Task:
    """The task of a call of `function`, with the arguments of `attention_with_kvcache`; results
    are allocated. A task that is `repeated` may have as many keys as the cache has room for.

    Raises what `attention_with_kvcache` raises before anything is launched.
    """
    caller = function.__qualname__.partition(".")[0]  # of a method: the class
    require_known(caller, given, CachedArguments, function)
    arguments: Mapping[str, Any] = with_captured(caller, {**_NOT_GIVEN, **DEFAULTS, **given})
    stream, out = arguments["stream"], arguments["out"]
    name = check_choices(caller, cache, arguments)
    layer = cache.check_layer(caller, layer)
    arrays = {"q": q, "k": k, "v": v, **{name: arguments[name] for name in _ARRAYS}}
    if arguments[AUX] is not None:
        arrays |= flattened(caller, {AUX: arguments[AUX]})
    arrays = {name: array for name, array in arrays.items() if array is not None or name == "q"}
    operation = append_to(cache.cuda, caller)
    views = operation.read(arrays, None)
    if name == "cuda":
        operation.require_located(views.values())
        if repeated:  # later writes are ordered by the stream
            views = {key: array._replace(stream=None) for key, array in views.items()}
    which = cache.check_sequences(caller, arguments["cache_batch_idx"], "cache_batch_idx", repeated=k is None)
    asked = _asked(caller, cache, name, arguments, views, len(which))
    new = views["k"].shape[2] if "k" in views else 0
    rows = rows_of_call(caller, cache, layer, which, new, arguments["leftpad"])
    if "rotary_cos" in views:
        raise_problems(list(problems_of_rotary(cache, views, rows)), caller)

    like = views["q"]._replace(device=cache.memory.device)  # an empty q may not have its device
    explicit = None if name != "cuda" or stream is None else streams.stream_handle(stream, caller)
    shape = (*like.shape[:3], cache.head_dim_v)
    room = functools.partial(results.empty, like, memory=cache.cuda, stream=explicit)
    made = room(shape, asked.config.element) if out is None else out
    others = {o.name: room(o.shape(*shape[:3], packed=False), F32) for o in asked.outputs}
    own = {name: _new(array, name) for name, array in others.items()}
    if 0 in shape[:3]:
        for output in asked.outputs:
            array = own[output.name]._replace(device=like.device)
            set_initial(cache.cuda, array, output.initial, cache.stream_of(caller, explicit, like))
    longest = cache.capacity if repeated else max(rows.after, default=0)
    return Task(
        caller,
        cache,
        layer,
        name,
        asked.config,
        asked.decode,
        asked.scale,
        which,
        rows.padding,
        views,
        arguments["rotary_interleaved"],
        asked.splits,
        longest,
        explicit,
        views["out"] if "out" in views else _new(made, "out"),
        own,
        Results(
            made if "out" in views else results.deliver(made, like),
            {name: results.deliver(array, like) for name, array in others.items()},
        ),
        repeated,
    )


class Asked(NamedTuple):
    """What a call asks for, with arrays that are right for it."""

    config: AttentionConfig
    scale: float
    splits: int | None
    outputs: tuple[Output, ...]
    decode: Decode


def _asked(
    caller: str,
    cache: KVCache,
    backend: str,
    arguments: Mapping[str, Any],
    views: dict[str, ArrayView],
    items: int,
) -> Asked:
    """What a call of so many items asks for, which is kept for calls that ask for the same with arrays that
    differ in addresses alone. Raises `LaunchError` with the problems of its arrays, `ConfigError` for what a
    config refuses.
    """
    choices = [arguments[name] for name in _CHOICES]
    if arguments[AUX] is not None:  # arrays that are not compared
        return _checked(caller, cache, backend, arguments, views, items)
    of = (caller, backend, items, *choices, *map(type, choices))
    try:
        found = cache.known_calls.get(of, views, _WRITTEN)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _checked(caller, cache, backend, arguments, views, items)
    if found is None:
        found = _checked(caller, cache, backend, arguments, views, items)
        if all(array.dtype in OF_ARRAYS for array in views.values()):  # else its rotary tables are refused
            cache.known_calls.keep(of, views, _WRITTEN, found)
    return found


def _checked(
    caller: str,
    cache: KVCache,
    backend: str,
    arguments: Mapping[str, Any],
    views: dict[str, ArrayView],
    items: int,
) -> Asked:
    raise_problems(together_problems(views, ("k", "v"), ANGLES), caller)
    splits = splits_of(caller, arguments["splits"])
    outputs = outputs_of(caller, arguments)
    raise_problems(list(problems_of_rows(cache, views, items)), caller)
    config = config_of(
        caller,
        cache.head_dim,
        cache.head_dim_v,
        OF_ARRAYS[views["q"].dtype].name,
        arguments["causal"],
        *settings_of_call(arguments, _no_type),
    )
    raise_problems(list(problems_of_others(config, views)), caller)
    if backend not in WITHOUT_KERNELS:
        raise_problems(list(problems_of_kernels(cache, config, views, backend)), caller)
    scale = scale_of(config, arguments["softmax_scale"], Caller(caller, has_config=False))
    return Asked(config, scale, splits, outputs, decode_to(cache.cuda, caller, config))


_WRITTEN: Final = ("out",)
_NOT_GIVEN: Final[dict[str, Any]] = dict.fromkeys(CachedArguments.__annotations__)


def _new(array: object, name: str) -> ArrayView:
    """The view of a new array, which no earlier work writes."""
    return view(array, name)._replace(stream=None)


def _no_type(array: object, name: str) -> str:
    """Raise AssertionError: no feature of a KV cache has a type of its own to choose."""
    raise AssertionError(f"{name}: {array!r}")


_CHOICES: Final = tuple([name for name in _NOT_GIVEN if name not in (*_ARRAYS, *_NOT_COMPARED)])
