"""What `ptxgen report` reports on: PTX text, or a kernel function."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.run_arguments import Given, ptx_text
from ptxgen.errors import LaunchError, did_you_mean
from ptxgen.kernels import KernelFunction
from ptxgen.report import Launch, Subject, subject_of_function


def of_text(arguments: argparse.Namespace) -> Subject:
    """The subject of PTX text. Raises `FileError` and `LaunchError`."""
    launch = None
    if arguments.grid is not None:
        values = _values(arguments.arg)
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
    function = _named(arguments.kernel)
    if not isinstance(function, KernelFunction):
        raise LaunchError(
            f"{arguments.kernel} is no kernel function; decorate it with @ptxgen.kernel(threads=...)"
        )
    grid, values, statics = arguments.grid, tuple(_values(arguments.arg)), dict(arguments.static)
    if arguments.example:
        example = _named(arguments.example)
        if not callable(example):
            raise LaunchError(f"{arguments.example} is no function")
        grid, values, more = _launch_of(arguments.example, example())
        statics |= more
    threads = None
    if arguments.block is not None:
        if len(arguments.block) > 1:
            raise LaunchError("the block of a kernel function has one extent, its threads")
        threads = arguments.block[0]
    return subject_of_function(
        function, grid, values, target=arguments.target, threads=threads, statics=statics
    )


def _values(given: Sequence[Given]) -> list[Any]:
    return [what.make(number) for number, what in enumerate(given)]


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def _named(name: str) -> Any:
    """The object that `module:name` or `file.py:name` names."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise LaunchError(f"{name!r} must be MODULE:FUNCTION or FILE.py:FUNCTION, such as kernels.py:softmax")
    module = _of_file(Path(where)) if where.endswith(".py") else _imported(where)
    found = getattr(module, attribute, None)
    if found is None:
        hint = did_you_mean(attribute, [n for n in vars(module) if not n.startswith("_")])
        raise LaunchError(f"{where} has no {attribute!r}{hint}")
    return found


def _of_file(path: Path) -> Any:
    """The module that a file makes; the same file gives the same module."""
    name = f"ptxgen_report_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return known
    if not path.is_file():
        raise FileError(f"cannot read {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as python -m finds it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FileError(f"cannot import {name}: {error}") from error


def _launch_of(name: str, made: Any) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    """The launch that an example returned: the grid, the arguments, the static parameters."""
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise LaunchError(f"{name} must return (grid, arguments) or (grid, arguments, statics)")
    grid, values, *statics = made
    extent = grid if isinstance(grid, tuple) else (grid,)
    if not all(isinstance(n, int) and n > 0 for n in extent) or not isinstance(values, tuple | list):
        raise LaunchError(f"{name} must return a grid of positive integers and a tuple of arguments")
    return extent, tuple(values), dict(*statics)
