"""The kernels of gradients that `ptxgen emit` emits: those of two sweeps and of one, and the sums of
terms.
"""

from __future__ import annotations

import argparse
from typing import Final

from flash import gradient_kernels
from flash.commands.parts.emit_kernel import OUTPUTS, Kind
from flash.commands.parts.emit_options import add_kernel_options, config_of
from flash.commands.parts.emit_output import find_target
from flash.contract.built_kernel import BuiltKernel
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.gradients import WIDENED
from flash.scores.features import SCORES
from ptxgen.commands.parts.command_line import completed

_ARRAYS: Final = tuple(feature.argument for feature in SCORES if feature.gradient_of)
_OUTPUTS: Final = f"{OUTPUTS}; docs/embedding.md has\nthe launches of a training step."

_BACKWARD: Final = f"""\
examples:
  ptxgen emit backward --owner queries --head-dim 128 --dtype bf16 --causal -o queries.ptx
  ptxgen emit backward --owner keys --head-dim 128 --dtype bf16 --causal -o keys.ptx
  ptxgen emit backward --owner queries --head-dim 64 --dtype f16 --alibi --sink \\
      --wanted alibi_slopes,sink --dlse --json
  ptxgen emit backward --owner scores --head-dim 64 --dtype f16 --bias f32 -o bias.ptx
  ptxgen emit backward --owner keys --head-dim 64 --precision tf32 --varlen --assemble -o keys.ptx
  ptxgen emit backward --owner keys --head-dim 64 --dtype f16 --non-deterministic --target sm_90 -o keys.ptx

The gradients of a call are launches of several kernels, in this order, each with the same options:
  --owner queries  dQ, and D, the sums of O times its gradient over rows, which the others read
  --owner keys     dK and dV
  --owner scores   the gradient of a bias, if it is wanted
  --owner elements exact sums of the gradients of arrays of --aux, if aux_NAME is wanted
With --non-deterministic one sweep makes all gradients, and sums dQ in any order:
  --owner deltas   D
  --owner keys     dK and dV; it adds to f32 sums of dQ, which are 0 before
  --owner scores, --owner elements  as above
  --owner sums     dQ, the sums times the scale
They take Q, K, V, O and LSE of the forward kernel, emitted with --return-lse, and the gradient of O.
With --wanted they also write terms of the gradients of arrays of scores, in f32: the kernel of ptxgen
emit sum adds these up; ptxgen emit round rounds exact sums. --dlse is for a result that depends on LSE, too.

Targets are sm_80 and later, and sm_75 for f16, and for f32 of --precision ieee. Tiles are those of a table.
With --target sm_90a, kernels of f16 and bf16 multiply by wgmma, with tiles that TMA copies: the contract
says which tensor maps a host encodes. That takes rows of multiples of 16 bytes; with --alignment 8 or less,
and for --owner scores and elements, they multiply by mma.sync.
Those of fp8 are for sm_90a, and read Q, K and dO also as ptxgen emit widen wrote them.

{_OUTPUTS}
"""
_WIDEN: Final = f"""\
examples:
  ptxgen emit widen --matrix Q --head-dim 128 --dtype e4m3 --target sm_90a -o q_wide.ptx
  ptxgen emit widen --matrix dO --head-dim 128 --dtype e4m3 --dout-dtype e5m2 --target sm_90a --json

It writes the numbers of Q, K or dO of fp8, times their scales, in bf16. Launches for all three come before
those of ptxgen emit backward with the same options.

{_OUTPUTS}
"""
_SUM: Final = f"""\
examples:
  ptxgen emit sum -o sum.ptx
  ptxgen emit sum --dtype bf16 --target sm_90 --json

It adds up what the kernels of ptxgen emit backward wrote for the gradient of an array of scores, along
the axes along which the array was broadcast, in a fixed order.

{_OUTPUTS}
"""

