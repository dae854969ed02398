"""Numba: `@cuda.jit` kernels and plain Python functions, compiled without a GPU."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from ptxgen.errors import CompileError, LaunchError, did_you_mean, shown
from ptxgen.frontends.cpp_names import Names, cpp_names
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import Launch, Outcome, Program, argument
from ptxgen.frontends.sources import sources_of
from ptxgen.interpreter.arguments import Extent
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.target import target as find_target

DEFAULT_TARGET: Final = "sm_80"
_CALLER: Final = "ptxgen.frontends.numba"
_PACKAGE: Final = "numba-cuda"
_OPTIONS: Final = ("fastmath", "opt", "launch_bounds")  # of @cuda.jit, which compiling takes as well

_Part = tuple[str, object]  # a parameter's name in messages, and its value


def run(
    kernel: Any, grid: Extent, block: Extent, args: Sequence[object] | Mapping[str, object] = (), **how: Any
) -> Outcome:
    """Compile a `@cuda.jit` kernel, or a Python function that could be one, for the types of these
    arguments as Numba deduces them, and run it on the CPU, in place and under all sanitizers. The
    arguments are those of `launch`.

    Raises what `launch` raises, and `TrapError` with what was found.
    """
    return launch(kernel, grid, block, args, **how).run()


def launch(
    kernel: Any,
    grid: Extent,
    block: Extent,
    args: Sequence[object] | Mapping[str, object] = (),
    *,
    target: str = DEFAULT_TARGET,
    **how: Any,
) -> Launch:
    """A launch of a `@cuda.jit` kernel, or of a Python function that could be one, compiled for the types
    of these arguments as Numba deduces them.

    `args` are in the order of the function's parameters, or by name: arrays (numpy, torch, JAX) of
    any strides, numbers, complex numbers, tuples, enumerations and records. `how` are further
    arguments of `ProgramKernel.run`, such as `shared`, the bytes of `cuda.shared.array(0, …)`.

    Raises `CompileError` with Numba's message, `LaunchError` for arguments that do not fit, and
    `BackendError` if Numba is not installed.
    """
    numba = require(_CALLER, "numba", _PACKAGE)
    require(_CALLER, "numba.cuda", _PACKAGE)
    function, options = _function(kernel)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = [
        _value(f"{function.__name__}: {name}", value)
        for name, value in zip(names, _in_order(function.__name__, names, args), strict=True)
    ]
    try:
        types = tuple(numba.typeof(value) for value in values)
    except (TypeError, ValueError) as error:
        raise LaunchError(f"{function.__name__} cannot have these arguments: {error}") from error
    parts = [
        part
        for name, type, value in zip(names, types, values, strict=True)
        for part in _parts(numba.types, f"{function.__name__}: {name}", name, type, value)
    ]
    program = _compile(numba, function, types, target, options, [name for name, _ in parts])
    return Launch(program.only(), grid, block, [value for _, value in parts], how)


def _function(kernel: Any) -> tuple[Any, dict[str, Any]]:
    """The Python function of a kernel, and the compiler's options that its decorator has."""
    function = getattr(kernel, "py_func", kernel)
    if not hasattr(function, "__code__"):
        raise LaunchError(
            f"{_CALLER}: the kernel must be a @cuda.jit kernel or a function, got {shown(kernel)}"
        )
    options: Mapping[str, Any] = getattr(kernel, "targetoptions", {})
    return function, {name: options[name] for name in _OPTIONS if options.get(name) is not None}


