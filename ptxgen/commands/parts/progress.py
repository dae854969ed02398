"""Reports the progress of long work on standard error."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_QUIET_S: Final = 1.0  # between two lines about the CTAs of a run

Progress = Callable[[str], None]  # called with the name of the job that begins


@contextmanager
def progress(total: int, quiet_s: float = 0.0) -> Iterator[Progress]:
    """A function that reports the beginning of a job: by a bar if standard error is a terminal and rich is
    installed, else by a line for each job, at most one in `quiet_s` seconds.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        done, printed_at = 0, -math.inf

        def line(label: str) -> None:
            nonlocal done, printed_at
            done += 1
            if time.monotonic() - printed_at >= quiet_s:
                printed_at = time.monotonic()
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


def cta_lines(head: str) -> Callable[[int, int], None]:
    """A function that reports how many CTAs of a run are done, by a line that begins with `head`, at
    most once a second and not at the end.
    """
    printed_at = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _QUIET_S and done < total:
            printed_at = time.monotonic()
            print(f"{head}: {done} of {total} CTAs", file=sys.stderr, flush=True)

    return line
