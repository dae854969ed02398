"""A checked call of attention over a KV cache: the arguments of the call become a `Task`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flash.cache.cache import KVCache
from flash.calls.backend import stream_without_gpu
from flash.calls.operation import set_initial
from flash.decode.checks import (
    QUERY_AXES,
    matrix_of_config,
    problems_of_operands,
    problems_of_size,
    widening_problems,
)
from flash.decode.operation import Decode, Launches, append_to, decode_to
from flash.decode.plan import CacheCall
from flash.host import results
from flash.host.caller import Caller, outputs_of, raise_problems
from flash.launch.arguments import (
    Argument,
    address_problems,
    heads_problems,
    out_problems,
    problems_of_shapes,
    sharing_problems,
    together_problems,
    type_and_row_problems,
)
from flash.launch.checks import scale as scale_of
from flash.launch.rotary import ANGLE_AXES, angle_problems
from flash.mods.trace import AUX
from flash.operands.dtype_names import AnyArray, Auto, Backend, Causal
from flash.operands.dtypes import DTYPES, F32, OF_ARRAYS
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
        """The number of new rows of each item."""
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
    arrays = {"q": q, "k": k, "v": v, **{name: arguments[name] for name in _ARRAYS}}
    if arguments[AUX] is not None:
        arrays |= flattened(caller, {AUX: arguments[AUX]})
    arrays = {name: array for name, array in arrays.items() if array is not None or name == "q"}
    operation = append_to(cache.cuda, caller)
    views = operation.read(arrays, None)
    on_gpu = name == "cuda"
    if on_gpu:
        operation.require_located(views.values())
        if repeated:  # later writes are ordered by the stream
            views = {key: array._replace(stream=None) for key, array in views.items()}
    which = cache.check_sequences(caller, arguments["cache_batch_idx"], "cache_batch_idx", repeated=k is None)
    # Geometries that passed all checks are known: for these, only numbers are checked again.
    key = _key(caller, name, len(which), options, arguments)
    known: Asked | None = None if key is None else cache.known_calls.get(key, views, _WRITTEN)
    asked = known or _asked(caller, cache, name, arguments, views, len(which))
    ends = cache.ledger.of(layer, which)
    if "k" in views:
        new = views["k"].shape[2]
        ends = [length + new for length in ends]
    padding = _padding_of(caller, ends, arguments["leftpad"])
    if ANGLES[0] in views:
        require_angles(caller, cache, views, ends, padding, is_known=known is not None)
    # Arrays of types that a later check refuses are not compared.
    if known is None and key is not None and all(array.dtype in OF_ARRAYS for array in views.values()):
        cache.known_calls.keep(key, views, _WRITTEN, asked)

    like = views["q"]
    if like.device != cache.memory.device:  # an empty q may not have its device
        like = like._replace(device=cache.memory.device)
    explicit = None if not on_gpu or stream is None else streams.stream_handle(stream, caller)
    room = functools.partial(results.empty, like, memory=cache.cuda, stream=explicit)
    shape = (*like.shape[:3], cache.head_dim_v)
    into = room(shape, asked.config.element) if out is None else out
    others, outputs = dict[str, object](), dict[str, ArrayView]()
    for output in asked.outputs:
        array = others[output.name] = room(output.shape(*shape[:3], packed=False), F32)
        of_output = outputs[output.name] = _new(array, output.name)
        if 0 in shape[:3]:
            there = of_output._replace(device=like.device)
            set_initial(cache.cuda, there, output.initial, cache.stream_of(caller, explicit, like))
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
        _new(into, "out") if out is None else views["out"],
        outputs,
        cache.capacity if repeated else max(ends, default=0),
        arguments["rotary_interleaved"],
        explicit,
        Results(
            results.deliver(into, like) if out is None else into,
            {name: results.deliver(array, like) for name, array in others.items()} if others else others,
        ),
        repeated,
    )


def _new(array: object, name: str) -> ArrayView:
    """The view of a new array, which no earlier work writes."""
    return view(array, name)._replace(stream=None)


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
    raise_problems(_problems_of_rows(cache, views, items), caller)
    dtype = OF_ARRAYS[views["q"].dtype].name
    settings = settings_of_call(arguments, _no_type)
    of_call = (caller, cache.head_dim, cache.head_dim_v, dtype, arguments["causal"], *settings)
    try:
        config = _config_of(*of_call)
    except TypeError:  # a setting without a hash, which the config refuses
        config = _config_of.__wrapped__(*of_call)
    raise_problems(_problems_of_others(config, views), caller)
    if backend not in WITHOUT_KERNELS:
        raise_problems(_problems_of_kernels(cache, config, views, backend), caller)
    scale = scale_of(config, arguments["softmax_scale"], Caller(caller, has_config=False))
    return Asked(config, scale, splits, outputs, decode_to(cache.cuda, caller, config), BoundedCache())


def _no_type(array: object, name: str) -> str:
    """Raise AssertionError: no array of a KV cache's features has a type of its own to choose."""
    raise AssertionError(f"{name}: {array!r}")


