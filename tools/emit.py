"""Emit an attention kernel as PTX: `python tools/emit.py --head-dim 128 --tile 32 > out.ptx`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import stat
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if importlib.util.find_spec("ptxgen") is None:  # a bare checkout, nothing installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flash.build import Build, build
from flash.config import CAUSAL, DEFAULT_TARGET, AttentionConfig
from flash.precision import AUTO
from flash.resources import KernelResources
from flash.tile_choice import tiles_that_fit
from ptxgen.errors import (
    AssemblerError,
    BackendError,
    ConfigError,
    UnsupportedTargetError,
    VerifyError,
)
from ptxgen.target import KIB, TARGETS, Target, target, target_for_device

if TYPE_CHECKING:
    from ptxgen.runtime.assembler import Assembly

OK, FAILED, USAGE, UNSUPPORTED, NO_GPU = range(5)

NATIVE: Final = "native"  # the word for the target of this machine's GPU
STDOUT: Final = "-"
_MOST_PARTS: Final = 3  # of a window as it is split: its two sides, and an empty one

_EPILOG = """\
examples:
  python tools/emit.py --head-dim 128 --tile 32 > out.ptx
  python tools/emit.py --head-dim 64 --causal --target sm_90 -o causal.ptx
  python tools/emit.py --head-dim 192 --head-dim-v 128 --return-lse --assemble -o mla.ptx
  python tools/emit.py --head-dim 64 --dtype bf16 --causal --window 128, --sink -o gpt.ptx
  python tools/emit.py --head-dim 64 --bias f32 --mask --json > biased.json
  python tools/emit.py --head-dim 128 --dtype f16 --causal --varlen --seqused-k -o packed.ptx
  python tools/emit.py --head-dim 64 --json               how to launch it, for a program
  python tools/emit.py --head-dim 64 --cubin out.cubin -o out.ptx
  python tools/emit.py --list-targets
  python tools/emit.py --head-dim 256 --list-tiles --target sm_86

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


class _StopError(Exception):
    """The end of the run with an exit code of its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Emit what the arguments ask for; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    try:
        _deliver(_output(arguments), arguments.output)
    except _StopError as stop:
        return _fail(stop.code, stop)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    except (VerifyError, AssemblerError, BackendError) as error:
        return _fail(FAILED, error)
    return OK


def _fail(code: int, error: Exception) -> int:
    print(f"emit.py: error: {error}", file=sys.stderr)
    return code


# ---------------------------------------------------------------------------------------- arguments


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="emit.py",
        description="Emit the PTX of an attention forward kernel, or its launch contract.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_configuration(parser.add_argument_group("the kernel"))
    _add_outputs(parser.add_argument_group("the output"))
    arguments = parser.parse_args(argv)
    if arguments.head_dim is None and not arguments.list_targets:
        parser.error("--head-dim is required")
    lists = arguments.list_targets or arguments.list_tiles
    if lists and (arguments.assemble or arguments.cubin or arguments.prove):
        parser.error("--assemble, --cubin and --prove need a kernel, and a list is not one")
    if arguments.cubin == arguments.output != STDOUT:
        parser.error("--cubin and --output must be two files")
    return arguments


def _add_configuration(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--head-dim", type=_number, metavar="D", help="elements of a row of Q and K, 1 to 256")
    add("--head-dim-v", type=_number, metavar="D", help="of a row of V and O (default: --head-dim)")
    add(
        "--tile",
        type=_number_or_auto,
        default="auto",
        metavar="N",
        help="keys per tile (default: auto; see --list-tiles)",
    )
    add(
        "--block-q",
        type=_number_or_auto,
        default="auto",
        metavar="N",
        help="query rows per CTA (default: auto)",
    )
    add(
        "--stages",
        type=_number_or_auto,
        default="auto",
        metavar="N",
        help="tiles of K, and of V, in shared memory at once, on tensor cores (default: 1)",
    )
    add(
        "--dtype",
        default="f32",
        help="element type of Q, K, V and O: f32, f16 or bf16 (default: f32)",
    )
    add(
        "--precision",
        default=AUTO,
        help="of f32: ieee, or on tensor cores f32_grade or tf32 (default: ieee)",
    )
    add(
        "--causal",
        nargs="?",
        const="bottom_right",
        default=False,
        choices=[mode for mode in CAUSAL if isinstance(mode, str)],
        help="bottom_right (the default: the last query sees every key) or top_left",
    )
    add(
        "--window",
        type=_window,
        metavar="LEFT,RIGHT",
        help="keys before and behind its own position that a query sees, nothing for no limit: "
        "128,0 or 128, or ,4; 128 alone is 128,",
    )
    add("--softcap", type=_number, metavar="C", help="scores become C * tanh(score / C)")
    add("--alibi", action="store_true", help="slopes for distances, one for each head")
    add("--bias", metavar="TYPE", help="added to scores: f32, or the type of --dtype")
    add("--mask", action="store_true", help="a byte for each score: 0 hides the key")
    add("--sink", action="store_true", help="a score of every row, with a value of 0, by head")
    add(
        "--dropout",
        type=_number,
        metavar="RATE",
        default=0.0,
        help="weights of keys that are dropped, by a seed of the launch",
    )
    add(
        "--pack-gqa",
        action="store_const",
        const=True,
        default="auto",
        help="a CTA's rows are of all heads that share a head of K and V, for few queries of many",
    )
    add("--varlen", action="store_true", help="sequences of their own lengths, packed in one array")
    for side, what in (("q", "queries"), ("k", "keys")):
        add(
            f"--seqused-{side}",
            action="store_true",
            help=f"with --varlen: how many of each sequence's {what} count",
        )
    add("--return-lse", action="store_true", help="also write the log-sum-exp of each row")
    add(
        "--alignment",
        type=_number_or_auto,
        default="auto",
        metavar="BYTES",
        help="of all pointers and strides: 16, 8, 4 or 2 (default: what dense arrays have)",
    )
    add(
        "--target",
        default=DEFAULT_TARGET,
        help=f"such as sm_90, or {NATIVE} for this machine's GPU (default: {DEFAULT_TARGET})",
    )


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--json", action="store_true", help="the launch contract, or the list, as JSON")
    add("--prove", action="store_true", help="prove memory accesses, and report verdicts")
    add("--assemble", action="store_true", help="assemble it, and report registers and spills")
    add("--cubin", metavar="FILE", help="also assemble it, and write the cubin to FILE")
    add("-o", "--output", default=STDOUT, metavar="FILE", help="default: - for standard output")
    lists = group.add_mutually_exclusive_group()
    lists.add_argument("--list-targets", action="store_true", help="the targets and their limits")
    lists.add_argument("--list-tiles", action="store_true", help="the tiles for this head_dim")


def _number(text: str) -> int | float:
    """A number of any kind: whether it is a legal one, the configuration says."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")


