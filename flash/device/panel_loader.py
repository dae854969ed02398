"""Copies of blocks of rows of a matrix from global memory into swizzled tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from flash.device.tiles import Matrix, Strip, copies_are_asynchronous
from flash.families.mma import LEAST_ASYNCHRONOUS
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, Var, marked
from ptxgen.dsl.swizzle import CHUNK_BYTES, SWIZZLE_ROWS, Panel, SwizzledTile
from ptxgen.errors import ConfigError
from ptxgen.records import dataclass
from ptxgen.types import b16, s32, u32, u64

_HALVES: Final = 2
SIGNS: Final = {2: 0x8000_8000, 4: 0x8000_0000}  # sign bits in a word, by bytes of an element


@dataclass(frozen=True)
class Share:
    """The chunks that one thread copies of the panels of one width: chunk `chunk` of every `rows_at_once`-th
    row, from row `row` on; the first one is at `pointer`. With `half` (u32, 0 or 1) it is the first or the
    second half of the panels of each row, and `panels` are those of the first one.
    """

    panels: tuple[Panel, ...]
    rows_at_once: int
    row: Value
    chunk: Value
    pointer: TilePointer
    half: Value | None = None

    def moved(self, nbytes: Value) -> Share:
        """This share of the tile that begins `nbytes` bytes further in shared memory."""
        return replace(self, pointer=self.pointer.moved(self.pointer.value + nbytes))

    def at(self, panel: Panel, first: int) -> Pointer:
        """The address of the thread's chunk of a panel, as words, in its row moved down by `first`."""
        at = self.pointer.plus_bytes(panel.offset + first * panel.row_bytes)
        return Pointer(at.value, "shared", u32, at.offset)

    @property
    def first_chunk(self) -> Value:
        """The thread's chunk of a row in its first panel, counted from the first of `panels`."""
        if self.half is None:
            return self.chunk
        return self.chunk + self.half * self.chunks

    @property
    def chunks(self) -> int:
        """The number of 16-byte chunks that a row has in `panels`."""
        return sum(panel.chunks for panel in self.panels)


