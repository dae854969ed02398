"""Commands and kernels that other packages add to `ptxgen`, by entry points of their distributions.

    [project.entry-points."ptxgen.commands"]
    mine = "my_package:COMMANDS"   # a mapping of names to `Command`

    [project.entry-points."ptxgen.report"]
    mine = "my_package:KERNELS"    # a `ReportKernels`

In a checkout, where nothing may be installed, the entry points are read from `pyproject.toml`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import ptxgen
from ptxgen.commands.parts.exits import note

NAME: Final = "ptxgen"  # the program, and the distribution of this package
COMMANDS: Final = "ptxgen.commands"
REPORT: Final = "ptxgen.report"


class Command(NamedTuple):
    """A command of `ptxgen`: the module whose `main(argv)` runs it and returns the exit code, what
    `ptxgen --help` says of it, an example there, and the command that it is listed before (default: last).
    """

    module: str
    about: str
    example: str = ""
    before: str = ""


class ReportKernels(NamedTuple):
    """Kernels that `ptxgen report` takes by name: the module whose `subject(words)` returns the parsed
    arguments of the command line and the `ptxgen.report.Subject`, what the help says of the kernels, by
    their names with commas between them, and an example.
    """

    module: str
    about: Mapping[str, str]
    example: str

    @property
    def names(self) -> list[str]:
        """The names by which `ptxgen report` takes these kernels."""
        return [name for names in self.about for name in names.split(", ")]


def registered(group: str) -> Iterator[Any]:
    """The objects that distributions register in a group. An object that cannot be imported is reported on
    standard error.
    """
    for owner, reference in _references(group):
        module, _, attribute = reference.partition(":")
        try:
            value = getattr(importlib.import_module(module), attribute)
        except (AttributeError, ImportError) as error:
            from ptxgen.distribution import why_not_imported

            note(NAME, why_not_imported(module, owner, error))
        else:
            yield value


def _references(group: str) -> Iterator[tuple[str, str]]:
    """The entry points of a group: the distribution, and MODULE:OBJECT."""
    of_checkout = _of_checkout(group)
    yield from ((NAME, reference) for reference in of_checkout or ())
    import importlib.metadata  # which takes longer than all of `ptxgen --version`

    for point in importlib.metadata.entry_points(group=group):
        owner = point.dist.name if point.dist else point.name
        if of_checkout is None or owner != NAME:  # whose installed metadata may be older than the checkout
            yield owner, point.value


def _of_checkout(group: str) -> list[str] | None:
    """What the pyproject.toml of a checkout registers in a group; None where this package is installed, maybe
    next to the file of another distribution.

    The table is read as this project writes it, a line for each entry point: to import a TOML parser and
    parse the file takes as long as the rest of the start of a command.
    """
    try:
        text = Path(ptxgen.__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return None
    if f'name = "{NAME}"' not in text.splitlines():
        return None
    table = text.partition(f'[project.entry-points."{group}"]\n')[2].partition("\n[")[0]
    return [line.split('"')[1] for line in table.splitlines() if " = " in line and not line.startswith("#")]
