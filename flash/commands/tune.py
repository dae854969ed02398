"""Rank the tiles that a kernel can have: `ptxgen tune --head-dim 128 --dtype f16`."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from flash.commands.measure.device import Gpu, open_gpu
from flash.commands.measure.report import as_text, number, slug, versions
from flash.commands.measure.tuning import (
    RULES,
    Candidate,
    Entry,
    Method,
    Problem,
    Static,
    candidates,
    is_known,
    record,
    timed,
)
from flash.operands.dtypes import DTYPES
from flash.problem.config import DEFAULT_TARGET
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, NO_GPU, OK, UNSUPPORTED, USAGE, StopError, fail
from ptxgen.commands.parts.files import FileError, why_not_writable, write_file
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import BackendError, ConfigError, PtxGenError, UnsupportedTargetError
from ptxgen.runtime.cuda import cuda_backend
from ptxgen.runtime.settings import Settings
from ptxgen.target import target as find_target

NAME: Final = "ptxgen tune"
_fail: Final = functools.partial(fail, NAME)
SCHEMA: Final = 1  # version of the result; raised when a key changes its meaning
STATIC_SEQ: Final = 512  # queries and keys of the one head that is interpreted
GPU_SEQ: Final = 4096


def _rule(method: str) -> str:
    """The rule of a method as indented lines for `--help`."""
    return textwrap.fill(RULES[method], 100, initial_indent="  * ", subsequent_indent="    ")


_EPILOG = f"""\
examples:
  ptxgen tune --head-dim 128 --dtype f16 --causal
  ptxgen tune --head-dim 64 --dtype bf16 --target sm_86 --static
  ptxgen tune --head-dim 192 --head-dim-v 128 --dtype f16 --json > ranking.json
  ptxgen tune --head-dim 128 --dtype f16 --output tiles.json

The candidates are all tiles that are offered for the target (ptxgen emit --list-tiles), with 1 to
4 stages where the type has them.

On a GPU they rank by the first rule, without one, or with --static, by the second:
{_rule("gpu")}
{_rule("static")}
HMMA share is shown and does not rank: all candidates need the same products. How long memory keeps
a kernel waiting is not seen without a GPU, so among stages the fewest come first.

The file of --output has a record for each problem and keeps those of other problems. It is written,
whole, after every candidate: a run that was stopped goes on where it was, and a candidate is judged
again only if its text, or what judges it, has changed. Without --output nothing is written.

exit codes:
  0  done
  1  a candidate failed, and the others are ranked; or there is no assembler, or the file of
     --output cannot be read or written
  2  wrong usage, or an environment variable with a value that cannot be used
  3  no kernel is made for the problem, or the target is unknown
  4  --gpu, and this machine has none that runs the target
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Judge, rank, write, print; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _parser().parse_args(argv)
    try:
        Settings.from_environment()
    except ConfigError as error:
        return _fail(USAGE, error)
    try:
        return _tune(arguments)
    except StopError as stop:
        return _fail(stop.code, stop)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    except BackendError as error:
        return _fail(FAILED, error)


def _parser() -> CommandParser:
    parser = CommandParser(
        NAME, "Rank the tiles that an attention kernel can have, on a GPU or without one.", _EPILOG
    )
    add = parser.add_argument
    add("--head-dim", type=int, required=True, metavar="D", help="elements of a row of Q and K")
    add("--head-dim-v", type=int, metavar="D", help="of a row of V and O (default: --head-dim)")
    add("--dtype", choices=tuple(DTYPES), default="f16", help="default: f16")
    add("--causal", action="store_true", help="with the causal mask")
    add("--target", metavar="SM", help=f"such as sm_90 (default: the GPU's, else {DEFAULT_TARGET})")
    add(
        "--seq",
        type=whole(1),
        metavar="N",
        help=f"queries, and keys (default: {GPU_SEQ} on a GPU, {STATIC_SEQ} on the interpreter)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--static", action="store_true", help="use no GPU even if there is one")
    how.add_argument("--gpu", action="store_true", help="end with exit code 4 if there is none")
    add("--json", action="store_true", help="print the record as JSON instead of the table")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="keep the result there; a folder gets tune-<device or static>.json (default: no file)",
    )
    return parser


def _tune(arguments: argparse.Namespace) -> int:
    gpu = _gpu(arguments)
    target = arguments.target or (gpu.target.name if gpu else DEFAULT_TARGET)
    problem = Problem(
        arguments.head_dim,
        arguments.head_dim if arguments.head_dim_v is None else arguments.head_dim_v,
        arguments.dtype,
        arguments.causal,
        find_target(target).name,
        arguments.seq or (GPU_SEQ if gpu else STATIC_SEQ),
    )
    device = gpu.device.name if gpu else Static.name
    path: Path | None = arguments.output
    if path is not None and path.is_dir():
        path /= f"tune-{slug(device)}.json"
    result = _read(path, device)
    if path is not None and (why := why_not_writable(path)):
        raise FileError(f"cannot write {path}: {why}; name another file with --output")
    offered = candidates(problem)
    with _method(problem, gpu) as method:
        judged = _judge(problem, method, offered, result, path)
    tell(as_text(judged) if arguments.json else _table(judged), end="")
    if path is not None:
        print(f"written to {path}", file=sys.stderr)
    return FAILED if any("failed" in entry for entry in judged["candidates"]) else OK