def _in_order(caller: str, names: Sequence[str], args: Any) -> list[object]:
    if isinstance(args, Mapping):
        for name in args:
            if name not in names:
                raise LaunchError(f"{caller} has no parameter {shown(name)}{did_you_mean(name, names)}")
        missing = [name for name in names if name not in args]
        if missing:
            raise LaunchError(f"{caller}: args lacks {', '.join(missing)}; give every parameter")
        return [args[name] for name in names]
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise LaunchError(
            f"{caller}: args must be a list of arguments, or a mapping by name, got {shown(args)}"
        )
    if len(args) != len(names):
        raise LaunchError(f"{caller} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    return list(args)


def _value(caller: str, value: Any) -> Any:
    """An argument as Numba takes it: arrays of other libraries as numpy arrays on their memory."""
    if value is None or isinstance(value, bool | int | float | complex | np.generic | np.ndarray | enum.Enum):
        return value
    if isinstance(value, tuple):
        items = [_value(caller, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return argument(caller, value)


def _parts(types: Any, caller: str, name: str, type: Any, value: Any) -> list[_Part]:
    """The parameters that an argument becomes: Numba's own calling convention, as its dispatcher
    prepares arguments (`numba.cuda.dispatcher`).
    """
    if isinstance(type, types.Array):
        return _array_parts(name, value)
    if isinstance(type, types.Record):
        return [(name, np.asarray(value).reshape(1))]
    if isinstance(type, types.BaseTuple):
        return [
            part
            for n, (of_item, item) in enumerate(zip(type, value, strict=True))
            for part in _parts(types, caller, f"{name}[{n}]", of_item, item)
        ]
    if isinstance(type, types.EnumMember):
        return _parts(types, caller, name, type.dtype, value.value)
    if isinstance(type, types.NPDatetime | types.NPTimedelta):
        return [(name, value.view(np.int64))]
    if type == types.float16:
        return [(name, np.float16(value).view(np.uint16))]
    if isinstance(type, types.Complex):
        part = np.float32 if type == types.complex64 else np.float64
        return [(f"{name}.real", part(value.real)), (f"{name}.imag", part(value.imag))]
    if isinstance(type, types.Integer | types.Float | types.Boolean):
        return [(name, value)]
    raise LaunchError(f"{caller} has the type {type} in Numba, which is no argument of a kernel here")


def _array_parts(name: str, array: np.ndarray[Any, Any]) -> list[_Part]:
    """An array structure: meminfo, parent, the number of elements, their size in bytes, the data,
    then shape and strides in bytes.
    """
    return [
        (f"{name}.meminfo", 0),
        (f"{name}.parent", 0),
        (f"{name}.size", array.size),
        (f"{name}.itemsize", array.itemsize),
        (name, array),
        *((f"{name}.shape[{n}]", extent) for n, extent in enumerate(array.shape)),
        *((f"{name}.strides[{n}]", stride) for n, stride in enumerate(array.strides)),
    ]


class _Device:
    """The part of a device that Numba's compiler asks for."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.compute_capability = capability


@contextmanager
def _without_device(capability: tuple[int, int]) -> Iterator[None]:
    """Let Numba compile the device functions that a kernel calls, too, with the lines of their source; else
    it would ask the current device for its capability, and leave the lines out.
    """
    dispatcher = require(_CALLER, "numba.cuda.dispatcher", _PACKAGE)
    with _compiling:
        asked, compiled = dispatcher.get_current_device, dispatcher.compile_cuda

        def with_lines(*arguments: Any, **how: Any) -> Any:
            return compiled(*arguments, **{**how, "lineinfo": True})

        dispatcher.get_current_device = lambda: _Device(capability)
        dispatcher.compile_cuda = with_lines
        try:
            yield
        finally:
            dispatcher.get_current_device, dispatcher.compile_cuda = asked, compiled


_compiling = threading.Lock()
_cache = BoundedCache[tuple[object, ...], Program]()


def _compile(
    numba: Any,
    function: Any,
    types: tuple[Any, ...],
    target: str,
    options: Mapping[str, Any],
    parts: list[str],
) -> Program:
    """The program of a Python function, compiled for arguments of these types."""
    chosen = find_target(target)
    number = int("".join(filter(str.isdigit, chosen.name)))
    key = (function, types, number, tuple(sorted(options.items())))
    cached = _cache.get(key)
    if cached is not None:
        return cached
    name, capability = function.__name__, divmod(number, 10)
    try:
        with _without_device(capability):
            ptx, _ = numba.cuda.compile_ptx(function, types, cc=capability, lineinfo=True, **options)
    except numba.core.errors.NumbaError as error:
        raise CompileError(f"{name} cannot be compiled for {types}:\n{error}") from error
    symbols = cpp_names(ptx).of_symbols
    program = Program(ptx, name=name)
    (entry,) = program.module.kernels
    if len(entry.params) != len(parts):
        raise LaunchError(
            f"{name}: Numba made {len(entry.params)} parameters of {len(parts)} values, which this version "
            "of ptxgen does not know"
        )
    symbols[entry.name] = name
    symbols |= {param.name: part for param, part in zip(entry.params, parts, strict=True)}
    compiled = Program(ptx, name=name, sources=sources_of(), names=Names(symbols, {}))
    return _cache.keep(key, compiled)
