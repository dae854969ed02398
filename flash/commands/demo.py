"""Make, check, assemble and run attention kernels, and compare them with float64: `make demo`."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from flash import AttentionConfig, AttentionKernel
from flash.error_bound import arithmetic_of_config, attention_bound
from flash.families.mma import FIRST_WITH_DEEP_MMA
from flash.operands.dtype_names import Backend
from flash.operands.dtypes import DTYPES
from flash.problem.config import DEFAULT_TARGET
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.check.prove.verdicts import PROVED
from ptxgen.check.verify import verify
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, fail
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.progress import cta_lines
from ptxgen.commands.parts.standard_output import tell
from ptxgen.contract.expressions import evaluated
from ptxgen.errors import BackendError, ConfigError, PtxGenError, UnsupportedTargetError
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler, find_assembler
from ptxgen.runtime.cuda import cuda_backend
from ptxgen.runtime.settings import Settings
from ptxgen.target import target as find_target
from ptxgen.target import target_for_device

Array = NDArray[Any]


NAME: Final = "ptxgen demo"
_fail: Final = functools.partial(fail, NAME)

BATCH: Final = 1
HEADS: Final = 2
KV_HEADS: Final = 1  # shared by both query heads
SEED: Final = 0


_EPILOG = """\
examples:
  ptxgen demo                             three kernels, a few seconds
  ptxgen demo --head-dim 80 --seq 333     one kernel, of sizes that are no powers of two
  ptxgen demo --head-dim 128 --dtype bf16
  ptxgen demo --target sm_90 --json       for a program

What is checked: the generated text reads back as the same program; the verifier finds nothing; all
accesses to shared and global memory are proved; shared memory fits the target; the assembler, if
one is installed, spills no register; the interpreter runs the PTX with its sanitizers (bounds,
races, missing waits, uninitialised values) on and reports nothing; and the results of the
interpreter, of the cpu backend and of the GPU, if there is one, are as close to a float64 reference
as their arithmetic says (docs/numerics.md); numpy's own f32 is shown beside them.

Extra memory is what one head of 512, 2,048 and 8,192 queries and keys needs beyond its inputs and
outputs: the tiles of a CTA, and the maximum and sum of each row, instead of all scores in f32.

exit codes:
  0  all checks passed
  1  one failed
  2  wrong usage, or an environment variable with a value that cannot be used
  3  a configuration or a target that is not supported
