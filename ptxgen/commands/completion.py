"""Print the shell code that completes the commands: `eval "$(ptxgen completion bash)"`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.standard_output import tell

NAME: Final = "ptxgen completion"
SHELLS: Final = ("bash", "zsh", "fish", "tcsh", "powershell")

_EPILOG: Final = """\
examples:
  eval "$(ptxgen completion bash)"                  in ~/.bashrc
  eval "$(ptxgen completion zsh)"                   in ~/.zshrc, after compinit
  ptxgen completion fish > ~/.config/fish/completions/ptxgen.fish

Commands, their options and the values of some are completed, for example the kernels of a PTX file
after --entry. The work is done by argcomplete, which is installed with this package.

exit codes:
  0  done
  1  argcomplete is not installed
  2  wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the code for a shell; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    parser = CommandParser(NAME, "Print what makes a shell complete ptxgen's commands.", _EPILOG)
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    shell = parser.parse_args(argv).shell
    try:
        argcomplete: Any = importlib.import_module("argcomplete")
    except ModuleNotFoundError as error:
        return fail(NAME, FAILED, f"{error}; pip install argcomplete")
    tell(argcomplete.shellcode(["ptxgen"], shell=shell))
    return OK
