"""Kernels of the campaign, and some of their mutants, under compute-sanitizer, by `tools/witness.py`."""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import cuda_backend
from ptxgen.target import target
from tools.campaign.kernels import subjects
from tools.commands.witness_sanitizer import find_sanitizer
from tools.gpu.results import FAILED, PASSED, SKIPPED
from tools.gpu.rooms import ROOT
from tools.gpu.unit import MissingError, Unit

_MUTANTS: Final = 2  # of each kernel
_TIMEOUT_S: Final = 15.0  # of one launch under one check
_SMALL: Final = ("f32-sm_80",)  # the kernels of a rehearsal


def units(arguments: argparse.Namespace) -> list[Unit]:
    """A unit for each kernel of the campaign."""
    names = _SMALL if arguments.rehearse else tuple(subjects())
    return [Unit(name, functools.partial(witnessed, name)) for name in names]


def witnessed(name: str, command: Sequence[str] = (sys.executable, "tools/witness.py")) -> dict[str, Any]:
    """The verdict on a kernel and its mutants. Raises `MissingError` without a compute-sanitizer."""
    try:
        sanitizer = find_sanitizer()
    except BackendError as error:
        raise MissingError(str(error)) from error
    gpu = cuda_backend().device_properties(0)
    wanted = target(subjects()[name].module.target)
    if not wanted.runs_on(gpu.major, gpu.minor):
        return {"verdict": SKIPPED, "said": f"the kernel is for {wanted.name}"}
    options = ["--kernel", name, "--most", str(_MUTANTS), "--timeout", str(_TIMEOUT_S), "--json"]
    ran = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    if not ran.stdout:
        raise BackendError(ran.stderr.strip()[-300:] or "tools/witness.py printed nothing")
    result = json.loads(ran.stdout)
    counts = ", ".join(f"{count} {agreement}" for agreement, count in result["counts"].items() if count)
    return {"verdict": FAILED if ran.returncode else PASSED, "said": f"{sanitizer.version}: {counts}"}
