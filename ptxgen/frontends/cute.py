"""CuTe DSL: the kernels of a `@cute.jit` function, compiled without a GPU.

The host part of the function, which computes grid, shared memory and tensor maps, is not run: the
caller launches a kernel by its name. A tensor argument is a structure: its pointer, then the sizes
(s32) and strides (s64) that the kernel does not know, so that `(array,)` is one with a static
layout and `(array, 100)` one of 100 elements with stride 1.
"""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
from typing import Any, Final

from ptxgen.errors import CompileError, LaunchError, shown
from ptxgen.frontends.cpp_names import Names
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import Program
from ptxgen.frontends.sources import sources_of
from ptxgen.target import target as find_target

DEFAULT_TARGET: Final = "sm_80"
_CALLER: Final = "ptxgen.frontends.cute"
_PACKAGE: Final = "nvidia-cutlass-dsl"
_PREFIX: Final = "kernel_cutlass_"


def compile(function: Any, *args: Any, target: str = DEFAULT_TARGET, options: str = "") -> Program:
    """The kernels that a `@cute.jit` function launches, for these arguments: tensors of
    `cutlass.cute.runtime.from_dlpack`, of numpy or torch arrays on the host, which are compiled as arrays in
    global memory, or of `make_fake_compact_tensor`, and numbers. `options` are further ones of
    `cute.compile`, as text.

    Raises `CompileError` with the compiler's message, and `BackendError` if CuTe DSL is not
    installed.
    """
    cute = require(_CALLER, "cutlass.cute", _PACKAGE)
    if not callable(function):
        raise LaunchError(f"{_CALLER}: the function must be a @cute.jit function, got {shown(function)}")
    name = getattr(function, "__name__", "the function")
    with tempfile.TemporaryDirectory() as folder:
        fixed = f"--gpu-arch={find_target(target).name} --generate-line-info --keep-ptx --dump-dir={folder}"
        try:
            compiled = cute.compile(function, *map(_on_gpu, args), options=f"{fixed} {options}".strip())
        except Exception as error:  # the compiler raises classes of its own and of Python
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours of a terminal
            raise CompileError(f"{name} cannot be compiled:\n{text.strip()}") from error
        ptx = str(compiled.__ptx__)
    return Program(ptx, name=name, sources=sources_of(), names=_names(ptx, function))


def _on_gpu(value: Any) -> Any:
    """An argument of a compilation, with an array on the host marked as global memory: CuTe DSL calls its
    memory generic, which TMA and `cp.async` refuse.
    """
    runtime = require(_CALLER, "cutlass.cute.runtime", _PACKAGE)
    if type(value) is not runtime._Tensor or value.memspace != runtime.AddressSpace.generic:
        return value
    moved = _global(runtime).__new__(_global(runtime))
    moved.__dict__.update(value.__dict__)
    return moved


@functools.cache
def _global(runtime: Any) -> Any:
    """The class of tensors of arrays on the host that count as global memory."""
    ir = require(_CALLER, "cutlass._mlir", _PACKAGE).ir

    class Global(runtime._Tensor):  # type: ignore[misc]  # of a package without types
        @property
        def mlir_type(self) -> Any:
            return ir.Type.parse(str(super().mlir_type).replace("generic", "gmem", 1))

        @property
        def memspace(self) -> Any:
            return runtime.AddressSpace.gmem

        def __cache_key__(self) -> tuple[Any, ...]:
            return (*super().__cache_key__(), "gmem")

    return Global


def _names(ptx: str, function: Any) -> Names:
    """The names of the Python functions that became kernels, and of their parameters; symbols have
    the functions' names, and the types of their arguments after them.
    """
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    known = sorted(getattr(code, "co_names", ()), key=len, reverse=True)
    names = {}
    for symbol in re.findall(r"\.entry\s+(\w+)", ptx):
        rest = symbol.removeprefix(_PREFIX)
        name = next((name for name in known if rest.startswith(f"{name}_")), rest)
        names[symbol] = name
        matches = set(re.findall(rf"\b{symbol}_param_\d+", ptx))
        params = sorted(matches, key=lambda param: int(param.rpartition("_")[2]))
        parameters = _parameters(getattr(inner, "__globals__", {}).get(name))
        shown_as = parameters if len(parameters) == len(params) else [p.replace(symbol, name) for p in params]
        names.update(zip(params, shown_as, strict=True))
    return Names(names, {})


def _parameters(kernel: Any) -> list[str]:
    """The parameters of a kernel's function that are no constants of the compilation."""
    if not callable(kernel):
        return []
    parameters = inspect.signature(inspect.unwrap(kernel)).parameters.values()
    return [p.name for p in parameters if "Constexpr" not in str(p.annotation)]
