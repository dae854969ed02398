"""A rehearsal without a GPU: tests/fake_gpu.py stands in for the driver, faults for kernels that go wrong."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from flash.contract.built_kernel import BuiltKernel
from ptxgen.runtime.cuda import CudaBackend
from tools.gpu.rooms import with_tests
from tools.gpu.unit import Unit


def install() -> None:
    """Let each backend of this process see a GPU that is the interpreter. Programs stay text, and kernels are
    launched without proofs, which take longer than to run them.
    """
    with_tests()
    machine: Any = importlib.import_module("fake_gpu").Machine()
    machine.gpu_ms = 20.0  # of a launch, so that a sample has one
    sys.modules["cuda.bindings.driver"] = machine
    sys.modules["torch"] = None  # type: ignore[assignment]  # it would look for the real one
    setattr(BuiltKernel, "require_proved", lambda _kernel: None)  # noqa: B010  # mypy refuses to assign it
    setattr(CudaBackend, "compile", lambda _backend, text, _target: text.encode())  # noqa: B010


def faulty(kind: str) -> Unit:
    """A unit that ends its process (`crash`) or does not end (`hang`)."""
    return Unit(f"a {kind}", {"crash": _crash, "hang": _hang}[kind])


def _crash() -> Mapping[str, Any]:
    os._exit(9)


def _hang() -> Mapping[str, Any]:
    while True:
        time.sleep(1)
