"""A checked call of attention over a KV cache: the arguments of the call become a `Task`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flash.cache.cache import KVCache
from flash.cache.checks import problems_of_kernels, problems_of_others, problems_of_rows, require_angles
from flash.calls.backend import stream_without_gpu
from flash.calls.operation import set_initial
from flash.decode.operation import Decode, Launches, append_to, decode_to
from flash.decode.plan import CacheCall
from flash.host import results
from flash.host.caller import Caller, outputs_of, raise_problems
from flash.launch.arguments import together_problems
from flash.launch.checks import scale as scale_of
from flash.mods.trace import AUX
from flash.operands.dtype_names import AnyArray, Auto, Backend, Causal
from flash.operands.dtypes import F32, OF_ARRAYS
from flash.pages.numbers import integers
from flash.problem.config import AttentionConfig, config_of_call
from flash.problem.features import ANGLES
from flash.problem.limits import INT32_MAX
from flash.problem.outputs import OUTPUTS, Output
from flash.problem.splits import splits_of
from flash.scores.aux_arrays import flattened, with_captured
from flash.scores.features import (
    CACHE_ARRAYS,
    CacheArguments,
    named_settings,
    require_known,
    settings_of_call,
)
from ptxgen.arguments import is_one_of
from ptxgen.arrays import streams
from ptxgen.arrays.views import HOST, ArrayView, view
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS


class CachedOptions(CacheArguments, total=False):
    """The keyword arguments of `attention_with_kvcache` and `DecodeStep`, without `layer` and the choices of
    results.
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
    """All keyword arguments of `attention_with_kvcache` and `DecodeStep` but `layer`."""

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
_ALL_DEFAULTS: Final[dict[str, Any]] = {**dict.fromkeys(CachedArguments.__annotations__), **DEFAULTS}
_NOT_COMPARED: Final = ("cache_batch_idx", "leftpad", "backend", "stream", AUX)
_ARRAYS: Final = ("out", *ANGLES, *CACHE_ARRAYS)
_CHOICES: Final = frozenset(_ALL_DEFAULTS) - {*_ARRAYS, *_NOT_COMPARED}
_NO_SCORES: Final = frozenset(("q", "k", "v", "out", *ANGLES))  # the arrays that no score depends on
_WRITTEN: Final = ("out",)
_NO_ARRAYS: Final[dict[str, Any]] = {}
_CAUSAL: Final = (True, False, "bottom_right")


class Results(NamedTuple):
    """The arrays that a call returns: out, and by name those of `OUTPUTS` that it asked for."""

    out: Any
    others: Mapping[str, Any]

    @property
    def returned(self) -> Any:
        """out, or a tuple of out and of the other outputs that the call asked for."""
        return (self.out, *self.others.values()) if self.others else self.out


class Asked(NamedTuple):
    """The checked choices of a call: config, scale, splits and outputs; its operation; and the launches of
    calls that ask for the same with arrays that differ in addresses alone, by what else these depend on.
    """

    config: AttentionConfig
    scale: float
    splits: int | None
    outputs: tuple[Output, ...]
    decode: Decode
    launches: BoundedCache[tuple[object, ...], Launches]


class Task(NamedTuple):
    """A checked call. `caller` is the name of the called function, for messages. `sequences` holds the
    sequence of each item, `padding` how many of its first rows are no keys, and `views` the arrays of the
    call by name, of which `q` has the device of the cache also if it is empty; `out` and `outputs` are what
    the call writes. No sequence has more than `longest` keys. `stream` is None for the current stream of q's
    library. A task that `is_repeated` has its own memory for its small arrays (lengths, indices); that of
    others may be reused by the next call.
    """

    caller: str
    cache: KVCache
    layer: int
    backend: str
    asked: Asked
    sequences: list[int]
    padding: list[int]
    views: Mapping[str, ArrayView]
    q: ArrayView
    out: ArrayView
    outputs: Mapping[str, ArrayView]
    longest: int
    interleaved: bool
    stream: int | None
    results: Results
    is_repeated: bool

    @property
    def new_rows(self) -> int:
        """The number of rows of K and V that the call appends to each batch item."""
        return self.views["k"].shape[2] if "k" in self.views else 0

    @property
    def call(self) -> CacheCall:
        """The call that attends without new rows and rotation. It has no operands of the cache, which say
        where the rows are.
        """
        asked, of_layer = self.asked, self.cache.memory.arrays(self.layer)
        return CacheCall(
            asked.config,
            self.q,
            of_layer.k,
            of_layer.v,
            self.out,
            self.outputs,
            {name: array for name, array in self.views.items() if name not in _NO_SCORES},
            self.cache.page_size or 0,
            self.longest,
            asked.scale,
            asked.splits,
            self.interleaved,
            self.cache.blocks,
        )

    @property
    def arrays(self) -> dict[str, ArrayView]:
        """The arrays of launches that write new rows and attend, by name, without those of the cache that say
        where the rows are.
        """
        views, of_layer = self.views, self.cache.memory.arrays(self.layer)
        arrays = {**views, **self.outputs, "q": self.q, "out": self.out, "k": of_layer.k, "v": of_layer.v}
        if "k" in views:
            arrays["k_new"], arrays["v_new"] = views["k"], views["v"]
        return arrays


