"""Modules that only a checkout of this project has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import ptxgen


def module_of_checkout(name: str) -> ModuleType | None:
    """The module of this name in the checkout that has this package; None where the package is installed."""
    root = Path(ptxgen.__file__).resolve().parents[1]
    if not root.joinpath(*name.split(".")).with_suffix(".py").is_file():
        return None
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(name)
