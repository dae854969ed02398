"""CUDA C++: compiled to PTX by NVRTC, without a GPU, a driver or the CUDA toolkit."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ptxgen.errors import BackendError, CompileError, LaunchError, shown
from ptxgen.frontends.cpp_names import cpp_names
from ptxgen.frontends.cub import named_headers
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import Program
from ptxgen.frontends.ptx import read
from ptxgen.frontends.sources import sources_of
from ptxgen.target import target as find_target

DEFAULT_TARGET: Final = "sm_80"
_CALLER: Final = "ptxgen.frontends.cuda"
_PACKAGE: Final = "nvidia-cuda-nvrtc"
# The headers of the toolkit, by the names of cuda-pathfinder: cuda_fp16.h and cooperative_groups.h
# are of the runtime (nvidia-cuda-runtime), and include those of nvidia-cuda-cccl.
_HEADERS: Final = ("cudart", "cccl")


def load(source: str | Path, **options: Any) -> Program:
    """The kernels of a CUDA C++ file; `options` are those of `compile`. NVRTC looks for files that
    are included by name in the file's folder, too.

    Raises `LaunchError` for a file that cannot be read, and what `compile` raises.
    """
    path = Path(source)
    return compile(read(path, "CUDA source"), name=str(path), **options)


def compile(
    source: str,
    *,
    name: str = "kernel.cu",
    target: str = DEFAULT_TARGET,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, object] | None = None,
    kernels: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Program:
    """Compile CUDA C++ text.

    `name` is the file's in messages and findings. `include` are folders; those of the toolkit's
    headers are added if the packages nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl, or a
    toolkit, are installed; `cub/cub.cuh` has what CUB has for kernels. `defines` are macros and their
    values. `kernels` names the instances of templates that are wanted, such as "block_sum<float, 64>", by
    which the program has them. `options` are further options of NVRTC, such as "-use_fast_math".

    Raises `CompileError` with the compiler's log, `UnsupportedTargetError` for an unknown target,
    and `BackendError` if NVRTC is not installed.
    """
    if not isinstance(source, str):
        raise LaunchError(f"{_CALLER}: the source must be text, got {shown(source)}; use load for a file")
    _nvrtc()
    arch = find_target(target).name.replace("sm_", "compute_")
    nvrtc_options = [
        f"-arch={arch}",
        "-lineinfo",
        "-default-device",
        *(f"-I{folder}" for folder in (*include, *_header_folders())),
        *(f"-D{macro}={_defined(value)}" for macro, value in (defines or {}).items()),
        *options,
    ]
    return _compiled(source, name, tuple(nvrtc_options), tuple(kernels))


@functools.lru_cache(maxsize=32)
def _compiled(source: str, name: str, options: tuple[str, ...], kernels: tuple[str, ...]) -> Program:
    """The program of a source; the same object for the same source, so that its kernels are
    translated for the interpreter once.
    """
    ptx, instances = _translated(source, name, options, kernels)
    known = {name: source, str(Path(name).absolute()): source}  # NVRTC writes the absolute path
    return Program(ptx, name=name, sources=sources_of(known), names=cpp_names(ptx, source, instances))


def _translated(
    source: str, name: str, options: tuple[str, ...], kernels: tuple[str, ...]
) -> tuple[str, dict[str, str]]:
    """The PTX, and the names of `kernels` by symbol."""
    nvrtc = _nvrtc()
    headers = named_headers(tuple(option[2:] for option in options if option[:2] == "-I"))
    texts, names = ([text.encode() for text in of] for of in (headers.values(), headers))
    try:
        status, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(headers), texts, names)
    except RuntimeError as error:  # the bindings are there, the library is not
        raise _missing(error) from error
    _require_done(nvrtc, status)
    try:
        for kernel in kernels:
            _require_done(nvrtc, nvrtc.nvrtcAddNameExpression(program, kernel.encode())[0])
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if int(status):
            log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).strip()
            raise CompileError(f"{name} cannot be compiled:\n{log or nvrtc.nvrtcGetErrorString(status)}")
        symbols = {}
        for kernel in kernels:
            status, symbol = nvrtc.nvrtcGetLoweredName(program, kernel.encode())
            _require_done(nvrtc, status)
            symbols[symbol.decode()] = kernel
        return _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), symbols
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:
    return require(_CALLER, "cuda.bindings.nvrtc", _PACKAGE)


def _missing(error: Exception) -> BackendError:
    return BackendError(
        f"{_CALLER} needs the library NVRTC, which cannot be loaded ({error}); install it: pip install "
        f"{_PACKAGE}, or all front ends: pip install 'ptxgen[frontends]'"
    )


def _require_done(nvrtc: Any, status: Any) -> None:
    if int(status):
        raise CompileError(f"{_CALLER}: NVRTC failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")


def _text(nvrtc: Any, size_of: Any, get: Any, program: Any) -> str:
    """A text of a program, which NVRTC writes to a buffer and ends with a zero."""
    status, size = size_of(program)
    _require_done(nvrtc, status)
    buffer = b" " * size
    _require_done(nvrtc, get(program, buffer)[0])
    text: str = buffer.rstrip(b"\0").decode(errors="replace")
    return text


def _defined(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


@functools.cache
def _header_folders() -> tuple[str, ...]:
    pathfinder = require(_CALLER, "cuda.pathfinder", "cuda-pathfinder")
    folders = []
    for library in _HEADERS:
        try:
            folder = pathfinder.find_nvidia_header_directory(library)
        except Exception:  # the finder does not know the library
            folder = None
        if folder:
            folders.append(folder)
    return tuple(folders)