def _number_or_auto(text: str) -> int | float | str:
    return text if text == "auto" else _number(text)


def _window(text: str) -> tuple[Any, Any]:
    sides = [None if part == "" else _number(part) for part in (*text.split(","), "")]
    if len(sides) > _MOST_PARTS or sides[:2] == [None, None]:
        raise argparse.ArgumentTypeError(f"must be LEFT,RIGHT such as 128,0, got {text!r}")
    return sides[0], sides[1]


# -------------------------------------------------------------------------------- what is asked for


def _output(arguments: argparse.Namespace) -> str:
    """The text that standard output or the output file gets."""
    if arguments.list_targets:
        return _targets(arguments.json)
    chosen = _target(arguments.target)
    config = AttentionConfig(
        head_dim=arguments.head_dim,
        head_dim_v=arguments.head_dim_v,
        dtype=arguments.dtype,
        precision=arguments.precision,
        causal=arguments.causal,
        tile=arguments.tile,
        block_q=arguments.block_q,
        stages=arguments.stages,
        return_lse=arguments.return_lse,
        window=arguments.window,
        softcap=arguments.softcap,
        alibi=arguments.alibi,
        bias=arguments.bias,
        mask=arguments.mask,
        sink=arguments.sink,
        pack_gqa=arguments.pack_gqa,
        dropout=arguments.dropout,
        varlen=arguments.varlen,
        seqused_q=arguments.seqused_q,
        seqused_k=arguments.seqused_k,
        target=chosen.name,
        alignment=arguments.alignment,
    )
    if arguments.list_tiles:
        return _tiles(config, chosen, arguments.json)
    made = build(config.kernel())
    text = made.text
    if arguments.json:
        text = _json({**made.contract, **(_proofs(made) if arguments.prove else {})})
    if arguments.prove:
        _require_proofs(made)
    if arguments.assemble or arguments.cubin:
        assembly = _assembled(made)
        if arguments.assemble:
            print(_report(made, assembly), file=sys.stderr)
        _refuse_spills(made, assembly)
        if arguments.cubin:
            _write(Path(arguments.cubin), assembly.cubin)
    return text


def _proofs(made: Build) -> dict[str, Any]:
    return {"proof": made.proof.to_dict(), "global_proof": made.global_proof.to_dict()}


