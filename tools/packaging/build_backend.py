"""The build backend of pyproject.toml: that of setuptools, with editable installs that type checkers read.

The editable wheels of setuptools bring code that finds the packages when they are imported, because one of
them, `ptxgen.templates`, is in another folder of a checkout. Type checkers run no such code, so the wheel
also names the checkout in a .pth file.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any, Final

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # every other hook is that of setuptools

_PATHS: Final = "ptxgen_checkout.pth"


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Make the wheel of an editable install of the checkout, which is the current folder (PEP 660)."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    _add(Path(wheel_directory, name), _PATHS, f"{Path.cwd()}\n".encode())
    return name


def _add(wheel: Path, name: str, data: bytes) -> None:
    """Add a file to a wheel and to its record."""
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    (record,) = (file for file in files if file.endswith(".dist-info/RECORD"))
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    files[name] = data
    files[record] += f"{name},sha256={digest},{len(data)}\n".encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
