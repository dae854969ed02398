# PYTHON_ARGCOMPLETE_OK
"""The program `ptxgen`: runs one of its commands, `ptxgen COMMAND …`.

A command's module is imported only if it runs, and packages that register commands only for a command that
is not one of the toolkit's: `ptxgen --version` needs none of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final

import ptxgen
from ptxgen.commands import registry
from ptxgen.commands.parts.command_line import COMPLETING, CommandParser, words_to_complete
from ptxgen.commands.parts.exits import USAGE, fail
from ptxgen.commands.parts.imports import uncollected
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.registry import NAME, Command
from ptxgen.errors import did_you_mean

TOOLKIT: Final = {
    "check": Command(
        "ptxgen.commands.check",
        "say what is wrong with the kernels of PTX files",
        "ptxgen check attention.ptx --block 128",
    ),
    "run": Command(
        "ptxgen.commands.run", "run a kernel of PTX or CUDA C++ without a GPU", "ptxgen run attention.ptx"
    ),
    "run-program": Command("ptxgen.commands.run_program", "run a CUDA program without a GPU"),
    "debug": Command(
        "ptxgen.commands.debug",
        "stop a kernel where it goes wrong, and step forwards and back",
        "ptxgen debug kernels.py:softmax --example kernels.py:example",
    ),
    "report": Command("ptxgen.commands.report", "report on a kernel as one HTML page"),
    "mutate": Command(
        "ptxgen.commands.mutate",
        "break a kernel in every small way, and see which check notices",
        "ptxgen mutate kernels.py:softmax --example kernels.py:example",
    ),
    "cache": Command("ptxgen.commands.cache", "look after the cache of assembled modules and proofs"),
    "completion": Command(
        "ptxgen.commands.completion",
        "how the shell completes these commands",
        'eval "$(ptxgen completion bash)"',
    ),
}

_VERSION: Final = "--version"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, by default those of the process.

    Returns its exit code, or raises SystemExit with it, as argparse does.
    """
    if COMPLETING in os.environ:
        argv = words_to_complete()
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-"):
        return command(words[0], words[1:])
    return quietly(lambda: _without_command(words), NAME)


def command(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with arguments, by default those of the process; returns the exit code, or raises
    SystemExit with it.
    """

    def run() -> int:
        known = commands(name)
        if name not in known:
            hint = did_you_mean(name, known)
            return fail(
                NAME, USAGE, f"no command {name!r} is installed; the commands are {', '.join(known)}{hint}"
            )
        return int(_module(known[name].module).main(sys.argv[1:] if argv is None else argv))

    return quietly(run, f"{NAME} {name}")


def commands(wanted: str = "") -> Mapping[str, Command]:
    """The commands of the toolkit and of packages that register some, by name, in the order of the help. A
    package does not replace an existing command. No package is imported after the one that has the command
    `wanted`.
    """
    known = dict(TOOLKIT)
    order = list(known)
    tables = registry.registered(registry.COMMANDS)
    while wanted not in known and (table := next(tables, None)) is not None:
        for name, added in table.items():
            if name not in known:
                order.insert(order.index(added.before) if added.before in known else len(order), name)
                known[name] = added
    return {name: known[name] for name in order}


def _module(full: str) -> ModuleType:
    """The module of a command, imported if it is not."""
    if full in sys.modules:
        return sys.modules[full]
    with uncollected():
        return importlib.import_module(full)


def _without_command(words: Sequence[str]) -> int:
    known = TOOLKIT if words[:1] == [_VERSION] else commands()
    parser = CommandParser(
        NAME, "Generates, checks, runs and caches PTX kernels.", _epilog(known), usage="%(prog)s COMMAND …"
    )
    parser.add_argument(_VERSION, action="version", version=f"{NAME} {ptxgen.__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(known), help="one of those below")
    return command(parser.parse_args(words).command, [])


def _epilog(known: Mapping[str, Command]) -> str:
    lines = ["commands (ptxgen COMMAND --help has options, examples and exit codes):"]
    lines += [f"  {name:<18}{entry.about}" for name, entry in known.items()]
    lines += ["", "examples:"]
    return "\n".join(lines + [f"  {entry.example}" for entry in known.values() if entry.example]) + "\n"
