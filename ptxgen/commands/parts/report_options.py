"""The options that `ptxgen report` has for every kernel."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.files import STDOUT


def report_parser(prog: str, epilog: str, kernels: Sequence[str] = ()) -> CommandParser:
    """The parser of `prog`, such as "ptxgen report"; `kernels` are those that it takes by name."""
    return CommandParser(prog, "Report on a kernel as one HTML file.", epilog, kernels)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and in which format the report is written."""
    parser.add_argument(
        "--assemble",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask the assembler and the disassembler, if they are at hand",
    )
    parser.add_argument(
        "--against",
        metavar="KERNEL",
        help="compare with another kernel, which has the same options, or those after its name: "
        "--against 'old.py:scale --grid 4'",
    )
    parser.add_argument("--json", action="store_true", help="the data of the page as JSON")
    parser.add_argument(
        "-o", "--output", default=STDOUT, metavar="FILE", help="default: - for standard output"
    )
