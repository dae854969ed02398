# PYTHON_ARGCOMPLETE_OK
"""The program `ptxgen`: runs one of its commands, `ptxgen COMMAND …`.

A command's module is imported only if it runs, so that `ptxgen --version` needs none of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

import ptxgen
from flash.commands.parts.command_line import COMPLETING, CommandParser, words_to_complete
from flash.commands.parts.quiet import quietly

NAME: Final = "ptxgen"

COMMANDS: Final = {
    "emit": "an attention kernel as PTX, or the contract of its launch",
    "check": "say what is wrong with the kernels of PTX files",
    "run": "run a kernel of PTX or CUDA C++ without a GPU",
    "run-program": "run a CUDA program without a GPU",
    "report": "report on a kernel as one HTML page",
    "cache": "look after the cache of assembled modules",
    "bench": "measure emission, assembly, the backends and the GPU",
    "tune": "rank the tiles that an attention kernel can have",
    "mutate": "break the shipped kernels on purpose, and see which check notices",
    "context-parallel": "run attention on the processes of torchrun, or estimate it",
    "demo": "generate, check, assemble and run attention kernels",
    "completion": "how the shell completes these commands",
}

_EPILOG: Final = f"""\
commands (ptxgen COMMAND --help has options, examples and exit codes):
{chr(10).join(f"  {name:<18}{about}" for name, about in COMMANDS.items())}

examples:
  ptxgen emit --head-dim 128 --dtype bf16 --causal -o attention.ptx
  ptxgen check attention.ptx --block 128
  ptxgen run attention.ptx
  eval "$(ptxgen completion bash)"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, by default those of the process.

    Returns its exit code, or raises SystemExit with it, as argparse does.
    """
    if COMPLETING in os.environ:
        argv = words_to_complete()
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return command(words[0], words[1:])
    return quietly(lambda: _without_command(words), NAME)


def command(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with arguments, by default those of the process; returns the exit code, or raises
    SystemExit with it.
    """

    def run() -> int:
        return int(_module(name).main(sys.argv[1:] if argv is None else argv))

    return quietly(run, f"{NAME} {name}")


def _module(name: str) -> ModuleType:
    """The module of a command. What its import makes lives as long as the process, and the garbage
    collector looks at none of it: that would take a tenth of the time that emitting a kernel takes.
    """
    full = f"flash.commands.{name.replace('-', '_')}"
    if full in sys.modules or not gc.isenabled():
        return importlib.import_module(full)
    gc.disable()
    try:
        return importlib.import_module(full)
    finally:
        gc.freeze()
        gc.enable()


def _without_command(words: Sequence[str]) -> int:
    parser = CommandParser(
        NAME,
        "Generates, checks, runs and caches PTX kernels for attention.",
        _EPILOG,
        usage="%(prog)s COMMAND …",
    )
    parser.add_argument("--version", action="version", version=f"{NAME} {ptxgen.__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=tuple(COMMANDS), help="one of those below")
    return command(parser.parse_args(words).command, [])
