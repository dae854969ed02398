"""The options of the functions of attention: their arguments that are neither arrays nor about scores. All
adapters take, check and pass them by these rows, so that a new option is a row and what the functions do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict

from flash.host.caller import flag
from flash.launch.varlen import rows_at_most
from flash.operands.dtype_names import Auto, Backend, Causal, KVLayout, Precision
from flash.problem.outputs import OUTPUTS
from flash.problem.splits import splits_of
from ptxgen.arrays.streams import stream_handle
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.records import dataclass
from ptxgen.runtime.settings import AUTO

ATTENTION: Final = "attention"
VARLEN: Final = "attention_varlen"
CACHED: Final = "attention_with_kvcache"


class ModelOptions(TypedDict, total=False):
    """The options of an adapter for a model, all of whose layers call the same attention."""

    backend: Backend
    deterministic: bool
    splits: int | Auto


class KeyOptions(TypedDict, total=False):
    """The options of a function that has the signature of another library."""

    splits: int | Auto


class CommonOptions(TypedDict, total=False):
    """The options of `attention` and `attention_varlen` in all adapters."""

    causal: Causal
    precision: Precision | None
    softmax_scale: float | None
    deterministic: bool
    return_lse: bool
    return_max_logit: bool
    backend: Backend
    splits: int | Auto


class AttentionOptions(CommonOptions, total=False):
    """The options that `attention` has in all adapters, such as that of torch."""

    layout: str


class VarlenOptions(CommonOptions, total=False):
    """The options that `attention_varlen` has in all adapters, such as that of torch."""

    max_seqlen_q: int | None
    max_seqlen_k: int | None
    kv_layout: KVLayout
    rotary_interleaved: bool


@dataclass(frozen=True)
class Option:
    """An option of `functions`, with its default. `schema` is its type in a PyTorch operator, whose arguments
    are numbers and words: `plain` turns a value into one of these, and `value` turns it back, where they
    differ; `also` are further classes of values. `check` returns a valid value, and raises for others.
    """

    name: str
    default: Any
    schema: str
    functions: tuple[str, ...] = (ATTENTION, VARLEN, CACHED)
    also: tuple[type, ...] = ()
    check: Callable[[str, Any], Any] | None = None
    plain: Callable[[str, Any], Any] | None = None
    value: Callable[[Any], Any] | None = None
    packed: Callable[[Any], Any] | None = None  # of the value: that for packed sequences
    of_model: str = ""  # what it means for a model, all of whose layers have it
    of_config: bool = False  # whether it is a setting of the config of the call's kernel
    of_results: bool = True  # whether forward passes have it
    of_gradients: bool = False  # whether backward passes have it


_PASSES: Final = (ATTENTION, VARLEN)  # the functions with backward passes


def _causal_word(_: str, causal: Causal) -> str:
    if not isinstance(causal, bool):
        return causal
    return "bottom_right" if causal else ""


def _as_flag(_: str, value: Any) -> bool:
    return bool(value)


def _number_of_splits(caller: str, value: Any) -> int:
    """`value` as a number of splits: 0 for "auto", as a schema has no numbers that may be words."""
    return splits_of(caller, value, LaunchError if caller == CACHED else ConfigError) or 0


OPTIONS: Final = (
    Option(
        "causal",
        False,
        "str",
        also=(bool,),
        plain=_causal_word,
        value=lambda word: word or False,
        of_config=True,
        of_gradients=True,
    ),
    Option("precision", None, "str?", _PASSES, of_config=True, of_gradients=True),
    Option("softmax_scale", None, "float?", of_gradients=True),
    Option("layout", "bhsd", "str", (ATTENTION,), of_gradients=True),
    *[Option(output.option, False, "bool", plain=_as_flag) for output in OUTPUTS],
    Option(
        "backend",
        AUTO,
        "str",
        of_model="as in `flash.attention`, for calls without a `FlashCache`, whose backend is its own",
    ),
    Option("stream", None, "int?", check=lambda caller, x: None if x is None else stream_handle(x, caller)),
    Option(
        "deterministic",
        True,
        "bool",
        _PASSES,
        check=lambda caller, x: flag(caller, "deterministic", x),
        of_results=False,
        of_gradients=True,
        of_model="of gradients, as in `flash.adapters.torch.attention`",
    ),
    Option(
        "splits",
        AUTO,
        "SymInt",
        also=(str,),
        plain=_number_of_splits,
        value=lambda number: number or AUTO,
        packed=lambda value: 1 if value == 1 else AUTO,
        of_model="of the keys, as in `flash.attention`, and over a `FlashCache` as in "
        "`flash.attention_with_kvcache`: with a number the bits of an item do not depend on the batch",
        of_config=True,
    ),
    Option("max_seqlen_q", None, "SymInt?", (VARLEN,), of_gradients=True),
    Option(
        "max_seqlen_k",
        None,
        "SymInt?",
        (VARLEN,),
        check=lambda caller, x: rows_at_most(caller, "k", x),
        of_results=False,
        of_gradients=True,
    ),
    Option("kv_layout", "NHD", "str", (VARLEN,)),
    Option("rotary_interleaved", False, "bool", (VARLEN, CACHED), plain=_as_flag),
)
DEFAULTS: Final[Mapping[str, Any]] = {option.name: option.default for option in OPTIONS}


MEANINGS: Final = tuple(
    textwrap.fill(f"{option.name}: {option.of_model}", 100, subsequent_indent="    ")
    for option in OPTIONS
    if option.of_model
)


def options_of(caller: str) -> tuple[Option, ...]:
    """The options that the adapter function `caller` takes, by name."""
    return tuple(option for option in OPTIONS if caller in option.functions)


def checked_options(caller: str, options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """The options of `known` that the function `caller` of an adapter is given, with defaults. Raises what
    functions of attention raise for values, in the name of `caller`.
    """
    checked = {}
    for option in OPTIONS:
        if option.name in known.__annotations__:
            value = options.get(option.name, option.default)
            value = value if option.check is None else option.check(caller, value)
            plain = value if option.plain is None else option.plain(caller, value)
            checked[option.name] = plain if option.value is None else option.value(plain)
    return checked
