"""The work of a checked call of attention over a KV cache, done once or repeatedly: the host counts
the new rows of the cache, then the backend writes them and attends where the cache is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flash.cache.call import Task
from flash.cache.checks import Rows, joins_by_kernel, problems_of_rotary
from flash.cache.row_locations import RowLocations
from flash.decode.on_cpu import joined_on_cpu
from flash.decode.operation import append_to
from flash.decode.plan import CacheCall, appending, new_operands
from flash.host.caller import raise_problems
from flash.pages.journal import Journal
from flash.pages.placement import Stretch
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.settings import WITHOUT_KERNELS


class CachedWork:
    """A prepared call: `advance` makes room for the new rows and counts them, `launch` writes them
    and attends. Raises what `Operation.bound` does.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        cache, on_gpu = task.cache, task.backend == "cuda"
        self._like = task.views["q"]._replace(device=cache.memory.device)
        self._write: Callable[[int], object] = _nothing
        self._attend: Callable[[int], object] = _nothing
        self._places = None
        if not task.sequences:
            return
        self._places = RowLocations(
            cache.memory, task.layer, task.sequences, task.padding, shared=not task.is_repeated
        )
        self._places.place(self._stream())
        alone, is_empty = self._call(self._places), 0 in task.out.shape[:3]
        new = new_operands(task.views)
        call = alone._replace(operands={**alone.operands, **new})
        backend = "cpu" if is_empty and not on_gpu else task.backend
        by_call = backend in WITHOUT_KERNELS or joins_by_kernel(cache, task.views, backend)
        if new and on_gpu and not by_call:  # rows of the host are copied to the GPU
            self._write, call = self._fill, alone
        elif new and not by_call:
            queries, whole = view(np.empty(call.q.shape, task.config.element.numpy), "q"), call
            self._write = lambda _: np.copyto(host_array(queries), joined_on_cpu(whole))
            call = alone._replace(q=queries)
        elif "k_new" in new and on_gpu and is_empty:
            rows = appending(call, None if call.turned is None else call.q)
            self._write = append_to(cache.cuda, task.caller).bound(rows, backend, cache.memory.workspace)
        if not (is_empty and on_gpu):
            self._attend = task.decode.bound(call, backend, cache.memory.workspace)

    def _call(self, places: RowLocations) -> CacheCall:
        """Attention alone, without new rows and rotation."""
        task, arrays = self._task, self._task.cache.memory.arrays(self._task.layer)
        return CacheCall(
            task.config,
            self._like,
            arrays.k,
            arrays.v,
            task.out,
            task.outputs,
            {**task.operands, **places.operands},
            task.cache.page_size or 0,
            task.longest,
            task.scale,
            task.splits,
            task.interleaved,
        )

    def once(self) -> Any:
        """Do `advance` and `launch`, both or neither: out, or (out, lse)."""

        def work(journal: Journal) -> Any:
            self._advance(journal)
            self.launch()
            return self._task.results.returned

        return self._task.cache.whole(work, self._stream(), self._follow)

    def advance(self) -> None:
        """Make room for the new rows, and add them to the lengths. Raises `CacheFullError`, and
        `LaunchError` for positions beyond the rotary tables.
        """
        self._task.cache.whole(self._advance, self._stream(), self._follow)

    def _advance(self, journal: Journal) -> None:
        task, cache, stream = self._task, self._task.cache, self._stream()
        n, sequences = task.new_rows, task.sequences
        if "rotary_cos" in task.views:
            of_layer = cache.ledger.of(task.layer, sequences)
            after = Rows(sequences, [length + n for length in of_layer], task.padding)
            raise_problems(list(problems_of_rotary(cache, dict(task.views), after)), task.caller)
        if n:
            cache.advance(task.caller, task.layer, sequences, [n] * len(sequences), journal, stream)
        self._follow(stream)

    def update(self) -> None:
        """Update lengths and block table on a GPU."""
        self._follow(self._stream())

    def _follow(self, stream: int) -> None:
        self._task.cache.update(stream)
        if self._places is not None:
            self._places.follow(stream)

    def launch(self) -> None:
        """Write the new rows to the last rows of each sequence, and attend.

        Raises `LaunchError` if a sequence has fewer rows than are new.
        """
        task, stream = self._task, self._stream()
        if task.new_rows:
            lengths = task.cache.ledger.of(task.layer, task.sequences)
            least = min(lengths, default=task.new_rows)
            if least < task.new_rows:
                raise LaunchError(
                    f"{task.caller}: {task.new_rows} new rows must count before they are written, but "
                    f"sequence {task.sequences[lengths.index(least)]} has {least} tokens in layer "
                    f"{task.layer}; call advance() or KVCache.grow before launch()"
                )
        if self._places is not None and task.backend != "cuda":
            self._places.follow(stream)
        self._write(stream)
        self._attend(stream)

    def _stream(self) -> int:
        return self._task.cache.stream_of(self._task.caller, self._task.stream, self._like)

    def _fill(self, stream: int) -> None:
        """Copy the new rows to the GPU, and write them to the cache."""
        task, n = self._task, self._task.new_rows
        ends = task.cache.ledger.of(task.layer, task.sequences)
        stretches = [Stretch(which, end - n, end) for which, end in zip(task.sequences, ends, strict=True)]
        task.cache.fill(task.layer, task.views["k"], task.views["v"], stretches, stream)


def _nothing(stream: int) -> None:
    """Do nothing: there is no query, or the attending kernel writes the rows."""
