"""Functions of scores as text: arguments of operators must be tensors, numbers and strings."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

from flash.adapters.torch.tensors import require_plain
from flash.mods.captured import with_captured
from flash.mods.record import MASK_MOD, SCORE_MOD, naming, traced
from flash.mods.trace import AUX, AuxArray, Step, Trace
from flash.operands.dtypes import AUX_DTYPES, OF_ARRAYS
from ptxgen import types
from ptxgen.errors import LaunchError

Arrays = tuple[tuple[str, str, int], ...]


def arrays_of(
    caller: str, aux: Mapping[str, Any] | None
) -> tuple[list[str] | None, list[Any] | None, Arrays]:
    """The names of the arrays of `aux` in order, these tensors, and for each its name, the name of
    its type and its rank. None and no arrays without `aux`. Raises `LaunchError` for what is no mapping of
    names to tensors.
    """
    if aux is not None and not isinstance(aux, Mapping):
        raise LaunchError(
            f"{caller}: aux must be a mapping of names to tensors, such as {{'slopes': slopes}}, got "
            f"{type(aux).__name__}"
        )
    if not aux:
        return None, None, ()
    require_plain(caller, {f"aux[{name!r}]": array for name, array in aux.items()})
    names = sorted(aux)
    tensors = [aux[name] for name in names]
    return names, tensors, tuple([(n, str(t.dtype), t.dim()) for n, t in zip(names, tensors, strict=True)])


class Functions(NamedTuple):
    """The functions of a call as texts, "" for none, and the arrays that they index: `aux`, and the names
    and tensors of `aux` in order, None without any.
    """

    score_mod: str
    mask_mod: str
    aux: Mapping[str, Any] | None
    names: list[str] | None
    tensors: list[Any] | None


NO_FUNCTIONS: Final = Functions("", "", None, None, None)


def functions_of(caller: str, score_mod: Any, mask_mod: Any, aux: Mapping[str, Any] | None) -> Functions:
    """The functions and arrays of a call; tensors that a function indexes from outside are among the
    arrays. Compiled code that meets such a function is divided here, because its arrays are no inputs.

    Raises what `flash.attention` raises for functions that cannot be traced.
    """
    if score_mod is None and mask_mod is None and aux is None:
        return NO_FUNCTIONS
    names, tensors, declared = arrays_of(caller, aux)
    if not torch.compiler.is_compiling() or _captures(caller, score_mod, mask_mod, declared):
        functions: Functions = _with_captured(caller, score_mod, mask_mod, aux, declared)
        return functions
    return Functions(
        text_of(SCORE_MOD, score_mod, declared) if score_mod is not None else "",
        text_of(MASK_MOD, mask_mod, declared) if mask_mod is not None else "",
        aux,
        names,
        tensors,
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _captures(caller: str, score_mod: Any, mask_mod: Any, arrays: Arrays) -> bool:
    """Whether a function of scores indexes arrays that are not among its parameters."""
    if not callable(score_mod) and not callable(mask_mod):
        return False
    return AUX in _traced(caller, {SCORE_MOD: score_mod, MASK_MOD: mask_mod}, arrays)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a trace's values are no tensors
def _traced(caller: str, arguments: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The arguments with traces instead of functions, and with the tensors that they index from outside."""
    with naming(caller):
        return with_captured(arguments, [_array(*array) for array in arrays], _as_tensor)


def _as_tensor(array: Any) -> Any:
    """An array of numpy as a tensor on the host; a tensor, and an array of a type that PyTorch does not have,
    unchanged.
    """
    if isinstance(array, torch.Tensor):
        return array
    # PyTorch takes no negative strides, and warns of memory that must not be written.
    is_shared = array.flags.writeable and min(array.strides) >= 0
    try:
        return torch.from_numpy(array if is_shared else array.copy())
    except TypeError:
        return array


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a function of scores closes over tensors; compiled code takes them as inputs: make them "
    "parameters, and give aux={name: tensor}"
)
def _with_captured(
    caller: str, score_mod: Any, mask_mod: Any, aux: Mapping[str, Any] | None, arrays: Arrays
) -> Functions:
    """The result of `functions_of` for functions that may index tensors from outside."""
    arguments = _traced(caller, {SCORE_MOD: score_mod, MASK_MOD: mask_mod, AUX: aux}, arrays)
    score_text, mask_text = (
        "" if arguments[name] is None else _encoded(arguments[name]) for name in (SCORE_MOD, MASK_MOD)
    )
    names, tensors, _ = arrays_of(caller, arguments[AUX])
    return Functions(score_text, mask_text, arguments[AUX], names, tensors)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def text_of(name: str, function: Callable[..., Any] | None, arrays: Arrays) -> str:
    """The trace of a function that is given as `name`, "score_mod" or "mask_mod", as text; "" for
    None. `arrays` are those that it may index. torch.compile evaluates this while it traces.

    Raises what `flash.attention` raises for functions that cannot be traced.
    """
    if function is None:
        return ""
    return _encoded(traced(name, function, [_array(*array) for array in arrays]))


def _array(name: str, dtype: str, rank: int) -> AuxArray:
    element = OF_ARRAYS.get(dtype.removeprefix("torch."))
    if element not in AUX_DTYPES:
        wanted = ", ".join(t.array_name for t in AUX_DTYPES)
        raise LaunchError(f"aux[{name!r}] must be one of {wanted}, got {dtype}; convert it")
    return AuxArray(name, element, rank)


def _encoded(trace: Trace) -> str:
    steps = [[step.op, step.kind.name, step.args, _as_text(step.value)] for step in trace.steps]
    arrays = [[array.name, array.dtype.array_name, array.rank] for array in trace.arrays]
    return json.dumps([trace.name, steps, trace.result, arrays], separators=(",", ":"))


def _as_text(value: object) -> object:
    return {"f": value.hex()} if isinstance(value, float) else value


@functools.lru_cache(maxsize=256)
def trace_of(text: str) -> Trace | None:
    """The trace of which `text` is the text; None for ""."""
    if not text:
        return None
    name, steps, result, arrays = json.loads(text)
    trace_steps = [
        Step(op, getattr(types, kind), tuple(args), float.fromhex(v["f"]) if isinstance(v, dict) else v)
        for op, kind, args, v in steps
    ]
    return Trace(name, trace_steps, result, [_array(*array) for array in arrays])
