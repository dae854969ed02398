"""`scaled_dot_product_attention` with PyTorch's signature and meaning, and in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Unpack

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.dense import attention
from flash.adapters.torch.tensors import (
    FLOATS,
    autocast_lowers,
    causality_of,
    dense_rows,
    heads_alternate,
    is_causal_bias,
    why_not_plain,
)
from flash.families.request import MAX_HEAD_DIM, MAX_HEAD_DIM_V
from flash.host.caller import flag
from flash.launch.options import DEFAULTS, KeyOptions, checked_options
from flash.operands.dtype_names import Causal
from flash.scores.features import require_known, takes
from flash.scores.options import SCALES, is_scale
from ptxgen.arguments import number
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.bounded_cache import BoundedCache

_CALLER: Final = "scaled_dot_product_attention"
_SDPA: Final = torch.nn.functional.scaled_dot_product_attention
_LEAST: Final = 2  # dimensions of query, key and value
_AT_MASK: Final = 3  # among the arguments by position
_FOUR: Final = 4  # dimensions that `attention` takes
_OF_SCALE: Final = (float, type(None))
# query, key, value, attn_mask, dropout_p, causality, enable_gqa and scale of a call.
_Call = tuple[Tensor, Tensor, Tensor, Tensor | None, float, Causal, bool, float | None]


@refuses_as_peers
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, computed by `attention`.

    query [..., heads, L, E], key [..., heads, S, E], value [..., heads, S, Ev]; all dimensions but
    the last two broadcast, and so does `attn_mask`, bool (False hides the key) or float (added to
    scores), to [..., heads, L, S], or a `torch.nn.attention.bias.CausalBias` of L and S. Any strides.
    `is_causal` lets query i see keys 0 to i. With `enable_gqa`
    the heads of key and value divide those of query. Returns [..., heads, L, Ev]: of a query of four
    dimensions in its memory order, as PyTorch's fused kernels do, so that the result of a query that was
    projected to [batch, L, heads, E] and transposed has heads that are joined without a copy. A row without
    a key gives 0. `dropout_p` is rounded to a multiple of 1/65536; which weights are dropped follows
    `torch.manual_seed`, but differs from PyTorch's choice.

    Raises `LaunchError` for what PyTorch computes and `attention` does not: types other than
    float32, float16 and bfloat16, E above 576 or Ev above 512, dropout_p of 1, devices other than
    CPU and CUDA, nested and distributed tensors; and for shapes that do not fit.
    """
    call = _in_order(
        *(query, key, value, attn_mask, dropout_p, is_causal), scale=scale, enable_gqa=enable_gqa
    )
    return _computed(call, {})


class replace_sdpa(TorchFunctionMode):  # type: ignore[misc]  # noqa: N801  # used as a function
    """A context in which `torch.nn.functional.scaled_dot_product_attention` is the one of this
    module: `with flash.adapters.torch.replace_sdpa(): model(x)`.

    It holds for the thread that enters it, under whatever name code has imported the function, and
    may be nested. PyTorch's fused paths of nn.MultiheadAttention and nn.TransformerEncoderLayer,
    which do not call the function, are off inside. Code that torch.compile has compiled outside is
    compiled again when it is called inside, and the other way round; code that enters the context is compiled
    without fullgraph. What autograd computes again in a backward pass (torch.utils.checkpoint) is
    computed as where `backward()` is called.

    With `fallback` calls that `attention` cannot compute are passed to PyTorch's own function; by
    default they raise `LaunchError`. The other arguments are those of `attention`.

    Raises `ConfigError` for values that no call has.
    """

    @takes(KeyOptions, **DEFAULTS)
    def __init__(self, *, fallback: bool = False, **options: Unpack[KeyOptions]) -> None:
        require_known("replace_sdpa", options, KeyOptions, replace_sdpa)
        self.options = checked_options("replace_sdpa", options, KeyOptions)
        super().__init__()
        self.fallback = fallback
        self._before: list[Any] = []

    def __enter__(self) -> replace_sdpa:
        torch.overrides.get_overridable_functions()  # PyTorch lists them once, by their names now
        with _LOCK:
            _entered.append(self)
            torch.nn.functional.scaled_dot_product_attention = _called_in_torch
        self._before.append(_CURRENT.set(self))
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        _CURRENT.reset(self._before.pop())
        with _LOCK:
            _entered.remove(self)
            if not _entered:
                torch.nn.functional.scaled_dot_product_attention = _SDPA

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        named = kwargs or {}
        return self.call(*args, **named) if func is _SDPA else func(*args, **named)

    @refuses_as_peers
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call of PyTorch's function, with `fallback` by PyTorch where `attention` cannot."""
        ordered = _in_order(*args, **kwargs)
        if self.fallback and _problem(*ordered):
            return _of_torch(*args, **kwargs)
        return _computed(ordered, self.options)


