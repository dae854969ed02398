"""Measure emission, assembly, the backends and the GPU: a table, and JSON where it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.measure.build import assemble_jobs, emit_jobs
from benchmarks.measure.cpu_gradients import gradient_jobs
from benchmarks.measure.decode import DECODE_REMARKS, decode_jobs
from benchmarks.measure.fp8_error import FP8_ERROR_REMARKS, fp8_jobs
from benchmarks.measure.fp8_scale_error import FP8_SCALE_REMARKS, fp8_scale_jobs
from benchmarks.measure.gallery import GALLERY_REMARKS, gallery_jobs
from benchmarks.measure.gpu_attention import GPU_ATTENTION_REMARKS, attention_jobs
from benchmarks.measure.gpu_decode import GPU_DECODE_REMARKS, gpu_decode_jobs
from benchmarks.measure.gpu_gradients import GPU_GRADIENT_REMARKS, gradient_gpu_jobs
from benchmarks.measure.gpu_serving import GPU_SERVING_REMARKS, serving_gpu_jobs
from benchmarks.measure.interpreter import interpreter_jobs
from benchmarks.measure.launch import LAUNCH_REMARKS, launch_jobs
from benchmarks.measure.lines import LINE_REMARKS, line_jobs
from benchmarks.measure.mx_error import MX_ERROR_REMARKS, mx_jobs
from benchmarks.measure.sanitizers import sanitizer_jobs
from benchmarks.measure.serving import SERVING_REMARKS, serving_jobs
from benchmarks.measure.static import STATIC_REMARKS, static_jobs
from benchmarks.measure.static_decode import LOOP_REMARKS, loop_jobs
from benchmarks.measure.static_forward import FORWARD_REMARKS, forward_jobs
from benchmarks.measure.static_gathered import GATHERED_REMARKS, gathered_jobs
from benchmarks.measure.static_hopper import HOPPER_REMARKS, hopper_jobs
from benchmarks.measure.static_hopper_f32 import precise_jobs
from benchmarks.measure.static_hopper_workloads import workload_jobs
from benchmarks.measure.static_model import MODEL_REMARKS, model_jobs
from benchmarks.measure.static_row_bits import ROW_BITS_REMARKS, row_bits_jobs
from benchmarks.measure.throughput import THROUGHPUT_REMARKS, throughput_jobs
from flash.commands.measure.cpu import CPU_REMARKS, cpu_jobs
from flash.commands.measure.device import Gpu, open_gpu
from flash.commands.measure.gpu import GPU_REMARKS, gpu_jobs
from flash.commands.measure.record import Job, Measurement
from flash.commands.measure.report import Section, as_text, busy, document, load, result_name, table
from flash.commands.measure.torch_peer import with_torch
from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, NO_GPU, OK, fail
from ptxgen.commands.parts.files import FileError, why_not_writable, write_file
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import BackendError, PtxGenError, did_you_mean
from ptxgen.runtime.cuda import cuda_backend

ABOUT: Final = {
    "emit": "from a configuration to PTX text, in a warm process and in a fresh one",
    "lines": "the time of a line of text, for every kernel of the documentation and of flash",
    "assemble": "the default kernels assembled: registers, spills, occupancy, code size",
    "static": "kernels and those of gradients by assembler and interpreter, beside Triton's",
    "forward": "main loops of forward kernels in machine code, modelled, beside Triton's and FA2's",
    "hopper": "main loops of forward kernels for sm_90a, modelled, beside Triton's and flash-attn-4's",
    "model": "the models of main loops and launches beside an H200's counters and rates",
    "fp8": "errors of forward kernels of e4m3 against float64, by method and by scales",
    "loops": "main loops of kernels that attend to a cache: instructions beside bytes, bytes in flight",
    "splits": "kernels of launches with splits=1 beside those of a free choice, modelled",
    "gallery": "the documentation's kernels beside Triton's and CuTe DSL's: lines, time, machine code",
    "decode": "bytes that decoding moves, against what it has to, on the interpreter",
    "serving": "traffic of packed batches over pages, against what cannot be avoided, on the interpreter",
    "cpu": "the backends cpu and compiled against PyTorch on the CPU and plain numpy",
    "interpreter": "kernels on the interpreter, how its cost grows, and reading PTX",
    "sanitizers": "what proofs and watched runs cost, against plain runs",
    "launch": "what a repeated launch costs on the host, without driver and GPU",
    "gpu": "the kernels on a GPU, against its own ceilings and PyTorch (needs a GPU)",
}
_WITHOUT_GPU: Final[dict[str, Callable[[bool], list[Job]]]] = {
    "emit": emit_jobs,
    "lines": line_jobs,
    "assemble": assemble_jobs,
    "static": static_jobs,
    "forward": forward_jobs,
    "hopper": lambda quick: [
        *hopper_jobs(quick),
        *precise_jobs(quick),
        *workload_jobs(quick),
        *gathered_jobs(quick),
    ],
    "model": model_jobs,
    "fp8": lambda quick: [*fp8_jobs(quick), *fp8_scale_jobs(quick), *mx_jobs(quick)],
    "loops": loop_jobs,
    "splits": row_bits_jobs,
    "gallery": gallery_jobs,
    "decode": decode_jobs,
    "serving": serving_jobs,
    "cpu": lambda quick: cpu_jobs(quick) + gradient_jobs(quick),
    "interpreter": lambda quick: [*interpreter_jobs(quick), *throughput_jobs(quick)],
    "sanitizers": sanitizer_jobs,
    "launch": launch_jobs,
}
_REMARKS: Final = {
    "lines": LINE_REMARKS,
    "static": STATIC_REMARKS,
    "forward": FORWARD_REMARKS,
    "hopper": (*HOPPER_REMARKS, *GATHERED_REMARKS),
    "model": MODEL_REMARKS,
    "fp8": (*FP8_ERROR_REMARKS, *FP8_SCALE_REMARKS, *MX_ERROR_REMARKS),
    "loops": LOOP_REMARKS,
    "splits": ROW_BITS_REMARKS,
    "gallery": GALLERY_REMARKS,
    "decode": DECODE_REMARKS,
    "serving": SERVING_REMARKS,
    "cpu": CPU_REMARKS,
    "interpreter": THROUGHPUT_REMARKS,
    "launch": LAUNCH_REMARKS,
    "gpu": (
        *GPU_REMARKS,
        *GPU_ATTENTION_REMARKS,
        *GPU_GRADIENT_REMARKS,
        *GPU_SERVING_REMARKS,
        *GPU_DECODE_REMARKS,
    ),
}

NAME: Final = "ptxgen bench"

_EPILOG = """\
examples:
  ptxgen bench                        everything this machine can measure
  ptxgen bench --quick                the same, rougher: a minute or so
  ptxgen bench --only emit,launch     some sections
  ptxgen bench --only gpu --json      one section, the result as JSON on standard output
  ptxgen bench --output a.json        write the result as JSON, too
  ptxgen bench --output results/      into a file of that folder, such as results/all-cpu.json
  ptxgen bench --list                 what there is to measure; measures nothing