def checked(
    function: Callable[..., Any],
    q: object,
    cache: KVCache,
    k: object,
    v: object,
    layer: int,
    options: CachedArguments,
    *,
    repeated: bool,
) -> Task:
    """The checked task of a call of `function`, with the arguments of `attention_with_kvcache`; results
    are allocated. A task that is `repeated` may have as many keys as the cache has room for.

    Raises what `attention_with_kvcache` raises before anything is launched.
    """
    caller = function.__qualname__.partition(".")[0]  # of a method: the class
    require_known(caller, options, CachedArguments, function)
    arguments: Mapping[str, Any] = with_captured(caller, {**_ALL_DEFAULTS, **options})
    stream, out = arguments["stream"], arguments["out"]
    name = _backend_of(caller, cache, arguments)
    layer = cache.check_layer(caller, layer)
    on_gpu, operation = name == "cuda", append_to(cache.cuda, caller)
    views = operation.read(_arrays(caller, q, k, v, arguments), None)
    if on_gpu:
        operation.require_located(views.values())
        if repeated:  # later writes are ordered by the stream
            views = {key: array._replace(stream=None) for key, array in views.items()}
    which = cache.check_sequences(caller, arguments["cache_batch_idx"], "cache_batch_idx", repeated=k is None)
    # Geometries that passed all checks are known: for these, only numbers are checked again.
    key = _key(caller, name, len(which), options, arguments)
    known: Asked | None = None if key is None else cache.known_calls.get(key, views)
    asked = known or _asked(caller, cache, name, arguments, views, len(which))
    ends = cache.ledger.of(layer, which)
    if "k" in views:
        new = views["k"].shape[2]
        ends = [length + new for length in ends]
    padding = _padding_of(caller, ends, arguments["leftpad"])
    if ANGLES[0] in views:
        require_angles(caller, cache, views, ends, padding, is_known=known is not None)
    if known is None and key is not None:
        cache.known_calls.keep(key, views, _WRITTEN, asked)

    like = views["q"]
    if like.device != cache.memory.device:  # an empty q may not have its device
        like = like._replace(device=cache.memory.device)
    explicit = None if not on_gpu or stream is None else streams.stream_handle(stream, caller)
    returned = Results(out, _NO_ARRAYS)
    written, outputs = views.get("out"), _NO_ARRAYS
    if written is None or asked.outputs:
        returned, written, outputs = _room(caller, cache, asked, like, explicit, out, written)
    return Task(
        caller,
        cache,
        layer,
        name,
        asked,
        which,
        padding,
        views,
        like,
        written,
        outputs,
        cache.capacity if repeated else max(ends, default=0),
        arguments["rotary_interleaved"],
        explicit,
        returned,
        repeated,
    )


def _arrays(caller: str, q: object, k: object, v: object, arguments: Mapping[str, Any]) -> dict[str, object]:
    """The arrays of a call by name: q, and those of the others that are not None."""
    arrays = {"q": q}
    if k is not None:
        arrays["k"] = k
    if v is not None:
        arrays["v"] = v
    for name in _ARRAYS:
        array = arguments[name]
        if array is not None:
            arrays[name] = array
    if arguments[AUX] is not None:
        of_functions = flattened(caller, {AUX: arguments[AUX]})
        arrays |= {name: array for name, array in of_functions.items() if array is not None}
    return arrays


def _room(
    caller: str,
    cache: KVCache,
    asked: Asked,
    q: ArrayView,
    stream: int | None,
    out: Any,
    written: ArrayView | None,
) -> tuple[Results, ArrayView, dict[str, ArrayView]]:
    """New arrays for the results of a call, among them out if it is None, as the call returns them; and the
    views of out, by default `written`, and of the other results.
    """
    room = functools.partial(results.empty, q, memory=cache.cuda, stream=stream)
    shape = (*q.shape[:3], cache.head_dim_v)
    if written is None:
        into = room(shape, asked.config.element)
        out, written = results.deliver(into, q), _new(into, "out")
    others, outputs = dict[str, object](), dict[str, ArrayView]()
    for output in asked.outputs:
        array = room(output.shape(*shape[:3], packed=False), F32)
        others[output.name] = results.deliver(array, q)
        of_output = outputs[output.name] = _new(array, output.name)
        if 0 in shape[:3]:
            there = of_output._replace(device=q.device)
            set_initial(cache.cuda, there, output.initial, cache.stream_of(caller, stream, q))
    return Results(out, others), written, outputs


