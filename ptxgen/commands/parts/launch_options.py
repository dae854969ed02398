"""The options of a launch on the interpreter, for the commands that run kernels of files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import numpy as np

from ptxgen.commands.parts.limits import add_max_instructions
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.run_arguments import ArgumentText, argument_text, argument_value, extents
from ptxgen.interpreter.schedule.policies import LOCKSTEP


def add_launch(group: argparse._ArgumentGroup) -> None:
    """Add the options of a launch."""
    add = group.add_argument
    add("--grid", type=extents, metavar="X[,Y[,Z]]", help="CTAs; 4x2x1 means the same as 4,2,1")
    add("--block", type=extents, metavar="X[,Y[,Z]]", help="threads of a CTA")
    add("--cluster", type=extents, default=(1,), metavar="X[,Y[,Z]]", help="CTAs of a cluster")
    add("--arg", type=argument_text, action="append", default=[], metavar="ARGUMENT", help="see below")
    add(
        "--symbol",
        type=_symbol,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value for a variable of the module: a .npy file, a number or hex:",
    )
    add("--dynamic-smem", type=whole(0), default=0, metavar="BYTES", help="of shared memory")


def add_watch(group: argparse._ArgumentGroup) -> None:
    """Add the options for sanitizers, schedules and the limit of a run."""
    add = group.add_argument
    add(
        "--sanitize",
        nargs="?",
        const="all",
        default="",
        metavar="NAMES",
        help="find races, missing waits, uninitialised values: all, or some of bounds, init, race, "
        "sync, proxy, and mbarrier_init, determinism, tensor_fence and tensor_order, which are not in all, "
        "with commas",
    )
    add(
        "--schedule",
        metavar="SCHEDULE",
        help="lockstep, or pct:SEED or pct:SEED:DEPTH for an order of warps drawn from a seed "
        f"(default: {LOCKSTEP})",
    )
    add_max_instructions(add)


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `interpreter.run` that are the same for all kernels; sanitizers report, and do
    not raise.
    """
    return {
        "cluster": arguments.cluster,
        "sanitize": arguments.sanitize or False,
        "schedule": arguments.schedule or LOCKSTEP,
        "max_instructions": arguments.max_instructions,
        "raise_on_report": False,
    }


def _symbol(text: str) -> tuple[str, ArgumentText]:
    name, equals, words = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    value = argument_text(words)
    if value.output is not None:
        raise argparse.ArgumentTypeError(f"a variable is not written to a file, got {text!r}")
    return name, value


def symbol_values(symbols: Iterable[tuple[str, ArgumentText]]) -> dict[str, Any]:
    """The values of a module's variables. Raises `LaunchError` and `FileError`."""
    values = {name: argument_value(0, what) for name, what in symbols}
    return {name: value if isinstance(value, bytes) else np.asarray(value) for name, value in values.items()}