"""
_LENGTHS: Final = (512, 2048, 8192)  # of the memory that a head needs beyond its inputs and outputs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration and print its table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _parser().parse_args(argv)
    try:
        Settings.from_environment()
    except ConfigError as error:
        return _fail(USAGE, error)
    why_no_gpu = cuda_backend().why_unavailable()
    try:
        configs = _configs(arguments, gpu=not why_no_gpu)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    try:
        assembler, why_no_assembler = _assembler(configs[0].target)
        kernels = [_demonstrate(config, arguments.seq, assembler, gpu=not why_no_gpu) for config in configs]
    except PtxGenError as error:
        return _fail(FAILED, error)
    missing = {"GPU": why_no_gpu, "assembler": why_no_assembler}
    missing = {what: why for what, why in missing.items() if why}
    passed = not any(kernel["failures"] for kernel in kernels)
    if arguments.json:
        problem = {"heads": HEADS, "kv_heads": KV_HEADS, "seq": arguments.seq}
        results = {"passed": passed, "problem": problem, "missing": missing, "kernels": kernels}
        tell(json.dumps(results, indent=2))
    else:
        tell(f"attention, {HEADS} heads, {KV_HEADS} of keys, length {arguments.seq}\n")
        tell(_table([_column(kernel) for kernel in kernels]))
        for what, why in missing.items():
            tell(f"\nno {what}: {why}")
        tell(f"\n{'all checks passed' if passed else 'FAILED'}")
    return OK if passed else FAILED


def _parser() -> CommandParser:
    parser = CommandParser(
        NAME, "Make, check, assemble and run attention kernels, and compare with float64.", _EPILOG
    )
    add = parser.add_argument
    add("--head-dim", type=int, metavar="D", help="one kernel, causal, instead of three")
    add("--dtype", default="f32", help=f"of that kernel: {', '.join(DTYPES)} (default: f32)")
    add("--seq", type=whole(1), default=200, metavar="N", help="queries and keys (default: 200)")
    add("--target", help=f"default: the GPU's own, else {DEFAULT_TARGET}")
    add("--json", action="store_true", help="print JSON")
    return parser


def _configs(arguments: argparse.Namespace, *, gpu: bool) -> list[AttentionConfig]:
    target = arguments.target or (_native_target() if gpu else DEFAULT_TARGET)
    if arguments.head_dim is not None:
        how: dict[str, Any] = {"dtype": arguments.dtype, "target": target}
        return [AttentionConfig(arguments.head_dim, causal=True, return_lse=True, **how)]
    has_bf16 = find_target(target or DEFAULT_TARGET).sm >= FIRST_WITH_DEEP_MMA
    of_16_bits: Literal["bf16", "f16"] = "bf16" if has_bf16 else "f16"
    return [
        AttentionConfig(64, causal=True, return_lse=True, target=target),
        AttentionConfig(128, return_lse=True, target=target),
        AttentionConfig(128, dtype=of_16_bits, causal=True, return_lse=True, target=target),
    ]


def _native_target() -> str:
    backend = cuda_backend()
    device = backend.device_properties(backend.current_device())
    return target_for_device(device.major, device.minor).name


def _assembler(target: str | None) -> tuple[Assembler | None, str]:
    """The assembler for a target and "", or None and the reason why there is none."""
    try:
        return find_assembler(target=target), ""
    except BackendError as error:
        return None, str(error)


# -------------------------------------------------------------------------------------- one kernel


def _demonstrate(
    config: AttentionConfig, seq: int, assembler: Assembler | None, *, gpu: bool
) -> dict[str, Any]:
    """All results about one kernel, ready for JSON; `failures` describes each failure in words."""
    name = f"{config.dtype} d={config.head_dim}{' causal' if config.causal else ''}"
    kernel = AttentionKernel(config)
    result = {"configuration": name, **_text(kernel)}
    if assembler is not None:
        _say(f"{name}: assembling with {assembler}")
        result |= _assembled(kernel, assembler)
    q, k, v = _problem(config, seq)
    _say(f"{name}: running on the interpreter, with sanitizers")
    results, reports = _interpreted(kernel, q, k, v)
    outputs = {"interpreter": results}
    backends: tuple[Backend, ...] = ("cpu", "cuda") if gpu else ("cpu",)
    for backend in backends:
        _say(f"{name}: running on {backend}")
        outputs[backend] = kernel.launch(q, k, v, backend=backend)
    causal: Any = config.causal  # the config allows only values that the reference knows
    bound = attention_bound(q, k, v, config.element.numpy, arithmetic_of_config(config), causal=causal)
    wanted = bound.out, bound.lse
    numpy_f32 = attention_reference(q, k, v, causal=causal, dtype=np.float32)
    result["reports"] = reports
    rounded = numpy_f32[0].astype(config.element.numpy), numpy_f32[1]
    result["numpy_f32_error"] = _error(rounded, wanted)
    result["allowed_error"] = float(max(bound.out_error.max(), bound.lse_error.max()))
    result["errors"] = {backend: _error(output, wanted) for backend, output in outputs.items()}
    result["failures"] = _failures(result)
    return result


def _text(kernel: AttentionKernel) -> dict[str, Any]:
    """The results about the kernel that need no run: text, verifier, proofs and resources."""
    contract, needs = kernel.build.contract, kernel.resources
    return {
        "kernel": contract["entry"],
        "target": contract["target"],
        "ptx_version": contract["ptx_version"],
        "ptx_lines": kernel.ptx.count("\n"),
        "block_q": contract["block_q"],
        "tile": contract["tile"],
        "reads_back": parse(kernel.ptx) == kernel.module,
        "problems": [str(problem) for problem in verify(kernel.module)],
        "proved": {
            space: {"proved": sum(v.verdict == PROVED for v in verdicts), "of": len(verdicts)}
            for space, verdicts in (
                ("shared", kernel.proof.accesses),
                ("global", kernel.global_proof.accesses),
            )
        },
        "threads": needs.threads,
        "estimated_registers": needs.registers,
        "shared_bytes": needs.shared_bytes,
        "shared_limit": kernel.build.config.target.shared_per_block_optin,
        "memory_beyond_inputs_and_outputs": {str(n): needs.memory(1, 1, n, n).beyond for n in _LENGTHS},
        "ctas_per_sm": needs.ctas_per_sm,
    }


def _assembled(kernel: AttentionKernel, assembler: Assembler) -> dict[str, Any]:
    target = kernel.build.config.target
    usage = assembler.assemble(kernel.ptx, target.name).kernel(kernel.build.kernel.name)
    needs = kernel.resources
    return {
        "assembler": f"{assembler.name} {assembler.version}",
        "registers": usage.registers,
        "spilled_bytes": usage.spill_store_bytes + usage.spill_load_bytes,
        "ctas_per_sm": target.blocks_per_sm_for(needs.threads, usage.registers, needs.shared_bytes),
    }


def _problem(config: AttentionConfig, seq: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(SEED)

    def array(heads: int, dim: int) -> Array:
        numbers = random.standard_normal((BATCH, heads, seq, dim), dtype=np.float32)
        return numbers.astype(config.element.numpy)

    dims = config.head_dim, config.value_dim
    return array(HEADS, dims[0]), array(KV_HEADS, dims[0]), array(KV_HEADS, dims[1])


def _interpreted(
    kernel: AttentionKernel, q: Array, k: Array, v: Array
) -> tuple[tuple[Array, Array], list[str]]:
    """O and LSE of the interpreted PTX, launched by its launch contract, and the sanitizers'
    reports.

    Elements that the kernel does not write stay NaN.
    """
    contract = kernel.build.contract
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    values: dict[str, Any] = {"Q": q, "K": k, "V": v, "O": out, "LSE": lse}
    for name, array in zip("QKVO", (q, k, v, out), strict=True):
        for axis, what in enumerate(("batch", "head", "row")):
            values[f"{name}_{what}_stride"] = array.strides[axis] // array.itemsize
    values |= {"seq_q": q.shape[2], "seq_k": k.shape[2], "heads": q.shape[1]}
    values |= {"group": q.shape[1] // k.shape[1], "softmax_scale": kernel.config.scale}
    values["section"] = q.shape[1]  # the number of heads that take turns: all heads
    result = interpreter.run(
        kernel.module,
        grid=evaluated(
            contract["grid"]["x"], {"seq_q": q.shape[2], "heads": q.shape[1], "batch": q.shape[0]}
        ),
        block=contract["block"],
        args=[values[parameter["name"]] for parameter in contract["parameters"]],
        dynamic_smem=contract["dynamic_shared_bytes"],
        sanitize=True,
        raise_on_report=False,
        progress=cta_lines(NAME),
    )
    return (out, lse), [str(report) for report in result.reports]


def _error(got: tuple[Array, Array], wanted: tuple[Array, Array]) -> float:
    """The largest difference of output or LSE from the float64 reference; NaN if one is NaN."""
    return float(np.max([np.max(np.abs(a - b)) for a, b in zip(got, wanted, strict=True)]))


def _failures(results: Mapping[str, Any]) -> list[str]:
    most = results["allowed_error"]
    checks = {
        "the text does not read back as the same program": results["reads_back"],
        "the verifier has objections": not results["problems"],
        "not every access is proved": all(p["proved"] == p["of"] for p in results["proved"].values()),
        "the shared memory is more than the target has": results["shared_bytes"] <= results["shared_limit"],
        "registers are spilled": not results.get("spilled_bytes", 0),
        "the sanitizers have objections": not results["reports"],
        **{
            f"{backend} errs by more than {most:.1e}": error <= most  # False for NaN
            for backend, error in results["errors"].items()
        },
    }
    return [words for words, passed in checks.items() if not passed]


# -------------------------------------------------------------------------------------- printing


def _say(message: str) -> None:
    print(f"{NAME}: {message} ...", file=sys.stderr, flush=True)


def _column(result: Mapping[str, Any]) -> dict[str, str]:
    """The column of the table for one kernel: a text for each fact."""
    registers = f"about {result['estimated_registers']}"
    if "registers" in result:
        registers = f"{result['registers']}, {result['spilled_bytes']} bytes spilled"
    return {
        "configuration": result["configuration"],
        "tiles": f"{result['block_q']} queries by {result['tile']} keys",
        "target": result["target"],
        "text": f"{result['ptx_lines']} lines of PTX {result['ptx_version']}",
        "verifier": _first(result["problems"], "problem"),
        "proved": ", ".join(f"{p['proved']} of {p['of']} {space}" for space, p in result["proved"].items()),
        "assembler": result.get("assembler", "none"),
        "registers": registers,
        "shared memory": f"{result['shared_bytes']} of {result['shared_limit']} bytes",
        **{f"extra memory, {n}": text for n, text in result["memory_beyond_inputs_and_outputs"].items()},
        "CTAs per SM": f"{result['ctas_per_sm']} of {result['threads']} threads",
        "sanitizers": _first(result["reports"], "report"),
        "error, numpy f32": f"{result['numpy_f32_error']:.2e}",
        **{f"error, {backend}": f"{error:.2e}" for backend, error in result["errors"].items()},
        "verdict": "\n".join(result["failures"]) or "ok",
    }


def _first(problems: Sequence[str], what: str) -> str:
    """The number of `problems` and, on a separate line, the first one."""
    return f"{len(problems)} {what}s:\n{problems[0]}" if problems else f"no {what}"


def _table(columns: Sequence[Mapping[str, str]]) -> str:
    """One line for each fact, one column for each kernel; all have the same facts."""
    head = max(map(len, columns[0])) + 2
    widths = [2 + max(map(len, "\n".join(column.values()).split("\n"))) for column in columns]
    lines = []
    for name in columns[0]:
        cells = [column[name].split("\n") for column in columns]
        for row in range(max(map(len, cells))):
            parts = [name if row == 0 else ""]
            parts += [cell[row] if row < len(cell) else "" for cell in cells]
            padded = (part.ljust(width) for part, width in zip(parts, [head, *widths], strict=True))
            lines.append("".join(padded).rstrip())
    return "\n".join(lines)
