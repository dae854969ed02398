"""The options that `ptxgen report` has for every kernel."""

from __future__ import annotations

import argparse
import re
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
    parser.add_argument(
        "--walk",
        type=_index,
        nargs="?",
        const=(0,),
        metavar="X[,Y[,Z]]",
        help="record the steps of the warp of this thread (default: the first), to go forth and back "
        "through them on the page",
    )
    parser.add_argument(
        "--walk-cta", type=_index, default=(0,), metavar="X[,Y[,Z]]", help="the CTA of --walk (default: 0)"
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="the data of the page as JSON")
    formats.add_argument(
        "--stalls",
        action="store_true",
        help="what warps wait for in the issue model, by line of PTX and its source, as a table",
    )
    parser.add_argument(
        "-o", "--output", default=STDOUT, metavar="FILE", help="default: - for standard output"
    )


def _index(text: str) -> tuple[int, ...]:
    """The index of a thread or a CTA. Raises `argparse.ArgumentTypeError`."""
    words = re.split("[,x]", text)
    if not 1 <= len(words) <= 3 or not all(word.isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"must be one to three numbers, such as 37 or 4,2, got {text!r}")
    return tuple(map(int, words))
