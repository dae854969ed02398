"""Host programs of the CUDA driver: compiled with warnings as errors, and run on the interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ptxgen.program import Ended, run
from ptxgen.program.libraries import folder_of_libraries

# How the compilers are asked to be strict.
C_FLAGS: Final = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1")
RUST_FLAGS: Final = ("--edition", "2021", "-D", "warnings", "-C", "opt-level=1")


def cuda_headers() -> Path | None:
    """The folder with cuda.h: of the pip package, or of the toolkit."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) / "cu13" for folder in spec.submodule_search_locations or ()] if spec else []
    for folder in (*packages, Path("/usr/local/cuda")):
        if (folder / "include" / "cuda.h").exists():
            return folder / "include"
    return None


class Hosts:
    """Compiles host programs against the answering libraries, and runs them. `folder` is for what is
    compiled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._libraries: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which compilers find cuda.h and -lcuda, without a warning about the former."""
        if self._libraries is None:
            self._libraries = folder_of_libraries(self.folder)
        return {**os.environ, "CPATH": str(cuda_headers()), "LIBRARY_PATH": str(self._libraries)}

    def c(self, source: Path, *flags: str) -> Path:
        """The program of a C file, compiled with `C_FLAGS`."""
        program = source.with_suffix("")
        self._compile(
            ["cc", *C_FLAGS, *flags, str(source), "-o", str(program), "-lcuda", "-lm"], source.parent
        )
        return program

    def cpp(self, source: Path) -> Path:
        """The program of a C++ file, as strict as `C_FLAGS`."""
        program = source.with_suffix("")
        flags = ("-std=c++17", *C_FLAGS[1:])
        self._compile(["c++", *flags, str(source), "-o", str(program), "-lcuda"], source.parent)
        return program

    def rust(self, source: Path) -> Path:
        """The program of a Rust file, compiled with `RUST_FLAGS`."""
        program = source.with_suffix("")
        self._compile(["rustc", *RUST_FLAGS, str(source), "-o", str(program)], source.parent)
        return program

    def _compile(self, command: Sequence[str], folder: Path) -> None:
        environment = self.environment
        headers = environment.pop("CPATH")
        if command[0] != "rustc":  # -isystem, unlike CPATH, silences warnings about the header itself
            command = [*command, "-isystem", headers]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr


def ran(
    program: Path, *arguments: str, sanitize: bool = False, target: str | None = None
) -> tuple[Ended, list[str]]:
    """How a program ended on the interpreter, and what was said of its kernels meanwhile."""
    said: list[str] = []
    return run([str(program), *arguments], sanitize=sanitize, target=target, tell=said.append), said


__all__ = ["C_FLAGS", "RUST_FLAGS", "Hosts", "cuda_headers", "ran"]
