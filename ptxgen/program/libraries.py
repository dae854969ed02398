"""The shared libraries that a program loads instead of CUDA's, compiled once by the C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError, CompileError
from ptxgen.program.calls import Calls, calls_of_names, calls_of_versions
from ptxgen.runtime.private import PRIVATE_MODE, NotPrivateError, open_private, private_folder
from ptxgen.runtime.settings import Settings

RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
# Makes machine code from PTX. A host library that finds it in the process, without the call for its version,
# links by the driver instead, which keeps PTX.
LINKER = "libnvJitLink.so.13"
_CALLS: Final = ("memory.c", "device.c", "streams.c")  # that the runtime and the driver have both
_SHARED: Final = ("wire.c", *_CALLS, "wire.h", "library.h", "errors.inc")


@dataclass(frozen=True, slots=True)
class _Library:
    """The sources that a library is compiled from, the headers and tables they include, the table of the
    functions that the library of CUDA 13.5 exports, patterns of their names, and options for its sources.
    """

    sources: tuple[str, ...]
    included: tuple[str, ...]
    table: str
    calls: Callable[[str], Calls]
    exports: str
    options: tuple[str, ...] = ()


_LIBRARIES: Final = {
    RUNTIME: _Library(
        (*_CALLS, "runtime.c", "runtime_memory.c", "runtime_device.c", "errors.c"),
        ("runtime.h", "layouts.h"),
        "names.txt",
        calls_of_names,
        "cuda*; __cuda*",
        ("-DRUNTIME",),
    ),
    DRIVER: _Library(
        (*_CALLS, "driver.c", "driver_memory.c", "driver_kernels.c", "driver_link.c"),
        ("driver.h", "driver_errors.inc"),
        "driver_calls.txt",
        calls_of_versions,
        "cu*",
    ),
    LINKER: _Library((), (), "linker_names.txt", calls_of_names, "nvJitLink*; __nvJitLink*"),
}
# The name by which -lcuda finds a library when a program is linked.
LINKED_AS: Final = {DRIVER: "libcuda.so"}
FOLDER: Final = "program"  # in the cache's directory, where the files of modules have other names
_FLAGS: Final = ("-shared", "-fPIC", "-O1", "-std=gnu11", "-pthread")


def folder_of_libraries(scratch: Path, tell: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the libraries: in the cache directory, or in `scratch` if the cache is off or cannot
    be used; `tell` is called with the reason for the latter.

    A library is code of this process's user, so one in the cache is used only if nobody else could
    have written it. Raises `BackendError` if there is no C compiler, and `CompileError` if it fails.
    """
    package = files("ptxgen.program").joinpath("answers")
    names = sorted(
        {name for of in _LIBRARIES.values() for name in (*_SHARED, *of.sources, *of.included, of.table)}
    )
    texts = {name: package.joinpath(name).read_text() for name in names}
    key = hashlib.sha256(
        repr((texts, [_arguments(library, texts) for library in _LIBRARIES])).encode()
    ).hexdigest()[:20]
    settings = Settings.from_environment()
    if settings.disk is not None:
        try:
            return _filled(private_folder(settings.disk, FOLDER, key), texts)
        except NotPrivateError as error:
            why = str(error)
        except OSError as error:
            why = f"{settings.disk} cannot be used ({error.strerror or error})"
        tell(
            f"the answering libraries are compiled for this run alone: {why}; set PTXGEN_CACHE_DIR to a "
            "private, writable directory, or PTXGEN_CACHE=off"
        )
    return _filled(private_folder(scratch, FOLDER, key), texts)


def _filled(folder: Path, texts: dict[str, str]) -> Path:
    """Compile the libraries that the folder lacks; returns the folder."""
    missing = []
    for library in _LIBRARIES:
        try:
            open_private(folder / library).close()
        except FileNotFoundError:
            missing.append(library)
        except NotPrivateError as error:
            raise NotPrivateError(f"{folder / library} {error}") from None
    if not missing:
        return folder
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BackendError(
            "a C compiler is needed once to build the answering libraries; install cc (gcc or clang)"
        )
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        for file, text in texts.items():
            (work / file).write_text(text)
        for library in missing:
            _compile(compiler, work, library, texts)
            if library in LINKED_AS:
                (work / LINKED_AS[library]).symlink_to(library)
                os.replace(work / LINKED_AS[library], folder / LINKED_AS[library])
            (work / library).chmod(PRIVATE_MODE)
            os.replace(work / library, folder / library)  # in one step: others may compile it, too
    return folder


def _arguments(library: str, texts: dict[str, str]) -> tuple[list[str], str, str]:
    """The compiler's arguments for a library, and the contents of unanswered.c and exports.map."""
    of = _LIBRARIES[library]
    calls = of.calls(texts[of.table])
    sources = ["wire.c", *of.sources, "unanswered.c"]
    options = [
        *of.options,
        f"-Wl,-soname,{library}",
        "-Wl,--version-script=exports.map",
        *calls.linked(),
        "-o",
        library,
    ]
    return (
        [*_FLAGS, *options, *sources, "-ldl"],
        calls.source(),
        f"{library} {{ global: {of.exports}; local: *; }};\n",
    )


def _compile(compiler: str, folder: Path, library: str, texts: dict[str, str]) -> None:
    arguments, unanswered, exports = _arguments(library, texts)
    (folder / "unanswered.c").write_text(unanswered)
    (folder / "exports.map").write_text(exports)
    done = subprocess.run([compiler, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{compiler} cannot compile {library}:\n{done.stderr.strip()}")
