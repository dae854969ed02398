"""What `ptxgen report` reports on: PTX text, or a kernel function."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.named_objects import launch_of, named
from ptxgen.commands.parts.run_arguments import ptx_text, values_of
from ptxgen.errors import LaunchError
from ptxgen.kernels import KernelFunction
from ptxgen.report import Launch, Subject, subject_of_function


def of_text(arguments: argparse.Namespace) -> Subject:
    """The subject of PTX text. Raises `FileError` and `LaunchError`."""
    launch = None
    if arguments.grid is not None:
        values = values_of(arguments.arg)
        launch = Launch(
            arguments.grid, values, arguments.cluster, arguments.dynamic_smem, arguments.dynamic_align
        )
    return Subject(
        ptx_text(arguments.kernel),
        arguments.entry,
        arguments.block,
        launch,
        config=(("file", Path(arguments.kernel).name),),
        sources={path.name: _lines(path) for path in arguments.source},
    )


def of_function(arguments: argparse.Namespace) -> Subject:
    """The subject of a kernel function and its launch. Raises `FileError` and `LaunchError`."""
    function = named(arguments.kernel)
    if not isinstance(function, KernelFunction):
        raise LaunchError(
            f"{arguments.kernel} is no kernel function; decorate it with @ptxgen.kernel(threads=...)"
        )
    grid, values, statics = arguments.grid, values_of(arguments.arg), dict(arguments.static)
    if arguments.example:
        grid, values, more = launch_of(arguments.example)
        statics |= more
    threads = None
    if arguments.block is not None:
        if len(arguments.block) > 1:
            raise LaunchError("the block of a kernel function has one extent, its threads")
        threads = arguments.block[0]
    subject = subject_of_function(
        function, grid, values, target=arguments.target, threads=threads, statics=statics
    )
    return replace(subject, config=(("function", arguments.kernel), *subject.config[1:]))


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