class PanelLoader:
    """Copies blocks of rows of a matrix into a tile.

    Each thread writes whole chunks of 16 bytes, in pieces of `matrix.width` elements, and zeros
    what lies beyond the matrix without reading it. Copies of pieces of 4 bytes and more are
    asynchronous: complete for this thread after `commit_copies` and `await_copies`, and for the CTA
    after a subsequent barrier. On targets that have no such copies the loader `prefetches`: `start` loads
    into registers, `land` writes them to the tile.

    A thread computes its share of the work each time anew: there are no registers to keep it in.

    `by_halves`: where a CTA has twice as many threads as the tile has chunks in panels of one width, each row
    is shared by twice as many neighbouring threads, instead of half of the threads having no row.
    """

    chunk_bytes = CHUNK_BYTES  # bytes of the matrix that become a chunk of the tile

    def __init__(
        self, k: KernelBuilder, matrix: Matrix, tile: SwizzledTile, *, by_halves: bool = False
    ) -> None:
        self.k = k
        self._by_halves = by_halves
        self.matrix = matrix
        self.tile = tile
        self.piece_bytes = matrix.width * tile.dtype.nbytes
        # Words on their way to the tile, by the first chunk of a panel and the distance of a thread's row
        # below its first one.
        self._held: dict[tuple[int, int], list[Var]] = {}
        if self.prefetches:
            words = self.chunk_bytes // u32.nbytes
            self._held = {
                (panel.first, first): [k.var(u32, 0) for _ in range(words)]
                for panel in tile.panels
                for first in range(0, tile.rows, k.threads // panel.chunks)
            }

    @property
    def is_asynchronous(self) -> bool:
        """Whether the loader's copies are asynchronous (`cp.async`)."""
        return copies_are_asynchronous(self.k) and self.piece_bytes >= LEAST_ASYNCHRONOUS

    @property
    def prefetches(self) -> bool:
        """Whether the loader's copies wait in registers until `land` writes them to shared memory."""
        return not copies_are_asynchronous(self.k) and self.piece_bytes >= LEAST_ASYNCHRONOUS

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """Begin copying the rows from `first_row` on into the stage at byte `stage` of the tile.

        `ragged` says that rows may lie beyond the matrix.
        """
        for share in self.shares(None if self.prefetches else stage):
            if self.prefetches:
                self._load(share, first_row, ragged)
            elif self.is_asynchronous:
                self._start_copies(share, first_row, ragged)
            else:
                self._copy_in_loop(share, first_row)

    def land(self, stage: Value | None = None) -> None:
        """Write what waits in registers into the stage at byte `stage` of the tile: nothing unless the loader
        `prefetches`. The CTA sees it after a subsequent barrier.
        """
        for share in self.shares(stage) if self.prefetches else ():
            for first in range(0, self.tile.rows, share.rows_at_once):
                with self._rows_of(share, first):
                    for panel in share.panels:
                        words = self._stored(self._held[panel.first, first])
                        self.k.store(share.at(panel, first), words)

    def fill(self, first_row: Value) -> None:
        """Copy the rows from `first_row` on into the only stage of the tile: on targets without asynchronous
        copies at once, so that nothing waits in registers.
        """
        self.start(first_row)
        self.land()

    def forget(self) -> None:
        """Clear the registers where `start` has a condition, so that they are free until the next one."""
        for words in self._held.values():
            for word in words:
                word.set(0)

    def _stored(self, words: Sequence[Value]) -> Sequence[Value]:
        """The four 32-bit words of a chunk of the tile, converted from the matrix' words."""
        return words

    def chunks(self, stage: Value | None = None) -> Iterator[Pointer]:
        """The address of each chunk of 16 bytes that this thread writes, as four words. Code
        emitted between one address and the next is only run by the threads that have that chunk.
        """
        for share in self.shares(stage):
            for first in range(0, self.tile.rows, share.rows_at_once):
                with self._rows_of(share, first):
                    for panel in share.panels:
                        yield share.at(panel, first)

    def flip_signs(self) -> None:
        """Negate all elements that this thread has copied, once they have arrived."""
        for at in self.chunks():
            words = self.k.load(at, 4)
            self.k.store(at, [word ^ SIGNS[self.tile.dtype.nbytes] for word in words])

    @marked("panel loader: share of a thread")
    def shares(self, stage: Value | None) -> Iterator[Share]:
        """The work of this thread in the stage at byte `stage`, by the width of panels."""
        k, thread = self.k, self.k.thread_id()
        for chunks in dict.fromkeys(panel.chunks for panel in self.tile.panels):
            rows_at_once = k.threads // chunks
            if rows_at_once % SWIZZLE_ROWS:
                raise ConfigError(
                    f"PanelLoader: a CTA must have a multiple of {chunks * SWIZZLE_ROWS} threads, "
                    f"so that a thread's rows have one phase, got {k.threads}"
                )
            panels = tuple(p for p in self.tile.panels if p.chunks == chunks)
            # Twice as many threads as chunks are two for each chunk of the rows of a panel.
            if self._by_halves and rows_at_once == _HALVES * self.tile.rows and not len(panels) % _HALVES:
                share = self._half(panels)
            else:
                row, chunk = thread // chunks, thread % chunks
                pointer = self.tile.chunk_pointer(chunks, row, chunk)
                share = Share(panels, rows_at_once, row, chunk, pointer)
            yield share if stage is None else share.moved(stage)

    def _half(self, panels: tuple[Panel, ...]) -> Share:
        """The work of this thread where each row is shared by halves of its panels."""
        thread, chunks = self.k.thread_id(), panels[0].chunks
        row, half, chunk = thread // (_HALVES * chunks), thread // chunks % _HALVES, thread % chunks
        first, second = panels[: len(panels) // _HALVES], panels[len(panels) // _HALVES :]
        pointer = self.tile.chunk_pointer(chunks, row, chunk)
        pointer = pointer.moved(pointer.value + half * (second[0].offset - first[0].offset))
        return Share(first, self.tile.rows, row, chunk, pointer, half)

    def _source(self, share: Share, row: Callable[[], Value]) -> Value:
        """The address of a thread's first chunk in the row of the matrix at address `row()`."""
        first_byte = self._first_byte(share)
        return row() + first_byte

    def _first_byte(self, share: Share) -> Value:
        """The offset of a thread's first chunk in a row of the matrix, in bytes, u64."""
        return self.k.cvt((share.first_chunk + share.panels[0].first) * self.chunk_bytes, dtype=u64)

    def _sources(self, share: Share, row: Value) -> Iterator[tuple[int, Value]]:
        """The distances of a thread's rows below its first one, `row`, with the address of its first chunk in
        each of them.
        """
        strip = Strip(
            row,
            share.row,
            share.rows_at_once,
            self.tile.rows,
            share.chunk,
            share.panels[0].chunks,
            lambda: self._first_byte(share),
        )
        find = self.matrix.further(self.k, strip)
        source, step_bytes = find(0), self.matrix.step(share.rows_at_once)

        def walked(source: Value) -> Iterator[tuple[int, Value]]:
            yield 0, source
            for first in range(share.rows_at_once, self.tile.rows, share.rows_at_once):
                source = find(first) if step_bytes is None else source + step_bytes
                yield first, source

        return walked(source)

    @marked("panel loader: asynchronous copies")
    def _start_copies(self, share: Share, first_row: Value, ragged: bool) -> None:
        row = first_row + self.k.signed(share.row)
        sources = self._sources(share, row)
        rows_left = self.matrix.rows - row if ragged else None
        for first, source in sources:
            present = None if rows_left is None else rows_left > first
            with self._rows_of(share, first):
                self._copy_row(share, share.pointer, source, first, present)

    @marked("panel loader: loads")
    def _load(self, share: Share, first_row: Value, ragged: bool) -> None:
        """Load this thread's chunks of the matrix from global memory into registers."""
        k, row = self.k, first_row + self.k.signed(share.row)
        sources = self._sources(share, row)
        rows_left = self.matrix.rows - row if ragged else None
        for first, source in sources:
            present = None if rows_left is None else rows_left > first
            if first + share.rows_at_once > self.tile.rows:
                present = both(present, k.signed(share.row) < self.tile.rows - first)
            for panel in share.panels:
                column_bytes = (panel.first - share.panels[0].first) * self.chunk_bytes
                self._load_chunk(share, panel, first, Pointer(source, "global", u32, column_bytes), present)

    def _load_chunk(self, share: Share, panel: Panel, first: int, at: Pointer, present: Value | None) -> None:
        """Load a chunk in pieces as wide as the matrix allows; what is not there becomes 0."""
        k, held = self.k, self._held[panel.first, first]
        count = len(held) * self.matrix.width // self.tile.chunk  # words of a piece
        for n in range(0, len(held), count):
            words, piece = held[n : n + count], n // count * self.matrix.width
            there = both(present, self._in_columns(share, panel, piece))
            for word in words if there is not None else ():
                word.set(0)
            with nullcontext() if there is None else k.only_if(there):
                k.load(
                    Pointer(at.value, at.space, at.dtype, at.offset + n * u32.nbytes),
                    count,
                    into=words if count > 1 else words[0],
                )

    @marked("panel loader: turns")
    def _copy_in_loop(self, share: Share, first_row: Value) -> None:
        """Copy through registers, in a loop: unrolled, all rows would take too many registers."""
        k, row = self.k, first_row + self.k.signed(share.row)
        step_bytes = self.matrix.step(share.rows_at_once)
        source = k.var(u64, self._source(share, lambda: self.matrix.row(k, row)))
        rows_left = k.var(s32, self.matrix.rows - row)

        def here() -> Value:
            """The address of the thread's first chunk in the row of this iteration."""
            if step_bytes is not None:
                return source
            return self._source(share, lambda: self.matrix.row(k, self.matrix.rows - rows_left))

        pointer = k.var(u32, share.pointer.value)
        iterations = -(-self.tile.rows // share.rows_at_once)
        if iterations == 1:
            with self._rows_of(share, 0):
                self._copy_row(share, share.pointer, source, 0, rows_left > 0)
            return
        whole = self.tile.rows // share.rows_at_once  # iterations in which each thread has a row of the tile
        with k.loop(0, whole):
            self._copy_row(share, share.pointer.moved(pointer), here(), 0, rows_left > 0)
            if step_bytes is not None:
                k.add(source, step_bytes, into=source)
            k.sub(rows_left, share.rows_at_once, into=rows_left)
            k.add(pointer, share.rows_at_once * share.panels[0].row_bytes, into=pointer)
        if whole < iterations:
            with self._rows_of(share, whole * share.rows_at_once):
                self._copy_row(share, share.pointer.moved(pointer), here(), 0, rows_left > 0)

    def _in_columns(self, share: Share, panel: Panel, piece: int) -> Value | None:
        """Whether a piece of a thread's chunk in a panel is in the matrix; None if it is for all
        threads.
        """
        chunk = self.tile.chunk
        left = max(self.matrix.columns - panel.first * chunk, 0)
        others = 0 if share.half is None else share.chunks
        if left >= (others + panel.chunks) * chunk:
            return None
        return share.first_chunk * chunk + piece < left

    @marked("panel loader: rows of a tile")
    def _rows_of(self, share: Share, first: int) -> AbstractContextManager[object]:
        """A context for code of the threads whose row, moved down by `first`, is in the tile."""
        if first + share.rows_at_once <= self.tile.rows:
            return nullcontext()
        return self.k.when(share.row < self.tile.rows - first)

    def _copy_row(
        self, share: Share, pointer: TilePointer, source: Value, row: int, present: Value | None
    ) -> None:
        for panel in share.panels:
            to = pointer.plus_bytes(panel.offset + row * panel.row_bytes)
            column_bytes = (panel.first - share.panels[0].first) * CHUNK_BYTES
            for piece in range(0, self.tile.chunk, self.matrix.width):
                step = piece * self.tile.dtype.nbytes
                self._copy(
                    to.plus_bytes(step),
                    Pointer(source, "global", b16, column_bytes + step),
                    both(present, self._in_columns(share, panel, piece)),
                    self.piece_bytes,
                )

    @marked("panel loader: piece")
    def _copy(self, to: Pointer, at: Pointer, present: Value | None, nbytes: int) -> None:
        k = self.k
        if self.is_asynchronous:
            valid = None if present is None else k.selp(nbytes, 0, present, type=u32)
            k.copy_async(to, at, nbytes, valid)
            return
        value = k.var(b16, 0)
        if present is None:
            value.set(k.load(at))
        else:
            # `value` is initialised above: a register that is only written under a predicate, the
            # assembler would keep through all of the kernel, one for each element in flight.
            with k.only_if(present):
                k.load(at, into=value)
        k.store(Pointer(to.value, "shared", b16, to.offset), value)


def both(a: Value | None, b: Value | None) -> Value | None:
    """The predicate that two conditions both hold, where None is a condition that always holds."""
    if a is None or b is None:
        return b if a is None else a
    return a & b
