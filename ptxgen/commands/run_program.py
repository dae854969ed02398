"""Run a CUDA program without a GPU: `ptxgen run-program ./a.out [argument …]`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Final

from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, UNSUPPORTED, USAGE, fail
from ptxgen.commands.parts.limits import add_max_instructions
from ptxgen.errors import LaunchError, PtxGenError, UnsupportedTargetError
from ptxgen.program import Ended, run

NAME: Final = "ptxgen run-program"
_fail: Final = functools.partial(fail, NAME)

_EPILOG: Final = """\
The program is an ordinary one, compiled by nvcc of CUDA 13 and linked with the shared runtime. A C
compiler (cc) is needed once, to build the library that answers its calls. PTX that nvcc has
compressed, as it does by default, needs pip install zstandard, or nvcc -Xfatbin=-compress-mode=none.
docs/running-programs.md lists the calls that are answered.

examples:
  nvcc -arch=sm_80 -lineinfo -cudart shared saxpy.cu -o saxpy
  ptxgen run-program ./saxpy
  ptxgen run-program --sanitize ./saxpy 1000 --verbose
  ptxgen run-program --target sm_90 ./saxpy

exit codes:
  that of the program, or 128 plus the number of the signal that ended it; else
  1  it made a call that is not answered, or its device code cannot be run, or the sanitizers
     (--sanitize) found something
  2  wrong usage, or a program that cannot be run so
  3  a target that is not supported
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    command = [arguments.program, *arguments.arguments]
    try:
        ended = run(
            command,
            target=arguments.target,
            sanitize=arguments.sanitize,
            max_instructions=arguments.max_instructions,
            tell=_tell,
        )
    except LaunchError as error:
        return _fail(USAGE, error)
    except UnsupportedTargetError as error:
        return _fail(UNSUPPORTED, error)
    except PtxGenError as error:
        return _fail(FAILED, error)
    return _result(ended, arguments.sanitize)


def _result(ended: Ended, sanitize: bool) -> int:
    if ended.stopped:
        return _fail(FAILED, ended.stopped)
    if not sanitize:
        return ended.code
    for report in ended.reports:
        print(f"{NAME}: {report}", file=sys.stderr)
    problems = len(ended.reports) + len(ended.faults)
    if problems:
        _tell(f"{problems} problem{'s' * (problems > 1)} found in {_launches(ended)}")
        return FAILED
    _tell(f"nothing was found in {_launches(ended)}")
    return ended.code


def _launches(ended: Ended) -> str:
    return f"{ended.launches} launch{'es' * (ended.launches != 1)}"


def _tell(text: str) -> None:
    print(f"{NAME}: {text}", file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        NAME, "Run a CUDA program whose calls the PTX interpreter answers, without a GPU.", _EPILOG
    )
    add = parser.add_argument
    add("--sanitize", action="store_true", help="watch all launches for races and other mistakes")
    add(
        "--target",
        metavar="TARGET",
        help="the device's, such as sm_90 (default: sm_80, or the program's if newer)",
    )
    add_max_instructions(add)
    add("program", metavar="PROGRAM", help="the program; options before it are this command's")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="its arguments")
    return parser.parse_args(argv)
