"""How far a long piece of work is, told on standard error."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str], None]  # told what begins


@contextmanager
def progress(total: int, quiet_s: float = 0.0) -> Iterator[Progress]:
    """A bar on standard error if that is a terminal and rich is there, else a line for each job,
    but none within `quiet_s` seconds of another.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        done, said = 0, -math.inf

        def line(label: str) -> None:
            nonlocal done, said
            done += 1
            if time.monotonic() - said >= quiet_s:
                said = time.monotonic()
                print(f"[{done}/{total}] {label}", file=sys.stderr, flush=True)

        yield line
        return
    rich: Any = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        started = 0

        def step(label: str) -> None:
            nonlocal started
            bar.update(task, completed=started, description=label)
            started += 1

        yield step
