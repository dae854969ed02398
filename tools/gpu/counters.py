"""The counters of a GPU while kernels run: Nsight Compute (ncu) around one launch each."""

from __future__ import annotations

import argparse
import csv
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.measure.gpu_attention import Call, OnDevice
from flash.commands.measure.device import open_gpu
from flash.families.choice import WORKLOADS
from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import cuda_backend
from tools.commands.launched_texts import launched
from tools.gpu.order import launched_by
from tools.gpu.rooms import ROOT
from tools.gpu.unit import MissingError, Unit

# The columns of a row, each with the metrics of Nsight Compute for it, of which a GPU has the first or
# another one (Nsight Compute, "Metrics Structure"; `ncu --query-metrics`).
METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "tensor_pipe_%": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "cycles": ("sm__cycles_elapsed.max",),
    "ns": ("gpu__time_duration.sum",),
    "warp_instructions": ("sm__inst_executed.sum", "smsp__inst_executed.sum"),
    "L2_hit_%": ("lts__t_sector_hit_rate.pct",),
    "xu_%": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",),
    "shared_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",),
}
_KERNEL: Final = "regex:^attention"
_LAUNCH_S: Final = 60.0
_ASKED_S: Final = 30.0
_CALLS: Final = {
    "f16 d128 N16384": Call("f16", 128, 16384, False),
    "f16 d64 N16384": Call("f16", 64, 16384, False),
    "f16 d256 N16384": Call("f16", 256, 16384, False),
    "f16 d128 N16384 causal": Call("f16", 128, 16384, True),
    "f16 d128 N1024 causal": Call("f16", 128, 1024, True),
    "f16 d64 N1024 causal": Call("f16", 64, 1024, True),
    "bf16 192/128 N8192 causal": Call(
        "bf16", 192, 8192, True, tokens=8192, head_dim_v=128, heads=64, kv_heads=8
    ),
    **{
        f"bf16 {name} N4096": Call("bf16", seq=4096, causal=False, tokens=4096, heads=128, kv_heads=1, **of)
        for name, of in WORKLOADS.items()
    },
}
_SMALL: Final = {"small f32": Call("f32", 16, 32, True, "ieee", tokens=32, width=32)}


def calls(rehearse: bool) -> Mapping[str, Call]:
    """The calls that are counted, by the names of their units."""
    return _SMALL if rehearse else _CALLS


def units(arguments: argparse.Namespace) -> list[Unit]:
    """One unit of work for each call whose counters are read."""
    how = ("--rehearse",) if arguments.rehearse else ()
    target = open_gpu(cuda_backend()).target.name
    return [
        Unit(name, functools.partial(counted, name, call, how), kernel=launched_by(call, target))
        for name, call in calls(arguments.rehearse).items()
    ]


def counted(name: str, call: Call, how: Sequence[str]) -> dict[str, Any]:
    """The row of one call. Raises `MissingError` without ncu, or where counters may not be read."""
    program = shutil.which("ncu")
    if program is None:
        raise MissingError("ncu is not on PATH: install Nsight Compute")
    metrics = available(program)
    wanted = [metric for metric in metrics.values() if metric]
    options = ["--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(wanted)]
    options += ["--kernel-name", _KERNEL, "--launch-count", "1"]
    launch = [sys.executable, "-m", __name__, *how, name]
    ran = subprocess.run(
        [program, *options, *launch], cwd=ROOT, capture_output=True, text=True, timeout=_LAUNCH_S, check=False
    )
    row, texts = read(ran.stdout, metrics)
    if not row:
        why = next(
            (line for line in ran.stdout.splitlines() if "==ERROR==" in line), ran.stderr.strip()[-200:]
        )
        if "ERR_NVGPUCTRPERM" in why or "LibraryNotLoaded" in why:
            raise MissingError(f"ncu may not read counters here: {why}")
        raise BackendError(f"ncu counted nothing: {why or 'no output'}")
    missing = [column for column, metric in metrics.items() if not metric]
    note = f"this GPU has no metric for {', '.join(missing)}" if missing else ""
    counters = {"kernel": row.pop("kernel"), "N": call.seq, **call.settings, **row}
    return {"counters": [counters], "said": note, "texts": texts}


@functools.cache
def available(program: str) -> dict[str, str]:
    """The metric of each column that this GPU has; empty for a column without. Raises `BackendError` if ncu
    does not answer.
    """
    try:
        query = subprocess.run(
            [program, "--query-metrics"], capture_output=True, text=True, timeout=_ASKED_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendError(f"ncu --query-metrics failed: {error}") from error
    known = {line.split()[0] for line in query.splitlines() if line.strip()}
    return {
        column: next((metric for metric in metrics if metric.partition(".")[0] in known), "")
        for column, metrics in METRICS.items()
    }


def read(output: str, metrics: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The row of counters, and the texts of the launch, from the output of ncu and of the program under
    it.
    """
    lines = output.splitlines()
    texts: dict[str, str] = next(
        (json.loads(line)["texts"] for line in lines if line.startswith('{"texts"')), {}
    )
    table = list(csv.DictReader(line for line in lines if line.startswith('"')))
    rows = [row for row in table if (row.get("ID") or "").isdigit()]  # the line below the head has units
    if not rows:
        return {}, texts
    result: dict[str, Any] = {"kernel": rows[0]["Kernel Name"]}
    units_of = next((row for row in table if not (row.get("ID") or "").isdigit()), {})
    for column, metric in metrics.items():
        if metric in rows[0]:
            result[column] = _number(rows[0][metric], units_of.get(metric, ""))
    return result, texts


def _number(text: str, unit: str) -> float | int:
    """A number as ncu prints it; times converted to ns."""
    number = float(text.replace(",", "")) * {"us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}.get(
        unit, 1.0
    )
    return int(number) if number == int(number) and abs(number) >= 1000 else round(number, 2)


def main(argv: Sequence[str]) -> int:
    """Launch the named call once, and print the texts that this launched."""
    if "--rehearse" in argv:
        from tools.gpu import rehearsal

        rehearsal.install()
    call = calls("--rehearse" in argv)[argv[-1]]
    gpu = open_gpu(cuda_backend())
    arrays = OnDevice.of(gpu, call)
    with launched() as texts:
        arrays.launches(gpu, call.config)()
        gpu.backend.synchronize(ordinal=gpu.ordinal)
    print(json.dumps({"texts": texts.take()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