@functools.lru_cache(maxsize=128, typed=True)
def _config_of(
    caller: str, head_dim: int, head_dim_v: int, dtype: str, causal: bool | str, *scores: Any
) -> AttentionConfig:
    """The config of a call. Raises `ConfigError`."""
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
    if not is_one_of(causal, _CAUSAL):
        raise ConfigError(
            f"{caller}: causal must be True, False or 'bottom_right', got {shown(causal)}: the newest "
            "query is at the position of the newest key"
        )
    if not isinstance(order, bool):
        raise ConfigError(f"{caller}: rotary_interleaved must be True or False, got {shown(order)}")
    return name


def _problems_of_rows(cache: KVCache, views: dict[str, ArrayView], items: int) -> Iterator[str]:
    """Say what is wrong with the devices of the arrays, and with the types and shapes of q, k and v."""
    device = cache.memory.device
    where = "the host" if device == HOST else f"{device[0]}:{device[1]}"
    yield from (
        f"{name} must be on {where}, where the cache is, got {array.device_name}; copy it there"
        for name, array in views.items()
        if array.device != device and array.size and name not in ("k", "v")  # checked by the cache
    )
    q = views["q"]
    argument, sizes = cache.argument("q", QUERY_AXES), {"batch": items, "head_dim": cache.head_dim}
    yield from argument.type_problems(q)
    yield from argument.shape_problems(tuple(q.shape), sizes)
    yield from heads_problems(sizes.get("heads", 0), cache.kv_heads, "the cache")
    if "k" in views:
        yield from cache.problems_of_rows(views["k"], views["v"], items)
        on_gpu = device != HOST and appends_by_kernel(cache, views, "cuda")
        if "rotary_cos" in views and on_gpu:
            yield from _problems_of_types(views)


