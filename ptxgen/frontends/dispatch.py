"""`run` and `launch`: a kernel of any language on the interpreter."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ptxgen.errors import LaunchError, shown
from ptxgen.frontends import cuda, numba, ptx, triton
from ptxgen.frontends.program import Launch, Outcome, Program, ProgramKernel
from ptxgen.interpreter.arguments import Extent
from ptxgen.kernels.function import KernelFunction
from ptxgen.kernels.launch import checked, interpreted

_COMPILING: Final = ("target", "include", "defines", "kernels", "options")  # options of `cuda.load`


def run(
    kernel: Any,
    grid: Any,
    block: Extent | None = None,
    args: Sequence[object] | Mapping[str, object] = (),
    *,
    entry: str | None = None,
    **how: Any,
) -> Outcome:
    """Run a kernel on the CPU, in place and under all sanitizers.

    `kernel` is the path of a `.ptx` or `.cu` file (`entry` is its kernel, if it has several), a
    `ProgramKernel`, a `@triton.jit` function, a `@cuda.jit` kernel or Python function of Numba, or a
    `@ptxgen.kernel` function, whose static parameters are further arguments by name. `block` is left
    out where the kernel says it. Further arguments are those of the front end and of
    `ProgramKernel.run`.

    Raises what `launch` raises, and `TrapError` with what was found.
    """
    return launch(kernel, grid, block, args, entry=entry, **how).run()


def launch(
    kernel: Any,
    grid: Any,
    block: Extent | None = None,
    args: Sequence[object] | Mapping[str, object] = (),
    *,
    entry: str | None = None,
    **how: Any,
) -> Launch:
    """A launch of a kernel, compiled for it. The arguments are those of `run`.

    Raises `LaunchError` for anything that is no kernel and for arguments that do not fit, `CompileError` for
    a source with mistakes, and `BackendError` if its compiler is not installed.
    """
    if isinstance(kernel, str | Path | Program):
        return Launch(_chosen(kernel, entry, how), grid, block, args, how)  # type: ignore[arg-type]
    if entry is not None:
        raise LaunchError(
            f"run: entry is for files and programs, and {shown(kernel)} is one kernel; leave it out"
        )
    if isinstance(kernel, ProgramKernel):
        return Launch(kernel, grid, block, args, how)  # type: ignore[arg-type]
    if isinstance(kernel, KernelFunction):
        return _kernel_function(kernel, grid, block, args, how)
    package = type(kernel).__module__.partition(".")[0]
    if package == "triton":
        if block is not None:
            raise LaunchError(
                f"run: Triton chooses the block by num_warps, got block={shown(block)}; leave it out"
            )
        return triton.launch(kernel, grid, args, **how)
    if package == "numba" or inspect.isfunction(kernel):
        if block is None:
            raise LaunchError("run: block must be given, the threads of a CTA: block=256")
        return numba.launch(kernel, grid, block, args, **how)
    raise LaunchError(
        "run: the kernel must be the path of a .ptx or .cu file, a kernel of a program, a @triton.jit "
        f"function, a @cuda.jit kernel of Numba or a @ptxgen.kernel function, got {shown(kernel)}"
    )


def _chosen(kernel: str | Path | Program, entry: str | None, how: dict[str, Any]) -> ProgramKernel:
    """The kernel of a file or a program; takes the options of a compilation out of `how`."""
    if isinstance(kernel, Program):
        program = kernel
    elif Path(kernel).suffix == ".cu":
        program = cuda.load(kernel, **{name: how.pop(name) for name in _COMPILING if name in how})
    elif Path(kernel).suffix == ".ptx":
        program = ptx.load(Path(kernel))
    else:
        raise LaunchError(f"run: the file must be a .ptx or .cu file, got {shown(str(kernel))}")
    return program.only() if entry is None else program[entry]


def _kernel_function(kernel: KernelFunction, grid: Any, block: Any, args: Any, how: dict[str, Any]) -> Launch:
    named = {name: how.pop(name) for name in kernel.signature.statics if name in how}
    if isinstance(args, Mapping):
        named |= args
        args = ()
    values, statics = kernel.signature.bind(tuple(args), named)
    call = checked(kernel.name, kernel.signature.parameters, values, None)
    built = kernel.build(target=how.pop("target", None), threads=block, **statics)
    entry = Program(built.module, name=kernel.name).only()
    how = {"shared": built.kernel.dynamic_shared_bytes, **how}
    return Launch(entry, grid, built.threads, interpreted(built, call), how)
