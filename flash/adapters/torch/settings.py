"""The arguments of the operators that are no tensors: their schema, and their values of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from flash.adapters.torch.functions import NO_FUNCTIONS, Functions, trace_of
from flash.launch.options import options_of
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.mods.trace import AUX
from flash.problem.outputs import OUTPUTS, Output
from flash.scores.features import SCORES
from ptxgen.arguments import in_numbers, integer
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.runtime.bounded_cache import BoundedCache

SEED: Final = "dropout_seed"
_SEED_BITS: Final = 64
_LARGEST_INT: Final = 2**63
_ROW: Final = (list, tuple)
_INTEGER: Final = (int, torch.SymInt)
# The classes of options that are compared. Equal values of one of them are the same, except 0.0 and -0.0.
_COMPARED: Final = frozenset((bool, int, float, str, NoneType))
# The classes of values for which schemas have types.
_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "bool": (bool, np.bool),
    "str": (str,),
    "SymInt": _INTEGER,
    "int": _INTEGER,
    "float": (float, torch.SymFloat, *_INTEGER),
    "SymInt[]": _ROW,
    "Tensor": (torch.Tensor,),
}


def classes_of(schema: str) -> tuple[type, ...]:
    """The classes of values for which a schema has this type."""
    kind = schema.removesuffix("?")
    return _CLASSES[kind] if kind == schema else (*_CLASSES[kind], NoneType)


class _Field(NamedTuple):
    """An argument of an operator that is no tensor, as `Option` has it; `classes` are those of its values."""

    name: str
    default: Any
    schema: str
    classes: tuple[type, ...]
    check: Callable[[str, Any], Any] | None
    plain: Callable[[str, Any], Any] | None
    value: Callable[[Any], Any] | None


class Known(NamedTuple):
    """What `Schema` makes of the options of a call without functions of scores and seed: the results of
    `checked`, `plain`, `scores` and `of_results`.
    """

    checked: Mapping[str, Any]
    plain: tuple[Any, ...]
    scores: Mapping[str, Any]
    results: Mapping[str, Any]


class Schema:
    """Arguments of the operators of a function `caller` that are no tensors, in order: those of `more`, its
    options, what features of scores that `known` names have apart from arrays, and functions of scores as
    texts of `flash.adapters.torch.functions.text_of`, with the names of the tensors that they index.
    """

    def __init__(self, caller: str, known: type, more: Sequence[tuple[str, str]] = ()) -> None:
        self.caller = caller
        names = known.__annotations__
        options = options_of(caller)
        features = [feature for feature in SCORES if feature.argument in names]
        self.arrays: Final = tuple([feature.argument for feature in features if feature.axes])
        of_more = [_Field(name, None, kind, classes_of(kind), None, None, None) for name, kind in more]
        of_options = [
            _Field(o.name, o.default, o.schema, (*classes_of(o.schema), *o.also), o.check, o.plain, o.value)
            for o in options
        ]
        of_scores = [
            _Field(f.argument, f.default, f.schema, classes_of(f.schema), None, _plain_of(f.plain), _as_tuple)
            for f in features
            if f.schema
        ]
        self._fields: Final = (*of_more, *of_options, *of_scores)
        defaults = {field.name: in_numbers(field.default) for field in self._fields if field.check is None}
        # Arguments that a call may leave out, by the values that they then have.
        self._left_out: Final = {
            field.name: defaults[field.name]
            for field in self._fields
            if field.check is None and has_type(defaults[field.name], field.classes)
        }
        self._not_compared: Final = frozenset((*self.arrays, "out"))
        self._known: Final = BoundedCache[tuple[object, ...], Known]()
        self._of_scores: Final = tuple([(field.name, field.default) for field in of_scores])
        self._results: Final = tuple([o.name for o in options if o.of_results])
        self._gradients: Final = tuple([o.name for o in options if o.of_gradients])
        types = {field.name: field.schema for field in self._fields}
        types |= {SCORE_MOD: "str", MASK_MOD: "str", "aux_names": "str[]?"}
        self.names: Final = tuple(types)
        self.text: Final = ", ".join(f"{kind} {name}" for name, kind in types.items())

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """The values of a call by name, of which numbers are those of `in_numbers`; None if a schema has no
        type for one, such as an empty word, which stands for an argument that is left out.
        """
        values, have_types = {}, True
        for field in self._fields:
            if field.name in self._left_out and field.name not in arguments:
                values[field.name] = self._left_out[field.name]
                continue
            value = arguments.get(field.name, field.default)
            if field.check is not None:
                values[field.name] = field.check(self.caller, value)
            else:
                values[field.name] = value = in_numbers(value)
                have_types = have_types and has_type(value, field.classes)
        return values if have_types else None

    def known(self, arguments: Mapping[str, Any]) -> Known | None:
        """The settings by the options of a call, cached for later calls with equal options; None for calls
        whose options are not compared, or are refused.
        """
        key: list[object] = []
        for name, value in arguments.items():
            if name in self._not_compared:
                continue
            kind = type(value)
            if kind not in _COMPARED or (value == 0 and str(value) == "-0.0") or (name == SEED and value):
                return None
            key += (name, kind, value)
        of_call = tuple(key)
        known = self._known.get(of_call)
        if known is not None:
            return known
        try:
            checked = self.checked(arguments)
            plain = () if checked is None else self.plain(checked, NO_FUNCTIONS)
        except (LaunchError, ConfigError):  # which the call raises after the problems of its tensors
            return None
        if checked is None:
            return None
        read = self.read(plain)
        known = Known(checked, plain, self.scores(read, None, None), self.of_results(read))
        return self._known.keep(of_call, known)

    def plain(self, checked: Mapping[str, Any], functions: Functions) -> tuple[Any, ...]:
        """The arguments of an operator, in order, for the values that `checked` returned."""
        values = [
            checked[field.name] if field.plain is None else field.plain(self.caller, checked[field.name])
            for field in self._fields
        ]
        return (*values, functions.score_mod, functions.mask_mod, functions.names)

    def read(self, plain: Sequence[Any]) -> dict[str, Any]:
        """The values by name of arguments from `plain`; functions and names of tensors are unchanged."""
        values = dict(zip(self.names, plain, strict=True))
        for field in self._fields:
            if field.value is not None:
                values[field.name] = field.value(values[field.name])
        return values

    def scores(self, read: Mapping[str, Any], seed: Any, aux: Sequence[Any] | None) -> dict[str, Any]:
        """The arguments about scores, without arrays by name, of a function of `flash`, for values of `read`;
        `seed` is the seed of dropout, `aux` the tensors of "aux_names".
        """
        arguments = {name: read[name] for name, default in self._of_scores if read[name] != default}
        for name in (SCORE_MOD, MASK_MOD):
            if read[name]:
                arguments[name] = trace_of(read[name])
        if aux:
            arguments[AUX] = dict(zip(read["aux_names"] or (), aux, strict=True))
        if seed is not None:
            arguments[SEED] = int(seed) % (1 << _SEED_BITS)
        return arguments

    def of_results(self, read: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a forward pass."""
        return {name: read[name] for name in self._results}

    def of_gradients(self, read: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a backward pass, with the sweeps that the call, or PyTorch where the pass runs, asks
        for.
        """
        options = {name: read[name] for name in self._gradients}
        options["deterministic"] = options["deterministic"] or torch.are_deterministic_algorithms_enabled()
        return options


def _plain_of(plain: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    return lambda _, argument: plain(argument)


def _as_tuple(value: Any) -> Any:
    """A list of the schema as a tuple, which `flash` takes; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


def shape_of(output: Output, q: torch.Tensor, layout: str | None, sequences: int = 0) -> tuple[int, ...]:
    """The shape of an output other than out; `layout` is None for packed sequences, of which there are
    `sequences`.
    """
    first, *rest = q.shape[:-1]
    if layout is None:
        return output.shape(sequences, rest[0], first, packed=True)
    if len(rest) == 1:  # batch and heads are one dimension
        return output.shape(1, first, rest[0], packed=False)[1:]
    heads, rows = reversed(rest) if layout == "bshd" else rest
    return output.shape(first, heads, rows, packed=False)


def spread(results: Any, asked: Mapping[str, Any]) -> tuple[Any, ...]:
    """The results of a call: out, then those of `OUTPUTS` in order, None where not `asked` for."""
    others = [output for output in OUTPUTS if asked[output.option]]
    if not others:
        return (results, *[None] * len(OUTPUTS))
    out, *values = results
    named = dict(zip(others, values, strict=True))
    return (out, *map(named.get, OUTPUTS))


def or_empty(result: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    """`result`, or a tensor without elements for None: an operator returns all results."""
    return q.new_empty((0,), dtype=torch.float32) if result is None else result


def has_type(value: Any, classes: tuple[type, ...]) -> bool:
    """Whether a schema has the value, which is of one of these classes."""
    if isinstance(value, bool):  # which is an int
        return bool in classes
    if not isinstance(value, classes):
        return False
    if isinstance(value, str):
        return value != ""
    if isinstance(value, int):
        return float in classes or abs(value) < _LARGEST_INT
    return not isinstance(value, _ROW) or all(has_type(side, (*_INTEGER, NoneType)) for side in value)


def seed_tensor(caller: str, dropout: float, seed: Any) -> torch.Tensor | None:
    """The seed of dropout as an int64 tensor on the host: `seed`, or if it is None a number from
    torch's default generator on the CPU, which `torch.manual_seed` sets. None without dropout.

    Raises `LaunchError` for a seed that is no integer from 0 to 2**64 - 1 or no int64 tensor of one
    element on the host, and for a seed that is missing while a CUDA graph is captured.
    """
    if not dropout:
        if seed is not None:
            raise LaunchError(f"{caller}: dropout_seed is given, but dropout is 0; give both, or neither")
        return None
    if seed is None:
        if _is_capturing():
            raise LaunchError(
                f"{caller}: dropout in a captured CUDA graph needs a dropout_seed: it is a number of the "
                "launch, so that each replay drops the same weights; give it, or capture without dropout"
            )
        return torch.randint(-_LARGEST_INT, _LARGEST_INT - 1, (), dtype=torch.int64, device="cpu")
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device.type != "cpu":
            raise LaunchError(
                f"{caller}: dropout_seed as a tensor must be int64 with one element on the CPU, got "
                f"{seed.dtype} of shape {list(seed.shape)} on {seed.device}; pass dropout_seed.item()"
            )
        return seed.reshape(())
    number = integer(seed, 0, (1 << _SEED_BITS) - 1)
    if number is None:
        raise LaunchError(
            f"{caller}: dropout_seed must be an integer from 0 to 2**64 - 1, or None for one of torch's "
            f"generator, got {shown(seed)}"
        )
    return torch.tensor(number - (number >= _LARGEST_INT) * 2 * _LARGEST_INT, device="cpu")


def _is_capturing() -> bool:
    """Whether calls of this thread become part of a CUDA graph. Not asked while code is compiled."""
    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return False
    return bool(torch.cuda.is_current_stream_capturing())
