"""A GPU for the benchmark: prepares kernels, times work, and reads clocks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from flash.commands.measure.record import MS, Work
from ptxgen import ir
from ptxgen.errors import BackendError
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.plan import LaunchPlan, param_slots
from ptxgen.target import target_for_device
from ptxgen.text import render

_SMI_TIMEOUT_S: Final = 20.0
_SMI_FIELDS: Final = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "clocks.max.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "ecc.mode.current",
)


class Gpu:
    """A device, its backend and target, and its measured ceilings."""

    def __init__(self, backend: CudaBackend, ordinal: int = 0) -> None:
        self.backend = backend
        self.ordinal = ordinal
        self.device = backend.device_properties(ordinal)
        self.target = target_for_device(self.device.major, self.device.minor)
        self.fma_flops = 0.0  # per second; 0 until `fma_ceiling` has run
        self.tensor_flops = 0.0  # per second, of 16-bit types; 0 until `tensor_ceiling` has run
        self.copy_rate = 0.0  # bytes per second, read and written; 0 until `copy_ceiling` has run

    def seconds(self, work: Work) -> float:
        """The time of the work on the device, in seconds."""
        return self.backend.elapsed_ms(work, ordinal=self.ordinal) / MS

    def ready(self, text: str, plan: LaunchPlan) -> Work:
        """A function that puts the launch on the default stream; the kernel is compiled and loaded at
        once.
        """
        program = self.backend.compile(text, self.target)
        kernel = self.backend.load(program, plan.entry, plan.dynamic_shared, self.ordinal)
        return lambda: self.backend.launch(kernel, plan)

    def kernel(self, module: ir.Module, ctas: int, values: Mapping[str, int | float]) -> Work:
        """A function that launches a module's only kernel, which uses no dynamic shared memory."""
        kernel = module.kernels[0]
        slots = param_slots(kernel.params)
        numbers = tuple(values[slot.name] for slot in slots)
        return self.ready(
            render(module), LaunchPlan(kernel.name, (ctas, 1, 1), (kernel.threads, 1, 1), 0, slots, numbers)
        )

    @contextmanager
    def memory(self, nbytes: int) -> Iterator[int]:
        """The address of `nbytes` of memory on the device, which is freed afterwards."""
        address = self.backend.allocate(nbytes, ordinal=self.ordinal)
        try:
            yield address
        finally:
            self.backend.free(address, ordinal=self.ordinal)

    def clocks(self) -> dict[str, str]:
        """The fields of nvidia-smi now, such as clocks; empty without nvidia-smi."""
        command = [
            "nvidia-smi",
            f"--id={self.ordinal}",
            "--format=csv,noheader",
            f"--query-gpu={','.join(_SMI_FIELDS)}",
        ]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        return parse_smi(process.stdout)

    def most_clock_mhz(self) -> int:
        """The highest clock of the multiprocessors by nvidia-smi, in MHz; 0 where it is not known."""
        clock = self.clocks().get("clocks.max.sm", "").partition(" ")[0]
        return int(clock) if clock.isdigit() else 0

    def describe(self) -> dict[str, Any]:
        """The device's part of the result, with its clocks as they are now."""
        return asdict(self.device) | {"target": self.target.name, "nvidia_smi": self.clocks()}


def parse_smi(output: str) -> dict[str, str]:
    """The fields of the first line of nvidia-smi's output; empty if the line is malformed."""
    cells = [cell.strip() for cell in output.strip().split("\n", 1)[0].split(",")]
    return dict(zip(_SMI_FIELDS, cells, strict=True)) if len(cells) == len(_SMI_FIELDS) else {}


def open_gpu(backend: CudaBackend) -> Gpu:
    """The first GPU. Raises `BackendError` if there is none."""
    why_not = backend.why_unavailable()
    if why_not:
        raise BackendError(why_not)
    return Gpu(backend)
