"""How far a long piece of work is, told on standard error."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str], None]  # told what begins


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """A bar on standard error if that is a terminal and rich is there, else a line for each job."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        done = 0

        def line(label: str) -> None:
            nonlocal done
            done += 1
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
