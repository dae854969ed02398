"""Reports the progress of long work: in a notebook, or on standard error."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Final

_QUIET_S: Final = 1.0  # between two lines about the CTAs of a run
_FRAME_S: Final = 0.1  # between two pictures of a bar in a notebook

Progress = Callable[[str], None]  # called with the name of the job that begins
Bar = Callable[[int, str], None]  # called with the number of steps that are done, and a label


@contextmanager
def progress(total: int, quiet_s: float = 0.0) -> Iterator[Progress]:
    """A function that reports the beginning of a job: by a bar if there can be one (`bar`), else by a line
    for each job, at most one in `quiet_s` seconds.
    """
    started, printed_at = 0, -math.inf
    with bar(total) as update:

        def step(label: str) -> None:
            nonlocal started, printed_at
            started += 1
            if update is not None:
                update(started - 1, label)
            elif time.monotonic() - printed_at >= quiet_s:
                printed_at = time.monotonic()
                print(f"[{started}/{total}] {label}", file=sys.stderr, flush=True)

        yield step


@contextmanager
def bar(total: int) -> Iterator[Bar | None]:
    """A function that draws a bar of `total` steps, which disappears at the end: in a notebook as HTML, where
    rich would need ipywidgets, or by rich if standard error is a terminal; None if there can be no bar.
    """
    if _in_notebook():
        with _html_bar(total) as update:
            yield update
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        rich: Any = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(stderr=True)
        with rich.Progress(console=console, transient=True) as drawn:
            task = drawn.add_task("", total=total)
            yield lambda done, label: drawn.update(task, completed=done, description=label)
    else:
        yield None


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter or Colab runs this; no process imports IPython for the question."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def _html_bar(total: int) -> Iterator[Bar]:
    display: Any = importlib.import_module("IPython.display").display
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    drawn_at = -math.inf

    def update(done: int, label: str) -> None:
        nonlocal drawn_at
        if time.monotonic() - drawn_at >= _FRAME_S:
            drawn_at = time.monotonic()
            html = f'<progress max="{total}" value="{done}"></progress> {done} of {total}: {escape(label)}'
            handle.update({"text/html": html, "text/plain": f"[{done}/{total}] {label}"}, raw=True)

    try:
        yield update
    finally:
        handle.update({"text/plain": ""}, raw=True)


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
