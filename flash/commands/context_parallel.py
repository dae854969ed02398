"""Run context-parallel attention on the processes that torchrun starts, or estimate it: `ptxgen
context-parallel`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flash.commands.parts.estimate_plot import estimate_plot
from flash.commands.parts.timeline import timeline
from flash.distributed.layouts import LAYOUTS, Sharding
from flash.distributed.plan import SCHEMES, Machine, Problem, chosen, plans
from flash.distributed.tiles import Limits
from flash.operands.dtypes import DTYPES
from flash.scores.window import Window, key_limits
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, StopError, fail
from ptxgen.commands.parts.files import check_writable, write_file
from ptxgen.commands.parts.numbers import seconds as positive
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import BackendError, PtxGenError

NAME: Final = "ptxgen context-parallel"
_MIB: Final = 1 << 20

_EPILOG = """\
examples:
  torchrun --nproc-per-node 4 -m ptxgen context-parallel --seq 8192 --heads 8 --causal
  torchrun --nproc-per-node 4 tools/context_parallel.py --seq 8192 --heads 8 --causal
  torchrun --nproc-per-node 2 -m ptxgen context-parallel --layout striped --backward --json
  ptxgen context-parallel --seq 1048576 --heads 32 --kv-heads 8 --causal --estimate 8,64,1024

Each process is a rank with a share of the rows, on the CPU and gloo. The first one compares the results with
attention in one process, unless --no-check is given. For each rank the table has the scores that it
computed, relative to the mean, and the bytes that it sent, beside those of the plan.

--estimate starts no processes: for numbers of GPUs it prints what each scheme sends, and how long the cost
rule takes it to need.

exit codes:
  0  done; results are those of one process
  1  a result differs from that of one process, bytes differ from the plan, or a process was lost
  2  wrong usage, or not started by torchrun
  3  PyTorch is missing for a run, or the sizes and the scheme do not fit together
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _parser().parse_args(argv)
    try:
        check_writable([path for path in (arguments.plot, arguments.timeline) if path is not None])
        if arguments.estimate:
            return _estimate(arguments)
        if arguments.plot:
            raise StopError(USAGE, "--plot draws estimates; give --estimate as well")
        return _run(arguments)
    except StopError as error:
        return fail(NAME, error.code, error)
    except BackendError as error:
        return fail(NAME, FAILED, error)
    except PtxGenError as error:
        return fail(NAME, UNSUPPORTED, error)


def _parser() -> CommandParser:
    parser = CommandParser(NAME, "Attention to sequences that lie on several processes.", _EPILOG)
    add = parser.add_argument
    add("--seq", type=whole(1), default=8192, metavar="N", help="queries and keys (default: 8192)")
    add("--batch", type=whole(1), default=1, metavar="B", help="sequences (default: 1)")
    add("--heads", type=whole(1), default=8, metavar="H", help="heads of q (default: 8)")
    add("--kv-heads", type=whole(1), metavar="H", help="heads of k and v (default: those of q)")
    add("--head-dim", type=whole(1), default=64, metavar="D", help="default: 64")
    add("--dtype", choices=tuple(DTYPES), default="f32", help="of q, k and v (default: f32)")
    add("--causal", action="store_true", help="a query sees no later keys")
    add("--window", **Window.options["--window"])
    add("--layout", choices=LAYOUTS, default="zigzag", help="which rows a rank holds (default: zigzag)")
    add(
        "--scheme",
        choices=("auto", *SCHEMES),
        default="auto",
        help="how keys and queries meet (default: auto)",
    )
    add("--degree", type=whole(1), metavar="U", help="of scheme 2d: the ranks that exchange heads")
    add("--backward", action="store_true", help="gradients as well")
    add("--repeat", type=whole(1), default=3, metavar="N", help="timed calls (default: 3)")
    add("--no-check", action="store_true", help="do not compare with one process")
    add("--timeline", type=Path, metavar="FILE.svg", help="draw what the ranks did in the last call")
    add("--estimate", type=_worlds, metavar="W,W", help="estimate for so many GPUs, and start nothing")
    add("--plot", type=Path, metavar="FILE.svg", help="draw the estimates")
    add("--flops", type=positive, default=495e12, help="of a rank, a second, for estimates (default: 495e12)")
    add("--bandwidth", type=positive, default=450e9, help="bytes a second that a rank sends (default: 450e9)")
    add("--latency", type=positive, default=10e-6, help="seconds of a message (default: 10e-6)")
    add("--json", action="store_true", help="print JSON")
    return parser


