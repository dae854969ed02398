"""The work of a checked call of attention over a KV cache, done once or repeatedly: the host counts
the new rows of the cache, then the backend writes them and attends where the cache is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from flash.cache.call import Task
from flash.cache.checks import Rows, appends_by_kernel, problems_of_rotary, turns_by_kernel
from flash.cache.row_locations import RowLocations
from flash.cpu.paged_rows import KeyRows
from flash.decode.append_launch import NewRows, Rotation
from flash.decode.kernel import DecodeKernel
from flash.decode.on_cpu import attend_to_rows, paged_rows
from flash.decode.operation import AppendCall, append_to
from flash.decode.plan import CacheCall, Joining, joining
from flash.host import results
from flash.host.caller import raise_problems
from flash.operands.dtypes import F32
from flash.pages.journal import Journal
from flash.pages.placement import Stretch
from flash.problem.config import AttentionConfig
from flash.problem.rotary import rotated
from flash.scores.aux_arrays import gathered
from ptxgen.arrays.views import ArrayView, host_array, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import WITHOUT_KERNELS

Array = NDArray[Any]


class CachedWork:
    """A prepared call: `advance` makes room for the new rows and counts them, `launch` writes them
    and attends. Raises what `DecodeKernel.prepared` does.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._like = task.views["q"]._replace(device=task.cache.memory.device)
        stream = self._stream()
        self._places = None
        if task.backend not in WITHOUT_KERNELS and task.sequences:
            memory = task.cache.memory
            self._places = RowLocations(
                memory, task.layer, task.sequences, task.padding, shared=not task.is_repeated
            )
            self._places.place(stream)
        is_empty = 0 in task.out.shape[:3]
        by_kernel = appends_by_kernel(task.cache, task.views, task.backend)
        by_kernel = by_kernel or turns_by_kernel(task.views, task.backend)
        new = joining(task.views, task.interleaved) if by_kernel else None
        turned_before = task.turns and (new is None or is_empty)
        self._q = self._room_for_queries() if turned_before else task.views["q"]
        self._attend = _nothing if is_empty else self._prepared_attention(new)
        self._write: Callable[[int], object] = self._write_rows
        if new is not None and (not is_empty or new.k is None):
            self._write = _nothing  # the attending kernel writes and turns, or one before it
        elif new is not None and task.backend == "cuda":
            self._write = self._prepared_append(new)

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
        if task.turns:
            of_layer = cache.ledger.of(task.layer, sequences)
            after = Rows(sequences, [length + n for length in of_layer], task.padding)
            raise_problems(list(problems_of_rotary(cache, dict(task.views), after)), task.who)
        if n:
            cache.advance(task.who, task.layer, sequences, [n] * len(sequences), journal, stream)
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
                    f"{task.who}: {task.new_rows} new rows must count before they are written, but "
                    f"sequence {task.sequences[lengths.index(least)]} has {least} tokens in layer "
                    f"{task.layer}; call advance() or KVCache.grow before launch()"
                )
        self._write(stream)
        self._attend(stream)

    # ---------------------------------------------------------------------------------------------

    def _stream(self) -> int:
        return self._task.cache.stream_of(self._task.who, self._task.stream, self._like)

    def _room_for_queries(self) -> ArrayView:
        task, like = self._task, self._like
        room = results.empty(
            like, tuple(like.shape), task.config.element, memory=task.cache.cuda, stream=task.stream
        )
        return view(room, "q")._replace(device=like.device, stream=None)

    def _prepared_attention(self, new: Joining | None) -> Callable[[int], object]:
        task = self._task
        if task.attend is not None:
            operands = gathered({name: host_array(array) for name, array in task.operands.items()})
            outputs = {name: host_array(array) for name, array in task.outputs.items()}
            work = functools.partial(
                attend_to_rows,
                functools.partial(task.attend, softmax_scale=task.scale),
                host_array(self._q),
                self._rows_of,
                operands,
                host_array(task.out),
                outputs,
            )
            return lambda _: work()
        cache = task.cache
        arrays = cache.memory.arrays(task.layer)
        call = CacheCall(
            task.config,
            self._q,
            arrays.k,
            arrays.v,
            task.out,
            task.outputs,
            {**task.operands, **self._operands},
            cache.page_size or 0,
            task.longest,
            task.scale,
            new,
        )
        return _kernel(task.config, cache.cuda).prepared(
            call, backend=task.backend, room=cache.memory.workspace, who=self._task.who, **task.how
        )

    @property
    def _operands(self) -> dict[str, ArrayView]:
        """The arrays that say where rows are, by name: lengths, indices, block table, scales."""
        return {} if self._places is None else self._places.operands

    def _rows_of(self, b: int) -> tuple[KeyRows, KeyRows]:
        task = self._task
        sequence, begin = task.sequences[b], task.padding[b]
        memory = task.cache.memory.arrays(task.layer)
        if memory.block_table is None or memory.k_scale is not None:
            k, v = task.cache.rows(task.layer, sequence, begin)
            return k[None], v[None]
        (length,) = task.cache.ledger.of(task.layer, [sequence])
        table = host_array(memory.block_table)[sequence]
        return paged_rows(host_array(memory.k), host_array(memory.v), table, begin, max(length, begin))

    def _prepared_append(self, new: Joining) -> Callable[[int], object]:
        """The kernel that only appends, for a call without queries."""
        cache, task = self._task.cache, self._task
        arrays = cache.memory.arrays(task.layer)
        assert new.k is not None
        assert new.v is not None
        rows = NewRows(new.k, new.v, arrays.k, arrays.v, self._operands, cache.page_size or 0)
        turned = None
        if new.cos is not None and new.sin is not None:
            turned = Rotation(new.cos, new.sin, new.interleaved, self._q, self._q)
        append = append_to(cache.cuda, self._task.who)
        return append.bound(AppendCall(rows, turned), self._task.backend, cache.memory.workspace)

    def _write_rows(self, stream: int) -> None:
        """Rotate on the host if needed, and write the new rows, or copy them to the GPU."""
        task, n = self._task, self._task.new_rows
        views = dict(task.views) | (self._turned() if task.turns else {})
        if "k" in views:
            ends = task.cache.ledger.of(task.layer, task.sequences)
            stretches = [
                Stretch(sequence, end - n, end) for sequence, end in zip(task.sequences, ends, strict=True)
            ]
            task.cache.fill(task.layer, views["k"], views["v"], stretches, stream)

    def _turned(self) -> dict[str, ArrayView]:
        """Rotate q into `self._q`, and return k rotated by its positions, if there is k."""
        task = self._task
        host_array(self._q)[...] = _turned_rows(task, "q")
        if "k" not in task.views:
            return {}
        # Keys are rounded to the cache's dtype; a cache of a narrow type takes f32 and rounds itself.
        kept = (F32 if task.cache.element.is_narrow else task.cache.element).numpy
        return {"k": view(_turned_rows(task, "k").astype(kept), "k")}


def _turned_rows(task: Task, name: str) -> Array:
    array, cos, sin = (host_array(task.views[n]) for n in (name, "rotary_cos", "rotary_sin"))
    positions = task.rows.positions(array.shape[2])
    return rotated(array, cos, sin, positions, interleaved=task.interleaved)


def _nothing(stream: int) -> None:
    """Do nothing: there is no query, or the attending kernel writes the rows."""


@functools.lru_cache(maxsize=64)
def _kernel(config: AttentionConfig, cuda: CudaBackend) -> DecodeKernel:
    return DecodeKernel(config, cuda=cuda)
