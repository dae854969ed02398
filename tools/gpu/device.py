"""The equipment of the machine: the GPU, its driver, and the packages that parts need."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from tools.gpu.phases import OPTIONAL, PARTS


def asked() -> dict[str, Any]:
    """The GPU as `device`, the name of the `file` of its results and the `versions` of software, or `why`
    there is no GPU; and what is `missing` of modules.
    """
    try:
        result = _gpu()
    except ImportError as error:
        result = {"why": str(error)}
    return {**result, "missing": missing()}


def missing() -> list[str]:
    """The modules, of those that any part needs, that cannot be found."""
    wanted = {name for part in PARTS for name in part.modules} | set(OPTIONAL)
    return sorted(name for name in wanted if not _there(name))


def _there(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ImportError:  # of the package around it
        return False


def _gpu() -> dict[str, Any]:
    cuda = importlib.import_module("ptxgen.runtime.cuda")
    backend = cuda.cuda_backend()
    if why := backend.why_unavailable():
        return {"why": why}
    measure, report = (
        importlib.import_module(f"flash.commands.measure.{name}") for name in ("device", "report")
    )
    gpu = measure.Gpu(backend)
    smi = gpu.clocks()
    device = {
        "name": gpu.device.name,
        "sm": f"sm_{gpu.device.major}{gpu.device.minor}",
        "multiprocessors": gpu.device.multiprocessors,
        "l2_cache": gpu.device.l2_cache,
        "driver": smi.get("driver_version") or "{}.{}".format(*gpu.device.driver_version),
        "assembler": backend.version(gpu.target),
        "nvidia_smi": smi,
    }
    return {"device": device, "file": f"{report.slug(gpu.device.name)}.json", "versions": report.versions()}