def _problems_of_others(config: AttentionConfig, views: dict[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with alibi_slopes, mask and sink, and with out."""
    q = views["q"]
    batch, heads, seq_q = q.shape[:3]
    yield from problems_of_operands(config, views)
    out = views.get("out")
    if out is None:
        return
    if out.dtype != q.dtype:
        yield f"out must be {q.dtype}, as q is, got {out.dtype}; leave out=None to have it made"
        return
    yield from out_problems(out, (batch, heads, seq_q, config.value_dim))
    yield from sharing_problems(("out",), views)


def _problems_of_kernels(
    cache: KVCache, config: AttentionConfig, views: dict[str, ArrayView], backend: str
) -> Iterator[str]:
    """Say why kernels cannot compute a call that numpy could."""
    if cache.element.is_narrow:
        yield from widening_problems(config, repr(cache.dtype), backend)
    if backend == "cuda":
        for name in ("k", "v"):
            if name in views:
                yield from address_problems(name, views[name], OF_ARRAYS[views[name].dtype].nbytes)
        if "rotary_cos" in views:
            yield from _problems_of_rotation(cache, views)
    declared = [matrix_of_config(config, name, QUERY_AXES) for name in ("q", "out")]
    yield from type_and_row_problems(declared, views)
    yield from problems_of_size(views["q"], cache.capacity)


def appends_by_kernel(cache: KVCache, views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel writes the new rows: if there are any, on the device of the cache. On the
    host a kernel writes only rows of a type and layout that it takes; others are converted by
    numpy.
    """
    device = cache.memory.device
    new = [views[name] for name in "kv" if name in views]
    if backend in WITHOUT_KERNELS or not new or not all(a.size and a.device == device for a in new):
        return False
    if backend == "cuda":
        return True
    tables = [views[name] for name in ANGLES if name in views]
    rotated = [views["q"], *new] if tables else new
    return (
        all(array.strides[-1] == 1 or array.shape[-1] == 1 for array in (*new, *tables))
        and all(_is_aligned(array) for array in (*new, *tables))
        and all(table.dtype == F32.array_name for table in tables)
        and len({array.dtype for array in rotated}) == 1
    )


def joins_by_kernel(cache: KVCache, views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel writes the new rows, if there are any, and rotates them and the queries."""
    return appends_by_kernel(cache, views, backend) or rotates_by_kernel(views, backend)


def rotates_by_kernel(views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel rotates the queries of a call without new rows; on the host numpy does."""
    has_rows = any(name in views and views[name].size for name in "kv")
    return backend == "cuda" and not has_rows and ANGLES[0] in views


def _is_aligned(array: ArrayView) -> bool:
    """Whether an array begins at a multiple of its element size; True for unknown types."""
    element = OF_ARRAYS.get(array.dtype)
    return element is None or array.pointer % element.nbytes == 0


def _problems_of_types(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the types of q and k: the kernel that rotates them takes one type."""
    types = {name: views[name].dtype for name in ("q", "k")}
    if len(set(types.values())) > 1:
        yield (
            "q and k that are rotated on a GPU must be of one type, got "
            f"{', '.join(types.values())}; convert them"
        )


def _problems_of_rotation(cache: KVCache, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with new rows and rotary tables: the kernel reads both on the GPU."""
    if not joins_by_kernel(cache, views, "cuda"):
        yield (
            "rotary_cos and rotary_sin are given, but new k and v are rotated only if they are on the GPU "
            "of the cache; copy them there, or rotate q and k before the call"
        )
    declared = [Argument(name, ANGLE_AXES, (F32,), "as kernels take it") for name in ANGLES]
    yield from type_and_row_problems(declared, views)


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


def require_angles(
    caller: str,
    cache: KVCache,
    views: Mapping[str, ArrayView],
    ends: Iterable[int],
    padding: Iterable[int],
    *,
    is_known: bool,
) -> None:
    """Raise `LaunchError` for rotary tables that do not serve sequences of `ends` rows with `padding`. Of
    tables that `is_known` says were checked before, only the number of positions is compared.
    """
    needed = max(map(operator.sub, ends, padding), default=0)
    if not is_known or views[ANGLES[0]].shape[0] < needed:
        raise_problems(_problems_of_rotary(cache, views, needed), caller)


def _problems_of_rotary(cache: KVCache, views: Mapping[str, ArrayView], needed: int) -> Iterator[str]:
    """Say what is wrong with rotary_cos and rotary_sin for `needed` positions."""
    declared = [Argument(name, ANGLE_AXES, tuple(DTYPES.values())) for name in ANGLES]
    yield from (p for argument in declared for p in argument.type_problems(views[argument.name]))
    wrong = list(problems_of_shapes(declared, views, {}))
    yield from wrong
    if not wrong:
        yield from angle_problems(views, cache.head_dim, needed)
