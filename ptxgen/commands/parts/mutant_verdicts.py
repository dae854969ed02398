"""Judges mutants in several processes, and reports the progress."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import multiprocessing
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from ptxgen.commands.parts.quiet import children_without_interrupts
from ptxgen.mutation.judge import HOLE, Verdict

Judging = Callable[[str, int], Verdict]  # the verdict on the mutant of a kernel, by name, with an index
Pair = tuple[str, int]  # the name of a kernel, and the index of a mutant

_BATCH: Final = 8  # mutants of a kernel that a process takes at once
_QUIET_S: Final = 30.0  # seconds between two lines of progress, without a bar


def verdicts(judge: Judging, pairs: Sequence[Pair], jobs: int) -> Iterator[Verdict]:
    """The verdicts of `judge` on mutants, in their order, in up to `jobs` processes. With several, each
    imports the module of `judge` anew, which `pickle` must be able to name.
    """
    jobs = min(jobs, len(pairs))
    if jobs <= 1:
        yield from itertools.starmap(judge, pairs)
        return
    # "spawn", because a fork of a process with threads, such as numpy's, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            with children_without_interrupts():
                batches = list(_batches(pairs))
                results = pool.map(_judge_all, itertools.repeat(judge, len(batches)), batches)
            yield from itertools.chain.from_iterable(results)
        except BaseException:
            # Otherwise the end of the pool waits for unwanted verdicts. What has not begun is dropped
            # first: the pool fails at what is cancelled when it loses its processes.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _judge_all(judge: Judging, pairs: Sequence[Pair]) -> list[Verdict]:
    return list(itertools.starmap(judge, pairs))


def _batches(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """The pairs in batches of one kernel each: a process that has built a kernel judges several of its
    mutants.
    """
    for _, of_kernel in itertools.groupby(pairs, operator.itemgetter(0)):
        every = list(of_kernel)
        for first in range(0, len(every), _BATCH):
            yield every[first : first + _BATCH]


class Progress:
    """Reports the progress of a campaign on standard error: a bar on a terminal with rich, else a
    line every `_QUIET_S` seconds. `survivors` is what mutants are called that no check notices.
    """

    def __init__(self, command: str, total: int, survivors: str, bar: Any = None) -> None:
        self.command = command
        self.total = total
        self.survivors = survivors
        self.done = self.holes = 0
        self.bar = bar
        self.task = bar.add_task("mutants", total=total) if bar is not None else None
        self.printed_at = time.monotonic()

    def __call__(self, verdict: Verdict) -> Verdict:
        """Count a verdict and report progress; returns the verdict."""
        self.done += 1
        self.holes += verdict.caught_by == HOLE
        words = f"{verdict.kernel}, {self.holes} {self.survivors}"
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, description=words)
        elif time.monotonic() - self.printed_at >= _QUIET_S:
            self.printed_at = time.monotonic()
            line = f"{self.command}: {self.done} of {self.total} mutants; {words}"
            print(line, file=sys.stderr, flush=True)
        return verdict


@contextmanager
def progress(command: str, total: int, survivors: str) -> Iterator[Progress]:
    """The progress of a command that judges `total` mutants."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield Progress(command, total, survivors)
        return
    rich: Any = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    with rich.Progress(console=console, transient=True) as bar:
        yield Progress(command, total, survivors, bar)
