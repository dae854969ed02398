"""The options of `tools/emit.py` for hosts in C and Rust (`ptxgen/contract/stub.py`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ptxgen.contract import LANGUAGES

if TYPE_CHECKING:
    from flash.contract.built_kernel import BuiltKernel


def add_stub_options(group: argparse._ArgumentGroup) -> None:
    """Add the options to the group of outputs."""
    add = group.add_argument
    add(
        "--stub",
        choices=LANGUAGES,
        metavar="LANGUAGE",
        help="c or rust: a header or a module that checks and launches the kernel, its text inside",
    )
    add("--prefix", default="", metavar="NAME", help="with --stub c: what its names begin with")
    add("--example", metavar="FILE", help="with --stub and -o: also write a program that uses it to FILE")


def check_stub(parser: argparse.ArgumentParser, arguments: argparse.Namespace, stdout: str) -> None:
    """End with a usage error for options that do not go together."""
    if arguments.stub is None:
        if arguments.prefix or arguments.example:
            parser.error("--prefix and --example need --stub")
        return
    if arguments.prefix and arguments.stub != "c":
        parser.error("--prefix is for --stub c; the names of Rust are in the module that has the file's name")
    if arguments.json:
        parser.error("--stub and --json are two outputs; run the command twice")
    if arguments.example and arguments.output == stdout:
        parser.error("--example needs -o FILE, which the program includes by its name")
    if arguments.example and arguments.example in (arguments.output, arguments.cubin):
        parser.error("--example, --output and --cubin must be different files")


def stub_of(built: BuiltKernel, arguments: argparse.Namespace) -> str:
    """The text of the C header or the Rust module of a kernel."""
    # Imported here, because emitting PTX does not need it.
    from ptxgen.contract.stub import stub

    return stub(built.contract, built.text, arguments.stub, arguments.prefix)


def example_of(built: BuiltKernel, arguments: argparse.Namespace) -> str:
    """The text of an example program that includes the header or module of a kernel."""
    from ptxgen.contract.stub import example

    return example(built.contract, arguments.stub, Path(arguments.output).name, arguments.prefix)
