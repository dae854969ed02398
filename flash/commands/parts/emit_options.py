"""The options of `ptxgen emit` that several kernels have."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, Final

from flash.commands.parts.emit_output import NATIVE
from flash.commands.parts.emit_stub import add_stub_options, check_stub
from flash.families.precision import AUTO, OF_F32
from flash.operands.dtypes import BLOCK_FORMATS, DTYPES, FP8_DTYPES, INPUT_DTYPES
from flash.problem.config import CAUSAL, DEFAULT_TARGET, AttentionConfig
from flash.problem.outputs import OUTPUTS
from flash.problem.persistence import SCHEDULERS
from flash.scores.features import SCORES
from flash.scores.options import number
from ptxgen.commands.parts.command_line import completed
from ptxgen.commands.parts.files import STDOUT
from ptxgen.target import EARLY_TARGETS, TARGETS


def _number_or_auto(text: str) -> int | float | str:
    return text if text == "auto" else number(text)


def _number_or_format(text: str) -> int | float | str:
    return text if text in BLOCK_FORMATS else number(text)


OF_OUTPUTS: Final = {  # what the kernel writes beside O, by option
    f"--{output.option.replace('_', '-')}": output for output in OUTPUTS
}

_OF_KERNELS: Final[dict[str, dict[str, Any]]] = {
    "--head-dim": {"type": number, "metavar": "D", "help": "elements of a row of Q and K, 1 to 576"},
    "--head-dim-v": {"type": number, "metavar": "D", "help": "of a row of V and O (default: --head-dim)"},
    "--tile": {
        "type": _number_or_auto,
        "default": "auto",
        "metavar": "N",
        "help": "keys per tile (default: auto; see --list-tiles)",
    },
    "--block-q": {
        "type": _number_or_auto,
        "default": "auto",
        "metavar": "N",
        "help": "query rows per CTA (default: auto)",
    },
    "--stages": {
        "type": _number_or_auto,
        "default": "auto",
        "metavar": "N",
        "help": "tiles of K, and of V, in shared memory at once, on tensor cores (default: 1)",
    },
    "--dtype": {
        "default": "f32",
        "help": f"element type of Q, K, V and O: {', '.join(DTYPES)}; of Q, K and V, fp8: "
        f"{', '.join(FP8_DTYPES)} (default: f32)",
    },
    "--out-dtype": {"help": "element type of O with fp8: bf16 or f16 (default: bf16)"},
    "--scale-block": {
        "type": _number_or_format,
        "metavar": "N",
        "help": "what shares a scale in fp8: N rows of a head, a multiple of 64; mx: 32 elements (MXFP8); "
        "nv: 16 elements of Q and K, of 4 bits (NVFP4), and V as with mx (default: all rows of a head)",
    },
    "--precision": {
        "default": AUTO,
        "help": "of f32: ieee, or on tensor cores f32_grade or tf32 (default: ieee)",
    },
    "--causal": {
        "nargs": "?",
        "const": "bottom_right",
        "default": False,
        "choices": [mode for mode in CAUSAL if isinstance(mode, str)],
        "help": "bottom_right (the default: the last query sees every key) or top_left",
    },
    **{name: dict(words) for feature in SCORES for name, words in feature.options.items()},
    "--pack-gqa": {
        "action": "store_const",
        "const": True,
        "default": "auto",
        "help": "a CTA's rows are of all heads that share a head of K and V, for few queries of many",
    },
    "--scheduler": {
        "default": "auto",
        "choices": ["auto", *SCHEDULERS],
        "help": "of f16, bf16 with wgmma: a CTA for each block of queries (grid), or CTAs that take several "
        "(default: auto, which is grid)",
    },
    "--varlen": {"action": "store_true", "help": "sequences of their own lengths, packed in one array"},
    "--seqused-q": {
        "action": "store_true",
        "help": "with --varlen: how many of each sequence's queries count",
    },
    "--seqused-k": {"action": "store_true", "help": "with --varlen: how many of each sequence's keys count"},
    "--page-size": {
        "type": number,
        "metavar": "N",
        "help": "with --varlen: K and V are in pages of N rows, 1 to 256 (default: no pages)",
    },
    "--rotary-dim": {
        "type": number,
        "default": 0,
        "metavar": "N",
        "help": "with --page-size: columns of Q that are rotated, even (default: 0)",
    },
    "--rotary-interleaved": {
        "action": "store_true",
        "help": "with --rotary-dim: of neighbours, not of halves",
    },
    "--shared-kv": {"action": "store_true", "help": "V is the first --head-dim-v columns of K"},
    **{
        name: {"action": "store_true", "help": f"also write {output.what}"}
        for name, output in OF_OUTPUTS.items()
    },
    "--alignment": {
        "type": _number_or_auto,
        "default": "auto",
        "metavar": "BYTES",
        "help": "of all pointers and strides: 16, 8, 4 or 2 (default: what dense arrays have)",
    },
    "--target": {
        "default": DEFAULT_TARGET,
        "help": f"such as sm_90, or {NATIVE} for this machine's GPU (default: {DEFAULT_TARGET})",
    },
}


# What the shell completes after an option; the kernel's configuration judges them.
_WORDS: Final = {
    "--dtype": tuple(INPUT_DTYPES),
    "--precision": (AUTO, *OF_F32),
    "--target": (*EARLY_TARGETS, *TARGETS, NATIVE),
}


def add_kernel_options(
    group: argparse._ArgumentGroup, names: Sequence[str], **changed: dict[str, Any]
) -> None:
    """Add options by name; `changed` holds `add_argument` keywords that replace the usual ones."""
    for name in names:
        action = group.add_argument(name, **_OF_KERNELS[name] | changed.get(name[2:].replace("-", "_"), {}))
        if name in _WORDS:
            completed(action, _WORDS[name])


def every_kernel_option() -> tuple[str, ...]:
    """The names of all kernel options, in the order of the help."""
    return tuple(_OF_KERNELS)


def config_of(
    arguments: argparse.Namespace, target: str | None, others: Collection[str] = ()
) -> AttentionConfig:
    """The config that the options give, with defaults for options that the kernel does not have, and for the
    options `others`, which do not mean the settings of their names. Raises `ConfigError`.
    """
    names = {field.name for field in fields(AttentionConfig)}.difference(others)
    passed = {name: value for name, value in vars(arguments).items() if name in names}
    return AttentionConfig(**{**passed, "target": target})


def add_output_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options for the output: what to do with the kernel, and the files."""
    group = parser.add_argument_group("the output")
    add = group.add_argument
    add("--json", action="store_true", help="the launch contract, or the list, as JSON")
    add_stub_options(group)
    add("--prove", action="store_true", help="prove memory accesses, and report verdicts")
    add("--assemble", action="store_true", help="assemble it, and report registers and spills")
    add("--cubin", metavar="FILE", help="also assemble it, and write the cubin to FILE")
    add("-o", "--output", default=STDOUT, metavar="FILE", help="default: - for standard output")
    return group


def check_outputs(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a usage error if two outputs are one file, or do not go together."""
    if arguments.cubin == arguments.output != STDOUT:
        parser.error("--cubin and --output must be two files")
    check_stub(parser, arguments, STDOUT)