def _worlds(text: str) -> list[int]:
    """Numbers of ranks. Raises `argparse.ArgumentTypeError` for anything else."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"must be numbers of GPUs such as 8,64, got {text!r}")
    return [int(part) for part in parts]


# --------------------------------------------------------------------------------------- estimates


def _estimate(arguments: argparse.Namespace) -> int:
    machine = Machine(arguments.flops, arguments.bandwidth, arguments.latency)
    heads, dim = arguments.heads, arguments.head_dim
    limits = Limits(*key_limits(arguments.causal, arguments.window))
    rows: list[dict[str, Any]] = []
    for world in arguments.estimate:
        problem = Problem(
            Sharding(arguments.layout, world),
            arguments.batch,
            heads,
            arguments.kv_heads or heads,
            dim,
            dim,
            DTYPES[arguments.dtype].nbytes,
            arguments.seq,
            arguments.seq,
            limits,
        )
        estimates = plans(problem)
        if arguments.scheme != "auto":
            estimates = dict([chosen(problem, arguments.scheme, arguments.degree, machine)])
        best, _ = chosen(problem, arguments.scheme, arguments.degree, machine)
        for name, plan in estimates.items():
            busy = sum(plan.scores(rank) for rank in plan.sample()) / len(plan.sample())
            compute = busy * 2 * (dim + dim) / machine.flops
            rows.append(
                {
                    "gpus": world,
                    "scheme": name,
                    "degree": plan.degree,
                    "chosen": name == best,
                    "bytes": plan.most_bytes(),
                    "seconds": plan.seconds(machine),
                    "efficiency": compute / plan.seconds(machine),
                }
            )
    if arguments.plot is not None:
        names = dict.fromkeys(row["scheme"] for row in rows)
        lines = {n: [(r["gpus"], r["seconds"]) for r in rows if r["scheme"] == n] for n in names}
        write_file(arguments.plot, estimate_plot(lines))
    if arguments.json:
        tell(json.dumps({"seq": arguments.seq, "layout": arguments.layout, "estimates": rows}, indent=2))
        return OK
    tell(f"{'GPUs':>5}  {'scheme':<10} {'sent by a rank':>16} {'estimate':>12} {'of even compute':>16}")
    for row in rows:
        mark = "*" if row["chosen"] else " "
        scheme = f"{row['scheme']}{' ' + str(row['degree']) if row['scheme'] == '2d' else ''}"
        tell(
            f"{row['gpus']:>5} {mark}{scheme:<10} {row['bytes'] / _MIB:>12,.2f} MiB "
            f"{row['seconds'] * 1e3:>9,.3f} ms {row['efficiency']:>15.1%}"
        )
    tell("* the cost rule's choice")
    return OK


# ------------------------------------------------------------------------------------------- runs


def _run(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        raise StopError(UNSUPPORTED, "needs PyTorch, which is not installed: pip install torch")
    import torch.distributed as dist

    if not dist.is_torchelastic_launched():
        raise StopError(
            USAGE,
            "must be started by torchrun, such as: torchrun --nproc-per-node 4 -m ptxgen context-parallel "
            "--causal; --estimate needs no processes",
        )
    from flash.commands.measure.context_parallel import Measured, measured

    dist.init_process_group("gloo")
    try:
        results: Measured | None = measured(arguments)
    finally:
        dist.destroy_process_group()
    if results is None:  # not the first rank
        return OK
    if arguments.json:
        tell(json.dumps(results.record, indent=2))
    else:
        tell(_table(results.record))
    if arguments.timeline is not None:
        write_file(arguments.timeline, timeline(results.events))
    return OK if results.record["passed"] else FAILED


def _table(record: dict[str, Any]) -> str:
    ranks = record["ranks"]
    lines = [record["explained"], ""]
    lines.append(
        f"{'rank':>4} {'rows':>8} {'scores':>15} {'of mean':>8} {'bytes sent':>14} {'of plan':>8} "
        f"{'compute ms':>11} {'wait ms':>9} {'memory MiB':>11}"
    )
    mean = sum(r["scores"] for r in ranks) / len(ranks)
    for number, r in enumerate(ranks):
        share = r["scores"] / mean if mean else 1.0
        sent = r["bytes"] / r["planned_bytes"] if r["planned_bytes"] else 1.0
        lines.append(
            f"{number:>4} {r['rows']:>8,} {r['scores']:>15,} {share:>8.3f} {r['bytes']:>14,} {sent:>8.3f} "
            f"{r['compute_s'] * 1e3:>11.1f} {r['wait_s'] * 1e3:>9.1f} {r['memory_bytes'] / _MIB:>11.1f}"
        )
    lines.append("")
    lines.append(f"a call takes {record['seconds'] * 1e3:.1f} ms")
    if record["errors"]:
        one = record["one_process_s"]
        lines[-1] += f", one process {one * 1e3:.1f} ms: {one / record['seconds']:.2f} times as fast"
        text = ", ".join(f"{name} {error:.1e}" for name, error in record["errors"].items())
        lines.append(f"largest errors against one process: {text} (at most {record['bound']:.1e})")
    lines.append("passed" if record["passed"] else "FAILED")
    return "\n".join(lines)
