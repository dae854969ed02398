"""Finds the distributions that have a top-level module: two with the same one damage each other."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from pathlib import Path
from typing import Final

_ADVICE: Final = (
    "Each overwrites files of the other, and uninstalling one damages both: uninstall both, and install "
    "them in separate environments"
)


def other_owners(module: str, owner: str) -> str:
    """The installed distributions other than `owner` that have a top-level module, by name; "" for none."""
    owners = importlib.metadata.packages_distributions().get(module, [])
    return " and ".join(sorted({name for name in owners if name != owner}))


def why_not_imported(package: str, owner: str, error: Exception) -> str:
    """Why a package that a distribution `owner` registers cannot be imported: its top-level module is not
    installed, another distribution or a folder before it on sys.path has replaced it, or `error` says it.
    """
    module = package.partition(".")[0]
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # it is imported already, and has no spec
        spec = None
    if spec is None or spec.origin is None:
        return f"the module {module}, which {owner} installs, is not there; reinstall {owner}"
    lacks = isinstance(error, ModuleNotFoundError) and f"{package}.".startswith(f"{error.name}.")
    if lacks or other_owners(module, owner):
        return replaced(spec.origin, module, owner)
    return f"cannot import {package}, which {owner} registers: {error}"


def replaced(path: str, module: str, owner: str) -> str:
    """The message for a top-level module at `path` that is not that of the distribution `owner`."""
    others = other_owners(module, owner)
    if others:
        return f"{path} is not of {owner} but of {others}, which has a module {module}, too. {_ADVICE}"
    return f"{path} is not the module {module} of {owner}, but stands in its place; rename or move it"


def warn_if_shared(folder: str, unknown: set[str], owner: str) -> None:
    """Warn if the folder of a top-level module of the distribution `owner` holds modules of another
    distribution, too; `unknown` are the names in it that are not of `owner`.
    """
    modules = [
        name for name in sorted(unknown) if name.endswith(".py") or Path(folder, name, "__init__.py").exists()
    ]
    others = other_owners(Path(folder).name, owner) if modules else ""
    if others:
        warnings.warn(
            f"{folder} is of {owner} and of {others}, whose {', '.join(modules)} are in it. {_ADVICE}",
            RuntimeWarning,
            stacklevel=3,
        )