_ROUND: Final = f"""\
examples:
  ptxgen emit round -o round.ptx
  ptxgen emit round --dtype bf16 --target sm_90 --json

It rounds exact sums, which ptxgen emit backward --owner elements adds up, to the gradient of an array of aux.

{_OUTPUTS}
"""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _add_backward(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--owner",
        choices=gradient_kernels.OWNERS,
        help="what a CTA owns rows of: queries (dQ), keys (dK and dV), scores (the gradient of a bias), "
        "elements (those of arrays of aux); with --non-deterministic deltas (D), keys, scores, elements, or "
        "sums (dQ)",
    )
    add_kernel_options(
        group,
        (
            "--head-dim",
            "--head-dim-v",
            "--dtype",
            "--precision",
            "--causal",
            *(option for feature in SCORES for option in feature.options),
            "--varlen",
            "--seqused-q",
            "--seqused-k",
            "--out-dtype",
            "--scale-block",
            "--alignment",
            "--target",
        ),
        head_dim={"help": "elements of a row of Q and K, 1 to 576"},
        head_dim_v={"help": "of a row of V and O, 1 to 512 (default: --head-dim)"},
    )
    group.add_argument(
        "--non-deterministic", action="store_true", help="one sweep, which sums dQ in any order"
    )
    _add_dout_dtype(group)
    group.add_argument("--dlse", action="store_true", help="LSE has a gradient, too")
    wanted = group.add_argument(
        "--wanted",
        type=_names,
        default=(),
        metavar="NAMES",
        help=f"arrays of scores with gradients, by commas: {', '.join(_ARRAYS)}, aux_NAME",
    )
    completed(wanted, _ARRAYS)


def _add_dout_dtype(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument(
        "--dout-dtype",
        metavar="TYPE",
        help=f"of the gradient of O with fp8: {' or '.join(FP8_DTYPES)} (default: --dtype)",
    )
    completed(option, tuple(FP8_DTYPES))


def _backward(arguments: argparse.Namespace) -> BuiltKernel:
    config = config_of(arguments, find_target(arguments.target).name)
    return gradient_kernels.backward(
        config,
        arguments.owner,
        dlse=arguments.dlse,
        wanted=arguments.wanted,
        deterministic=not arguments.non_deterministic,
        dout_dtype=arguments.dout_dtype,
    )


def _add_widen(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--matrix", choices=WIDENED, help="whose rows: Q, K, or dO, the gradient of O")
    options = "--head-dim", "--head-dim-v", "--dtype", "--scale-block", "--target"
    add_kernel_options(group, options, dtype={"help": f"of Q, K and V: {' or '.join(FP8_DTYPES)}"})
    _add_dout_dtype(group)


def _widen(arguments: argparse.Namespace) -> BuiltKernel:
    config = config_of(arguments, find_target(arguments.target).name)
    return gradient_kernels.widened_rows(config, arguments.matrix, dout_dtype=arguments.dout_dtype)


def _add_sum(group: argparse._ArgumentGroup) -> None:
    add_kernel_options(
        group,
        ("--dtype", "--target"),
        dtype={"help": "element type of the array of scores: f32, f16 or bf16 (default: f32)"},
    )


def _sum(arguments: argparse.Namespace) -> BuiltKernel:
    return gradient_kernels.sum_terms(arguments.dtype, target=find_target(arguments.target).name)


def _round(arguments: argparse.Namespace) -> BuiltKernel:
    return gradient_kernels.rounded_elements(arguments.dtype, target=find_target(arguments.target).name)


KINDS: Final = {
    "widen": Kind(
        "the PTX of the kernel that writes rows of fp8 in bf16 for gradients, or its launch contract",
        _WIDEN,
        ("--matrix", "--head-dim", "--dtype"),
        _add_widen,
        _widen,
    ),
    "backward": Kind(
        "the PTX of a kernel of the gradients of attention, or its launch contract",
        _BACKWARD,
        ("--owner", "--head-dim"),
        _add_backward,
        _backward,
    ),
    "sum": Kind(
        "the PTX of the kernel that sums terms of gradients, or its launch contract", _SUM, (), _add_sum, _sum
    ),
    "round": Kind(
        "the PTX of the kernel that rounds exact sums, or its launch contract", _ROUND, (), _add_sum, _round
    ),
}