def _new(array: object, name: str) -> ArrayView:
    """The view of a new array, which no earlier work writes."""
    of = view(array, name)
    return of if of.stream is None else of._replace(stream=None)


def _key(
    caller: str, backend: str, items: int, options: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[object, ...] | None:
    """A key of all that the checks of a call of `items` sequences read in addition to its arrays and their
    contents, `options` being those of its `arguments` that its caller names; None if calls like it are not
    compared.
    """
    if arguments[AUX] is not None:  # the arrays of functions are not compared
        return None
    choices = [(n, arguments[n], type(arguments[n])) for n in options if n in _CHOICES]
    key = caller, backend, items, *choices
    try:
        hash(key)
    except TypeError:  # no valid choice: the config refuses it
        return None
    return key


def _asked(
    caller: str,
    cache: KVCache,
    backend: str,
    arguments: Mapping[str, Any],
    views: dict[str, ArrayView],
    items: int,
) -> Asked:
    """What a call of `items` sequences asks for. Raises `LaunchError` with the problems of its arrays,
    `ConfigError` for what a config refuses.
    """
    raise_problems(together_problems(views, ("k", "v"), ANGLES), caller)
    splits = splits_of(caller, arguments["splits"])
    outputs = outputs_of(caller, arguments)
    raise_problems(problems_of_rows(cache, views, items), caller)
    dtype = OF_ARRAYS[views["q"].dtype].name
    settings = settings_of_call(arguments, _no_type)
    of_call = (caller, cache.head_dim, cache.head_dim_v, dtype, arguments["causal"], *settings)
    try:
        config = _config_of(*of_call)
    except TypeError:  # a setting without a hash, which the config refuses
        config = _config_of.__wrapped__(*of_call)
    raise_problems(problems_of_others(config, views), caller)
    if backend not in WITHOUT_KERNELS:
        raise_problems(problems_of_kernels(cache, config, views, backend), caller)
    scale = scale_of(config, arguments["softmax_scale"], Caller(caller, has_config=False))
    return Asked(config, scale, splits, outputs, decode_to(cache.cuda, caller, config), BoundedCache())


def _no_type(array: object, name: str) -> str:
    """Raise AssertionError: no array of a KV cache's features has a type of its own to choose."""
    raise AssertionError(f"{name}: {array!r}")


@functools.lru_cache(maxsize=128, typed=True)
def _config_of(
    caller: str, head_dim: int, head_dim_v: int, dtype: str, causal: bool | str, *scores: Any
) -> AttentionConfig:
    """The attention config of a call on a cache. Raises `ConfigError` for invalid settings."""
    return config_of_call(
        caller, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, causal=causal, **named_settings(scores)
    )


def _backend_of(caller: str, cache: object, arguments: Mapping[str, Any]) -> str:
    """The backend of a call. Raises `LaunchError` or `ConfigError` for the first invalid choice."""
    stream, causal, order = (arguments[name] for name in ("stream", "causal", "rotary_interleaved"))
    if not isinstance(cache, KVCache):
        raise LaunchError(
            f"{caller}: cache must be a flash.KVCache, got {type(cache).__name__}; make one with "
            "flash.KVCache(layers, batch, kv_heads, head_dim, capacity)"
        )
    asked = arguments["backend"]
    name = cache.backend if isinstance(asked, str) and asked == AUTO else check_backend(asked, caller)
    if (name == "cuda") != (cache.memory.device != HOST):
        where = "a GPU" if name == "cuda" else "the host"
        raise LaunchError(
            f"{caller}: backend {name!r} computes on {where}, but the cache is of "
            f"{cache.backend!r}; make one with backend={name!r}"
        )
    if stream is not None and name != "cuda":
        raise stream_without_gpu(caller, name)
    if causal is not True and not is_one_of(causal, _CAUSAL):
        raise ConfigError(
            f"{caller}: causal must be True, False or 'bottom_right', got {shown(causal)}: the newest "
            "query is at the position of the newest key"
        )
    if not isinstance(order, bool):
        raise ConfigError(f"{caller}: rotary_interleaved must be True or False, got {shown(order)}")
    return name


def _padding_of(caller: str, ends: list[int], leftpad: object) -> list[int]:
    """How many of the rows of each sequence, whose lengths are `ends`, are padding. Raises `LaunchError`."""
    if leftpad is None:
        return [0] * len(ends)
    padding = integers(leftpad, 0, INT32_MAX, len(ends))
    if padding is None or any(n > end for n, end in zip(padding, ends, strict=True)):
        raise LaunchError(
            f"{caller}: leftpad must be {len(ends)} integers, from 0 to the lengths of their "
            f"sequences, {ends}, got {shown(leftpad)}"
        )
    return padding
