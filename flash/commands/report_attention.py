"""The attention kernels on which `ptxgen report` reports by name: their options, and their subjects."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from flash.commands.parts.emit_kernel import Kind
from flash.commands.parts.emit_kinds import kind_of
from flash.commands.parts.emit_options import add_kernel_options, config_of, every_kernel_option
from flash.commands.parts.emit_output import find_target
from flash.commands.parts.example_launch import example_launch
from flash.contract.built_kernel import BuiltKernel
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.report_options import add_output, report_parser
from ptxgen.report import Launch, Subject

ATTENTION: Final = "attention"
_COMMAND: Final = "ptxgen report"
_NOT_OF_KERNEL: Final = ("json", "stalls", "walk", "walk_cta", "output", "target", "assemble", "against")


def subject(words: Sequence[str]) -> tuple[argparse.Namespace, Subject]:
    """The parsed arguments of `ptxgen report WORDS`, the first of which names the kernel, and the subject.

    Raises `ConfigError` and `UnsupportedTargetError` for a kernel that is not supported, and SystemExit, as
    argparse does.
    """
    name, *argv = words
    if name == ATTENTION:
        arguments = _attention_arguments(argv)
        return arguments, _of_attention(arguments)
    kind = kind_of(name)
    arguments = _kind_arguments(name, kind, argv)
    return arguments, _of_built(kind.make(arguments), arguments)


def _attention_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = report_parser(f"{_COMMAND} {ATTENTION}", "The other options are those of ptxgen emit.")
    add_kernel_options(parser.add_argument_group("the kernel"), every_kernel_option())
    parser.add_argument(
        "--seq",
        type=whole(1),
        default=256,
        metavar="N",
        help="queries, and keys, of the one head that is run (default: 256)",
    )
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.head_dim is None:
        parser.error("--head-dim is required")
    return arguments


def _kind_arguments(name: str, kind: Kind, argv: Sequence[str]) -> argparse.Namespace:
    parser = report_parser(f"{_COMMAND} {name}", f"The other options are those of ptxgen emit {name}.")
    kind.add_options(parser.add_argument_group("the kernel"))
    add_output(parser)
    arguments = parser.parse_args(argv)
    kind.check_required(parser, arguments)
    return arguments


def _of_attention(arguments: argparse.Namespace) -> Subject:
    """The subject of an attention kernel and its launch on one head. Raises `ConfigError`."""
    config = config_of(arguments, find_target(arguments.target).name)
    built, plan, values = example_launch(config, arguments.seq)
    launch = Launch(plan.grid, values, dynamic_smem=plan.dynamic_shared)
    return replace(_of_built(built, arguments), launch=launch)


def _of_built(built: BuiltKernel, arguments: argparse.Namespace) -> Subject:
    """The subject of one of our kernels, without a launch; the options say how it was configured."""
    chosen = [
        (name, value)
        for name, value in vars(arguments).items()
        if value not in (None, False, "auto") and name not in _NOT_OF_KERNEL
    ]
    return Subject(
        built.module,
        block=(built.threads,),
        prove=lambda: (built.proofs, "every launch that its contract allows"),
        config=tuple((name.replace("_", " "), str(value)) for name, value in chosen),
    )