def _require_proofs(made: Build) -> None:
    # Here, because text alone is emitted without it.
    from ptxgen.check.global_proof import require_global
    from ptxgen.check.proof import require_proved

    print(f"{made.proof.report()}\n{made.proof.table()}", file=sys.stderr)
    print(made.global_proof.report(), file=sys.stderr)
    require_proved(made.proof)
    require_global(made.global_proof)


def _target(name: str) -> Target:
    """The target called `name`; `native` is that of the GPU, and the only one to open a driver."""
    if name != NATIVE:
        return target(name)
    from ptxgen.runtime.cuda import cuda_backend

    backend = cuda_backend()
    reason = backend.why_unavailable()
    if reason:
        raise _StopError(NO_GPU, f"--target {NATIVE}: {reason}; name a target, such as sm_90")
    device = backend.device_properties(backend.current_device())
    return target_for_device(device.major, device.minor)


def _assembled(made: Build) -> Assembly:
    try:
        # Here, because text alone is emitted without what running an assembler needs.
        from ptxgen.runtime.assembler import find_assembler
    except ModuleNotFoundError as error:
        raise _StopError(
            FAILED,
            f"--assemble and --cubin need the whole package: {error}; run pip install . in the "
            "checkout",
        ) from error
    try:
        assembler = find_assembler(target=made.module.target)
    except ConfigError as error:  # of the environment, not of the kernel
        raise _StopError(USAGE, str(error)) from error
    return assembler.assemble(made.text, made.module.target)


def _report(made: Build, assembly: Assembly) -> str:
    limits, usage = made.config.target, assembly.kernel(made.kernel.name)
    needs = replace(made.resources, registers=usage.registers, assembled=True)
    rows = [
        ("kernel", made.kernel.name),
        ("assembler", f"{assembly.assembler} {assembly.version}, for {assembly.target}"),
        ("registers", f"{usage.registers} of {limits.registers_per_thread} per thread"),
        ("spills", f"{usage.spill_store_bytes} bytes stored, {usage.spill_load_bytes} loaded"),
        ("stack", f"{usage.stack_bytes} bytes per thread"),
        ("shared", f"{needs.shared_bytes} of {limits.shared_per_block_optin} bytes per block"),
        ("occupancy", f"{needs.ctas_per_sm} CTAs of {needs.threads} threads per multiprocessor"),
        ("cubin", f"{len(assembly.cubin)} bytes"),
        *(("advisory", advisory.text) for advisory in assembly.advisories),
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _refuse_spills(made: Build, assembly: Assembly) -> None:
    usage = assembly.kernel(made.kernel.name)
    spilled = usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes
    if spilled:
        raise _StopError(
            FAILED,
            f"{usage.name} would keep {usage.stack_bytes} bytes per thread in local memory "
            f"({usage.spill_store_bytes} bytes of spill stores, {usage.spill_load_bytes} loads); "
            "use a smaller tile or block_q",
        )


def _targets(as_json: bool) -> str:
    targets = TARGETS.values()
    if as_json:
        return _json([{**asdict(t), "ptx": "{}.{}".format(*t.ptx)} for t in targets])
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
        return _json({"target": chosen.name, **dims, "tiles": rows})
    columns["chosen"] = ["*" if chosen else "" for chosen in columns["chosen"]]
    return _table(columns)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _table(columns: Mapping[str, Sequence[object]]) -> str:
    """Columns as wide as they need to be: the first to the left, the others to the right."""
    aligned: list[list[str]] = []
    for name, values in columns.items():
        cells = [name, *map(str, values)]
        width = max(map(len, cells))
        aligned.append([cell.rjust(width) if aligned else cell.ljust(width) for cell in cells])
    return "".join("  ".join(row).rstrip() + "\n" for row in zip(*aligned, strict=True))


# ------------------------------------------------------------------------------------------ writing


def _deliver(text: str, output: str) -> None:
    data = text.encode()
    if output != STDOUT:
        _write(Path(output), data)
        return
    if sys.stdout is None:
        raise _StopError(FAILED, "standard output is closed; use -o FILE")
    try:
        # Past the text layer, which could change line ends or the encoding. Where Python was told
        # not to buffer, a write may take a part only.
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_standard_output()
    except OSError as error:
        _drop_standard_output()
        message = f"cannot write standard output: {error.strerror}"
        raise _StopError(FAILED, message) from error


def _drop_standard_output() -> None:
    """Make the flush at the end of the process succeed: what is left has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(path: Path, data: bytes) -> None:
    """Write a file, or raise `_StopError`. A pipe or a device is written to, and not replaced."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace_file(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise _StopError(FAILED, f"cannot write {path}: {error.strerror}") from error


def _replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step, so that readers find the old bytes or the new; keep its mode."""
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main())
