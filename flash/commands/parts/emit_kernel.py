"""A kernel that `ptxgen emit` emits by its name: its options, and the function that makes it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flash.commands.parts.emit_options import add_output_options, check_outputs
from flash.contract.built_kernel import BuiltKernel
from ptxgen.commands.parts.command_line import CommandParser

# How the help of each of these kernels ends.
OUTPUTS: Final = "The exit codes, and what goes where, are those of ptxgen emit --help"


@dataclass(frozen=True)
class Kind:
    """A kernel that can be asked for by name: its options, and the function that makes it."""

    about: str
    epilog: str
    required: tuple[str, ...]  # the options that must be given
    add_options: Callable[[argparse._ArgumentGroup], None]
    make: Callable[[argparse.Namespace], BuiltKernel]

    def arguments(self, name: str, argv: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments of a command line. Raises SystemExit, as argparse does."""
        parser = CommandParser(f"ptxgen emit {name}", f"Emit {self.about}.", self.epilog)
        self.add_options(parser.add_argument_group("the kernel"))
        add_output_options(parser)
        parsed = parser.parse_args(argv)
        self.check_required(parser, parsed)
        check_outputs(parser, parsed)
        return parsed

    def check_required(self, parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
        """End with a usage error if an option is missing."""
        for option in self.required:
            if getattr(parsed, option[2:].replace("-", "_")) is None:
                parser.error(f"{option} is required")
