"""Keys and values in chunks of a few rows, for the products of few queries with many keys.

Such products read K and V once, and their time is that of reading: K and V are not copied where BLAS can
multiply them where they lie, pages of a cache among them. For that a product is many small ones, all
alike, each with the keys of a chunk, and a chunk lies in one page. Contiguous keys have the same chunks,
so that the bits do not depend on the pages. What is copied, because its type is another or its pages
are small and far apart, is copied some chunks at a time, which stay in a core's L2 cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, converted
from flash.cpu.paged_rows import KeyIndex, KeyRows, PagedRows, Walk

Array = NDArray[Any]

# Keys of a chunk. With one row it is a product of a matrix and a vector, whose time is that of reading with
# 16 keys, too, as many as usual pages have; from the L2 cache, where copies are, it is shorter with more.
# For products of two matrices OpenBLAS takes up to twice as long with fewer than 64 keys, and with more
# than 256 where it has kernels of AVX-512.
_CHUNK_OF_ONE_ROW: Final = 16
_CHUNK: Final = 64
_CHUNK_OF_COPIES: Final = 256

# Elements of K or V that are copied at once: 512 KiB of f32.
_COPIED: Final = 2**17

# Pages are multiplied where they lie if what one call of numpy reads of them has as many elements on
# average: it costs as much as copying these, one row of 64 at a time.
_MIN_RUN_ELEMENTS: Final = 2**13


class Chunks(NamedTuple):
    """Some of the chunks of a block of keys or values: those of `heads` and `keys` of the block.
    `shape` is (pages, chunks of a page, keys of a chunk), and `parts` are ranges of page numbers with arrays
    [pages, chunks of a page, kv_heads, keys of a chunk, dim], each to be used before the next is generated.
    The numbers count pages as they are read: page `order[n]` is the n-th, or page n if `order` is None.
    """

    heads: slice
    keys: slice
    shape: tuple[int, int, int]
    parts: Iterable[tuple[slice, Array]]
    order: Array | None = None

    def of(self, x: Array) -> Array:
        """The part of x [kv_heads, rows, keys of the block] for the keys of these chunks: [pages, chunks of a
        page, kv_heads, rows, keys of a chunk], a view.
        """
        columns = x[self.heads, :, self.keys]
        return columns.reshape(*columns.shape[:2], *self.shape).transpose(2, 3, 0, 1, 4)


def keys_of_chunk(rows: int, is_read: bool) -> int:
    """The keys of a chunk for `rows` rows of queries. Keys whose type needs a copy need no short chunks."""
    if rows > 1:
        return _CHUNK
    return _CHUNK_OF_ONE_ROW if is_read else _CHUNK_OF_COPIES


def in_chunks(space: Workspace, name: str, source: KeyRows, index: KeyIndex, rows: int) -> Iterator[Chunks]:
    """The chunks of the keys at `index`, each to be used before the next is generated; the last may be
    shorter.
    """
    chunk = keys_of_chunk(rows, source.dtype == space.dtype)
    whole = index.length // chunk * chunk
    first, last = index.keys.start, index.keys.stop
    if whole:
        most = index._replace(keys=slice(first, first + whole))
        if isinstance(source, PagedRows):
            views = _in_pages(space, source, most, chunk, rows)
        else:
            views = _in_array(space, source, most, chunk, rows)
        yield from views or _copied(space, name, source, most, chunk)
    if first + whole < last:
        rest = index._replace(keys=slice(first + whole, last))
        for chunks in _copied(space, name, source, rest, rest.length):
            yield chunks._replace(keys=slice(whole, index.length))


def copied_whole(space: Workspace, name: str, source: KeyRows, index: KeyIndex, rows: int) -> Array | None:
    """A copy [kv_heads, keys, dim] in buffer `name` of the keys at `index`, if they are fewer than those of a
    chunk: what `in_chunks` generates for them, without its steps. None for more keys, and for pages.
    """
    if isinstance(source, PagedRows) or index.length >= keys_of_chunk(rows, source.dtype == space.dtype):
        return None
    x = source[index]
    if x.size > _COPIED:  # many heads, which are copied in parts
        return None
    copy = space.planes(name, *x.shape)
    converted(x, copy)
    return copy


def _in_array(
    space: Workspace, source: Array, index: KeyIndex, chunk: int, rows: int
) -> Iterator[Chunks] | None:
    """The chunks of an array, read in place; None if BLAS cannot read them there."""
    x = source[index]
    heads, n, dim = x.shape
    there = x.reshape(heads, n // chunk, chunk, dim).swapaxes(0, 1)[None]
    if not space.has_chunk_layout(there, rows):
        return None
    return iter([Chunks(slice(0, heads), slice(0, n), (1, n // chunk, chunk), [(slice(1), there)])])


def _in_pages(
    space: Workspace, source: PagedRows, index: KeyIndex, chunk: int, rows: int
) -> Iterator[Chunks] | None:
    """The chunks of pages, read in place; None if BLAS cannot read them there, or a copy takes less time."""
    there = source.in_chunks(index.heads, chunk)
    first = index.keys.start
    if there is None or not space.has_chunk_layout(there, rows) or not source.begins_page(first):
        return None
    each, heads, dim = there.shape[1], there.shape[2], there.shape[4]
    pages, more = divmod(index.length // chunk, each)
    full = pages * each * chunk
    walk = source.walk(slice(first, first + full))
    if full * heads * dim < _MIN_RUN_ELEMENTS * len(walk.runs):
        return None
    rest = there[source.page_of(first + full), :more][None] if more else None
    return _of_walk(there, walk, pages, rest)


def _of_walk(there: Array, walk: Walk, pages: int, rest: Array | None) -> Iterator[Chunks]:
    """Chunks of the first `pages` pages of a walk, and those of a last page in `rest`, which has fewer."""
    each, heads, chunk = there.shape[1], slice(0, there.shape[2]), there.shape[3]
    full = pages * each * chunk
    if pages:
        parts, n = [], 0
        for run in walk.runs:
            part = there[run]
            parts.append((slice(n, n + len(part)), part))
            n += len(part)
        yield Chunks(heads, slice(0, full), (pages, each, chunk), parts, walk.order)
    if rest is not None:
        more = rest.shape[1]
        yield Chunks(heads, slice(full, full + more * chunk), (1, more, chunk), [(slice(1), rest)])


def _copied(space: Workspace, name: str, source: KeyRows, index: KeyIndex, chunk: int) -> Iterator[Chunks]:
    """Copies of the chunks in buffer `name`, some at a time, of the type of the arithmetic."""
    count, dim = index.heads.stop - index.heads.start, source.shape[3]
    some = min(count, max(1, _COPIED // max(1, chunk * dim)))
    step = chunk * max(1, _COPIED // max(1, some * chunk * dim))
    whole = index.length // step * step
    for head in range(0, count, some):
        heads = slice(head, min(head + some, count))
        these = slice(index.heads.start + heads.start, index.heads.start + heads.stop)
        for keys, each in ((slice(0, whole), step), (slice(whole, index.length), index.length - whole)):
            if keys.start < keys.stop:
                first = index.keys.start
                part = KeyIndex(index.batch, these, slice(first + keys.start, first + keys.stop))
                shape = (part.length // each, each // chunk, chunk)
                yield Chunks(heads, keys, shape, _copies(space, name, source, part, shape))


def _copies(
    space: Workspace, name: str, source: KeyRows, index: KeyIndex, shape: tuple[int, int, int]
) -> Iterator[tuple[slice, Array]]:
    """The parts of chunks of this shape, each of which is copied over the previous one."""
    _, each, chunk = shape
    copy = space.planes(name, index.heads.stop - index.heads.start, each * chunk, source.shape[3])
    there = copy.reshape(len(copy), each, chunk, source.shape[3]).swapaxes(0, 1)[None]
    for n, _ in enumerate(space.copied_in_steps(name, source, index, copy)):
        yield slice(n, n + 1), there
