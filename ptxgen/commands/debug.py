"""Debug a kernel on the interpreter: `ptxgen debug kernels.py:scale --example kernels.py:example`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ptxgen import interpreter, ir
from ptxgen.commands.parts.command_line import CommandParser, completed, kernel_names
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, fail
from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.launch_options import add_launch, add_watch, run_options, symbol_values
from ptxgen.commands.parts.report_subjects import of_function
from ptxgen.commands.parts.run_arguments import STDIN, checked_values
from ptxgen.commands.parts.run_program import add_compilation, program_of
from ptxgen.commands.parts.static_parameters import static
from ptxgen.debugger.prompt import Prompt
from ptxgen.debugger.session import Session
from ptxgen.debugger.source_map import SourceMap
from ptxgen.errors import LaunchError, PtxGenError, UnsupportedTargetError
from ptxgen.frontends.program import Program
from ptxgen.interpreter import DeviceArena, Result
from ptxgen.interpreter.arguments import Argument
from ptxgen.interpreter.debugging import Debugger

NAME: Final = "ptxgen debug"
_fail: Final = functools.partial(fail, NAME)

_EPILOG: Final = """\
what is debugged (KERNEL):
  file.ptx, file.cu           a kernel of PTX or CUDA C++, launched with --grid, --block and one --arg for
                              each parameter, as by ptxgen run
  module:function, file.py:function
                              a function with @ptxgen.kernel, launched with --grid and --arg, or as --example
                              says, as by ptxgen report

The kernel stops before its first instruction, at which commands are asked for; help lists them. Arrays are
copied, and no file is written. A run can be repeated exactly, so back and reverse go back in time.

examples:
  ptxgen debug kernels.py:scale --example kernels.py:example
  ptxgen debug saxpy.ptx --entry saxpy --grid 4 --block 256 \\
      --arg f32:2 --arg x.npy --arg y.npy --arg i32:1000
  ptxgen debug saxpy.cu --entry saxpy --grid 4 --block 256 --sanitize --schedule pct:7 ...
  ptxgen debug kernels.py:scale --example kernels.py:example \\
      --command "break 12 if %tid.x == 37" --command continue --command registers

at the prompt:
  break 12 if i == 37         stop at a line: of the source, or ptx:40; in threads for which it holds
  continue, step, next        to the next stop, instruction of the warp, source line
  back, reverse               back to the instruction before, to the last stop before this one
  print %f3    print X[37]    a register, a Python variable, an argument
  x/8f tile+16                memory: shared, local, tensor[0, 5], an argument, an address
  watch X[37]                 stop where it changes, and say who writes it
  registers, warps, barriers  tables of this warp, and of this CTA

exit codes:
  0  the session was ended
  1  the same, and when it was ended the kernel had failed or the sanitizers had reported something; or a
     command of --command or --script was refused; or the input cannot be read or compiled
  2  wrong usage, or arguments that do not fit the kernel
  3  a configuration or a target that is not supported
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Debug a kernel; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    readable: Callable[[str], str] = str
    arguments = _arguments(argv)
    try:
        asks = sys.stdin.isatty()
        prompt = Prompt(_commands(arguments), sys.stdout, asks=asks)
        if _is_text(arguments.kernel):
            program = program_of(arguments)
            readable = program.readable
            launch = _of_program(program, arguments)
        else:
            launch = _of_function(arguments)
        session = prompt.session = launch.session(prompt.stopped, arguments)
        session.debug(stays=asks)
    except LaunchError as error:
        return _fail(USAGE, readable(str(error)))
    except UnsupportedTargetError as error:
        return _fail(UNSUPPORTED, error)
    except (PtxGenError, FileError) as error:
        return _fail(FAILED, error)
    return FAILED if session.failed or prompt.refused else OK


