"""The arguments of the operators that are no tensors: their schema, and their values of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch

from flash.adapters.torch.functions import trace_of
from flash.operands.words import Backend, Causal, KVLayout, Layout, Precision
from ptxgen.arguments import integer
from ptxgen.arrays.streams import stream_handle
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.settings import AUTO

SCHEMA: Final = (
    "str causal, str? precision, float? softmax_scale, str layout, SymInt[]? window, float? softcap, "
    "float dropout, str score_mod, str mask_mod, str[]? aux_names, bool return_lse, str backend, "
    "int? stream, bool deterministic, SymInt splits"
)
_UNLIMITED: Final = -1  # a side of a window; a schema has no lists of numbers and None
ANY_SPLITS: Final = 0  # "auto"; a schema has no numbers that may be words
_SEED_BITS: Final = 64
_LARGEST_INT: Final = 2**63


CausalWord = Literal["", "bottom_right", "top_left"]  # causality as a string of the schema


class Settings(NamedTuple):
    """The arguments of `SCHEMA`, in its order. `score_mod` and `mask_mod` are texts of
    `flash.adapters.torch.functions.text_of`, `aux_names` the names of the tensors that they index;
    `causal` is "" for none, and so is the layout of packed sequences; `splits` is 0 for "auto".
    """

    causal: CausalWord
    precision: Precision | None
    softmax_scale: float | None
    layout: Layout | Literal[""]
    window: list[int] | None
    softcap: float | None
    dropout: float
    score_mod: str
    mask_mod: str
    aux_names: list[str] | None
    return_lse: bool
    backend: Backend
    stream: int | None
    deterministic: bool
    splits: int
    max_seqlen_q: int | None = None  # of packed sequences; their schema ends with these
    max_seqlen_k: int | None = None
    kv_layout: KVLayout = "NHD"
    rotary_interleaved: bool = False

    def scores(self, seed: Any, aux: list[Any] | None) -> dict[str, Any]:
        """The arguments of `flash.attention` about scores, without arrays by name; `seed` is the seed of
        dropout, `aux` the tensors of `aux_names`.
        """
        if self[_OF_SCORES] == _NO_SCORES:
            return {}
        found: dict[str, Any] = {}
        if self.window is not None:
            found["window"] = tuple(self.window)
        if self.softcap is not None:
            found["softcap"] = self.softcap
        if self.score_mod:
            found["score_mod"] = trace_of(self.score_mod)
        if self.mask_mod:
            found["mask_mod"] = trace_of(self.mask_mod)
        if aux:
            found["aux"] = dict(zip(self.aux_names or (), aux, strict=True))
        if self.dropout:
            found["dropout"] = self.dropout
            found["dropout_seed"] = int(seed) % (1 << _SEED_BITS)
        return found

    @property
    def of_results(self) -> dict[str, Any]:
        """`of_call` of a forward pass: with the splits of its keys, and of packed sequences with the layout
        of pages and the kind of rotation.
        """
        found = self.of_call | {"splits": self.splits or AUTO}
        if self.layout:
            return found
        return found | {"kv_layout": self.kv_layout, "rotary_interleaved": self.rotary_interleaved}

    @property
    def of_call(self) -> dict[str, Any]:
        """The arguments that forward and backward passes have beside tensors and scores."""
        found: dict[str, Any] = {
            "causal": self.causal or False,
            "precision": self.precision,
            "softmax_scale": self.softmax_scale,
        }
        if self.layout:
            return found | {"layout": self.layout}
        return found | {"max_seqlen_q": self.max_seqlen_q}

    def of_gradients(self, k: torch.Tensor) -> dict[str, Any]:
        """`of_call` of a backward pass: with the sweeps that the call, or PyTorch where the pass runs,
        asks for, and of packed sequences on a GPU with a bound of their keys.
        """
        same_bits = self.deterministic or torch.are_deterministic_algorithms_enabled()
        found = self.of_call | {"deterministic": same_bits}
        if self.layout:
            return found
        bound = None if k.device.type == "cpu" else k.shape[0]
        return found | {"max_seqlen_k": bound if self.max_seqlen_k is None else self.max_seqlen_k}

    def lse_shape(self, q: torch.Tensor) -> tuple[int, ...]:
        """The shape of LSE."""
        if not self.layout:
            return q.shape[1], q.shape[0]
        batch, *rest = q.shape[:-1]
        return (batch, *reversed(rest)) if self.layout == "bshd" else (batch, *rest)


_OF_SCORES: Final = slice(Settings._fields.index("window"), Settings._fields.index("aux_names"))
_NO_SCORES: Final[Any] = (None, None, 0.0, "", "")


_FLAG: Final = (bool, np.bool)
_WORD: Final = (str,)
_INTEGER: Final = (int, torch.SymInt)
_NUMBER: Final = (float, torch.SymFloat, *_INTEGER)
_ROW: Final = (list, tuple)
_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "causal": (bool, *_WORD),
    "precision": (*_WORD, NoneType),
    "softmax_scale": (*_NUMBER, NoneType),
    "layout": _WORD,
    "window": (*_ROW, NoneType),
    "softcap": (*_NUMBER, NoneType),
    "dropout": _NUMBER,
    "return_lse": _FLAG,
    "backend": _WORD,
    "splits": (*_INTEGER, *_WORD),
    "max_seqlen_q": (*_INTEGER, NoneType),
    "kv_layout": _WORD,
    "rotary_interleaved": _FLAG,
    "layer": _INTEGER,
    "cache_batch_idx": (torch.Tensor, NoneType),
    "leftpad": (torch.Tensor, NoneType),
}


def have_types(arguments: Mapping[str, Any]) -> bool:
    """Whether schemas have types for the values of arguments, by name, of which numbers are those of
    `in_numbers`. An empty word has none: it stands for an argument that is left out.
    """
    return all(_has_type(value, _CLASSES[name]) for name, value in arguments.items())


def _has_type(value: Any, classes: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # which is an int
        return bool in classes
    if not isinstance(value, classes):
        return False
    if isinstance(value, str):
        return value != ""
    if isinstance(value, int):
        return float in classes or abs(value) < _LARGEST_INT
    return not isinstance(value, _ROW) or all(_has_type(side, (*_INTEGER, NoneType)) for side in value)


def causal_word(causal: Causal) -> CausalWord:
    """`causal` as a string of the schema."""
    if not isinstance(causal, bool):
        return causal
    return "bottom_right" if causal else ""


def sides(window: Sequence[int | None] | None) -> list[int] | None:
    """`window` as a list of the schema."""
    if window is None:
        return None
    return [_UNLIMITED if side is None else side for side in window]


def seed_tensor(who: str, dropout: float, seed: Any) -> torch.Tensor | None:
    """The seed of dropout as an int64 tensor on the host: `seed`, or if it is None a number from
    torch's default generator on the CPU, which `torch.manual_seed` sets. None without dropout.

    Raises `LaunchError` for a seed that is no integer from 0 to 2**64 - 1 or no int64 tensor of one
    element on the host, and for a seed that is missing while a CUDA graph is captured.
    """
    if not dropout:
        if seed is not None:
            raise LaunchError(f"{who}: dropout_seed is given, but dropout is 0; give both, or neither")
        return None
    if seed is None:
        if _is_capturing():
            raise LaunchError(
                f"{who}: dropout in a captured CUDA graph needs a dropout_seed: it is a number of the "
                "launch, so that each replay drops the same weights; give it, or capture without dropout"
            )
        return torch.randint(-_LARGEST_INT, _LARGEST_INT - 1, (), dtype=torch.int64, device="cpu")
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device.type != "cpu":
            raise LaunchError(
                f"{who}: dropout_seed as a tensor must be int64 with one element on the CPU, got "
                f"{seed.dtype} of shape {list(seed.shape)} on {seed.device}; pass dropout_seed.item()"
            )
        return seed.reshape(())
    found = integer(seed, 0, (1 << _SEED_BITS) - 1)
    if found is None:
        raise LaunchError(
            f"{who}: dropout_seed must be an integer from 0 to 2**64 - 1, or None for one of torch's "
            f"generator, got {shown(seed)}"
        )
    return torch.tensor(found - (found >= _LARGEST_INT) * 2 * _LARGEST_INT, device="cpu")


def _is_capturing() -> bool:
    """Whether calls of this thread become part of a CUDA graph. Not asked while code is compiled."""
    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def stream_number(who: str, stream: object) -> int | None:
    """The handle of a CUDA stream; an operator takes no stream objects. Raises `LaunchError` for anything
    else.
    """
    return None if stream is None else stream_handle(stream, who)
