"""The header `cub/cub.cuh` in a form that NVRTC compiles."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

_NAME: Final = "cub/cub.cuh"
# Newer versions of CCCL refuse the header of all of CUB under NVRTC unless this is defined, and then fail in
# what hosts call. Kernels use the headers of these folders.
_REFUSES: Final = "CCCL_DISABLE_NVRTC_COMPATIBILITY_CHECK"
_FOLDERS: Final = ("block", "grid", "iterator", "thread", "warp")


@functools.cache
def named_headers(folders: tuple[str, ...]) -> dict[str, str]:
    """The headers that NVRTC is to take instead of those in the folders that it searches, by name:
    `cub/cub.cuh` with what CUB has for kernels, if the first one in the folders is not for NVRTC.
    """
    for folder in map(Path, folders):
        whole = folder / _NAME
        if whole.is_file():
            if _REFUSES not in whole.read_text(errors="replace"):
                return {}
            parts = [part for name in _FOLDERS for part in sorted((folder / "cub" / name).glob("*.cuh"))]
            lines = [f"#include <{part.relative_to(folder).as_posix()}>" for part in parts]
            return {_NAME: "\n".join(["#pragma once", *lines, ""])}
    return {}
