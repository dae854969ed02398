"""Who installed the module `flash`: this distribution has one, and so has another on package indexes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from pathlib import Path
from typing import Final

NAME: Final = "ptxgen"  # of the distribution
MODULE: Final = "flash"
_MARK: Final = f'__distribution__: Final = "{NAME}"'  # in the __init__.py of our module
_ADVICE: Final = (
    "Each overwrites files of the other, and uninstalling one damages both: uninstall both, and install "
    "them in separate environments"
)


def other_owners() -> tuple[str, ...]:
    """The other installed distributions that have a top-level module `flash`, by name."""
    owners = importlib.metadata.packages_distributions().get(MODULE, [])
    return tuple(sorted({owner for owner in owners if owner != NAME}))


def why_not_ours() -> str:
    """Why `flash` cannot be imported as ours: another distribution, or a folder in front of it on
    sys.path, has taken its place. Empty if it is ours. Does not import it.
    """
    try:
        spec = importlib.util.find_spec(MODULE)
    except ValueError:  # it is imported already, and has no spec
        spec = None
    if spec is None or spec.origin is None:
        return f"the module {MODULE}, which {NAME} installs, is not there; reinstall {NAME}"
    path = Path(spec.origin)
    if not path.is_file() or _MARK in path.read_text(encoding="utf-8", errors="replace"):
        return ""  # of an archive only the import can tell
    return replaced(spec.origin)


def replaced(path: str) -> str:
    """The message for a module `flash` at `path` that is not ours."""
    owners = " and ".join(other_owners())
    if owners:
        return f"{path} is not of {NAME} but of {owners}, which has a module {MODULE}, too. {_ADVICE}"
    return f"{path} is not the module {MODULE} of {NAME}, but stands in its place; rename or move it"


def warn_if_shared(folder: str, unknown: set[str]) -> None:
    """Warn if the folder of our `flash` holds modules of another distribution, too; `unknown` are the
    names in it that are not ours.
    """
    modules = [
        name for name in sorted(unknown) if name.endswith(".py") or Path(folder, name, "__init__.py").exists()
    ]
    owners = " and ".join(other_owners()) if modules else ""
    if owners:
        warnings.warn(
            f"{folder} is of {NAME} and of {owners}, whose {', '.join(modules)} are in it. {_ADVICE}",
            RuntimeWarning,
            stacklevel=3,
        )
