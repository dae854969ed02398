"""Emit an attention kernel as PTX: `ptxgen emit --head-dim 128 --tile 32 > out.ptx`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from flash.commands.parts.emit_kinds import KINDS, kind_of
from flash.commands.parts.emit_options import (
    add_kernel_options,
    add_output_options,
    check_outputs,
    config_of,
    every_kernel_option,
)
from flash.commands.parts.emit_output import find_target, text_of, to_json
from flash.contract.resources import KernelResources
from flash.families.choice import tiles_that_fit
from flash.problem.config import AttentionConfig
from flash.problem.persistence import why_grid
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, StopError, fail, note
from ptxgen.commands.parts.files import deliver
from ptxgen.commands.parts.imports import uncollected
from ptxgen.errors import (
    AssemblerError,
    BackendError,
    ConfigError,
    UnsupportedTargetError,
    VerifyError,
    did_you_mean,
)
from ptxgen.target import EARLY_TARGETS, KIB, TARGETS, Target

if TYPE_CHECKING:
    from flash.contract.built_kernel import BuiltKernel

NAME: Final = "ptxgen emit"
_fail: Final = functools.partial(fail, NAME)

FORWARD: Final = "forward"
KERNELS: Final = (FORWARD, *KINDS)

_EPILOG = """\
examples:
  ptxgen emit --head-dim 128 --tile 32 > out.ptx
  ptxgen emit --head-dim 64 --causal --target sm_90 -o causal.ptx
  ptxgen emit --head-dim 192 --head-dim-v 128 --return-lse --assemble -o mla.ptx
  ptxgen emit --head-dim 64 --dtype bf16 --causal --window 128, --sink -o gpt.ptx
  ptxgen emit --head-dim 64 --bias f32 --mask --json > biased.json
  ptxgen emit --head-dim 128 --dtype f16 --causal --varlen --seqused-k -o packed.ptx
  ptxgen emit --head-dim 128 --dtype bf16 --causal --varlen --page-size 16 -o serving.ptx
  ptxgen emit --head-dim 128 --dtype e4m3 --target sm_90a --scale-block 128 -o fp8.ptx
  ptxgen emit --head-dim 128 --dtype e4m3 --target sm_100a --scale-block mx -o mxfp8.ptx
  ptxgen emit --head-dim 128 --dtype e4m3 --target sm_103a --scale-block nv -o nvfp4.ptx
  ptxgen emit --head-dim 64 --json               how to launch it, for a program
  ptxgen emit --head-dim 64 --stub c -o attention.h --example main.c
  ptxgen emit --head-dim 64 --cubin out.cubin -o out.ptx
  ptxgen emit --list-targets
  ptxgen emit --head-dim 256 --list-tiles --target sm_86

other kernels, each with options of its own (ptxgen emit decode --help):
  decode    attention to a KV cache: contiguous or in pages, in parts, of fp8
  append    new rows into a KV cache, and rotary embedding on the way
  merge     parts of a result into one
  backward  the gradients of Q, K and V, and of arrays of scores
  sum       terms of the gradient of an array of scores, along the axes of its broadcast

exit codes:
  0  done; also if the reader of standard output left early, as head does
  1  a check failed: the verifier or the assembler refused the kernel, the kernel would spill
     registers, no assembler was found, or an output could not be written
  2  wrong usage, or an environment variable with a value that cannot be used
  3  a configuration or a target that is not supported
  4  --target native, and this machine has no GPU

Only what was asked for goes to standard output; all messages go to standard error. The kernel is
verified before anything is written, a file is replaced in one step or not at all, and the same
options give the same bytes everywhere. Without --target the text is for sm_80, which later GPUs
run too. The softmax scale is an argument of the kernel, not part of its text; so are the sizes of
a window and the softcap: the text depends on which of them there are. --list-tiles takes all of
them into account.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Emit a kernel, its contract or a list; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    listed = list(sys.argv[1:] if argv is None else argv)
    kernel = listed.pop(0) if listed and not listed[0].startswith("-") else FORWARD
    try:
        if kernel == FORWARD:
            arguments = _arguments(listed)
            text = _output(arguments)
        else:
            arguments, kernel_and_target = _other(kernel, listed)
            text = text_of(kernel_and_target, arguments)
        deliver(text, arguments.output)
    except StopError as stop:
        return _fail(stop.code, stop)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    except (VerifyError, AssemblerError, BackendError) as error:
        return _fail(FAILED, error)
    return OK


