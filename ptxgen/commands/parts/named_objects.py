"""Loads what words of a command line name: objects of modules and files, and the launches of an example."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ptxgen.commands.parts.files import FileError
from ptxgen.errors import LaunchError, did_you_mean


class Launched(NamedTuple):
    """A launch: the grid, the arguments, the static parameters."""

    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    statics: dict[str, Any]


def named(name: str) -> Any:
    """The object that `module:name` or `file.py:name` names. Raises `FileError` and `LaunchError`."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise LaunchError(f"{name!r} must be MODULE:FUNCTION or FILE.py:FUNCTION, such as kernels.py:softmax")
    module = _of_file(Path(where)) if where.endswith(".py") else _imported(where)
    value = getattr(module, attribute, None)
    if value is None:
        hint = did_you_mean(attribute, [n for n in vars(module) if not n.startswith("_")])
        raise LaunchError(f"{where} has no {attribute!r}{hint}")
    return value


def _of_file(path: Path) -> Any:
    """The module of a Python file, which is executed once; each of several files of one name has its own."""
    name = first = f"ptxgen_named_{path.stem}"
    for number in itertools.count(2):
        known = sys.modules.get(name)
        if known is None:
            break
        if known.__file__ == str(path.resolve()):
            return known
        name = f"{first}_{number}"
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


def launches_of(name: str) -> list[Launched]:
    """The launches that an example returns, which `MODULE:FUNCTION` names: one, or several in a list or a
    generator. Raises `FileError` and `LaunchError`.
    """
    example = named(name)
    if not callable(example):
        raise LaunchError(f"{name} is no function")
    launches = example()
    several = isinstance(launches, list | Iterator)
    return [_launch_of(name, one) for one in launches] if several else [_launch_of(name, launches)]


def launch_of(name: str) -> Launched:
    """The one launch that an example returns. Raises `FileError` and `LaunchError`."""
    launches = launches_of(name)
    if len(launches) != 1:
        raise LaunchError(f"{name} returns {len(launches)} launches, and one is wanted")
    return launches[0]


def _launch_of(name: str, launch: Any) -> Launched:
    if not isinstance(launch, tuple) or len(launch) not in (2, 3):
        raise LaunchError(f"{name} must return (grid, arguments) or (grid, arguments, statics)")
    grid, values, *statics = launch
    extent = grid if isinstance(grid, tuple) else (grid,)
    if not all(isinstance(n, int) and n > 0 for n in extent) or not isinstance(values, tuple | list):
        raise LaunchError(f"{name} must return a grid of positive integers and a tuple of arguments")
    return Launched(extent, tuple(values), dict(*statics))
