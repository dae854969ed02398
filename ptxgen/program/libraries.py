"""The shared libraries that a program loads instead of CUDA's, compiled once by the C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError, CompileError
from ptxgen.runtime.settings import Settings

RUNTIME: Final = "libcudart.so.13"
# names.txt has the functions that libcudart.so.13 of CUDA 13.5 exports.
_SOURCES: Final = ("wire.h", "wire.c", "errors.inc", "errors.c", "layouts.h", "runtime.c", "names.txt")
_FLAGS: Final = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-pthread")


def folder_of_libraries(scratch: Path) -> Path:
    """The folder with the libraries: in the cache directory, or in `scratch` if the cache is off.

    Raises `BackendError` if there is no C compiler, and `CompileError` if it fails.
    """
    package = files("ptxgen.program").joinpath("answers")
    texts = {name: package.joinpath(name).read_text() for name in _SOURCES}
    key = hashlib.sha256(repr((sorted(texts.items()), _FLAGS, RUNTIME)).encode()).hexdigest()[:20]
    settings = Settings.from_environment()
    place = (settings.cache_dir if settings.cache_on_disk else scratch) / "program" / key
    if (place / RUNTIME).exists():
        return place
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BackendError(
            "a C compiler is needed once to build the answering library; install cc (gcc or clang)"
        )
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as name:
        _compile(compiler, Path(name), texts)
        os.replace(Path(name) / RUNTIME, place / RUNTIME)  # in one step: others may compile it, too
    return place


def _compile(compiler: str, folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)
    # Each known function ends the program unless runtime.c, whose symbols are strong, answers it.
    weak = "".join(
        f'__attribute__((weak)) void {name}(void) {{ wire_unanswered("{name}"); }}\n'
        for name in texts["names.txt"].split()
    )
    (folder / "unanswered.c").write_text(f'#include "wire.h"\n{weak}')
    (folder / "exports.map").write_text(f"{RUNTIME} {{ global: cuda*; __cuda*; local: *; }};\n")
    command = [compiler, *_FLAGS, f"-Wl,-soname,{RUNTIME}", "-Wl,--version-script=exports.map", "-o", RUNTIME]
    command += ["wire.c", "errors.c", "runtime.c", "unanswered.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{compiler} cannot compile the answering library:\n{done.stderr.strip()}")
