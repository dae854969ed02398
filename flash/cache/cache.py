"""`KVCache`: the keys and values of growing sequences, for each layer of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flash.cache.copies import arguments_of, restored, state_of
from flash.cache.cuda_memory import CudaMemory, KVMemory
from flash.cache.host_memory import TOKEN_SCALES, HostMemory, LayerArrays, SmallArrays
from flash.cache.row_locations import write_rows
from flash.cache.scales import set_scales_of_heads
from flash.calls.known import Known
from flash.families.request import MAX_HEAD_DIM, MAX_HEAD_DIM_V
from flash.host.caller import raise_problems, views_of
from flash.launch.arguments import Argument
from flash.operands.blocks import block_type
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.operands.dtype_names import CacheBackend, StoredDTypeLike
from flash.operands.dtypes import DTYPES
from flash.pages import numbers as arguments
from flash.pages.numbers import integers
from flash.pages.placement import Journal, Ledger, Stretch
from flash.problem.limits import INT32_MAX
from flash.problem.narrow import TOKEN, is_per_token
from ptxgen.arguments import integer
from ptxgen.arrays.streams import current_stream, stream_handle
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.backend import require_compiler
from ptxgen.runtime.caller_arguments import gpu_of
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import BACKENDS

Array = NDArray[Any]
T = TypeVar("T")


class KVCache:
    """Keys and values of up to `batch` sequences of up to `capacity` tokens, in `layers` layers.

    head_dim: 1..576; head_dim_v: 1..512, by default head_dim.
    dtype: "f32", "f16", "bf16", fp8 or "int8", as `AttentionConfig.dtype` or an array library calls it; or
        "q8_0" or "q4_0", llama.cpp's blocks. Fp8 and int8 store x as x / scale, clamped to the type's largest
        number (of int8 127) and rounded to nearest even.
    scale_per: of fp8 and int8, what has a scale of K and one of V: "head", each head of a layer
        (`set_scales`), initially 1; or "token", each row: its largest magnitude / the type's largest number.
    page_size: None for contiguous memory, K of a layer being [batch, kv_heads, capacity, head_dim]; or
        1..256, the tokens of a page, K being [pages, kv_heads, page_size, head_dim]. V likewise, with
        head_dim_v. Row r of sequence b is row r % page_size of page `block_table[b, r // page_size]`.
    pages: the number of pages, by default as many as all sequences can need.
    backend: where the memory is: "cpu", "compiled" or "interpreter", in numpy arrays; or "cuda", on
        `device`, by default the current one. `cuda`: the GPU backend, by default the process's.

    The layers of a model are appended to one after another, so that each has `lengths` of its own. Memory
    is not initialised; rows that were not written never reach a result. A call that raises anything, also
    `MemoryError` or `KeyboardInterrupt`, has changed nothing; `docs/kv-cache.md` says what that means on a
    GPU, where any call may raise `BackendError`. Work on a GPU is put on the stream that a call names, an
    integer or a stream object, by default the current one of the new rows' library, or else the default
    stream; a caller who uses several streams orders them. Not for use by several threads at once.

    Raises `ConfigError` for invalid arguments, `BackendError` for "compiled" without Numba.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        head_dim_v: int | None = None,
        dtype: StoredDTypeLike = "f32",
        scale_per: Literal["head", "token"] = "head",
        page_size: int | None = None,
        pages: int | None = None,
        backend: CacheBackend = "cpu",
        device: int | None = None,
        cuda: CudaBackend | None = None,
    ) -> None:
        size = arguments.size
        self.layers = size("layers", layers, INT32_MAX)
        self.batch = size("batch", batch, INT32_MAX)
        self.kv_heads = size("kv_heads", kv_heads, INT32_MAX)
        self.head_dim = size("head_dim", head_dim, MAX_HEAD_DIM)
        self.head_dim_v = size("head_dim_v", head_dim if head_dim_v is None else head_dim_v, MAX_HEAD_DIM_V)
        self.capacity = size("capacity", capacity, MAX_WINDOWED_SEQ)
        self.element = arguments.element(dtype, self.head_dim, self.head_dim_v)
        self.blocks = block_type(self.element)
        self.backend = arguments.one_of("backend", backend, BACKENDS)
        require_compiler(self.backend, "KVCache")
        self.placement = arguments.placement_of(self.batch, self.capacity, page_size, pages)
        shape = (self.layers, self.placement.slots, self.kv_heads, self.placement.rows)
        dims = (self.head_dim, self.head_dim_v)
        self.ledger = Ledger(self.layers, self.batch, self.capacity, self.placement)
        self._lengths = self.ledger.lengths
        self.per_token = is_per_token("KVCache", self.element, scale_per)
        has_scales = self.element.has_scales and not self.per_token
        self._scales = np.ones((2, self.layers, self.kv_heads), np.float32) if has_scales else None
        small = SmallArrays(self._lengths, self.placement.table, self._scales)
        layout = shape, dims, self.element, small, self.per_token
        self.memory: KVMemory
        self.cuda = gpu_of("KVCache", cuda)
        if self.backend == "cuda":
            ordinal = self.cuda.current_device() if device is None else arguments.device(device)
            self.memory = CudaMemory(*layout, self.cuda, ordinal)
        else:
            arguments.require_no_device(device, self.backend)
            self.memory = HostMemory(*layout)
        self._journal: Journal | None = None  # of the transaction under way
        self.known_calls = Known[Any]()

    def __repr__(self) -> str:
        values = f", head_dim_v={self.head_dim_v}" if self.head_dim_v != self.head_dim else ""
        values += ", scale_per='token'" if self.per_token else ""
        pages, free = "", ""
        if self.page_size is not None:
            pages = f", page_size={self.page_size}, pages={self.placement.slots}"
            free = f"{self.free_pages} pages free, "
        return (
            f"<KVCache({self.layers}, {self.batch}, {self.kv_heads}, {self.head_dim}, "
            f"{self.capacity}{values}, dtype={self.dtype!r}{pages}, backend={self.backend!r}): "
            f"lengths {self._lengths.max(axis=0).tolist()}, {free}{self.nbytes} bytes>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), arguments_of(self), state_of(self))

    def __deepcopy__(self, memo: object) -> KVCache:
        return restored(type(self), arguments_of(self), state_of(self), self.cuda)

    def __copy__(self) -> KVCache:
        return self.__deepcopy__({})  # two caches of one memory would write over each other's rows

    # ---------------------------------------------------------------------------------- looking

    @property
    def dtype(self) -> str:
        """The element type of the cache, as `AttentionConfig.dtype` names it."""
        return self.element.name

    @property
    def page_size(self) -> int | None:
        """The number of tokens in a page; None if the memory is contiguous."""
        return None if self.placement.table is None else self.placement.rows

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sequence in each layer: int32 [layers, batch], a copy."""
        return self._lengths.copy()

    @property
    def block_table(self) -> NDArray[np.int32] | None:
        """The pages of each sequence: int32 [batch, ceil(capacity / page_size)], a copy, -1 after
        the last page of a sequence; None if the memory is contiguous.
        """
        table = self.placement.table
        return None if table is None else table.copy()

    @property
    def free_pages(self) -> int | None:
        """The number of pages that no sequence uses; None if the memory is contiguous."""
        return self.placement.free

    @property
    def scales(self) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Scales of heads of K and of V, float32 [layers, kv_heads], copies; None without such scales."""
        scales = self._scales
        return None if scales is None else (scales[0].copy(), scales[1].copy())

    def token_scales(self, layer: int, sequence: int) -> tuple[Array, Array]:
        """Scales of a sequence's tokens, of K and V, float32 [kv_heads, length], copies. Raises `LaunchError`
        for an unknown layer or sequence, and for a cache whose tokens have no scales.
        """
        caller = "KVCache.token_scales"
        layer, of = self.check_layer(caller, layer), self.check_sequence(caller, sequence)
        if not self.per_token:
            raise LaunchError(
                f"{caller}: tokens have scales in a cache with scale_per={TOKEN!r}, which this one has not; "
                "see KVCache.scales"
            )
        runs = [*self.placement.runs(Stretch(of, 0, int(self._lengths[layer, of])))]
        k, v = self.memory.stored(layer, runs, TOKEN_SCALES)
        return k[..., 0].copy(), v[..., 0].copy()

    @property
    def nbytes(self) -> int:
        """The bytes of memory that keys, values, scales, lengths and block table take."""
        small = [array for array in self.memory.small if array is not None]
        return self.memory.nbytes + sum(int(array.nbytes) for array in small)

    def keys(self, layer: int, sequence: int) -> Array:
        """The keys of a sequence, a copy, [kv_heads, length, head_dim]: of the cache's dtype, or for fp8,
        int8 and blocks as float32, multiplied by the scales. Raises `LaunchError` for an unknown layer or
        sequence.
        """
        return self._copy_of("keys", layer, sequence)[0]

    def values(self, layer: int, sequence: int) -> Array:
        """The values of a sequence, a copy [kv_heads, length, head_dim_v]; types and errors as in `keys`."""
        return self._copy_of("values", layer, sequence)[1]

    def rows(self, layer: int, sequence: int, begin: int = 0) -> tuple[Array, Array]:
        """Keys and values of a sequence from row `begin` on, of the types that `keys` returns. They are
        copied only if they are on a GPU, in pages or scaled, so the caller must not write to them.
        Arguments are not checked.
        """
        stretch = Stretch(sequence, begin, int(self._lengths[layer, sequence]))
        return self.memory.read(layer, list(self.placement.runs(stretch)))

    # ---------------------------------------------------------------------------------- changing

    def set_scales(self, k_scale: object, v_scale: object) -> None:
        """Set the scales by which a cache of fp8 or int8 divides K and V when it stores them: positive
        numbers, of any shape that broadcasts to [layers, kv_heads]. Raises `LaunchError` for invalid scales,
        for a cache of another dtype or scale_per, or with tokens.
        """
        set_scales_of_heads(self._scales, self.element, int(self._lengths.max()), k_scale, v_scale)

    def append(
        self,
        layer: int,
        k: object,
        v: object,
        sequences: object = None,
        *,
        counts: object = None,
        stream: object = None,
    ) -> None:
        """Append keys and values to sequences of a layer.

        k is [items, kv_heads, n, head_dim], v [items, kv_heads, n, head_dim_v], n at least 0: n new rows for
        each of `sequences`, integers without repetition, by default all sequences of the cache in order.
        With `counts`, an integer from 0 to n for each sequence, only its first `counts` rows are appended.
        The arrays have the cache's dtype, or, for the narrower ones, float32, float16 or bfloat16. They are
        on the host or on the cache's device.

        Raises `LaunchError` for arguments that do not fit the cache, `CacheFullError` if there is
        no room for all rows, in the sequences or in free pages.
        """
        caller = "KVCache.append"
        layer = self.check_layer(caller, layer)
        which = self.check_sequences(caller, sequences)
        of_k, of_v = views_of({"k": k, "v": v}, caller).values()
        raise_problems(self.problems_of_rows(of_k, of_v, len(which)), caller)
        n = of_k.shape[2]
        rows = [n] * len(which) if counts is None else integers(counts, 0, n, len(which))
        if rows is None:
            raise LaunchError(
                f"{caller}: counts must be {len(which)} integers from 0 to {n}, one for each "
                f"sequence, got {shown(counts)}"
            )
        on = self.stream_of(caller, stream, of_v if of_k.device == HOST else of_k)

        def work(journal: Journal) -> None:
            stretches = self.advance(caller, layer, which, rows, journal, on)
            if any(rows):
                self.update(on)
                write_rows(self.memory, self.cuda, layer, (of_k, of_v), stretches, on)

        self.whole(work, on)

    def grow(self, rows: int, sequences: object = None, *, stream: object = None) -> None:
        """Add `rows` rows to sequences, by default all, in every layer. The rows are written by work that
        follows: launches of `DecodeStep`, also in a captured graph. On a GPU, lengths and block table are
        updated in the order of `stream`.

        Raises `LaunchError` for invalid arguments, `CacheFullError` if there is no room for all rows.
        """
        caller = "KVCache.grow"
        count = integer(rows, 0, INT32_MAX)
        if count is None:
            raise LaunchError(f"{caller}: rows must be an integer of at least 0, got {shown(rows)}")
        which = self.check_sequences(caller, sequences)
        on = self.stream_of(caller, stream)

        def work(journal: Journal) -> None:
            self.memory.copy(self.ledger.grow(caller, which, count, journal), on)
            self.update(on)

        self.whole(work, on)

    def truncate(self, length: object, sequences: object = None) -> None:
        """Remove the last tokens of sequences, by default of all: every layer keeps the first
        `length` tokens. `length` is one integer for all sequences, or one for each.

        Raises `LaunchError` if a sequence has fewer than `length` tokens in a layer.
        """
        caller = "KVCache.truncate"
        which = self.check_sequences(caller, sequences)
        one = integer(length, 0, INT32_MAX)
        cuts = integers(length, 0, INT32_MAX, len(which)) if one is None else [one] * len(which)
        if cuts is None:
            raise LaunchError(
                f"{caller}: length must be an integer of at least 0, or {len(which)} of them, one for "
                f"each sequence, got {shown(length)}"
            )
        for sequence, cut in zip(which, cuts, strict=True):
            layer = int(self._lengths[:, sequence].argmin())
            if cut > self._lengths[layer, sequence]:
                raise LaunchError(
                    f"{caller}: sequence {sequence} has {self._lengths[layer, sequence]} tokens in "
                    f"layer {layer}, which cannot become {cut}; give at most that number"
                )

        def work(journal: Journal) -> None:
            for sequence, cut in zip(which, cuts, strict=True):
                self.ledger.cut(sequence, cut, journal)

        self.whole(work)

    def reset(self, sequence: int | None = None) -> None:
        """Remove all tokens of a sequence, by default of all sequences. Their pages become free, except
        those that another sequence shares.

        Raises `LaunchError` if `sequence` has no tokens: it was reset before, or never used.
        """
        caller = "KVCache.reset"
        which = None if sequence is None else self.check_sequence(caller, sequence)
        if which is not None and not self._lengths[:, which].any():
            raise LaunchError(
                f"{caller}: sequence {which} has no tokens: it was reset before, or never appended "
                f"to; truncate(0, [{which}]) empties a sequence that may be empty"
            )
        self.truncate(0, None if which is None else [which])

    def fork(self, source: int, target: int | None = None, *, stream: object = None) -> int:
        """Give sequence `target`, by default the first without tokens, the tokens of `source`, in
        every layer. Returns the index of `target`.

        Pages are shared: a page is copied only when one of its sequences writes to it (copy-on-write).
        Contiguous memory is copied at once. Raises `LaunchError` if `target` is `source` or has tokens,
        `CacheFullError` if there is no `target` and every other sequence has tokens.
        """
        caller = "KVCache.fork"
        begin = self.check_sequence(caller, source, "source")
        end = (
            self.ledger.first_empty(caller, begin)
            if target is None
            else self.check_sequence(caller, target, "target")
        )
        if begin == end:
            raise LaunchError(f"{caller}: source and target must be two sequences, got {begin} twice")
        if self._lengths[:, end].any():
            raise LaunchError(
                f"{caller}: target must be without tokens, but sequence {end} has "
                f"{self._lengths[:, end].max()}; reset it first"
            )
        on = self.stream_of(caller, stream)

        def work(journal: Journal) -> int:
            self.memory.copy(self.ledger.share(begin, end, journal), on)
            return end

        return self.whole(work, on)

    def reorder(self, sources: object, sequences: object = None) -> None:
        """Let sequence `sequences[i]`, by default sequence i, hold what sequence `sources[i]` held, in every
        layer, for all i at once (beam search). Sources may repeat. No row is copied: pages are shared as by
        `fork`.

        Raises `LaunchError` for invalid indices and for contiguous memory, whose sequences cannot
        share rows, unless each sequence keeps its own.
        """
        caller = "KVCache.reorder"
        which = self.check_sequences(caller, sequences)
        of = self.check_sequences(caller, sources, "sources", repeated=True)
        if len(of) != len(which):
            raise LaunchError(
                f"{caller}: sources must be {len(which)} integers, one for each sequence, got {of}"
            )
        if of != which:
            self.whole(lambda journal: self.ledger.reorder(caller, which, of, journal))

    # --------------------------------------------------------------- for kernels and their launches

    def arrays(self, layer: int, stream: int = 0) -> LayerArrays:
        """The arrays of a layer, not copied. On a GPU, lengths and block table are updated before,
        in the order of `stream`.
        """
        self.update(stream)
        return self.memory.arrays(layer)

    def update(self, stream: int) -> None:
        """Copy lengths and block table to the GPU, if the cache is on one, in the order of `stream`."""
        self.memory.update(self.placement.changed, stream)
        self.placement.changed.clear()

    def stream_of(self, caller: str, stream: object, k: ArrayView | None = None) -> int:
        """The CUstream of a call. Raises `LaunchError` for no stream, and for any if the cache is on the
        host.
        """
        if self.memory.device == HOST:
            if stream is not None:
                raise LaunchError(
                    f"{caller}: stream is for a GPU, but the cache is of {self.backend!r}; leave out the "
                    "stream"
                )
            return 0
        if stream is not None:
            return stream_handle(stream)
        return 0 if k is None or k.device == HOST else current_stream(k)

    def check_layer(self, caller: str, layer: object) -> int:
        """`layer` as an int. Raises `LaunchError` if there is no such layer."""
        return _index(caller, "layer", layer, self.layers)

    def check_sequence(self, caller: str, sequence: object, name: str = "sequence") -> int:
        """The index of a sequence as an int. Raises `LaunchError` if there is no such sequence."""
        return _index(caller, name, sequence, self.batch)

    def check_sequences(
        self, caller: str, sequences: object, name: str = "sequences", *, repeated: bool = False
    ) -> list[int]:
        """Indices of sequences, by default of all. Raises `LaunchError` for an invalid index and,
        unless `repeated`, for one that occurs twice.
        """
        if sequences is None:
            return list(range(self.batch))
        indices = integers(sequences, 0, self.batch - 1)
        if indices is None:
            raise LaunchError(
                f"{caller}: {name} must be integers from 0 to {self.batch - 1}, got {shown(sequences)}"
            )
        if not repeated and len(set(indices)) < len(indices):
            raise LaunchError(f"{caller}: {name} must name each sequence once, got {indices}")
        return indices

    def argument(self, name: str, axes: tuple[str, ...]) -> Argument:
        """The declaration of the array of rows `name`; a cache of a narrow type takes several types."""
        taken = tuple(DTYPES.values()) if self.element.is_narrow else (self.element,)
        return Argument(name, axes, taken, f"as the cache is of {self.dtype!r}", has_rows=False)

    def problems_of_rows(self, k: ArrayView, v: ArrayView, items: int) -> Iterator[str]:
        """Say what is wrong with new keys and values for `items` sequences."""
        sizes = {"sequences": items, "kv_heads": self.kv_heads}
        sizes |= {"head_dim": self.head_dim, "head_dim_v": self.head_dim_v}
        for name, array, columns in (("k", k, "head_dim"), ("v", v, "head_dim_v")):
            argument = self.argument(name, ("sequences", "kv_heads", "n", columns))
            why_not = self.memory.why_not(array)
            if why_not:
                yield f"{name} {why_not}"
            yield from argument.type_problems(array)
            yield from argument.shape_problems(tuple(array.shape), sizes)
        if k.dtype != v.dtype and not k.device == v.device == HOST:
            yield (f"k and v on a GPU must be of one type, got {k.dtype}, {v.dtype}; convert them")

    def whole(
        self, work: Callable[[Journal], T], stream: int = 0, refresh: Callable[[int], None] | None = None
    ) -> T:
        """Do `work` as a transaction. `work` notes in a journal its changes of lengths and block table, and
        puts its GPU work on `stream`. If it raises anything, the changes are undone on the host, and
        `refresh` (by default `update`) copies the restored arrays to the GPU; if that fails, the next call
        copies them. A call inside of `work` is a part of its transaction.
        """
        if self._journal is not None:
            return work(self._journal)
        journal, last = Journal(), self.memory.stream
        try:
            self._journal = journal
            result = work(journal)
            self._journal = None
            return result  # the last line: an interrupt before it undoes, after it the call is over
        except BaseException:
            try:
                if journal.undo():
                    with suppress(Exception):  # the exception of `work` is raised
                        (refresh or self.update)(stream)
                        self.memory.wait(stream)
            finally:
                self.memory.stream, self._journal = last, None
            raise

    def advance(
        self, caller: str, layer: int, sequences: list[int], rows: list[int], journal: Journal, stream: int
    ) -> list[Stretch]:
        """Add `rows` to the lengths of `sequences` in a layer, before these rows are written. Returns the
        new rows. Raises `CacheFullError` if there is no room for all.
        """
        stretches, copies = self.ledger.append(caller, layer, sequences, rows, journal)
        self.memory.copy(copies, stream)
        return stretches

    def _copy_of(self, what: str, layer: object, sequence: object) -> tuple[Array, Array]:
        caller = f"KVCache.{what}"
        k, v = self.rows(self.check_layer(caller, layer), self.check_sequence(caller, sequence))
        return k.copy(), v.copy()


def _index(caller: str, name: str, value: object, count: int) -> int:
    """`value` as an int from 0 to `count` - 1. Raises `LaunchError` for anything else."""
    number = integer(value, 0, count - 1)
    if number is None:
        raise LaunchError(f"{caller}: {name} must be an integer from 0 to {count - 1}, got {shown(value)}")
    return number
