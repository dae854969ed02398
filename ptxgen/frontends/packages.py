"""Imports the compilers, which are optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from ptxgen.errors import BackendError


def require(caller: str, module: str, package: str) -> Any:
    """The module, imported. Raises `BackendError`, which names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendError(
            f"{caller} needs the package {package}, which cannot be imported ({error}); install it: pip "
            f"install {package}, or all front ends: pip install 'ptxgen[frontends]'"
        ) from error