_LOCK: Final = threading.Lock()
_entered: list[replace_sdpa] = []
_CURRENT: Final = ContextVar[replace_sdpa | None]("replace_sdpa", default=None)  # of this thread


def _called_in_torch(*args: Any, **kwargs: Any) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention` while a thread is in `replace_sdpa`: for
    functions of that module, in which PyTorch turns modes off.
    """
    if torch.compiler.is_dynamo_compiling():  # which traces the modes of its thread, but no ContextVar
        modes = torch.overrides._get_current_function_mode_stack()
        sdpa = _SDPA if any(isinstance(mode, replace_sdpa) for mode in modes) else _of_torch
        return sdpa(*args, **kwargs)
    current = _CURRENT.get()
    return _of_torch(*args, **kwargs) if current is None else current.call(*args, **kwargs)


def _of_torch(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's own function. A `CausalBias` compares what is called with
    `torch.nn.functional.scaled_dot_product_attention`, which is not PyTorch's while a thread is in
    `replace_sdpa`, and would be taken for the elements of its memory, which it never writes.
    """
    mask: Any = kwargs.get("attn_mask", args[_AT_MASK] if len(args) > _AT_MASK else None)
    return mask._dispatch(*args, **kwargs) if is_causal_bias(mask) else _SDPA(*args, **kwargs)


def _computed(call: _Call, options: Mapping[str, Any]) -> Tensor:
    """The result of `scaled_dot_product_attention` for the arguments of `_problem`, in their order, with
    these options of `attention`.
    """
    problem = _problem(*call)
    if problem:
        raise LaunchError(f"{_CALLER}: {problem}")
    return _attend(*call, options)


def _in_order(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Call:
    """The arguments of a call in the order of those of `_problem`. Raises `LaunchError` for a causality that
    is no flag.
    """
    is_causal, enable_gqa = _flag("is_causal", is_causal), _flag("enable_gqa", enable_gqa)
    causal: Causal = "top_left" if is_causal else False
    if not is_causal and (means := causality_of(attn_mask, query, key)):
        causal, attn_mask = means, None
    return query, key, value, attn_mask, dropout_p, causal, enable_gqa, scale


_in_order.__qualname__ = _CALLER  # the name in Python's TypeErrors for arguments that do not fit


def _flag(name: str, value: object) -> bool:
    return flag(_CALLER, name, bool(value) if isinstance(value, torch.SymBool) else value)


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    causal: Causal,
    enable_gqa: bool,
    scale: float | None = None,
) -> str:
    """Why `attention` does not compute a call; "" if it does."""
    if causal and is_causal_bias(attn_mask):  # in the words of PyTorch, whose tests ask for them
        return "CausalBias should not be used with causal=True; leave is_causal out, or attn_mask"
    tensors = {"query": query, "key": key, "value": value}
    if attn_mask is not None:
        tensors["attn_mask"] = attn_mask
    for name, tensor in tensors.items():
        if why := why_not_plain(name, tensor):
            return why
    known = _key_of(query, key, value, dropout_p, enable_gqa, scale) if attn_mask is None else None
    if known is not None and known in _RIGHT:
        return ""
    problem = (
        _problem_of_types(query, key, value, attn_mask)
        or _problem_of_shapes(query, key, value, attn_mask, enable_gqa)
        or _problem_of_choices(attn_mask, dropout_p, causal, scale)
    )
    if known is not None and not problem:
        _RIGHT.keep(known, True)
    return problem


_RIGHT: Final = BoundedCache[tuple[object, ...], bool]()  # the keys of calls that `attention` computes


def _key_of(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, enable_gqa: bool, scale: float | None
) -> tuple[object, ...] | None:
    """A key of all that `_problem` reads of a call without a mask; None for calls that are not compared: of
    several types or devices, with numbers of other classes, and in code that is compiled.
    """
    dtype, device = query.dtype, query.device
    if not (key.dtype == value.dtype == dtype and key.device == value.device == device):
        return None
    if type(dropout_p) is not float or type(scale) not in _OF_SCALE or torch.compiler.is_compiling():
        return None
    return dtype, device, query.shape, key.shape, value.shape, dropout_p, enable_gqa, scale


def _problem_of_types(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> str:
    device, types = query.device, [query.dtype, key.dtype, value.dtype]
    if device.type not in ("cpu", "cuda", "meta"):
        return f"query must be on the CPU or a CUDA device, got {device}; move it, or use PyTorch's function"
    others = {"key": key, "value": value} | ({} if mask is None else {"attn_mask": mask})
    for name, tensor in others.items():
        if tensor.device != device:
            return f"{name} must be on {device} as query is, got {tensor.device}; move it"
    lowered = autocast_lowers(query)  # to one type
    if not {*types} <= {*FLOATS} or (len({*types}) > 1 and not lowered):
        wanted = ", ".join(str(t).removeprefix("torch.") for t in FLOATS)
        got = ", ".join(str(t).removeprefix("torch.") for t in types)
        return f"query, key and value must be of one type of {wanted}, got {got}; convert them"
    if mask is not None and not lowered and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return (
            f"attn_mask must be bool, float32 or of the type of query, {query.dtype}, got {mask.dtype}; "
            "convert it"
        )
    return ""


def _problem_of_shapes(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> str:
    shapes = [list(t.shape) for t in (query, key, value)]
    got = f"got query {shapes[0]}, key {shapes[1]}, value {shapes[2]}"
    if min(map(len, shapes)) < (_LEAST + 1 if enable_gqa else _LEAST):
        return (
            f"query, key and value must have at least {_LEAST + enable_gqa} dimensions, {got}; unsqueeze them"
        )
    (*_, q_dim), (*_, keys, k_dim), (*_, values, v_dim) = shapes
    if q_dim != k_dim or keys != values:
        return f"query and key must have rows of one length, and key and value as many rows, {got}"
    if not (1 <= q_dim <= MAX_HEAD_DIM and v_dim <= MAX_HEAD_DIM_V):
        return (
            f"rows of query and key must have 1 to {MAX_HEAD_DIM} elements, those of value at most "
            f"{MAX_HEAD_DIM_V}, {got}; use PyTorch's function"
        )
    if enable_gqa and any(heads == 0 or shapes[0][-3] % heads for heads in (shapes[1][-3], shapes[2][-3])):
        return f"the heads of query must be a multiple of those of key and of value, {got}"
    skipped = 3 if enable_gqa else 2
    lead = _broadcast([shape[:-skipped] for shape in shapes])
    if lead is None:
        return f"all dimensions of query, key and value but the last {skipped} must broadcast, {got}"
    scores = [*lead, *shapes[0][-skipped:-1], keys]
    if mask is not None and _broadcast([scores, list(mask.shape)]) != scores:
        return f"attn_mask must broadcast to {scores}, the shape of the scores, got {list(mask.shape)}"
    return ""


def _broadcast(shapes: list[list[int]]) -> list[int] | None:
    """The shape to which all `shapes` broadcast; None if they do not."""
    if shapes.count(shapes[0]) == len(shapes):  # PyTorch's function takes ten times as long
        return shapes[0]
    try:
        return list(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _problem_of_choices(mask: Tensor | None, dropout_p: float, causal: Causal, scale: object) -> str:
    if causal and mask is not None:
        return "attn_mask and is_causal must not both be given; make the mask causal, and leave is_causal out"
    probability = number(dropout_p)
    if probability is None or not 0 <= probability < 1:
        return f"dropout_p must be a probability from 0 to less than 1, got {shown(dropout_p)}"
    if scale is not None and not is_scale(scale):
        return f"scale must be {SCALES}, or None for 1/sqrt(E), got {shown(scale)}"
    return ""


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: Causal,
    enable_gqa: bool,
    scale: float | None,
    options: Mapping[str, Any],
) -> Tensor:
    shared = 3 if enable_gqa else 2  # dimensions that do not broadcast
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        heads = query.shape[-3]
        key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    wide = [query, key, value]
    leads = [t.shape[:-shared] for t in wide]
    if not leads[0] == leads[1] == leads[2]:
        lead = torch.broadcast_shapes(*leads)
        wide = [t.expand(*lead, *t.shape[-shared:]) for t in wide]
    is_projected = wide[0].dim() == _FOUR and heads_alternate(wide[0])
    q, k, v = (dense_rows(_in_four(t)) for t in wide)
    if is_projected:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if mask is not None and mask.dim() >= _FOUR and wide[0].dim() > _FOUR:
        mask = _in_four(mask.expand(*wide[0].shape[:-3], *mask.shape[-3:]))
    out = attention(
        q,
        k,
        v,
        causal=causal,
        softmax_scale=scale,
        mask=mask if mask is not None and mask.dtype == torch.bool else None,
        bias=mask if mask is not None and mask.dtype != torch.bool else None,
        dropout=dropout_p,
        layout="bshd" if is_projected else "bhsd",
        **options,
    )
    if is_projected:
        return out.transpose(1, 2)
    if wide[0].dim() == _FOUR:
        return out
    return out.reshape(*wide[0].shape[:-1], value.shape[-1])


def _in_four(tensor: Tensor) -> Tensor:
    """The tensor with four dimensions: further leading ones are flattened, missing ones added."""
    if tensor.dim() > _FOUR:
        return tensor.flatten(0, -_FOUR)
    missing = _FOUR - tensor.dim()
    return tensor[(None,) * missing] if missing else tensor
