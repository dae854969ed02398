"""Units of the part `timing`: one for each job of `ptxgen bench --only gpu`, a row for each contestant."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.measure import gpu_attention, gpu_decode, gpu_gradients, gpu_serving
from benchmarks.measure.decode import Decoding
from benchmarks.measure.serving import Serving
from flash.commands.measure.device import Gpu, open_gpu
from flash.commands.measure.gpu import copy_ceiling, fma_ceiling
from flash.commands.measure.record import Job, Measurement, Rows
from flash.commands.measure.torch_peer import with_torch
from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import cuda_backend
from tools.gpu.order import gradients_launched_by, launched_by
from tools.gpu.unit import MissingError, Unit

# Names of contestants in rows, as in benchmarks/results/h200-first-runs.json.
IMPLEMENTATIONS: Final = {
    "ours, mma.sync": "ours-mma",
    "torch CUDNN_ATTENTION": "cudnn",
    "torch FLASH_ATTENTION": "flash",
    "torch EFFICIENT_ATTENTION": "efficient",
}
_KEYS: Final = {"N": "n", "kv": "kv_heads"}  # of settings, in rows
_PREFIX: Final = "gradients, "
_MILLI: Final = {"ms": 1.0, "us": 1e-3}
_REPEATS: Final = 9  # samples of a ceiling


def units(arguments: argparse.Namespace) -> list[Unit]:
    """The ceilings, in every process; then calls of all kinds, alternating between kinds, so that a short run
    has some of each.
    """
    gpu = open_gpu(cuda_backend())
    ceilings, kinds = (_small if arguments.rehearse else _all)(gpu)
    result = [_unit("ceiling", job, always=True) for job in ceilings]
    for round_of in itertools.zip_longest(*([(kind, job) for job in jobs] for kind, jobs in kinds.items())):
        result += [_unit(*pair) for pair in round_of if pair is not None]
    calls = {call.label: call for call in gpu_attention.calls(quick=False)}
    gradients, on = gpu_gradients.gradient_calls(quick=False), gpu.target.name
    return [
        replace(
            unit,
            kernel=gradients_launched_by(gradients[unit.name], on)
            if unit.name in gradients
            else launched_by(calls.get(unit.name), on),
        )
        for unit in result
    ]


def _all(gpu: Gpu) -> tuple[list[Job], dict[str, list[Job]]]:
    """The ceilings, and the jobs of each kind. Shapes with published rates of others, and short ones, come
    first.
    """
    every = gpu_attention.attention_jobs(gpu, quick=False)
    ceilings = [Job("copy ceiling", lambda: copy_ceiling(gpu, repeats=_REPEATS)), every[0]]
    calls = [job for job in every[1:] if job.label.startswith("dtype=")]
    ahead = [job for job in calls if "heads=" in job.label]
    fp8 = [job for job in calls if "dtype=e4m3" in job.label]
    others = [job for job in calls if job not in ahead and job not in fp8]
    return ceilings, {
        "forward": [*ahead, *others],
        "gradients": _measuring(gpu_gradients.gradient_gpu_jobs(gpu, quick=False)),
        "decode": gpu_decode.gpu_decode_jobs(gpu, quick=False),
        "serving": gpu_serving.serving_gpu_jobs(gpu, quick=False),
        "fp8": fp8,
        "tiles": [job for job in every if job.label.startswith("tiles")],
        "fma": [Job("FMA ceiling", lambda: fma_ceiling(gpu, repeats=_REPEATS))],
    }


def _measuring(jobs: Iterable[Job]) -> list[Job]:
    """The jobs without those that only assemble kernels which other jobs measure."""
    return [job for job in jobs if not job.label.startswith("assemble")]


def _small(gpu: Gpu) -> tuple[list[Job], dict[str, list[Job]]]:
    """The few small jobs, ceilings included, of a rehearsal on a fake driver."""
    call = gpu_attention.Call("f32", 16, 32, True, "ieee", tokens=32, width=32)
    step = gpu_decode.Batch(Decoding("f32", 16, 4, 2, 32, 1))
    packed = Serving("f32", 16, 4, 2, 16, ((3, 20), (1, 16)))
    return [Job("copy ceiling", lambda: copy_ceiling(gpu, repeats=1, nbytes=1 << 18))], {
        "forward": [Job("small forward", functools.partial(gpu_attention.forward, gpu, call, 1, 1))],
        "gradients": [Job("small gradients", functools.partial(gpu_gradients.backward, gpu, call, 1, 1))],
        "decode": [Job("small decode", functools.partial(gpu_decode.bandwidth, gpu, step, repeats=1))],
        "serving": [Job("small serving", functools.partial(gpu_serving.serve, gpu, packed, 1, 1))],
    }


def _unit(kind: str, job: Job, *, always: bool = False) -> Unit:
    return Unit(job.label, functools.partial(timed, kind, with_torch(job)), always)


def timed(kind: str, job: Job) -> dict[str, Any]:
    """The rows and remarks of one job. Raises `MissingError` if its result is only a reason why it measured
    nothing.
    """
    result = job.run()
    remarks = [item for item in result if isinstance(item, str)]
    if remarks and len(remarks) == len(result):
        raise MissingError("; ".join(remarks))
    rows = rows_of(kind, result)
    wrong = [row for row in rows if row.get("err", 0.0) is None]
    if wrong:
        raise BackendError(f"{job.label}: the result of {wrong[0]['who']} is not finite")
    return {"calls": rows, "said": "; ".join(remarks)[:300]}


def rows_of(kind: str, result: Rows) -> list[dict[str, Any]]:
    """A row for each contestant of a job: "who", "kind", the settings, "ms", and the other figures that were
    measured of it.
    """
    measured = [item for item in result if isinstance(item, Measurement)]
    values = {(item.name, str(item.config)): item for item in measured}

    def value(name: str, config: Mapping[str, Any]) -> float | None:
        item = values.get((name, str(config)))
        return None if item is None else _finite(item.median)

    rows = []
    for item in measured:
        if item.unit in _MILLI:
            row = _row(kind, item) | {
                "ms": item.median * _MILLI[item.unit],
                "iqr_ms": item.iqr * _MILLI[item.unit],
            }
            row["tflops"] = value(f"{item.name}, useful", item.config)
            row["tbs"] = value(f"{item.name}, read + written", item.config) or value(
                f"{item.name}, needed", item.config
            )
            row["of_copy_%"] = value(f"{item.name}, of the copy ceiling", item.config)
            rows.append({key: cell for key, cell in row.items() if cell is not None})
            if f"{item.name}, error" in {one.name for one in measured}:
                rows[-1]["err"] = value(f"{item.name}, error", item.config)
        elif item.unit in ("TFLOP/s", "TB/s") and (
            kind in ("ceiling", "fma") or item.name.startswith("tile")
        ):
            key = {"TFLOP/s": "tflops", "TB/s": "tbs"}[item.unit]
            rows.append(_row(kind, item) | {key: item.median})
    return rows


def _row(kind: str, item: Measurement) -> dict[str, Any]:
    implementation = item.name.removeprefix(_PREFIX)
    settings = {_KEYS.get(name, name): setting for name, setting in item.config.items()}
    return {"who": IMPLEMENTATIONS.get(implementation, implementation), "kind": kind, **settings}


def _finite(number: float) -> float | None:
    return number if abs(number) < float("inf") else None