def _gpu(arguments: argparse.Namespace) -> Gpu | None:
    """The GPU to measure on, or None if none is requested or available."""
    if arguments.static:
        return None
    try:
        gpu = open_gpu(cuda_backend())
    except BackendError as error:
        if arguments.gpu:
            raise StopError(NO_GPU, f"--gpu needs a GPU: {error}") from error
        return None
    if arguments.target in (None, gpu.target.name):
        return gpu
    if arguments.gpu:
        raise StopError(
            NO_GPU,
            f"--gpu measures for {gpu.target.name}, which {gpu.device.name} is, got --target "
            f"{arguments.target}; leave out one of the two",
        )
    return None


@contextmanager
def _method(problem: Problem, gpu: Gpu | None) -> Iterator[Method]:
    if gpu is None:
        yield Static(problem)
        return
    with timed(problem, gpu) as method:
        yield method


# -------------------------------------------------------------------------------- the result


def _read(path: Path | None, device: str) -> dict[str, Any]:
    """The document of the result file, or a new one."""
    new = {"schema": SCHEMA, "device": device, "versions": versions(), "problems": {}}
    if path is None:
        return new
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return new
    except OSError as error:
        raise StopError(FAILED, f"the result file cannot be read: {error}") from error
    try:
        document: Any = json.loads(text)
    except ValueError:
        document = None
    if not _is_result(document) or (document.get("schema"), document.get("device")) != (SCHEMA, device):
        raise StopError(
            FAILED,
            f"{path} is no result of schema {SCHEMA} for {device}; name another file with "
            "--output, or remove it",
        )
    return {**document, "versions": versions()}


def _is_result(document: Any) -> bool:
    """Whether the data of a file has the form of a result: problems, each with a list of candidates."""
    if not isinstance(document, dict) or not isinstance(document.get("problems"), dict):
        return False
    return all(
        isinstance(each, dict)
        and isinstance(each.get("candidates"), list)
        and all(isinstance(candidate, dict) for candidate in each["candidates"])
        for each in document["problems"].values()
    )


def _judge(
    problem: Problem, method: Method, offered: list[Candidate], result: dict[str, Any], path: Path | None
) -> dict[str, Any]:
    """The problem's record, with all candidates judged, as it is written to the file."""
    key, means = f"{problem.key} {method.name}", method.means
    before: dict[str, Any] = result["problems"].get(key, {})
    known = before.get("candidates", []) if before.get("means") == means else []
    entries: list[Entry] = []
    with progress(len(offered)) as begin:
        for candidate in offered:
            facts = candidate.facts
            begin(f"{facts['kernel']} {problem.target}")
            same = [entry for entry in known if is_known(entry, facts)]
            entries.append(same[0] if same else _entry(method, candidate, facts))
            result["problems"][key] = record(problem, method, entries)
            _write(path, result)
    judged: dict[str, Any] = result["problems"][key]
    return judged


def _entry(method: Method, candidate: Candidate, facts: Entry) -> Entry:
    try:
        return facts | method.judge(candidate)
    except PtxGenError as error:
        return facts | {"failed": str(error)}


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        write_file(path, as_text(result))
    except FileError as error:
        raise StopError(FAILED, f"{error}; name another file with --output") from error


# -------------------------------------------------------------------------------- the table

_COLUMNS: Final = {
    "static": {
        "registers": "registers",
        "spilled": "spilled_bytes",
        "shared": "shared_bytes",
        "warps/SM": "warps_per_sm",
        "instr.": "instructions",
        "wavefronts": "wavefronts",
        "conflicts": "bank_conflicts",
        "HMMA share": "hmma_share",
        "tensor cores": "tensor_share",
        "cost": "cost",
    },
    "gpu": {"ms": "ms", "least": "least_ms", "x default": "times_default"},
}


def _table(result: dict[str, Any]) -> str:
    """The ranking for people."""
    columns = {"tile": "tile", "block_q": "block_q", "stages": "stages", "threads": "threads"}
    columns |= _COLUMNS[result["method"]]
    rows = [["", *columns]]
    for entry in result["candidates"]:
        mark = f"{entry['rank']}{'*' if entry['default'] else ''}"
        rows.append([mark, *(number(entry[key]) if key in entry else "" for key in columns.values())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    failed = [f"{e['kernel']} failed: {e['failed']}" for e in result["candidates"] if "failed" in e]
    p = result["problem"]
    head = (
        f"d={p['head_dim']} d_v={p['head_dim_v']} {p['dtype']} "
        f"{'causal' if p['causal'] else 'full'} {p['target']} N={p['seq']}, by {result['means']}"
    )
    rule = textwrap.wrap(f"rank: {result['rule']}; * is the default", 100)
    return "\n".join([head, *lines, *rule, *failed]) + "\n"
