"""Programs that nvcc compiles, with the runtime as a shared library."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent / "programs"
TARGET: Final = "-gencode=arch=compute_80,code=compute_80"  # PTX alone: needs no ptxas
PLAIN: Final = "-Xfatbin=-compress-mode=none"
DEFAULT: Final = (TARGET, PLAIN, "-lineinfo")
_RUNTIME: Final = "libcudart.so.13"

Compile = Callable[..., Path]


def nvcc() -> Path | None:
    """The nvcc of the pip package, or of the toolkit on PATH."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        result = Path(folder) / "cu13" / "bin" / "nvcc"
        if result.exists():
            return result
    named = shutil.which("nvcc")
    return Path(named) if named else None


def missing() -> str:
    """Why no program can be compiled; "" if one can."""
    if nvcc() and shutil.which("g++"):
        return ""
    return "nvcc of CUDA 13 (pip install nvidia-cuda-nvcc nvidia-cuda-runtime) and g++ are needed"


def compiler(folder: Path) -> Compile:
    """A function that compiles a program with options, once, into a folder, and returns the path of the
    executable. A name is that of a file of tests/programs; a path ends in `.cu`.
    """
    result = nvcc()
    assert result is not None
    for library in (result.parent.parent / "lib").glob(_RUNTIME):  # the pip package lacks the link's name
        (folder / "libcudart.so").symlink_to(library)

    @functools.cache
    def make(name: str | Path, *options: str, runtime: str = "shared") -> Path:
        source = name if isinstance(name, Path) else PROGRAMS / f"{name}.cu"
        out = folder / f"{source.stem}-{len(list(folder.iterdir()))}"
        command = [str(result), *(options or DEFAULT), "-cudart", runtime, f"-L{folder}", "-o", str(out)]
        done = subprocess.run(
            [*command, source.name], cwd=source.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return out

    return make


__all__ = ["DEFAULT", "PLAIN", "PROGRAMS", "TARGET", "Compile", "compiler", "missing", "nvcc"]
