"""The shared libraries that a program loads instead of CUDA's, compiled once by the C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError, CompileError
from ptxgen.runtime.private import PRIVATE_MODE, NotPrivateError, open_private, private_folder
from ptxgen.runtime.settings import Settings

RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
_SHARED: Final = ("wire.h", "wire.c", "errors.inc")
# Of each library: the sources it is compiled from, the headers and tables they include, the functions
# that the library of CUDA 13.5 exports, and the names that are exported.
_LIBRARIES: Final = {
    RUNTIME: (("runtime.c", "errors.c"), ("layouts.h",), "names.txt", "cuda*; __cuda*"),
    DRIVER: (("driver.c", "driver_kernels.c"), ("driver.h", "driver_errors.inc"), "driver_names.txt", "cu*"),
}
# The name by which -lcuda finds a library when a program is linked.
LINKED_AS: Final = {DRIVER: "libcuda.so"}
FOLDER: Final = "program"  # in the cache's directory, where the files of modules have other names
_FLAGS: Final = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-pthread")


def folder_of_libraries(scratch: Path, tell: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the libraries: in the cache directory, or in `scratch` if the cache is off or cannot
    be used; `tell` is called with the reason for the latter.

    A library is code of this process's user, so one in the cache is used only if nobody else could
    have written it. Raises `BackendError` if there is no C compiler, and `CompileError` if it fails.
    """
    package = files("ptxgen.program").joinpath("answers")
    names = sorted({name for of in _LIBRARIES.values() for name in (*_SHARED, *of[0], *of[1], of[2])})
    texts = {name: package.joinpath(name).read_text() for name in names}
    key = hashlib.sha256(repr((texts, _FLAGS, _LIBRARIES)).encode()).hexdigest()[:20]
    settings = Settings.from_environment()
    if settings.cache_on_disk:
        try:
            return _filled(private_folder(settings.cache_dir, FOLDER, key), texts)
        except NotPrivateError as error:
            why = str(error)
        except OSError as error:
            why = f"{settings.cache_dir} cannot be used ({error.strerror or error})"
        tell(
            f"the answering libraries are compiled for this run alone: {why}; set PTXGEN_CACHE_DIR to a "
            "private, writable directory, or PTXGEN_CACHE=off"
        )
    return _filled(private_folder(scratch, FOLDER, key), texts)


def _filled(folder: Path, texts: dict[str, str]) -> Path:
    """The folder, after the libraries that it lacks have been compiled."""
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


def _compile(compiler: str, folder: Path, library: str, texts: dict[str, str]) -> None:
    sources, _, names, exports = _LIBRARIES[library]
    # Each known function ends the program unless a source, whose symbols are strong, answers it.
    weak = "".join(
        f'__attribute__((weak)) void {name}(void) {{ wire_unanswered("{name}"); }}\n'
        for name in texts[names].split()
    )
    (folder / "unanswered.c").write_text(f'#include "wire.h"\n{weak}')
    (folder / "exports.map").write_text(f"{library} {{ global: {exports}; local: *; }};\n")
    command = [compiler, *_FLAGS, f"-Wl,-soname,{library}", "-Wl,--version-script=exports.map", "-o", library]
    command += ["wire.c", *sources, "unanswered.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{compiler} cannot compile {library}:\n{done.stderr.strip()}")