# ---------------------------------------------------------------------------------------- arguments


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    add_kernel_options(parser.add_argument_group("the kernel"), every_kernel_option())
    outputs = add_output_options(parser)
    lists = outputs.add_mutually_exclusive_group()
    lists.add_argument(
        "--list-targets",
        action="store_true",
        help="the targets and their limits; those before sm_75 are for f32",
    )
    lists.add_argument("--list-tiles", action="store_true", help="the tiles for this head_dim")
    arguments = parser.parse_args(argv)
    if arguments.head_dim is None and not arguments.list_targets:
        parser.error("--head-dim is required")
    listed = arguments.list_targets or arguments.list_tiles
    if listed and (arguments.assemble or arguments.cubin or arguments.prove or arguments.stub):
        parser.error("--assemble, --cubin, --prove and --stub need a kernel, and a list is not one")
    check_outputs(parser, arguments)
    return arguments


def _parser() -> CommandParser:
    return CommandParser(
        NAME, "Emit the PTX of an attention forward kernel, or its launch contract.", _EPILOG, KERNELS
    )


def _other(kernel: str, argv: Sequence[str]) -> tuple[argparse.Namespace, BuiltKernel]:
    """The parsed arguments of a kernel other than the forward kernel, and the kernel."""
    if kernel not in KERNELS:
        hint = did_you_mean(kernel, KERNELS)
        _parser().error(f"the kernels are {', '.join(KERNELS)}, got {kernel!r}{hint}")
    with uncollected():
        kind = kind_of(kernel)
    arguments = kind.arguments(kernel, argv)
    with uncollected():
        return arguments, kind.make(arguments)


# --------------------------------------------------------------------------------------- the output


def _output(arguments: argparse.Namespace) -> str:
    """The text for standard output or the output file."""
    if arguments.list_targets:
        return _targets(arguments.json)
    chosen = find_target(arguments.target)
    config = config_of(arguments, chosen.name)
    if arguments.list_tiles:
        return _tiles(config, chosen, arguments.json)
    # Imported here, because the help and the lists need nothing that builds kernels.
    with uncollected():
        from flash.contract.catalogue import build

        built = build(config.kernel())
    if config.scheduler not in ("auto", built.config.scheduler):
        why = why_grid(built.config.tiling, built.config.features, config.scheduler)
        note(NAME, f"--scheduler {config.scheduler}: the kernel has a CTA for each block of queries: {why}")
    return text_of(built, arguments)


def _targets(as_json: bool) -> str:
    targets = [*EARLY_TARGETS.values(), *TARGETS.values()]
    if as_json:
        return to_json([{**asdict(t), "ptx": "{}.{}".format(*t.ptx)} for t in targets])
    columns: dict[str, list[object]] = {
        "target": [t.name for t in targets],
        "PTX": ["{}.{}".format(*t.ptx) for t in targets],
        "shared/block": [f"{t.shared_per_block // KIB} KiB" for t in targets],
        "opt-in": [f"{t.shared_per_block_optin // KIB} KiB" for t in targets],
        "shared/SM": [f"{t.shared_per_sm // KIB} KiB" for t in targets],
        "registers/SM": [t.registers_per_sm for t in targets],
        "threads/SM": [t.threads_per_sm for t in targets],
        "blocks/SM": [t.blocks_per_sm for t in targets],
        "f32 lanes/SM": [t.fp32_lanes_per_sm for t in targets],
    }
    return _table(columns)


def _tiles(config: AttentionConfig, chosen: Target, as_json: bool) -> str:
    default = config.kernel().tiling
    columns: dict[str, list[object]] = defaultdict(list)
    for tile, block_q in tiles_that_fit(config.tile_request, chosen):
        sized = replace(config, tile=tile, block_q=block_q).kernel()
        t = sized.tiling
        needs = KernelResources(sized, t.registers, assembled=False, shared_bytes=t.shared_bytes)
        columns["tile"].append(tile)
        columns["block_q"].append(block_q)
        columns["value_slices"].append(t.value_slices)
        columns["threads"].append(t.threads)
        columns["shared_bytes"].append(t.shared_bytes)
        columns["estimated_registers"].append(t.registers)
        columns["ctas_per_sm"].append(needs.ctas_per_sm)
        columns["chosen"].append(t == default)
    if as_json:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        dims = {"head_dim": config.head_dim, "head_dim_v": config.value_dim}
        return to_json({"target": chosen.name, **dims, "tiles": rows})
    columns["chosen"] = ["*" if chosen else "" for chosen in columns["chosen"]]
    return _table(columns)


def _table(columns: Mapping[str, Sequence[object]]) -> str:
    """A table with columns of minimal width, the first left-aligned, the others right-aligned."""
    aligned: list[list[str]] = []
    for name, values in columns.items():
        cells = [name, *map(str, values)]
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if aligned else cell.ljust(width) for cell in cells])
    return "".join("  ".join(row).rstrip() + "\n" for row in zip(*aligned, strict=True))
