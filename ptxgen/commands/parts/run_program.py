"""The program that ptxgen run runs: PTX, or CUDA C++ that NVRTC compiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from ptxgen.commands.parts.run_arguments import STDIN, ptx_text
from ptxgen.errors import LaunchError
from ptxgen.frontends import cuda
from ptxgen.frontends.program import Program
from ptxgen.frontends.ptx import program_of as program_of_text
from ptxgen.target import target

_SOURCE: Final = ".cu"
_COMPILATION: Final = ("target", "include", "define", "instance", "nvrtc")


def add_compilation(group: argparse._ArgumentGroup) -> None:
    """Add the options that CUDA C++ is compiled with."""
    add = group.add_argument
    add("--target", metavar="TARGET", help=f"such as sm_90a (default: {cuda.DEFAULT_TARGET})")
    add("--include", action="append", default=[], metavar="DIR", help="a folder for #include")
    add("--define", type=_macro, action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    add(
        "--instance",
        action="append",
        default=[],
        metavar="NAME",
        help='an instance of a template, such as "block_sum<float, 64>", which is its name for --entry',
    )
    add("--nvrtc", action="append", default=[], metavar="OPTION", help="such as --nvrtc=-use_fast_math")


def program_of(arguments: argparse.Namespace) -> Program:
    """The program in the file that is named. Raises `FileError`, `LaunchError` for options that the
    file does not take, `UnsupportedTargetError`, and what compiling or parsing it raises.
    """
    path = Path(arguments.ptx)
    if arguments.ptx == STDIN or path.suffix != _SOURCE:
        needless = [name for name in _COMPILATION if getattr(arguments, name)]
        if needless:
            raise LaunchError(
                f"--{needless[0]} is for CUDA C++ (.cu), and {arguments.ptx} is PTX; leave it out"
            )
        text = ptx_text(arguments.ptx)
        compiled = None if arguments.ptx == STDIN else path.stat().st_mtime
        return program_of_text(text, "the file", compiled)
    return cuda.compile(
        ptx_text(arguments.ptx),
        name=str(path),
        target=target(arguments.target or cuda.DEFAULT_TARGET).name,
        include=arguments.include,
        defines=dict(arguments.define),
        kernels=arguments.instance,
        options=arguments.nvrtc,
    )


def _macro(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"must be NAME or NAME=VALUE, got {text!r}")
    return name, value if equals else "1"