# ---------------------------------------------------------------------------------------- arguments


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(NAME, "Debug a kernel on the interpreter.", _EPILOG)
    add = parser.add_argument
    add("kernel", metavar="KERNEL", help="what to debug, see below")
    entry = add("--entry", metavar="NAME", help="the kernel of a file with several")
    completed(entry, kernel_names("kernel"))
    add("--command", "-c", action="append", default=[], metavar="COMMAND", help="carry out a command first")
    add("--script", type=Path, metavar="FILE", help="carry out a file's commands, before those of --command")
    add_launch(parser.add_argument_group("the launch"))
    function = parser.add_argument_group("a kernel function")
    function.add_argument(
        "--example", metavar="MODULE:FUNCTION", help="returns the launch, as for ptxgen report"
    )
    function.add_argument(
        "--static", type=static, action="append", default=[], metavar="NAME=VALUE", help="a static parameter"
    )
    add_watch(parser.add_argument_group("what is watched"))
    add_compilation(parser.add_argument_group("what is compiled, and how"))
    arguments = parser.parse_args(argv)
    if arguments.kernel == STDIN:
        parser.error("commands are read from standard input, so the kernel must be in a file")
    if arguments.kernel.endswith(".py"):
        parser.error(f"{arguments.kernel} is Python; name its kernel function, {arguments.kernel}:NAME")
    arguments.ptx = arguments.kernel
    if _is_text(arguments.kernel):
        for name in ("example", "static"):
            if getattr(arguments, name):
                parser.error(f"--{name} is for a kernel function, and {arguments.kernel} is none")
        if arguments.grid is None:
            parser.error("--grid is needed")
    elif (arguments.grid is None) == (arguments.example is None):
        parser.error("a kernel function needs --grid, or --example, which says the grid")
    return arguments


def _is_text(name: str) -> bool:
    return ":" not in name or name.endswith((".ptx", ".cu"))


def _commands(arguments: argparse.Namespace) -> list[str]:
    """The commands of the script, the command line and, if it is no terminal, standard input."""
    lines: list[str] = []
    if arguments.script is not None:
        try:
            lines = arguments.script.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {arguments.script}: {getattr(error, 'strerror', error)}") from error
    lines += arguments.command
    if not lines and not sys.stdin.isatty():
        lines = sys.stdin.read().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


# ----------------------------------------------------------------------------------------- the launch


class _Launch(NamedTuple):
    """A launch to debug: what `ptxgen.interpreter.run` takes, the names of the arguments, and the sources."""

    module: ir.Module
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_smem: int
    args: Sequence[Argument]
    names: Sequence[str]
    sources: SourceMap
    symbols: Mapping[str, Any]
    readable: Callable[[str], str]

    def session(self, stopped: Callable[[], None], arguments: argparse.Namespace) -> Session:
        """The session that debugs the launch."""

        def run(debugger: Debugger, args: Sequence[Argument], arena: DeviceArena) -> Result:
            return interpreter.run(
                self.module,
                self.entry,
                grid=self.grid,
                block=self.block,
                args=args,
                dynamic_smem=self.dynamic_smem,
                **run_options(arguments),
                symbols=self.symbols,
                arena=arena,
                debugger=debugger,
            )

        return Session(self.args, self.names, self.sources, run, stopped, self.readable)


def _of_program(program: Program, arguments: argparse.Namespace) -> _Launch:
    entry = program.only() if arguments.entry is None else program[arguments.entry]
    kernel = entry.kernel
    block = arguments.block or kernel.reqntid or ((kernel.threads,) if kernel.threads else ())
    if not block:
        raise LaunchError(f"{entry.name} does not say how many threads a block has; give --block")
    values = checked_values(arguments.arg, kernel.params)
    entry.check_elements(values)
    return _Launch(
        program.module,
        kernel.name,
        arguments.grid,
        block,
        arguments.dynamic_smem or kernel.dynamic_shared_bytes,
        values,
        [program.readable(param.name) for param in kernel.params],
        SourceMap(program.module, {}, program.ptx),
        program.symbols(symbol_values(arguments.symbol)),
        program.readable,
    )


def _of_function(arguments: argparse.Namespace) -> _Launch:
    if arguments.entry or arguments.symbol:
        raise LaunchError("--entry and --symbol are for PTX and CUDA C++, not for a kernel function")
    subject = of_function(arguments)
    module, launch = subject.module, subject.launch
    assert isinstance(module, ir.Module)
    assert launch is not None
    assert subject.block is not None
    kernel = module.kernels[0]
    return _Launch(
        module,
        kernel.name,
        launch.grid,
        subject.block,
        arguments.dynamic_smem or kernel.dynamic_shared_bytes,
        launch.args,
        [param.name for param in kernel.params],
        SourceMap(module, subject.renamed),
        {},
        str,
    )