exit codes:
  0  done; goals that were missed do not change it
  1  a part ended in an error, and the others were measured; or the result cannot be written
  2  wrong usage
  4  --only asks for gpu and there is none; nothing was measured
"""


@dataclass(frozen=True)
class Plan:
    """The jobs of one section."""

    name: str
    jobs: list[Job]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; see the exit codes above.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _parser().parse_args(argv)
    names = arguments.only or list(ABOUT)
    if arguments.list:
        _list(names)
        return OK
    gpu, why_not = _gpu() if "gpu" in names else (None, "")
    if arguments.only and why_not:
        return fail(NAME, NO_GPU, f"section gpu needs a GPU: {why_not}")
    names = [name for name in names if name != "gpu" or gpu is not None]
    every = [name for name in ABOUT if name != "gpu" or gpu is not None]
    path: Path | None = arguments.output
    if path is not None and path.is_dir():
        path /= result_name(names, every, arguments.quick, None if gpu is None else gpu.device.name)
    if path is not None and (why := why_not_writable(path)):
        return fail(NAME, FAILED, f"{path} cannot be written: {why}; name another place with --output")
    device: dict[str, Any] | None = None if gpu is None else gpu.describe()
    before = load()
    if warning := busy(before):
        print(f"{NAME}: {warning}", file=sys.stderr)
    sections = _measure([Plan(name, _jobs(name, gpu, arguments.quick)) for name in names])
    if gpu is not None and device is not None:
        device["nvidia_smi_after"] = gpu.clocks()
    if why_not:
        sections.append(Section("gpu", ABOUT["gpu"], remarks=[f"not measured: {why_not}"]))
    result = document(sections, quick=arguments.quick, device=device)
    result["machine"]["load_before"] = before
    return _deliver(sections, result, path, arguments.json)


def _parser() -> CommandParser:
    parser = CommandParser(
        NAME, "Measure emission, assembly, the backends and, where there is one, the GPU.", _EPILOG
    )
    parser.add_argument(
        "--only", type=_sections, metavar="SECTION,...", help=f"of {', '.join(ABOUT)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the table")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="also write the result as JSON; a folder gets <kind>-<device or cpu>.json (default: no file)",
    )
    parser.add_argument("--list", action="store_true", help="list the sections and measure nothing")
    return parser


def _sections(text: str) -> list[str]:
    """The sections that `text` names, in the order in which they run."""
    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in ABOUT:
            raise argparse.ArgumentTypeError(
                f"unknown section {name!r}{did_you_mean(name, ABOUT) or '.'} "
                f"The sections are {', '.join(ABOUT)}"
            )
    if not asked:
        raise argparse.ArgumentTypeError(f"name at least one of {', '.join(ABOUT)}")
    return [name for name in ABOUT if name in asked]


def _list(names: Sequence[str]) -> None:
    for name in names:
        tell(f"{name:<12} {ABOUT[name]}")


def _gpu() -> tuple[Gpu | None, str]:
    """The GPU and "", or None and the reason why there is none."""
    try:
        return open_gpu(cuda_backend()), ""
    except BackendError as error:
        return None, str(error)


def _jobs(name: str, gpu: Gpu | None, quick: bool) -> list[Job]:
    if name == "gpu" and gpu:
        # The ceilings come first.
        makers = (gpu_jobs, attention_jobs, gradient_gpu_jobs, serving_gpu_jobs, gpu_decode_jobs)
        return [with_torch(job) for make_jobs in makers for job in make_jobs(gpu, quick)]
    return _WITHOUT_GPU[name](quick)


def _measure(plans: Sequence[Plan]) -> list[Section]:
    sections = []
    with progress(sum(len(plan.jobs) for plan in plans)) as begin:
        for plan in plans:
            section = Section(plan.name, ABOUT[plan.name], remarks=list(_REMARKS.get(plan.name, ())))
            sections.append(section)
            for job in plan.jobs:
                begin(f"{plan.name}: {job.label}")
                _do(job, section)
    return sections


def _do(job: Job, section: Section) -> None:
    """Run one job and add its results to the section; errors of this project are caught."""
    try:
        result = job.run()
    except PtxGenError as error:
        section.failed += 1
        section.remarks.append(f"FAILED: {job.label}: {error}")
        return
    for item in result:
        if isinstance(item, Measurement):
            section.measurements.append(item)
        elif item not in section.remarks:
            section.remarks.append(item)


def _deliver(sections: Sequence[Section], result: dict[str, Any], path: Path | None, as_json: bool) -> int:
    text = as_text(result)
    if path is not None:
        try:
            write_file(path, text)
        except FileError as error:
            tell(text, end="")
            return fail(NAME, FAILED, f"{error}; the result is on standard output")
    tell(text if as_json else table(sections), end="")
    if path is not None:
        print(f"written to {path}", file=sys.stderr)
    return FAILED if any(section.failed for section in sections) else OK
