"""Clocks and power of a GPU while parts run, by nvidia-smi."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MISSING: Final = "clocks and power were not sampled: nvidia-smi does not answer"
_FIELDS: Final = {"clocks.sm": "sm_clock_mhz", "power.draw": "power_w", "temperature.gpu": "temperature_c"}
_PERIOD_MS: Final = 500


@contextmanager
def sampled(program: str = "nvidia-smi") -> Iterator[dict[str, Any]]:
    """A context whose value is filled in at its end: the least, the median and the most of each sampled
    field; empty where nvidia-smi is missing.
    """
    result: dict[str, Any] = {}
    query = [
        f"--query-gpu={','.join(_FIELDS)}",
        "--format=csv,noheader,nounits",
        "--id=0",
        f"-lms={_PERIOD_MS}",
    ]
    with tempfile.TemporaryFile() as output, contextlib.ExitStack() as running:
        try:
            process = subprocess.Popen([program, *query], stdout=output, stderr=subprocess.DEVNULL)
        except OSError:
            yield result
            return
        running.callback(_end, process)
        yield result
        running.close()
        output.seek(0)
        result |= summary(output.read().decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def summary(samples: str) -> dict[str, Any]:
    """The least, the median and the most of each column of numbers in nvidia-smi's output."""
    columns: dict[str, list[float]] = {name: [] for name in _FIELDS.values()}
    for line in samples.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(columns):
            for name, cell in zip(columns, cells, strict=True):
                with contextlib.suppress(ValueError):
                    columns[name].append(float(cell))
    return {
        name: [min(numbers), statistics.median(numbers), max(numbers)]
        for name, numbers in columns.items()
        if numbers
    }
