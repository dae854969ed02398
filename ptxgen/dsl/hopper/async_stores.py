"""Asynchronous copies from tiles to global memory (`k.tma.async_stores`): start now, wait later."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from ptxgen.dsl.hopper.cta_order import check_order, in_order
from ptxgen.dsl.hopper.pending_reads import Copy, Extent
from ptxgen.dsl.hopper.role import WARPGROUP
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.tensor_maps import Corner, Reduction, boxes_of, copy_slabs, require_reduction
from ptxgen.dsl.hopper.tiles import BoxTile
from ptxgen.dsl.tiles import SharedTile, TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, did_you_mean, shown
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, b32, b64, bf16, f16, u32

StoringThreads: TypeAlias = Literal["all", "warpgroup", "thread"]

_THREADS: Final = ("all", "warpgroup", "thread")
_BULK_UNIT: Final = 16  # bytes; PTX ISA, "cp.async.bulk": addresses and sizes are multiples of it
_LOG_WARP: Final = WARP_SIZE.bit_length() - 1
_LOG_WARPGROUP: Final = WARPGROUP.bit_length() - 1
_BITS: Final = {b32.bits: b32, b64.bits: b64}


class AsyncStores:
    """Copies from tiles in shared memory to global memory that are started now and waited for later, by one
    thread: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy", `cp.async.bulk`,
    `cp.reduce.async.bulk` and their tensor forms, which complete in bulk groups of the thread that starts
    them.

    `k.tma.async_stores(threads)` says which threads come to each call, and have written the tile:

    * "all": those of the role, or outside of roles those of the CTA. They meet at their barrier, and one of
      them starts the copy;
    * "warpgroup": those of each warpgroup, which starts a copy of its own;
    * "thread": the one thread that starts the copy, inside of a `when`. Before it, the threads that have
      written the tile execute `k.fence_proxy_async(space="shared::cta")` and meet it at a barrier.

    The tile must not be written before `wait_read`. Where the kernel's text shows such a write, or the end
    of the code without a wait, `TypeMismatchError` is raised; the sanitizer `race` reports the others.
    """

    def __init__(self, k: Roles, threads: StoringThreads) -> None:
        if threads not in _THREADS:
            raise ConfigError(
                f"tma.async_stores: threads must be one of {', '.join(_THREADS)}, got {shown(threads)}"
                f"{did_you_mean(threads, _THREADS)}"
            )
        self._k = k
        self._role = role = k.present_role
        self._threads = threads
        self._leads: Value | None = None
        self._meet: Callable[[], None] | None = None
        # Who waits: the thread of "all" waits in `k.tma.store`, too.
        self._key: Hashable = ("all", role) if threads == "all" else self
        if threads == "thread":
            return
        k.require_present("tma.async_stores")
        warpgroups = role.warpgroups if role else k.threads // (WARPGROUP * WARP_SIZE)
        whole = role is not None or k.threads % (WARPGROUP * WARP_SIZE) == 0
        if threads == "warpgroup" and not (warpgroups and whole):
            of = f"role {role.name!r} has {role.warps} warps" if role else f"the CTA has {k.threads} threads"
            raise ConfigError(
                f"tma.async_stores: threads='warpgroup' is for whole warpgroups of {WARPGROUP} warps, but "
                f"{of}; use threads='all'"
            )
        if threads == "warpgroup" and warpgroups > 1:
            self._by_warpgroups(warpgroups)
        elif role is not None:
            self._leads, self._meet = role.leads, role.barrier.sync
        else:
            self._leads, self._meet = k.thread_index() == 0, k.barrier

    def _by_warpgroups(self, count: int) -> None:
        """Choose a thread of each warpgroup, and give each warpgroup a named barrier."""
        k, role = self._k, self._role
        warp = (
            k.warp_index if role else k.shfl(k.thread_index() >> _LOG_WARP, 0, WARP_SIZE - 1, -1, mode="idx")
        )
        _, chosen = k.elect(-1)
        self._leads = (warp & (WARPGROUP - 1) == 0) & chosen
        first = k.take_barriers("tma.async_stores", count) - (role.first // WARPGROUP if role else 0)
        number = (warp >> _LOG_WARPGROUP) + first
        self._meet = lambda: k.bar_sync(number, WARPGROUP * WARP_SIZE)

    @property
    def leads(self) -> Value:
        """Whether this thread is the one that starts the copies and waits for them. Raises `ConfigError`
        for threads="thread", where the kernel chooses it.
        """
        if self._leads is None:
            raise ConfigError(
                "async_stores.leads: with threads='thread' the kernel chooses the thread itself"
            )
        return self._leads

    # ------------------------------------------------------------------------------ copies

    def store(
        self, tile: BoxTile | SharedTile, to: Corner | Pointer, *, first: Scalar = 0, count: int | None = None
    ) -> None:
        """Start copying a tile to the box of a tensor at `to`, such as `C[row, column]`; or `count` of its
        elements (None: all others), from number `first` on (an int or u32), to consecutive elements at the
        pointer `to` in global memory, such as `P.element(i)`, in the order in which shared memory has them.

        A block of consecutive elements has a multiple of 16 bytes, and begins at one in both memories. It
        is for tiles without gaps: `k.tma.tile`, whose swizzle the block keeps, and `k.shared`. Raises
        `TypeMismatchError` for elements of two types, for other arguments, and where other threads come;
        `ConfigError` for blocks that do not fit.
        """
        caller = "async_stores.store"
        if isinstance(to, Corner):
            boxes = boxes_of(caller, tile, to)
            self._whole(caller, first, count)
            tile = cast(BoxTile, tile)  # so says `boxes_of`
            to.of.fix(replace(boxes, stores=True))
            self._start(
                caller, tile, tile.extent, partial(copy_slabs, self._k.cp_async_bulk_tensor_store, tile, to)
            )
            return
        at, nbytes = self._block(caller, tile, to, first, count)
        self._start(caller, tile, Extent.of(at, nbytes), lambda: self._k.cp_async_bulk_store(to, at, nbytes))

    def reduce(
        self,
        tile: BoxTile | SharedTile,
        to: Corner | Pointer,
        op: Reduction,
        *,
        first: Scalar = 0,
        count: int | None = None,
        order: tuple[Pointer, Scalar] | None = None,
    ) -> None:
        """Start combining elements of global memory with those of a tile: each becomes `op` of its old
        value and the tile's element. `op` is as in `k.tma.reduce`, all else as in `store`.

        Elements are combined in one step each, so several CTAs may combine into one block; sums of floats
        depend on the order of the CTAs. With `order=(counter, ticket)` CTAs combine in the order of their
        tickets: the thread waits and counts as in `k.in_order`, and its copy is complete when it goes on.
        """
        caller = "async_stores.reduce"
        k = self._k
        if order is not None:
            if not _is_pair(order):
                raise TypeMismatchError(f"{caller}: order must be (counter, ticket), got {shown(order)}")
            check_order(caller, *order)
        if isinstance(to, Corner):
            boxes = boxes_of(caller, tile, to)
            tile = cast(BoxTile, tile)  # so says `boxes_of`
            self._whole(caller, first, count)
            require_reduction(caller, op, to.of.name, to.of.type.dtype)
            to.of.fix(replace(boxes, loads=True, stores=True))
            copy = partial(copy_slabs, k.cp_reduce_async_bulk_tensor, tile, to, op=op)
            self._start(caller, tile, tile.extent, copy, order)
            return
        at, nbytes = self._block(caller, tile, to, first, count)
        require_reduction(caller, op, repr(tile.name), to.dtype)
        reduction, modifiers = _bulk_reduction(op, to.dtype)
        emit = getattr(k, reduction)
        self._start(caller, tile, Extent.of(at, nbytes), lambda: emit(to, at, nbytes, **modifiers), order)

    # ------------------------------------------------------------------------------ waits

    def wait_read(self, pending: int = 0, *, meet: bool = True) -> None:
        """Wait until all copies but the newest `pending` have read their tiles, which may be written then
        (PTX ISA, "cp.async.bulk.wait_group", `.read`).

        The thread that starts the copies waits, and the others meet it at their barrier; with `meet=False`
        they do not, and a later barrier tells them.
        """
        self._wait("async_stores.wait_read", pending, read=True, meet=meet)

    def wait_written(self, pending: int = 0, *, meet: bool = True) -> None:
        """Wait until all copies but the newest `pending` are complete: threads that come after it read
        their results. The rest is as in `wait_read`.
        """
        self._wait("async_stores.wait_written", pending, read=False, meet=meet)

    def _wait(self, caller: str, pending: int, *, read: bool, meet: bool) -> None:
        if not is_int(pending) or pending < 0:
            raise ConfigError(f"{caller}: pending must be an integer of at least 0, got {shown(pending)}")
        self._require(caller)
        with self._one_thread():
            self._k.cp_async_bulk_wait_group(pending, read=read)
        if meet and self._meet is not None:
            self._meet()
        self._k.pending_reads.waited(self._key, pending, read=read)

    # ------------------------------------------------------------------------------ inside

    def _start(
        self,
        caller: str,
        tile: BoxTile | SharedTile,
        extent: Extent,
        copy: Callable[[], None],
        order: tuple[Pointer, Scalar] | None = None,
    ) -> None:
        """Have one thread start `copy`, which reads `extent` of a tile, in a group by itself."""
        k = self._k
        self._require(caller)
        if self._meet is not None:
            k.fence_proxy_async(space="shared::cta")
            self._meet()
        path = k.block_path
        with self._one_thread(), self._ordered(order):
            copy()
            k.cp_async_bulk_commit_group()
            if order is not None:
                k.cp_async_bulk_wait_group(0)
        owner = tile.owner if isinstance(tile, BoxTile) else None
        k.pending_reads.started(Copy(tile.name, extent, owner, self._key, k.origin(), path))
        if order is not None:  # other threads do not know yet that the tile has been read
            k.pending_reads.completed(self._key)

    def _ordered(self, order: tuple[Pointer, Scalar] | None) -> AbstractContextManager[None]:
        return nullcontext() if order is None else contextmanager(in_order)(self._k, *order)

    def _one_thread(self) -> AbstractContextManager[object]:
        return nullcontext() if self._leads is None else self._k.when(self._leads)

    def _require(self, caller: str) -> None:
        """Raise `TypeMismatchError` unless the threads of these stores come here."""
        k, role = self._k, self._role
        if k.present_role is not role:
            of, there = (f"the role {r.name!r}" if r else "the CTA" for r in (role, k.present_role))
            raise TypeMismatchError(
                f"{caller}: these async_stores are for threads of {of}, and are used in the code of {there}; "
                "make others there with k.tma.async_stores()"
            )
        if self._threads == "thread":
            k.require_branch(caller)
        elif self._threads == "all":
            k.require_present(caller)
        else:
            k.refuse_predicated(caller)

    def _whole(self, caller: str, first: Scalar, count: int | None) -> None:
        if not (is_int(first) and first == 0) or count is not None:
            raise ConfigError(
                f"{caller}: a box takes the whole tile; first and count are for a pointer, got first="
                f"{shown(first)} and count={shown(count)}"
            )

    def _block(
        self, caller: str, tile: object, to: object, first: Scalar, count: int | None
    ) -> tuple[TilePointer, int]:
        """The pointer to a block of consecutive elements of a tile, and its bytes."""
        if not isinstance(tile, BoxTile | SharedTile) or not isinstance(to, Pointer) or to.space != "global":
            raise TypeMismatchError(
                f"{caller}: it takes a tile, and a box of a tensor, such as A[row, column], or a pointer to "
                f"global memory, got {shown(tile)} and {shown(to)}"
            )
        if isinstance(tile, BoxTile):
            dtype, dense = tile.layout.dtype, tile.layout.nbytes == tile.layout.tile_bytes
        else:
            dtype, dense = tile.dtype, tile.pitch == tile.columns
        if to.dtype is not dtype:
            raise TypeMismatchError(
                f"{caller}: tile {tile.name!r} has elements of {dtype}, the pointer is to {to.dtype}"
            )
        elements = tile.rows * tile.columns
        if not dense:
            raise ConfigError(
                f"{caller}: tile {tile.name!r} has gaps between its rows or slabs, and a block of "
                "consecutive elements none; copy it to a box of a tensor"
            )
        rest = elements - int(first) if is_int(first) else 0
        wanted = rest if count is None else count
        unit = max(_BULK_UNIT // dtype.nbytes, 1)
        right = is_count(wanted) and wanted <= elements and wanted % unit == 0
        if isinstance(first, Value):
            right = right and first.type is u32
        else:
            right = right and is_int(first) and first % unit == 0 and 0 <= first <= elements - wanted
        if not right:
            raise ConfigError(
                f"{caller}: a block begins at a multiple of {unit} elements ({_BULK_UNIT} bytes) and has "
                f"such a multiple, of the {elements} of tile {tile.name!r}; got first={shown(first)}, "
                f"count={shown(count)}"
            )
        nbytes = first * dtype.nbytes
        if isinstance(tile, BoxTile):
            return tile.at(nbytes), wanted * dtype.nbytes
        start = tile.pointer()
        at = start.moved(start.value + nbytes) if isinstance(nbytes, Value) else start.plus_bytes(int(nbytes))
        return at, wanted * dtype.nbytes


def _is_pair(order: object) -> bool:
    return isinstance(order, tuple) and len(order) == len(("counter", "ticket"))


def _bulk_reduction(op: str, dtype: ScalarType) -> tuple[str, dict[str, Any]]:
    """The row of a bulk reduction, and its modifiers."""
    if op == "add":
        return f"cp_reduce_async_bulk_add{'_noftz' * (dtype in (f16, bf16))}", {"type": dtype}
    if op in ("and", "or", "xor"):
        return "cp_reduce_async_bulk_and", {"op": op, "type": _BITS[dtype.bits]}
    return f"cp_reduce_async_bulk_{'inc' if op in ('inc', 'dec') else 'min'}", {"op": op, "type": dtype}
